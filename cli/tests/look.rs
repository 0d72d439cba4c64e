//! `trihop top` and `trihop dump` see jobs that work, hang and are stopped, and ask nothing of them.

mod launched;

use std::process::Command;

use launched::{Ended, Launched, run, until};
use serde_json::Value;

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

fn trihop(words: &str) -> Ended {
    let mut command = Command::new(TRIHOP);
    command.args(words.split_whitespace());
    run(command)
}

/// Ranks that exchange for ever, for all that a test sees of it.
struct Job(Launched);

impl Job {
    /// `options` are those of `trihop run`, `more` those of the exchange.
    fn start(options: &str, more: &str) -> Self {
        let words =
            format!("run {options} -- {TRIHOP} exchange --count 4000000000 --stall-s 0 {more}");
        let mut command = Command::new(TRIHOP);
        command.args(words.split_whitespace());
        Self(Launched::start(command))
    }

    fn launcher(&self) -> u32 {
        self.0.id()
    }

    /// What `top` sees of it, until it is what is looked for.
    fn top<T>(&self, what: &str, mut look: impl FnMut(&[Value]) -> Option<T>) -> T {
        let words = format!("top --json --interval 0.05 --pid {}", self.launcher());
        let mut found = None;
        until(what, || {
            let ended = trihop(&words);
            let report: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
            let endpoints = report["endpoints"].as_array();
            found = endpoints.and_then(|endpoints| look(endpoints));
            found.is_some()
        });
        found.unwrap()
    }

    /// The processes of its ranks, once all have sent something.
    fn ranks(&self, count: usize) -> Vec<u32> {
        self.top("all ranks send", |endpoints| {
            let sends = |seen: &Value| sent(seen).is_some_and(|sent| sent > 0);
            let all = endpoints.len() == count && endpoints.iter().all(sends);
            all.then(|| endpoints.iter().map(process).collect())
        })
    }

    fn end(self) {
        self.0.signal(libc::SIGTERM);
        self.0.wait();
    }
}

fn process(seen: &Value) -> u32 {
    seen["process"].as_u64().unwrap() as u32
}

fn exchange(seen: &Value) -> Option<&Value> {
    let streams = seen["now"]["streams"].as_array()?;
    streams.iter().find(|stream| stream["name"] == "exchange")
}

fn sent(seen: &Value) -> Option<u64> {
    exchange(seen)?["totals"]["sent"].as_u64()
}

fn signal(process: u32, signal: i32) {
    // SAFETY: a system call on integers; the process is a rank of this test's job, whose launcher
    // has not reaped it.
    assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
}

#[test]
fn top_shows_how_a_job_goes_on_each_seat() {
    for (options, more, count) in [
        ("-n 4 --nodes 2", "", 4),
        ("-n 2 --nodes 2", "--threaded", 2),
    ] {
        let job = Job::start(options, more);
        job.ranks(count);
        let rates = job.top("all ranks go on", |endpoints| {
            let rates = endpoints
                .iter()
                .map(|seen| seen["rates"]["sent_per_s"].as_f64());
            rates
                .collect::<Option<Vec<f64>>>()
                .filter(|rates| rates.iter().all(|rate| *rate > 0.0))
        });
        assert_eq!(rates.len(), count);
        let launcher = job.launcher();
        let table = trihop(&format!("top --once --interval 0 --pid {launcher}")).succeeded();
        let text = &table.stdout;
        assert!(
            text.contains(&format!(
                "{count} ranks on 2 nodes; seen here: {count} ranks"
            )),
            "{text}"
        );
        assert!(
            text.lines().any(|line| line.starts_with("remote ")),
            "{text}"
        );
        let nodes = trihop(&format!(
            "top --once --interval 0 --by node --pid {launcher}"
        ))
        .succeeded();
        let lines = nodes.stdout.lines();
        let lines = lines.skip_while(|line| !line.starts_with(" node ranks"));
        // A node that waits says so in another line.
        let lines = lines.skip(1).filter(|line| !line.contains(" waits "));
        let lines: Vec<&str> = lines.take(2).collect();
        assert!(
            lines
                .iter()
                .zip(["0", "1"])
                .all(|(line, node)| line.trim().starts_with(node)),
            "{lines:?}"
        );
        for line in text.lines().chain(nodes.stdout.lines()) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        job.end();
    }
}

#[test]
fn ranks_that_hang_show_what_they_wait_for() {
    let job = Job::start("-n 4 --nodes 2", "");
    let ranks = job.ranks(4);
    signal(ranks[3], libc::SIGSTOP);
    // Each of the others has something for it, or waits for one that has.
    let waits = |seen: &Value| {
        let ns = seen["now"]["waits"][0]["waited_ns"].as_u64();
        ns.is_some_and(|ns| ns > 300_000_000)
    };
    job.top("three ranks wait", |endpoints| {
        endpoints[..3].iter().all(waits).then_some(())
    });
    let table = trihop(&format!("top --once --pid {}", job.launcher())).succeeded();
    // A line for each reason, with the rank that has it for the longest time.
    let waits = table.stdout.lines().filter(|line| line.contains(" waits "));
    let others = |line: &str| -> u32 {
        let (_, more) = line.rsplit_once(", and ").unwrap_or_default();
        let number = more.strip_suffix(" more").unwrap_or("0");
        number.parse().unwrap()
    };
    let waiting: u32 = waits.map(|line| 1 + others(line)).sum();
    assert!(waiting >= 3, "{}", table.stdout);
    // The first text of the wait comes once it has lasted for long.
    let mut dumps = Vec::new();
    until("each rank shows its stream, and a peer is named", || {
        dumps = ranks[..3]
            .iter()
            .map(|rank| trihop(&format!("dump {rank}")).succeeded().stdout)
            .collect();
        dumps.iter().any(|text| text.contains("rank 3 has not"))
            && (dumps.iter()).all(|text| text.contains("stream 1 `exchange` on rank"))
    });
    for (rank, text) in dumps.iter().enumerate() {
        assert!(
            text.starts_with(&format!(
                "rank {rank} of 4 ranks, node {} of 2, process",
                rank / 2
            )),
            "{text}"
        );
        assert!(text.contains("  a call waits for "), "{text}");
    }
    // The one that is stopped shows what it was at.
    let text = trihop(&format!("dump {}", ranks[3])).succeeded().stdout;
    assert!(text.starts_with("rank 3 of 4 ranks"), "{text}");
    let all = trihop(&format!("dump --json {}", job.launcher()))
        .succeeded()
        .stdout;
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["endpoints"].as_array().unwrap().len(), 4);
    signal(ranks[3], libc::SIGCONT);
    job.end();
}

#[test]
fn prometheus_gets_each_counter_of_each_stream_once() {
    let job = Job::start("-n 2 --nodes 2", "");
    job.ranks(2);
    let text = trihop(&format!("top --prometheus --pid {}", job.launcher()))
        .succeeded()
        .stdout;
    let mut series = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(name.contains("{job=\"") && name.ends_with('}'), "{line}");
        series.push(name);
    }
    for kind in [
        "trihop_stream_sent_total",
        "trihop_queue_waits_total",
        "trihop_memory_used_bytes",
    ] {
        let exchange = |line: &&&str| line.starts_with(kind) && line.contains("name=\"exchange\"");
        assert!(
            series.iter().filter(exchange).count() >= 2,
            "{kind}: {text}"
        );
    }
    let count = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), count, "a series is there once");
    job.end();
}

#[test]
fn a_job_that_shows_nothing_is_not_seen() {
    let mut command = Command::new(TRIHOP);
    let words = format!("run -n 2 -- {TRIHOP} exchange --count 4000000000 --stall-s 0");
    command
        .args(words.split_whitespace())
        .env("TRIHOP_COUNTERS_PAGE", "0");
    let job = Job(Launched::start(command));
    until("both ranks run", || {
        job.0.children_with("exchange").len() == 2
    });
    let refused = trihop(&format!("dump {}", job.launcher()));
    assert_eq!(refused.status, 1, "{}", refused.stdout);
    assert!(
        refused.stderr.contains("counters_page is off"),
        "{}",
        refused.stderr
    );
    job.end();
}

#[test]
fn what_shows_nothing_is_refused_in_a_sentence() {
    let nobody = Launched::start(Command::new("cat"));
    let own = nobody.id();
    for (words, why) in [
        (format!("dump {own}"), "it shows nothing"),
        ("dump 4000000000".into(), "there is none"),
        (format!("top --once --pid {own}"), "it shows nothing"),
        (
            "top --once --interval 0 --job fffffffffffffffffff".into(),
            "no job on this machine has a number",
        ),
    ] {
        let refused = trihop(&words);
        assert_eq!(refused.status, 1, "{words}");
        assert!(refused.stderr.contains(why), "{words}: {}", refused.stderr);
    }
    nobody.wait(); // it has nothing more to read
    let refused = trihop("top --prometheus 192.0.2.1:9");
    assert_eq!(refused.status, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("loopback"), "{}", refused.stderr);
}
