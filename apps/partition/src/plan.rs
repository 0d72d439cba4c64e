//! What rank 0 finds out at the start and all ranks then agree on.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use super::error::shown;
use super::error::{Error, Result};
use super::json;
use super::ranges::{FILE_START, Span};
use super::reader::{BLOCK_BYTES, Extents, Inputs, Method, Reader, Unreadable};
use super::record::Dialect;
use super::request::{Format, Request};
use super::route::{Grammar, Header, Router, without_bom};
use super::split::{Progress, Record, Splitter, Torn};

/// The inputs as rank 0 saw them, and what is decided once.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// Format of all files.
    pub format: Format,
    /// Sizes of the files.
    pub sizes: Vec<u64>,
    /// First record of the first file that has one, and that file's number; tables only.
    pub header: Option<(usize, Vec<u8>)>,
    /// In the names of temporary files.
    pub token: u64,
    /// Rank 0 wants to hear how far the others are.
    pub progress: bool,
}

impl Plan {
    /// Looks at all inputs.
    ///
    /// # Errors
    /// A file that is missing, not a regular one, or whose header is torn.
    pub fn make(request: &Request, limit: usize, token: u64, progress: bool) -> Result<Self> {
        let format = request.resolved_format().map_err(Error::Usage)?;
        let mut sizes = Vec::with_capacity(request.files.len());
        let mut total = 0u64;
        for (file, path) in request.files.iter().enumerate() {
            let unreadable = |why: String| at_start(request, file, why);
            let metadata =
                fs::metadata(path).map_err(|error| unreadable(format!("cannot read: {error}")))?;
            if !metadata.is_file() {
                let kind = if metadata.is_dir() {
                    "a directory"
                } else {
                    "not a regular file"
                };
                return Err(unreadable(format!("cannot read: it is {kind}")));
            }
            total = total.checked_add(metadata.len()).ok_or_else(|| {
                unreadable("the files have more than 2^64 bytes together".to_owned())
            })?;
            sizes.push(metadata.len());
        }
        let header = match format {
            Format::Jsonl => None,
            Format::Csv | Format::Tsv => {
                first_header(request, &sizes, dialect(request, format), limit)?
            }
        };
        Ok(Self {
            format,
            sizes,
            header,
            token,
            progress,
        })
    }

    /// How records are routed, the same on all ranks.
    ///
    /// # Errors
    /// A header without the key's column, or a bad JSON pointer.
    pub fn router(&self, request: &Request, ranks: u32, limit: usize) -> Result<Router> {
        let grammar = match (self.format, &self.header) {
            (Format::Jsonl, _) => {
                Grammar::Lines(json::Path::parse(&request.by).map_err(Error::Usage)?)
            }
            (_, None) => Grammar::Nothing,
            (_, Some((file, record))) => {
                let wrong = |why| at_start(request, *file, why);
                let dialect = dialect(request, self.format);
                let header = Header::parse(record, dialect).map_err(wrong)?;
                let key = header
                    .column(&request.by)
                    .map_err(|why| wrong(format!("--by: {why}")))?;
                Grammar::Table {
                    dialect,
                    header,
                    key,
                    first: shown(&request.files[*file]).to_string(),
                }
            }
        };
        Ok(Router {
            grammar,
            ranks,
            limit,
        })
    }
}

fn dialect(request: &Request, format: Format) -> Dialect {
    let separator = if format == Format::Tsv { b'\t' } else { b',' };
    Dialect {
        separator,
        quote: (!request.no_quotes).then_some(b'"'),
    }
}

/// An error about a file as a whole.
pub fn at_start(request: &Request, file: usize, why: String) -> Error {
    Error::Input {
        file: request.files[file].clone(),
        line: 1,
        why,
        at: (file as u64, 0),
    }
}

/// Why reading the header stopped.
enum Stop {
    Got(Vec<u8>),
    Torn(Torn),
    Unreadable(Unreadable),
}

impl From<Torn> for Stop {
    fn from(torn: Torn) -> Self {
        Self::Torn(torn)
    }
}

impl From<Unreadable> for Stop {
    fn from(unreadable: Unreadable) -> Self {
        Self::Unreadable(unreadable)
    }
}

/// The first record of the first file that has one.
fn first_header(
    request: &Request,
    sizes: &[u64],
    dialect: Dialect,
    limit: usize,
) -> Result<Option<(usize, Vec<u8>)>> {
    let paths: Rc<[PathBuf]> = request.files.clone().into();
    for (file, &size) in sizes.iter().enumerate() {
        if size == 0 {
            continue;
        }
        let span = Span {
            file,
            start: 0,
            end: size,
            size,
        };
        let inputs = Inputs::new(Rc::clone(&paths), sizes.into());
        let extents = Extents::new(&[span], false, BLOCK_BYTES.min(64 << 10));
        let read = || -> Result<(), Stop> {
            let mut reader =
                Reader::new(inputs, extents, Method::Plain).map_err(|why| Unreadable {
                    file,
                    offset: 0,
                    why,
                })?;
            let mut splitter = Splitter::new(&span, FILE_START, dialect.quote, limit);
            let mut take = |record: Record<'_>| Err(Stop::Got(record.bytes.to_vec()));
            while let Some((_, block)) = reader.next(&mut || Ok::<(), Stop>(()))? {
                if splitter.feed(block, &mut take)? == Progress::Done {
                    return Ok(());
                }
            }
            splitter.finish(&mut take)
        };
        let wrong = |why| at_start(request, file, why);
        match read() {
            Ok(()) => {}
            Err(Stop::Got(record)) if without_bom(&record).is_empty() => {}
            Err(Stop::Got(record)) => return Ok(Some((file, record))),
            Err(Stop::Unreadable(unreadable)) => return Err(wrong(unreadable.why)),
            Err(Stop::Torn(torn)) => {
                let empty = Header {
                    names: Vec::new(),
                    line: Vec::new(),
                };
                let grammar = Grammar::Table {
                    dialect,
                    header: empty,
                    key: 0,
                    first: String::new(),
                };
                return Err(wrong(format!(
                    "header: {}",
                    Router {
                        grammar,
                        ranks: 1,
                        limit
                    }
                    .torn(&torn)
                )));
            }
        }
    }
    Ok(None)
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
        file,
        start: 0,
        end: offset.min(size),
        size,
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
