//! The tree that collectives travel along, whatever the route of a job's streams is.

use super::three_hop::{ORIGIN, RELAY, REMOTE};
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
///
/// Where there are relays, those two ranks are three hops apart: between two nodes that are
/// neighbours in the tree, the relays of the processes that represent them carry what they say. It
/// has the stages of [`super::ThreeHop`] then.
#[derive(Debug, Clone)]
pub struct Tree {
    topology: Topology,
    parent: Option<Rank>,
    children: Vec<Rank>,
    /// Of the children those through which other nodes speak.
    far: Vec<Rank>,
    /// The other ends of edges: of the first stage, of that between nodes, and of the last one.
    ends: [Vec<EndpointId>; 3],
}

/// The node above another one.
fn above(node: NodeId) -> Option<NodeId> {
    node.0.checked_sub(1).map(|n| NodeId(n / FAN_OUT))
}

/// The nodes below it.
fn below(node: NodeId, nodes: u32) -> impl Iterator<Item = NodeId> {
    let first = u64::from(node.0) * u64::from(FAN_OUT) + 1;
    let below = first..(first + u64::from(FAN_OUT)).min(u64::from(nodes));
    below.map(|n| NodeId(n as u32))
}

impl Tree {
    /// The tree as seen by this endpoint of `topology`.
    pub fn new(topology: Topology) -> Self {
        match topology.is_relay() {
            true => Self::of_relay(topology),
            false => Self::of_rank(topology),
        }
    }

    fn of_rank(topology: Topology) -> Self {
        let (me, node) = (topology.rank(), topology.node());
        let root = Self::speaker(&topology);
        let parent = match above(node) {
            _ if me != root => Some(root),
            Some(above) => Some(topology.representative(above, node)),
            None => None,
        };
        let (mut children, mut far) = (Vec::new(), Vec::new());
        if me == root {
            children.extend(topology.ranks_of(node).filter(|&rank| rank != me));
        }
        for below in below(node, topology.nodes()) {
            let here = topology.representative(node, below);
            if here == me {
                let child = topology.representative(below, node);
                children.push(child);
                far.push(child);
            } else if me == root && !far.contains(&here) {
                far.push(here);
            }
        }
        let ends = children.iter().copied().chain(parent).map(EndpointId::from);
        let (mut inside, mut beyond): (Vec<_>, Vec<_>) =
            ends.partition(|&end| topology.is_here(end));
        let mut relays = Vec::new();
        if topology.has_relays() {
            let towards = beyond.drain(..).map(|end| topology.node_of_endpoint(end));
            relays.extend(towards.map(|far| relay(&topology, node, far)));
            relays.sort_unstable();
            relays.dedup();
            inside.extend(&relays);
        }
        Self {
            topology,
            parent,
            children,
            far,
            ends: [inside, beyond, relays],
        }
    }

    /// A relay takes no part in collectives.
    fn of_relay(topology: Topology) -> Self {
        let (node, me) = (topology.node(), topology.endpoint());
        let neighbours = above(node).into_iter().chain(below(node, topology.nodes()));
        let (mut ranks, mut beyond) = (Vec::new(), Vec::new());
        for far in neighbours.filter(|&far| relay(&topology, node, far) == me) {
            beyond.push(relay(&topology, far, node));
            ranks.push(topology.representative(node, far).into());
        }
        ranks.sort_unstable();
        ranks.dedup();
        Self {
            topology,
            parent: None,
            children: Vec::new(),
            far: Vec::new(),
            ends: [ranks.clone(), beyond, ranks],
        }
    }

    /// The rank of this node with which all others of the node speak.
    pub fn speaker(topology: &Topology) -> Rank {
        let node = topology.node();
        let towards = above(node).or_else(|| below(node, topology.nodes()).next());
        match towards {
            Some(towards) => topology.representative(node, towards),
            None => topology.rank_at(node, 0),
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

    /// Of these the ones through which other nodes speak.
    pub fn far(&self) -> &[Rank] {
        &self.far
    }

    /// The other ends of the edges of a stage.
    fn ends(&self, stage: Stage, reach: Reach) -> &[EndpointId] {
        match (stage, reach) {
            (ORIGIN, Reach::Node) => &self.ends[0],
            (REMOTE, Reach::Beyond) => &self.ends[1],
            (RELAY, Reach::Node) => &self.ends[2],
            _ => &[],
        }
    }

    /// Where what has come to a relay goes on.
    fn next_of_relay(&self, at: Stage, target: Rank) -> Option<Next> {
        let here = &self.topology;
        let (node, end) = (here.node_of(target), EndpointId::from(target));
        match at {
            ORIGIN if node != here.node() && here.representative(node, here.node()) == target => {
                let far = relay(here, node, here.node());
                self.ends[1].contains(&far).then_some(Next::To(far, REMOTE))
            }
            REMOTE => self.ends[2].contains(&end).then_some(Next::To(end, RELAY)),
            _ => None,
        }
    }
}

/// The relay of a node that carries what it says to another one.
fn relay(topology: &Topology, of: NodeId, towards: NodeId) -> EndpointId {
    topology.relay_of(topology.processes().representative(of, towards).0)
}

impl Route for Tree {
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        let here = &self.topology;
        if here.is_relay() {
            return self.next_of_relay(at, target);
        }
        let (is_own, end) = (target == here.rank(), EndpointId::from(target));
        match at {
            Stage::SOURCE if is_own || self.ends[0].contains(&end) => Some(Next::To(end, ORIGIN)),
            Stage::SOURCE if here.has_relays() => {
                let is_neighbour = self.parent == Some(target) || self.children.contains(&target);
                let relay = || relay(here, here.node(), here.node_of(target));
                is_neighbour.then(|| Next::To(relay(), ORIGIN))
            }
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
        let neighbours = (FAN_OUT + 1).min(self.topology.nodes() - 1);
        let relayed = if self.topology.has_relays() {
            neighbours
        } else {
            0
        };
        match (stage, reach) {
            (ORIGIN, Reach::Node) => self.topology.most_local() - 1 + relayed,
            (REMOTE, Reach::Beyond) => neighbours,
            (RELAY, Reach::Node) => relayed,
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
