//! Which core each thread of a process with mini-ranks keeps to.

use trihop_transport::cores::{Before, allowed, keep_to};
use trihop_transport::topology::Topology;

use crate::config::{MinirankCores, Options};
use crate::error::{Error, Result};

/// The cores of a process: one for each of its mini-ranks, in order, and one for its relay.
pub(super) struct Cores(Vec<usize>);

impl Cores {
    /// What the options ask for, of a process with so many ranks among `processes`, which may be
    /// bound to cores that no other one has; none by default.
    ///
    /// # Errors
    /// They are too few.
    pub fn of(
        options: &Options,
        processes: &Topology,
        ranks: u32,
        is_bound: bool,
    ) -> Result<Option<Self>> {
        let Some(which) = options.minirank_cores else {
            return Ok(None);
        };
        // Simulated nodes are one machine.
        let (place, here) = match (which, options.loopback) {
            (MinirankCores::Own, _) => (0, 1),
            _ if is_bound => (0, 1),
            (MinirankCores::Shared, true) => (processes.rank().0, processes.size()),
            (MinirankCores::Shared, false) => (processes.local_rank(), processes.local_size()),
        };
        Self::part_of(&allowed()?, ranks, place, here).map(Some)
    }

    /// Part `place` of the cores that `here` processes share.
    fn part_of(allowed: &[usize], ranks: u32, place: u32, here: u32) -> Result<Self> {
        let each = ranks as usize + 1;
        let needed = each.saturating_mul(here as usize);
        if allowed.len() < needed {
            let have = allowed.len();
            let why = format!(
                "{here} processes with {ranks} mini-ranks and a communication thread each need {needed} cores, and this one may use {have}; give it more, host fewer, or leave threads where the kernel puts them"
            );
            return Err(Error::config("minirank_cores", why));
        }
        let first = each * place as usize;
        Ok(Self(allowed[first..first + each].to_vec()))
    }

    /// That of a mini-rank.
    pub fn of_mini(&self, index: usize) -> usize {
        self.0[index]
    }

    /// Keeps the calling thread to that of the relay. Where the core is gone by now, work goes on.
    pub fn keep_relay(&self) -> Option<Before> {
        let kept = keep_to(&self.0[self.0.len() - 1..]);
        kept.inspect_err(|error| tracing::warn!(%error, "the relay keeps to no core"))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_of_each_process_has_a_core_of_its_own() {
        let allowed = [1, 3, 4, 6, 8, 9, 10];
        let cores = |place, here| Cores::part_of(&allowed, 2, place, here).map(|cores| cores.0);
        assert_eq!(cores(0, 1).unwrap(), [1, 3, 4]);
        assert_eq!(cores(0, 2).unwrap(), [1, 3, 4]);
        assert_eq!(cores(1, 2).unwrap(), [6, 8, 9]);
        let refused = cores(2, 3).unwrap_err().to_string();
        assert!(
            refused.contains("need 9 cores") && refused.contains("may use 7"),
            "{refused}"
        );
        let most = Cores::part_of(&allowed, u32::MAX, 0, u32::MAX);
        assert!(most.is_err(), "no number is beyond refusal");
    }
}
