//! Ends a process in which nothing moves any more, and says what it was waiting for.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop::transport::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, thread};

use super::mailbox::Inbox;

/// How long a job that has seen a fault may stand still: a lost message keeps its fence from ever ending.
const AFTER_A_FAULT: Duration = Duration::from_secs(5);

/// What a rank is doing.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Phase {
    /// Waiting for the others to begin.
    Beginning = 0,
    /// Sending messages.
    Sending = 1,
    /// In a fence between messages.
    Fencing = 2,
    /// In the flush that ends the exchange.
    Ending = 3,
    /// Telling the others what was measured.
    Summing = 4,
}

const PHASES: [&str; 5] = [
    "waiting for all ranks to begin",
    "sending",
    "in a fence",
    "in the last flush",
    "waiting for the others' figures",
];

/// Signs of life of one rank.
#[derive(Debug)]
pub struct Pulse {
    rank: u32,
    sent: AtomicU64,
    phase: AtomicU32,
    over: AtomicBool,
    inbox: Arc<Inbox>,
}

impl Pulse {
    /// The pulse of `rank`.
    pub fn new(rank: u32, inbox: Arc<Inbox>) -> Arc<Self> {
        let (sent, phase) = (AtomicU64::new(0), AtomicU32::new(Phase::Beginning as u32));
        Arc::new(Self {
            rank,
            sent,
            phase,
            over: AtomicBool::new(false),
            inbox,
        })
    }

    /// So many messages were sent.
    #[inline]
    pub fn sent(&self, messages: u64) {
        // Relaxed: read by the watch in `beat`, a figure for people.
        self.sent.store(messages, Ordering::Relaxed);
    }

    /// The rank goes on to another phase.
    pub fn enter(&self, phase: Phase) {
        // Relaxed: read by the watch in `beat`, a figure for people.
        self.phase.store(phase as u32, Ordering::Relaxed);
    }

    /// Everything that shows that the rank moves.
    fn beat(&self) -> (u64, u64, u32) {
        // Relaxed: pairs with the stores in `sent` and `enter`; nothing else is read because of them.
        let (sent, phase) = (
            self.sent.load(Ordering::Relaxed),
            self.phase.load(Ordering::Relaxed),
        );
        (sent, self.inbox.ledger().received(), phase)
    }

    fn story(&self, still: Duration) -> String {
        let (sent, received, phase) = self.beat();
        let ledger = self.inbox.ledger();
        let phase = PHASES.get(phase as usize).copied().unwrap_or_default();
        let mut story = format!(
            "rank {} has neither sent nor received anything for {} s (--stall-s): it is {phase}; {sent} messages sent, \
             {received} received; {}",
            self.rank,
            still.as_secs(),
            ledger.outstanding()
        );
        for text in ledger.texts() {
            story += "\n  ";
            story += text;
        }
        story
    }
}

/// Watches a pulse until it is dropped.
#[derive(Debug)]
pub struct Watch {
    pulse: Arc<Pulse>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watch {
    /// Ends this process with status 1 when the pulse stands still for `limit`; never when that is zero.
    ///
    /// # Errors
    /// The operating system's, when it gives no thread.
    pub fn start(pulse: Arc<Pulse>, limit: Duration) -> std::io::Result<Self> {
        let watched = Arc::clone(&pulse);
        let thread = match limit.is_zero() {
            true => None,
            false => Some(
                thread::Builder::new()
                    .name("stall".into())
                    .spawn(move || watch(&watched, limit))?,
            ),
        };
        Ok(Self { pulse, thread })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `watch`.
        self.pulse.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A watch that panicked has said so; there is nothing left to watch.
            let _ = thread.join();
        }
    }
}

fn watch(pulse: &Pulse, limit: Duration) {
    let (mut beat, mut since) = (pulse.beat(), Instant::now());
    // Acquire: pairs with the release in `drop`.
    while !pulse.over.load(Ordering::Acquire) {
        thread::park_timeout(limit.min(Duration::from_secs(1)) / 4);
        let now = pulse.beat();
        if now != beat {
            (beat, since) = (now, Instant::now());
            continue;
        }
        let faults = pulse.inbox.ledger().faults();
        let patience = if faults > 0 {
            limit.min(AFTER_A_FAULT)
        } else {
            limit
        };
        // Acquire: as above.
        if since.elapsed() >= patience && !pulse.over.load(Ordering::Acquire) {
            let _ = writeln!(
                std::io::stderr(),
                "trihop exchange: {}",
                pulse.story(since.elapsed())
            );
            // SAFETY: `_exit` only ends the process; clean-up of libraries could wait for the thread that is stuck.
            unsafe { libc::_exit(1) }
        }
    }
}
