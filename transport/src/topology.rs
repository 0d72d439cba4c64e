//! Ranks, nodes, local ranks and representatives: who is where, without an array of one entry per
//! rank.
//!
//! A placement is a list of [`Block`]s. The usual placement (the same number of ranks on each node,
//! node after node) is one block however large the job; a cyclic placement has one block per local
//! rank.

mod endpoints;
mod mapping;
mod placement;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

pub use self::endpoints::EndpointName;
use self::mapping::ProcessMapping;
use self::placement::{Blocks, Placement};
use crate::error::{Error, Result};

/// Number of a rank within its job, dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u32);

/// Number of an endpoint, which has an inbox. Dense from 0: first the ranks of the job, by their
/// numbers, then its relays, where it has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u32);

/// Number of a node within its job, dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Rank> for EndpointId {
    fn from(rank: Rank) -> Self {
        Self(rank.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for Rank {
    fn from(rank: u32) -> Self {
        Self(rank)
    }
}

impl From<u32> for NodeId {
    fn from(node: u32) -> Self {
        Self(node)
    }
}

/// Consecutive ranks on consecutive nodes, the same number on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// First rank of the block, on its first node.
    pub first_rank: u32,
    /// Number of nodes, at least 1.
    pub nodes: u32,
    /// Ranks that the block places on each of its nodes, at least 1.
    pub ranks_per_node: u32,
    /// First node of the block; the others follow it.
    pub first_node: u32,
}

impl Block {
    fn ranks(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.ranks_per_node)
    }

    fn end_node(&self) -> u64 {
        u64::from(self.first_node) + u64::from(self.nodes)
    }

    /// The rank with number `local` among those that the block places on a node of its own.
    fn rank_at(&self, node: NodeId, local: u32) -> Rank {
        Rank(self.first_rank + (node.0 - self.first_node) * self.ranks_per_node + local)
    }

    fn holds(&self, node: NodeId) -> bool {
        node.0 >= self.first_node && node.0 - self.first_node < self.nodes
    }
}

/// Who is where, as one endpoint sees it.
///
/// An endpoint is a rank, or a *relay*: it has an inbox and no application, and speaks for the
/// ranks of one process, its *mini-ranks*, with other nodes. A job has no relays, or one for each
/// of its processes: [`Topology::with_relays`], [`Topology::with_agents`].
///
/// Look-ups are O(1) for one block, O(log blocks) where each node is in one block only, O(blocks)
/// otherwise. Memory is 16 bytes per block (20 with the index by node), shared by clones.
#[derive(Clone)]
pub struct Topology {
    placement: Arc<Placement>,
    /// Where there are relays: which processes there are.
    processes: Option<Processes>,
    /// The endpoint that looks, and the rank that stands for it.
    me: EndpointId,
    rank: Rank,
    node: NodeId,
    local_rank: u32,
    local_size: u32,
    /// Of [`Topology::processes`]: the ranks that each of these stands for.
    hosted: Option<Arc<Placement>>,
}

/// The processes of a job, by their numbers, with a relay in each.
#[derive(Clone)]
struct Processes {
    /// On which node each is.
    placement: Arc<Placement>,
    /// The ranks of the job, on processes where other placements have nodes.
    hosted: Arc<Placement>,
    /// The ranks live in processes of their own, and the relay in one without a rank.
    apart: bool,
}

impl Topology {
    /// Most blocks of one placement (16 MiB of them), against mappings that were made to exhaust
    /// memory.
    pub const MAX_BLOCKS: usize = 1 << 20;

    /// A placement from its blocks in rank order, seen from `me`.
    ///
    /// # Errors
    /// When ranks have gaps or overlap, a block is empty, node ids are not dense from 0, or `me` is
    /// not placed.
    pub fn new(blocks: Vec<Block>, me: Rank) -> Result<Self> {
        let mut merged = Blocks::default();
        for block in blocks {
            merged.append(block)?;
        }
        Self::seat(Arc::new(Placement::new(merged.list)?), me)
    }

    /// A placement from the node of each rank, compressed, seen from `me`.
    ///
    /// # Errors
    /// As [`Topology::new`].
    pub fn from_node_of<N: Copy + Into<NodeId>>(nodes: &[N], me: Rank) -> Result<Self> {
        Self::from_runs(nodes.iter().map(|node| Ok(((*node).into(), 1))), me)
    }

    /// A placement from runs of consecutive ranks on one node, in rank order: node and number of
    /// ranks. Seen from `me`.
    ///
    /// # Errors
    /// As [`Topology::new`], and the first error among the runs.
    pub fn from_runs(runs: impl Iterator<Item = Result<(NodeId, u32)>>, me: Rank) -> Result<Self> {
        let mut merged = Blocks::default();
        let mut open: Option<(NodeId, u32)> = None;
        for run in runs {
            let (node, ranks) = run?;
            open = match open {
                Some((last, before)) if last == node => Some((node, before.saturating_add(ranks))),
                Some((last, before)) => {
                    merged.place(last.0, 1, before)?;
                    Some((node, ranks))
                }
                None => Some((node, ranks)),
            };
        }
        if let Some((node, ranks)) = open {
            merged.place(node.0, 1, ranks)?;
        }
        Self::seat(Arc::new(Placement::new(merged.list)?), me)
    }

    /// Node after node, `sizes[n]` ranks on node `n`, seen from `me`.
    ///
    /// # Errors
    /// When a node is empty, there is none, or `me` is not placed.
    pub fn from_node_sizes(sizes: &[u32], me: Rank) -> Result<Self> {
        let mut merged = Blocks::default();
        for (node, size) in sizes.iter().enumerate() {
            merged.place(as_u32(node)?, 1, *size)?;
        }
        Self::seat(Arc::new(Placement::new(merged.list)?), me)
    }

    /// The placement of MPICH's `PMI_process_mapping`, e.g. `(vector,(0,2,4))`, for `size` ranks,
    /// seen from `me`.
    ///
    /// The tuples are (first node, nodes, ranks per node); the list is repeated until `size` ranks
    /// are placed. MPICH 5 also writes a node that has one rank as its number alone, and tuples that
    /// are repeated as `[(0,2,1)]x3`. Node ids that no rank uses are closed up.
    ///
    /// # Errors
    /// When the text is no such mapping, or places no rank.
    pub fn from_process_mapping(text: &str, size: u32, me: Rank) -> Result<Self> {
        let mapping: ProcessMapping = text.parse()?;
        let mut merged = Blocks::default();
        if let Some(node) = mapping.only_node().filter(|_| size > 0) {
            merged.place(node, 1, size)?;
        }
        while merged.ranks < u64::from(size) {
            for (node, nodes, ranks_per_node) in mapping.tuples() {
                let left = u64::from(size) - merged.ranks;
                if left == 0 {
                    break;
                }
                let whole = (left / u64::from(ranks_per_node)).min(u64::from(nodes)) as u32;
                if whole > 0 {
                    merged.place(node, whole, ranks_per_node)?;
                }
                let left = u64::from(size) - merged.ranks;
                if whole < nodes && left > 0 {
                    merged.place(node + whole, 1, left as u32)?;
                }
            }
        }
        merged.close_node_gaps();
        Self::seat(Arc::new(Placement::new(merged.list)?), me)
    }

    /// The placement in the notation of [`Topology::from_process_mapping`].
    pub fn process_mapping(&self) -> String {
        let tuples = self
            .placement
            .blocks
            .iter()
            .map(|b| (b.first_node, b.nodes, b.ranks_per_node))
            .collect();
        ProcessMapping::of(tuples).to_string()
    }

    /// The same placement as another rank sees it; shares the blocks.
    ///
    /// # Errors
    /// When `me` is not placed.
    pub fn seen_from(&self, me: Rank) -> Result<Self> {
        if me.0 >= self.size() {
            return Err(invalid(format!(
                "rank {me} is not in a job of {} ranks",
                self.size()
            )));
        }
        self.seen_by(me.into())
    }

    fn seat(placement: Arc<Placement>, me: Rank) -> Result<Self> {
        Self::seat_end(placement, None, me.into())
    }

    fn seat_end(
        placement: Arc<Placement>,
        processes: Option<Processes>,
        me: EndpointId,
    ) -> Result<Self> {
        let rank = match me.0.checked_sub(placement.size) {
            None => Rank(me.0),
            Some(relay) => match &processes {
                Some(all) if relay < all.placement.size => all.first_of(relay),
                _ => {
                    return Err(invalid(format!(
                        "rank {me} is not in a job of {} ranks",
                        placement.size
                    )));
                }
            },
        };
        let (node, local_rank) = (placement.node_of(rank), placement.local_rank_of(rank));
        let local_size = placement.local_size_of(node);
        Ok(Self {
            placement,
            processes,
            me,
            rank,
            node,
            local_rank,
            local_size,
            hosted: None,
        })
    }

    /// The placement's blocks, in rank order.
    pub fn blocks(&self) -> &[Block] {
        &self.placement.blocks
    }

    /// Number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.placement.size
    }

    /// The rank that looks; of a relay the first one of its process, which stands for it.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of nodes in the job.
    pub fn nodes(&self) -> u32 {
        self.placement.nodes
    }

    /// My node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Node of a rank.
    ///
    /// # Panics
    /// When `rank` is not in the job.
    pub fn node_of(&self, rank: Rank) -> NodeId {
        self.placement.node_of(rank)
    }

    /// Number of a rank among the ranks of its node, in rank order from 0.
    ///
    /// # Panics
    /// When `rank` is not in the job.
    pub fn local_rank_of(&self, rank: Rank) -> u32 {
        self.placement.local_rank_of(rank)
    }

    /// My number among the ranks of my node.
    pub fn local_rank(&self) -> u32 {
        self.local_rank
    }

    /// Number of ranks on a node.
    ///
    /// # Panics
    /// When `node` is not in the job.
    pub fn local_size_of(&self, node: NodeId) -> u32 {
        self.placement.local_size_of(node)
    }

    /// Number of ranks on my node.
    pub fn local_size(&self) -> u32 {
        self.local_size
    }

    /// Number of ranks on the node that has fewest.
    pub fn fewest_local(&self) -> u32 {
        self.placement.local_sizes[0]
    }

    /// Number of ranks on the smaller one of the two nodes that have most: no two nodes both have
    /// more.
    pub fn smaller_of_most(&self) -> u32 {
        self.placement.local_sizes[1]
    }

    /// Number of ranks on the node that has most.
    pub fn most_local(&self) -> u32 {
        self.placement.local_sizes[2]
    }

    /// The rank with number `local` on a node.
    ///
    /// # Panics
    /// When the node has no such rank.
    pub fn rank_at(&self, node: NodeId, local: u32) -> Rank {
        self.placement.rank_at(node, local)
    }

    /// The ranks of a node, ascending; the local rank is the index.
    ///
    /// # Panics
    /// When `node` is not in the job.
    pub fn ranks_of(&self, node: NodeId) -> impl Iterator<Item = Rank> + '_ {
        self.placement.assert_node(node);
        self.placement.blocks_of(node).flat_map(move |b| {
            let first = b.first_rank + (node.0 - b.first_node) * b.ranks_per_node;
            (first..first + b.ranks_per_node).map(Rank)
        })
    }

    /// Whether a rank is on my node (I am).
    ///
    /// # Panics
    /// When `rank` is not in the job.
    pub fn is_local(&self, rank: Rank) -> bool {
        self.node_of(rank) == self.node
    }

    /// The rank on node `of` that talks to node `towards`: local rank `towards % local_size`.
    ///
    /// # Panics
    /// When one of the nodes is not in the job.
    pub fn representative(&self, of: NodeId, towards: NodeId) -> Rank {
        self.placement.assert_node(towards);
        self.placement.representative(of, towards)
    }

    /// The rank on my node that sends to `target_node`.
    ///
    /// # Panics
    /// When the node is not in the job.
    pub fn source_representative(&self, target_node: NodeId) -> Rank {
        self.representative(self.node, target_node)
    }

    /// The rank on `target_node` that receives from my node.
    ///
    /// # Panics
    /// When the node is not in the job.
    pub fn target_representative(&self, target_node: NodeId) -> Rank {
        self.representative(target_node, self.node)
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Topology({} {} of {} on node {}, {})",
            if self.is_relay() { "relay" } else { "rank" },
            self.me,
            self.endpoints(),
            self.node,
            self.process_mapping()
        )
    }
}

fn invalid(why: String) -> Error {
    Error::config("topology", why)
}

fn as_u32(count: usize) -> Result<u32> {
    u32::try_from(count).map_err(|_| invalid(format!("{count} is more than 2^32 - 1")))
}
