//! Which adapter an endpoint takes.

use super::nic::{LinkState, Nic};
use super::numa::{Numa, Place};

/// The adapter that a rank at `place` takes out of those of one provider: the closest by NUMA node,
/// and among those that are as close, in the order of [`equals`], each in its turn.
///
/// None only where there are none.
///
/// # Example
/// ```
/// use trihop_transport::nics::{Nic, Numa, Place, closest};
/// let nics = ["cxi0", "cxi1"].map(|device| Nic { device: device.into(), ..Nic::default() });
/// let place = |local_rank| Place { local_rank, ..Place::default() };
/// let taken = [0, 1, 2, 3].map(|r| closest(&nics, &Numa::default(), &place(r)));
/// assert_eq!(taken, [Some(0), Some(1), Some(0), Some(1)]);
/// ```
pub fn closest(nics: &[Nic], numa: &Numa, place: &Place) -> Option<usize> {
    let equals = equals(nics, numa, place.numa_node);
    match equals.len() {
        0 => None,
        count => Some(equals[place.turn(numa, count)]),
    }
}

/// The adapters that are closest to NUMA node `numa_node` (to none: all), without those that are
/// [`aside`]: cards in the order of the bus, and the second ports of cards after the first ports of
/// all of them. What is not on the bus comes last, in the order of the list.
pub fn equals(nics: &[Nic], numa: &Numa, numa_node: Option<u32>) -> Vec<usize> {
    let mut usable: Vec<usize> = (0..nics.len())
        .filter(|&i| aside(nics, i).is_none())
        .collect();
    if usable.is_empty() {
        // What is known of links may be wrong, and without any there is no job.
        usable = (0..nics.len()).collect();
    }
    if let Some(node) = numa_node {
        let distance = |i: usize| numa.distance(node, nics[i].numa_node);
        let least = usable.iter().map(|&i| distance(i)).min();
        usable.retain(|&i| Some(distance(i)) == least);
    }
    usable.sort_by_key(|&i| match nics[i].bus {
        Some(bus) => (false, bus.function, Some(bus)),
        None => (true, 0, None),
    });
    usable
}

/// Why nobody takes the adapter with this index while another one will do: its link is down, it is
/// part of a bond, or another one is faster.
pub fn aside(nics: &[Nic], index: usize) -> Option<String> {
    let works = |nic: &Nic| nic.link != LinkState::Down && nic.bond.is_none();
    let nic = &nics[index];
    if nic.link == LinkState::Down {
        return Some("its link is down".to_owned());
    }
    if let Some(bond) = &nic.bond {
        return Some(format!("it is part of {bond}"));
    }
    let others = nics.iter().filter(|nic| works(nic));
    let fastest = others.max_by_key(|nic| nic.bits_per_second)?;
    match (nic.bits_per_second, fastest.bits_per_second) {
        (Some(ours), Some(best)) if ours < best => Some(format!("{} is faster", fastest.device)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::nic::PciAddress;
    use super::super::numa::NumaNode;
    use super::*;

    /// `nodes` NUMA nodes, and adapters on these of them.
    fn machine(nodes: u32, adapters: &[u32]) -> (Numa, Vec<Nic>) {
        let node = |number| NumaNode {
            number,
            cpus: vec![number..=number],
            distances: (0..nodes).map(|to| 10 + to.abs_diff(number)).collect(),
        };
        let nic = |(i, &numa_node): (usize, &u32)| Nic {
            device: format!("nic{i}"),
            bus: Some(PciAddress {
                domain: 0,
                bus: 200 - i as u8,
                device: 0,
                function: 0,
            }),
            numa_node: Some(numa_node),
            link: LinkState::Up,
            ..Nic::default()
        };
        let numa = Numa {
            nodes: (0..nodes).map(node).collect(),
        };
        (numa, adapters.iter().enumerate().map(nic).collect())
    }

    /// Every way to put up to `most` adapters on `nodes` NUMA nodes.
    fn placements(nodes: u32, most: usize) -> Vec<Vec<u32>> {
        let mut all = vec![Vec::new()];
        let mut grown = all.clone();
        for _ in 0..most {
            let longer = |p: &Vec<u32>| {
                let p = p.clone();
                (0..nodes).map(move |node| p.iter().copied().chain([node]).collect::<Vec<u32>>())
            };
            grown = grown.iter().flat_map(longer).collect();
            all.extend(grown.clone());
        }
        all
    }

    /// Every placement of up to five adapters on up to four NUMA nodes, every rank of up to sixteen:
    /// nobody has a closer one than the one it takes, and those that are as close have as many ranks,
    /// two more or less, whichever way ranks are bound.
    #[test]
    fn every_rank_takes_the_closest_and_equals_share_their_ranks() {
        type Binding = fn(u32, u32, u32) -> Option<u32>;
        let bindings: [Binding; 3] = [
            |_, _, _| None,
            |rank, each, _| Some(rank / each),
            |rank, _, nodes| Some(rank % nodes),
        ];
        let mut checked = 0;
        for nodes in 1..=4 {
            for adapters in placements(nodes, 5) {
                let (numa, nics) = machine(nodes, &adapters);
                for (each, binding) in (1..=4).flat_map(|e| bindings.map(|b| (e, b))) {
                    let local_size = nodes * each;
                    let mut load = vec![[0; 4]; nics.len()];
                    for local_rank in 0..local_size {
                        let numa_node = binding(local_rank, each, nodes);
                        let place = Place {
                            numa_node,
                            local_rank,
                        };
                        let taken = closest(&nics, &numa, &place);
                        assert_eq!(taken.is_none(), nics.is_empty());
                        let Some(taken) = taken else { continue };
                        if let Some(node) = numa_node {
                            let far = |i: usize| nics[i].numa_node.unwrap().abs_diff(node);
                            assert!((0..nics.len()).all(|i| far(taken) <= far(i)));
                        }
                        load[taken][numa_node.unwrap_or(0) as usize] += 1;
                        checked += 1;
                    }
                    for node in 0..nodes {
                        let bound = binding(0, each, nodes).map(|_| node);
                        let of = |i: &usize| load[*i][node as usize];
                        let equals = equals(&nics, &numa, bound);
                        let most = equals.iter().map(of).max().unwrap_or(0);
                        let least = equals.iter().map(of).min().unwrap_or(0);
                        assert!(
                            most - least <= 2,
                            "{adapters:?} on {nodes}, {each} ranks each: {load:?}"
                        );
                    }
                }
            }
        }
        assert!(checked > 100_000, "{checked}");
    }

    #[test]
    fn second_ports_come_after_the_first_ports_of_all_cards() {
        let port = |bus: u8, function| Nic {
            bus: Some(PciAddress {
                domain: 0,
                bus,
                device: 0,
                function,
            }),
            ..Nic::default()
        };
        let nics = [
            Nic::default(),
            port(9, 1),
            port(9, 0),
            port(3, 0),
            port(3, 1),
            Nic::default(),
        ];
        assert_eq!(equals(&nics, &Numa::default(), None), [3, 2, 4, 1, 0, 5]);
    }

    #[test]
    fn an_adapter_on_no_known_node_is_farther_than_any_other() {
        let (numa, mut nics) = machine(2, &[1, 0]);
        nics[1].numa_node = None;
        assert_eq!(equals(&nics, &numa, Some(0)), [0]);
        nics[0].numa_node = None;
        assert_eq!(equals(&nics, &numa, Some(0)), [1, 0], "neither is closer");
    }

    #[test]
    fn what_is_down_bonded_or_slower_is_taken_only_where_nothing_else_is_there() {
        let named = |device: &str| Nic {
            device: device.to_owned(),
            ..Nic::default()
        };
        let down = Nic {
            link: LinkState::Down,
            bits_per_second: Some(400),
            ..named("down")
        };
        let bonded = Nic {
            bond: Some("bond0".to_owned()),
            bits_per_second: Some(300),
            ..named("part")
        };
        let fast = Nic {
            bits_per_second: Some(200),
            ..named("fast")
        };
        let slow = Nic {
            bits_per_second: Some(100),
            ..named("slow")
        };
        let unknown = named("unknown");
        let nics = [down, bonded, fast, slow, unknown];
        let reasons: Vec<_> = (0..5).map(|i| aside(&nics, i)).collect();
        let reasons: Vec<_> = reasons.iter().map(|r| r.as_deref()).collect();
        assert_eq!(
            reasons,
            [
                Some("its link is down"),
                Some("it is part of bond0"),
                None,
                Some("fast is faster"),
                None
            ]
        );
        assert_eq!(equals(&nics, &Numa::default(), None), [2, 4]);
        assert_eq!(equals(&nics[3..4], &Numa::default(), None), [0]);
        assert_eq!(equals(&nics[..2], &Numa::default(), None), [0, 1]);
    }
}
