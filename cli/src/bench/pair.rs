//! What benchmarks between two ranks share: who begins, on which core, what a message holds,
//! patience, medians.

use trihop::Job;
use trihop::transport::bootstrap::local::is_bound;
use trihop::transport::cores::{allowed, keep_to};

use super::Error;
use super::random::Random;

/// Rank that begins every exchange and holds the clock.
pub(crate) const FIRST: u32 = 0;

/// Empty polls after which a waiting rank lets others run: nothing where both have a core, much
/// where they share one.
const PATIENCE: u32 = 512;

/// The other rank of a pair.
///
/// # Errors
/// When the job has more or fewer than two ranks.
pub(crate) fn other(job: &Job<'_>, bench: &'static str) -> Result<u32, Error> {
    if job.size() != 2 {
        let why = format!("{bench} is between two ranks, this job has {}", job.size());
        return Err(Error::Shape(why));
    }
    Ok(1 - job.rank().0)
}

/// Refuses ranks that are bound to a core each: a benchmark whose two ranks, and whatever they are
/// compared with, keep to cores themselves would find one where there are two.
pub(crate) fn check_unbound(job: &Job<'_>, bench: &str) -> Result<(), Error> {
    if !is_bound(job.launcher()) || Cores::find().is_some() {
        return Ok(());
    }
    let why = format!(
        "{bench} keeps to cores itself: start it by `trihop bench {bench}`, or under `trihop run --bind-to none`"
    );
    Err(Error::Shape(why))
}

/// Two cores, one for each of a pair.
///
/// Left alone, the scheduler may put two processes that spin and yield on one core, or move them
/// there half-way: a round trip is then two switches of context instead of two moves of a cache
/// line.
#[derive(Debug, Clone)]
pub(crate) struct Cores([usize; 2]);

impl Cores {
    /// The first two cores that this thread may use, if there are two.
    pub fn find() -> Option<Self> {
        let mut cores = allowed().ok()?.into_iter();
        Some(Self([cores.next()?, cores.next()?]))
    }

    /// Keeps this thread, and what it starts, on the core of one of the two; whether that is so
    /// now.
    pub fn keep_to(&self, which: u32) -> bool {
        keep_to(&[self.0[which as usize % 2]]).is_ok()
    }
}

/// Waiting without sleeping.
#[derive(Debug, Default)]
pub(crate) struct Patience(u32);

impl Patience {
    /// After a poll that found nothing.
    #[inline]
    pub fn wait(&mut self) {
        std::hint::spin_loop();
        self.0 += 1;
        if self.0 == PATIENCE {
            self.0 = 0;
            std::thread::yield_now();
        }
    }
}

/// Fills a whole message: the first word is `number`, the rest follows from it.
pub(crate) fn fill(message: &mut [u8], number: u64) {
    let mut random = Random(number);
    let mut word = number;
    for part in message.chunks_mut(8) {
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
        word = random.next();
    }
}

/// Whether a message is what [`fill`] writes.
pub(crate) fn is_filled(message: &[u8], number: u64) -> bool {
    let mut random = Random(number);
    let mut word = number;
    message.chunks(8).all(|part| {
        let fits = *part == word.to_le_bytes()[..part.len()];
        word = random.next();
        fits
    })
}

/// First word of a message.
#[inline]
pub(crate) fn number(message: &[u8]) -> Option<u64> {
    message.first_chunk::<8>().map(|b| u64::from_le_bytes(*b))
}

/// Middle value; the upper one of two.
///
/// # Panics
/// When there is none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Smallest value.
pub(crate) fn best(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_anywhere_is_found() {
        for size in [8, 9, 24, 1001] {
            let mut message = vec![0; size];
            fill(&mut message, 77);
            assert!(is_filled(&message, 77) && !is_filled(&message, 78));
            assert_eq!(number(&message), Some(77));
            for at in 0..size {
                message[at] ^= 1;
                assert!(!is_filled(&message, 77), "byte {at} of {size}");
                message[at] ^= 1;
            }
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(best([3.0, 1.0, 2.0]), 1.0);
    }
}
