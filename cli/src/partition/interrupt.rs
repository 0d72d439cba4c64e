//! Removes the temporary file when a signal ends the process: the launcher ends all ranks so when one of them dies.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// File to remove; set once, before the handler is installed.
static TEMPORARY: OnceLock<CString> = OnceLock::new();

/// Signals that end a process which asked for nothing else.
const SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Has `path` removed when SIGTERM, SIGINT or SIGHUP ends this process; the first path given in a process counts.
///
/// Signals that are ignored or that somebody else handles stay as they are.
pub fn remove_on_signal(path: &Path) {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return;
    };
    if TEMPORARY.set(path).is_err() {
        return;
    }
    for signal in SIGNALS {
        // SAFETY: a zeroed sigaction is a valid value: default disposition, empty mask, no flags.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a null new action only reads the old one into `before`, which outlives the call.
        let read = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
        if read != 0 || before.sa_sigaction != libc::SIG_DFL {
            continue;
        }
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = remove_and_end as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESETHAND;
        // SAFETY: `action` is initialised, and `remove_and_end` calls only async-signal-safe functions.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Removes the file and lets the signal do what it does by default.
extern "C" fn remove_and_end(signal: libc::c_int) {
    if let Some(path) = TEMPORARY.get() {
        // SAFETY: unlink is async-signal-safe, and the string lives as long as the process.
        unsafe { libc::unlink(path.as_ptr()) };
    }
    // SAFETY: raise is async-signal-safe; SA_RESETHAND has restored the default action, which now ends the process.
    unsafe { libc::raise(signal) };
}
