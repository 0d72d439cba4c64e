//! Receiving side of one link.

use trihop_transport::link::{Mover, RemoteMemory};
use trihop_transport::memory::pool::Buffer;
use trihop_transport::protocol::control::Controls;
use trihop_transport::protocol::credit::{Grants, Receiving};
use trihop_transport::protocol::eager::Slot;
use trihop_transport::protocol::sequence::Window;
use trihop_transport::protocol::wire::{BATCH_HEADER_BYTES, ClearToSend, Counters};

use super::inbound::Pulled;

/// A batch that has arrived, or is about to.
pub(crate) enum Arrival {
    /// Runs in a buffer.
    Here {
        buffer: Buffer,
        bytes: u32,
        slot: Option<Slot>,
    },
    /// Runs of the next round, in memory of their own: others need the slot before that begins.
    Aside { runs: Box<[u8]>, was_fetched: bool },
    /// Known by its announcement only.
    Announced(RemoteMemory, u32, Mover),
    /// Being fetched.
    Fetching,
    /// A record that is taken in parts.
    Record(Box<Pulled>),
}

impl Arrival {
    /// Bytes of the posted slot that it holds.
    pub fn slot_bytes(&self) -> usize {
        match self {
            Self::Here {
                buffer,
                slot: Some(_),
                ..
            } => buffer.len(),
            Self::Here { .. }
            | Self::Aside { .. }
            | Self::Announced(..)
            | Self::Fetching
            | Self::Record(_) => 0,
        }
    }

    /// The runs, if they are here.
    pub fn runs(&self) -> Option<&[u8]> {
        match self {
            Self::Here { buffer, bytes, .. } => {
                Some(&buffer[BATCH_HEADER_BYTES..][..*bytes as usize])
            }
            Self::Aside { runs, .. } => Some(runs),
            Self::Record(record) => record.runs(),
            Self::Announced(..) | Self::Fetching => None,
        }
    }
}

/// After this long a peer that has not granted anything is asked again.
const ASK_AGAIN_NS: u64 = 20_000_000;

/// A batch that has not come is lost where later ones, or word of it, have come for so long: no
/// fabric takes as long to mend their order. So is what was asked for, of which no more has come
/// while its peer was heard of for so long.
const LOST_NS: u64 = 60_000_000_000;

/// Between two messages of a peer no more than this counts of it: whoever is stopped, or computes,
/// may have what the provider needs to bring the batch.
const MOST_BETWEEN_NS: u64 = 6_000_000_000;

/// The next batch of a link, which has not come although later ones were heard of, or not as a
/// whole although it was asked for.
struct Missing {
    number: u64,
    state: Missed,
    heard_ns: u64,
    missed_ns: u64,
}

/// What a peer has sent, or was asked for, and does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    /// Its batch, or the announcement of that.
    Batch,
    /// What it has announced, of which so many bytes are here.
    Announced { came: usize },
    /// Its word that control messages have come to it, which it has said of so many.
    Controls { seen: u32 },
}

/// Receiving side of one link, made when the link is first used.
pub(crate) struct Incoming {
    pub window: Window<Arrival>,
    pub receiving: Receiving,
    pub controls: Controls,
    /// Fetch buffers that batches of this link hold, on their way or here.
    pub held: u32,
    /// Parts of its records that are on their way into blocks.
    pub parts: u32,
    /// Bytes of the front batch that are done.
    pub cursor: u32,
    /// Batches accepted since the peer last saw it.
    pub unacknowledged: u32,
    /// Counters changed since the peer last saw them.
    pub news: bool,
    /// Rounds in which it was not told them.
    pub withheld: u32,
    /// In the list of links whose front batch is here.
    pub listed: bool,
    pub notices: Vec<ClearToSend>,
    /// Endpoints that have been at the other end before.
    pub earlier: u32,
    /// Which of the pools of shared slots serves it.
    pub pool: usize,
    /// A long record of this link has begun to move on, and has not ended.
    pub in_record: bool,
    /// The peer knows that batches wait here for its slots.
    asked: bool,
    /// Since when it has not answered that.
    asked_ns: Option<u64>,
    /// The peer is to be told at once: it is asked for slots, or gets back what it has recalled.
    pub must_tell: bool,
    /// A long batch of the peer was taken, and it has not been told.
    pub owes_thanks: bool,
    /// Long batches of the peer are read from its memory, which it keeps until it is told.
    pub is_read: bool,
    /// The slots that the peer holds have been recalled since it got the first of them.
    pub recalled: bool,
    /// It is to be told that.
    pub must_recall: bool,
    /// The endpoint at the other end is lost: nobody is to be told anything.
    pub is_lost: bool,
    missing: Option<Missing>,
}

/// What a peer has been told, for a header that is not sent after all.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    news: bool,
    withheld: u32,
    unacknowledged: u32,
    controls: u32,
    grants: Grants,
    asked: bool,
    must_tell: bool,
    owes_thanks: bool,
}

impl Incoming {
    /// A link with one small slot granted, as both ends agree at the start, or none where slots are
    /// shared, by its pool of them.
    pub fn new(maxrpc: u32, on_demand: bool, pool: usize) -> Self {
        let mut receiving = Receiving::default();
        if !on_demand {
            receiving.grant_small();
        }
        receiving.announce();
        Self {
            pool,
            in_record: false,
            asked: false,
            asked_ns: None,
            must_tell: false,
            owes_thanks: false,
            is_read: false,
            recalled: false,
            must_recall: false,
            is_lost: false,
            missing: None,
            window: Window::new(maxrpc as usize),
            receiving,
            controls: Controls::default(),
            held: 0,
            parts: 0,
            cursor: 0,
            unacknowledged: 0,
            news: false,
            withheld: 0,
            listed: false,
            notices: Vec::new(),
            earlier: 0,
        }
    }

    /// The endpoint at the other end has left, with nothing under way; returns the large slots that
    /// it held.
    pub fn detach(&mut self, maxrpc: u32, on_demand: bool) -> u32 {
        let held = self.receiving.large_outstanding();
        *self = Self {
            earlier: self.earlier + 1,
            ..Self::new(maxrpc, on_demand, self.pool)
        };
        held
    }

    /// Whether a long record has begun to move on, and the next batch continues it: nothing that
    /// came behind it is here, or may be on its way.
    pub fn must_go_on(&self) -> bool {
        self.in_record && self.window.is_empty() && self.receiving.large_outstanding() == 0
    }

    /// The peer has sent all batches before this number, and lives: the next one of them, where
    /// that has been missing, or did not grow, for so long that it comes no more.
    pub fn misses(&mut self, before: u64, now_ns: u64) -> Option<(u64, Missed)> {
        let next = self.window.next();
        let state = match self.window.peek() {
            None if next < before => Some(Missed::Batch),
            Some(Arrival::Fetching) => Some(Missed::Announced { came: 0 }),
            Some(Arrival::Record(record)) => {
                (record.awaited()).map(|came| Missed::Announced { came })
            }
            _ => None,
        };
        let spent = || (self.controls.unconfirmed()).map(|seen| Missed::Controls { seen });
        let Some(state) = state.or_else(spent).filter(|_| !self.is_lost) else {
            self.missing = None;
            return None;
        };
        let is_it = |missing: &Missing| missing.number == next && missing.state == state;
        let (before_ns, missed_ns) = match self.missing.take().filter(is_it) {
            Some(missing) => (missing.heard_ns, missing.missed_ns),
            None => (now_ns, 0),
        };
        let missed_ns = missed_ns + now_ns.saturating_sub(before_ns).min(MOST_BETWEEN_NS);
        self.missing = Some(Missing {
            number: next,
            state,
            heard_ns: now_ns,
            missed_ns,
        });
        (missed_ns >= LOST_NS).then_some((next, state))
    }

    /// Batches wait for slots of the peer's, and it has granted none: it is asked, and again by
    /// time, since an older message that comes behind the one that asked takes that back.
    pub fn ask(&mut self, now_ns: u64) {
        let since = *self.asked_ns.get_or_insert(now_ns);
        if !self.asked || now_ns.saturating_sub(since) >= ASK_AGAIN_NS {
            self.must_tell = true;
        }
    }

    /// What this peer has been told, for [`Incoming::take_back`].
    pub fn told(&self) -> Told {
        Told {
            news: self.news,
            withheld: self.withheld,
            unacknowledged: self.unacknowledged,
            controls: self.controls.told(),
            grants: self.receiving.told(),
            asked: self.asked,
            must_tell: self.must_tell,
            owes_thanks: self.owes_thanks,
        }
    }

    /// The header that [`Incoming::counters`] was for has not been sent.
    pub fn take_back(&mut self, told: Told) {
        (self.news, self.withheld) = (told.news, told.withheld);
        self.unacknowledged = told.unacknowledged;
        self.controls.take_back(told.controls);
        self.receiving.take_back(told.grants);
        (self.asked, self.must_tell) = (told.asked, told.must_tell);
        self.owes_thanks = told.owes_thanks;
    }

    /// The counters for a header to this peer, which is about to be sent.
    pub fn counters(&mut self, large_returned: u32, wanted: u16) -> Counters {
        self.news = false;
        self.withheld = 0;
        self.unacknowledged = 0;
        self.receiving.announce();
        (self.asked, self.asked_ns, self.must_tell) = (wanted > 0, None, false);
        self.owes_thanks = false;
        Counters {
            accepted: self.receiving.accepted(),
            small_granted: self.receiving.small_granted(),
            large_granted: self.receiving.large_granted(),
            large_returned,
            controls_seen: self.controls.announce(),
            wanted,
        }
    }

    /// Whether the peer waits for something that we have not told it.
    pub fn owes_news(&self) -> bool {
        self.news || self.must_tell || self.must_recall || !self.notices.is_empty()
    }

    /// Whether the peer cannot send although it may: it knows of no free slot, and nothing of its
    /// is here to be told of later.
    pub fn starves(&self) -> bool {
        self.window.is_empty() && self.receiving.is_spent()
    }

    /// Whether nothing has come that is not done, and nothing is to be told.
    pub fn is_idle(&self) -> bool {
        self.window.is_empty() && !self.owes_news() && !self.controls.must_send()
    }

    /// State of the front batch as text, if there is one.
    pub fn front_text(&self) -> Option<String> {
        self.window.peek().map(|front| match front {
            Arrival::Here { bytes, slot, .. } => {
                let way = if slot.is_some() { "eager" } else { "fetched" };
                format!("here ({way}), {} of {bytes} bytes moved on", self.cursor)
            }
            Arrival::Aside { runs, .. } => {
                let (moved, bytes) = (self.cursor, runs.len());
                format!("here (set aside for the next round), {moved} of {bytes} bytes moved on")
            }
            Arrival::Announced(_, bytes, _) => format!("announced, {bytes} bytes"),
            Arrival::Fetching => "being fetched".to_owned(),
            Arrival::Record(record) => record.text(),
        })
    }

    /// Whether the front batch is here.
    pub fn front_is_here(&mut self) -> bool {
        let front = self.window.front();
        front.is_some_and(|front| match front {
            Arrival::Record(record) if record.is_whole() => true,
            front => front.runs().is_some(),
        })
    }

    /// The front batch, where it is a record that is here as a whole.
    pub fn whole_record(&mut self) -> Option<&mut Pulled> {
        match self.window.front()? {
            Arrival::Record(record) if record.is_whole() => Some(record),
            _ => None,
        }
    }
}
