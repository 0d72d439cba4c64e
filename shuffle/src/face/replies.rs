//! Requests and their replies, which come in the order of the requests.

use std::collections::VecDeque;
use std::marker::PhantomData;

use trihop_transport::topology::Rank;
use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::face::job::Job;
use crate::face::reservation::zeroed;
use crate::face::shuffle::Shuffle;
use crate::face::state::State;
use crate::face::stream::Item;
use crate::seat::{Inline, Seating};

/// Marks a reply; the other bits are the number of its request.
const REPLY: u32 = 1 << 31;
const NUMBERS: u32 = REPLY - 1;

/// Requests whose replies have not been pulled.
struct Window {
    /// Number of the first of them.
    first: u32,
    /// Of each, whether its reply is here.
    answered: VecDeque<bool>,
    /// Replies, by their numbers: there are places for a power of two, which divides all numbers.
    replies: Vec<u8>,
    reply_bytes: usize,
    /// Replies that nobody has asked for, and requests and replies of another size.
    strange: u64,
}

impl Window {
    fn place_of(&mut self, number: u32) -> &mut [u8] {
        let places = self.replies.len() / self.reply_bytes;
        let start = (number as usize & (places - 1)) * self.reply_bytes;
        &mut self.replies[start..][..self.reply_bytes]
    }

    fn put(&mut self, number: u32, reply: &[u8]) {
        let at = (number.wrapping_sub(self.first) & NUMBERS) as usize;
        match self.answered.get_mut(at) {
            Some(is_here @ false) if reply.len() == self.reply_bytes => *is_here = true,
            _ => {
                self.strange += 1;
                return;
            }
        }
        self.place_of(number).copy_from_slice(reply);
    }

    /// Hands the reply to the first of them to `take`, if it is here.
    fn take_first<V>(&mut self, take: impl FnOnce(&[u8]) -> V) -> Option<V> {
        if self.answered.front() != Some(&true) {
            return None;
        }
        self.answered.pop_front();
        let number = self.first;
        self.first = number.wrapping_add(1) & NUMBERS;
        Some(take(self.place_of(number)))
    }
}

/// [`Replies`] of requests and replies whose sizes are known at run time only: for bindings to other
/// languages.
pub struct UntypedReplies<'h> {
    shuffle: Shuffle<Inline<'h>>,
    window: State<Window>,
    most: usize,
    request_bytes: usize,
}

impl<'h> UntypedReplies<'h> {
    /// As [`Replies::open`]; `answer` fills the reply, which is zeroed.
    ///
    /// # Errors
    /// As [`Replies::open`]; a reply of no bytes.
    pub fn open(
        job: &Job<Inline<'h>>,
        name: &str,
        most: usize,
        (request_bytes, reply_bytes): (usize, usize),
        mut answer: impl FnMut(Rank, &[u8], &mut [u8]) + 'h,
    ) -> Result<Self> {
        if !(1..=1 << 30).contains(&most) {
            let why = format!("{most} requests under way: it is 1 to 2^30");
            return Err(Error::config("most", why));
        }
        if reply_bytes == 0 {
            let why = "a reply has a byte at least".to_owned();
            return Err(Error::config("reply_bytes", why));
        }
        let what = "opening a stream";
        let longest = job
            .seat()
            .with(what, |state| Ok(state.options.stream.max_message_bytes))?;
        if let Some(&bytes) = [request_bytes, reply_bytes]
            .iter()
            .find(|&&bytes| bytes > longest)
        {
            let limit = longest;
            return Err(Error::TooLarge { bytes, limit });
        }
        let bytes = most.next_power_of_two().checked_mul(reply_bytes);
        let window = State::new(Window {
            first: 0,
            answered: VecDeque::new(),
            replies: zeroed(bytes.unwrap_or(usize::MAX))?,
            reply_bytes,
            strange: 0,
        });
        // Of words, so that any type lies where it may.
        let mut words = vec![0u64; reply_bytes.div_ceil(size_of::<u64>())];
        let shuffle = job
            .shuffle(name)
            .handler_with(&window, move |window, message, outbox| {
                if message.kind & REPLY != 0 {
                    window.put(message.kind & NUMBERS, message.bytes);
                    return;
                }
                if message.bytes.len() != request_bytes {
                    window.strange += 1;
                    return;
                }
                words.fill(0);
                let reply = &mut words.as_mut_bytes()[..reply_bytes];
                answer(message.source, message.bytes, reply);
                // Where memory is used up, the job ends, and every later call says so.
                let _ = outbox.send(message.source, message.kind | REPLY, reply);
            });
        Ok(Self {
            shuffle: shuffle.open()?,
            window,
            most,
            request_bytes,
        })
    }

    /// Bytes of a request.
    pub fn request_bytes(&self) -> usize {
        self.request_bytes
    }

    /// Bytes of a reply.
    pub fn reply_bytes(&self) -> usize {
        self.window.with(|window| window.reply_bytes)
    }

    /// As [`Replies::ask`].
    ///
    /// # Errors
    /// As [`Replies::ask`]; a request of another size.
    pub fn ask(&mut self, target: Rank, request: &[u8]) -> Result<bool> {
        if request.len() != self.request_bytes {
            let (is, wanted) = (request.len(), self.request_bytes);
            let why = format!("a request of {is} bytes, of {wanted}");
            return Err(Error::misuse(self.shuffle.name(), why));
        }
        let (first, under_way) = self
            .window
            .with(|window| (window.first, window.answered.len()));
        if under_way >= self.most {
            return Ok(false);
        }
        let number = first.wrapping_add(under_way as u32) & NUMBERS;
        match self.shuffle.try_send(target, number, request) {
            Ok(()) => {
                self.window.with(|window| window.answered.push_back(false));
                Ok(true)
            }
            Err(Error::WouldBlock) => {
                self.shuffle.poll()?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// As [`Replies::pull`]; the reply is handed to `take`.
    ///
    /// # Errors
    /// As [`Replies::pull`].
    pub fn pull<V>(&mut self, mut take: impl FnMut(&[u8]) -> V) -> Result<Option<V>> {
        if let Some(taken) = self.window.with(|window| window.take_first(&mut take)) {
            return Ok(Some(taken));
        }
        self.shuffle.poll()?;
        let strange = self
            .window
            .with(|window| std::mem::take(&mut window.strange));
        if strange > 0 {
            let why =
                format!("{strange} requests or replies are of another type, or of no request");
            return Err(Error::misuse(self.shuffle.name(), why));
        }
        Ok(self.window.with(|window| window.take_first(take)))
    }

    /// As [`Replies::outstanding`].
    pub fn outstanding(&self) -> usize {
        self.window.with(|window| window.answered.len())
    }

    /// As [`Replies::fence`].
    ///
    /// # Errors
    /// As [`Shuffle::fence`].
    pub fn fence(&self) -> Result<()> {
        self.shuffle.fence()
    }

    /// As [`Shuffle::shutdown`].
    ///
    /// # Errors
    /// As [`Shuffle::shutdown`].
    pub fn close(&self) -> Result<()> {
        self.shuffle.clone().shutdown()
    }
}

/// Requests to any rank, each answered by a handler there, whose replies are pulled in the order of
/// the requests: a lookup in a table that is spread over the ranks. On the inline seat; no call but
/// [`Replies::fence`] and [`Replies::shutdown`] waits.
///
/// ```no_run
/// use trihop_shuffle::{Job, Options, Rank, Replies};
///
/// let table: Vec<u64> = (0..1000).collect();
/// let job = Job::start(Options::from_env()?)?;
/// let mut lookups = Replies::open(&job, "lookups", 4096, |_, index: u64| table[index as usize])?;
/// let (mut asked, mut sum) = (0, 0);
/// while asked < 10_000 || lookups.outstanding() > 0 {
///     while asked < 10_000 && lookups.ask(Rank((asked % u64::from(job.size())) as u32), asked % 1000)? {
///         asked += 1;
///     }
///     while let Some(value) = lookups.pull()? {
///         sum += value;
///     }
/// }
/// # let _ = sum;
/// lookups.fence()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Replies<'h, Q, R> {
    untyped: UntypedReplies<'h>,
    of: PhantomData<fn(Q) -> R>,
}

impl<'h, Q: Item, R: Item> Replies<'h, Q, R> {
    /// Opens a stream of this name, which is collective. `answer` is called with each request that
    /// comes, and who asks. At most `most` requests of this rank are under way, or have replies that
    /// were not pulled; there is memory for so many replies.
    ///
    /// # Errors
    /// As [`ShuffleBuilder::open`](crate::ShuffleBuilder::open); a limit of none, or above 2^30;
    /// no memory for the replies.
    pub fn open(
        job: &Job<Inline<'h>>,
        name: &str,
        most: usize,
        mut answer: impl FnMut(Rank, Q) -> R + 'h,
    ) -> Result<Self> {
        const {
            assert!(size_of::<R>() > 0, "a reply has a byte at least");
        }
        let sizes = (size_of::<Q>(), size_of::<R>());
        let answer = move |source, request: &[u8], reply: &mut [u8]| {
            // Of its size: others are not handed out.
            if let Ok(request) = Q::read_from_bytes(request) {
                reply.copy_from_slice(answer(source, request).as_bytes());
            }
        };
        Ok(Self {
            untyped: UntypedReplies::open(job, name, most, sizes, answer)?,
            of: PhantomData,
        })
    }

    /// Asks a rank. False, with nothing asked, while as many requests as may be are under way, or
    /// there is no room to send: pull, then ask again.
    ///
    /// # Errors
    /// A bad rank; what has ended the job.
    pub fn ask(&mut self, target: Rank, request: Q) -> Result<bool> {
        self.untyped.ask(target, request.as_bytes())
    }

    /// The reply to the oldest request that has none yet, once it is here. Makes a round of progress
    /// where it is not.
    ///
    /// # Errors
    /// As [`Shuffle::poll`]; [`Error::Misuse`] where a rank has answered what nobody asked, or not
    /// by a value of this type.
    pub fn pull(&mut self) -> Result<Option<R>> {
        let reply = self.untyped.pull(|reply| R::read_from_bytes(reply).ok())?;
        Ok(reply.flatten())
    }

    /// Requests whose replies have not been pulled.
    pub fn outstanding(&self) -> usize {
        self.untyped.outstanding()
    }

    /// As [`Shuffle::fence`]: afterwards all replies are here, to be pulled.
    ///
    /// # Errors
    /// As [`Shuffle::fence`].
    pub fn fence(&self) -> Result<()> {
        self.untyped.fence()
    }

    /// As [`Shuffle::shutdown`].
    ///
    /// # Errors
    /// As [`Shuffle::shutdown`].
    pub fn shutdown(self) -> Result<()> {
        self.untyped.close()
    }
}

#[cfg(test)]
mod tests {
    use trihop_transport::bootstrap::Launcher;

    use super::*;
    use crate::Options;

    #[test]
    fn replies_come_in_the_order_of_the_requests_and_numbers_may_wrap_around() {
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = crate::Job::start(options).unwrap();
        let mut squares = Replies::open(&job, "squares", 100, |_, n: u64| n * n).unwrap();
        squares
            .untyped
            .window
            .with(|window| window.first = NUMBERS - 500);
        let (mut asked, mut pulled) = (0, 0);
        while pulled < 2000 {
            while asked < 2000 && squares.ask(Rank(0), asked).unwrap() {
                asked += 1;
            }
            assert!(squares.outstanding() <= 100);
            while let Some(square) = squares.pull().unwrap() {
                assert_eq!(square, pulled * pulled);
                pulled += 1;
            }
        }
        assert!(squares.ask(Rank(1), 1).is_err());
        assert_eq!(squares.outstanding(), 0);
        squares.fence().unwrap();
        squares.shutdown().unwrap();
        assert!(Replies::open(&job, "none", 0, |_, n: u64| n).is_err());
        job.shutdown().unwrap();
    }

    #[test]
    fn what_nobody_asked_for_is_told() {
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = crate::Job::start(options).unwrap();
        let mut replies = Replies::open(&job, "replies", 10, |_, n: u64| n).unwrap();
        replies
            .untyped
            .shuffle
            .send(Rank(0), REPLY | 3, &[0; 8])
            .unwrap();
        replies.fence().unwrap();
        assert!(matches!(replies.pull(), Err(Error::Misuse { .. })));
        replies.untyped.shuffle.send(Rank(0), 0, b"short").unwrap();
        replies.fence().unwrap();
        assert!(matches!(replies.pull(), Err(Error::Misuse { .. })));
        assert_eq!(replies.pull(), Ok(None));
        replies.shutdown().unwrap();
        job.shutdown().unwrap();
    }
}
