//! What a figure depends on besides the code: machine, kernel, versions, commit, date.

use std::process::Command;

use serde::Serialize;

use crate::mpi::Mpi;

/// Facts in the order in which reports list them.
#[derive(Debug, Clone, Serialize)]
pub struct Facts(pub Vec<(&'static str, String)>);

impl Facts {
    /// Asks the system; what cannot be found out says so.
    pub fn gather() -> Self {
        let mut facts = vec![
            (
                "date",
                said("date", &["-u", "+%Y-%m-%d %H:%M UTC"], |_| true),
            ),
            ("commit", commit()),
            ("processor", processor()),
            ("kernel", said("uname", &["-sr"], |_| true)),
            ("memory", memory()),
            ("load before", load()),
            (
                "libfabric",
                said("fi_info", &["--version"], |line| {
                    line.starts_with("libfabric:")
                }),
            ),
            (
                "UCX",
                said("ucx_info", &["-v"], |line| line.contains("ersion")),
            ),
        ];
        for mpi in Mpi::EVERY {
            let version = said(mpi.launcher(), &["--version"], |line| {
                line.contains("ersion") || line.contains("OpenRTE")
            });
            facts.push((mpi.name(), version));
        }
        Self(facts)
    }
}

/// The first line that a program prints and that fits, blanks made one.
fn said(program: &str, arguments: &[&str], fits: fn(&str) -> bool) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        return format!("{program} is not installed");
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().find(|line| fits(line)).unwrap_or("unknown");
    line.trim_start_matches('#')
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

fn commit() -> String {
    let hash = said("git", &["rev-parse", "--short=12", "HEAD"], |_| true);
    let changed = said(
        "git",
        &["status", "--porcelain", "--untracked-files=no"],
        |_| true,
    );
    if changed == "unknown" {
        hash
    } else {
        format!("{hash}, with changes")
    }
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load
        .split(' ')
        .next()
        .filter(|l| !l.is_empty())
        .unwrap_or("unknown");
    format!("{load} (a busy machine gives figures of the neighbours)")
}

fn memory() -> String {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .trim()
            .strip_suffix(" kB")?
            .parse()
            .ok()
    });
    kib.map_or_else(
        || "unknown".into(),
        |kib: u64| format!("{} MiB", kib / 1024),
    )
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split(':').nth(1));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cores} cores", model.unwrap_or("unknown model").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_says_something() {
        let facts = Facts::gather();
        assert!(
            facts.0.iter().all(|(_, text)| !text.is_empty()),
            "{facts:?}"
        );
        assert_eq!(
            said("trihop-no-such-program", &[], |_| true),
            "trihop-no-such-program is not installed"
        );
    }
}
