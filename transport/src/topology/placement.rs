//! Blocks of ranks: gathered in rank order, checked once, looked up.

use super::{Block, NodeId, Rank, Topology, invalid};
use crate::error::Result;

/// The part that all ranks of a job have in common.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) blocks: Vec<Block>,
    pub(super) size: u32,
    pub(super) nodes: u32,
    /// Ranks of the emptiest node, and of the two fullest, in order (twice the same of one node).
    pub(super) local_sizes: [u32; 3],
    /// Blocks by their first node, where no node is in two blocks.
    by_node: Option<Vec<u32>>,
}

impl Placement {
    pub(super) fn new(blocks: Vec<Block>) -> Result<Self> {
        let ranks: u64 = blocks.iter().map(Block::ranks).sum();
        let size = u32::try_from(ranks)
            .map_err(|_| invalid(format!("{ranks} ranks are more than 2^32 - 1")))?;
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
        let nodes = u32::try_from(covered)
            .map_err(|_| invalid(format!("{covered} nodes are more than 2^32 - 1")))?;
        let local_sizes = local_sizes(&blocks);
        Ok(Self {
            blocks,
            size,
            nodes,
            local_sizes,
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

    pub(super) fn assert_node(&self, node: NodeId) {
        assert!(
            node.0 < self.nodes,
            "node {node} is not in a job of {} nodes",
            self.nodes
        );
    }

    /// Blocks that place ranks on a node, in rank order.
    pub(super) fn blocks_of(&self, node: NodeId) -> impl Iterator<Item = &Block> + '_ {
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

    pub(super) fn node_of(&self, rank: Rank) -> NodeId {
        let block = self.block_of(rank);
        NodeId(block.first_node + (rank.0 - block.first_rank) / block.ranks_per_node)
    }

    pub(super) fn local_rank_of(&self, rank: Rank) -> u32 {
        let block = self.block_of(rank);
        let within = (rank.0 - block.first_rank) % block.ranks_per_node;
        let before = self
            .blocks_of(self.node_of(rank))
            .take_while(|b| b.first_rank < block.first_rank)
            .map(|b| b.ranks_per_node)
            .sum::<u32>();
        before + within
    }

    pub(super) fn local_size_of(&self, node: NodeId) -> u32 {
        self.assert_node(node);
        self.blocks_of(node).map(|b| b.ranks_per_node).sum()
    }

    /// The rank on node `of` with the local rank `towards % local_size`: by one search where `of`
    /// is in one block only.
    pub(super) fn representative(&self, of: NodeId, towards: NodeId) -> Rank {
        self.assert_node(of);
        match self.blocks_of(of).next() {
            Some(block) if self.by_node.is_some() => {
                block.rank_at(of, towards.0 % block.ranks_per_node)
            }
            _ => self.rank_at(of, towards.0 % self.local_size_of(of)),
        }
    }

    pub(super) fn rank_at(&self, node: NodeId, local: u32) -> Rank {
        self.assert_node(node);
        let mut left = local;
        for block in self.blocks_of(node) {
            if left < block.ranks_per_node {
                return block.rank_at(node, left);
            }
            left -= block.ranks_per_node;
        }
        panic!(
            "node {node} has no local rank {local}, it has {} ranks",
            self.local_size_of(node)
        );
    }
}

/// Ranks of the emptiest node that these blocks make up, and of the two fullest, in order: a sweep
/// over where blocks begin and end.
fn local_sizes(blocks: &[Block]) -> [u32; 3] {
    let mut edges: Vec<(u64, i64)> = blocks
        .iter()
        .flat_map(|b| {
            let ranks = i64::from(b.ranks_per_node);
            [(u64::from(b.first_node), ranks), (b.end_node(), -ranks)]
        })
        .collect();
    edges.sort_unstable_by_key(|&(node, _)| node);
    let (mut ranks, mut fewest, mut second, mut most) = (0, i64::MAX, 0, 0);
    for (index, &(node, change)) in edges.iter().enumerate() {
        ranks += change;
        // Behind the last edge there are no nodes; before the last change at a node its ranks are
        // not complete.
        match edges.get(index + 1) {
            Some(&(next, _)) if next != node => {
                // As many nodes have so many as lie between; two of them can count.
                for _ in 0..(next - node).min(2) {
                    second = second.max(ranks.min(most));
                    most = most.max(ranks);
                }
                fewest = fewest.min(ranks);
            }
            _ => {}
        }
    }
    let second = if second == 0 { most } else { second };
    [fewest, second, most].map(|ranks| ranks as u32)
}

/// Blocks being gathered in rank order; neighbours that one block can express are merged.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) list: Vec<Block>,
    pub(super) ranks: u64,
}

impl Blocks {
    pub(super) fn append(&mut self, block: Block) -> Result<()> {
        if u64::from(block.first_rank) != self.ranks {
            return Err(invalid(format!(
                "a block starts at rank {}, the ranks before it end at {}",
                block.first_rank, self.ranks
            )));
        }
        self.place(block.first_node, block.nodes, block.ranks_per_node)
    }

    pub(super) fn place(&mut self, first_node: u32, nodes: u32, ranks_per_node: u32) -> Result<()> {
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
        if block.end_node() > u64::from(u32::MAX)
            || self.ranks + block.ranks() > u64::from(u32::MAX)
        {
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

    /// Renumbers the nodes so that none is unused; their order stays.
    pub(super) fn close_node_gaps(&mut self) {
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
