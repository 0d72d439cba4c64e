//! Taking a place that only one may hold: the producer's end of a lane, the ownership of an inbox.

use crate::ring::storage::Orderings;
use crate::sync::Word;

/// Takes the place. False where somebody holds it.
pub fn claim<W: Word, O: Orderings>(word: &W) -> bool {
    // Pairs with the store in `give_up`: what the last holder did there comes before what we do.
    word.swap(1, O::CLAIM) == 0
}

/// Gives the place up, for the next one to take.
pub fn give_up<W: Word, O: Orderings>(word: &W) {
    // Pairs with the swap in `claim`.
    word.store(0, O::UNCLAIM);
}
