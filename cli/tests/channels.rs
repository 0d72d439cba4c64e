//! Semaphores, barriers and events of the channels of a C program, on both seats.

mod launched;

use launched::compiled::{Compiler, client_of, launch};

#[test]
fn ranks_of_a_c_program_meet_take_turns_and_sleep_on_any_shape_and_seat() {
    if !Compiler::C.is_there() {
        return;
    }
    let program = client_of("channels", "gates", Compiler::C, &["include"]);
    let shapes: [(&[&str], u32); 4] = [
        (&["-n", "1"], 1),
        (&["-n", "2"], 2),
        (&["-n", "3", "--nodes", "3"], 3),
        (&["-n", "5", "--nodes", "2"], 5),
    ];
    for (shape, ranks) in shapes {
        for seat in ["inline", "threaded"] {
            let ended = launch(shape, &program, &[seat]).succeeded();
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
    for shape in shapes {
        for seat in ["inline", "threaded"] {
            let ended = launch(shape, &program, &[seat]).succeeded();
            assert_eq!(ended.stdout, "ok\n");
        }
    }
}
