//! What cannot be taken is told by file, and by column where it is one's fault; nothing is left.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use tempfile::TempDir;

use super::launched::run;
use super::start::{leftovers, partition};
use super::table::{Table, properties, write};

fn table(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Ends with status `status`, and says all that is `expected`, on one line.
#[track_caller]
fn refused(inputs: &[PathBuf], more: &[&str], status: i32, expected: &[&str]) {
    let dir = TempDir::new().unwrap();
    for (ranks, nodes) in [(1, 1), (4, 2)] {
        let mut command = partition(ranks, nodes);
        command.args(more).arg("--out").arg(dir.path()).args(inputs);
        let told = run(command);
        assert_eq!(told.status, status, "{}", told.stderr);
        let line = told.stderr.lines().find(|line| line.contains("partition"));
        let line = line.unwrap_or(&told.stderr);
        assert!(
            expected.iter().all(|text| line.contains(text)),
            "{}",
            told.stderr
        );
        assert!(leftovers(dir.path()).is_empty());
    }
}

#[test]
fn files_that_are_none_or_are_cut_off() {
    let dir = TempDir::new().unwrap();
    let good = write(
        dir.path(),
        "good.parquet",
        &Table::of(0..300).batch(),
        properties(50),
    );
    let bytes = fs::read(&good).unwrap();
    let broken = dir.path().join("broken.parquet");
    let cases: [(&str, Vec<u8>); 4] = [
        ("empty", Vec::new()),
        ("text", b"id,k\n1,2\n".to_vec()),
        ("cut", bytes[..bytes.len() - 9].to_vec()),
        ("its half", bytes[..bytes.len() / 2].to_vec()),
    ];
    for (what, content) in cases {
        fs::write(&broken, content).unwrap();
        eprintln!("{what}");
        let inputs = [good.clone(), broken.clone()];
        refused(
            &inputs,
            &["--by", "id"],
            1,
            &["broken.parquet: ", "no Parquet file, or a broken one"],
        );
    }
    // The footer is whole, and what it speaks of is not there.
    let mut holed = bytes.clone();
    holed[4..bytes.len() / 2].fill(0xFF);
    fs::write(&broken, holed).unwrap();
    refused(
        &[good, broken],
        &["--by", "id"],
        1,
        &["broken.parquet: ", "behind row 0"],
    );
}

#[test]
fn schemas_that_differ_are_told_by_column() {
    let dir = TempDir::new().unwrap();
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let narrow: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let optional: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let first = table(vec![("id", ids.clone()), ("text", texts.clone())]);
    let first = write(dir.path(), "first.parquet", &first, properties(9));
    let others = [
        (
            vec![("id", narrow), ("text", texts.clone())],
            "column `id` is INT32 required, in",
        ),
        (
            vec![("id", optional), ("text", texts.clone())],
            "column `id` is INT64 optional, in",
        ),
        (
            vec![("key", ids.clone()), ("text", texts.clone())],
            "column `key` stands where",
        ),
        (vec![("id", ids.clone())], "column `text` is missing"),
        (
            vec![("id", ids.clone()), ("text", texts), ("more", ids)],
            "column `more` is additional",
        ),
    ];
    for (columns, expected) in others {
        let other = write(dir.path(), "other.parquet", &table(columns), properties(9));
        let inputs = [first.clone(), other];
        refused(
            &inputs,
            &["--by", "id"],
            1,
            &[
                "other.parquet: ",
                "the schema differs",
                expected,
                "first.parquet",
            ],
        );
    }
}

#[test]
fn columns_and_options_that_cannot_be_meant() {
    let dir = TempDir::new().unwrap();
    let good = [write(
        dir.path(),
        "good.parquet",
        &Table::of(0..30).batch(),
        properties(50),
    )];
    refused(
        &good,
        &["--by", "zip"],
        1,
        &["good.parquet: --by: there is no column `zip`"],
    );
    refused(
        &good,
        &["--by", "99"],
        1,
        &["good.parquet: --by: there is no column 99"],
    );
    refused(
        &good,
        &["--by", "list"],
        1,
        &["good.parquet: --by: column `list` is List"],
    );
    refused(
        &good,
        &["--by", "id", "--sort", "pair"],
        1,
        &["good.parquet: --sort: column `pair` is Struct"],
    );
    refused(
        &good,
        &["--by", "id", "--no-quotes"],
        2,
        &["parquet has neither"],
    );
    refused(
        &good,
        &["--by", "id", "--on-bad-line", "skip"],
        2,
        &["parquet has no lines"],
    );
    refused(
        &good,
        &["--by", "text", "--split", "value", "--parts", "2"],
        2,
        &["leave --parts out"],
    );
    let squeezed = dir.path().join("a.parquet.gz");
    fs::write(&squeezed, b"\x1F\x8B\x08 gzip").unwrap();
    refused(
        &[squeezed],
        &["--by", "id"],
        1,
        &["a.parquet.gz: Parquet is read from files"],
    );
    let piped = [PathBuf::from("-")];
    refused(
        &piped,
        &["--by", "id", "--format", "parquet"],
        1,
        &["(standard input): ", "not from a pipe"],
    );
}

#[test]
fn a_row_that_no_message_carries_is_told_by_its_number() {
    let dir = TempDir::new().unwrap();
    let texts: Vec<String> = [5, 10, 3_000_000].map(|length| "x".repeat(length)).into();
    let batch = table(vec![(
        "text",
        Arc::new(StringArray::from(texts)) as ArrayRef,
    )]);
    let long = write(dir.path(), "long.parquet", &batch, properties(9));
    let mut command = partition(2, 1);
    command.env("TRIHOP_MAX_MESSAGE_BYTES", "1000000");
    command
        .args(["--by", "text", "--out"])
        .arg(dir.path().join("out"))
        .arg(long);
    let told = run(command);
    assert_eq!(told.status, 1, "{}", told.stderr);
    assert!(
        told.stderr.contains("long.parquet: row 3: ")
            && told.stderr.contains("TRIHOP_MAX_MESSAGE_BYTES"),
        "{}",
        told.stderr
    );
}

/// Whatever bytes are turned over: the job ends well or with a sentence about the file.
#[test]
fn bytes_that_were_turned_over_end_no_rank() {
    let seed = std::env::var("TRIHOP_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("TRIHOP_SEED={seed}");
    let mut state = seed | 1;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let dir = TempDir::new().unwrap();
    let good = write(
        dir.path(),
        "good.parquet",
        &Table::of(0..60).batch(),
        properties(25),
    );
    let bytes = fs::read(&good).unwrap();
    let turned = dir.path().join("turned.parquet");
    for round in 0..24 {
        let mut content = bytes.clone();
        for _ in 0..=random(3) {
            let at = random(content.len());
            content[at] ^= 1 << random(8);
        }
        fs::write(&turned, content).unwrap();
        let out = dir.path().join(round.to_string());
        let mut command = partition(1, 1);
        command
            .args(["--by", "text", "--out"])
            .arg(&out)
            .arg(&turned);
        let told = run(command);
        match told.status {
            0 => {}
            1 => assert!(told.stderr.contains("turned.parquet: "), "{}", told.stderr),
            other => panic!("status {other}: {}", told.stderr),
        }
    }
}
