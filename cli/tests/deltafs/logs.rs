//! What clients of the DeltaFS interface find in their logs, and where.

use std::fs;

use super::compiled::Compiler;
use super::{ALONE, JOBS, by_itself, client, launch, launch_with, ranks_of};

/// Runs a client of the logs, as a job or, without one, by itself; returns its stderr and each
/// rank's file.
fn logged(job: Option<&[&str]>, test: &str) -> (String, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shuffle.log");
    let environment = [("DEFECTS_LOG", file.to_str().unwrap())];
    let program = client("defects", Compiler::C);
    let ended = match job {
        Some(job) => launch_with(job, &program, &[test], &environment),
        None => by_itself(&program, test, &environment),
    };
    let ended = ended.succeeded();
    let files = (0..job.map_or(1, ranks_of)).map(|rank| {
        let path = folder.path().join(format!("shuffle.log.{rank}"));
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    });
    let files = files.collect();
    (ended.stderr, files)
}

#[test]
fn a_log_file_that_cannot_be_opened_ends_no_job() {
    if !Compiler::C.is_there() {
        return;
    }
    let defects = client("defects", Compiler::C);
    let launched = launch(JOBS[1], &defects, &[ALONE[6]]);
    for ended in [launched, by_itself(&defects, ALONE[6], &[])] {
        let ended = ended.succeeded();
        let why = "opening the log file /nonexistent/folder/log.0: ";
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("; nothing is logged"),
            "{}",
            ended.stderr
        );
        // Everything was to go to stderr; but for what a call cannot return, nothing has since.
        assert!(!ended.stderr.contains("`logged`"), "{}", ended.stderr);
        let refusal = "trihop: shuffle_init: option deliverq_threshold";
        assert!(ended.stderr.contains(refusal), "{}", ended.stderr);
    }
}

#[test]
fn what_a_mask_names_in_vain_is_passed_over() {
    if !Compiler::C.is_there() {
        return;
    }
    for job in JOBS.map(Some).into_iter().chain([None]) {
        for text in logged(job, ALONE[10]).1 {
            for word in ["NET=ERR", "SHUF=LOUD"] {
                let line = format!("shuffle_cfglog: `{word}` of the mask is passed over: ");
                assert_eq!(text.matches(&line).count(), 1, "{line}: {text}");
            }
            assert!(text.contains("job started"), "CLNT=INFO counts: {text}");
        }
    }
}

/// One link between two nodes, between the ranks that the tables name.
#[test]
fn shuffles_have_the_representatives_of_nexus() {
    if !Compiler::C.is_there() {
        return;
    }
    for text in logged(Some(JOBS[1]), ALONE[3]).1 {
        let chosen: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("route chosen"))
            .collect();
        assert!(chosen.iter().any(|line| line.contains("logged")), "{text}");
        for line in chosen {
            assert!(
                line.contains("three-hop:1") || line.contains("tree"),
                "{line}"
            );
        }
    }
}

#[test]
fn logs_go_to_a_file_for_each_rank() {
    if Compiler::C.is_there() {
        lines_are_in_each_file(Some(JOBS[1]), ALONE[3]);
    }
}

#[test]
fn logs_begin_after_the_bootstrap() {
    if Compiler::C.is_there() {
        for job in JOBS.map(Some).into_iter().chain([None]) {
            lines_are_in_each_file(job, ALONE[4]);
        }
    }
}

fn lines_are_in_each_file(job: Option<&[&str]>, test: &str) {
    for (rank, text) in logged(job, test).1.iter().enumerate() {
        assert!(
            text.contains("`logged`"),
            "the state dump is in the log: {text}"
        );
        assert!(
            text.contains("deliverq_threshold"),
            "and the refusal: {text}"
        );
        // The queue to itself, once when it was dumped and once more at the end.
        for figures in [
            "1 runs own, 0 forwarded; 1 sends",
            "2 runs own, 0 forwarded; 2 sends",
        ] {
            let queue = format!("to rank {rank}: {figures}");
            assert!(text.contains(&queue), "no `{queue}` in {text}");
        }
        for (line, times) in [
            ("  2 records sent ", 1),
            ("thread progress: ", 2),
            ("thread deliver logged: ", 2),
        ] {
            assert_eq!(text.matches(line).count(), times, "{line}: {text}");
        }
    }
}

#[test]
fn a_dump_is_in_the_log_whatever_is_logged() {
    if !Compiler::C.is_there() {
        return;
    }
    for job in JOBS.map(Some).into_iter().chain([None]) {
        let (stderr, files) = logged(job, ALONE[5]);
        for (rank, text) in files.iter().enumerate() {
            let dump = format!("`dumped` on rank {rank} ");
            assert_eq!(text.matches(&dump).count(), 2, "{text}");
            assert_eq!(stderr.matches(&dump).count(), 1, "{stderr}");
            // The refusal, once on its own and once more as the last line of the log.
            let refusal = format!("rank {rank}: shuffle_init: ");
            assert_eq!(stderr.matches(&refusal).count(), 2, "{stderr}");
            assert_eq!(text.matches(&refusal).count(), 1, "{text}");
        }
        assert_eq!(
            stderr.matches("last lines of the log:\n").count(),
            files.len(),
            "{stderr}"
        );
    }
}
