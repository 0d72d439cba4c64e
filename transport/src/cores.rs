//! Cores: which of them a thread may run on, and threads that keep to one.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};

/// Numbers of the cores that the calling thread may run on, ascending.
///
/// # Errors
/// [`Error::System`] where the kernel does not say, as on a machine with more than 1,024 of them.
pub fn allowed() -> Result<Vec<usize>> {
    let mask = affinity()?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&core| mask.is_set(core))
        .collect())
}

fn affinity() -> Result<CpuSet> {
    sched_getaffinity(None).map_err(|error| {
        let error = io::Error::from(error);
        Error::system("asking which cores this thread may run on", error)
    })
}

/// Keeps the calling thread, and threads that it starts from now on, on one core.
///
/// # Errors
/// [`Error::System`] where that is none of the cores that it may run on.
pub fn keep_to(core: usize) -> Result<Before> {
    let before = affinity()?;
    let mut one = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        one.set(core);
    }
    sched_setaffinity(None, &one).map_err(|error| {
        let what = format!("keeping a thread on core {core}");
        Error::system(what, io::Error::from(error))
    })?;
    Ok(Before(before))
}

/// Where a thread might run before [`keep_to`].
pub struct Before(CpuSet);

impl Before {
    /// Lets the calling thread run there again.
    pub fn restore(self) {
        // The kernel refuses only cores that are gone meanwhile.
        if let Err(error) = sched_setaffinity(None, &self.0) {
            tracing::debug!(%error, "a thread stays on its core");
        }
    }
}

#[cfg(all(test, not(any(trihop_loom, trihop_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_to_a_core_until_that_is_taken_back() {
        let before = allowed().unwrap();
        let last = *before.last().unwrap();
        let kept = keep_to(last).unwrap();
        assert_eq!(allowed().unwrap(), [last]);
        let started = std::thread::spawn(|| allowed().unwrap());
        assert_eq!(started.join().unwrap(), [last]);
        kept.restore();
        assert_eq!(allowed().unwrap(), before);
        for impossible in [CpuSet::MAX_CPU, usize::MAX] {
            let refused = keep_to(impossible).err().unwrap().to_string();
            assert!(refused.contains(&impossible.to_string()), "{refused}");
        }
    }
}
