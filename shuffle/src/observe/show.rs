//! The side that shows: an endpoint writes a page of its own.

use rustix::time::ClockId;
use trihop_transport::memory::page::{Area, Page, Snapshot};
use trihop_transport::secret::Secret;
use trihop_transport::sync::MappedU64;
use trihop_transport::topology::Topology;

use super::{MOST_WAITS, NAME_BYTES};
use crate::dump::Bound;
use crate::endpoint::Engine;
use crate::engine::StreamState;
use crate::engine::outbound::Outbound;
use crate::engine::sink::Sink;
use crate::queue::edge::Edge;
use crate::route::{STAGE_NAME_BYTES, Stage};
use crate::stats::{QueueStats, Stats};

/// What the number of a job, which everybody of the same user may see, is derived from its secret
/// by.
const JOB_LABEL: &str = "observed";

/// Time between two snapshots while rounds follow each other.
const ROUNDS_NS: u64 = 10_000_000;
/// Time between two snapshots before sleeps: short ones follow each other too.
const SLEEPS_NS: u64 = 1_000_000;
/// Time between two texts.
const TEXT_NS: u64 = 1_000_000_000;
/// A wait that lasts so long wants a text that was written while it lasts.
const LONG_NS: u64 = 100_000_000;
/// What one snapshot, or one text, takes is a smaller part of a processor's time than one in so
/// many. Numbers can be shown twice in that time, as the end of a wait shows them at once: so all
/// together takes less than 3/1024.
const PART: u64 = 1024;

type Words<'a> = Snapshot<'a, MappedU64>;

/// A call that waits, in the table of those that do.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    what: &'static str,
    since_ns: u64,
}

/// Place of a call in that table, if it has one.
#[derive(Debug, Default)]
pub(crate) struct WaitNote(Option<usize>);

/// What an endpoint shows, and when it shows it anew.
pub(crate) struct Shown {
    page: Option<Page>,
    /// When the next snapshot is due in a round of progress, and before a sleep.
    due_ns: u64,
    sleep_due_ns: u64,
    text_due_ns: u64,
    /// No text is written before, whoever waits.
    text_rest_ns: u64,
    waits: [Option<Waiting>; MOST_WAITS],
    /// The page says that calls wait.
    shows_waits: bool,
    text: Vec<u8>,
}

impl Shown {
    /// Of an endpoint that shows nothing.
    pub fn nothing() -> Self {
        Self {
            page: None,
            due_ns: u64::MAX,
            sleep_due_ns: u64::MAX,
            text_due_ns: u64::MAX,
            text_rest_ns: u64::MAX,
            waits: [None; MOST_WAITS],
            shows_waits: false,
            text: Vec::new(),
        }
    }

    /// Of an endpoint whose clock begins now.
    pub fn on(mut page: Page, topology: &Topology, secret: &Secret) -> Self {
        page.show(Area::Identity, |words| {
            put_identity(words, topology, secret)
        });
        Self {
            page: Some(page),
            due_ns: 0,
            sleep_due_ns: 0,
            text_due_ns: 0,
            text_rest_ns: 0,
            ..Self::nothing()
        }
    }

    /// Whether it is time to show how things are, in a round of progress.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Whether it is, before a sleep.
    pub fn is_due_asleep(&self, now_ns: u64) -> bool {
        now_ns >= self.sleep_due_ns
    }

    /// A call waits since then, unless it has noted that before.
    pub fn begin_wait(&mut self, note: &mut WaitNote, what: &'static str, since_ns: u64) {
        if self.page.is_none() || note.0.is_some() {
            return;
        }
        note.0 = self.waits.iter().position(Option::is_none);
        if let Some(place) = note.0 {
            self.waits[place] = Some(Waiting { what, since_ns });
        }
    }

    /// Its wait is over; whether the page must be shown anew because of that: no call waits any
    /// more, and the page says that one does. Calls that go on waiting show it when it is due.
    pub fn end_wait(&mut self, note: &mut WaitNote) -> bool {
        let wait = note.0.take().and_then(|place| self.waits[place].take());
        wait.is_some() && self.shows_waits && self.waits.iter().all(Option::is_none)
    }

    /// The calls that wait, and how long they have.
    pub fn waits(&self, now_ns: u64) -> impl Iterator<Item = (&'static str, u64)> {
        let waits = self.waits.iter().flatten();
        waits.map(move |wait| (wait.what, now_ns.saturating_sub(wait.since_ns)))
    }

    /// Shows the counters of this moment.
    pub fn show(&mut self, now_ns: u64, rounds: u64, engine: &Engine) {
        let Some(page) = &mut self.page else { return };
        let waits = self.waits.iter().flatten();
        self.shows_waits = waits.clone().next().is_some();
        page.show(Area::Numbers, |words| {
            words.put(now_ns);
            words.put(rounds);
            words.put(waits.clone().count() as u64);
            for wait in waits {
                words.put(wait.since_ns);
                put_text(words, wait.what, NAME_BYTES);
            }
            words.put(engine.open_streams().count() as u64);
            let written = words.len();
            words.put(0);
            for (count, (state, out)) in (1..).zip(engine.open_streams()) {
                if words.room() < stream_words(out) {
                    break;
                }
                put_stream(words, state, out);
                words.set(written, count);
            }
        });
    }

    /// The text to be shown, where it is time for another one: to be written anew, and
    /// [shown](Self::show_text).
    pub fn take_text(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        let is_old = |wait: &Waiting| {
            let lasts = now_ns.saturating_sub(wait.since_ns) >= LONG_NS;
            lasts && wait.since_ns + TEXT_NS > self.text_due_ns
        };
        let is_wanted = || self.waits.iter().flatten().any(is_old);
        if now_ns < self.text_rest_ns || now_ns < self.text_due_ns && !is_wanted() {
            return None;
        }
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        text.extend_from_slice(&now_ns.to_le_bytes());
        Some(text)
    }

    /// Shows a text; as much of it as the page has room for.
    pub fn show_text(&mut self, now_ns: u64, text: Vec<u8>) {
        if let Some(page) = &mut self.page {
            page.show(Area::Text, |words| words.put_bytes(&text));
        }
        self.text = text;
        self.text_due_ns = now_ns + TEXT_NS;
    }

    /// A text was shown by now. It took so much of a processor: what interrupts the writing, as on
    /// a machine of more ranks than cores, makes nothing rarer.
    pub fn rest_of_text(&mut self, spent_ns: u64, now_ns: u64) {
        self.text_rest_ns = now_ns + least_rest_ns(spent_ns);
    }

    /// Numbers were shown by now, and took so much of a processor.
    pub fn rest(&mut self, spent_ns: u64, now_ns: u64) {
        let least_ns = least_rest_ns(spent_ns);
        self.due_ns = now_ns + least_ns.max(ROUNDS_NS);
        self.sleep_due_ns = now_ns + least_ns.max(SLEEPS_NS);
    }
}

/// How long what took so long is not done again.
fn least_rest_ns(spent_ns: u64) -> u64 {
    spent_ns.saturating_mul(PART)
}

/// Nanoseconds of a clock of the machine, by the C library: memory checkers do not bear what rustix
/// does in its place.
pub(crate) fn clock_ns(clock: ClockId) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is there for the time of the call.
    unsafe { libc::clock_gettime(clock as libc::clockid_t, &raw mut time) };
    let (seconds, rest) = (time.tv_sec, time.tv_nsec);
    u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::try_from(rest).unwrap_or(0)
}

/// How many counters there are: those of another version are not read as if they were these.
pub(super) fn shape() -> u64 {
    let pools = (Bound::POOLS.len() as u64) << 16;
    (Stats::TABLE.len() as u64) << 32 | pools | QueueStats::TABLE.len() as u64
}

fn put_identity(words: &mut Words<'_>, topology: &Topology, secret: &Secret) {
    words.put(shape());
    words.put(secret.derive(JOB_LABEL));
    words.put(topology.endpoint().0.into());
    words.put(topology.is_relay().into());
    words.put(topology.size().into());
    words.put(topology.node().0.into());
    words.put(topology.nodes().into());
    words.put(clock_ns(ClockId::Realtime));
    words.put(clock_ns(ClockId::Monotonic));
    let host = rustix::system::uname();
    put_text(words, &host.nodename().to_string_lossy(), NAME_BYTES);
}

/// As many bytes as there is room for, and zeros behind them.
fn put_text(words: &mut Words<'_>, text: &str, bytes: usize) {
    let text = text.as_bytes();
    let text = &text[..text.len().min(bytes)];
    words.put_bytes(text);
    for _ in text.len().div_ceil(8)..bytes / 8 {
        words.put(0);
    }
}

/// Words that [`put_stream`] puts at most.
fn stream_words(out: &Outbound) -> usize {
    let stage = STAGE_NAME_BYTES / 8 + 5 + QueueStats::TABLE.len();
    let stages = out.queues.route.stages().len();
    let pools = 2 * Bound::POOLS.len();
    4 + NAME_BYTES / 8 + Stats::TABLE.len() + pools + stages * stage
}

fn put_stream(words: &mut Words<'_>, state: &StreamState, out: &Outbound) {
    words.put(state.id.into());
    put_text(words, &state.name, NAME_BYTES);
    let waiting = match &state.sink {
        Sink::Queue(queue) => queue.records(),
        Sink::Thread(handover) => handover.waiting().0,
        Sink::Handler | Sink::Collectives(_) | Sink::Closed => 0,
    };
    words.put(waiting as u64);
    let stats = state.snapshot(out);
    stats.rows().for_each(|(_, count)| words.put(count));
    for (_, used, most) in Bound::of(state, out).pools(state, out) {
        words.put(used as u64);
        words.put(most as u64);
    }
    words.put(out.queues.route.stages().len() as u64);
    for stage in out.queues.route.numbers() {
        put_stage(words, out, stage);
    }
}

fn put_stage(words: &mut Words<'_>, out: &Outbound, stage: Stage) {
    let queues = &out.queues;
    let (mut all, mut open) = (QueueStats::default(), 0);
    let (mut bytes, mut ready, mut in_flight, mut credits) = (0, 0, 0, 0);
    for queue in queues.of_stage(stage) {
        open += 1;
        all.add(&queue.counters().stats(0, queues.now_ns));
        match queue {
            Edge::Lane(lane) => bytes += lane.in_use_bytes(),
            Edge::Link(link) => {
                bytes += link.open_bytes();
                ready += link.ready_batches();
                in_flight += link.credit.in_flight();
                credits += link.credit.free_slots();
            }
        }
    }
    put_text(words, queues.route.stage_name(stage), STAGE_NAME_BYTES);
    words.put(open);
    all.rows().for_each(|(_, count)| words.put(count));
    words.put(bytes as u64);
    words.put(ready as u64);
    words.put(in_flight);
    words.put(credits);
}
