//! Signals as they were before libfabric was loaded.

/// Signals that libraries under libfabric take over while they are loaded.
const TAKEN: [libc::c_int; 6] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGSEGV,
];

/// Gives these signals their default effect again, unless they are ignored. For the start of a
/// program's `main`.
///
/// Debian's libfabric links `libpsm_infinipath`, whose constructor installs handlers that end the
/// process with status 1: an interrupt or a crash would look like an ordinary failure to the parent
/// that waits for the process.
pub fn restore_signals() {
    for signal in TAKEN {
        // SAFETY: a zeroed sigaction is a valid value: default effect, empty mask, no flags.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: with no new action this only reads the present one into `action`.
        let read = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        if read == 0 && action.sa_sigaction != libc::SIG_IGN {
            // SAFETY: the default effect is a valid disposition of each of these signals.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}
