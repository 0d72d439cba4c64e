//! The tree that collectives travel along, whatever the route of a job's streams is.

use super::direct::{ORIGIN, REMOTE};
use super::{EndpointId, Next, Reach, Route, Stage};
use trihop_transport::topology::{NodeId, Rank, Topology};

/// Nodes below a node.
const FAN_OUT: u32 = 4;

/// A tree over the nodes, and in each node one over its ranks. A rank has an edge to its parent and
/// to each of its children, and reaches nobody else: a rank that gets something for ranks further
/// away sends it on.
///
/// Between two nodes it is their representatives for each other that speak; inside a node everyone
/// speaks with the one that speaks with the node above. It has the stages of [`super::Direct`], and
/// carries no broadcasts.
#[derive(Debug, Clone)]
pub struct Tree {
    topology: Topology,
    parent: Option<Rank>,
    children: Vec<Rank>,
    /// Parent and children: those of the node, and those beyond it.
    ends: [Vec<EndpointId>; 2],
}

impl Tree {
    /// The tree as seen from this rank of `topology`.
    pub fn new(topology: Topology) -> Self {
        let (me, node) = (topology.rank(), topology.node());
        let parent_of = |node: NodeId| node.0.checked_sub(1).map(|n| NodeId(n / FAN_OUT));
        let root = match parent_of(node) {
            Some(above) => topology.representative(node, above),
            None => topology.rank_at(node, 0),
        };
        let parent = match parent_of(node) {
            _ if me != root => Some(root),
            Some(above) => Some(topology.representative(above, node)),
            None => None,
        };
        let mut children = Vec::new();
        if me == root {
            children.extend(topology.ranks_of(node).filter(|&rank| rank != me));
        }
        let first = u64::from(node.0) * u64::from(FAN_OUT) + 1;
        let below = first..(first + u64::from(FAN_OUT)).min(u64::from(topology.nodes()));
        for below in below.map(|n| NodeId(n as u32)) {
            if topology.representative(node, below) == me {
                children.push(topology.representative(below, node));
            }
        }
        let ends = children.iter().copied().chain(parent).map(EndpointId::from);
        let (inside, beyond) = ends.partition(|&end| topology.is_here(end));
        Self {
            topology,
            parent,
            children,
            ends: [inside, beyond],
        }
    }

    /// The rank that this one speaks to on the way up, unless it is the top.
    pub fn parent(&self) -> Option<Rank> {
        self.parent
    }

    /// The ranks that this one hears from on the way up.
    pub fn children(&self) -> &[Rank] {
        &self.children
    }

    /// The other ends of the edges of a stage.
    fn ends(&self, stage: Stage, reach: Reach) -> &[EndpointId] {
        match (stage, reach) {
            (ORIGIN, Reach::Node) => &self.ends[0],
            (REMOTE, Reach::Beyond) => &self.ends[1],
            _ => &[],
        }
    }
}

impl Route for Tree {
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        let (is_own, end) = (target == self.topology.rank(), EndpointId::from(target));
        match at {
            Stage::SOURCE if is_own || self.ends[0].contains(&end) => Some(Next::To(end, ORIGIN)),
            Stage::SOURCE => self.ends[1].contains(&end).then_some(Next::To(end, REMOTE)),
            _ => is_own.then_some(Next::Deliver),
        }
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        self.ends(stage, reach).len() as u32
    }

    fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId {
        self.ends(stage, reach)[number as usize]
    }

    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        let mut ends = Reach::BOTH.into_iter().map(|reach| self.ends(stage, reach));
        ends.any(|ends| ends.contains(&peer))
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        match (stage, reach) {
            (ORIGIN, Reach::Node) => self.topology.most_local() - 1,
            (REMOTE, Reach::Beyond) => (FAN_OUT + 1).min(self.topology.nodes() - 1),
            _ => 0,
        }
    }

    fn copies(&self, _: Stage, _: Rank) -> u32 {
        0
    }

    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        panic!("copy {number} of a broadcast of rank {source} at stage {at}: the tree carries none")
    }

    fn passes(&self, _: Stage, _: Rank) -> bool {
        false
    }
}
