//! The order of rows in parts, more parts than memory has room for, and the size of row groups.

use tempfile::TempDir;

use super::launched::run;
use super::start::partition;
use super::table::{Table, properties, read, write};
use super::{all_rows, files, part_of};

/// Values of `u64` and of `day` as they sort, nulls first.
fn rank_of(text: &str, order: &[&str]) -> usize {
    order.iter().position(|value| *value == text).unwrap()
}

#[test]
fn sorted_by_value_nulls_first_then_as_in_the_input() {
    let dir = TempDir::new().unwrap();
    let (inputs, table) = files(dir.path());
    let i16s = ["-32768", "9", "10"];
    let days = ["", "1969-12-31", "1970-01-01", "2024-02-29"];
    for (ranks, nodes, sort) in [(1, 1, true), (4, 2, true), (3, 1, false)] {
        let out = dir.path().join(format!("out-{ranks}"));
        let mut command = partition(ranks, nodes);
        command
            .args(["--by", "flag", "--parts", "2", "--memory-mib", "1", "--out"])
            .arg(&out);
        command.args(if sort {
            vec!["--sort", "day,i16"]
        } else {
            vec!["--in-order"]
        });
        command.args(&inputs);
        run(command).succeeded();
        for part in 0..2 {
            let (_, rows) = read(&out.join(format!("part-{part:05}.parquet")));
            let ids: Vec<u64> = rows.into_iter().map(|(id, _)| id).collect();
            let text = |name, id| &table.texts[&(name, id)][..];
            let mut expected: Vec<u64> = (0..super::ROWS)
                .filter(|&id| part_of(text("flag", id).as_bytes(), 2) == part)
                .collect();
            if sort {
                expected.sort_by_key(|&id| {
                    (
                        rank_of(text("day", id), &days),
                        rank_of(text("i16", id), &i16s),
                        id,
                    )
                });
            }
            assert_eq!(ids, expected, "part {part} of {ranks} ranks");
        }
    }
}

#[test]
fn more_parts_than_memory_has_row_groups_for() {
    let dir = TempDir::new().unwrap();
    let (inputs, table) = files(dir.path());
    let out = dir.path().join("out");
    let mut command = partition(2, 1);
    command.args(["--by", "id", "--parts", "300", "--memory-mib", "1", "--out"]);
    command.arg(&out).args(&inputs);
    run(command).succeeded();
    let parts: Vec<_> = (0..300)
        .map(|part| out.join(format!("part-{part:05}.parquet")))
        .collect();
    assert!(all_rows(&parts) == all_rows(&inputs), "rows differ");
    for (number, part) in parts.iter().enumerate() {
        let (footer, rows) = read(part);
        assert!(footer.num_row_groups() <= 1);
        for (id, _) in rows {
            assert_eq!(
                part_of(table.texts[&("id", id)].as_bytes(), 300),
                number as u32
            );
        }
    }
}

#[test]
fn row_groups_are_as_large_as_memory_allows() {
    let dir = TempDir::new().unwrap();
    let input = write(
        dir.path(),
        "a.parquet",
        &Table::of(0..6000).batch(),
        properties(6000),
    );
    for (memory, groups) in [("1", 2..12), ("64", 1..2)] {
        let out = dir.path().join(memory);
        let mut command = partition(1, 1);
        command.args([
            "--by",
            "id",
            "--parts",
            "1",
            "--memory-mib",
            memory,
            "--out",
        ]);
        command.arg(&out).arg(&input);
        run(command).succeeded();
        let part = out.join("part-00000.parquet");
        let found = read(&part).0.num_row_groups();
        assert!(
            groups.contains(&found),
            "{found} row groups in {memory} MiB"
        );
        assert!(
            all_rows(&[part]) == all_rows(std::slice::from_ref(&input)),
            "rows differ"
        );
    }
}
