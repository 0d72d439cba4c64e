//! Which agents have come to which job: a state machine without sockets.

use std::collections::HashMap;
use std::time::Instant;

use crate::bootstrap::agent::JOB_BYTES_MAX;
use crate::bootstrap::local::service::{Effect, Service, check_greeting, ranges};
use crate::bootstrap::local::wire::{Reply, Request, encode_agents};
use crate::topology::{NodeId, Rank, Topology};

/// Jobs of which some nodes have come and others not.
const MOST_WAITING: usize = 1024;

/// What is to be said to whom, by the number of its connection.
pub(super) type Replies = Vec<(u64, Reply)>;

/// All connections of the agents, by their numbers, and the jobs that they have met in.
pub(super) struct Gatherings {
    /// The agents, as ranks of a job.
    agents: Topology,
    guests: HashMap<u64, Guest>,
    /// By agent: the connection of one that waits for the next job of its node's first one.
    following: Vec<Option<u64>>,
    /// In the order in which somebody has come first.
    waiting: Vec<Gathering>,
    jobs: HashMap<u64, Running>,
    begun: u64,
    /// When the last job has ended, where none runs.
    quiet_since: Option<Instant>,
    /// Why nobody may join any more.
    over: Option<String>,
}

/// A connection of an agent.
struct Guest {
    agent: u32,
    place: Place,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It has not said so yet, or has been refused.
    Door,
    /// An agent that stays until the meeting is over.
    Stays,
    /// A job of which not all have come.
    Waits,
    /// The next job to which the first agent of its node comes.
    Follows,
    /// A job, by its number, of which the agent is this member.
    Job(u64, u32),
}

/// A job of which not all agents have come.
struct Gathering {
    name: String,
    /// Nodes that it has ranks on.
    nodes: usize,
    /// By node: the connection of its first agent.
    came: Vec<Option<u64>>,
}

/// A job of which all have come.
struct Running {
    service: Service,
    /// The agents in order, with their connections; none that has ended.
    members: Vec<(u32, Option<u64>)>,
}

impl Gatherings {
    /// Of these agents, as ranks of a job.
    pub fn new(agents: Topology) -> Self {
        Self {
            following: vec![None; agents.size() as usize],
            agents,
            guests: HashMap::new(),
            waiting: Vec::new(),
            jobs: HashMap::new(),
            begun: 0,
            quiet_since: None,
            over: None,
        }
    }

    /// Whether nobody is connected.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    /// A connection by which `agent`, of so many, has shown who it is.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn admit(&mut self, guest: u64, agent: u32, agents: u32) -> Result<(), String> {
        let ours = self.agents.size();
        if agents != ours || agent >= agents {
            return Err(format!("agent {agent} of {agents} in a meeting of {ours}"));
        }
        let place = Place::Door;
        self.guests.insert(guest, Guest { agent, place });
        Ok(())
    }

    /// Takes what is said on a connection.
    pub fn take(&mut self, guest: u64, request: Request, replies: &mut Replies) {
        let Some(&Guest { agent, place }) = self.guests.get(&guest) else {
            return;
        };
        let reply = match (place, request) {
            (Place::Door, Request::Hello { version, rank }) => {
                check_greeting(agent, version, rank).map(|()| Reply::Done)
            }
            (Place::Door, Request::Fence) => return self.stay(guest, replies),
            (Place::Door, Request::Join { nodes, job }) => {
                match self.join(guest, agent, (job, nodes), replies) {
                    Ok(()) => return,
                    Err(why) => Err(why),
                }
            }
            (Place::Door, Request::Follow) => match self.follow(guest, agent, replies) {
                Ok(()) => return,
                Err(why) => Err(why),
            },
            (Place::Door, Request::Quiet) => {
                let since = self.quiet_since.filter(|_| self.waiting.is_empty());
                let quiet = since.map(|since| since.elapsed().as_millis() as u64);
                Ok(Reply::Value(quiet.map(|ms| ms.to_le_bytes().to_vec())))
            }
            // By who gives up: what comes for its job next waits for it no longer.
            (Place::Waits, Request::Missing) => {
                let missing = self.missing(guest);
                self.withdraw(guest, agent);
                self.place(guest, Place::Door);
                Ok(Reply::Missing(missing))
            }
            (Place::Job(number, member), request) => {
                let mut effects = Vec::new();
                if let Some(job) = self.jobs.get_mut(&number) {
                    job.service.take(member, request, &mut effects);
                    job.apply(effects, replies);
                }
                return;
            }
            (_, Request::Finalize) => Ok(Reply::Done),
            _ => Err("this is not the time for it".into()),
        };
        replies.push((guest, reply.unwrap_or_else(Reply::Failed)));
    }

    fn stay(&mut self, guest: u64, replies: &mut Replies) {
        match &self.over {
            Some(why) => replies.push((guest, Reply::Failed(why.clone()))),
            None => self.place(guest, Place::Stays),
        }
    }

    fn place(&mut self, guest: u64, place: Place) {
        if let Some(guest) = self.guests.get_mut(&guest) {
            guest.place = place;
        }
    }

    /// Comes to the first job of this name, and on so many nodes, to which its node has not come
    /// yet.
    fn join(
        &mut self,
        guest: u64,
        agent: u32,
        (name, nodes): (String, u32),
        replies: &mut Replies,
    ) -> Result<(), String> {
        if let Some(why) = &self.over {
            return Err(why.clone());
        }
        if name.len() > JOB_BYTES_MAX {
            return Err(format!("a job with a name of {} bytes", name.len()));
        }
        let agent = Rank(agent);
        if self.agents.local_rank_of(agent) != 0 {
            return Err(format!(
                "agent {agent} is not the first one of its node, to which ranks come"
            ));
        }
        let all = self.agents.nodes() as usize;
        let nodes = match nodes as usize {
            0 => all,
            nodes if nodes > all => {
                return Err(format!("a job on {nodes} nodes, of {all} with agents"));
            }
            nodes => nodes,
        };
        let node = self.agents.node_of(agent).0 as usize;
        let is_open = |job: &Gathering| {
            let is_it = (&job.name, job.nodes) == (&name, nodes);
            is_it && job.lacks() > 0 && job.came[node].is_none()
        };
        let at = match self.waiting.iter().position(is_open) {
            Some(at) => at,
            None if self.waiting.len() == MOST_WAITING => {
                return Err(format!("{MOST_WAITING} jobs wait for agents"));
            }
            None => {
                let came = vec![None; all];
                self.waiting.push(Gathering { name, nodes, came });
                self.waiting.len() - 1
            }
        };
        self.waiting[at].came[node] = Some(guest);
        self.place(guest, Place::Waits);
        self.begin_what_can(replies);
        Ok(())
    }

    /// Comes to the next job to which the first agent of its node does.
    fn follow(&mut self, guest: u64, agent: u32, replies: &mut Replies) -> Result<(), String> {
        if let Some(why) = &self.over {
            return Err(why.clone());
        }
        if self.agents.local_rank_of(Rank(agent)) == 0 {
            return Err(format!("agent {agent} is the first one of its node"));
        }
        let following = &mut self.following[agent as usize];
        if following.is_some() {
            return Err(format!("agent {agent} waits for its next job already"));
        }
        *following = Some(guest);
        self.place(guest, Place::Follows);
        self.begin_what_can(replies);
        Ok(())
    }

    /// The jobs to which all agents have come, the oldest first.
    fn begin_what_can(&mut self, replies: &mut Replies) {
        while let Some(at) = self.waiting.iter().position(|job| self.is_whole(job)) {
            self.begin(at, replies);
        }
    }

    fn is_whole(&self, job: &Gathering) -> bool {
        job.lacks() == 0 && self.absent(job).next().is_none()
    }

    /// The agents of the nodes that have come which do not wait for their next job.
    fn absent<'a>(&'a self, job: &'a Gathering) -> impl Iterator<Item = u32> + 'a {
        let others = job.came_nodes().flat_map(|node| self.others_of(node));
        others.filter(|agent| self.following[*agent as usize].is_none())
    }

    /// The agents of a node behind its first one.
    fn others_of(&self, node: NodeId) -> impl Iterator<Item = u32> + '_ {
        self.agents.ranks_of(node).skip(1).map(|agent| agent.0)
    }

    fn begin(&mut self, at: usize, replies: &mut Replies) {
        let job = self.waiting.remove(at);
        let mut members = Vec::new();
        for node in job.came_nodes() {
            let first = self.agents.rank_at(node, 0).0;
            members.push((first, job.came[node.0 as usize]));
            let others: Vec<u32> = self.others_of(node).collect();
            for other in others {
                members.push((other, self.following[other as usize].take()));
            }
        }
        // Nodes may have their agents by turns.
        members.sort_unstable();
        let agents: Vec<u32> = members.iter().map(|(agent, _)| *agent).collect();
        let encoded = encode_agents(&agents);
        let (number, mut service) = (self.begun, Service::of_agents(agents));
        self.begun += 1;
        self.quiet_since = None;
        for (member, guest) in (0..).zip(members.iter().filter_map(|(_, guest)| *guest)) {
            service.has_come(member);
            self.place(guest, Place::Job(number, member));
            replies.push((guest, Reply::Value(Some(encoded.clone()))));
        }
        self.jobs.insert(number, Running { service, members });
    }

    /// Agents to which no ranks of the job have come for which this one waits, or, where they have
    /// to all, that do not come to it.
    fn missing(&self, guest: u64) -> String {
        let Some(job) = self.waiting.iter().find(|job| job.has(guest)) else {
            return String::new();
        };
        if job.lacks() == 0 {
            let absent = ranges(self.absent(job));
            return format!("none; agents that take no job at the moment: {absent}");
        }
        let missing = (0..).zip(&job.came).filter(|(_, came)| came.is_none());
        let missing = missing.map(|(node, _)| self.agents.rank_at(NodeId(node), 0).0);
        let mut missing: Vec<u32> = missing.collect();
        missing.sort_unstable();
        let missing = ranges(missing.into_iter());
        match job.nodes == job.came.len() {
            true => missing,
            false => format!("{} of {missing}", job.lacks()),
        }
    }

    /// A connection has ended.
    pub fn end(&mut self, guest: u64, replies: &mut Replies) {
        let Some(Guest { agent, place }) = self.guests.remove(&guest) else {
            return;
        };
        match place {
            Place::Door => {}
            Place::Stays => {
                let why = format!("agent {agent} has ended, and takes no more jobs");
                self.end_all(&why, replies);
            }
            Place::Waits => self.withdraw(guest, agent),
            Place::Follows => self.following[agent as usize] = None,
            Place::Job(number, member) => {
                let Some(job) = self.jobs.get_mut(&number) else {
                    return;
                };
                let mut effects = Vec::new();
                job.members[member as usize].1 = None;
                let who = format!("agent {agent}");
                job.service.end(member, &who, &mut effects);
                job.apply(effects, replies);
                if job.members.iter().all(|(_, guest)| guest.is_none()) {
                    self.jobs.remove(&number);
                    if self.jobs.is_empty() {
                        self.quiet_since = Some(Instant::now());
                    }
                }
            }
        }
    }

    /// One that waits for the others of its job does no longer.
    fn withdraw(&mut self, guest: u64, agent: u32) {
        let node = self.agents.node_of(Rank(agent)).0 as usize;
        for job in &mut self.waiting {
            job.came[node].take_if(|came| *came == guest);
        }
        let is_wanted = |job: &Gathering| job.came.iter().any(Option::is_some);
        self.waiting.retain(is_wanted);
    }

    /// No further job begins; those that have begun go on.
    fn end_all(&mut self, why: &str, replies: &mut Replies) {
        self.over.get_or_insert_with(|| why.to_owned());
        self.waiting.clear();
        self.following.fill(None);
        for (&guest, of) in &mut self.guests {
            if matches!(of.place, Place::Stays | Place::Waits | Place::Follows) {
                of.place = Place::Door;
                replies.push((guest, Reply::Failed(why.to_owned())));
            }
        }
    }
}

impl Gathering {
    /// How many nodes more it needs.
    fn lacks(&self) -> usize {
        self.nodes - self.came.iter().flatten().count()
    }

    /// Those whose first agent has come.
    fn came_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let came = (0..).map(NodeId).zip(&self.came);
        came.filter_map(|(node, came)| came.map(|_| node))
    }

    fn has(&self, guest: u64) -> bool {
        self.came.contains(&Some(guest))
    }
}

impl Running {
    fn apply(&mut self, mut effects: Vec<Effect>, replies: &mut Replies) {
        while let Some(effect) = (!effects.is_empty()).then(|| effects.remove(0)) {
            match effect {
                Effect::Reply { rank, reply } => {
                    let (_, guest) = self.members[rank as usize];
                    replies.extend(guest.map(|guest| (guest, reply)));
                }
                Effect::Abort { rank, status, why } => {
                    let (agent, _) = self.members[rank as usize];
                    let why = format!("agent {agent} aborted the job with status {status}: {why}");
                    self.service.fail(why, &mut effects);
                }
            }
        }
    }
}
