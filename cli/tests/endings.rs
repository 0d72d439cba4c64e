//! The ends of processes: whatever a program does at its end, and in whatever order, its processes
//! end, and none is ended by what another thread still touched.

mod launched;

use std::path::PathBuf;

use launched::compiled::{Compiler, client_of, launch, under_mpi};

/// The ways of tests/endings/ending.c.
const WAYS: [&str; 9] = [
    "all_is_left",
    "mpi_is_left_first",
    "nothing_is_left",
    "nothing_is_left_inline",
    "works_by_atexit",
    "left_by_atexit",
    "left_by_a_destructor",
    "a_thread_exits",
    "exit_while_others_send",
];

/// Runs of each way; some hundreds of each were made when the faults were looked for.
const RUNS: usize = 3;

fn ending(compiler: Compiler) -> PathBuf {
    client_of("endings", "ending", compiler, &["include"])
}

/// Each rank has come to its results, and its process has ended as it said.
#[track_caller]
fn check(way: &str, ended: &launched::Ended, ranks: usize) {
    assert_eq!(ended.status, 0, "{way}: {}\n{}", ended.stdout, ended.stderr);
    assert_eq!(
        ended.stdout.matches(": results\n").count(),
        ranks,
        "{way}: {}",
        ended.stdout
    );
}

#[test]
fn a_process_ends_however_its_program_does() {
    if !Compiler::C.is_there() {
        return;
    }
    for way in WAYS {
        for _ in 0..RUNS {
            check(way, &launch(&["-n", "3"], &ending(Compiler::C), &[way]), 3);
            let two_nodes = ["-n", "4", "--nodes", "2"];
            check(way, &launch(&two_nodes, &ending(Compiler::C), &[way]), 4);
        }
    }
}

#[test]
fn a_process_of_mpich_ends_however_its_program_does() {
    ends_under(Compiler::Mpich, &["mpiexec.mpich", "-n", "3"]);
}

#[test]
fn a_process_of_open_mpi_ends_however_its_program_does() {
    ends_under(
        Compiler::OpenMpi,
        &["mpiexec.openmpi", "--oversubscribe", "-n", "3"],
    );
}

fn ends_under(compiler: Compiler, launcher: &[&str]) {
    for way in WAYS {
        for _ in 0..RUNS {
            let Some(ended) = under_mpi(compiler, launcher, || ending(compiler), &[way]) else {
                return;
            };
            check(way, &ended, 3);
        }
    }
}
