//! Threads of a job: they take no signals, and say what they are for.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use trihop_transport::masked::{self, MaskedThread};
use trihop_transport::park::Gauge;
use trihop_transport::ring::Bell;
use trihop_transport::sync::{Mutex, MutexGuard, TryLockError, mpsc, thread, thread_local};

use super::seat::{Deliver, Threaded};
use super::usage::ThreadUse;
use super::window::ThreadWindow;
use crate::config::StreamOptions;
use crate::deliver::{Chunk, Deliveries, Handover, NextDelivery, note_overfilled, take_overfilled};
use crate::error::{Error, Result};
use crate::seat::Handle;

thread_local! {
    /// What this thread hands to handlers.
    static SERVES: Cell<*const Deliveries> = const { Cell::new(ptr::null()) };
    /// Windows through which the handler that is being called may push without the turn.
    static PUSHES_BY: RefCell<Vec<Arc<ThreadWindow>>> = const { RefCell::new(Vec::new()) };
}

/// The handler that is being called on this thread may push by this window, until it returns: what
/// is called next is bound by the ends of steps, as it is not.
pub(crate) fn give_up_behind_handler(window: &Arc<ThreadWindow>) {
    let noted = PUSHES_BY.try_with(|windows| {
        let mut windows = windows.borrow_mut();
        if !windows.iter().any(|open| Arc::ptr_eq(open, window)) {
            windows.push(Arc::clone(window));
        }
    });
    // At the exit of the process nothing is noted any more.
    if noted.is_err() {
        window.end_handler();
    }
}

/// What a handler has pushed by, it pushes by no more.
fn end_windows() {
    let next = |windows: &RefCell<Vec<Arc<ThreadWindow>>>| windows.borrow_mut().pop();
    while let Ok(Some(window)) = PUSHES_BY.try_with(next) {
        window.end_handler();
    }
}

/// Whether the caller is a handler, or called as one is.
pub(crate) fn is_in_handler() -> bool {
    SERVES.with(|serves| !serves.get().is_null())
}

/// Sleeps until [`Thread::wake`], or for `limit`.
pub(crate) fn nap(limit: Duration) {
    thread::park_timeout(limit);
}

/// A thread of the job.
pub(crate) struct Thread {
    handle: MaskedThread<()>,
    /// What it is for.
    purpose: String,
    /// Its number in the kernel.
    tid: u32,
}

impl Thread {
    /// Starts a thread that no signal of the process is given to.
    pub fn spawn(name: &str, purpose: &str, run: impl FnOnce() + Send + 'static) -> Result<Self> {
        let (tell, told) = mpsc::channel();
        let handle = masked::spawn(name, move || {
            // Nobody listens only where the thread that starts us was ended.
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
            run();
        })?;
        Ok(Self {
            handle,
            purpose: purpose.to_owned(),
            tid: told.recv().map_or(0, |tid| tid as u32),
        })
    }

    /// What it has used so far, unless it has ended.
    pub fn usage(&self) -> Option<ThreadUse> {
        ThreadUse::of(&self.purpose, self.tid)
    }

    /// Ends its [`nap`] at once, or the next one.
    pub fn wake(&self) {
        self.handle.thread().unpark();
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.handle.is_finished()
    }

    /// Waits for its end; the thread itself does not.
    pub fn join(self) {
        if self.handle.thread().id() != thread::current().id() {
            // What it panicked with, it has said.
            let _ = self.handle.join();
        }
    }
}

/// A thread that calls the handlers of one stream, or of several by turns.
pub(crate) struct DeliveryThread {
    thread: Thread,
    server: Arc<Server>,
    streams: mpsc::Sender<Served>,
}

/// The streams that a delivery thread serves.
struct Server {
    deliveries: Arc<Deliveries>,
    job_size: u32,
    /// Of whoever has taken deliveries.
    streams: Mutex<Streams>,
}

struct Streams {
    opened: mpsc::Receiver<Served>,
    /// By the numbers that handovers have.
    served: HashMap<usize, Served>,
    /// The spill that the last call of a handler has overfilled, whichever thread has made it.
    overfilled: Option<Arc<Gauge>>,
}

/// How a caller that waits for handlers calls them in the place of their delivery thread. What
/// that serves may own handles of its streams.
#[derive(Clone)]
pub(crate) struct Helper {
    server: Weak<Server>,
    /// The stream that it waits for, if it is one.
    awaited: Option<usize>,
}

/// A caller that does so.
pub(crate) struct Helping {
    server: Arc<Server>,
    awaited: Option<usize>,
    attends: bool,
    /// What was taken, of the stream with this number.
    taken: Option<usize>,
    chunk: Chunk,
}

/// A stream whose handler a delivery thread calls.
struct Served {
    name: String,
    handover: Arc<Handover>,
    deliver: Deliver,
    /// Where its handle comes from, once it is open.
    told: mpsc::Receiver<Handle<Threaded>>,
    handle: Option<Handle<Threaded>>,
    /// Its end says that the handler is gone.
    _lives: mpsc::Sender<()>,
}

/// The opener's part of a stream that a delivery thread serves.
pub(crate) struct Delivering {
    pub handover: Arc<Handover>,
    /// The thread that serves this stream alone.
    own: Option<DeliveryThread>,
    /// For callers that wait for the handler.
    pub helper: Helper,
    /// Nothing ever comes; it ends with the handler.
    lives: mpsc::Receiver<()>,
}

impl DeliveryThread {
    /// Starts one; `purpose` is what it is called in lists of threads.
    pub fn spawn(purpose: &str, job_size: u32) -> Result<Self> {
        let (streams, opened) = mpsc::channel();
        let server = Arc::new(Server {
            deliveries: Arc::new(Deliveries::new()),
            job_size,
            streams: Mutex::new(Streams {
                opened,
                served: HashMap::new(),
                overfilled: None,
            }),
        });
        let theirs = Arc::clone(&server);
        let thread = Thread::spawn("trihop-deliver", purpose, move || theirs.run())?;
        Ok(Self {
            thread,
            server,
            streams,
        })
    }

    /// What it has used so far, unless it has ended.
    pub fn usage(&self) -> Option<ThreadUse> {
        self.thread.usage()
    }

    /// What waits for it.
    pub fn deliveries(&self) -> &Arc<Deliveries> {
        &self.server.deliveries
    }

    /// For callers that wait for its handlers: that of a stream, or all.
    pub fn helper(&self, awaited: Option<usize>) -> Helper {
        Helper {
            server: Arc::downgrade(&self.server),
            awaited,
        }
    }

    /// Serves a stream that is about to be opened: what arrives has somewhere to go before, and
    /// waits for the handle that is sent to what this returns.
    pub fn serve(
        &self,
        name: &str,
        options: &StreamOptions,
        bell: &Arc<Bell>,
        deliver: Deliver,
    ) -> Result<(Delivering, mpsc::Sender<Handle<Threaded>>)> {
        let deliveries = Arc::clone(&self.server.deliveries);
        let handover = Arc::new(Handover::new(options, Arc::clone(bell), deliveries));
        let (tell, told) = mpsc::channel();
        let (alive, lives) = mpsc::channel();
        let served = Served {
            name: name.to_owned(),
            handover: Arc::clone(&handover),
            deliver,
            told,
            handle: None,
            _lives: alive,
        };
        let sent = self.streams.send(served);
        sent.map_err(|_| Error::Closed(name.to_owned()))?;
        let delivering = Delivering {
            helper: self.helper(Some(handover.slot())),
            handover,
            own: None,
            lives,
        };
        Ok((delivering, tell))
    }

    /// Ends it once nothing is left to deliver.
    pub fn end(self) {
        self.server.deliveries.close();
        self.thread.join();
    }
}

impl Delivering {
    /// The thread serves no other stream, and ends with this one.
    pub fn by_own(mut self, thread: DeliveryThread) -> Self {
        self.own = Some(thread);
        self
    }

    /// What the stream's own thread has used so far.
    pub fn usage(&self) -> Option<ThreadUse> {
        self.own.as_ref().and_then(DeliveryThread::usage)
    }

    /// Waits until the handler is through with what has come, and is gone; a handler itself does
    /// not wait.
    pub fn end(self) {
        self.handover.close();
        let serves = SERVES.with(Cell::get);
        if serves != Arc::as_ptr(self.handover.deliveries()) {
            let _ = self.lives.recv(); // an error, once the other side is gone
        }
        if let Some(own) = self.own {
            own.end();
        }
    }
}

impl Helper {
    /// Attends to what comes; `None` where the delivery thread has ended.
    pub fn begin(&self) -> Option<Helping> {
        let mut helping = Helping {
            server: self.server.upgrade()?,
            awaited: self.awaited,
            attends: false,
            taken: None,
            chunk: Chunk::default(),
        };
        helping.attend(true);
        Some(helping)
    }
}

impl Helping {
    /// Takes what comes from now on, or leaves it to the delivery thread: of a caller that sleeps.
    pub fn attend(&mut self, attends: bool) {
        if self.attends != attends {
            self.attends = attends;
            self.server.deliveries.attend(attends);
        }
    }

    /// Whether there is something to be [handed out](Self::hand_out).
    pub fn take(&mut self) -> bool {
        self.taken = self.server.deliveries.take(self.awaited, &mut self.chunk);
        self.taken.is_some()
    }

    /// Calls the handler for what was taken.
    pub fn hand_out(&mut self) {
        if let Some(slot) = self.taken.take() {
            self.server
                .serve(|server| server.hand_out(slot, &mut self.chunk));
            self.server.deliveries.give_back();
        }
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        self.attend(false);
    }
}

impl Server {
    /// Makes a call as one that calls handlers.
    fn serve(&self, call: impl FnOnce(&Self)) {
        let before = SERVES.with(|serves| serves.replace(Arc::as_ptr(&self.deliveries)));
        call(self);
        SERVES.with(|serves| serves.set(before));
    }

    /// What a delivery thread does: hands deliveries to the handlers of their streams.
    fn run(&self) {
        self.serve(|server| {
            let (mut chunk, mut has_taken) = (Chunk::default(), false);
            while let Some(next) = server.deliveries.next(&mut chunk, has_taken) {
                has_taken = true;
                match next {
                    NextDelivery::Call(call) => call(),
                    NextDelivery::Deliver(slot) => server.hand_out(slot, &mut chunk),
                    NextDelivery::End(slot) => server.end(slot),
                }
            }
        });
    }

    /// Of whoever has taken deliveries, who is one.
    fn streams(&self) -> MutexGuard<'_, Streams> {
        match self.streams.try_lock() {
            Ok(streams) => streams,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => unreachable!("two have taken deliveries"),
        }
    }

    fn hand_out(&self, slot: usize, chunk: &mut Chunk) {
        let mut streams = self.streams();
        streams.overfilled.take().iter().for_each(note_overfilled);
        if let Some(served) = streams.find(slot) {
            served.hand_out(chunk, self.job_size);
        }
        streams.overfilled = take_overfilled();
        drop(streams);
        end_windows();
    }

    /// Drops the handler of a stream.
    fn end(&self, slot: usize) {
        let mut streams = self.streams();
        let ends = streams.find(slot).is_some();
        let served = streams.served.remove(&slot).filter(|_| ends);
        drop(streams);
        let name = served.as_ref().map(|served| served.name.clone());
        // It may own anything, and the thread goes on.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(served)));
        end_windows();
        if dropped.is_err() {
            tracing::error!(
                stream = name,
                "what the handler owned panics as it is dropped"
            );
        }
    }
}

impl Streams {
    /// The stream with this number. It was sent before anything could be delivered.
    fn find(&mut self, slot: usize) -> Option<&mut Served> {
        while !self.served.contains_key(&slot) {
            let served = self.opened.recv().ok()?;
            self.served.insert(served.handover.slot(), served);
        }
        self.served.get_mut(&slot)
    }
}

impl Served {
    /// Calls the handler for a chunk. After a failure too, until the end: what comes then is
    /// dropped and counted.
    fn hand_out(&mut self, chunk: &mut Chunk, job_size: u32) {
        let Self {
            name,
            handover,
            deliver,
            told,
            handle,
            ..
        } = self;
        let calls = handover.calls();
        // What comes before the stream is open waits for it; one that is not opened has dropped it.
        if handle.is_none() {
            *handle = told.recv().ok();
        }
        let each = || match handle {
            Some(handle) => chunk.each(job_size, |delivery| deliver(delivery, &calls, handle)),
            None => Ok(()),
        };
        let outcome = catch_unwind(AssertUnwindSafe(each));
        let failure = match outcome {
            Ok(Ok(())) => None,
            Ok(Err((source, why))) => Some(Error::bad_run(source, why)),
            Err(panic) => Some(Error::handler(name, &*panic)),
        };
        // Told before the records count as passed: no fence completes over a failure.
        if let Some(failure) = failure {
            handover.fail(failure);
        }
        handover.finish(chunk, calls);
    }
}
