//! Command line of `trihop partition`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use trihop_partition::{Format, Method, Request};

/// Partition records of files by a key; the main job
///
/// Every record goes to the partition that owns the hash of its key.
///
/// The command starts its ranks itself, or is run by a launcher as every rank (`trihop run -n 8
/// --nodes 2 -- trihop partition ...`, or `mpiexec`). Rank R writes DIR/part-R (five digits or
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

    /// Ranks to start on this machine [default: one for each core]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,

    /// Format of all files; by default told by their extension (.csv, .tsv, .tab, .jsonl, .ndjson).
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
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

fn formats() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(|name| name.parse::<Format>())
}

impl PartitionArgs {
    /// The same for the library.
    pub fn request(self, method: Method, max_message_bytes: usize) -> Request {
        Request {
            by: self.by,
            out: self.out,
            format: self.format,
            no_quotes: self.no_quotes,
            force: self.force,
            method,
            files: self.files,
            max_message_bytes,
        }
    }
}
