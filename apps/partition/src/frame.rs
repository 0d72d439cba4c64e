//! Rows in one buffer, each behind its length.

/// Appends a row behind its length.
pub fn frame(row: &[u8], to: &mut Vec<u8>) {
    // A message, which is longer, has a length of 32 bits.
    to.extend_from_slice(&(row.len() as u32).to_le_bytes());
    to.extend_from_slice(row);
}

/// The rows that were appended so.
#[cfg(any(test, feature = "parquet"))]
pub fn framed(mut rows: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = rows.split_first_chunk()?;
        let (row, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rows = rest;
        Some(row)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_as_they_went_in() {
        let rows: [&[u8]; 4] = [b"a", b"", &[0xFF; 300], b"last"];
        let mut framed_rows = Vec::new();
        rows.iter().for_each(|row| frame(row, &mut framed_rows));
        assert!(framed(&framed_rows).eq(rows));
        framed_rows.pop();
        assert!(framed(&framed_rows).eq(rows[..3].iter().copied()));
    }
}
