//! The DeltaFS interface, as its clients see it: the programs of tests/deltafs, written against the
//! original's headers, compiled against ours in C and C++, and run by `trihop run` and under each
//! MPI that is there.

#[path = "../launched/mod.rs"]
mod launched;
mod logs;
mod measured;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use launched::compiled::{self, Compiler, client_of, launch, launch_with, link, root, strict};
use launched::{Ended, run};

/// Where the headers lie.
const HEADERS_FOLDER: &str = "include/trihop/deltafs";

const HEADERS: [&str; 8] = [
    "deltafs-shuffle/shuffle_api.h",
    "deltafs-nexus/deltafs-nexus_api.h",
    "mercury-progressor/mercury-progressor.h",
    "mercury.h",
    "mercury_types.h",
    "mercury_macros.h",
    "mercury_config.h",
    "trihop-deltafs/real_mercury.h",
];

/// Ranks and nodes of the jobs that every defect is looked for in: one rank; two nodes of two;
/// uneven nodes.
const JOBS: [&[&str]; 3] = [
    &["-n", "1"],
    &["-n", "4", "--nodes", "2"],
    &["--node-sizes", "2,1,3"],
];

/// Looks at a source, without making anything of it.
fn look_at(source: &Path, compiler: Compiler) {
    let mut command = strict(compiler, &[HEADERS_FOLDER]);
    command.arg(source).args(["-pedantic", "-fsyntax-only"]);
    run(command).succeeded();
}

/// A client of tests/deltafs, compiled once.
fn client(name: &str, compiler: Compiler) -> PathBuf {
    client_of("deltafs", name, compiler, &[HEADERS_FOLDER])
}

/// Runs a client under an MPI; none where that is not installed.
fn under_mpi(
    compiler: Compiler,
    launcher: &[&str],
    name: &str,
    arguments: &[&str],
) -> Option<Ended> {
    compiled::under_mpi(compiler, launcher, || client(name, compiler), arguments)
}

/// What the runner's ranks say that they delivered, and the batches that they sent and received:
/// local, remote.
fn totals(ended: &Ended) -> [u64; 5] {
    let mut totals = [0; 5];
    for line in ended
        .stdout
        .lines()
        .filter(|line| line.starts_with("rank "))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| {
            words[at]
                .parse::<u64>()
                .unwrap_or_else(|e| panic!("{line}: {e}"))
        };
        let values = [
            number(3),
            number(5) + number(6),
            number(7),
            number(9),
            number(10),
        ];
        for (total, value) in totals.iter_mut().zip(values) {
            *total += value;
        }
    }
    totals
}

#[test]
fn each_header_stands_alone_in_c_and_in_cpp() {
    for compiler in [Compiler::C, Compiler::Cpp]
        .into_iter()
        .filter(|c| c.is_there())
    {
        for (at, header) in HEADERS.iter().enumerate() {
            let source =
                Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("alone-{compiler:?}-{at}.c"));
            fs::write(
                &source,
                format!("#include <{header}>\nint main(void) {{ return 0; }}\n"),
            )
            .unwrap();
            look_at(&source, compiler);
        }
    }
}

#[test]
fn a_client_may_name_more_of_mercury_than_it_uses() {
    for compiler in [Compiler::C, Compiler::Cpp]
        .into_iter()
        .filter(|c| c.is_there())
    {
        run(Command::new(client("names", compiler))).succeeded();
    }
}

/// A program that calls a real mercury, for which the stand-in of tests/deltafs/mercury is taken,
/// and the shuffle; `options` say how it meets the two.
fn beside(name: &str, compiler: Compiler, options: &[&str]) -> PathBuf {
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("deltafs-beside-{name}-{compiler:?}"));
    let mut command = strict(compiler, &[]);
    command
        .current_dir(root())
        .args(options)
        .args(["tests/deltafs/beside.c", "tests/deltafs/mercury/mercury.c"]);
    link(&mut command, &program);
    run(command).succeeded();
    program
}

#[test]
fn a_program_with_a_real_mercury_uses_the_shuffle_beside_it() {
    let ours = "-Iinclude/trihop/deltafs";
    let named = format!(
        "-DTRIHOP_DELTAFS_MERCURY=\"{}\"",
        root().join("tests/deltafs/mercury/mercury.h").display()
    );
    let ways: [(&str, &[&str]); 3] = [
        (
            "first-in-the-search-path",
            &["-Itests/deltafs/mercury", ours],
        ),
        ("included-first", &[ours, "-DREAL_FIRST", "-Itests/deltafs"]),
        ("named-by-a-macro", &[ours, &named]),
    ];
    for compiler in [Compiler::C, Compiler::Cpp]
        .into_iter()
        .filter(|c| c.is_there())
    {
        for (name, options) in ways {
            let program = beside(name, compiler, options);
            for job in JOBS {
                launch(job, &program, &[]).succeeded();
            }
        }
    }
}

#[test]
fn types_and_prototypes_are_the_originals() {
    for compiler in [Compiler::C, Compiler::Cpp]
        .into_iter()
        .filter(|c| c.is_there())
    {
        run(Command::new(client("layout", compiler))).succeeded();
    }
}

/// The options of a run: the messages come whole, once and in order under each of them.
const RUNS: [(&str, &[&str]); 13] = [
    ("defaults", &["-c", "5000"]),
    ("in turns, not to oneself", &["-c", "2000", "-l", "-e"]),
    ("longer messages", &["-c", "1000", "-i", "1500"]),
    ("messages longer than a lane", &["-c", "20", "-i", "200000"]),
    ("flushes in between", &["-c", "1000", "-f", "100"]),
    (
        "all to one slow rank",
        &["-c", "100", "-R", "0", "-o", "1", "-d", "4"],
    ),
    (
        "one message at a time",
        &[
            "-c", "200", "-a", "1", "-b", "1", "-B", "1", "-m", "1", "-y", "1", "-M", "1", "-d",
            "1",
        ],
    ),
    (
        "as in production",
        &[
            "-c", "5000", "-a", "32768", "-b", "32768", "-B", "32768", "-m", "16", "-y", "16",
            "-M", "16", "-d", "4096", "-h", "1024", "-z", "16", "-Z", "16",
        ],
    ),
    (
        "tight sender limits",
        &["-c", "1000", "-z", "1", "-Z", "1", "-i", "500"],
    ),
    ("broadcasts", &["-c", "500", "-A"]),
    ("broadcasts to oneself too", &["-c", "500", "-A", "-k"]),
    ("long broadcasts", &["-c", "20", "-A", "-k", "-i", "50000"]),
    ("one transport for all hops", &["-c", "1000", "-x"]),
];

#[test]
fn a_runner_delivers_everything_once_and_in_order() {
    if !Compiler::C.is_there() {
        return;
    }
    let runner = client("runner", Compiler::C);
    for (name, arguments) in RUNS {
        for job in JOBS {
            let ended = launch(job, &runner, arguments);
            assert_eq!(
                ended.status, 0,
                "{name}, {job:?}: {}\n{}",
                ended.stdout, ended.stderr
            );
            let [
                delivered,
                local_sent,
                remote_sent,
                local_received,
                remote_received,
            ] = totals(&ended);
            // One rank alone has nobody else to send to.
            assert!(
                delivered > 0 || job == JOBS[0],
                "{name}, {job:?}: {}",
                ended.stdout
            );
            assert_eq!(
                local_sent, local_received,
                "{name}, {job:?}: {}",
                ended.stdout
            );
            assert_eq!(
                remote_sent, remote_received,
                "{name}, {job:?}: {}",
                ended.stdout
            );
        }
    }
}

/// A flush of the remote queues is one of all link stages; whoever flushes once for each of them has
/// delivered everything.
#[test]
fn a_runner_delivers_everything_over_grids_with_several_link_stages() {
    if !Compiler::C.is_there() {
        return;
    }
    let runner = client("runner", Compiler::C);
    let job = ["-n", "8", "--nodes", "4"];
    for (route, between) in [
        ("mesh:1x2x2x2", "2"),
        ("node-mesh:2x2", "3"),
        ("team-mesh:2x2", "3"),
    ] {
        let environment = [("TRIHOP_ROUTE", route), ("REMOTE_STAGES", between)];
        let ended = launch_with(&job, &runner, &["-c", "1000", "-f", "300"], &environment);
        assert_eq!(
            ended.status, 0,
            "{route}: {}\n{}",
            ended.stdout, ended.stderr
        );
        assert!(totals(&ended)[0] > 0, "{route}: {}", ended.stdout);
    }
}

#[test]
fn a_runner_in_cpp_behaves_as_in_c() {
    if Compiler::Cpp.is_there() {
        let ended = launch(JOBS[2], &client("runner", Compiler::Cpp), &["-c", "1000"]);
        assert!(totals(&ended.succeeded())[0] > 0);
    }
}

#[test]
fn a_runner_inside_mpich() {
    for ranks in ["4", "8"] {
        let launcher = ["mpiexec.mpich", "-n", ranks];
        if let Some(ended) = under_mpi(
            Compiler::Mpich,
            &launcher,
            "runner",
            &["-c", "1000", "-f", "500"],
        ) {
            assert!(totals(&ended.succeeded())[0] > 0);
        }
    }
}

#[test]
fn a_runner_inside_open_mpi() {
    for ranks in ["4", "8"] {
        let launcher = ["mpiexec.openmpi", "--oversubscribe", "-n", ranks];
        if let Some(ended) = under_mpi(
            Compiler::OpenMpi,
            &launcher,
            "runner",
            &["-c", "1000", "-f", "500"],
        ) {
            assert!(totals(&ended.succeeded())[0] > 0);
        }
    }
}

#[test]
fn nodes_are_those_that_mpi_splits_its_world_into() {
    // MPICH takes the ranks of a machine for one node, for two that take turns, or for as many as
    // there are ranks.
    for (variable, local_size) in [
        ("UNUSED", 4),
        ("MPIR_CVAR_ODD_EVEN_CLIQUES", 2),
        ("MPIR_CVAR_NOLOCAL", 1),
    ] {
        let launcher = ["mpiexec.mpich", "-genv", variable, "1", "-n", "4"];
        if let Some(ended) = under_mpi(Compiler::Mpich, &launcher, "nodes", &[]) {
            let ended = ended.succeeded();
            let line = format!(" of {local_size}\n");
            assert_eq!(
                ended.stdout.matches(&line).count(),
                4,
                "{variable}: {}",
                ended.stdout
            );
        }
    }
    let launcher = ["mpiexec.openmpi", "--oversubscribe", "-n", "4"];
    if let Some(ended) = under_mpi(Compiler::OpenMpi, &launcher, "nodes", &[]) {
        assert_eq!(ended.succeeded().stdout.matches(" of 4\n").count(), 4);
    }
}

#[test]
fn a_preload_library_shuffles_epochs_beside_urgent_messages() {
    if Compiler::C.is_there() {
        for job in JOBS {
            launch(job, &client("preload", Compiler::C), &[]).succeeded();
        }
    }
}

#[test]
fn a_preload_library_inside_mpich_in_cpp() {
    let launcher = ["mpiexec.mpich", "-n", "4"];
    if let Some(ended) = under_mpi(Compiler::MpichCpp, &launcher, "preload", &["1000"]) {
        ended.succeeded();
    }
}

#[test]
fn nexus_dumps_its_tables_into_three_files_for_each_rank() {
    if !Compiler::C.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let spec = folder.path().join("tables");
    let runner = client("runner", Compiler::C);
    launch(JOBS[1], &runner, &["-c", "1", "-N", spec.to_str().unwrap()]).succeeded();
    let read = |rank: u32, part: &str| {
        let path = folder.path().join(format!("tables.{rank}.{part}"));
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    assert!(
        read(3, "id").starts_with("NX-3: 3 4 1 2 1 2\n"),
        "{}",
        read(3, "id")
    );
    assert!(
        read(3, "id")
            .contains("NX-3: grank2node 0 0 1 1\nNX-3: local2global 2 3\nNX-3: node2rep 1 3\n")
    );
    assert_eq!(read(1, "lmap").lines().count(), 2);
    assert_eq!(read(1, "rmap"), "NX-1: rmap 1 trihop+fabric://2\n");
    assert_eq!(read(0, "rmap"), "");
}

/// Runs a test of tests/deltafs/defects.c in each of the jobs.
fn look_for_defect(name: &str) {
    if Compiler::C.is_there() {
        let defects = client("defects", Compiler::C);
        for job in JOBS {
            let ended = launch(job, &defects, &[name]);
            assert_eq!(
                ended.status, 0,
                "{job:?}: {}\n{}",
                ended.stdout, ended.stderr
            );
        }
    }
}

macro_rules! defects {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                look_for_defect(stringify!($name));
            }
        )*

        /// Tests of tests/deltafs/defects.c that run in all jobs alike.
        const DEFECTS: &[&str] = &[$(stringify!($name)),*];
    };
}

defects! {
    an_empty_message_among_others_is_delivered_and_so_are_they
    empty_messages_alone_are_flushed
    empty_messages_alone_survive_a_shutdown
    impossible_options_are_refused
    messages_below_the_threshold_are_delivered_by_a_flush
    a_rank_outside_the_job_is_an_invalid_argument
    null_handles_are_invalid_arguments
    shuffles_are_opened_and_shut_down_again_and_again
    a_signal_finds_no_thread_of_the_library
    many_threads_enqueue_flush_and_read_counters
    counters_fill_64_bits
    messages_of_a_pair_stay_in_order_with_many_batches_under_way
    a_partial_batch_leaves_by_itself
    a_shutdown_delivers_what_is_under_way
    nothing_is_lost_to_a_rank_that_opens_late
    a_rank_may_open_before_a_barrier_and_another_one_after_it
    what_is_sent_early_stays_in_order
    shuffles_are_opened_and_shut_down_in_any_order
    a_rank_that_has_shut_down_hears_no_more
    a_message_that_is_too_long_is_refused
    callbacks_answer_while_queues_are_full
    nexus_tables_agree
    a_local_barrier_involves_one_node_only
    a_timer_that_dumps_keeps_no_thread_from_its_work
}

/// Tests of tests/deltafs/defects.c that have a test of their own here.
const ALONE: [&str; 11] = [
    "a_negative_queue_discards_what_arrives",
    "the_next_flush_tells_of_a_dead_rank",
    "a_dump_does_not_wait_for_a_callback_that_blocks",
    "logs_go_to_a_file_for_each_rank",
    "logs_begin_after_the_bootstrap",
    "a_dump_is_in_the_log_whatever_is_logged",
    "a_log_file_that_cannot_be_opened_ends_no_job",
    "a_nexus_ends_while_others_dump",
    "a_death_after_the_last_acknowledgement_is_noticed",
    "a_handler_that_dumps_and_exits_leaves_a_dump",
    "what_a_mask_names_in_vain_is_passed_over",
];

#[test]
fn no_defect_is_left_out() {
    if Compiler::C.is_there() {
        let listed = run(Command::new(client("defects", Compiler::C))).succeeded();
        let mut expected: Vec<&str> = DEFECTS.iter().copied().chain(ALONE).collect();
        expected.sort_unstable();
        assert_eq!(listed.sorted_lines(), expected);
    }
}

#[test]
fn a_negative_queue_discards_what_arrives() {
    if Compiler::C.is_there() {
        for job in JOBS {
            let ended = launch(job, &client("defects", Compiler::C), &[ALONE[0]]).succeeded();
            let ranks = ended
                .stderr
                .matches("records: 100 sent, 0 delivered, 100 discarded;")
                .count();
            assert_eq!(ranks, ranks_of(job), "{}", ended.stderr);
        }
    }
}

/// Ranks of one of the jobs above.
fn ranks_of(job: &[&str]) -> usize {
    let number = |text: &str| text.parse::<usize>().expect("a number");
    match job[0] {
        "-n" => number(job[1]),
        _ => job[1].split(',').map(number).sum(),
    }
}

#[test]
fn a_dump_does_not_wait_for_a_callback_that_blocks() {
    if Compiler::C.is_there() {
        for job in JOBS {
            let ended = launch(job, &client("defects", Compiler::C), &[ALONE[2]]).succeeded();
            for rank in 0..ranks_of(job) {
                let released = format!("rank {rank}: the callback is released\n");
                let (before, _) = ended.stderr.split_once(&released).expect(&ended.stderr);
                let dump = format!("`blocked for the dump` on rank {rank} ");
                assert_eq!(before.matches(&dump).count(), 2, "{}", ended.stderr);
            }
            let gone = ended.stderr.matches("this shuffle is not open").count();
            assert_eq!(gone, ranks_of(job), "{}", ended.stderr);
        }
    }
}

#[test]
fn a_handler_that_dumps_and_exits_leaves_a_dump() {
    if Compiler::C.is_there() {
        for job in JOBS {
            let ended = launch(job, &client("defects", Compiler::C), &[ALONE[9]]).succeeded();
            for rank in 0..ranks_of(job) {
                let dump = format!("stream `asked for at the exit` on rank {rank}\n");
                assert!(ended.stderr.contains(&dump), "{dump}{}", ended.stderr);
            }
        }
    }
}

/// How often a process joins its job and leaves it again.
const TIMES: &str = "50";

#[test]
fn a_nexus_is_made_and_ended_again_and_again() {
    if Compiler::C.is_there() {
        for job in JOBS {
            let ended = launch(job, &client("restart", Compiler::C), &[TIMES]).succeeded();
            assert_eq!(
                ended.stdout.lines().count(),
                ranks_of(job),
                "{}",
                ended.stdout
            );
        }
    }
}

#[test]
fn a_nexus_is_made_and_ended_again_and_again_inside_mpich() {
    let launcher = ["mpiexec.mpich", "-n", "4"];
    if let Some(ended) = under_mpi(Compiler::Mpich, &launcher, "restart", &[TIMES]) {
        assert_eq!(ended.succeeded().stdout.lines().count(), 4);
    }
}

#[test]
fn a_nexus_is_made_and_ended_again_and_again_inside_open_mpi() {
    let launcher = ["mpiexec.openmpi", "--oversubscribe", "-n", "4"];
    if let Some(ended) = under_mpi(Compiler::OpenMpi, &launcher, "restart", &[TIMES]) {
        assert_eq!(ended.succeeded().stdout.lines().count(), 4);
    }
}

#[test]
fn a_death_after_the_last_acknowledgement_is_noticed() {
    if !Compiler::C.is_there() {
        return;
    }
    let name = "a_death_after_the_last_acknowledgement_is_noticed";
    let patience = ("TRIHOP_WATCH_TIMEOUT_MS", "1000");
    for job in [
        &["-n", "2", "--nodes", "2"][..],
        &["-n", "6", "--nodes", "3"],
    ] {
        for environment in [&[patience][..], &[patience, ("DEFECTS_BARRIER", "1")]] {
            let ended = launch_with(job, &client("defects", Compiler::C), &[name], environment);
            assert_eq!(ended.status, 137, "{}", ended.stderr);
            for rank in 0..ranks_of(job) - 1 {
                let said = format!("rank {rank}: has noticed\n");
                assert!(
                    ended.stderr.contains(&said),
                    "{job:?}: {said}{}",
                    ended.stderr
                );
            }
        }
    }
}

#[test]
fn the_next_flush_tells_of_a_dead_rank() {
    if !Compiler::C.is_there() {
        return;
    }
    // Rank 2 represents the second node towards the first, rank 3 represents none.
    let two_nodes: &[&str] = &["-n", "4", "--nodes", "2"];
    for (job, dead) in [(&["-n", "3"][..], 2), (two_nodes, 3), (two_nodes, 2)] {
        let number = dead.to_string();
        let environment = [
            ("TRIHOP_WATCH_TIMEOUT_MS", "1000"),
            ("DEFECTS_DEAD", number.as_str()),
        ];
        let ended = launch_with(
            job,
            &client("defects", Compiler::C),
            &[ALONE[1]],
            &environment,
        );
        // The status is that of the rank that was ended: 128 + SIGKILL.
        assert_eq!(ended.status, 137, "{}", ended.stderr);
        for rank in (0..ranks_of(job)).filter(|&rank| rank != dead) {
            for said in [
                format!("rank {rank}: enqueue says HG_HOSTUNREACH\n"),
                format!(
                    "rank {rank}: flushes say HG_HOSTUNREACH HG_HOSTUNREACH HG_HOSTUNREACH HG_HOSTUNREACH\n"
                ),
                format!("rank {rank}: shutdown says HG_HOSTUNREACH\n"),
                format!("rank {rank}: goes on\n"),
            ] {
                assert!(ended.stderr.contains(&said), "{said}{}", ended.stderr);
            }
        }
        // The dump says why.
        assert!(
            ended.stderr.contains("failed: rank ") && ended.stderr.contains(" is gone: "),
            "{}",
            ended.stderr
        );
    }
}

/// Runs a test of a client without a launcher: a job of one, which learns that when it starts.
fn by_itself(program: &Path, test: &str, environment: &[(&str, &str)]) -> Ended {
    let mut alone = Command::new(program);
    alone.arg(test).envs(environment.iter().copied());
    run(alone)
}

#[test]
fn a_nexus_ends_while_others_dump() {
    if Compiler::C.is_there() {
        by_itself(&client("defects", Compiler::C), ALONE[7], &[]).succeeded();
    }
}

#[test]
fn a_single_transport_and_direct_links_are_not_to_be_had_at_once() {
    if Compiler::C.is_there() {
        let runner = client("runner", Compiler::C);
        let ended = launch_with(
            JOBS[1],
            &runner,
            &["-c", "1", "-x"],
            &[("TRIHOP_ROUTE", "direct")],
        );
        assert_eq!(ended.status, 3, "{}", ended.stderr);
        assert!(
            ended
                .stderr
                .contains("nexus_bootstrap: nethand and localhand are the same"),
            "{}",
            ended.stderr
        );
    }
}
