//! The threaded seat: the engine by turns, and the threads of a job.

use std::cell::RefMut;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use trihop_transport::home::Home;
use trihop_transport::ring::Bell;
use trihop_transport::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use trihop_transport::topology::Rank;

use super::at_end::{self, AtEnd};
use super::shared::SharedEngine;
use super::thread::{
    Delivering, DeliveryThread, Helper, Thread, give_up_behind_handler, is_in_handler, nap,
};
use super::usage::ThreadUse;
use super::window::ThreadWindow;
use crate::config::StreamOptions;
use crate::deliver::{Calls, Deliveries, Delivery, DeliveryQueue, Handover};
use crate::endpoint::{Channel, StreamId};
use crate::engine::BadRun;
use crate::engine::outbound::{Outbound, Pushes};
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::face::array::in_use_here;
use crate::job::{JobState, LOOK_AROUND, Started, wake_each};
use crate::queue::window::PushWindow;
use crate::seat::{ALL, Handle, Park, Seating, TurnHandler, open};
use crate::signal::{DumpOnSignal, DumpOutput};

/// A handler as a delivery thread calls it; the last argument is its own stream.
pub(crate) type Deliver =
    Box<dyn FnMut(Delivery<'_>, &Calls<'_>, &Handle<Threaded>) -> Result<(), BadRun> + Send>;

/// What the seat calls for deliveries.
pub(crate) enum Handler {
    /// A delivery thread does, outside of every lock.
    OnThread(Deliver),
    /// Whoever makes progress.
    InTurn(TurnHandler),
}

impl Handler {
    pub fn on_thread(
        handler: impl FnMut(Delivery<'_>, &Calls<'_>, &Handle<Threaded>) -> Result<(), BadRun>
        + Send
        + 'static,
    ) -> Self {
        Self::OnThread(Box::new(handler))
    }
}

/// The threaded seat: all threads of the process may call, a progress thread keeps the job moving,
/// and delivery threads call the handlers.
#[derive(Clone)]
pub struct Threaded {
    shared: Arc<Shared>,
    /// The application's handles keep the job going; those that delivery threads have do not.
    _alive: Option<Arc<Alive>>,
}

/// Ends the threads when the last handle of the application goes, in the process that has them.
struct Alive(Arc<Shared>, Home);

impl Drop for Alive {
    fn drop(&mut self) {
        if !self.1.is_here() {
            // A fork: nothing that the job consists of is ended or dropped.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        // Deliveries that wait are nobody's: handlers that are slower than what comes would go on
        // without end.
        self.0.stop(true);
        // What handlers have kept of their streams finds these closed: nobody would send on. Nor do
        // the others wait for this rank, which has left where it was not shut down.
        self.0.engine.try_look(|job| {
            job.engine.close_streams();
            job.leave();
        });
    }
}

/// What all handles of a job with threads share.
struct Shared {
    engine: Arc<SharedEngine>,
    threads: Arc<Threads>,
    job_size: u32,
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
    /// Calls the handlers of all streams that have no thread of their own.
    deliver: Option<DeliveryThread>,
    delivering: Vec<Delivering>,
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
        let progress = running.progress.iter().filter_map(Thread::usage);
        let common = running.deliver.iter().filter_map(DeliveryThread::usage);
        let own = running.delivering.iter().filter_map(Delivering::usage);
        progress.chain(common).chain(own).collect()
    }

    fn write_usage(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        let threads = self.usage();
        threads
            .iter()
            .try_for_each(|t| writeln!(writer, "thread {t}"))
    }

    /// Dumps because a signal has asked for it. The text is made here and written by a thread of
    /// its own.
    fn dump_to(&self, output: DumpOutput, seat: &SharedEngine) {
        let mut text = Vec::new();
        let made = write_engine(seat, &mut text);
        if made.and_then(|()| self.write_usage(&mut text)).is_err() {
            return; // there is no writing into memory that fails
        }
        let mut running = self.lock();
        if running
            .dump
            .as_ref()
            .is_some_and(|thread| !thread.has_ended())
        {
            tracing::error!(
                ?output,
                "the last dump is still being written; this one is not"
            );
            return;
        }
        let rank = self.rank;
        let spawned = Thread::spawn("trihop-dump", "dump", move || {
            let written = output.open(rank.into()).and_then(|mut writer| {
                writer.write_all(&text)?;
                writer.flush()
            });
            if let Err(error) = written {
                tracing::error!(%error, ?output, "the dump that a signal asked for could not be written");
            }
        });
        match spawned {
            Ok(thread) => running.dump = Some(thread),
            Err(error) => {
                tracing::error!(%error, "the dump that a signal asked for could not be written")
            }
        }
    }
}

/// Writes the queues of all streams, if the engine can be had soon.
fn write_engine(engine: &SharedEngine, writer: &mut dyn Write) -> std::io::Result<()> {
    let made = engine.try_look(|job| job.dump(writer));
    made.unwrap_or_else(|| writeln!(writer, "the engine is in use and does not come free"))
}

impl Threaded {
    /// Moves a job that was started to a seat with threads.
    pub(crate) fn take_over(started: Started, park: Park) -> Result<Self> {
        let job = &started.state;
        let (rank, job_size) = (job.engine.topology.rank(), job.engine.topology.size());
        let shared = Shared {
            threads: Arc::new(Threads {
                rank,
                running: Mutex::default(),
                dump: DumpOnSignal::default(),
            }),
            bell: Arc::clone(&job.bell),
            engine: Arc::new(SharedEngine::new(started, park)),
            job_size,
            collective: Mutex::new(()),
        };
        let engine = Arc::downgrade(&shared.engine);
        trihop_transport::at_exit::guard(engine);
        let (engine, threads) = (Arc::clone(&shared.engine), Arc::clone(&shared.threads));
        let progress = Thread::spawn("trihop-progress", "progress", move || {
            let asked = || threads.dump.take_asked();
            let dump = |output| threads.dump_to(output, &engine);
            let progress = || engine.progress_until_stopped(asked, dump);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(progress)) {
                engine.fail(Error::handler("(progress)", &*panic));
            }
            // A job that has failed is looked at all the same.
            while !engine.is_stopping() {
                asked().into_iter().for_each(dump);
                nap(LOOK_AROUND);
            }
        })?;
        shared.threads.lock().progress = Some(progress);
        let shared = Arc::new(shared);
        Ok(Self {
            _alive: Some(Arc::new(Alive(Arc::clone(&shared), Home::here()))),
            shared,
        })
    }

    /// See [`SharedEngine::sleeps_deeply`].
    #[cfg(test)]
    pub(crate) fn sleeps_deeply(&self) -> Option<bool> {
        self.shared.engine.sleeps_deeply()
    }

    /// See [`SharedEngine::fruitless_polls`].
    #[cfg(test)]
    pub(crate) fn fruitless_polls(&self) -> Option<u32> {
        self.shared.engine.fruitless_polls()
    }

    /// See [`SharedEngine::stands_by`].
    #[cfg(test)]
    pub(crate) fn stands_by(&self) -> Option<bool> {
        self.shared.engine.stands_by()
    }

    /// What the job's threads have used so far.
    pub(crate) fn threads(&self) -> Vec<ThreadUse> {
        self.shared.threads.usage()
    }
}

impl Shared {
    /// The handler of a stream that is shut down is called no more.
    fn end_deliveries(&self, of: &Arc<Handover>) {
        let mut threads = self.threads.lock();
        let delivering = &mut threads.delivering;
        let at = delivering
            .iter()
            .position(|of_one| Arc::ptr_eq(&of_one.handover, of));
        let ended = at.map(|at| delivering.swap_remove(at));
        drop(threads);
        if let Some(ended) = ended {
            ended.end();
        }
    }

    /// Has a delivery thread serve a stream that is about to be opened: what arrives has somewhere
    /// to go, whatever fails in between.
    fn serve(
        &self,
        name: &str,
        options: &StreamOptions,
        deliver: Deliver,
    ) -> Result<(Delivering, mpsc::Sender<Handle<Threaded>>)> {
        if options.own_thread {
            let own = DeliveryThread::spawn(&format!("deliver {name}"), self.job_size)?;
            let (delivering, tell) = own.serve(name, options, &self.bell, deliver)?;
            return Ok((delivering.by_own(own), tell));
        }
        let mut threads = self.threads.lock();
        let common = self.common(&mut threads)?;
        common.serve(name, options, &self.bell, deliver)
    }

    /// The delivery thread of all streams that have none of their own.
    fn common<'t>(&self, threads: &'t mut Running) -> Result<&'t DeliveryThread> {
        Ok(match &mut threads.deliver {
            Some(common) => common,
            none => none.insert(DeliveryThread::spawn("deliver", self.job_size)?),
        })
    }

    /// For callers that wait for the handlers of all of these streams.
    fn common_helper(&self) -> Option<Helper> {
        let threads = self.threads.lock();
        threads.deliver.as_ref().map(|thread| thread.helper(None))
    }

    /// Waits until a delivery thread has made the calls that are due, unless all threads end.
    fn pass_calls(&self, thread: &Deliveries) {
        let threads = self.threads.lock();
        if threads.ended {
            return;
        }
        let (tell, told) = mpsc::channel::<()>();
        let refused = thread.call(Box::new(move || drop(tell)));
        drop((threads, refused));
        let _ = told.recv(); // nothing ever comes; it ends with the call
    }

    /// Ends all threads. Of a job that has `failed`, deliveries that wait are dropped.
    fn stop(&self, failed: bool) {
        let mut threads = self.threads.lock();
        threads.ended = true;
        let (progress, common, dump) = (
            threads.progress.take(),
            threads.deliver.take(),
            threads.dump.take(),
        );
        let delivering = std::mem::take(&mut threads.delivering);
        drop(threads);
        self.engine.at_ends.clear();
        if failed {
            delivering
                .iter()
                .for_each(|of_one| of_one.handover.discard());
        }
        for of_one in delivering {
            let handover = Arc::clone(&of_one.handover);
            of_one.end();
            // Another stream's handler may still send to this one, without an end if nobody takes
            // it.
            handover.discard();
        }
        if let Some(common) = common {
            common.end();
        }
        self.engine.stop();
        if let Some(thread) = progress {
            thread.wake();
            thread.join();
        }
        if let Some(thread) = dump {
            thread.join();
        }
        self.engine.at_ends.clear(); // those that were refused meanwhile
    }
}

/// What the seat keeps of a stream.
pub struct OfStream {
    /// Way to its delivery thread, if it has a handler there.
    handler: Option<(Arc<Handover>, Helper)>,
    /// Fences and barriers, one at a time.
    collective: Mutex<()>,
    /// The end of its handler.
    ending: Mutex<()>,
    /// The thread that makes calls at the ends of its steps, where no handler has one.
    calls: Mutex<Option<Arc<Deliveries>>>,
    /// What its pushes and sends use while nobody has the turn.
    window: Arc<ThreadWindow>,
}

impl Seating for Threaded {
    const MOVES_ALONE: bool = true;

    type OfStream = Arc<OfStream>;
    type Guard = ();
    type Handler = Handler;
    type Outbox<'a> = &'a Handle<Self>;
    type OwnerOf = Arc<dyn Fn(u64) -> Rank + Send + Sync>;
    type AtEnd = AtEnd;

    fn in_turn(handler: TurnHandler) -> Handler {
        Handler::InTurn(handler)
    }

    fn again<'a>(outbox: &'a mut &Handle<Self>) -> &'a Handle<Self> {
        outbox
    }

    fn guard(&self) {}

    fn open(
        &self,
        channel: Channel,
        name: &str,
        options: Option<StreamOptions>,
        item_bytes: usize,
        handler: Option<Handler>,
    ) -> Result<Handle<Self>> {
        let options = match options {
            Some(options) => options,
            None => self.with("opening a stream", |job| Ok(job.options.stream.clone()))?,
        };
        self.may_wait("opening a stream")?;
        // What cannot be has no thread, and is refused once all ranks have heard that.
        let is_possible = options.check().is_ok();
        let deliver = match handler {
            Some(Handler::OnThread(deliver)) if is_possible => deliver,
            Some(Handler::InTurn(handler)) => {
                let install = |id| self.shared.engine.install(id, handler);
                let sink = Sink::Handler;
                return self.open_with(channel, name, &options, item_bytes, (sink, None), install);
            }
            Some(Handler::OnThread(_)) | None => {
                let sink = Sink::Queue(DeliveryQueue::new(&options));
                return self.open_with(channel, name, &options, item_bytes, (sink, None), drop);
            }
        };
        let shared = &self.shared;
        let (delivering, tell) = shared.serve(name, &options, deliver)?;
        let handover = Arc::clone(&delivering.handover);
        let handler = (Arc::clone(&handover), delivering.helper.clone());
        let sink = (Sink::Thread(handover), Some(handler));
        let opened = self.open_with(channel, name, &options, item_bytes, sink, drop);
        match &opened {
            Ok(handle) => {
                shared.threads.lock().delivering.push(delivering);
                // Nobody listens only where the thread was ended before.
                let _ = tell.send(handle.on_seat(self.for_calls()));
            }
            Err(_) => {
                drop(tell); // what the thread may be waiting for
                delivering.handover.discard();
                delivering.end();
            }
        }
        opened
    }

    fn may_have_ended(&self) -> bool {
        self.shared.engine.has_failed() || self.shared.engine.is_stopping()
    }

    fn with_quietly<R>(
        &self,
        _: &'static str,
        call: impl FnOnce(&mut JobState) -> Result<R>,
    ) -> Result<R> {
        self.shared.engine.with_quietly(call)
    }

    #[inline]
    fn with<R>(&self, _: &'static str, call: impl FnOnce(&mut JobState) -> Result<R>) -> Result<R> {
        self.shared.engine.with(call)
    }

    fn may_wait(&self, what: &'static str) -> Result<()> {
        // Handlers wait for whoever has the elements of an array.
        match is_in_handler() || in_use_here() {
            true => Err(Error::Nested(what)),
            false => Ok(()),
        }
    }

    fn progress(&self, _: &'static str) -> Result<bool> {
        self.shared.engine.progress()
    }

    fn notify_moved(&self) {
        self.shared.engine.notify_moved();
    }

    fn give_way(&self, found_something: bool) {
        self.shared.engine.give_way(found_something);
    }

    fn progress_in_passing(&self) -> Result<()> {
        self.shared.engine.progress_in_passing()
    }

    fn wait<T>(
        &self,
        what: &'static str,
        done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<T> {
        self.wait_by(None, what, done)
    }

    /// The caller calls handlers itself, for as long as it is awake, those of all streams with the
    /// same thread: nobody has to wake the delivery thread, nor that one the caller.
    fn wait_for_handlers<T>(
        &self,
        of: Option<&Arc<OfStream>>,
        what: &'static str,
        done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<T> {
        let helper = match of {
            Some(of) => of.handler.as_ref().map(|(_, helper)| helper.clone()),
            None => self.shared.common_helper(),
        };
        self.wait_by(helper.as_ref(), what, done)
    }

    fn wait_awake<T>(
        &self,
        what: &'static str,
        done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.shared.engine.wait(what, false, None, done)
    }

    fn look<R>(&self, look: impl FnOnce(&mut JobState) -> R) -> Option<R> {
        self.shared.engine.try_look(look)
    }

    fn is_in_handler(&self) -> bool {
        is_in_handler()
    }

    fn is_at_end(&self) -> bool {
        at_end::is_at_end()
    }

    fn for_calls(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            _alive: None,
        }
    }

    fn keep_at_end(
        &self,
        of: &Arc<OfStream>,
        name: &Arc<str>,
        call: AtEnd,
    ) -> Result<impl FnOnce(u64)> {
        let engine = &self.shared.engine;
        let thread = match &of.handler {
            Some((handover, _)) => Arc::clone(handover.deliveries()),
            None => {
                let mut threads = self.shared.threads.lock();
                if threads.ended {
                    return Err(Error::Closed(ALL.to_owned()));
                }
                let thread = Arc::clone(self.shared.common(&mut threads)?.deliveries());
                let mut calls = of.calls.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(calls.get_or_insert(thread))
            }
        };
        Ok(move |number| {
            let call = at_end::guarded(name, Arc::downgrade(engine), number, call);
            engine.at_ends.keep(number, thread, call);
        })
    }

    fn begin_taking(&self) -> Result<()> {
        Ok(())
    }

    fn end_taking(&self) {}

    fn hold(&self, _: StreamId, _: &'static str) -> Result<Option<RefMut<'_, Outbound>>> {
        Ok(None)
    }

    fn window(of: &Arc<OfStream>) -> &PushWindow {
        of.window.window()
    }

    #[inline(always)] // part of every push
    fn push_here(&self, of: &Arc<OfStream>, target: Rank, item: &[u8]) -> bool {
        of.window.push(target.0, item)
    }

    #[inline(always)] // part of every send
    fn send_here(&self, of: &Arc<OfStream>, target: Rank, kind: u32, bytes: &[u8]) -> bool {
        of.window.send(target.0, kind, bytes)
    }

    /// Where the last such pushes were of the same thread.
    #[inline]
    fn allow_pushes_here(&self, id: StreamId, of: &Arc<OfStream>, pushes: Pushes) {
        if !of.window.want() {
            return;
        }
        let engine = &self.shared.engine;
        match is_in_handler() && !at_end::is_at_end() {
            true => {
                engine.open_window(id, &of.window, Pushes::OfHandler);
                give_up_behind_handler(&of.window);
            }
            false => engine.open_window(id, &of.window, pushes),
        }
    }

    fn one_at_a_time<R>(
        &self,
        of: Option<&Arc<OfStream>>,
        what: &'static str,
        call: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.may_wait(what)?;
        let lock = of.map_or(&self.shared.collective, |of| &of.collective);
        let _one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if of.is_none() && self.shared.threads.lock().ended {
            return Err(Error::Closed(ALL.to_owned()));
        }
        call()
    }

    /// Whatever has come of it, the handler is called no more afterwards, except where it is a
    /// handler that asks.
    fn closed(&self, id: StreamId, of: &Arc<OfStream>, failed: bool) {
        let Some((handover, _)) = &of.handler else {
            self.shared.engine.uninstall(id);
            let calls = of.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let thread = calls.clone();
            drop(calls);
            if let Some(thread) = thread {
                self.shared.pass_calls(&thread);
            }
            return;
        };
        // Who comes second waits for the last call too.
        let _one = of.ending.lock().unwrap_or_else(PoisonError::into_inner);
        if failed {
            handover.discard(); // no more than what waits: a fence that failed has left it
        }
        self.shared.end_deliveries(handover);
    }

    fn ended(&self, failed: bool) {
        self.shared.stop(failed);
        // Whoever sleeps until something of the job comes hears that nothing does.
        let woken = self.shared.engine.try_look(|job| {
            job.engine.close_streams();
            job.parked.wake_all();
            job.parked.take_woken()
        });
        wake_each(woken.unwrap_or_default());
    }

    fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.shared.threads.dump.install(signal, output)
    }

    fn dump_own(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        self.shared.threads.write_usage(writer)
    }
}

impl Threaded {
    fn wait_by<T>(
        &self,
        helper: Option<&Helper>,
        what: &'static str,
        done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<T> {
        let value = self.shared.engine.wait(what, true, helper, done)?;
        Ok(value.expect("a wait that sleeps ends with a value"))
    }

    fn open_with(
        &self,
        channel: Channel,
        name: &str,
        options: &StreamOptions,
        item_bytes: usize,
        (sink, handler): (Sink, Option<(Arc<Handover>, Helper)>),
        install: impl FnOnce(StreamId),
    ) -> Result<Handle<Self>> {
        let what = "opening a stream";
        let open = || open(self, channel, name, options, item_bytes, sink, install);
        let id = match channel {
            Channel::Calls => self.one_at_a_time(None, what, open),
            // One thread opens and closes them, whatever other threads call meanwhile.
            Channel::Apart => self.may_wait(what).and_then(|()| open()),
        }?;
        let of = OfStream {
            handler,
            collective: Mutex::new(()),
            ending: Mutex::new(()),
            window: Arc::new(ThreadWindow::new()),
            calls: Mutex::new(None),
        };
        Handle::new(self.clone(), id, Arc::new(of), name)
    }
}
