//! Writes one partition under a temporary name, through a buffer of fixed size.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use xxhash_rust::xxh3::xxh3_64;

use super::error::shown;
use super::error::{Error, Result};
use super::interrupt;
use super::split::without_line_end;

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Records on one side of the job, and a checksum of them that does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// How many.
    pub records: u64,
    /// Their bytes, line ends included.
    pub bytes: u64,
    /// Sum of their 64-bit hashes (xxh3-64 of the record without line end), wrapping.
    #[serde(serialize_with = "hex")]
    pub sum: u64,
    /// Exclusive or of the same hashes.
    #[serde(serialize_with = "hex")]
    pub xor: u64,
}

/// JSON numbers lose bits above 2^53 in many readers.
fn hex<S: serde::Serializer>(value: &u64, out: S) -> std::result::Result<S::Ok, S::Error> {
    out.collect_str(&format_args!("{value:016x}"))
}

impl Totals {
    /// Counts one record in.
    pub fn add(&mut self, record: &[u8]) {
        let hash = xxh3_64(without_line_end(record));
        self.records += 1;
        self.bytes += record.len() as u64;
        self.sum = self.sum.wrapping_add(hash);
        self.xor ^= hash;
    }

    /// Counts another rank's in.
    pub fn join(&mut self, other: &Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.sum = self.sum.wrapping_add(other.sum);
        self.xor ^= other.xor;
    }
}

/// One partition in the making; it is removed unless it is published.
///
/// After a failed write nothing more is written; [`PartWriter::finish`] tells the first failure.
#[derive(Debug)]
pub struct PartWriter {
    file: File,
    temporary: PathBuf,
    part: PathBuf,
    buffer: Vec<u8>,
    /// Line feeds that the file has taken.
    newlines: u64,
    totals: Totals,
    failure: Option<Error>,
    place: Place,
}

/// Which name the file has.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Temporary,
    Final,
    /// Nothing is to be removed any more.
    Kept,
}

impl PartWriter {
    /// Creates `temporary` for what will be `part`, and puts `header` at its top.
    ///
    /// The file is locked for as long as it is written, which tells it from one that a killed job
    /// left behind.
    ///
    /// # Errors
    /// The file cannot be created or locked.
    pub fn create(temporary: PathBuf, part: PathBuf, header: &[u8]) -> Result<Self> {
        let failed =
            |error: io::Error| Error::system(format!("cannot create {}", shown(&temporary)), error);
        interrupt::remove_on_signal(&temporary);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(failed)?;
        // A file system without locks is no reason to fail: the lock only protects from cleaning by
        // another job.
        if let Err(error) =
            rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive)
        {
            tracing::debug!("{} cannot be locked: {error}", shown(&temporary));
        }
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        buffer.extend_from_slice(header);
        Ok(Self {
            file,
            temporary,
            part,
            buffer,
            newlines: 0,
            totals: Totals::default(),
            failure: None,
            place: Place::Temporary,
        })
    }

    /// Appends a record with its line end.
    pub fn append(&mut self, record: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        if self.buffer.len() + record.len() > BUFFER_BYTES {
            self.flush();
        }
        if record.len() >= BUFFER_BYTES {
            self.write(record);
        } else {
            self.buffer.extend_from_slice(record);
        }
        self.totals.add(record);
    }

    /// Whether a write has failed.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// What was appended.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn flush(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.write(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while self.failure.is_none() && !bytes.is_empty() {
            let error = match self.file.write(bytes) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(taken) => {
                    self.newlines += memchr::memchr_iter(b'\n', &bytes[..taken]).count() as u64;
                    bytes = &bytes[taken..];
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.failure = Some(Error::Output {
            file: self.part.clone(),
            line: self.newlines + 1,
            why: format!("cannot write ({}): {error}", shown(&self.temporary)),
        });
    }

    /// Writes what is gathered and waits until it is on the disk.
    ///
    /// # Errors
    /// The first failure since the start.
    pub fn finish(&mut self) -> Result<()> {
        self.flush();
        if self.failure.is_none()
            && let Err(error) = self.file.sync_all()
        {
            self.fail(&error);
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Gives the partition its name.
    ///
    /// # Errors
    /// The operating system's answer; the temporary file is still removed later.
    pub fn publish(&mut self) -> Result<()> {
        std::fs::rename(&self.temporary, &self.part).map_err(|error| {
            Error::system(
                format!(
                    "cannot rename {} to {}",
                    shown(&self.temporary),
                    shown(&self.part)
                ),
                error,
            )
        })?;
        self.place = Place::Final;
        Ok(())
    }

    /// The job has succeeded: the partition stays.
    pub fn keep(mut self) {
        self.place = Place::Kept;
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        let path = match self.place {
            Place::Temporary => &self.temporary,
            Place::Final => &self.part,
            Place::Kept => return,
        };
        if let Err(error) = std::fs::remove_file(path) {
            tracing::warn!("{} cannot be removed: {error}", shown(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(dir: &std::path::Path, header: &[u8]) -> PartWriter {
        PartWriter::create(dir.join(".part-00000.tmp"), dir.join("part-00000"), header).unwrap()
    }

    #[test]
    fn records_of_every_size_arrive_behind_the_header() {
        let dir = tempfile::tempdir().unwrap();
        let mut part = writer(dir.path(), b"h\n");
        let mut expected = b"h\n".to_vec();
        for size in [0, 5, BUFFER_BYTES - 3, 1, BUFFER_BYTES, 3 * BUFFER_BYTES, 7] {
            let record = [vec![b'x'; size], b"\n".to_vec()].concat();
            part.append(&record);
            expected.extend_from_slice(&record);
        }
        part.finish().unwrap();
        assert_eq!(
            (part.totals().records, part.totals().bytes),
            (7, expected.len() as u64 - 2)
        );
        part.publish().unwrap();
        part.keep();
        assert_eq!(
            std::fs::read(dir.path().join("part-00000")).unwrap(),
            expected
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_kept_is_removed_under_either_name() {
        let dir = tempfile::tempdir().unwrap();
        drop(writer(dir.path(), b""));
        let mut part = writer(dir.path(), b"");
        part.finish().unwrap();
        part.publish().unwrap();
        drop(part);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_full_disk_names_the_part_and_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut part = writer(dir.path(), b"h\n");
        part.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        part.append(b"a\n");
        assert!(!part.has_failed());
        let text = part.finish().unwrap_err().to_string();
        assert!(
            text.contains("part-00000:1: cannot write") && text.contains("No space left"),
            "{text}"
        );
    }

    #[test]
    fn checksums_do_not_depend_on_order_or_line_ends() {
        let (mut one, mut other) = (Totals::default(), Totals::default());
        for record in ["a\n", "b\n", "c\r\n"] {
            one.add(record.as_bytes());
        }
        for record in ["c\n", "a\r\n", "b\n"] {
            other.add(record.as_bytes());
        }
        assert_eq!(one, other);
        other.add(b"a\n");
        assert_ne!(one, other);
    }
}
