//! Endpoints: the ranks of a job and its relays, and where on its node each has its place.

use std::fmt;
use std::sync::Arc;

use super::placement::{Blocks, Placement};
use super::{EndpointId, NodeId, Processes, Rank, Topology, invalid};
use crate::error::Result;

/// The processes of a job with relays.
impl Processes {
    /// The first rank of a process, which stands for its relay.
    pub(super) fn first_of(&self, process: u32) -> Rank {
        self.hosted.rank_at(NodeId(process), 0)
    }

    fn ranks_of(&self, process: u32) -> u32 {
        self.hosted.local_size_of(NodeId(process))
    }

    fn of(&self, rank: Rank) -> u32 {
        self.hosted.node_of(rank).0
    }
}

/// Jobs with relays.
impl Topology {
    /// The job whose processes are the ranks of this one: each has `ranks` ranks, numbered
    /// process by process, and a relay. Seen from the first rank of the process that looks.
    ///
    /// # Errors
    /// When `ranks` is 0, there are relays already, or endpoints pass 2^32 - 1.
    pub fn with_relays(&self, ranks: u32) -> Result<Self> {
        let mut merged = Blocks::default();
        for block in &self.placement.blocks {
            let here = block.ranks_per_node.checked_mul(ranks);
            let here = here.ok_or_else(|| invalid(format!("{ranks} ranks of each process")))?;
            merged.place(block.first_node, block.nodes, here)?;
        }
        let mut hosted = Blocks::default();
        hosted.place(0, self.size(), ranks)?;
        self.with_hosts(merged, hosted, false)
    }

    /// As [`Topology::with_relays`], where each relay is an *agent*: a process without a rank, and
    /// its ranks are processes of their own. `ranks` are those of each node, by its number; the
    /// agents of a node, which are ranks of this job, share them evenly, the first ones taking the
    /// remainder.
    ///
    /// # Errors
    /// As that; when a node has fewer ranks than agents, or it is not known how many.
    pub fn with_agents(&self, ranks: &[u32]) -> Result<Self> {
        if ranks.len() != self.nodes() as usize {
            let why = format!("ranks of {} nodes, of {}", ranks.len(), self.nodes());
            return Err(invalid(why));
        }
        let (mut merged, mut hosted) = (Blocks::default(), Blocks::default());
        // Of agents that follow each other on one node.
        let mut open: Option<(NodeId, u32)> = None;
        for agent in (0..self.size()).map(Rank) {
            let node = self.node_of(agent);
            let (here, agents) = (ranks[node.0 as usize], self.local_size_of(node));
            if here < agents {
                return Err(invalid(format!(
                    "node {node} has {here} ranks and {agents} agents: each agent needs a rank"
                )));
            }
            let own = here / agents + u32::from(self.local_rank_of(agent) < here % agents);
            hosted.place(agent.0, 1, own)?;
            open = match open {
                Some((last, before)) if last == node => Some((node, before + own)),
                Some((last, before)) => {
                    merged.place(last.0, 1, before)?;
                    Some((node, own))
                }
                None => Some((node, own)),
            };
        }
        if let Some((node, all)) = open {
            merged.place(node.0, 1, all)?;
        }
        self.with_hosts(merged, hosted, true)
    }

    fn with_hosts(&self, ranks: Blocks, hosted: Blocks, apart: bool) -> Result<Self> {
        if self.processes.is_some() {
            let why = "ranks that are threads of a process (mini-ranks) have its relay: they do \
                       not start by an agent";
            return Err(invalid(why.into()));
        }
        let placement = Arc::new(Placement::new(ranks.list)?);
        if placement.size.checked_add(self.size()).is_none() {
            return Err(invalid(format!(
                "{} ranks and {} relays pass 2^32 - 1",
                placement.size,
                self.size()
            )));
        }
        let processes = Processes {
            placement: Arc::clone(&self.placement),
            hosted: Arc::new(Placement::new(hosted.list)?),
            apart,
        };
        let me = processes.first_of(self.rank.0).into();
        Self::seat_end(placement, Some(processes), me)
    }

    /// Whether relays are agents: see [`Topology::with_agents`].
    pub fn has_agents(&self) -> bool {
        self.processes.as_ref().is_some_and(|all| all.apart)
    }

    /// Whether an endpoint lives in the process that looks.
    ///
    /// # Panics
    /// When `end` is not in the job.
    pub fn is_in_process(&self, end: EndpointId) -> bool {
        match self.has_agents() {
            true => end == self.me,
            false => self.process_of(end) == self.process(),
        }
    }

    /// The endpoint of my node that makes what the node has once: the first rank, or the first
    /// agent.
    pub fn keeper(&self) -> EndpointId {
        let place = if self.has_agents() {
            self.local_size
        } else {
            0
        };
        self.endpoint_at(place)
    }

    /// The same job as another endpoint sees it.
    ///
    /// # Errors
    /// When there is no such endpoint.
    pub fn seen_by(&self, end: EndpointId) -> Result<Self> {
        let seen = Self::seat_end(Arc::clone(&self.placement), self.processes.clone(), end)?;
        Ok(Self {
            hosted: self.hosted.clone(),
            ..seen
        })
    }

    /// The processes of a job with relays, as ranks of a job without, seen from this one: of a job
    /// without relays the job itself.
    pub fn processes(&self) -> Self {
        match &self.processes {
            None => self.clone(),
            Some(all) => Self {
                hosted: Some(Arc::clone(&all.hosted)),
                ..Self::seat(Arc::clone(&all.placement), Rank(all.of(self.rank)))
                    .expect("the process of a rank of the job")
            },
        }
    }

    /// What users call a rank of [`Topology::processes`]: the first rank of that process in the
    /// job. Of any other job the rank itself.
    pub fn named(&self, rank: Rank) -> Rank {
        let hosted = self.hosted.as_ref();
        hosted.map_or(rank, |hosted| hosted.rank_at(NodeId(rank.0), 0))
    }

    /// Number of the process that an endpoint lives in, as the launcher counts them.
    ///
    /// # Panics
    /// When `end` is not in the job.
    pub fn process_of(&self, end: EndpointId) -> u32 {
        match (&self.processes, end.0.checked_sub(self.size())) {
            (_, None) => self.process_of_rank(Rank(end.0)),
            (Some(all), Some(relay)) if relay < all.placement.size => relay,
            _ => panic!("no endpoint {end} in the job"),
        }
    }

    /// Number of the process that a rank lives in, or whose relay is its agent.
    ///
    /// # Panics
    /// When `rank` is not in the job.
    #[inline]
    pub fn process_of_rank(&self, rank: Rank) -> u32 {
        self.processes.as_ref().map_or(rank.0, |all| all.of(rank))
    }

    /// The endpoints of this process: an agent or a rank alone, or its ranks and, behind them, its
    /// relay.
    pub fn ends_of_process(&self) -> impl Iterator<Item = EndpointId> + use<> {
        let process = self.process_of(self.me);
        let (first, ranks) = match self.has_agents() {
            true => (self.me.0, 1),
            false => (self.first_of_process(process).0, self.relayed_ranks()),
        };
        let is_hosted = self.has_relays() && !self.has_agents();
        let relay = is_hosted.then(|| self.relay_of(process));
        (first..first + ranks).map(EndpointId).chain(relay)
    }

    /// Whether the endpoint that looks speaks for its process with others: a relay, or a rank that
    /// is alone in its process.
    pub fn is_host(&self) -> bool {
        self.is_relay() || !self.has_relays() || self.has_agents()
    }

    /// Number of the process that looks.
    pub fn process(&self) -> u32 {
        self.process_of(self.me)
    }

    /// Whether the job has relays.
    pub fn has_relays(&self) -> bool {
        self.processes.is_some()
    }

    /// The first rank of a process, or of an agent. Those that follow are its others.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn first_of_process(&self, process: u32) -> Rank {
        let all = self.processes.as_ref();
        all.map_or(Rank(process), |all| all.first_of(process))
    }

    /// Ranks that the relay of a process has: 1 where there are no relays.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn ranks_of_process(&self, process: u32) -> u32 {
        let all = self.processes.as_ref();
        all.map_or(1, |all| all.ranks_of(process))
    }

    /// Ranks that the relay of the process that looks has, or that has this rank: 1 where there are
    /// no relays.
    pub fn relayed_ranks(&self) -> u32 {
        self.ranks_of_process(self.process())
    }

    /// Ranks of the relay that has most.
    pub fn most_relayed_ranks(&self) -> u32 {
        let all = self.processes.as_ref();
        all.map_or(1, |all| all.hosted.local_sizes[2])
    }

    /// Ranks that live in this process, or in each one of ranks.
    pub fn ranks_in_process(&self) -> u32 {
        match self.has_agents() {
            true => 1,
            false => self.relayed_ranks(),
        }
    }

    /// Whether the endpoint that looks is a relay.
    #[inline]
    pub fn is_relay(&self) -> bool {
        self.me.0 >= self.placement.size
    }

    /// The relay of a process, by its number.
    ///
    /// # Panics
    /// When there is no such relay.
    pub fn relay_of(&self, process: u32) -> EndpointId {
        let end = self.size().checked_add(process).map(EndpointId);
        let end = end.filter(|&end| self.has_endpoint(end));
        end.unwrap_or_else(|| panic!("process {process} has no relay in the job"))
    }
}

/// Endpoints, which are the ranks alone where there are no relays.
impl Topology {
    /// The endpoint that looks.
    #[inline]
    pub fn endpoint(&self) -> EndpointId {
        self.me
    }

    /// Number of endpoints in the job: its ranks, and its relays.
    pub fn endpoints(&self) -> u32 {
        let relays = self.processes.as_ref().map_or(0, |all| all.placement.size);
        self.size() + relays
    }

    /// Whether there is such an endpoint in the job.
    pub fn has_endpoint(&self, end: EndpointId) -> bool {
        end.0 < self.endpoints()
    }

    /// The rank whose inbox an endpoint's is; of a relay the first one of its process, which stands
    /// for it.
    ///
    /// # Panics
    /// When `end` is not in the job.
    pub fn rank_of(&self, end: EndpointId) -> Rank {
        match (&self.processes, end.0.checked_sub(self.size())) {
            (_, None) => Rank(end.0),
            (Some(all), Some(relay)) if relay < all.placement.size => all.first_of(relay),
            _ => panic!("no endpoint {end} in the job"),
        }
    }

    /// What users call an endpoint: `rank 3`, or `relay 64 (of rank 60)`.
    ///
    /// # Panics
    /// When `end` is not in the job.
    pub fn name_of(&self, end: EndpointId) -> EndpointName {
        EndpointName {
            end,
            rank: self.rank_of(end),
            is_relay: end.0 >= self.size(),
        }
    }

    /// Node of an endpoint.
    ///
    /// # Panics
    /// When `end` is not in the job.
    pub fn node_of_endpoint(&self, end: EndpointId) -> NodeId {
        self.node_of(self.rank_of(end))
    }

    /// Whether an endpoint is on my node (I am).
    ///
    /// # Panics
    /// When `end` is not in the job.
    pub fn is_here(&self, end: EndpointId) -> bool {
        self.node_of_endpoint(end) == self.node
    }

    /// Number of endpoints on my node: of places for their inboxes.
    pub fn places(&self) -> u32 {
        self.local_size + self.local_relays()
    }

    /// Number of endpoints on the node that has most.
    pub fn most_places(&self) -> u32 {
        let relays = self.processes.as_ref();
        self.most_local() + relays.map_or(0, |all| all.placement.local_sizes[2])
    }

    /// Number of an endpoint among those of its node, the ranks first, in their order from 0: the
    /// place of its inbox, and of its lanes in the others'.
    ///
    /// # Panics
    /// When `end` is not in the job.
    pub fn place_of(&self, end: EndpointId) -> u32 {
        let rank = self.rank_of(end);
        match &self.processes {
            Some(all) if end.0 >= self.size() => {
                let process = Rank(end.0 - self.size());
                self.local_size_of(self.node_of(rank)) + all.placement.local_rank_of(process)
            }
            _ => self.local_rank_of(rank),
        }
    }

    /// My place.
    pub fn place(&self) -> u32 {
        match self.is_relay() {
            true => self.place_of(self.me),
            false => self.local_rank,
        }
    }

    /// The endpoint at a place of my node.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn endpoint_at(&self, place: u32) -> EndpointId {
        match (place.checked_sub(self.local_size), &self.processes) {
            (Some(relay), Some(all)) => {
                EndpointId(self.size() + all.placement.rank_at(self.node, relay).0)
            }
            _ => self.rank_at(self.node, place).into(),
        }
    }

    /// The endpoints of my node, by place.
    pub fn ends_here(&self) -> impl Iterator<Item = EndpointId> + '_ {
        (0..self.places()).map(|place| self.endpoint_at(place))
    }

    /// Number of relays on my node.
    pub fn local_relays(&self) -> u32 {
        let relays = self.processes.as_ref();
        relays.map_or(0, |all| all.placement.local_size_of(self.node))
    }
}

/// What users call an endpoint: see [`Topology::name_of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointName {
    end: EndpointId,
    /// The rank that stands for it.
    rank: Rank,
    is_relay: bool,
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_relay {
            true => write!(f, "relay {} (of rank {})", self.end, self.rank),
            false => write!(f, "rank {}", self.rank),
        }
    }
}
