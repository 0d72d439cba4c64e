//! Logs of whole processes: each test starts this program again as the process that installs them.
#![cfg(feature = "log")]

#[path = "../transport/src/watchdog.rs"]
#[allow(dead_code, reason = "of its deadlines one is used here")]
mod watchdog;

use std::io::{Read, Seek};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use trihop::log::{self, Filter, Level};

/// Says to the new process which part to play.
const PART: &str = "LOG_TEST_PART";

/// In the process that was started for it: plays the part and returns nothing. Else: starts one,
/// and returns what became of it. `test` is the name of the calling test.
fn process(test: &str, variables: &[(&str, &str)], part: fn()) -> Option<Output> {
    if std::env::var_os(PART).is_some() {
        part();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture"])
        .env(PART, test);
    for name in [
        "TRIHOP_LOG",
        "TRIHOP_LOG_FILE",
        "TRIHOP_LAUNCHER",
        "TRIHOP_BOOT_FD",
        "PMI_FD",
        "PMIX_RANK",
    ] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    // Files, not pipes: a process that says more than a pipe holds is not to wait for a reader.
    let mut said = [0, 1].map(|_| tempfile::tempfile().unwrap());
    let [stdout, stderr] = [0, 1].map(|at: usize| said[at].try_clone().unwrap());
    let mut child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
    let status = watchdog::end_of(&mut child);
    let [stdout, stderr] = [0, 1].map(|at: usize| {
        let mut bytes = Vec::new();
        said[at].rewind().unwrap();
        said[at].read_to_end(&mut bytes).unwrap();
        bytes
    });
    let output = Output {
        status,
        stdout,
        stderr,
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let played = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(played, "{test} is no test here: {output:?}");
    Some(output)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn standard_error_has_a_filter_of_its_own() {
    let part = || {
        let mut options = log::Options::default();
        options.all.record = Filter::uniform(Level::Debug);
        options.all.stderr = "error,deliver=info".parse().unwrap();
        log::install(options).unwrap();
        log::set_rank(3).unwrap();
        tracing::warn!(target: "trihop_shuffle::job", "not shown");
        tracing::error!(target: "trihop_shuffle::job", "shown");
        tracing::info!(target: "trihop_shuffle::deliver", "shown too");
        assert_eq!(log::recent().lines().count(), 3);
    };
    let Some(output) = process("standard_error_has_a_filter_of_its_own", &[], part) else {
        return;
    };
    let text = stderr(&output);
    assert!(
        text.contains(" error client rank 3: shown\n")
            && text.contains(" info  deliver rank 3: shown too\n"),
        "{text}"
    );
    assert!(!text.contains("not shown"), "{text}");
}

#[test]
fn a_callback_may_log_and_does_not_hear_itself() {
    let part = || {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ours = Arc::clone(&heard);
        let callback: log::Callback = Box::new(move |level, facility, text| {
            tracing::error!("from the callback");
            ours.lock()
                .unwrap()
                .push(format!("{level} {facility} {text}"));
        });
        log::install(log::Options {
            callback: Some(callback),
            ..log::Options::default()
        })
        .unwrap();
        tracing::warn!(target: "trihop_shuffle::route", "one");
        tracing::warn!(target: "trihop_shuffle::route", "two");
        assert_eq!(
            heard.lock().unwrap()[..],
            ["warn route one", "warn route two"]
        );
        assert_eq!(log::recent().matches("from the callback").count(), 2);
    };
    process("a_callback_may_log_and_does_not_hear_itself", &[], part);
}

#[test]
fn installing_twice_is_refused() {
    let part = || {
        assert_eq!(log::recent(), "");
        log::set_rank(1).unwrap();
        log::install(log::Options::default()).unwrap();
        let text = log::install(log::Options::default())
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            "option log: logs are installed already; call `log::install` once per process"
        );
    };
    process("installing_twice_is_refused", &[], part);
}

#[test]
fn logs_that_are_installed_after_the_rank_was_told_know_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log");
    let part = || {
        log::set_rank(4).unwrap();
        // The environment says 12, the job knows better.
        log::install(log::Options::from_env().unwrap()).unwrap();
        tracing::warn!("late");
        assert!(
            log::recent().ends_with(" rank 4: late\n"),
            "{}",
            log::recent()
        );
    };
    let variables = [
        ("TRIHOP_LOG_FILE", file.to_str().unwrap()),
        ("TRIHOP_BOOT_FD", "9"),
        ("TRIHOP_RANK", "12"),
    ];
    let name = "logs_that_are_installed_after_the_rank_was_told_know_it";
    if process(name, &variables, part).is_some() {
        let text = std::fs::read_to_string(directory.path().join("log.4")).unwrap();
        assert!(text.ends_with(" rank 4: late\n"), "{text}");
        assert!(!directory.path().join("log.12").exists());
    }
}

/// A C program that installs no logs hears of variables that nobody reads, too.
#[test]
fn warnings_about_the_start_are_heard_without_logs() {
    let part = || {
        trihop::Options::from_env().unwrap();
        trihop::Options::from_env().unwrap();
    };
    let name = "warnings_about_the_start_are_heard_without_logs";
    for (level, lines) in [("", 1), ("warn", 1), ("off", 0), ("error", 0)] {
        let variables = [("TRIHOP_LOG", level), ("TRIHOP_ROOT", "/opt/trihop")];
        let Some(output) = process(name, &variables, part) else {
            return;
        };
        let text = stderr(&output);
        let warning = "trihop: warning: not options of trihop, and not used: TRIHOP_ROOT\n";
        assert_eq!(text.matches(warning).count(), lines, "{level}: {text}");
    }
}

/// So it hears of a call that does not end for long: of the stream, and of what keeps it.
#[test]
fn a_long_wait_is_heard_of_without_logs() {
    let part = || {
        let options = trihop::Options {
            launcher: Some(trihop::transport::bootstrap::Launcher::Single),
            ..trihop::Options::default()
        };
        let job = trihop::threaded::Job::start(options).unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        let slow = move |_: trihop::Rank, _: &[u64], _: &_| {
            begun.send(()).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(13));
        };
        let stream = job.stream::<u64>("slow").handler(slow).open().unwrap();
        stream.push(trihop::Rank(0), 1).unwrap();
        stream.flush(trihop::Queues::ORIGIN).unwrap();
        begins.recv().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| stream.flush(trihop::Queues::Delivery).unwrap());
            }
        });
        job.shutdown().unwrap();
    };
    if let Some(output) = process("a_long_wait_is_heard_of_without_logs", &[], part) {
        let text = stderr(&output);
        let warning = "trihop: warning: rank 0 has waited for a flush for 10 s: `slow`: delivery: ";
        assert_eq!(text.matches(warning).count(), 1, "once in a job: {text}");
    }
}

#[test]
fn what_is_given_up_at_the_end_is_heard_of_without_logs() {
    let part = || {
        let options = trihop::Options::from_env().unwrap();
        let job = trihop::Job::start(options).unwrap();
        let given_up = job.shuffle("given up").open().unwrap();
        for _ in 0..3 {
            given_up.send(trihop::Rank(0), 0, b"").unwrap();
        }
        let channels = job.channels("left").open().unwrap();
        let limits = trihop::ChannelLimits::default();
        let _semaphore = channels.semaphore(1, 1, limits).unwrap();
        let left = channels.create(limits).unwrap();
        let (when, until) = (
            trihop::channel::Return::WhenDeposited,
            trihop::channel::Timeout::Never,
        );
        left.send(0, b"nobody's", when, until).unwrap();
        channels.shutdown().unwrap();
        job.shutdown().unwrap();
    };
    let test = "what_is_given_up_at_the_end_is_heard_of_without_logs";
    if let Some(output) = process(test, &[], part) {
        let text = stderr(&output);
        for warning in [
            "rank 0: records of `given up` that were not taken before its end: 3",
            "rank 0: messages of `left` that were not taken before its end: 1",
        ] {
            assert!(text.contains(warning), "{text}");
        }
    }
}

#[test]
fn a_job_that_is_dropped_is_heard_of() {
    let part = || {
        let options = trihop::Options::from_env().unwrap();
        drop(trihop::Job::start(options).unwrap());
    };
    if let Some(output) = process("a_job_that_is_dropped_is_heard_of", &[], part) {
        let text = stderr(&output);
        let warning = "rank 0 leaves the job without shutting it down";
        assert_eq!(text.matches(warning).count(), 1, "{text}");
    }
}

#[test]
fn a_program_that_hosts_fewer_ranks_than_it_was_asked_for_is_heard_of() {
    let part = || {
        let options = trihop::Options::from_env().unwrap();
        trihop::Job::start(options).unwrap().shutdown().unwrap();
    };
    let test = "a_program_that_hosts_fewer_ranks_than_it_was_asked_for_is_heard_of";
    if let Some(output) = process(test, &[("TRIHOP_MINIS_PER_RANK", "2")], part) {
        let text = stderr(&output);
        assert_eq!(text.matches("asks for 2 ranks").count(), 1, "{text}");
    }
}

#[test]
fn another_subscriber_is_left_alone() {
    let part = || {
        tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap();
        let text = log::install(log::Options::default())
            .unwrap_err()
            .to_string();
        assert!(text.contains("`tracing` subscriber already"), "{text}");
        assert_eq!(log::recent(), "");
    };
    process("another_subscriber_is_left_alone", &[], part);
}

#[test]
fn the_environment_chooses_level_file_and_rank() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log");
    let part = || {
        log::install(log::Options::from_env().unwrap()).unwrap();
        tracing::debug!(target: "trihop_transport::memory::pool", "yes");
        tracing::debug!(target: "trihop_transport::fabric::cq", "no");
    };
    let variables = [
        ("TRIHOP_LOG", "info,memory=debug"),
        ("TRIHOP_LOG_FILE", file.to_str().unwrap()),
        ("TRIHOP_BOOT_FD", "9"),
        ("TRIHOP_RANK", "12"),
    ];
    let Some(output) = process(
        "the_environment_chooses_level_file_and_rank",
        &variables,
        part,
    ) else {
        return;
    };
    let text = std::fs::read_to_string(directory.path().join("log.12")).unwrap();
    assert!(
        text.ends_with(" debug memory rank 12: yes\n") && text.lines().count() == 1,
        "{text}"
    );
    assert!(stderr(&output).contains(&text), "{}", stderr(&output));
}

#[test]
fn a_bad_level_in_the_environment_is_refused() {
    let part = || {
        let text = log::Options::from_env().err().unwrap().to_string();
        assert_eq!(
            text,
            "option TRIHOP_LOG: `loud` at position 6 of `link=loud` is no level; possible are off, error, warn, info, \
             debug, trace"
        );
    };
    process(
        "a_bad_level_in_the_environment_is_refused",
        &[("TRIHOP_LOG", "link=loud")],
        part,
    );
}

/// What a core dump holds are the process's mappings: the ring must be found in one of them.
#[test]
fn the_last_lines_are_in_the_memory_of_the_process() {
    let part = || {
        let mut options = log::Options {
            ring_bytes: 4096,
            ..log::Options::default()
        };
        options.all.stderr = Filter::uniform(Level::Off);
        log::install(options).unwrap();
        for number in 0..1000 {
            tracing::warn!(number, "a line");
        }
        let found: Vec<String> = writable_memory()
            .iter()
            .flat_map(|m| log::recent_in(m))
            .collect();
        assert_eq!(found, [log::recent()]);
        assert!(
            found[0].ends_with("a line number=999\n") && found[0].len() > 4000,
            "{found:?}"
        );
    };
    process("the_last_lines_are_in_the_memory_of_the_process", &[], part);
}

/// The process's own writable mappings, as a core dump has them.
fn writable_memory() -> Vec<Vec<u8>> {
    use std::io::SeekFrom;
    let mut memory = std::fs::File::open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = Vec::new();
    for line in maps.lines().filter(|l| l.contains(" rw-p ")) {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_once(' ').unwrap().0;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        let mut bytes = Vec::new();
        if memory.seek(SeekFrom::Start(start)).is_ok() {
            // Guard pages and the like cannot be read.
            let _ = memory.by_ref().take(end - start).read_to_end(&mut bytes);
        }
        found.push(bytes);
    }
    found
}
