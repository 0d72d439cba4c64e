//! Channels of C and C++ programs, on each seat: semaphores, barriers, events, buffers, bounds, and
//! what goes on in another job.

mod launched;

use std::path::{Path, PathBuf};

use launched::Ended;
use launched::compiled::{Compiler, client_of, launch};

const SHAPES: [(&[&str], u32); 4] = [
    (&["-n", "1"], 1),
    (&["-n", "2"], 2),
    (&["-n", "3", "--nodes", "3"], 3),
    (&["-n", "5", "--nodes", "2"], 5),
];

/// With an agent on each node, and with two on each.
const WITH_AGENTS: [(&[&str], u32); 3] = [
    (&["-n", "2"], 2),
    (&["-n", "4", "--nodes", "2"], 4),
    (&["-n", "4", "--nodes", "2", "--nics", "2"], 4),
];

/// Runs a program with agents. It has two jobs, one after the other: they stay for the second, and
/// end with the ranks.
fn launch_with_agents(shape: &[&str], program: &Path, seat: &str) -> Ended {
    let lingers = "env TRIHOP_AGENT_LINGER_MS=60000";
    let agents = ["--seat", "agent", "--agent-under", lingers];
    launch(&[&agents, shape].concat(), program, &[seat])
}

fn gates() -> Option<PathBuf> {
    let is_there = Compiler::C.is_there();
    is_there.then(|| client_of("channels", "gates", Compiler::C, &["include"]))
}

#[test]
fn ranks_of_a_c_program_meet_take_turns_and_sleep_on_any_shape_and_seat() {
    let Some(program) = gates() else {
        return;
    };
    for (shape, ranks) in SHAPES {
        for seat in ["inline", "threaded"] {
            let ended = launch(shape, &program, &[seat]).succeeded();
            assert_eq!(ended.stdout, format!("{ranks} ranks\n"));
        }
    }
}

#[test]
fn ranks_of_a_c_program_that_are_threads_have_channels_as_processes_do() {
    let Some(program) = gates() else {
        return;
    };
    let shapes: [(&[&str], u32); 4] = [
        (&["-n", "1", "--minis-per-rank", "1"], 1),
        (&["-n", "1", "--minis-per-rank", "3"], 3),
        (&["-n", "2", "--nodes", "2", "--minis-per-rank", "2"], 4),
        (&["-n", "3", "--nodes", "2", "--minis-per-rank", "2"], 6),
    ];
    for (shape, ranks) in shapes {
        let ended = launch(shape, &program, &["minirank"]).succeeded();
        assert_eq!(ended.stdout, format!("{ranks} ranks\n"));
    }
}

#[test]
fn ranks_of_a_c_program_with_agents_have_channels_as_others_do() {
    let Some(program) = gates() else {
        return;
    };
    for (shape, ranks) in WITH_AGENTS {
        for seat in ["inline", "threaded"] {
            let ended = launch_with_agents(shape, &program, seat).succeeded();
            assert_eq!(ended.stdout, format!("{ranks} ranks\n"));
        }
    }
}

#[test]
fn channels_of_a_cpp_program_close_with_their_scope() {
    if !Compiler::Cpp.is_there() {
        return;
    }
    let program = client_of("channels", "typed", Compiler::Cpp, &["include"]);
    let shapes: [&[&str]; 2] = [&["-n", "1"], &["-n", "4", "--nodes", "2"]];
    for seat in ["inline", "threaded"] {
        for shape in shapes {
            let ended = launch(shape, &program, &[seat]).succeeded();
            assert_eq!(ended.stdout, "ok\n");
        }
        let (shape, _) = WITH_AGENTS[1];
        let ended = launch_with_agents(shape, &program, seat).succeeded();
        assert_eq!(ended.stdout, "ok\n", "with agents");
    }
}
