//! Learning that a process of the same node has ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::error::{Error, Result};

/// A process that is watched through a descriptor of its own, so that a reused process id cannot
/// mislead.
#[derive(Debug)]
pub struct ProcessWatch {
    pidfd: OwnedFd,
    pid: u32,
}

impl ProcessWatch {
    /// Watches process `pid`, which must not have been waited for yet.
    ///
    /// # Errors
    /// When there is no such process (it has ended: `ESRCH`), or descriptors run out.
    pub fn open(pid: u32) -> Result<Self> {
        let what = || format!("watching process {pid}");
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let id = raw.ok_or_else(|| Error::system(what(), rustix::io::Errno::SRCH))?;
        let pidfd = rustix::process::pidfd_open(id, PidfdFlags::empty())
            .map_err(|e| Error::system(what(), e))?;
        Ok(Self { pidfd, pid })
    }

    /// The same process, watched through another descriptor.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn try_clone(&self) -> Result<Self> {
        let what = || format!("watching process {}", self.pid);
        let pidfd = self
            .pidfd
            .try_clone()
            .map_err(|e| Error::system(what(), e))?;
        Ok(Self {
            pidfd,
            pid: self.pid,
        })
    }

    /// Becomes readable when the process has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether the process has ended, for whatever reason.
    pub fn has_ended(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(
            rustix::event::poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&now)),
            Ok(1..)
        )
    }

    /// Id of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_end_of_a_process_is_seen() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("`cat` starts");
        let watch = ProcessWatch::open(child.id()).expect("a running child can be watched");
        assert!(!watch.has_ended());
        drop(child.stdin.take());
        let soon = rustix::event::Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        rustix::event::poll(
            &mut [PollFd::new(&watch.descriptor(), PollFlags::IN)],
            Some(&soon),
        )
        .expect("poll");
        assert!(watch.has_ended());
        crate::watchdog::end_of(&mut child);
    }

    #[test]
    fn a_process_id_that_cannot_be_is_refused() {
        assert!(ProcessWatch::open(0).is_err());
        assert!(ProcessWatch::open(u32::MAX).is_err());
    }
}
