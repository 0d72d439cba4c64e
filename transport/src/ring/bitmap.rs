//! Which lanes have news: one bit per lane, set by its producer, cleared by the inbox's owner; and
//! one lane whose tail the owner watches itself, so that a dialogue leaves the bitmap alone.

use crate::ring::storage::{LaneStorage, Orderings};
use crate::sync::{Ordering, Word, fence};

/// Producer: sets its bit unless it is seen set. Comes after [`Orderings::PUBLISH_FENCE`].
///
/// Returns whether it set the bit.
#[inline]
pub fn mark<W: Word, O: Orderings>(word: &W, bit: u64) -> bool {
    // Seeing the bit set means that the owner's swap comes later: its fence then comes after ours,
    // and it sees our tail. Or that the owner watches our tail.
    if word.load(Ordering::Relaxed) & bit != 0 {
        return false;
    }
    // Relaxed: the publisher's fence and the owner's `TAKE_FENCE` order the tail.
    word.fetch_or(bit, Ordering::Relaxed);
    // Pairs with `SLEEP_FENCE`: either the owner sees this bit before it sleeps, or we see that it
    // sleeps.
    fence(O::MARK_FENCE);
    true
}

/// What the owner watches: the bitmap, and the tail of the lane that last had news.
///
/// While a lane is watched its bit is left alone: once it is set, its producer finds it set and
/// writes nothing, so that the bitmap's line stays with both.
#[derive(Debug, Default)]
pub struct Watch {
    hot: Option<Hot>,
}

/// The watched lane.
#[derive(Debug)]
struct Hot {
    lane: u32,
    /// Its tail, when it was last reported.
    seen: u64,
}

impl Hot {
    /// The lane's bits in word `index` of the bitmap.
    #[inline]
    fn bits(&self, index: usize) -> u64 {
        if self.lane as usize / 64 == index {
            1 << (self.lane % 64)
        } else {
            0
        }
    }
}

impl Watch {
    /// The watched lane.
    #[inline]
    pub fn hot(&self) -> Option<u32> {
        self.hot.as_ref().map(|hot| hot.lane)
    }

    /// Calls `found` with the number of each lane that was published since it was last found; a
    /// lane may be found again although nothing new is there. `words` are the bitmap of an inbox
    /// with `lanes` lanes, and `storage` knows each.
    #[inline]
    pub fn take<S: LaneStorage, O: Orderings>(
        &mut self,
        words: &[S::Word],
        lanes: u32,
        storage: impl Fn(u32) -> S,
        mut found: impl FnMut(u32),
    ) {
        let mut has_news = false;
        if let Some(hot) = &mut self.hot {
            // Relaxed: the reader loads it once more.
            let tail = storage(hot.lane).tail().load(Ordering::Relaxed);
            if tail != hot.seen {
                hot.seen = tail;
                has_news = true;
                found(hot.lane);
            }
        }
        let (mut any, mut last) = (false, None);
        for (index, word) in words.iter().enumerate() {
            let bits = word.load(Ordering::Relaxed);
            let kept = bits & self.hot.as_ref().map_or(0, |hot| hot.bits(index));
            if bits == kept {
                continue;
            }
            // Nobody else clears a bit: what is kept is still set.
            let mut bits = word.swap(kept, Ordering::Relaxed) & !kept;
            any = true;
            while bits != 0 {
                let lane = index as u32 * 64 + bits.trailing_zeros();
                // Bits beyond the last lane are somebody's invention.
                if lane < lanes {
                    found(lane);
                    last = Some(lane);
                }
                bits &= bits - 1;
            }
        }
        if !any {
            return;
        }
        // Pairs with `PUBLISH_FENCE`: a producer that still saw its bit set is seen by the tail
        // reads that follow.
        fence(O::TAKE_FENCE);
        if !has_news && let Some(lane) = last {
            // What is published up to here, its reader finds. What comes later sets the bit, or
            // finds it set after this lane was watched, and we take it then.
            let seen = storage(lane).tail().load(Ordering::Relaxed);
            self.hot = Some(Hot { lane, seen });
        }
    }

    /// Whether [`take`](Self::take) would find a lane. Asked once more after announcing a sleep:
    /// either its producer sees that we sleep, or we see its bit or, where it found that set, its
    /// tail.
    #[inline]
    pub fn any<S: LaneStorage>(&self, words: &[S::Word], storage: impl Fn(u32) -> S) -> bool {
        let hot = self.hot.as_ref();
        let others = words.iter().enumerate().any(|(index, word)| {
            let kept = hot.map_or(0, |hot| hot.bits(index));
            word.load(Ordering::Relaxed) & !kept != 0
        });
        others
            || hot.is_some_and(|hot| storage(hot.lane).tail().load(Ordering::Relaxed) != hot.seen)
    }
}
