//! Requests and their replies, which come in the order of the requests.

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;

use trihop_transport::topology::Rank;
use zerocopy::IntoBytes;

use crate::engine::outbound::Outbound;
use crate::error::{Error, Result};
use crate::face::job::Job;
use crate::face::reservation::zeroed;
use crate::face::shuffle::Shuffle;
use crate::face::state::State;
use crate::face::stream::Item;
use crate::seat::{Inline, Seating};
use crate::terminate::reduce::Reduce;

/// Marks a reply; the other bits are the number of its request.
const REPLY: u32 = 1 << 31;
const NUMBERS: u32 = REPLY - 1;
/// Stands for the rank of a request whose reply is here.
const ANSWERED: u32 = u32::MAX;

/// Requests whose replies have not been pulled.
struct Window {
    /// Number of the first of them.
    first: u32,
    /// Of each, whom it was asked of, or that its reply is here.
    asked: VecDeque<u32>,
    /// Those that were given up: their replies may come late.
    given_up: Vec<u32>,
    /// Replies, by their numbers: there are places for a power of two, which divides all numbers.
    replies: Vec<u8>,
    reply_bytes: usize,
    /// Replies that nobody has asked for, and requests and replies of another size.
    strange: u64,
}

impl Window {
    /// For a reply to each of `most` requests; its memory is touched as replies come.
    fn new(job: &Job<Inline<'_>>, most: usize, sizes: [usize; 2]) -> Result<Self> {
        if !(1..=1 << 30).contains(&most) {
            let why = format!("{most} requests under way: it is 1 to 2^30");
            return Err(Error::config("most", why));
        }
        let [_, reply_bytes] = sizes;
        if reply_bytes == 0 {
            let why = "a reply has a byte at least".to_owned();
            return Err(Error::config("reply_bytes", why));
        }
        let limit = job.seat().with("opening a stream", |state| {
            Ok(state.options.stream.max_message_bytes)
        })?;
        if let Some(&bytes) = sizes.iter().find(|&&bytes| bytes > limit) {
            return Err(Error::TooLarge { bytes, limit });
        }
        let bytes = most.next_power_of_two().checked_mul(reply_bytes);
        Ok(Self {
            first: 0,
            asked: VecDeque::new(),
            given_up: Vec::new(),
            replies: zeroed(bytes.unwrap_or(usize::MAX))?,
            reply_bytes,
            strange: 0,
        })
    }

    fn place_of(&mut self, number: u32) -> &mut [u8] {
        let places = self.replies.len() / self.reply_bytes;
        let start = (number as usize & (places - 1)) * self.reply_bytes;
        &mut self.replies[start..][..self.reply_bytes]
    }

    fn put(&mut self, number: u32, reply: &[u8]) {
        let at = (number.wrapping_sub(self.first) & NUMBERS) as usize;
        match self.asked.get_mut(at) {
            Some(of) if *of != ANSWERED && reply.len() == self.reply_bytes => *of = ANSWERED,
            _ => {
                let late = self.given_up.iter().position(|&of| of == number);
                match late {
                    Some(at) => drop(self.given_up.swap_remove(at)),
                    None => self.strange += 1,
                }
                return;
            }
        }
        self.place_of(number).copy_from_slice(reply);
    }

    fn check(&mut self, name: &str) -> Result<()> {
        match std::mem::take(&mut self.strange) {
            0 => Ok(()),
            strange => {
                let why =
                    format!("{strange} requests or replies are of another type, or of no request");
                Err(Error::misuse(name, why))
            }
        }
    }

    /// Hands the reply to the first of them to `take`, if it is here.
    fn take_first<V>(&mut self, take: impl FnOnce(&[u8]) -> V) -> Option<V> {
        if self.asked.front() != Some(&ANSWERED) {
            return None;
        }
        let number = self.first;
        self.give_up_first();
        Some(take(self.place_of(number)))
    }

    /// Whom the first of them was asked of, while its reply is not here.
    fn first_waits_for(&self) -> Option<Rank> {
        let first = self.asked.front().filter(|&&of| of != ANSWERED);
        first.map(|&of| Rank(of))
    }

    /// The first of them is none any more.
    fn give_up_first(&mut self) {
        self.asked.pop_front();
        self.first = self.first.wrapping_add(1) & NUMBERS;
    }
}

/// [`Replies`] of requests and replies whose sizes are known at run time only: for bindings to other
/// languages.
pub struct UntypedReplies<'h> {
    shuffle: Shuffle<Inline<'h>>,
    window: State<Window>,
    most: usize,
    request_bytes: usize,
    reply_bytes: usize,
    /// Requests whose replies have not been pulled.
    under_way: Cell<usize>,
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
        let window = Window::new(job, most, [request_bytes, reply_bytes]);
        // A rank that cannot says so, rather than leave the others waiting.
        let sizes = [request_bytes as u64, reply_bytes as u64];
        let mut least = [
            window.is_ok().into(),
            sizes[0],
            !sizes[0],
            sizes[1],
            !sizes[1],
        ];
        job.allreduce(&mut least, Reduce::Min)?;
        let why = match least {
            [0, ..] => Some("another rank could not open it, and says why".to_owned()),
            [_, q, not_q, r, not_r] if q != !not_q || r != !not_r => Some(format!(
                "requests of {q} to {} bytes and replies of {r} to {}: all ranks have the same \
                 sizes",
                !not_q, !not_r,
            )),
            _ => None,
        };
        if why.is_some() {
            // All say it before any of them ends by it.
            let _ = job.barrier();
        }
        let window = State::new(window?);
        if let Some(why) = why {
            let name = name.to_owned();
            return Err(Error::Mismatch { name, why });
        }
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
            reply_bytes,
            under_way: Cell::new(0),
        })
    }

    /// Bytes of a request.
    pub fn request_bytes(&self) -> usize {
        self.request_bytes
    }

    /// Bytes of a reply.
    pub fn reply_bytes(&self) -> usize {
        self.reply_bytes
    }

    fn lend<V>(&self, call: impl FnOnce(&mut Window) -> V) -> Result<V> {
        let lent = self.window.try_with(call);
        lent.ok_or(Error::Nested("a call for replies inside of an answer"))
    }

    /// As [`Replies::ask`].
    ///
    /// # Errors
    /// As [`Replies::ask`]; a request of another size.
    pub fn ask(&self, target: Rank, request: &[u8]) -> Result<bool> {
        if request.len() != self.request_bytes {
            let (is, wanted) = (request.len(), self.request_bytes);
            let why = format!("a request of {is} bytes, of {wanted}");
            return Err(Error::misuse(self.shuffle.name(), why));
        }
        let first = self.lend(|window| window.first)?;
        let under_way = self.under_way.get();
        if under_way >= self.most {
            return Ok(false);
        }
        let number = first.wrapping_add(under_way as u32) & NUMBERS;
        match self.shuffle.try_send(target, number, request) {
            Ok(()) => {
                self.under_way.set(under_way + 1);
                self.lend(|window| window.asked.push_back(target.0))?;
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
    pub fn pull<V>(&self, mut take: impl FnMut(&[u8]) -> V) -> Result<Option<V>> {
        let mut taken = self.lend(|window| window.take_first(&mut take))?;
        if taken.is_none() {
            self.shuffle.poll()?;
            taken = self.lend(|window| {
                window.check(self.shuffle.name())?;
                Ok::<_, Error>(window.take_first(take))
            })??;
        }
        let first = match taken {
            Some(_) => None,
            None => self.lend(|window| window.first_waits_for())?,
        };
        // In a job that goes on without ranks that are gone, the first may be one that nobody
        // answers: that is said once, in its place.
        let gone = first.and_then(|of| {
            let is_there = |out: &mut Outbound| out.check_within_reach(of);
            let handle = &self.shuffle.handle;
            handle.with_out("a pull of a reply", is_there).err()
        });
        if gone.is_some() {
            self.lend(|window| {
                window.given_up.push(window.first);
                window.give_up_first();
            })?;
        }
        if taken.is_some() || gone.is_some() {
            self.under_way.update(|under_way| under_way - 1);
        }
        match gone {
            Some(error) => Err(error),
            None => Ok(taken),
        }
    }

    /// As [`Replies::outstanding`].
    pub fn outstanding(&self) -> usize {
        self.under_way.get()
    }

    /// As [`Replies::fence`].
    ///
    /// # Errors
    /// As [`Replies::fence`].
    pub fn fence(&self) -> Result<()> {
        self.shuffle.fence()?;
        self.lend(|window| window.check(self.shuffle.name()))?
    }

    /// As [`Replies::shutdown`].
    ///
    /// # Errors
    /// As [`Replies::shutdown`].
    pub fn close(&self) -> Result<()> {
        self.shuffle.clone().shutdown()?;
        self.lend(|window| window.check(self.shuffle.name()))?
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
    /// no memory for the replies; [`Error::TooLarge`] above `max_message_bytes`;
    /// [`Error::Mismatch`] where ranks have requests or replies of different sizes, or one of them
    /// has another error.
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
    /// by a value of this type; of a request to a rank that is gone, in a job that goes on, once the
    /// error that names it.
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
    /// As [`Shuffle::fence`]; [`Error::Misuse`] as [`Replies::pull`].
    pub fn fence(&self) -> Result<()> {
        self.untyped.fence()
    }

    /// As [`Shuffle::shutdown`].
    ///
    /// # Errors
    /// As [`Shuffle::shutdown`]; [`Error::Misuse`] as [`Replies::pull`].
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
    fn memory_for_replies_is_not_written_before_they_come_and_impossible_sizes_are_refused() {
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = crate::Job::start(options).unwrap();
        let open = |most, sizes| UntypedReplies::open(&job, "replies", most, sizes, |_, _, _| ());
        // 1 TiB of addresses, which the system may refuse.
        if let Ok(replies) = open(1 << 30, (8, 1024)) {
            replies.close().unwrap();
        }
        for (most, sizes) in [
            (1 << 30, (8, 1 << 25)),
            (0, (8, 8)),
            (1, (8, 0)),
            (1, (1 << 40, 8)),
        ] {
            assert!(open(most, sizes).is_err(), "{most} {sizes:?}");
        }
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
        assert!(matches!(replies.fence(), Err(Error::Misuse { .. })));
        replies.untyped.shuffle.send(Rank(0), 0, b"short").unwrap();
        replies.untyped.shuffle.fence().unwrap();
        assert!(matches!(replies.pull(), Err(Error::Misuse { .. })));
        assert_eq!(replies.pull(), Ok(None));
        replies.shutdown().unwrap();
        job.shutdown().unwrap();
    }
}
