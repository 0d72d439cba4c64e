//! Which agents have come to which job: a state machine without sockets.

use std::collections::HashMap;
use std::time::Instant;

use crate::bootstrap::agent::JOB_BYTES_MAX;
use crate::bootstrap::local::service::{Effect, Service, check_greeting, ranges};
use crate::bootstrap::local::wire::{Reply, Request, encode_agents};

/// Jobs of which some agents have come and others not.
const MOST_WAITING: usize = 1024;

/// What is to be said to whom, by the number of its connection.
pub(super) type Replies = Vec<(u64, Reply)>;

/// All connections of the agents, by their numbers, and the jobs that they have met in.
pub(super) struct Gatherings {
    agents: usize,
    guests: HashMap<u64, Guest>,
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
    /// A job, by its number, of which the agent is this member.
    Job(u64, u32),
}

/// A job of which not all agents have come.
struct Gathering {
    name: String,
    /// Agents that it has.
    nodes: usize,
    /// By agent.
    came: Vec<Option<u64>>,
}

/// A job of which all have come.
struct Running {
    service: Service,
    /// The agents in order, with their connections; none that has ended.
    members: Vec<(u32, Option<u64>)>,
}

impl Gatherings {
    /// Of so many agents.
    pub fn new(agents: u32) -> Self {
        Self {
            agents: agents as usize,
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
        if agents as usize != self.agents || agent >= agents {
            let ours = self.agents;
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
            (Place::Door, Request::Quiet) => {
                let since = self.quiet_since.filter(|_| self.waiting.is_empty());
                let quiet = since.map(|since| since.elapsed().as_millis() as u64);
                Ok(Reply::Value(quiet.map(|ms| ms.to_le_bytes().to_vec())))
            }
            (Place::Waits, Request::Missing) => Ok(Reply::Missing(self.missing(guest))),
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

    /// Comes to the first job of this name, and of so many agents, to which its agent has not come
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
        let agents = self.agents;
        let nodes = match nodes as usize {
            0 => agents,
            nodes if nodes > agents => {
                return Err(format!("a job on {nodes} nodes, of {agents} with agents"));
            }
            nodes => nodes,
        };
        let agent = agent as usize;
        let is_open =
            |job: &Gathering| (&job.name, job.nodes) == (&name, nodes) && job.came[agent].is_none();
        let at = match self.waiting.iter().position(is_open) {
            Some(at) => at,
            None if self.waiting.len() == MOST_WAITING => {
                return Err(format!("{MOST_WAITING} jobs wait for agents"));
            }
            None => {
                let came = vec![None; agents];
                self.waiting.push(Gathering { name, nodes, came });
                self.waiting.len() - 1
            }
        };
        let job = &mut self.waiting[at];
        job.came[agent] = Some(guest);
        let is_whole = job.lacks() == 0;
        self.place(guest, Place::Waits);
        if is_whole {
            self.begin(at, replies);
        }
        Ok(())
    }

    fn begin(&mut self, at: usize, replies: &mut Replies) {
        let Gathering { came, .. } = self.waiting.remove(at);
        let came = (0..).zip(came).filter(|(_, guest)| guest.is_some());
        let members: Vec<(u32, Option<u64>)> = came.collect();
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

    /// Agents that have not come to the job for which this one waits.
    fn missing(&self, guest: u64) -> String {
        let Some(job) = self.waiting.iter().find(|job| job.has(guest)) else {
            return String::new();
        };
        let missing = (0..).zip(&job.came).filter(|(_, came)| came.is_none());
        let missing = ranges(missing.map(|(agent, _)| agent));
        match job.nodes == self.agents {
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
            Place::Waits => {
                for job in &mut self.waiting {
                    job.came[agent as usize].take_if(|came| *came == guest);
                }
                let is_wanted = |job: &Gathering| job.came.iter().any(Option::is_some);
                self.waiting.retain(is_wanted);
            }
            Place::Job(number, member) => {
                let Some(job) = self.jobs.get_mut(&number) else {
                    return;
                };
                let mut effects = Vec::new();
                job.members[member as usize].1 = None;
                job.service.end(member, &mut effects);
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

    /// No further job begins; those that have begun go on.
    fn end_all(&mut self, why: &str, replies: &mut Replies) {
        self.over.get_or_insert_with(|| why.to_owned());
        self.waiting.clear();
        for (&guest, of) in &mut self.guests {
            if matches!(of.place, Place::Stays | Place::Waits) {
                of.place = Place::Door;
                replies.push((guest, Reply::Failed(why.to_owned())));
            }
        }
    }
}

impl Gathering {
    /// How many agents more it needs.
    fn lacks(&self) -> usize {
        self.nodes - self.came.iter().flatten().count()
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
