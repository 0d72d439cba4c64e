//! A census: what the ranks of a node show each other of a stream while each waits for all of them
//! to have sent and delivered everything.
//!
//! A rank shows its counts once nothing waits on it, under a number that is higher each time, and
//! hides them before it sends anything more. Whoever shows something looks at all: where each shows
//! the same number at two looks, and as many records were delivered as sent, all is done. For what
//! is seen at the second look is what all showed at once, in between. Of what a rank sent after it
//! had shown its counts nothing is counted as delivered: who shows that had it of somebody who had
//! hidden before, and the second look would have seen that. So if the sums agree, all that was sent
//! before was delivered before, and nobody had a reason to send more. Somebody finds that out: who
//! shows last, in the order of the fences, sees what all others show.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::memory::segment::Segment;
use crate::ring::layout::{InboxLayout, MappedInbox};
use crate::ring::storage::{Orderings, Shipped};
use crate::sync::{MappedU64, Ordering, Word, fence};

/// What a rank shows, in words that it alone writes.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a, W> {
    /// The number of what it shows; 0 while it shows nothing.
    pub number: &'a W,
    /// Records that it has sent.
    pub sent: &'a W,
    /// Records that it has delivered.
    pub delivered: &'a W,
}

impl<W: Word> Shown<'_, W> {
    /// Owner: shows how many records it has sent and delivered, under a number above those before.
    /// It then looks whether [all are done](agree).
    pub fn show<O: Orderings>(&self, number: u64, (sent, delivered): (u64, u64)) {
        self.hide::<O>();
        self.sent.store(sent, Ordering::Relaxed);
        self.delivered.store(delivered, Ordering::Relaxed);
        // Pairs with `CENSUS_LOAD`: who sees the number sees the counts, and what came before.
        self.number.store(number, O::CENSUS_STORE);
        // Pairs with itself: of two who show, one at least sees what the other does.
        fence(O::CENSUS_FENCE);
    }

    /// Whether something is shown of the census whose numbers begin there.
    #[inline]
    pub fn is_of(&self, from: u64) -> bool {
        is_of(self.number.load(Ordering::Relaxed), from)
    }

    /// Owner: shows nothing any more, before it sends.
    #[inline]
    pub fn hide<O: Orderings>(&self) {
        self.number.store(0, Ordering::Relaxed);
        // Pairs with `CENSUS_CHECK_FENCE`: who sees a count that is written later, or what is sent
        // later, sees the number no more.
        fence(O::CENSUS_HIDE_FENCE);
    }
}

/// Whether something with this number is shown of the census whose numbers begin at `from`: there
/// are 2^32 of them.
#[inline]
fn is_of(number: u64, from: u64) -> bool {
    number.wrapping_sub(from) < 1 << 32
}

/// Whether all show counts of the census whose numbers begin at `from`, and these say that all was
/// delivered.
pub fn agree<'a, W, O>(all: impl Iterator<Item = Shown<'a, W>> + Clone, from: u64) -> bool
where
    W: Word + 'a,
    O: Orderings,
{
    let (mut numbers, mut sent, mut delivered) = (0_u64, 0_u64, 0_u64);
    for of in all.clone() {
        // Pairs with `CENSUS_STORE`.
        let number = of.number.load(O::CENSUS_LOAD);
        if !is_of(number, from) {
            return false;
        }
        numbers = numbers.wrapping_add(number);
        sent = sent.wrapping_add(of.sent.load(Ordering::Relaxed));
        delivered = delivered.wrapping_add(of.delivered.load(Ordering::Relaxed));
    }
    // Pairs with `CENSUS_HIDE_FENCE`.
    fence(O::CENSUS_CHECK_FENCE);
    // None of these numbers falls, so that they are the same if their sum is.
    for of in all {
        let number = of.number.load(Ordering::Relaxed);
        if !is_of(number, from) {
            return false;
        }
        numbers = numbers.wrapping_sub(number);
    }
    numbers == 0 && sent == delivered
}

/// What a rank shows in its inbox's segment, as all of its node see it.
pub struct CensusLine(MappedInbox);

impl fmt::Debug for CensusLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CensusLine({:?})", self.shown())
    }
}

impl CensusLine {
    /// The line in the segment of an inbox of this layout.
    ///
    /// # Errors
    /// When the segment holds no inbox of this layout.
    pub fn new(segment: Arc<Segment>, layout: InboxLayout) -> Result<Self> {
        let inbox = MappedInbox::new(segment, layout)?;
        inbox.header().check::<Shipped>(layout)?;
        inbox.settle()?;
        Ok(Self(inbox))
    }

    /// What its rank shows.
    #[inline]
    pub fn shown(&self) -> Shown<'_, MappedU64> {
        let [number, sent, delivered, _] = self.0.census();
        Shown {
            number,
            sent,
            delivered,
        }
    }

    /// How far its rank has come: whatever it says of that, by [`come`](Self::come).
    pub fn has_come(&self) -> u64 {
        self.0.census()[3].load(Ordering::Relaxed)
    }

    /// Its rank says how far it has come.
    pub fn come(&self, far: u64) {
        self.0.census()[3].store(far, Ordering::Relaxed);
    }

    /// The number of the last census that somebody has found to be over: in the line of one rank
    /// for all.
    #[inline]
    pub fn over(&self) -> u64 {
        // Pairs with the store in `set_over`: what all did before is seen by who hears of the end.
        self.0.census_over().load(Shipped::CENSUS_OVER_LOAD)
    }

    /// A census is over.
    pub fn set_over(&self, census: u64) {
        self.0
            .census_over()
            .store(census, Shipped::CENSUS_OVER_STORE);
    }
}
