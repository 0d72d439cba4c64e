//! Which bytes of which files a rank reads, and in which state it finds them.

use super::scan::Tally;

/// A piece of one file, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of the file in the list.
    pub file: usize,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset behind the last byte.
    pub end: u64,
    /// Size of the file.
    pub size: u64,
}

impl Span {
    /// A whole file of `size` bytes.
    pub fn whole(file: usize, size: u64) -> Self {
        Self {
            file,
            start: 0,
            end: size,
            size,
        }
    }

    /// A whole file whose end nobody knows.
    pub fn endless(file: usize) -> Self {
        Self::whole(file, u64::MAX)
    }

    /// Whether other ranks depend on what this piece holds: the file goes on behind it.
    pub fn is_continued(&self) -> bool {
        self.end < self.size
    }
}

/// Place of rank `rank`'s first byte in the concatenation of all files of `total` bytes.
fn border(total: u64, rank: u32, ranks: u32) -> u64 {
    (u128::from(total) * u128::from(rank) / u128::from(ranks)) as u64
}

/// The pieces that `rank` of `ranks` reads, in order: an equal share of the files of these sizes,
/// joined in their order.
///
/// Ranks with fewer bytes than ranks get none. All pieces but the last end where their file ends.
pub fn spans(sizes: &[u64], rank: u32, ranks: u32) -> Vec<Span> {
    let total = sizes.iter().sum();
    let (from, to) = (border(total, rank, ranks), border(total, rank + 1, ranks));
    let mut spans = Vec::new();
    let mut base = 0;
    for (file, &size) in sizes.iter().enumerate() {
        let (start, end) = (
            from.clamp(base, base + size) - base,
            to.clamp(base, base + size) - base,
        );
        if start < end {
            spans.push(Span {
                file,
                start,
                end,
                size,
            });
        }
        base += size;
    }
    spans
}

/// How a rank finds its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// It lies inside a quoted field.
    pub quoted: bool,
    /// Line it lies on, counted from 1.
    pub line: u64,
}

/// Entry of a file's first byte.
pub const FILE_START: Entry = Entry {
    quoted: false,
    line: 1,
};

/// Entry of the rank whose first piece is `first`, from the tallies of all ranks.
///
/// `tallies[r]` counts the last piece of rank r if its file goes on behind it
/// ([`Span::is_continued`]), and is zero otherwise.
pub fn entry(first: &Span, rank: u32, sizes: &[u64], tallies: &[Tally]) -> Entry {
    if first.start == 0 {
        return FILE_START;
    }
    let (total, ranks) = (sizes.iter().sum(), tallies.len() as u32);
    let file_base: u64 = sizes[..first.file].iter().sum();
    let mut before = Tally::default();
    // Walk back over the ranks whose last piece is in this file; the first one whose share starts
    // at or before the file is the last.
    for earlier in (0..rank).rev() {
        before.quotes += tallies[earlier as usize].quotes;
        before.newlines += tallies[earlier as usize].newlines;
        if border(total, earlier, ranks) <= file_base {
            break;
        }
    }
    Entry {
        quoted: before.quotes % 2 == 1,
        line: 1 + before.newlines,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spans_cover_every_byte_once(sizes in prop::collection::vec(0u64..40, 0..6), ranks in 1u32..20) {
            let mut next = (0usize, 0u64);
            for rank in 0..ranks {
                let spans = spans(&sizes, rank, ranks);
                for (index, span) in spans.iter().enumerate() {
                    while next.0 < sizes.len() && next.1 == sizes[next.0] {
                        next = (next.0 + 1, 0);
                    }
                    prop_assert_eq!(next, (span.file, span.start));
                    prop_assert!(span.start < span.end && span.end <= span.size);
                    prop_assert!(index + 1 == spans.len() || !span.is_continued());
                    next.1 = span.end;
                }
            }
            while next.0 < sizes.len() && next.1 == sizes[next.0] {
                next = (next.0 + 1, 0);
            }
            prop_assert_eq!(next.0, sizes.len());
        }

        #[test]
        fn entries_agree_with_a_count_from_the_file_start(
            files in prop::collection::vec(prop::collection::vec(prop::sample::select(b"\"\na".to_vec()), 0..30), 1..5),
            ranks in 1u32..12,
        ) {
            let sizes: Vec<u64> = files.iter().map(|file| file.len() as u64).collect();
            let tallies: Vec<Tally> = (0..ranks).map(|rank| {
                let mut tally = Tally::default();
                if let Some(last) = spans(&sizes, rank, ranks).last().filter(|last| last.is_continued()) {
                    tally.add(&files[last.file][last.start as usize..last.end as usize], Some(b'"'));
                }
                tally
            }).collect();
            for rank in 0..ranks {
                let Some(&first) = spans(&sizes, rank, ranks).first() else { continue };
                let mut before = Tally::default();
                before.add(&files[first.file][..first.start as usize], Some(b'"'));
                let expected = Entry { quoted: before.quotes % 2 == 1, line: 1 + before.newlines };
                prop_assert_eq!(entry(&first, rank, &sizes, &tallies), expected);
            }
        }
    }

    #[test]
    fn huge_inputs_do_not_overflow() {
        let sizes = [u64::MAX / 2, u64::MAX / 4];
        assert_eq!(
            spans(&sizes, 99_999, 100_000).last().map(|last| last.end),
            Some(sizes[1])
        );
    }
}
