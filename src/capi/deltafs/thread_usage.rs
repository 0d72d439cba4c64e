//! What a thread of this process has used so far, as the kernel counts it.

use std::fs;

/// Name of the progress thread; the kernel keeps 15 bytes of it, and these are 15.
const PROGRESS_THREAD: &str = "trihop-progress";

/// The progress thread of this process, by its number; none while there is none, or without /proc.
pub(super) fn progress_thread() -> Option<u32> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // Numbers are given in ascending order; of several threads of that name, left by an earlier
    // job, the last one runs.
    numbers
        .filter(|number| {
            fs::read_to_string(format!("/proc/self/task/{number}/comm"))
                .is_ok_and(|name| name.trim_end() == PROGRESS_THREAD)
        })
        .max()
}

/// CPU time, page faults and context switches of a thread; zero where the kernel does not say.
pub(super) fn of(thread: u32) -> libc::rusage {
    let read = |file: &str| {
        fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).unwrap_or_default()
    };
    // SAFETY: a system call without side effects.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
    parse(&read("stat"), &read("status"), per_second)
}

/// From the texts of `/proc/.../stat` and `/proc/.../status`.
fn parse(stat: &str, status: &str, ticks_per_second: i64) -> libc::rusage {
    // The name is in parentheses and may hold anything; numbers follow, the thread's state being
    // the first word.
    let words: Vec<&str> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .collect();
    let number = |at: usize| -> i64 { words.get(at).and_then(|w| w.parse().ok()).unwrap_or(0) };
    let time = |ticks: i64| libc::timeval {
        tv_sec: ticks / ticks_per_second,
        tv_usec: ticks % ticks_per_second * 1_000_000 / ticks_per_second,
    };
    let switches = |name: &str| -> i64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    };
    let mut usage = nothing();
    usage.ru_minflt = number(7);
    usage.ru_majflt = number(9);
    usage.ru_utime = time(number(11));
    usage.ru_stime = time(number(12));
    usage.ru_nvcsw = switches("voluntary_ctxt_switches:");
    usage.ru_nivcsw = switches("nonvoluntary_ctxt_switches:");
    usage
}

/// No usage at all.
pub(super) fn nothing() -> libc::rusage {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// What was used from `before` to `after`, in the fields that [`of`] sets.
pub(super) fn between(before: &libc::rusage, after: &libc::rusage) -> libc::rusage {
    let time = |from: libc::timeval, to: libc::timeval| {
        let us = (to.tv_sec - from.tv_sec) * 1_000_000 + (to.tv_usec - from.tv_usec);
        libc::timeval {
            tv_sec: us.max(0) / 1_000_000,
            tv_usec: us.max(0) % 1_000_000,
        }
    };
    let mut usage = nothing();
    usage.ru_utime = time(before.ru_utime, after.ru_utime);
    usage.ru_stime = time(before.ru_stime, after.ru_stime);
    usage.ru_minflt = after.ru_minflt - before.ru_minflt;
    usage.ru_majflt = after.ru_majflt - before.ru_majflt;
    usage.ru_nvcsw = after.ru_nvcsw - before.ru_nvcsw;
    usage.ru_nivcsw = after.ru_nivcsw - before.ru_nivcsw;
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_read() {
        let stat = "77 (a) name)) S 1 2 3 4 5 6 700 8 9 10 250 33 0 0 20 0";
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t41\nnonvoluntary_ctxt_switches:\t7\n";
        let usage = parse(stat, status, 100);
        assert_eq!((usage.ru_minflt, usage.ru_majflt), (700, 9));
        assert_eq!(
            (usage.ru_utime.tv_sec, usage.ru_utime.tv_usec),
            (2, 500_000)
        );
        assert_eq!(
            (usage.ru_stime.tv_sec, usage.ru_stime.tv_usec),
            (0, 330_000)
        );
        assert_eq!((usage.ru_nvcsw, usage.ru_nivcsw), (41, 7));
        assert_eq!(parse("", "", 100).ru_minflt, 0);
        let twice = parse(stat, status, 50);
        assert_eq!(between(&usage, &twice).ru_utime.tv_usec, 500_000);
        assert_eq!(between(&twice, &usage).ru_utime.tv_sec, 0);
    }

    #[test]
    fn this_threads_work_is_seen() {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let before = of(me);
        let pages = std::hint::black_box(vec![1u8; 64 << 12]);
        assert!(pages.iter().all(|&b| b == 1));
        let used = between(&before, &of(me));
        assert!(used.ru_minflt >= 0 && of(me).ru_minflt > 0);
    }
}
