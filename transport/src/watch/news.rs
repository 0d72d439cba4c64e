//! What watches tell each other: a rank is gone, or has failed.

use crate::error::Error;
use crate::topology::{EndpointId, Rank, Topology};

/// Longest text of a failure that is told, in bytes.
pub const MAX_TEXT_BYTES: usize = 480;

/// Why there is news of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Its process ended.
    Ended,
    /// Its process closed its watch's connection without a goodbye, as the end of a process does.
    Closed,
    /// Its node does not answer any more.
    Silent,
    /// The process that was its agent, and that of other ranks behind it, ended.
    AgentEnded,
    /// It lives, but its part of the job has failed: its error's text.
    Failed(String),
    /// Its process lives, but its program has dropped the job without shutting it down.
    Left,
}

impl Cause {
    /// Whether a process has ended, or its part of the job, as programs do at their end too.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Ended | Self::Closed | Self::Left)
    }

    /// Whether a whole node is out of reach, and not its first rank alone: its watch, or its agent,
    /// is.
    pub fn is_of_node(&self) -> bool {
        matches!(self, Self::Closed | Self::Silent | Self::AgentEnded)
    }
}

/// News of a rank: the job cannot go on with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// The rank that is gone, or has failed.
    pub rank: Rank,
    /// What became of it.
    pub cause: Cause,
}

impl News {
    /// The news that `rank` has failed with an error of this text.
    pub fn failed(rank: Rank, text: &str) -> Self {
        let cause = Cause::Failed(printable(text.as_bytes()));
        Self { rank, cause }
    }

    /// The news that the process has ended in which this endpoint is the first one.
    pub fn ended(end: EndpointId, topology: &Topology) -> Self {
        let rank = topology.rank_of(end);
        let is_agent = EndpointId::from(rank) != end && topology.has_agents();
        let cause = match is_agent {
            true => Cause::AgentEnded,
            false => Cause::Ended,
        };
        Self { rank, cause }
    }

    /// Whether a job may go on without what these tell of: a rank that has an agent, which relays
    /// for nobody, or a node with one agent. What a relay has failed with is none.
    pub fn is_loss(&self, topology: &Topology) -> bool {
        let agents = || {
            topology
                .processes()
                .local_size_of(topology.node_of(self.rank))
        };
        topology.has_agents()
            && match self.cause {
                Cause::Ended | Cause::Left => true,
                Cause::Closed | Cause::Silent | Cause::AgentEnded => agents() == 1,
                Cause::Failed(_) => false,
            }
    }

    /// As the error of a rank that hears of it.
    pub fn into_error(self, topology: &Topology) -> Error {
        let rank = self.rank.0;
        let why = match self.cause {
            Cause::Ended => "its process ended before the job did".to_owned(),
            Cause::Closed => {
                "its process ended before the job did, said the connection to its node's watch"
                    .to_owned()
            }
            Cause::Silent => format!(
                "its node, number {}, does not answer any more: the link is cut, or the machine is down \
                 (`watch_timeout_ms` says for how long that is waited for)",
                topology.node_of(self.rank)
            ),
            Cause::AgentEnded => return agent_dead(rank),
            Cause::Left => {
                let why = "its program has left the job without shutting it down".to_owned();
                return Error::PeerFailed { rank, why };
            }
            Cause::Failed(why) => return Error::PeerFailed { rank, why },
        };
        Error::PeerDead { rank, how: why }
    }

    /// The cause as a number that is never 0, and its text.
    pub(super) fn parts(&self) -> (u8, &str) {
        match &self.cause {
            Cause::Ended => (1, ""),
            Cause::Closed => (2, ""),
            Cause::Silent => (3, ""),
            Cause::Failed(text) => (4, text),
            Cause::AgentEnded => (5, ""),
            Cause::Left => (6, ""),
        }
    }

    /// Back from [`News::parts`], which come from outside; none where they make no sense.
    pub(super) fn of_parts(rank: u32, cause: u8, text: &[u8]) -> Option<Self> {
        let cause = match cause {
            1 => Cause::Ended,
            2 => Cause::Closed,
            3 => Cause::Silent,
            4 => Cause::Failed(printable(text)),
            5 => Cause::AgentEnded,
            6 => Cause::Left,
            _ => return None,
        };
        Some(Self {
            rank: Rank(rank),
            cause,
        })
    }
}

/// What ranks are told whose agent has ended before their job has.
pub fn agent_dead(rank: u32) -> Error {
    let how = "its process ended before the job did; start the job again";
    Error::AgentDead {
        rank,
        how: how.to_owned(),
    }
}

/// Text that may go to a terminal and fits a message: control characters are escaped, what is too
/// long is cut.
fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for letter in String::from_utf8_lossy(bytes).chars() {
        let mut letters = String::new();
        match letter.is_control() {
            true => letters.extend(letter.escape_default()),
            false => letters.push(letter),
        }
        if text.len() + letters.len() > MAX_TEXT_BYTES {
            break;
        }
        text.push_str(&letters);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_failures_are_printable_and_bounded() {
        let news = News::failed(Rank(3), "a\u{1b}[31mred\nline");
        let Cause::Failed(text) = &news.cause else {
            panic!("{news:?}")
        };
        assert_eq!(text, "a\\u{1b}[31mred\\nline");
        let (cause, text) = news.parts();
        assert_eq!(
            News::of_parts(3, cause, text.as_bytes()),
            Some(news.clone())
        );
        let Cause::Failed(long) = News::failed(Rank(0), &"\u{e9}\n".repeat(900)).cause else {
            panic!()
        };
        assert!(long.len() <= MAX_TEXT_BYTES && long.len() > MAX_TEXT_BYTES - 4);
        for bad in [0, 7, 255] {
            assert_eq!(News::of_parts(0, bad, b""), None);
        }
    }
}
