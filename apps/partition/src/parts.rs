//! The parts that a rank writes: any number of them, through buffers and open files that are
//! bounded together.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::choice::Compression;
use super::error::{Error, Result, shown};
use super::frame::frame;
use super::output::Output;
use super::parquet::{Row, Table, Unfit, Writer};
use super::staging::Staging;
use super::totals::Totals;

/// Bytes of a part that are gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;
/// Files that are open at a time.
const OPEN_FILES: usize = 64;
/// Parts up to which each is waited for alone until it is on the disk.
const SYNCED_ALONE: usize = OPEN_FILES;

/// What parts are made of.
#[derive(Debug)]
pub enum Content {
    /// Records as they stand in the input, behind this header.
    Lines { header: Vec<u8> },
    /// Rows, in groups.
    Rows(Rc<Table>),
}

/// One part in the making.
#[derive(Debug)]
struct Part {
    /// Below the output directory.
    name: PathBuf,
    /// Its file in the staging directory.
    number: u64,
    is_created: bool,
    /// Of rows, each stands behind its length.
    buffer: Vec<u8>,
    /// Makes groups of rows.
    writer: Option<Box<Writer>>,
    totals: Totals,
}

/// All parts of a rank.
///
/// After a failed write nothing more is written; [`Parts::finish`] tells the first failure. What is
/// not kept at the end is removed.
#[derive(Debug)]
pub struct Parts {
    output: Output,
    staging: Staging,
    compression: Compression,
    content: Content,
    /// Bytes of a part that are gathered before they are written.
    gathered_bytes: usize,
    parts: Vec<Part>,
    by_name: HashMap<Vec<u8>, usize>,
    /// With the numbers of their parts, the one used last at the back.
    open: VecDeque<(usize, File)>,
    /// In all buffers.
    buffered_bytes: usize,
    memory_bytes: usize,
    failure: Option<Error>,
    /// How many have their names.
    published: usize,
    kept: bool,
}

impl Parts {
    /// No part yet; `memory_bytes` bound their buffers together.
    pub fn new(
        output: &Output,
        staging: Staging,
        compression: Compression,
        content: Content,
        memory_bytes: usize,
    ) -> Self {
        Self {
            output: output.clone(),
            staging,
            compression,
            content,
            gathered_bytes: BUFFER_BYTES,
            parts: Vec::new(),
            by_name: HashMap::new(),
            open: VecDeque::new(),
            buffered_bytes: 0,
            memory_bytes,
            failure: None,
            published: 0,
            kept: false,
        }
    }

    /// Writes a part when so many bytes are gathered for it: a row group, where parts have such.
    pub fn gather(&mut self, bytes: usize) {
        self.gathered_bytes = bytes;
    }

    /// Begins a part, with the header if it `has_header`; returns its place among the rank's.
    pub fn begin(&mut self, name: PathBuf, has_header: bool) -> usize {
        let number = self.staging.number();
        self.parts.push(Part {
            name,
            number,
            is_created: false,
            buffer: Vec::new(),
            writer: None,
            totals: Totals::default(),
        });
        let index = self.parts.len() - 1;
        if let (Content::Lines { header }, true) = (&self.content, has_header) {
            self.parts[index].buffer.extend_from_slice(header);
            self.buffered_bytes += header.len();
        }
        index
    }

    /// The part of the directory that `label` names, which is begun if it is new.
    pub fn of_directory(&mut self, label: &[u8]) -> usize {
        if let Some(&index) = self.by_name.get(label) {
            return index;
        }
        let index = self.begin(self.output.part_in(label), true);
        self.by_name.insert(label.to_vec(), index);
        index
    }

    /// Appends a record with its line end, or a row, to a part.
    pub fn append(&mut self, index: usize, record: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        let part = &mut self.parts[index];
        let before = part.buffer.len();
        match &self.content {
            Content::Lines { .. } => {
                part.totals.add(record);
                part.buffer.extend_from_slice(record);
            }
            Content::Rows(_) => match Row::parse(record) {
                Ok(row) => {
                    part.totals.add_hashed(row.hash, row.bytes.len());
                    frame(row.bytes, &mut part.buffer);
                }
                Err(Unfit) => {
                    let text = "a row was lost or changed on the way; nothing was published";
                    return self.fail(Error::Lost(text.to_owned()));
                }
            },
        }
        self.buffered_bytes += part.buffer.len() - before;
        if part.buffer.len() >= self.gathered_bytes {
            self.flush(index);
        } else if self.buffered_bytes > self.memory_bytes {
            self.flush_all();
        }
    }

    /// Whether a write has failed.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Notes a failure elsewhere on the way to the disk; the first one counts.
    pub fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Where files in the making are, and where others may be, beside the numbers.
    pub fn staging_path(&self) -> &Path {
        self.staging.path()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// What was appended to all parts.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.parts.iter().for_each(|part| totals.join(&part.totals));
        totals
    }

    /// Each part's name and what it holds.
    pub fn each(&self) -> impl Iterator<Item = (&Path, Totals)> {
        self.parts
            .iter()
            .map(|part| (part.name.as_path(), part.totals))
    }

    fn flush_all(&mut self) {
        for index in 0..self.parts.len() {
            if !self.parts[index].buffer.is_empty() {
                self.flush(index);
            }
        }
    }

    /// Writes what is gathered for a part; compressed, it is a member or frame of its own, so that
    /// nothing of a compressor is kept for each part.
    fn flush(&mut self, index: usize) {
        let mut buffer = std::mem::take(&mut self.parts[index].buffer);
        self.buffered_bytes -= buffer.len();
        if self.failure.is_none()
            && let Err(error) = self.write(index, &buffer)
        {
            self.fail_at(index, &error);
        }
        // Few parts keep their memory, many would hold more than the bound.
        if self.parts.len() * self.gathered_bytes <= self.memory_bytes {
            buffer.clear();
            self.parts[index].buffer = buffer;
        }
    }

    fn write(&mut self, index: usize, plain: &[u8]) -> io::Result<()> {
        let compressed;
        let bytes = match (&self.content, self.compression) {
            (Content::Rows(table), compression) => {
                let writer = &mut self.parts[index].writer;
                let writer = match writer {
                    Some(writer) => writer,
                    None => writer.insert(Box::new(Writer::new(table, compression)?)),
                };
                compressed = writer.group(table, plain)?;
                &compressed
            }
            (_, Compression::None) => plain,
            (_, Compression::Gzip) => {
                let level = flate2::Compression::default();
                let mut to = flate2::write::GzEncoder::new(Vec::new(), level);
                to.write_all(plain)?;
                compressed = to.finish()?;
                &compressed
            }
            (_, Compression::Zstd) => {
                compressed = zstd::encode_all(plain, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                &compressed
            }
        };
        let mut file = self.take_open(index)?;
        let written = file.write_all(bytes);
        self.open.push_back((index, file));
        written
    }

    /// Nothing more comes for a part: where it ends with a footer, that is written, and what was
    /// kept for it is given back.
    pub fn seal(&mut self, index: usize) {
        if matches!(self.content, Content::Lines { .. }) {
            return;
        }
        if !self.parts[index].buffer.is_empty() || !self.parts[index].is_created {
            self.flush(index);
        }
        self.parts[index].buffer = Vec::new();
        if let Some(writer) = self.parts[index].writer.take()
            && self.failure.is_none()
            && let Err(error) = self.end(index, *writer)
        {
            self.fail_at(index, &error);
        }
    }

    fn end(&mut self, index: usize, writer: Writer) -> io::Result<()> {
        let bytes = writer.end()?;
        let mut file = self.take_open(index)?;
        let written = file.write_all(&bytes);
        self.open.push_back((index, file));
        written
    }

    /// The file of a part, opened if it is not; the one used longest ago is closed for it.
    fn take_open(&mut self, index: usize) -> io::Result<File> {
        if let Some(at) = self.open.iter().rposition(|(of, _)| *of == index)
            && let Some((_, file)) = self.open.remove(at)
        {
            return Ok(file);
        }
        if self.open.len() >= OPEN_FILES {
            self.open.pop_front();
        }
        let part = &mut self.parts[index];
        let file = self.staging.append(part.number, !part.is_created)?;
        part.is_created = true;
        Ok(file)
    }

    fn fail_at(&mut self, index: usize, error: &io::Error) {
        let part = &self.parts[index];
        self.failure = Some(Error::Output {
            file: self.output.path(&part.name),
            line: match self.content {
                Content::Lines { .. } if self.compression == Compression::None => {
                    // Counted only now, of what the file has taken.
                    line_feeds(&self.staging.file(part.number)).unwrap_or(0) + 1
                }
                Content::Lines { .. } => 1,
                Content::Rows(_) => 0,
            },
            why: format!(
                "cannot write ({}): {error}",
                shown(&self.staging.file(part.number))
            ),
        });
    }

    /// Writes what is gathered and waits until it is on the disk.
    ///
    /// # Errors
    /// The first failure since the start.
    pub fn finish(&mut self) -> Result<()> {
        for index in 0..self.parts.len() {
            if !self.parts[index].buffer.is_empty() || !self.parts[index].is_created {
                self.flush(index);
            }
            self.seal(index);
            if self.failure.is_none()
                && self.parts.len() <= SYNCED_ALONE
                && let Err(error) = self.take_open(index).and_then(|file| {
                    file.sync_all()?;
                    self.open.push_back((index, file));
                    Ok(())
                })
            {
                self.fail_at(index, &error);
            }
        }
        self.open.clear();
        if self.failure.is_none()
            && self.parts.len() > SYNCED_ALONE
            && let Err(error) = self.staging.sync_all()
        {
            self.failure = Some(Error::system("cannot synchronise the parts", error));
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Gives all parts their names.
    ///
    /// # Errors
    /// The operating system's answer; what has a name is removed again later.
    pub fn publish(&mut self) -> Result<()> {
        for index in 0..self.parts.len() {
            let part = &self.parts[index];
            let (from, to) = (self.staging.file(part.number), self.output.path(&part.name));
            let directory = to.parent().map_or(Ok(()), fs::create_dir_all);
            directory
                .and_then(|()| fs::rename(&from, &to))
                .map_err(|error| {
                    let what = format!("cannot rename {} to {}", shown(&from), shown(&to));
                    Error::system(what, error)
                })?;
            self.published = index + 1;
        }
        // Names in directories of their own; those in the output directory are waited for with its
        // marker.
        if self.by_name.is_empty() {
            return Ok(());
        }
        let synced = self.staging.sync_all();
        synced.map_err(|error| Error::system("cannot synchronise the parts", error))
    }

    /// The job has succeeded: the parts stay.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

fn line_feeds(path: &Path) -> io::Result<u64> {
    let (mut file, mut block, mut count) = (File::open(path)?, vec![0; 64 << 10], 0);
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(count),
            Ok(length) => count += memchr::memchr_iter(b'\n', &block[..length]).count() as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for part in &self.parts[..self.published] {
            self.output.withdraw(&part.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::Codec;
    use super::*;

    fn parts(dir: &Path, compression: Compression, header: &[u8]) -> Parts {
        let output = Output::new(dir, 7, ".csv".to_owned());
        let staging = Staging::create(output.staging(0)).unwrap();
        let header = header.to_vec();
        let content = Content::Lines { header };
        Parts::new(&output, staging, compression, content, 4 << 20)
    }

    fn published(mut parts: Parts) {
        parts.finish().unwrap();
        parts.publish().unwrap();
        parts.keep();
    }

    #[test]
    fn records_of_every_size_arrive_behind_the_header() {
        let dir = tempfile::tempdir().unwrap();
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let mut parts = parts(dir.path(), compression, b"h\n");
            let index = parts.begin("part-00000".into(), true);
            let mut expected = b"h\n".to_vec();
            for size in [0, 5, BUFFER_BYTES - 3, 1, BUFFER_BYTES, 3 * BUFFER_BYTES, 7] {
                let record = [vec![b'x'; size], b"\n".to_vec()].concat();
                parts.append(index, &record);
                expected.extend_from_slice(&record);
            }
            let totals = parts.totals();
            assert_eq!(
                (totals.records, totals.bytes),
                (7, expected.len() as u64 - 2)
            );
            published(parts);
            let stored = fs::read(dir.path().join("part-00000")).unwrap();
            let mut plain = Vec::new();
            match Codec::of(&stored) {
                Codec::Plain => plain = stored,
                Codec::Gzip => {
                    let mut from = flate2::read::MultiGzDecoder::new(&stored[..]);
                    io::copy(&mut from, &mut plain).unwrap();
                }
                Codec::Zstd => zstd::stream::copy_decode(&stored[..], &mut plain).unwrap(),
            }
            assert!(plain == expected, "{compression:?}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn more_parts_than_open_files_and_memory_allow() {
        let dir = tempfile::tempdir().unwrap();
        let mut parts = parts(dir.path(), Compression::None, b"h\n");
        let count = 3 * OPEN_FILES;
        for round in 0..20 {
            for number in 0..count {
                let index = parts.of_directory(format!("k={number}").as_bytes());
                parts.append(
                    index,
                    format!("{number},{round},{}\n", "x".repeat(3000)).as_bytes(),
                );
                assert!(parts.buffered_bytes <= parts.memory_bytes);
                assert!(parts.open.len() <= OPEN_FILES);
            }
        }
        published(parts);
        for number in 0..count {
            let text = fs::read_to_string(dir.path().join(format!("k={number}/part-00000.csv")));
            let text = text.unwrap();
            let rounds = text
                .lines()
                .skip(1)
                .zip(0..)
                .all(|(line, round)| line.starts_with(&format!("{number},{round},")));
            assert!(text.starts_with("h\n") && text.lines().count() == 21 && rounds);
        }
    }

    #[test]
    fn what_is_not_kept_is_removed_under_either_name() {
        let dir = tempfile::tempdir().unwrap();
        let make = || {
            let mut parts = parts(dir.path(), Compression::None, b"");
            parts.begin("part-00000".into(), true);
            parts.of_directory(b"k=1");
            parts
        };
        drop(make());
        let mut parts = make();
        parts.finish().unwrap();
        parts.publish().unwrap();
        assert!(dir.path().join("k=1/part-00000.csv").exists());
        drop(parts);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_full_disk_names_the_part_and_its_line() {
        let dir = tempfile::tempdir().unwrap();
        // Line feeds that the file has taken before: of a header and four records, or none.
        for (records, line) in [(0, 1), (4, 6)] {
            let mut parts = parts(dir.path(), Compression::None, b"h\n");
            let index = parts.begin("part-00000".into(), true);
            let record = [vec![b'x'; BUFFER_BYTES / 4], b"\n".to_vec()].concat();
            (0..records).for_each(|_| parts.append(index, &record));
            let full = fs::OpenOptions::new()
                .write(true)
                .open("/dev/full")
                .unwrap();
            parts.open.clear();
            parts.open.push_back((index, full));
            parts.append(index, b"a\n");
            assert!(!parts.has_failed());
            let text = parts.finish().unwrap_err().to_string();
            let place = format!("part-00000:{line}: cannot write");
            assert!(
                text.contains(&place) && text.contains("No space left"),
                "{text}"
            );
        }
    }
}
