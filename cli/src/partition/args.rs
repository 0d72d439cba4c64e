//! Command line of `trihop partition`.

use crate::output;
use std::path::PathBuf;

/// Partition records of files by a key; the main job
///
/// Every record goes to the partition that owns the hash of its key.
///
/// Every rank runs the same command (`trihop run -n 8 --nodes 2 -- trihop partition ...`, or
/// `mpiexec`); without a launcher it is a job of one rank. Rank R writes DIR/part-R (five digits or
/// more), so there are as many partitions as ranks. The partition of a record is `xxh3_64(key) *
/// ranks >> 64`, where the key is the field without its quotes; it is the same in every version.
///
/// Records keep their bytes; a last record without line break gets one; blank lines are dropped and
/// counted. Inside a partition records of one rank keep their order, records of different ranks
/// come as they arrive. Parts are written under temporary names and renamed, with a `_SUCCESS`
/// marker, only after all ranks agree that nothing was lost.
///
/// Exit status: 0 done, 1 failed (the message names file and line), 2 bad options.
///
/// TRIHOP_IO=auto|uring|plain chooses how files are read (default auto: io_uring where it works).
#[derive(Clone, Debug, clap::Args)]
pub struct PartitionArgs {
    /// Column (csv, tsv) or field (jsonl) that decides the partition: its name, a column number
    /// counted from 1, or a JSON pointer such as /user/id.
    #[arg(long = "by", value_name = "KEY")]
    pub by: String,

    /// Directory of the partitions; created if missing.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Format of all files; by default told by their extension (.csv, .tsv, .tab, .jsonl, .ndjson).
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,

    /// Takes `"` as an ordinary character, as in tab-separated files that know no quoting.
    #[arg(long)]
    pub no_quotes: bool,

    /// Replaces the partitions that DIR already holds; the old _SUCCESS goes first.
    #[arg(long)]
    pub force: bool,

    /// Prints the summary as one JSON object.
    #[arg(long)]
    pub json: bool,

    /// Input files, read as one list; each csv or tsv file has the same header.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// How records are told apart and where their key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Comma-separated with a header, quoted as in RFC 4180.
    Csv,
    /// Tab-separated with a header, quoted as CSV is unless `--no-quotes` says otherwise.
    Tsv,
    /// One JSON value a line.
    Jsonl,
}

impl Format {
    /// The format that a file name's extension tells.
    fn of(path: &std::path::Path) -> Option<Self> {
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

impl PartitionArgs {
    /// The format given, or the one that all extensions agree on.
    ///
    /// # Errors
    /// A sentence that names the file whose extension is unknown or differs.
    pub fn resolved_format(&self) -> Result<Format, String> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        let mut agreed: Option<(Format, &PathBuf)> = None;
        for path in &self.files {
            let Some(format) = Format::of(path) else {
                return Err(format!(
                    "{}: the extension tells no format; add --format csv, tsv or jsonl",
                    output::path(path)
                ));
            };
            match agreed {
                Some((first, first_path)) if first != format => {
                    return Err(format!(
                        "{} is {} but {} is {}; partition one format at a time or add --format",
                        output::path(path),
                        format.name(),
                        output::path(first_path),
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

    fn args(files: &[&str], format: Option<Format>) -> PartitionArgs {
        PartitionArgs {
            by: "k".into(),
            out: "out".into(),
            format,
            no_quotes: false,
            force: false,
            json: false,
            files: files.iter().map(PathBuf::from).collect(),
        }
    }

    #[test]
    fn format_follows_the_extensions() {
        assert_eq!(
            args(&["a.csv", "b.CSV"], None).resolved_format(),
            Ok(Format::Csv)
        );
        assert_eq!(
            args(&["a.tab", "b.tsv"], None).resolved_format(),
            Ok(Format::Tsv)
        );
        assert_eq!(
            args(&["a.ndjson"], None).resolved_format(),
            Ok(Format::Jsonl)
        );
        assert_eq!(
            args(&["a.txt"], Some(Format::Csv)).resolved_format(),
            Ok(Format::Csv)
        );
        assert!(
            args(&["a.csv", "b.jsonl"], None)
                .resolved_format()
                .unwrap_err()
                .contains("b.jsonl is jsonl")
        );
        assert!(
            args(&["a.txt"], None)
                .resolved_format()
                .unwrap_err()
                .contains("a.txt")
        );
    }
}
