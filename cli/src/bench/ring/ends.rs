//! The two ends that a rank holds of the pair's rings: its own inbox, and the producer of the
//! other's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop::Job;
use trihop::transport::Error as TransportError;
use trihop::transport::memory::descriptors::{Accepted, DescriptorListener};
use trihop::transport::memory::segment::Segment;
use trihop::transport::ring::doorbell::Sleeper;
use trihop::transport::ring::{Bell, Corrupt, Doorbell, Inbox, InboxLayout, Producer};
use trihop::transport::sync::Ordering;

use crate::bench::Error;
use crate::bench::pair::{self, FIRST, Patience};

/// Capacity of a lane: the largest that there is.
const LANE_BYTES: u32 = 1 << 20;

/// Largest payload of one frame. A longer message goes in pieces, so that the receiver reads the
/// first one while the sender writes the next.
const PIECE_BYTES: usize = 32 << 10;

/// What a frame has in front of its payload: the ring's length word, and the payload's own length.
const HEAD_BYTES: usize = 8;

/// A stream shows its frames to the receiver in steps of this size: with 4 KiB they come too close
/// to each other, and small messages take 1.3 to 1.6 times as long.
const PUBLISH_BYTES: usize = 16 << 10;

/// Longest wait for the other rank's memory.
const HANDOVER: Duration = Duration::from_secs(30);

/// Descriptors that a rank hands over: inbox, word and eventfd of its doorbell, word and eventfd of
/// its line.
const DESCRIPTORS: usize = 5;

/// Number of the message by which the ranks meet.
const MEET: u64 = u64::MAX - 1;

/// What a receiver does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Copies it out of the ring into memory of its own.
    Copy,
    /// Looks at its first word where it lies, and lets it go.
    InPlace,
}

/// One rank's ends.
pub struct Ends {
    inbox: Inbox,
    active: Vec<u32>,
    /// Whether the lane was announced and not found empty since.
    listed: bool,
    out: Producer,
    /// A word on a cache line of its own that bounces between the two processes. Nobody sleeps on
    /// it.
    line: Arc<Bell>,
    /// Where received messages are copied to.
    private: Vec<u8>,
}

impl Ends {
    /// Exchanges memory with the other rank; collective.
    pub fn exchange(job: &Job<'_>, other: u32, largest: usize) -> Result<Self, Error> {
        let name = format!("trihop-bench-ring-{}", std::process::id());
        let listener = DescriptorListener::listen(&name, 2)?;
        let names = job.allgather(name.as_bytes())?;
        let theirs = String::from_utf8_lossy(&names[other as usize]).into_owned();

        let layout = InboxLayout::new(1, LANE_BYTES)?;
        let segment = Segment::create(layout.segment_bytes())?;
        let mut inbox = Inbox::new(Arc::clone(&segment), layout)?;
        let (doorbell, line) = (Doorbell::create()?, Doorbell::create()?);
        let (bell_word, line_word) = (doorbell.segment()?, line.segment()?);
        let descriptors: [_; DESCRIPTORS] = [
            segment.descriptor()?,
            bell_word.descriptor()?,
            doorbell.descriptor()?,
            line_word.descriptor()?,
            line.descriptor()?,
        ];
        DescriptorListener::send(&theirs, b"ring", &descriptors)?;
        let (_, handed, process) = accept(job, &listener)?;
        let handed = <[_; DESCRIPTORS]>::try_from(handed).map_err(|handed| {
            let why = format!("process {process} handed over {} descriptors", handed.len());
            TransportError::BadPeer { rank: other, why }
        })?;
        let [their_inbox, their_bell, bell_event, their_line, line_event] = handed;
        let bell = Bell::attach(Segment::attach(their_bell, size_of::<u64>())?, bell_event)?;
        let their_line = Bell::attach(Segment::attach(their_line, size_of::<u64>())?, line_event)?;
        inbox.set_bells(Arc::new([Some(Arc::clone(&bell))]), 1);
        let their_segment = Segment::attach(their_inbox, layout.segment_bytes())?;
        Ok(Self {
            inbox,
            active: Vec::with_capacity(1),
            listed: false,
            out: Producer::new(their_segment, layout, 0, bell)?,
            line: if job.rank().0 == FIRST {
                line.bell()
            } else {
                their_line
            },
            private: vec![0; largest],
        })
    }

    /// Waits until the other rank is here too, and goes on forwarding meanwhile: a collective of
    /// the job may have ended here and not there.
    pub fn meet(&mut self, job: &Job<'_>) -> Result<(), Error> {
        let first = job.rank().0 == FIRST;
        for sends in [first, !first] {
            if sends {
                self.send(&MEET.to_le_bytes())?;
                continue;
            }
            while self.inbox.lane(0).is_empty() {
                self.inbox.lane(0).front().map_err(bad_peer)?;
                job.progress()?;
            }
            self.receive(size_of_val(&MEET), MEET, Access::InPlace)?;
        }
        Ok(())
    }

    /// Writes one message into the ring and shows it to the receiver.
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.append(message)?;
        self.out.publish();
        Ok(())
    }

    /// Writes one message into the ring and shows it when enough is written.
    #[inline]
    pub fn append(&mut self, message: &[u8]) -> Result<(), Error> {
        for piece in message.chunks(PIECE_BYTES) {
            let bytes = HEAD_BYTES + piece.len().next_multiple_of(8);
            if !self.out.has_room(bytes) {
                self.wait_for_room(bytes)?;
            }
            let frame = self
                .out
                .reserve(bytes)
                .expect("there is room, and only we take it");
            frame[4..HEAD_BYTES].copy_from_slice(&(piece.len() as u32).to_le_bytes());
            frame[HEAD_BYTES..HEAD_BYTES + piece.len()].copy_from_slice(piece);
            self.out.commit(bytes);
            if self.out.pending_bytes() >= PUBLISH_BYTES {
                self.out.publish();
            }
        }
        Ok(())
    }

    /// Shows everything that is written.
    pub fn publish(&mut self) {
        self.out.publish();
    }

    #[cold]
    fn wait_for_room(&mut self, bytes: usize) -> Result<(), Error> {
        self.out.publish();
        let mut patience = Patience::default();
        while !self.out.has_room(bytes) {
            self.out.consumed().map_err(bad_peer)?;
            patience.wait();
        }
        Ok(())
    }

    /// Takes the next message, of `size` bytes, and checks its length and its first word.
    #[inline]
    pub fn receive(&mut self, size: usize, number: u64, access: Access) -> Result<(), Error> {
        let (mut first, mut at) = (None, 0);
        while at < size {
            self.wait_for_frame()?;
            let mut lane = self.inbox.lane(0);
            let Some(frame) = lane.front().map_err(bad_peer)? else {
                continue;
            };
            let piece = payload(frame).filter(|p| p.len() == PIECE_BYTES.min(size - at));
            let Some(piece) = piece else {
                return Err(wrong_length(frame, size, at));
            };
            if at == 0 {
                first = pair::number(piece);
            }
            if access == Access::Copy {
                self.private[at..at + piece.len()].copy_from_slice(piece);
            }
            at += piece.len();
            lane.pop();
        }
        if first != Some(number) {
            return Err(wrong(format!(
                "a message of {size} bytes has the number {first:?}, expected is {number}"
            )));
        }
        Ok(())
    }

    /// Takes the next message and checks every byte.
    pub fn receive_whole(&mut self, size: usize, number: u64) -> Result<(), Error> {
        self.receive(size, number, Access::Copy)?;
        if !pair::is_filled(&self.private[..size], number) {
            return Err(wrong(format!(
                "message {number} of {size} bytes was changed on its way"
            )));
        }
        Ok(())
    }

    /// As an endpoint with many lanes does it: asks the bitmap which lane has news, and stays with
    /// that until it is empty.
    #[inline]
    fn wait_for_frame(&mut self) -> Result<(), Error> {
        let mut patience = Patience::default();
        loop {
            if self.listed {
                let mut lane = self.inbox.lane(0);
                if lane.front().map_err(bad_peer)?.is_some() {
                    return Ok(());
                }
                lane.release();
                self.listed = false;
            }
            self.inbox.take_active(&mut self.active);
            if self.active.is_empty() {
                patience.wait();
            } else {
                self.active.clear();
                self.listed = true;
            }
        }
    }

    /// Bounces one cache line between the two processes `rounds` times.
    pub fn bounce(&self, first: bool, rounds: u64) {
        bounce(&self.line, first, rounds);
    }
}

/// Bounces the cache line of a word that nobody sleeps on between two threads `rounds` times.
pub(super) fn bounce(line: &Bell, first: bool, rounds: u64) {
    let word = line.word();
    let mut patience = Patience::default();
    // Nothing but the word itself is passed on; each store pairs with the other side's load all
    // the same.
    let mut await_value = |value: u64| {
        while word.load(Ordering::Acquire) != value {
            patience.wait();
        }
    };
    for round in 0..rounds {
        let (ping, pong) = (2 * round + 1, 2 * round + 2);
        if first {
            word.store(ping, Ordering::Release);
            await_value(pong);
        } else {
            await_value(ping);
            word.store(pong, Ordering::Release);
        }
    }
}

/// The other's descriptors. We go on forwarding, because it may still wait for our part of a
/// collective.
fn accept(job: &Job<'_>, listener: &DescriptorListener) -> Result<Accepted, Error> {
    let deadline = Instant::now() + HANDOVER;
    loop {
        if let Some(parcel) = listener.try_accept()? {
            return Ok(parcel);
        }
        job.progress()?;
        if Instant::now() >= deadline {
            let why = format!("no memory was handed over within {} s", HANDOVER.as_secs());
            return Err(TransportError::Bootstrap {
                launcher: job.launcher().name(),
                why,
            }
            .into());
        }
        std::thread::yield_now();
    }
}

fn payload(frame: &[u8]) -> Option<&[u8]> {
    let length = u32::from_le_bytes(*frame.get(4..)?.first_chunk()?) as usize;
    frame.get(HEAD_BYTES..HEAD_BYTES.checked_add(length)?)
}

fn bad_peer(corrupt: Corrupt) -> Error {
    wrong(corrupt.to_string())
}

#[cold]
fn wrong_length(frame: &[u8], size: usize, at: usize) -> Error {
    let length = payload(frame).map(<[u8]>::len);
    wrong(format!(
        "{length:?} bytes in a frame of {} at byte {at} of a message of {size}",
        frame.len()
    ))
}

#[cold]
fn wrong(why: String) -> Error {
    Error::Wrong { bench: "ring", why }
}
