//! One round of work: what it is for, how long it took, and what it cost processors and kernel.

use std::time::Instant;

use trihop::Reduce;

use super::Error;
use super::agents;
use super::session::Team;
use super::syscalls::Counter;

/// What a round is for. Each does the same work and is checked the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Fills caches and pools; no figure comes from it.
    WarmUp,
    /// Its time is a figure.
    Timed,
    /// What it asks of the kernel is a figure; counting may slow it down.
    Counted,
}

impl Round {
    /// One warm-up, `reps` timed rounds, one counted.
    pub fn all(reps: u32) -> impl Iterator<Item = Self> {
        let timed = (0..reps).map(|_| Self::Timed);
        std::iter::once(Self::WarmUp)
            .chain(timed)
            .chain(std::iter::once(Self::Counted))
    }
}

/// What is ready to measure a round before the ranks meet at its beginning.
pub(crate) struct Meter {
    /// What the round is for.
    pub round: Round,
    syscalls: Option<Result<Counter, String>>,
}

impl Meter {
    /// Prepares for a round.
    pub fn open(round: Round) -> Self {
        let counted = round == Round::Counted;
        Self {
            round,
            syscalls: counted.then(Counter::open),
        }
    }

    /// Starts the clock.
    pub fn start(&self) -> Clock<'_> {
        let syscalls = self.syscalls();
        Clock {
            meter: self,
            syscalls,
            usage: usage(),
            cpu_ns: cpu_ns(),
            start: Instant::now(),
        }
    }

    fn syscalls(&self) -> Result<u64, String> {
        match &self.syscalls {
            Some(Ok(counter)) => counter.read(),
            Some(Err(why)) => Err(why.clone()),
            None => Ok(0),
        }
    }
}

/// Time and costs of this rank from a moment on.
pub(crate) struct Clock<'a> {
    meter: &'a Meter,
    syscalls: Result<u64, String>,
    usage: (u64, u64),
    cpu_ns: u64,
    start: Instant,
}

impl Clock<'_> {
    /// What this rank has spent since the start.
    pub fn stop(self) -> Spent {
        let nanoseconds = self.start.elapsed().as_nanos() as u64;
        let cpu_ns = cpu_ns().saturating_sub(self.cpu_ns); // an agent may have ended
        let (minor_faults, ctx_switches) = usage();
        Spent {
            nanoseconds,
            cpu_ns,
            syscalls: self
                .meter
                .syscalls()
                .and_then(|now| Ok(now - self.syscalls?)),
            minor_faults: minor_faults - self.usage.0,
            ctx_switches: ctx_switches - self.usage.1,
        }
    }
}

/// What one rank has spent on a round.
pub(crate) struct Spent {
    nanoseconds: u64,
    cpu_ns: u64,
    syscalls: Result<u64, String>,
    minor_faults: u64,
    ctx_switches: u64,
}

/// Whose time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wall {
    /// That of the slowest rank.
    Slowest,
    /// Each rank's own: one of them prints.
    Own,
}

impl Spent {
    /// What all ranks have spent; collective.
    pub fn combined(self, job: &impl Team, wall: Wall) -> Result<Measured, Error> {
        let mut slowest = [self.nanoseconds];
        if wall == Wall::Slowest {
            job.allreduce(&mut slowest, Reduce::Max)?;
        }
        let (syscalls, uncounted) = match self.syscalls {
            Ok(syscalls) => (syscalls, None),
            Err(why) => (0, Some(why)),
        };
        // All of it is the process's, of whose ranks the first one says it.
        let topology = job.topology();
        let is_first = topology
            .rank()
            .0
            .is_multiple_of(topology.ranks_in_process());
        let mut sums = [
            self.cpu_ns,
            syscalls,
            u64::from(uncounted.is_some()),
            self.minor_faults,
            self.ctx_switches,
        ]
        .map(|count| if is_first { count } else { 0 });
        job.allreduce(&mut sums, Reduce::Sum)?;
        let [cpu_ns, syscalls, failed, minor_faults, ctx_switches] = sums;
        let syscalls = match failed {
            0 => Ok(syscalls),
            _ => Err(uncounted.unwrap_or_else(|| format!("not possible on {failed} ranks"))),
        };
        Ok(Measured {
            seconds: slowest[0] as f64 / 1e9,
            cpu_seconds: cpu_ns as f64 / 1e9,
            kernel: KernelWork {
                syscalls,
                minor_faults,
                ctx_switches,
            },
        })
    }
}

/// What processes have asked of the kernel, or made it do.
#[derive(Debug, Clone)]
pub(crate) struct KernelWork {
    /// System calls, or why they could not be counted.
    pub syscalls: Result<u64, String>,
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Voluntary and involuntary switches of context.
    pub ctx_switches: u64,
}

/// One round's figures of all ranks.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    /// Wall time in seconds.
    pub seconds: f64,
    /// User and system time of all ranks in seconds.
    pub cpu_seconds: f64,
    /// Of all ranks; system calls are those of a counted round only.
    pub kernel: KernelWork,
}

/// The rounds of one case that give figures.
#[derive(Debug, Default)]
pub(crate) struct Reps {
    /// Timed rounds.
    pub timed: Vec<Measured>,
    /// The counted one.
    pub counted: Option<KernelWork>,
}

impl Reps {
    /// Keeps what a round is for.
    pub fn add(&mut self, round: Round, measured: Measured) {
        match round {
            Round::WarmUp => {}
            Round::Timed => self.timed.push(measured),
            Round::Counted => self.counted = Some(measured.kernel),
        }
    }
}

/// Minor page faults and switches of context of this process so far.
fn usage() -> (u64, u64) {
    // SAFETY: all zero bytes are a `rusage`, a structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage` to where one is.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    debug_assert_eq!(status, 0, "RUSAGE_SELF is always known");
    (
        usage.ru_minflt as u64,
        (usage.ru_nvcsw + usage.ru_nivcsw) as u64,
    )
}

/// User and system time in nanoseconds: of this process, and with the first rank of the agents.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    own + agents::cpu_ns()
}
