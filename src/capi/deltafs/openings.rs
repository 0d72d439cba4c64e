//! Opening and closing shuffles, which clients do on each rank for itself and the engine on all
//! ranks at once.
//!
//! A call asks for it, and a thread of the nexus does it once all ranks have asked: they tell each
//! other what they have been asked for, and do what is common to all, in an order that follows from
//! the names. The caller waits a moment, within which the others usually come, and goes on without
//! them if they do not: what it sends is kept until the shuffle is open, and a shuffle that is shut
//! down delivers nothing more here.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::capi::status::Failure;
use crate::threaded::{Job, Shuffle, ShuffleBuilder};
use crate::transport::masked::{self, MaskedThread};
use crate::transport::sync::{Arc, AtomicBool, Condvar, Mutex, Ordering};
use crate::{BroadcastTo, Error, Rank};

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
    stream: OnceLock<Shuffle>,
    /// Its callback is not called any more. Looked at before each call, and alone there, so
    /// relaxed; who shuts down ends the handler beside.
    deaf: AtomicBool,
    state: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// What was sent before the shuffle was open on all ranks.
    early: VecDeque<Early>,
    early_bytes: usize,
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
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
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

    /// The stream, once it is open on all ranks.
    pub fn wait(&self) -> Result<&Shuffle, Error> {
        let mut state = self.lock();
        let began = Instant::now();
        let mut warned = false;
        loop {
            if let Some(stream) = self.stream.get() {
                return Ok(stream);
            }
            if let Some(Err(error)) = &state.ended {
                return Err(error.clone());
            }
            if !warned && began.elapsed() > PATIENCE {
                warned = true;
                tracing::warn!(
                    shuffle = self.name,
                    "a call waits for ranks that have not called shuffle_init yet"
                );
            }
            (state, _) = self
                .changed
                .wait_timeout(state, PATIENCE)
                .unwrap_or_else(PoisonError::into_inner);
        }
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
        let mut state = self.lock();
        while may_wait && state.early_bytes > EARLY_BYTES && state.ended.is_none() {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(Err(error)) = &state.ended {
            return Err(error.clone());
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
        if let Some(stream) = self.stream.get() {
            drop(state);
            return early.send(stream);
        }
        state.early_bytes += bytes.len();
        state.early.push_back(early);
        Ok(())
    }

    /// All ranks have opened it: sends what has waited, and lets callers send by themselves.
    fn opened(&self, stream: &Shuffle) -> Result<(), Error> {
        loop {
            let early = {
                let mut state = self.lock();
                state.early_bytes = 0;
                if state.early.is_empty() {
                    let _ = self.stream.set(stream.clone());
                    self.changed.notify_all();
                    return Ok(());
                }
                self.changed.notify_all();
                std::mem::take(&mut state.early)
            };
            // Outside of the lock: a callback may be sending, and what it sends may wait for it.
            early.iter().try_for_each(|early| early.send(stream))?;
        }
    }

    fn end(&self, outcome: Result<(), Error>) {
        let mut state = self.lock();
        state.ended.get_or_insert(outcome);
        state.early.clear();
        self.changed.notify_all();
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

    /// Its callback is called no more: a call that is being made is waited for.
    fn stop_handler(&self) {
        self.deaf.store(true, Ordering::Relaxed);
        if let Some(stream) = self.stream.get() {
            stream.stop_handler();
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
    /// The how many-th request for a shuffle of this name, and the name.
    key: Key,
    opening: Arc<Opening>,
    work: Work,
}

type Key = (u64, String);

#[derive(Default)]
struct Asks {
    pending: Vec<Ask>,
    /// Requests so far, by name.
    counts: HashMap<String, u64>,
    /// Names of the shuffles that the program has open.
    names: BTreeSet<String>,
    /// The nexus ends: no more is asked for.
    ending: bool,
    /// What has ended the job.
    failure: Option<Error>,
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

    /// Opens a shuffle; returns once it is open on all ranks, or after a moment.
    ///
    /// # Errors
    /// One of this name is open here; what came of it within that moment.
    pub fn open(
        &self,
        name: &str,
        build: impl FnOnce(&Job, Arc<Opening>) -> ShuffleBuilder + Send + 'static,
    ) -> Result<Arc<Opening>, Failure> {
        let opening = Arc::new(Opening::new(name));
        let own = Arc::clone(&opening);
        {
            let mut asks = self.shared.lock();
            if !asks.names.insert(name.to_owned()) {
                let why = format!(
                    "a shuffle `{name}` is open already; shut it down first, or choose another name"
                );
                return Err(Failure::argument(why));
            }
            asks.ask(&opening, Work::Open(Box::new(move |job| build(job, own))))?;
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
    /// What came of it within that moment.
    pub fn close(&self, opening: &Arc<Opening>) -> Result<(), Error> {
        let asked = {
            let mut asks = self.shared.lock();
            asks.names.remove(&opening.name);
            asks.ask(opening, Work::Close)
        };
        self.shared.news.notify_all();
        let closed = match asked {
            Ok(()) => opening.wait_soon(CLOSE_SOON, |_, state| state.ended.clone()),
            Err(error) => Some(Err(error)),
        };
        opening.stop_handler();
        closed.unwrap_or_else(|| {
            tracing::debug!(
                shuffle = opening.name,
                "shut down here before other ranks have"
            );
            Ok(())
        })
    }

    /// Waits until all ranks end their nexus, and have done what all have asked for.
    pub fn end(&self) {
        self.shared.lock().ending = true;
        self.shared.news.notify_all();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            let _ = thread.join(); // what it panicked with, it has said
        }
    }
}

impl Asks {
    fn ask(&mut self, opening: &Arc<Opening>, work: Work) -> Result<(), Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let count = self.counts.entry(opening.name.clone()).or_default();
        let key = (*count, opening.name.clone());
        *count += 1;
        self.pending.push(Ask {
            key,
            opening: Arc::clone(opening),
            work,
        });
        Ok(())
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
            let (ending, own) = {
                let mut asks = self.lock();
                while asks.pending.is_empty() && !asks.ending {
                    asks = self.news.wait(asks).unwrap_or_else(PoisonError::into_inner);
                }
                let keys = asks.pending.iter().map(|ask| ask.key.clone());
                (asks.ending, keys.collect::<BTreeSet<Key>>())
            };
            let all = self.job.allgather_apart(&encode(ending, &own))?;
            let mut common = own;
            let mut all_end = true;
            for (rank, bytes) in (0..).zip(&all) {
                let (ends, keys) = decode(bytes).ok_or_else(|| {
                    let why = "what it has been asked for makes no sense".to_owned();
                    Error::BadPeer { rank, why }
                })?;
                all_end &= ends;
                common.retain(|key| keys.contains(key));
            }
            if common.is_empty() {
                if all_end {
                    self.forget_the_rest();
                    return Ok(());
                }
                // Others wait for what their programs, or this one, will ask for.
                let asks = self.lock();
                let _ = self.news.wait_timeout(asks, PAUSE);
                continue;
            }
            // In the same order on all ranks: that of the keys.
            for key in common {
                let mut asks = self.lock();
                let at = asks.pending.iter().position(|ask| ask.key == key);
                let ask = at.map(|at| asks.pending.remove(at));
                drop(asks);
                if let Some(ask) = ask {
                    self.make(ask);
                }
            }
        }
    }

    /// Opens or closes a shuffle, as all ranks do now.
    fn make(&self, ask: Ask) {
        let Ask { opening, work, .. } = ask;
        match work {
            Work::Open(build) => {
                let opened = build(&self.job).open_apart();
                let opened = opened.and_then(|stream| {
                    opening.opened(&stream)?;
                    // Shut down here meanwhile.
                    if opening.is_deaf() {
                        stream.stop_handler();
                    }
                    Ok(())
                });
                if let Err(error) = opened {
                    tracing::error!(shuffle = opening.name, %error, "it could not be opened");
                    opening.end(Err(error));
                }
            }
            Work::Close => {
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

/// What a rank tells the others: whether it ends, and what it has been asked for.
fn encode(ending: bool, keys: &BTreeSet<Key>) -> Vec<u8> {
    let mut bytes = vec![u8::from(ending)];
    for (number, name) in keys {
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<(bool, BTreeSet<Key>)> {
    let (ending, mut rest) = bytes.split_first()?;
    let mut keys = BTreeSet::new();
    while !rest.is_empty() {
        let (number, after) = rest.split_first_chunk::<8>()?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let (name, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        keys.insert((u64::from_le_bytes(*number), name));
        rest = after;
    }
    Some((*ending != 0, keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_again_and_what_makes_no_sense_is_refused() {
        let keys = BTreeSet::from([
            (0, String::new()),
            (7, "\u{e9}\n".into()),
            (u64::MAX, "b".into()),
        ]);
        for ending in [false, true] {
            let none = BTreeSet::new();
            assert_eq!(decode(&encode(ending, &none)), Some((ending, none)));
            let bytes = encode(ending, &keys);
            assert_eq!(decode(&bytes), Some((ending, keys.clone())));
            // Cut anywhere: none, or fewer of them.
            for end in 0..bytes.len() {
                let read = decode(&bytes[..end]);
                assert!(
                    read.is_none_or(|(_, some)| some.len() < keys.len()),
                    "{end}"
                );
            }
            let mut wrong = bytes;
            *wrong.last_mut().unwrap() = 0xff;
            assert_eq!(decode(&wrong), None);
        }
    }
}
