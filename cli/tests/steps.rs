//! Steps of a C program: rounds and fences, in one call and in two phases, and collectives, on both
//! seats.

mod launched;

use launched::compiled::{Compiler, client_of, launch, launch_with};

#[test]
fn a_program_in_cpp_has_types_exceptions_and_destructors() {
    if !Compiler::Cpp.is_there() {
        return;
    }
    let program = client_of("steps", "typed", Compiler::Cpp, &["include"]);
    let shapes: [&[&str]; 3] = [&["-n", "1"], &["-n", "3"], &["-n", "6", "--nodes", "2"]];
    for shape in shapes {
        for seat in ["inline", "threaded"] {
            let ended = launch(shape, &program, &[seat]).succeeded();
            assert_eq!(ended.stdout, "ok\n");
        }
    }
    let coded = client_of("steps", "coded", Compiler::Cpp, &["include"]);
    for shape in shapes {
        for seat in ["inline", "threaded"] {
            let ended = launch(shape, &coded, &[seat]).succeeded();
            assert_eq!(ended.stdout, "ok\n");
        }
    }
    // An exception that nobody catches inside the job ends it, on all ranks, which hear what it says
    // where a handler threw it.
    let ended = launch(&["-n", "3"], &program, &["threaded", "throw"]);
    assert_ne!(ended.status, 0);
    let why =
        "an exception left the scope of the job; what trihop called here threw last: on purpose";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    // Who has thrown it outside of handlers says so itself, before it ends.
    let ended = launch(&["-n", "3"], &program, &["threaded", "own"]);
    assert_ne!(ended.status, 0);
    let said = "a mistake of its own\n";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

/// More sizes than the provider has receives for, if each kept its own.
#[test]
fn a_closed_stream_serves_the_next_of_another_size() {
    if !Compiler::C.is_there() {
        return;
    }
    let program = client_of("steps", "sizes", Compiler::C, &["include"]);
    let shapes: [(&[&str], u32); 3] = [
        (&["-n", "2"], 2),
        (&["-n", "4", "--nodes", "2"], 4),
        (&["-n", "4", "--nodes", "4"], 4),
    ];
    for (shape, ranks) in shapes {
        for seat in ["inline", "threaded"] {
            let ended = launch(shape, &program, &[seat, "300"]).succeeded();
            assert_eq!(ended.stdout, format!("{ranks} ranks, 300 sizes\n"));
        }
    }
    let at_agents = ["-n", "4", "--nodes", "2", "--seat", "agent"];
    let ended = launch(&at_agents, &program, &["inline", "300"]).succeeded();
    assert_eq!(ended.stdout, "4 ranks, 300 sizes\n");
}

#[test]
fn sends_pushes_and_pulls_without_calls_are_as_those_with_calls() {
    if !Compiler::C.is_there() {
        return;
    }
    let programs =
        ["windows", "records"].map(|name| client_of("steps", name, Compiler::C, &["include"]));
    let shapes: [(&[&str], u32); 4] = [
        (&["-n", "1"], 1),
        (&["-n", "2"], 2),
        (&["-n", "5", "--nodes", "2"], 5),
        (&["-n", "8", "--nodes", "4"], 8),
    ];
    for (shape, ranks) in shapes {
        for seat in ["inline", "threaded"] {
            for program in &programs {
                let ended = launch(shape, program, &[seat, "5000"]).succeeded();
                assert_eq!(ended.stdout, format!("{ranks} ranks\n"));
            }
        }
    }
}

#[test]
fn steps_of_a_program_are_kept_apart_and_values_joined_on_any_shape_and_seat() {
    if !Compiler::C.is_there() {
        return;
    }
    let program = client_of("steps", "steps", Compiler::C, &["include"]);
    let shapes: [(&[&str], u32); 5] = [
        (&["-n", "1"], 1),
        (&["-n", "2"], 2),
        (&["-n", "3", "--nodes", "3"], 3),
        (&["-n", "5", "--nodes", "2"], 5),
        (&["-n", "8", "--nodes", "2"], 8),
    ];
    for (shape, ranks) in shapes {
        for seat in ["inline", "threaded"] {
            let ended = launch(shape, &program, &[seat, "100"]).succeeded();
            assert_eq!(ended.stdout, format!("{ranks} ranks, 100 steps\n"));
        }
    }
}

#[test]
fn elements_of_a_c_program_move_on_any_shape_and_seat() {
    if !Compiler::C.is_there() {
        return;
    }
    let program = client_of("steps", "arrays", Compiler::C, &["include"]);
    let shapes: [(&[&str], u32); 5] = [
        (&["-n", "1"], 1),
        (&["-n", "2"], 2),
        (&["-n", "3", "--nodes", "3"], 3),
        (&["-n", "5", "--nodes", "2"], 5),
        (&["-n", "8", "--nodes", "4"], 8),
    ];
    for seat in ["inline", "threaded"] {
        for (shape, ranks) in shapes {
            let ended = launch(shape, &program, &[seat]).succeeded();
            assert_eq!(ended.stdout, format!("{ranks} ranks\n"));
        }
        let ended = launch(&["-n", "1"], &program, &[seat, "lost"]).succeeded();
        assert_eq!(ended.stdout, "lost\n");
    }
}

#[test]
fn steps_follow_each_other_by_calls_and_own_messages_are_handled_at_once() {
    if !Compiler::C.is_there() {
        return;
    }
    let program = client_of("steps", "chain", Compiler::C, &["include"]);
    let shapes: [(&[&str], u32); 4] = [
        (&["-n", "1"], 1),
        (&["-n", "3"], 3),
        (&["-n", "5", "--nodes", "2"], 5),
        (&["-n", "8", "--nodes", "4"], 8),
    ];
    for (shape, ranks) in shapes {
        for seat in ["inline", "threaded"] {
            let ended = launch(shape, &program, &[seat, "100"]).succeeded();
            assert_eq!(ended.stdout, format!("{ranks} ranks, 100 steps\n"));
        }
    }
}

#[test]
fn programs_in_c_and_cpp_go_along_any_route() {
    let programs = [
        ("typed", Compiler::Cpp, &[][..], "ok\n"),
        ("coded", Compiler::Cpp, &[], "ok\n"),
        ("steps", Compiler::C, &["30"], "6 ranks, 30 steps\n"),
        ("arrays", Compiler::C, &[], "6 ranks\n"),
        ("chain", Compiler::C, &["30"], "6 ranks, 30 steps\n"),
        ("windows", Compiler::C, &["2000"], "6 ranks\n"),
        ("records", Compiler::C, &["2000"], "6 ranks\n"),
    ];
    let routes = [
        ("direct", "threaded"),
        ("mesh:2x3", "inline"),
        ("mesh:2x2x2", "threaded"),
        ("node-mesh:2d", "inline"),
        ("team-mesh:2d", "threaded"),
    ];
    for (at, (name, compiler, arguments, said)) in programs.into_iter().enumerate() {
        if !compiler.is_there() {
            continue;
        }
        let program = client_of("steps", name, compiler, &["include"]);
        // Three of them each, in turn, so that several go along each.
        for (route, seat) in routes.into_iter().cycle().skip(2 * at).take(3) {
            let arguments = [&[seat], arguments].concat();
            let shape = ["-n", "6", "--nodes", "3"];
            let environment = [("TRIHOP_ROUTE", route)];
            let ended = launch_with(&shape, &program, &arguments, &environment).succeeded();
            assert_eq!(ended.stdout, said, "{name} over {route}");
        }
        if at % 2 == 1 {
            continue;
        }
        // Between agents it is a route of nodes.
        let shape = ["--seat", "agent", "-n", "6", "--nodes", "3"];
        let arguments = [&["threaded"], arguments].concat();
        let environment = [("TRIHOP_ROUTE", "mesh:2x2")];
        let ended = launch_with(&shape, &program, &arguments, &environment).succeeded();
        assert_eq!(ended.stdout, said, "{name} over a mesh of agents");
    }
}
