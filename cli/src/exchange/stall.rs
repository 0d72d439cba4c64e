//! Ends a process in which nothing moves any more, and says what it was waiting for.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trihop::log;
use trihop::transport::sync::thread;

use super::mailbox::Inbox;
use crate::output;

/// How long a job that has seen a fault may stand still: a lost message keeps its fence from ever
/// ending.
const AFTER_A_FAULT: Duration = Duration::from_secs(5);

/// What a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the others to begin.
    Beginning,
    /// Sending messages.
    Sending,
    /// In a fence between messages.
    Fencing,
    /// In the flush that ends the exchange.
    Ending,
    /// Telling the others what was measured.
    Summing,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Beginning => "waiting for all ranks to begin",
            Self::Sending => "sending",
            Self::Fencing => "in a fence",
            Self::Ending => "in the last flush",
            Self::Summing => "waiting for the others' figures",
        }
    }
}

/// Signs of life of one rank.
#[derive(Debug)]
pub struct Pulse {
    rank: u32,
    /// Messages sent, and what the rank is doing.
    beat: Mutex<(u64, Phase)>,
    inbox: Arc<Inbox>,
}

impl Pulse {
    /// The pulse of `rank`.
    pub fn new(rank: u32, inbox: Arc<Inbox>) -> Arc<Self> {
        let beat = Mutex::new((0, Phase::Beginning));
        Arc::new(Self { rank, beat, inbox })
    }

    /// So many messages were sent.
    #[inline]
    pub fn sent(&self, messages: u64) {
        self.beat().0 = messages;
    }

    /// The rank goes on to another phase.
    pub fn enter(&self, phase: Phase) {
        self.beat().1 = phase;
    }

    fn beat(&self) -> MutexGuard<'_, (u64, Phase)> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that shows that the rank moves: messages sent and received, phase.
    fn read(&self) -> (u64, u64, Phase) {
        let (sent, phase) = *self.beat();
        (sent, self.inbox.ledger().received(), phase)
    }

    /// What this rank does, behind what is wrong with it.
    fn story(&self, wrong: &str) -> String {
        let (sent, received, phase) = self.read();
        let ledger = self.inbox.ledger();
        let mut story = format!(
            "rank {} {wrong}: it is {}; {sent} messages sent, {received} received; {}",
            self.rank,
            phase.name(),
            ledger.outstanding()
        );
        for text in ledger.texts() {
            story += "\n  ";
            story += text;
        }
        let recent = log::recent();
        if !recent.is_empty() {
            story += "\nlast logs:\n";
            story += recent.trim_end();
        }
        story
    }
}

/// How long a watch waits; zero is for ever.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until the pulse moves.
    pub still: Duration,
    /// Until it is over.
    pub whole: Duration,
}

impl Patience {
    /// Why there is none left.
    fn complaint(self, still: Duration, whole: Duration, faults: u64) -> Option<String> {
        let limit = match faults {
            0 => self.still,
            _ => self.still.min(AFTER_A_FAULT),
        };
        if !limit.is_zero() && still >= limit {
            let seconds = still.as_secs();
            return Some(format!(
                "has neither sent nor received anything for {seconds} s (--stall-s)"
            ));
        }
        let over = !self.whole.is_zero() && whole >= self.whole;
        over.then(|| {
            format!(
                "has not finished within {} s (--timeout-s)",
                self.whole.as_secs()
            )
        })
    }
}

/// Watches a pulse until it is dropped.
#[derive(Debug)]
pub struct Watch {
    /// Dropped to tell the thread that it is over.
    over: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watch {
    /// Ends this process with status 1 when `patience` is over.
    ///
    /// # Errors
    /// The operating system's, when it gives no thread.
    pub fn start(pulse: Arc<Pulse>, patience: Patience) -> std::io::Result<Self> {
        let (over, told) = channel();
        let limits = [patience.still, patience.whole];
        let thread = match limits.into_iter().filter(|limit| !limit.is_zero()).min() {
            None => None,
            Some(shortest) => {
                let look = shortest.min(Duration::from_secs(1)) / 4;
                let builder = thread::Builder::new().name("stall".into());
                Some(builder.spawn(move || watch(&pulse, patience, look, &told))?)
            }
        };
        Ok(Self {
            over: Some(over),
            thread,
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            // A watch that panicked has said so; there is nothing left to watch.
            let _ = thread.join();
        }
    }
}

fn watch(pulse: &Pulse, patience: Patience, look: Duration, over: &Receiver<()>) {
    let begun = Instant::now();
    let (mut beat, mut since) = (pulse.read(), begun);
    while over.recv_timeout(look) == Err(RecvTimeoutError::Timeout) {
        let now = pulse.read();
        if now != beat {
            (beat, since) = (now, Instant::now());
        }
        let faults = pulse.inbox.ledger().faults();
        if let Some(wrong) = patience.complaint(since.elapsed(), begun.elapsed(), faults) {
            output::say("trihop exchange", pulse.story(&wrong));
            // SAFETY: `_exit` only ends the process; clean-up of libraries could wait for the
            // thread that is stuck.
            unsafe { libc::_exit(1) }
        }
    }
}
