//! The byte face of the engine: records of any length with 32 bits of kind.

use std::io::Write;
use std::rc::Rc;

use trihop_transport::topology::Rank;

use crate::config::StreamOptions;
use crate::deliver::{Delivery, Message, has_overfilled};
use crate::dump;
use crate::engine::BadRun;
use crate::engine::outbox::Outbox;
use crate::error::Result;
use crate::face::handle::{Handle, Opening};
use crate::job::JobState;
use crate::stats::{DetailedStats, Stats};
use crate::terminate::flush::Queues;

/// Opens a [`Shuffle`]: name, options, handler.
pub struct ShuffleBuilder<'h> {
    opening: Opening<'h>,
}

impl<'h> ShuffleBuilder<'h> {
    pub(crate) fn new(job: Rc<JobState<'h>>, name: &str) -> Self {
        let opening = Opening::new(job, name);
        Self { opening }
    }

    /// Options of this shuffle instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.opening.take_options(options);
        self
    }

    /// Calls `handler` for every record that arrives, during any call that makes progress. Without a handler,
    /// records wait for [`Shuffle::take`].
    pub fn handler(mut self, mut handler: impl FnMut(Message<'_>, &mut Outbox<'_>) + 'h) -> Self {
        self.opening.take_handler(move |delivery, done, outbox| {
            each_message(delivery, done, |message, first| {
                // Between the records of a run a spill may be filled: the rest of the run waits.
                if !first && has_overfilled() {
                    return false;
                }
                handler(message, outbox);
                true
            })
        });
        self
    }

    /// Opens the shuffle; collective.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Shuffle<'h>> {
        let handle = self.opening.open(0)?;
        Ok(Shuffle { handle })
    }
}

/// Hands the records from number `done` on to `take`, until it returns false; returns how many are done then.
pub(crate) fn each_message(
    delivery: Delivery<'_>,
    done: usize,
    mut take: impl FnMut(Message<'_>, bool) -> bool,
) -> Result<usize, BadRun> {
    match delivery {
        Delivery::Run(run) => {
            let source = Rank(run.header.source);
            let mut now = 0;
            for record in run.records() {
                let (kind, bytes) = record?;
                if now >= done && !take(Message { source, kind, bytes }, now == done) {
                    break;
                }
                now += 1;
            }
            Ok(now)
        }
        Delivery::Record { source, kind, bytes } => {
            take(
                Message {
                    source: Rank(source),
                    kind,
                    bytes,
                },
                true,
            );
            Ok(1)
        }
    }
}

/// A shuffle of byte records between all ranks of a job. Clones are handles of the same shuffle.
#[derive(Clone)]
pub struct Shuffle<'h> {
    pub(crate) handle: Handle<'h>,
}

impl<'h> Shuffle<'h> {
    /// Name given at opening.
    pub fn name(&self) -> &str {
        &self.handle.core.name
    }

    /// Sends a record; waits, with progress and deliveries, while its queue is full. The bytes are copied.
    ///
    /// # Errors
    /// A bad rank or length, a dead peer, a call from inside a handler that would have to wait; without a handler
    /// [`crate::Error::WouldBlock`] when only taking deliveries can make room.
    #[inline]
    pub fn send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.handle.send_with(|out| out.try_send(target, kind, bytes))
    }

    /// Sends a record if there is room now; never waits and makes no progress.
    ///
    /// # Errors
    /// [`crate::Error::WouldBlock`], with nothing taken; a bad rank or length.
    #[inline]
    pub fn try_send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.handle.outbound()?.try_send(target, kind, bytes)
    }

    /// What sends from inside a handler of another stream: never waits, spills what finds no room.
    pub fn outbox(&self) -> Outbox<'_> {
        Outbox::new(&self.handle.core.out)
    }

    /// One round of progress; returns the records that were delivered to this shuffle.
    ///
    /// # Errors
    /// The transport's, and [`crate::Error::Nested`] inside a handler.
    pub fn poll(&self) -> Result<u64> {
        self.handle.poll()
    }

    /// One round of progress, then every record that waits is handed to `take`; returns how many.
    ///
    /// # Errors
    /// As [`Shuffle::poll`]; a shuffle that has a handler.
    pub fn take(&self, mut take: impl FnMut(Message<'_>)) -> Result<u64> {
        self.handle.take(|delivery| {
            let all = |message: Message<'_>, _| {
                take(message);
                true
            };
            each_message(delivery, 0, all).map(|_| ())
        })
    }

    /// Waits until the queues of one class have passed on what was in them.
    ///
    /// # Errors
    /// As [`Shuffle::poll`]; without a handler [`crate::Error::WouldBlock`] when only taking deliveries can make room.
    pub fn flush(&self, queues: Queues) -> Result<()> {
        self.handle.flush(queues)
    }

    /// [`Shuffle::flush`] of the origin queues.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn flush_origin(&self) -> Result<()> {
        self.flush(Queues::Origin)
    }

    /// [`Shuffle::flush`] of the remote queues.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn flush_remote(&self) -> Result<()> {
        self.flush(Queues::Remote)
    }

    /// [`Shuffle::flush`] of the relay queues.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn flush_relay(&self) -> Result<()> {
        self.flush(Queues::Relay)
    }

    /// [`Shuffle::flush`] of what has arrived and waits to be handled.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn flush_delivery(&self) -> Result<()> {
        self.flush(Queues::Delivery)
    }

    /// Collective: returns on every rank when every record that any rank sent before, and every record that handlers
    /// sent because of them, has been handled (or waits for [`Shuffle::take`]).
    ///
    /// # Errors
    /// As [`Shuffle::flush`]; after [`crate::Error::WouldBlock`] take deliveries and call again on this rank.
    pub fn fence(&self) -> Result<()> {
        self.handle.fence()
    }

    /// As [`crate::Job::barrier`], but gives way when only taking deliveries can make room, so that the flushes of
    /// others can end: for streams without a handler.
    ///
    /// # Errors
    /// As [`Shuffle::flush`]; after [`crate::Error::WouldBlock`] take deliveries and call again on this rank.
    pub fn barrier(&self) -> Result<()> {
        self.handle.barrier()
    }

    /// Counters of this rank. While a reservation of another handle is open, those of the sending side are 0.
    pub fn stats(&self) -> Stats {
        self.handle.core.snapshot()
    }

    /// Counters of this rank, of each of its queues too. As [`Shuffle::stats`], without a reading of the clock.
    pub fn detailed_stats(&self) -> DetailedStats {
        self.handle.core.detailed()
    }

    /// Writes every queue of this rank with its use and its bound, and the memory formula with its value.
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        dump::write(&self.handle.core, writer)
    }

    /// A fence, after which the shuffle takes and delivers nothing more. Collective. Its memory is kept until the job
    /// ends, since libfabric cannot take posted receives back.
    ///
    /// # Errors
    /// As [`Shuffle::fence`].
    pub fn shutdown(self) -> Result<()> {
        self.handle.shut_down()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Shares;
    use crate::{Job, Options};
    use trihop_transport::bootstrap::Launcher;

    #[test]
    fn a_handler_that_fills_the_spill_is_called_no_more_until_it_drains() {
        let (answered, answers) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let job = Job::start(Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        })
        .unwrap();
        let options = StreamOptions {
            given_shares: Some(Shares {
                spill_mark_bytes: 1,
                ..Shares::default()
            }),
            ..StreamOptions::default()
        };
        let shuffle = job
            .shuffle("answers")
            .options(options)
            .handler(|message, outbox| match message.kind {
                0 => {
                    outbox.send(Rank(0), 1, &[1u8; 16 << 10]).unwrap();
                    answered.set(answered.get() + 1);
                }
                _ => answers.set(answers.get() + 1),
            })
            .open()
            .unwrap();
        for _ in 0..126 {
            shuffle.try_send(Rank(0), 0, b"").unwrap();
        }
        // All requests come in a few runs: what fills the lane is spilled, and the rest of the run waits.
        while answered.get() == 0 {
            shuffle.poll().unwrap();
        }
        assert!(answered.get() < 126, "{} were answered at once", answered.get());
        shuffle.fence().unwrap();
        assert_eq!((answered.get(), answers.get()), (126, 126));
    }
    #[test]
    fn streams_of_a_higher_priority_are_served_first() {
        let heard = std::cell::RefCell::new(Vec::new());
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = Job::start(options).unwrap();
        let open = |name: &'static str, priority| {
            let heard = &heard;
            let options = StreamOptions {
                priority,
                ..StreamOptions::default()
            };
            job.shuffle(name)
                .options(options)
                .handler(move |_, _| heard.borrow_mut().push(name))
                .open()
                .unwrap()
        };
        let streams = [
            open("bulk", 0),
            open("urgent", 9),
            open("usual", 5),
            open("as usual", 5),
        ];
        for stream in &streams {
            stream.send(Rank(0), 0, b"").unwrap();
            stream.handle.outbound().unwrap().close_runs();
            stream
                .handle
                .outbound()
                .unwrap()
                .publish(crate::queue::tally::Why::Flush);
        }
        job.progress().unwrap();
        assert_eq!(*heard.borrow(), ["urgent", "usual", "as usual", "bulk"]);
    }
}
