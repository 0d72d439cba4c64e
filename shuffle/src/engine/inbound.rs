//! What a rank receives over the fabric: batches of its links, fetched where they were announced,
//! and control messages.

mod controls;
mod fetch;
mod open;
mod pull;
mod slots;

pub(crate) use open::LinkPlan;
pub(crate) use pull::Pulled;

use trihop_transport::link::{Completion, Link, PostError, RemoteMemory};
use trihop_transport::memory::pool::{Buffer, Pool};
use trihop_transport::protocol::credit::{Place, Shared};
use trihop_transport::protocol::eager::Slot;
use trihop_transport::protocol::rendezvous::Fetches;
use trihop_transport::protocol::tags::{TagClass, token};
use trihop_transport::protocol::wire::{
    Announcement, BATCH_HEADER_BYTES, BatchHeader, BatchKind, RecordAnnouncement,
};
use trihop_transport::topology::EndpointId;
use zerocopy::FromBytes;

use super::incoming::{Arrival, Incoming};
use super::queues::Queues;
use crate::error::{Error, Result};
use crate::member::Members;
use crate::queue::remote::{BatchSizes, Identity, RemoteQueue};
use crate::queue::remotes::Remotes;
use crate::route::Stage;
use crate::stats::Stats;
use crate::trace::OfBatch;
use pull::{end_part, mover_of};

/// Size of a control message's receive slot: a header and up to four clear-to-send notices.
pub(crate) const CONTROL_BYTES: usize = 128;
/// A receive that the provider had no room for yet.
struct Unposted {
    class: TagClass,
    /// The fetch that it is for, where it is for one.
    number: u32,
    buffer: Buffer,
    /// The link that may use it again.
    link: Option<usize>,
}

/// A message of which nothing has come must not look like the last one in its buffer.
fn forget_header(buffer: &mut Buffer) {
    buffer[..8].fill(0);
}

/// Whether the sender of a message is a member, in the epoch that it shows. Of an endpoint without
/// a link to here, the stage says that.
fn has_joined(members: &Members, header: &BatchHeader) -> bool {
    match members.end(header.source) {
        Some((epoch, _)) => epoch == header.epoch,
        None => !members.has_end(header.source),
    }
}

/// A copy of runs in memory of their own.
///
/// # Errors
/// No memory.
fn copy_of(runs: &[u8]) -> Result<Box<[u8]>> {
    let (mut copy, bytes) = (Vec::new(), runs.len());
    copy.try_reserve_exact(bytes)
        .map_err(|_| Error::NoMemory { bytes })?;
    copy.extend_from_slice(runs);
    Ok(copy.into())
}

/// How an announced batch came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// Out of its sender's memory, which nobody else can write.
    ByRead,
    /// As a message, which anybody can send who knows its tag.
    AsSegment { bytes: usize },
}

/// All links of a stream, receiving side.
pub(crate) struct Links {
    /// The links that are in use, numbered as their remote queues.
    pub incoming: Vec<Incoming>,
    /// Links whose front batch is here.
    pub arrived: Vec<u32>,
    links: usize,
    identity: Identity,
    sizes: BatchSizes,
    /// The shared slots: one pool, or one for each stage, so that none waits for another.
    shared: Vec<Shared>,
    /// The stage of each pool, where each has one.
    stages: Vec<Stage>,
    fetches: Fetches,
    fetch_pool: Option<Pool>,
    /// Parts of records that are on their way into blocks beside the first of each link, and how
    /// many may be. Where links are many, the first of each is one of them, too.
    more_parts: usize,
    most_more_parts: usize,
    takes_parts: bool,
    /// Longest frame, and longest record.
    frame_bytes: usize,
    most_bytes: usize,
    /// Links that hold fetch buffers.
    holding: usize,
    _posted_pools: Vec<Pool>,
    unposted: Vec<Unposted>,
    /// The provider had no room for a fetch when all links were last looked at.
    fetch_refused: bool,
    turn: usize,
    strangers_told: bool,
    /// Bytes of batches that wait for the end of a round in memory of their own.
    pub aside_bytes: usize,
    /// Bytes of all receive buffers, and of the windows in which batches wait for their turn.
    pub pool_bytes: usize,
    /// Receives that this stream has posted at most.
    pub posted: usize,
}

impl Links {
    /// Receiving sides for all links that are in use.
    pub fn follow(&mut self, remotes: &Remotes) {
        let links = remotes.len();
        if self.incoming.capacity() < links {
            let more = (self.incoming.len() / 4)
                .max(4)
                .max(links - self.incoming.len());
            self.incoming.reserve_exact(more);
        }
        while self.incoming.len() < links {
            let remote = &remotes[self.incoming.len()];
            let pool = self.stages.iter().position(|&stage| stage == remote.stage);
            let maxrpc = remote.credit.max_in_flight();
            let incoming = Incoming::new(maxrpc, self.sizes.on_demand, pool.unwrap_or(0));
            self.incoming.push(incoming);
        }
    }

    /// Whether links have no slots of their own.
    pub fn is_on_demand(&self) -> bool {
        self.sizes.on_demand
    }

    /// Whether nothing of a link moves, waits or is to be told on this side.
    pub fn is_idle(&self, index: usize) -> bool {
        self.incoming.get(index).is_none_or(Incoming::is_idle)
    }

    /// The endpoint at the other end of a link has left, with nothing under way.
    pub fn detach(&mut self, index: usize, maxrpc: u32) {
        let Some(incoming) = self.incoming.get_mut(index) else {
            return;
        };
        // What is on its way for it ends when it likes, or never.
        while incoming.parts > 0 {
            end_part(
                &mut incoming.parts,
                &mut self.more_parts,
                self.sizes.on_demand,
            );
        }
        self.shared[incoming.pool].free(incoming.detach(maxrpc, self.sizes.on_demand));
        // The one that follows counts on these, as on all that are posted.
        let of_it = self.unposted.iter_mut().filter(|u| u.link == Some(index));
        of_it.for_each(|unposted| unposted.link = None);
    }

    /// The endpoint at the other end of a link is lost: nobody is to be told anything there.
    pub fn lose(&mut self, index: usize) {
        if let Some(incoming) = self.incoming.get_mut(index) {
            incoming.is_lost = true;
        }
    }

    /// Nothing more is taken from a link to who is lost: what it held is the others'.
    pub fn cut(&mut self, index: usize, maxrpc: u32) {
        self.arrived.retain(|&arrived| arrived as usize != index);
        if let Some(incoming) = self.incoming.get_mut(index) {
            // What is here behind a batch that never comes.
            let of_link = incoming.window.iter_mut().map(|(_, of)| of);
            let here = of_link.filter(|of| of.runs().is_some() || matches!(of, Arrival::Record(_)));
            let here = here.map(|of| std::mem::replace(of, Arrival::Fetching));
            for batch in here.collect::<Vec<_>>() {
                self.free(index, batch);
            }
            self.holding -= usize::from(self.incoming[index].held > 0);
        }
        self.detach(index, maxrpc);
        self.lose(index);
    }

    fn post_all(&mut self, link: &mut dyn Link, remotes: &mut Remotes) -> Result<()> {
        while let Some(Unposted {
            class,
            number,
            mut buffer,
            link: owner,
        }) = self.unposted.pop()
        {
            forget_header(&mut buffer);
            let mark = token(self.identity.stream, class, number);
            match link.post_receive(self.identity.tag(class, number), buffer, mark) {
                Ok(()) => {
                    if let Some(owner) = owner {
                        let incoming = &mut self.incoming[owner];
                        // Only now may the peer use it again.
                        if class == TagClass::Control {
                            incoming.controls.received();
                        } else {
                            incoming.receiving.grant_small();
                            incoming.news = true;
                        }
                        remotes.wake(owner);
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
        if let Some(link) = link.filter(|_| slot == Slot::Large) {
            self.shared[self.incoming[link].pool].free(1);
        }
        let owner = if slot == Slot::Small { link } else { None };
        self.unposted.push(Unposted {
            class: TagClass::of(slot),
            number: 0,
            buffer,
            link: owner,
        });
    }

    /// Takes one completion of this stream.
    pub fn complete(
        &mut self,
        class: TagClass,
        number: u32,
        completion: Completion,
        queues: &mut Queues,
        stats: &mut Stats,
    ) -> Result<()> {
        match completion {
            // The buffer's way home is its drop.
            Completion::Sent { .. } => Ok(()),
            Completion::Received { buffer, bytes, .. } => match class {
                TagClass::Control => self.control(buffer, bytes, queues, stats),
                TagClass::Small => self.batch(Slot::Small, buffer, bytes, queues, stats),
                TagClass::Large => self.batch(Slot::Large, buffer, bytes, queues, stats),
                _ => {
                    let came = Came::AsSegment { bytes };
                    self.fetched(number, buffer, came, queues, stats)
                }
            },
            Completion::Read { buffer, .. } => {
                self.fetched(number, buffer, Came::ByRead, queues, stats)
            }
            Completion::Broken {
                buffer, cut, error, ..
            } => {
                let sender = match class {
                    TagClass::Segment => self.sender_of_part(number, queues),
                    _ => None,
                };
                let sender = sender.or_else(|| self.sender_of(&buffer, queues));
                if cut && let Some(EndpointId(rank)) = sender {
                    let why = format!("its connection ended in the middle of a message: {error}");
                    // The job may go on without it, and others use what was posted; not a part of a
                    // record, which nobody else sends.
                    if class != TagClass::Segment {
                        self.post_again(class, number, buffer);
                    }
                    return Err(trihop_transport::Error::LinkFailed { rank, why }.into());
                }
                self.strange(&error.to_string(), stats);
                self.post_again(class, number, buffer);
                Ok(())
            }
            Completion::Failed { peer, error, .. } => {
                if matches!(class, TagClass::Segment | TagClass::Read) {
                    self.fetch_failed(number, queues);
                }
                let rank = peer.and_then(|p| queues.members.end_of(p));
                match rank {
                    // Nothing else is to be expected of its links.
                    Some(rank) if queues.lost.contains(&rank) => Ok(()),
                    None if queues.has_uncut() => {
                        tracing::debug!(%error, "a link has failed, of one that is lost");
                        Ok(())
                    }
                    Some(rank) => Err(trihop_transport::Error::LinkFailed {
                        rank: rank.0,
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
        queues: &mut Queues,
        stats: &mut Stats,
    ) -> Option<(usize, BatchHeader)> {
        let why = match BatchHeader::parse(message, self.identity.cookie) {
            Ok((header, _)) if !has_joined(&queues.members, &header) => {
                format!(
                    "endpoint {} of epoch {} is no member now",
                    header.source, header.epoch
                )
            }
            // What is late, of a link that is cut.
            Ok((header, _)) if queues.is_late(header.source) => return None,
            Ok((header, _)) if header.stream == self.identity.stream => {
                if let Some(index) = queues.open_to(header.source, header.stage) {
                    self.follow(&queues.remotes);
                    queues.remotes.wake(index);
                    return Some((index, header));
                }
                format!(
                    "endpoint {} has no link of stage {} to here",
                    header.source, header.stage
                )
            }
            Ok((header, _)) => format!("endpoint {} names stream {}", header.source, header.stream),
            Err(error) => error.to_string(),
        };
        self.strange(&why, stats);
        None
    }

    /// The member that sent a message of which only the beginning has come. Nobody sends it again,
    /// so that its link would wait for it for ever.
    fn sender_of(&self, beginning: &[u8], queues: &Queues) -> Option<EndpointId> {
        let (header, _) = BatchHeader::parse(beginning, self.identity.cookie).ok()?;
        let known = queues.has_peer(header.source) && has_joined(&queues.members, &header);
        known.then_some(header.source)
    }

    /// Counts a message that is none of this stream's, or was cut short; the first is told.
    fn strange(&mut self, why: &str, stats: &mut Stats) {
        stats.bad_headers += 1;
        if !self.strangers_told {
            self.strangers_told = true;
            tracing::warn!(
                endpoint = self.identity.own.0,
                stream = self.identity.stream,
                why,
                "dropping a message that is broken, or none of this job's; more of them are only counted"
            );
        }
    }

    /// Posts a slot again that such a message used up. The one that it was posted for may still
    /// come, so nothing new is granted to anybody.
    fn post_again(&mut self, class: TagClass, number: u32, buffer: Buffer) {
        self.unposted.push(Unposted {
            class,
            number,
            buffer,
            link: None,
        });
    }

    /// Applies the counters that every header carries.
    fn counters(
        &mut self,
        index: usize,
        header: &BatchHeader,
        place: Place,
        remote: &mut RemoteQueue,
    ) -> Result<()> {
        let bad = |why: String| Error::bad_peer(header.source.0, why);
        remote
            .credit
            .update(&header.counters)
            .map_err(|e| bad(e.to_string()))?;
        remote.release();
        let incoming = &mut self.incoming[index];
        let returned = incoming
            .receiving
            .update(&header.counters, place)
            .map_err(|e| bad(e.to_string()))?;
        self.shared[incoming.pool].free(returned);
        incoming.controls.heard(header.counters.controls_seen);
        Ok(())
    }

    fn batch(
        &mut self,
        slot: Slot,
        buffer: Buffer,
        bytes: usize,
        queues: &mut Queues,
        stats: &mut Stats,
    ) -> Result<()> {
        let Some((index, header)) = self.parse(&buffer[..bytes], queues, stats) else {
            self.post_again(TagClass::of(slot), 0, buffer);
            return Ok(());
        };
        let place = Place::of(header.sequence);
        self.counters(index, &header, place, &mut queues.remotes[index])?;
        let bad = |why: String| Error::bad_peer(header.source.0, why);
        self.incoming[index]
            .receiving
            .received(slot)
            .map_err(|e| bad(e.to_string()))?;
        tracing::trace!(
            from = header.source.0,
            stream = header.stream,
            bytes = header.bytes,
            kind = ?header.kind,
            "batch"
        );
        let remote = &queues.remotes[index];
        stats.batches_received += u64::from(remote.is_beyond);
        remote.trace.batch(
            OfBatch::Arrived,
            remote.end,
            remote.stage,
            header.sequence,
            header.bytes as usize,
        );
        let arrival = match header.kind {
            BatchKind::Eager => Arrival::Here {
                buffer,
                bytes: header.bytes,
                slot: Some(slot),
            },
            BatchKind::Announce if self.fetch_pool.is_none() => {
                return Err(bad("an announcement where no batch is long".into()));
            }
            BatchKind::Announce => {
                let payload =
                    &buffer[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + header.bytes as usize];
                let announcement = Announcement::read_from_bytes(payload)
                    .map_err(|_| bad("an announcement of a wrong length".into()))?;
                let length = announcement.bytes.get() as usize;
                if length < BATCH_HEADER_BYTES || length > self.sizes.buffer_bytes {
                    return Err(bad(format!(
                        "{length} bytes announced, {} at most",
                        self.sizes.buffer_bytes
                    )));
                }
                let mover = mover_of(announcement.mover.get()).map_err(bad)?;
                let memory = RemoteMemory {
                    address: announcement.address.get(),
                    key: announcement.key.get(),
                };
                self.repost(slot, Some(index), buffer);
                stats.announced += 1;
                Arrival::Announced(memory, length as u32, mover)
            }
            BatchKind::Record if self.fetch_pool.is_none() => {
                return Err(bad("a long record where none is fetched".into()));
            }
            BatchKind::Record => {
                let payload = &buffer[BATCH_HEADER_BYTES..][..header.bytes as usize];
                let said = RecordAnnouncement::read_from_bytes(payload)
                    .map_err(|_| bad("the announcement of a record of a wrong length".into()))?;
                let (frame, most) = (self.frame_bytes, self.most_bytes);
                let record = Pulled::announced(&said, queues.size, frame, most).map_err(bad)?;
                self.repost(slot, Some(index), buffer);
                stats.announced += 1;
                Arrival::Record(Box::new(record))
            }
            other => return Err(bad(format!("{other:?} with the tag of batches"))),
        };
        self.incoming[index]
            .window
            .insert(header.sequence, arrival)
            .map_err(|e| bad(e.to_string()))?;
        self.check_missing(index, &header, queues.now_ns)?;
        self.list(index);
        Ok(())
    }

    /// Puts a link whose front batch is here on the list of those.
    fn list(&mut self, index: usize) {
        let incoming = &mut self.incoming[index];
        if !incoming.listed && incoming.front_is_here() {
            incoming.listed = true;
            self.arrived.push(index as u32);
        }
    }

    /// The front batch of a link is done: acknowledges it and frees its slot.
    pub fn accept(&mut self, index: usize) {
        let incoming = &mut self.incoming[index];
        let Some(batch) = incoming.window.pop() else {
            return;
        };
        incoming.cursor = 0;
        incoming.receiving.accept();
        incoming.news = true;
        incoming.unacknowledged += 1;
        // Who was read from keeps the batch until it hears that.
        let was_fetched = match &batch {
            Arrival::Here { slot, .. } => slot.is_none(),
            Arrival::Aside { was_fetched, .. } => *was_fetched,
            Arrival::Record(_) => true,
            Arrival::Announced(..) | Arrival::Fetching => false,
        };
        incoming.owes_thanks |= was_fetched && incoming.is_read;
        self.free(index, batch);
    }

    /// Gives back the memory of a batch of a link that is here.
    fn free(&mut self, index: usize, batch: Arrival) {
        match batch {
            Arrival::Here {
                buffer,
                slot: Some(slot),
                ..
            } => self.repost(slot, Some(index), buffer),
            Arrival::Here { slot: None, .. } => self.released(index),
            Arrival::Record(record) => self.free_record(index, *record),
            Arrival::Aside { runs, .. } => self.aside_bytes -= runs.len(),
            Arrival::Announced(..) | Arrival::Fetching => {}
        }
    }

    /// A link holds one fetch buffer less.
    fn released(&mut self, index: usize) {
        let incoming = &mut self.incoming[index];
        incoming.held -= 1;
        self.holding -= usize::from(incoming.held == 0);
    }

    /// Whether somebody waits to hear that batches were taken.
    pub fn owes_acknowledgements(&self) -> bool {
        let mut all = self.incoming.iter();
        all.any(|from| from.unacknowledged > 0 && !from.is_lost)
    }

    /// Whether all who sent long batches have heard that these were taken: they may have to make
    /// progress until then. Those who have not are told at once.
    pub fn has_thanked(&mut self) -> bool {
        let owing = self.incoming.iter_mut();
        let owing = owing.filter(|from| from.owes_thanks && !from.is_lost);
        owing.map(|from| from.must_tell = true).count() == 0
    }

    /// Copies the batches of a link that are here to memory of their own, because they wait for the
    /// end of a round: for that, batches of other links have to come, which need the slots. A link
    /// has no more of them than batches in flight.
    ///
    /// # Errors
    /// No memory.
    #[cold]
    pub fn set_aside(&mut self, index: usize) -> Result<()> {
        let numbers: Vec<u64> = self.incoming[index]
            .window
            .iter_mut()
            .filter(|(_, arrival)| matches!(arrival, Arrival::Here { .. } | Arrival::Record(_)))
            .map(|(number, _)| number)
            .collect();
        for number in numbers {
            self.set_parts_aside(index, number)?;
            let Some(arrival) = self.incoming[index].window.get_mut(number) else {
                continue;
            };
            let Arrival::Here { slot, .. } = arrival else {
                continue;
            };
            let was_fetched = slot.is_none();
            let runs = copy_of(arrival.runs().unwrap_or_default())?;
            self.aside_bytes += runs.len();
            let before = std::mem::replace(arrival, Arrival::Aside { runs, was_fetched });
            self.free(index, before);
        }
        Ok(())
    }

    /// Starts fetches; shares out large slots; posts what waits to be posted.
    pub fn advance(&mut self, link: &mut dyn Link, queues: &mut Queues) -> Result<()> {
        let place = queues.place();
        let Queues { lanes, remotes, .. } = queues;
        self.follow(remotes);
        self.post_all(link, remotes)?;
        let (count, first) = (remotes.busy_len(), remotes.first_from(self.identity.own));
        self.fetch_refused = false;
        for step in 0..count {
            if let Some(index) = remotes.busy((first + self.turn + step) % count) {
                self.fetch(index, link, &remotes[index], (lanes, place))?;
            }
        }
        self.turn = (self.turn + 1) % count.max(1);
        if self.unposted.is_empty() {
            self.share_large(remotes);
            if self.sizes.on_demand {
                self.recall(remotes);
            }
        }
        Ok(())
    }

    /// Whether nothing of a link moves or waits on this side; one that waits for a large slot does.
    pub fn may_rest(&self, index: usize) -> bool {
        let incoming = &self.incoming[index];
        let shared = &self.shared[incoming.pool];
        incoming.is_idle() && (shared.is_empty() || !shared.is_wanted(&incoming.receiving))
    }

    /// Whether batches are here, or on their way in answer to an announcement, that have not moved
    /// on.
    pub fn has_backlog(&self, remotes: &Remotes) -> bool {
        (0..remotes.busy_len())
            .filter_map(|at| self.incoming.get(remotes.busy(at)?))
            .any(|incoming| !incoming.window.is_empty())
    }

    /// Whether any peer waits for something that we have not told it.
    pub fn owes_news(&self, remotes: &Remotes) -> bool {
        (0..remotes.busy_len())
            .filter_map(|at| self.incoming.get(remotes.busy(at)?))
            .any(Incoming::owes_news)
    }

    /// Whether receives or fetches wait for the provider alone.
    pub fn may_post(&self) -> bool {
        !self.unposted.is_empty() || self.fetch_refused
    }

    /// Bytes of receive buffers in which something is, or is being fetched: the others wait for
    /// messages.
    pub fn pool_bytes_in_use(&self) -> usize {
        let arrivals = self
            .incoming
            .iter()
            .flat_map(|incoming| incoming.window.iter());
        let arrived = arrivals.map(Arrival::slot_bytes).sum::<usize>();
        arrived + self.fetch_pool.as_ref().map_or(0, Pool::in_use_bytes)
    }

    /// Bytes being fetched.
    pub fn fetching_bytes(&self) -> usize {
        self.fetches.bytes()
    }
}
