//! What `TRIHOP_LOG` and `TRIHOP_LOG_FILE` do for a user of the command line.

mod launched;

use std::process::Command;

use launched::{Ended, run};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// `trihop` with these words and variables.
fn trihop(words: &str, variables: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(TRIHOP);
    command
        .args(words.split(' '))
        .envs(variables.iter().copied());
    run(command)
}

#[test]
fn a_filter_that_means_nothing_is_wrong_usage() {
    let ended = trihop("info", &[("TRIHOP_LOG", "info,fabrik=debug")]);
    assert_eq!(
        (ended.status, &ended.stdout[..]),
        (2, ""),
        "{}",
        ended.stderr
    );
    assert!(
        ended
            .stderr
            .contains("TRIHOP_LOG: `fabrik` at position 6 of `info,fabrik=debug` is no facility"),
        "{}",
        ended.stderr
    );
}

#[test]
fn nothing_is_said_unasked() {
    let ended = trihop("exchange --count 10", &[]).succeeded();
    assert!(!ended.stderr.contains("job started"), "{}", ended.stderr);
}

#[test]
fn each_rank_writes_a_file_and_standard_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let variables = [
        ("TRIHOP_LOG", "client=info"),
        ("TRIHOP_LOG_FILE", path.to_str().unwrap()),
    ];
    let words = format!("run --no-prefix -n 3 -- {TRIHOP} exchange --count 10");
    let ended = trihop(&words, &variables).succeeded();
    for rank in 0..3 {
        let text = std::fs::read_to_string(path.with_extension(rank.to_string())).unwrap();
        let told = format!("info  client rank {rank}: job started size=3 nodes=1 launcher=local");
        assert!(
            text.contains(&told) && ended.stderr.contains(&told),
            "{text}\n{}",
            ended.stderr
        );
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3);
}

#[test]
fn a_job_of_one_is_rank_0() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let variables = [
        ("TRIHOP_LOG", "bootstrap=debug"),
        ("TRIHOP_LOG_FILE", path.to_str().unwrap()),
    ];
    trihop("exchange --count 10", &variables).succeeded();
    let text = std::fs::read_to_string(path.with_extension("0")).unwrap();
    assert!(
        text.contains("debug bootstrap: bootstrap launcher=single"),
        "from before the rank was known: {text}"
    );
}

/// What environment modules and Kubernetes set is somebody else's, and a user hears of it once.
#[test]
fn variables_of_others_are_one_line_of_warning() {
    let variables = [
        ("TRIHOP_ROOT", "/opt/trihop"),
        ("TRIHOP_SERVICE_HOST", "10.0.0.1"),
    ];
    let job = format!("run --no-prefix -n 3 -- {TRIHOP} exchange --count 10");
    for words in [
        "info",
        "exchange --count 10",
        "topo --ranks 4 --nodes 2",
        &job,
    ] {
        let ended = trihop(words, &variables).succeeded();
        let told: Vec<&str> = ended
            .stderr
            .lines()
            .filter(|line| line.contains("not options"))
            .collect();
        assert_eq!(told.len(), 1, "{words}: {}", ended.stderr);
        let named = told[0].contains("TRIHOP_ROOT") && told[0].contains("TRIHOP_SERVICE_HOST");
        assert!(named && told[0].contains(" warn "), "{}", ended.stderr);
    }
    let quiet = [("TRIHOP_ROOT", "/opt/trihop"), ("TRIHOP_LOG", "error")];
    assert_eq!(trihop("exchange --count 10", &quiet).succeeded().stderr, "");
}

#[test]
fn a_mistyped_option_is_refused_with_its_name() {
    let ended = trihop("exchange --count 10", &[("TRIHOP_REMOTE_MAXRCP", "2")]);
    assert_eq!(ended.status, 2, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("TRIHOP_REMOTE_MAXRCP")
            && ended.stderr.contains("(TRIHOP_REMOTE_MAXRPC)"),
        "{}",
        ended.stderr
    );
}

/// A facility that can be asked for has something to say at each level.
#[test]
fn each_facility_speaks_at_info_debug_and_trace() {
    let job =
        format!("run --no-prefix -n 4 --nodes 2 -- {TRIHOP} exchange --count 1000 --flush four");
    let ended = trihop(&job, &[("TRIHOP_LOG", "trace")]).succeeded();
    let facilities = [
        "client",
        "route",
        "queue",
        "link",
        "deliver",
        "bootstrap",
        "fabric",
        "memory",
    ];
    for facility in facilities {
        for level in ["info", "debug", "trace"] {
            let words = format!(" {level:<5} {facility}");
            let said = ended.stderr.lines().any(|line| {
                let rest = line.split_once(&words).map(|(_, rest)| rest);
                rest.is_some_and(|rest| rest.starts_with([' ', ':']))
            });
            assert!(said, "{facility} says nothing at {level}");
        }
        let alone = trihop(&job, &[("TRIHOP_LOG", &format!("off,{facility}=trace"))]).succeeded();
        let others = alone
            .stderr
            .lines()
            .find(|line| !line.contains(&format!(" {facility}")));
        assert_eq!(others, None, "{facility} was asked for alone");
    }
}

/// Messages are counted, not logged: ten times as many have as many lines but for their batches.
#[test]
fn a_message_costs_no_line() {
    let lines = |count: u32| {
        let job = format!("run --no-prefix -n 4 --nodes 2 -- {TRIHOP} exchange --count {count}");
        let ended = trihop(&job, &[("TRIHOP_LOG", "debug")]).succeeded();
        ended.stderr.lines().count()
    };
    let (few, many) = (lines(1_000), lines(50_000));
    assert!(
        many < few + 100,
        "{few} lines for 4,000 messages, {many} for 200,000"
    );
}
