//! The part of the report on network adapters: what they are, and which rank takes which.

use std::io::{self, Write};

use serde_json::{Value, json};
use trihop::transport::fabric::Survey;
use trihop::transport::nics::{LinkState, Nic};

use super::{place, write_columns};

/// Local ranks that a line lists by number.
const LISTED: usize = 8;

/// Who takes what in a job with so many ranks on this node, bound as this process is.
pub(super) struct Assignment<'a> {
    survey: &'a Survey,
    local_size: u32,
    /// By adapter: its local ranks.
    ranks: Vec<Vec<u32>>,
}

impl<'a> Assignment<'a> {
    pub(super) fn new(survey: &'a Survey, local_size: u32) -> Self {
        let adapters = &survey.adapters;
        let mut ranks = vec![Vec::new(); adapters.candidates.len()];
        for local_rank in 0..local_size {
            let taken = adapters.taken_by(adapters.numa_node, local_rank);
            let index = adapters.candidates.iter().position(|&c| Some(c) == taken);
            if let Some(index) = index {
                ranks[index].push(local_rank);
            }
        }
        Self {
            survey,
            local_size,
            ranks,
        }
    }

    /// NUMA nodes that ranks can be bound to, each with its adapters in the order in which its
    /// ranks take them.
    fn by_numa_node(&self) -> Vec<(u32, Vec<String>)> {
        let adapters = &self.survey.adapters;
        let nodes = adapters.numa.nodes.iter().filter(|n| !n.cpus.is_empty());
        let name = |candidate: usize| place(&self.survey.candidates[candidate]);
        nodes
            .map(|node| {
                let closest = adapters.closest_to(Some(node.number));
                (node.number, closest.into_iter().map(name).collect())
            })
            .collect()
    }

    /// Adapter, its number as a candidate, its ranks.
    fn rows(&self) -> impl Iterator<Item = (&Nic, usize, &[u32])> {
        let adapters = &self.survey.adapters;
        let numbered = adapters.nics.iter().zip(&adapters.candidates);
        numbered
            .zip(&self.ranks)
            .map(|((nic, &candidate), ranks)| (nic, candidate, &**ranks))
    }

    pub(super) fn json(&self) -> Value {
        let adapters = &self.survey.adapters;
        let row = |(nic, candidate, ranks): (&Nic, usize, &[u32])| {
            let mut row = nic_json(nic);
            row["domain"] = json!(self.survey.candidates[candidate].domain);
            row["source"] = json!(self.survey.candidates[candidate].source);
            row["aside"] = json!(adapters.aside(candidate));
            row["local_ranks"] = json!(ranks);
            row
        };
        let by_node = self.by_numa_node().into_iter();
        json!({
            "local_size": self.local_size,
            "numa_node": adapters.numa_node,
            "taken": self.rows().map(row).collect::<Vec<_>>(),
            "by_numa_node": by_node
                .map(|(node, adapters)| json!({ "numa_node": node, "adapters": adapters }))
                .collect::<Vec<_>>(),
        })
    }

    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let adapters = &self.survey.adapters;
        let several = adapters.numa.nodes.len() > 1;
        let bound = match adapters.numa_node.filter(|_| several) {
            Some(node) => format!(", bound to NUMA node {node} as this process is"),
            None if several => ", bound to no NUMA node as this process is".to_owned(),
            None => String::new(),
        };
        writeln!(
            out,
            "\nAdapters for {} ranks on this node{bound}:",
            self.local_size
        )?;
        let header = [
            "ADAPTER",
            "NETWORK",
            "BUS",
            "NUMA NODE",
            "LINK",
            "SPEED",
            "LOCAL RANKS",
        ];
        let mut rows = vec![header.map(str::to_owned)];
        for (nic, candidate, ranks) in self.rows() {
            let taken = match adapters.aside(candidate) {
                Some(why) => format!("none: {why}"),
                None => listed(ranks),
            };
            let [bus, node, link, speed] = facts(nic);
            let (name, network) = (place(&self.survey.candidates[candidate]), nic.family());
            rows.push([name, network.to_owned(), bus, node, link, speed, taken]);
        }
        write_columns(out, &rows)?;
        if adapters.candidates.len() > 1 && several {
            for (node, names) in self.by_numa_node() {
                writeln!(out, "Ranks bound to NUMA node {node}: {}", names.join(", "))?;
            }
        }
        Ok(())
    }
}

/// One line on a candidate's adapter.
pub(super) fn write_nic(out: &mut impl Write, nic: &Nic) -> io::Result<()> {
    let [bus, node, link, speed] = facts(nic);
    write!(
        out,
        "    adapter {} ({}), bus {bus}, NUMA node {node}, link {link}, speed {speed}",
        nic.device,
        nic.family()
    )?;
    match &nic.bond {
        Some(bond) => writeln!(out, ", part of {bond}"),
        None => writeln!(out),
    }
}

pub(super) fn nic_json(nic: &Nic) -> Value {
    json!({
        "device": nic.device,
        "network": nic.family(),
        "bus": nic.bus.map(|bus| bus.to_string()),
        "numa_node": nic.numa_node,
        "link": nic.link.name(),
        "bits_per_second": nic.bits_per_second,
        "bond": nic.bond,
    })
}

/// Bus, NUMA node, link, speed; what is not known is a dash.
fn facts(nic: &Nic) -> [String; 4] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        or_dash(nic.bus.map(|bus| bus.to_string())),
        or_dash(nic.numa_node.map(|node| node.to_string())),
        or_dash(Some(nic.link.name().to_owned()).filter(|_| nic.link != LinkState::Unknown)),
        or_dash(nic.bits_per_second.map(speed)),
    ]
}

fn speed(bits_per_second: u64) -> String {
    match bits_per_second {
        bits if bits >= 1_000_000_000 => format!("{} Gb/s", bits as f64 / 1e9),
        bits => format!("{} Mb/s", bits as f64 / 1e6),
    }
}

fn listed(ranks: &[u32]) -> String {
    let numbers: Vec<String> = ranks.iter().take(LISTED).map(u32::to_string).collect();
    match ranks {
        [] => "none".to_owned(),
        [first, .., last] if ranks.len() > LISTED && (last - first) as usize == ranks.len() - 1 => {
            format!("{first}-{last}")
        }
        _ if ranks.len() > LISTED => {
            format!("{}, ... ({} in all)", numbers.join(", "), ranks.len())
        }
        _ => numbers.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_in_short() {
        assert_eq!(listed(&[]), "none");
        assert_eq!(listed(&[3]), "3");
        assert_eq!(listed(&[0, 4, 8]), "0, 4, 8");
        assert_eq!(listed(&(2..64).collect::<Vec<_>>()), "2-63");
        let fourth: Vec<u32> = (0..64).step_by(4).collect();
        assert_eq!(
            listed(&fourth),
            "0, 4, 8, 12, 16, 20, 24, 28, ... (16 in all)"
        );
    }

    #[test]
    fn speeds_have_their_unit() {
        assert_eq!(speed(200_000_000_000), "200 Gb/s");
        assert_eq!(speed(2_500_000_000), "2.5 Gb/s");
        assert_eq!(speed(100_000_000), "100 Mb/s");
    }

    #[test]
    fn every_local_rank_has_one_adapter() {
        let choice = trihop::transport::fabric::Choice::default();
        let survey = trihop::transport::fabric::survey(&choice).expect("libfabric answers");
        let assignment = Assignment::new(&survey, 9);
        let mut ranks: Vec<u32> = assignment.ranks.concat();
        ranks.sort_unstable();
        let all: Vec<u32> = if survey.chosen.is_some() {
            (0..9).collect()
        } else {
            Vec::new()
        };
        assert_eq!(ranks, all);
        let taken = &assignment.json()["taken"];
        assert_eq!(taken.as_array().map(Vec::len), Some(assignment.ranks.len()));
    }
}
