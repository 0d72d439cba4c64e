//! Whether what a rank opens fits the memory that it may use, before anything of it is touched.
//!
//! The kernel kills a process that passes the limit of a control group, in the middle of the job
//! and without a word.

use std::fmt::Write;

use trihop_transport::memory::limit::{Limit, Scope};
use trihop_transport::topology::Topology;

use crate::endpoint::Need;
use crate::error::{Error, Result};

/// The limits of this process, and how many ranks share each.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    limits: Vec<Limit>,
    /// Endpoints of this process.
    process_ends: u32,
    /// Ranks in the control group whose limit it is, and on the machine.
    group_ranks: u32,
    machine_ranks: u32,
    /// What the endpoint takes beside its streams.
    endpoint_bytes: usize,
}

/// The group whose limit holds for this process, as a word that its neighbours can compare; 0 where
/// none has one.
pub(super) fn group_word(limits: &[Limit]) -> u64 {
    let groups = limits.iter().filter_map(|limit| match limit.scope {
        Scope::Group(number) => Some(number.max(1)),
        Scope::Process | Scope::Machine => None,
    });
    groups.min().unwrap_or(0)
}

impl Budget {
    /// `neighbours` of the node's processes, this one included, say the same [`group_word`];
    /// `loopback`: all nodes of the job are on this machine.
    pub fn new(
        limits: Vec<Limit>,
        topology: &Topology,
        neighbours: u32,
        loopback: bool,
        endpoint_bytes: usize,
    ) -> Self {
        // Relays, which are few, count as ranks.
        let (local, all) = (topology.places(), topology.endpoints());
        let process_ends = topology.ends_of_process().count() as u32;
        let neighbours = neighbours * process_ends;
        // Ranks of the other simulated nodes were started as those of this one.
        let group_ranks = if loopback && neighbours == local {
            all
        } else {
            neighbours
        };
        Self {
            limits,
            process_ends,
            group_ranks,
            machine_ranks: if loopback { all } else { local },
            endpoint_bytes,
        }
    }

    /// Takes it that every rank that shares a limit needs what this one does.
    ///
    /// # Errors
    /// When streams with these needs do not fit, with the sum, the limit and where that stands.
    pub fn admit(&self, streams: &[(&str, Need)]) -> Result<()> {
        let each = self.each(streams);
        match self.passed(each) {
            Some((limit, ranks)) => Err(self.refuse(streams, each, ranks, limit)),
            None => Ok(()),
        }
    }

    /// Whether streams with these needs would fit twice.
    pub fn has_twice(&self, streams: &[(&str, Need)]) -> bool {
        self.passed(self.each(streams).saturating_mul(2)).is_none()
    }

    /// Bytes that a rank with such streams needs.
    fn each(&self, streams: &[(&str, Need)]) -> u64 {
        let needs = streams.iter().map(|(_, need)| need.bytes() as u64);
        needs.fold(self.endpoint_bytes as u64, u64::saturating_add)
    }

    /// A limit that ranks pass who need so many bytes each, and how many ranks share it.
    fn passed(&self, each: u64) -> Option<(&Limit, u32)> {
        let limits = self.limits.iter().map(|limit| {
            let ranks = match limit.scope {
                Scope::Process => self.process_ends,
                Scope::Group(_) => self.group_ranks,
                Scope::Machine => self.machine_ranks,
            };
            (limit, ranks)
        });
        let mut passed =
            limits.filter(|(limit, ranks)| each.saturating_mul((*ranks).into()) > limit.bytes);
        passed.next()
    }

    #[cold]
    fn refuse(&self, streams: &[(&str, Need)], each: u64, ranks: u32, limit: &Limit) -> Error {
        let mut why = format!("a rank needs endpoint {}", self.endpoint_bytes);
        for (name, need) in streams {
            // Writing to a string does not fail.
            let _ = write!(why, " + `{name}` ({need})");
        }
        let total = each.saturating_mul(ranks.into());
        let _ = write!(
            why,
            " = {each} bytes, times {ranks} for the ranks that share the limit = {total}; {} is {}; raise that limit, \
             start fewer ranks under it, or lower memory_bytes",
            limit.source, limit.bytes
        );
        Error::config("memory_bytes", why)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use trihop_transport::memory::limit::limits_under;
    use trihop_transport::sim::SimOptions;
    use trihop_transport::topology::Rank;

    use super::*;
    use crate::config::{PoolLimits, StreamOptions};
    use crate::route::{JobRoute, RouteName};

    const ENDPOINT: usize = 1 << 20;

    /// Limits of a machine of 1 GiB whose only group may have `group` bytes.
    fn limits(group: &str, address_space: Option<u64>) -> Vec<Limit> {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 1048576 kB\n");
        write("proc/self/cgroup", "0::/job\n");
        write(
            "proc/self/mountinfo",
            "1 1 0:1 / /groups rw - cgroup2 none rw\n",
        );
        write("groups/job/memory.max", group);
        limits_under(Path::new(root.path()), address_space)
    }

    fn topology() -> Topology {
        Topology::from_node_sizes(&[4; 3], Rank(5)).unwrap()
    }

    fn need() -> Need {
        let (topology, limits) = (topology(), SimOptions::default().limits);
        let route = JobRoute::new(RouteName::default(), &topology).unwrap();
        Need::of(
            &topology,
            &route,
            &StreamOptions::default(),
            &PoolLimits::default(),
            false,
            Some(&limits),
        )
        .unwrap()
    }

    fn admit(
        group: u64,
        neighbours: u32,
        loopback: bool,
        address_space: Option<u64>,
    ) -> Result<()> {
        let limits = limits(&format!("{group}\n"), address_space);
        Budget::new(limits, &topology(), neighbours, loopback, ENDPOINT)
            .admit(&[("a stream", need())])
    }

    #[test]
    fn what_a_group_cannot_hold_is_refused_with_the_formula() {
        let each = (need().bytes() + ENDPOINT) as u64;
        assert!(admit(4 * each, 4, false, None).is_ok());
        let text = admit(4 * each - 1, 4, false, None).unwrap_err().to_string();
        for part in [
            &format!("endpoint {ENDPOINT} + `a stream` (run table "),
            &format!(
                "= {each} bytes, times 4 for the ranks that share the limit = {};",
                4 * each
            ),
            &format!("groups/job/memory.max\" is {}", 4 * each - 1),
            "raise that limit, start fewer ranks under it, or lower memory_bytes",
        ] {
            assert!(text.contains(part), "`{part}` in {text}");
        }
    }

    #[test]
    fn what_fits_twice_leaves_as_much() {
        let each = (need().bytes() + ENDPOINT) as u64;
        let has_twice = |bytes: u64| {
            let limits = limits(&format!("{bytes}\n"), None);
            let budget = Budget::new(limits, &topology(), 4, false, ENDPOINT);
            budget.has_twice(&[("a stream", need())])
        };
        assert!(has_twice(8 * each) && !has_twice(8 * each - 1));
    }

    #[test]
    fn ranks_in_groups_of_their_own_do_not_share_a_limit() {
        let each = (need().bytes() + ENDPOINT) as u64;
        assert!(admit(each, 1, false, None).is_ok());
        assert!(admit(each, 2, false, None).is_err());
        assert_eq!(group_word(&limits("max\n", None)), 0);
        assert_ne!(group_word(&limits("4096\n", None)), 0);
    }

    #[test]
    fn ranks_of_simulated_nodes_share_this_machines_limits() {
        let each = (need().bytes() + ENDPOINT) as u64;
        assert!(admit(12 * each, 4, true, None).is_ok());
        assert!(admit(12 * each - 1, 4, true, None).is_err());
    }

    #[test]
    fn the_address_space_is_each_ranks_own() {
        let each = (need().bytes() + ENDPOINT) as u64;
        assert!(admit(64 * each, 4, false, Some(each)).is_ok());
        let text = admit(64 * each, 4, false, Some(each - 1))
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("times 1 for") && text.contains("ulimit -v"),
            "{text}"
        );
    }
}
