//! A census: what the ranks of a node show each other of a stream, or of all streams of a job
//! together, while each waits for all of them to have sent and delivered everything.
//!
//! A rank shows its counts once nothing waits on it, under a number that is higher each time, and
//! hides them before it sends anything more. Whoever shows something looks at all: where each
//! shows the same number at two looks, and as many records were delivered as sent, all is done.
//! For what is seen at the second look is what all showed at once, in between. Of what a rank sent
//! after it had shown its counts nothing is counted as delivered: who shows that had it of
//! somebody who had hidden before, and the second look would have seen that. So if the sums agree,
//! all that was sent before was delivered before, and nobody had a reason to send more. Somebody
//! finds that out: who shows last, in the order of the fences, sees what all others show.
//!
//! Where a job has several nodes, the sums of one say nothing alone. All nodes count together:
//! each adds what its ranks had at one time, and these times are different. So records have a
//! colour, as Lai and Yang gave them one: that of the last count for which the sender's node was
//! looked at. Each rank shows how much has come to it of each colour. All is done where as many
//! records were delivered as sent, and no node had got anything of the count's own colour before
//! it was looked at: then these looks are a consistent cut.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::memory::segment::Segment;
use crate::ring::layout::{InboxLayout, MappedInbox};
use crate::ring::storage::{Orderings, Shipped};
use crate::sync::{MappedU64, Ordering, Word, fence};

/// Colours of what is sent, in turns. What a node sends behind count k + 1 may come to another one
/// before that counts for k + 1. With two colours what is late, of count k - 1, would look the
/// same. A colour that is taken for another one costs one more count, and no more.
pub const COLOURS: usize = 4;

/// What a rank has of a stream, or all of a node together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Records that were sent.
    pub sent: u64,
    /// Records that were delivered.
    pub delivered: u64,
    /// Runs that have come, by their colour; tries to deliver them count, too.
    pub heard: [u64; COLOURS],
}

impl Counts {
    /// Adds those of another stream.
    pub fn add(&mut self, more: Self) {
        let add = |sum: &mut u64, more| *sum = sum.wrapping_add(more);
        add(&mut self.sent, more.sent);
        add(&mut self.delivered, more.delivered);
        let heard = self.heard.iter_mut().zip(more.heard);
        heard.for_each(|(sum, more)| add(sum, more));
    }
}

/// What a rank shows, in words that it alone writes.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a, W> {
    /// The number of what it shows, above those before; 0 while it shows nothing.
    pub number: &'a W,
    /// The census that it shows it for.
    pub census: &'a W,
    /// Records that it has sent.
    pub sent: &'a W,
    /// Records that it has delivered.
    pub delivered: &'a W,
    /// What has come of each colour, where there are other nodes.
    pub heard: Option<[&'a W; COLOURS]>,
}

impl<W: Word> Shown<'_, W> {
    /// Owner: shows these counts for a census, under a number above those before. It then looks at
    /// [all of them](together).
    pub fn show<O: Orderings>(&self, number: u64, census: u64, counts: Counts) {
        self.hide::<O>();
        self.census.store(census, Ordering::Relaxed);
        self.sent.store(counts.sent, Ordering::Relaxed);
        self.delivered.store(counts.delivered, Ordering::Relaxed);
        let heard = self.heard.iter().flatten().zip(counts.heard);
        heard.for_each(|(word, heard)| word.store(heard, Ordering::Relaxed));
        // Pairs with `CENSUS_LOAD`: who sees the number sees the counts, and what came before.
        self.number.store(number, O::CENSUS_STORE);
        // Pairs with itself: of two who show, one at least sees what the other does.
        fence(O::CENSUS_FENCE);
    }

    /// Owner: shows nothing any more, before it sends.
    #[inline]
    pub fn hide<O: Orderings>(&self) {
        self.number.store(0, Ordering::Relaxed);
        // Pairs with `CENSUS_CHECK_FENCE`: who sees a count that is written later, or what is sent
        // later, sees the number no more. Over a fabric, what is sent is handed on by the system
        // or an adapter, which order it behind this.
        fence(O::CENSUS_HIDE_FENCE);
    }

    /// Whether something is shown of a census, for who wants to say so and no more.
    pub fn is_of(&self, census: u64) -> bool {
        let number = self.number.load(Ordering::Relaxed);
        number != 0 && self.census.load(Ordering::Relaxed) == census
    }
}

/// What all have together, where all show counts of a census at once. All is done where as many
/// records were delivered as sent, and nobody else sends to any of them.
pub fn together<'a, W, O>(
    all: impl Iterator<Item = Shown<'a, W>> + Clone,
    census: u64,
) -> Option<Counts>
where
    W: Word + 'a,
    O: Orderings,
{
    let (mut numbers, mut counts) = (0_u64, Counts::default());
    let add = |sum: &mut u64, word: &W| *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
    for of in all.clone() {
        // Pairs with `CENSUS_STORE`.
        let number = of.number.load(O::CENSUS_LOAD);
        if number == 0 || of.census.load(Ordering::Relaxed) != census {
            return None;
        }
        numbers = numbers.wrapping_add(number);
        add(&mut counts.sent, of.sent);
        add(&mut counts.delivered, of.delivered);
        let heard = counts.heard.iter_mut().zip(of.heard.into_iter().flatten());
        heard.for_each(|(sum, word)| add(sum, word));
    }
    // Pairs with `CENSUS_HIDE_FENCE`.
    fence(O::CENSUS_CHECK_FENCE);
    // None of these numbers falls but to 0, so that they are the same if their sum is.
    for of in all {
        let number = of.number.load(Ordering::Relaxed);
        if number == 0 {
            return None;
        }
        numbers = numbers.wrapping_sub(number);
    }
    (numbers == 0).then_some(counts)
}

/// Says to the ranks of a node which count of all nodes begins, before [all of them](together) are
/// looked at for it. What they send after that look has its colour.
pub fn begin_count<W: Word, O: Orderings>(counted: &W, count: u64) {
    counted.store(count, Ordering::Relaxed);
    // Pairs with itself in `counted`: a rank that hides what it shows, and is seen to show it
    // still, reads this count.
    fence(O::CENSUS_COUNT_FENCE);
}

/// Owner: the last count of all nodes for which its node was looked at, or is about to be; to be
/// asked once it [shows nothing](Shown::hide) any more, and before it sends.
pub fn counted<W: Word, O: Orderings>(counted: &W) -> u64 {
    // Pairs with itself in `begin_count`: the look of a count that is not read here sees that this
    // rank shows nothing.
    fence(O::CENSUS_COUNT_FENCE);
    counted.load(Ordering::Relaxed)
}

/// Says to a rank that a census is over, in a word that this one alone reads.
pub fn end<W: Word, O: Orderings>(over: &W, census: u64) {
    // Pairs with `CENSUS_OVER_LOAD`: what all did before is seen by who hears of the end.
    over.store(census, O::CENSUS_OVER_STORE);
}

/// The last census of which somebody has said that it is over.
#[inline]
pub fn ended<W: Word, O: Orderings>(over: &W) -> u64 {
    // Pairs with `CENSUS_OVER_STORE`.
    over.load(O::CENSUS_OVER_LOAD)
}

/// How far a rank has come with a stream, as it says itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Come {
    /// Censuses that it has begun.
    pub censuses: u64,
    /// Other calls of all ranks that it has begun.
    pub calls: u64,
}

impl Come {
    /// Its rank says that, in two words that it alone writes.
    pub fn say<W: Word, O: Orderings>(self, censuses: &W, calls: &W) {
        censuses.store(self.censuses, Ordering::Relaxed);
        // Pairs with `CENSUS_COME_LOAD`.
        calls.store(self.calls, O::CENSUS_COME_STORE);
    }

    /// What a rank has said. Whose call is seen has begun the censuses before that for this look,
    /// too.
    pub fn read<W: Word, O: Orderings>(censuses: &W, calls: &W) -> Self {
        // Pairs with `CENSUS_COME_STORE`.
        let calls = calls.load(O::CENSUS_COME_LOAD);
        Self {
            censuses: censuses.load(Ordering::Relaxed),
            calls,
        }
    }
}

/// The part of a rank in a census, in its inbox's segment, as all of its node see it.
#[derive(Clone)]
pub struct CensusLine(MappedInbox);

impl fmt::Debug for CensusLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CensusLine({:?}, {:?})", self.shown(), self.come())
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
        let [number, census, sent, delivered, ..] = self.0.census();
        Shown {
            number,
            census,
            sent,
            delivered,
            heard: None,
        }
    }

    /// The same, where there are other nodes.
    #[inline]
    pub fn shown_to_nodes(&self) -> Shown<'_, MappedU64> {
        Shown {
            heard: Some(self.0.census_heard()),
            ..self.shown()
        }
    }

    /// The last count of all nodes that its rank has begun, which speaks for the node.
    pub fn counted(&self) -> &MappedU64 {
        self.0.census_counted()
    }

    /// How far its rank has come.
    pub fn come(&self) -> Come {
        let [.., censuses, calls] = self.0.census();
        Come::read::<_, Shipped>(censuses, calls)
    }

    /// Its rank says how far it has come.
    pub fn say(&self, come: Come) {
        let [.., censuses, calls] = self.0.census();
        come.say::<_, Shipped>(censuses, calls);
    }

    /// The last census of which somebody has told its rank that it is over.
    #[inline]
    pub fn ended(&self) -> u64 {
        ended::<_, Shipped>(self.0.census_over())
    }

    /// Tells its rank that a census is over.
    pub fn end(&self, census: u64) {
        end::<_, Shipped>(self.0.census_over(), census);
    }
}
