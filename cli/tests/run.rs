//! `trihop run` end to end, with small shell commands as ranks.

mod launched;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use launched::{Launched, alive, cores_of, processes_named};
use trihop::transport::cores::{allowed, count, keep_to};

/// Signals that the launcher hands on to its ranks.
const FORWARDED: [(&str, i32); 4] = [
    ("INT", libc::SIGINT),
    ("TERM", libc::SIGTERM),
    ("HUP", libc::SIGHUP),
    ("USR1", libc::SIGUSR1),
];

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// `trihop run` with these options, and a shell script as the command.
fn run(options: &[&str], script: &str) -> Launched {
    let words = options.iter().copied().chain(["--", "sh", "-c", script]);
    Launched::trihop(words.map(str::to_owned))
}

#[test]
fn all_ranks_succeed() {
    let ended = run(&["-n", "3"], "echo rank $TRIHOP_RANK of $TRIHOP_SIZE").wait();
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    assert_eq!(
        ended.sorted_lines(),
        ["[0] rank 0 of 3", "[1] rank 1 of 3", "[2] rank 2 of 3"]
    );
}

#[test]
fn an_option_that_is_mistyped_is_no_command() {
    for (words, why) in [
        ("-n 2 --nodess 2 -- true", "\"--nodess\" is no option"),
        ("--nodess 2 -n 2 -- true", "\"--nodess\" is no option"),
        ("-np 2 true", "ranks are counted by `-n`"),
        ("--np 2 true", "ranks are counted by `-n`"),
        ("-n2 true", "`-n 2`"),
        ("--node-sizes 1,1 -n2 -- true", "`-n 2`"),
        ("true", "how many ranks?"),
        ("--nodes 2 true", "how many ranks?"),
    ] {
        let ended = Launched::trihop(words.split(' ').map(str::to_owned)).wait();
        assert!(ended.stderr.contains(why), "{words}: {}", ended.stderr);
        assert_eq!(ended.status, 2, "{words}");
    }
}

#[test]
fn the_exit_status_is_the_first_failing_ranks() {
    let ended = run(
        &["-n", "3"],
        "if [ $TRIHOP_RANK = 1 ]; then exit 7; fi; sleep 1000",
    )
    .wait();
    assert_eq!(ended.status, 7);
    assert_eq!(
        ended.stderr.trim(),
        "trihop run: rank 1 exited with status 7"
    );
}

#[test]
fn a_killed_rank_is_named_with_its_signal() {
    let ended = run(
        &["-n", "3"],
        "if [ $TRIHOP_RANK = 2 ]; then kill -KILL $$; fi; sleep 1000",
    )
    .wait();
    assert_eq!(ended.status, 128 + 9);
    assert_eq!(
        ended.stderr.trim(),
        "trihop run: rank 2 was ended by SIGKILL"
    );
}

#[test]
fn a_rank_speaks_before_the_launcher_speaks_about_it() {
    let ended = run(
        &["-n", "2"],
        "[ $TRIHOP_RANK = 0 ] && sleep 1000; echo why >&2; exit 3",
    )
    .wait();
    assert_eq!(ended.status, 3);
    assert_eq!(
        ended.stderr,
        "[1] why\ntrihop run: rank 1 exited with status 3\n"
    );
}

#[test]
fn ranks_that_ignore_the_request_to_end_are_killed() {
    let script =
        "trap '' TERM; echo ready; [ $TRIHOP_RANK = 0 ] && exit 4; while :; do sleep 1; done";
    assert_eq!(run(&["-n", "2"], script).wait().status, 4);
}

#[test]
fn a_command_that_cannot_be_started_is_said_so() {
    let missing =
        Launched::trihop(["-n", "2", "trihop-has-no-such-command"].map(str::to_owned)).wait();
    assert_eq!(missing.status, 127);
    assert!(
        missing.stderr.contains("trihop-has-no-such-command"),
        "{}",
        missing.stderr
    );
    let ours = Launched::trihop(["-n", "2", "exchange"].map(str::to_owned)).wait();
    assert_eq!(ours.status, 127);
    let hint = "is `trihop exchange` meant";
    assert!(ours.stderr.contains(hint), "{}", ours.stderr);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("plain");
    fs::write(&file, "text").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let plain = Launched::trihop(["-n".into(), "2".into(), file.display().to_string()]).wait();
    assert_eq!(plain.status, 126, "{}", plain.stderr);
}

#[test]
fn nodes_may_be_unequal() {
    let sizes = |options: &[&str]| {
        let ended = run(options, "echo $TRIHOP_NODE_SIZES $TRIHOP_LOOPBACK").wait();
        ended.sorted_lines()[0].clone()
    };
    assert_eq!(sizes(&["-n", "7", "--nodes", "2"]), "[0] 4,3 1");
    assert_eq!(sizes(&["--node-sizes", "3,1,4"]), "[0] 3,1,4 1");
    assert_eq!(sizes(&["-n", "4", "--node-sizes", "1,3"]), "[0] 1,3 1");
}

#[test]
fn ranks_are_bound_to_cores_where_these_are_enough() {
    let allowed = allowed().unwrap();
    if keep_to(&allowed).is_err() {
        eprintln!("skipped: nobody may be bound to cores here");
        return;
    }
    let cores = allowed.len().min(count());
    // For each rank, in any order: its cores, and whether it is told that they are its own.
    let ranks = |options: &[&str]| {
        let script = "echo $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) ${TRIHOP_BOUND-0}";
        let ended = run(&[&["--no-prefix"], options].concat(), script).wait();
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
        let lines = ended.sorted_lines();
        let ranks = lines.iter().map(|line| line.rsplit_once(' ').unwrap());
        ranks
            .map(|(list, is_bound)| (cores_of(list, &allowed), is_bound == "1"))
            .collect::<Vec<_>>()
    };
    assert_eq!(ranks(&["-n", "1"]), [(allowed.clone(), true)]);
    let unbound = (allowed.clone(), false);
    let too_many = (cores + 1).to_string();
    for (options, count) in [
        (&["-n", "1", "--bind-to", "none"][..], 1),
        (&["-n", &too_many], cores + 1),
    ] {
        assert_eq!(ranks(options), vec![unbound.clone(); count]);
    }
    // What a rank of a job starts is of another one.
    let inner =
        format!("{TRIHOP} run --bind-to none --no-prefix -n 1 -- sh -c 'echo ${{TRIHOP_BOUND-0}}'");
    let ended = run(&["--no-prefix", "-n", "1"], &inner).wait();
    assert_eq!((ended.status, ended.stdout.trim()), (0, "0"));
    if cores < 2 {
        eprintln!("skipped: two ranks have no core each here");
        return;
    }
    for nodes in ["1", "2"] {
        let two = ranks(&["-n", "2", "--nodes", nodes]);
        assert!(two.iter().all(|(_, is_bound)| *is_bound), "{two:?}");
        let mut both: Vec<usize> = two.into_iter().flat_map(|(cores, _)| cores).collect();
        both.sort_unstable();
        assert_eq!(both, allowed, "each core is one rank's");
    }
}

#[test]
fn contradicting_arguments_are_refused() {
    for options in [
        &["-n", "4", "--node-sizes", "1,2"][..],
        &["-n", "2", "--nodes", "3"],
        &["-n", "0"],
        &["--node-sizes", "1,0"],
        &["-n", "2", "--nodes", "1", "--node-sizes", "2"],
        &[],
    ] {
        assert_eq!(run(options, "true").wait().status, 2, "{options:?}");
    }
}

#[test]
fn lines_stay_whole_and_the_last_may_be_partial() {
    let script = "i=0; while [ $i -lt 200 ]; do printf 'a%s ' $i; printf 'b%s\\n' $i; i=$((i+1)); done; printf end";
    let ended = run(&["-n", "3"], script).wait();
    for rank in 0..3 {
        let prefix = format!("[{rank}] ");
        let lines: Vec<&str> = ended
            .stdout
            .lines()
            .filter_map(|l| l.strip_prefix(&prefix))
            .collect();
        let expected: Vec<String> = (0..200)
            .map(|i| format!("a{i} b{i}"))
            .chain(["end".to_owned()])
            .collect();
        assert_eq!(lines, expected, "rank {rank}");
    }
    let plain = run(&["-n", "1", "--no-prefix"], "echo one; printf two").wait();
    assert_eq!(plain.stdout, "one\ntwo");
}

#[test]
fn much_output_is_forwarded_in_full() {
    let ended = run(
        &["-n", "2"],
        "yes 0123456789012345678901234567890123456789 | head -n 100000",
    )
    .wait();
    assert_eq!(ended.status, 0);
    assert_eq!(ended.stdout.len(), 2 * 100_000 * ("[0] ".len() + 41));
    assert!(
        ended
            .stdout
            .lines()
            .all(|l| l.ends_with("] 0123456789012345678901234567890123456789"))
    );
}

#[test]
fn standard_input_goes_to_rank_0() {
    let mut job = run(&["-n", "3"], "cat");
    job.stdin().write_all(b"one\ntwo\n").unwrap();
    job.close_stdin();
    let ended = job.wait();
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "[0] one\n[0] two\n")
    );
}

#[test]
fn signals_are_forwarded() {
    for (name, signal) in FORWARDED {
        let script = format!(
            "trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.01; done"
        );
        let mut job = run(&["-n", "2"], &script);
        job.wait_for_lines(2);
        job.signal(signal);
        let ended = job.wait();
        assert_eq!(ended.status, 5, "{name}: {}", ended.stderr);
        assert!(
            ended.stdout.contains(&format!("got {name}")),
            "{name}: {}",
            ended.stdout
        );
    }
}

/// `nohup` and some CI systems start their commands with signals ignored, others with signals
/// blocked.
#[test]
fn signals_reach_ranks_of_a_launcher_that_was_started_deaf() {
    for (name, signal) in FORWARDED {
        for blocked in [false, true] {
            let script = format!(
                "trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.01; done"
            );
            let words = ["-n", "2", "--", "sh", "-c", &script];
            let mut command = Launched::command(words.map(str::to_owned));
            // SAFETY: between fork and exec; the calls are async-signal-safe and use their own set.
            unsafe {
                command.pre_exec(move || {
                    if blocked {
                        let mut set = std::mem::zeroed();
                        libc::sigemptyset(&raw mut set);
                        libc::sigaddset(&raw mut set, signal);
                        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
                    } else {
                        libc::signal(signal, libc::SIG_IGN);
                    }
                    Ok(())
                });
            }
            let mut job = Launched::start(command);
            job.wait_for_lines(2);
            job.signal(signal);
            let ended = job.wait();
            assert_eq!(
                ended.status, 5,
                "{name}, blocked {blocked}: {}",
                ended.stderr
            );
            assert!(ended.stdout.contains(&format!("got {name}")), "{name}");
        }
    }
}

/// A process that ignores SIGCHLD has no ended children, and hands that on to what it starts.
#[test]
fn jobs_start_where_the_ends_of_children_are_ignored() {
    let started = |words: &str| {
        let mut command = Command::new("env");
        command.args(["--default-signal=TERM", "--ignore-signal=CHLD", TRIHOP]);
        command.args(words.split(' '));
        Launched::start(command)
    };
    let ended = started("run -n 3 -- grep SigIgn /proc/self/status").wait();
    let ended = ended.succeeded();
    assert_eq!(ended.sorted_lines().len(), 3);
    for line in ended.stdout.lines() {
        let mask = line.rsplit_once('\t').unwrap().1;
        let ignored = u64::from_str_radix(mask, 16).unwrap();
        assert_eq!(ignored >> (libc::SIGCHLD - 1) & 1, 0, "{line}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (table, parts) = (folder.path().join("table.csv"), folder.path().join("parts"));
    fs::write(&table, "key\n1\n2\n").unwrap();
    let (table, parts) = (table.display(), parts.display());
    for words in [
        "bench histo --ranks 2 --count 1000".to_owned(),
        format!("partition --ranks 2 --by key --out {parts} {table}"),
    ] {
        started(&words).wait().succeeded();
    }
    let name = format!("trihop-test-deaf-{}", std::process::id());
    let options = format!("--nics 2 --ranks 2 --linger-ms never --name {name}");
    let mut agents = started(&format!("agent {options}"));
    assert_eq!(agents.wait_for_lines(1), [format!("ready {name}")]);
    agents.signal(libc::SIGTERM);
    agents.wait().succeeded();
}

#[test]
fn a_second_interrupt_kills() {
    let mut job = run(
        &["-n", "2"],
        "trap 'echo deaf' INT; echo ready; while :; do sleep 0.01; done",
    );
    job.wait_for_lines(2);
    job.signal(libc::SIGINT);
    job.wait_for_lines(4);
    // The same signal sooner is the first one.
    std::thread::sleep(Duration::from_millis(400));
    job.signal(libc::SIGINT);
    assert_eq!(job.wait().status, 128 + 9);
}

/// timeout(1) signals the launcher, and then its own group, of which that is.
#[test]
fn a_signal_that_comes_twice_at_once_lets_ranks_end() {
    // A launcher that others keep from its core may see the second one late.
    let lets_end = (0..5).any(|_| {
        let mut job = run(
            &["-n", "2"],
            "trap 'sleep 0.5; echo ended; exit 0' TERM; echo ready; while :; do sleep 0.01; done",
        );
        job.wait_for_lines(2);
        job.signal(libc::SIGTERM);
        std::thread::sleep(Duration::from_millis(1));
        job.signal(libc::SIGTERM);
        let ended = job.wait();
        ended.status == 0 && ended.stdout.matches("ended").count() == 2
    });
    assert!(lets_end, "ranks are killed at once");
}

/// A report of many ranks is one line.
#[test]
fn long_lines_are_kept_together() {
    let ended = run(&["-n", "2"], "head -c 300000 /dev/zero | tr '\\0' x; echo").wait();
    let lines: Vec<usize> = ended.stdout.lines().map(str::len).collect();
    assert_eq!(lines, [300_004; 2]);
}

#[test]
fn a_time_limit_ends_the_job() {
    let ended = run(
        &["-n", "3", "--timeout", "1"],
        "[ $TRIHOP_RANK = 1 ] || sleep 1000",
    )
    .wait();
    assert_eq!(ended.status, 124);
    assert!(
        ended.stderr.contains("still running: ranks 0, 2"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_time_limit_beyond_the_clock_is_none() {
    for seconds in [u64::MAX, i64::MAX as u64, i64::MAX as u64 >> 1] {
        let ended = run(&["-n", "1", "--timeout", &seconds.to_string()], "exit 3").wait();
        assert_eq!(ended.status, 3, "{seconds}: {}", ended.stderr);
    }
}

#[test]
fn the_environment_says_how_many_ranks_processes_host_where_the_option_does_not() {
    let second_ends = |variable: &str, options: &[&str]| {
        let script = "[ $TRIHOP_RANK = 0 ] && sleep 1000; echo $TRIHOP_MINIS_PER_RANK; exit 7";
        let words = [options, &["-n", "2", "--", "sh", "-c", script]].concat();
        let mut command = Launched::command(words.into_iter().map(str::to_owned));
        command.env("TRIHOP_MINIS_PER_RANK", variable);
        Launched::start(command).wait()
    };
    for (variable, options, said, who) in [
        ("3", &[][..], "3", "process 1, of ranks 3 to 5,"),
        (
            "3",
            &["--minis-per-rank", "2"],
            "2",
            "process 1, of ranks 2 to 3,",
        ),
        ("x", &["--minis-per-rank", "1"], "1", "rank 1"),
        ("", &[], "", "rank 1"),
    ] {
        let ended = second_ends(variable, options);
        assert_eq!(ended.stdout, format!("[1] {said}\n"));
        let who = format!("trihop run: {who} exited with status 7");
        assert_eq!((ended.status, ended.stderr.trim()), (7, who.as_str()));
    }
    for bad in ["x", "0", "-1", "99999999999"] {
        let ended = second_ends(bad, &[]);
        assert_eq!((ended.status, ended.stdout.as_str()), (2, ""));
        let why = format!("TRIHOP_MINIS_PER_RANK: \"{bad}\" is no number");
        assert!(ended.stderr.contains(&why), "{}", ended.stderr);
    }
    // What is measured hosts as many as its own option says.
    let mut command = Command::new(TRIHOP);
    command.args("bench startup --ranks 2 --nodes 1".split(' '));
    command.env("TRIHOP_MINIS_PER_RANK", "x");
    launched::run(command).succeeded();
}

#[test]
fn what_a_rank_has_started_ends_with_the_job() {
    let script = "sleep 1001 & echo $!; [ $TRIHOP_RANK = 1 ] && { sleep 0.2; exit 3; }; wait";
    let ended = run(&["-n", "3"], script).wait();
    assert_eq!(ended.status, 3);
    let children: Vec<u32> = ended
        .stdout
        .lines()
        .map(|l| l[4..].parse().unwrap())
        .collect();
    assert_eq!(children.len(), 3);
    launched::until("the ranks' children are gone", || {
        children.iter().all(|id| !alive(*id))
    });
}

#[test]
fn nothing_outlives_a_killed_launcher() {
    let mut job = run(&["-n", "2"], "sleep 1002 & echo $!; echo $$; wait");
    let lines = job.wait_for_lines(4);
    let ids: Vec<u32> = lines.iter().map(|l| l[4..].parse().unwrap()).collect();
    assert!(ids.iter().all(|id| alive(*id)), "{ids:?}");
    job.signal(libc::SIGKILL);
    assert_eq!(job.wait().status, 128 + 9);
    launched::until("ranks and their children are gone", || {
        ids.iter().all(|id| !alive(*id))
    });
}

#[test]
fn output_that_nobody_reads_ends_the_job() {
    let mut job = run(&["-n", "2"], "yes");
    job.wait_for_lines(2);
    job.hang_up();
    assert_eq!(job.wait().status, 128 + 13);
}

#[test]
fn launchers_around_are_hidden_from_the_ranks() {
    let mut command = Launched::command(
        ["-n", "1", "--", "sh", "-c", "env | grep -c '^PMI' ; true"].map(str::to_owned),
    );
    command.env("PMI_FD", "9").env("PMIX_RANK", "1");
    assert_eq!(Launched::start(command).wait().stdout, "[0] 0\n");
}

#[test]
fn bytes_that_are_no_frame_end_the_job() {
    let script = "eval \"printf '\\\\377\\\\377\\\\377\\\\377x' >&$TRIHOP_BOOT_FD\"; sleep 1000";
    let words = ["-n", "2", "--", "bash", "-c", script];
    if !launched::is_installed("bash") {
        eprintln!("skipped: bash is not installed");
        return;
    }
    let ended = Launched::trihop(words.map(str::to_owned)).wait();
    assert_eq!(ended.status, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("not valid"), "{}", ended.stderr);
}

#[test]
fn nodes_can_have_networks_of_their_own() {
    let script = "echo $TRIHOP_INTERFACE; ip -o -4 address show; test -z \"$TRIHOP_LOOPBACK\"";
    let ended = run(&["-n", "3", "--nodes", "2", "--netns"], script).wait();
    if ended.status == 1 && ended.stderr.contains("--netns") {
        eprintln!("skipped: {}", ended.stderr.trim());
        return;
    }
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let addresses: Vec<String> = ended
        .sorted_lines()
        .into_iter()
        .filter(|l| !l.contains("inet"))
        .collect();
    assert_eq!(
        addresses,
        ["[0] 10.201.0.1", "[1] 10.201.0.1", "[2] 10.201.0.2"]
    );
    assert_eq!(
        ended.stdout.matches("trihop0 ").count(),
        3,
        "{}",
        ended.stdout
    );
}

#[test]
fn many_nodes_with_networks_of_their_own_start_with_few_descriptors() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -S -n 128 && exec \"$@\"", "sh"]);
    command.args([
        TRIHOP, "run", "-n", "100", "--nodes", "100", "--netns", "true",
    ]);
    let ended = launched::run(command);
    if ended.status == 1 && ended.stderr.contains("are you root") {
        eprintln!("skipped: {}", ended.stderr.trim());
        return;
    }
    ended.succeeded();
}

#[test]
fn interfaces_that_the_user_names_are_not_hidden_behind_loopback() {
    let start = |variables: [&str; 2], words: &[&str]| {
        let words = [&["-n", "2", "--no-prefix", "--"], words].concat();
        let mut command = Launched::command(words.into_iter().map(str::to_owned));
        for (name, value) in ["TRIHOP_INTERFACE", "TRIHOP_LOOPBACK"]
            .into_iter()
            .zip(variables)
        {
            match value {
                "" => command.env_remove(name),
                _ => command.env(name, value),
            };
        }
        Launched::start(command).wait()
    };
    let told = ["sh", "-c", "echo \"$TRIHOP_INTERFACE,$TRIHOP_LOOPBACK\""];
    for (variables, expected) in [
        (["", ""], ",1"),
        (["lo", ""], "lo,"),
        (["lo", "0"], "lo,0"),
        (["lo", "1"], "lo,1"),
    ] {
        let ended = start(variables, &told).succeeded();
        assert_eq!(ended.stdout, format!("{expected}\n{expected}\n"));
    }
    let exchange = [TRIHOP, "exchange", "--count", "100"];
    start(["lo", ""], &exchange).succeeded();
    let both = start(["lo", "1"], &exchange);
    let why = "unset one of TRIHOP_INTERFACE and TRIHOP_LOOPBACK";
    assert!(both.status != 0 && both.stderr.contains(why), "{both:?}");
}

#[test]
fn ranks_of_a_node_take_different_interfaces() {
    let mut probe = Command::new("unshare");
    probe.args(["--net", "true"]);
    if !probe.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: network namespaces need root and `unshare`");
        return;
    }
    // The nodes are simulated ones, which stay on loopback unless interfaces are named.
    let script = format!(
        "set -e; ip link set lo up; \
         for i in 0 1; do \
            ip link add near$i type veth peer name far$i; \
            ip address add 10.9.0.$((i + 1))/24 dev near$i; \
            ip link set near$i up; ip link set far$i up; \
         done; \
         exec {TRIHOP} run -n 4 --nodes 2 -- {TRIHOP} bench exchange --count 500 --size 100"
    );
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c", &script])
        .env("TRIHOP_LOG", "debug")
        .env("TRIHOP_PROVIDER", "tcp")
        .env("TRIHOP_INTERFACE", "near0,near1")
        .env_remove("TRIHOP_LOOPBACK");
    let ended = Launched::start(command).wait().succeeded();
    let taken = |rank: u32| {
        let line = format!("[{rank}] ");
        let mut lines = ended.stderr.lines().filter(|l| l.starts_with(&line));
        let told = lines.find(|l| l.contains("network adapter taken"));
        let told = told.unwrap_or_else(|| panic!("rank {rank}: {}", ended.stderr));
        ["near0", "near1"].map(|name| told.contains(name))
    };
    for (first, second) in [(0, 1), (2, 3)] {
        assert_eq!(
            [taken(first), taken(second)],
            [[true, false], [false, true]]
        );
    }
}

#[test]
fn the_launcher_leaves_no_process_of_its_own() {
    let mark = format!("trihop-mark-{}", std::process::id());
    let ended = run(&["-n", "2"], &format!(": {mark}")).wait();
    assert_eq!(ended.status, 0);
    launched::until("launcher and warden are gone", || {
        processes_named(&mark) == 0
    });
}
