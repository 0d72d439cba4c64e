//! The machine's NUMA nodes, and where a rank is among them.

use std::ops::RangeInclusive;

use super::sysfs::own_cpus;

/// Distance inside of a node and to another one, where the machine gives no table.
const HERE: u32 = 10;
const ELSEWHERE: u32 = 20;
/// Distance of what is nowhere: the table's "cannot be reached".
const NOWHERE: u32 = 255;

/// NUMA nodes of a machine, by their numbers. Empty where the kernel has no NUMA.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numa {
    /// In the order of their numbers.
    pub nodes: Vec<NumaNode>,
}

/// One NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number.
    pub number: u32,
    /// Its processors; none where it is memory only.
    pub cpus: Vec<RangeInclusive<u32>>,
    /// Distance to each node of [`Numa::nodes`], in their order; 10 is its own memory.
    pub distances: Vec<u32>,
}

impl Numa {
    /// The one node that has all these processors, as the mask of a rank lists them; none where
    /// several have some.
    pub fn node_of(&self, cpus: impl IntoIterator<Item = u32>) -> Option<u32> {
        let mut found = None;
        for cpu in cpus {
            let has = |node: &&NumaNode| node.cpus.iter().any(|range| range.contains(&cpu));
            let node = self.nodes.iter().find(has)?.number;
            if *found.get_or_insert(node) != node {
                return None;
            }
        }
        found
    }

    /// How far a device on NUMA node `to` is from processors of node `from`.
    pub fn distance(&self, from: u32, to: Option<u32>) -> u32 {
        let Some(to) = to else { return NOWHERE };
        let index = |number| self.nodes.iter().position(|n| n.number == number);
        let told = index(from)
            .zip(index(to))
            .and_then(|(from, to)| self.nodes[from].distances.get(to).copied());
        told.unwrap_or(if from == to { HERE } else { ELSEWHERE })
    }
}

/// Where a rank is on its node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// NUMA node that it is bound to; none where it may run on several.
    pub numa_node: Option<u32>,
    /// Its number among the ranks of its node.
    pub local_rank: u32,
}

impl Place {
    /// The place of the calling thread, as the processors say that it may run on.
    pub fn of_this_thread(numa: &Numa, local_rank: u32) -> Self {
        Self {
            numa_node: numa.node_of(own_cpus()),
            local_rank,
        }
    }

    /// Which of `count` equal things it takes, so that those ranks share them that are bound to the
    /// same NUMA node, though nobody tells which ones these are.
    ///
    /// Launchers bind in blocks (the first ranks to the first NUMA node) or in turn (rank after
    /// rank to the next one). Local ranks modulo `count` share well in blocks, and in turn where
    /// the number of NUMA nodes and `count` have no divisor in common. Else, of two things on each
    /// of two nodes, ranks in turn would have one only; so the count begins one later each time
    /// that both, nodes and things, have come round.
    pub fn turn(&self, numa: &Numa, count: usize) -> usize {
        let nodes = numa.nodes.iter().filter(|node| !node.cpus.is_empty());
        let nodes = nodes.count();
        let rank = self.local_rank as usize;
        let late = match (self.numa_node, greatest_common_divisor(count, nodes)) {
            (Some(_), common @ 2..) => rank / (nodes / common * count),
            _ => 0,
        };
        (rank + late) % count
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => greatest_common_divisor(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(nodes: u32, cpus_each: u32) -> Numa {
        let node = |number| NumaNode {
            number,
            cpus: vec![number * cpus_each..=(number + 1) * cpus_each - 1],
            distances: Vec::new(),
        };
        Numa {
            nodes: (0..nodes).map(node).collect(),
        }
    }

    #[test]
    fn a_rank_is_on_the_node_that_has_all_its_cpus() {
        let numa = machine(4, 8);
        assert_eq!(numa.node_of([9]), Some(1));
        assert_eq!(numa.node_of(24..32), Some(3));
        assert_eq!(numa.node_of(7..9), None);
        assert_eq!(numa.node_of(0..32), None);
        assert_eq!(numa.node_of([]), None);
        assert_eq!(numa.node_of([99]), None, "a processor of no node");
        assert_eq!(Numa::default().node_of([0]), None);
    }

    #[test]
    fn ranks_of_a_node_share_what_is_equal_whichever_way_they_are_bound() {
        for nodes in 1..9 {
            let numa = machine(nodes, 8);
            for (count, each) in (1..9).flat_map(|count| (1..33).map(move |each| (count, each))) {
                let bindings: [&dyn Fn(u32) -> u32; 2] =
                    [&|rank| rank / each, &|rank| rank % nodes];
                for binding in bindings {
                    let mut loads = vec![vec![0; count]; nodes as usize];
                    for local_rank in 0..nodes * each {
                        let numa_node = binding(local_rank);
                        let place = Place {
                            numa_node: Some(numa_node),
                            local_rank,
                        };
                        loads[numa_node as usize][place.turn(&numa, count)] += 1;
                    }
                    for load in loads {
                        let (most, least) = (load.iter().max(), load.iter().min());
                        let uneven = most.unwrap() - least.unwrap();
                        assert!(
                            uneven <= 2,
                            "{count} on {nodes}, {each} ranks each: {load:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_rank_that_is_not_bound_goes_by_its_local_rank() {
        let numa = machine(4, 8);
        for local_rank in 0..32 {
            let place = Place {
                numa_node: None,
                local_rank,
            };
            assert_eq!(place.turn(&numa, 4), local_rank as usize % 4);
        }
    }
}
