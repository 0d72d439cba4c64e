//! Which part a record goes to: any number of them, by several columns, by value.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::inputs::tricky_tables;
use super::launched::run;
use super::reference::{CSV, Kind, all_records, check, check_by, field, records};
use super::start::{partition, write};

#[test]
fn parts_do_not_depend_on_ranks() {
    let dir = TempDir::new().unwrap();
    let files = tricky_tables(dir.path());
    for (ranks, nodes, parts) in [(1, 1, 5), (4, 2, 3), (3, 3, 17), (8, 2, 1)] {
        let out = dir.path().join(format!("out-{ranks}-{parts}"));
        let mut command = partition(ranks, nodes);
        command.args(["--parts", &parts.to_string(), "--by", "the key", "--out"]);
        command.arg(&out).args(&files);
        run(command).succeeded();
        check(&out, &files, CSV, 1, parts);
    }
}

#[test]
fn several_columns_are_one_key() {
    let dir = TempDir::new().unwrap();
    let files = tricky_tables(dir.path());
    for (ranks, nodes) in [(1, 1), (4, 2)] {
        let out = dir.path().join(format!("out-{ranks}"));
        let mut command = partition(ranks, nodes);
        command.args(["--parts", "9", "--by", "\"the key\",1", "--out"]);
        command.arg(&out).args(&files);
        run(command).succeeded();
        check_by(&out, &files, CSV, 9, |record| {
            [field(record, 1, CSV), field(record, 0, CSV)].join(&0x1F)
        });
    }
}

#[test]
fn another_delimiter() {
    let dir = TempDir::new().unwrap();
    let file = write(dir.path(), "a.csv", "k;v\n1;2,3\n\"4;5\";6\n7;\n");
    let out = dir.path().join("out");
    let mut command = partition(2, 1);
    command.args(["--delimiter", ";", "--by", "k", "--out"]);
    command.arg(&out).arg(&file);
    run(command).succeeded();
    let kind = Kind::Table {
        separator: b';',
        quotes: true,
    };
    check(&out, &[file], kind, 0, 2);
}

/// Files below a directory of values with their records, header and all.
fn by_value(out: &Path, kind: Kind) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut below = vec![out.to_owned()];
    while let Some(directory) = below.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below.push(path);
            } else if directory != out {
                let name = path.strip_prefix(out).unwrap().to_str().unwrap().to_owned();
                let mut all = records(&fs::read(&path).unwrap(), kind);
                all.sort();
                found.insert(name, all);
            }
        }
    }
    found
}

#[test]
fn a_directory_for_each_value() {
    let dir = TempDir::new().unwrap();
    let files = tricky_tables(dir.path());
    let (header, all) = all_records(&files, CSV);
    let mut expected = BTreeMap::new();
    for record in all {
        let key = String::from_utf8(field(&record, 1, CSV)).unwrap();
        let name = format!("the key={key}/part-00000.csv");
        let part = expected
            .entry(name)
            .or_insert_with(|| vec![header.clone().unwrap()]);
        part.push(record);
    }
    expected.values_mut().for_each(|records| records.sort());
    for (ranks, nodes) in [(1, 1), (3, 1), (4, 4)] {
        let out = dir.path().join(format!("out-{ranks}"));
        let mut command = partition(ranks, nodes);
        command.args(["--json", "--split", "value", "--by", "the key", "--out"]);
        command.arg(&out).args(&files);
        let done = run(command).succeeded();
        assert!(by_value(&out, CSV) == expected, "{ranks} ranks");
        let told = fs::read(out.join("_SUCCESS")).unwrap();
        let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
        let told = told["partitions"].as_array().unwrap();
        let files = told.iter().map(|part| part["file"].as_str().unwrap());
        assert!(files.eq(expected.keys()), "{}", done.stdout);
        let records = told
            .iter()
            .map(|part| part["records"].as_u64().unwrap() as usize + 1);
        assert!(
            records.eq(expected.values().map(Vec::len)),
            "{}",
            done.stdout
        );
    }
}

#[test]
fn values_of_all_kinds_and_many_of_them() {
    let dir = TempDir::new().unwrap();
    let rows: String = (0..3000).map(|row| format!("{row},x\n")).collect();
    let table = format!("a/b,v\n\"../x\",1\n,2\n50%,3\n{rows}");
    let file = write(dir.path(), "a.csv", table);
    let out = dir.path().join("out");
    let start = |options: &[&str]| {
        let mut command = partition(2, 2);
        command
            .args(options)
            .args(["--by", "1,v", "--out"])
            .arg(&out)
            .arg(&file);
        run(command)
    };
    start(&["--split", "value", "--memory-mib", "1"]).succeeded();
    let found = by_value(&out, CSV);
    assert_eq!(found.len(), 3003);
    for (name, record) in [
        ("a%2Fb=..%2Fx/v=1/part-00000.csv", &b"\"../x\",1"[..]),
        ("a%2Fb=__HIVE_DEFAULT_PARTITION__/v=2/part-00000.csv", b",2"),
        ("a%2Fb=50%25/v=3/part-00000.csv", b"50%,3"),
        ("a%2Fb=2999/v=x/part-00000.csv", b"2999,x"),
    ] {
        assert!(found[name].iter().any(|found| found == record), "{name}");
    }
    let refused = start(&[]);
    assert_eq!(refused.status, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("already holds"),
        "{}",
        refused.stderr
    );
    start(&["--force"]).succeeded();
    assert!(by_value(&out, CSV).is_empty(), "old directories are gone");
    let refused = start(&["--split", "value", "--parts", "2", "--force"]);
    assert_eq!(refused.status, 2, "{}", refused.stderr);
}

#[test]
fn a_null_is_no_text() {
    let dir = TempDir::new().unwrap();
    let file = write(
        dir.path(),
        "a.jsonl",
        "{\"k\":null}\n{\"k\":\"null\"}\n{\"k\":\"\"}\n",
    );
    let out = dir.path().join("out");
    let mut command = partition(2, 1);
    command
        .args(["--split", "value", "--by", "k", "--out"])
        .arg(&out)
        .arg(&file);
    run(command).succeeded();
    let found = by_value(&out, Kind::Lines);
    assert_eq!(found["k=null/part-00000.jsonl"], [b"{\"k\":\"null\"}"]);
    assert_eq!(
        found["k=__HIVE_DEFAULT_PARTITION__/part-00000.jsonl"].len(),
        2
    );
}
