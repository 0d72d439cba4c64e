//! The calls of a stream's handles, the same on every seat: sends that wait, flushes, fences,
//! barriers.

use std::io::Write;
use std::sync::Arc;
use std::task::Waker;

use trihop_transport::topology::Rank;

use super::Seating;
use super::collective::pass_on_results;
use crate::deliver::{Delivery, Entry, note_overfilled};
use crate::dump;
use crate::endpoint::StreamId;
use crate::engine::BadRun;
use crate::engine::StreamState;
use crate::engine::at_once::OwnSend;
use crate::engine::outbound::{Outbound, Pushes};
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::job::{JobState, Way};
use crate::stats::{DetailedStats, Stats};
use crate::terminate::End;
use crate::terminate::collective::Operation;
use crate::terminate::flush::{Flush, Queues};

/// An open stream of a seat.
#[derive(Clone)]
pub(crate) struct Handle<S: Seating> {
    pub(crate) seat: S,
    pub(crate) id: StreamId,
    pub(crate) of: S::OfStream,
    pub(crate) name: Arc<str>,
    /// This rank, and the ranks of the job.
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    /// This rank, where what it sends to itself is handled at once.
    at_once: Option<Rank>,
}

impl<S: Seating> Handle<S> {
    /// What `open` has opened; `of` is what the seat keeps of it.
    pub(crate) fn new(seat: S, id: StreamId, of: S::OfStream, name: &str) -> Result<Self> {
        let what = "opening a stream";
        let (rank, size) = seat.with(what, |job| {
            let topology = &job.engine.topology;
            Ok((topology.rank(), topology.size()))
        })?;
        Ok(Self {
            seat,
            id,
            of,
            name: name.into(),
            rank,
            size,
            at_once: None,
        })
    }

    /// The same stream, used over this handle of the seat.
    pub(crate) fn on_seat(&self, seat: S) -> Self {
        Self {
            seat,
            ..self.clone()
        }
    }

    /// What this rank sends to itself by this handle is handled at once.
    ///
    /// # Errors
    /// [`Error::Config`] where another thread calls the handler, and where there is none.
    pub(crate) fn handle_own_at_once(&mut self) -> Result<()> {
        let what = "own_at_once";
        self.seat.may_wait(what)?;
        if S::MOVES_ALONE {
            let why = "a delivery thread calls the handlers of a job with threads, one call at a \
                       time, and may be in one: start the job inline, or let it send as ever";
            return Err(Error::config(what, why));
        }
        self.seat.with(what, |job| {
            let (state, out) = job.engine.stream(self.id)?;
            check_open(state, out)?;
            match state.sink {
                Sink::Handler => Ok(()),
                _ => {
                    let why = format!("stream `{}` has no handler to be called", self.name);
                    Err(Error::config(what, why))
                }
            }
        })?;
        self.at_once = Some(self.rank);
        Ok(())
    }

    /// Whether what is sent to this rank by this handle is handled at once, where it can be.
    #[inline(always)] // part of every send
    pub(crate) fn is_at_once(&self, target: Rank) -> bool {
        self.at_once == Some(target)
    }

    /// Sends to this rank by a call of the handler; false where it has to go the way of all others.
    ///
    /// # Errors
    /// See [`Seating::deliver_own`].
    pub(crate) fn deliver_own(&self, send: OwnSend<'_>, pushes: Pushes) -> Result<bool> {
        let sent = self.seat.deliver_own(self.id, send)?;
        if sent == Some(true) && pushes == Pushes::Paced {
            self.seat.progress_in_passing()?;
        }
        Ok(sent.is_some())
    }

    fn is_handled_at_once(
        &self,
        target: Rank,
        kind: u32,
        bytes: &[u8],
        pushes: Pushes,
    ) -> Result<bool> {
        let send = OwnSend {
            kind,
            bytes,
            to_others: false,
        };
        Ok(self.is_at_once(target) && self.deliver_own(send, pushes)?)
    }

    /// Sends a record: waits while there is no room, but not in a handler.
    #[inline]
    pub(crate) fn send_record(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        if self.is_handled_at_once(target, kind, bytes, Pushes::Paced)? {
            return Ok(());
        }
        self.send(
            |out| out.try_send(target, kind, bytes),
            |out| out.send_or_spill(target, kind, bytes),
        )
    }

    /// Sends a record if there is room, and makes no progress.
    #[inline]
    pub(crate) fn try_send_record(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        if self.is_handled_at_once(target, kind, bytes, Pushes::Unpaced)? {
            return Ok(());
        }
        self.try_send(|out| out.try_send(target, kind, bytes))
    }

    /// Uses what the stream sends.
    #[inline(always)] // part of every send
    pub(crate) fn with_out<R>(
        &self,
        what: &'static str,
        call: impl FnOnce(&mut Outbound) -> Result<R>,
    ) -> Result<R> {
        self.seat.with(what, |job| call(job.engine.out(self.id)?))
    }

    /// Sends if there is room, and makes no progress.
    #[inline(always)] // part of every such send
    pub(crate) fn try_send<R>(&self, send: impl FnOnce(&mut Outbound) -> Result<R>) -> Result<R> {
        match self.seat.is_in_handler() {
            true => self.with_out("a send", |out| out.in_handler(send)),
            false => self.with_out("a send", send),
        }
    }

    /// Sends: waits while there is no room, but not in a handler, whose sends are spilled.
    #[inline(always)] // part of every send
    pub(crate) fn send(
        &self,
        send: impl FnMut(&mut Outbound) -> Result<()>,
        send_or_spill: impl FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        match self.seat.is_in_handler() {
            true => self.send_with(noting_overfilled(send_or_spill)),
            false => self.send_with(send),
        }
    }

    /// Sends an item by `push`, unless that needs nothing but its run.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub(crate) fn push(
        &self,
        target: Rank,
        item: &[u8],
        pushes: Pushes,
        push: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.seat.push_here(&self.of, target, item) {
            return Ok(());
        }
        if !self.is_handled_at_once(target, 0, item, pushes)? {
            push()?;
        }
        self.seat.allow_pushes_here(self.id, &self.of, pushes);
        Ok(())
    }

    /// As [`Handle::send`], one after the other; those before the failing one are sent.
    pub(crate) fn send_all<T>(
        &self,
        items: &mut impl Iterator<Item = T>,
        send: impl FnMut(&mut Outbound, &T) -> Result<()>,
        send_or_spill: impl FnMut(&mut Outbound, &T) -> Result<()>,
    ) -> Result<()> {
        match self.seat.is_in_handler() {
            true => self.spill_all(items, send_or_spill),
            false => self.send_many(items, send),
        }
    }

    /// Sends one after the other from a handler.
    pub(crate) fn spill_all<T>(
        &self,
        items: &mut impl Iterator<Item = T>,
        mut send_or_spill: impl FnMut(&mut Outbound, &T) -> Result<()>,
    ) -> Result<()> {
        self.send_many(items, |out, item| {
            noting_overfilled(|out: &mut Outbound| send_or_spill(out, item))(out)
        })
    }

    /// Tries `send` until it is taken, with progress in between.
    #[inline(always)] // part of every send
    pub(crate) fn send_with(
        &self,
        mut send: impl FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        let sent = self.with_out("a send", |out| {
            send(out)?;
            Ok(out.count_call())
        });
        match sent {
            Ok(false) => Ok(()),
            Ok(true) => self.seat.progress_in_passing(),
            Err(Error::WouldBlock) => self.send_waiting(&mut send),
            Err(error) => Err(error),
        }
    }

    /// As [`Handle::send_with`], for one after the other, with the state looked up once per few
    /// hundred of them. Those before the failing one are sent.
    pub(crate) fn send_many<T>(
        &self,
        items: &mut impl Iterator<Item = T>,
        mut send: impl FnMut(&mut Outbound, &T) -> Result<()>,
    ) -> Result<()> {
        loop {
            let mut refused = None;
            let due = self.with_out("a send", |out| {
                for item in items.by_ref() {
                    match send(out, &item) {
                        Ok(()) if out.count_call() => return Ok(true),
                        Ok(()) => {}
                        Err(Error::WouldBlock) => {
                            refused = Some(item);
                            return Ok(false);
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(false)
            })?;
            if let Some(item) = refused {
                self.send_waiting(&mut |out| send(out, &item))?;
            } else if due {
                self.seat.progress_in_passing()?;
            } else {
                return Ok(());
            }
        }
    }

    /// Waits until `send` is taken.
    #[cold]
    pub(crate) fn send_waiting(
        &self,
        send: &mut dyn FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        // Inside of a call that hands out deliveries on this thread: no progress is made there.
        if self.seat.may_wait("a send that waits").is_err() {
            return Err(Error::WouldBlock);
        }
        self.seat
            .wait("room to send", |job| match send(job.engine.out(self.id)?) {
                Ok(()) => Ok(Some(())),
                Err(Error::WouldBlock) => {
                    let (state, _) = job.engine.stream(self.id)?;
                    check_undelivered(state)?;
                    Ok(None)
                }
                Err(error) => Err(error),
            })
    }

    /// One round of progress; the records that it delivered to this stream.
    pub(crate) fn poll(&self) -> Result<u64> {
        let delivered = || {
            self.seat
                .with("poll", |job| Ok(job.engine.stream(self.id)?.0.delivered()))
        };
        let before = delivered()?;
        self.seat.progress("poll")?;
        Ok(delivered()? - before)
    }

    /// Waits until the queues of one stage have passed on what was in them.
    pub(crate) fn flush(&self, queues: Queues) -> Result<()> {
        let what = "a flush";
        self.seat.may_wait(what)?;
        let mut flush = self.seat.with(what, |job| {
            let (state, out, _) = job.engine.stream_mut(self.id)?;
            check_open(state, out)?;
            out.check_not_ending("a flush")?;
            tracing::trace!(stream = state.name, ?queues, "flush");
            state.hurry();
            Ok(Flush::begin(queues, state, out))
        })?;
        let outcome = self.seat.wait(what, |job| {
            let (state, out, _) = job.engine.stream_mut(self.id)?;
            if flush.poll(state, out)? {
                return Ok(Some(()));
            }
            check_undelivered(state)?;
            Ok(None)
        });
        // Where the job has failed, nobody hurries any more.
        let _ = self.seat.with(what, |job| {
            job.engine.stream_mut(self.id)?.0.calm();
            Ok(())
        });
        outcome
    }

    /// Ends a step, and waits until that is over. What gives way with [`Error::WouldBlock`] stays
    /// under way: the others count on it.
    pub(crate) fn end(&self, end: End) -> Result<()> {
        self.seat
            .one_at_a_time(Some(&self.of), end_call(end), || self.end_alone(end))
    }

    fn end_alone(&self, end: End) -> Result<()> {
        let number = self.begin_by(end, |job| job.begin_end(self.id, end, Way::Waited))?;
        self.wait_alone(end, number)
    }

    /// Begins the end of a step; its number.
    fn begin_by(&self, end: End, begin: impl FnOnce(&mut JobState) -> Result<u64>) -> Result<u64> {
        self.seat.with(end_call(end), |job| {
            let (state, out) = job.engine.stream(self.id)?;
            check_open(state, out)?;
            tracing::trace!(stream = state.name, "{end}");
            begin(job)
        })
    }

    /// Waits for the end with this number. Where another one is under way, that is over: what is
    /// called at the end of a step has begun the next.
    fn wait_alone(&self, end: End, number: u64) -> Result<()> {
        self.seat.wait(end_call(end), |job| {
            let is_other = |now| now != number;
            let now = job.parked.number_of(self.id.stream);
            if now.is_some_and(is_other) || job.is_over(self.id)? {
                return Ok(Some(()));
            }
            let (state, _) = job.engine.stream(self.id)?;
            check_undelivered(state)?;
            Ok(None)
        })?;
        if end != End::Round {
            pass_on_results(&self.seat);
        }
        Ok(())
    }

    /// Ends a step, without waiting; the number of that end.
    pub(crate) fn start(&self, end: End) -> Result<u64> {
        self.start_with(end, None, None)
    }

    /// As [`Handle::start`], with a priority of the stream until it is over, and with what is
    /// called then.
    pub(crate) fn start_with(
        &self,
        end: End,
        priority: Option<u8>,
        at_end: Option<S::AtEnd>,
    ) -> Result<u64> {
        let keep = at_end.map(|call| self.seat.keep_at_end(&self.of, &self.name, call));
        let keep = keep.transpose()?;
        let start = || {
            self.begin_by(end, |job| {
                let number = job.start_end(self.id, end, priority, keep.is_some())?;
                keep.into_iter().for_each(|keep| keep(number));
                Ok(number)
            })
        };
        match self.seat.is_at_end() {
            // Nothing is waited for, and who waits for the step that is over may be in the way.
            true => start(),
            false => self
                .seat
                .one_at_a_time(Some(&self.of), end_call(end), start),
        }
    }

    /// One round of progress, and whether the end that was started is over.
    pub(crate) fn test(&self) -> Result<bool> {
        let what = "a test";
        self.seat
            .one_at_a_time(Some(&self.of), what, || self.test_alone(what))
    }

    fn test_alone(&self, what: &'static str) -> Result<bool> {
        let before = self.under_way(what)?;
        let has_moved = self.seat.progress(what)?;
        let (end, is_over) = match (before, self.under_way(what)?) {
            // What is called at its end has begun another.
            (Some((end, number)), Some((_, now))) if now != number => (Some(end), true),
            (_, now) => {
                let is_over = self.seat.with(what, |job| job.is_over(self.id))?;
                (now.map(|(end, _)| end), is_over)
            }
        };
        if !is_over && !has_moved {
            // Who asks in a loop lets others run, of whom there may be more than cores.
            std::thread::yield_now();
        }
        if is_over && end != Some(End::Round) {
            // What others wait for leaves now: the caller may not come back for long. Of a round
            // all has left, and the next one does not begin in this call.
            self.seat.progress(what)?;
        }
        Ok(is_over)
    }

    /// Waits until the end that was started is over.
    pub(crate) fn wait(&self) -> Result<()> {
        let what = "a wait for the end of a step";
        self.seat.one_at_a_time(Some(&self.of), what, || {
            let end = self.under_way(what)?;
            let none = || {
                let why = "no end of a step is under way: start one first";
                Error::misuse(&self.name, why)
            };
            let (end, number) = end.ok_or_else(none)?;
            self.wait_alone(end, number)
        })
    }

    /// Has contributors of the step that has begun be done.
    pub(crate) fn done(&self, count: u64) -> Result<()> {
        self.seat.with("the end of a contribution", |job| {
            let out = job.engine.out(self.id)?;
            match self.seat.is_in_handler() {
                true => out.done_in_handler(count)?,
                false => out.done(count)?,
            }
            // Others may wait for it while this rank computes.
            job.bell.ring();
            Ok(())
        })?;
        self.seat.progress_in_passing()
    }

    /// As [`Handle::test`], of the end with this number, which is over too where somebody else has
    /// heard so; where it is not over, `waker` is woken when it may be.
    pub(crate) fn test_or_wake(&self, number: u64, waker: &Waker) -> Result<bool> {
        let what = "a step that is awaited";
        let is_under_way = |job: &JobState| job.parked.number_of(self.id.stream) == Some(number);
        self.seat.one_at_a_time(Some(&self.of), what, || {
            if !self.seat.with(what, |job| Ok(is_under_way(job)))? || self.test_alone(what)? {
                return Ok(true);
            }
            if S::MOVES_ALONE {
                // The old one goes without the state in use: it may own anything.
                let before = self
                    .seat
                    .with(what, |job| Ok(job.parked.wake(self.id.stream, waker)))?;
                drop(before);
                // It may have ended in between, and nobody was woken.
                return self.seat.with(what, |job| job.is_over(self.id));
            }
            // Nothing moves here but in calls: so be asked again.
            waker.wake_by_ref();
            Ok(false)
        })
    }

    /// The end that is under way, or that a call has been told of; and its number.
    fn under_way(&self, what: &'static str) -> Result<Option<(End, u64)>> {
        self.seat.with(what, |job| {
            job.engine.stream(self.id)?;
            Ok(job.parked.end_of(self.id.stream))
        })
    }

    /// A barrier that gives way as a fence does.
    pub(crate) fn barrier(&self) -> Result<()> {
        self.seat
            .one_at_a_time(Some(&self.of), "a barrier", || self.barrier_alone())
    }

    fn barrier_alone(&self) -> Result<()> {
        let what = "a barrier";
        let ticket = self.seat.with(what, |job| {
            if let Some(ticket) = job.parked.barrier(self.id.stream) {
                return Ok(ticket);
            }
            let (state, out, collectives) = job.engine.stream_mut(self.id)?;
            check_open(state, out)?;
            out.check_no_step("a barrier")?;
            Ok(collectives.begin(state.id, Operation::SUM, &[]))
        })?;
        let outcome = self.seat.wait(what, |job| {
            let (state, _, collectives) = job.engine.stream_mut(self.id)?;
            if collectives.result(ticket).is_some() {
                return Ok(Some(()));
            }
            check_undelivered(state)?;
            Ok(None)
        });
        if outcome.is_err() {
            let _ = self.seat.with(what, |job| {
                job.parked.park_barrier(self.id.stream, ticket);
                Ok(())
            });
            return outcome;
        }
        pass_on_results(&self.seat);
        Ok(())
    }

    /// The handler is called no more, while the stream goes on.
    pub(crate) fn stop_handler(&self) {
        self.seat.closed(self.id, &self.of, true);
    }

    /// A fence, after which the stream takes and delivers nothing more. Whatever comes of it, the
    /// seat looks after the handler.
    pub(crate) fn shut_down(&self) -> Result<()> {
        let what = "shutting down";
        let outcome = self.seat.one_at_a_time(Some(&self.of), what, || {
            self.with_out(what, |out| out.check_contributed())?;
            // What was started is over before.
            if self
                .seat
                .with(what, |job| Ok(job.parked.must_end(self.id.stream)))?
            {
                if let Some((end, number)) = self.under_way(what)? {
                    self.wait_alone(end, number)?;
                }
            }
            self.end_alone(End::Fence)?;
            self.seat.with(what, |job| {
                let (state, out, _) = job.engine.stream_mut(self.id)?;
                out.close();
                if let Some(lost) = state.give_up_untaken() {
                    state.warn_of_lost(lost);
                }
                state.sink = Sink::Closed;
                job.parked.forget(self.id.stream);
                job.engine.retire(self.id);
                Ok(())
            })
        });
        if !matches!(outcome, Err(Error::Nested(_) | Error::Misuse { .. })) {
            self.seat.closed(self.id, &self.of, outcome.is_err());
        }
        outcome
    }

    /// What waits to be taken is given up, and so is what comes from now on.
    pub(crate) fn give_up_untaken(&self) -> Result<()> {
        self.seat.with("shutting down", |job| {
            let (state, _, _) = job.engine.stream_mut(self.id)?;
            if let Some(lost) = state.give_up_untaken() {
                state.warn_of_lost(lost);
            }
            Ok(())
        })
    }

    fn look<R>(&self, look: impl FnOnce(&StreamState, &Outbound) -> R) -> Option<R> {
        let looked = self.seat.look(|job| {
            let (state, out) = job.engine.stream(self.id).ok()?;
            Some(look(state, out))
        });
        looked.flatten()
    }

    /// Counters of this rank, if they can be had soon.
    pub(crate) fn stats(&self) -> Option<Stats> {
        self.look(|state, out| state.snapshot(out))
    }

    /// Counters of this rank, of each of its queues too, if they can be had soon.
    pub(crate) fn detailed_stats(&self) -> Option<DetailedStats> {
        self.look(|state, out| state.detailed(out))
    }

    /// What [`Handle::dump`] writes and [`Handle::detailed_stats`] gives, of one moment.
    pub(crate) fn dump_and_stats(&self) -> Option<(Vec<u8>, DetailedStats)> {
        self.look(|state, out| {
            let mut text = Vec::new();
            // Memory takes all of it.
            let _ = dump::write(state, out, &mut text);
            (text, state.detailed(out))
        })
    }

    /// Writes every queue of this rank with its use and its bound. The state is in use for the
    /// making of the text only: a writer may wait for its reader.
    pub(crate) fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        let mut text = Vec::new();
        match self.look(|state, out| dump::write(state, out, &mut text)) {
            Some(written) => written?,
            None => writeln!(text, "stream `{}` is in use, or was shut down", self.name)?,
        }
        writer.write_all(&text)
    }

    /// One round of progress, then everything that waits is handed to `take`, with nothing in use:
    /// it may send. Returns how many records.
    pub(crate) fn take(
        &self,
        mut take: impl FnMut(Delivery<'_>) -> Result<(), BadRun>,
    ) -> Result<u64> {
        self.seat.progress("take")?;
        self.seat.begin_taking()?;
        let mut taken = HandingOut {
            handle: self,
            entries: Vec::new(),
            done: 0,
        };
        let size = self.seat.with("take", |job| {
            let (state, _, _) = job.engine.stream_mut(self.id)?;
            taken.entries = match &mut state.sink {
                Sink::Queue(queue) => queue.take_all(),
                Sink::Closed => return Err(Error::Closed(state.name.clone())),
                _ => {
                    let why = "this stream has a handler; `take` is for streams without one";
                    return Err(Error::config("handler", why));
                }
            };
            Ok(state.topology.size())
        })?;
        let mut records = 0;
        while let Some(entry) = taken.entries.get(taken.done) {
            records += entry.records() as u64;
            // One that makes no sense is not handed out again.
            taken.done += 1;
            let mut source = 0;
            let taken = entry.hand_to(size, |delivery| {
                source = delivery.source();
                take(delivery)
            });
            taken.map_err(|why| Error::bad_peer(source, why))?;
        }
        Ok(records)
    }
}

/// Deliveries out of a stream's queue, which go back when it is dropped unless they were handed
/// out.
struct HandingOut<'a, S: Seating> {
    handle: &'a Handle<S>,
    entries: Vec<Entry>,
    done: usize,
}

impl<S: Seating> Drop for HandingOut<'_, S> {
    fn drop(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        // A job that has failed takes nothing more, and counts nothing.
        let _ = self.handle.seat.with("take", |job| {
            let (state, _, _) = job.engine.stream_mut(self.handle.id)?;
            if let Sink::Queue(queue) = &mut state.sink {
                queue.put_back(entries, self.done);
            }
            Ok(())
        });
        self.handle.seat.end_taking();
    }
}

/// The call that ends a step, for errors and logs.
fn end_call(end: End) -> &'static str {
    match end {
        End::Round => "a round",
        End::Fence => "a fence",
        End::Completion(_) => "the end of a step",
    }
}

/// A send of a handler on a thread of its own: its next call waits for a spill that it has
/// overfilled.
fn noting_overfilled(
    mut send: impl FnMut(&mut Outbound) -> Result<()>,
) -> impl FnMut(&mut Outbound) -> Result<()> {
    move |out| {
        let sent = send(out);
        if out.take_overfilled() {
            note_overfilled(out.gauge());
        }
        sent
    }
}

/// Without a handler nobody but the application can make room in the delivery queue: waiting would
/// be for ever.
pub(super) fn check_undelivered(state: &StreamState) -> Result<()> {
    match &state.sink {
        Sink::Queue(queue) if queue.is_blocked() => Err(Error::WouldBlock),
        _ => Ok(()),
    }
}

/// An error once nobody would make this stream complete any more.
fn check_open(state: &StreamState, out: &Outbound) -> Result<()> {
    match out.closed {
        true => Err(Error::Closed(state.name.clone())),
        false => Ok(()),
    }
}
