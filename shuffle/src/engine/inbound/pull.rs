//! Long records that were offered: taken in parts out of their sender's memory, into a block that
//! the node shares, or, where there is no room for one, into fetch buffers, and on in fragments.

mod fragments;

use std::collections::VecDeque;
use std::sync::Arc;

use trihop_transport::link::{Link, Mover, Peer, PostError, RemoteMemory};
use trihop_transport::memory::lent::Lender;
use trihop_transport::memory::pool::{Buffer, Pool};
use trihop_transport::protocol::rendezvous::{Fetch, Fetched, Fetches};
use trihop_transport::protocol::tags::{TagClass, token};
use trihop_transport::protocol::wire::{
    BATCH_HEADER_BYTES, ClearToSend, Epoch, PART_UNIT_BYTES, RUN_HEADER_BYTES, RecordAnnouncement,
    Run,
};
use trihop_transport::ring::Block;
use trihop_transport::topology::EndpointId;

use self::fragments::{Fragments, part_bytes};
use super::{Came, Links};
use crate::engine::incoming::Arrival;
use crate::engine::queues::{Queues, SHARED_RUN_BYTES};
use crate::error::{Error, Result};
use crate::queue::lanes::{Lanes, Lending};
use crate::queue::remote::Identity;
use crate::stats::Stats;

/// Bytes of a part that goes into a block, at most.
const PART_BYTES: usize = 256 << 10;

/// A record that is taken in parts.
pub(crate) struct Pulled {
    memory: RemoteMemory,
    mover: Mover,
    /// The run that is to say where it lies, without that.
    frame: [u8; SHARED_RUN_BYTES],
    kind: u32,
    bytes: usize,
    /// Bytes that were asked for, or are read.
    asked: usize,
    came: usize,
    into: Goes,
}

/// Where the parts go.
enum Goes {
    Undecided,
    Block(Lender<Block>),
    /// All of it has come, and may have moved on.
    Whole(Option<Block>),
    /// One part behind the other.
    Parts(VecDeque<Part>),
}

/// A part of a record that goes on in fragments.
enum Part {
    /// It begins here.
    Coming { from: usize },
    /// Their runs, in a fetch buffer, as in a batch.
    Here { buffer: Buffer, bytes: u32 },
    /// The same in memory of its own.
    Aside(Box<[u8]>),
}

impl Pulled {
    /// A record that was announced on a stream whose longest has `most_bytes`, in a job of so many
    /// ranks. What is wrong with it, where it cannot be one.
    pub fn announced(
        said: &RecordAnnouncement,
        job_size: u32,
        frame_bytes: usize,
        most_bytes: usize,
    ) -> std::result::Result<Self, String> {
        let bytes = said.memory.bytes.get() as usize;
        if bytes <= frame_bytes || bytes > most_bytes {
            let range = format!("more than {frame_bytes} and {most_bytes} at most");
            return Err(format!("a record of {bytes} bytes announced, {range}"));
        }
        if said.reserved.get() != 0 {
            return Err(format!("{} in a reserved word", said.reserved));
        }
        let mover = mover_of(said.memory.mover.get())?;
        let mut frame = [0; SHARED_RUN_BYTES];
        frame[..RUN_HEADER_BYTES].copy_from_slice(&said.run);
        let (run, _) = Run::split(&frame, job_size).map_err(|why| why.to_string())?;
        if !run.is_shared() {
            return Err(format!("a record announced by a run {:?}", run.header));
        }
        Ok(Self {
            memory: RemoteMemory {
                address: said.memory.address.get(),
                key: said.memory.key.get(),
            },
            mover,
            frame,
            kind: said.kind.get(),
            bytes,
            asked: 0,
            came: 0,
            into: Goes::Undecided,
        })
    }

    /// The run that is to say where it lies, without that.
    pub fn frame(&self) -> [u8; SHARED_RUN_BYTES] {
        self.frame
    }

    /// The application's 32 bits.
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is here as a whole.
    pub fn is_whole(&self) -> bool {
        match &self.into {
            Goes::Block(lender) => self.came == self.bytes && lender.is_home(),
            Goes::Whole(_) => true,
            Goes::Undecided | Goes::Parts(_) => false,
        }
    }

    /// Where it lies once it is whole; taken out when it moves on.
    pub fn block(&mut self) -> &mut Option<Block> {
        self.into = match std::mem::replace(&mut self.into, Goes::Undecided) {
            Goes::Block(lender) => match lender.end() {
                Ok(block) => Goes::Whole(Some(block)),
                Err(lender) => Goes::Block(lender),
            },
            into => into,
        };
        match &mut self.into {
            Goes::Whole(block) => block,
            _ => unreachable!("a record is looked at when it is whole"),
        }
    }

    /// The runs of the part that is here, where it goes on in fragments.
    pub fn runs(&self) -> Option<&[u8]> {
        match &self.into {
            Goes::Parts(parts) => match parts.front()? {
                Part::Here { buffer, bytes } => {
                    Some(&buffer[BATCH_HEADER_BYTES..][..*bytes as usize])
                }
                Part::Aside(runs) => Some(runs),
                Part::Coming { .. } => None,
            },
            _ => None,
        }
    }

    /// How it stands, as text.
    pub fn text(&self) -> String {
        let (came, bytes) = (self.came, self.bytes);
        let into = match &self.into {
            Goes::Undecided => "announced",
            Goes::Block(_) => "on its way into shared memory",
            Goes::Whole(_) => "here in shared memory",
            Goes::Parts(_) => "taken in fragments",
        };
        format!("a long record, {into}, {came} of {bytes} bytes have come")
    }

    /// Bytes that have come, where more were asked for.
    pub fn awaited(&self) -> Option<usize> {
        (self.came < self.asked).then_some(self.came)
    }

    /// The first part, where it is here: it has moved on, or is given up.
    fn take_part(&mut self) -> Option<Part> {
        match &mut self.into {
            Goes::Parts(parts) => match parts.front()? {
                Part::Coming { .. } => None,
                Part::Here { .. } | Part::Aside(_) => parts.pop_front(),
            },
            _ => None,
        }
    }

    /// Whether more is to be asked for.
    fn goes_on(&self) -> bool {
        self.asked < self.bytes
    }

    /// Whether all of it has moved on.
    fn is_over(&self) -> bool {
        match &self.into {
            Goes::Parts(parts) => parts.is_empty() && !self.goes_on(),
            Goes::Whole(block) => block.is_none(),
            Goes::Undecided | Goes::Block(_) => false,
        }
    }
}

/// Whoever takes parts of the records of one link.
pub(super) struct Puller<'a> {
    pub fetches: &'a mut Fetches,
    /// Parts on their way into blocks, of this link; and what all links have beside their first,
    /// no more than `most_more`.
    pub parts: &'a mut u32,
    pub more: &'a mut usize,
    pub most_more: usize,
    /// The first of a link is one of these, too: links are many.
    pub on_demand: bool,
    /// Whether anything goes into blocks.
    pub takes_parts: bool,
    pub pool: &'a Pool,
    pub lanes: &'a mut Lanes,
    pub link: &'a mut dyn Link,
    pub peer: Peer,
    pub identity: &'a Identity,
    pub notices: &'a mut Vec<ClearToSend>,
    pub place: u32,
    pub frame_bytes: usize,
    /// Index of the link, and the epoch of its other end.
    pub index: usize,
    pub epoch: Epoch,
    /// Number of the record on the link.
    pub sequence: u64,
    /// The provider had no room.
    pub refused: bool,
}

/// How far a record was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// As far as it goes: what is behind it may be fetched, too.
    pub wholly: bool,
    /// Fetch buffers that it holds more.
    pub buffers: u32,
}

impl Asked {
    const WHOLLY: Self = Self {
        wholly: true,
        buffers: 0,
    };
    const PARTLY: Self = Self {
        wholly: false,
        buffers: 0,
    };
}

impl Puller<'_> {
    /// Asks for as much of a record as there is room for. Where no block is free it goes on in
    /// fragments, once it is the `front` of its link, with fetch buffers of those that are left
    /// beside `kept`: that many where the link holds none, and where it does. With what was asked
    /// for before comes an error of the provider's.
    pub fn pull(
        &mut self,
        record: &mut Pulled,
        front: bool,
        kept: [usize; 2],
    ) -> (Asked, Option<Error>) {
        if let Goes::Undecided = record.into {
            let lender = self.lender(record.bytes);
            record.into = lender.map_or_else(|| Goes::Parts(VecDeque::new()), Goes::Block);
        }
        match record.into {
            Goes::Block(_) => self.pull_into_block(record),
            Goes::Parts(_) if front => self.pull_parts(record, kept),
            Goes::Parts(_) => (Asked::PARTLY, None),
            Goes::Undecided | Goes::Whole(_) => (Asked::WHOLLY, None),
        }
    }

    /// A block for a record, if there is one that the link may write into.
    fn lender(&mut self, bytes: usize) -> Option<Lender<Block>> {
        if !self.takes_parts {
            return None;
        }
        if let Lending::Wanted = self.lanes.lending(self.place) {
            self.lanes.register(self.link, self.place);
        }
        let Lending::Registered(registered) = self.lanes.lending(self.place) else {
            return None;
        };
        let registered = Arc::clone(registered);
        Lender::new(self.lanes.take_block(bytes)?, &registered).ok()
    }

    fn pull_into_block(&mut self, record: &mut Pulled) -> (Asked, Option<Error>) {
        let most = PART_BYTES.min(self.link.limits().max_message_bytes) & !(PART_UNIT_BYTES - 1);
        while record.goes_on() {
            // The first of a link waits for no other link's.
            let is_more = self.on_demand || *self.parts > 0;
            if is_more && *self.more >= self.most_more {
                return (Asked::PARTLY, None);
            }
            let bytes = (record.bytes - record.asked).min(most);
            let slot = self.begin(record.asked, bytes, Fetched::PartInPlace);
            let Goes::Block(lender) = &mut record.into else {
                unreachable!("it goes into a block");
            };
            let from = record.asked;
            let buffer = lender.take(from, bytes).expect("parts follow each other");
            if let Err((buffer, error)) = self.post(record, slot, buffer, bytes) {
                if let Goes::Block(lender) = &mut record.into {
                    lender.put_back(from, buffer);
                }
                self.refused = true;
                return (Asked::PARTLY, error);
            }
            *self.parts += 1;
            *self.more += usize::from(is_more);
        }
        (Asked::WHOLLY, None)
    }

    fn pull_parts(
        &mut self,
        record: &mut Pulled,
        [first, later]: [usize; 2],
    ) -> (Asked, Option<Error>) {
        let most = part_bytes(self.pool.slot_bytes(), self.frame_bytes);
        let (mut taken, mut failed) = (0, None);
        while record.goes_on() {
            let Goes::Parts(parts) = &record.into else {
                break;
            };
            let kept = if parts.is_empty() { first } else { later };
            // What waits for the end of a round is not added to.
            let waits = parts.iter().any(|part| matches!(part, Part::Aside(_)));
            if waits || self.pool.free_slots() <= kept {
                break;
            }
            let bytes = (record.bytes - record.asked).min(most);
            let slot = self.begin(record.asked, bytes, Fetched::Part);
            let Some(buffer) = self.pool.take() else {
                self.fetches.end(slot);
                break;
            };
            let from = record.asked;
            if let Err((_, error)) = self.post(record, slot, buffer, bytes) {
                (self.refused, failed) = (true, error);
                break;
            }
            if let Goes::Parts(parts) = &mut record.into {
                parts.push_back(Part::Coming { from });
            }
            taken += 1;
        }
        let asked = Asked {
            wholly: !record.goes_on(),
            buffers: taken,
        };
        (asked, failed)
    }

    fn begin(&mut self, from: usize, bytes: usize, what: Fetched) -> usize {
        self.fetches.begin(Fetch {
            link: self.index,
            epoch: self.epoch,
            sequence: self.sequence,
            from,
            bytes,
            what,
        })
    }

    /// Posts what takes the next part. Where that is refused the buffer comes back: without an error
    /// where the provider has no room, else with it.
    fn post(
        &mut self,
        record: &mut Pulled,
        slot: usize,
        buffer: Buffer,
        bytes: usize,
    ) -> std::result::Result<(), (Buffer, Option<Error>)> {
        let (stream, number, from) = (self.identity.stream, slot as u32, record.asked);
        let posted = match record.mover {
            Mover::Read => {
                let memory = RemoteMemory {
                    address: record.memory.address.wrapping_add(from as u64),
                    ..record.memory
                };
                let mark = token(stream, TagClass::Read, number);
                self.link.post_read(self.peer, memory, buffer, bytes, mark)
            }
            Mover::Segments => {
                let class = TagClass::Segment;
                let tag = self.identity.tag(class, number);
                self.link
                    .post_receive(tag, buffer, token(stream, class, number))
            }
        };
        posted.map_err(|refused| {
            self.fetches.end(slot);
            match refused {
                PostError::WouldBlock(buffer) => (buffer, None),
                PostError::Failed(buffer, error) => (buffer, Some(error.into())),
            }
        })?;
        record.asked += bytes;
        if record.mover == Mover::Segments {
            self.notices.push(ClearToSend {
                sequence: (self.sequence as u32).into(),
                slot: number.into(),
                first: ((from / PART_UNIT_BYTES) as u32).into(),
                bytes: (bytes as u32).into(),
            });
        }
        Ok(())
    }
}

impl Links {
    /// A part of a record has come.
    pub(super) fn part_came(
        &mut self,
        number: u32,
        fetch: Fetch,
        buffer: Buffer,
        came: Came,
        queues: &Queues,
        stats: &mut Stats,
    ) -> Result<()> {
        if let Came::AsSegment { bytes } = came
            && bytes != fetch.bytes
        {
            // No member of the job need have sent it. The part itself may still come.
            let why = format!("{bytes} bytes for a part of {}", fetch.bytes);
            self.strange(&why, stats);
            self.post_again(TagClass::Segment, number, buffer);
            return Ok(());
        }
        self.fetches.end(number as usize);
        let on_demand = self.sizes.on_demand;
        let incoming = &mut self.incoming[fetch.link];
        let is_same = queues.remotes[fetch.link].epoch == fetch.epoch;
        if fetch.what == Fetched::PartInPlace && is_same && incoming.parts > 0 {
            end_part(&mut incoming.parts, &mut self.more_parts, on_demand);
        }
        let record = match incoming.window.get_mut(fetch.sequence) {
            Some(Arrival::Record(record)) if is_same => record,
            // Of one whose sender is gone.
            _ => return Ok(()),
        };
        record.came += fetch.bytes;
        match &mut record.into {
            Goes::Block(_) => drop(buffer),
            Goes::Parts(parts) => {
                let is_it =
                    |part: &&mut Part| matches!(part, Part::Coming { from } if *from == fetch.from);
                let Some(part) = parts.iter_mut().find(is_it) else {
                    let end = queues.remotes[fetch.link].end.0;
                    return Err(Error::bad_peer(
                        end,
                        "a part of a record that was not asked for",
                    ));
                };
                let laid = Fragments {
                    frame: &record.frame,
                    kind: record.kind,
                    total: record.bytes,
                    from: fetch.from,
                    frame_bytes: self.frame_bytes,
                };
                let mut buffer = buffer;
                let bytes = laid.lay_out(&mut buffer, fetch.bytes) as u32;
                *part = Part::Here { buffer, bytes };
            }
            Goes::Undecided | Goes::Whole(_) => {
                let end = queues.remotes[fetch.link].end.0;
                return Err(Error::bad_peer(end, "a part of a record that is whole"));
            }
        }
        incoming.is_read |= came == Came::ByRead;
        self.list(fetch.link);
        Ok(())
    }

    /// The member that is to send a part of a record, which has no header.
    pub(super) fn sender_of_part(&self, number: u32, queues: &Queues) -> Option<EndpointId> {
        let fetch = self.fetches.get(number as usize)?;
        let remote = &queues.remotes[fetch.link];
        let is_part = fetch.what != Fetched::Batch;
        let is_its = is_part && remote.epoch == fetch.epoch && !remote.is_lost;
        is_its.then_some(remote.end)
    }

    /// What was fetched fails: its peer is lost, or the job ends.
    pub(super) fn fetch_failed(&mut self, number: u32, queues: &Queues) {
        let Some(fetch) = self.fetches.end(number as usize) else {
            return;
        };
        // That of one before was given up with it.
        if queues.remotes[fetch.link].epoch != fetch.epoch {
            return;
        }
        let incoming = &mut self.incoming[fetch.link];
        if fetch.what == Fetched::PartInPlace && incoming.parts > 0 {
            end_part(
                &mut incoming.parts,
                &mut self.more_parts,
                self.sizes.on_demand,
            );
        }
    }

    /// The runs of the front batch have moved on; whether it is a record of which more is to come.
    pub fn went_on(&mut self, index: usize) -> bool {
        let incoming = &mut self.incoming[index];
        let Some(Arrival::Record(record)) = incoming.window.front() else {
            return false;
        };
        let (part, goes_on) = (record.take_part(), !record.is_over());
        incoming.cursor = 0;
        self.free_part(index, part);
        goes_on
    }

    /// Gives back what a record holds that has moved on or is given up.
    pub(super) fn free_record(&mut self, index: usize, record: Pulled) {
        if let Goes::Parts(parts) = record.into {
            parts
                .into_iter()
                .for_each(|part| self.free_part(index, Some(part)));
        }
    }

    fn free_part(&mut self, index: usize, part: Option<Part>) {
        match part {
            Some(Part::Here { .. }) => self.released(index),
            Some(Part::Aside(runs)) => self.aside_bytes -= runs.len(),
            Some(Part::Coming { .. }) | None => {}
        }
    }

    /// Copies the parts of a record that are here to memory of their own.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn set_parts_aside(&mut self, index: usize, number: u64) -> Result<()> {
        let arrival = self.incoming[index].window.get_mut(number);
        let Some(Arrival::Record(record)) = arrival else {
            return Ok(());
        };
        let Goes::Parts(parts) = &mut record.into else {
            return Ok(());
        };
        let mut freed = 0;
        for part in parts {
            let Part::Here { buffer, bytes } = part else {
                continue;
            };
            let copy = super::copy_of(&buffer[BATCH_HEADER_BYTES..][..*bytes as usize])?;
            self.aside_bytes += copy.len();
            *part = Part::Aside(copy);
            freed += 1;
        }
        (0..freed).for_each(|_| self.released(index));
        Ok(())
    }
}

/// A part of a record of a link has come, or is not waited for any more.
pub(super) fn end_part(of_link: &mut u32, more: &mut usize, on_demand: bool) {
    *of_link -= 1;
    *more -= usize::from(on_demand || *of_link > 0);
}

/// The mover that an announcement names.
pub(super) fn mover_of(number: u32) -> std::result::Result<Mover, String> {
    match number {
        1 => Ok(Mover::Read),
        2 => Ok(Mover::Segments),
        other => Err(format!("announcement with mover {other}")),
    }
}
