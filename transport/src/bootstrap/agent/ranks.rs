//! How many ranks each node has, which its agents alone know, not their launcher.

use super::{MOST_RANKS, failed};
use crate::bootstrap::Bootstrap;
use crate::bootstrap::hosts::{self, Store};
use crate::error::{Error, Result};
use crate::topology::{NodeId, Rank, Topology};

/// Key of what each agent has been told.
const TOLD: &str = "agent-ranks";
/// Key of rank 0's pieces of the list of all nodes.
const ALL: &str = "agent-nodes";
/// Longest list of all nodes: it is a part of the one message that a rank is told.
const MOST_LIST_BYTES: usize = 4 << 10;
/// First byte of what rank 0 tells instead of a list.
const REFUSED: char = '!';

/// Collective, two fences: the ranks of each node, by its number, where this agent was told `mine`
/// of its own. Rank 0 alone asks all agents, and tells the others.
///
/// # Errors
/// On all agents, where a node has no rank, fewer than agents or too many, or its agents were told
/// different numbers; and the launcher's.
pub fn ranks_of_nodes(bootstrap: &mut dyn Bootstrap, mine: u32) -> Result<Vec<u32>> {
    let topology = bootstrap.topology().clone();
    if topology.size() == 1 {
        check(NodeId(0), mine, 1).map_err(refused)?;
        return Ok(vec![mine]);
    }
    bootstrap.put(TOLD, &mine.to_le_bytes())?;
    bootstrap.fence()?;
    if topology.rank() == Rank(0) {
        let gathered = gather(bootstrap, &topology);
        let text = match &gathered {
            Ok(Ok(ranks)) => encode(ranks),
            Ok(Err(why)) => format!("{REFUSED}{why}"),
            // The others wait for it, whatever has gone wrong here.
            Err(error) => format!("{REFUSED}{error}"),
        };
        hosts::leave(&mut OfBootstrap(bootstrap), ALL, &text)?;
        bootstrap.fence()?;
        return gathered?.map_err(refused);
    }
    bootstrap.fence()?;
    let launcher = bootstrap.launcher().name();
    let text = hosts::read(&mut OfBootstrap(bootstrap), ALL, launcher)?;
    if let Some(why) = text.strip_prefix(REFUSED) {
        return Err(refused(why.to_owned()));
    }
    let ranks = decode(&text, topology.nodes());
    ranks.ok_or_else(|| failed("rank 0 has left no list of the nodes' ranks"))
}

fn refused(why: String) -> Error {
    Error::config("ranks", why)
}

/// By node, or what is wrong with what its agents were told.
fn gather(bootstrap: &mut dyn Bootstrap, topology: &Topology) -> Result<Result<Vec<u32>, String>> {
    let mut ranks: Vec<u32> = Vec::new();
    for node in (0..topology.nodes()).map(NodeId) {
        let mut known = None;
        for agent in topology.ranks_of(node) {
            let value = bootstrap.get(agent, TOLD)?;
            let told = value.and_then(|value| Some(u32::from_le_bytes(value.try_into().ok()?)));
            let Some(told) = told else {
                return Ok(Err(format!(
                    "process {agent} (as the launcher counts) is no agent"
                )));
            };
            match *known.get_or_insert(told) {
                known if known == told => {}
                other => {
                    return Ok(Err(format!(
                        "the agents of node {node} were told {other} and {told} ranks: tell each \
                         of them how many its node has"
                    )));
                }
            }
        }
        let here = known.unwrap_or_default();
        if let Err(why) = check(node, here, topology.local_size_of(node)) {
            return Ok(Err(why));
        }
        ranks.push(here);
    }
    let list = encode(&ranks).len();
    if list > MOST_LIST_BYTES {
        return Ok(Err(format!(
            "the nodes have too many numbers of ranks by turns: a list of {list} bytes, of \
             {MOST_LIST_BYTES} at most; let nodes with equally many follow each other"
        )));
    }
    Ok(Ok(ranks))
}

fn check(node: NodeId, ranks: u32, agents: u32) -> Result<(), String> {
    match ranks {
        0 => Err(format!(
            "node {node} has no rank: start agents on nodes that have some"
        )),
        _ if ranks < agents => Err(format!(
            "node {node} has {agents} agents and {ranks} ranks: each agent needs a rank"
        )),
        _ if ranks > MOST_RANKS => Err(format!(
            "{ranks} ranks of node {node}; possible are 1 to {MOST_RANKS}"
        )),
        _ => Ok(()),
    }
}

/// Nodes that follow each other with equally many ranks stand together: `4x2,3x1`.
pub(super) fn encode(ranks: &[u32]) -> String {
    let runs = ranks.chunk_by(|a, b| a == b);
    let texts = runs.map(|run| format!("{}x{}", run[0], run.len()));
    texts.collect::<Vec<_>>().join(",")
}

/// The ranks of so many nodes.
pub(super) fn decode(text: &str, nodes: u32) -> Option<Vec<u32>> {
    let mut ranks = Vec::new();
    for run in text.split(',') {
        let (each, times) = run.split_once('x')?;
        let (each, times): (u32, u32) = (each.parse().ok()?, times.parse().ok()?);
        let all = ranks.len() as u64 + u64::from(times);
        if all > nodes.into() {
            return None;
        }
        ranks.resize(all as usize, each);
    }
    (ranks.len() == nodes as usize).then_some(ranks)
}

/// The store of a launcher that has started this process.
struct OfBootstrap<'a>(&'a mut dyn Bootstrap);

impl Store for OfBootstrap<'_> {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.0.put(key, value)
    }

    fn fence(&mut self) -> Result<()> {
        self.0.fence()
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        self.0.get(from, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        for ranks in [&[4][..], &[4, 4, 3], &[1, 2, 1, 1, 1024]] {
            let text = encode(ranks);
            assert_eq!(decode(&text, ranks.len() as u32).as_deref(), Some(ranks));
            assert_eq!(decode(&text, ranks.len() as u32 + 1), None);
            assert_eq!(decode(&text, ranks.len() as u32 - 1), None);
        }
        assert_eq!(encode(&[4, 4, 3]), "4x2,3x1");
        for bad in ["", "4", "4x", "x1", "4x1,", "4x4294967295", "-1x1"] {
            assert_eq!(decode(bad, 1), None, "{bad}");
        }
    }
}
