//! Where the agents of several nodes, or several of one, meet, one job after the other.
//!
//! A launcher's store has one job. The first agent keeps a store for each further one: agents come
//! to a job by its name, in the order in which their ranks did, each by a connection of its own.
//! A job begins once the agents of all nodes have come to it, or of as many as its ranks say. Ranks
//! come to the first agent of their node; each other one there asks for the next job to which that
//! comes ([`Follower`]), and so has a part in all. An agent that ends is the end of the meeting,
//! also for jobs that would do without it: the agents of one launch stay together.

mod gathering;
mod server;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::server::Server;
use super::hosts::Store;
use super::local::client::Client;
use super::local::wire;
use super::master::dial::{self, Unheard};
use super::master::gate::Gate;
use super::master::handshake::{Claim, Refusal};
use super::socket::LauncherSocket;
use super::{Bootstrap, Launcher, Party, Single};
use crate::error::{Error, Result};
use crate::secret::Secret;
use crate::sync::sleep;
use crate::topology::{Rank, Topology};
use crate::watch::{Listening, decode_addresses, encode_addresses, keep_alive};

/// Key of what the first agent says of the meeting.
const PLACE: &str = "agent-meeting";
/// First byte of that, and of what it says instead.
const OPEN: u8 = 1;
const FAILED: u8 = 0;

const NAME: &str = "agents";

/// How long the first agent has to say whether others have jobs.
const ASKING: Duration = Duration::from_secs(2);

/// Between two attempts to be let in at the first agent.
const PAUSE: Duration = Duration::from_millis(50);

/// An agent's part of the meeting.
#[derive(Debug)]
pub struct Meeting {
    joiner: Joiner,
    stay: Client,
    /// Of the first agent.
    server: Option<Server>,
}

/// Comes to jobs for an agent, on any thread.
#[derive(Debug, Clone)]
pub struct Joiner(Arc<Known>);

/// What an agent knows of the meeting.
#[derive(Debug)]
struct Known {
    launcher: Launcher,
    /// The agents, as ranks of a job.
    topology: Topology,
    secret: Secret,
    /// Of the first agent.
    addresses: Vec<SocketAddr>,
    wait: Duration,
    lost_after: Duration,
}

impl Meeting {
    /// Meets the other agents, which the launcher knows as the ranks of a job. The first one
    /// listens for the others, at the addresses of these interfaces, as
    /// [`Listening::open`] finds them. Collective; each wait ends after `wait`. A node from which
    /// nothing has come for `lost_after` is lost, and so are its agent's connections.
    ///
    /// # Errors
    /// The launcher's; the first agent cannot listen, on all; it cannot be reached.
    pub fn open(
        bootstrap: &mut dyn Bootstrap,
        interfaces: &[String],
        loopback: bool,
        (wait, lost_after): (Duration, Duration),
    ) -> Result<Self> {
        let topology = bootstrap.topology().clone();
        let mut opened = None;
        if topology.rank() == Rank(0) {
            let listening = listen(interfaces, loopback, &topology, lost_after);
            // The others wait for it, whatever has gone wrong here.
            bootstrap.put(PLACE, &said(&listening))?;
            opened = Some(listening);
        }
        bootstrap.fence()?;
        let (secret, addresses, server) = match opened {
            Some(opened) => {
                let (server, secret, addresses) = opened?;
                (secret, addresses, Some(server))
            }
            None => {
                let said = bootstrap.get(Rank(0), PLACE)?.unwrap_or_default();
                let (secret, addresses) = heard(&said)?;
                (secret, addresses, None)
            }
        };
        let joiner = Joiner(Arc::new(Known {
            launcher: bootstrap.launcher(),
            topology,
            secret,
            addresses,
            wait,
            lost_after,
        }));
        let mut stay = joiner.connect()?;
        stay.stay()?;
        Ok(Self {
            joiner,
            stay,
            server,
        })
    }

    /// Comes to jobs.
    pub fn joiner(&self) -> Joiner {
        self.joiner.clone()
    }

    /// Becomes readable when the meeting is [over](Meeting::why_over).
    pub fn stays(&self) -> BorrowedFd<'_> {
        self.stay.as_fd()
    }

    /// Why it is over, once it is: no job begins any more.
    pub fn why_over(&mut self) -> Option<String> {
        self.stay.why_over()
    }

    /// For how long none of its agents has had a job; `None` where one has, or none has had any.
    ///
    /// # Errors
    /// The first agent cannot be asked.
    pub fn quiet_for(&self) -> Result<Option<Duration>> {
        let wait = self.joiner.0.wait.min(ASKING);
        self.joiner.connect_within(wait)?.quiet_for()
    }

    /// Ends it for all. What is left is to wait for, at the first agent: the store of jobs that
    /// have not ended at other agents.
    pub fn leave(self) -> Option<Rest> {
        drop(self.stay);
        let server = self.server?;
        server.end_when_alone();
        Some(Rest(server))
    }
}

/// The store of jobs at the first agent, which has left the meeting. Dropped it ends at once.
#[derive(Debug)]
pub struct Rest(Server);

impl Rest {
    /// Whether nobody needs it any more.
    pub fn is_over(&self) -> bool {
        self.0.has_ended()
    }

    /// Becomes readable when nobody does.
    pub fn ends(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Joiner {
    /// Comes to the job of ranks that have come to this agent, the first one of its node, and waits
    /// until those of all nodes of it have: as many as its ranks say.
    ///
    /// # Errors
    /// The first agent cannot be reached; an agent has ended, or one of these ranks; agents to
    /// which no ranks of the job have come in time, by their numbers.
    pub fn join(&self, party: &Party) -> Result<JobOfAgents> {
        self.come_to((party.job(), party.nodes()), &|| {
            let why = "a rank of the job has ended before those of other nodes had come";
            party.has_lost_one().then(|| why.into())
        })
    }

    /// As [`Joiner::join`], by the job's name and number of nodes, unless there is a reason to give
    /// up.
    fn come_to(
        &self,
        job: (&str, u32),
        gives_up: &dyn Fn() -> Option<String>,
    ) -> Result<JobOfAgents> {
        let mut client = self.connect()?;
        let agents = client.join(job, self.0.topology.size(), gives_up)?;
        self.job_of(client, &agents)
    }

    /// Comes to all jobs to which the first agent of this one's node comes.
    pub fn follower(&self) -> Follower {
        Follower {
            joiner: self.clone(),
            asked: None,
        }
    }

    /// By this connection, which has come to a job of these agents.
    fn job_of(&self, client: Client, agents: &[u32]) -> Result<JobOfAgents> {
        let alone = (agents.len() == 1).then(Single::new).transpose()?;
        Ok(JobOfAgents {
            client,
            alone,
            launcher: self.0.launcher,
            topology: part_of(&self.0.topology, agents)?,
        })
    }

    fn connect(&self) -> Result<Client> {
        self.connect_within(self.0.wait)
    }

    /// Each wait on the connection ends after `wait`.
    fn connect_within(&self, wait: Duration) -> Result<Client> {
        let Known {
            topology,
            secret,
            addresses,
            lost_after,
            ..
        } = &*self.0;
        let (rank, size) = (topology.rank(), topology.size());
        let deadline = Instant::now() + wait;
        let unreached = |why: &str| {
            failed(format!(
                "the first agent was not reached at {addresses:?}: {why}"
            ))
        };
        let socket = loop {
            let stream = dial::connect(addresses.iter().copied(), deadline);
            let stream = stream.map_err(|e| unreached(&e.to_string()))?;
            keep_alive(stream.as_fd(), *lost_after).map_err(|e| unreached(&e.to_string()))?;
            let socket = LauncherSocket::of(stream.into(), wait);
            let unheard = match dial::introduce(&socket, secret, Claim { rank, size }, deadline) {
                Ok(()) => break socket,
                Err(unheard) => unheard,
            };
            return Err(match unheard {
                // It has no room for a moment, or this agent was slow.
                Unheard::Again(_) if Instant::now() + PAUSE < deadline => {
                    sleep(PAUSE);
                    continue;
                }
                Unheard::Again(why) => unreached(&why),
                Unheard::Refused(Refusal::NotOurs) => unreached("no agent listens there"),
                Unheard::Refused(Refusal::Secret) => unreached("it is of another job"),
                Unheard::Refused(Refusal::Version(_)) => {
                    unreached("it is of another version of trihop; start one version everywhere")
                }
                Unheard::Failed(error) => error,
            });
        };
        Client::greet(socket, NAME, rank)
    }
}

/// Comes, as another agent of a node, to all jobs to which the first one there comes.
#[derive(Debug)]
pub struct Follower {
    joiner: Joiner,
    /// Where it has asked for the next one.
    asked: Option<Client>,
}

impl Follower {
    /// The next job, once all its agents have come. Asks for it where it has not yet.
    ///
    /// # Errors
    /// The meeting is over, or the first agent of all cannot be reached; the next call asks anew.
    pub fn next_job(&mut self) -> Result<Option<JobOfAgents>> {
        if self.asked.is_none() {
            let wait = self.joiner.0.wait.min(ASKING);
            let mut client = self.joiner.connect_within(wait)?;
            client.follow()?;
            self.asked = Some(client);
        }
        self.begun_job()
    }

    /// The one that it has asked for, where that has begun: it may have while this agent was about
    /// to leave.
    ///
    /// # Errors
    /// As [`Follower::next_job`].
    pub fn begun_job(&mut self) -> Result<Option<JobOfAgents>> {
        let Some(mut client) = self.asked.take() else {
            return Ok(None);
        };
        let Known { topology, wait, .. } = &*self.joiner.0;
        let Some(agents) = client.followed(topology.size())? else {
            self.asked = Some(client);
            return Ok(None);
        };
        client.wait_at_most(*wait);
        self.joiner.job_of(client, &agents).map(Some)
    }

    /// Becomes readable when there is news of the next one.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.asked.as_ref().map(AsFd::as_fd)
    }
}

/// What the first agent has for the others.
type Opened = (Server, Secret, Vec<SocketAddr>);

fn listen(
    interfaces: &[String],
    loopback: bool,
    agents: &Topology,
    lost_after: Duration,
) -> Result<Opened> {
    let listening = Listening::open(interfaces, loopback)?;
    let (addresses, secret) = (listening.addresses().to_vec(), Secret::random()?);
    let advice = "its agents are those of another launch";
    let gate = Gate::new(
        listening.into_listener(),
        secret.clone(),
        "the first agent",
        advice.into(),
    );
    let gate = gate.map_err(|e| Error::system("preparing the meeting of agents", e))?;
    let server = Server::start(gate, agents.clone(), lost_after)?;
    Ok((server, secret, addresses))
}

fn said(opened: &Result<Opened>) -> Vec<u8> {
    match opened {
        Ok((_, secret, addresses)) => {
            [&[OPEN], &secret.expose()[..], &encode_addresses(addresses)].concat()
        }
        Err(error) => [&[FAILED], error.to_string().as_bytes()].concat(),
    }
}

fn heard(said: &[u8]) -> Result<(Secret, Vec<SocketAddr>)> {
    let none = || failed("the first agent has not said where agents meet".into());
    let (kind, rest) = said.split_first().ok_or_else(none)?;
    if *kind == FAILED {
        let why = String::from_utf8_lossy(rest);
        return Err(failed(format!("the first agent cannot be met: {why}")));
    }
    let (secret, rest) = rest.split_first_chunk().ok_or_else(none)?;
    let addresses = decode_addresses(rest).filter(|addresses| !addresses.is_empty());
    let addresses = addresses.filter(|_| *kind == OPEN).ok_or_else(none)?;
    Ok((Secret::from_bytes(*secret), addresses))
}

/// Of these agents alone, seen from the same one. Their nodes keep their order.
fn part_of(all: &Topology, agents: &[u32]) -> Result<Topology> {
    let own = agents.iter().position(|&agent| agent == all.rank().0);
    match own {
        Some(_) if agents.len() == all.size() as usize => Ok(all.clone()),
        Some(own) => {
            let nodes: Vec<_> = agents.iter().map(|&a| all.node_of(Rank(a))).collect();
            let mut known = nodes.clone();
            known.sort_unstable();
            known.dedup();
            let number = |node| known.partition_point(|other| other < node) as u32;
            let nodes: Vec<u32> = nodes.iter().map(number).collect();
            Topology::from_node_of(&nodes, Rank(own as u32))
        }
        None => Err(failed(format!(
            "the first agent has let this one into a job of {agents:?}"
        ))),
    }
}

fn failed(why: String) -> Error {
    Error::Bootstrap {
        launcher: NAME,
        why,
    }
}

/// The store of one job, as one of its agents has it.
pub struct JobOfAgents {
    client: Client,
    /// Of a job of one agent, which does without the others once it has begun.
    alone: Option<Single>,
    launcher: Launcher,
    topology: Topology,
}

impl fmt::Debug for JobOfAgents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobOfAgents")
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}

impl Bootstrap for JobOfAgents {
    fn launcher(&self) -> Launcher {
        self.launcher
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn value_limit(&self) -> usize {
        wire::VALUE_BYTES_MAX
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        match &mut self.alone {
            Some(alone) => alone.put(key, value),
            None => self.client.put(key, value),
        }
    }

    fn fence(&mut self) -> Result<()> {
        match &mut self.alone {
            Some(alone) => alone.fence(),
            None => self.client.fence(),
        }
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        match &mut self.alone {
            Some(alone) => alone.get(from, key),
            None => self.client.get(from, key),
        }
    }

    fn why_missed(&mut self) -> Result<Option<String>> {
        match &mut self.alone {
            Some(alone) => alone.why_missed(),
            None => self.client.why_missed(),
        }
    }

    /// The other agents hear of it in their next call. Agents outlive their jobs.
    fn abort(&mut self, status: i32, why: &str) {
        tracing::error!(status, why, "abort");
        self.client.abort(status, why);
    }

    /// All agents of the job have its last fence behind them: where the first agent is gone by now,
    /// which keeps the store, none of them needs that any more.
    fn finalize(&mut self) -> Result<()> {
        match &mut self.alone {
            // The first agent hears it by the end of the connection.
            Some(alone) => alone.finalize(),
            None => {
                if let Err(error) = self.client.finalize() {
                    tracing::debug!(%error, "the store of a job is gone at the end of that");
                }
                Ok(())
            }
        }
    }
}
