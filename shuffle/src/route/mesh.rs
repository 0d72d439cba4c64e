//! Along a grid of ranks: one hop for each coordinate that differs, as Charm++'s TRAM routes.
//!
//! Instead of a link to every rank, a rank has `s - 1` in each dimension of `s`. Where the last
//! dimension is as long as a node, the hop inside the node comes before those between nodes. With
//! two ranks in each dimension it is a hypercube.

use super::grid::{BETWEEN, DIMENSIONS, Grid, Row, Step, step, steps};
use super::{EndpointId, Next, Reach, Route, Stage, StageSpec, stage};
use trihop_transport::topology::{Rank, Topology};

/// Names of the stages of a grid with so many dimensions: the first and, from three on, the last
/// are called as those of three hops.
const fn named(dimensions: usize) -> [StageSpec; DIMENSIONS] {
    let mut stages = [StageSpec::shared(stage::RELAY); DIMENSIONS];
    let mut at = 0;
    while at < DIMENSIONS {
        if dimensions < 3 || at + 1 < dimensions {
            stages[at] = StageSpec::shared(match at {
                0 => stage::ORIGIN,
                _ => BETWEEN[at - 1],
            });
        }
        at += 1;
    }
    stages
}

/// The stages of a grid of one dimension, of two, and so on.
static STAGES: [[StageSpec; DIMENSIONS]; DIMENSIONS] = {
    let mut all = [named(1); DIMENSIONS];
    let mut at = 1;
    while at < DIMENSIONS {
        all[at] = named(at + 1);
        at += 1;
    }
    all
};

/// The stages of a route along a grid.
pub(super) fn stages(grid: Grid) -> &'static [StageSpec] {
    let dimensions = grid.dimensions();
    &STAGES[dimensions - 1][..dimensions]
}

/// The other ends of the edges of a stage.
#[derive(Debug, Clone)]
struct Ends {
    /// Those of the node, and those beyond it; ascending.
    by_reach: [Box<[EndpointId]>; 2],
    /// The most that a rank of the job has of each.
    most: [u32; 2],
}

impl Ends {
    fn new(topology: &Topology, row: &Row) -> Self {
        let ends = row.neighbours.iter().copied().map(EndpointId);
        let (here, beyond): (Vec<_>, Vec<_>) = ends.partition(|&end| topology.is_here(end));
        let (most, local) = (row.most, topology.most_local());
        // Exact where rows are inside nodes or go straight across them, a bound elsewhere.
        let is_even = topology.blocks().len() == 1;
        let is_inside = is_even && local.is_multiple_of(row.block());
        let is_across = is_even && row.stride().is_multiple_of(local);
        let inside = if is_across { 0 } else { most.min(local - 1) };
        let others = topology.size() - topology.fewest_local();
        let across = if is_inside { 0 } else { most.min(others) };
        Self {
            by_reach: [here.into(), beyond.into()],
            most: [inside, across],
        }
    }

    fn of(&self, reach: Reach) -> &[EndpointId] {
        &self.by_reach[reach as usize]
    }
}

/// The route along a grid of ranks.
#[derive(Debug, Clone)]
pub struct Mesh {
    topology: Topology,
    /// In the order of their stages: the last dimension of the grid first.
    rows: Box<[Row]>,
    ends: Box<[Ends]>,
}

impl Mesh {
    /// The route as seen from this rank of `topology`, along a grid whose lengths are given.
    pub fn new(topology: Topology, grid: Grid) -> Self {
        let rows = Row::all(grid.sizes(), topology.rank().0, topology.size());
        Self {
            ends: rows.iter().map(|row| Ends::new(&topology, row)).collect(),
            rows,
            topology,
        }
    }

    fn ends(&self, stage: Stage) -> Option<&Ends> {
        self.ends.get(usize::from(stage.0).checked_sub(1)?)
    }

    /// The rows that come later than a stage, each with its stage.
    fn later(&self, at: Stage) -> impl Iterator<Item = (&Row, Stage)> {
        let first = usize::from(at.0).min(self.rows.len());
        self.rows[first..].iter().zip((at.0 + 1..).map(Stage))
    }
}

impl Route for Mesh {
    #[inline]
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        Some(match step(&self.rows, usize::from(at.0), target.0)? {
            Step::To(next, row) => Next::To(EndpointId(next), Stage(row as u8 + 1)),
            Step::Here if at == Stage::SOURCE => Next::To(target.into(), Stage::FIRST),
            Step::Here => Next::Deliver,
        })
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        let ends = self.ends(stage);
        ends.map_or(0, |ends| ends.of(reach).len() as u32)
    }

    fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId {
        let ends = self.ends(stage).expect("a stage with edges");
        ends.of(reach)[number as usize]
    }

    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        let ends = self.ends(stage);
        let has = |ends: &[EndpointId]| ends.binary_search(&peer).is_ok();
        ends.is_some_and(|ends| ends.by_reach.iter().any(|ends| has(ends)))
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        self.ends(stage).map_or(0, |ends| ends.most[reach as usize])
    }

    fn copies(&self, at: Stage, _: Rank) -> u32 {
        self.later(at).map(|(row, _)| row.others()).sum()
    }

    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        let mut left = number;
        for (row, stage) in self.later(at) {
            match left.checked_sub(row.others()) {
                None => return (EndpointId(row.other(left)), stage),
                Some(rest) => left = rest,
            }
        }
        panic!("copy {number} of a broadcast of rank {source} at stage {at}: there are fewer")
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        let last = steps(&self.rows, self.topology.size(), source.0).last();
        // One's own comes over the first stage.
        let stage = last.map_or(Stage::FIRST, |(_, _, row)| Stage(row as u8 + 1));
        stage == at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rank: u32, sizes: &[u32], grid: &str) -> Mesh {
        let topology = Topology::from_node_sizes(sizes, Rank(rank)).unwrap();
        Mesh::new(topology, grid.parse().unwrap())
    }

    /// The way of a message: the last dimension first, one hop for each coordinate that differs.
    #[test]
    fn coordinates_are_corrected_from_the_last_dimension_on() {
        let at = |rank| at(rank, &[64], "4x4x4");
        let way = [(0, 0), (3, 1), (11, 2), (59, 3)];
        for (step, next) in way.iter().zip(&way[1..]) {
            let next = Next::To(EndpointId(next.0), Stage(next.1));
            assert_eq!(at(step.0).next(Stage(step.1), Rank(59)), Some(next));
        }
        assert_eq!(at(59).next(Stage(3), Rank(59)), Some(Next::Deliver));
        assert_eq!(
            at(11).next(Stage(3), Rank(59)),
            None,
            "no way leads it here at that stage"
        );
        let links = (1..4).map(|stage| at(5).edges(Stage(stage), Reach::Node));
        assert_eq!(links.sum::<u32>(), 9);
    }

    #[test]
    fn a_missing_place_has_a_stand_in() {
        // Rows of four, the second with three ranks.
        let at = |rank| at(rank, &[7], "2x4");
        let first = |from, to| at(from).next(Stage::SOURCE, Rank(to));
        let over_first = |end| Some(Next::To(EndpointId(end), Stage(1)));
        assert_eq!(first(6, 3), over_first(3));
        assert_eq!(first(6, 1), over_first(5));
        assert_eq!(first(3, 6), over_first(2));
        assert!(
            at(3).has_edge(Stage(1), EndpointId(6)),
            "it hears those that it stands in for"
        );
    }
}
