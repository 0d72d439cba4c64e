//! What rank 0 finds out at the start and all ranks then agree on.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use super::choice::{Format, OnBadLine, Split};
use super::error::{Error, Result, shown};
use super::groups::Group;
use super::header::Header;
use super::hive;
use super::inputs::{self, InputFile, Way, at_start, of_file};
use super::json;
use super::output::Output;
use super::parquet::{Looked, Table};
use super::ranges::{FILE_START, Span};
use super::reader::{BLOCK_BYTES, Extents, Inputs, Method, Reader, Unreadable};
use super::record::Dialect;
use super::request::Request;
use super::route::{Grammar, Placing, Router, without_bom};
use super::split::{Progress, Record, Splitter, Torn};
use super::stream::Stream;

/// The inputs as rank 0 saw them, and what is decided once.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// Format of all files.
    pub format: Format,
    /// Of parts, with its dot.
    extension: String,
    /// All files.
    pub files: Vec<InputFile>,
    /// First record of the first file that has one, and that file's number; tables only.
    header: Option<(usize, Vec<u8>)>,
    /// All row groups, in order; of Parquet only.
    pub groups: Vec<Group>,
    /// Names of the key's columns; of Parquet only.
    names: Vec<Vec<u8>>,
    /// In the names of temporary files.
    token: u64,
}

/// Pipes that were looked into, with their numbers: they cannot be opened again.
pub type Opened = Vec<(usize, Stream)>;

impl Plan {
    /// Looks at all inputs.
    ///
    /// # Errors
    /// Options that contradict each other, and a file that is missing or whose header is torn.
    pub fn make(request: &Request, ranks: u32, limit: usize, token: u64) -> Result<(Self, Opened)> {
        let mut files = inputs::find(&request.inputs, ranks)?;
        let (format, mut extension) =
            inputs::format_of(&files, request.format).map_err(Error::Usage)?;
        request.check(format).map_err(Error::Usage)?;
        extension.insert(0, '.');
        let mut opened = Vec::new();
        let mut looked = Looked {
            groups: Vec::new(),
            names: Vec::new(),
        };
        if format == Format::Parquet {
            for file in files.iter_mut().filter(|file| file.way == Way::Cut) {
                file.way = Way::Groups;
            }
            looked = Table::look(&files, request)?;
        } else {
            extension.push_str(request.compression.extension());
        }
        let header = match format {
            Format::Jsonl | Format::Parquet => None,
            Format::Csv | Format::Tsv => {
                first_header(&files, dialect(request, format), limit, &mut opened)?
            }
        };
        let plan = Self {
            format,
            extension,
            files,
            header,
            groups: looked.groups,
            names: looked.names,
            token,
        };
        Ok((plan, opened))
    }

    /// Bytes on the disk to be read, as far as anybody knows.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Bytes of each file that are cut into ranges.
    pub fn cut_sizes(&self) -> Vec<u64> {
        self.files.iter().map(InputFile::cut_bytes).collect()
    }

    /// The ranks that read files alone.
    pub fn readers(&self) -> BTreeSet<u32> {
        self.files.iter().filter_map(InputFile::reader).collect()
    }

    /// The files that are cut into ranges.
    pub fn inputs(&self) -> Inputs {
        let paths = self.files.iter().map(|file| file.path.clone()).collect();
        Inputs::new(paths, self.cut_sizes().into())
    }

    /// What all files of Parquet have in common; `None` of other formats.
    ///
    /// # Errors
    /// The first file is not as rank 0 has seen it.
    pub fn table(&self, request: &Request) -> Result<Option<Table>> {
        let is_parquet = self.format == Format::Parquet;
        is_parquet
            .then(|| Table::open(&self.files, request))
            .transpose()
    }

    /// Where parts go.
    pub fn output(&self, request: &Request) -> Output {
        Output::new(&request.out, self.token, self.extension.clone())
    }

    /// How records are routed, the same on all ranks.
    ///
    /// # Errors
    /// A header without one of the columns, no header in any file, or a bad JSON pointer.
    pub fn router(&self, request: &Request, ranks: u32, limit: usize) -> Result<Router> {
        let usage =
            |option: &'static str| move |why: String| Error::Usage(format!("{option} {why}"));
        let (grammar, names) = match (self.format, &self.header) {
            (Format::Jsonl, _) => {
                let paths = |keys: &[String]| -> Result<Vec<json::Path>, String> {
                    keys.iter().map(|key| json::Path::parse(key)).collect()
                };
                let by = paths(&request.by.0).map_err(usage("--by"))?;
                let sort = paths(&request.sort.0).map_err(usage("--sort"))?;
                (
                    Grammar::Lines { by, sort },
                    request
                        .by
                        .0
                        .clone()
                        .into_iter()
                        .map(String::into_bytes)
                        .collect(),
                )
            }
            (Format::Parquet, _) => (Grammar::Rows, self.names.clone()),
            (_, None) => return Err(without_header(&self.files)),
            (_, Some((file, record))) => {
                let path = &self.files[*file].path;
                let wrong = |why| at_start(path, *file, why);
                let dialect = dialect(request, self.format);
                let header = Header::parse(record, dialect).map_err(wrong)?;
                let columns = |option: &str, keys: &[String]| -> Result<Vec<usize>> {
                    let column = |key: &String| header.column(key);
                    let found: Result<Vec<usize>, String> = keys.iter().map(column).collect();
                    found.map_err(|why| wrong(format!("{option}: {why}")))
                };
                let by = columns("--by", &request.by.0)?;
                let sort = columns("--sort", &request.sort.0)?;
                let names = by
                    .iter()
                    .map(|&column| header.names[column].clone())
                    .collect();
                let first = shown(path).to_string();
                let grammar = Grammar::Table {
                    dialect,
                    header,
                    by,
                    sort,
                    first,
                };
                (grammar, names)
            }
        };
        Ok(Router {
            grammar,
            placing: placing(request, names, ranks)?,
            ranks,
            is_ordered: request.is_ordered(),
            on_bad_line: request.on_bad_line,
            limit,
        })
    }
}

/// Nothing tells a table of no records from one that somebody has failed to write.
fn without_header(files: &[InputFile]) -> Error {
    let what = match files.len() {
        1 => "the file is".to_owned(),
        many => format!("this and all others of {many} files are"),
    };
    let why = format!("{what} empty: there is no header that names the columns of the key");
    of_file(&files[0].path, 0, why)
}

fn placing(request: &Request, names: Vec<Vec<u8>>, ranks: u32) -> Result<Placing> {
    if request.split == Split::Hash {
        let parts = request.parts.unwrap_or(ranks);
        return Ok(Placing::Hash { parts });
    }
    for name in &names {
        hive::push(&mut Vec::new(), name, b"").map_err(|hive::TooLong(bytes)| {
            Error::Usage(format!(
                "--by: the name of a key makes a directory name of {bytes} bytes, and {} are the most",
                hive::NAME_BYTES_MAX
            ))
        })?;
    }
    Ok(Placing::Value { names })
}

fn dialect(request: &Request, format: Format) -> Dialect {
    let separator = if format == Format::Tsv { b'\t' } else { b',' };
    Dialect {
        separator: request.delimiter.unwrap_or(separator),
        quote: (!request.no_quotes).then_some(b'"'),
    }
}

/// Why reading the header stopped.
enum Stop {
    Got(Vec<u8>),
    Torn(Torn),
    Unreadable(String),
}

impl From<Torn> for Stop {
    fn from(torn: Torn) -> Self {
        Self::Torn(torn)
    }
}

impl From<Unreadable> for Stop {
    fn from(unreadable: Unreadable) -> Self {
        Self::Unreadable(unreadable.why)
    }
}

/// The first record of the first file that has one.
fn first_header(
    files: &[InputFile],
    dialect: Dialect,
    limit: usize,
    opened: &mut Opened,
) -> Result<Option<(usize, Vec<u8>)>> {
    for (number, file) in files.iter().enumerate() {
        let wrong = |why| at_start(&file.path, number, why);
        let read = match file.way {
            Way::Cut if file.bytes == 0 => continue,
            Way::Cut => header_of_file(files, number, dialect, limit),
            // A table's file is never read by groups.
            Way::Groups => continue,
            Way::Whole { .. } | Way::Pipe | Way::Stdin => {
                let opening = |error| wrong(format!("cannot open: {error}"));
                let mut stream = Stream::open(&file.path, file.way).map_err(opening)?;
                let read = header_of_stream(&mut stream, dialect, limit);
                if !matches!(file.way, Way::Whole { .. }) {
                    opened.push((number, stream));
                }
                read
            }
        };
        match read {
            Ok(()) => {}
            Err(Stop::Got(record)) if without_bom(&record).is_empty() => {}
            Err(Stop::Got(record)) => return Ok(Some((number, record))),
            Err(Stop::Unreadable(why)) => return Err(wrong(why)),
            Err(Stop::Torn(torn)) => return Err(wrong(torn_header(&torn, dialect, limit))),
        }
    }
    Ok(None)
}

/// Stops at the first record, which it is given.
fn stop(record: Record<'_>) -> Result<(), Stop> {
    Err(Stop::Got(record.bytes.to_vec()))
}

fn header_of_file(
    files: &[InputFile],
    number: usize,
    dialect: Dialect,
    limit: usize,
) -> Result<(), Stop> {
    let size = files[number].bytes;
    let span = Span::whole(number, size);
    let paths: Rc<[PathBuf]> = files.iter().map(|file| file.path.clone()).collect();
    let sizes: Rc<[u64]> = files.iter().map(InputFile::cut_bytes).collect();
    let extents = Extents::new(&[span], false, BLOCK_BYTES.min(64 << 10));
    let mut reader =
        Reader::new(Inputs::new(paths, sizes), extents, Method::Plain).map_err(Stop::Unreadable)?;
    let mut splitter = Splitter::new(&span, FILE_START, dialect.quote, limit);
    while let Some((_, block)) = reader.next(&mut || Ok::<(), Stop>(()))? {
        if splitter.feed(block, &mut stop)? == Progress::Done {
            return Ok(());
        }
    }
    splitter.finish(&mut stop)
}

/// What was read of the stream will be read again.
fn header_of_stream(stream: &mut Stream, dialect: Dialect, limit: usize) -> Result<(), Stop> {
    let mut seen = Vec::new();
    let mut splitter = Splitter::new(&Span::endless(0), FILE_START, dialect.quote, limit);
    let read = loop {
        let next = stream.next(&mut || Ok::<(), Stop>(()))?;
        let block = match next.map_err(|error| Stop::Unreadable(unreadable(&error))) {
            Ok(Some((bytes, raw_bytes))) => (bytes.to_vec(), raw_bytes),
            Ok(None) => break splitter.finish(&mut stop),
            Err(error) => break Err(error),
        };
        let fed = splitter.feed(&block.0, &mut stop);
        seen.push(block);
        if let Err(error) = fed {
            break Err(error);
        }
    };
    stream.rewind(seen);
    read
}

/// A sentence about a stream that cannot be read on.
pub fn unreadable(error: &io::Error) -> String {
    format!("cannot read or decompress: {error}")
}

fn torn_header(torn: &Torn, dialect: Dialect, limit: usize) -> String {
    let empty = Header {
        names: Vec::new(),
        line: Vec::new(),
    };
    let router = Router {
        grammar: Grammar::Table {
            dialect,
            header: empty,
            by: Vec::new(),
            sort: Vec::new(),
            first: String::new(),
        },
        placing: Placing::Hash { parts: 1 },
        ranks: 1,
        is_ordered: false,
        on_bad_line: OnBadLine::Stop,
        limit,
    };
    format!("header: {}", router.torn(torn))
}

/// Line of the byte at `offset`, counted from the file's start; for formats whose pieces need no
/// count before.
pub fn line_at(inputs: &mut Inputs, file: usize, offset: u64, method: Method) -> io::Result<u64> {
    let lost = |unreadable: Unreadable| io::Error::other(unreadable.why);
    if offset == 0 {
        return Ok(1);
    }
    let open = inputs.open(file).map_err(lost)?;
    let size = open.metadata()?.len();
    let span = Span {
        end: offset.min(size),
        ..Span::whole(file, size)
    };
    let extents = Extents::new(&[span], false, BLOCK_BYTES);
    let mut reader = Reader::new(inputs.again(), extents, method).map_err(io::Error::other)?;
    let mut lines = 1;
    while let Some((_, block)) = reader
        .next(&mut || Ok::<(), Unreadable>(()))
        .map_err(lost)?
    {
        lines += memchr::memchr_iter(b'\n', block).count() as u64;
    }
    Ok(lines)
}
