//! What `node-mesh` asks of ranks, counted without following any pair: as for `mesh`, along the
//! grid of nodes, where what a node holds lies with those of its ranks that it has come to.

use trihop::{NodeId, Topology};

use super::row::Row;
use super::{Load, OfRank};

/// A job whose nodes are a grid.
struct Nodes<'a> {
    topology: &'a Topology,
    /// Most hops of a way, and none.
    width: usize,
    /// By rank, node after node, the sources that it holds, by the hops that they have come.
    held: Vec<u64>,
    sums: Vec<OfRank>,
    /// By node, where its ranks begin.
    first: Vec<usize>,
}

impl<'a> Nodes<'a> {
    fn new(topology: &'a Topology, dimensions: usize) -> Self {
        let width = 2 * dimensions + 2;
        let ranks = topology.size() as usize;
        let mut held = vec![0; ranks * width];
        held.iter_mut().step_by(width).for_each(|own| *own = 1);
        let mut sum = 0;
        let first = (0..topology.nodes()).map(|node| {
            let first = sum;
            sum += topology.local_size_of(NodeId(node)) as usize;
            first
        });
        Self {
            topology,
            width,
            held,
            sums: vec![OfRank::default(); ranks],
            first: first.collect(),
        }
    }

    fn local(&self, node: u32) -> u32 {
        self.topology.local_size_of(NodeId(node))
    }

    fn ranks(&self, node: u32) -> std::ops::Range<usize> {
        let first = self.first[node as usize];
        first..first + self.local(node) as usize
    }

    fn of(&self, rank: usize) -> &[u64] {
        &self.held[rank * self.width..][..self.width]
    }

    fn total(&self, rank: usize) -> u64 {
        self.of(rank).iter().sum()
    }

    /// What all ranks of a node hold together.
    fn of_node(&self, node: u32) -> Vec<u64> {
        let mut sum = vec![0; self.width];
        for rank in self.ranks(node) {
            for (sum, held) in sum.iter_mut().zip(self.of(rank)) {
                *sum += held;
            }
        }
        sum
    }

    /// The rank of a node that speaks with those of this coordinate, behind so many speakers of the
    /// dimensions before.
    fn speaker(&self, node: u32, before: u32, coordinate: u32) -> usize {
        let local = before.wrapping_add(coordinate) % self.local(node);
        self.first[node as usize] + local as usize
    }

    /// Goes along a dimension.
    fn correct(&mut self, row: &Row, before: u32) {
        let nodes = self.topology.nodes();
        // By what nodes agree in when it is corrected, their ranks.
        let mut ranks = vec![0; row.block().min(nodes) as usize];
        for node in 0..nodes {
            ranks[row.with(node) as usize] += u64::from(self.local(node));
        }
        let mut after = self.held.clone();
        for node in 0..nodes {
            let place = row.place(node);
            let (base, own) = (place.base, place.coordinate);
            let all = self.of_node(node);
            let sources: u64 = all.iter().sum();
            // By the speaker's number: ranks to which what it sends goes.
            let mut spoken = vec![0; self.local(node) as usize];
            for coordinate in (0..row.size()).filter(|&coordinate| coordinate != own) {
                let Some(next) = row.end(base, coordinate) else {
                    continue;
                };
                let targets = ranks[row.with(next) as usize];
                let from = self.speaker(node, before, coordinate);
                let to = self.speaker(next, before, own);
                spoken[from - self.first[node as usize]] += targets;
                self.sums[from].links += 1;
                self.sums[from].carried += sources * targets;
                self.sums[from].source_relayed += (sources - 1) * targets;
                // It is heard by a node that does not speak back.
                self.sums[to].links += u64::from(next < base);
                self.sums[to].carried += sources * targets;
                let came = &mut after[to * self.width..][..self.width];
                let by_itself = self.of(from);
                for hops in 1..self.width {
                    came[hops] += by_itself[hops - 1];
                    if hops > 1 {
                        came[hops] += all[hops - 2] - by_itself[hops - 2];
                    }
                }
            }
            let beyond: u64 = spoken.iter().sum();
            for (rank, spoken) in self.ranks(node).zip(spoken) {
                // What others have sent, to the other speakers.
                self.sums[rank].target_relayed += (self.total(rank) - 1) * (beyond - spoken);
            }
        }
        self.held = after;
    }
}

/// What a grid of nodes of these lengths asks of the ranks of `topology`.
pub fn load(topology: &Topology, sizes: &[u32]) -> Load {
    let mut nodes = Nodes::new(topology, sizes.len());
    let mut before = 0u32;
    for row in Row::all(sizes, topology.nodes()) {
        nodes.correct(&row, before);
        before = before.wrapping_add(row.size());
    }
    let mut load = Load::of_stages(1 + 2 * sizes.len());
    for node in 0..topology.nodes() {
        let others = u64::from(nodes.local(node)) - 1;
        for (hops, pairs) in nodes.of_node(node).into_iter().enumerate() {
            if pairs > 0 {
                load.hops[hops] += pairs;
                // One more to the other ranks of the node.
                load.hops[hops + usize::from(others > 0)] += pairs * others;
            }
        }
        for rank in nodes.ranks(node) {
            let mut sum = nodes.sums[rank];
            sum.target_relayed += (nodes.total(rank) - 1) * others;
            load.add(nodes.local(node), sum);
        }
    }
    load
}
