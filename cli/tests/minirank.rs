//! Mini-ranks of C programs: threads of a process, each with a rank of its own.

mod launched;

use std::process::Command;

use launched::compiled::{Compiler, client_of, launch, launch_with};
use launched::{is_installed, run};
use rustix::thread::{CpuSet, sched_getaffinity};

fn client() -> Option<std::path::PathBuf> {
    let is_there = Compiler::C.is_there();
    is_there.then(|| client_of("minirank", "miniranks", Compiler::C, &["include"]))
}

#[test]
fn everything_of_the_c_interface_works_on_threads_in_all_cases_of_the_seed() {
    let Some(program) = client() else {
        return;
    };
    // As few as one rank per process, as many as seven, three with two processes on a node; one to
    // four processes on one and two nodes.
    let shapes: [(&[&str], u32); 6] = [
        (&["-n", "1", "--minis-per-rank", "4"], 4),
        (&["-n", "4", "--nodes", "2", "--minis-per-rank", "1"], 4),
        (&["-n", "2", "--nodes", "2", "--minis-per-rank", "7"], 14),
        (&["-n", "4", "--nodes", "2", "--minis-per-rank", "3"], 12),
        (&["-n", "3", "--minis-per-rank", "2"], 6),
        (&["-n", "3", "--nodes", "3", "--minis-per-rank", "2"], 6),
    ];
    for (shape, ranks) in shapes {
        let ended = launch(shape, &program, &["0"]).succeeded();
        assert_eq!(ended.stdout, format!("{ranks} ranks\n"));
    }
    // Routes are between the processes.
    for route in ["mesh:2x2", "node-mesh:2", "direct"] {
        let environment = [("TRIHOP_ROUTE", route)];
        let (shape, ranks) = shapes[3];
        let ended = launch_with(shape, &program, &["0"], &environment).succeeded();
        assert_eq!(ended.stdout, format!("{ranks} ranks\n"), "{route}");
    }
    // Without a launcher, and with the number in the program.
    let mut alone = Command::new(&program);
    alone.arg("3");
    assert_eq!(run(alone).succeeded().stdout, "3 ranks\n");
}

#[test]
fn a_thread_that_ends_without_its_job_ends_the_job_with_its_rank() {
    let Some(program) = client() else {
        return;
    };
    for shape in [
        &["-n", "1", "--minis-per-rank", "3"][..],
        &["-n", "2", "--nodes", "2", "--minis-per-rank", "2"],
    ] {
        launch(shape, &program, &["0", "leaves"]).succeeded();
    }
}

#[test]
fn a_thread_may_end_its_process_while_the_others_run() {
    let Some(program) = client() else {
        return;
    };
    for shape in [
        &["-n", "1", "--minis-per-rank", "3"][..],
        &["-n", "2", "--nodes", "2", "--minis-per-rank", "2"],
    ] {
        let ended = launch(shape, &program, &["0", "exits"]);
        assert_eq!(ended.status, 7, "{}", ended.stderr);
        let named = [
            "0, of ranks 0 to 2",
            "0, of ranks 0 to 1",
            "1, of ranks 2 to 3",
        ];
        let says = |who: &&str| {
            let text = format!("process {who}, exited with status 7");
            ended.stderr.contains(&text)
        };
        assert!(named.iter().any(says), "{}", ended.stderr);
    }
}

#[test]
fn mini_ranks_hear_of_one_that_is_not_started() {
    let Some(program) = client() else {
        return;
    };
    let shape = ["-n", "1", "--minis-per-rank", "3"];
    let soon = [("TRIHOP_BOOTSTRAP_TIMEOUT_MS", "500")];
    launch_with(&shape, &program, &["0", "lacks"], &soon).succeeded();
}

/// Cores that this process may use.
fn allowed() -> Vec<usize> {
    let mask = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU)
        .filter(|&core| mask.is_set(core))
        .collect()
}

#[test]
fn mini_ranks_keep_to_cores_where_they_are_asked_to() {
    let Some(program) = client() else {
        return;
    };
    let allowed = allowed();
    let cores = |which| [("TRIHOP_MINIRANK_CORES", which)];
    if let Some(minis @ 1..) = allowed.len().checked_sub(1).map(|most| most.min(3)) {
        for which in ["own", "shared"] {
            let shape = ["-n", "1", "--minis-per-rank", &minis.to_string()];
            let ended = launch_with(&shape, &program, &["0", "cores"], &cores(which)).succeeded();
            for (rank, core) in allowed[..minis].iter().enumerate() {
                let line = format!("rank {rank}: {core}\n");
                assert!(ended.stdout.contains(&line), "{}", ended.stdout);
            }
            let relay = format!("relay: {}\n", allowed[minis]);
            assert!(ended.stdout.contains(&relay), "{}", ended.stdout);
        }
    }
    // Without the option the kernel puts them where it likes.
    let all: Vec<_> = allowed.iter().map(usize::to_string).collect();
    let ended = launch(
        &["-n", "1", "--minis-per-rank", "1"],
        &program,
        &["0", "cores"],
    );
    let line = format!("rank 0: {}\n", all.join(" "));
    assert!(ended.succeeded().stdout.contains(&line), "{line}");
    // Too few cores, counted in what the process may use.
    let refused = |mut command: Command, minis: &str, which: &str, have: usize| {
        command.args([minis, "refused"]);
        command.env("TRIHOP_MINIRANK_CORES", which);
        let ended = run(command).succeeded();
        let why = format!("this one may use {have};");
        assert!(
            ended.stdout.contains("option minirank_cores") && ended.stdout.contains(&why),
            "{}",
            ended.stdout
        );
    };
    let many = allowed.len().to_string();
    refused(Command::new(&program), &many, "own", allowed.len());
    if is_installed("taskset") {
        let mut command = Command::new("taskset");
        command.args(["-c", &all[0]]).arg(&program);
        refused(command, "1", "shared", 1);
    }
}

#[test]
fn mini_ranks_in_cpp_have_destructors_and_exceptions() {
    if !Compiler::Cpp.is_there() {
        return;
    }
    let program = client_of("minirank", "typed", Compiler::Cpp, &["include"]);
    for shape in [
        &["-n", "1", "--minis-per-rank", "3"][..],
        &["-n", "2", "--nodes", "2", "--minis-per-rank", "2"],
    ] {
        let ended = launch(shape, &program, &[]).succeeded();
        assert_eq!(ended.stdout, "ok\n");
    }
}
