//! Inputs that are no single plain files: pipes, compressed files, directories and patterns; and
//! parts that are inputs again.

use std::fs;
use std::io::Write;

use tempfile::TempDir;

use super::inputs::tricky_tables;
use super::launched::{Launched, run};
use super::reference::{CSV, check};
use super::start::{leftovers, partition, write};

#[test]
fn parts_are_inputs_again_whichever_way_they_are_compressed() {
    let dir = TempDir::new().unwrap();
    let files = tricky_tables(dir.path());
    for (compression, extension) in [("none", "csv"), ("gzip", "csv.gz"), ("zstd", "csv.zst")] {
        for (ranks, nodes) in [(1, 1), (4, 2)] {
            let name = |what: &str| dir.path().join(format!("{what}-{compression}-{ranks}"));
            let (first, again) = (name("first"), name("again"));
            let mut command = partition(ranks, nodes);
            command.args([
                "--parts",
                "3",
                "--compress",
                compression,
                "--by",
                "id",
                "--out",
            ]);
            command.arg(&first).args(&files);
            run(command).succeeded();
            let part = first.join(format!("part-00002.{extension}"));
            assert!(part.exists(), "{:?}", leftovers(&first));
            let mut command = partition(ranks, nodes);
            command.args(["--parts", "5", "--by", "the key", "--out"]);
            command.arg(&again).arg(&first);
            run(command).succeeded();
            check(&again, &files, CSV, 1, 5);
        }
    }
}

#[test]
fn standard_input_is_read_by_one_rank() {
    let dir = TempDir::new().unwrap();
    let file = tricky_tables(dir.path()).swap_remove(1);
    let compressed = dir.path().join("compressed");
    let mut command = partition(1, 1);
    command.args(["--parts", "1", "--compress", "gzip", "--by", "id", "--out"]);
    command.arg(&compressed).arg(&file);
    run(command).succeeded();
    let compressed = compressed.join("part-00000.csv.gz");
    for (ranks, nodes) in [(1, 1), (4, 2)] {
        for content in [&file, &compressed] {
            let out = dir.path().join(format!("out-{ranks}"));
            let mut command = partition(ranks, nodes);
            command.args([
                "--force", "--format", "csv", "--parts", "3", "--by", "2", "--out",
            ]);
            command.arg(&out).arg("-");
            let mut job = Launched::start(command);
            job.stdin().write_all(&fs::read(content).unwrap()).unwrap();
            job.close_stdin();
            job.wait().succeeded();
            check(&out, std::slice::from_ref(&file), CSV, 1, 3);
        }
    }
}

#[test]
fn a_pipe_among_files_is_read_too() {
    let dir = TempDir::new().unwrap();
    let mut files = tricky_tables(dir.path());
    let pipe = dir.path().join("pipe.csv");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let out = dir.path().join("out");
    let mut command = partition(3, 1);
    command
        .args(["--parts", "4", "--by", "the key", "--out"])
        .arg(&out);
    command.arg(&pipe).args(&files);
    let content = fs::read(&files[1]).unwrap();
    let writer = std::thread::spawn(move || fs::write(pipe, content));
    run(command).succeeded();
    writer.join().unwrap().unwrap();
    files.push(files[1].clone());
    check(&out, &files, CSV, 1, 4);
}

#[test]
fn directories_and_patterns_mean_their_files() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    fs::create_dir_all(data.join("k=1")).unwrap();
    write(&data, ".hidden.csv", "nothing of ours");
    write(&data, "_SUCCESS", "{}");
    let files = [
        write(&data, "a.csv", "k,v\n1,2\n"),
        write(&data, "b.csv", "k,v\n3,4\n"),
        write(&data.join("k=1"), "part-00000.csv", "k,v\n5,6\n"),
    ];
    let cases = [
        (vec![data.clone()], &files[..]),
        (vec![data.join("?.csv"), data.join("k=*")], &files),
        (vec![data.join("[a]*.csv")], &files[..1]),
    ];
    for (inputs, files) in cases {
        let out = dir.path().join("out");
        let mut command = partition(2, 1);
        command
            .args(["--force", "--by", "k", "--out"])
            .arg(&out)
            .args(&inputs);
        run(command).succeeded();
        check(&out, files, CSV, 0, 2);
    }
    let mut command = partition(1, 1);
    command
        .args(["--force", "--by", "k", "--out"])
        .arg(data.join("k=1"))
        .arg(&data);
    let refused = run(command);
    assert_eq!(refused.status, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("is an input"), "{}", refused.stderr);
}

#[test]
fn a_torn_archive_is_told_and_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let rows: String = (0..50_000)
        .map(|row| format!("{row},{}\n", row * 7919))
        .collect();
    let file = write(dir.path(), "a.csv", format!("k,v\n{rows}"));
    let whole = dir.path().join("whole");
    let mut command = partition(1, 1);
    command.args(["--parts", "1", "--compress", "zstd", "--by", "k", "--out"]);
    command.arg(&whole).arg(&file);
    run(command).succeeded();
    let mut bytes = fs::read(whole.join("part-00000.csv.zst")).unwrap();
    bytes.truncate(bytes.len() / 2);
    let torn = write(dir.path(), "torn.csv.zst", bytes);
    for (ranks, nodes) in [(1, 1), (4, 2)] {
        let out = dir.path().join("out");
        let mut command = partition(ranks, nodes);
        command
            .args(["--by", "k", "--out"])
            .arg(&out)
            .arg(&file)
            .arg(&torn);
        let done = run(command);
        assert_eq!(done.status, 1, "{}", done.stderr);
        let told = "cannot read or decompress";
        assert!(
            done.stderr.contains("torn.csv.zst:") && done.stderr.contains(told),
            "{}",
            done.stderr
        );
        assert_eq!(leftovers(&out), Vec::<String>::new());
    }
}
