//! What a job is asked to do.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::shown;
use super::reader::Method;

/// What a job is asked to do; the same on every rank.
#[derive(Clone, Debug)]
pub struct Request {
    /// Column (csv, tsv) or field (jsonl) that decides the partition: its name, a column number
    /// counted from 1, or a JSON pointer such as /user/id.
    pub by: String,
    /// Directory of the partitions; created if missing.
    pub out: PathBuf,
    /// Format of all files; `None`: told by their extension.
    pub format: Option<Format>,
    /// `"` is an ordinary character.
    pub no_quotes: bool,
    /// Replace the partitions that `out` already holds.
    pub force: bool,
    /// How files are read.
    pub method: Method,
    /// Input files, read as one list; each csv or tsv file has the same header.
    pub files: Vec<PathBuf>,
    /// Longest message of a job, in bytes: `max_message_bytes` of its options.
    pub max_message_bytes: usize,
}

/// How records are told apart and where their key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Comma-separated with a header, quoted as in RFC 4180.
    Csv,
    /// Tab-separated with a header, quoted as CSV is unless told otherwise.
    Tsv,
    /// One JSON value a line.
    Jsonl,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Csv, Self::Tsv, Self::Jsonl];

    /// The format that a file name's extension tells.
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(Self::Csv),
            "tsv" | "tab" => Some(Self::Tsv),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            _ => None,
        }
    }

    /// `csv`, `tsv` or `jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Jsonl => "jsonl",
        }
    }
}

/// A word that names nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

impl FromStr for Format {
    type Err = Unknown;

    fn from_str(name: &str) -> Result<Self, Unknown> {
        let known = Self::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| Unknown(format!("`{name}` is none of csv, tsv and jsonl")))
    }
}

impl Request {
    /// The format given, or the one that all extensions agree on.
    ///
    /// # Errors
    /// A sentence that names the file whose extension is unknown or differs.
    pub(crate) fn resolved_format(&self) -> Result<Format, String> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        let mut agreed: Option<(Format, &PathBuf)> = None;
        for path in &self.files {
            let Some(format) = Format::of(path) else {
                return Err(format!(
                    "{}: the extension tells no format; add --format csv, tsv or jsonl",
                    shown(path)
                ));
            };
            match agreed {
                Some((first, first_path)) if first != format => {
                    return Err(format!(
                        "{} is {} but {} is {}; partition one format at a time or add --format",
                        shown(path),
                        format.name(),
                        shown(first_path),
                        first.name()
                    ));
                }
                _ => agreed = Some((format, path)),
            }
        }
        agreed
            .map(|(format, _)| format)
            .ok_or_else(|| "no input file was given".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(files: &[&str], format: Option<Format>) -> Request {
        Request {
            by: "k".into(),
            out: "out".into(),
            format,
            no_quotes: false,
            force: false,
            method: Method::Auto,
            files: files.iter().map(PathBuf::from).collect(),
            max_message_bytes: 1 << 20,
        }
    }

    #[test]
    fn format_follows_the_extensions() {
        assert_eq!(
            request(&["a.csv", "b.CSV"], None).resolved_format(),
            Ok(Format::Csv)
        );
        assert_eq!(
            request(&["a.tab", "b.tsv"], None).resolved_format(),
            Ok(Format::Tsv)
        );
        assert_eq!(
            request(&["a.ndjson"], None).resolved_format(),
            Ok(Format::Jsonl)
        );
        assert_eq!(
            request(&["a.txt"], Some(Format::Csv)).resolved_format(),
            Ok(Format::Csv)
        );
        assert!(
            request(&["a.csv", "b.jsonl"], None)
                .resolved_format()
                .unwrap_err()
                .contains("b.jsonl is jsonl")
        );
        assert!(
            request(&["a.txt"], None)
                .resolved_format()
                .unwrap_err()
                .contains("a.txt")
        );
    }
}
