//! A process of a node: what its endpoints share, and how it meets the node's other processes.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::Error as TransportError;
use trihop_transport::memory::descriptors::{Accepted, DescriptorListener};
use trihop_transport::memory::segment::Segment;
use trihop_transport::park::{Desk, ProcessWatch, Seen};
use trihop_transport::ring::{Bell, Doorbell};
use trihop_transport::sync::OnceLock;
use trihop_transport::topology::{EndpointId, Topology};
use trihop_transport::watch::{self, Board};

use super::requests::{Answer, Requests};
use super::said::Said;
use crate::error::{Error, Result};

/// What the endpoints of a process share.
pub(crate) struct Process {
    /// The sockets of the node's other processes, each with an endpoint that lives there: the first
    /// one.
    others: Vec<(EndpointId, String)>,
    /// What wakes its endpoints, where there are several.
    bells: OnceLock<Vec<Arc<Bell>>>,
    pub(super) desk: Desk<Shared>,
}

/// What has come to a process, or is handed from one of its endpoints to another.
pub(super) struct Shared {
    pub listener: DescriptorListener,
    /// Descriptors that came, by stream and endpoint; for streams that are not opened here yet,
    /// too.
    pub arrived: HashMap<(u16, u32), Vec<OwnedFd>>,
    /// Inboxes that are mapped here, and how many endpoints of this process have still to take
    /// them.
    pub inboxes: HashMap<(u16, u32), (Arc<Segment>, u32)>,
    pub requests: Requests,
    /// Ranks of this process that have come to its barrier.
    pub come: u64,
    /// What the agent has answered to this rank, by the numbers of its requests.
    pub answers: HashMap<u64, Answer>,
}

/// What the endpoints of a node have of each other once they have met.
#[derive(Clone)]
pub(crate) struct Met {
    /// By place.
    pub bells: Vec<Arc<Bell>>,
    pub board: Board,
    /// Wakes the node's watch; none where there is one node.
    pub wake: Option<Arc<OwnedFd>>,
}

/// What comes with descriptors that pass between the processes of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    pub cookie: u64,
    pub stream: u16,
    /// The endpoint whose they are.
    pub end: u32,
}

impl Label {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.cookie.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.stream.to_le_bytes());
        bytes.extend_from_slice(&self.end.to_le_bytes());
        bytes
    }

    /// With what stands behind it.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (cookie, rest) = bytes.split_first_chunk::<8>()?;
        let (stream, rest) = rest.split_first_chunk::<2>()?;
        let (end, rest) = rest.split_first_chunk::<4>()?;
        let label = Self {
            cookie: u64::from_le_bytes(*cookie),
            stream: u16::from_le_bytes(*stream),
            end: u32::from_le_bytes(*end),
        };
        Some((label, rest))
    }
}

/// Stream number under which doorbells are exchanged.
pub(super) const BELLS: u16 = u16::MAX;

/// Stream number of what ranks and their agent say to each other, and of why a process cannot start.
const SAID: u16 = u16::MAX - 1;

/// How often a rank that waits for doorbells looks whether those that owe them still run.
pub(super) const LOOK: Duration = Duration::from_millis(100);

impl Process {
    /// Nothing has arrived yet; `others` are the sockets of the node's other processes, each with the
    /// first endpoint that lives there.
    pub fn new(listener: DescriptorListener, others: Vec<(EndpointId, String)>) -> Self {
        Self {
            others,
            bells: OnceLock::new(),
            desk: Desk::new(Shared {
                listener,
                arrived: HashMap::new(),
                inboxes: HashMap::new(),
                requests: Requests::default(),
                come: 0,
                answers: HashMap::new(),
            }),
        }
    }

    /// Keeps what has come before this process knew its job.
    pub fn keep(&self, topology: &Topology, cookie: u64, parcels: Vec<Accepted>) {
        self.look(|shared| {
            let parcels = parcels.into_iter();
            parcels.for_each(|parcel| shared.keep(topology, cookie, parcel));
        });
    }

    /// Changes what is shared; the other endpoints look again.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut Shared) -> R) -> R {
        let bells = self.bells.get().into_iter().flatten();
        self.desk.change(bells.map(|bell| &**bell), change)
    }

    /// Looks at what is shared, for who does not sleep for it.
    pub(super) fn look<R>(&self, look: impl FnOnce(&mut Shared) -> R) -> R {
        self.desk.look(&mut Seen::default(), look)
    }

    /// Runs `call` while nobody else can look at the desk.
    #[cfg(test)]
    pub fn hold(&self, call: impl FnOnce()) {
        self.look(|_| call());
    }

    /// Whether it has several endpoints.
    pub(super) fn is_shared(&self) -> bool {
        self.bells.get().is_some()
    }

    /// An endpoint of this process cannot go on: who waits for its answers hears of it.
    pub fn give_up(&self, error: &Error) {
        self.change(|shared| shared.requests.give_up(error.clone()));
    }

    /// Gives the other processes of the node descriptors under `label`; the first endpoint of each,
    /// and the number of its process. They may give theirs at the same time: what has come is kept
    /// in between, so that few of them are under way at once.
    pub(super) fn give_to_all(
        &self,
        topology: &Topology,
        label: &Label,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Vec<(EndpointId, u32)>> {
        self.give_to(|_| true, topology, label, descriptors, deadline)
    }

    /// As [`give_to_all`](Self::give_to_all), to some.
    pub(super) fn give_to(
        &self,
        to: impl Fn(EndpointId) -> bool,
        topology: &Topology,
        label: &Label,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Vec<(EndpointId, u32)>> {
        let (message, cookie) = (label.encode(), label.cookie);
        let mut keep = || -> Result<(), TransportError> {
            let kept = self.look(|shared| shared.keep_arrived(topology, cookie))?;
            if kept && self.is_shared() {
                self.change(|_| ()); // others of this process may wait for them
            }
            Ok(())
        };
        let mut given = Vec::new();
        for (end, name) in self.others.iter().filter(|(end, _)| to(*end)) {
            keep()?;
            // Each process listens before anybody hears of its name.
            let hand = DescriptorListener::send_meanwhile;
            let number = hand(name, &message, descriptors, deadline, &mut keep);
            let number = number.map_err(|error| unreachable_or(topology.rank_of(*end).0, error));
            // A job on one node that has started goes on without agents that are gone.
            let may_go = label.stream != BELLS && is_agent(topology, *end) && topology.nodes() == 1;
            match number {
                Err(error) if may_go && error.is_about_peer() => {
                    tracing::debug!(%error, "an agent does not hear of a stream");
                }
                number => given.push((*end, number?)),
            }
        }
        Ok(given)
    }

    /// Says something to another process of the node: to a rank of this agent, or to the agent of
    /// this rank, or to any why this one cannot start.
    pub(super) fn say(
        &self,
        topology: &Topology,
        to: EndpointId,
        said: &Said,
        cookie: u64,
        deadline: Instant,
    ) -> Result<()> {
        let label = Label {
            cookie,
            stream: SAID,
            end: topology.endpoint().0,
        };
        let message = [label.encode(), said.encode()].concat();
        let Some((end, name)) = self.others.iter().find(|(end, _)| *end == to) else {
            return Err(Error::bad_peer(topology.rank_of(to).0, "it has no socket"));
        };
        let rank = topology.rank_of(*end).0;
        let hand = || DescriptorListener::send_to_listener(name, &message, &[], deadline);
        let handed = match hand() {
            Err(error) if error.is_want_of_descriptors() => {
                self.look(|shared| shared.listener.with_reserve(hand))
            }
            handed => handed,
        };
        handed
            .map(drop)
            .map_err(|error| unreachable_or(rank, error))
    }

    /// Has the endpoints of this process and of the node's others exchange doorbells, and the first
    /// process's board; nobody needs anybody's progress yet, so this simply waits. `doorbells` are
    /// those of this process's endpoints. With what the host watches the other processes' lives by.
    ///
    /// # Errors
    /// Where another cannot start, what it has said before it went.
    pub fn meet(
        &self,
        topology: &Topology,
        doorbells: &[Doorbell],
        cookie: u64,
        deadline: Instant,
    ) -> Result<(Met, Vec<(EndpointId, ProcessWatch)>)> {
        let met = self.meet_others(topology, doorbells, cookie, deadline);
        met.map_err(|error| {
            self.look(|shared| {
                let kept = shared.keep_arrived(topology, cookie).map_err(Error::from);
                let said = kept.and_then(|_| shared.requests.check());
                said.err().unwrap_or(error)
            })
        })
    }

    fn meet_others(
        &self,
        topology: &Topology,
        doorbells: &[Doorbell],
        cookie: u64,
        deadline: Instant,
    ) -> Result<(Met, Vec<(EndpointId, ProcessWatch)>)> {
        let own: Vec<EndpointId> = topology.ends_of_process().collect();
        let first = own[0] == topology.keeper();
        let mut board = first.then(|| Board::create(topology)).transpose()?;
        let mut wake = (first && topology.nodes() > 1)
            .then(watch::eventfd)
            .transpose()?
            .map(Arc::new);
        let mut watches = Vec::new();
        for (&end, doorbell) in own.iter().zip(doorbells) {
            let segment = doorbell.segment()?;
            let mut descriptors = vec![segment.descriptor()?, doorbell.descriptor()?];
            if end == own[0] {
                descriptors.extend(board.as_ref().map(Board::descriptor).transpose()?);
                descriptors.extend(wake.as_ref().map(AsFd::as_fd));
            }
            let label = Label {
                cookie,
                stream: BELLS,
                end: end.0,
            };
            let numbers = self.give_to_all(topology, &label, &descriptors, deadline)?;
            for (other, number) in numbers.into_iter().filter(|_| end == own[0]) {
                let rank = topology.rank_of(other).0;
                let watch = watch(number, rank)?;
                watches.push((other, watch));
            }
        }
        self.wait_for_bells(topology, cookie, deadline, &watches)?;
        let mut bells = Vec::new();
        for end in topology.ends_here() {
            if let Some(mine) = own.iter().position(|&own| own == end) {
                bells.push(doorbells[mine].bell());
                continue;
            }
            let rank = topology.rank_of(end);
            let arrived = self.look(|shared| shared.arrived.remove(&(BELLS, end.0)));
            let theirs = arrived.unwrap_or_default();
            let (count, mut theirs) = (theirs.len(), theirs.into_iter());
            let wrong =
                || Error::bad_peer(rank.0, format!("{count} descriptors that are no doorbell"));
            let (memory, eventfd) = theirs.next().zip(theirs.next()).ok_or_else(wrong)?;
            bells.push(Bell::attach(
                Segment::attach(memory, doorbells[0].segment()?.len())?,
                eventfd,
            )?);
            if end == topology.keeper() {
                let memory = theirs.next().ok_or_else(wrong)?;
                let shared = Segment::attach(memory, Board::bytes(topology))?;
                board = Some(Board::over(shared, topology));
                wake = theirs.next().map(Arc::new);
                if wake.is_some() != (topology.nodes() > 1) {
                    return Err(wrong());
                }
            }
            if theirs.next().is_some() {
                return Err(wrong());
            }
        }
        if own.len() > 1 {
            let own = doorbells.iter().map(Doorbell::bell).collect();
            self.bells.set(own).expect("a process meets others once");
        }
        // The first process has made one, and the others have attached it.
        let board = board
            .ok_or_else(|| not_arrived(&[topology.rank_of(topology.keeper()).0], &"no board"))?;
        Ok((Met { bells, board, wake }, watches))
    }

    fn wait_for_bells(
        &self,
        topology: &Topology,
        cookie: u64,
        deadline: Instant,
        watches: &[(EndpointId, ProcessWatch)],
    ) -> Result<()> {
        self.look(|shared| {
            loop {
                let missing = shared.missing(topology, BELLS);
                let others = |end: &u32| !topology.is_in_process(EndpointId(*end));
                let missing: Vec<u32> = missing.into_iter().filter(others).collect();
                if missing.is_empty() {
                    return Ok(());
                }
                shared.requests.check()?;
                let ranks: Vec<u32> = ranks_of(topology, &missing);
                match shared.listener.accept(deadline.min(Instant::now() + LOOK)) {
                    Ok(parcel) => shared.keep(topology, cookie, parcel),
                    Err(error) => {
                        if !error.is_timeout() || Instant::now() >= deadline {
                            return Err(not_arrived(&ranks, &error));
                        }
                        // Nobody leaves a job that others still come to: also one whose doorbells
                        // are here is missed, and who owes theirs may have given up for it.
                        if let Some((end, _)) = watches.iter().find(|(_, watch)| watch.has_ended())
                        {
                            return Err(ended(topology.rank_of(*end).0));
                        }
                    }
                }
            }
        })
    }
}

/// A process that has not started its job yet. Where it goes before it has, all of its node hear
/// why: of an agent, whose process may live on, and of any other one, so that those that have not
/// met all name whose end it was that has ended others. A rank of an agent tells nobody: it is the
/// agent that misses it. Nor does who has waited for too long, or lost its launcher: what the
/// others then find themselves says more.
pub(crate) struct Unstarted<'a> {
    /// None where there is nobody to tell.
    teller: Option<(&'a Process, &'a Topology, u64)>,
}

impl<'a> Unstarted<'a> {
    /// Of any process. It is dropped untold only by a panic.
    pub fn new(process: &'a Process, topology: &'a Topology, cookie: u64) -> Self {
        let tells = topology.is_relay() || !topology.has_agents();
        Self {
            teller: tells.then_some((process, topology, cookie)),
        }
    }

    pub fn has_started(mut self) {
        self.teller = None;
    }

    /// What has kept it from that.
    pub fn has_failed(mut self, error: &Error) {
        self.tell(Some(error));
    }

    fn tell(&mut self, error: Option<&Error>) {
        let Some((process, topology, cookie)) = self.teller.take() else {
            return;
        };
        let why = || match error {
            Some(error) => error.to_string(),
            None => "it has panicked, as its log says".to_owned(),
        };
        let said = Said::GivenUp(match (topology.has_agents(), error) {
            (true, _) => Error::Environment {
                key: "agent".to_owned(),
                why: format!("it could not start this job: {}", why()),
            },
            (false, Some(Error::Bootstrap { .. })) => return,
            (false, Some(error)) if error.is_about_peer() => error.clone(),
            (false, _) => Error::PeerFailed {
                rank: topology.rank_of(topology.endpoint()).0,
                why: format!("it could not start this job: {}", why()),
            },
        });
        for (end, _) in &process.others {
            let deadline = Instant::now() + LOOK;
            if let Err(error) = process.say(topology, *end, &said, cookie, deadline) {
                tracing::debug!(%error, to = end.0, "it does not hear why");
            }
        }
    }
}

impl Drop for Unstarted<'_> {
    fn drop(&mut self) {
        self.tell(None);
    }
}

impl Shared {
    /// Endpoints of the node whose inboxes for `stream` are not here.
    pub fn missing(&self, topology: &Topology, stream: u16) -> Vec<u32> {
        let others = topology
            .ends_here()
            .filter(|&end| end != topology.endpoint());
        others
            .map(|end| end.0)
            .filter(|&end| {
                let key = (stream, end);
                !self.arrived.contains_key(&key) && !self.inboxes.contains_key(&key)
            })
            .collect()
    }

    /// Keeps a parcel of another process of this job; anything else is dropped.
    fn keep(&mut self, topology: &Topology, cookie: u64, parcel: Accepted) {
        let (bytes, descriptors, _) = parcel;
        let label = Label::decode(&bytes).filter(|(label, _)| label.cookie == cookie);
        let Some((label, rest)) = label else {
            return;
        };
        let end = EndpointId(label.end);
        let known = topology.has_endpoint(end) && topology.is_here(end);
        if !known || topology.is_in_process(end) {
            return;
        }
        match (label.stream, rest.is_empty()) {
            (SAID, false) => self.hear(topology, end, rest),
            (SAID, true) | (_, false) => {}
            _ => drop(self.arrived.insert((label.stream, label.end), descriptors)),
        }
    }

    /// What a rank has said to its agent, or the agent to a rank, or any agent of the node that it
    /// has given up, or, in a job without agents, anybody of the node; what others say is dropped.
    /// Where it cannot be read, or a request is missing, a rank would wait for an answer for ever.
    fn hear(&mut self, topology: &Topology, end: EndpointId, bytes: &[u8]) {
        let has_agents = topology.has_agents();
        let is_agent = is_agent(topology, end);
        let is_between = has_agents
            && topology.process_of(end) == topology.process()
            && topology.is_relay() != is_agent;
        let said = Said::decode(bytes);
        let is_given_up = matches!(said, Some(Said::GivenUp(_)));
        let is_for_all = is_given_up && (is_agent || !has_agents);
        if !is_between && !is_for_all {
            return;
        }
        let is_heard = match said {
            Some(Said::Request(number, request)) => {
                let ranks = topology.relayed_ranks();
                self.requests.ask(number, request, ranks)
            }
            Some(Said::Answer(number, answer)) => {
                self.answers.insert(number, answer);
                true
            }
            Some(Said::GivenUp(error)) => {
                self.requests.give_up(error);
                true
            }
            None => false,
        };
        if !is_heard {
            let why = match topology.is_relay() {
                true => "what it said to its agent cannot be read, or is not all that it asked",
                false => "what the agent of its node said cannot be read",
            };
            let error = Error::bad_peer(topology.rank_of(end).0, why);
            self.requests.give_up(error);
        }
    }

    /// Keeps the parcels that have arrived so far; whether there were any.
    pub fn keep_arrived(
        &mut self,
        topology: &Topology,
        cookie: u64,
    ) -> Result<bool, TransportError> {
        let mut any = false;
        while let Some(parcel) = self.listener.try_accept()? {
            self.keep(topology, cookie, parcel);
            any = true;
        }
        Ok(any)
    }
}

/// Whether an endpoint is an agent's.
pub(super) fn is_agent(topology: &Topology, end: EndpointId) -> bool {
    topology.has_agents() && end.0 >= topology.size()
}

/// The ranks that stand for endpoints, each once.
pub(super) fn ranks_of(topology: &Topology, ends: &[u32]) -> Vec<u32> {
    let ranks = ends.iter().map(|&end| topology.rank_of(EndpointId(end)).0);
    let mut ranks: Vec<u32> = ranks.collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Nobody listens where a rank did, or what it had not taken yet came back: it is gone.
pub(super) fn unreachable_or(rank: u32, error: TransportError) -> Error {
    use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset};
    match error {
        TransportError::System { source, .. }
            if matches!(
                source.kind(),
                ConnectionRefused | ConnectionReset | BrokenPipe
            ) =>
        {
            let why = "its process takes no descriptors any more: it has ended".to_owned();
            TransportError::PeerDead { rank, how: why }.into()
        }
        error => error.into(),
    }
}

/// Watches the process of a rank.
pub(super) fn watch(process: u32, rank: u32) -> Result<ProcessWatch> {
    ProcessWatch::open(process).map_err(|error| match error.is_no_process() {
        true => ended(rank),
        false => error.into(),
    })
}

pub(super) fn ended(rank: u32) -> Error {
    let why = "its process ended before the job had started".to_owned();
    TransportError::PeerDead { rank, how: why }.into()
}

pub(crate) fn not_arrived(missing: &[u32], error: &dyn std::fmt::Display) -> Error {
    let why = format!("ranks {missing:?} of this node have not handed over their memory: {error}");
    TransportError::Bootstrap {
        launcher: "node",
        why,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trihop_transport::topology::Rank;

    const COOKIE: u64 = 7;

    /// Ranks and agents of one node, by endpoint, each seen by itself.
    fn node_with_agents(what: &str) -> Vec<(Process, Topology)> {
        let agents = Topology::from_node_sizes(&[2], Rank(0)).unwrap();
        node(what, &agents.with_agents(&[2]).unwrap())
    }

    fn node(what: &str, topology: &Topology) -> Vec<(Process, Topology)> {
        let name = |end: EndpointId| format!("trihop-{what}-{}-{}", std::process::id(), end.0);
        let ends = topology.ends_here();
        ends.map(|end| {
            let seen = topology.seen_by(end).unwrap();
            let others = topology.ends_here().filter(|other| *other != end);
            let others = others.map(|other| (other, name(other))).collect();
            let listener = DescriptorListener::listen(&name(end), 8).unwrap();
            (Process::new(listener, others), seen)
        })
        .collect()
    }

    fn what_has_failed((process, topology): &(Process, Topology)) -> Option<String> {
        process.look(|shared| {
            shared.keep_arrived(topology, COOKIE).unwrap();
            shared.requests.check().err().map(|error| error.to_string())
        })
    }

    #[test]
    fn an_agent_that_cannot_start_a_job_is_heard_by_its_whole_node() {
        let node = node_with_agents("unstarted");
        let (process, topology) = &node[3];
        assert!(topology.is_relay());
        Unstarted::new(process, topology, COOKIE).has_started();
        assert!(node.iter().all(|one| what_has_failed(one).is_none()));
        let unstarted = Unstarted::new(process, topology, COOKIE);
        unstarted.has_failed(&Error::config("files", "none is left"));
        for one in &node[..3] {
            let heard = what_has_failed(one).unwrap_or_default();
            assert!(heard.contains("could not start this job"), "{heard}");
            assert!(heard.contains("none is left"), "{heard}");
        }
    }

    #[test]
    fn who_misses_a_rank_names_the_one_because_of_which_that_has_gone() {
        let topology = Topology::from_node_sizes(&[3], Rank(0)).unwrap();
        for (what, error, word) in [
            ("gone", ended(2), "rank 2 is gone"),
            ("failed", Error::config("a", "b"), "rank 0 has failed"),
            ("late", not_arrived(&[2], &"late"), "rank 0 is gone"),
        ] {
            let mut node = node(what, &topology);
            let (process, topology) = node.remove(0);
            Unstarted::new(&process, &topology, COOKIE).has_failed(&error);
            // It has ended, and nobody listens there any more.
            drop(process);
            for (process, topology) in node {
                let doorbells = [Doorbell::create().unwrap()];
                let deadline = Instant::now() + Duration::from_secs(60);
                let met = process.meet(&topology, &doorbells, COOKIE, deadline);
                let error = met.err().expect("nobody meets it").to_string();
                assert!(error.starts_with(word), "{error}");
            }
        }
    }

    #[test]
    fn who_waits_for_doorbells_hears_of_one_that_ends_behind_its_own() {
        let topology = Topology::from_node_sizes(&[3], Rank(1)).unwrap();
        let name = format!("trihop-ends-{}", std::process::id());
        let process = Process::new(DescriptorListener::listen(&name, 8).unwrap(), Vec::new());
        process.look(|shared| shared.arrived.insert((BELLS, 0), Vec::new()));
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        let watches = [
            (EndpointId(0), ProcessWatch::open(dead.id()).unwrap()),
            (
                EndpointId(2),
                ProcessWatch::open(std::process::id()).unwrap(),
            ),
        ];
        // Rank 2 lives, and hands over nothing: it has given up.
        let deadline = Instant::now() + Duration::from_secs(60);
        let waited = process.wait_for_bells(&topology, COOKIE, deadline, &watches);
        let error = waited.unwrap_err().to_string();
        assert!(error.contains("rank 0 is gone"), "{error}");
        assert!(dead.wait().unwrap().success());
    }

    #[test]
    fn a_rank_has_nothing_to_say_to_other_agents_than_its_own() {
        let node = node_with_agents("unheard");
        let say = |from: usize, to: u32, said: Said| {
            let (process, topology) = &node[from];
            let deadline = Instant::now() + LOOK;
            let said = process.say(topology, EndpointId(to), &said, COOKIE, deadline);
            said.unwrap();
        };
        let given_up = || Said::GivenUp(Error::config("files", "none is left"));
        let (own, other) = (node[0].1.relay_of(0).0, node[0].1.relay_of(1).0);
        say(0, other, given_up());
        say(0, 1, given_up());
        assert!(node[1..].iter().all(|one| what_has_failed(one).is_none()));
        say(0, own, given_up());
        assert!(what_has_failed(&node[own as usize]).is_some());
    }
}
