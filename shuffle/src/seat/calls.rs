//! The calls of a stream's handles, the same on every seat: sends that wait, flushes, the end.

use std::io::Write;
use std::sync::Arc;

use trihop_transport::topology::Rank;

use super::{Seating, relay};
use crate::deliver::{Delivery, Entry, note_overfilled};
use crate::dump;
use crate::endpoint::StreamId;
use crate::engine::BadRun;
use crate::engine::StreamState;
use crate::engine::outbound::{Outbound, Pushes};
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::node::{Answer, Request};
use crate::stats::{DetailedStats, Stats};
use crate::terminate::End;
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
    /// Length of the longest record that fits a frame.
    pub(super) longest_in_frame: usize,
    /// Length up to which records are short: a run has several, so that most need nothing else.
    pub(crate) short_bytes: usize,
    /// This rank, where what it sends to itself is handled at once.
    pub(super) at_once: Option<Rank>,
}

impl<S: Seating> Handle<S> {
    /// What `open` has opened; `of` is what the seat keeps of it.
    pub(crate) fn new(seat: S, id: StreamId, of: S::OfStream, name: &str) -> Result<Self> {
        let what = "opening a stream";
        let (rank, size, longest_in_frame, short_bytes) = seat.with(what, |job| {
            let out = job.engine.out(id)?;
            let (in_frame, short) = (out.longest_in_frame(), out.longest_gathered() / 4);
            let topology = &job.engine.topology;
            Ok((topology.rank(), topology.size(), in_frame, short))
        })?;
        Ok(Self {
            seat,
            id,
            of,
            name: name.into(),
            rank,
            size,
            longest_in_frame,
            short_bytes,
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
    pub(crate) fn try_send<R>(
        &self,
        mut send: impl FnMut(&mut Outbound) -> Result<R>,
    ) -> Result<R> {
        match self.seat.is_in_handler() && !self.seat.is_at_end() {
            true => self.with_out("a send", |out| out.in_handler(send)),
            false => match self.with_out("a send", &mut send) {
                Err(Error::WouldBlock) => self.try_again(send),
                sent => sent,
            },
        }
    }

    /// As a send that was refused, where room has come meanwhile.
    #[cold]
    pub(crate) fn try_again<R>(&self, send: impl FnOnce(&mut Outbound) -> Result<R>) -> Result<R> {
        self.seat
            .with("a send", |job| match job.engine.hear_of_room() {
                true => send(job.engine.out(self.id)?),
                false => Err(Error::WouldBlock),
            })
    }

    /// Sends: waits while there is no room, but not in a handler, whose sends are spilled.
    #[inline(always)] // part of every send
    pub(crate) fn send(
        &self,
        send: impl FnMut(&mut Outbound) -> Result<()>,
        send_or_spill: impl FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        match self.seat.is_in_handler() {
            true => self.spill(send_or_spill),
            false => self.send_with(send),
        }
    }

    /// Sends from a handler on a thread of its own, or at the end of a step, which is bound by the
    /// steps of the stream as the program is.
    #[inline(always)] // part of every such send
    pub(crate) fn spill(
        &self,
        send_or_spill: impl FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        if !self.seat.is_at_end() {
            return self.send_with(noting_overfilled::<S>(send_or_spill));
        }
        self.send_with(noting_overfilled::<S>(in_step(send_or_spill)))?;
        self.drain_spill()
    }

    /// The same without progress, of who has what handlers need: [`Handle::pass_by`] makes it.
    pub(crate) fn spill_only(
        &self,
        send_or_spill: impl FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        match self.seat.is_at_end() {
            true => self.with_out("a send", noting_overfilled::<S>(in_step(send_or_spill))),
            false => self.with_out("a send", noting_overfilled::<S>(send_or_spill)),
        }
    }

    /// Progress as long as that makes room for what was spilled too much; none while this thread
    /// has what handlers need.
    fn drain_spill(&self) -> Result<()> {
        while self.with_out("a send", |out| Ok(out.keeps_deliveries_waiting()))? {
            match self.seat.progress("a send") {
                Ok(true) => {}
                Ok(false) | Err(Error::Nested(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends an item that needs nothing but its run; whether it is such an item.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub(crate) fn push_here(&self, target: Rank, item: &[u8]) -> bool {
        self.seat.push_here(&self.of, target, item)
    }

    /// Sends an item that [`Handle::push_here`] has left, by `push` or at once.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub(crate) fn push_on(
        &self,
        target: Rank,
        item: &[u8],
        pushes: Pushes,
        push: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
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
        if self.seat.is_at_end() {
            return items.try_for_each(|item| self.spill(|out| send_or_spill(out, &item)));
        }
        self.send_many(items, |out, item| {
            noting_overfilled::<S>(|out: &mut Outbound| send_or_spill(out, item))(out)
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
        self.seat.wait("room to send", |job| {
            let mut sent = send(job.engine.out(self.id)?);
            if matches!(sent, Err(Error::WouldBlock)) && job.engine.hear_of_room() {
                sent = send(job.engine.out(self.id)?);
            }
            match sent {
                Ok(()) => Ok(Some(())),
                Err(Error::WouldBlock) => {
                    let (state, _) = job.engine.stream(self.id)?;
                    check_undelivered(state)?;
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        })
    }

    /// One round of progress; the records that it delivered to this stream.
    pub(crate) fn poll(&self) -> Result<u64> {
        let delivered = || {
            self.seat
                .with("poll", |job| Ok(job.engine.stream(self.id)?.0.delivered()))
        };
        let before = delivered()?;
        let has_moved = self.seat.progress("poll")?;
        let records = delivered()? - before;
        self.seat.give_way(has_moved || records > 0);
        Ok(records)
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

    /// Makes progress where as many calls have sent since the last as may, or where a send at the
    /// end of a step has spilled too much.
    pub(crate) fn pass_by(&self) -> Result<()> {
        if self.with_out("a send", |out| Ok(out.count_call()))? {
            self.seat.progress_in_passing()?;
        }
        match self.seat.is_at_end() {
            true => self.drain_spill(),
            false => Ok(()),
        }
    }

    /// Waits until nothing that was spilled is left: the next send that may be spilled finds room,
    /// or memory, whatever others do meanwhile.
    pub(crate) fn wait_for_spill(&self) -> Result<()> {
        if self.seat.may_wait("a send that waits").is_err() {
            return Err(Error::WouldBlock);
        }
        self.seat.wait("room to send", |job| {
            let out = job.engine.out(self.id)?;
            out.check_not_ending("a send")?;
            Ok(out.spill.is_empty().then_some(()))
        })
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
            self.with_out(what, |_| Ok(()))?;
            // What was started is over before, and so is what is called at its end, and has begun.
            self.seat.wait(what, |job| {
                job.engine.out(self.id)?.check_contributed()?;
                if job.has_ended(self.id)? {
                    return Ok(Some(()));
                }
                let (state, _) = job.engine.stream(self.id)?;
                check_undelivered(state)?;
                job.check_whole()?;
                Ok(None)
            })?;
            self.end_alone(End::Fence)?;
            self.seat.with(what, |job| {
                let (state, out, _) = job.engine.stream_mut(self.id)?;
                out.close();
                if let Some(lost) = state.give_up_untaken() {
                    state.warn_of_lost(lost);
                }
                state.sink = Sink::Closed;
                job.parked.forget(self.id.stream);
                job.retire(self.id);
                Ok(())
            })
        });
        if let Err(error) = &outcome
            && error.is_about_peer()
        {
            // No end of the stream can come any more: what others send on it is dropped.
            let _ = self.seat.with(what, |job| {
                let (state, ..) = job.engine.stream_mut(self.id)?;
                if let Some(lost) = state.give_up_untaken() {
                    state.warn_of_lost(lost);
                }
                state.sink = Sink::Closed;
                job.bell.ring(); // what waits for room there moves on
                Ok(())
            });
        }
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

    /// Bytes of this stream that the relay of this rank has handed to the fabric, for all ranks
    /// that have it; 0 where there is none. All of them ask.
    pub(crate) fn relays_wire_bytes(&self) -> Result<u64> {
        let what = "what the relay has sent";
        self.seat.one_at_a_time(None, what, || {
            self.seat.may_wait(what)?;
            let number = |job: &mut JobState| Ok(job.engine.stream(self.id)?.0.id);
            let number = self.seat.with(what, number)?;
            match relay::ask(&self.seat, what, Request::Count(number))? {
                Some(Answer::Counted(bytes)) => Ok(bytes),
                _ => Ok(0),
            }
        })
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
        let has_moved = self.seat.progress("take")?;
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
        self.seat.give_way(has_moved || records > 0);
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

/// A send of a handler on a thread of its own: its next call waits for a spill that it has
/// overfilled. On a seat without threads the next handler that sends there finds out.
fn noting_overfilled<S: Seating>(
    mut send: impl FnMut(&mut Outbound) -> Result<()>,
) -> impl FnMut(&mut Outbound) -> Result<()> {
    move |out| {
        let sent = send(out);
        if S::MOVES_ALONE && out.take_overfilled() {
            note_overfilled(out.gauge());
        }
        sent
    }
}

/// A send at the end of a step, which the stream's next step binds.
fn in_step(
    mut send: impl FnMut(&mut Outbound) -> Result<()>,
) -> impl FnMut(&mut Outbound) -> Result<()> {
    move |out| {
        out.check_not_ending("a send")?;
        send(out)
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
pub(super) fn check_open(state: &StreamState, out: &Outbound) -> Result<()> {
    match out.closed {
        true => Err(Error::Closed(state.name.clone())),
        false => Ok(()),
    }
}
