//! Records on one side of the job, and a checksum of them that does not depend on their order.

use xxhash_rust::xxh3::xxh3_64;

use super::split::without_line_end;

/// Records on one side of the job.
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
    pub(crate) fn add(&mut self, record: &[u8]) {
        self.add_hashed(xxh3_64(without_line_end(record)), record.len());
    }

    /// Counts in one record of so many bytes, and of this hash.
    pub(crate) fn add_hashed(&mut self, hash: u64, length: usize) {
        self.records += 1;
        self.bytes += length as u64;
        self.sum = self.sum.wrapping_add(hash);
        self.xor ^= hash;
    }

    /// Counts others in.
    pub(crate) fn join(&mut self, other: &Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.sum = self.sum.wrapping_add(other.sum);
        self.xor ^= other.xor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
