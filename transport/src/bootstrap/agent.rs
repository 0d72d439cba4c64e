//! A rank whose node has an agent: that knows who is where, and speaks with fabric and launcher.
//!
//! An agent takes an abstract name, and is ready from then on; there is nothing to clean up. A rank
//! introduces itself there, and is told once all ranks of the node have: who it is, the job's
//! secret, and the sockets of the others. Where a node has several agents, its first one has the
//! name, and tells the others as it tells the ranks. Both compare their versions first, and the
//! kernel says that both are one user's ([`DescriptorListener`]).

mod attached;
mod ranks;
mod reception;
mod starter;

use std::time::{Duration, Instant};

use super::versions::Versions;
use crate::error::{Error, Result};
use crate::memory::descriptors::{Accepted, DescriptorListener, SEND_DEADLINE};
use crate::secret::Secret;
use crate::topology::{EndpointId, Rank, Topology};

pub use attached::{Attached, Attachment};
pub use ranks::ranks_of_nodes;
pub use reception::{Party, Reception};

/// Environment variable: set for an agent that a rank has started, and that ends where none comes.
pub const ENV_STARTED: &str = "TRIHOP_AGENT_STARTED";

/// Environment variable: the name that the node's agent has taken.
pub const ENV_AGENT: &str = "TRIHOP_AGENT";
/// Environment variable: this rank's number among those of its agent, from 0. Without it the agent
/// gives a number.
pub const ENV_PLACE: &str = "TRIHOP_AGENT_PLACE";
/// Environment variable: the job that this rank belongs to, where several come to its agent at a
/// time; a name of at most 64 bytes.
pub const ENV_JOB: &str = "TRIHOP_AGENT_JOB";

/// Environment variable: how many of the agents' nodes this rank's job has ranks on. Without it, or 0,
/// all of them.
pub const ENV_NODES: &str = "TRIHOP_AGENT_NODES";

/// Environment variable: a command, its words between blanks, by which a rank that finds no agent
/// starts one.
pub const ENV_START: &str = "TRIHOP_AGENT_START";

/// Longest name of a job, in bytes.
pub const JOB_BYTES_MAX: usize = 64;

/// Most ranks of a node with agents: what is said of them is one message.
pub const MOST_RANKS: u32 = 1024;

/// First bytes of what any version says.
const MAGIC: [u8; 4] = *b"3hag";
/// Place of a rank that takes any.
const ANY: u32 = u32::MAX;
/// How often an agent that waits looks whether its ranks still run.
const LOOK: Duration = Duration::from_millis(100);

const NAME: &str = "agent";

/// First byte behind the versions of what an agent says to a rank: why it refuses it, who is there,
/// or why it ends itself.
const REFUSED: u8 = 0;
const WELCOME: u8 = 1;
const ENDS: u8 = 2;

/// The name of a user's agent where nobody gives another one.
pub fn default_name() -> String {
    format!("trihop-agent-{}", rustix::process::geteuid().as_raw())
}

/// Our versions, as they stand before all that ranks and agents say.
fn prefix() -> Vec<u8> {
    Versions::ours().encode(MAGIC)
}

/// What stands behind the versions: see [`Versions::behind`].
fn behind_versions(bytes: &[u8]) -> Result<&[u8], String> {
    Versions::behind(MAGIC, bytes)
}

fn failed(why: impl Into<String>) -> Error {
    Error::Bootstrap {
        launcher: NAME,
        why: why.into(),
    }
}

/// What the first agent of a node tells its ranks, and the other agents, once all have come.
#[derive(Debug, Clone)]
pub struct Welcome {
    /// The agents of the job, as ranks of a job; seen from this one.
    pub processes: Topology,
    /// How many ranks each node has, by its number.
    pub ranks_of_nodes: Vec<u32>,
    /// The job's.
    pub secret: Secret,
    /// Names of the node's agents' sockets for descriptors, in their order.
    pub agents: Vec<String>,
    /// Nonces of the ranks' sockets, by place.
    pub ranks: Vec<u64>,
    /// Provider of the agent's fabric; empty where there is none.
    pub provider: String,
}

impl Welcome {
    /// The sockets of the node's other processes, each with the endpoint that lives there.
    pub fn sockets(&self, topology: &Topology) -> Vec<(EndpointId, String)> {
        let ranks = self.ranks.iter().map(|&nonce| socket_name(nonce));
        let names = ranks.chain(self.agents.iter().cloned());
        let all = topology.ends_here().zip(names);
        all.filter(|(end, _)| *end != topology.endpoint()).collect()
    }

    /// Bytes of the numbers before the secret.
    const BEFORE_SECRET: usize = 12;

    fn encode(&self, place: u32) -> Vec<u8> {
        let mut bytes = prefix();
        bytes.push(WELCOME);
        bytes.extend_from_slice(&place.to_le_bytes());
        bytes.extend_from_slice(&self.processes.rank().0.to_le_bytes());
        bytes.extend_from_slice(&self.processes.size().to_le_bytes());
        bytes.extend_from_slice(self.secret.expose());
        bytes.extend_from_slice(&(self.ranks.len() as u32).to_le_bytes());
        for nonce in &self.ranks {
            bytes.extend_from_slice(&nonce.to_le_bytes());
        }
        let mapping = self.processes.process_mapping();
        let nodes = ranks::encode(&self.ranks_of_nodes);
        let agents = self.agents.iter();
        for text in [&self.provider, &mapping, &nodes].into_iter().chain(agents) {
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes
    }

    /// With the place that it is for.
    fn decode(bytes: &[u8]) -> Option<(Self, u32)> {
        let mut rest = bytes;
        let mut number = || {
            let (number, behind) = rest.split_first_chunk::<4>()?;
            rest = behind;
            Some(u32::from_le_bytes(*number))
        };
        let (place, process, processes) = (number()?, number()?, number()?);
        let (secret, behind) = rest.split_first_chunk::<{ Secret::BYTES }>()?;
        rest = behind;
        let (count, behind) = rest.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (nonces, behind) = behind.split_at_checked(count.checked_mul(8)?)?;
        rest = behind;
        let mut text = || {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let length = u32::from_le_bytes(*length) as usize;
            let (text, behind) = behind.split_at_checked(length)?;
            rest = behind;
            String::from_utf8(text.to_vec()).ok()
        };
        let (provider, mapping, nodes) = (text()?, text()?, text()?);
        let processes = Topology::from_process_mapping(&mapping, processes, Rank(process)).ok()?;
        let agents = (0..processes.local_size()).map(|_| text());
        let agents = agents.collect::<Option<Vec<_>>>()?;
        let welcome = Self {
            ranks_of_nodes: ranks::decode(&nodes, processes.nodes())?,
            secret: Secret::from_bytes(*secret),
            agents,
            ranks: nonces
                .as_chunks()
                .0
                .iter()
                .map(|nonce| u64::from_le_bytes(*nonce))
                .collect(),
            provider,
            processes,
        };
        let (ranks, agents) = (welcome.ranks.len(), welcome.agents.len());
        let node = welcome.processes.node().0 as usize;
        let is_whole = rest.is_empty()
            && welcome.ranks_of_nodes[node] as usize == ranks
            && (place as usize) < ranks + agents;
        is_whole.then_some((welcome, place))
    }

    /// Tells the other agents of the node, as its first one.
    ///
    /// # Errors
    /// One of them is gone.
    pub fn tell_agents(&self) -> Result<()> {
        let places = self.ranks.len() as u32..;
        for (place, name) in places.zip(&self.agents).skip(1) {
            let (message, deadline) = (self.encode(place), Instant::now() + SEND_DEADLINE);
            DescriptorListener::send_to_listener(name, &message, &[], deadline)?;
        }
        Ok(())
    }

    /// What the first agent of this node, which listens by the name `first`, tells this other one
    /// of the job with this secret, once all ranks of the node have come. With what has come
    /// before it.
    ///
    /// # Errors
    /// The first agent has ended; the socket fails.
    pub fn of_first_agent(
        listener: &DescriptorListener,
        first: &str,
        secret: &Secret,
    ) -> Result<(Self, Vec<Accepted>)> {
        let mut early = Vec::new();
        loop {
            match listener.accept(Instant::now() + LOOK) {
                Ok(parcel) => {
                    // Nothing is made of what comes from others: the secret first.
                    let told = behind_versions(&parcel.0).ok();
                    let told = told.and_then(|rest| rest.strip_prefix(&[WELCOME]));
                    let told = told.filter(|told| {
                        let behind = told.get(Self::BEFORE_SECRET..);
                        behind.is_some_and(|behind| behind.starts_with(secret.expose()))
                    });
                    match told.and_then(Self::decode) {
                        Some((welcome, _)) => return Ok((welcome, early)),
                        None => early.push(parcel),
                    }
                }
                Err(error) if !error.is_timeout() => return Err(error),
                Err(_) => check_agents(&[first])?,
            }
        }
    }
}

/// Makes sure that the other agents of this node live, which have sockets of these names.
///
/// # Errors
/// One of them has ended.
pub fn check_agents(names: &[&str]) -> Result<()> {
    // The name of who has ended is free.
    let has_ended = |name: &&str| DescriptorListener::listen(name, 1).is_ok();
    match names.iter().any(has_ended) {
        true => Err(failed(
            "another agent of this node has ended, or could not start the job",
        )),
        false => Ok(()),
    }
}

/// Name of a rank's socket.
fn socket_name(nonce: u64) -> String {
    format!("trihop-{nonce:016x}")
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
