//! Row groups of Parquet files, and which rank reads which.

use std::ops::Range;

/// A row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Group {
    /// Number of the file in the list.
    pub file: usize,
    /// Number of the group in its file.
    pub number: usize,
    /// Rows before it in its file.
    pub first_row: u64,
    /// Its rows.
    pub rows: u64,
    /// Its bytes on the disk.
    pub bytes: u64,
    /// Its bytes before they were compressed.
    pub plain_bytes: u64,
}

/// The groups, by their places in `groups`, that `rank` of `ranks` reads: neighbours, of about as
/// many bytes as those of other ranks. A group is read by one rank.
pub fn deal(groups: &[Group], rank: u32, ranks: u32) -> Range<usize> {
    // No group weighs nothing, so that empty ones are not all one rank's.
    let weight = |group: &Group| u128::from(group.bytes.max(1));
    let total: u128 = groups.iter().map(weight).sum();
    let mut before = 0;
    let owner = |group: &Group| {
        let middle = 2 * before + weight(group);
        before += weight(group);
        middle * u128::from(ranks) / (2 * total)
    };
    let owners: Vec<u128> = groups.iter().map(owner).collect();
    let start = owners.partition_point(|&owner| owner < u128::from(rank));
    let end = owners.partition_point(|&owner| owner <= u128::from(rank));
    start..end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn groups(bytes: &[u64]) -> Vec<Group> {
        let group = |(number, &bytes)| Group {
            file: 0,
            number,
            first_row: 0,
            rows: 1,
            bytes,
            plain_bytes: bytes,
        };
        bytes.iter().enumerate().map(group).collect()
    }

    proptest! {
        #[test]
        fn every_group_is_one_ranks_and_none_has_more_than_its_share_and_a_group(
            bytes in prop::collection::vec(0u64..1000, 0..40),
            ranks in 1u32..20,
        ) {
            let groups = groups(&bytes);
            let total: u64 = bytes.iter().map(|&bytes| bytes.max(1)).sum();
            let most = bytes.iter().copied().max().unwrap_or(0).max(1);
            let mut next = 0;
            for rank in 0..ranks {
                let range = deal(&groups, rank, ranks);
                prop_assert_eq!(range.start, next);
                let own: u64 = bytes[range.clone()].iter().map(|&bytes| bytes.max(1)).sum();
                prop_assert!(own <= total / u64::from(ranks) + 1 + most);
                next = range.end;
            }
            prop_assert_eq!(next, groups.len());
        }
    }

    #[test]
    fn equal_groups_are_dealt_out_equally() {
        let groups = groups(&[70; 8]);
        for ranks in [1, 2, 4, 8] {
            let each = groups.len() / ranks as usize;
            assert!((0..ranks).all(|rank| deal(&groups, rank, ranks).len() == each));
        }
    }
}
