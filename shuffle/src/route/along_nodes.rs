//! Along a grid of nodes: what the routes have in common whose grids are of nodes.
//!
//! A message corrects one coordinate of its node after the other. For each of them it goes inside
//! the node to the rank that sends it, over the link to the next node, and from the rank on which
//! it lands there on to the next sender, or to the target. Where two of these are the same rank,
//! the hop in between is saved. Who sends along a dimension, and on whom it lands, is what
//! [`Speakers`] say, and all in which these routes differ.

use std::fmt;

use super::grid::{BETWEEN, DIMENSIONS, NodeGrid, Row, Step, step, steps};
use super::{EndpointId, Next, Reach, Route, Stage, StageSpec, other_local, stage};
use trihop_transport::topology::{NodeId, Rank, Topology};

/// A stage to the first sender, and for each dimension one between nodes and one inside.
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

/// The row along which the edges of a stage lead to other nodes.
fn row_of(stage: Stage) -> Option<usize> {
    let is_between = !is_inside(stage) && stage != Stage::SOURCE;
    is_between.then(|| done(stage) - 1)
}

/// A node, as far as it matters along a row.
#[derive(Debug, Clone, Copy)]
pub struct AlongRow {
    pub row: usize,
    /// Its coordinate.
    pub coordinate: u32,
    /// Its ranks.
    pub ranks: u32,
}

/// Who of a node speaks with others along each row. All ranks are local ones.
pub trait Speakers: Clone + fmt::Debug {
    /// Of a grid whose rows have these lengths.
    fn new(lengths: impl Iterator<Item = u32>) -> Self;

    /// The rank of node `here` that sends what `holder`, a rank of it, has for a node with the
    /// coordinate `to`. A sender is its own one. Who sends for a holder to one of the nodes that it
    /// sends to along the row, sends for it to all of them.
    fn sender(&self, here: AlongRow, holder: u32, to: u32) -> u32;

    /// The rank of node `there` on which lands what `sender`, a rank of a node with the coordinate
    /// `from`, sends to that node.
    fn landing(&self, there: AlongRow, sender: u32, from: u32) -> u32;

    /// The senders of node `from` whose messages to node `here` land on `listener`, a rank of that.
    fn heard(
        &self,
        here: AlongRow,
        listener: u32,
        from: AlongRow,
    ) -> impl Iterator<Item = u32> + use<Self>;

    /// A bound of how many ranks of other nodes any rank of the job sends to along a row, or hears.
    fn most(&self, number: usize, row: &Row, topology: &Topology) -> u32;
}

/// A route along a grid of nodes.
#[derive(Debug, Clone)]
pub struct AlongNodes<S> {
    topology: Topology,
    speakers: S,
    /// Of this rank's node, the last dimension of the grid first.
    rows: Box<[Row]>,
    /// By row: the nodes that this rank sends to.
    sent_to: Box<[Box<[NodeId]>]>,
    /// By row: the other ends of its edges, ascending.
    ends: Box<[Box<[EndpointId]>]>,
}

impl<S: Speakers> AlongNodes<S> {
    /// The route as seen from this rank of `topology`, along a grid whose lengths are given.
    pub fn new(topology: Topology, grid: NodeGrid) -> Self {
        let rows = Row::all(grid.sizes(), topology.node().0, topology.nodes());
        let mut route = Self {
            speakers: S::new(rows.iter().map(Row::size)),
            sent_to: Box::default(),
            ends: Box::default(),
            rows,
            topology,
        };
        let rows = 0..route.rows.len();
        route.sent_to = rows.clone().map(|row| route.sent_along(row)).collect();
        route.ends = rows.map(|row| route.ends_along(row)).collect();
        route
    }

    fn sent_along(&self, row: usize) -> Box<[NodeId]> {
        let of = &self.rows[row];
        let others = (0..of.others()).map(|number| NodeId(of.other(number)));
        let own = self.own();
        let is_own = |&node: &NodeId| self.sender(row, own, node) == own.1;
        others.filter(is_own).collect()
    }

    fn ends_along(&self, row: usize) -> Box<[EndpointId]> {
        let (node, me) = self.own();
        let here = self.along(row, node);
        let sent = self.sent_to[row].iter();
        let sent = sent.map(|&node| self.end(row, node));
        let heard = self.rows[row].heard().map(NodeId).flat_map(|node| {
            let heard = self.speakers.heard(here, me, self.along(row, node));
            heard.map(move |local| self.topology.rank_at(node, local).into())
        });
        let mut ends: Vec<EndpointId> = sent.chain(heard).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.into()
    }

    /// This rank: its node, and its local rank.
    fn own(&self) -> (NodeId, u32) {
        (self.topology.node(), self.topology.local_rank())
    }

    fn along(&self, row: usize, node: NodeId) -> AlongRow {
        AlongRow {
            row,
            coordinate: self.rows[row].coordinate(node.0),
            ranks: self.topology.local_size_of(node),
        }
    }

    /// The local rank that sends to a node what a rank of another one has.
    #[inline]
    fn sender(&self, row: usize, (node, holder): (NodeId, u32), to: NodeId) -> u32 {
        let to = self.rows[row].coordinate(to.0);
        self.speakers.sender(self.along(row, node), holder, to)
    }

    /// The local rank of a node on which lands what a rank of another one sends it.
    #[inline]
    fn landing(&self, row: usize, (node, sender): (NodeId, u32), to: NodeId) -> u32 {
        let from = self.rows[row].coordinate(node.0);
        self.speakers.landing(self.along(row, to), sender, from)
    }

    /// The other end of the edge over which this rank sends to a node.
    #[inline]
    fn end(&self, row: usize, to: NodeId) -> EndpointId {
        let local = self.landing(row, self.own(), to);
        self.topology.rank_at(to, local).into()
    }

    /// The other ends of the edges of a stage between nodes.
    fn ends(&self, stage: Stage) -> &[EndpointId] {
        let ends = row_of(stage).and_then(|row| self.ends.get(row));
        ends.map_or(&[], |ends| ends)
    }

    /// The local rank that a broadcast comes to first of this node, and the stage that it has then.
    fn arrival(&self, source: Rank) -> (u32, Stage) {
        let here = &self.topology;
        let node = here.node_of(source).0;
        let first = (here.local_rank_of(source), Stage::SOURCE);
        let steps = steps(&self.rows, here.nodes(), node);
        steps.fold(first, |(holder, _), (from, to, row)| {
            let (from, to) = (NodeId(from), NodeId(to));
            let sender = self.sender(row, (from, holder), to);
            (self.landing(row, (from, sender), to), between(row))
        })
    }

    /// The nodes that copies go on to from here of a broadcast that has come this far, row by row.
    fn copies_between(&self, at: Stage, source: Rank) -> impl Iterator<Item = (&[NodeId], usize)> {
        let (here, me) = self.own();
        let holder = match is_inside(at) {
            true => self.arrival(source).0,
            false => me,
        };
        let first = done(at).min(self.rows.len());
        let rows = self.sent_to[first..].iter().zip(first..);
        rows.filter_map(move |(nodes, row)| {
            // Whom it sends for to one of these nodes, it sends for to all.
            let sends = self.sender(row, (here, holder), *nodes.first()?) == me;
            sends.then_some((&**nodes, row))
        })
    }

    fn others(&self) -> u32 {
        self.topology.local_size() - 1
    }
}

impl<S: Speakers> Route for AlongNodes<S> {
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
                let (own, node) = (self.own(), NodeId(node));
                match self.sender(row, own, node) {
                    sender if sender == own.1 => Some(Next::To(self.end(row, node), between(row))),
                    sender => inside(here.rank_at(own.0, sender).into()),
                }
            }
        }
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        match reach {
            Reach::Node if is_inside(stage) => self.others(),
            Reach::Node => 0,
            Reach::Beyond => self.ends(stage).len() as u32,
        }
    }

    fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId {
        match reach {
            Reach::Node => other_local(&self.topology, number),
            Reach::Beyond => self.ends(stage)[number as usize],
        }
    }

    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        let here = &self.topology;
        match is_inside(stage) {
            true => {
                let is_known = usize::from(stage.0) <= 2 * self.rows.len() + 1;
                is_known && here.is_here(peer) && peer != here.endpoint()
            }
            false => self.ends(stage).binary_search(&peer).is_ok(),
        }
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        match (row_of(stage), reach) {
            (None, Reach::Node) if is_inside(stage) => self.topology.most_local() - 1,
            (Some(number), Reach::Beyond) => {
                let most = |row| self.speakers.most(number, row, &self.topology);
                self.rows.get(number).map_or(0, most)
            }
            _ => 0,
        }
    }

    fn copies(&self, at: Stage, source: Rank) -> u32 {
        let inside = if is_inside(at) { 0 } else { self.others() };
        let between = self.copies_between(at, source);
        inside + between.map(|(nodes, _)| nodes.len() as u32).sum::<u32>()
    }

    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        let mut left = number;
        for (nodes, row) in self.copies_between(at, source) {
            match left.checked_sub(nodes.len() as u32) {
                None => return (self.end(row, nodes[left as usize]), between(row)),
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
        let (first, over) = self.arrival(source);
        let inside = u8::from(first != self.topology.local_rank());
        // One's own comes over the first stage.
        Stage(over.0 + inside).max(Stage::FIRST) == at
    }
}
