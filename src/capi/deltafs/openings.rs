//! Opening and closing shuffles, which clients do on each rank for itself and the engine on all
//! ranks at once.
//!
//! A call asks for it, and a thread of the nexus does it once all ranks have asked: by reductions
//! over a channel of their own they find out what is common to all. The caller waits a moment,
//! within which the others usually come, and goes on without them if they do not: what it sends is
//! kept until the shuffle is open, and a shuffle that is shut down delivers nothing more here.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::capi::status::Failure;
use crate::threaded::{Job, Shuffle, ShuffleBuilder};
use crate::transport::masked::{self, MaskedThread};
use crate::transport::sync::{Arc, AtomicBool, Condvar, Mutex, Ordering};
use crate::{BroadcastTo, Error, Rank, Reduce};

/// How long `shuffle_init` waits for the other ranks before it goes on without them.
const OPEN_SOON: Duration = Duration::from_millis(500);

/// How long `shuffle_shutdown` does: within it, everything is delivered first.
const CLOSE_SOON: Duration = Duration::from_secs(2);

/// How long ranks that have nothing in common wait for their programs to ask for more.
const PAUSE: Duration = Duration::from_millis(10);

/// After so long a call that cannot go on says so.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of messages that are kept for a shuffle that is not open yet; then its senders wait.
const EARLY_BYTES: usize = 16 << 20;

/// A shuffle as this rank's program has it.
pub(super) struct Opening {
    name: String,
    /// Longest message.
    max_bytes: usize,
    /// It is open on all ranks. What was sent before may still be leaving.
    engine: OnceLock<Shuffle>,
    /// As `engine`, once that has left: callers send by themselves.
    stream: OnceLock<Shuffle>,
    /// Its callback is called no more. Raised with the state locked, so that either the thread that
    /// opens sees it, or the one that raises sees the engine; alone in the look before a call,
    /// where ending the handler does the rest, so relaxed.
    deaf: AtomicBool,
    state: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// What was sent before the shuffle was open on all ranks.
    early: VecDeque<Early>,
    early_bytes: usize,
    /// All ranks have asked for its close: it delivers what is under way, however long that takes.
    closing: bool,
    /// All ranks have closed it, or it could not be opened: nothing happens with it any more.
    ended: Option<Result<(), Error>>,
}

/// A message that waits.
struct Early {
    /// `Err` for a broadcast.
    target: Result<Rank, BroadcastTo>,
    kind: u32,
    bytes: Vec<u8>,
}

impl Early {
    fn send(&self, stream: &Shuffle) -> Result<(), Error> {
        match self.target {
            Ok(target) => stream.send(target, self.kind, &self.bytes),
            Err(to) => stream.broadcast(self.kind, &self.bytes, to),
        }
    }
}

impl Opening {
    fn new(name: &str, max_bytes: usize) -> Self {
        Self {
            name: name.to_owned(),
            max_bytes,
            engine: OnceLock::new(),
            stream: OnceLock::new(),
            deaf: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Name of the shuffle.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its callback is called no more.
    pub fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream, where it is open on all ranks and nothing that was sent before waits.
    #[inline]
    pub fn stream(&self) -> Option<&Shuffle> {
        self.stream.get()
    }

    /// As [`stream`](Self::stream), waiting for it.
    pub fn wait(&self) -> Result<&Shuffle, Error> {
        let state = self.lock();
        drop(self.wait_until(state, |_| self.stream.get().is_some())?);
        Ok(self.stream.get().expect("waited for"))
    }

    /// Holds the first call of the callback back until the shuffle is known to be open: from then
    /// on a shutdown can end the handler.
    pub fn pass_gate(&self) {
        let state = self.lock();
        drop(self.wait_until(state, |_| self.engine.get().is_some()));
    }

    /// Waits until `done`, and says once if that takes long.
    ///
    /// # Errors
    /// The shuffle could not be opened.
    fn wait_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, Progress>,
        done: impl Fn(&Progress) -> bool,
    ) -> Result<MutexGuard<'a, Progress>, Error> {
        let began = Instant::now();
        let mut warned = false;
        while !done(&state) {
            if let Some(Err(error)) = &state.ended {
                return Err(error.clone());
            }
            if !warned && began.elapsed() >= PATIENCE {
                warned = true;
                tracing::warn!(
                    shuffle = self.name,
                    "a call waits for ranks that have not called shuffle_init yet, or for what was sent before"
                );
            }
            (state, _) = self
                .changed
                .wait_timeout(state, PATIENCE)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state)
    }

    /// Sends, or keeps what cannot be sent yet. `may_wait` is false in callbacks, for which more is
    /// kept instead.
    #[cold]
    pub fn send_early(
        &self,
        target: Result<Rank, BroadcastTo>,
        kind: u32,
        bytes: &[u8],
        may_wait: bool,
    ) -> Result<(), Error> {
        if bytes.len() > self.max_bytes {
            return Err(Error::TooLarge {
                bytes: bytes.len(),
                limit: self.max_bytes,
            });
        }
        let mut kept = Vec::new();
        let reserved = kept.try_reserve_exact(bytes.len());
        reserved.map_err(|_| Error::NoMemory { bytes: bytes.len() })?;
        kept.extend_from_slice(bytes);
        let early = Early {
            target,
            kind,
            bytes: kept,
        };
        // What waits leaves first, and no more is added meanwhile: else that might have no end.
        let has_room = |state: &Progress| match self.engine.get() {
            _ if !may_wait => true,
            Some(_) => self.stream.get().is_some(),
            None => state.early_bytes <= EARLY_BYTES,
        };
        let mut state = self.wait_until(self.lock(), has_room)?;
        if let Some(Err(error)) = &state.ended {
            return Err(error.clone());
        }
        if let Some(stream) = self.stream.get() {
            drop(state);
            return early.send(stream);
        }
        let reserved = state.early.try_reserve(1);
        reserved.map_err(|_| Error::NoMemory { bytes: bytes.len() })?;
        state.early_bytes += bytes.len() + size_of::<Early>();
        state.early.push_back(early);
        Ok(())
    }

    /// All ranks have opened it: sends what has waited, and lets callers send by themselves.
    ///
    /// # Errors
    /// Of the first message that could not be sent.
    fn opened(&self, engine: &Shuffle) -> Result<(), Error> {
        let is_deaf = {
            let _state = self.lock();
            let _ = self.engine.set(engine.clone());
            self.is_deaf()
        };
        self.changed.notify_all();
        if is_deaf {
            engine.stop_handler(); // it was shut down here meanwhile
        }
        let mut outcome = Ok(());
        loop {
            let early = {
                let mut state = self.lock();
                state.early_bytes = 0;
                if state.early.is_empty() {
                    let _ = self.stream.set(engine.clone());
                    self.changed.notify_all();
                    return outcome;
                }
                std::mem::take(&mut state.early)
            };
            // Outside of the lock: a callback may be sending, and what it sends may wait for it.
            for message in early {
                outcome = outcome.and(message.send(engine));
            }
        }
    }

    fn end(&self, outcome: Result<(), Error>) {
        let mut state = self.lock();
        state.ended.get_or_insert(outcome);
        state.early.clear();
        self.changed.notify_all();
    }

    /// Why it could not be opened.
    fn failure(&self) -> Option<Error> {
        self.lock().ended.clone().and_then(Result::err)
    }

    /// Waits until `done` gives something, for `limit` at most.
    fn wait_soon<R>(
        &self,
        limit: Duration,
        done: impl Fn(&Self, &Progress) -> Option<R>,
    ) -> Option<R> {
        let deadline = Instant::now() + limit;
        let mut state = self.lock();
        loop {
            if let Some(result) = done(self, &state) {
                return Some(result);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a moment until it is open, or cannot be opened.
    fn open_soon(&self) -> Result<(), Error> {
        let done = |opening: &Self, state: &Progress| match &state.ended {
            Some(ended) => Some(ended.clone()),
            None => opening.stream.get().map(|_| Ok(())),
        };
        self.wait_soon(OPEN_SOON, done).unwrap_or(Ok(()))
    }

    /// Waits for a moment until all ranks have asked for its close, and then until it is closed.
    fn closed_soon(&self) -> Option<Result<(), Error>> {
        let done =
            |_: &Self, state: &Progress| (state.closing || state.ended.is_some()).then_some(());
        self.wait_soon(CLOSE_SOON, done)?;
        let mut state = self.lock();
        loop {
            if let Some(ended) = &state.ended {
                return Some(ended.clone());
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Its callback is called no more: a call that is being made is waited for.
    fn stop_handler(&self) {
        let engine = {
            let _state = self.lock();
            self.deaf.store(true, Ordering::Relaxed);
            self.engine.get()
        };
        if let Some(engine) = engine {
            engine.stop_handler();
        }
    }
}

/// Makes the builder of a shuffle that is opened.
type Build = Box<dyn FnOnce(&Job) -> ShuffleBuilder + Send>;

enum Work {
    Open(Build),
    Close,
}

/// What the program has asked for, and all ranks have to.
struct Ask {
    opening: Arc<Opening>,
    work: Work,
}

#[derive(Default)]
struct Asks {
    /// In the order in which they were made.
    pending: Vec<Ask>,
    /// What was done so far, by the names of shuffles: the same on all ranks.
    done: HashMap<String, u64>,
    /// Names of the shuffles that the program has open.
    names: BTreeSet<String>,
    /// The nexus ends: no more is asked for.
    ending: bool,
    /// What has ended the job.
    failure: Option<Error>,
}

impl Asks {
    fn ask(&mut self, opening: &Arc<Opening>, work: Work) -> Result<(), Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let opening = Arc::clone(opening);
        self.pending.push(Ask { opening, work });
        Ok(())
    }

    /// What can be done next, the oldest request for each name: its place, and what ranks know it
    /// by. That follows from the name, from what is to be done, and from how much was done of the
    /// name; it is never 0 and never the largest.
    fn words(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let mut seen = BTreeSet::new();
        let all = self.pending.iter().enumerate();
        let oldest = all.filter(move |(_, ask)| seen.insert(ask.opening.name()));
        oldest.map(|(at, ask)| {
            let name = ask.opening.name();
            let number = self.done.get(name).copied().unwrap_or(0);
            (at, word_of(name, matches!(ask.work, Work::Close), number))
        })
    }

    /// Takes the request with this word out, which is done now.
    fn take(&mut self, word: u64) -> Option<Ask> {
        let at = self.words().find(|&(_, own)| own == word)?.0;
        let ask = self.pending.remove(at);
        *self.done.entry(ask.opening.name.clone()).or_default() += 1;
        Some(ask)
    }
}

/// See [`Asks::words`].
fn word_of(name: &str, closes: bool, number: u64) -> u64 {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.push(u8::from(closes));
    bytes.extend_from_slice(name.as_bytes());
    // FNV-1a.
    let word = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |word: u64, &byte| {
            (word ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    word.clamp(1, u64::MAX - 1)
}

struct Shared {
    job: Job,
    asks: Mutex<Asks>,
    news: Condvar,
}

/// The thread of a nexus that opens and closes its shuffles.
pub(super) struct Openings {
    shared: Arc<Shared>,
    thread: Mutex<Option<MaskedThread<()>>>,
}

impl Openings {
    pub fn start(job: &Job) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            job: job.clone(),
            asks: Mutex::default(),
            news: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = masked::spawn("trihop-openings", move || theirs.run()).map_err(Error::from)?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Opens a shuffle of messages of at most `max_bytes`; returns once it is open on all ranks, or
    /// after a moment.
    ///
    /// # Errors
    /// One of this name is open here; what came of it within that moment.
    pub fn open(
        &self,
        name: &str,
        max_bytes: usize,
        build: impl FnOnce(&Job, Arc<Opening>) -> ShuffleBuilder + Send + 'static,
    ) -> Result<Arc<Opening>, Failure> {
        let opening = Arc::new(Opening::new(name, max_bytes));
        let own = Arc::clone(&opening);
        {
            let mut asks = self.shared.lock();
            if !asks.names.insert(name.to_owned()) {
                let why = format!(
                    "a shuffle `{name}` is open already; shut it down first, or choose another name"
                );
                return Err(Failure::argument(why));
            }
            let asked = asks.ask(&opening, Work::Open(Box::new(move |job| build(job, own))));
            asked.inspect_err(|_| _ = asks.names.remove(name))?;
        }
        self.shared.news.notify_all();
        let opened = opening.open_soon();
        if let Err(error) = opened {
            self.shared.lock().names.remove(name);
            return Err(error.into());
        }
        Ok(opening)
    }

    /// Closes a shuffle. Everything is delivered first where all ranks close it within a moment;
    /// after that the callback is called no more, and the rest is done as the others come.
    ///
    /// # Errors
    /// What came of it within that moment, or of its opening.
    pub fn close(&self, opening: &Arc<Opening>) -> Result<(), Error> {
        let asked = {
            let mut asks = self.shared.lock();
            asks.names.remove(&opening.name);
            // Nobody closes what could not be opened.
            match opening.failure() {
                Some(failure) => Err(failure),
                None => asks.ask(opening, Work::Close),
            }
        };
        self.shared.news.notify_all();
        let closed = match asked {
            Ok(()) => opening.closed_soon(),
            Err(error) => Some(Err(error)),
        };
        opening.stop_handler();
        closed.unwrap_or_else(|| {
            let stats = opening.engine.get().and_then(Shuffle::stats);
            tracing::info!(
                shuffle = opening.name,
                dropped = stats.map_or(0, |stats| stats.undelivered),
                "shut down here before other ranks have: its callback is called no more"
            );
            Ok(())
        })
    }

    /// Waits until all ranks end their nexus, and have done what all have asked for.
    pub fn end(&self) {
        self.shared.lock().ending = true;
        self.shared.news.notify_all();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread.take();
        if let Some(thread) = thread {
            let _ = thread.join(); // what it panicked with, it has said
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Asks> {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the thread does until the nexus ends.
    fn run(&self) {
        let ended = || Error::Closed("(the nexus has ended)".to_owned());
        let error = self.work().err().unwrap_or_else(ended);
        let mut asks = self.lock();
        asks.failure = Some(error.clone());
        let pending = std::mem::take(&mut asks.pending);
        drop(asks);
        for ask in pending {
            ask.opening.end(Err(error.clone()));
        }
    }

    /// # Errors
    /// The job has failed.
    fn work(&self) -> Result<(), Error> {
        loop {
            {
                let mut asks = self.lock();
                while asks.pending.is_empty() && !asks.ending {
                    asks = self.news.wait(asks).unwrap_or_else(PoisonError::into_inner);
                }
            }
            match self.common()? {
                Common::One(word) => {
                    let ask = self.lock().take(word);
                    if let Some(ask) = ask {
                        self.make(ask);
                    }
                }
                // Others wait for what their programs, or this one, will ask for.
                Common::None => {
                    let asks = self.lock();
                    let _ = self.news.wait_timeout(asks, PAUSE);
                }
                Common::End => {
                    self.forget_the_rest();
                    return Ok(());
                }
            }
        }
    }

    /// Finds a request that all ranks have, the smallest first. All take part in the same
    /// reductions: what they do next follows from what these give.
    fn common(&self) -> Result<Common, Error> {
        let mut tried = 0;
        // Asked once: what comes later than that is found by the next search.
        let ending = self.lock().ending;
        loop {
            let own = {
                let asks = self.lock();
                let words = asks.words().map(|(_, word)| word);
                words.filter(|&word| word > tried).min().unwrap_or(u64::MAX)
            };
            let [least, all_end] = self.agree([own, u64::from(ending)])?;
            if least == u64::MAX {
                return Ok(match all_end {
                    1 => Common::End,
                    _ => Common::None,
                });
            }
            let has = self.lock().words().any(|(_, word)| word == least);
            if self.agree([u64::from(has)])? == [1] {
                return Ok(Common::One(least));
            }
            tried = least;
        }
    }

    /// Smallest of all ranks' values.
    fn agree<const N: usize>(&self, mut values: [u64; N]) -> Result<[u64; N], Error> {
        self.job.allreduce_apart(&mut values, Reduce::Min)?;
        Ok(values)
    }

    /// Opens or closes a shuffle, as all ranks do now.
    fn make(&self, ask: Ask) {
        let Ask { opening, work } = ask;
        match work {
            Work::Open(build) => {
                let engine = match build(&self.job).open_apart() {
                    Ok(engine) => engine,
                    Err(error) => {
                        tracing::error!(shuffle = opening.name, %error, "it could not be opened");
                        let mut asks = self.lock();
                        opening.end(Err(error));
                        // A rank that was quick has asked for its close already.
                        asks.pending
                            .retain(|ask| !Arc::ptr_eq(&ask.opening, &opening));
                        return;
                    }
                };
                if let Err(error) = opening.opened(&engine) {
                    let name = &opening.name;
                    tracing::error!(shuffle = name, %error, "what was sent early was lost");
                }
            }
            Work::Close => {
                opening.lock().closing = true;
                opening.changed.notify_all();
                let closed = match opening.stream.get() {
                    Some(stream) => stream.clone().shutdown(),
                    None => Ok(()), // it could not be opened
                };
                opening.end(closed);
            }
        }
    }

    /// All ranks end, and have nothing in common any more.
    fn forget_the_rest(&self) {
        let pending = std::mem::take(&mut self.lock().pending);
        for ask in pending {
            let what = match ask.work {
                Work::Open(_) => "opened",
                Work::Close => "shut down",
            };
            tracing::warn!(
                shuffle = ask.opening.name,
                "the nexus ends, and not all ranks have {what} it"
            );
            ask.opening
                .end(Err(Error::Closed(ask.opening.name.clone())));
        }
    }
}

/// What the ranks have found.
enum Common {
    /// A request that all of them have.
    One(u64),
    /// None, and a rank may still ask for more.
    None,
    /// None, and all end.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Work {
        Work::Open(Box::new(|_| unreachable!("nothing is opened in this test")))
    }

    #[test]
    fn ranks_know_a_request_by_its_place_among_those_of_its_name() {
        let shuffle = |name: &str| Arc::new(Opening::new(name, 100));
        let words = |asks: &Asks| asks.words().map(|(_, word)| word).collect::<BTreeSet<_>>();
        let (a, b) = (shuffle("a"), shuffle("b"));
        let (open_a, open_b) = (word_of("a", false, 0), word_of("b", false, 0));
        let close_a = word_of("a", true, 1);
        let mut one = Asks::default();
        one.ask(&a, open()).unwrap();
        one.ask(&b, open()).unwrap();
        one.ask(&a, Work::Close).unwrap();
        // In another order, and fewer of them.
        let mut other = Asks::default();
        other.ask(&b, open()).unwrap();
        other.ask(&a, open()).unwrap();
        assert_eq!(
            words(&one),
            BTreeSet::from([open_a, open_b]),
            "not the close"
        );
        assert_eq!(words(&other), words(&one));
        for asks in [&mut one, &mut other] {
            assert!(asks.take(open_a).is_some() && asks.take(open_a).is_none());
        }
        assert_eq!(words(&one), BTreeSet::from([open_b, close_a]));
        assert_eq!(words(&other), BTreeSet::from([open_b]));
        other.ask(&a, Work::Close).unwrap();
        assert!(one.take(close_a).is_some() && other.take(close_a).is_some());
        // The name begins anew, as another request.
        one.ask(&a, open()).unwrap();
        assert_eq!(
            words(&one),
            BTreeSet::from([open_b, word_of("a", false, 2)])
        );
    }

    #[test]
    fn what_comes_early_is_bounded_by_the_longest_message_and_refused_after_a_failure() {
        let opening = Opening::new("early", 10);
        let send = |bytes: &[u8]| opening.send_early(Ok(Rank(0)), 1, bytes, true);
        assert_eq!(send(&[0; 10]), Ok(()));
        let too_large = Error::TooLarge {
            bytes: 11,
            limit: 10,
        };
        assert_eq!(send(&[0; 11]), Err(too_large));
        opening.end(Err(Error::Closed("early".into())));
        assert_eq!(send(&[0; 10]), Err(Error::Closed("early".into())));
        assert_eq!(opening.wait().err(), Some(Error::Closed("early".into())));
    }
}
