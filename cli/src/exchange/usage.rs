//! What the operating system counts of a process: time, page faults, blocks, context switches.

use std::mem::MaybeUninit;
use std::time::Instant;

use serde::Serialize;

use super::error::Result;
use super::seat::Seat;
use crate::bench::table::fitted;
use crate::output;

/// Counted of a process.
const COUNTS: usize = 9;

/// Counts of this process, all threads together, until a moment or since one.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    at: Instant,
    counts: [u64; COUNTS],
}

/// What one rank used in one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankUsage {
    rank: u32,
    phase: String,
    seconds: f64,
    user_s: f64,
    system_s: f64,
    minor_faults: u64,
    major_faults: u64,
    blocks_in: u64,
    blocks_out: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

impl Usage {
    /// Everything until now.
    pub fn now() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `getrusage` writes no more than a `rusage`, for which there is room.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
        // SAFETY: a `rusage` consists of integers, for which the zeroes that were there already are
        // values.
        let usage = unsafe { usage.assume_init() };
        let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        let counts = [
            0,
            micros(usage.ru_utime),
            micros(usage.ru_stime),
            usage.ru_minflt as u64,
            usage.ru_majflt as u64,
            usage.ru_inblock as u64,
            usage.ru_oublock as u64,
            usage.ru_nvcsw as u64,
            usage.ru_nivcsw as u64,
        ];
        Self {
            at: Instant::now(),
            counts,
        }
    }

    /// What came to it since an earlier moment.
    pub fn since(mut self, earlier: &Self) -> Self {
        for (count, before) in self.counts.iter_mut().zip(earlier.counts) {
            *count -= before;
        }
        self.counts[0] = (self.at - earlier.at).as_micros() as u64;
        self
    }

    /// Those of all ranks in each phase; collective.
    ///
    /// # Errors
    /// The engine's.
    pub fn gather(job: &Seat, phases: &[(&str, Self)]) -> Result<Vec<RankUsage>> {
        let counts = phases.iter().flat_map(|(_, usage)| usage.counts);
        let own: Vec<u8> = counts.flat_map(u64::to_le_bytes).collect();
        let told = job.allgather(&own)?;
        let of_rank = |(rank, bytes): (u32, &Vec<u8>)| -> Vec<RankUsage> {
            let (words, _) = bytes.as_chunks::<8>();
            let counts: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let (counts, _) = counts.as_chunks::<COUNTS>();
            let phases = phases.iter().zip(counts);
            phases
                .map(|((phase, _), counts)| RankUsage::new(rank, phase, counts))
                .collect()
        };
        Ok((0..).zip(&told).flat_map(of_rank).collect())
    }
}

impl RankUsage {
    fn new(rank: u32, phase: &str, counts: &[u64; COUNTS]) -> Self {
        let &[
            elapsed_us,
            user_us,
            system_us,
            minor_faults,
            major_faults,
            blocks_in,
            blocks_out,
            voluntary_switches,
            involuntary_switches,
        ] = counts;
        let seconds = |micros: u64| micros as f64 / 1e6;
        Self {
            rank,
            phase: phase.to_owned(),
            seconds: seconds(elapsed_us),
            user_s: seconds(user_us),
            system_s: seconds(system_us),
            minor_faults,
            major_faults,
            blocks_in,
            blocks_out,
            voluntary_switches,
            involuntary_switches,
        }
    }

    /// One line for each, under a heading.
    pub fn table(rows: &[Self]) -> String {
        let names = [
            "\nrank",
            "\nphase",
            "\nseconds",
            "\nuser",
            "\nsystem",
            "faults\nminor",
            "\nmajor",
            "blocks\nin",
            "\nout",
            "switches\nvol.",
            "\ninvol.",
        ];
        // As wide as leaves all of them a line of a terminal.
        let seconds = |seconds: f64, width| fitted(&format!("{seconds:.3}"), width);
        let count = |count: u64, width| fitted(&count.to_string(), width);
        let rows = rows.iter().map(|row| {
            [
                row.rank.to_string(),
                row.phase.clone(),
                seconds(row.seconds, 8),
                seconds(row.user_s, 7),
                seconds(row.system_s, 7),
                count(row.minor_faults, 7),
                count(row.major_faults, 5),
                count(row.blocks_in, 6),
                count(row.blocks_out, 5),
                count(row.voluntary_switches, 8),
                count(row.involuntary_switches, 7),
            ]
        });
        output::table(names, &[1], rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_between_two_moments_is_counted() {
        let before = Usage::now();
        // Touches pages that nobody has touched.
        let pages = vec![1u8; 8 << 20];
        std::hint::black_box(&pages);
        let mut word = 0u64;
        while Usage::now().since(&before).counts[1] < 20_000 {
            word = std::hint::black_box(word.wrapping_mul(3) + 1);
        }
        let used = Usage::now().since(&before);
        assert!(used.counts[0] >= 10_000, "{used:?}");
        assert!(used.counts[3] > 0, "page faults: {used:?}");
    }

    #[test]
    fn lines_of_long_runs_fit_a_terminal() {
        let counts = [86_400_000_000; COUNTS];
        let rows = [RankUsage::new(1023, "sending", &counts)];
        let table = RankUsage::table(&rows);
        assert!(table.lines().count() == 3, "{table}");
        let longest = table.lines().map(|line| line.chars().count()).max();
        assert!(
            longest.is_some_and(|length| length <= output::COLUMNS),
            "{table}"
        );
    }
}
