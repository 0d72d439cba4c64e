//! What becomes of the records that arrive: which part they are for, and in which order they go
//! there.

use super::error::{Error, Result};
use super::exchange::kind;
use super::label::Label;
use super::output::Output;
use super::parts::Parts;
use super::route::{Grammar, Placing, Router, rank_of};
use super::sorter::Sorter;
use super::summary::Partition;
use super::totals::Totals;

/// Least bytes of rows for which a part has a row group, but for its last.
const GROUP_BYTES_MIN: usize = 1 << 20;
/// Most bytes of rows of a row group.
const GROUP_BYTES_MAX: usize = 64 << 20;

/// The parts of a rank, and what sorts them.
#[derive(Debug)]
pub struct Sink {
    parts: Parts,
    output: Output,
    /// Number of the rank's first part, in a split by hash.
    first_part: u32,
    has_labels: bool,
    sorter: Option<Sorter>,
    /// Place of the part for records that were left out.
    skipped: Option<usize>,
}

impl Sink {
    /// Begins the parts of `rank` that are known beforehand: those of a split by hash.
    pub fn new(
        mut parts: Parts,
        output: &Output,
        router: &Router,
        rank: u32,
        memory_bytes: usize,
    ) -> Self {
        let mut first_part = 0;
        if let Placing::Hash { parts: count } = router.placing {
            let mut own = (0..count).filter(|&part| rank_of(part, count, router.ranks) == rank);
            let first = own.next();
            first_part = first.unwrap_or(0);
            for part in first.into_iter().chain(own) {
                parts.begin(output.part(part), true);
            }
        }
        let mut is_sorted = router.is_ordered;
        if matches!(router.grammar, Grammar::Rows) {
            // Row groups are gathered for all parts at once while these are few, and else, so that
            // they are not tiny, for one after the other.
            let each = memory_bytes / parts.len().max(1);
            is_sorted |= matches!(router.placing, Placing::Value { .. }) || each < GROUP_BYTES_MIN;
            let bytes = if is_sorted { memory_bytes } else { each };
            parts.gather(bytes.min(GROUP_BYTES_MAX));
        }
        let sorter = is_sorted.then(|| {
            let directory = parts.staging_path().to_owned();
            Sorter::new(directory, memory_bytes)
        });
        Self {
            parts,
            output: output.clone(),
            first_part,
            has_labels: router.has_labels(),
            sorter,
            skipped: None,
        }
    }

    /// Takes a record of part number `kind`, or of the kind that was left out.
    pub fn take(&mut self, kind: u32, message: &[u8]) {
        if self.parts.has_failed() {
            return;
        }
        let (label, record) = if self.has_labels {
            match Label::parse(message) {
                Some((label, record)) => (Some(label), record),
                None => return self.refuse(),
            }
        } else {
            (None, message)
        };
        let place = match label {
            _ if kind == kind::SKIPPED => self.of_skipped(),
            Some(label) if !label.name.is_empty() => self.parts.of_directory(label.name),
            _ => match kind.checked_sub(self.first_part) {
                Some(place) if (place as usize) < self.parts.len() => place as usize,
                _ => return self.refuse(),
            },
        };
        match &mut self.sorter {
            Some(sorter) => {
                let order = label.map_or(&[][..], |label| label.order);
                if let Err(error) = sorter.push(place, order, record) {
                    self.parts.fail(unsorted(error));
                }
            }
            None => self.parts.append(place, record),
        }
    }

    fn of_skipped(&mut self) -> usize {
        *self
            .skipped
            .get_or_insert_with(|| self.parts.begin(self.output.skipped(), false))
    }

    /// A message that no rank of this version sends.
    fn refuse(&mut self) {
        let text = "a record came whose part is unknown here";
        self.parts.fail(Error::Lost(text.to_owned()));
    }

    /// Whether a write has failed.
    pub fn has_failed(&self) -> bool {
        self.parts.has_failed()
    }

    /// Writes everything, and waits until it is on the disk.
    ///
    /// # Errors
    /// The first failure since the start.
    pub fn finish(&mut self) -> Result<Totals> {
        if let Some(sorter) = self.sorter.take() {
            let parts = &mut self.parts;
            let mut last = None;
            let sorted = sorter.finish(|place, record| {
                if let Some(done) = last.replace(place).filter(|&last| last != place) {
                    parts.seal(done);
                }
                parts.append(place, record);
            });
            sorted.map_err(unsorted)?;
        }
        self.parts.finish()?;
        Ok(self.parts.totals())
    }

    /// Each part, for rank 0; the file of what was left out is none.
    pub fn written(&self) -> impl Iterator<Item = Partition> {
        let is_part = |(place, _): &(usize, _)| Some(*place) != self.skipped;
        self.parts
            .each()
            .enumerate()
            .filter(is_part)
            .map(|(_, (name, totals))| Partition {
                file: name.to_string_lossy().into_owned(),
                records: totals.records,
                bytes: totals.bytes,
            })
    }

    /// Gives all parts their names.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn publish(&mut self) -> Result<()> {
        self.parts.publish()
    }

    /// The job has succeeded: the parts stay.
    pub fn keep(self) {
        self.parts.keep();
    }
}

fn unsorted(error: std::io::Error) -> Error {
    Error::system("cannot sort on the disk", error)
}
