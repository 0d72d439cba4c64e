//! Learning that a process of the same node has ended.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Dir, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::error::{Error, Result};

/// A process that is watched through a descriptor of its own, so that a reused process id cannot
/// mislead.
#[derive(Debug)]
pub struct ProcessWatch {
    watched: Watched,
    pid: u32,
}

#[derive(Debug)]
enum Watched {
    Pidfd(OwnedFd),
    /// Where there is no such call, as under some sandboxes and valgrinds: the process's folder of
    /// `/proc`, which is never another one's, and what never becomes readable.
    Folder {
        folder: OwnedFd,
        never: OwnedFd,
    },
}

impl ProcessWatch {
    /// Watches process `pid`, which must not have been waited for yet.
    ///
    /// # Errors
    /// When there is no such process ([it has ended](Error::is_no_process)), or descriptors run
    /// out.
    pub fn open(pid: u32) -> Result<Self> {
        let what = || format!("watching process {pid}");
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let id = raw.ok_or_else(|| Error::system(what(), Errno::SRCH))?;
        match rustix::process::pidfd_open(id, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self {
                watched: Watched::Pidfd(pidfd),
                pid,
            }),
            Err(error @ (Errno::NOSYS | Errno::PERM)) => {
                tracing::debug!(%error, pid, "no pidfd_open: its end is seen by who looks for it");
                Self::by_folder(pid)
            }
            Err(error) => Err(Error::system(what(), error)),
        }
    }

    fn by_folder(pid: u32) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty());
        let folder = folder.map_err(|error| match error {
            Errno::NOENT => Errno::SRCH,
            error => error,
        });
        let folder = folder.map_err(|e| Error::system(format!("watching process {pid}"), e))?;
        let never = rustix::event::eventfd(0, EventfdFlags::CLOEXEC);
        let never = never.map_err(|e| Error::system(format!("watching process {pid}"), e))?;
        Ok(Self {
            watched: Watched::Folder { folder, never },
            pid,
        })
    }

    /// The same process, watched through another descriptor.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn try_clone(&self) -> Result<Self> {
        let copied = match &self.watched {
            Watched::Pidfd(pidfd) => pidfd.try_clone().map(Watched::Pidfd),
            Watched::Folder { folder, never } => folder.try_clone().and_then(|folder| {
                let never = never.try_clone()?;
                Ok(Watched::Folder { folder, never })
            }),
        };
        let watched =
            copied.map_err(|e| Error::system(format!("watching process {}", self.pid), e))?;
        Ok(Self {
            watched,
            pid: self.pid,
        })
    }

    /// Becomes readable when the process has ended, unless it [is silent](Self::is_silent).
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.watched {
            Watched::Pidfd(pidfd) => pidfd.as_fd(),
            Watched::Folder { never, .. } => never.as_fd(),
        }
    }

    /// Whether the system announces no end of a process: who waits for it looks by itself.
    pub fn is_silent(&self) -> bool {
        matches!(self.watched, Watched::Folder { .. })
    }

    /// Whether the process has ended, for whatever reason.
    pub fn has_ended(&self) -> bool {
        let pidfd = match &self.watched {
            Watched::Pidfd(pidfd) => pidfd,
            Watched::Folder { folder, .. } => return has_folder_of_ended(folder),
        };
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(
            rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)),
            Ok(1..)
        )
    }

    /// Id of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// Whether the process is gone that has this folder of `/proc`, or a zombie.
fn has_folder_of_ended(folder: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut line = [0; 256];
    let read = openat(folder, "stat", flags, Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut line[..]))
        .map_err(io::Error::from);
    match read {
        Ok(count) => {
            // The name of the command stands in brackets, and may have some.
            let line = String::from_utf8_lossy(&line[..count]);
            let state = line.rsplit_once(") ").map_or("", |(_, state)| state);
            // A first thread that has ended alone is a zombie, too.
            state.starts_with('X') || state.starts_with('Z') && !has_other_threads(folder)
        }
        // Descriptors that run out say nothing.
        Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
    }
}

/// Whether a process has threads beside the first one.
fn has_other_threads(folder: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let threads = openat(folder, "task", flags, Mode::empty()).and_then(Dir::new);
    let is_number = |name: &CStr| name.to_bytes().iter().all(u8::is_ascii_digit);
    match threads {
        Ok(threads) => {
            let names = threads.flatten();
            names.filter(|entry| is_number(entry.file_name())).count() > 1
        }
        // Descriptors that run out say nothing.
        Err(error) => !matches!(error, Errno::NOENT | Errno::SRCH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn until_told() -> Child {
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped()).spawn().expect("`cat` starts")
    }

    #[test]
    fn the_end_of_a_process_is_seen_without_the_call_for_it() {
        let mut child = until_told();
        let watch = ProcessWatch::by_folder(child.id()).expect("a running child can be watched");
        let copy = watch.try_clone().unwrap();
        assert!(watch.is_silent() && !watch.has_ended() && !copy.has_ended());
        drop(child.stdin.take());
        // While its parent has not asked for it.
        while !watch.has_ended() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        crate::watchdog::end_of(&mut child);
        assert!(watch.has_ended() && copy.has_ended());
        let gone = ProcessWatch::by_folder(u32::MAX).unwrap_err();
        assert!(gone.is_no_process(), "{gone}");
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        let mut child = until_told();
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
