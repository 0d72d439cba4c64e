//! The simulated network and its endpoints.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use crate::error::{Error, Result};
use crate::link::{Completion, Limits, Link, Mover, Peer, PostError, RemoteMemory, Tag, Token};
use crate::memory::hugepage::Mapping;
use crate::memory::pool::{Buffer, Pool};

/// What the simulated network does to messages.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// Seed of every random decision.
    pub seed: u64,
    /// Longest delay of a message, in ticks of virtual time (0: none, and so no reordering).
    pub max_delay: u64,
    /// One post in so many is refused with `WouldBlock` (0: none).
    pub refuse_one_in: u64,
    /// Limits that the links report.
    pub limits: Limits,
}

impl Default for SimOptions {
    fn default() -> Self {
        let limits = Limits {
            eager_bytes: 65536,
            max_message_bytes: 1 << 30,
            posted_receives: 4096,
            posted_sends: 4096,
            mover: Mover::Read,
        };
        Self {
            seed: 1,
            max_delay: 8,
            refuse_one_in: 7,
            limits,
        }
    }
}

struct Flight {
    due: u64,
    target: usize,
    tag: Tag,
    bytes: Vec<u8>,
    sender: usize,
    token: Token,
    buffer: Buffer,
}

struct Read {
    due: u64,
    reader: usize,
    data: Vec<u8>,
    buffer: Buffer,
    token: Token,
}

#[derive(Default)]
struct Host {
    receives: HashMap<u64, VecDeque<(Buffer, Token)>>,
    done: VecDeque<Completion>,
    pools: Vec<(u64, Pool)>,
}

struct State {
    options: SimOptions,
    random: u64,
    now: Rc<Cell<u64>>,
    hosts: Vec<Host>,
    flights: Vec<Flight>,
    reads: Vec<Read>,
    violations: Vec<String>,
}

impl State {
    fn random(&mut self) -> u64 {
        // xorshift64*: a seed replays a run exactly.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn due(&mut self) -> u64 {
        let delay = match self.options.max_delay {
            0 => 0,
            max => self.random() % (max + 1),
        };
        self.now.get() + delay
    }

    fn refuses(&mut self) -> bool {
        self.options.refuse_one_in > 0 && self.random().is_multiple_of(self.options.refuse_one_in)
    }

    /// Delivers what is due.
    fn advance(&mut self) {
        let now = self.now.get();
        let mut index = 0;
        while index < self.flights.len() {
            if self.flights[index].due > now {
                index += 1;
                continue;
            }
            let flight = self.flights.swap_remove(index);
            self.hosts[flight.sender].done.push_back(Completion::Sent {
                token: flight.token,
                buffer: flight.buffer,
            });
            let target = &mut self.hosts[flight.target];
            match target
                .receives
                .get_mut(&flight.tag.0)
                .and_then(VecDeque::pop_front)
            {
                Some((mut buffer, token)) if flight.bytes.len() <= buffer.len() => {
                    buffer[..flight.bytes.len()].copy_from_slice(&flight.bytes);
                    target.done.push_back(Completion::Received {
                        token,
                        buffer,
                        bytes: flight.bytes.len(),
                    });
                }
                Some((buffer, _)) => self.violations.push(format!(
                    "{} bytes with tag {:#x} for a slot of {} at endpoint {}",
                    flight.bytes.len(),
                    flight.tag.0,
                    buffer.len(),
                    flight.target
                )),
                None => self.violations.push(format!(
                    "no posted receive for tag {:#x} from endpoint {} at endpoint {}",
                    flight.tag.0, flight.sender, flight.target
                )),
            }
        }
        let mut index = 0;
        while index < self.reads.len() {
            if self.reads[index].due > now {
                index += 1;
                continue;
            }
            let mut read = self.reads.swap_remove(index);
            read.buffer[..read.data.len()].copy_from_slice(&read.data);
            self.hosts[read.reader].done.push_back(Completion::Read {
                token: read.token,
                buffer: read.buffer,
            });
        }
    }
}

/// The simulated network. Cheap to clone; all clones are the same network.
#[derive(Clone)]
pub struct Net {
    state: Rc<RefCell<State>>,
    now: Rc<Cell<u64>>,
}

impl Net {
    /// An empty network at time 0.
    pub fn new(options: SimOptions) -> Self {
        let now = Rc::new(Cell::new(0));
        let random = options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let state = State {
            options,
            random,
            now: Rc::clone(&now),
            hosts: Vec::new(),
            flights: Vec::new(),
            reads: Vec::new(),
            violations: Vec::new(),
        };
        Self {
            state: Rc::new(RefCell::new(state)),
            now,
        }
    }

    /// A new endpoint.
    pub fn link(&self) -> SimLink {
        let mut state = self.state.borrow_mut();
        state.hosts.push(Host::default());
        let id = state.hosts.len() - 1;
        let limits = state.options.limits.clone();
        SimLink {
            net: self.clone(),
            id,
            address: (id as u64).to_le_bytes(),
            peers: Vec::new(),
            limits,
            next_key: 1,
        }
    }

    /// Virtual time.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Moves virtual time on.
    pub fn tick(&self) {
        self.now.set(self.now.get() + 1);
    }

    /// A random number from the network's seed, for schedules that replay with it.
    pub fn random(&self) -> u64 {
        self.state.borrow_mut().random()
    }

    /// Breaches of the rules that a real provider punishes: messages without a posted receive, or too long for it.
    pub fn violations(&self) -> Vec<String> {
        self.state.borrow().violations.clone()
    }
}

/// An endpoint of a simulated network.
pub struct SimLink {
    net: Net,
    id: usize,
    address: [u8; 8],
    peers: Vec<usize>,
    limits: Limits,
    next_key: u64,
}

impl Link for SimLink {
    fn name(&self) -> &str {
        "sim"
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn connect(&mut self, address: &[u8]) -> Result<Peer> {
        let id = address
            .try_into()
            .map(u64::from_le_bytes)
            .ok()
            .map(|id| id as usize);
        match id.filter(|&id| id < self.net.state.borrow().hosts.len()) {
            Some(id) => {
                self.peers.push(id);
                Ok(Peer(self.peers.len() as u32 - 1))
            }
            None => Err(Error::Fabric {
                call: "sim connect",
                code: 22,
                detail: format!("address {address:?}"),
            }),
        }
    }

    fn create_pool(&mut self, slot_bytes: usize, slots: usize) -> Result<Pool> {
        struct Key(u64);
        impl crate::memory::pool::Registration for Key {
            fn descriptor(&self) -> *mut libc::c_void {
                std::ptr::null_mut()
            }
            fn key(&self) -> u64 {
                self.0
            }
            fn base(&self) -> u64 {
                0
            }
        }
        let key = self.next_key;
        self.next_key += 1;
        let mapping = Mapping::allocate(slot_bytes * slots)?;
        let pool = Pool::new(mapping, slot_bytes, slots, Some(Box::new(Key(key))));
        self.net.state.borrow_mut().hosts[self.id]
            .pools
            .push((key, pool.clone()));
        Ok(pool)
    }

    fn post_send(
        &mut self,
        peer: Peer,
        tag: Tag,
        buffer: Buffer,
        bytes: usize,
        token: Token,
    ) -> Result<(), PostError> {
        let mut state = self.net.state.borrow_mut();
        if state.refuses() {
            return Err(PostError::WouldBlock(buffer));
        }
        let due = state.due();
        let flight = Flight {
            due,
            target: self.peers[peer.0 as usize],
            tag,
            bytes: buffer[..bytes].to_vec(),
            sender: self.id,
            token,
            buffer,
        };
        state.flights.push(flight);
        Ok(())
    }

    fn post_receive(&mut self, tag: Tag, buffer: Buffer, token: Token) -> Result<(), PostError> {
        let mut state = self.net.state.borrow_mut();
        state.hosts[self.id]
            .receives
            .entry(tag.0)
            .or_default()
            .push_back((buffer, token));
        Ok(())
    }

    fn post_read(
        &mut self,
        peer: Peer,
        remote: RemoteMemory,
        buffer: Buffer,
        bytes: usize,
        token: Token,
    ) -> Result<(), PostError> {
        let mut state = self.net.state.borrow_mut();
        if state.refuses() {
            return Err(PostError::WouldBlock(buffer));
        }
        let target = self.peers[peer.0 as usize];
        let pool = state.hosts[target]
            .pools
            .iter()
            .find(|(key, _)| *key == remote.key)
            .map(|(_, p)| p.clone());
        let Some(data) = pool.and_then(|p| p.peek(remote.address, bytes)) else {
            let error = Error::Fabric {
                call: "sim read",
                code: 13,
                detail: format!("key {} address {:#x}", remote.key, remote.address),
            };
            return Err(PostError::Failed(buffer, error));
        };
        let due = state.due();
        state.reads.push(Read {
            due,
            reader: self.id,
            data,
            buffer,
            token,
        });
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<usize> {
        let mut state = self.net.state.borrow_mut();
        state.advance();
        let done = &mut state.hosts[self.id].done;
        let count = done.len().min(64);
        completions.extend(done.drain(..count));
        Ok(count)
    }

    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn try_wait(&mut self) -> bool {
        self.net.state.borrow().hosts[self.id].done.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_meet_their_receives_and_reads_their_memory() {
        let net = Net::new(SimOptions {
            refuse_one_in: 0,
            ..SimOptions::default()
        });
        let (mut a, mut b) = (net.link(), net.link());
        let to_b = a.connect(b.address()).unwrap();
        let to_a = b.connect(a.address()).unwrap();
        let (pa, pb) = (a.create_pool(64, 4).unwrap(), b.create_pool(64, 4).unwrap());
        b.post_receive(Tag(5), pb.take().unwrap(), Token(1)).unwrap();
        let mut source = pa.take().unwrap();
        source[..3].copy_from_slice(b"abc");
        a.post_send(to_b, Tag(5), source, 3, Token(2)).unwrap();
        let mut shown = pa.take().unwrap();
        shown[..4].copy_from_slice(b"read");
        b.post_read(to_a, shown.remote(), pb.take().unwrap(), 4, Token(3))
            .unwrap();
        let mut got = Vec::new();
        for _ in 0..20 {
            net.tick();
            a.poll(&mut got).unwrap();
            b.poll(&mut got).unwrap();
        }
        assert_eq!(got.len(), 3);
        for completion in &got {
            match completion {
                Completion::Received { buffer, bytes, .. } => assert_eq!(&buffer[..*bytes], b"abc"),
                Completion::Read { buffer, .. } => assert_eq!(&buffer[..4], b"read"),
                Completion::Sent { token, .. } => assert_eq!(*token, Token(2)),
                Completion::Failed { .. } => panic!("{completion:?}"),
            }
        }
        assert!(net.violations().is_empty());
        a.post_send(to_b, Tag(9), pa.take().unwrap(), 1, Token(4))
            .unwrap();
        for _ in 0..20 {
            net.tick();
            b.poll(&mut got).unwrap();
        }
        assert_eq!(
            net.violations().len(),
            1,
            "a message without a receive is noticed"
        );
    }
}
