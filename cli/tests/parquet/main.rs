//! `trihop partition` of Parquet files, made here, against what their rows were made of.

mod bad;
#[path = "../launched/mod.rs"]
mod launched;
mod old;
mod order;
#[path = "../partition/start.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod start;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use parquet::basic::Compression;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

use launched::run;
use start::partition;
use table::{ID, Table, properties, read, write};

/// Rows of all files together.
const ROWS: u64 = 1500;

/// Three files of several row groups, and the texts of their keys.
pub fn files(dir: &Path) -> (Vec<PathBuf>, Table) {
    let write = |name: &str, rows, group_rows| {
        write(dir, name, &Table::of(rows).batch(), properties(group_rows))
    };
    let paths = vec![
        write("in/a.parquet", 0..700, 90),
        write("in/b.parquet", 700..700, 90),
        write("in/deep/c.parquet", 700..ROWS, 250),
    ];
    (paths, Table::of(0..ROWS))
}

/// The part of a key, as the command documents it.
pub fn part_of(text: &[u8], parts: u32) -> u32 {
    ((u128::from(xxh3_64(text)) * u128::from(parts)) >> 64) as u32
}

/// All rows, by their numbers, as they are printed.
pub fn all_rows(paths: &[PathBuf]) -> BTreeMap<u64, String> {
    let rows: Vec<_> = paths.iter().flat_map(|path| read(path).1).collect();
    let count = rows.len();
    let rows: BTreeMap<_, _> = rows.into_iter().collect();
    assert_eq!(rows.len(), count, "a row is there twice");
    rows
}

/// Checks all parts of a split by hash.
#[track_caller]
fn check(out: &Path, inputs: &[PathBuf], parts: u32, text: impl Fn(u64) -> Vec<u8>) {
    let expected = all_rows(inputs);
    let (schema, _) = read(&inputs[0]);
    let mut found = BTreeMap::new();
    for number in 0..parts {
        let path = out.join(format!("part-{number:05}.parquet"));
        let (footer, rows) = read(&path);
        let of = |footer: &parquet::file::metadata::ParquetMetaData| {
            footer.file_metadata().schema_descr().root_schema().clone()
        };
        assert_eq!(of(&footer), of(&schema), "{}", path.display());
        let noted = |footer: &parquet::file::metadata::ParquetMetaData| {
            footer.file_metadata().key_value_metadata().cloned()
        };
        assert_eq!(noted(&footer), noted(&schema), "{}", path.display());
        for (id, row) in rows {
            assert_eq!(part_of(&text(id), parts), number, "row {id}: {row}");
            assert_eq!(found.insert(id, row), None, "row {id} is there twice");
        }
    }
    assert_eq!(fs::read_dir(out).unwrap().count(), parts as usize + 1);
    assert!(found == expected, "rows differ");
}

#[test]
fn every_type_of_key_decides_by_its_text() {
    let dir = TempDir::new().unwrap();
    let (inputs, table) = files(dir.path());
    let mut names: Vec<&str> = table.texts.keys().map(|(name, _)| *name).collect();
    names.dedup();
    assert_eq!(names.len(), 18);
    for (turn, name) in names.into_iter().enumerate() {
        let (ranks, nodes, parts) = [(1, 1, 3), (3, 1, 5), (4, 2, 2)][turn % 3];
        let out = dir.path().join(name);
        let mut command = partition(ranks, nodes);
        command.args(["--by", name, "--parts", &parts.to_string(), "--out"]);
        command.arg(&out).arg(dir.path().join("in"));
        let done = run(command).succeeded();
        assert!(done.stdout.contains("nothing lost"), "{}", done.stdout);
        check(&out, &inputs, parts, |id| {
            table.texts[&(name, id)].clone().into_bytes()
        });
    }
}

#[test]
fn several_columns_are_one_key_and_columns_keep_their_compression() {
    let dir = TempDir::new().unwrap();
    let (inputs, table) = files(dir.path());
    for (compress, expected) in [
        ("none", None),
        ("zstd", Some("ZSTD")),
        ("gzip", Some("GZIP")),
    ] {
        let out = dir.path().join(compress);
        let mut command = partition(4, 2);
        command.args([
            "--by",
            "text,day,3",
            "--compress",
            compress,
            "--json",
            "--out",
        ]);
        command.arg(&out).arg(dir.path().join("in/*.parquet"));
        command.arg(&inputs[2]);
        let done = run(command).succeeded();
        let bytes: u64 = inputs
            .iter()
            .map(|path| fs::metadata(path).unwrap().len())
            .sum();
        assert!(
            done.stdout.contains(&format!("\"input_bytes\":{bytes},")),
            "{}",
            done.stdout
        );
        check(&out, &inputs, 4, |id| {
            let names = ["text", "day", "i8"];
            names
                .map(|name| table.texts[&(name, id)].clone().into_bytes())
                .join(&0x1F)
        });
        let (footer, _) = read(&out.join("part-00000.parquet"));
        for column in footer.row_group(0).columns() {
            let (name, found) = (column.column_path().string(), column.compression());
            match (expected, &name[..]) {
                (Some(expected), _) => assert!(found.to_string().starts_with(expected), "{name}"),
                (None, "text") => assert_eq!(found, Compression::SNAPPY),
                (None, "day") => assert_eq!(found, Compression::UNCOMPRESSED),
                (None, _) => assert!(matches!(found, Compression::ZSTD(_)), "{name}: {found}"),
            }
        }
    }
}

#[test]
fn values_are_directories_and_parts_are_inputs() {
    let dir = TempDir::new().unwrap();
    let (inputs, table) = files(dir.path());
    let out = dir.path().join("values");
    let mut command = partition(3, 3);
    command.args(["--split", "value", "--by", "day,flag", "--out"]);
    command.arg(&out).args(&inputs);
    run(command).succeeded();
    let mut found = BTreeMap::new();
    for id in 0..ROWS {
        let name = |name| match &table.texts[&(name, id)][..] {
            "" => format!("{name}=__HIVE_DEFAULT_PARTITION__"),
            text => format!("{name}={text}"),
        };
        let path = out
            .join(name("day"))
            .join(name("flag"))
            .join("part-00000.parquet");
        found.entry(path).or_insert_with(Vec::new).push(id);
    }
    assert_eq!(found.len(), 12);
    for (path, expected) in &found {
        let mut ids: Vec<u64> = read(path).1.into_iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        assert_eq!(&ids, expected, "{}", path.display());
    }
    let paths: Vec<PathBuf> = found.into_keys().collect();
    assert!(all_rows(&paths) == all_rows(&inputs), "rows differ");
    let again = dir.path().join("again");
    let mut command = partition(2, 1);
    command
        .args(["--by", ID, "--parts", "3", "--out"])
        .arg(&again)
        .arg(&out);
    run(command).succeeded();
    check(&again, &inputs, 3, |id| {
        table.texts[&(ID, id)].clone().into_bytes()
    });
}

#[test]
fn files_without_rows_make_parts_without_rows() {
    let dir = TempDir::new().unwrap();
    let input = write(
        dir.path(),
        "none.parquet",
        &Table::of(0..0).batch(),
        properties(9),
    );
    for split in ["hash", "value"] {
        let out = dir.path().join(split);
        let mut command = partition(4, 2);
        command
            .args(["--by", "day", "--split", split, "--out"])
            .arg(&out)
            .arg(&input);
        run(command).succeeded();
    }
    check(&dir.path().join("hash"), &[input], 4, |_| Vec::new());
    assert_eq!(fs::read_dir(dir.path().join("value")).unwrap().count(), 1);
}
