//! Removes what is in the making when a signal ends the process: the launcher ends all ranks so
//! when one of them dies.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, openat, unlinkat};

/// Signals that end a process which asked for nothing else.
const SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// What the handler needs; complete before the handler is installed, never changed.
struct Task {
    directory: CString,
    /// What happened on each of [`SIGNALS`] before: the default, or the handler of a library
    /// (providers of libfabric bring some).
    before: [libc::sigaction; SIGNALS.len()],
}

static TASK: OnceLock<Task> = OnceLock::new();

/// Has the directory `path`, with the files in it, removed when SIGTERM, SIGINT or SIGHUP ends this
/// process; the first path given in a process counts.
///
/// Signals that are ignored stay so; handlers that others have installed run afterwards.
pub fn remove_on_signal(path: &Path) {
    let Ok(directory) = CString::new(path.as_os_str().as_bytes()) else {
        return;
    };
    let before = SIGNALS.map(|signal| {
        // SAFETY: a zeroed sigaction is a valid value: default disposition, empty mask, no flags.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a null new action only reads the old one into `before`, which outlives the call.
        unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
        before
    });
    if TASK.set(Task { directory, before }).is_err() {
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

/// Removes the directory, then lets the signal do what it did before.
extern "C" fn remove_and_pass_on(signal: libc::c_int) {
    let Some(task) = TASK.get() else { return };
    remove_directory(&task.directory);
    if let Some(index) = SIGNALS.iter().position(|&known| known == signal) {
        // SAFETY: sigaction is async-signal-safe, and the action is one that the kernel gave.
        unsafe { libc::sigaction(signal, &raw const task.before[index], std::ptr::null_mut()) };
    }
    // SAFETY: raise is async-signal-safe; the signal comes again when this handler returns, to the
    // action restored above.
    unsafe { libc::raise(signal) };
}

/// Removes a directory that holds files only. May be called in a signal handler: system calls and
/// memory of the stack, no allocation, no lock.
fn remove_directory(path: &CStr) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(directory) = openat(CWD, path, flags, Mode::empty()) else {
        return;
    };
    // What is removed while it is listed may hide others: until a pass finds nothing.
    while removes_some(directory.as_fd()) {}
    let _ = unlinkat(CWD, path, AtFlags::REMOVEDIR);
}

/// Whether a pass over the directory removed any file.
fn removes_some(directory: BorrowedFd<'_>) -> bool {
    if rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0)).is_err() {
        return false;
    }
    let mut memory = [MaybeUninit::<u8>::uninit(); 4096];
    let mut names = RawDir::new(directory, &mut memory);
    let mut some = false;
    while let Some(Ok(name)) = names.next() {
        some |= unlinkat(directory, name.file_name(), AtFlags::empty()).is_ok();
    }
    some
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_goes_with_however_many_files() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("staging");
        std::fs::create_dir(&path).unwrap();
        for number in 0..2000 {
            std::fs::write(path.join(number.to_string()), b"x").unwrap();
        }
        remove_directory(&CString::new(path.as_os_str().as_bytes()).unwrap());
        assert!(!path.exists());
    }
}
