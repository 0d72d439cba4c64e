//! A tiny process that outlives the launcher, should that be killed, and ends what the ranks have
//! started.
//!
//! Ranks die with the launcher by PDEATHSIG, but their children would not. The warden knows the
//! process groups of living ranks; when its pipe closes it kills them. It holds no other
//! descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

/// The warden, and the pipe whose end it waits for.
#[derive(Debug)]
pub(super) struct Warden {
    pipe: Option<OwnedFd>,
    process: Pid,
}

impl Warden {
    /// Starts the warden of at most `ranks` process groups.
    pub(super) fn start(ranks: usize) -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut groups = vec![0_i32; ranks];
        // SAFETY: the child only makes calls that are async-signal-safe, and never returns.
        let forked = unsafe { libc::fork() };
        if forked == 0 {
            keep_watch(reader.as_raw_fd(), &mut groups);
        }
        // fork answers -1 when it failed, which is no process.
        let process = Pid::from_raw(forked.max(0)).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            pipe: Some(writer),
            process,
        })
    }

    /// A rank lives; its process group has its id.
    pub(super) fn watch(&self, rank: Pid) -> io::Result<()> {
        self.write_word(rank.as_raw_nonzero().get())
    }

    /// A rank is about to be reaped; its id may be taken by others after that.
    pub(super) fn forget(&self, rank: Pid) -> io::Result<()> {
        self.write_word(-rank.as_raw_nonzero().get())
    }

    fn write_word(&self, word: i32) -> io::Result<()> {
        let Some(pipe) = &self.pipe else {
            return Ok(());
        };
        match retry_on_intr(|| rustix::io::write(pipe, &word.to_ne_bytes())) {
            Ok(_) => Ok(()),
            // Somebody ended the warden; the job can do without.
            Err(Errno::PIPE) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = retry_on_intr(|| {
            rustix::process::waitpid(Some(self.process), rustix::process::WaitOptions::empty())
        });
    }
}

/// Life of the warden. Between fork and exit of a process that may have threads: no allocation, no
/// lock.
fn keep_watch(pipe: i32, groups: &mut [i32]) -> ! {
    // SAFETY: system calls on plain integers and on memory that this process owns since the fork.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_NAME, c"trihop-warden".as_ptr());
        if pipe > 0 {
            libc::syscall(libc::SYS_close_range, 0_u32, (pipe - 1) as u32, 0_u32);
        }
        libc::syscall(libc::SYS_close_range, (pipe + 1) as u32, u32::MAX, 0_u32);
        let mut word = 0_i32;
        while libc::read(pipe, (&raw mut word).cast(), 4) == 4 {
            let (old, new) = if word > 0 { (0, word) } else { (-word, 0) };
            if let Some(slot) = groups.iter_mut().find(|slot| **slot == old) {
                *slot = new;
            }
        }
        for group in groups.iter().filter(|group| **group > 0) {
            libc::kill(-*group, libc::SIGKILL);
        }
        libc::_exit(0)
    }
}
