//! What a finished job tells.

use std::fmt::Write as _;
use trihop::log::Escaped;

use super::choice::{Compression, Format, OnBadLine, Split};
use super::output::MARKER;
use super::record::HASH_NAME;
use super::totals::Totals;

/// One rank's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Records read and sent.
    pub sent: Totals,
    /// Records received and written.
    pub written: Totals,
    /// Blank lines left out.
    pub blank_lines: u64,
    /// Records sent that something was wrong with.
    pub bad_lines: u64,
    /// Bytes read, as they are on the disk.
    pub input_bytes: u64,
}

impl Share {
    /// Words of [`Share::to_bytes`].
    const WORDS: usize = 11;

    /// For the other ranks.
    pub fn to_bytes(self) -> Vec<u8> {
        let (sent, written) = (self.sent, self.written);
        let words: [u64; Self::WORDS] = [
            sent.records,
            sent.bytes,
            sent.sum,
            sent.xor,
            written.records,
            written.bytes,
            written.sum,
            written.xor,
            self.blank_lines,
            self.bad_lines,
            self.input_bytes,
        ];
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// What another rank's [`Share::to_bytes`] made.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let words: [u64; Self::WORDS] = words.try_into().ok().filter(|_| rest.is_empty())?;
        let totals = |first: usize| Totals {
            records: words[first],
            bytes: words[first + 1],
            sum: words[first + 2],
            xor: words[first + 3],
        };
        Some(Self {
            sent: totals(0),
            written: totals(4),
            blank_lines: words[8],
            bad_lines: words[9],
            input_bytes: words[10],
        })
    }
}

/// What was done, how fast, and the proof that nothing was lost.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Summary {
    /// Always `partition`.
    pub command: &'static str,
    /// What it is about.
    #[serde(flatten)]
    pub subject: Subject,
    /// Name of the hash of keys and of the checksum.
    pub hash: &'static str,
    /// Part of a key, as a formula.
    pub partition: &'static str,
    /// Ranks of the job.
    pub ranks: u32,
    /// Bytes of the input files, as they are on the disk or come through a pipe.
    pub input_bytes: u64,
    /// Records in parts.
    pub records: u64,
    /// Blank lines that were left out.
    pub blank_lines: u64,
    /// Records that could not be taken.
    pub bad_lines: u64,
    /// Records per second.
    pub records_per_s: f64,
    /// Input bytes per second.
    pub bytes_per_s: f64,
    /// Fewest records of a part.
    pub partition_records_min: u64,
    /// Mean of records per part.
    pub partition_records_mean: f64,
    /// Most records of a part.
    pub partition_records_max: u64,
    /// Each part, by name.
    pub partitions: Vec<Partition>,
    /// What all ranks read.
    pub read: Totals,
    /// What all ranks wrote.
    pub written: Totals,
    /// Both are equal.
    pub verified: bool,
}

/// One part.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Partition {
    /// Its file, below the output directory.
    pub file: String,
    /// Its records.
    pub records: u64,
    /// Its bytes, without header and before they were compressed.
    pub bytes: u64,
}

/// What a summary is about.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Subject {
    /// Directory of the parts.
    pub out: String,
    /// Format of input and output.
    pub format: Format,
    /// How parts are compressed.
    pub compression: Compression,
    /// The columns or fields of the key, as given.
    pub key: Vec<String>,
    /// What of the key decides the part.
    pub split: Split,
    /// The columns or fields that the records of a part are sorted by.
    pub sort: Vec<String>,
    /// What became of records that could not be taken.
    pub on_bad_line: OnBadLine,
    /// Where the first one of them is, and what is wrong with it.
    pub first_bad_line: Option<String>,
    /// How rank 0 read its files: `io_uring`, `pread` or `stream`.
    pub io: &'static str,
    /// Input files.
    pub files: usize,
    /// From the start of the job to the last byte on the disk.
    pub seconds: f64,
}

/// Parts that the table for people has lines for.
const LISTED: usize = 64;

impl Summary {
    /// Adds the shares of all ranks up; `parts` are known on rank 0 only.
    ///
    /// # Errors
    /// The sentence to fail with if what was written is not what was read.
    pub(crate) fn of(
        subject: Subject,
        shares: &[Share],
        mut parts: Vec<Partition>,
    ) -> Result<Self, String> {
        let mut all = Share::default();
        for share in shares {
            all.sent.join(&share.sent);
            all.written.join(&share.written);
            all.blank_lines += share.blank_lines;
            all.bad_lines += share.bad_lines;
            all.input_bytes += share.input_bytes;
        }
        let (read, written) = (all.sent, all.written);
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
        parts.sort_by(|one, other| one.file.cmp(&other.file));
        let skipped = match subject.on_bad_line {
            OnBadLine::Skip => all.bad_lines,
            OnBadLine::Stop | OnBadLine::Keep => 0,
        };
        let records = read.records - skipped;
        let each = || parts.iter().map(|part| part.records);
        let seconds = subject.seconds.max(1e-9);
        Ok(Self {
            command: "partition",
            hash: HASH_NAME,
            partition: match subject.split {
                Split::Hash => "xxh3_64(key) * parts >> 64",
                Split::Value => "KEY=value",
            },
            ranks: shares.len() as u32,
            input_bytes: all.input_bytes,
            records,
            blank_lines: all.blank_lines,
            bad_lines: all.bad_lines,
            records_per_s: records as f64 / seconds,
            bytes_per_s: all.input_bytes as f64 / seconds,
            partition_records_min: each().min().unwrap_or(0),
            partition_records_mean: records as f64 / parts.len().max(1) as f64,
            partition_records_max: each().max().unwrap_or(0),
            partitions: parts,
            read,
            written,
            verified: true,
            subject,
        })
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let (about, mut text) = (&self.subject, String::new());
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<22}{value}");
        };
        line("output", Escaped(about.out.as_bytes()).to_string());
        let names = |keys: &[String]| {
            let names = keys.iter().map(|key| Escaped(key.as_bytes()).to_string());
            names.collect::<Vec<_>>().join(", ")
        };
        let key = names(&about.key);
        match about.split {
            Split::Hash => line("key", format!("{key} ({}, {})", self.hash, self.partition)),
            Split::Value => line("key", format!("{key} (a directory for each value)")),
        }
        if !about.sort.is_empty() {
            line("sorted by", names(&about.sort));
        }
        line("ranks", self.ranks.to_string());
        line(
            "files",
            format!(
                "{} ({}, read by {})",
                about.files,
                about.format.name(),
                about.io
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
        if self.bad_lines > 0 {
            let (fate, first) = match about.on_bad_line {
                OnBadLine::Skip => ("left out", "_skipped"),
                OnBadLine::Stop | OnBadLine::Keep => ("kept", "the part of the empty key"),
            };
            line(
                "bad lines",
                format!("{} {fate}, in {first}", self.bad_lines),
            );
            if let Some(first) = &about.first_bad_line {
                line("  the first", first.clone());
            }
        }
        line("seconds", format!("{:.3}", about.seconds));
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
        for partition in self.partitions.iter().take(LISTED) {
            line(
                &format!("  {}", Escaped(partition.file.as_bytes())),
                format!(
                    "{:>12} records {:>15} bytes",
                    partition.records, partition.bytes
                ),
            );
        }
        if self.partitions.len() > LISTED {
            let more = self.partitions.len() - LISTED;
            line(
                "",
                format!("{more} more parts; --json and {MARKER} list all"),
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
            compression: Compression::None,
            key: vec!["k".into()],
            split: Split::Hash,
            sort: Vec::new(),
            on_bad_line: OnBadLine::Skip,
            first_bad_line: None,
            io: "pread",
            files: 1,
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

    fn parts(records: &[u64]) -> Vec<Partition> {
        let part = |(number, &records)| Partition {
            file: format!("part-{number:05}"),
            records,
            bytes: 2 * records,
        };
        records.iter().enumerate().map(part).collect()
    }

    #[test]
    fn shares_survive_the_way_to_other_ranks() {
        let share = Share {
            sent: totals(&["a\n"]),
            written: totals(&["b\n", "c\n"]),
            blank_lines: 4,
            bad_lines: 5,
            input_bytes: 6,
        };
        assert_eq!(Share::from_bytes(&share.to_bytes()), Some(share));
        assert_eq!(Share::from_bytes(b"short"), None);
        assert_eq!(Share::from_bytes(&[0; 89]), None);
    }

    #[test]
    fn equal_sides_are_summed_up_and_unequal_ones_refused() {
        let mut shares = [
            Share {
                sent: totals(&["a\n", "b\n", "c\n"]),
                written: totals(&["c\n"]),
                blank_lines: 1,
                bad_lines: 1,
                input_bytes: 10,
            },
            Share {
                written: totals(&["b\n", "a\n"]),
                ..Share::default()
            },
        ];
        let mut unsorted = parts(&[2, 0]);
        unsorted.reverse();
        let summary = Summary::of(subject(), &shares, unsorted).unwrap();
        assert_eq!(
            (
                summary.partition_records_min,
                summary.partition_records_max,
                summary.records,
                &summary.partitions[0].file[..],
            ),
            (0, 2, 2, "part-00000")
        );
        assert!(summary.json().contains("\"verified\":true"));
        assert!(summary.table().contains("part-00001") && summary.table().contains("1 left out"));
        let many = Summary::of(subject(), &shares, parts(&[0; LISTED + 9])).unwrap();
        assert!(many.table().contains("9 more parts"), "{}", many.table());
        shares[1].written = totals(&["b\n", "x\n"]);
        assert!(
            Summary::of(subject(), &shares, parts(&[2]))
                .unwrap_err()
                .contains("lost or changed")
        );
    }
}
