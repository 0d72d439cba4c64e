//! What a rank receives: lanes of its inbox, batches of its links; each run goes on to its next hop or is delivered.

use trihop_transport::link::{Completion, Link, Mover, Peer, PostError, RemoteMemory};
use trihop_transport::memory::pool::{Buffer, Pool};
use trihop_transport::protocol::credit::{Receiving, Shared};
use trihop_transport::protocol::eager::Slot;
use trihop_transport::protocol::rendezvous::{Fetch, Fetches};
use trihop_transport::protocol::sequence::Window;
use trihop_transport::protocol::wire::{
    Announcement, BATCH_HEADER_BYTES, BatchHeader, BatchKind, ClearToSend, Counters,
};
use zerocopy::{FromBytes, IntoBytes};

use super::tags::{TagClass, tag, token};
use crate::error::{Error, Result};
use crate::queue::remote::{BatchSizes, Identity, RemoteQueue};
use crate::stats::Stats;

/// Size of a control message's receive slot: a header and up to four clear-to-send notices.
pub(crate) const CONTROL_BYTES: usize = 128;
const NOTICES_PER_CONTROL: usize = (CONTROL_BYTES - BATCH_HEADER_BYTES) / size_of::<ClearToSend>();

/// A batch that has arrived, or is about to.
pub(crate) enum Arrival {
    /// Runs in a buffer.
    Here {
        buffer: Buffer,
        bytes: usize,
        slot: Option<Slot>,
    },
    /// Known by its announcement only.
    Announced(RemoteMemory, usize, Mover),
    /// Being fetched.
    Fetching,
}

/// Receiving side of one link.
pub(crate) struct Incoming {
    pub window: Window<Arrival>,
    pub receiving: Receiving,
    /// Fetch buffers that batches of this link hold, on their way or here.
    held: usize,
    /// Bytes of the front batch that are done.
    pub cursor: usize,
    controls_seen: u32,
    controls_seen_told: u32,
    controls_sent: u32,
    controls_seen_by_peer: u32,
    notices: Vec<ClearToSend>,
    /// Counters changed since the peer last saw them.
    pub news: bool,
    /// Batches accepted since the peer last saw it.
    pub unacknowledged: u32,
}

impl Incoming {
    fn new(maxrpc: u32) -> Self {
        let mut receiving = Receiving::default();
        receiving.grant_small();
        Self {
            window: Window::new(maxrpc as usize),
            receiving,
            held: 0,
            cursor: 0,
            controls_seen: 0,
            controls_seen_told: 0,
            controls_sent: 0,
            controls_seen_by_peer: 0,
            notices: Vec::new(),
            news: false,
            unacknowledged: 0,
        }
    }

    /// What this peer has been told, for [`Incoming::untell`].
    pub fn told(&self) -> (bool, u32, u32) {
        (self.news, self.unacknowledged, self.controls_seen_told)
    }

    /// The header that [`Incoming::counters`] was for has not been sent.
    pub fn untell(&mut self, told: (bool, u32, u32)) {
        (self.news, self.unacknowledged, self.controls_seen_told) = told;
    }

    /// The counters for a header to this peer, which is about to be sent.
    pub fn counters(&mut self, large_returned: u32, wanted: u16) -> Counters {
        self.controls_seen_told = self.controls_seen;
        self.news = false;
        self.unacknowledged = 0;
        Counters {
            accepted: self.receiving.accepted(),
            small_granted: self.receiving.small_granted(),
            large_granted: self.receiving.large_granted(),
            large_returned,
            controls_seen: self.controls_seen,
            wanted,
        }
    }
}

/// A receive that the provider had no room for yet.
struct Unposted {
    class: TagClass,
    number: u32,
    buffer: Buffer,
    /// Small slot: the link that gets it.
    link: Option<usize>,
}

/// All links of a stream, receiving side.
pub(crate) struct Links {
    pub incoming: Vec<Incoming>,
    identity: Identity,
    sizes: BatchSizes,
    shared: Shared,
    fetches: Fetches,
    fetch_pool: Pool,
    control_pool: Pool,
    _small_pool: Pool,
    _large_pool: Pool,
    unposted: Vec<Unposted>,
    controls_per_link: u32,
    turn: usize,
    strangers_told: bool,
    /// Bytes of all receive buffers.
    pub pool_bytes: usize,
    /// Receives that this stream has posted at most.
    pub posted: usize,
}

/// What to allocate for the links of a stream.
pub(crate) struct LinkPlan {
    pub links: usize,
    pub maxrpc: u32,
    pub sizes: BatchSizes,
    pub receive_pool_bytes: usize,
    /// Receives that the endpoint's other streams post.
    pub posted: usize,
}

impl Links {
    /// Allocates and posts all receive slots.
    /// What other streams complete meanwhile is appended to `completions`.
    pub fn open(
        link: &mut dyn Link,
        identity: Identity,
        plan: &LinkPlan,
        completions: &mut Vec<Completion>,
    ) -> Result<Self> {
        let LinkPlan {
            links, maxrpc, sizes, ..
        } = *plan;
        let controls_per_link = 4 * maxrpc + 8;
        let controls = links * controls_per_link as usize;
        let posted_max = link.limits().posted_receives.saturating_sub(plan.posted);
        // One for the front batch of each link, whatever the others hold, and a few to read ahead.
        let fetch_slots = links + 2 * links.min(4);
        let left = posted_max.saturating_sub(controls + links + fetch_slots);
        if left == 0 {
            return Err(Error::config(
                "remote_maxrpc",
                format!(
                    "{links} links with remote_maxrpc {maxrpc} need {} posted receives, {} offers {posted_max}; lower it",
                    controls + links + fetch_slots + 1,
                    link.name()
                ),
            ));
        }
        let large = (plan.receive_pool_bytes / sizes.large_bytes)
            .clamp(1, left)
            .min(links * maxrpc as usize);
        // Control slots are also what controls are sent from: as many again.
        let control_pool = link.create_pool(CONTROL_BYTES, 2 * controls)?;
        let small_pool = link.create_pool(sizes.small_bytes, links)?;
        let large_pool = link.create_pool(sizes.large_bytes, large)?;
        let fetch_pool = link.create_pool(sizes.buffer_bytes, fetch_slots)?;
        let pool_bytes = control_pool.bytes() + small_pool.bytes() + large_pool.bytes() + fetch_pool.bytes();
        let mut this = Self {
            incoming: (0..links).map(|_| Incoming::new(maxrpc)).collect(),
            identity,
            sizes,
            shared: Shared::new(large as u32, maxrpc),
            fetches: Fetches::new(fetch_slots, fetch_slots * sizes.buffer_bytes),
            fetch_pool,
            control_pool: control_pool.clone(),
            _small_pool: small_pool.clone(),
            _large_pool: large_pool.clone(),
            unposted: Vec::new(),
            controls_per_link,
            turn: 0,
            strangers_told: false,
            pool_bytes,
            posted: controls + links + large + fetch_slots,
        };
        let first = [
            (TagClass::Control, &control_pool, controls),
            (TagClass::Small, &small_pool, links),
        ];
        for (class, pool, count) in first.into_iter().chain([(TagClass::Large, &large_pool, large)]) {
            for _ in 0..count {
                let buffer = pool.take().expect("the pool was made for this");
                this.unposted.push(Unposted {
                    class,
                    number: 0,
                    buffer,
                    link: None,
                });
            }
        }
        // Nobody sends before the stream is open on all ranks, so these posts may need several rounds.
        for _ in 0..1000 {
            this.post_all(link)?;
            if this.unposted.is_empty() {
                return Ok(this);
            }
            link.poll(completions)?;
        }
        Err(Error::config(
            "receive_pool_bytes",
            format!("{} does not take {posted_max} receives", link.name()),
        ))
    }

    fn post_all(&mut self, link: &mut dyn Link) -> Result<()> {
        while let Some(Unposted {
            class,
            number,
            buffer,
            link: owner,
        }) = self.unposted.pop()
        {
            let stream = self.identity.stream;
            match link.post_receive(tag(stream, class, number), buffer, token(stream, class, number)) {
                Ok(()) => {
                    if let Some(owner) = owner {
                        self.incoming[owner].receiving.grant_small();
                        self.incoming[owner].news = true;
                    }
                }
                Err(PostError::WouldBlock(buffer)) => {
                    self.unposted.push(Unposted {
                        class,
                        number,
                        buffer,
                        link: owner,
                    });
                    return Ok(());
                }
                Err(PostError::Failed(_, error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Posts a slot again after its message was taken (or was none of ours).
    fn repost(&mut self, slot: Slot, link: Option<usize>, buffer: Buffer) {
        let owner = if slot == Slot::Small { link } else { None };
        self.unposted.push(Unposted {
            class: TagClass::of(slot),
            number: 0,
            buffer,
            link: owner,
        });
        if slot == Slot::Large {
            self.shared.free(1);
        }
    }

    /// Takes one completion of this stream.
    pub fn complete(
        &mut self,
        class: TagClass,
        number: u32,
        completion: Completion,
        remotes: &mut [RemoteQueue],
        stats: &mut Stats,
        now_ns: u64,
    ) -> Result<()> {
        match completion {
            // The buffer's way home is its drop.
            Completion::Sent { .. } => Ok(()),
            Completion::Received { buffer, bytes, .. } => match class {
                TagClass::Control => self.control(buffer, bytes, remotes, stats, now_ns),
                TagClass::Small => self.batch(Slot::Small, buffer, bytes, remotes, stats, now_ns),
                TagClass::Large => self.batch(Slot::Large, buffer, bytes, remotes, stats, now_ns),
                _ => self.fetched(number, buffer, bytes, remotes, now_ns),
            },
            Completion::Read { buffer, .. } => {
                let bytes = buffer.len();
                self.fetched(number, buffer, bytes, remotes, now_ns)
            }
            Completion::Failed { peer, error, .. } => {
                let rank = peer
                    .and_then(|p| remotes.iter().find(|r| r.peer == p))
                    .map(|r| r.rank);
                match rank {
                    Some(rank) => Err(trihop_transport::Error::PeerDead {
                        rank,
                        why: error.to_string(),
                    }
                    .into()),
                    None => Err(error.into()),
                }
            }
        }
    }

    /// Parses a message of a peer of this stream; `None` (counted, told once) for what is none.
    fn parse(
        &mut self,
        message: &[u8],
        remotes: &[RemoteQueue],
        stats: &mut Stats,
    ) -> Option<(usize, BatchHeader)> {
        let why = match BatchHeader::parse(message, self.identity.cookie) {
            Ok((header, _)) => match remotes.iter().position(|r| r.rank == header.source) {
                Some(index) if header.stream == self.identity.stream => return Some((index, header)),
                _ => format!(
                    "rank {} has no link to here on stream {}",
                    header.source, header.stream
                ),
            },
            Err(error) => error.to_string(),
        };
        stats.bad_headers += 1;
        if !self.strangers_told {
            self.strangers_told = true;
            tracing::warn!(
                rank = self.identity.rank,
                why,
                "dropping a message that is none of this job's"
            );
        }
        None
    }

    /// Applies the counters that every header carries.
    fn counters(
        &mut self,
        index: usize,
        header: &BatchHeader,
        remote: &mut RemoteQueue,
        now_ns: u64,
    ) -> Result<()> {
        let bad = |why: String| Error::bad_peer(header.source, why);
        remote.alive_ns = now_ns;
        remote
            .credit
            .update(&header.counters)
            .map_err(|e| bad(e.to_string()))?;
        remote.release_exposed();
        let incoming = &mut self.incoming[index];
        let returned = incoming
            .receiving
            .update(&header.counters)
            .map_err(|e| bad(e.to_string()))?;
        self.shared.free(returned);
        let seen = header.counters.controls_seen;
        if incoming.controls_sent.wrapping_sub(seen)
            > incoming
                .controls_sent
                .wrapping_sub(incoming.controls_seen_by_peer)
        {
            return Ok(()); // an older header
        }
        incoming.controls_seen_by_peer = seen;
        Ok(())
    }

    fn control(
        &mut self,
        buffer: Buffer,
        bytes: usize,
        remotes: &mut [RemoteQueue],
        stats: &mut Stats,
        now_ns: u64,
    ) -> Result<()> {
        if let Some((index, header)) = self.parse(&buffer[..bytes], remotes, stats) {
            self.counters(index, &header, &mut remotes[index], now_ns)?;
            self.incoming[index].controls_seen = self.incoming[index].controls_seen.wrapping_add(1);
            let notices = &buffer[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + header.bytes as usize];
            let notices = <[ClearToSend]>::ref_from_bytes(notices)
                .map_err(|_| Error::bad_peer(header.source, "clear-to-send notices of a wrong length"))?;
            for notice in notices {
                if !remotes[index].clear_to_send(notice) {
                    let why = format!(
                        "clear-to-send for batch {} that is not announced",
                        notice.sequence
                    );
                    return Err(Error::bad_peer(header.source, why));
                }
            }
            if header.kind != BatchKind::Control {
                return Err(Error::bad_peer(
                    header.source,
                    "data with the tag of control messages",
                ));
            }
        }
        self.unposted.push(Unposted {
            class: TagClass::Control,
            number: 0,
            buffer,
            link: None,
        });
        Ok(())
    }

    fn batch(
        &mut self,
        slot: Slot,
        buffer: Buffer,
        bytes: usize,
        remotes: &mut [RemoteQueue],
        stats: &mut Stats,
        now_ns: u64,
    ) -> Result<()> {
        let Some((index, header)) = self.parse(&buffer[..bytes], remotes, stats) else {
            // A stranger used up a posted slot: post it again, granting nothing new.
            self.unposted.push(Unposted {
                class: TagClass::of(slot),
                number: 0,
                buffer,
                link: None,
            });
            return Ok(());
        };
        self.counters(index, &header, &mut remotes[index], now_ns)?;
        let bad = |why: String| Error::bad_peer(header.source, why);
        self.incoming[index]
            .receiving
            .received(slot)
            .map_err(|e| bad(e.to_string()))?;
        stats.batches_received += 1;
        let arrival = match header.kind {
            BatchKind::Eager => Arrival::Here {
                buffer,
                bytes: header.bytes as usize,
                slot: Some(slot),
            },
            BatchKind::Announce => {
                let payload = &buffer[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + header.bytes as usize];
                let announcement = Announcement::read_from_bytes(payload)
                    .map_err(|_| bad("an announcement of a wrong length".into()))?;
                let length = announcement.bytes.get() as usize;
                if length < BATCH_HEADER_BYTES || length > self.sizes.buffer_bytes {
                    return Err(bad(format!(
                        "{length} bytes announced, {} at most",
                        self.sizes.buffer_bytes
                    )));
                }
                let mover = match announcement.mover.get() {
                    1 => Mover::Read,
                    2 => Mover::Segments,
                    other => return Err(bad(format!("announcement with mover {other}"))),
                };
                let memory = RemoteMemory {
                    address: announcement.address.get(),
                    key: announcement.key.get(),
                };
                self.repost(slot, Some(index), buffer);
                stats.announced += 1;
                Arrival::Announced(memory, length, mover)
            }
            other => return Err(bad(format!("{other:?} with the tag of batches"))),
        };
        self.incoming[index]
            .window
            .insert(header.sequence, arrival)
            .map_err(|e| bad(e.to_string()))
    }

    /// An announced batch has come.
    fn fetched(
        &mut self,
        number: u32,
        buffer: Buffer,
        bytes: usize,
        remotes: &mut [RemoteQueue],
        now_ns: u64,
    ) -> Result<()> {
        let Some(fetch) = self.fetches.end(number as usize) else {
            return Err(Error::bad_peer(
                self.identity.rank,
                format!("no fetch in slot {number}"),
            ));
        };
        let rank = remotes[fetch.link].rank;
        let (header, _) = BatchHeader::parse(&buffer[..bytes.min(fetch.bytes)], self.identity.cookie)
            .map_err(|e| Error::bad_peer(rank, e))?;
        let same =
            header.kind == BatchKind::Segment && header.source == rank && header.sequence == fetch.sequence;
        if !same {
            return Err(Error::bad_peer(rank, "another batch came than was announced"));
        }
        remotes[fetch.link].alive_ns = now_ns;
        if let Some(arrival) = self.incoming[fetch.link].window.get_mut(fetch.sequence) {
            *arrival = Arrival::Here {
                buffer,
                bytes: header.bytes as usize,
                slot: None,
            };
        }
        Ok(())
    }

    /// The front batch of a link is done: acknowledges it and frees its slot.
    pub fn accept(&mut self, index: usize) {
        let incoming = &mut self.incoming[index];
        let Some(Arrival::Here { buffer, slot, .. }) = incoming.window.pop() else {
            return;
        };
        incoming.cursor = 0;
        incoming.receiving.accept();
        incoming.news = true;
        incoming.unacknowledged += 1;
        match slot {
            Some(slot) => self.repost(slot, Some(index), buffer),
            None => {
                incoming.held -= 1;
                drop(buffer);
            }
        }
    }

    /// Starts fetches, in link order so that a later batch never keeps an earlier one from its slot; shares out large
    /// slots; posts what waits to be posted.
    pub fn advance(&mut self, link: &mut dyn Link, peers: impl Fn(usize) -> Peer) -> Result<()> {
        self.post_all(link)?;
        let count = self.incoming.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            self.fetch(index, link, peers(index))?;
        }
        self.turn = (self.turn + 1) % count.max(1);
        if self.shared.free_slots() > 0 && self.unposted.is_empty() {
            self.shared
                .grant(&mut self.incoming, |i| &mut i.receiving, |i| i.news = true);
        }
        Ok(())
    }

    fn fetch(&mut self, index: usize, link: &mut dyn Link, peer: Peer) -> Result<()> {
        // Each link that holds no fetch buffer can count on one for its front batch: others may be waiting for just that
        // batch, because it continues a record that occupies their queues.
        let due = self.incoming.iter().filter(|i| i.held == 0).count();
        let incoming = &mut self.incoming[index];
        let next = incoming.window.next();
        for (expected, (sequence, arrival)) in (next..).zip(incoming.window.iter_mut()) {
            if sequence != expected {
                break;
            }
            let Arrival::Announced(memory, bytes, mover) = *arrival else {
                continue;
            };
            if incoming.held > 0 && self.fetch_pool.free_slots() <= due {
                break;
            }
            let Some(slot) = self.fetches.begin(Fetch {
                link: index,
                sequence,
                bytes,
            }) else {
                break;
            };
            let Some(buffer) = self.fetch_pool.take() else {
                self.fetches.end(slot);
                break;
            };
            let stream = self.identity.stream;
            let posted = match mover {
                Mover::Read => link.post_read(
                    peer,
                    memory,
                    buffer,
                    bytes,
                    token(stream, TagClass::Read, slot as u32),
                ),
                Mover::Segments => {
                    let class = TagClass::Segment;
                    link.post_receive(
                        tag(stream, class, slot as u32),
                        buffer,
                        token(stream, class, slot as u32),
                    )
                }
            };
            match posted {
                Ok(()) => {
                    *arrival = Arrival::Fetching;
                    incoming.held += 1;
                    if mover == Mover::Segments {
                        let (sequence, slot) = (sequence.into(), (slot as u32).into());
                        incoming.notices.push(ClearToSend {
                            sequence,
                            slot,
                            reserved: 0.into(),
                        });
                        incoming.news = true;
                    }
                }
                Err(PostError::WouldBlock(_)) => {
                    self.fetches.end(slot);
                    break;
                }
                Err(PostError::Failed(_, error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends control messages where counters or notices are due and no batch took them along. `idle`: nothing else
    /// moved, so that waiting for a batch to ride on is pointless.
    pub fn tell(
        &mut self,
        link: &mut dyn Link,
        remotes: &mut [RemoteQueue],
        idle: bool,
        maxrpc: u32,
        stats: &mut Stats,
    ) -> Result<bool> {
        let mut told = false;
        for (incoming, remote) in self.incoming.iter_mut().zip(remotes) {
            let unseen = incoming.controls_seen.wrapping_sub(incoming.controls_seen_told);
            let due = !incoming.notices.is_empty()
                || incoming.news && (idle || incoming.unacknowledged * 2 >= maxrpc)
                || unseen >= self.controls_per_link / 2;
            let outstanding = incoming
                .controls_sent
                .wrapping_sub(incoming.controls_seen_by_peer);
            if !due || outstanding >= self.controls_per_link {
                continue;
            }
            let Some(mut buffer) = self.control_pool.take() else {
                continue;
            };
            let count = incoming.notices.len().min(NOTICES_PER_CONTROL);
            let payload = count * size_of::<ClearToSend>();
            let before = incoming.told();
            let header = BatchHeader {
                kind: BatchKind::Control,
                stream: self.identity.stream,
                source: self.identity.rank,
                bytes: payload as u32,
                sequence: 0,
                counters: incoming.counters(remote.credit.large_returned(), remote.wanted()),
            };
            header.write(self.identity.cookie, &mut buffer);
            let end = BATCH_HEADER_BYTES + payload;
            buffer[BATCH_HEADER_BYTES..end].copy_from_slice(incoming.notices[..count].as_bytes());
            let class = TagClass::Control;
            let stream = self.identity.stream;
            match link.post_send(
                remote.peer,
                tag(stream, class, 0),
                buffer,
                end,
                token(stream, TagClass::Sent, 0),
            ) {
                Ok(()) => {
                    incoming.notices.drain(..count);
                    incoming.controls_sent = incoming.controls_sent.wrapping_add(1);
                    remote.wire_bytes += end as u64;
                    stats.controls_sent += 1;
                    told = true;
                }
                Err(PostError::WouldBlock(_)) => {
                    incoming.untell(before);
                }
                Err(PostError::Failed(_, error)) => return Err(error.into()),
            }
        }
        Ok(told)
    }

    /// Whether any peer waits for something that we have not told it.
    pub fn owes_news(&self) -> bool {
        self.incoming.iter().any(|i| i.news || !i.notices.is_empty())
    }

    /// Large slots that nobody holds.
    pub fn free_large(&self) -> u32 {
        self.shared.free_slots()
    }

    /// Bytes being fetched.
    pub fn fetching_bytes(&self) -> usize {
        self.fetches.bytes()
    }
}
