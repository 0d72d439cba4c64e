//! Requests and their replies, which come in the order of the requests.

use std::collections::VecDeque;

use trihop_transport::topology::Rank;

use crate::error::{Error, Result};
use crate::face::job::Job;
use crate::face::shuffle::Shuffle;
use crate::face::state::State;
use crate::face::stream::Item;
use crate::seat::Inline;

/// Marks a reply; the other bits are the number of its request.
const REPLY: u32 = 1 << 31;
const NUMBERS: u32 = REPLY - 1;

/// Requests whose replies have not been pulled.
struct Window<R> {
    /// Number of the first of them.
    first: u32,
    replies: VecDeque<Option<R>>,
    /// Replies that nobody has asked for.
    strange: u64,
}

impl<R> Window<R> {
    fn put(&mut self, number: u32, reply: Option<R>) {
        let at = (number.wrapping_sub(self.first) & NUMBERS) as usize;
        match (self.replies.get_mut(at), reply) {
            (Some(place @ None), Some(reply)) => *place = Some(reply),
            _ => self.strange += 1,
        }
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
    shuffle: Shuffle<Inline<'h>>,
    window: State<Window<R>>,
    most: usize,
    request: std::marker::PhantomData<fn(Q)>,
}

impl<'h, Q: Item, R: Item> Replies<'h, Q, R> {
    /// Opens a stream of this name, which is collective. `answer` is called with each request that
    /// comes, and who asks. At most `most` requests of this rank are under way, or have replies that
    /// were not pulled.
    ///
    /// # Errors
    /// As [`ShuffleBuilder::open`](crate::ShuffleBuilder::open); a limit of none, or above 2^30.
    pub fn open(
        job: &Job<Inline<'h>>,
        name: &str,
        most: usize,
        mut answer: impl FnMut(Rank, Q) -> R + 'h,
    ) -> Result<Self> {
        if !(1..=1 << 30).contains(&most) {
            let why = format!("{most} requests under way: it is 1 to 2^30");
            return Err(Error::config("most", why));
        }
        let window = State::new(Window {
            first: 0,
            replies: VecDeque::new(),
            strange: 0,
        });
        let shuffle = job
            .shuffle(name)
            .handler_with(&window, move |window, message, outbox| {
                if message.kind & REPLY != 0 {
                    let reply = R::read_from_bytes(message.bytes).ok();
                    window.put(message.kind & NUMBERS, reply);
                    return;
                }
                let Ok(request) = Q::read_from_bytes(message.bytes) else {
                    window.strange += 1;
                    return;
                };
                let reply = answer(message.source, request);
                // Where memory is used up, the job ends, and every later call says so.
                let _ = outbox.send(message.source, message.kind | REPLY, reply.as_bytes());
            });
        Ok(Self {
            shuffle: shuffle.open()?,
            window,
            most,
            request: std::marker::PhantomData,
        })
    }

    /// Asks a rank. False, with nothing asked, while as many requests as may be are under way, or
    /// there is no room to send: pull, then ask again.
    ///
    /// # Errors
    /// A bad rank; what has ended the job.
    pub fn ask(&mut self, target: Rank, request: Q) -> Result<bool> {
        let (first, under_way) = self
            .window
            .with(|window| (window.first, window.replies.len()));
        if under_way >= self.most {
            return Ok(false);
        }
        let number = first.wrapping_add(under_way as u32) & NUMBERS;
        match self.shuffle.try_send(target, number, request.as_bytes()) {
            Ok(()) => {
                self.window.with(|window| window.replies.push_back(None));
                Ok(true)
            }
            Err(Error::WouldBlock) => {
                self.shuffle.poll()?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The reply to the oldest request that has none yet, once it is here. Makes a round of progress
    /// where it is not.
    ///
    /// # Errors
    /// As [`Shuffle::poll`]; [`Error::Misuse`] where a rank has answered what nobody asked, or not
    /// by a value of this type.
    pub fn pull(&mut self) -> Result<Option<R>> {
        if let Some(reply) = self.front() {
            return Ok(Some(reply));
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
        Ok(self.front())
    }

    fn front(&mut self) -> Option<R> {
        self.window.with(|window| {
            let reply = (*window.replies.front()?)?;
            window.replies.pop_front();
            window.first = window.first.wrapping_add(1) & NUMBERS;
            Some(reply)
        })
    }

    /// Requests whose replies have not been pulled.
    pub fn outstanding(&self) -> usize {
        self.window.with(|window| window.replies.len())
    }

    /// As [`Shuffle::fence`]: afterwards all replies are here, to be pulled.
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
    pub fn shutdown(self) -> Result<()> {
        self.shuffle.shutdown()
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
        squares.window.with(|window| window.first = NUMBERS - 500);
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
        replies.shuffle.send(Rank(0), REPLY | 3, &[0; 8]).unwrap();
        replies.fence().unwrap();
        assert!(matches!(replies.pull(), Err(Error::Misuse { .. })));
        replies.shuffle.send(Rank(0), 0, b"short").unwrap();
        replies.fence().unwrap();
        assert!(matches!(replies.pull(), Err(Error::Misuse { .. })));
        assert_eq!(replies.pull(), Ok(None));
        replies.shutdown().unwrap();
        job.shutdown().unwrap();
    }
}
