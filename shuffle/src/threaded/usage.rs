//! What the threads of a job cost, as the kernel counts it.

/// What one thread of a job has used so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct ThreadUse {
    /// What the thread is for: `progress`, or `deliver` and the name of its stream.
    pub name: String,
    /// Processor time in user and kernel mode, in milliseconds (counted in clock ticks, mostly of
    /// 10 ms).
    pub user_ms: u64,
    /// As `user_ms`, inside the kernel.
    pub system_ms: u64,
    /// Times that it waited.
    pub voluntary_switches: u64,
    /// Times that it had to give its core to others.
    pub involuntary_switches: u64,
    /// Page faults that cost no reading.
    pub minor_faults: u64,
}

impl ThreadUse {
    /// Of the thread with this number; of an ended one, or where `/proc` is absent, `None`.
    pub(super) fn of(name: &str, tid: u32) -> Option<Self> {
        let read =
            |file: &str| std::fs::read_to_string(format!("/proc/self/task/{tid}/{file}")).ok();
        let (stat, status) = (read("stat")?, read("status")?);
        // The second field, in parentheses, may hold anything; the third is the first behind it.
        let fields: Vec<u64> = stat[stat.rfind(')')? + 1..]
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
        // Not rustix's, which looks for the kernel's page in memory itself, and is ended by SIGSEGV
        // under valgrind.
        // SAFETY: a call that reads a constant.
        let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        let ticks_per_second = u64::try_from(ticks_per_second).unwrap_or(0).max(1);
        let line = |key: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(key));
            rest.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
        };
        Some(Self {
            name: name.to_owned(),
            user_ms: field(14) * 1000 / ticks_per_second,
            system_ms: field(15) * 1000 / ticks_per_second,
            voluntary_switches: line("voluntary_ctxt_switches:"),
            involuntary_switches: line("nonvoluntary_ctxt_switches:"),
            minor_faults: field(10),
        })
    }
}

impl std::fmt::Display for ThreadUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} ms user, {} ms system, {} + {} context switches (waits + losses of the core), {} minor faults",
            self.name,
            self.user_ms,
            self.system_ms,
            self.voluntary_switches,
            self.involuntary_switches,
            self.minor_faults
        )
    }
}
