//! What needs no fabric needs no libfabric; what does says what is missing.

mod launched;

use std::fs;
use std::path::Path;
use std::process::Command;

use launched::{Ended, Launched};

/// Runs `trihop` where a folder's libfabric is found first.
fn with_library(folder: &Path, words: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command.args(words).env("LD_LIBRARY_PATH", folder);
    Launched::start(command).wait()
}

#[test]
fn jobs_on_one_node_need_no_libfabric() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libfabric.so.1"), "").unwrap();
    let run = |words: &[&str]| with_library(folder.path(), words);
    assert_eq!(run(&["--version"]).status, 0);
    assert_eq!(run(&["topo", "--ranks", "64", "--per-node", "8"]).status, 0);
    let exchange = [env!("CARGO_BIN_EXE_trihop"), "exchange"];
    let ended = run(&[&["run", "-n", "3", "--"][..], &exchange].concat());
    assert_eq!(ended.status, 0, "{}", ended.stderr);

    let two_nodes = ["run", "-n", "2", "--nodes", "2", "--"];
    for ended in [run(&["info"]), run(&[&two_nodes[..], &exchange].concat())] {
        assert_eq!(ended.status, 1, "{}", ended.stderr);
        let says = ["libfabric cannot be loaded", "libfabric1 on Debian"];
        for said in says {
            assert!(ended.stderr.contains(said), "{}", ended.stderr);
        }
    }
}

#[test]
fn a_library_that_is_too_old_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = ("old.c", "libfabric.so.1");
    fs::write(
        folder.path().join(source),
        "int fi_version(void) { return 1; }\n",
    )
    .unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", library, source])
        .current_dir(folder.path())
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: there is no C compiler");
    }
    let ended = with_library(folder.path(), &["info"]);
    assert_eq!(ended.status, 1);
    let said = "libfabric.so.1 has no `fi_getinfo`";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("older than libfabric"),
        "{}",
        ended.stderr
    );
}
