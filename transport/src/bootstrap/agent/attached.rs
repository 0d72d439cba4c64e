//! A rank that its node's agent receives.

use std::env;
use std::time::{Duration, Instant};

use super::starter::Starter;
use super::{
    ANY, ENDS, ENV_AGENT, ENV_JOB, ENV_NODES, ENV_PLACE, ENV_START, JOB_BYTES_MAX, LOOK,
    MOST_RANKS, REFUSED, WELCOME, Welcome, behind_versions, default_name, failed, prefix,
    socket_name,
};
use crate::bootstrap::{Bootstrap, Launcher};
use crate::error::{Error, Result};
use crate::memory::descriptors::{Accepted, DescriptorListener};
use crate::park::ProcessWatch;
use crate::random::random_bytes;
use crate::sync::{PoisonError, StaticMutex};
use crate::topology::{Rank, Topology};

/// What a rank has from its agent, for the start of its job.
#[derive(Debug)]
pub struct Attachment {
    /// Takes descriptors for this rank.
    pub listener: DescriptorListener,
    /// What the agent has told.
    pub welcome: Welcome,
    /// What others, who were told before, have sent already.
    pub early: Vec<Accepted>,
}

/// A rank that its node's agent has received.
#[derive(Debug)]
pub struct Attached {
    topology: Topology,
    attachment: Option<Attachment>,
}

impl Attached {
    /// Introduces this process to the agent that the environment names, or starts it by the command
    /// that the environment has for that, and waits until all ranks of the agent have come.
    ///
    /// # Errors
    /// No agent appears or answers within `wait`, it is of another version or another user, or the
    /// place is taken; the command fails.
    pub fn connect(wait: Duration) -> Result<Self> {
        let variable = |name| env::var(name).ok().filter(|text| !text.is_empty());
        let name = variable(ENV_AGENT).unwrap_or_else(default_name);
        let place = match variable(ENV_PLACE) {
            None => ANY,
            Some(text) => text.parse().map_err(|_| {
                let why = format!("{text:?} is no number of a rank among those of its agent");
                Error::config(ENV_PLACE, why)
            })?,
        };
        let job = env::var_os(ENV_JOB).unwrap_or_default().into_string();
        let job = job.map_err(|text| Error::config(ENV_JOB, format!("{text:?} is no UTF-8")))?;
        if job.len() > JOB_BYTES_MAX {
            let why = format!(
                "{} bytes in the name of a job; possible are {JOB_BYTES_MAX}",
                job.len()
            );
            return Err(Error::config(ENV_JOB, why));
        }
        let nodes = match variable(ENV_NODES) {
            None => 0,
            Some(text) => text.parse().map_err(|_| {
                let why = format!("{text:?} is no number of nodes");
                Error::config(ENV_NODES, why)
            })?,
        };
        let starter = variable(ENV_START).map(|command| Starter::new(&name, command));
        Self::introduce(&name, (&job, nodes), place, starter, Instant::now() + wait)
    }

    pub(super) fn introduce(
        name: &str,
        (job, nodes): (&str, u32),
        place: u32,
        starter: Option<Starter>,
        deadline: Instant,
    ) -> Result<Self> {
        let nonce = u64::from_le_bytes(random_bytes()?);
        let listener = DescriptorListener::listen(&socket_name(nonce), 2 * MOST_RANKS)?;
        let mut message = prefix();
        message.extend_from_slice(&place.to_le_bytes());
        message.extend_from_slice(&nodes.to_le_bytes());
        message.extend_from_slice(job.as_bytes());
        message.extend_from_slice(&nonce.to_le_bytes());
        loop {
            let process = match &starter {
                Some(starter) => starter.reach(&message, deadline)?,
                None => DescriptorListener::send_until(name, &message, &[], deadline)
                    .map_err(|error| failed(no_agent(name, &error)))?,
            };
            let agent = format!("the agent @{name} (process {process})");
            match Answer::of(process, &agent, &listener, deadline)? {
                Answer::Ends(why) if starter.is_none() || Instant::now() >= deadline => {
                    return Err(failed(why));
                }
                // The next one may be started.
                Answer::Ends(why) => tracing::debug!(why, "its agent ends"),
                Answer::Welcome(welcome, place, early) => {
                    *has_been_welcome() = true;
                    let topology = welcome.processes.with_agents(&welcome.ranks_of_nodes)?;
                    return Ok(Self {
                        topology: topology.seen_by(topology.endpoint_at(place))?,
                        attachment: Some(Attachment {
                            listener,
                            welcome,
                            early,
                        }),
                    });
                }
            }
        }
    }
}

/// Whether this process has had a job at an agent.
static HAS_BEEN_WELCOME: StaticMutex<bool> = StaticMutex::new(false);

fn has_been_welcome() -> impl std::ops::DerefMut<Target = bool> {
    (HAS_BEEN_WELCOME.lock()).unwrap_or_else(PoisonError::into_inner)
}

fn no_agent(name: &str, error: &Error) -> String {
    let hint = match *has_been_welcome() {
        true => {
            "; the one that this process has had a job of may have ended with that: with \
             TRIHOP_AGENT_LINGER_MS in its environment it stays for others"
        }
        false => "; start one by `trihop agent`, or set TRIHOP_AGENT_START, by which a rank does",
    };
    format!("no agent @{name} on this node: {error}{hint}")
}

/// What becomes of a rank that waits at an agent.
enum Answer {
    /// Who is there, its place, and what others have sent before it heard so.
    Welcome(Welcome, u32, Vec<Accepted>),
    /// The agent has ended, or takes no more jobs.
    Ends(String),
}

impl Answer {
    /// Of this process, which errors call `agent`.
    fn of(
        process: u32,
        agent: &str,
        listener: &DescriptorListener,
        deadline: Instant,
    ) -> Result<Self> {
        let gone = || Self::Ends(format!("{agent} has ended"));
        let watch = match ProcessWatch::open(process) {
            Ok(watch) => watch,
            Err(error) if error.is_no_process() => return Ok(gone()),
            Err(error) => return Err(error),
        };
        let mut early = Vec::new();
        let bytes = loop {
            let soon = deadline.min(Instant::now() + LOOK);
            match listener.accept(soon) {
                Ok((bytes, _, sender)) if sender == process => break bytes,
                Ok(parcel) => early.push(parcel),
                Err(_) if watch.has_ended() => return Ok(gone()),
                Err(error) if error.is_timeout() => {
                    if Instant::now() >= deadline {
                        return Err(failed(format!(
                            "{agent} does not answer: not all of its ranks have come, or its \
                             places are taken"
                        )));
                    }
                }
                Err(error) => return Err(error),
            }
        };
        let bad = || failed(format!("{agent} says what is not valid"));
        let rest = behind_versions(&bytes).map_err(|why| match why.is_empty() {
            true => bad(),
            false => failed(format!("{agent}: {why}")),
        })?;
        let refusal = |why: &[u8]| {
            format!(
                "{agent} refuses this rank: {}",
                String::from_utf8_lossy(why)
            )
        };
        match rest.split_first() {
            Some((&REFUSED, why)) => Err(failed(refusal(why))),
            Some((&ENDS, why)) => Ok(Self::Ends(refusal(why))),
            Some((&WELCOME, rest)) => {
                let (welcome, place) = Welcome::decode(rest).ok_or_else(bad)?;
                match (place as usize) < welcome.ranks.len() {
                    true => Ok(Self::Welcome(welcome, place, early)),
                    false => Err(bad()),
                }
            }
            _ => Err(bad()),
        }
    }
}

fn not_here<T>() -> Result<T> {
    Err(failed("the agent speaks with the launcher"))
}

impl Bootstrap for Attached {
    fn launcher(&self) -> Launcher {
        Launcher::Agent
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn value_limit(&self) -> usize {
        0
    }

    fn put(&mut self, _: &str, _: &[u8]) -> Result<()> {
        not_here()
    }

    fn fence(&mut self) -> Result<()> {
        not_here()
    }

    fn get(&mut self, _: Rank, _: &str) -> Result<Option<Vec<u8>>> {
        not_here()
    }

    /// The launcher sees that this process exits.
    fn abort(&mut self, status: i32, why: &str) {
        tracing::error!(status, why, "aborting");
    }

    fn finalize(&mut self) -> Result<()> {
        Ok(())
    }

    fn attachment(&mut self) -> Option<Attachment> {
        self.attachment.take()
    }
}
