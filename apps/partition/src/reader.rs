//! Reads a rank's pieces of the input files, by io_uring with several reads in flight or by plain
//! `pread`.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;

use super::ranges::Span;
use super::uring::Uring;

/// Bytes of one read.
pub const BLOCK_BYTES: usize = 512 * 1024;
/// Bytes of one read behind the last piece, where only the end of one record is looked for.
const TAIL_BLOCK_BYTES: usize = 64 * 1024;

/// A file that cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    /// Number of the file in the list.
    pub file: usize,
    /// Where in it.
    pub offset: u64,
    /// What was attempted and the answer.
    pub why: String,
}

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// io_uring where it works, else plain.
    Auto,
    /// io_uring or an error.
    Uring,
    /// One `pread` at a time.
    Plain,
}

impl Method {
    /// Environment variable that chooses.
    pub const VARIABLE: &str = "TRIHOP_IO";

    /// Reads [`Method::VARIABLE`].
    ///
    /// # Errors
    /// A sentence about an unknown value.
    pub fn from_env() -> Result<Self, String> {
        let asked = std::env::var_os(Self::VARIABLE).unwrap_or_default();
        match asked.to_str() {
            Some("" | "auto") => Ok(Self::Auto),
            Some("uring") => Ok(Self::Uring),
            Some("plain") => Ok(Self::Plain),
            _ => Err(format!(
                "{}={}: auto, uring or plain is expected",
                Self::VARIABLE,
                asked.display()
            )),
        }
    }
}

/// The input files, opened when first read.
#[derive(Debug)]
pub struct Inputs {
    paths: Rc<[PathBuf]>,
    sizes: Rc<[u64]>,
    /// The one opened last, with its number.
    open: Option<(usize, Rc<File>)>,
}

impl Inputs {
    /// Files with the sizes that all ranks agreed on.
    pub fn new(paths: Rc<[PathBuf]>, sizes: Rc<[u64]>) -> Self {
        Self {
            paths,
            sizes,
            open: None,
        }
    }

    /// The same files, to be read again.
    pub fn again(&self) -> Self {
        Self::new(Rc::clone(&self.paths), Rc::clone(&self.sizes))
    }

    /// Opens file number `file`, which must still have the agreed size.
    pub fn open(&mut self, file: usize) -> Result<Rc<File>, Unreadable> {
        if let Some((number, open)) = &self.open
            && *number == file
        {
            return Ok(Rc::clone(open));
        }
        let unreadable = |why| Unreadable {
            file,
            offset: 0,
            why,
        };
        let open = File::open(&self.paths[file])
            .map_err(|error| unreadable(format!("cannot open: {error}")))?;
        let size = open
            .metadata()
            .map_err(|error| unreadable(format!("cannot stat: {error}")))?
            .len();
        if size != self.sizes[file] {
            let agreed = self.sizes[file];
            return Err(unreadable(format!(
                "the file has {size} bytes here and had {agreed} on rank 0 at the start; it must be the same on all nodes and not change"
            )));
        }
        let open = Rc::new(open);
        self.open = Some((file, Rc::clone(&open)));
        Ok(open)
    }
}

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of the piece.
    pub piece: usize,
    /// Number of the file.
    pub file: usize,
    /// Where.
    pub offset: u64,
    /// How much.
    pub length: usize,
    /// Behind the last piece: read one at a time.
    pub is_tail: bool,
}

/// The reads of some pieces in order, then, if asked for, those up to the end of the last one's
/// file.
#[derive(Clone, Debug)]
pub struct Extents {
    spans: VecDeque<(usize, Span)>,
    tail: Option<(usize, Span)>,
    block: usize,
}

impl Extents {
    /// Reads of at most `block` bytes.
    pub fn new(spans: &[Span], with_tail: bool, block: usize) -> Self {
        let tail = spans.last().filter(|last| with_tail && last.is_continued());
        let tail = tail.map(|last| {
            (
                spans.len() - 1,
                Span {
                    start: last.end,
                    end: last.size,
                    ..*last
                },
            )
        });
        Self {
            spans: spans.iter().copied().enumerate().collect(),
            tail,
            block,
        }
    }
}

impl Iterator for Extents {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let is_tail = self.spans.is_empty();
        let block = if is_tail {
            self.block.min(TAIL_BLOCK_BYTES)
        } else {
            self.block
        };
        let (piece, span) = if is_tail {
            self.tail.as_mut()?
        } else {
            self.spans.front_mut()?
        };
        let length = (span.end - span.start).min(block as u64) as usize;
        let extent = Extent {
            piece: *piece,
            file: span.file,
            offset: span.start,
            length,
            is_tail,
        };
        span.start += length as u64;
        if span.start == span.end {
            if is_tail {
                self.tail = None;
            } else {
                self.spans.pop_front();
            }
        }
        Some(extent)
    }
}

/// Fills `buffer` from `offset`.
pub fn read_whole(file: &File, buffer: &mut [u8], extent: &Extent) -> Result<(), Unreadable> {
    file.read_exact_at(buffer, extent.offset).map_err(|error| {
        let why = if error.kind() == io::ErrorKind::UnexpectedEof {
            format!(
                "the file ended before byte {}: it shrank while it was read",
                extent.offset + extent.length as u64
            )
        } else {
            format!("cannot read at byte {}: {error}", extent.offset)
        };
        Unreadable {
            file: extent.file,
            offset: extent.offset,
            why,
        }
    })
}

/// Reads [`Extents`] in order.
#[derive(Debug)]
pub enum Reader {
    /// With reads in flight.
    Uring(Box<Uring>),
    /// One read at a time.
    Plain {
        /// The files.
        inputs: Inputs,
        /// What is still to be read.
        extents: Extents,
        /// The last block.
        buffer: Vec<u8>,
    },
}

impl Reader {
    /// Prepares reading; nothing is opened yet.
    ///
    /// # Errors
    /// Only if io_uring is demanded and does not work: a sentence that says why.
    pub fn new(inputs: Inputs, extents: Extents, method: Method) -> Result<Self, String> {
        if method != Method::Plain {
            match Uring::set_up(extents.block) {
                Ok(ring) => return Ok(Self::Uring(Box::new(ring.start(inputs, extents)))),
                Err(error) if method == Method::Uring => {
                    return Err(format!(
                        "{}=uring, but io_uring does not work here: {error}",
                        Method::VARIABLE
                    ));
                }
                Err(error) => {
                    tracing::debug!(
                        "io_uring does not work here ({error}); files are read by pread"
                    )
                }
            }
        }
        let buffer = vec![0; extents.block];
        Ok(Self::Plain {
            inputs,
            extents,
            buffer,
        })
    }

    /// `io_uring` or `pread`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uring(_) => "io_uring",
            Self::Plain { .. } => "pread",
        }
    }

    /// The next block with its extent. `idle` is called again and again while a read is under way.
    pub fn next<E: From<Unreadable>>(
        &mut self,
        idle: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<Option<(Extent, &[u8])>, E> {
        match self {
            Self::Uring(ring) => ring.next(idle),
            Self::Plain {
                inputs,
                extents,
                buffer,
            } => {
                let Some(extent) = extents.next() else {
                    return Ok(None);
                };
                let file = inputs.open(extent.file)?;
                let block = &mut buffer[..extent.length];
                read_whole(&file, block, &extent)?;
                Ok(Some((extent, block)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::super::ranges::spans;
    use super::*;

    fn read_all(
        paths: &[PathBuf],
        sizes: &[u64],
        rank: u32,
        ranks: u32,
        block: usize,
        method: Method,
    ) -> Vec<(usize, Vec<u8>)> {
        let spans = spans(sizes, rank, ranks);
        let inputs = Inputs::new(paths.into(), sizes.into());
        let mut reader = Reader::new(inputs, Extents::new(&spans, true, block), method).unwrap();
        let mut read: Vec<(usize, Vec<u8>)> = Vec::new();
        while let Some((extent, bytes)) = reader.next(&mut || Ok::<(), Unreadable>(())).unwrap() {
            match read.last_mut() {
                Some((piece, all)) if *piece == extent.piece => all.extend_from_slice(bytes),
                _ => read.push((extent.piece, bytes.to_vec())),
            }
        }
        read
    }

    fn uring_works() -> bool {
        let works = Uring::set_up(64).is_ok();
        if !works {
            eprintln!("skipped: io_uring does not work here");
        }
        works
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn both_methods_read_every_piece_and_its_tail(
            sizes in prop::collection::vec(0usize..5000, 1..4), ranks in 1u32..6, block in 1usize..700,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (mut paths, mut contents) = (Vec::new(), Vec::new());
            for (number, &size) in sizes.iter().enumerate() {
                let content: Vec<u8> = (0..size).map(|at| (at * 7 + number) as u8).collect();
                let path = dir.path().join(number.to_string());
                std::fs::File::create(&path).unwrap().write_all(&content).unwrap();
                paths.push(path);
                contents.push(content);
            }
            let sizes: Vec<u64> = sizes.iter().map(|&size| size as u64).collect();
            for rank in 0..ranks {
                let spans = spans(&sizes, rank, ranks);
                let expected: Vec<(usize, Vec<u8>)> = spans.iter().enumerate().map(|(piece, span)| {
                    let end = if piece + 1 == spans.len() { span.size } else { span.end };
                    (piece, contents[span.file][span.start as usize..end as usize].to_vec())
                }).collect();
                prop_assert_eq!(&read_all(&paths, &sizes, rank, ranks, block, Method::Plain), &expected);
                if uring_works() {
                    prop_assert_eq!(&read_all(&paths, &sizes, rank, ranks, block, Method::Uring), &expected);
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let short = dir.path().join("short");
        std::fs::write(&short, b"abc").unwrap();
        let paths = [short, dir.path().join("none")];
        for method in [Method::Plain, Method::Auto] {
            for (file, size, expected) in
                [(0, 9, "has 3 bytes here and had 9"), (1, 1, "cannot open")]
            {
                let spans = [Span {
                    file,
                    start: 0,
                    end: size,
                    size,
                }];
                let inputs = Inputs::new(paths.clone().into(), [9, 1].into());
                let mut reader =
                    Reader::new(inputs, Extents::new(&spans, true, 64), method).unwrap();
                let error = reader.next(&mut || Ok::<(), Unreadable>(())).unwrap_err();
                assert!(
                    error.file == file && error.why.contains(expected),
                    "{error:?}"
                );
            }
        }
    }
}
