//! The engine among threads: who has the turn may use it.

use std::io::Write;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use trihop_transport::bootstrap::Launcher;
use trihop_transport::park::Turn;
use trihop_transport::sync::{Flag, Mutex, MutexGuard, PoisonError};
use trihop_transport::topology::Topology;

use super::thread::{Thread, is_in_handler, nap};
use super::usage::ThreadUse;
use crate::Job;
use crate::config::StreamOptions;
use crate::deliver::{Calls, Delivery, Handover};
use crate::dump;
use crate::engine::BadRun;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::face::handle::Handle;
use crate::signal::{DumpOnSignal, DumpOutput};

/// A handler as a delivery thread calls it.
pub(crate) type Deliver = Box<dyn FnMut(Delivery<'_>, &Calls<'_>) -> Result<(), BadRun> + Send>;

/// How often the progress thread of a job that has failed looks whether a dump was asked for.
const LOOK: Duration = Duration::from_millis(100);

/// A job among threads.
pub(crate) struct Shared {
    /// Reached with the turn only, as is everything that shares its reference counts: the streams' handles.
    job: ManuallyDrop<Job<'static>>,
    pub topology: Topology,
    pub launcher: Launcher,
    pub provider: Option<String>,
    /// Defaults of the job's streams.
    pub stream_options: StreamOptions,
    /// The progress thread is to end.
    stopping: Flag,
    /// Calls in which all ranks take part, one at a time.
    collective: Mutex<()>,
    threads: Mutex<Threads>,
    dump: DumpOnSignal,
}

#[derive(Default)]
struct Threads {
    progress: Option<Thread>,
    deliveries: Vec<(Arc<Handover>, Thread)>,
    /// Writes what a signal asked for: who reads it may keep it waiting.
    dump: Option<Thread>,
    /// The job was shut down.
    ended: bool,
}

// SAFETY: the job's cells and reference counts are reached with the turn only, so by one thread at a time, and the turn's
// lock orders these; nothing in the job belongs to the thread that made it (its handlers are `Send`: see `open`).
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The job on its way to the progress thread, which ends before it.
struct Lent(*const Shared);

// SAFETY: `Shared` is `Sync`.
unsafe impl Send for Lent {}

/// Ends a turn, also when a panic does.
struct OneTurn<'a>(&'a Turn);

impl<'a> OneTurn<'a> {
    fn take(turn: &'a Turn) -> Self {
        turn.take();
        Self(turn)
    }
}

impl Drop for OneTurn<'_> {
    fn drop(&mut self) {
        // SAFETY: made with the turn, and calls that give it away meanwhile have taken it again.
        unsafe { self.0.leave() }
    }
}

impl Shared {
    pub fn start(job: Job<'static>) -> Result<Arc<Self>> {
        let (topology, launcher, provider) = (job.topology().clone(), job.launcher(), job.provider());
        let stream_options = job.state.options.stream.clone();
        job.state.turn.get_or_init(Turn::default);
        let shared = Arc::new(Self {
            job: ManuallyDrop::new(job),
            topology,
            launcher,
            provider,
            stream_options,
            stopping: Flag::default(),
            collective: Mutex::new(()),
            threads: Mutex::default(),
            dump: DumpOnSignal::default(),
        });
        super::exit::guard(Arc::downgrade(&shared));
        let lent = Lent(Arc::as_ptr(&shared));
        let progress = Thread::spawn("trihop-progress", "progress", move || {
            let lent = lent; // whole, not its field
            // SAFETY: `shared` is kept until this thread was joined, in `stop`.
            let shared = unsafe { &*lent.0 };
            let turn = OneTurn::take(shared.turn());
            shared.job.state.progress_until(&shared.stopping, || {
                if let Some(output) = shared.dump.take_asked() {
                    // SAFETY: taken above; `progress_until` keeps no borrow meanwhile.
                    unsafe { shared.turn().leave() };
                    shared.dump_to(output);
                    shared.turn().take();
                }
            });
            drop(turn);
            // A job that has failed is looked at all the same.
            while !shared.stopping.is_raised() {
                if let Some(output) = shared.dump.take_asked() {
                    shared.dump_to(output);
                }
                nap(LOOK);
            }
        })?;
        shared.lock_threads().progress = Some(progress);
        Ok(shared)
    }

    fn turn(&self) -> &Turn {
        self.job.state.turn.get().expect("set by `start`")
    }

    fn lock_threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the engine, when it is this thread's turn.
    #[inline]
    pub fn with<R>(&self, call: impl FnOnce(&Job<'static>) -> Result<R>) -> Result<R> {
        let _turn = OneTurn::take(self.turn());
        self.job.state.check_failure()?;
        let result = call(&self.job);
        self.job.state.wake_progress_thread();
        result
    }

    /// The process exits: takes the turn for good, if it comes soon, and has the launcher told.
    pub fn try_exit(&self) -> bool {
        let taken = self.turn().try_take();
        if taken {
            self.job.state.exit();
        }
        taken
    }

    /// Looks at the engine if it can be had soon.
    pub fn try_look<R>(&self, look: impl FnOnce(&Job<'static>) -> R) -> Option<R> {
        if !self.turn().try_take() {
            return None;
        }
        let _turn = OneTurn(self.turn());
        Some(look(&self.job))
    }

    /// Dumps because a signal has asked for it. The text is made here and written by a thread of its own.
    fn dump_to(&self, output: DumpOutput) {
        let mut text = Vec::new();
        let made = self.dump(&mut text, Job::dump);
        if made.and_then(|()| self.write_threads(&mut text)).is_err() {
            return; // there is no writing into memory that fails
        }
        let mut threads = self.lock_threads();
        if threads.dump.as_ref().is_some_and(|thread| !thread.has_ended()) {
            tracing::error!(?output, "the last dump is still being written; this one is not");
            return;
        }
        let rank = self.topology.rank();
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
            Ok(thread) => threads.dump = Some(thread),
            Err(error) => tracing::error!(%error, "the dump that a signal asked for could not be written"),
        }
    }

    /// Writes what `dump` makes of the engine, if it can be had soon. The turn is for the making only: a writer may wait
    /// for its reader.
    pub fn dump(
        &self,
        writer: &mut dyn Write,
        dump: impl FnOnce(&Job<'static>, &mut dyn Write) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut text = Vec::new();
        let made = self.try_look(|job| dump(job, &mut text));
        made.unwrap_or_else(|| writeln!(text, "the engine is in use and does not come free"))?;
        writer.write_all(&text)
    }

    /// See [`super::Job::dump_on`].
    pub fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.dump.install(signal, output)
    }

    /// What the job's threads have used so far.
    pub fn threads(&self) -> Vec<ThreadUse> {
        let threads = self.lock_threads();
        let deliveries = threads.deliveries.iter().map(|(_, thread)| thread);
        let all = threads.progress.iter().chain(deliveries);
        all.filter_map(Thread::usage).collect()
    }

    /// Writes what the job's threads have used so far.
    pub fn write_threads(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        let threads = self.threads();
        threads.iter().try_for_each(|t| writeln!(writer, "thread {t}"))
    }

    /// A call that may wait, which a handler may not.
    pub fn wait<R>(&self, what: &'static str, call: impl FnOnce(&Job<'static>) -> Result<R>) -> Result<R> {
        if is_in_handler() {
            return Err(Error::Nested(what));
        }
        self.with(call)
    }

    /// A call in which all ranks take part.
    pub fn collective<R>(
        &self,
        what: &'static str,
        call: impl FnOnce(&Job<'static>) -> Result<R>,
    ) -> Result<R> {
        if is_in_handler() {
            return Err(Error::Nested(what));
        }
        let _one = self.collective.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lock_threads().ended {
            return Err(Error::Closed("(all of the job)".into()));
        }
        self.with(call)
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
        let bell = self.job.state.bell();
        let handover = Arc::new(Handover::new(options, bell));
        // The thread is there before the stream: what arrives has somewhere to go, whatever fails in between.
        let thread = super::thread::deliver(name, self.topology.size(), Arc::clone(&handover), deliver)?;
        let opened = self.collective("opening a stream", |job| {
            let sink = Sink::Thread(Arc::clone(&handover));
            let core = job.state.open(name, options, item_bytes, sink)?;
            Ok(Arc::new(Opened {
                shared: Arc::clone(self),
                handle: ManuallyDrop::new(Handle::new(core, std::rc::Rc::clone(&job.state))),
                handover: Arc::clone(&handover),
                name: name.to_owned(),
                collective: Mutex::new(()),
            }))
        });
        match opened {
            Ok(opened) => {
                self.lock_threads().deliveries.push((handover, thread));
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
        let mut threads = self.lock_threads();
        let at = threads.deliveries.iter().position(|(h, _)| Arc::ptr_eq(h, of));
        if let Some((handover, thread)) = at.map(|at| threads.deliveries.swap_remove(at)) {
            drop(threads);
            handover.close();
            thread.join();
        }
    }

    pub fn shutdown(&self) -> Result<()> {
        let outcome = self.collective("shutting down", |job| job.state.shutdown());
        if !matches!(outcome, Err(Error::Nested(_) | Error::Closed(_))) {
            self.stop(outcome.is_err());
        }
        outcome
    }

    /// Ends all threads. Of a job that has `failed`, deliveries that wait are dropped.
    fn stop(&self, failed: bool) {
        let mut threads = self.lock_threads();
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
        self.stopping.raise();
        // Not the turn: a job that has failed may have left it in disorder. The bell is for everybody.
        self.job.state.ring();
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
        self.stop(self.job.state.has_failed());
        let turn = self.turn();
        turn.take();
        // SAFETY: nobody else is left, and the job is not used again. The turn lives inside of it: it is not left.
        unsafe { ManuallyDrop::drop(&mut self.job) };
    }
}

/// A stream of a job among threads.
pub(crate) struct Opened {
    pub shared: Arc<Shared>,
    /// As the job itself, reached with the turn only.
    handle: ManuallyDrop<Handle<'static>>,
    handover: Arc<Handover>,
    pub name: String,
    /// Fences and barriers, one at a time.
    collective: Mutex<()>,
}

// SAFETY: as for `Shared`: the handle is used, counted and dropped with the turn only.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    /// Uses the stream, when it is this thread's turn. The call may wait, and lets others have the turn then.
    #[inline]
    pub fn with<R>(&self, call: impl FnOnce(&Handle<'static>) -> Result<R>) -> Result<R> {
        self.shared.with(|_| call(&self.handle))
    }

    /// A call that a handler may not make.
    pub fn wait<R>(&self, what: &'static str, call: impl FnOnce(&Handle<'static>) -> Result<R>) -> Result<R> {
        self.shared.wait(what, |_| call(&self.handle))
    }

    /// A call in which this stream takes part on all ranks.
    pub fn collective<R>(
        &self,
        what: &'static str,
        call: impl FnOnce(&Handle<'static>) -> Result<R>,
    ) -> Result<R> {
        if is_in_handler() {
            return Err(Error::Nested(what));
        }
        let _one = self.collective.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(call)
    }

    /// Looks at the stream if the engine can be had soon.
    pub fn try_look<R>(&self, look: impl FnOnce(&Handle<'static>) -> R) -> Option<R> {
        self.shared.try_look(|_| look(&self.handle))
    }

    /// Writes the stream's queues.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        self.shared
            .dump(writer, |_, mut text| dump::write(&self.handle.core, &mut text))
    }

    /// Whatever comes of it, the handler is called no more afterwards, except where it is a handler that asks.
    pub fn shutdown(&self) -> Result<()> {
        let outcome = self.collective("shutting down", Handle::shut_down);
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

impl Drop for Opened {
    fn drop(&mut self) {
        let _turn = OneTurn::take(self.shared.turn());
        // SAFETY: not used again; its counts are touched with the turn.
        unsafe { ManuallyDrop::drop(&mut self.handle) };
    }
}
