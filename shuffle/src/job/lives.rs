//! The lives of a job's peers: who is gone, how that is noticed, and how the others hear of it.
//!
//! Inside a node the kernel tells when a process ends. Over the fabric a peer that owes an answer may be silent for
//! `peer_timeout_ms`. Between ranks whose threads make progress something is always owed: each asks the other ends of its
//! links now and then, by a message of the job's own stream that only has to be acknowledged. A rank without such a thread
//! may compute for hours, so it is not asked.
//!
//! Whoever finds that a rank is gone tells all that it reaches by one hop, and so does each that is told: nobody waits for
//! the dead because it has no link to them.

use trihop_transport::Error as TransportError;
use trihop_transport::topology::Rank;

use super::JobState;
use crate::endpoint::Word;
use crate::error::{Error, Result};
use crate::route::{LinkClass, Route};

/// How often a peer is asked within the time for which it may be silent.
const QUESTIONS_PER_TIMEOUT: u64 = 4;
/// Rounds of progress in which a rank tells others before its own call fails.
const TELLING_ROUNDS: usize = 16;

impl JobState<'_> {
    /// A local peer that ended, or a remote one that owes us an answer for too long, ends the job with its rank.
    pub(super) fn look_after_peers(&self, now_ns: u64) -> Result<()> {
        self.checked_ns.set(now_ns);
        self.find_dead(now_ns)
            .inspect_err(|error| self.pass_on_death(error, now_ns))
    }

    fn find_dead(&self, now_ns: u64) -> Result<()> {
        if self.closing.get() {
            return Ok(());
        }
        if let Some((rank, _)) = self
            .node
            .borrow()
            .watches
            .iter()
            .find(|(_, watch)| watch.has_ended())
        {
            let why = "its process ended before the job did".to_owned();
            return Err(TransportError::PeerDead { rank: *rank, why }.into());
        }
        let limit_ns = self.options.peer_timeout_ms.saturating_mul(1_000_000);
        if now_ns.saturating_sub(self.asked_ns.get()) >= limit_ns / QUESTIONS_PER_TIMEOUT {
            self.asked_ns.set(now_ns);
            self.ask_for_life();
        }
        for core in self.endpoint.streams.borrow().iter() {
            match core.silent_peer(now_ns) {
                Some((rank, silent_ns)) if silent_ns >= limit_ns => {
                    let why = format!(
                        "it owes an answer and has been silent for {} ms (peer_timeout_ms)",
                        silent_ns / 1_000_000
                    );
                    return Err(TransportError::PeerDead { rank, why }.into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends each peer that answers at any time something to acknowledge. Where there is no room, something is owed already.
    fn ask_for_life(&self) {
        for &rank in &self.lively {
            self.endpoint.say(rank, Word::Alive);
        }
    }

    /// If a rank is gone, tells everybody whom this one reaches by one hop, as well as that is possible.
    pub(super) fn pass_on_death(&self, error: &Error, now_ns: u64) {
        let Error::Transport(TransportError::PeerDead { rank, .. }) = error else {
            return;
        };
        if self.closing.get() || self.told.replace(true) {
            return;
        }
        let (endpoint, here) = (&self.endpoint, &self.endpoint.topology);
        let links =
            (0..endpoint.route.links()).filter(|&link| endpoint.route.class(link) == LinkClass::Remote);
        let neighbours = here
            .ranks_of(here.node())
            .chain(links.map(|link| endpoint.route.peer(link)));
        for neighbour in neighbours.filter(|n| n.0 != *rank && *n != here.rank()) {
            if !endpoint.say(neighbour, Word::Gone(Rank(*rank))) {
                tracing::debug!(neighbour = neighbour.0, gone = rank, "no room to say who is gone");
            }
        }
        for _ in 0..TELLING_ROUNDS {
            // What fails now fails because of the same rank.
            let _ = endpoint.progress(now_ns);
        }
    }
}
