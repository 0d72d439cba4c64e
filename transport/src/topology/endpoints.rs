//! Endpoints: the ranks of a job and its relays, and where on its node each has its place.

use std::fmt;
use std::sync::Arc;

use super::placement::{Blocks, Placement};
use super::{EndpointId, NodeId, Processes, Rank, Topology, invalid};
use crate::error::Result;

/// Jobs with relays.
impl Topology {
    /// The job whose processes are the ranks of this one: each has `ranks` ranks, numbered
    /// process by process, and a relay. Seen from the first rank of the process that looks.
    ///
    /// # Errors
    /// When `ranks` is 0, there are relays already, or endpoints pass 2^32 - 1.
    pub fn with_relays(&self, ranks: u32) -> Result<Self> {
        if self.processes.is_some() {
            return Err(invalid("processes have one relay each".into()));
        }
        let mut merged = Blocks::default();
        for block in &self.placement.blocks {
            let here = block.ranks_per_node.checked_mul(ranks);
            let here = here.ok_or_else(|| invalid(format!("{ranks} ranks of each process")))?;
            merged.place(block.first_node, block.nodes, here)?;
        }
        let placement = Arc::new(Placement::new(merged.list)?);
        if placement.size.checked_add(self.size()).is_none() {
            return Err(invalid(format!(
                "{} ranks and {} relays pass 2^32 - 1",
                placement.size,
                self.size()
            )));
        }
        let processes = Processes {
            placement: Arc::clone(&self.placement),
            ranks,
            apart: false,
        };
        let me = EndpointId(self.rank.0 * ranks);
        Self::seat_end(placement, Some(processes), me)
    }

    /// As [`Topology::with_relays`], where each relay is an *agent*: a process without a rank, and
    /// its ranks are processes of their own.
    ///
    /// # Errors
    /// As that.
    pub fn with_agents(&self, ranks: u32) -> Result<Self> {
        let mut topology = self.with_relays(ranks)?;
        topology
            .processes
            .iter_mut()
            .for_each(|all| all.apart = true);
        Ok(topology)
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
            each: self.each,
            ..seen
        })
    }

    /// The processes of a job with relays, as ranks of a job without, seen from this one: of a job
    /// without relays the job itself.
    pub fn processes(&self) -> Self {
        match &self.processes {
            None => self.clone(),
            Some(all) => Self {
                each: all.ranks,
                ..Self::seat(Arc::clone(&all.placement), Rank(self.rank.0 / all.ranks))
                    .expect("the process of a rank of the job")
            },
        }
    }

    /// What users call a rank of [`Topology::processes`]: the first rank of that process in the
    /// job. Of any other job the rank itself.
    pub fn named(&self, rank: Rank) -> Rank {
        Rank(rank.0 * self.each)
    }

    /// Number of the process that an endpoint lives in, as the launcher counts them.
    ///
    /// # Panics
    /// When `end` is not in the job.
    pub fn process_of(&self, end: EndpointId) -> u32 {
        let rank = self.rank_of(end).0;
        self.processes.as_ref().map_or(rank, |all| rank / all.ranks)
    }

    /// The endpoints of this process: an agent or a rank alone, or its ranks and, behind them, its
    /// relay.
    pub fn ends_of_process(&self) -> impl Iterator<Item = EndpointId> + use<> {
        let process = self.process_of(self.me);
        let (first, ranks) = match self.has_agents() {
            true => (self.me.0, 1),
            false => (process * self.ranks_per_process(), self.ranks_per_process()),
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

    /// Ranks of each relay: 1 where there are none.
    pub fn ranks_per_process(&self) -> u32 {
        self.processes.as_ref().map_or(1, |all| all.ranks)
    }

    /// Ranks that live in each process of ranks.
    pub fn ranks_in_process(&self) -> u32 {
        match self.has_agents() {
            true => 1,
            false => self.ranks_per_process(),
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
            (Some(all), Some(relay)) if relay < all.placement.size => Rank(relay * all.ranks),
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
        let local = self.local_rank_of(rank);
        match &self.processes {
            Some(all) if end.0 >= self.size() => {
                self.local_size_of(self.node_of(rank)) + local / all.ranks
            }
            _ => local,
        }
    }

    /// My place.
    pub fn place(&self) -> u32 {
        match &self.processes {
            Some(all) if self.is_relay() => self.local_size + self.local_rank / all.ranks,
            _ => self.local_rank,
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
        relays.map_or(0, |all| self.local_size / all.ranks)
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
