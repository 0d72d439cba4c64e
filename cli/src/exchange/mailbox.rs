//! The shuffle as the exchange uses it: calls that wait until they are done, whether messages come
//! to a handler or are taken.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trihop::route::RouteName;
use trihop::{BroadcastTo, Message, Queues, Rank, Result};

use super::ledger::{Ledger, TALLY};
use super::payload::EVERYONE;
use super::seat::Post;

/// Sends between two looks at what waits, without a handler.
const SENDS_PER_TAKE: u32 = 64;

/// Where every message goes, after the delay that was asked for.
#[derive(Debug)]
pub struct Inbox {
    ledger: Mutex<Ledger>,
    delay: Duration,
    /// This rank, where a line for each message is wanted.
    print: Option<u32>,
}

impl Inbox {
    /// An inbox over a ledger.
    pub fn new(ledger: Ledger, delay: Duration, print: Option<u32>) -> Self {
        Self {
            ledger: Mutex::new(ledger),
            delay,
            print,
        }
    }

    /// Checks a message in.
    #[inline]
    pub fn take(&self, message: Message<'_>) {
        // What senders tell of their counts is no message of the exchange.
        if message.kind != TALLY {
            if self.print.is_some() {
                self.print(
                    "received",
                    message.kind,
                    "from",
                    message.source.0,
                    message.bytes.len(),
                );
            }
            if !self.delay.is_zero() {
                std::thread::sleep(self.delay);
            }
        }
        self.ledger().take(message);
    }

    /// Writes a line for a message, where that is wanted.
    #[cold]
    fn print(&self, what: &str, number: u32, way: &str, peer: u32, bytes: usize) {
        let peer = match peer {
            EVERYONE => "all ranks".to_owned(),
            rank => format!("rank {rank}"),
        };
        if let Some(rank) = self.print {
            // Without standard error there is nobody to read it.
            let _ = writeln!(
                std::io::stderr(),
                "rank {rank} {what} message {number} of {bytes} bytes {way} {peer}"
            );
        }
    }

    /// The ledger. Only the watch for stalls asks for it from another thread, and rarely.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shuffle with or without a handler.
pub struct Mailbox<'a> {
    shuffle: &'a Post,
    inbox: &'a Inbox,
    /// Messages are taken, not handled.
    polls: bool,
    /// Who gets broadcasts.
    audience: BroadcastTo,
    untaken: u32,
}

impl<'a> Mailbox<'a> {
    /// A mailbox over `shuffle`, which has a handler unless the mailbox `polls`.
    pub fn new(shuffle: &'a Post, inbox: &'a Inbox, polls: bool, audience: BroadcastTo) -> Self {
        Self {
            shuffle,
            inbox,
            polls,
            audience,
            untaken: 0,
        }
    }

    /// Sends a message to a rank, or to [`EVERYONE`] who gets broadcasts.
    ///
    /// # Errors
    /// The engine's.
    pub fn send(&mut self, target: u32, kind: u32, bytes: &[u8]) -> Result<()> {
        if self.polls {
            self.untaken += 1;
            if self.untaken >= SENDS_PER_TAKE {
                self.untaken = 0;
                self.take()?;
            }
        }
        if self.inbox.print.is_some() && kind != TALLY {
            self.inbox.print("sent", kind, "to", target, bytes.len());
        }
        self.finish(|shuffle| match target {
            EVERYONE => shuffle.broadcast(kind, bytes, self.audience),
            rank => shuffle.send(Rank(rank), kind, bytes),
        })
    }

    /// Fences; afterwards everything that any rank had sent is checked in.
    ///
    /// # Errors
    /// The engine's.
    pub fn fence(&self) -> Result<()> {
        self.finish(Post::fence)?;
        self.take()
    }

    /// Ends a round; afterwards everything that any rank had sent is checked in.
    ///
    /// # Errors
    /// The engine's.
    pub fn round(&self) -> Result<()> {
        self.finish(Post::round)?;
        self.take()
    }

    /// A flush of each stage of the route and of the deliveries, with barriers in between;
    /// afterwards everything that any rank had sent is checked in.
    ///
    /// # Errors
    /// The engine's.
    pub fn flush_all(&self, route: RouteName) -> Result<()> {
        let stages = route.stages().iter().map(|stage| Queues::Stage(stage.name));
        for queues in stages.chain([Queues::Delivery]) {
            self.finish(|shuffle| shuffle.flush(queues))?;
            self.finish(Post::barrier)?;
        }
        self.take()
    }

    /// Repeats a call that only taking messages can let go on.
    fn finish(&self, call: impl Fn(&Post) -> Result<()>) -> Result<()> {
        loop {
            match call(self.shuffle) {
                Err(trihop::Error::WouldBlock) if self.polls => self.take()?,
                other => return other,
            }
        }
    }

    fn take(&self) -> Result<()> {
        if self.polls {
            self.shuffle.take(|message| self.inbox.take(message))?;
        }
        Ok(())
    }
}
