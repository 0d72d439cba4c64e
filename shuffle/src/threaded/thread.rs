//! Threads of a job: they take no signals, and say what they are for.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use trihop_transport::masked::{self, MaskedThread};
use trihop_transport::sync::{mpsc, thread, thread_local};

use super::seat::{Deliver, Threaded};
use super::usage::ThreadUse;
use crate::deliver::{Chunk, Handover};
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

/// Starts the thread that gives a stream's deliveries to `deliver`, once it was `told` the stream's
/// handle.
pub(crate) fn deliver(
    stream: &str,
    job_size: u32,
    handover: Arc<Handover>,
    mut deliver: Deliver,
    told: mpsc::Receiver<Handle<Threaded>>,
) -> Result<Thread> {
    let stream = stream.to_owned();
    let purpose = format!("deliver {stream}");
    Thread::spawn("trihop-deliver", &purpose, move || {
        IN_HANDLER.with(|in_handler| in_handler.set(true));
        let mut chunk = Chunk::default();
        let mut own = None;
        // After a failure too, until the end: what comes then is dropped and counted.
        while handover.next(&mut chunk) {
            let calls = handover.calls();
            // What comes before the stream is open waits for it; one that is not opened has dropped
            // it.
            own = own.or_else(|| told.recv().ok());
            let each = || match &own {
                Some(own) => chunk.each(job_size, |delivery| deliver(delivery, &calls, own)),
                None => Ok(()),
            };
            let outcome = catch_unwind(AssertUnwindSafe(each));
            let failure = match outcome {
                Ok(Ok(())) => None,
                Ok(Err((source, why))) => Some(Error::bad_run(source, why)),
                Err(panic) => Some(Error::handler(&stream, &*panic)),
            };
            handover.finish(&mut chunk, calls);
            if let Some(failure) = failure {
                handover.fail(failure);
            }
        }
    })
}
