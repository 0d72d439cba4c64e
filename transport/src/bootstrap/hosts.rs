//! Which ranks share a node, where the launcher does not say: each rank tells its host, and equal
//! hosts are a node.

use std::collections::HashMap;
use std::fs;

use crate::error::{Error, Result};
use crate::topology::{Rank, Topology};

/// Key of the exchange.
const KEY: &str = "host";

/// The store of a launcher, before the topology is known.
pub(super) trait Store {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()>;
    fn fence(&mut self) -> Result<()>;
    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>>;
}

/// Collective: exchanges host names and numbers the nodes by their lowest rank.
pub(super) fn exchange(
    store: &mut dyn Store,
    launcher: &'static str,
    size: u32,
    me: Rank,
) -> Result<Topology> {
    store.put(KEY, &this_host()?)?;
    store.fence()?;
    let mut hosts = Vec::new();
    for rank in 0..size {
        let host = store
            .get(Rank(rank), KEY)?
            .ok_or_else(|| Error::Bootstrap {
                launcher,
                why: format!("rank {rank} did not say on which host it is"),
            })?;
        hosts.push(host);
    }
    by_lowest_rank(&hosts, me)
}

/// Equal marks are one node; nodes are numbered in the order of their lowest rank.
pub(super) fn by_lowest_rank<T: std::hash::Hash + Eq>(marks: &[T], me: Rank) -> Result<Topology> {
    let mut known = HashMap::new();
    let nodes: Vec<u32> = marks
        .iter()
        .map(|mark| {
            let next = known.len() as u32;
            *known.entry(mark).or_insert(next)
        })
        .collect();
    Topology::from_node_of(&nodes, me)
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

    #[test]
    fn nodes_are_numbered_by_their_lowest_rank() {
        let topology = by_lowest_rank(&["b", "b", "a", "c", "a"], Rank(4)).unwrap();
        let nodes: Vec<u32> = (0..5).map(|r| topology.node_of(Rank(r)).0).collect();
        assert_eq!(nodes, [0, 0, 1, 2, 1]);
        assert_eq!((topology.node().0, topology.local_rank()), (1, 1));
    }

    #[test]
    fn hosts_are_exchanged_through_the_store() {
        #[derive(Default)]
        struct Echo(Vec<u8>, bool);
        impl Store for Echo {
            fn put(&mut self, _: &str, value: &[u8]) -> Result<()> {
                self.0 = value.to_vec();
                Ok(())
            }
            fn fence(&mut self) -> Result<()> {
                self.1 = true;
                Ok(())
            }
            fn get(&mut self, from: Rank, _: &str) -> Result<Option<Vec<u8>>> {
                assert!(self.1, "get before the fence");
                Ok((from.0 < 3).then(|| self.0.clone()))
            }
        }
        let topology = exchange(&mut Echo::default(), "pmi1", 3, Rank(2)).unwrap();
        assert_eq!((topology.nodes(), topology.local_rank()), (1, 2));
        exchange(&mut Echo::default(), "pmi1", 4, Rank(2)).unwrap_err();
    }
}
