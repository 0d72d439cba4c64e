//! MPICH's text for a placement, `PMI_process_mapping`.

use std::fmt;
use std::str::FromStr;

use super::invalid;
use crate::error::{Error, Result};

/// First node, nodes, ranks per node; none of them empty.
pub(super) type Tuple = (u32, u32, u32);

/// A placement in MPICH's notation: tuples, and since MPICH 4.2 or so nodes with one rank and
/// groups that are repeated, `(vector,[0,(1,1,2)]x3,(0,2,1))`. One tuple at least.
pub(super) struct ProcessMapping {
    /// Each with how often it is repeated.
    groups: Vec<(Vec<Tuple>, u32)>,
}

impl ProcessMapping {
    pub(super) fn of(tuples: Vec<Tuple>) -> Self {
        Self {
            groups: vec![(tuples, 1)],
        }
    }

    /// All tuples, in order.
    pub(super) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        let groups = self.groups.iter();
        groups.flat_map(|(tuples, times)| (0..*times).flat_map(|_| tuples.iter().copied()))
    }

    /// The only node that it knows, if that is so.
    pub(super) fn only_node(&self) -> Option<u32> {
        let mut tuples = self.groups.iter().flat_map(|(tuples, _)| tuples);
        let first = tuples.next()?.0;
        let mut all = self.groups.iter().flat_map(|(tuples, _)| tuples);
        all.all(|&(node, nodes, _)| (node, nodes) == (first, 1))
            .then_some(first)
    }
}

impl FromStr for ProcessMapping {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut rest = Rest(&compact);
        rest.mapping().map_err(|why| {
            let shown: String = text.chars().take(80).collect();
            invalid(format!(
                "process mapping {shown:?}: {why}; expected (vector,(first node,nodes,ranks per node),...)"
            ))
        })
    }
}

/// What of a text is still to be read.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    fn mapping(&mut self) -> Result<ProcessMapping, &'static str> {
        if !self.has("(vector,") {
            return Err("it is no vector");
        }
        let mut groups = Vec::new();
        loop {
            groups.push(self.group()?);
            if !self.has(",") {
                break;
            }
        }
        match self.0 {
            ")" => Ok(ProcessMapping { groups }),
            _ => Err("it does not end behind its tuples"),
        }
    }

    fn group(&mut self) -> Result<(Vec<Tuple>, u32), &'static str> {
        if !self.has("[") {
            return Ok((vec![self.tuple()?], 1));
        }
        let mut tuples = vec![self.tuple()?];
        while self.has(",") {
            tuples.push(self.tuple()?);
        }
        if !self.has("]x") {
            return Err("it does not say how often tuples are repeated");
        }
        let times = self.number()?;
        let (node, nodes, _) = tuples[0];
        let is_one = |tuple: &Tuple| (tuple.0, tuple.1) == (node, 1);
        if times == 0 {
            Err("tuples are repeated 0 times")
        } else if nodes == 1 && tuples.iter().all(is_one) {
            // At once, however often; there are no more ranks.
            let ranks = tuples
                .iter()
                .fold(0, |sum: u32, tuple| sum.saturating_add(tuple.2));
            Ok((vec![(node, 1, ranks.saturating_mul(times))], 1))
        } else {
            Ok((tuples, times))
        }
    }

    /// A tuple, or a node that has one rank.
    fn tuple(&mut self) -> Result<Tuple, &'static str> {
        let is_node = !self.has("(");
        let node = self.number()?;
        if is_node {
            return Self::check((node, 1, 1));
        }
        let mut next = || match self.has(",") {
            true => self.number(),
            false => Err("a tuple has not three numbers"),
        };
        let tuple = (node, next()?, next()?);
        match self.has(")") {
            true => Self::check(tuple),
            false => Err("a tuple has not three numbers"),
        }
    }

    fn check(tuple: Tuple) -> Result<Tuple, &'static str> {
        let (node, nodes, ranks_per_node) = tuple;
        match nodes == 0 || ranks_per_node == 0 || node.checked_add(nodes).is_none() {
            true => Err("a tuple is empty or passes 2^32 - 1 nodes"),
            false => Ok(tuple),
        }
    }

    fn number(&mut self) -> Result<u32, &'static str> {
        let is_other = |c: char| !c.is_ascii_digit();
        let end = self.0.find(is_other).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        self.0 = rest;
        let number = digits.parse();
        number.map_err(|_| "a tuple holds something else than numbers of 32 bits")
    }

    /// Reads `text`, if that is what follows.
    fn has(&mut self, text: &str) -> bool {
        let behind = self.0.strip_prefix(text);
        self.0 = behind.unwrap_or(self.0);
        behind.is_some()
    }
}

impl fmt::Display for ProcessMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(vector")?;
        for (node, nodes, ranks_per_node) in self.tuples() {
            write!(f, ",({node},{nodes},{ranks_per_node})")?;
        }
        f.write_str(")")
    }
}
