//! What the partitions of some files must hold: everything is read in one process, one byte at a
//! time.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// How the reference tells records apart.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Table { separator: u8, quotes: bool },
    Lines,
}

pub const CSV: Kind = Kind::Table {
    separator: b',',
    quotes: true,
};

impl Kind {
    /// Extension of the parts of such files.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Table {
                separator: b'\t', ..
            } => "tsv",
            Self::Table { .. } => "csv",
            Self::Lines => "jsonl",
        }
    }
}

/// Records of a file without line ends, blank lines left out; one byte at a time.
pub fn records(file: &[u8], kind: Kind) -> Vec<Vec<u8>> {
    let file = file.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(file);
    let (mut all, mut record, mut quoted) = (Vec::new(), Vec::new(), false);
    for &byte in file.iter().chain(if file.ends_with(b"\n") {
        b"".iter()
    } else {
        b"\n".iter()
    }) {
        if byte == b'"' && matches!(kind, Kind::Table { quotes: true, .. }) {
            quoted = !quoted;
        }
        if byte == b'\n' && !quoted {
            if record.last() == Some(&b'\r') {
                record.pop();
            }
            if !record.is_empty() {
                all.push(std::mem::take(&mut record));
            }
        } else {
            record.push(byte);
        }
    }
    all
}

/// The field number `column` (from 0) of a record, unquoted.
pub fn field(record: &[u8], column: usize, kind: Kind) -> Vec<u8> {
    let Kind::Table { separator, quotes } = kind else {
        let value: serde_json::Value = serde_json::from_slice(record).unwrap();
        return match &value["key"] {
            serde_json::Value::String(text) => text.clone().into_bytes(),
            other => other.to_string().into_bytes(),
        };
    };
    let (mut fields, mut quoted, mut at) = (vec![Vec::new()], false, 0);
    while at < record.len() {
        let byte = record[at];
        match byte {
            b'"' if quotes && quoted && record.get(at + 1) == Some(&b'"') => {
                fields.last_mut().unwrap().push(b'"');
                at += 1;
            }
            b'"' if quotes => quoted = !quoted,
            _ if byte == separator && !quoted => fields.push(Vec::new()),
            _ => fields.last_mut().unwrap().push(byte),
        }
        at += 1;
    }
    fields.swap_remove(column)
}

/// The part of a key.
pub fn part_of(key: &[u8], parts: u32) -> u32 {
    let hash = xxhash_rust::xxh3::xxh3_64(key);
    ((u128::from(hash) * u128::from(parts)) >> 64) as u32
}

/// The header of tables, and all records in the order of the files.
pub fn all_records(files: &[PathBuf], kind: Kind) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut header, mut all) = (None, Vec::new());
    for file in files {
        let mut records = records(&fs::read(file).unwrap(), kind);
        if kind != Kind::Lines && !records.is_empty() {
            header.get_or_insert(records.remove(0));
        }
        all.extend(records);
    }
    (header, all)
}

/// Checks that DIR holds exactly the records of `files`, each in the part of the field `column`, and
/// the marker.
pub fn check(out: &Path, files: &[PathBuf], kind: Kind, column: usize, parts: u32) {
    check_by(out, files, kind, parts, |record| {
        field(record, column, kind)
    });
}

/// As [`check`], with whatever key.
pub fn check_by(
    out: &Path,
    files: &[PathBuf],
    kind: Kind,
    parts: u32,
    key: impl Fn(&[u8]) -> Vec<u8>,
) {
    let mut expected: Vec<HashMap<Vec<u8>, i64>> = vec![HashMap::new(); parts as usize];
    let (header, records_of_files) = all_records(files, kind);
    let count = records_of_files.len();
    for record in records_of_files {
        let part = part_of(&key(&record), parts);
        *expected[part as usize].entry(record).or_default() += 1;
    }
    let mut names: Vec<String> = fs::read_dir(out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let extension = kind.extension();
    let parts = (0..parts).map(|part| format!("part-{part:05}.{extension}"));
    assert_eq!(
        names,
        ["_SUCCESS".to_owned()]
            .into_iter()
            .chain(parts.clone())
            .collect::<Vec<_>>()
    );
    for (part, mut expected) in parts.clone().zip(expected) {
        let content = fs::read(out.join(&part)).unwrap();
        assert!(
            content.is_empty() || content.ends_with(b"\n"),
            "{part} ends inside a line"
        );
        let mut found = records(&content, kind);
        if let Some(header) = &header {
            assert_eq!(&found.remove(0), header, "{part}");
        }
        for record in found {
            let left = expected.entry(record.clone()).or_default();
            *left -= 1;
            assert!(
                *left >= 0,
                "{part} has too many of {:?}",
                String::from_utf8_lossy(&record)
            );
        }
        let missing = expected.iter().find(|(_, left)| **left != 0);
        assert!(missing.is_none(), "{part} lacks {missing:?}");
    }
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("_SUCCESS")).unwrap()).unwrap();
    assert_eq!(summary["records"], count);
    assert_eq!(summary["hash"], "xxh3-64");
    assert_eq!(summary["verified"], true);
    assert_eq!(summary["read"], summary["written"]);
    assert_eq!(summary["partitions"].as_array().unwrap().len(), parts.len());
}
