//! Removes the temporary file when a signal ends the process: the launcher ends all ranks so when
//! one of them dies.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// Signals that end a process which asked for nothing else.
const SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// What the handler needs; complete before the handler is installed, never changed.
struct Task {
    temporary: CString,
    /// What happened on each of [`SIGNALS`] before: the default, or the handler of a library
    /// (providers of libfabric bring some).
    before: [libc::sigaction; SIGNALS.len()],
}

static TASK: OnceLock<Task> = OnceLock::new();

/// Has `path` removed when SIGTERM, SIGINT or SIGHUP ends this process; the first path given in a
/// process counts.
///
/// Signals that are ignored stay so; handlers that others have installed run afterwards.
pub fn remove_on_signal(path: &Path) {
    let Ok(temporary) = CString::new(path.as_os_str().as_bytes()) else {
        return;
    };
    let before = SIGNALS.map(|signal| {
        // SAFETY: a zeroed sigaction is a valid value: default disposition, empty mask, no flags.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a null new action only reads the old one into `before`, which outlives the call.
        unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
        before
    });
    if TASK.set(Task { temporary, before }).is_err() {
        return;
    }
    for (signal, before) in SIGNALS.into_iter().zip(before) {
        if before.sa_sigaction == libc::SIG_IGN {
            continue;
        }
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction =
            remove_and_pass_on as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: `action` is initialised, and `remove_and_pass_on` calls only async-signal-safe
        // functions.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Removes the file, then lets the signal do what it did before.
extern "C" fn remove_and_pass_on(signal: libc::c_int) {
    let Some(task) = TASK.get() else { return };
    // SAFETY: unlink is async-signal-safe, and the string lives as long as the process.
    unsafe { libc::unlink(task.temporary.as_ptr()) };
    if let Some(index) = SIGNALS.iter().position(|&known| known == signal) {
        // SAFETY: sigaction is async-signal-safe, and the action is one that the kernel gave.
        unsafe { libc::sigaction(signal, &raw const task.before[index], std::ptr::null_mut()) };
    }
    // SAFETY: raise is async-signal-safe; the signal comes again when this handler returns, to the
    // action restored above.
    unsafe { libc::raise(signal) };
}
