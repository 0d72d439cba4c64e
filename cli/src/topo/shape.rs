//! Which job is meant, and which of its ranks.

use std::str::FromStr;

use clap::Args;
use trihop::{Rank, Topology};

use super::TopoError;
use crate::number::whole;
use crate::run;

/// Most ranks of a job that is not started: their counts take seconds each million, and a byte or
/// two of memory.
const RANKS_MAX: u64 = 1 << 24;

/// The shape of a job that is not started.
#[derive(Debug, Clone, Args)]
#[group(id = "job_shape", multiple = true)]
pub struct Shape {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "RANKS", value_parser = whole::<u32>(1..))]
    ranks: Option<u32>,

    /// Number of nodes; ranks are spread over them in blocks, the first nodes taking the remainder
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    nodes: Option<u32>,

    /// Ranks on each node; with --ranks alone, the last node takes the remainder
    #[arg(long, value_name = "K", value_parser = whole::<u32>(1..))]
    per_node: Option<u32>,

    /// Ranks on each node, e.g. 3,1,4
    #[arg(long, value_name = "SIZES", value_delimiter = ',', conflicts_with_all = ["nodes", "per_node"])]
    #[arg(value_parser = whole::<u32>(1..))]
    node_sizes: Vec<u32>,

    /// Placement as MPICH's PMI_process_mapping, e.g. '(vector,(0,4,1))' for --ranks dealt out in
    /// turn over 4 nodes
    #[arg(
        long,
        value_name = "VECTOR",
        requires = "ranks",
        conflicts_with_all = ["nodes", "per_node", "node_sizes"]
    )]
    mapping: Option<String>,
}

impl Shape {
    /// The job, seen from its rank 0; `None` when no option names one.
    ///
    /// # Errors
    /// When the options contradict each other, leave a node empty, or name more ranks than can be
    /// counted.
    pub fn topology(&self) -> Result<Option<Topology>, TopoError> {
        if let Some(mapping) = &self.mapping {
            let ranks = self.ranks.unwrap_or(0);
            few_enough(u64::from(ranks))?;
            return Ok(Some(Topology::from_process_mapping(
                mapping,
                ranks,
                Rank(0),
            )?));
        }
        if self.ranks.is_none()
            && self.nodes.is_none()
            && self.node_sizes.is_empty()
            && self.per_node.is_none()
        {
            return Ok(None);
        }
        Ok(Some(Topology::from_node_sizes(&self.sizes()?, Rank(0))?))
    }

    fn sizes(&self) -> Result<Vec<u32>, TopoError> {
        let Some(each) = self.per_node else {
            let listed: u64 = self.node_sizes.iter().map(|&size| u64::from(size)).sum();
            few_enough(listed.max(u64::from(self.ranks.unwrap_or(0))))?;
            if self.node_sizes.is_empty() && self.ranks.is_none() {
                return Err(TopoError::Usage(
                    "--nodes alone names no job; give --ranks or --per-node too".to_owned(),
                ));
            }
            return Ok(run::node_sizes(self.ranks, self.nodes, &self.node_sizes)?);
        };
        let full = |nodes: u32| u64::from(nodes) * u64::from(each);
        match (self.ranks, self.nodes) {
            (Some(ranks), Some(nodes)) if full(nodes) != u64::from(ranks) => {
                Err(TopoError::Usage(format!(
                    "--nodes {nodes} with --per-node {each} are {} ranks, not --ranks {ranks}",
                    full(nodes)
                )))
            }
            (_, Some(nodes)) => {
                few_enough(full(nodes))?;
                Ok(vec![each; nodes as usize])
            }
            (Some(ranks), None) => {
                few_enough(u64::from(ranks))?;
                let mut sizes = vec![each; (ranks / each) as usize];
                sizes.extend((ranks % each != 0).then_some(ranks % each));
                Ok(sizes)
            }
            (None, None) => Err(TopoError::Usage(
                "--per-node alone names no job; give --nodes or --ranks too".to_owned(),
            )),
        }
    }
}

fn few_enough(ranks: u64) -> Result<(), TopoError> {
    match ranks {
        0..=RANKS_MAX => Ok(()),
        _ => Err(TopoError::Usage(format!(
            "{ranks} ranks are more than the {RANKS_MAX} that are counted one by one"
        ))),
    }
}

/// Ranks that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// Every rank of the job.
    All,
    /// From the first to the second, both included.
    Range(u32, u32),
}

impl Ranks {
    fn holds(self, rank: u32) -> bool {
        match self {
            Self::All => true,
            Self::Range(low, high) => (low..=high).contains(&rank),
        }
    }
}

impl FromStr for Ranks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().parse::<u32>();
            number.map_err(|_| {
                format!("`{text}` is no rank; give numbers, ranges such as 4-7, or `all`")
            })
        };
        if text.trim() == "all" {
            return Ok(Self::All);
        }
        let (low, high) = match text.split_once('-') {
            Some((low, high)) => (number(low)?, number(high)?),
            None => (number(text)?, number(text)?),
        };
        match low <= high {
            true => Ok(Self::Range(low, high)),
            false => Err(format!("{low} is above {high}")),
        }
    }
}

/// Refuses ranks that the job has not.
///
/// # Errors
/// [`TopoError::Usage`], with the first of them.
pub fn check_picks(picks: &[Ranks], size: u32) -> Result<(), TopoError> {
    let highest = picks.iter().filter_map(|pick| match pick {
        Ranks::All => None,
        Ranks::Range(_, high) => Some(*high),
    });
    match highest.max() {
        Some(rank) if rank >= size => Err(TopoError::Usage(format!(
            "--rank {rank}: the job has the ranks 0 to {}",
            size - 1
        ))),
        _ => Ok(()),
    }
}

/// The ranks that were asked for, ascending, each once; when none were, all of them or none, as
/// `otherwise` says.
pub fn picked(picks: &[Ranks], size: u32, otherwise: bool) -> impl Iterator<Item = Rank> {
    let wanted = move |rank: &u32| match picks {
        [] => otherwise,
        _ => picks.iter().any(|pick| pick.holds(*rank)),
    };
    (0..size).filter(wanted).map(Rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        shape: Shape,
    }

    fn sizes(line: &str) -> Result<Vec<u32>, String> {
        let words = std::iter::once("topo").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|e| e.to_string())?;
        let topology = cli.shape.topology().map_err(|e| e.to_string())?;
        let topology = topology.ok_or("no job")?;
        Ok((0..topology.nodes())
            .map(|node| topology.local_size_of(trihop::NodeId(node)))
            .collect())
    }

    #[test]
    fn a_shape_is_given_in_any_of_four_ways() {
        for (line, expected) in [
            ("-n 3", &[3][..]),
            ("--ranks 7 --nodes 3", &[3, 2, 2]),
            ("--nodes 3 --per-node 2", &[2, 2, 2]),
            ("--ranks 6 --nodes 3 --per-node 2", &[2, 2, 2]),
            ("--ranks 7 --per-node 3", &[3, 3, 1]),
            ("--ranks 6 --per-node 3", &[3, 3]),
            ("--node-sizes 3,1,4", &[3, 1, 4]),
            ("--mapping (vector,(0,2,1)) --ranks 5", &[3, 2]),
        ] {
            assert_eq!(sizes(line).as_deref(), Ok(expected), "{line}");
        }
    }

    #[test]
    fn shapes_that_are_none_are_refused_with_the_reason() {
        for (line, reason) in [
            ("", "no job"),
            ("--nodes 3", "--ranks"),
            ("--per-node 3", "--nodes"),
            ("--nodes 2 --per-node 0", "from 1 to"),
            ("--ranks 2 --nodes 3", "a node needs a rank"),
            ("--ranks 5 --nodes 3 --per-node 2", "6 ranks, not --ranks 5"),
            ("--ranks 5 --node-sizes 3,1,4", "8"),
            ("--node-sizes 3,0", "from 1 to"),
            ("--nodes 4000000000 --per-node 64", "16777216"),
            ("--ranks 4000000000 --nodes 3000000000", "16777216"),
            ("--node-sizes 4000000000", "16777216"),
            ("--mapping (vector,(0,2,1))", "--ranks"),
            ("--mapping nonsense --ranks 2", "nonsense"),
        ] {
            let error = sizes(line).expect_err(line);
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn ranks_are_picked_by_number_range_or_all() {
        let picks = |text: &str| -> Result<Vec<Ranks>, String> {
            text.split(',').map(str::parse).collect()
        };
        let chosen = |text: &str| -> Vec<u32> {
            let picks = picks(text).unwrap();
            picked(&picks, 8, false).map(|rank| rank.0).collect()
        };
        assert_eq!(chosen("6,1-3,2"), [1, 2, 3, 6]);
        assert_eq!(chosen("all").len(), 8);
        assert_eq!(
            (picked(&[], 8, false).count(), picked(&[], 8, true).count()),
            (0, 8)
        );
        for wrong in ["", "x", "3-1", "-1", "1-", "4294967296"] {
            assert!(picks(wrong).is_err(), "{wrong}");
        }
        assert!(check_picks(&picks("0,7").unwrap(), 8).is_ok());
        let error = check_picks(&picks("all,5-8").unwrap(), 8)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("--rank 8") && error.contains("0 to 7"),
            "{error}"
        );
    }
}
