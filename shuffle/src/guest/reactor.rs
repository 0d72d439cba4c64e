//! Wakes who awaits an answer: one thread of the process sleeps on the sockets of all calls that
//! are awaited, from the first of them on.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use trihop_transport::Error as TransportError;
use trihop_transport::masked;
use trihop_transport::sync::{Mutex, MutexGuard, PoisonError, StaticMutex, sleep};

use super::server::{EVENTS, SOON};
use crate::error::Result;

/// That of the process with this number: a fork has none of its parent's threads.
static OF_PROCESS: StaticMutex<Option<(u32, Arc<Reactor>)>> = StaticMutex::new(None);

#[derive(Debug)]
struct Reactor {
    epoll: OwnedFd,
    awaited: Mutex<Awaited>,
}

#[derive(Debug, Default)]
struct Awaited {
    last: u64,
    wakers: HashMap<u64, Waker>,
}

/// A socket that somebody may await.
#[derive(Debug)]
pub struct Watch {
    reactor: Arc<Reactor>,
    number: u64,
    /// Whose reactor it is: a fork has a copy of the instance of epoll.
    process: u32,
}

fn failed(error: Errno) -> TransportError {
    TransportError::system("awaiting the answer of a server of guests", error)
}

impl Reactor {
    fn of_process() -> Result<Arc<Self>> {
        let mut of_process = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if let Some((of, reactor)) = &*of_process
            && *of == process
        {
            return Ok(Arc::clone(reactor));
        }
        let reactor = Arc::new(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(failed)?,
            awaited: Mutex::default(),
        });
        let of_thread = Arc::clone(&reactor);
        // It sleeps until the process ends.
        drop(masked::spawn("trihop-awaits", move || of_thread.run())?);
        *of_process = Some((process, Arc::clone(&reactor)));
        Ok(reactor)
    }

    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot wait for answers of servers of guests");
                    sleep(SOON);
                }
            }
            for event in &events {
                let waker = self.awaited().wakers.remove(&event.data.u64());
                // With no lock held: it may do anything, and others are woken by this thread, too.
                if let Some(waker) = waker
                    && catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err()
                {
                    tracing::error!("what was to be woken by the answer of a server has panicked");
                }
            }
        }
    }
}

/// How many sockets are awaited.
#[cfg(test)]
pub fn awaited() -> usize {
    let of_process = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let reactor = of_process.as_ref().map(|(_, reactor)| reactor.awaited());
    reactor.map_or(0, |awaited| awaited.wakers.len())
}

impl Watch {
    /// # Errors
    /// When descriptors or threads run out.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self> {
        let reactor = Reactor::of_process()?;
        let number = {
            let mut awaited = reactor.awaited();
            awaited.last += 1;
            awaited.last
        };
        let data = EventData::new_u64(number);
        epoll::add(&reactor.epoll, socket, data, EventFlags::ONESHOT).map_err(failed)?;
        Ok(Self {
            reactor,
            number,
            process: std::process::id(),
        })
    }

    /// Has `waker` woken, once, when the socket is readable; at once where it is.
    pub fn wake(&self, socket: BorrowedFd<'_>, waker: &Waker) -> Result<()> {
        let waker = waker.clone();
        let before = self.reactor.awaited().wakers.insert(self.number, waker);
        drop(before); // with no lock held: it may own anything
        let (data, flags) = (EventData::new_u64(self.number), EventFlags::ONESHOT);
        let flags = flags | EventFlags::IN | EventFlags::RDHUP;
        let asked = epoll::modify(&self.reactor.epoll, socket, data, flags);
        Ok(asked.map_err(failed)?)
    }

    /// Nobody awaits it any more.
    pub fn end(&self, socket: BorrowedFd<'_>) {
        if self.process != std::process::id() {
            return;
        }
        // It was added, so it is there.
        let _ = epoll::delete(&self.reactor.epoll, socket);
        let waker = self.reactor.awaited().wakers.remove(&self.number);
        drop(waker); // with no lock held: it may own anything
    }
}
