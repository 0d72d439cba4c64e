//! A job among threads: its seat, its threads, its streams.

use std::io::Write;
use std::sync::Arc;

use trihop_transport::bootstrap::Launcher;
use trihop_transport::ring::Bell;
use trihop_transport::sync::{Mutex, MutexGuard, PoisonError};
use trihop_transport::topology::{Rank, Topology};

use super::seat::Threaded;
use super::thread::{Thread, is_in_handler, nap};
use super::usage::ThreadUse;
use crate::config::StreamOptions;
use crate::deliver::{Calls, Delivery, Handover, note_overfilled};
use crate::dump;
use crate::engine::outbound::Outbound;
use crate::engine::sink::Sink;
use crate::engine::{BadRun, Core};
use crate::error::{Error, Result};
use crate::job::{JobState, LOOK_AROUND};
use crate::seat::{self, Inline, Seat};
use crate::signal::{DumpOnSignal, DumpOutput};
use crate::stats::{DetailedStats, Stats};
use crate::terminate::flush::Queues;

/// A handler as a delivery thread calls it.
pub(crate) type Deliver = Box<dyn FnMut(Delivery<'_>, &Calls<'_>) -> Result<(), BadRun> + Send>;

/// A job among threads, and its threads.
pub(crate) struct Shared {
    pub seat: Arc<Threaded>,
    threads: Arc<Threads>,
    pub topology: Topology,
    pub launcher: Launcher,
    pub provider: Option<String>,
    /// Defaults of the job's streams.
    pub stream_options: StreamOptions,
    /// Wakes who makes progress.
    bell: Arc<Bell>,
    /// Calls in which all ranks take part, one at a time.
    collective: Mutex<()>,
}

/// The threads of a job, and what they write of it.
struct Threads {
    rank: Rank,
    running: Mutex<Running>,
    dump: DumpOnSignal,
}

#[derive(Default)]
struct Running {
    progress: Option<Thread>,
    deliveries: Vec<(Arc<Handover>, Thread)>,
    /// Writes what a signal asked for: who reads it may keep it waiting.
    dump: Option<Thread>,
    /// The job was shut down.
    ended: bool,
}

impl Threads {
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the job's threads have used so far.
    fn usage(&self) -> Vec<ThreadUse> {
        let running = self.lock();
        let deliveries = running.deliveries.iter().map(|(_, thread)| thread);
        let all = running.progress.iter().chain(deliveries);
        all.filter_map(Thread::usage).collect()
    }

    fn write_usage(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        let threads = self.usage();
        threads.iter().try_for_each(|t| writeln!(writer, "thread {t}"))
    }

    /// Dumps because a signal has asked for it. The text is made here and written by a thread of its own.
    fn dump_to(&self, output: DumpOutput, seat: &Threaded) {
        let mut text = Vec::new();
        let made = write_state(seat, &mut text, JobState::dump);
        if made.and_then(|()| self.write_usage(&mut text)).is_err() {
            return; // there is no writing into memory that fails
        }
        let mut running = self.lock();
        if running.dump.as_ref().is_some_and(|thread| !thread.has_ended()) {
            tracing::error!(?output, "the last dump is still being written; this one is not");
            return;
        }
        let rank = self.rank;
        let spawned = Thread::spawn("trihop-dump", "dump", move || {
            let written = output.open(rank).and_then(|mut writer| {
                writer.write_all(&text)?;
                writer.flush()
            });
            if let Err(error) = written {
                tracing::error!(%error, ?output, "the dump that a signal asked for could not be written");
            }
        });
        match spawned {
            Ok(thread) => running.dump = Some(thread),
            Err(error) => tracing::error!(%error, "the dump that a signal asked for could not be written"),
        }
    }
}

/// Writes what `dump` makes of the state, if it can be had soon. The turn is for the making only: a writer may wait
/// for its reader.
fn write_state(
    seat: &Threaded,
    writer: &mut dyn Write,
    dump: impl FnOnce(&JobState, &mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut text = Vec::new();
    let made = seat.try_look(|job| dump(job, &mut text));
    made.unwrap_or_else(|| writeln!(text, "the engine is in use and does not come free"))?;
    writer.write_all(&text)
}

impl Shared {
    pub fn start(seat: Inline<'static>) -> Result<Arc<Self>> {
        let (started, mut park) = seat.into_parts();
        let job = &started.state;
        let (topology, bell) = (job.engine.topology.clone(), Arc::clone(&job.bell));
        let (launcher, provider) = (job.launcher, job.provider());
        let stream_options = job.options.stream.clone();
        let shared = Arc::new(Self {
            threads: Arc::new(Threads {
                rank: topology.rank(),
                running: Mutex::default(),
                dump: DumpOnSignal::default(),
            }),
            seat: Arc::new(Threaded::new(started)),
            topology,
            launcher,
            provider,
            stream_options,
            bell,
            collective: Mutex::new(()),
        });
        super::exit::guard(Arc::downgrade(&shared.seat));
        let (seat, threads) = (Arc::clone(&shared.seat), Arc::clone(&shared.threads));
        let progress = Thread::spawn("trihop-progress", "progress", move || {
            let asked = || threads.dump.take_asked();
            let dump = |output| threads.dump_to(output, &seat);
            seat.progress_until_stopped(&mut park, asked, dump);
            // A job that has failed is looked at all the same.
            while !seat.is_stopping() {
                asked().into_iter().for_each(dump);
                nap(LOOK_AROUND);
            }
        })?;
        shared.threads.lock().progress = Some(progress);
        Ok(shared)
    }

    /// Writes the queues of all streams, and what the job's threads have used.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        write_state(&self.seat, writer, JobState::dump)?;
        self.threads.write_usage(writer)
    }

    /// See [`super::Job::dump_on`].
    pub fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.threads.dump.install(signal, output)
    }

    /// What the job's threads have used so far.
    pub fn threads(&self) -> Vec<ThreadUse> {
        self.threads.usage()
    }

    /// A call in which all ranks take part.
    pub fn collective<R>(
        &self,
        what: &'static str,
        call: impl FnOnce(&Arc<Threaded>) -> Result<R>,
    ) -> Result<R> {
        self.seat.may_wait(what)?;
        let _one = self.collective.lock().unwrap_or_else(PoisonError::into_inner);
        if self.threads.lock().ended {
            return Err(Error::Closed("(all of the job)".into()));
        }
        call(&self.seat)
    }

    /// Opens a stream whose handler, if it has one, a thread of its own calls.
    pub fn open(
        self: &Arc<Self>,
        name: &str,
        options: &StreamOptions,
        item_bytes: usize,
        deliver: Option<Deliver>,
    ) -> Result<Arc<Opened>> {
        let Some(deliver) = deliver else {
            let why =
                "a stream of a job with a progress thread needs one: nobody else would take what arrives";
            return Err(Error::config("handler", why));
        };
        options.check()?;
        let handover = Arc::new(Handover::new(options, Arc::clone(&self.bell)));
        // The thread is there before the stream: what arrives has somewhere to go, whatever fails in between.
        let thread = super::thread::deliver(name, self.topology.size(), Arc::clone(&handover), deliver)?;
        let opened = self.collective("opening a stream", |seat| {
            let sink = Sink::Thread(Arc::clone(&handover));
            let id = seat::open(seat, name, options, item_bytes, sink, |_| ())?;
            Ok(Arc::new(Opened {
                shared: Arc::clone(self),
                handle: seat::Handle {
                    seat: Arc::clone(seat),
                    id,
                },
                handover: Arc::clone(&handover),
                name: name.to_owned(),
                collective: Mutex::new(()),
            }))
        });
        match opened {
            Ok(opened) => {
                self.threads.lock().deliveries.push((handover, thread));
                Ok(opened)
            }
            Err(error) => {
                handover.discard();
                handover.close();
                thread.join();
                Err(error)
            }
        }
    }

    /// Ends the delivery thread of a stream that is shut down.
    fn end_deliveries(&self, of: &Arc<Handover>) {
        let mut threads = self.threads.lock();
        let at = threads.deliveries.iter().position(|(h, _)| Arc::ptr_eq(h, of));
        if let Some((handover, thread)) = at.map(|at| threads.deliveries.swap_remove(at)) {
            drop(threads);
            handover.close();
            thread.join();
        }
    }

    pub fn shutdown(&self) -> Result<()> {
        let outcome = self.collective("shutting down", seat::shut_down);
        if !matches!(outcome, Err(Error::Nested(_) | Error::Closed(_))) {
            self.stop(outcome.is_err());
        }
        outcome
    }

    /// Ends all threads. Of a job that has `failed`, deliveries that wait are dropped.
    fn stop(&self, failed: bool) {
        let mut threads = self.threads.lock();
        threads.ended = true;
        let (progress, deliveries) = (threads.progress.take(), std::mem::take(&mut threads.deliveries));
        let dump = threads.dump.take();
        drop(threads);
        if failed {
            deliveries.iter().for_each(|(handover, _)| handover.discard());
        }
        for (handover, thread) in deliveries {
            handover.close();
            thread.join();
            // Another stream's handler may still send to this one, without an end if nobody takes it.
            handover.discard();
        }
        self.seat.stop();
        if let Some(thread) = progress {
            thread.wake();
            thread.join();
        }
        if let Some(thread) = dump {
            thread.join();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop(self.seat.has_failed());
    }
}

/// A stream of a job among threads.
pub(crate) struct Opened {
    pub shared: Arc<Shared>,
    handle: seat::Handle<Arc<Threaded>>,
    handover: Arc<Handover>,
    pub name: String,
    /// Fences and barriers, one at a time.
    collective: Mutex<()>,
}

impl Opened {
    /// Sends: waits while there is no room, but not in a handler, whose sends are spilled.
    #[inline]
    pub fn send(
        &self,
        send: impl FnMut(&mut Outbound) -> Result<()>,
        send_or_spill: impl FnMut(&mut Outbound) -> Result<()>,
    ) -> Result<()> {
        if is_in_handler() {
            return self.handle.send_with(noting_overfilled(send_or_spill));
        }
        self.handle.send_with(send)
    }

    /// As [`Opened::send`], one after the other; those before the failing one are sent.
    pub fn send_many<T>(
        &self,
        items: &mut impl Iterator<Item = T>,
        send: impl FnMut(&mut Outbound, &T) -> Result<()>,
        mut send_or_spill: impl FnMut(&mut Outbound, &T) -> Result<()>,
    ) -> Result<()> {
        if is_in_handler() {
            return self.handle.send_many(items, |out, item| {
                noting_overfilled(|out: &mut Outbound| send_or_spill(out, item))(out)
            });
        }
        self.handle.send_many(items, send)
    }

    /// Sends if there is room now.
    #[inline]
    pub fn try_send(&self, send: impl FnOnce(&mut Outbound) -> Result<()>) -> Result<()> {
        self.handle.with_out("a send", send)
    }

    /// A flush, which a handler may not wait for.
    pub fn flush(&self, queues: Queues) -> Result<()> {
        self.handle.flush(queues)
    }

    /// A fence of the stream.
    pub fn fence(&self) -> Result<()> {
        self.collective("a fence", |handle| handle.fence())
    }

    /// A barrier on the stream's own channel.
    pub fn barrier(&self) -> Result<()> {
        self.collective("a barrier", |handle| handle.barrier())
    }

    /// A call in which this stream takes part on all ranks.
    fn collective(
        &self,
        what: &'static str,
        call: impl FnOnce(&seat::Handle<Arc<Threaded>>) -> Result<()>,
    ) -> Result<()> {
        self.shared.seat.may_wait(what)?;
        let _one = self.collective.lock().unwrap_or_else(PoisonError::into_inner);
        call(&self.handle)
    }

    /// Looks at the stream if the engine can be had soon.
    fn try_look<R>(&self, look: impl FnOnce(&Core, &Outbound) -> R) -> Option<R> {
        let looked = self.shared.seat.try_look(|job| {
            let (core, out) = job.engine.stream(self.handle.id).ok()?;
            Some(look(core, out))
        });
        looked.flatten()
    }

    /// Counters; `None` when the engine is in use and does not come free, or the stream is gone.
    pub fn stats(&self) -> Option<Stats> {
        self.try_look(|core, out| core.snapshot(out))
    }

    /// As [`Opened::stats`], with each queue's.
    pub fn detailed_stats(&self) -> Option<DetailedStats> {
        self.try_look(|core, out| core.detailed(out))
    }

    /// Writes the stream's queues.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        write_state(&self.shared.seat, writer, |job, text| {
            match job.engine.stream(self.handle.id) {
                Ok((core, out)) => dump::write(core, out, text),
                Err(error) => writeln!(text, "stream `{}`: {error}", self.name),
            }
        })
    }

    /// Whatever comes of it, the handler is called no more afterwards, except where it is a handler that asks.
    pub fn shutdown(&self) -> Result<()> {
        let outcome = self.collective("shutting down", |handle| handle.shut_down());
        match &outcome {
            Err(Error::Nested(_)) => return outcome,
            // Of no more than what waits: a fence that failed has left it.
            Err(_) => self.handover.discard(),
            Ok(()) => {}
        }
        self.shared.end_deliveries(&self.handover);
        outcome
    }
}

/// A send of a handler: its next call waits for a spill that it has overfilled.
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
