//! What `node-mesh` and `team-mesh` ask of ranks, counted without following any pair: as for
//! `mesh`, along the grid of nodes, where what a node holds lies with those of its ranks that it
//! has come to.

use trihop::{NodeId, Topology};

use super::row::Row;
use super::{Load, OfRank};

/// Who of a node sends along a dimension what its ranks hold, and on whom of the next node that
/// lands: local ranks.
#[derive(Debug, Clone, Copy)]
pub enum Speakers {
    /// Of `node-mesh`: one for each coordinate, behind those of so many in the dimensions before.
    Representatives { before: u32 },
    /// Of `team-mesh`: a team for each dimension, whose members are numbered.
    Teams { team: u32, teams: u32 },
}

impl Speakers {
    /// In how many parts a node of so many ranks sends what these hold.
    fn parts(self, ranks: u32) -> u32 {
        match self {
            Self::Representatives { .. } => 1,
            Self::Teams { team, teams } => {
                (team..ranks).step_by(teams as usize).count().max(1) as u32
            }
        }
    }

    /// In which part that is which a rank holds.
    fn part_of(self, ranks: u32, holder: u32) -> u32 {
        match self {
            Self::Representatives { .. } => 0,
            Self::Teams { teams, .. } => holder / teams % self.parts(ranks),
        }
    }

    /// Who sends a part to nodes of this coordinate.
    fn sender(self, ranks: u32, part: u32, to: u32) -> u32 {
        match self {
            Self::Representatives { before } => before.wrapping_add(to) % ranks,
            Self::Teams { team, teams } => (team + part % self.parts(ranks) * teams) % ranks,
        }
    }

    /// On whom a part lands that a node of this coordinate sends.
    fn landing(self, ranks: u32, part: u32, from: u32) -> u32 {
        let listeners = match self {
            Self::Teams { team, teams } => {
                let team = (team + 1) % teams;
                Self::Teams { team, teams }
            }
            Self::Representatives { .. } => self,
        };
        listeners.sender(ranks, part, from)
    }
}

/// What ranks of a node hold that one of them sends on.
#[derive(Debug, Clone)]
struct Part {
    /// Sources, by the hops that they have come.
    held: Vec<u64>,
    sources: u64,
}

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

    /// What the ranks of a node hold, in the parts in which it is sent.
    fn parts(&self, node: u32, speakers: Speakers) -> Vec<Part> {
        let ranks = self.local(node);
        let none = Part {
            held: vec![0; self.width],
            sources: 0,
        };
        let mut parts = vec![none; speakers.parts(ranks) as usize];
        for (local, rank) in (0..).zip(self.ranks(node)) {
            let part = &mut parts[speakers.part_of(ranks, local) as usize];
            part.sources += self.total(rank);
            for (sum, held) in part.held.iter_mut().zip(self.of(rank)) {
                *sum += held;
            }
        }
        parts
    }

    /// Whether a rank of `node` sends along a dimension to one of `next`, which have these
    /// coordinates.
    fn sends(
        &self,
        speakers: Speakers,
        [node, next]: [(u32, u32); 2],
        [from, to]: [usize; 2],
    ) -> bool {
        let (here, there) = (self.local(node.0), self.local(next.0));
        let holder = (from - self.first[node.0 as usize]) as u32;
        let part = speakers.part_of(here, holder);
        let landing = speakers.landing(there, part, node.1);
        speakers.sender(here, part, next.1) == holder
            && self.first[next.0 as usize] + landing as usize == to
    }

    /// Goes along a dimension.
    fn correct(&mut self, row: &Row, speakers: Speakers) {
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
            let parts = self.parts(node, speakers);
            let (first, local) = (self.first[node as usize], self.local(node));
            // By the sender's number: ranks to which what it sends goes.
            let mut sent = vec![0; local as usize];
            let mut beyond = 0;
            for coordinate in (0..row.size()).filter(|&coordinate| coordinate != own) {
                let Some(next) = row.end(base, coordinate) else {
                    continue;
                };
                let targets = ranks[row.with(next) as usize];
                beyond += targets;
                for (number, part) in (0..).zip(&parts) {
                    let sender = speakers.sender(local, number, coordinate) as usize;
                    let landing = speakers.landing(self.local(next), number, own);
                    let from = first + sender;
                    let to = self.first[next as usize] + landing as usize;
                    sent[sender] += targets;
                    self.sums[from].links += 1;
                    self.sums[from].carried += part.sources * targets;
                    self.sums[from].source_relayed += (part.sources - 1) * targets;
                    // Who sends back along the same link counts it there.
                    let back = [(next, coordinate), (node, own)];
                    let is_one_way = next < base || !self.sends(speakers, back, [to, from]);
                    self.sums[to].links += u64::from(is_one_way);
                    self.sums[to].carried += part.sources * targets;
                    let came = &mut after[to * self.width..][..self.width];
                    let by_itself = self.of(from);
                    for hops in 1..self.width {
                        came[hops] += by_itself[hops - 1];
                        if hops > 1 {
                            came[hops] += part.held[hops - 2] - by_itself[hops - 2];
                        }
                    }
                }
            }
            for (rank, sent) in self.ranks(node).zip(sent) {
                // What others have sent, to the other senders.
                self.sums[rank].target_relayed += (self.total(rank) - 1) * (beyond - sent);
            }
        }
        self.held = after;
    }
}

/// What `node-mesh` along a grid of these lengths asks of the ranks of `topology`.
pub fn of_representatives(topology: &Topology, sizes: &[u32]) -> Load {
    let mut before = 0u32;
    load(topology, sizes, |row, _| {
        let speakers = Speakers::Representatives { before };
        before = before.wrapping_add(row.size());
        speakers
    })
}

/// What `team-mesh` along a grid of these lengths asks of the ranks of `topology`.
pub fn of_teams(topology: &Topology, sizes: &[u32]) -> Load {
    let teams = sizes.len() as u32;
    load(topology, sizes, |_, team| Speakers::Teams { team, teams })
}

/// The same with the speakers of each dimension, which are asked for in the order of the ways.
fn load(
    topology: &Topology,
    sizes: &[u32],
    mut speakers: impl FnMut(&Row, u32) -> Speakers,
) -> Load {
    let mut nodes = Nodes::new(topology, sizes.len());
    for (number, row) in (0..).zip(Row::all(sizes, topology.nodes())) {
        nodes.correct(&row, speakers(&row, number));
    }
    let mut load = Load::of_stages(1 + 2 * sizes.len());
    for node in 0..topology.nodes() {
        let others = u64::from(nodes.local(node)) - 1;
        for rank in nodes.ranks(node) {
            for (hops, &pairs) in nodes.of(rank).iter().enumerate() {
                if pairs > 0 {
                    load.hops[hops] += pairs;
                    // One more to the other ranks of the node.
                    load.hops[hops + usize::from(others > 0)] += pairs * others;
                }
            }
            let mut sum = nodes.sums[rank];
            sum.target_relayed += (nodes.total(rank) - 1) * others;
            load.add(nodes.local(node), sum);
        }
    }
    load
}
