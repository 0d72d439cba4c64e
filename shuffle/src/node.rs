//! Inside a node: how endpoints hand each other doorbells and inboxes, inside of a process and
//! between processes, and watch each other's processes.

mod door;
mod process;
mod requests;
mod said;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::memory::segment::Segment;
use trihop_transport::park::{Parker, ProcessWatch, Seen};
use trihop_transport::topology::{EndpointId, Topology};

use crate::error::{Error, Result};
pub(crate) use door::{Door, Hosts, Introduction, Member, NodeBook, Roster, missed, socket_name};
use process::{BELLS, LOOK, Shared, ended, is_agent, ranks_of, unreachable_or, watch};
pub(crate) use process::{Label, Met, Process, Unstarted, not_arrived};
pub(crate) use requests::{Answer, Request, Way};
use said::Said;

/// How an endpoint finds the memory of the others of its node: those of its own process by what
/// they hand each other, those of other processes by descriptors.
pub(crate) struct NodeExchange {
    process: Arc<Process>,
    /// What of it this endpoint has seen, or was woken for.
    seen: Seen,
    /// What it had seen when it last looked for what it waits for and did not find it.
    idle_since: Option<Seen>,
    /// Counted requests of its relay that this rank has made, or that this relay has taken.
    requests: u64,
    /// How often this relay has looked for one.
    asked_since: u64,
    /// Another process had connected and not spoken when this endpoint last looked: nothing
    /// announces what it says.
    is_owed: bool,
    /// Lives of the node's other processes, by the first endpoint of each; of the host alone.
    pub watches: Vec<(EndpointId, ProcessWatch)>,
    /// Those that have ended, of which the parker is to hear.
    pub ended: Vec<ProcessWatch>,
}

impl NodeExchange {
    /// As one endpoint of a process has it.
    pub fn of(process: Arc<Process>, watches: Vec<(EndpointId, ProcessWatch)>) -> Self {
        Self {
            process,
            seen: Seen::default(),
            idle_since: None,
            requests: 0,
            asked_since: 0,
            is_owed: false,
            watches,
            ended: Vec::new(),
        }
    }

    /// What the endpoints of this process share.
    #[cfg(test)]
    pub fn process(&self) -> Arc<Process> {
        Arc::clone(&self.process)
    }

    /// Whether another endpoint of this process has handed over something since this one looked, or
    /// asked: to be asked once a sleep is announced.
    pub fn has_news(&mut self) -> bool {
        self.process.desk.has_changed(&mut self.seen)
    }

    /// Wakes `parker`, with this mark, when descriptors come.
    pub fn watch_listener(&self, parker: &mut Parker, mark: u64) -> Result<()> {
        let watch = |shared: &mut Shared| parker.watch(shared.listener.descriptor(), mark);
        Ok(self.process.look(watch)?)
    }

    /// Gives all others of the node this endpoint's inbox of a stream; agents only if they are
    /// needed.
    pub fn give(
        &self,
        topology: &Topology,
        label: &Label,
        inbox: &Arc<Segment>,
        needs_agents: bool,
        deadline: Instant,
    ) -> Result<()> {
        let process = &self.process;
        let others = topology.ends_of_process().count() as u32 - 1;
        if others > 0 {
            let key = (label.stream, label.end);
            process.change(|shared| shared.inboxes.insert(key, (Arc::clone(inbox), others)));
        }
        let descriptors = [inbox.descriptor()?];
        let to = |end| needs_agents || !is_agent(topology, end);
        let given = process.give_to(to, topology, label, &descriptors, deadline);
        given.map(drop)
    }

    /// Tells all others of the node that this endpoint has no inbox of a stream for them.
    pub fn refuse(&self, topology: &Topology, label: &Label, deadline: Instant) -> Result<()> {
        let process = &self.process;
        if process.is_shared() {
            let key = (label.stream, label.end);
            process.change(|shared| shared.arrived.insert(key, Vec::new()));
        }
        let told = process.give_to_all(topology, label, &[], deadline);
        told.map(drop)
    }

    /// An endpoint that has no inbox for `stream`, if one has said so. That stays here until
    /// [`forget`](Self::forget): each endpoint of this process may ask.
    pub fn refused(&self, stream: u16) -> Option<EndpointId> {
        self.process.look(|shared| {
            let mut arrived = shared.arrived.iter();
            let refused = arrived.find(|((of, _), got)| *of == stream && got.is_empty());
            refused.map(|((_, end), _)| EndpointId(*end))
        })
    }

    /// Drops what has come for `stream`, or was handed over, once all of the node have tried to
    /// open it.
    pub fn forget(&self, stream: u16) {
        self.process.look(|shared| {
            shared.arrived.retain(|(of, _), _| *of != stream);
            shared.inboxes.retain(|(of, _), _| *of != stream);
        });
    }

    /// The ranks whose inboxes for `stream` are not here; those of relays by the ranks that stand
    /// for them, and those of agents only if they are needed.
    pub fn missing(&mut self, topology: &Topology, stream: u16, needs_agents: bool) -> Vec<u32> {
        let look = |shared: &mut Shared| shared.missing(topology, stream);
        let mut missing = self.process.desk.look(&mut self.seen, look);
        missing.retain(|&end| needs_agents || !is_agent(topology, EndpointId(end)));
        ranks_of(topology, &missing)
    }

    /// Keeps the parcels that have arrived so far; never waits.
    pub fn keep_arrived(&mut self, topology: &Topology, cookie: u64) -> Result<()> {
        let process = &self.process;
        let (any, is_owed) = process.look(|shared| {
            let any = shared.keep_arrived(topology, cookie)?;
            Ok::<_, Error>((any, shared.listener.is_owed()))
        })?;
        self.is_owed = is_owed;
        if any {
            process.change(|_| ()); // others of this process may wait for them
        }
        Ok(())
    }

    /// Whether something may come that nothing announces.
    pub fn is_owed(&self) -> bool {
        self.is_owed
    }

    /// The inbox, of so many bytes at least and at most, that each other endpoint of the node has
    /// given for `stream`.
    pub fn taken(
        &mut self,
        topology: &Topology,
        stream: u16,
        [least, most]: [usize; 2],
    ) -> Result<Vec<(EndpointId, Arc<Segment>)>> {
        let others = topology.ends_of_process().count() as u32 - 1;
        self.process.look(|shared| {
            let mut taken = Vec::new();
            for end in topology.ends_here() {
                let key = (stream, end.0);
                if end == topology.endpoint() {
                    continue;
                }
                if let Some((inbox, left)) = shared.inboxes.get_mut(&key) {
                    taken.push((end, Arc::clone(inbox)));
                    *left -= 1;
                    if *left == 0 {
                        shared.inboxes.remove(&key);
                    }
                    continue;
                }
                let Some(got) = shared.arrived.remove(&key) else {
                    continue;
                };
                let [descriptor] = got.try_into().map_err(|got: Vec<OwnedFd>| {
                    let why = format!("{} descriptors where 1 belongs", got.len());
                    Error::bad_peer(topology.rank_of(end).0, why)
                })?;
                // One mapping for all of this process.
                let inbox = Segment::attach_up_to(descriptor, least, most)?;
                if others > 0 {
                    shared.inboxes.insert(key, (Arc::clone(&inbox), others));
                }
                taken.push((end, inbox));
            }
            Ok(taken)
        })
    }
}

/// The end of a job whose launcher cannot be asked. Its start is long over, so that what came with
/// doorbells then comes without any now.
impl NodeExchange {
    /// Tells the relays of the node's other processes that the ranks of this one have arrived.
    /// Where one is gone, it has waited for as long as it may, and so do the others.
    pub fn tell_arrived(
        &self,
        topology: &Topology,
        label: &Label,
        deadline: Instant,
    ) -> Result<()> {
        let stream = BELLS;
        let label = Label { stream, ..*label };
        match self.process.give_to_all(topology, &label, &[], deadline) {
            Err(Error::PeerDead { .. }) => Ok(()),
            told => told.map(drop),
        }
    }

    /// Whether all of them have told.
    pub fn has_node_arrived(&mut self, topology: &Topology) -> bool {
        let look = |shared: &mut Shared| shared.missing(topology, BELLS);
        let missing = self.process.desk.look(&mut self.seen, look);
        let relays = missing.into_iter().filter(|&end| end >= topology.size());
        relays.count() == 0
    }
}

/// What the ranks of a process ask of its relay, and what it answers.
impl NodeExchange {
    /// Asks the relay, as all its ranks do in the same order: the first of them to come so far says
    /// what. The number of the request, where it is counted.
    ///
    /// # Errors
    /// The agent, where that is the relay, is gone.
    pub fn ask(&mut self, about: &Talk<'_>, request: Request) -> Result<u64> {
        let number = self.requests;
        self.requests += u64::from(request.is_counted());
        if about.topology.has_agents() {
            let agent = about.topology.relay_of(about.topology.process());
            self.say(about, agent, &Said::Request(number, request))?;
        } else {
            let ranks = about.topology.relayed_ranks();
            self.process
                .change(|shared| shared.requests.ask(number, request, ranks));
        }
        Ok(number)
    }

    /// What the relay has answered, once it has; each rank takes it once.
    ///
    /// # Errors
    /// What has kept the relay from answering.
    pub fn answer(&mut self, about: &Talk<'_>, number: u64) -> Result<Option<Answer>> {
        let ranks = about.topology.relayed_ranks();
        let is_told = about.topology.has_agents();
        if is_told {
            self.keep_arrived(about.topology, about.cookie)?;
        }
        let look = |shared: &mut Shared| match shared.answers.remove(&number) {
            Some(answer) => Ok(Some(answer)),
            None => shared.requests.answer(number, ranks),
        };
        self.process.desk.look(&mut self.seen, look)
    }

    /// Whether the agent of this rank is a process that has ended, or any agent of a job on one
    /// node.
    pub fn has_lost_agent(&self, topology: &Topology) -> bool {
        let own = topology.relay_of(topology.process());
        let agents = topology.ends_here().filter(|&end| is_agent(topology, end));
        let mut asked = agents.filter(|&agent| agent == own || topology.nodes() == 1);
        asked.any(|agent| {
            let mut watches = self.watches.iter();
            // Those of processes that have ended properly are dropped.
            let watch = watches.find(|(end, _)| *end == agent);
            watch.is_none_or(|(_, watch)| watch.has_ended())
        })
    }

    /// Comes to the barrier of this process's ranks, so many; what [`have_come`](Self::have_come)
    /// is asked with.
    pub fn come_to_barrier(&mut self, ranks: u32) -> u64 {
        let ranks = u64::from(ranks);
        self.idle_since = None;
        self.process.change(|shared| {
            shared.come += 1;
            // All of one barrier come before any comes to the next one.
            shared.come.div_ceil(ranks) * ranks
        })
    }

    /// Whether all ranks of this process have come to the barrier.
    pub fn have_come(&mut self, all: u64) -> bool {
        let desk = &self.process.desk;
        if self.idle_since.is_some_and(|seen| !desk.is_changed(seen)) {
            return false; // it is asked in each round
        }
        let has_all = desk.look(&mut self.seen, |shared| shared.come >= all);
        self.idle_since = Some(self.seen);
        has_all
    }

    /// The next request of a relay's ranks, once it is there; one that all have to make, once they
    /// have.
    ///
    /// # Errors
    /// What has ended one of them.
    pub fn next_request(&mut self, about: &Talk<'_>) -> Result<Option<Request>> {
        // Whoever sleeps is woken by what comes, and whoever does not looks now and then.
        self.asked_since += 1;
        let must_look = self.is_owed || self.asked_since.is_multiple_of(ROUNDS_PER_LOOK);
        if about.topology.has_agents() && must_look {
            self.keep_arrived(about.topology, about.cookie)?;
        }
        let desk = &self.process.desk;
        if self.idle_since.is_some_and(|seen| !desk.is_changed(seen)) {
            return Ok(None); // a relay asks in each round
        }
        let (number, ranks) = (self.requests, about.topology.relayed_ranks());
        let look = |shared: &mut Shared| shared.requests.next(number, ranks);
        let next = desk.look(&mut self.seen, look)?;
        self.requests += u64::from(next.as_ref().is_some_and(Request::is_counted));
        self.idle_since = next.is_none().then_some(self.seen);
        Ok(next)
    }

    /// Answers the last request.
    ///
    /// # Errors
    /// A rank that lives cannot be told, and would wait for it.
    pub fn reply(&mut self, about: &Talk<'_>, answer: Answer) -> Result<()> {
        let number = self.requests - 1;
        if about.topology.has_agents() {
            self.say_to_ranks(about, &Said::Answer(number, answer))?;
            self.process
                .change(|shared| shared.requests.answered(number));
        } else {
            self.process
                .change(|shared| shared.requests.reply(number, answer));
        }
        Ok(())
    }

    /// An endpoint of this relay cannot go on: who waits for its answers hears of it.
    pub fn give_up(&self, about: &Talk<'_>, error: &Error) {
        self.process.give_up(error);
        if about.topology.has_agents() && about.topology.is_relay() {
            // The board says it too.
            let _ = self.say_to_ranks(about, &Said::GivenUp(error.clone()));
        }
    }

    /// Says something to all ranks of this agent. One that is gone is missed by others.
    ///
    /// # Errors
    /// What keeps it from reaching one that is not, once the others have been told.
    fn say_to_ranks(&self, about: &Talk<'_>, said: &Said) -> Result<()> {
        let (topology, ranks) = (about.topology, about.topology.relayed_ranks());
        let first = topology.first_of_process(topology.process()).0;
        let mut outcome = Ok(());
        for rank in (first..first + ranks).map(EndpointId) {
            if let Err(error) = self.say(about, rank, said) {
                tracing::debug!(%error, to = rank.0, "a rank does not hear its agent");
                if !error.is_about_peer() {
                    outcome = Err(error);
                }
            }
        }
        outcome
    }

    fn say(&self, about: &Talk<'_>, to: EndpointId, said: &Said) -> Result<()> {
        let deadline = Instant::now() + about.timeout;
        self.process
            .say(about.topology, to, said, about.cookie, deadline)
    }
}

/// What ranks and their relay say to each other is about.
pub(crate) struct Talk<'a> {
    pub topology: &'a Topology,
    pub cookie: u64,
    /// Bound of handing over one message.
    pub timeout: Duration,
}

/// Rounds of an agent that does not sleep, after which it looks for what its ranks ask: that is a
/// system call.
const ROUNDS_PER_LOOK: u64 = 64;
