//! The bootstrap under every launcher: all ranks exchange values with all, and agree on who is
//! where.

mod launched;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use launched::{Ended, Launched, is_installed, probe};

fn under_trihop(options: &[&str], arguments: &[&str]) -> Ended {
    let words = [options, &["--", probe().to_str().unwrap()], arguments].concat();
    Launched::trihop(words.into_iter().map(str::to_owned)).wait()
}

/// Runs the probe under a foreign launcher; none where that is not installed.
fn under(launcher: &[&str], arguments: &[&str]) -> Option<Ended> {
    if !is_installed(launcher[0]) {
        eprintln!("skipped: {} is not installed", launcher[0]);
        return None;
    }
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).arg(probe()).args(arguments);
    // Open MPI refuses root unless told twice.
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    Some(Launched::start(command).wait())
}

/// The probe's lines, without the prefix of `trihop run`.
fn assert_probed(ended: &Ended, expected: &[&str]) {
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let lines: Vec<String> = ended.sorted_lines();
    let lines: Vec<&str> = lines
        .iter()
        .filter_map(|l| l.find("probe rank").map(|at| &l[at..]))
        .collect();
    assert_eq!(lines, expected, "{}", ended.stderr);
}

#[test]
fn without_a_launcher() {
    assert_probed(
        &Launched::start(Command::new(probe())).wait(),
        &["probe rank 0/1 node 0/1 local 0/1 map (vector,(0,1,1)) launcher single"],
    );
}

#[test]
fn under_trihop_run() {
    assert_probed(
        &under_trihop(&["-n", "5", "--nodes", "2"], &[]),
        &[
            "probe rank 0/5 node 0/2 local 0/3 map (vector,(0,1,3),(1,1,2)) launcher local",
            "probe rank 1/5 node 0/2 local 1/3 map (vector,(0,1,3),(1,1,2)) launcher local",
            "probe rank 2/5 node 0/2 local 2/3 map (vector,(0,1,3),(1,1,2)) launcher local",
            "probe rank 3/5 node 1/2 local 0/2 map (vector,(0,1,3),(1,1,2)) launcher local",
            "probe rank 4/5 node 1/2 local 1/2 map (vector,(0,1,3),(1,1,2)) launcher local",
        ],
    );
}

#[test]
fn under_trihop_run_with_many_ranks() {
    let ended = under_trihop(&["-n", "32", "--nodes", "4"], &[]);
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_eq!(
        ended
            .stdout
            .matches("map (vector,(0,4,8)) launcher local")
            .count(),
        32
    );
}

#[test]
fn a_shell_between_launcher_and_rank_does_not_matter() {
    let script = format!("{0} && {0}", probe().display());
    let ended = Launched::trihop(["-n", "3", "--", "sh", "-c", &script].map(str::to_owned)).wait();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 6);
}

#[test]
fn a_rank_that_does_not_arrive_is_named() {
    let ended = under_trihop(&["-n", "4"], &["--deadline-ms", "500", "--absent", "2"]);
    assert_eq!(ended.status, 1);
    assert!(
        ended.stderr.contains("missing at a fence after 500ms: 2\n"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_rank_that_ends_fails_the_fence_of_the_others_at_once() {
    let script = format!(
        "[ $TRIHOP_RANK = 1 ] || exec {} --deadline-ms 100000",
        probe().display()
    );
    let ended = Launched::trihop(["-n", "3", "--", "sh", "-c", &script].map(str::to_owned)).wait();
    assert_eq!(ended.status, 1);
    assert!(
        ended
            .stderr
            .contains("rank 1 has ended, or has left the job, and others wait for it\n"),
        "{}",
        ended.stderr
    );
}

#[test]
fn an_abort_ends_the_job_with_status_and_reason() {
    let ended = under_trihop(&["-n", "4"], &["--abort", "1"]);
    assert_eq!(ended.status, 9);
    assert!(
        ended
            .stderr
            .contains("rank 1 aborted the job with status 9: the probe was told to"),
        "{}",
        ended.stderr
    );
}

/// MPICH's launcher under the names that Debian and others give it.
fn hydra() -> &'static str {
    ["mpiexec.hydra", "mpiexec.mpich"]
        .into_iter()
        .find(|name| is_installed(name))
        .unwrap_or("mpiexec.hydra")
}

#[test]
fn under_mpich_on_one_node() {
    if let Some(ended) = under(&[hydra(), "-n", "2"], &[]) {
        assert_probed(
            &ended,
            &[
                "probe rank 0/2 node 0/1 local 0/2 map (vector,(0,1,2)) launcher pmi1",
                "probe rank 1/2 node 0/1 local 1/2 map (vector,(0,1,2)) launcher pmi1",
            ],
        );
    }
}

#[test]
fn a_second_job_of_a_process_is_refused_by_name_under_mpich() {
    if let Some(ended) = under(&[hydra(), "-n", "2"], &["--times", "2"]) {
        assert_ne!(ended.status, 0);
        for said in ["has left a job before", "PMI-1 take a process once"] {
            assert!(ended.stderr.contains(said), "{}", ended.stderr);
        }
    }
}

#[test]
fn under_mpich_on_two_nodes() {
    let two = [
        "-launcher",
        "fork",
        "-hosts",
        "127.0.0.1,127.0.0.2",
        "-ppn",
        "2",
        "-n",
        "4",
    ];
    if let Some(ended) = under(&[&[hydra()][..], &two].concat(), &[]) {
        assert_probed(
            &ended,
            &[
                "probe rank 0/4 node 0/2 local 0/2 map (vector,(0,2,2)) launcher pmi1",
                "probe rank 1/4 node 0/2 local 1/2 map (vector,(0,2,2)) launcher pmi1",
                "probe rank 2/4 node 1/2 local 0/2 map (vector,(0,2,2)) launcher pmi1",
                "probe rank 3/4 node 1/2 local 1/2 map (vector,(0,2,2)) launcher pmi1",
            ],
        );
    }
}

#[test]
fn under_mpich_with_ranks_dealt_out() {
    let cyclic = [
        "-launcher",
        "fork",
        "-hosts",
        "127.0.0.1,127.0.0.2",
        "-ppn",
        "1",
        "-n",
        "5",
    ];
    if let Some(ended) = under(&[&[hydra()][..], &cyclic].concat(), &[]) {
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        let lines = ended.sorted_lines();
        assert!(
            lines[1].starts_with("probe rank 1/5 node 1/2 local 0/2"),
            "{lines:?}"
        );
        assert!(
            lines[4].starts_with("probe rank 4/5 node 0/2 local 2/3"),
            "{lines:?}"
        );
    }
}

#[test]
fn beside_mpi_under_mpich() {
    // MPI and we use one connection to the launcher, no matter which of the two starts first.
    for order in ["--mpi", "--mpi-late"] {
        let Some(ended) = under(&[hydra(), "-n", "3"], &[order, "libmpich.so.12"]) else {
            return;
        };
        if ended.stderr.contains("cannot open shared object") {
            eprintln!("skipped: libmpich.so.12 is not installed");
            return;
        }
        assert_eq!(ended.status, 0, "{order}: {}", ended.stderr);
        assert_eq!(ended.stdout.matches("launcher pmi1").count(), 3, "{order}");
    }
}

#[test]
fn an_abort_ends_the_job_under_mpich() {
    if let Some(ended) = under(&[hydra(), "-n", "3"], &["--abort", "1"]) {
        assert_eq!(ended.status, 9, "{}", ended.stderr);
    }
}

#[test]
fn a_missing_rank_ends_the_wait_under_mpich() {
    if let Some(ended) = under(
        &[hydra(), "-n", "3"],
        &["--deadline-ms", "500", "--absent", "2"],
    ) {
        assert_ne!(ended.status, 0);
        assert!(
            ended.stderr.contains("waiting at a barrier"),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn under_mpich_whose_ranks_connect_to_a_port() {
    let hosts = "-launcher fork -hosts 127.0.0.1,127.0.0.2 -ppn 2 -n 4 -pmi-port";
    let words: Vec<&str> = [hydra()].into_iter().chain(hosts.split(' ')).collect();
    if let Some(ended) = under(&words, &[]) {
        assert_probed(
            &ended,
            &[
                "probe rank 0/4 node 0/2 local 0/2 map (vector,(0,2,2)) launcher pmi1",
                "probe rank 1/4 node 0/2 local 1/2 map (vector,(0,2,2)) launcher pmi1",
                "probe rank 2/4 node 1/2 local 0/2 map (vector,(0,2,2)) launcher pmi1",
                "probe rank 3/4 node 1/2 local 1/2 map (vector,(0,2,2)) launcher pmi1",
            ],
        );
    }
}

/// MPI has the only connection that its launcher takes for each rank: that is said instead of a
/// hang.
#[test]
fn beside_mpi_a_port_is_refused() {
    let Some(ended) = under(
        &[hydra(), "-n", "2", "-pmi-port"],
        &["--mpi", "libmpich.so.12"],
    ) else {
        return;
    };
    if ended.stderr.contains("cannot open shared object") {
        eprintln!("skipped: libmpich.so.12 is not installed");
        return;
    }
    assert_ne!(ended.status, 0, "{}", ended.stdout);
    assert!(
        ended.stderr.contains("start without `-pmi-port`"),
        "{}",
        ended.stderr
    );
}

/// A process as a launcher leaves it whose store is missing: with these variables, and none of
/// those that we know.
fn half_launched(program: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let launchers = ["PMI", "SLURM", "OMPI", "PALS", "FLUX", "MV2", "TRIHOP_"];
        if launchers.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().copied());
    command
}

#[test]
fn half_a_launcher_is_no_job_of_one() {
    for (variables, remedy) in [
        (
            &[
                ("SLURM_PROCID", "0"),
                ("SLURM_NTASKS", "4"),
                ("SLURM_STEP_NUM_TASKS", "4"),
            ][..],
            "srun --mpi=pmi2",
        ),
        (
            &[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4")],
            "srun --mpi=pmi2",
        ),
        (&[("PMI_RANK", "1"), ("PMI_SIZE", "2")], "mpiexec"),
        (&[("PMI_RANK", "0")], "mpiexec"),
        (
            &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")],
            "mpirun",
        ),
        (&[("PALS_RANKID", "1")], "mpiexec --pmi=pmix"),
        (
            &[("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "2")],
            "flux run",
        ),
        (&[("TRIHOP_RANK", "0"), ("TRIHOP_SIZE", "2")], "trihop run"),
    ] {
        let probe = probe().display().to_string();
        let ended = Launched::start(half_launched(&probe, variables)).wait();
        assert_eq!(ended.status, 1, "{variables:?}: {}", ended.stdout);
        assert!(ended.stderr.contains(variables[0].0), "{}", ended.stderr);
        assert!(ended.stderr.contains(remedy), "{}", ended.stderr);
        let mut meant = half_launched(&probe, variables);
        meant.env("TRIHOP_LAUNCHER", "single");
        let ended = Launched::start(meant).wait();
        assert_eq!((ended.status, &ended.stderr[..]), (0, ""), "{variables:?}");
    }
}

#[test]
fn a_job_of_one_in_a_script_of_slurm_says_so() {
    let script = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
    let probe = probe().display().to_string();
    let ended = Launched::start(half_launched(&probe, &script)).wait();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("srun --mpi=pmi2"), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    let mut meant = half_launched(&probe, &script);
    meant.env("TRIHOP_LAUNCHER", "single");
    assert_eq!(Launched::start(meant).wait().stderr, "");
}

/// Tasks that each take themselves for the only one would write the same partitions.
#[test]
fn partition_under_half_a_launcher_names_the_remedy_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (file, out) = (directory.path().join("a.csv"), directory.path().join("out"));
    std::fs::write(&file, "k\n1\n").unwrap();
    let step = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
    let mut command = half_launched(env!("CARGO_BIN_EXE_trihop"), &step);
    command
        .args(["partition", "--by", "k", "--out"])
        .arg(&out)
        .arg(&file);
    let ended = Launched::start(command).wait();
    assert_eq!(ended.status, 1, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("SLURM_PROCID") && ended.stderr.contains("srun --mpi=pmi2"),
        "{}",
        ended.stderr
    );
    assert!(!out.exists());
}

/// What a job that is not started looks like may be asked anywhere.
#[test]
fn topo_answers_under_half_a_launcher() {
    let mut command = half_launched(env!("CARGO_BIN_EXE_trihop"), &[("SLURM_PROCID", "1")]);
    command.args(["topo", "--ranks", "4", "--nodes", "2"]);
    let ended = Launched::start(command).wait();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
}

const OPEN_MPI: [&str; 5] = [
    "mpirun.openmpi",
    "--allow-run-as-root",
    "--oversubscribe",
    "-n",
    "4",
];

#[test]
fn under_open_mpi() {
    if let Some(ended) = under(&OPEN_MPI, &[]) {
        assert_probed(
            &ended,
            &[
                "probe rank 0/4 node 0/1 local 0/4 map (vector,(0,1,4)) launcher pmix",
                "probe rank 1/4 node 0/1 local 1/4 map (vector,(0,1,4)) launcher pmix",
                "probe rank 2/4 node 0/1 local 2/4 map (vector,(0,1,4)) launcher pmix",
                "probe rank 3/4 node 0/1 local 3/4 map (vector,(0,1,4)) launcher pmix",
            ],
        );
    }
}

/// The server takes a process that ends without a word for one that has crashed, and ends the
/// others.
#[test]
fn a_job_that_is_dropped_or_still_there_at_the_exit_is_no_crash_to_open_mpi() {
    for how in ["drop", "exit"] {
        if let Some(ended) = under(&OPEN_MPI, &["--leave", how]) {
            assert_eq!(ended.status, 0, "{how}: {}", ended.stderr);
            assert_eq!(ended.stdout.matches("probe rank").count(), 4, "{how}");
        }
    }
}

#[test]
fn a_process_has_several_jobs_under_open_mpi() {
    let times = ["--times", "3"];
    let mpi = ["--mpi", "libmpi.so.40"];
    let leave = ["--leave", "exit"];
    for options in [
        &[&times[..], &mpi].concat(),
        &times[..],
        &[&times[..], &leave].concat(),
    ] {
        if let Some(ended) = under(&OPEN_MPI, options) {
            assert_eq!(ended.status, 0, "{options:?}: {}", ended.stderr);
            assert_eq!(ended.stdout.matches("probe rank").count(), 4);
        }
    }
}

/// PRRTE without an MPI: what Open MPI 5 starts its ranks by, and a way under PALS.
#[test]
fn under_prterun() {
    let words = |ranks| {
        let options = ["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "-n"];
        [&["prterun"][..], &options, &[ranks]].concat()
    };
    let Some(ended) = under(&words("3"), &[]) else {
        return;
    };
    assert_probed(
        &ended,
        &[
            "probe rank 0/3 node 0/1 local 0/3 map (vector,(0,1,3)) launcher pmix",
            "probe rank 1/3 node 0/1 local 1/3 map (vector,(0,1,3)) launcher pmix",
            "probe rank 2/3 node 0/1 local 2/3 map (vector,(0,1,3)) launcher pmix",
        ],
    );
    // Which status it makes of that is its own affair.
    let ended = under(&words("3"), &["--abort", "1"]).unwrap();
    assert_ne!(ended.status, 0);
    assert!(!ended.stdout.contains("probe rank"), "{}", ended.stdout);
}

/// Daemons of two nodes, as far as Open MPI can tell: each has a host name of its own.
#[test]
fn under_open_mpi_on_two_nodes() {
    let named = Command::new("unshare").args(["--uts", "true"]).output();
    if !named.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: host names of one's own need root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let agent = directory.path().join("agent");
    let place = directory.path().display();
    // Takes the place of ssh: options, host, command.
    let script = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\nmkdir {place}/$host\n\
         exec unshare --uts sh -c \"hostname $host; export TMPDIR={place}/$host; $*\"\n"
    );
    std::fs::write(&agent, script).unwrap();
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).unwrap();
    let agent = agent.display().to_string();
    let words = [
        "mpirun.openmpi",
        "--mca",
        "plm_rsh_agent",
        &agent,
        "--mca",
        "oob_tcp_if_include",
        "lo",
        "-host",
        "nodea:3,nodeb:2",
        "-n",
        "5",
    ];
    if let Some(ended) = under(&words, &[]) {
        assert_probed(
            &ended,
            &[
                "probe rank 0/5 node 0/2 local 0/3 map (vector,(0,1,3),(1,1,2)) launcher pmix",
                "probe rank 1/5 node 0/2 local 1/3 map (vector,(0,1,3),(1,1,2)) launcher pmix",
                "probe rank 2/5 node 0/2 local 2/3 map (vector,(0,1,3),(1,1,2)) launcher pmix",
                "probe rank 3/5 node 1/2 local 0/2 map (vector,(0,1,3),(1,1,2)) launcher pmix",
                "probe rank 4/5 node 1/2 local 1/2 map (vector,(0,1,3),(1,1,2)) launcher pmix",
            ],
        );
    }
}

#[test]
fn beside_mpi_under_open_mpi() {
    for order in ["--mpi", "--mpi-late"] {
        let Some(ended) = under(&OPEN_MPI, &[order, "libmpi.so.40"]) else {
            return;
        };
        if ended.stderr.contains("cannot open shared object") {
            eprintln!("skipped: libmpi.so.40 is not installed");
            return;
        }
        assert_eq!(ended.status, 0, "{order}: {}", ended.stderr);
        assert_eq!(ended.stdout.matches("launcher pmix").count(), 4, "{order}");
    }
}

#[test]
fn a_missing_rank_ends_the_wait_under_open_mpi() {
    if let Some(ended) = under(&OPEN_MPI, &["--deadline-ms", "2000", "--absent", "2"]) {
        assert_ne!(ended.status, 0);
        assert!(
            ended.stderr.contains("waiting at a fence"),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn an_abort_ends_the_job_under_open_mpi() {
    // Which status mpirun makes of it is its own affair.
    if let Some(ended) = under(&OPEN_MPI, &["--abort", "1"]) {
        assert_ne!(ended.status, 0);
        assert!(!ended.stdout.contains("probe rank"), "{}", ended.stdout);
    }
}

#[test]
fn a_launcher_that_is_not_there_is_refused() {
    let mut command = Command::new(probe());
    command.env("TRIHOP_LAUNCHER", "pmi1").env_remove("PMI_FD");
    let ended = Launched::start(command).wait();
    assert_eq!(ended.status, 1);
    assert!(
        ended.stderr.contains("TRIHOP_LAUNCHER") && ended.stderr.contains("PMI_FD"),
        "{}",
        ended.stderr
    );
}
