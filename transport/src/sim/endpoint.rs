//! An endpoint of the simulated network.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::net::Net;
use super::parcels::Parcel;
use crate::error::{Error, Result};
use crate::link::{Access, Completion, Limits, Link, Peer, PostError, RemoteMemory, Tag, Token};
use crate::memory::lent::{Registered, SegmentPart};
use crate::memory::pool::{Buffer, Pool};
use crate::sync::Arc;

/// Completions per poll.
const PER_POLL: usize = 64;

/// An endpoint of a simulated network. Its peers are the network's endpoints by their numbers.
pub struct SimLink {
    net: Net,
    limits: Arc<Limits>,
    address: [u8; 8],
    id: u32,
    /// A post was refused since the last poll: it may be taken now, and nothing else will say so.
    refused: bool,
    /// Endpoints that were disconnected, and not connected again.
    disconnected: Vec<u32>,
    /// Rings when there is news.
    bell: Option<Arc<OwnedFd>>,
}

impl SimLink {
    pub(super) fn new(net: Net, id: u32, limits: Arc<Limits>, bell: Option<Arc<OwnedFd>>) -> Self {
        Self {
            net,
            limits,
            address: u64::from(id).to_le_bytes(),
            id,
            refused: false,
            disconnected: Vec::new(),
            bell,
        }
    }

    /// Refuses what goes to a peer that was disconnected, and what is too long for the provider.
    fn admit(&self, peer: Peer, bytes: usize, buffer: Buffer) -> Result<Buffer, PostError> {
        if self.disconnected.contains(&peer.0) {
            return Err(PostError::Failed(buffer, no_such_peer(peer)));
        }
        if bytes > self.limits.max_message_bytes {
            let error = Error::Fabric {
                call: "sim post",
                code: 90,
                detail: format!("{bytes} bytes, {} at most", self.limits.max_message_bytes),
            };
            return Err(PostError::Failed(buffer, error));
        }
        Ok(buffer)
    }

    /// The peer with this number: its address is its number.
    pub fn peer(id: u32) -> Peer {
        Peer(id)
    }
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
        let id = address.try_into().map(u64::from_le_bytes).ok();
        match id.filter(|&id| self.net.lock().has_host(id)) {
            Some(id) => {
                self.disconnected.retain(|&other| u64::from(other) != id);
                Ok(Self::peer(id as u32))
            }
            None => Err(Error::Fabric {
                call: "sim connect",
                code: 22,
                detail: format!("address {address:?}"),
            }),
        }
    }

    fn disconnect(&mut self, peer: Peer) -> Result<bool> {
        let state = self.net.lock();
        if !state.has_host(peer.0.into()) || self.disconnected.contains(&peer.0) {
            return Err(no_such_peer(peer));
        }
        if state.is_towards(self.id, peer.0) {
            return Ok(false);
        }
        self.disconnected.push(peer.0);
        Ok(true)
    }

    fn create_pool(&mut self, slot_bytes: usize, slots: usize, access: Access) -> Result<Pool> {
        Ok(self.net.lock().pool(self.id, slot_bytes, slots, access))
    }

    fn register(
        &mut self,
        part: &SegmentPart,
        access: Access,
    ) -> Result<std::sync::Arc<Registered>> {
        let registration = self.net.lock().register(self.id, part, access)?;
        let registered = Registered::new(Box::new(registration), part.clone());
        Ok(std::sync::Arc::new(registered))
    }

    fn post_send(
        &mut self,
        peer: Peer,
        tag: Tag,
        buffer: Buffer,
        bytes: usize,
        token: Token,
    ) -> Result<(), PostError> {
        let buffer = self.admit(peer, bytes, buffer)?;
        let mut state = self.net.lock();
        if state.refuses() || !state.has_room_to_send(self.id) {
            self.refused = true;
            return Err(PostError::WouldBlock(buffer));
        }
        let message = Parcel::Message {
            target: peer.0,
            sender: self.id,
            tag,
            token,
            bytes: buffer[..bytes].into(),
            // What is sent is copied, so the buffer's memory is free for others meanwhile.
            pool: Some(buffer.into_promise()),
        };
        state.send(self.id, message);
        Ok(())
    }

    fn post_receive(&mut self, tag: Tag, buffer: Buffer, token: Token) -> Result<(), PostError> {
        let mut state = self.net.lock();
        if state.refuses() {
            return Err(PostError::WouldBlock(buffer));
        }
        state.post(self.id, tag, buffer.into_promise(), 1, token);
        Ok(())
    }

    fn post_receives(
        &mut self,
        tag: Tag,
        pool: &Pool,
        count: usize,
        token: Token,
    ) -> Result<usize> {
        let count = pool.reserve(count);
        if count > 0 {
            let mut state = self.net.lock();
            state.post(self.id, tag, pool.clone(), count as u32, token);
        }
        Ok(count)
    }

    fn post_read(
        &mut self,
        peer: Peer,
        remote: RemoteMemory,
        buffer: Buffer,
        bytes: usize,
        token: Token,
    ) -> Result<(), PostError> {
        let buffer = self.admit(peer, bytes, buffer)?;
        let mut state = self.net.lock();
        if state.refuses() || !state.has_room_to_send(self.id) {
            self.refused = true;
            return Err(PostError::WouldBlock(buffer));
        }
        let Some(data) = state.read(peer.0, remote.key, remote.address, bytes) else {
            let error = Error::Fabric {
                call: "sim read",
                code: 13,
                detail: format!("key {} address {:#x}", remote.key, remote.address),
            };
            return Err(PostError::Failed(buffer, error));
        };
        let read = Parcel::Read {
            owner: peer.0,
            reader: self.id,
            token,
            data,
            buffer,
        };
        state.send(self.id, read);
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<usize> {
        let mut state = self.net.lock();
        state.advance();
        if let Some(bell) = &self.bell {
            // What comes later rings again; there may be nothing to take.
            let _ = rustix::io::read(&**bell, &mut [0_u8; 8]);
        }
        self.refused = false;
        for count in 0..PER_POLL {
            let Some(parcel) = state.next_news(self.id) else {
                return Ok(count);
            };
            let completion = match parcel {
                Parcel::Sent { token, pool } => match pool.claim() {
                    Some(buffer) => Completion::Sent { token, buffer },
                    None => {
                        state.keep_news(self.id, Parcel::Sent { token, pool });
                        return Ok(count);
                    }
                },
                Parcel::Arrived { token, pool, bytes } => match pool.claim() {
                    Some(mut buffer) => {
                        buffer[..bytes.len()].copy_from_slice(&bytes);
                        let bytes = bytes.len();
                        Completion::Received {
                            token,
                            buffer,
                            bytes,
                        }
                    }
                    None => {
                        state.keep_news(self.id, Parcel::Arrived { token, pool, bytes });
                        return Ok(count);
                    }
                },
                Parcel::Broken { token, pool, bytes } => match pool.claim() {
                    Some(buffer) => {
                        let error = Error::Fabric {
                            call: "sim receive",
                            code: 265,
                            detail: format!("{bytes} bytes for a slot of {}", pool.slot_bytes()),
                        };
                        Completion::Broken {
                            token,
                            buffer,
                            cut: false,
                            error,
                        }
                    }
                    None => {
                        state.keep_news(self.id, Parcel::Broken { token, pool, bytes });
                        return Ok(count);
                    }
                },
                Parcel::Done { token, buffer } => Completion::Read { token, buffer },
                Parcel::Empty
                | Parcel::Message { .. }
                | Parcel::Kept { .. }
                | Parcel::Read { .. } => {
                    unreachable!("an endpoint is told of ends only")
                }
            };
            if let Completion::Sent { .. } | Completion::Read { .. } = completion {
                state.ended(self.id);
            }
            completions.push(completion);
        }
        Ok(PER_POLL)
    }

    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.as_fd())
    }

    fn try_wait(&mut self) -> bool {
        !self.refused && !self.net.lock().has_news(self.id)
    }
}

fn no_such_peer(peer: Peer) -> Error {
    Error::Fabric {
        call: "sim peer",
        code: 22,
        detail: format!("endpoint {} is not connected", peer.0),
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod rules_tests;

#[cfg(test)]
mod tests {
    use super::super::SimOptions;
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
        let (pa, pb) = (
            a.create_pool(64, 4, Access::All).unwrap(),
            b.create_pool(64, 4, Access::All).unwrap(),
        );
        b.post_receive(Tag(5), pb.take().unwrap(), Token(1))
            .unwrap();
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
                Completion::Broken { .. } | Completion::Failed { .. } => panic!("{completion:?}"),
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

    #[test]
    fn slots_posted_together_take_one_message_each() {
        let net = Net::new(SimOptions {
            refuse_one_in: 0,
            max_delay: 0,
            ..SimOptions::default()
        });
        let (mut a, mut b) = (net.link(), net.link());
        let (pa, pb) = (
            a.create_pool(64, 8, Access::All).unwrap(),
            b.create_pool(64, 3, Access::All).unwrap(),
        );
        assert_eq!(
            b.post_receives(Tag(5), &pb, 9, Token(1)).unwrap(),
            3,
            "as many as there are"
        );
        assert!(pb.take().is_none(), "posted slots are nobody else's");
        for value in 0..3 {
            let mut buffer = pa.take().unwrap();
            buffer[0] = value;
            a.post_send(SimLink::peer(1), Tag(5), buffer, 1, Token(2))
                .unwrap();
        }
        let mut woken = Vec::new();
        net.take_woken(&mut woken);
        assert_eq!(woken, [0, 1]);
        let mut got = Vec::new();
        b.poll(&mut got).unwrap();
        let values: Vec<u8> = got
            .iter()
            .map(|c| match c {
                Completion::Received {
                    token: Token(1),
                    buffer,
                    bytes: 1,
                } => buffer[0],
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(values, [0, 1, 2]);
        a.post_send(SimLink::peer(1), Tag(5), pa.take().unwrap(), 1, Token(2))
            .unwrap();
        net.take_woken(&mut woken);
        assert_eq!(net.violations().len(), 1, "all three are used up");
        drop(got);
        assert_eq!(pb.free_slots(), 3);
    }

    #[test]
    fn what_is_more_than_a_tick_takes_waits_in_line_at_both_ends() {
        let net = Net::new(SimOptions {
            refuse_one_in: 0,
            max_delay: 0,
            bytes_per_tick: 10,
            ..SimOptions::default()
        });
        let (mut target, mut sources) = (net.link(), [net.link(), net.link()]);
        let pool = target.create_pool(64, 8, Access::All).unwrap();
        assert_eq!(target.post_receives(Tag(5), &pool, 6, Token(1)).unwrap(), 6);
        for source in &mut sources {
            let pool = source.create_pool(64, 4, Access::All).unwrap();
            for bytes in [10, 25, 5] {
                let buffer = pool.take().unwrap();
                let sent = source.post_send(SimLink::peer(0), Tag(5), buffer, bytes, Token(2));
                sent.unwrap();
            }
        }
        let mut came = Vec::new();
        for tick in 1..=9 {
            assert!(!net.is_empty(), "tick {tick}");
            net.tick();
            let mut got = Vec::new();
            target.poll(&mut got).unwrap();
            came.extend(got.iter().map(|one| match one {
                Completion::Received { bytes, .. } => (tick, *bytes),
                other => panic!("{other:?}"),
            }));
        }
        // Those of 25 bytes leave in the fourth tick, with the 5 bytes behind, and are 60 where they
        // all go.
        let expected = [(1, 10), (2, 10), (6, 25), (6, 5), (9, 25), (9, 5)];
        assert_eq!(came, expected);
        assert!(net.is_empty());
    }

    #[test]
    fn what_a_message_takes_beside_its_bytes_counts_at_both_ends() {
        let net = Net::new(SimOptions {
            refuse_one_in: 0,
            max_delay: 0,
            bytes_per_tick: 10,
            bytes_per_message: 5,
            ..SimOptions::default()
        });
        let (mut target, mut source) = (net.link(), net.link());
        let pool = target.create_pool(64, 8, Access::All).unwrap();
        assert_eq!(target.post_receives(Tag(5), &pool, 4, Token(1)).unwrap(), 4);
        let pool = source.create_pool(64, 4, Access::All).unwrap();
        for bytes in [5, 1, 4, 15] {
            let buffer = pool.take().unwrap();
            let sent = source.post_send(SimLink::peer(0), Tag(5), buffer, bytes, Token(2));
            sent.unwrap();
        }
        let mut came = Vec::new();
        while !net.is_empty() {
            net.tick();
            let mut got = Vec::new();
            target.poll(&mut got).unwrap();
            came.push(got.len());
        }
        // Ten, six, nine, and twenty, which leave in the fifth tick.
        assert_eq!(came, [1, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn a_peer_that_was_disconnected_gets_nothing_until_it_is_connected_again() {
        let net = Net::new(SimOptions {
            refuse_one_in: 0,
            ..SimOptions::default()
        });
        let (mut a, mut b) = (net.link(), net.link());
        let to_b = a.connect(b.address()).unwrap();
        let (pa, pb) = (
            a.create_pool(64, 4, Access::All).unwrap(),
            b.create_pool(64, 4, Access::All).unwrap(),
        );
        assert_eq!(b.post_receives(Tag(5), &pb, 2, Token(1)).unwrap(), 2);
        let send = |a: &mut SimLink| a.post_send(to_b, Tag(5), pa.take().unwrap(), 1, Token(2));
        send(&mut a).unwrap();
        assert!(!a.disconnect(to_b).unwrap(), "a send is under way");
        (0..20).for_each(|_| net.tick());
        assert!(a.disconnect(to_b).unwrap());
        assert!(matches!(send(&mut a), Err(PostError::Failed(..))));
        assert!(a.disconnect(to_b).is_err(), "once");
        assert!(a.disconnect(SimLink::peer(9)).is_err(), "nobody");
        assert_eq!(a.connect(b.address()).unwrap(), to_b);
        send(&mut a).unwrap();
        (0..20).for_each(|_| net.tick());
        let mut got = Vec::new();
        b.poll(&mut got).unwrap();
        assert_eq!(got.len(), 2);
        assert!(net.violations().is_empty());
    }

    #[test]
    fn what_a_peer_does_not_hold_cannot_be_read() {
        let net = Net::new(SimOptions {
            refuse_one_in: 0,
            ..SimOptions::default()
        });
        let (mut a, mut b) = (net.link(), net.link());
        let (pa, pb) = (
            a.create_pool(64, 4, Access::All).unwrap(),
            b.create_pool(64, 4, Access::All).unwrap(),
        );
        let held = pa.take().unwrap();
        let given_back = pa.take().unwrap().remote();
        let unreadable = a.create_pool(128, 1, Access::Departures).unwrap();
        let kept = unreadable.take().unwrap();
        let cases = [
            (kept.remote(), 4),
            (given_back, 4),
            (held.remote(), 65),
            (
                RemoteMemory {
                    key: 99,
                    ..held.remote()
                },
                1,
            ),
        ];
        for (remote, bytes) in cases {
            let taken = pb.take().unwrap();
            let refused = b.post_read(SimLink::peer(0), remote, taken, bytes, Token(0));
            assert!(
                matches!(refused, Err(PostError::Failed(..))),
                "{remote:?} {bytes}"
            );
        }
    }
}
