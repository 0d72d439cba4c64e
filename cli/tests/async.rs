//! C++ programs whose ranks send each other functions, by `trihop/async.hpp`.

mod launched;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use launched::compiled::{Compiler, client_of, launch, root, strict};
use launched::run;

#[test]
fn functions_and_their_arguments_reach_all_ranks_on_any_shape() {
    if !Compiler::Cpp.is_there() {
        return;
    }
    let program = client_of("async", "async", Compiler::Cpp, &["include"]);
    let shapes: [(&[&str], u32); 4] = [
        (&["-n", "1"], 1),
        (&["-n", "4"], 4),
        (&["-n", "5", "--nodes", "3"], 5),
        (&["-n", "8", "--nodes", "2"], 8),
    ];
    for (shape, ranks) in shapes {
        let ended = launch(shape, &program, &["all"]).succeeded();
        assert_eq!(ended.stdout, format!("{ranks} ranks\n"));
    }
}

#[test]
fn what_a_handler_throws_is_not_lost() {
    if !Compiler::Cpp.is_there() {
        return;
    }
    let program = client_of("async", "async", Compiler::Cpp, &["include"]);
    for (what, why) in [
        ("throws", "rank 0 had enough"),
        (
            "lost",
            "a handler has thrown behind the last barrier: nobody asked",
        ),
        (
            "order",
            "ranks make objects that handlers find in another order",
        ),
    ] {
        let ended = launch(&["-n", "3"], &program, &[what]);
        assert_ne!(ended.status, 0, "{what}");
        assert!(ended.stderr.contains(why), "{what}: {}", ended.stderr);
    }
}

#[test]
fn ranks_of_different_programs_are_told_so() {
    if !Compiler::Cpp.is_there() {
        return;
    }
    let one = client_of("async", "async", Compiler::Cpp, &["include"]);
    let other = client_of("async", "other", Compiler::Cpp, &["include"]);
    let script = std::env::temp_dir().join(format!("trihop-async-{}", std::process::id()));
    let text = format!(
        "#!/bin/sh\n[ \"$TRIHOP_RANK\" = 1 ] && exec {}\nexec {} all\n",
        other.display(),
        one.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let ended = launch(&["-n", "3"], &script, &[]);
    fs::remove_file(&script).unwrap();
    assert_ne!(ended.status, 0);
    assert!(
        ended.stderr.contains("ranks run different programs"),
        "{}",
        ended.stderr
    );
}

#[test]
fn the_compiler_says_what_cannot_be_sent() {
    if !Compiler::Cpp.is_there() {
        return;
    }
    let compiled = |options: &[&str]| {
        let mut command = strict(Compiler::Cpp, &["include"]);
        command.args(options).arg("-fsyntax-only");
        command.arg(root().join("tests/async/refused.cpp"));
        run(command)
    };
    compiled(&[]).succeeded();
    let ended = compiled(&["-DREFUSED"]);
    assert_ne!(ended.status, 0);
    for why in [
        "a lambda that is sent has no captures",
        "a pointer means nothing on another rank",
        "a type with a member",
        "the function cannot be called with these arguments",
        "a function pointer is another one on each rank",
        "a visitor has no captures",
    ] {
        assert!(ended.stderr.contains(why), "{why}: {}", ended.stderr);
    }
}
