//! Command line of `trihop partition`.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use crate::number::whole;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use trihop_partition::{
    Compression, Format, KeyList, Method, OnBadLine, Request, Split, parse_delimiter,
};

/// Partition records of files by a key; the main job
///
/// Every record goes to one part, which its key decides. The command starts its ranks itself, or is
/// run by a launcher as every rank (`trihop run -n 8 --nodes 2 -- trihop partition ...`, or
/// `mpiexec`); all ranks read, and each writes its parts.
///
/// Inputs are files, directories (all files below them whose names begin neither with `.` nor with
/// `_`), patterns such as `'logs/*.csv'`, pipes, and `-`, standard input. What is compressed with
/// gzip or zstd is told by its first bytes. Files are cut among all ranks; a compressed one is read
/// by one rank, a pipe by rank 0.
///
/// --split hash: DIR/part-N.EXT (five digits or more), N = `xxh3_64(key) * parts >> 64`, the same in
/// every version. The key is the field without its quotes; of several columns, their fields joined
/// by the byte 0x1F. --split value: DIR/KEY=value/part-00000.EXT, one directory below the other for
/// several columns, as Hive, Spark, DuckDB and Arrow read them: special characters percent-encoded,
/// an empty value or a JSON null as __HIVE_DEFAULT_PARTITION__. EXT is the first input's extension.
///
/// Records keep their bytes, the columns of the key among them; a last record without line break
/// gets one; blank lines are dropped and counted. Inside a part, records come as they arrive, unless
/// --in-order or --sort asks for one order, which then does not depend on the number of ranks. Parts
/// are made in a hidden directory and renamed, with a `_SUCCESS` marker, only after all ranks agree
/// that nothing was lost.
///
/// Parquet is read and written by builds with the cargo feature `parquet`: ranks take row groups,
/// keys are columns of single values, hashed or named by the value's text (42, 0.1, true, 12.50,
/// 2024-02-29, 2024-02-29 12:34:56.5; a null has none), and parts have the schema of the input.
///
/// A record that cannot be taken (wrong number of columns, no JSON, no key) ends the job unless
/// --on-bad-line says otherwise. Quotes out of place over several lines always do, since nobody
/// knows where such a record ends, and so does a record above TRIHOP_MAX_MESSAGE_BYTES.
///
/// Exit status: 0 done, 1 failed (the message names file and line), 2 bad options.
///
/// TRIHOP_IO=auto|uring|plain chooses how files are read (default auto: io_uring where it works).
#[derive(Clone, Debug, clap::Args)]
pub struct PartitionArgs {
    /// Columns (csv, tsv, parquet) or fields (jsonl) that are the key, e.g. `country,city`: names,
    /// column numbers counted from 1, or JSON pointers such as /user/id; a name with a comma is
    /// quoted as in CSV.
    #[arg(long = "by", value_name = "KEYS")]
    pub by: KeyList,

    /// Directory of the parts; created if missing.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// What of the key decides the part: its hash, or its value, with a directory for each.
    #[arg(long, value_name = "WHAT", default_value = "hash", value_parser = words(Split::ALL, Split::name))]
    pub split: Split,

    /// Parts of a split by hash [default: as many as ranks]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=u64::from(Request::PARTS_MAX)))]
    pub parts: Option<u32>,

    /// Ranks to start on this machine [default: one for each core]
    #[arg(long, value_name = "P", value_parser = whole::<u32>(1..))]
    pub ranks: Option<u32>,

    /// Sorts the records of each part by the bytes of these columns or fields (parquet: by their
    /// values, nulls first), equal ones in the order of the input.
    #[arg(long, value_name = "KEYS")]
    pub sort: Option<KeyList>,

    /// Puts the records of each part in the order of the input.
    #[arg(long)]
    pub in_order: bool,

    /// MiB of records that a rank gathers for its files at a time, and sorts at a time; what is more
    /// goes to the disk.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = whole::<u32>(1..=1 << 20))]
    pub memory_mib: u32,

    /// Format of all files; by default told by their extension (.csv, .tsv, .tab, .jsonl, .ndjson,
    /// each also with .gz or .zst behind it; .parquet).
    #[arg(long, value_name = "FORMAT", value_parser = words(Format::ALL, Format::name))]
    pub format: Option<Format>,

    /// ASCII character between two fields, or \t [default: the format's]
    #[arg(long, value_name = "CHAR", value_parser = parse_delimiter)]
    pub delimiter: Option<u8>,

    /// Takes `"` as an ordinary character, as in tab-separated files that know no quoting.
    #[arg(long)]
    pub no_quotes: bool,

    /// How parts are compressed; `none` leaves each column of parquet as its input has it.
    #[arg(long, value_name = "HOW", default_value = "none", value_parser = words(Compression::ALL, Compression::name))]
    pub compress: Compression,

    /// What becomes of a record that cannot be taken: it ends the job, is left out and written to
    /// DIR/_skipped.EXT, or goes to the part of the empty key; it is counted.
    #[arg(long, value_name = "WHAT", default_value = "stop", value_parser = words(OnBadLine::ALL, OnBadLine::name))]
    pub on_bad_line: OnBadLine,

    /// Replaces the parts that DIR already holds; the old _SUCCESS goes first.
    #[arg(long)]
    pub force: bool,

    /// Prints the summary as one JSON object.
    #[arg(long)]
    pub json: bool,

    /// Input files, directories, patterns and pipes, read as one list; each csv or tsv file has the
    /// same header.
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<PathBuf>,
}

/// Takes one of the words that `name` gives to `all` values.
fn words<T>(all: &'static [T], name: impl Fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static + FromStr<Err: Display + std::error::Error + Send + Sync>,
{
    PossibleValuesParser::new(all.iter().map(|&value| name(value)))
        .try_map(|word| word.parse::<T>())
}

impl PartitionArgs {
    /// The same for the library.
    pub fn request(self, method: Method, max_message_bytes: usize) -> Request {
        Request {
            by: self.by,
            split: self.split,
            parts: self.parts,
            sort: self.sort.unwrap_or_default(),
            in_order: self.in_order,
            out: self.out,
            format: self.format,
            delimiter: self.delimiter,
            no_quotes: self.no_quotes,
            compression: self.compress,
            on_bad_line: self.on_bad_line,
            memory_bytes: (self.memory_mib as usize) << 20,
            force: self.force,
            method,
            inputs: self.inputs,
            max_message_bytes,
        }
    }
}
