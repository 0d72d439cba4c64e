//! What one rank knows of the others: its card, the ranks of its node, the nodes that it
//! represents.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use trihop::route::{EndpointId, JobRoute, Reach, RouteName};
use trihop::{NodeId, Rank, Topology};

use super::TopoError;
use crate::output;

/// The maps of one rank, with the lines that `nexus_dump` has for them.
#[derive(Debug, Serialize)]
pub struct Maps {
    rank: u32,
    size: u32,
    node: u32,
    nodes: u32,
    local_rank: u32,
    local_size: u32,
    /// Ranks of the node, by local rank.
    local_map: Vec<u32>,
    /// Edges to other nodes, in their order.
    remote_map: Vec<Remote>,
    #[serde(skip)]
    topology: Topology,
}

/// The other end of a link.
#[derive(Debug, Serialize)]
struct Remote {
    node: u32,
    rank: u32,
}

impl Maps {
    /// The maps of the rank that looks at `topology`, on a route that suits it.
    pub fn new(topology: &Topology, route: RouteName) -> Self {
        let route = JobRoute::new(route, topology).expect("a route that suits the job");
        let remote = |end: EndpointId| Remote {
            node: topology.node_of_endpoint(end).0,
            rank: topology.rank_of(end).0,
        };
        let edges = route.numbers().flat_map(|stage| {
            let edges = 0..route.edges(stage, Reach::Beyond);
            edges.map(move |number| (stage, number))
        });
        let ends = edges.map(|(stage, number)| route.edge(stage, Reach::Beyond, number));
        Self {
            rank: topology.rank().0,
            size: topology.size(),
            node: topology.node().0,
            nodes: topology.nodes(),
            local_rank: topology.local_rank(),
            local_size: topology.local_size(),
            local_map: topology
                .ranks_of(topology.node())
                .map(|rank| rank.0)
                .collect(),
            remote_map: ends.map(remote).collect(),
            topology: topology.clone(),
        }
    }

    /// Card and both maps, as lines.
    ///
    /// # Errors
    /// The writer's.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_card(out)?;
        self.write_local(out)?;
        self.write_remote(out)
    }

    /// `PREFIX.RANK.id`, `.lmap` and `.rmap`.
    ///
    /// # Errors
    /// [`TopoError::Output`], with the name of the file.
    pub fn write_files(&self, prefix: &Path) -> Result<(), TopoError> {
        self.write_file(prefix, "id", |out| self.write_id(out))?;
        self.write_file(prefix, "lmap", |out| self.write_local(out))?;
        self.write_file(prefix, "rmap", |out| self.write_remote(out))
    }

    fn write_file(
        &self,
        prefix: &Path,
        what: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), TopoError> {
        let mut name = OsString::from(prefix);
        name.push(format!(".{}.{what}", self.rank));
        let path = PathBuf::from(name);
        let written = File::create(&path).and_then(|file| {
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            out.flush()
        });
        written.map_err(|source| TopoError::Output {
            what: output::path(&path).to_string(),
            source,
        })
    }

    fn write_card(&self, out: &mut impl Write) -> io::Result<()> {
        let Self {
            rank, size, node, ..
        } = self;
        let (local_rank, local_size, nodes) = (self.local_rank, self.local_size, self.nodes);
        writeln!(
            out,
            "NX-{rank}: {rank} {size} {local_rank} {local_size} {node} {nodes}"
        )
    }

    fn write_local(&self, out: &mut impl Write) -> io::Result<()> {
        let rank = self.rank;
        self.local_map
            .iter()
            .try_for_each(|peer| writeln!(out, "NX-{rank}: lmap {peer} {peer}"))
    }

    fn write_remote(&self, out: &mut impl Write) -> io::Result<()> {
        let rank = self.rank;
        self.remote_map
            .iter()
            .try_for_each(|Remote { node, rank: peer }| {
                writeln!(out, "NX-{rank}: rmap {node} {peer}")
            })
    }

    /// The card, and the tables that are the same for all ranks of the job or of the node.
    fn write_id(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { rank, topology, .. } = self;
        self.write_card(out)?;
        writeln!(out, "NX-{rank}: local {rank}\nNX-{rank}: remote {rank}")?;
        let nodes = (0..self.size).map(|rank| topology.node_of(Rank(rank)).0);
        write_table(out, *rank, "grank2node", nodes)?;
        write_table(out, *rank, "local2global", self.local_map.iter().copied())?;
        let representatives =
            (0..self.nodes).map(|node| topology.target_representative(NodeId(node)).0);
        write_table(out, *rank, "node2rep", representatives)
    }
}

fn write_table(
    out: &mut impl Write,
    rank: u32,
    name: &str,
    values: impl Iterator<Item = u32>,
) -> io::Result<()> {
    write!(out, "NX-{rank}: {name}")?;
    for value in values {
        write!(out, " {value}")?;
    }
    writeln!(out)
}
