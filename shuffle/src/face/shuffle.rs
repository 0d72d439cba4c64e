//! The byte face of the engine: records of any length with 32 bits of kind.

use trihop_transport::topology::Rank;

use super::verbs::common_verbs;
use crate::config::StreamOptions;
use crate::deliver::{Delivery, Message, Messages};
use crate::endpoint::Channel;
use crate::engine::BadRun;
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::seat::{Handle, Inline, Seat, Seating};
use crate::terminate::flush::Queues;

/// Opens a [`Shuffle`]: name, options, handler.
pub struct ShuffleBuilder<S: Seat> {
    seat: S,
    name: String,
    options: Option<StreamOptions>,
    handler: Option<S::Handler>,
}

impl<S: Seat> ShuffleBuilder<S> {
    pub(crate) fn new(seat: &S, name: &str) -> Self {
        Self {
            seat: seat.clone(),
            name: name.to_owned(),
            options: None,
            handler: None,
        }
    }

    /// Options of this shuffle instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.options = Some(options);
        self
    }

    /// The option `memory_bytes` that the shuffle will have.
    pub(crate) fn memory_bytes(&self) -> Result<usize> {
        match &self.options {
            Some(options) => Ok(options.memory_bytes),
            None => self
                .seat
                .with("an opening", |job| Ok(job.options.stream.memory_bytes)),
        }
    }

    pub(crate) fn handle_by(mut self, handler: S::Handler) -> Self {
        self.handler = Some(handler);
        self
    }

    /// Opens the shuffle; collective.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Shuffle<S>> {
        self.open_over(Channel::Calls)
    }

    /// Opens the shuffle, in an order of its own beside other collective calls: for the one thread
    /// of an interface that opens shuffles as its callers' ranks come.
    #[doc(hidden)]
    pub fn open_apart(self) -> Result<Shuffle<S>> {
        self.open_over(Channel::Apart)
    }

    fn open_over(self, channel: Channel) -> Result<Shuffle<S>> {
        let Self {
            seat,
            name,
            options,
            handler,
        } = self;
        let handle = seat.open(channel, &name, options, 0, handler)?;
        Ok(Shuffle { handle })
    }
}

impl<'h> ShuffleBuilder<Inline<'h>> {
    /// Calls `handler` for every record that arrives, during any call that makes progress. Without
    /// a handler, records wait for [`Shuffle::take`].
    pub fn handler(self, mut handler: impl FnMut(Message<'_>, &mut Outbox<'_>) + 'h) -> Self {
        self.handle_by(Box::new(move |delivery, done, outbox| {
            each_message(delivery, done, |message, first| {
                // Between the records of a run a spill may be filled: the rest of the run waits.
                if !first && outbox.has_overfilled() {
                    return Ok(false);
                }
                handler(message, outbox);
                Ok(true)
            })
        }))
    }
}

impl<'h> ShuffleBuilder<Inline<'h>> {
    /// As [`handler`](Self::handler), called for all records at once that arrived one after the
    /// other from one source, as many as a run has: for programs that take a lock, or look
    /// something up, once for all of them. A spill that is filled meanwhile keeps only the next
    /// call waiting.
    pub fn run_handler(self, mut handler: impl FnMut(Messages<'_>, &mut Outbox<'_>) + 'h) -> Self {
        self.handle_by(Box::new(move |delivery, _, outbox| {
            let messages = Messages::of(delivery)?;
            let count = messages.len();
            handler(messages, outbox);
            Ok(count)
        }))
    }
}

/// Hands the records from number `done` on to `take`, until it returns false or fails; returns how
/// many are done then.
pub(crate) fn each_message(
    delivery: Delivery<'_>,
    done: usize,
    mut take: impl FnMut(Message<'_>, bool) -> Result<bool, BadRun>,
) -> Result<usize, BadRun> {
    match delivery {
        Delivery::Run(run) => {
            let source = Rank(run.header.source);
            let mut now = 0;
            for record in run.records() {
                let (kind, bytes) = record?;
                let message = Message {
                    source,
                    kind,
                    bytes,
                };
                if now >= done && !take(message, now == done)? {
                    break;
                }
                now += 1;
            }
            Ok(now)
        }
        Delivery::Record {
            source,
            kind,
            bytes,
        } => {
            let message = Message {
                source: Rank(source),
                kind,
                bytes: bytes.into_slice(),
            };
            take(message, true)?;
            Ok(1)
        }
    }
}

/// A shuffle of byte records between all ranks of a job. Clones are handles of the same shuffle.
#[derive(Clone)]
pub struct Shuffle<S: Seat> {
    pub(crate) handle: Handle<S>,
}

impl<S: Seat> Shuffle<S> {
    /// Sends a record; waits, with progress and deliveries, while its queue is full. The bytes are
    /// copied. Records that one thread sends, or several after one another, keep their order.
    ///
    /// From a handler on a delivery thread it never waits: what finds no room goes to the spill,
    /// ahead of what the application sends. The handler's next call waits as long as that is above
    /// its mark, a share of `memory_bytes`, and drains. A handler of an inline job sends with its
    /// [`Outbox`].
    ///
    /// # Errors
    /// A bad rank or length, a dead peer, a call from inside an inline handler; without a handler
    /// [`Error::WouldBlock`] when only taking deliveries can make room; [`Error::SpillFull`] where
    /// handlers send more than memory may hold.
    #[inline]
    pub fn send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.handle.send_record(target, kind, bytes)
    }

    /// Sends a record if there is room now; never waits and makes no progress.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing taken; a bad rank or length.
    #[inline]
    pub fn try_send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.handle.try_send_record(target, kind, bytes)
    }

    /// One round of progress, then every record that waits is handed to `take`, which may send;
    /// returns how many. For shuffles without a handler.
    ///
    /// # Errors
    /// As [`Shuffle::poll`]; a shuffle that has a handler.
    pub fn take(&self, mut take: impl FnMut(Message<'_>)) -> Result<u64> {
        self.handle.take(|delivery| {
            let all = |message: Message<'_>, _| {
                take(message);
                Ok(true)
            };
            each_message(delivery, 0, all).map(|_| ())
        })
    }

    /// [`Shuffle::flush`] of the origin queues.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn flush_origin(&self) -> Result<()> {
        self.flush(Queues::ORIGIN)
    }

    /// [`Shuffle::flush`] of the remote queues.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn flush_remote(&self) -> Result<()> {
        self.flush(Queues::REMOTE)
    }

    /// [`Shuffle::flush`] of the relay queues.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn flush_relay(&self) -> Result<()> {
        self.flush(Queues::RELAY)
    }

    /// [`Shuffle::flush`] of what has arrived and waits to be handled.
    ///
    /// # Errors
    /// As [`Shuffle::flush`].
    pub fn flush_delivery(&self) -> Result<()> {
        self.flush(Queues::Delivery)
    }
}

common_verbs!([S: Seat] Shuffle<S>);

impl Outbox<'_> {
    /// What sends on another stream of the same job, from inside a handler: by the same rules.
    ///
    /// # Errors
    /// [`Error::Closed`] where that stream was shut down and another has its place.
    pub fn on<S: Seat>(&mut self, shuffle: &Shuffle<S>) -> Result<Outbox<'_>> {
        self.for_handle(&shuffle.handle)
    }

    pub(crate) fn for_handle<S: Seating>(&mut self, handle: &Handle<S>) -> Result<Outbox<'_>> {
        let closed = || Error::Closed((*handle.name).to_owned());
        self.for_stream(handle.id).ok_or_else(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Shares;
    use crate::{Job, Options, Rank};
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
                    outbox.send(Rank(0), 1, &[1u8; 15 << 10]).unwrap();
                    answered.set(answered.get() + 1);
                }
                _ => answers.set(answers.get() + 1),
            })
            .open()
            .unwrap();
        for _ in 0..126 {
            shuffle.try_send(Rank(0), 0, b"").unwrap();
        }
        // All requests come in a few runs: what fills the lane is spilled, and the rest of the run
        // waits.
        while answered.get() == 0 {
            shuffle.poll().unwrap();
        }
        assert!(
            answered.get() < 126,
            "{} were answered at once",
            answered.get()
        );
        shuffle.fence().unwrap();
        assert_eq!((answered.get(), answers.get()), (126, 126));
    }

    #[test]
    fn a_long_record_that_nobody_takes_is_its_senders_again_when_the_send_returns() {
        let job = Job::start(Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        })
        .unwrap();
        let options = StreamOptions {
            deliverq_max: 1,
            ..StreamOptions::default()
        };
        let shuffle = job.shuffle("long").options(options).open().unwrap();
        let mut record = vec![1; 300_000];
        shuffle.send(Rank(0), 0, &record).unwrap();
        // The first one fills the delivery queue, so most of this one finds no room.
        record.fill(2);
        shuffle.send(Rank(0), 1, &record).unwrap();
        record.fill(3);
        let mut taken = Vec::new();
        while taken.len() < 2 {
            shuffle
                .take(|message| taken.push((message.kind, message.bytes.to_vec())))
                .unwrap();
        }
        let sent = [(0, vec![1; 300_000]), (1, vec![2; 300_000])];
        assert!(taken == sent, "not as they were sent");
        shuffle.shutdown().unwrap();
        job.shutdown().unwrap();
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
            stream
                .handle
                .with_out("a test", |out| Ok(out.close_runs()))
                .unwrap();
            let publish = |out: &mut crate::engine::outbound::Outbound| {
                out.publish(crate::queue::counters::SendReason::Flush);
                Ok(())
            };
            stream.handle.with_out("a test", publish).unwrap();
        }
        job.progress().unwrap();
        assert_eq!(*heard.borrow(), ["urgent", "usual", "as usual", "bulk"]);
    }
}
