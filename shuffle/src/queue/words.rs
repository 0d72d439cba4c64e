//! Copies of short records, word by word.
//!
//! A program mostly writes a record right before it sends it, in pieces of some bytes. A copy by
//! wider loads waits until all of them are in the cache: no store alone has what it loads.

use std::ptr::copy_nonoverlapping;

/// Longer records are copied as all else: there wider loads save more.
const MOST_BYTES: usize = 128;

/// A word that lies anywhere.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Word(u64);

const BYTES: usize = size_of::<Word>();

/// Copies a record to where `to` points.
///
/// # Safety
/// So many bytes may be written there, and they are none of the record's.
#[inline(always)] // part of every send
pub(super) unsafe fn copy(record: &[u8], to: *mut u8) {
    let (from, length) = (record.as_ptr(), record.len());
    if !(BYTES..=MOST_BYTES).contains(&length) {
        // SAFETY: as the caller has promised.
        return unsafe { copy_nonoverlapping(from, to, length) };
    }
    // SAFETY: words at these places are inside of the record, and, as the caller has promised, of
    // where it is copied to. They need no alignment, and all bytes make a word. Volatile, so that
    // no wider loads are made of them.
    let word = |at: usize| unsafe {
        let word = from.add(at).cast::<Word>().read_volatile();
        to.add(at).cast::<Word>().write(word);
    };
    (0..length / BYTES).for_each(|number| word(number * BYTES));
    if !length.is_multiple_of(BYTES) {
        word(length - BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_all_lengths_are_copied_and_nothing_beside_them() {
        for length in 0..2 * MOST_BYTES {
            let record: Vec<u8> = (1..=length).map(|byte| byte as u8).collect();
            for begin in 0..BYTES {
                let mut copied = vec![0xee; length + 2 * BYTES];
                // SAFETY: so many bytes are there, of another allocation.
                unsafe { copy(&record, copied[begin..].as_mut_ptr()) };
                let (before, rest) = copied.split_at(begin);
                let (of_record, behind) = rest.split_at(length);
                assert_eq!(of_record, record);
                assert!(before.iter().chain(behind).all(|&byte| byte == 0xee));
            }
        }
    }
}
