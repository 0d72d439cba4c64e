//! A node's board: a few words of shared memory that say which rank's end has ended the job, and
//! why.
//!
//! The first news count, for all ranks of the node alike: a rank that ends because of them is not
//! to be taken for the cause. A job that goes on without those that it loses has a list of these
//! beside. A rank looks at two words in each round of progress.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::Result;
use crate::memory::segment::Segment;
use crate::ring::{Orderings, Shipped};
use crate::sync::{MappedU64, Ordering, Word};
use crate::topology::Topology;
use crate::watch::news::{MAX_TEXT_BYTES, News};

/// The word of the first news: cause, place of its text, rank; 0 while there is none.
const NEWS: usize = 0;
/// 1 once all ranks of the job are known to have arrived at its end.
const OVER: usize = 1;
/// 1 where the job goes on without those that it loses.
const GOES_ON: usize = 2;
/// Where they begin: cause and rank of each, in the order in which they were posted, then 0.
const LOST: usize = 8;
/// Losses that a job goes on without at most: one more ends it.
pub const MOST_LOST: usize = 64;
/// Where the places begin.
const PLACES: usize = LOST + MOST_LOST;
/// Words of a place: the length of the text, then the text.
const PLACE: usize = 1 + MAX_TEXT_BYTES / 8;

/// Words of a board with so many places.
pub const fn words(places: usize) -> usize {
    PLACES + places * PLACE
}

/// Posts news, with their text at `place`, which nobody else writes; whether they are the first.
/// Who was first does not post again.
pub fn post<W: Word, O: Orderings>(words: &[W], place: usize, news: &News) -> bool {
    let (cause, text) = news.parts();
    let begin = PLACES + place * PLACE;
    words[begin].store(text.len() as u64, Ordering::Relaxed);
    for (word, bytes) in words[begin + 1..begin + PLACE]
        .iter()
        .zip(text.as_bytes().chunks(8))
    {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
    let word = u64::from(cause) << 56 | (place as u64) << 32 | u64::from(news.rank.0);
    words[NEWS].set_first(word, O::NEWS_STORE)
}

/// The news, if there are any; another process's words are checked.
pub fn read<W: Word, O: Orderings>(words: &[W]) -> Option<News> {
    let word = words[NEWS].load(O::NEWS_LOAD);
    let (cause, place, rank) = (
        (word >> 56) as u8,
        (word >> 32) as usize & 0xff_ffff,
        word as u32,
    );
    let place = words.get(PLACES + place * PLACE..)?.get(..PLACE)?;
    let length = (place[0].load(Ordering::Relaxed) as usize).min(MAX_TEXT_BYTES);
    let text: Vec<u8> = place[1..]
        .iter()
        .take(length.div_ceil(8))
        .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
        .take(length)
        .collect();
    News::of_parts(rank, cause, &text)
}

/// Posts the loss that news tell of, unless it is there; whether it is new, or `None` where there
/// are as many as may be.
pub fn post_loss<W: Word, O: Orderings>(words: &[W], news: &News) -> Option<bool> {
    let (cause, _) = news.parts();
    let loss = u64::from(cause) << 56 | u64::from(news.rank.0);
    for word in &words[LOST..LOST + MOST_LOST] {
        if word.set_first(loss, O::NEWS_STORE) {
            return Some(true);
        }
        if is_same_loss(word.load(Ordering::Relaxed), loss) {
            return Some(false);
        }
    }
    None
}

/// Whether two losses are of one rank, or of one agent and its node.
fn is_same_loss(one: u64, other: u64) -> bool {
    let of = |word: u64| News::of_parts(word as u32, (word >> 56) as u8, b"");
    match (of(one), of(other)) {
        (Some(one), Some(other)) => {
            one.rank == other.rank && one.cause.is_of_node() == other.cause.is_of_node()
        }
        _ => false,
    }
}

/// The loss with this number, in the order in which they were posted; none where it is not there,
/// or a broken process has made it up.
pub fn read_loss<W: Word, O: Orderings>(words: &[W], number: usize) -> Option<News> {
    let word = words[LOST..LOST + MOST_LOST]
        .get(number)?
        .load(O::NEWS_LOAD);
    News::of_parts(word as u32, (word >> 56) as u8, b"")
}

/// Whether there are more losses than so many: one load.
#[inline]
pub fn has_lost<W: Word>(words: &[W], known: usize) -> bool {
    known < MOST_LOST && words[LOST + known].load(Ordering::Relaxed) != 0
}

/// The board of a node, as one of its endpoints, or its watch, uses it.
#[derive(Clone)]
pub struct Board {
    segment: Arc<Segment>,
    words: usize,
    /// Where this user's texts go.
    place: usize,
    topology: Topology,
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Board({:?}, place {})", self.segment, self.place)
    }
}

impl Board {
    /// Bytes of a node's board: a place for each endpoint, and one for the watch.
    pub fn bytes(topology: &Topology) -> usize {
        words(topology.places() as usize + 1) * size_of::<MappedU64>()
    }

    /// The board in this segment, as the endpoint that looks uses it.
    pub fn over(segment: Arc<Segment>, topology: &Topology) -> Self {
        let words = words(topology.places() as usize + 1);
        assert!(
            words * size_of::<MappedU64>() <= segment.len(),
            "{segment:?} holds no board of {words} words"
        );
        Self {
            segment,
            words,
            place: topology.place() as usize,
            topology: topology.clone(),
        }
    }

    /// A new board of a node, empty.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn create(topology: &Topology) -> Result<Self> {
        Ok(Self::over(
            Segment::create(Self::bytes(topology))?,
            topology,
        ))
    }

    /// As another endpoint of this process uses it.
    #[must_use]
    pub fn of_endpoint(&self, topology: &Topology) -> Self {
        Self::over(Arc::clone(&self.segment), topology)
    }

    /// As the node's watch uses it.
    #[must_use]
    pub fn of_watch(&self) -> Self {
        Self {
            place: self.topology.places() as usize,
            ..self.clone()
        }
    }

    /// What the other ranks of the node attach.
    ///
    /// # Errors
    /// When the segment is private.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.segment.descriptor()
    }

    fn words(&self) -> &[MappedU64] {
        // SAFETY: the mapping is page aligned, zeroed at its creation, of at least `words` words as
        // checked when this was made, and lives as long as `self`; it is used as atomic words only,
        // by everybody.
        unsafe { std::slice::from_raw_parts(self.segment.as_ptr().cast::<MappedU64>(), self.words) }
    }

    /// Whether there are news: one load.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.words()[NEWS].load(Ordering::Relaxed) != 0
    }

    /// The first news, if there are any; none that a broken process has made up.
    pub fn news(&self) -> Option<News> {
        read::<_, Shipped>(self.words()).filter(|news| news.rank.0 < self.topology.size())
    }

    /// Posts news unless there are some; whether these are the ones that count now. Where the job
    /// goes on without those that it loses, a loss is posted beside. The caller rings its node's
    /// bells.
    pub fn post(&self, news: &News) -> bool {
        if self.goes_on_without(news)
            && let Some(is_new) = post_loss::<_, Shipped>(self.words(), news)
        {
            return is_new;
        }
        !self.has_news() && post::<_, Shipped>(self.words(), self.place, news)
    }

    /// From now on the job goes on without those that it loses.
    pub fn go_on(&self) {
        self.words()[GOES_ON].store(1, Ordering::Relaxed);
    }

    /// Whether the job goes on without those that it loses.
    pub fn goes_on(&self) -> bool {
        self.words()[GOES_ON].load(Ordering::Relaxed) != 0
    }

    /// Whether the job goes on after such news.
    pub fn goes_on_without(&self, news: &News) -> bool {
        self.goes_on() && news.is_loss(&self.topology)
    }

    /// Whether there are more losses than so many: one load.
    #[inline]
    pub fn has_lost(&self, known: usize) -> bool {
        has_lost(self.words(), known)
    }

    /// The loss with this number: the first is 0. None that a broken process has made up.
    pub fn loss(&self, number: usize) -> Option<News> {
        let loss = read_loss::<_, Shipped>(self.words(), number);
        let is_one =
            |news: &News| news.rank.0 < self.topology.size() && news.is_loss(&self.topology);
        loss.filter(is_one)
    }

    /// All ranks of the job have arrived at its end: who goes from now on does so properly.
    pub fn end(&self) {
        self.words()[OVER].store(1, Ordering::Relaxed);
    }

    /// Whether somebody knows that all have arrived. Pairs with nothing: that one's process has
    /// ended, where it matters.
    pub fn is_over(&self) -> bool {
        self.words()[OVER].load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Rank;
    use crate::watch::Cause;

    #[test]
    fn the_first_news_count_for_all_ranks_of_the_node() {
        let topology = Topology::from_node_sizes(&[3, 2], Rank(0)).unwrap();
        let board = Board::create(&topology).unwrap();
        let other = Board::over(
            Arc::clone(&board.segment),
            &topology.seen_from(Rank(2)).unwrap(),
        );
        assert_eq!(
            (board.news(), other.has_news(), other.is_over()),
            (None, false, false)
        );
        let news = News::failed(Rank(2), "no room");
        assert!(other.post(&news));
        assert!(!board.post(&News {
            rank: Rank(1),
            cause: Cause::Ended
        }));
        assert!(!board.of_watch().post(&News {
            rank: Rank(4),
            cause: Cause::Silent
        }));
        assert_eq!(board.news(), Some(news));
        board.end();
        assert!(other.is_over());
    }

    #[test]
    fn a_job_that_goes_on_has_a_list_of_those_that_it_has_lost() {
        let agents = Topology::from_node_sizes(&[1, 1], Rank(0)).unwrap();
        let topology = agents.with_agents(&[40, 40]).unwrap();
        let board = Board::create(&topology).unwrap();
        let news = |rank, cause| News {
            rank: Rank(rank),
            cause,
        };
        board.go_on();
        // The first rank of a node, and then its agent, which bears that rank's number.
        let losses = [
            news(40, Cause::Left),
            news(40, Cause::AgentEnded),
            news(3, Cause::Ended),
        ];
        for (known, loss) in losses.iter().enumerate() {
            assert!(!board.has_lost(known) && board.post(loss) && board.has_lost(known));
            assert!(!board.post(loss), "it is there");
            assert_eq!(board.loss(known).as_ref(), Some(loss));
        }
        assert!(!board.post(&news(40, Cause::Ended)), "it has left before");
        assert_eq!((board.loss(3), board.has_news()), (None, false));
        // What is no loss ends the job as ever, and so does one loss too many.
        let failed = News::failed(Rank(0), "no room");
        assert!(!board.goes_on_without(&failed) && board.post(&failed));
        let board = Board::create(&topology).unwrap();
        board.go_on();
        for rank in 0..MOST_LOST as u32 {
            assert!(board.post(&news(rank, Cause::Ended)) && !board.has_news());
        }
        assert!(board.post(&news(79, Cause::Ended)));
        assert_eq!(board.news(), Some(news(79, Cause::Ended)));
        assert_eq!(board.loss(MOST_LOST), None);
    }

    #[test]
    fn words_of_a_broken_process_are_no_news_and_no_panic() {
        let topology = Topology::from_node_sizes(&[2], Rank(0)).unwrap();
        let board = Board::create(&topology).unwrap();
        for word in [
            u64::MAX,
            1,
            7 << 56,
            1 << 56 | 2,
            4 << 56 | 3 << 32,
            4 << 56 | 0xff_ffff << 32,
        ] {
            board.words()[NEWS].store(word, Ordering::Relaxed);
            assert_eq!(board.news(), None, "{word:#x}");
        }
        board.words()[NEWS].store(4 << 56, Ordering::Relaxed);
        board.words()[PLACES].store(u64::MAX, Ordering::Relaxed);
        board.words()[PLACES + 1].store(u64::MAX, Ordering::Relaxed);
        assert!(matches!(
            board.news(),
            Some(News {
                cause: Cause::Failed(_),
                ..
            })
        ));
    }
}
