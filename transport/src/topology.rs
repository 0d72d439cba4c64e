//! Ranks, nodes, local ranks and representatives: who is where, without an array of one entry per rank.
//!
//! A placement is a list of [`Block`]s. The usual placement (the same number of ranks on each node, node after
//! node) is one block however large the job; a cyclic placement has one block per local rank.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Number of a rank within its job, dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u32);

/// Number of a node within its job, dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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

    fn holds(&self, node: NodeId) -> bool {
        node.0 >= self.first_node && node.0 - self.first_node < self.nodes
    }
}

/// Who is where, as one rank sees it.
///
/// Look-ups are O(1) for one block, O(log blocks) where each node is in one block only, O(blocks) otherwise.
/// Memory is 16 bytes per block (20 with the index by node), shared by clones.
#[derive(Clone)]
pub struct Topology {
    placement: Arc<Placement>,
    me: Rank,
    node: NodeId,
    local_rank: u32,
    local_size: u32,
}

impl Topology {
    /// Most blocks of one placement (16 MiB of them), against mappings that were made to exhaust memory.
    pub const MAX_BLOCKS: usize = 1 << 20;

    /// A placement from its blocks in rank order, seen from `me`.
    ///
    /// # Errors
    /// When ranks have gaps or overlap, a block is empty, node ids are not dense from 0, or `me` is not placed.
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
        let mut merged = Blocks::default();
        let mut rest = nodes;
        while let Some(first) = rest.first() {
            let node: NodeId = (*first).into();
            let length = rest.iter().take_while(|n| (**n).into() == node).count();
            merged.place(node.0, 1, as_u32(length)?)?;
            rest = &rest[length..];
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

    /// The placement of MPICH's `PMI_process_mapping`, e.g. `(vector,(0,2,4))`, for `size` ranks, seen from `me`.
    ///
    /// The tuples are (first node, nodes, ranks per node); the list is repeated until `size` ranks are placed.
    /// Node ids that no rank uses are closed up.
    ///
    /// # Errors
    /// When the text is no such mapping, or places no rank.
    pub fn from_process_mapping(text: &str, size: u32, me: Rank) -> Result<Self> {
        let mapping: ProcessMapping = text.parse()?;
        let mut merged = Blocks::default();
        'placed: loop {
            for (node, nodes, ranks_per_node) in &mapping.tuples {
                let left = u64::from(size) - merged.ranks;
                if left == 0 {
                    break 'placed;
                }
                let whole = (left / u64::from(*ranks_per_node)).min(u64::from(*nodes)) as u32;
                if whole > 0 {
                    merged.place(*node, whole, *ranks_per_node)?;
                }
                let left = u64::from(size) - merged.ranks;
                if whole < *nodes && left > 0 {
                    merged.place(node + whole, 1, left as u32)?;
                }
            }
            merged.repeat_single(&mapping, size);
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
        ProcessMapping { tuples }.to_string()
    }

    /// The same placement as another rank sees it; shares the blocks.
    ///
    /// # Errors
    /// When `me` is not placed.
    pub fn seen_from(&self, me: Rank) -> Result<Self> {
        Self::seat(Arc::clone(&self.placement), me)
    }

    fn seat(placement: Arc<Placement>, me: Rank) -> Result<Self> {
        if me.0 >= placement.size {
            return Err(invalid(format!(
                "rank {me} is not in a job of {} ranks",
                placement.size
            )));
        }
        let (node, local_rank) = (placement.node_of(me), placement.local_rank_of(me));
        let local_size = placement.local_size_of(node);
        Ok(Self {
            placement,
            me,
            node,
            local_rank,
            local_size,
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

    /// The rank that looks.
    pub fn rank(&self) -> Rank {
        self.me
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
        self.rank_at(of, towards.0 % self.local_size_of(of))
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
            "Topology(rank {} of {} on node {}, {})",
            self.me,
            self.size(),
            self.node,
            self.process_mapping()
        )
    }
}

/// The part that all ranks of a job have in common.
#[derive(Debug)]
struct Placement {
    blocks: Vec<Block>,
    size: u32,
    nodes: u32,
    /// Blocks by their first node, where no node is in two blocks.
    by_node: Option<Vec<u32>>,
}

impl Placement {
    fn new(blocks: Vec<Block>) -> Result<Self> {
        let ranks: u64 = blocks.iter().map(Block::ranks).sum();
        let size =
            u32::try_from(ranks).map_err(|_| invalid(format!("{ranks} ranks are more than 2^32 - 1")))?;
        if size == 0 {
            return Err(invalid("no rank is placed".into()));
        }
        let mut by_node: Vec<u32> = (0..blocks.len() as u32).collect();
        by_node.sort_unstable_by_key(|i| blocks[*i as usize].first_node);
        let mut covered = 0_u64;
        let mut disjoint = true;
        for block in by_node.iter().map(|i| &blocks[*i as usize]) {
            if u64::from(block.first_node) > covered {
                return Err(invalid(format!(
                    "nodes {covered} to {} have no rank; node ids must be dense",
                    block.first_node - 1
                )));
            }
            disjoint &= u64::from(block.first_node) == covered;
            covered = covered.max(block.end_node());
        }
        let nodes =
            u32::try_from(covered).map_err(|_| invalid(format!("{covered} nodes are more than 2^32 - 1")))?;
        Ok(Self {
            blocks,
            size,
            nodes,
            by_node: disjoint.then_some(by_node),
        })
    }

    fn block_of(&self, rank: Rank) -> &Block {
        assert!(
            rank.0 < self.size,
            "rank {rank} is not in a job of {} ranks",
            self.size
        );
        &self.blocks[self.blocks.partition_point(|b| b.first_rank <= rank.0) - 1]
    }

    fn assert_node(&self, node: NodeId) {
        assert!(
            node.0 < self.nodes,
            "node {node} is not in a job of {} nodes",
            self.nodes
        );
    }

    /// Blocks that place ranks on a node, in rank order.
    fn blocks_of(&self, node: NodeId) -> impl Iterator<Item = &Block> + '_ {
        let range = match &self.by_node {
            Some(order) => {
                let at = order.partition_point(|i| self.blocks[*i as usize].first_node <= node.0);
                let block = at.checked_sub(1).map_or(0, |i| order[i] as usize);
                block..block + 1
            }
            None => 0..self.blocks.len(),
        };
        self.blocks[range].iter().filter(move |b| b.holds(node))
    }

    fn node_of(&self, rank: Rank) -> NodeId {
        let block = self.block_of(rank);
        NodeId(block.first_node + (rank.0 - block.first_rank) / block.ranks_per_node)
    }

    fn local_rank_of(&self, rank: Rank) -> u32 {
        let block = self.block_of(rank);
        let within = (rank.0 - block.first_rank) % block.ranks_per_node;
        let before = self
            .blocks_of(self.node_of(rank))
            .take_while(|b| b.first_rank < block.first_rank)
            .map(|b| b.ranks_per_node)
            .sum::<u32>();
        before + within
    }

    fn local_size_of(&self, node: NodeId) -> u32 {
        self.assert_node(node);
        self.blocks_of(node).map(|b| b.ranks_per_node).sum()
    }

    fn rank_at(&self, node: NodeId, local: u32) -> Rank {
        self.assert_node(node);
        let mut left = local;
        for block in self.blocks_of(node) {
            if left < block.ranks_per_node {
                return Rank(block.first_rank + (node.0 - block.first_node) * block.ranks_per_node + left);
            }
            left -= block.ranks_per_node;
        }
        panic!(
            "node {node} has no local rank {local}, it has {} ranks",
            self.local_size_of(node)
        );
    }
}

/// Blocks being gathered in rank order; neighbours that one block can express are merged.
#[derive(Default)]
struct Blocks {
    list: Vec<Block>,
    ranks: u64,
}

impl Blocks {
    fn append(&mut self, block: Block) -> Result<()> {
        if u64::from(block.first_rank) != self.ranks {
            return Err(invalid(format!(
                "a block starts at rank {}, the ranks before it end at {}",
                block.first_rank, self.ranks
            )));
        }
        self.place(block.first_node, block.nodes, block.ranks_per_node)
    }

    fn place(&mut self, first_node: u32, nodes: u32, ranks_per_node: u32) -> Result<()> {
        let first_rank = u32::try_from(self.ranks)
            .map_err(|_| invalid(format!("{} ranks are more than 2^32 - 1", self.ranks)))?;
        let block = Block {
            first_rank,
            nodes,
            ranks_per_node,
            first_node,
        };
        if nodes == 0 || ranks_per_node == 0 {
            return Err(invalid(format!(
                "node {first_node} has a block of {nodes} nodes x {ranks_per_node} ranks"
            )));
        }
        if block.end_node() > u64::from(u32::MAX) || self.ranks + block.ranks() > u64::from(u32::MAX) {
            return Err(invalid(format!(
                "{nodes} nodes from {first_node} with {ranks_per_node} ranks each pass 2^32 - 1"
            )));
        }
        self.ranks += block.ranks();
        if let Some(last) = self.list.last_mut() {
            if last.nodes == 1 && nodes == 1 && last.first_node == first_node {
                last.ranks_per_node += ranks_per_node;
                return Ok(());
            }
            if last.ranks_per_node == ranks_per_node && last.end_node() == u64::from(first_node) {
                last.nodes += nodes;
                return Ok(());
            }
        }
        if self.list.len() == Topology::MAX_BLOCKS {
            return Err(invalid(format!(
                "the placement needs more than {} blocks",
                Topology::MAX_BLOCKS
            )));
        }
        self.list.push(block);
        Ok(())
    }

    /// Places all further ranks at once where the mapping knows one node only.
    fn repeat_single(&mut self, mapping: &ProcessMapping, size: u32) {
        let first = mapping.tuples[0].0;
        if let [block] = &mut self.list[..] {
            if mapping
                .tuples
                .iter()
                .all(|(node, nodes, _)| *node == first && *nodes == 1)
            {
                block.ranks_per_node = size;
                self.ranks = u64::from(size);
            }
        }
    }

    /// Renumbers the nodes so that none is unused; their order stays.
    fn close_node_gaps(&mut self) {
        let mut order: Vec<usize> = (0..self.list.len()).collect();
        order.sort_unstable_by_key(|i| self.list[*i].first_node);
        let (mut covered, mut gap) = (0_u64, 0_u32);
        for i in order {
            let block = &mut self.list[i];
            let end = block.end_node();
            if u64::from(block.first_node) > covered {
                gap += (u64::from(block.first_node) - covered) as u32;
            }
            covered = covered.max(end);
            block.first_node -= gap;
        }
    }
}

/// Tuples (first node, nodes, ranks per node) of MPICH's notation, at least one, none of them empty.
struct ProcessMapping {
    tuples: Vec<(u32, u32, u32)>,
}

impl FromStr for ProcessMapping {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            let shown: String = text.chars().take(80).collect();
            invalid(format!(
                "process mapping {shown:?}: {why}; expected (vector,(first node,nodes,ranks per node),...)"
            ))
        };
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let inner = compact
            .strip_prefix("(vector,")
            .and_then(|rest| rest.strip_suffix(')'))
            .ok_or_else(|| bad("it is no vector"))?;
        let inner = inner
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'))
            .ok_or_else(|| bad("it holds no tuple"))?;
        let mut tuples = Vec::new();
        for tuple in inner.split("),(") {
            let numbers: Vec<u32> = tuple
                .split(',')
                .map(|n| {
                    n.parse()
                        .map_err(|_| bad("a tuple holds something else than numbers"))
                })
                .collect::<Result<_>>()?;
            let [node, nodes, ranks_per_node] = numbers[..] else {
                return Err(bad("a tuple has not three numbers"));
            };
            if nodes == 0 || ranks_per_node == 0 || node.checked_add(nodes).is_none() {
                return Err(bad("a tuple is empty or passes 2^32 - 1 nodes"));
            }
            tuples.push((node, nodes, ranks_per_node));
        }
        Ok(Self { tuples })
    }
}

impl fmt::Display for ProcessMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(vector")?;
        for (node, nodes, ranks_per_node) in &self.tuples {
            write!(f, ",({node},{nodes},{ranks_per_node})")?;
        }
        f.write_str(")")
    }
}

fn invalid(why: String) -> Error {
    Error::config("topology", why)
}

fn as_u32(count: usize) -> Result<u32> {
    u32::try_from(count).map_err(|_| invalid(format!("{count} is more than 2^32 - 1")))
}
