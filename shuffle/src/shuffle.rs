//! The byte face of the engine: records of any length with 32 bits of kind.

use std::cell::RefMut;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use trihop_transport::topology::Rank;

use crate::collective::{Operation, Reduce};
use crate::config::StreamOptions;
use crate::deliver::{Delivery, DeliveryQueue, Message, Outbox, Sink, borrow};
use crate::dump;
use crate::engine::Core;
use crate::engine::outbound::Outbound;
use crate::error::{Error, Result};
use crate::flush::{Flush, Queues};
use crate::job::Inner;
use crate::stats::{DetailedStats, Stats};

/// Sends between two rounds of progress while nothing is refused: a rank that only sends still forwards and ages.
const SENDS_PER_ROUND: u32 = 512;

/// What both faces of a stream share: its engine and its job.
pub(crate) struct Handle<'h> {
    pub core: Rc<Core<'h>>,
    pub job: Rc<Inner<'h>>,
    sends: std::cell::Cell<u32>,
}

impl Clone for Handle<'_> {
    fn clone(&self) -> Self {
        Self::new(Rc::clone(&self.core), Rc::clone(&self.job))
    }
}

impl<'h> Handle<'h> {
    pub fn new(core: Rc<Core<'h>>, job: Rc<Inner<'h>>) -> Self {
        Self {
            core,
            job,
            sends: std::cell::Cell::new(0),
        }
    }

    #[inline]
    pub fn outbound(&self) -> Result<RefMut<'_, Outbound>> {
        borrow(&self.core.out)
    }

    /// Tries `send` until it is taken, with progress in between.
    #[inline]
    pub fn send_with(&self, mut send: impl FnMut(&mut Outbound) -> Result<()>) -> Result<()> {
        // Outside of the `match`, whose scrutinee would keep the queues borrowed while progress needs them.
        let sent = send(&mut *self.outbound()?);
        match sent {
            Ok(()) => self.count_send(),
            Err(Error::WouldBlock) => self.send_waiting(&mut send),
            Err(error) => Err(error),
        }
    }

    /// Space in the open run of `target`. The borrow that finds it is the one that keeps it: any progress in between
    /// could send the run on.
    fn reserve(&self, target: Rank, kind: u32, bytes: usize) -> Result<RefMut<'_, Outbound>> {
        self.count_send()?;
        loop {
            let mut out = self.outbound()?;
            match out.reserve(target, kind, bytes) {
                Ok(()) => return Ok(out),
                Err(Error::WouldBlock) => {}
                Err(error) => return Err(error),
            }
            drop(out);
            // Waits until the same reservation would succeed, and gives that one up again.
            self.send_waiting(&mut |out| {
                out.reserve(target, kind, bytes)?;
                out.retract(target, bytes);
                Ok(())
            })?;
        }
    }

    /// Makes a round of progress every few hundred sends.
    #[inline]
    fn count_send(&self) -> Result<()> {
        let sends = self.sends.get() + 1;
        self.sends.set(sends);
        if sends >= SENDS_PER_ROUND {
            self.sends.set(0);
            if !self.job.endpoint.is_busy() {
                self.job.progress_in_passing()?;
            }
        }
        Ok(())
    }

    #[cold]
    fn send_waiting(&self, send: &mut dyn FnMut(&mut Outbound) -> Result<()>) -> Result<()> {
        if self.job.endpoint.is_busy() {
            return Err(Error::Nested("a send that waits"));
        }
        self.job.wait(|| match send(&mut *self.outbound()?) {
            Ok(()) => Ok(Some(())),
            Err(Error::WouldBlock) => {
                self.check_undelivered()?;
                Ok(None)
            }
            Err(error) => Err(error),
        })
    }

    /// Without a handler nobody but the application can make room in the delivery queue: waiting would be for ever.
    fn check_undelivered(&self) -> Result<()> {
        match &*self.core.sink.borrow() {
            Sink::Queue(queue) if queue.is_blocked() => Err(Error::WouldBlock),
            _ => Ok(()),
        }
    }

    pub fn poll(&self) -> Result<u64> {
        let before = self.core.delivered();
        self.job.progress()?;
        Ok(self.core.delivered() - before)
    }

    pub fn flush(&self, queues: Queues) -> Result<()> {
        if self.job.endpoint.is_busy() {
            return Err(Error::Nested("a flush"));
        }
        self.check_open()?;
        let mut flush = Flush::begin(queues, &self.core);
        self.core.hurry();
        let outcome = self.job.wait(|| {
            if flush.poll(&self.core)? {
                return Ok(Some(()));
            }
            self.check_undelivered()?;
            Ok(None)
        });
        self.core.calm();
        outcome
    }

    /// A fence that gives way with [`Error::WouldBlock`] stays under way: the others count on its open round.
    pub fn fence(&self) -> Result<()> {
        if self.job.endpoint.is_busy() {
            return Err(Error::Nested("a fence"));
        }
        self.check_open()?;
        let mut fence = self.core.fence.take().unwrap_or_default();
        let outcome = self.job.wait(|| {
            if fence.poll(&self.core, &mut self.job.endpoint.collectives.borrow_mut()) {
                return Ok(Some(()));
            }
            self.check_undelivered()?;
            Ok(None)
        });
        if outcome.is_err() {
            self.core.fence.set(Some(fence));
            return outcome;
        }
        self.job.pass_on_results()
    }

    /// A barrier that gives way as a fence does.
    pub fn barrier(&self) -> Result<()> {
        if self.job.endpoint.is_busy() {
            return Err(Error::Nested("a barrier"));
        }
        self.check_open()?;
        let begin = || {
            let sum = Operation::Reduce(Reduce::Sum);
            self.job
                .endpoint
                .collectives
                .borrow_mut()
                .begin(self.core.id, sum, &[])
        };
        let ticket = self.core.barrier.take().unwrap_or_else(begin);
        let outcome = self.job.wait(|| {
            if self.job.endpoint.collective_result(ticket).is_some() {
                return Ok(Some(()));
            }
            self.check_undelivered()?;
            Ok(None)
        });
        if outcome.is_err() {
            self.core.barrier.set(Some(ticket));
            return outcome;
        }
        self.job.pass_on_results()
    }

    /// An error once nobody would make this stream complete any more.
    fn check_open(&self) -> Result<()> {
        if self.outbound()?.closed {
            return Err(Error::Closed(self.core.name.clone()));
        }
        Ok(())
    }

    pub fn shut_down(&self) -> Result<()> {
        self.fence()?;
        self.outbound()?.closed = true;
        *self.core.sink.borrow_mut() = Sink::Closed;
        Ok(())
    }

    /// Hands what waits to `take`, after a round of progress.
    pub fn take(
        &self,
        mut take: impl FnMut(Delivery<'_>) -> Result<(), crate::engine::BadRun>,
    ) -> Result<u64> {
        self.job.progress()?;
        let _busy = self.job.endpoint.enter("take")?;
        let mut sink = self.core.sink.borrow_mut();
        let Sink::Queue(queue) = &mut *sink else {
            return Err(Error::config(
                "handler",
                "this stream has a handler; `take` is for streams without one",
            ));
        };
        let waiting = queue.records() as u64;
        let size = self.core.topology.size();
        while queue
            .pop(size, &mut take)
            .map_err(|why| Error::bad_peer(self.core.identity.rank, why))?
        {}
        Ok(waiting)
    }
}

/// Opens a [`Shuffle`]: name, options, handler.
pub struct ShuffleBuilder<'h> {
    job: Rc<Inner<'h>>,
    name: String,
    options: StreamOptions,
    sink: Sink<'h>,
}

impl<'h> ShuffleBuilder<'h> {
    pub(crate) fn new(job: Rc<Inner<'h>>, name: &str) -> Self {
        let options = job.options.stream.clone();
        let sink = Sink::Queue(DeliveryQueue::new(&options));
        Self {
            job,
            name: name.to_owned(),
            options,
            sink,
        }
    }

    /// Options of this shuffle instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        if let Sink::Queue(queue) = &mut self.sink {
            *queue = DeliveryQueue::new(&options);
        }
        self.options = options;
        self
    }

    /// Calls `handler` for every record that arrives, during any call that makes progress. Without a handler,
    /// records wait for [`Shuffle::take`].
    pub fn handler(mut self, mut handler: impl FnMut(Message<'_>, &mut Outbox<'_>) + 'h) -> Self {
        self.sink = Sink::Handler(Box::new(move |delivery, done, outbox| {
            each_message(delivery, done, |message, first| {
                // Between the records of a run the spill may run short: the rest of the run waits.
                if !first && !outbox.has_reserve() {
                    return false;
                }
                handler(message, outbox);
                true
            })
        }));
        self
    }

    /// Opens the shuffle; collective.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Shuffle<'h>> {
        let core = self.job.open(&self.name, &self.options, 0, self.sink)?;
        Ok(Shuffle {
            handle: Handle::new(core, self.job),
        })
    }
}

/// Hands the records from number `done` on to `take`, until it returns false; returns how many are done then.
pub(crate) fn each_message(
    delivery: Delivery<'_>,
    done: usize,
    mut take: impl FnMut(Message<'_>, bool) -> bool,
) -> Result<usize, crate::engine::BadRun> {
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
    /// [`Error::WouldBlock`] when only taking deliveries can make room.
    #[inline]
    pub fn send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.handle.send_with(|out| out.try_send(target, kind, bytes))
    }

    /// Sends a record if there is room now; never waits and makes no progress.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], with nothing taken; a bad rank or length.
    #[inline]
    pub fn try_send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        self.handle.outbound()?.try_send(target, kind, bytes)
    }

    /// Space for a record of `bytes` bytes, to be filled in place and committed. Waits like [`Shuffle::send`].
    ///
    /// A dropped reservation is given up. A forgotten one (`std::mem::forget`) makes every later call on the shuffle
    /// an [`Error::Nested`].
    ///
    /// # Errors
    /// As [`Shuffle::send`].
    pub fn reserve(&mut self, target: Rank, kind: u32, bytes: usize) -> Result<Reservation<'_, 'h>> {
        let small = bytes <= self.handle.outbound()?.reservable_bytes();
        let space = if small {
            Space::InPlace(self.handle.reserve(target, kind, bytes)?)
        } else {
            if target.0 >= self.handle.core.topology.size() {
                return Err(Error::Rank {
                    rank: target.0,
                    size: self.handle.core.topology.size(),
                });
            }
            let limit = self.handle.core.options.max_message_bytes;
            if bytes > limit {
                return Err(Error::TooLarge { bytes, limit });
            }
            Space::Staged(vec![0; bytes])
        };
        Ok(Reservation {
            handle: &self.handle,
            space: Some(space),
            target,
            kind,
            bytes,
        })
    }

    /// What sends from inside a handler of another stream: never waits, spills what finds no room.
    pub fn outbox(&self) -> Outbox<'_> {
        Outbox::new(&self.handle.core.out)
    }

    /// One round of progress; returns the records that were delivered to this shuffle.
    ///
    /// # Errors
    /// The transport's, and [`Error::Nested`] inside a handler.
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
    /// As [`Shuffle::poll`]; without a handler [`Error::WouldBlock`] when only taking deliveries can make room.
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
    /// As [`Shuffle::flush`]; after [`Error::WouldBlock`] take deliveries and call again on this rank.
    pub fn fence(&self) -> Result<()> {
        self.handle.fence()
    }

    /// As [`crate::Job::barrier`], but gives way when only taking deliveries can make room, so that the flushes of
    /// others can end: for streams without a handler.
    ///
    /// # Errors
    /// As [`Shuffle::flush`]; after [`Error::WouldBlock`] take deliveries and call again on this rank.
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

enum Space<'a> {
    InPlace(RefMut<'a, Outbound>),
    Staged(Vec<u8>),
}

/// Space for one record; dereferences to its bytes, zeroed.
pub struct Reservation<'a, 'h> {
    handle: &'a Handle<'h>,
    space: Option<Space<'a>>,
    target: Rank,
    kind: u32,
    bytes: usize,
}

impl Reservation<'_, '_> {
    /// Makes the space a record, as if it had been sent.
    ///
    /// # Errors
    /// Only for a record that is longer than a run: as [`Shuffle::send`].
    pub fn commit(mut self) -> Result<()> {
        match self.space.take() {
            Some(Space::InPlace(mut out)) => {
                out.note_sent(self.bytes);
                Ok(())
            }
            Some(Space::Staged(bytes)) => {
                let (target, kind) = (self.target, self.kind);
                self.handle.send_with(|out| out.try_send(target, kind, &bytes))
            }
            None => Ok(()),
        }
    }
}

impl Deref for Reservation<'_, '_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.space {
            Some(Space::InPlace(out)) => out.reserved_ref(self.target, self.bytes),
            Some(Space::Staged(bytes)) => bytes,
            None => &[],
        }
    }
}

impl DerefMut for Reservation<'_, '_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.space {
            Some(Space::InPlace(out)) => out.reserved(self.target, self.bytes),
            Some(Space::Staged(bytes)) => bytes,
            None => &mut [],
        }
    }
}

impl Drop for Reservation<'_, '_> {
    fn drop(&mut self) {
        if let Some(Space::InPlace(mut out)) = self.space.take() {
            out.retract(self.target, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Job, Options};
    use trihop_transport::bootstrap::Launcher;

    #[test]
    fn reservations_become_records_in_place_and_are_safe_to_drop_or_forget() {
        let heard = std::cell::RefCell::new(Vec::new());
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = Job::start(options).unwrap();
        let open = |name: &str| {
            job.shuffle(name)
                .handler(|m, _| heard.borrow_mut().push((m.kind, m.bytes.to_vec())))
                .open()
                .unwrap()
        };
        let mut shuffle = open("reserved");
        for (kind, bytes) in [(1u32, 0usize), (2, 5), (3, 900), (4, 5000), (5, 100_000)] {
            let mut space = shuffle.reserve(Rank(0), kind, bytes).unwrap();
            assert_eq!(space.len(), bytes);
            space.fill(kind as u8);
            space.commit().unwrap();
            let mut dropped = shuffle.reserve(Rank(0), 99, bytes).unwrap();
            dropped.fill(99);
        }
        assert!(matches!(
            shuffle.reserve(Rank(1), 0, 8),
            Err(Error::Rank { rank: 1, size: 1 })
        ));
        shuffle.fence().unwrap();
        let expected: Vec<_> = [(1u32, 0usize), (2, 5), (3, 900), (4, 5000), (5, 100_000)]
            .map(|(kind, bytes)| (kind, vec![kind as u8; bytes]))
            .into();
        assert_eq!(*heard.borrow(), expected);

        let mut held = open("forgotten");
        let other = held.clone();
        std::mem::forget(held.reserve(Rank(0), 0, 8).unwrap());
        assert!(matches!(other.send(Rank(0), 0, b"x"), Err(Error::Nested(_))));
        assert!(matches!(
            other.outbox().send(Rank(0), 0, b"x"),
            Err(Error::Nested(_))
        ));
        assert!(matches!(other.fence(), Err(Error::Nested(_))));
        assert!(matches!(other.flush_origin(), Err(Error::Nested(_))));
        assert!(matches!(other.poll(), Err(Error::Nested(_))));
        assert_eq!(other.stats().sent, 0);
        other.dump(&mut Vec::new()).unwrap();
    }

    #[test]
    fn a_reservation_is_not_sent_on_before_it_is_filled() {
        let (got, wrong) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = Job::start(options).unwrap();
        let mut shuffle = job
            .shuffle("reserved")
            .handler(|message, _| {
                got.set(got.get() + 1);
                wrong.set(wrong.get() + u32::from(message.bytes != [7u8; 16]));
            })
            .open()
            .unwrap();
        for _ in 0..20_000 {
            let mut space = shuffle.reserve(Rank(0), 1, 16).unwrap();
            space.fill(7);
            space.commit().unwrap();
        }
        shuffle.fence().unwrap();
        assert_eq!((got.get(), wrong.get()), (20_000, 0));
    }

    #[test]
    fn a_handler_that_stays_within_the_reserve_is_never_refused() {
        let (refused, answers) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = Job::start(options).unwrap();
        let shuffle = job
            .shuffle("answers")
            .handler(|message, outbox| match message.kind {
                0 => {
                    let refusal = outbox.send(Rank(0), 1, &[1u8; 16 << 10]).is_err();
                    refused.set(refused.get() + u32::from(refusal));
                }
                _ => answers.set(answers.get() + 1),
            })
            .open()
            .unwrap();
        for _ in 0..126 {
            shuffle.try_send(Rank(0), 0, b"").unwrap();
        }
        // Two MiB of answers do not fit the spill of one: the handler pauses inside the run instead of being refused.
        for _ in 0..200 {
            shuffle.poll().unwrap();
        }
        assert_eq!(refused.get(), 0);
        assert!(
            (1..126).contains(&shuffle.stats().delivered),
            "{} delivered",
            shuffle.stats().delivered
        );
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
            stream.handle.outbound().unwrap().publish(crate::queue::tally::Why::Flush);
        }
        job.progress().unwrap();
        assert_eq!(*heard.borrow(), ["urgent", "usual", "as usual", "bulk"]);
    }
}
