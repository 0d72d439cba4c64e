//! The simulated network: virtual time, what is under way, who waits for what.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use super::areas::{AreaRegistration, Areas};
use super::endpoint::SimLink;
use super::parcels::{List, Parcel, Parcels};
use super::rules::Rules;
use crate::error::{Error, Result};
use crate::fabric::quirks::Quirk;
use crate::link::{Access, Limits, Mover, RemoteMemory, Tag, Token};
use crate::memory::lent::SegmentPart;
use crate::memory::pool::Pool;
use crate::memory::slots::SlotStore;
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stores of slots of different sizes, at most: keys behind theirs are those of parts of segments.
const MOST_STORES: usize = 1 << 20;

/// What the simulated network does to messages.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// Seed of every random decision.
    pub seed: u64,
    /// Longest delay of a message, in ticks of virtual time (0: none, and so no reordering).
    pub max_delay: u64,
    /// One post in so many is refused with `WouldBlock` (0: none).
    pub refuse_one_in: u64,
    /// Bytes that an endpoint sends in a tick, and takes in: what is more waits in line, at its
    /// source and at its target (0: no limit).
    pub bytes_per_tick: usize,
    /// What each message takes at both beside its bytes, as if it had so many more: adapters send
    /// and take in so many messages in a time, however short they are.
    pub bytes_per_message: usize,
    /// Longest message without a posted receive that is kept until there is one, as providers keep
    /// short ones. A longer one breaks the rules.
    pub kept_bytes: usize,
    /// Limits that the links report. More receives than they admit, and wider tags, break the rules;
    /// more sends have to wait, and longer ones fail.
    pub limits: Limits,
    /// What else providers differ in.
    pub rules: Rules,
    /// Parts of segments are not registered, as where memory may not be pinned.
    pub refuses_areas: bool,
}

impl SimOptions {
    /// The default ones, with the limits and rules of a provider.
    pub fn of_provider(provider: &Quirk) -> Self {
        Self {
            limits: provider.limits(),
            rules: Rules::of_provider(provider),
            ..Self::default()
        }
    }
}

impl Default for SimOptions {
    fn default() -> Self {
        let limits = Limits {
            eager_bytes: 65536,
            max_message_bytes: 1 << 30,
            posted_receives: 4096,
            posted_sends: 4096,
            mover: Mover::Read,
            tag_bits: 48,
        };
        Self {
            seed: 1,
            max_delay: 8,
            refuse_one_in: 7,
            bytes_per_tick: 0,
            bytes_per_message: 0,
            kept_bytes: 0,
            limits,
            rules: Rules::default(),
            refuses_areas: false,
        }
    }
}

/// Receives of one kind that an endpoint has posted: interchangeable, so a number says it all.
struct Posted {
    tag: Tag,
    token: Token,
    pool: Pool,
    count: u32,
}

/// What waits in line at one side of an endpoint.
#[derive(Default)]
struct Line {
    parcels: List,
    /// Bytes of the first one that have passed.
    passed: usize,
}

/// An endpoint as the network sees it.
#[derive(Default)]
struct Host {
    leaving: Line,
    coming: Line,
    posted: Vec<Posted>,
    /// How many receives that are.
    receives: usize,
    /// Sends and reads whose ends it has not been told.
    sends: usize,
    /// Its descriptor, where it has one.
    bell: Option<Arc<OwnedFd>>,
    /// What it has not been told yet.
    news: List,
    /// It is in the list of those that have news.
    listed: bool,
    /// It belongs to no job, and breaks rules.
    stranger: bool,
}

/// Violations that are kept word for word.
const VIOLATIONS_KEPT: usize = 100;

pub(super) struct State {
    options: SimOptions,
    limits: Arc<Limits>,
    random: u64,
    now: u64,
    hosts: Vec<Host>,
    parcels: Parcels,
    /// Parcels in line at endpoints.
    in_line: usize,
    /// What is due now, in one tick, in two ...
    wheel: VecDeque<List>,
    /// Endpoints that got news since somebody asked.
    woken: Vec<u32>,
    stores: Vec<Arc<SlotStore>>,
    areas: Areas,
    violations: Vec<String>,
    /// There are strangers: a receive that somebody counts on may be used up.
    strangers: bool,
}

impl State {
    pub fn random(&mut self) -> u64 {
        // xorshift64*: a seed replays a run exactly.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn refuses(&mut self) -> bool {
        self.options.refuse_one_in > 0 && self.random().is_multiple_of(self.options.refuse_one_in)
    }

    pub fn has_host(&self, id: u64) -> bool {
        id < self.hosts.len() as u64
    }

    /// Whether anything of one endpoint's is on its way to another.
    pub fn is_towards(&self, from: u32, to: u32) -> bool {
        let is = |parcel: &Parcel| match parcel {
            Parcel::Message { target, sender, .. } | Parcel::Kept { target, sender, .. } => {
                (*sender, *target) == (from, to)
            }
            Parcel::Read { owner, reader, .. } => (*reader, *owner) == (from, to),
            _ => false,
        };
        self.parcels.any(is)
    }

    /// Sends a parcel on its way, once what its endpoint has sent before has left.
    pub fn dispatch(&mut self, parcel: Parcel) {
        match self.options.bytes_per_tick {
            0 => self.travel(parcel),
            _ => self.line_up(parcel.from(), |host| &mut host.leaving, parcel),
        }
    }

    fn line_up(&mut self, id: u32, side: impl Fn(&mut Host) -> &mut Line, parcel: Parcel) {
        let line = side(&mut self.hosts[id as usize]);
        self.parcels.push_back(&mut line.parcels, parcel);
        self.in_line += 1;
    }

    /// A tick has passed at one side of all endpoints: the parcels that pass.
    fn pass(&mut self, side: impl Fn(&mut Host) -> &mut Line) -> Vec<Parcel> {
        let mut passed = Vec::new();
        if self.options.bytes_per_tick == 0 {
            return passed;
        }
        for host in &mut self.hosts {
            let line = side(host);
            line.passed += self.options.bytes_per_tick;
            while let Some(first) = self.parcels.first(&line.parcels)
                && let Some(left) = line
                    .passed
                    .checked_sub(first.bytes() + self.options.bytes_per_message)
            {
                line.passed = left;
                passed.extend(self.parcels.pop(&mut line.parcels));
            }
            if line.parcels.is_empty() {
                line.passed = 0;
            }
        }
        self.in_line -= passed.len();
        passed
    }

    /// A tick of virtual time.
    fn tick(&mut self) {
        for parcel in self.pass(|host| &mut host.leaving) {
            self.travel(parcel);
        }
        self.advance();
        self.wheel.rotate_left(1);
        self.now += 1;
        self.advance();
        for parcel in self.pass(|host| &mut host.coming) {
            self.deliver(parcel);
        }
    }

    fn is_empty(&self) -> bool {
        self.in_line == 0 && self.wheel.iter().all(List::is_empty)
    }

    /// A parcel arrives after a random delay, and before or behind what is due at the same time.
    fn travel(&mut self, parcel: Parcel) {
        if self.options.max_delay == 0 {
            return self.parcels.push_back(&mut self.wheel[0], parcel);
        }
        let random = self.random();
        let delay = (random >> 1) % (self.options.max_delay + 1);
        let list = &mut self.wheel[delay as usize];
        match random & 1 {
            0 => self.parcels.push_back(list, parcel),
            _ => self.parcels.push_front(list, parcel),
        }
    }

    /// Offers `count` promised slots of `pool` to messages with this tag.
    pub fn post(&mut self, id: u32, tag: Tag, pool: Pool, count: u32, token: Token) {
        let host = &mut self.hosts[id as usize];
        host.receives += count as usize;
        let (receives, posted) = (host.receives, &mut host.posted);
        let same = posted
            .iter_mut()
            .find(|p| p.tag == tag && p.token == token && p.pool.is(&pool));
        match same {
            Some(same) => same.count += count,
            None => posted.push(Posted {
                tag,
                token,
                pool,
                count,
            }),
        }
        let most = self.limits.posted_receives;
        if receives > most {
            self.violated(format!(
                "{receives} receives posted at endpoint {id}, {most} at most"
            ));
        }
    }

    fn hand_to(&mut self, id: u32, parcel: Parcel) {
        let host = &mut self.hosts[id as usize];
        self.parcels.push_back(&mut host.news, parcel);
        if let Some(bell) = &host.bell {
            // It only fails where it is readable anyway.
            let _ = rustix::io::write(&**bell, &1_u64.to_ne_bytes());
        }
        if !host.listed {
            host.listed = true;
            self.woken.push(id);
        }
    }

    /// Whether an endpoint may send one more message, or read.
    pub fn has_room_to_send(&self, id: u32) -> bool {
        self.hosts[id as usize].sends < self.limits.posted_sends
    }

    /// Sends a message on its way; a short one is copied at once, so that its end is news already.
    pub fn send(&mut self, id: u32, mut message: Parcel) {
        self.hosts[id as usize].sends += 1;
        if let Parcel::Message {
            tag,
            token,
            bytes,
            pool,
            ..
        } = &mut message
        {
            let wide = tag.0.checked_shr(self.limits.tag_bits).unwrap_or(0) != 0;
            let (tag, token) = (tag.0, *token);
            if bytes.len() <= self.options.rules.inject_bytes
                && let Some(pool) = pool.take()
            {
                self.hand_to(id, Parcel::Sent { token, pool });
            }
            if wide {
                let bits = self.limits.tag_bits;
                self.violated(format!(
                    "tag {tag:#x} of endpoint {id} has more than {bits} bits"
                ));
            }
        }
        self.dispatch(message);
    }

    /// An endpoint was told of the end of a send or read. One that took another's place may be told
    /// of what that has sent.
    pub fn ended(&mut self, id: u32) {
        let host = &mut self.hosts[id as usize];
        host.sends = host.sends.saturating_sub(1);
    }

    /// Delivers what is due, or has it wait in line.
    pub fn advance(&mut self) {
        while let Some(parcel) = self.parcels.pop(&mut self.wheel[0]) {
            match (self.options.bytes_per_tick, &parcel) {
                (0, _) | (_, Parcel::Kept { .. }) => self.deliver(parcel),
                _ => self.line_up(parcel.to(), |host| &mut host.coming, parcel),
            }
        }
    }

    fn deliver(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Message {
                target,
                sender,
                tag,
                token,
                bytes,
                pool,
            } => {
                if let Some(pool) = pool {
                    self.hand_to(sender, Parcel::Sent { token, pool });
                }
                self.arrive(target, sender, tag, bytes);
            }
            Parcel::Kept {
                target,
                sender,
                tag,
                bytes,
            } => self.arrive(target, sender, tag, bytes),
            Parcel::Read {
                reader,
                token,
                data,
                mut buffer,
                ..
            } => {
                buffer[..data.len()].copy_from_slice(&data);
                self.hand_to(reader, Parcel::Done { token, buffer });
            }
            _ => unreachable!("nothing else is under way"),
        }
    }

    /// A message meets one of the receives posted for its tag.
    fn arrive(&mut self, target: u32, sender: u32, tag: Tag, bytes: Box<[u8]>) {
        let posted = &mut self.hosts[target as usize].posted;
        let Some(index) = posted.iter().position(|p| p.tag == tag) else {
            return self.unexpected(target, sender, tag, bytes);
        };
        self.hosts[target as usize].receives -= 1;
        let posted = &mut self.hosts[target as usize].posted;
        posted[index].count -= 1;
        let (token, pool) = match posted[index].count {
            0 => {
                let last = posted.swap_remove(index);
                (last.token, last.pool)
            }
            _ => (posted[index].token, posted[index].pool.clone()),
        };
        if bytes.len() <= pool.slot_bytes() {
            return self.hand_to(target, Parcel::Arrived { token, pool, bytes });
        }
        let (bytes, slot) = (bytes.len(), pool.slot_bytes());
        self.hand_to(target, Parcel::Broken { token, pool, bytes });
        if !self.hosts[sender as usize].stranger {
            let tag = tag.0;
            self.violated(format!(
                "{bytes} bytes with tag {tag:#x} for a slot of {slot} at endpoint {target}"
            ));
        }
    }

    /// A message that meets no receive: a stranger's is dropped, that of a member breaks the rules,
    /// unless it is short, or a stranger may have used up its receive. Then it waits for another,
    /// as a provider keeps it.
    fn unexpected(&mut self, target: u32, sender: u32, tag: Tag, bytes: Box<[u8]>) {
        if self.hosts[sender as usize].stranger {
            return;
        }
        let is_kept = self.strangers || bytes.len() <= self.options.kept_bytes;
        if is_kept {
            let again = Parcel::Kept {
                target,
                sender,
                tag,
                bytes,
            };
            return self.parcels.push_back(&mut self.wheel[1], again);
        }
        let tag = tag.0;
        self.violated(format!(
            "no posted receive for tag {tag:#x} from endpoint {sender} at endpoint {target}"
        ));
    }

    fn violated(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_KEPT {
            self.violations.push(what);
        }
    }

    /// The next thing to tell an endpoint.
    pub fn next_news(&mut self, id: u32) -> Option<Parcel> {
        self.parcels.pop(&mut self.hosts[id as usize].news)
    }

    /// What could not be told after all.
    pub fn keep_news(&mut self, id: u32, parcel: Parcel) {
        self.parcels
            .push_front(&mut self.hosts[id as usize].news, parcel);
    }

    pub fn has_news(&self, id: u32) -> bool {
        !self.hosts[id as usize].news.is_empty()
    }

    /// A pool of an endpoint, out of the store for this size.
    pub fn pool(&mut self, id: u32, slot_bytes: usize, slots: usize, access: Access) -> Pool {
        let known = self
            .stores
            .iter()
            .position(|s| s.slot_bytes() == slot_bytes);
        let index = known.unwrap_or_else(|| {
            self.stores.push(Arc::new(SlotStore::new(slot_bytes)));
            self.stores.len() - 1
        });
        let rules = &self.options.rules;
        // No store has the key under which nobody finds anything.
        let key = match access.is_readable() {
            true => rules.key(index),
            false => u64::MAX,
        };
        let first = RemoteMemory {
            address: rules.base(id),
            key,
        };
        Pool::on_demand(Arc::clone(&self.stores[index]), slots, id, first)
    }

    /// Bytes of an endpoint's memory, as a peer's adapter reads them.
    pub fn read(&self, target: u32, key: u64, address: u64, bytes: usize) -> Option<Box<[u8]>> {
        let rules = &self.options.rules;
        let index = rules.index_of(key)?;
        let offset = address.checked_sub(rules.base(target))?;
        match self.stores.get(index) {
            Some(store) => store.peek(target, offset, bytes),
            None => self.areas.peek(target, key, offset, bytes),
        }
    }

    /// Registers a part of a segment for an endpoint.
    pub fn register(
        &mut self,
        id: u32,
        part: &SegmentPart,
        access: Access,
    ) -> Result<AreaRegistration> {
        if self.options.refuses_areas {
            return Err(Error::config("registered memory", "this link has none"));
        }
        let rules = &self.options.rules;
        let key = match access.is_readable() {
            // Behind those of all stores.
            true => rules.key(MOST_STORES + self.areas.count()),
            false => u64::MAX,
        };
        Ok(self.areas.add(id, key, rules.base(id), part))
    }
}

/// The simulated network. Cheap to clone; all clones are the same network.
#[derive(Clone)]
pub struct Net {
    state: Arc<Mutex<State>>,
}

impl Net {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty network at time 0.
    pub fn new(options: SimOptions) -> Self {
        let random = options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        // What waits for a receive is looked at again a tick later.
        let ticks = usize::try_from(options.max_delay).expect("a delay that fits memory") + 1;
        let ticks = ticks.max(2);
        let state = State {
            limits: Arc::new(options.limits.clone()),
            options,
            random,
            now: 0,
            hosts: Vec::new(),
            parcels: Parcels::default(),
            in_line: 0,
            wheel: vec![List::default(); ticks].into(),
            woken: Vec::new(),
            stores: Vec::new(),
            areas: Areas::default(),
            violations: Vec::new(),
            strangers: false,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// A new endpoint; they are numbered from 0.
    pub fn link(&self) -> SimLink {
        let mut state = self.lock();
        let id = u32::try_from(state.hosts.len()).expect("less than 2^32 endpoints");
        let bell = state.options.rules.bell();
        state.hosts.push(Host {
            bell: bell.clone(),
            ..Host::default()
        });
        SimLink::new(self.clone(), id, Arc::clone(&state.limits), bell)
    }

    /// A new endpoint of somebody who is in no job: what breaks the rules is no violation, and
    /// reaches its target as a provider would let it.
    pub fn stranger(&self) -> SimLink {
        let link = self.link();
        let mut state = self.lock();
        state.strangers = true;
        if let Some(host) = state.hosts.last_mut() {
            host.stranger = true;
        }
        drop(state);
        link
    }

    /// A new endpoint under the number of one that was dropped: what was posted there, and what it
    /// had not been told, is gone. What is still under way to the old one reaches the new one.
    ///
    /// # Panics
    /// When there was none.
    pub fn link_again(&self, id: u32) -> SimLink {
        let mut state = self.lock();
        state.hosts[id as usize].posted.clear();
        state.hosts[id as usize].receives = 0;
        state.hosts[id as usize].sends = 0;
        while state.next_news(id).is_some() {}
        let bell = state.hosts[id as usize].bell.clone();
        SimLink::new(self.clone(), id, Arc::clone(&state.limits), bell)
    }

    /// Virtual time.
    pub fn now(&self) -> u64 {
        self.lock().now
    }

    /// Moves virtual time on, and what is due to where it goes.
    pub fn tick(&self) {
        self.lock().tick();
    }

    /// Appends the endpoints that got something to poll since this was last called, each once, and
    /// delivers what is due now.
    pub fn take_woken(&self, woken: &mut Vec<u32>) {
        let mut state = self.lock();
        state.advance();
        let first = woken.len();
        woken.append(&mut state.woken);
        for &id in &woken[first..] {
            state.hosts[id as usize].listed = false;
        }
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// A random number from the network's seed, for schedules that replay with it.
    pub fn random(&self) -> u64 {
        self.lock().random()
    }

    /// The first breach of the rules that a real provider punishes, see [`Net::violations`].
    pub fn violation(&self) -> Option<String> {
        self.lock().violations.first().cloned()
    }

    /// Breaches of the rules that a real provider punishes: messages without a posted receive, or
    /// too long for it. The first hundred.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }
}
