//! Threads that no signal of the process is given to: its handlers run on threads of the program.
//! What a thread itself causes, it gets.

use crate::error::{Error, Result};
use crate::sync::thread::{self, Builder, JoinHandle};
use crate::sync::{Arc, Flag};

/// Signals by which a thread hears of what it has just done: blocked, they would end the process
/// whatever has a handler for them.
const OWN: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Starts a thread with all signals blocked but those that it causes itself.
///
/// # Errors
/// [`Error::System`] when there is no thread to be had.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<MaskedThread<T>> {
    let finished = Arc::new(Flag::default());
    let at_end = RaiseAtEnd(Arc::clone(&finished));
    // A thread begins with the mask of the one that starts it.
    let before = SignalMask::block_all();
    let spawned = Builder::new().name(name.into()).spawn(move || {
        let _at_end = at_end;
        run()
    });
    drop(before);
    let handle = spawned.map_err(|e| {
        let limits = "`ulimit -u`, the control group's pids.max, memory for its stack";
        Error::system(
            format!("starting the thread `{name}` (bounded by {limits})"),
            e,
        )
    })?;
    Ok(MaskedThread { handle, finished })
}

/// A thread that [`spawn`] has started.
#[derive(Debug)]
pub struct MaskedThread<T> {
    handle: JoinHandle<T>,
    finished: Arc<Flag>,
}

impl<T> MaskedThread<T> {
    /// Whether it has come to its end, also by a panic: then [`join`](Self::join) hardly waits.
    pub fn is_finished(&self) -> bool {
        self.finished.is_raised()
    }

    /// What others may wake it by.
    pub fn thread(&self) -> &thread::Thread {
        self.handle.thread()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn join(self) -> std::thread::Result<T> {
        self.handle.join()
    }
}

/// Raises its flag when a thread ends, also by a panic.
struct RaiseAtEnd(Arc<Flag>);

impl Drop for RaiseAtEnd {
    fn drop(&mut self) {
        self.0.raise();
    }
}

/// The calling thread's signal mask, to be put back.
struct SignalMask(libc::sigset_t);

impl SignalMask {
    fn block_all() -> Self {
        // SAFETY: a signal set is plain data; the calls write and read those given, and change this
        // thread's mask only.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            for own in OWN {
                libc::sigdelset(&raw mut all, own);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // SAFETY: the set was filled in by `block_all`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}

#[cfg(all(test, not(any(trihop_loom, trihop_shuttle))))]
mod tests {
    use super::*;

    /// Whether the calling thread takes a signal.
    fn takes(signal: libc::c_int) -> bool {
        // SAFETY: a signal set is plain data, which the first call fills in; nothing is changed.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
            libc::sigismember(&raw const mask, signal) == 0
        }
    }

    #[test]
    fn signals_are_blocked_on_the_new_thread_alone() {
        let signals = [libc::SIGUSR1, libc::SIGTERM, libc::SIGALRM];
        let before = signals.map(takes);
        let thread = spawn("masked", move || signals.map(takes)).unwrap();
        assert_eq!(thread.join().unwrap(), [false; 3]);
        assert_eq!(signals.map(takes), before);
        assert!(before.contains(&true), "they are not blocked in tests");
        let own = OWN.map(takes);
        let thread = spawn("masked", || OWN.map(takes)).unwrap();
        assert_eq!(thread.join().unwrap(), own);
    }
}
