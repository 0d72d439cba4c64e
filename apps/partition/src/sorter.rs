//! Sorts what a rank receives within bounded memory: what fills it goes to the disk as a sorted
//! run, and all runs are merged at the end.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// Runs that are merged at a time.
const FAN_IN: usize = 32;
/// Bytes of a run that are read or written at a time.
const RUN_BUFFER_BYTES: usize = 256 << 10;
/// Bytes before a record in a run: part, length of the order, length of the record.
const HEAD_BYTES: usize = 12;

/// A record in memory; order and record stand one after the other in the arena.
#[derive(Clone, Copy, Debug)]
struct Entry {
    part: u32,
    at: usize,
    order_length: u32,
    record_length: u32,
}

/// Records with the parts that they go to, to be given back part by part in their order.
#[derive(Debug)]
pub struct Sorter {
    memory_bytes: usize,
    arena: Vec<u8>,
    entries: Vec<Entry>,
    files: Files,
    runs: VecDeque<PathBuf>,
}

/// Where runs are; whoever owns the directory removes what is left in it.
#[derive(Debug)]
struct Files {
    directory: PathBuf,
    count: u64,
}

impl Files {
    fn create(&mut self) -> io::Result<(PathBuf, BufWriter<File>)> {
        let path = self.directory.join(format!("run-{}", self.count));
        self.count += 1;
        let file = File::create_new(&path)?;
        Ok((path, BufWriter::with_capacity(RUN_BUFFER_BYTES, file)))
    }
}

impl Sorter {
    /// Holds at most about `memory_bytes`, or one record; runs are files in `directory`.
    pub fn new(directory: PathBuf, memory_bytes: usize) -> Self {
        Self {
            memory_bytes,
            arena: Vec::new(),
            entries: Vec::new(),
            files: Files {
                directory,
                count: 0,
            },
            runs: VecDeque::new(),
        }
    }

    /// Takes a record of part number `part`; those of a part that have one `order` come out in any.
    ///
    /// # Errors
    /// A run cannot be written.
    pub fn push(&mut self, part: usize, order: &[u8], record: &[u8]) -> io::Result<()> {
        let more = order.len() + record.len() + size_of::<Entry>();
        let held = self.arena.len() + self.entries.len() * size_of::<Entry>();
        if held + more > self.memory_bytes && !self.entries.is_empty() {
            self.spill()?;
        }
        self.entries.push(Entry {
            part: part as u32,
            at: self.arena.len(),
            order_length: order.len() as u32,
            record_length: record.len() as u32,
        });
        self.arena.extend_from_slice(order);
        self.arena.extend_from_slice(record);
        Ok(())
    }

    /// Gives all records to `each`, with the numbers of their parts, which only grow.
    ///
    /// # Errors
    /// A run cannot be written or read.
    pub fn finish(mut self, mut each: impl FnMut(usize, &[u8])) -> io::Result<()> {
        if self.runs.is_empty() {
            self.sort();
            for entry in &self.entries {
                each(entry.part as usize, self.record(entry));
            }
            return Ok(());
        }
        self.spill()?;
        self.arena = Vec::new();
        self.entries = Vec::new();
        while self.runs.len() > FAN_IN {
            let some: Vec<PathBuf> = self.runs.drain(..FAN_IN).collect();
            let (run, mut to) = self.files.create()?;
            merge(&some, |head| head.write(&mut to))?;
            to.flush()?;
            self.runs.push_back(run);
        }
        merge(self.runs.make_contiguous(), |head| {
            each(head.part as usize, head.record());
            Ok(())
        })
    }

    fn order(&self, entry: &Entry) -> &[u8] {
        &self.arena[entry.at..][..entry.order_length as usize]
    }

    fn record(&self, entry: &Entry) -> &[u8] {
        &self.arena[entry.at + entry.order_length as usize..][..entry.record_length as usize]
    }

    fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable_by(|one, other| {
            (one.part, self.order(one)).cmp(&(other.part, self.order(other)))
        });
        self.entries = entries;
    }

    /// Writes everything as a sorted run.
    fn spill(&mut self) -> io::Result<()> {
        self.sort();
        let (run, mut to) = self.files.create()?;
        for entry in &self.entries {
            write(&mut to, entry.part, self.order(entry), self.record(entry))?;
        }
        to.flush()?;
        self.runs.push_back(run);
        self.entries.clear();
        self.arena.clear();
        Ok(())
    }
}

fn write(to: &mut impl Write, part: u32, order: &[u8], record: &[u8]) -> io::Result<()> {
    for word in [part, order.len() as u32, record.len() as u32] {
        to.write_all(&word.to_le_bytes())?;
    }
    to.write_all(order)?;
    to.write_all(record)
}

/// The first record of a run that is not given out yet.
struct Head {
    from: BufReader<File>,
    part: u32,
    order_length: usize,
    /// Order, then record.
    bytes: Vec<u8>,
}

impl Head {
    fn open(run: &Path) -> io::Result<Option<Self>> {
        let file = File::open(run)?;
        let head = Self {
            from: BufReader::with_capacity(RUN_BUFFER_BYTES, file),
            part: 0,
            order_length: 0,
            bytes: Vec::new(),
        };
        head.next()
    }

    /// The record behind this one, if there is one.
    fn next(mut self) -> io::Result<Option<Self>> {
        let mut head = [0; HEAD_BYTES];
        match self.from.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        self.part = word(0);
        self.order_length = word(4) as usize;
        self.bytes.resize(self.order_length + word(8) as usize, 0);
        self.from.read_exact(&mut self.bytes)?;
        Ok(Some(self))
    }

    fn record(&self) -> &[u8] {
        &self.bytes[self.order_length..]
    }

    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        write(
            to,
            self.part,
            &self.bytes[..self.order_length],
            self.record(),
        )
    }

    fn key(&self) -> (u32, &[u8]) {
        (self.part, &self.bytes[..self.order_length])
    }
}

impl Ord for Head {
    /// The least comes first out of a heap that gives the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// Gives the records of some runs to `each` in their order, and removes the runs.
fn merge(runs: &[PathBuf], mut each: impl FnMut(&Head) -> io::Result<()>) -> io::Result<()> {
    let heads = runs.iter().filter_map(|run| Head::open(run).transpose());
    let mut heads: BinaryHeap<Head> = heads.collect::<io::Result<_>>()?;
    while let Some(head) = heads.pop() {
        each(&head)?;
        heads.extend(head.next()?);
    }
    runs.iter().try_for_each(std::fs::remove_file)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn records_come_out_as_a_sort_in_memory_would_give_them(
            keys in prop::collection::btree_map((0usize..5, prop::collection::vec(0u8..3, 0..5)), 0usize..60, 0..300),
            memory_bytes in 1usize..3000,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let record = |length: usize| vec![b'r'; length];
            let mut sorter = Sorter::new(dir.path().to_owned(), memory_bytes);
            // Backwards, so that every run has to be turned around.
            for ((part, order), &length) in keys.iter().rev() {
                sorter.push(*part, order, &record(length)).unwrap();
            }
            let mut sorted = Vec::new();
            sorter.finish(|part, record| sorted.push((part, record.to_vec()))).unwrap();
            let expected: Vec<_> = keys.iter().map(|((part, _), &length)| (*part, record(length))).collect();
            prop_assert_eq!(sorted, expected);
            prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn more_runs_than_are_merged_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(dir.path().to_owned(), 1);
        let count = 3 * FAN_IN as u32;
        for number in (0..count).rev() {
            sorter
                .push(0, &number.to_be_bytes(), &number.to_le_bytes())
                .unwrap();
        }
        assert_eq!(sorter.runs.len(), count as usize - 1);
        let mut next = 0u32;
        sorter
            .finish(|_, record| {
                assert_eq!(record, next.to_le_bytes());
                next += 1;
            })
            .unwrap();
        assert_eq!(next, count);
    }
}
