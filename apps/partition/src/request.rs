//! What a job is asked to do.

use std::path::PathBuf;
use std::str::FromStr;

use super::choice::{Compression, Format, OnBadLine, Split, Unknown};
use super::reader::Method;
use super::record::Dialect;

/// What a job is asked to do; the same on every rank.
#[derive(Clone, Debug)]
pub struct Request {
    /// Columns (csv, tsv) or fields (jsonl) that are the key.
    pub by: KeyList,
    /// What of the key decides the part.
    pub split: Split,
    /// Parts of a split by hash; `None`: as many as ranks.
    pub parts: Option<u32>,
    /// Columns or fields by whose bytes the records of a part are sorted; empty: not at all.
    pub sort: KeyList,
    /// Records of a part that nothing else sorts stand in the order of the input.
    pub in_order: bool,
    /// Directory of the parts; created if missing.
    pub out: PathBuf,
    /// Format of all files; `None`: told by their extension.
    pub format: Option<Format>,
    /// Between two fields of a table; `None`: what the format says.
    pub delimiter: Option<u8>,
    /// `"` is an ordinary character.
    pub no_quotes: bool,
    /// How parts are compressed.
    pub compression: Compression,
    /// What becomes of a record that cannot be taken.
    pub on_bad_line: OnBadLine,
    /// Bytes of records that a rank gathers for files, and again those that it sorts at a time.
    pub memory_bytes: usize,
    /// Replace the parts that `out` already holds.
    pub force: bool,
    /// How files are read.
    pub method: Method,
    /// Input files, directories, patterns and pipes, read as one list; `-` is standard input. Each
    /// csv or tsv file has the same header.
    pub inputs: Vec<PathBuf>,
    /// Longest message of the job, in bytes: `max_message_bytes` of its options.
    pub max_message_bytes: usize,
}

impl Request {
    /// Least [`memory_bytes`](Self::memory_bytes).
    pub const MEMORY_BYTES_MIN: usize = 1 << 20;

    /// Most [`parts`](Self::parts).
    pub const PARTS_MAX: u32 = 1_000_000;

    /// Records carry where they were found, and are sorted by the rank that writes them.
    pub(crate) fn is_ordered(&self) -> bool {
        self.in_order || !self.sort.0.is_empty()
    }

    /// Refuses options that contradict each other, or the format of the files.
    ///
    /// # Errors
    /// A sentence about them.
    pub(crate) fn check(&self, format: Format) -> Result<(), String> {
        if self.by.0.is_empty() {
            return Err("--by names no key".to_owned());
        }
        let twice = (self.by.0.iter().enumerate()).find(|(at, key)| self.by.0[..*at].contains(key));
        if let Some((_, key)) = twice {
            return Err(format!("--by names `{key}` twice"));
        }
        if self.split == Split::Value && self.parts.is_some() {
            return Err("--split value makes a part for each value; leave --parts out".to_owned());
        }
        if self
            .parts
            .is_some_and(|parts| !(1..=Self::PARTS_MAX).contains(&parts))
        {
            return Err(format!("--parts is from 1 to {}", Self::PARTS_MAX));
        }
        if format == Format::Jsonl && (self.delimiter.is_some() || self.no_quotes) {
            return Err("jsonl has neither delimiters nor quotes to choose".to_owned());
        }
        if format == Format::Parquet {
            if self.delimiter.is_some() || self.no_quotes {
                return Err("parquet has neither delimiters nor quotes to choose".to_owned());
            }
            if self.on_bad_line != OnBadLine::Stop {
                return Err(
                    "parquet has no lines: a file that cannot be read ends the job; leave --on-bad-line out"
                        .to_owned(),
                );
            }
        }
        match self.delimiter {
            Some(b'"') if !self.no_quotes => {
                Err("--delimiter `\"` is the quote; add --no-quotes, or choose another".to_owned())
            }
            Some(b'\n' | b'\r') => Err("--delimiter cannot be a line break".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Names of columns or fields, as in `country,city`: a CSV record, so that names with commas or
/// quotes can be quoted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyList(pub Vec<String>);

impl FromStr for KeyList {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        let csv = Dialect {
            separator: b',',
            quote: Some(b'"'),
        };
        let names = csv
            .fields(text.as_bytes())
            .map_err(|flaw| Unknown(format!("a list of keys is a CSV record: {flaw}")))?;
        // Cut at ASCII characters, a text stays one.
        let names = names
            .into_iter()
            .map(|name| String::from_utf8_lossy(&name).into_owned());
        Ok(Self(names.collect()))
    }
}

/// The delimiter that a word means: one ASCII character, or `\t`.
///
/// # Errors
/// A sentence about another word.
pub fn parse_delimiter(word: &str) -> Result<u8, Unknown> {
    match word.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err(Unknown(format!(
            "`{word}` is no delimiter: one ASCII character, or \\t, is expected"
        ))),
    }
}

#[cfg(test)]
impl Request {
    /// By `k` into `out`.
    fn of() -> Self {
        Self {
            by: "k".parse().unwrap(),
            split: Split::Hash,
            parts: None,
            sort: KeyList::default(),
            in_order: false,
            out: "out".into(),
            format: None,
            delimiter: None,
            no_quotes: false,
            compression: Compression::None,
            on_bad_line: OnBadLine::Stop,
            memory_bytes: Self::MEMORY_BYTES_MIN,
            force: false,
            method: Method::Auto,
            inputs: vec!["a.csv".into()],
            max_message_bytes: 1 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_named_once() {
        let check = |by: &str| {
            let by = by.parse().unwrap();
            Request {
                by,
                ..Request::of()
            }
            .check(Format::Csv)
        };
        assert_eq!(check("a,b,\"a,b\""), Ok(()));
        assert_eq!(check("a,b,c,b"), Err("--by names `b` twice".to_owned()));
    }

    #[test]
    fn key_lists_are_records() {
        let names = |text: &str| text.parse().map(|list: KeyList| list.0);
        assert_eq!(names("a,/b/c,ü").unwrap(), ["a", "/b/c", "ü"]);
        assert_eq!(names("\"a,b\",\"\"\"\"").unwrap(), ["a,b", "\""]);
        assert!(
            names("\"a")
                .unwrap_err()
                .to_string()
                .contains("never closed")
        );
    }

    #[test]
    fn delimiters_are_one_character() {
        assert_eq!(parse_delimiter("\\t"), Ok(b'\t'));
        assert_eq!(parse_delimiter(";"), Ok(b';'));
        assert!(parse_delimiter("ü").is_err() && parse_delimiter("::").is_err());
        assert!(parse_delimiter("").is_err());
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let refused_as = |format, change: &dyn Fn(&mut Request)| {
            let mut request = Request::of();
            change(&mut request);
            request.check(format).is_err()
        };
        let refused = |change: &dyn Fn(&mut Request)| refused_as(Format::Csv, change);
        assert!(!refused(&|_| {}));
        assert!(refused(&|r| (r.split, r.parts) = (Split::Value, Some(3))));
        assert!(refused(&|r| r.parts = Some(0)));
        assert!(refused_as(Format::Jsonl, &|r| r.delimiter = Some(b';')));
        assert!(!refused_as(Format::Tsv, &|r| r.delimiter = Some(b';')));
        assert!(refused(&|r| r.delimiter = Some(b'"')));
        assert!(!refused(
            &|r| (r.delimiter, r.no_quotes) = (Some(b'"'), true)
        ));
        assert!(refused(&|r| r.delimiter = Some(b'\n')));
    }
}
