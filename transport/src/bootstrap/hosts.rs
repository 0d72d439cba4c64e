//! Which ranks share a node, where the launcher does not say: each rank tells its host, and equal
//! hosts are a node.

use std::collections::HashMap;
use std::fs;

use crate::error::{Error, Result};
use crate::topology::{NodeId, Rank, Topology};

/// Key of each rank's host.
const HOST: &str = "host";

/// Keys of the pieces of the placement, of rank 0; and their length, which every launcher takes.
const PLACEMENT: &str = "placement";
const PIECE_BYTES: usize = 16 << 10;

/// The store of a launcher, before the topology is known.
pub(super) trait Store {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()>;
    fn fence(&mut self) -> Result<()>;
    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>>;
}

/// Collective, two fences: rank 0 alone asks for every rank's host, as many requests as the job has
/// ranks, and leaves the placement for all others.
pub(super) fn exchange(
    store: &mut dyn Store,
    launcher: &'static str,
    size: u32,
    me: Rank,
) -> Result<Topology> {
    let missing = |rank: u32, what: &str| Error::Bootstrap {
        launcher,
        why: format!("rank {rank} did not say {what}"),
    };
    store.put(HOST, &this_host()?)?;
    store.fence()?;
    if me == Rank(0) {
        let hosts = (0..size).map(|rank| {
            let host = store.get(Rank(rank), HOST)?;
            host.ok_or_else(|| missing(rank, "on which host it is"))
        });
        let topology = by_lowest_rank(hosts, me)?;
        let text = topology.process_mapping().into_bytes();
        // The last piece is shorter than the others, or empty.
        for number in 0..=text.len() / PIECE_BYTES {
            let rest = &text[number * PIECE_BYTES..];
            store.put(&piece(number), &rest[..rest.len().min(PIECE_BYTES)])?;
        }
        store.fence()?;
        return Ok(topology);
    }
    store.fence()?;
    let mut text = Vec::new();
    while text.len() % PIECE_BYTES == 0 {
        let (number, before) = (text.len() / PIECE_BYTES, text.len());
        let next = store.get(Rank(0), &piece(number))?;
        text.extend(next.ok_or_else(|| missing(0, "who is where"))?);
        if text.len() == before || text.len() > before + PIECE_BYTES {
            break;
        }
    }
    Topology::from_process_mapping(&String::from_utf8_lossy(&text), size, me)
}

fn piece(number: usize) -> String {
    format!("{PLACEMENT}.{number}")
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

/// Host name and boot id: the boot id tells hosts with one name apart, the name containers of one
/// kernel.
fn this_host() -> Result<Vec<u8>> {
    let path = "/proc/sys/kernel/random/boot_id";
    let boot = fs::read_to_string(path).map_err(|e| Error::system(format!("reading {path}"), e))?;
    let name = rustix::system::uname();
    Ok([name.nodename().to_bytes(), b"/", boot.trim().as_bytes()].concat())
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
