//! Which ranks share a node, where the launcher does not say: each rank tells its host, and equal
//! hosts are a node.

use std::collections::HashMap;
use std::fs;

use crate::error::{Error, Result};
use crate::topology::{NodeId, Rank, Topology};

/// Key of each rank's host.
const HOST: &str = "host";

/// Keys of rank 0's pieces of the placement: as it knows it by itself, and by the hosts.
const KNOWN: &str = "placement";
const FOUND: &str = "hosts";
/// Length of a piece, which every launcher takes.
const PIECE_BYTES: usize = 16 << 10;

/// The store of a launcher, before the topology is known.
pub(super) trait Store {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()>;
    fn fence(&mut self) -> Result<()>;
    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>>;
}

/// Collective, one fence: rank 0 tells the others who is where. Where it does not know either
/// (`known`), [`exchange`] follows.
pub(super) fn hear(
    store: &mut dyn Store,
    launcher: &'static str,
    size: u32,
    me: Rank,
    known: Option<Topology>,
) -> Result<Topology> {
    if me == Rank(0) {
        let text = known.as_ref().map(Topology::process_mapping);
        leave(store, KNOWN, &text.unwrap_or_default())?;
    }
    store.fence()?;
    let text = match me {
        Rank(0) => return known.map_or_else(|| exchange(store, launcher, size, me), Ok),
        _ => read(store, KNOWN, launcher)?,
    };
    match text.is_empty() {
        true => exchange(store, launcher, size, me),
        false => Topology::from_process_mapping(&text, size, me),
    }
}

/// Collective, two fences: rank 0 alone asks for every rank's host, as many requests as the job has
/// ranks, and tells the others.
pub(super) fn exchange(
    store: &mut dyn Store,
    launcher: &'static str,
    size: u32,
    me: Rank,
) -> Result<Topology> {
    store.put(HOST, &this_host()?)?;
    store.fence()?;
    if me == Rank(0) {
        let hosts = (0..size).map(|rank| {
            let host = store.get(Rank(rank), HOST)?;
            host.ok_or_else(|| missing(launcher, rank, "on which host it is"))
        });
        let topology = by_lowest_rank(hosts, me)?;
        leave(store, FOUND, &topology.process_mapping())?;
        store.fence()?;
        return Ok(topology);
    }
    store.fence()?;
    Topology::from_process_mapping(&read(store, FOUND, launcher)?, size, me)
}

fn missing(launcher: &'static str, rank: u32, what: &str) -> Error {
    let why = format!("rank {rank} did not say {what}");
    Error::Bootstrap { launcher, why }
}

/// Leaves a text in pieces, of which the last is shorter than the others, or empty.
pub(super) fn leave(store: &mut dyn Store, key: &str, text: &str) -> Result<()> {
    for number in 0..=text.len() / PIECE_BYTES {
        let rest = &text.as_bytes()[number * PIECE_BYTES..];
        store.put(
            &format!("{key}.{number}"),
            &rest[..rest.len().min(PIECE_BYTES)],
        )?;
    }
    Ok(())
}

/// The text that rank 0 has left.
pub(super) fn read(store: &mut dyn Store, key: &str, launcher: &'static str) -> Result<String> {
    let mut text = Vec::new();
    for number in 0.. {
        let piece = store.get(Rank(0), &format!("{key}.{number}"))?;
        let piece = piece.ok_or_else(|| missing(launcher, 0, "who is where"))?;
        text.extend_from_slice(&piece);
        if piece.len() != PIECE_BYTES {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Equal marks are one node; nodes are numbered in the order of their lowest rank. Memory follows
/// the nodes, not the ranks.
pub(super) fn by_lowest_rank<T: std::hash::Hash + Eq>(
    marks: impl Iterator<Item = Result<T>>,
    me: Rank,
) -> Result<Topology> {
    let mut known = HashMap::new();
    let node_of = |mark| {
        let next = NodeId(known.len() as u32);
        Ok((*known.entry(mark?).or_insert(next), 1))
    };
    Topology::from_runs(marks.map(node_of), me)
}

/// What ranks that can meet inside a node have in common: host name and boot id, where the boot id
/// tells hosts with one name apart and the name containers of one kernel, and the namespaces in
/// which they find each other.
fn this_host() -> Result<Vec<u8>> {
    let path = "/proc/sys/kernel/random/boot_id";
    let boot = fs::read_to_string(path).map_err(|e| Error::system(format!("reading {path}"), e))?;
    let name = rustix::system::uname();
    let mut mark = [name.nodename().to_bytes(), b"/", boot.trim().as_bytes()].concat();
    for namespace in ["net", "pid"] {
        // A kernel without namespaces has none that differ.
        let link = fs::read_link(format!("/proc/self/ns/{namespace}")).unwrap_or_default();
        mark.push(b'/');
        mark.extend(link.as_os_str().as_encoded_bytes());
    }
    Ok(mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, Mutex};

    #[test]
    fn nodes_are_numbered_by_their_lowest_rank() {
        let marks = ["b", "b", "a", "c", "a"].into_iter().map(Ok);
        let topology = by_lowest_rank(marks, Rank(4)).unwrap();
        let nodes: Vec<u32> = (0..5).map(|r| topology.node_of(Rank(r)).0).collect();
        assert_eq!(nodes, [0, 0, 1, 2, 1]);
        assert_eq!((topology.node().0, topology.local_rank()), (1, 1));
    }

    /// What all ranks share, and whose turn it is: each runs up to its next fence by itself.
    #[derive(Default)]
    struct Shared {
        values: HashMap<(u32, String), Vec<u8>>,
        gets: HashMap<u32, u32>,
    }

    struct OfRank<'a>(&'a Mutex<Shared>, &'a Barrier, u32);

    impl Store for OfRank<'_> {
        fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
            assert!(value.len() <= PIECE_BYTES);
            // All ranks are on one host; ranks with an odd number say another one.
            let other = [value, &[b'0' + (self.2 % 2) as u8]].concat();
            let value = if key == HOST { other } else { value.to_vec() };
            let mut shared = self.0.lock().unwrap();
            shared.values.insert((self.2, key.to_owned()), value);
            Ok(())
        }
        fn fence(&mut self) -> Result<()> {
            self.1.wait();
            Ok(())
        }
        fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
            let mut shared = self.0.lock().unwrap();
            *shared.gets.entry(self.2).or_default() += 1;
            Ok(shared.values.get(&(from.0, key.to_owned())).cloned())
        }
    }

    #[test]
    fn one_rank_asks_for_all_hosts_and_tells_the_others() {
        // Dealt out over two hosts, so that the placement takes more than one piece.
        const RANKS: u32 = 5_000;
        const ASKING: u32 = 3;
        let (shared, fence) = (Mutex::new(Shared::default()), Barrier::new(ASKING as usize));
        for rank in ASKING..RANKS {
            OfRank(&shared, &fence, rank)
                .put(HOST, &this_host().unwrap())
                .unwrap();
        }
        let topology = |rank| {
            let mut store = OfRank(&shared, &fence, rank);
            exchange(&mut store, "pmi1", RANKS, Rank(rank)).unwrap()
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..ASKING)
                .map(|rank| scope.spawn(move || topology(rank)))
                .collect();
            for (rank, topology) in (0..).zip(ranks) {
                let topology = topology.join().unwrap();
                assert_eq!((topology.nodes(), topology.local_size()), (2, RANKS / 2));
                assert_eq!(
                    (topology.node().0, topology.local_rank()),
                    (rank % 2, rank / 2)
                );
            }
        });
        let gets = &shared.lock().unwrap().gets;
        assert_eq!((gets[&0], gets[&1], gets[&2]), (RANKS, 2, 2));
    }

    #[test]
    fn what_rank_0_knows_all_take_over_and_what_it_does_not_they_find_out() {
        for known in [true, false] {
            let (shared, fence) = (Mutex::new(Shared::default()), Barrier::new(3));
            let topology = |rank| {
                let sizes: &[u32] = match rank {
                    0 if known => &[1, 2],
                    // Ranks of one node only may know something, and it does not count.
                    1 => &[3],
                    _ => &[],
                };
                let known = Topology::from_node_sizes(sizes, Rank(rank)).ok();
                hear(
                    &mut OfRank(&shared, &fence, rank),
                    "pmix",
                    3,
                    Rank(rank),
                    known,
                )
                .unwrap()
            };
            let map = if known {
                "(vector,(0,1,1),(1,1,2))"
            } else {
                "(vector,(0,2,1),(0,1,1))"
            };
            std::thread::scope(|scope| {
                let topology = &topology;
                let ranks = [0, 1, 2].map(|rank| scope.spawn(move || topology(rank)));
                for rank in ranks {
                    assert_eq!(rank.join().unwrap().process_mapping(), map);
                }
            });
            let gets = &shared.lock().unwrap().gets;
            assert_eq!(gets.get(&1), Some(if known { &1 } else { &2 }));
        }
    }

    #[test]
    fn a_rank_without_a_host_is_named() {
        let (shared, fence) = (Mutex::new(Shared::default()), Barrier::new(1));
        let error = exchange(&mut OfRank(&shared, &fence, 0), "pmi1", 2, Rank(0)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("rank 1 did not say on which host"),
            "{error}"
        );
    }
}
