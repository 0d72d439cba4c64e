//! Starts the command as a user does, and looks at what it leaves.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The command as it starts `ranks` ranks itself.
pub fn alone(ranks: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command.args(["partition", "--ranks", &ranks.to_string()]);
    command
}

/// `trihop run` with the program that every rank runs, or that program alone.
pub fn job(ranks: u32, nodes: u32, program: &str) -> Command {
    if ranks == 1 {
        return Command::new(program);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_trihop"));
    command.args([
        "run",
        "-n",
        &ranks.to_string(),
        "--nodes",
        &nodes.to_string(),
        "--",
        program,
    ]);
    command
}

/// The command on so many ranks: one is the process itself, more are started by `trihop run`.
pub fn partition(ranks: u32, nodes: u32) -> Command {
    if ranks == 1 {
        return alone(1);
    }
    let mut command = job(ranks, nodes, env!("CARGO_BIN_EXE_trihop"));
    command.arg("partition");
    command
}

/// Names in a directory that a failed job must not leave there.
pub fn leftovers(out: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(out) else {
        return Vec::new();
    };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.contains("part-") || name == "_SUCCESS")
        .collect()
}

pub fn write(dir: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.join(name);
    fs::File::create(&path)
        .unwrap()
        .write_all(content.as_ref())
        .unwrap();
    path
}
