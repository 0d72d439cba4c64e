//! The processors' time of a job's agents, which relay for its ranks in processes of their own.

use std::sync::OnceLock;

use trihop::observe::{self, Seen};

/// The clocks of the agents' processes, for the job's first rank; for others there are none.
static CLOCKS: OnceLock<Vec<libc::clockid_t>> = OnceLock::new();

/// User and system time of all agents of this process's job so far, in nanoseconds, where it has
/// the first rank: one rank says it for all. They are of this machine, as `trihop bench` starts
/// them; one that has ended counts for nothing.
pub(super) fn cpu_ns() -> u64 {
    let clocks = CLOCKS.get_or_init(|| {
        let agents = agents_of(std::process::id());
        agents.into_iter().filter_map(clock_of).collect()
    });
    clocks.iter().filter_map(|clock| read(*clock)).sum()
}

/// Whether the time of so many is known, as far as this process has read it.
pub(super) fn are_known(agents: u32) -> bool {
    CLOCKS
        .get()
        .is_some_and(|clocks| clocks.len() == agents as usize)
}

/// Processes of other endpoints of the job whose first rank a process has. What shows no pages has
/// none.
fn agents_of(process: u32) -> Vec<u32> {
    let own = observe::of_process(process).unwrap_or_default();
    let Some(first) = own.iter().find(|seen| seen.about.endpoint == 0) else {
        return Vec::new();
    };
    let is_agent = |seen: &Seen| {
        let about = &seen.about;
        about.is_relay && about.job == first.about.job && seen.process != process
    };
    let all = observe::find().unwrap_or_default();
    // Mini-ranks have relays too, in their own processes, which say their time themselves.
    let has_rank = |process: u32| {
        let mut of_process = all.iter().filter(|seen| seen.process == process);
        of_process.any(|seen| !seen.about.is_relay && seen.about.job == first.about.job)
    };
    let agents = all.iter().filter(|seen| is_agent(seen));
    let agents = agents.map(|seen| seen.process);
    agents.filter(|&process| !has_rank(process)).collect()
}

/// The clock of a process's time on processors, if there is such a process.
fn clock_of(process: u32) -> Option<libc::clockid_t> {
    let mut clock = 0;
    // SAFETY: it writes one clock's number to where one is.
    let status = unsafe { libc::clock_getcpuclockid(process.cast_signed(), &raw mut clock) };
    (status == 0).then_some(clock)
}

fn read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes one time to where one is; a clock that is gone is an error.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (status == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_clock_of_a_process_is_its_time_on_processors() {
        let own = clock_of(std::process::id()).unwrap();
        let before = read(own).unwrap();
        let is_later = |_: &u64| read(own).unwrap() > before + 1_000_000;
        assert!((0..u64::MAX).any(|count| is_later(&count)));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let asleep = clock_of(child.id()).unwrap();
        assert!(read(asleep).unwrap() < Duration::from_secs(1).as_nanos() as u64);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(read(asleep), None, "it is gone");
    }
}
