//! The server's side: one thread that serves all guests of a rank.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use trihop_transport::Error as TransportError;
use trihop_transport::home::Home;
use trihop_transport::masked::{self, MaskedThread};
use trihop_transport::memory::descriptors::{DescriptorListener, wait_for_any};
use trihop_transport::park::Step;

use super::connection::{Connection, MOST_CONNECTIONS, Starts, Waits, too_many};
use super::ready::{Ready, alarm};
use super::socket::waits;
use super::wire::{Hello, Make, Served};
use crate::error::{Error, Result};
use crate::face::channel::ChannelKind;
use crate::seat::timed_yield;
use crate::threaded::{Channel, Channels};

/// Guests that may come at the same time.
const BACKLOG: u32 = 1024;

/// Events that are taken from the kernel at once.
pub(super) const EVENTS: usize = 64;

/// How soon it looks again where nothing wakes it: for room of a send, or for descriptors.
pub(super) const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(100);

/// How long it sleeps where nothing has to be looked at.
const LONG: Duration = Duration::from_secs(3600);

/// Guests are served as long as this is there: see [`Channels::serve_guests`].
#[derive(Debug)]
#[must_use = "guests are served until it is dropped"]
pub struct Guests {
    name: String,
    ready: Arc<Ready>,
    thread: Option<MaskedThread<()>>,
    home: Home,
}

impl Guests {
    /// The name under which guests are served.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Guests {
    /// Whoever is a guest then finds the connection closed: drop it before the channels are shut
    /// down. What guests have sent before, and there was room for, is in the channels.
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        self.ready.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!(name = self.name, "what served guests has panicked");
        }
    }
}

impl Channels {
    /// Serves [guests](crate::guest) under an abstract name of this node, from a thread of its own,
    /// until what this gives is dropped. They are processes of the same user, and use the channels
    /// of all ranks through this one: what they make is this rank's, and what they send comes from
    /// it. [`default_name`](crate::guest::default_name) is where guests look that are told no name.
    ///
    /// # Errors
    /// [`Error::System`] where another process has the name, or descriptors or threads run out.
    pub fn serve_guests(&self, name: &str) -> Result<Guests> {
        let listener = DescriptorListener::listen(name, BACKLOG)?;
        // Where no other descriptor is left, a guest finds its connection closed, and the log says
        // why; with one in reserve it does so at once.
        listener.keep_reserve()?;
        let made = epoll::create(CreateFlags::CLOEXEC);
        let epoll = made.map_err(|error| {
            let what = "creating an epoll instance for guests";
            Error::from(TransportError::system(what, error))
        })?;
        let ready = Arc::new(Ready::new()?);
        let server = Server {
            listener,
            channels: self.clone(),
            epoll,
            ready: Arc::clone(&ready),
            places: Vec::new(),
            free: Vec::new(),
            turns: Vec::new(),
            soon: Vec::new(),
            later: Vec::new(),
            looked_later: Instant::now(),
            starts: Starts {
                begun: Vec::new(),
                left: 0,
            },
            looked_at: Instant::now(),
            is_short: false,
        };
        let thread = masked::spawn("trihop-guests", move || server.run())?;
        Ok(Guests {
            name: name.to_owned(),
            ready,
            thread: Some(thread),
            home: Home::here(),
        })
    }
}

struct Server {
    listener: DescriptorListener,
    channels: Channels,
    epoll: OwnedFd,
    ready: Arc<Ready>,
    /// Connections, each with what the kernel tells of it.
    places: Vec<Option<(Connection, EventFlags)>>,
    free: Vec<usize>,
    /// Those whose turn it is.
    turns: Vec<usize>,
    /// Those that are to be looked at again in a short time.
    soon: Vec<usize>,
    /// Those that are to be looked at again in a longer time, and when that was done.
    later: Vec<usize>,
    looked_later: Instant,
    /// Calls that were started just now.
    starts: Starts,
    /// When it looked for those whose time has come.
    looked_at: Instant,
    /// Descriptors have run out, which was said.
    is_short: bool,
}

impl Server {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let (mut looking, mut yields) = waits();
        while !self.ready.ends() {
            self.admit();
            self.ready.take(&mut self.turns);
            self.hear(&mut events);
            self.add_due();
            let mut turns = std::mem::take(&mut self.turns);
            turns.sort_unstable();
            turns.dedup();
            let has_moved = !turns.is_empty();
            for place in turns.drain(..) {
                self.advance(place);
                self.place_started();
            }
            if !self.turns.is_empty() {
                continue;
            }
            self.turns = turns;
            if has_moved {
                looking.reset();
                continue;
            }
            match looking.next(&yields, || false) {
                Step::Spin => {}
                Step::Yield => yields.note(timed_yield()),
                Step::Park => {
                    self.sleep();
                    looking.begin();
                }
            }
        }
        // What has come is done, where there is room.
        let connections = self.places.iter().flatten();
        connections.for_each(|(connection, _)| connection.shut());
        for place in 0..self.places.len() {
            while self.advance(place) == Some(Waits::Turn) {}
        }
        let left = self.places.iter().flatten().count();
        tracing::debug!(guests = left, "guests are served no longer");
    }

    /// Takes what the kernel tells of connections.
    fn hear(&mut self, events: &mut Vec<Event>) {
        events.clear();
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let room = rustix::buffer::spare_capacity(events);
        // What it does not say now it says later.
        let _ = epoll::wait(&self.epoll, room, Some(&now));
        for event in events.iter() {
            let (place, flags) = (event.data.u64() as usize, event.flags);
            let ends = EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR;
            if let Some(Some((connection, _))) = self.places.get_mut(place)
                && flags.intersects(ends)
            {
                connection.hang_up();
                if connection.is_of_call() {
                    // Before its port asks for more: what it had under way is free then.
                    self.advance(place);
                    continue;
                }
            }
            self.turns.push(place);
        }
    }

    /// Has a connection do what it can; what it waits for then.
    fn advance(&mut self, place: usize) -> Option<Waits> {
        self.starts.left = MOST_CONNECTIONS.saturating_sub(self.places.len() - self.free.len());
        let (connection, before) = self.places.get_mut(place)?.as_mut()?;
        let waits = connection.advance(&mut self.starts);
        let ends = EventFlags::RDHUP;
        let wanted = match waits {
            Waits::Input => EventFlags::IN | ends,
            Waits::Output => EventFlags::OUT | ends,
            Waits::Turn | Waits::Alarm | Waits::Soon | Waits::Later if connection.is_gone() => {
                EventFlags::empty()
            }
            Waits::Turn | Waits::Alarm | Waits::Soon | Waits::Later => ends,
            Waits::End => {
                self.forget(place);
                return Some(waits);
            }
        };
        if wanted != *before
            && let Some(socket) = connection.socket()
        {
            let had_none = before.is_empty();
            *before = wanted;
            let data = EventData::new_u64(place as u64);
            let told = match (had_none, wanted.is_empty()) {
                (true, _) => epoll::add(&self.epoll, socket, data, wanted),
                (_, true) => epoll::delete(&self.epoll, socket),
                _ => epoll::modify(&self.epoll, socket, data, wanted),
            };
            if let Err(error) = told {
                tracing::warn!(%error, "a guest cannot be heard, and is dropped");
                self.forget(place);
                return None;
            }
            if wanted.is_empty() {
                connection.is_heard_no_longer();
            }
        }
        match waits {
            Waits::Turn => self.turns.push(place),
            Waits::Soon => self.soon.push(place),
            Waits::Later => self.later.push(place),
            _ => {}
        }
        Some(waits)
    }

    /// Gives calls that were started just now their places.
    fn place_started(&mut self) {
        while let Some(started) = self.starts.begun.pop() {
            let place = self.free_place();
            let waker = alarm(place, &self.ready);
            self.add(place, Connection::started(started, waker));
        }
    }

    fn free_place(&mut self) -> usize {
        self.free.pop().unwrap_or(self.places.len())
    }

    fn forget(&mut self, place: usize) {
        if let Some((connection, _)) = self.places[place].take()
            && let Some(socket) = connection.socket()
        {
            // Others may have the socket, too, whose events are not the next one's at this place.
            let _ = epoll::delete(&self.epoll, socket);
        }
        match place < MOST_CONNECTIONS {
            true => self.free.push(place),
            // Of those that were refused nothing is left.
            false => {
                let more = |places: &Vec<_>| places.len() > MOST_CONNECTIONS;
                while more(&self.places) && self.places.pop_if(|last| last.is_none()).is_some() {}
            }
        }
    }

    /// Takes in guests that have come, so many at a time.
    fn admit(&mut self) {
        for _ in 0..EVENTS {
            match self.listener.try_accept() {
                Ok(Some((hello, mut sockets, _))) => {
                    // Others are no guests of any version.
                    if let (1, Some(socket)) = (sockets.len(), sockets.pop()) {
                        self.greet(&hello, socket);
                    }
                    self.is_short = false;
                }
                Ok(None) => return,
                Err(error) => {
                    if !self.is_short {
                        tracing::warn!(%error, "a guest cannot come in");
                    }
                    self.is_short = true;
                    return;
                }
            }
        }
    }

    fn greet(&mut self, hello: &[u8], socket: OwnedFd) {
        let place = self.free_place();
        let waker = alarm(place, &self.ready);
        let attached = match Hello::parse(hello) {
            _ if place >= MOST_CONNECTIONS => Err(Error::config("guests", too_many())),
            Ok(Hello::Look) => {
                let served = Served {
                    rank: self.channels.rank().0,
                    size: self.channels.size(),
                    channels: self.channels.name().to_owned(),
                };
                let told = Connection::telling(socket, waker, Ok(served.encode()));
                return self.add(place, told);
            }
            Ok(Hello::Attach(descriptor)) => self.channels.start_attach(&descriptor),
            Ok(Hello::Create(make)) => match self.make(make) {
                Ok(channel) => {
                    let opened = Connection::open(socket, waker, channel, make.lifetime);
                    return self.add(place, opened);
                }
                Err(error) => Err(error),
            },
            Err(why) if why.is_empty() => {
                tracing::warn!("dropped what is no guest of any version");
                if place < self.places.len() {
                    self.free.push(place);
                }
                return;
            }
            Err(why) => {
                tracing::warn!(why, "refused a guest");
                Err(Error::server_failed("", why))
            }
        };
        let connection = match attached {
            Ok(opening) => Connection::opening(socket, waker, opening),
            Err(error) => Connection::telling(socket, waker, Err(error)),
        };
        self.add(place, connection);
    }

    fn make(&self, make: Make) -> Result<Channel> {
        let Make {
            value,
            most,
            limits,
            ..
        } = make;
        match make.kind {
            ChannelKind::Messages => self.channels.create(limits),
            ChannelKind::Semaphore => self.channels.semaphore(value, most, limits),
            ChannelKind::Barrier => {
                let parties = u32::try_from(value).unwrap_or(u32::MAX);
                self.channels.barrier(parties, limits)
            }
        }
    }

    fn add(&mut self, place: usize, connection: Connection) {
        let held = Some((connection, EventFlags::empty()));
        match self.places.get_mut(place) {
            Some(free) => *free = held,
            None => self.places.push(held),
        }
        self.turns.push(place);
    }

    /// Sleeps until something may have come, or the time of a call is over.
    fn sleep(&mut self) {
        if !self.ready.may_sleep() {
            return;
        }
        let now = Instant::now();
        let connections = self.places.iter().flatten();
        let limits = connections.filter_map(|(connection, _)| connection.deadline());
        let mut until = limits.min().unwrap_or(now + LONG);
        if !self.soon.is_empty() {
            until = until.min(now + SOON);
        }
        if !self.later.is_empty() {
            until = until.min(self.looked_later + LATER);
        }
        // It looks for those whose time has come no sooner.
        until = until.max(self.looked_at + SOON);
        let others = [self.ready.descriptor(), self.epoll.as_fd()];
        let slept = match self.is_short {
            // Guests that wait to come in would have it awake all the time.
            true => wait_for_any(&others, until.min(now + LATER)).map(drop),
            false => self.listener.wait_with(&others, until).map(drop),
        };
        if let Err(error) = slept {
            tracing::warn!(%error, "what serves guests cannot wait for them");
            std::thread::sleep(SOON);
        }
        self.ready.wakes();
    }

    /// Adds those whose time has come, looked for once in a while.
    fn add_due(&mut self) {
        let now = Instant::now();
        if now < self.looked_at + SOON {
            return;
        }
        self.looked_at = now;
        self.turns.append(&mut self.soon);
        if now >= self.looked_later + LATER {
            self.looked_later = now;
            self.later.sort_unstable();
            self.later.dedup();
            self.turns.append(&mut self.later);
        }
        let places = self.places.iter().enumerate();
        let is_due = |connection: &Connection| connection.deadline().is_some_and(|at| now >= at);
        let due = places.filter(|(_, held)| held.as_ref().is_some_and(|(held, _)| is_due(held)));
        self.turns.extend(due.map(|(place, _)| place));
    }
}
