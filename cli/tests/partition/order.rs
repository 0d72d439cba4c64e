//! The order of the records in a part, where one was asked for.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::inputs::tricky_tables;
use super::launched::run;
use super::reference::{CSV, all_records, check, field, part_of, records};
use super::start::{partition, write};

const PARTS: u32 = 3;

/// Partitions on several shapes of job, and compares each part with the records that belong to it in
/// the order of `expected`.
fn check_order(files: &[PathBuf], options: &[&str], expected: &[Vec<u8>]) {
    let dir = TempDir::new().unwrap();
    let mut parts: Option<Vec<Vec<u8>>> = None;
    for (ranks, nodes) in [(1, 1), (3, 1), (4, 2)] {
        let out = dir.path().join(format!("out-{ranks}"));
        let mut command = partition(ranks, nodes);
        command.args(options).args(["--parts", &PARTS.to_string()]);
        command.args(["--by", "2", "--out"]).arg(&out).args(files);
        run(command).succeeded();
        check(&out, files, CSV, 1, PARTS);
        let read = |part| fs::read(out.join(format!("part-{part:05}.csv"))).unwrap();
        let now: Vec<Vec<u8>> = (0..PARTS).map(read).collect();
        for (part, bytes) in (0..PARTS).zip(&now) {
            let belongs = |record: &&Vec<u8>| part_of(&field(record, 1, CSV), PARTS) == part;
            let found = records(bytes, CSV);
            assert!(
                found[1..].iter().eq(expected.iter().filter(belongs)),
                "{ranks} ranks"
            );
        }
        assert!(
            parts.get_or_insert(now.clone()) == &now,
            "{ranks} ranks: other bytes"
        );
    }
}

#[test]
fn records_stand_as_in_the_input_on_any_number_of_ranks() {
    let dir = TempDir::new().unwrap();
    let files = tricky_tables(dir.path());
    check_order(&files, &["--in-order"], &all_records(&files, CSV).1);
}

#[test]
fn parts_are_sorted_beyond_the_memory_that_is_allowed() {
    let dir = TempDir::new().unwrap();
    let row = |row: u64| {
        let scattered = row.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        format!(
            "{},k{},\"{}\"\n",
            scattered >> 50,
            scattered % 40,
            "pad\n".repeat(30)
        )
    };
    let table = |rows: std::ops::Range<u64>| rows.map(row).collect::<String>();
    let files = [
        write(
            dir.path(),
            "a.csv",
            format!("n,k,pad\n{}", table(0..20_000)),
        ),
        write(
            dir.path(),
            "b.csv",
            format!("n,k,pad\n{}", table(20_000..40_000)),
        ),
    ];
    let mut sorted = all_records(&files, CSV).1;
    // Stable: equal ones stay in the order of the input.
    sorted.sort_by_key(|record| (field(record, 0, CSV), field(record, 1, CSV)));
    check_order(&files, &["--sort", "n,k", "--memory-mib", "1"], &sorted);
}
