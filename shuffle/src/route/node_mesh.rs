//! Along a grid of nodes, between their representatives: three hops, several times.
//!
//! Each step along the grid is one of three hops: inside the node to the rank that speaks with the
//! next one, over the link between both, and on from there. So the links that a grid needs at all,
//! `s - 1` in each dimension of `s` nodes, are divided among the ranks of a node, and between two
//! nodes there is one link. It is what the manual of Charm++'s TRAM calls an aggressive node-aware
//! scheme: the ranks of a node are one buffer towards each neighbour of the node, whatever their
//! own place is. A rank that speaks with both neighbours itself saves the hop in between.
//!
//! The speakers of a node follow from the neighbour's coordinate, dimension after dimension: that
//! towards coordinate `j` is the local rank `j` plus the lengths of the dimensions before, modulo the
//! ranks of the node. So no rank has more than its part of a dimension's links, whatever the lengths
//! are. With one dimension it is the route of three hops.

use super::along_nodes::{AlongNodes, AlongRow, Speakers};
use super::grid::Row;
use trihop_transport::topology::Topology;

/// The route along a grid of nodes, between their representatives.
pub type NodeMesh = AlongNodes<Representatives>;

/// One rank of a node for each neighbour.
#[derive(Debug, Clone)]
pub struct Representatives {
    /// By row: the lengths of those before it.
    before: Box<[u32]>,
}

impl Representatives {
    /// The rank of a node that speaks with those of a coordinate.
    #[inline]
    fn of(&self, node: AlongRow, coordinate: u32) -> u32 {
        self.before[node.row].wrapping_add(coordinate) % node.ranks
    }
}

impl Speakers for Representatives {
    fn new(lengths: impl Iterator<Item = u32>) -> Self {
        let mut before = 0u32;
        let so_far = lengths.map(|length| {
            let so_far = before;
            before = before.wrapping_add(length);
            so_far
        });
        let before = so_far.collect();
        Self { before }
    }

    #[inline]
    fn sender(&self, here: AlongRow, _: u32, to: u32) -> u32 {
        self.of(here, to)
    }

    #[inline]
    fn landing(&self, there: AlongRow, _: u32, from: u32) -> u32 {
        self.of(there, from)
    }

    fn heard(
        &self,
        here: AlongRow,
        listener: u32,
        from: AlongRow,
    ) -> impl Iterator<Item = u32> + use<> {
        let is_own = self.of(here, from.coordinate) == listener;
        is_own.then(|| self.of(from, here.coordinate)).into_iter()
    }

    fn most(&self, _: usize, row: &Row, topology: &Topology) -> u32 {
        let each = row.size().div_ceil(topology.fewest_local());
        // Who stands in for others speaks with two rows.
        let rows = 2 - u32::from(row.is_full(topology.nodes()));
        (rows * each).min(row.most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::along_nodes::stages;
    use super::super::{EndpointId, Next, Reach, Route, Stage};
    use super::*;
    use trihop_transport::topology::Rank;

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
