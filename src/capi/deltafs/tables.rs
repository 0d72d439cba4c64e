//! What nexus knows: the ranks of this node, the nodes that this rank represents, and the next hop.

use std::io::{self, Write};

use super::mercury::hg_addr;
use crate::transport::sync::Arc;
use crate::{NodeId, Rank, Topology};

/// A row: a rank of this node, or the representative of another one.
pub(super) struct Row {
    pub rank: Rank,
    pub node: NodeId,
    pub address: Arc<hg_addr>,
}

/// The tables of one rank.
pub(super) struct Tables {
    pub topology: Topology,
    /// By rank, this one included.
    pub local: Vec<Row>,
    /// By node.
    pub remote: Vec<Row>,
}

/// Where a message goes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hop {
    /// It is there.
    Done,
    /// To the destination, on this node.
    Local(Rank),
    /// To the representative towards the destination's node.
    SourceRep(Rank),
    /// To the representative of that node.
    TargetRep(Rank),
    /// Nowhere from here: the node is represented by another rank than this one.
    NotFound,
}

/// A part of a dump, a file of its own.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// Who and where all ranks are.
    Id,
    /// Ranks of this node with their addresses.
    Local,
    /// Nodes that this rank represents, with addresses.
    Remote,
}

impl Part {
    /// End of the file's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Local => "lmap",
            Self::Remote => "rmap",
        }
    }
}

impl Tables {
    pub fn new(topology: Topology) -> Self {
        let here = topology.node();
        let row = |rank: Rank, way: &str| Row {
            rank,
            node: topology.node_of(rank),
            address: hg_addr::new(format!("trihop+{way}://{rank}")),
        };
        let local: Vec<Row> = topology
            .ranks_of(here)
            .map(|rank| row(rank, "shm"))
            .collect();
        // The nodes that this rank represents are every `local_size`-th.
        let remote = (topology.local_rank()..topology.nodes())
            .step_by(topology.local_size() as usize)
            .map(NodeId)
            .filter(|&node| node != here)
            .map(|node| row(topology.target_representative(node), "fabric"))
            .collect();
        Self {
            topology,
            local,
            remote,
        }
    }

    /// The next hop towards `target`, as `from` would go.
    pub fn next_hop(&self, from: Rank, target: Rank) -> Hop {
        let topology = &self.topology;
        if from == target {
            return Hop::Done;
        }
        if topology.is_local(target) {
            return Hop::Local(target);
        }
        let node = topology.node_of(target);
        let source_rep = topology.source_representative(node);
        if from != source_rep {
            return Hop::SourceRep(source_rep);
        }
        match self.remote_address(node) {
            Some(_) => Hop::TargetRep(topology.target_representative(node)),
            None => Hop::NotFound,
        }
    }

    /// Address of a rank of this node.
    pub fn local_address(&self, rank: Rank) -> Option<&Arc<hg_addr>> {
        let at = self
            .local
            .binary_search_by_key(&rank, |row| row.rank)
            .ok()?;
        Some(&self.local[at].address)
    }

    /// Address of the representative of a node that this rank talks to.
    pub fn remote_address(&self, node: NodeId) -> Option<&Arc<hg_addr>> {
        let at = self
            .remote
            .binary_search_by_key(&node, |row| row.node)
            .ok()?;
        Some(&self.remote[at].address)
    }

    /// Writes a part of the dump, as `rank`.
    pub fn write(&self, part: Part, out: &mut dyn Write, rank: Rank) -> io::Result<()> {
        match part {
            Part::Id => self.write_id(out, rank),
            Part::Local => write_rows(
                out,
                rank,
                "lmap",
                self.local.iter().map(|row| (row.rank.0, row)),
            ),
            Part::Remote => write_rows(
                out,
                rank,
                "rmap",
                self.remote.iter().map(|row| (row.node.0, row)),
            ),
        }
    }

    fn write_id(&self, out: &mut dyn Write, rank: Rank) -> io::Result<()> {
        let topology = &self.topology;
        writeln!(
            out,
            "NX-{rank}: {rank} {} {} {} {} {}",
            topology.size(),
            topology.local_rank(),
            topology.local_size(),
            topology.node(),
            topology.nodes()
        )?;
        let me = topology.rank();
        writeln!(out, "NX-{rank}: local trihop+shm://{me}")?;
        writeln!(out, "NX-{rank}: remote trihop+fabric://{me}")?;
        let nodes = (0..topology.size()).map(|r| topology.node_of(Rank(r)).0);
        write_list(out, rank, "grank2node", nodes)?;
        let locals = self.local.iter().map(|row| row.rank.0);
        write_list(out, rank, "local2global", locals)?;
        let single = topology.nodes() == 1;
        let reps = (0..if single { 0 } else { topology.nodes() })
            .map(|node| topology.target_representative(NodeId(node)).0);
        write_list(out, rank, "node2rep", reps)
    }
}

fn write_rows<'a>(
    out: &mut dyn Write,
    rank: Rank,
    name: &str,
    rows: impl Iterator<Item = (u32, &'a Row)>,
) -> io::Result<()> {
    for (key, row) in rows {
        writeln!(
            out,
            "NX-{rank}: {name} {key} {}",
            row.address.text().to_string_lossy()
        )?;
    }
    Ok(())
}

fn write_list(
    out: &mut dyn Write,
    rank: Rank,
    name: &str,
    numbers: impl Iterator<Item = u32>,
) -> io::Result<()> {
    write!(out, "NX-{rank}: {name}")?;
    for number in numbers {
        write!(out, " {number}")?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(nodes: &[u32], me: u32) -> Tables {
        Tables::new(Topology::from_node_of(nodes, Rank(me)).unwrap())
    }

    fn text(tables: &Tables, part: Part) -> String {
        let mut text = Vec::new();
        tables
            .write(part, &mut text, tables.topology.rank())
            .unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Two nodes of two ranks, placed in turns.
    const TURNS: [u32; 4] = [0, 1, 0, 1];

    #[test]
    fn the_tables_of_two_nodes_are_those_of_nexus() {
        let second = tables(&TURNS, 2);
        assert_eq!(
            text(&second, Part::Id),
            "NX-2: 2 4 1 2 0 2\n\
             NX-2: local trihop+shm://2\n\
             NX-2: remote trihop+fabric://2\n\
             NX-2: grank2node 0 1 0 1\n\
             NX-2: local2global 0 2\n\
             NX-2: node2rep 0 1\n"
        );
        assert_eq!(
            text(&second, Part::Local),
            "NX-2: lmap 0 trihop+shm://0\nNX-2: lmap 2 trihop+shm://2\n"
        );
        assert_eq!(
            text(&second, Part::Remote),
            "NX-2: rmap 1 trihop+fabric://1\n"
        );
        assert_eq!(text(&tables(&TURNS, 0), Part::Remote), "");
        assert!(text(&tables(&[0, 0], 0), Part::Id).ends_with("node2rep\n"));
    }

    #[test]
    fn hops_are_those_of_nexus() {
        let (first, second) = (tables(&TURNS, 0), tables(&TURNS, 2));
        assert_eq!(first.next_hop(Rank(0), Rank(0)), Hop::Done);
        assert_eq!(first.next_hop(Rank(0), Rank(2)), Hop::Local(Rank(2)));
        // Node 1 is represented by local rank 1 % 2 of node 0, which talks to local rank 0 % 2 of
        // node 1.
        assert_eq!(first.next_hop(Rank(0), Rank(3)), Hop::SourceRep(Rank(2)));
        assert_eq!(second.next_hop(Rank(2), Rank(3)), Hop::TargetRep(Rank(1)));
        assert_eq!(
            first.next_hop(Rank(2), Rank(3)),
            Hop::NotFound,
            "as another rank, without its table"
        );
        assert!(
            second.remote_address(NodeId(1)).is_some()
                && second.remote_address(NodeId(0)).is_none()
        );
        assert!(second.local_address(Rank(0)).is_some() && second.local_address(Rank(1)).is_none());
    }

    #[test]
    fn every_node_is_represented_by_exactly_one_rank() {
        let sizes = [3u32, 1, 4, 2, 2];
        let all: Vec<Tables> = (0..12)
            .map(|me| Tables::new(Topology::from_node_sizes(&sizes, Rank(me)).unwrap()))
            .collect();
        for here in 0..5 {
            let mut seen: Vec<u32> = all
                .iter()
                .filter(|t| t.topology.node() == NodeId(here))
                .flat_map(|t| t.remote.iter().map(|row| row.node.0))
                .collect();
            seen.sort_unstable();
            let expected: Vec<u32> = (0..5).filter(|&node| node != here).collect();
            assert_eq!(seen, expected);
        }
    }
}
