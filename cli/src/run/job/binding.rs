//! Which cores each process of a job is bound to.
//!
//! Left alone, the scheduler puts processes that wake each other on one core, where each then waits
//! for the other to yield it.

use trihop::transport::cores::{allowed, count, keep_to};

/// The cores of each of so many processes with `minis` ranks each; none where ranks are more than
/// cores, or nobody may be bound here.
pub(super) fn shares(processes: usize, minis: u32) -> Vec<Vec<usize>> {
    let cores = allowed().unwrap_or_default();
    let ranks = processes.saturating_mul(minis as usize);
    if ranks > cores.len().min(count()) {
        return Vec::new();
    }
    let shares = divide(&cores, processes);
    match keep_to(&shares[0]) {
        Ok(before) => {
            before.restore();
            shares
        }
        Err(_) => Vec::new(),
    }
}

/// `cores` in `parts` blocks, as even as can be.
fn divide(cores: &[usize], parts: usize) -> Vec<Vec<usize>> {
    let cut = |part: usize| part * cores.len() / parts;
    let part = |part| cores[cut(part)..cut(part + 1)].to_vec();
    (0..parts).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_its_share_of_the_cores() {
        let cores = [0, 1, 4, 5, 8, 9, 12];
        assert_eq!(divide(&cores, 1), [cores]);
        assert_eq!(divide(&cores, 3), [vec![0, 1], vec![4, 5], vec![8, 9, 12]]);
        assert_eq!(divide(&cores, 7).concat(), cores);
    }

    #[test]
    fn more_ranks_than_cores_are_not_bound() {
        if keep_to(&allowed().unwrap()).is_err() {
            eprintln!("skipped: nobody may be bound to cores here");
            return;
        }
        let cores = allowed().unwrap().len().min(count());
        assert_eq!(shares(cores, 1).len(), cores);
        for (processes, minis) in [(cores + 1, 1), (1, cores as u32 + 1), (2, u32::MAX)] {
            assert_eq!(shares(processes, minis), [[0; 0]; 0]);
        }
        assert_eq!(shares(1, cores as u32), [allowed().unwrap()]);
    }
}
