//! Along a grid of nodes, between their representatives: three hops, several times.
//!
//! The nodes make a grid, and a message corrects one coordinate of its node after the other. Each
//! step is one of three hops: inside the node to the rank that speaks with the next one, over the
//! link between both, and on from there. So the links that a grid needs at all, `s - 1` in each
//! dimension of `s` nodes, are divided among the ranks of a node, and between two nodes there is one
//! link. It is what the manual of Charm++'s TRAM calls an aggressive node-aware scheme: the ranks of
//! a node are one buffer towards each neighbour of the node, whatever their own place is. A rank that
//! speaks with both neighbours itself saves the hop in between.
//!
//! The speakers of a node follow from the neighbour's coordinate, dimension after dimension: that
//! towards coordinate `j` is the local rank `j` plus the lengths of the dimensions before, modulo the
//! ranks of the node. So no rank has more than its part of a dimension's links, whatever the lengths
//! are. With one dimension it is the route of three hops.

use super::grid::{BETWEEN, DIMENSIONS, NodeGrid, Row, Step, last_step, step};
use super::{EndpointId, Next, Reach, Route, Stage, StageSpec, other_local, stage};
use trihop_transport::topology::{NodeId, Rank, Topology};

/// A stage to the first speaker, and for each dimension one between nodes and one inside.
const STAGES: usize = 1 + 2 * DIMENSIONS;

/// Names of the stages inside of nodes, but the last.
#[rustfmt::skip]
const INSIDE: [&str; DIMENSIONS - 1] = [
    "inside1", "inside2", "inside3", "inside4", "inside5", "inside6", "inside7", "inside8", "inside9",
    "inside10", "inside11", "inside12", "inside13", "inside14", "inside15", "inside16", "inside17",
    "inside18", "inside19",
];

/// Names of the stages of a grid with so many dimensions: `origin`, then one between nodes and one
/// inside in turn, the last of which is `relay`.
const fn named(dimensions: usize) -> [StageSpec; STAGES] {
    let mut stages = [StageSpec::shared(stage::ORIGIN); STAGES];
    let mut at = 0;
    while at < DIMENSIONS {
        stages[1 + 2 * at] = StageSpec::shared(BETWEEN[at]);
        stages[2 + 2 * at] = match at + 1 < dimensions {
            true => StageSpec::shared(INSIDE[at]),
            false => StageSpec::shared(stage::RELAY),
        };
        at += 1;
    }
    stages
}

/// The stages of a grid of one dimension, of two, and so on.
static NAMED: [[StageSpec; STAGES]; DIMENSIONS] = {
    let mut all = [named(1); DIMENSIONS];
    let mut at = 1;
    while at < DIMENSIONS {
        all[at] = named(at + 1);
        at += 1;
    }
    all
};

/// The stages of a route along a grid of nodes.
pub(super) fn stages(grid: NodeGrid) -> &'static [StageSpec] {
    let dimensions = grid.dimensions();
    &NAMED[dimensions - 1][..=2 * dimensions]
}

/// Dimensions that are corrected where a run has come over this stage.
fn done(at: Stage) -> usize {
    usize::from(at.0) / 2
}

/// Whether edges of this stage are inside nodes.
fn is_inside(stage: Stage) -> bool {
    stage.0 % 2 == 1
}

/// The stage between nodes along the row with this number.
fn between(row: usize) -> Stage {
    Stage(2 * row as u8 + 2)
}

/// Who speaks for a node with its neighbours along a row.
#[derive(Debug, Clone, Copy)]
struct Speakers<'a> {
    topology: &'a Topology,
    row: &'a Row,
    /// Lengths of the rows before it.
    before: u32,
}

impl Speakers<'_> {
    /// The rank of node `of` that speaks with `towards`.
    #[inline]
    fn of(self, of: NodeId, towards: NodeId) -> Rank {
        let place = self.before.wrapping_add(self.row.coordinate(towards.0));
        let local = place % self.topology.local_size_of(of);
        self.topology.rank_at(of, local)
    }
}

/// The route along a grid of nodes.
#[derive(Debug, Clone)]
pub struct NodeMesh {
    topology: Topology,
    /// Of this rank's node, the last dimension of the grid first.
    rows: Box<[Row]>,
    /// By row: the lengths of those before it.
    before: Box<[u32]>,
    /// By row: the nodes that this rank speaks with for its node, ascending.
    spoken_with: Box<[Box<[NodeId]>]>,
    /// By row: those of them that it sends to.
    sent_to: Box<[Box<[NodeId]>]>,
}

impl NodeMesh {
    /// The route as seen from this rank of `topology`, along a grid whose lengths are given.
    pub fn new(topology: Topology, grid: NodeGrid) -> Self {
        let rows = Row::all(grid.sizes(), topology.node().0, topology.nodes());
        let mut before = 0u32;
        let lengths = rows.iter().map(|row| {
            let so_far = before;
            before = before.wrapping_add(row.size());
            so_far
        });
        let mut route = Self {
            before: lengths.collect(),
            spoken_with: Box::default(),
            sent_to: Box::default(),
            rows,
            topology,
        };
        let own = |row: usize, nodes: &mut dyn Iterator<Item = u32>| {
            let (me, here) = (route.topology.rank(), route.topology.node());
            let speakers = route.speakers(row);
            let nodes = nodes.map(NodeId);
            nodes
                .filter(|&node| speakers.of(here, node) == me)
                .collect()
        };
        let rows = || route.rows.iter().enumerate();
        let neighbours = rows().map(|(at, row)| own(at, &mut row.neighbours.iter().copied()));
        let others =
            rows().map(|(at, row)| own(at, &mut (0..row.others()).map(|number| row.other(number))));
        let (neighbours, others) = (neighbours.collect(), others.collect());
        (route.spoken_with, route.sent_to) = (neighbours, others);
        route
    }

    fn speakers(&self, row: usize) -> Speakers<'_> {
        Speakers {
            topology: &self.topology,
            row: &self.rows[row],
            before: self.before[row],
        }
    }

    /// The rank of another node that speaks with this one's along a row.
    fn speaker_of(&self, node: NodeId, row: usize) -> EndpointId {
        let here = self.topology.node();
        self.speakers(row).of(node, here).into()
    }

    /// The nodes at the other ends of the edges of a stage.
    fn nodes(&self, stage: Stage) -> &[NodeId] {
        match is_inside(stage) || stage == Stage::SOURCE {
            true => &[],
            false => self
                .spoken_with
                .get(done(stage) - 1)
                .map_or(&[], |nodes| nodes),
        }
    }

    /// The copies to other nodes of a broadcast that has come this far, row by row.
    fn copies_between(&self, at: Stage) -> impl Iterator<Item = (&[NodeId], usize)> {
        let first = done(at).min(self.rows.len());
        let rows = self.sent_to[first..].iter().zip(first..);
        rows.map(|(nodes, row)| (&**nodes, row))
    }

    fn others(&self) -> u32 {
        self.topology.local_size() - 1
    }
}

impl Route for NodeMesh {
    #[inline]
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        let here = &self.topology;
        let is_at_end = is_inside(at);
        let inside = |end: EndpointId| match is_at_end {
            // It has come to the rank that has to have it.
            true => None,
            false => Some(Next::To(end, Stage(at.0 + 1))),
        };
        match step(&self.rows, done(at), here.node_of(target).0)? {
            Step::Here if target != here.rank() => inside(target.into()),
            Step::Here if at == Stage::SOURCE => Some(Next::To(target.into(), Stage::FIRST)),
            Step::Here => Some(Next::Deliver),
            Step::To(node, row) => {
                let node = NodeId(node);
                let speaker = self.speakers(row).of(here.node(), node);
                match speaker == here.rank() {
                    true => Some(Next::To(self.speaker_of(node, row), between(row))),
                    false => inside(speaker.into()),
                }
            }
        }
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        match reach {
            Reach::Node if is_inside(stage) => self.others(),
            Reach::Node => 0,
            Reach::Beyond => self.nodes(stage).len() as u32,
        }
    }

    fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId {
        match reach {
            Reach::Node => other_local(&self.topology, number),
            Reach::Beyond => self.speaker_of(self.nodes(stage)[number as usize], done(stage) - 1),
        }
    }

    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        let here = &self.topology;
        let node = here.node_of_endpoint(peer);
        match is_inside(stage) {
            true => {
                let is_known = usize::from(stage.0) <= 2 * self.rows.len() + 1;
                is_known && node == here.node() && peer != here.endpoint()
            }
            false => {
                let is_neighbour = self.nodes(stage).binary_search(&node).is_ok();
                is_neighbour && self.speaker_of(node, done(stage) - 1) == peer
            }
        }
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        match reach {
            Reach::Node if is_inside(stage) => self.topology.most_local() - 1,
            Reach::Beyond if !is_inside(stage) && stage != Stage::SOURCE => {
                let row = self.rows.get(done(stage) - 1);
                row.map_or(0, |row| {
                    let each = row.size().div_ceil(self.topology.fewest_local());
                    // Who stands in for others speaks with two rows.
                    let rows = 2 - u32::from(row.is_full(self.topology.nodes()));
                    (rows * each).min(row.most)
                })
            }
            _ => 0,
        }
    }

    fn copies(&self, at: Stage, _: Rank) -> u32 {
        let inside = if is_inside(at) { 0 } else { self.others() };
        let between = self.copies_between(at).map(|(nodes, _)| nodes.len() as u32);
        inside + between.sum::<u32>()
    }

    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        let mut left = number;
        for (nodes, row) in self.copies_between(at) {
            match left.checked_sub(nodes.len() as u32) {
                None => return (self.speaker_of(nodes[left as usize], row), between(row)),
                Some(rest) => left = rest,
            }
        }
        assert!(
            left < self.others() && !is_inside(at),
            "copy {number} of a broadcast of rank {source} at stage {at}: there are fewer"
        );
        (other_local(&self.topology, left), Stage(at.0 + 1))
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        let here = &self.topology;
        let from = here.node_of(source).0;
        let stage = match last_step(&self.rows, here.nodes(), from) {
            None => Stage::FIRST,
            Some((node, row)) => {
                let speaker = self.speakers(row).of(here.node(), NodeId(node));
                Stage(between(row).0 + u8::from(speaker != here.rank()))
            }
        };
        stage == at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rank: u32, sizes: &[u32], grid: &str) -> NodeMesh {
        let topology = Topology::from_node_sizes(sizes, Rank(rank)).unwrap();
        NodeMesh::new(topology, grid.parse().unwrap())
    }

    /// Nine nodes of two ranks: 3 x 3.
    #[test]
    fn a_message_goes_from_speaker_to_speaker() {
        let at = |rank| at(rank, &[2; 9], "3x3");
        // From node 0 to node 8 by way of node 2, whose second rank speaks with node 8.
        let way = [(1, 0), (0, 1), (4, 2), (5, 3), (17, 4)];
        for (step, next) in way.iter().zip(&way[1..]) {
            let next = Next::To(EndpointId(next.0), Stage(next.1));
            assert_eq!(at(step.0).next(Stage(step.1), Rank(17)), Some(next));
        }
        assert_eq!(at(17).next(Stage(4), Rank(17)), Some(Next::Deliver));
        assert_eq!(at(16).next(Stage(5), Rank(17)), None);
    }

    #[test]
    fn the_ranks_of_a_node_divide_its_links() {
        let links = |rank: u32| {
            let route = at(rank, &[4; 64], "8x8");
            let stages = stages("8x8".parse().unwrap()).len() as u8;
            let edges = (1..=stages).map(|stage| route.edges(Stage(stage), Reach::Beyond));
            edges.sum::<u32>()
        };
        let of_node: Vec<u32> = (0..4).map(links).collect();
        assert_eq!(of_node, [2, 4, 4, 4], "seven in each dimension");
    }
}
