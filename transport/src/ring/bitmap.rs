//! The bitmap of active lanes: one bit per lane, set by its producer, cleared by the inbox's owner.

use crate::ring::storage::Orderings;
use crate::sync::{Ordering, Word, fence};

/// Producer: sets its bit unless it is seen set. Comes after [`Orderings::PUBLISH_FENCE`].
///
/// Returns whether it set the bit.
#[inline]
pub fn mark<W: Word, O: Orderings>(word: &W, bit: u64) -> bool {
    // Seeing the bit set means that the owner's swap comes later: its fence then comes after ours, and it sees our tail.
    if word.load(Ordering::Relaxed) & bit != 0 {
        return false;
    }
    // Relaxed: the publisher's fence and the owner's `TAKE_FENCE` order the tail.
    word.fetch_or(bit, Ordering::Relaxed);
    // Pairs with `SLEEP_FENCE`: either the owner sees this bit before it sleeps, or we see that it sleeps.
    fence(O::MARK_FENCE);
    true
}

/// Owner: clears all bits and calls `found` with the number of each that was set, counted from word 0. The bits of one
/// lane may be reported again although nothing new is there.
#[inline]
pub fn take<W: Word, O: Orderings>(words: &[W], mut found: impl FnMut(u32)) {
    let mut any = false;
    for (index, word) in words.iter().enumerate() {
        if word.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let mut bits = word.swap(0, Ordering::Relaxed);
        any = true;
        while bits != 0 {
            found(index as u32 * 64 + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
    if any {
        // Pairs with `PUBLISH_FENCE`: a producer that still saw its bit set is seen by the tail reads that follow.
        fence(O::TAKE_FENCE);
    }
}

/// Owner: whether any bit is set.
#[inline]
pub fn any<W: Word>(words: &[W]) -> bool {
    words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
}
