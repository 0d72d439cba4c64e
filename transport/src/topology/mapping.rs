//! MPICH's text for a placement, `PMI_process_mapping`.

use std::fmt;
use std::str::FromStr;

use super::invalid;
use crate::error::{Error, Result};

/// Tuples (first node, nodes, ranks per node) of MPICH's notation, at least one, none of them
/// empty.
pub(super) struct ProcessMapping {
    pub(super) tuples: Vec<(u32, u32, u32)>,
}

impl FromStr for ProcessMapping {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            let shown: String = text.chars().take(80).collect();
            invalid(format!(
                "process mapping {shown:?}: {why}; expected (vector,(first node,nodes,ranks per node),...)"
            ))
        };
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let inner = compact
            .strip_prefix("(vector,")
            .and_then(|rest| rest.strip_suffix(')'))
            .ok_or_else(|| bad("it is no vector"))?;
        let inner = inner
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'))
            .ok_or_else(|| bad("it holds no tuple"))?;
        let mut tuples = Vec::new();
        for tuple in inner.split("),(") {
            let numbers: Vec<u32> = tuple
                .split(',')
                .map(|n| {
                    n.parse()
                        .map_err(|_| bad("a tuple holds something else than numbers"))
                })
                .collect::<Result<_>>()?;
            let [node, nodes, ranks_per_node] = numbers[..] else {
                return Err(bad("a tuple has not three numbers"));
            };
            if nodes == 0 || ranks_per_node == 0 || node.checked_add(nodes).is_none() {
                return Err(bad("a tuple is empty or passes 2^32 - 1 nodes"));
            }
            tuples.push((node, nodes, ranks_per_node));
        }
        Ok(Self { tuples })
    }
}

impl fmt::Display for ProcessMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(vector")?;
        for (node, nodes, ranks_per_node) in &self.tuples {
            write!(f, ",({node},{nodes},{ranks_per_node})")?;
        }
        f.write_str(")")
    }
}
