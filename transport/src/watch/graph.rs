//! Which nodes' watches are connected: each with at most eight others, and all by few hops.

use crate::topology::NodeId;

/// Most connections of a watch.
pub const MAX_NEIGHBOURS: usize = 8;

/// Distances in the circle of nodes, each in both directions.
const DISTANCES: u32 = MAX_NEIGHBOURS as u32 / 2;

/// The nodes whose watches that of `node` is connected with, in ascending order.
///
/// A circulant graph: the distances are the powers of the fourth root of the number of nodes. So
/// any two nodes are some twenty hops apart in a job of 10,000, and it takes the death of eight
/// certain nodes to cut one off.
pub fn neighbours(node: NodeId, nodes: u32) -> Vec<NodeId> {
    let mut found = Vec::new();
    if nodes as usize <= MAX_NEIGHBOURS + 1 {
        found.extend((0..nodes).filter(|&other| other != node.0));
    } else {
        let base = (2..)
            .find(|base: &u64| base.pow(DISTANCES) >= u64::from(nodes))
            .unwrap_or(2);
        for power in 0..DISTANCES {
            let distance = base.pow(power) % u64::from(nodes);
            let (here, all) = (u64::from(node.0), u64::from(nodes));
            found.extend(
                [(here + distance) % all, (here + all - distance) % all].map(|other| other as u32),
            );
        }
        found.retain(|&other| other != node.0);
        found.sort_unstable();
        found.dedup();
    }
    found.into_iter().map(NodeId).collect()
}

/// Which of two neighbours connects to the other. Each watch so connects to about half of its
/// neighbours.
pub(super) fn connects(from: NodeId, to: NodeId) -> bool {
    let lower = from.0 < to.0;
    // Where the sum is odd, the higher one: else node 0 would connect to all of its neighbours.
    lower == (from.0 + to.0).is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_mutual_few_and_reach_every_node() {
        for nodes in [1, 2, 3, 8, 9, 10, 11, 16, 17, 100, 257, 1000, 10_000] {
            let all: Vec<Vec<NodeId>> = (0..nodes)
                .map(|node| neighbours(NodeId(node), nodes))
                .collect();
            let mut reached = vec![false; nodes as usize];
            let mut open = vec![0];
            while let Some(node) = open.pop() {
                if !std::mem::replace(&mut reached[node], true) {
                    open.extend(all[node].iter().map(|other| other.0 as usize));
                }
            }
            assert!(reached.iter().all(|&reached| reached), "{nodes} nodes");
            for (node, others) in (0..).map(NodeId).zip(&all) {
                assert!(
                    others.len() <= MAX_NEIGHBOURS && !others.contains(&node),
                    "{node}: {others:?}"
                );
                for other in others {
                    assert!(
                        all[other.0 as usize].contains(&node),
                        "{node} and {other} of {nodes}"
                    );
                    assert_ne!(connects(node, *other), connects(*other, node));
                }
            }
        }
    }
}
