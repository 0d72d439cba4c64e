//! What a finished job tells.

use std::fmt::Write as _;
use trihop::log::Escaped;

use super::output::part_name;
use super::record::HASH_NAME;
use super::request::Format;
use super::writer::Totals;

/// One rank's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Records read and sent.
    pub sent: Totals,
    /// Records received and written.
    pub written: Totals,
    /// Blank lines left out.
    pub blank_lines: u64,
}

impl Share {
    /// Bytes of [`Share::to_bytes`].
    pub const BYTES: usize = 72;

    /// For the other ranks.
    pub fn to_bytes(self) -> Vec<u8> {
        let (sent, written) = (self.sent, self.written);
        let words = [sent.records, sent.bytes, sent.sum, sent.xor];
        let words =
            words
                .into_iter()
                .chain([written.records, written.bytes, written.sum, written.xor]);
        words
            .chain([self.blank_lines])
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// What another rank's [`Share::to_bytes`] made.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(word)
        };
        let totals = |first| Totals {
            records: word(first),
            bytes: word(first + 1),
            sum: word(first + 2),
            xor: word(first + 3),
        };
        Some(Self {
            sent: totals(0),
            written: totals(4),
            blank_lines: word(8),
        })
    }
}

/// What was done, how fast, and the proof that nothing was lost.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Summary {
    /// Always `partition`.
    pub command: &'static str,
    /// Directory of the partitions.
    pub out: String,
    /// Format of input and output.
    pub format: Format,
    /// The key as given.
    pub key: String,
    /// Name of the hash of keys and of the checksum.
    pub hash: &'static str,
    /// Partition of a key, as a formula.
    pub partition: &'static str,
    /// How rank 0 read its files: `io_uring` or `pread`.
    pub io: &'static str,
    /// Ranks, and so partitions.
    pub ranks: u32,
    /// Input files.
    pub files: usize,
    /// Bytes of the input files.
    pub input_bytes: u64,
    /// Records.
    pub records: u64,
    /// Blank lines that were left out.
    pub blank_lines: u64,
    /// From the start of the job to the last byte on the disk.
    pub seconds: f64,
    /// Records per second.
    pub records_per_s: f64,
    /// Input bytes per second.
    pub bytes_per_s: f64,
    /// Fewest records of a partition.
    pub partition_records_min: u64,
    /// Mean of records per partition.
    pub partition_records_mean: f64,
    /// Most records of a partition.
    pub partition_records_max: u64,
    /// Each partition.
    pub partitions: Vec<Partition>,
    /// What all ranks read.
    pub read: Totals,
    /// What all ranks wrote.
    pub written: Totals,
    /// Both are equal.
    pub verified: bool,
}

/// One partition.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Partition {
    /// Its file.
    pub file: String,
    /// Its records.
    pub records: u64,
    /// Its bytes, without header.
    pub bytes: u64,
}

/// What a summary is about.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Directory of the partitions.
    pub out: String,
    /// Format of input and output.
    pub format: Format,
    /// The key as given.
    pub key: String,
    /// How files were read.
    pub io: &'static str,
    /// Input files.
    pub files: usize,
    /// Their bytes.
    pub input_bytes: u64,
    /// Duration.
    pub seconds: f64,
}

impl Summary {
    /// Adds the shares of all ranks up.
    ///
    /// # Errors
    /// The sentence to fail with if what was written is not what was read.
    pub fn of(subject: Subject, shares: &[Share]) -> Result<Self, String> {
        let (mut read, mut written, mut blank_lines) = (Totals::default(), Totals::default(), 0);
        for share in shares {
            read.join(&share.sent);
            written.join(&share.written);
            blank_lines += share.blank_lines;
        }
        if read != written {
            return Err(format!(
                "records were lost or changed on the way: read {} of {} bytes (sum {:016x}, xor {:016x}), wrote {} of {} bytes (sum {:016x}, xor {:016x}); \
                 nothing was published",
                read.records,
                read.bytes,
                read.sum,
                read.xor,
                written.records,
                written.bytes,
                written.sum,
                written.xor
            ));
        }
        let each = || shares.iter().map(|share| share.written.records);
        let seconds = subject.seconds.max(1e-9);
        Ok(Self {
            command: "partition",
            out: subject.out,
            format: subject.format,
            key: subject.key,
            hash: HASH_NAME,
            partition: "xxh3_64(key) * ranks >> 64",
            io: subject.io,
            ranks: shares.len() as u32,
            files: subject.files,
            input_bytes: subject.input_bytes,
            records: read.records,
            blank_lines,
            seconds: subject.seconds,
            records_per_s: read.records as f64 / seconds,
            bytes_per_s: subject.input_bytes as f64 / seconds,
            partition_records_min: each().min().unwrap_or(0),
            partition_records_mean: read.records as f64 / shares.len().max(1) as f64,
            partition_records_max: each().max().unwrap_or(0),
            partitions: (0..)
                .zip(shares)
                .map(|(rank, share)| Partition {
                    file: part_name(rank),
                    records: share.written.records,
                    bytes: share.written.bytes,
                })
                .collect(),
            read,
            written,
            verified: true,
        })
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<22}{value}");
        };
        line("output", Escaped(self.out.as_bytes()).to_string());
        let key = Escaped(self.key.as_bytes());
        line("key", format!("{key} ({}, {})", self.hash, self.partition));
        line("ranks", self.ranks.to_string());
        line(
            "files",
            format!(
                "{} ({}, read by {})",
                self.files,
                self.format.name(),
                self.io
            ),
        );
        line("records", self.records.to_string());
        if self.blank_lines > 0 {
            line("blank lines left out", self.blank_lines.to_string());
        }
        line(
            "bytes",
            format!(
                "{} read, {} written without headers",
                self.input_bytes, self.written.bytes
            ),
        );
        line("seconds", format!("{:.3}", self.seconds));
        line(
            "rate",
            format!(
                "{:.0} records/s, {:.1} MB/s",
                self.records_per_s,
                self.bytes_per_s / 1e6
            ),
        );
        line(
            "records per partition",
            format!(
                "{} min, {:.1} mean, {} max",
                self.partition_records_min, self.partition_records_mean, self.partition_records_max
            ),
        );
        for partition in &self.partitions {
            line(
                &format!("  {}", partition.file),
                format!(
                    "{:>12} records {:>15} bytes",
                    partition.records, partition.bytes
                ),
            );
        }
        for (name, side) in [
            ("checksum read", &self.read),
            ("checksum written", &self.written),
        ] {
            line(
                name,
                format!(
                    "{} records, sum {:016x}, xor {:016x}",
                    side.records, side.sum, side.xor
                ),
            );
        }
        line(
            "nothing lost",
            if self.verified {
                "yes: both sides are equal".into()
            } else {
                "no".into()
            },
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject {
            out: "o".into(),
            format: Format::Csv,
            key: "k".into(),
            io: "pread",
            files: 1,
            input_bytes: 10,
            seconds: 2.0,
        }
    }

    fn totals(records: &[&str]) -> Totals {
        let mut totals = Totals::default();
        records
            .iter()
            .for_each(|record| totals.add(record.as_bytes()));
        totals
    }

    #[test]
    fn shares_survive_the_way_to_other_ranks() {
        let share = Share {
            sent: totals(&["a\n"]),
            written: totals(&["b\n", "c\n"]),
            blank_lines: 4,
        };
        assert_eq!(Share::from_bytes(&share.to_bytes()), Some(share));
        assert_eq!(Share::from_bytes(b"short"), None);
    }

    #[test]
    fn equal_sides_are_summed_up_and_unequal_ones_refused() {
        let mut shares = [
            Share {
                sent: totals(&["a\n", "b\n", "c\n"]),
                written: totals(&["c\n"]),
                blank_lines: 1,
            },
            Share {
                sent: totals(&[]),
                written: totals(&["b\n", "a\n"]),
                blank_lines: 0,
            },
        ];
        let summary = Summary::of(subject(), &shares).unwrap();
        assert_eq!(
            (
                summary.partition_records_min,
                summary.partition_records_max,
                summary.records
            ),
            (1, 2, 3)
        );
        assert!(summary.json().contains("\"verified\":true"));
        assert!(summary.table().contains("part-00001"));
        shares[1].written = totals(&["b\n", "x\n"]);
        assert!(
            Summary::of(subject(), &shares)
                .unwrap_err()
                .contains("lost or changed")
        );
    }
}
