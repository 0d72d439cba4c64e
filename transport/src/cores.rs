//! Cores: which of them a thread may run on, threads that keep to some, and how many ranks share
//! them.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};
use crate::masked;
use crate::sync::{PoisonError, StaticMutex, available_parallelism};

/// How long the number of cores counts as known.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// Numbers of the cores that the calling thread may run on, ascending.
///
/// # Errors
/// [`Error::System`] where the kernel does not say, as on a machine with more than 1,024 of them.
pub fn allowed() -> Result<Vec<usize>> {
    Ok(cores_of(&affinity()?).collect())
}

fn cores_of(set: &CpuSet) -> impl Iterator<Item = usize> + '_ {
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core))
}

fn affinity() -> Result<CpuSet> {
    sched_getaffinity(None).map_err(|error| {
        let error = io::Error::from(error);
        Error::system("asking which cores this thread may run on", error)
    })
}

/// Keeps the calling thread, and threads and processes that it starts from now on, on these cores.
///
/// # Errors
/// [`Error::System`] where it may run on none of them.
pub fn keep_to(cores: &[usize]) -> Result<Before> {
    let before = affinity()?;
    let mut set = CpuSet::new();
    let possible = cores.iter().filter(|&&core| core < CpuSet::MAX_CPU);
    possible.for_each(|&core| set.set(core));
    sched_setaffinity(None, &set).map_err(|error| {
        let what = format!("keeping a thread on cores {cores:?}");
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

/// Cores that this process may use, as many as its control group allows. What that allows takes
/// some twenty system calls to find out: the jobs that an agent starts one after the other share
/// them, until the set of cores is another one, or a second is over, since nothing tells of another
/// allowance.
pub fn count() -> usize {
    static KNOWN: StaticMutex<Option<(CpuSet, Instant, usize)>> = StaticMutex::new(None);
    let count = || available_parallelism().map_or(1, usize::from);
    let Ok(set) = sched_getaffinity(None) else {
        return count(); // more cores than it has room for
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match *known {
        Some((of, at, cores)) if of == set && at.elapsed() < KNOWN_FOR => cores,
        _ => known.insert((set, Instant::now(), count())).2,
    }
}

/// How many cores the control group of this process allows at a time, where that is fewer than
/// there are. Who is bound to fewer cores is told of these alone, so a thread without that bond is
/// asked.
fn allowance() -> Option<usize> {
    let ask = || {
        // Where the kernel refuses that, the thread is told as much as its process would be.
        let _ = keep_to(&Vec::from_iter(0..CpuSet::MAX_CPU));
        let cores = available_parallelism().map_or(usize::MAX, usize::from);
        Some(cores).filter(|&cores| cores < allowed().map_or(usize::MAX, |all| all.len()))
    };
    masked::spawn("trihop-cores", ask).ok()?.join().ok()?
}

/// Ranks that share the cores of this process. Launchers bind processes to cores, each to its own
/// or several to the same ones: a rank of another process counts by the share of its cores that are
/// also ours.
#[derive(Debug)]
pub struct CoreShare {
    /// The cores of this process; none where the kernel does not say.
    own: Vec<usize>,
    /// Those that share them.
    ranks: f64,
    /// All that are known.
    all: f64,
    /// Cores that all of them may use at a time.
    allowance: f64,
}

impl CoreShare {
    /// So many ranks, of this process.
    pub fn of(ranks: u32) -> Self {
        Self {
            own: allowed().unwrap_or_default(),
            ranks: ranks.into(),
            all: ranks.into(),
            allowance: f64::INFINITY,
        }
    }

    /// Adds `ranks` ranks of another process of this machine, as its first thread is bound.
    pub fn add(&mut self, process: u32, ranks: u32) {
        let process = i32::try_from(process).ok().and_then(Pid::from_raw);
        let set = process.and_then(|id| sched_getaffinity(Some(id)).ok());
        self.join(set.as_ref(), ranks);
    }

    /// Where nobody knows the cores of their process, they may run on any.
    fn join(&mut self, set: Option<&CpuSet>, ranks: u32) {
        let of_own = |set: &CpuSet| self.own.iter().filter(|&&core| set.is_set(core)).count();
        let share = match set {
            Some(set) if !self.own.is_empty() => of_own(set) as f64 / f64::from(set.count().max(1)),
            _ => 1.0,
        };
        self.ranks += f64::from(ranks) * share;
        self.all += f64::from(ranks);
    }

    /// There are `all` ranks for each `known` that were added, spread like these.
    pub fn grow(&mut self, all: u32, known: u32) {
        let times = f64::from(all) / f64::from(known.max(1));
        self.ranks *= times;
        self.all *= times;
    }

    /// Cores that there are for each of them.
    pub fn cores_each(mut self) -> f64 {
        // Where nobody is bound, the number of own cores is bounded by it.
        if self.ranks < self.all
            && let Some(allowance) = allowance()
        {
            self.allowance = allowance as f64;
        }
        self.least(count())
    }

    fn least(&self, own: usize) -> f64 {
        (own as f64 / self.ranks).min(self.allowance / self.all)
    }
}

#[cfg(all(test, not(any(trihop_loom, trihop_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_to_a_core_until_that_is_taken_back() {
        let before = allowed().unwrap();
        let last = *before.last().unwrap();
        let kept = keep_to(&[last]).unwrap();
        assert_eq!(allowed().unwrap(), [last]);
        let started = std::thread::spawn(|| allowed().unwrap());
        assert_eq!(started.join().unwrap(), [last]);
        kept.restore();
        assert_eq!(allowed().unwrap(), before);
        for impossible in [CpuSet::MAX_CPU, usize::MAX] {
            let refused = keep_to(&[impossible]).err().unwrap().to_string();
            assert!(refused.contains(&impossible.to_string()), "{refused}");
        }
        assert!(keep_to(&[]).is_err());
    }

    fn set(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        set
    }

    /// Ranks of a process with these cores, beside others with one rank each and these.
    fn share(own: &[usize], others: &[&[usize]]) -> f64 {
        let mut share = CoreShare {
            own: own.to_vec(),
            ..CoreShare::of(1)
        };
        let others = others.iter().map(|cores| set(cores));
        others.for_each(|of| share.join(Some(&of), 1));
        share.ranks
    }

    #[test]
    fn ranks_count_where_they_may_run() {
        let all = [0, 1, 2, 3];
        assert_eq!(
            share(&all, &[&all, &all, &all, &all]),
            5.0,
            "nobody is bound"
        );
        assert_eq!(share(&[1], &[&[0], &[2], &[3]]), 1.0, "each has its core");
        assert_eq!(share(&[1], &[&[1], &[2]]), 2.0, "two are bound to one core");
        assert_eq!(
            share(&[0, 1], &[&[0, 1], &[2, 3], &[2, 3]]),
            2.0,
            "by socket"
        );
        assert_eq!(share(&[1], &[&all]), 1.25, "one of them is not bound");
        assert_eq!(share(&all, &[&[2]]), 2.0);
    }

    #[test]
    fn ranks_of_processes_that_hide_their_cores_may_run_anywhere() {
        let mut share = CoreShare::of(1);
        share.add(0, 2);
        share.add(u32::MAX, 3);
        assert_eq!(share.ranks, 6.0);
        share.own.clear();
        share.join(Some(&set(&[2])), 1);
        assert_eq!(share.ranks, 7.0);
        share.grow(8, 2);
        assert_eq!(share.ranks, 28.0);
    }

    #[test]
    fn a_process_of_this_machine_is_asked_for_its_cores() {
        let (mut share, cores) = (CoreShare::of(1), count());
        assert_eq!(share.least(cores), cores as f64);
        // This process is another one's as well.
        share.add(std::process::id(), cores as u32);
        assert_eq!(share.ranks, (cores + 1) as f64);
        assert!(share.cores_each() < 1.0);
        assert_eq!(
            CoreShare::of(0).cores_each(),
            f64::INFINITY,
            "no rank works"
        );
    }

    #[test]
    fn what_a_control_group_allows_is_for_all_ranks() {
        let mut share = CoreShare {
            own: vec![3],
            allowance: 2.0,
            ..CoreShare::of(1)
        };
        (4..11).for_each(|core| share.join(Some(&set(&[core])), 1));
        assert_eq!(share.least(1), 0.25, "eight of them, each on its core");
        share.allowance = f64::INFINITY;
        assert_eq!(share.least(1), 1.0);
        // Whoever is bound here knows as much as who is not.
        let own = allowed().unwrap();
        let before = keep_to(&own[..1]).unwrap();
        let bound = allowance();
        before.restore();
        assert_eq!(bound, allowance());
    }
}
