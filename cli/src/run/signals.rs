//! Signals to the launcher, as a descriptor to poll.

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Signals that are forwarded to the ranks.
pub(super) const FORWARDED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1];

/// The forwarded signals, blocked in this thread as long as this lives.
pub(crate) struct Signals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
    /// Those that this process was told to ignore, as by `nohup`. Blocked, they come all the same.
    ignored: Vec<i32>,
}

fn is_ignored(signal: &i32) -> bool {
    // SAFETY: sigaction is plain data; without a new action the call only writes to it.
    let (code, action) = unsafe {
        let mut action = mem::zeroed::<libc::sigaction>();
        let code = libc::sigaction(*signal, std::ptr::null(), &raw mut action);
        (code, action)
    };
    code == 0 && action.sa_sigaction == libc::SIG_IGN
}

impl Signals {
    /// Blocks the signals and opens the descriptor.
    pub(crate) fn block() -> io::Result<Self> {
        // SAFETY: sigset_t is plain data; the calls write only to the two sets.
        let (set, before) = unsafe {
            let mut set = mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            for signal in FORWARDED {
                libc::sigaddset(&raw mut set, signal);
            }
            let mut before = mem::zeroed::<libc::sigset_t>();
            let code = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            if code != 0 {
                return Err(io::Error::from_raw_os_error(code));
            }
            (set, before)
        };
        // SAFETY: the set is initialised above.
        let number =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if number < 0 {
            let error = io::Error::last_os_error();
            restore(&before);
            return Err(error);
        }
        // SAFETY: the descriptor was opened just now and nobody else has it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        Ok(Self {
            descriptor,
            before,
            ignored: FORWARDED.into_iter().filter(is_ignored).collect(),
        })
    }

    /// Whether signals of this number were to be ignored.
    pub(crate) fn are_ignored(&self, signal: i32) -> bool {
        self.ignored.contains(&signal)
    }

    /// What the ranks block: what was blocked before, but nothing that is forwarded to them.
    pub(super) fn mask_of_ranks(&self) -> libc::sigset_t {
        let mut mask = self.before;
        for signal in FORWARDED {
            // SAFETY: the mask is initialised and the signals are valid numbers.
            unsafe { libc::sigdelset(&raw mut mask, signal) };
        }
        mask
    }

    /// The next signal that has arrived.
    pub(crate) fn next(&self) -> Option<i32> {
        let mut record = [0_u8; mem::size_of::<libc::signalfd_siginfo>()];
        let count = rustix::io::read(&self.descriptor, &mut record[..]).ok()?;
        // The number is the first word of the record (signalfd(2)).
        (count == record.len())
            .then(|| i32::from_ne_bytes([record[0], record[1], record[2], record[3]]))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // What arrived meanwhile was meant for the job; it must not end this process now.
        while self.next().is_some() {}
        restore(&self.before);
    }
}

fn restore(mask: &libc::sigset_t) {
    // SAFETY: the mask came out of pthread_sigmask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// Name of a signal, for messages.
pub(super) fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}
