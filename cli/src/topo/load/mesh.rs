//! What `mesh` asks of ranks, counted without following any pair.
//!
//! A way corrects one coordinate after the other. So of all messages for ranks that agree in the
//! coordinates that are corrected, a rank that agrees in them too holds those of the same sources,
//! whatever the coordinates to come are. How many these are follows line by line. What goes over an
//! edge is that number times the ranks beyond the edge.

use trihop::{Rank, Topology};

use super::row::Row;
use super::{Load, OfRank};

/// Hops of a way at most, and none.
type ByHops = Vec<u64>;

/// How many sources are held by each rank, by the hops that they have come.
struct Held {
    by_rank: Vec<u64>,
    width: usize,
}

impl Held {
    /// Each rank holds what it sends itself.
    fn own(ranks: u32, dimensions: usize) -> Self {
        let width = dimensions + 1;
        let mut by_rank = vec![0; ranks as usize * width];
        by_rank.iter_mut().step_by(width).for_each(|own| *own = 1);
        Self { by_rank, width }
    }

    fn of(&self, rank: u32) -> &[u64] {
        &self.by_rank[rank as usize * self.width..][..self.width]
    }

    fn total(&self, rank: u32) -> u64 {
        self.of(rank).iter().sum()
    }

    /// As it is when a dimension is corrected.
    fn along(&self, row: &Row) -> Self {
        let mut after = Self {
            by_rank: self.by_rank.clone(),
            width: self.width,
        };
        let mut line: ByHops = vec![0; self.width];
        for base in row.lines() {
            line.fill(0);
            for member in row.line(base) {
                for (sum, held) in line.iter_mut().zip(self.of(member)) {
                    *sum += held;
                }
            }
            for end in (0..row.size()).filter_map(|coordinate| row.end(base, coordinate)) {
                let is_of_line = end >= base;
                let place = end as usize * self.width;
                let own = self.of(end);
                let held = &mut after.by_rank[place..][..self.width];
                for hops in 1..self.width {
                    // Who has the coordinate already stays.
                    let stays = if is_of_line { own[hops - 1] } else { 0 };
                    held[hops] += line[hops - 1] - stays;
                }
            }
        }
        after
    }
}

/// How many ranks agree with a rank in what is left of its number, of so many values.
fn alike(ranks: u32, left: u32, values: u32) -> u64 {
    u64::from((ranks - left).div_ceil(values))
}

/// What a grid of these lengths asks of the ranks of `topology`.
pub fn load(topology: &Topology, sizes: &[u32]) -> Load {
    let ranks = topology.size();
    let mut sums = vec![OfRank::default(); ranks as usize];
    let mut held = Held::own(ranks, sizes.len());
    for row in Row::all(sizes, ranks) {
        let after = held.along(&row);
        for (rank, sum) in (0..ranks).zip(&mut sums) {
            add(topology, &row, &held, &after, rank, sum);
        }
        held = after;
    }
    let mut load = Load::of_stages(sizes.len());
    for (rank, sum) in (0..ranks).zip(sums) {
        load.add(topology.local_size_of(topology.node_of(Rank(rank))), sum);
        for (pairs, held) in load.hops.iter_mut().zip(held.of(rank)) {
            *pairs += held;
        }
    }
    load
}

/// Adds what a rank has of one dimension.
fn add(topology: &Topology, row: &Row, held: &Held, after: &Held, rank: u32, sum: &mut OfRank) {
    let ranks = topology.size();
    let targets = |of: u32| alike(ranks, row.with(of), row.block());
    let stride = row.block() / row.size();
    let all = alike(ranks, row.before(rank), stride) - targets(rank);
    let (sources, arrived) = (held.total(rank), after.total(rank));
    let here = row.place(rank);
    let mut links = row.neighbours(&here);
    let (mut out, mut inward) = (all, (arrived - sources) * targets(rank));
    let mut inside = 0;
    let mut neighbour = |other: u32| {
        let there = row.place(other);
        let (leads, comes) = (row.leads(&here, &there), row.leads(&there, &here));
        if leads {
            out -= targets(other);
            inside += targets(other);
        }
        if comes {
            inward -= held.total(other) * targets(rank);
        }
        links -= u32::from(leads || comes);
    };
    let node = topology.node_of(Rank(rank));
    if topology.local_size_of(node) <= 2 * row.size() {
        topology.ranks_of(node).for_each(|other| neighbour(other.0));
    } else {
        let is_here = |&other: &u32| topology.node_of(Rank(other)) == node;
        row.around(&here).filter(is_here).for_each(neighbour);
    }
    sum.links += u64::from(links);
    sum.carried += sources * out + inward;
    sum.source_relayed += (sources - 1) * out;
    sum.target_relayed += (sources - 1) * inside;
}
