//! Threads of a job: they take no signals, and say what they are for.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use trihop_transport::masked::{self, MaskedThread};
use trihop_transport::ring::Bell;
use trihop_transport::sync::thread::{self, ThreadId};
use trihop_transport::sync::{mpsc, thread_local};

use super::seat::{Deliver, Threaded};
use super::usage::ThreadUse;
use crate::config::StreamOptions;
use crate::deliver::{Chunk, Deliveries, Handover, NextDelivery};
use crate::error::{Error, Result};
use crate::seat::Handle;

thread_local! {
    /// This thread calls handlers.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is a handler on its delivery thread.
pub(crate) fn is_in_handler() -> bool {
    IN_HANDLER.with(Cell::get)
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
    deliveries: Arc<Deliveries>,
    streams: mpsc::Sender<Served>,
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
    thread: ThreadId,
    /// Nothing ever comes; it ends with the handler.
    lives: mpsc::Receiver<()>,
}

impl DeliveryThread {
    /// Starts one; `purpose` is what it is called in lists of threads.
    pub fn spawn(purpose: &str, job_size: u32) -> Result<Self> {
        let deliveries = Arc::new(Deliveries::new());
        let (streams, opened) = mpsc::channel();
        let theirs = Arc::clone(&deliveries);
        let thread = Thread::spawn("trihop-deliver", purpose, move || {
            IN_HANDLER.with(|in_handler| in_handler.set(true));
            deliver(&theirs, &opened, job_size);
        })?;
        Ok(Self {
            thread,
            deliveries,
            streams,
        })
    }

    /// What it has used so far, unless it has ended.
    pub fn usage(&self) -> Option<ThreadUse> {
        self.thread.usage()
    }

    /// What waits for it.
    pub fn deliveries(&self) -> &Arc<Deliveries> {
        &self.deliveries
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
        let deliveries = Arc::clone(&self.deliveries);
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
            handover,
            own: None,
            thread: self.thread.handle.thread().id(),
            lives,
        };
        Ok((delivering, tell))
    }

    /// Ends it once nothing is left to deliver.
    pub fn end(self) {
        self.deliveries.close();
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
        if self.thread != thread::current().id() {
            let _ = self.lives.recv(); // an error, once the other side is gone
        }
        if let Some(own) = self.own {
            own.end();
        }
    }
}

/// What a delivery thread does: hands deliveries to the handlers of their streams.
fn deliver(deliveries: &Deliveries, opened: &mpsc::Receiver<Served>, job_size: u32) {
    let mut streams: HashMap<usize, Served> = HashMap::new();
    let mut chunk = Chunk::default();
    while let Some(next) = deliveries.next(&mut chunk) {
        let slot = match next {
            NextDelivery::Deliver(slot) | NextDelivery::End(slot) => slot,
            NextDelivery::Call(call) => {
                call();
                continue;
            }
        };
        while !streams.contains_key(&slot) {
            match opened.recv() {
                Ok(served) => streams.insert(served.handover.slot(), served),
                Err(_) => return, // it was sent before anything could be delivered
            };
        }
        match next {
            NextDelivery::Call(_) => unreachable!("it was made above"),
            NextDelivery::Deliver(slot) => {
                if let Some(served) = streams.get_mut(&slot) {
                    served.hand_out(&mut chunk, job_size);
                }
            }
            NextDelivery::End(slot) => {
                let served = streams.remove(&slot);
                let name = served.as_ref().map(|served| served.name.clone());
                // It may own anything, and the thread goes on.
                if catch_unwind(AssertUnwindSafe(|| drop(served))).is_err() {
                    tracing::error!(
                        stream = name,
                        "what the handler owned panics as it is dropped"
                    );
                }
            }
        }
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
