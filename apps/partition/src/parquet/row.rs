//! A row on its way: its hash, then its values as `arrow-row` writes them.

use xxhash_rust::xxh3::xxh3_64;

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'r> {
    /// xxh3-64 of its bytes: its part in the checksum, and what tells that it came unchanged.
    pub hash: u64,
    /// All its values.
    pub bytes: &'r [u8],
}

/// Bytes that are no row, or one that has changed on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit;

impl<'r> Row<'r> {
    /// The row of these values.
    pub fn of(bytes: &'r [u8]) -> Self {
        Self {
            hash: xxh3_64(bytes),
            bytes,
        }
    }

    /// Appends it.
    pub fn write(self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.hash.to_le_bytes());
        to.extend_from_slice(self.bytes);
    }

    /// What [`write`](Self::write) has written. Columns are made only of rows that pass here: what
    /// makes them trusts their bytes.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn parse(record: &'r [u8]) -> Result<Self, Unfit> {
        let (hash, bytes) = record.split_first_chunk().ok_or(Unfit)?;
        let row = Self::of(bytes);
        match row.hash == u64::from_le_bytes(*hash) {
            true => Ok(row),
            false => Err(Unfit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_has_changed_is_refused() {
        let mut record = Vec::new();
        Row::of(b"values").write(&mut record);
        assert_eq!(Row::parse(&record), Ok(Row::of(b"values")));
        for at in 0..record.len() {
            record[at] ^= 1;
            assert_eq!(Row::parse(&record), Err(Unfit), "byte {at}");
            record[at] ^= 1;
            assert!(Row::parse(&record[..at]).is_err());
        }
    }
}
