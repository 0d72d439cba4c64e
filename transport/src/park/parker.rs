//! Sleeping on the doorbell and on other descriptors at once.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::ring::Doorbell;
use crate::sync::sleep_in_kernel;

/// Mark of the doorbell itself.
const DOORBELL: u64 = u64::MAX;

/// Events taken per sleep; more stay ready for the next one.
const EVENTS: usize = 16;

/// An epoll instance over a doorbell and whatever else is watched.
pub struct Parker {
    epoll: OwnedFd,
}

impl fmt::Debug for Parker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parker({:?})", self.epoll)
    }
}

impl Parker {
    /// A parker that is woken by `doorbell`.
    ///
    /// # Errors
    /// When descriptors run out, or the doorbell is private.
    pub fn new(doorbell: &Doorbell) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| Error::system("creating an epoll instance", e))?;
        let parker = Self { epoll };
        parker.add(doorbell.descriptor()?, DOORBELL, epoll::EventFlags::IN)?;
        Ok(parker)
    }

    /// Also wakes when `fd` is readable (or has failed), and then reports `mark`. As long as it
    /// stays readable it wakes every time.
    ///
    /// # Errors
    /// When `mark` is `u64::MAX` (kept for the doorbell), or `fd` is watched already or cannot be.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, mark: u64) -> Result<()> {
        if mark == DOORBELL {
            return Err(Error::config(
                "mark",
                format!("{mark} is kept for the doorbell"),
            ));
        }
        self.add(fd, mark, epoll::EventFlags::IN)
    }

    /// As [`watch`](Self::watch), but wakes only when something new makes `fd` readable: for a
    /// provider's wait descriptor, which may stay readable long after everything was taken (`net`
    /// of libfabric 1.17 never clears its own signal). The caller polls until nothing moves before
    /// it sleeps, and never sleeps without a bound.
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    pub fn watch_news(&mut self, fd: BorrowedFd<'_>, mark: u64) -> Result<()> {
        if mark == DOORBELL {
            return Err(Error::config(
                "mark",
                format!("{mark} is kept for the doorbell"),
            ));
        }
        self.add(fd, mark, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Forgets `fd`.
    ///
    /// # Errors
    /// When it is not watched.
    pub fn unwatch(&mut self, fd: BorrowedFd<'_>) -> Result<()> {
        epoll::delete(&self.epoll, fd)
            .map_err(|e| Error::system(format!("no longer watching descriptor {fd:?}"), e))
    }

    /// Sleeps until somebody rings, a watched descriptor is ready, or `timeout` is over; appends
    /// the marks of the ready descriptors to `woken`. Returns at once when `stay_awake`, asked
    /// after the sleep was announced, says so.
    ///
    /// `stay_awake` looks at everything that rings this doorbell: active lanes, room in lanes that
    /// space is wanted in.
    ///
    /// # Errors
    /// When the operating system refuses to wait, or the doorbell is private.
    pub fn park(
        &mut self,
        doorbell: &Doorbell,
        timeout: Duration,
        stay_awake: impl FnOnce() -> bool,
        woken: &mut Vec<u64>,
    ) -> Result<()> {
        doorbell.descriptor()?; // nothing would end a sleep on a private one
        doorbell.announce_sleep();
        if stay_awake() {
            doorbell.awake();
            return Ok(());
        }
        let none = epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        };
        let mut events = [none; EVENTS];
        let wait = |limit: Duration| {
            let limit = Timespec {
                tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            };
            epoll::wait(&self.epoll, &mut events[..], Some(&limit))
        };
        let waited = sleep_in_kernel(timeout, wait, |waited| *waited != Ok(0));
        doorbell.awake();
        let came = match waited {
            Ok(came) => came,
            Err(Errno::INTR) => 0,
            Err(e) => return Err(Error::system("sleeping on the doorbell", e)),
        };
        for event in &events[..came] {
            match event.data.u64() {
                DOORBELL => doorbell.drain(),
                mark => woken.push(mark),
            }
        }
        Ok(())
    }

    fn add(&self, fd: BorrowedFd<'_>, mark: u64, events: epoll::EventFlags) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(mark), events)
            .map_err(|e| Error::system(format!("watching descriptor {fd:?}"), e))
    }
}

#[cfg(test)]
#[path = "parker_tests.rs"]
mod tests;
