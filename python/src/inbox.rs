//! What has arrived on a stream and waits to be pulled, and the calls that make it arrive. Nothing
//! here holds Python's lock while it waits.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

use trihop::over::{Step, Threaded, UntypedConveyor};
use trihop::threaded::Untyped;
use trihop::{Arrival, ConveyorState, End, Error, Rank};

use crate::array::Targets;
use crate::detached::{Detached, Ended};
use crate::error::{Failure, SIGNALS_EVERY, check_signals};
use crate::handler;

/// Targets that are looked at before their items are sent.
const TARGETS_AT_ONCE: usize = 64 << 10;
/// How long a wait for a round asks for its end before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// The longest sleep of one without a handler, which takes what arrives in between. Until then it
/// sleeps a quarter of the time that it has waited.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// A place where arrivals are kept.
pub trait Store: Default + Send {
    fn add(&mut self, arrival: Arrival<'_>);
    /// Puts what arrived later behind.
    fn append(&mut self, later: Self);
    fn bytes(&self) -> usize;
}

/// Items, those of one source one after the other.
#[derive(Default)]
pub struct Items {
    pub by_source: BTreeMap<u32, Vec<u8>>,
    bytes: usize,
}

impl Store for Items {
    fn add(&mut self, arrival: Arrival<'_>) {
        let block = self.by_source.entry(arrival.source.0).or_default();
        block.extend_from_slice(arrival.bytes);
        self.bytes += arrival.bytes.len();
    }

    fn append(&mut self, later: Self) {
        self.bytes += later.bytes;
        for (source, mut items) in later.by_source {
            self.by_source.entry(source).or_default().append(&mut items);
        }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Records in the order in which they have arrived.
#[derive(Default)]
pub struct Records {
    bytes: Vec<u8>,
    /// Of each its source, its kind and its length.
    about: Vec<(u32, u32, usize)>,
}

impl Records {
    pub fn each(&self) -> impl Iterator<Item = (u32, u32, &[u8])> {
        let mut rest = &self.bytes[..];
        self.about.iter().map(move |&(source, kind, length)| {
            let (record, later) = rest.split_at(length);
            rest = later;
            (source, kind, record)
        })
    }
}

impl Store for Records {
    fn add(&mut self, arrival: Arrival<'_>) {
        self.bytes.extend_from_slice(arrival.bytes);
        let about = (arrival.source.0, arrival.kind, arrival.bytes.len());
        self.about.push(about);
    }

    fn append(&mut self, mut later: Self) {
        self.bytes.append(&mut later.bytes);
        self.about.append(&mut later.about);
    }

    fn bytes(&self) -> usize {
        self.bytes.len() + self.about.len() * size_of::<(u32, u32, usize)>()
    }
}

/// The end of a step, of one thread at a time.
struct Ending<'a>(&'a Mutex<Option<ThreadId>>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A thread that waits for a round.
struct RoundWaiter(Thread);

impl Wake for RoundWaiter {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A stream without a handler, with what was taken out of its delivery queue.
pub struct Inbox<S: Send> {
    pub untyped: Detached<Untyped>,
    held_bytes: usize,
    /// What arrives is handed to that, and nothing is kept here.
    has_handler: bool,
    state: Detached<Mutex<State<S>>>,
    /// The thread that ends a step.
    ending: Mutex<Option<ThreadId>>,
    /// With a handler: the round that was started, until somebody has heard that it is over. Pushes
    /// of handlers, which that may wait for, need the state and not this.
    handled_round: Detached<Mutex<Option<Step<Threaded>>>>,
    ended: Ended,
}

struct State<S> {
    /// What has arrived since the last round.
    open: S,
    /// What was sent in rounds that are over.
    of_rounds: Option<S>,
    /// The round that is under way, or over and nobody has heard. A conveyor takes what is of it
    /// and nothing of the next one.
    round: Option<UntypedConveyor<Threaded>>,
}

impl<S: Store> State<S> {
    fn bytes(&self) -> usize {
        self.open.bytes() + self.of_rounds.as_ref().map_or(0, Store::bytes)
    }

    /// All that is here, that of rounds first.
    fn all(&mut self) -> S {
        let open = std::mem::take(&mut self.open);
        match self.of_rounds.take() {
            None => open,
            Some(mut all) => {
                all.append(open);
                all
            }
        }
    }

    /// Moves the round that is under way on; whether it is over. Who waits for it has not heard of
    /// that yet.
    fn advance(&mut self) -> Result<bool, Error> {
        let Some(round) = &mut self.round else {
            return Ok(true);
        };
        if round.state() == ConveyorState::Complete {
            return Ok(true);
        }
        let goes_on = round.advance(true)?;
        while let Some((source, bytes)) = round.pull(usize::MAX)? {
            let (kind, count) = (0, 0);
            self.open.add(Arrival {
                source,
                kind,
                count,
                bytes,
            });
        }
        Ok(!goes_on)
    }

    /// As `advance`, by whoever waits for the end: from then on all that is here is of rounds.
    fn end_round(&mut self) -> Result<bool, Error> {
        let is_over = self.advance().inspect_err(|error| {
            // It cannot come any more, and says so once.
            if matches!(
                error,
                Error::PeerDead { .. } | Error::PeerFailed { .. } | Error::AgentDead { .. }
            ) {
                self.round = None;
            }
        })?;
        if is_over && self.round.take().is_some() {
            self.of_rounds = Some(self.all());
        }
        Ok(is_over)
    }
}

impl<S: Store> Inbox<S> {
    pub fn new(untyped: Untyped, held_bytes: usize, has_handler: bool) -> Self {
        let state = State {
            open: S::default(),
            of_rounds: None,
            round: None,
        };
        Self {
            untyped: Detached::new(untyped),
            held_bytes,
            has_handler,
            state: Detached::new(Mutex::new(state)),
            ending: Mutex::default(),
            handled_round: Detached::new(Mutex::new(None)),
            ended: Ended::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        // A panic leaves items at most that have not been counted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has arrived.
    fn take(&self, state: &mut State<S>) -> Result<(), Failure> {
        if self.has_handler {
            return Ok(());
        }
        match state.round {
            Some(_) => state.advance().map(drop)?,
            None => drop(self.untyped.take(|arrival| state.open.add(arrival))?),
        }
        Ok(())
    }

    /// Refuses to take more than may be held.
    fn check_held(&self, state: &State<S>) -> Result<(), Failure> {
        let (bytes, limit) = (state.bytes(), self.held_bytes);
        match bytes < limit {
            true => Ok(()),
            false => Err(Failure::Held {
                stream: self.untyped.name().to_owned(),
                bytes,
                limit,
            }),
        }
    }

    /// Makes `call` until it is done, and room meanwhile for what arrives.
    fn with_room<R>(&self, mut call: impl FnMut() -> Result<R, Error>) -> Result<R, Failure> {
        loop {
            let failure = match call() {
                Ok(done) => return Ok(done),
                Err(error) => Failure::from(error),
            };
            if !failure.would_block() {
                return Err(failure);
            }
            let mut state = self.state();
            self.check_held(&state)?;
            self.take(&mut state)?;
        }
    }

    /// What is here: after a round what was sent until then, and nothing else.
    pub fn pull(&self) -> Result<S, Failure> {
        if self.has_handler {
            let name = self.untyped.name();
            let why = format!("`{name}` has a handler: nothing of it waits to be pulled");
            return Err(Failure::Misuse(why));
        }
        let mut state = self.state();
        if let Some(of_rounds) = state.of_rounds.take() {
            return Ok(of_rounds);
        }
        let taken = self.take(&mut state);
        let open = std::mem::take(&mut state.open);
        match taken {
            Err(failure) if open.bytes() == 0 => Err(failure),
            // What has ended the job is told once all that came before is pulled.
            _ => Ok(open),
        }
    }

    /// Ends a step, or the stream.
    fn end(&self, end: impl FnMut() -> Result<(), Error> + Send) -> Result<(), Failure> {
        match self.has_handler {
            true => handler::end_apart(end),
            false => self.with_room(end),
        }
    }

    /// Ends of steps of several threads follow one another. Signals are heard meanwhile; who has it
    /// is refused, as a handler of a signal may be that comes in a wait, and nobody has it in a
    /// handler, where the call is refused.
    fn one_at_a_time(&self) -> Result<Option<Ending<'_>>, Failure> {
        if handler::is_in_handler() {
            return Ok(None);
        }
        // First, since in a fork nobody lets go of it.
        let name = self.untyped.name();
        let own = thread::current().id();
        loop {
            let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
            if ending.is_none() {
                *ending = Some(own);
                return Ok(Some(Ending(&self.ending)));
            }
            if *ending == Some(own) {
                let why = format!("stream `{name}`: this thread is in the end of a step of it");
                return Err(Failure::Misuse(why));
            }
            drop(ending);
            thread::sleep(LONGEST_NAP);
            check_signals()?;
        }
    }

    /// Refuses what would end a step while a round is: whether that is over already is not the same
    /// on all ranks.
    fn check_no_round(&self, what: &'static str) -> Result<(), Failure> {
        let is_one = match self.has_handler {
            true => self.handled_round(what)?.is_some(),
            false => self.state().round.is_some(),
        };
        match is_one {
            true => {
                let name = self.untyped.name();
                let why = format!("stream `{name}`: a round is under way; wait for it first");
                Err(Failure::Misuse(why))
            }
            false => Ok(()),
        }
    }

    /// The round of a stream with a handler; not inside one, which whoever has it may wait for.
    fn handled_round(
        &self,
        what: &'static str,
    ) -> Result<MutexGuard<'_, Option<Step<Threaded>>>, Failure> {
        if handler::is_in_handler() {
            return Err(Failure::Engine(Error::Nested(what)));
        }
        let round = self.handled_round.lock();
        // A panic leaves a round that is asked for again.
        Ok(round.unwrap_or_else(PoisonError::into_inner))
    }

    pub fn fence(&self) -> Result<(), Failure> {
        let _one = self.one_at_a_time()?;
        self.check_no_round("a fence")?;
        self.end(|| self.untyped.fence())?;
        let mut state = self.state();
        self.take(&mut state)?;
        // All of it was sent before.
        state.open = state.all();
        Ok(())
    }

    pub fn barrier(&self) -> Result<(), Failure> {
        let _one = self.one_at_a_time()?;
        self.check_no_round("a barrier")?;
        self.with_room(|| self.untyped.barrier())
    }

    pub fn close(&self) -> Result<(), Failure> {
        self.ended.once(|| {
            self.end(|| Untyped::clone(&self.untyped).shutdown())?;
            drop(self.state().all());
            Ok(())
        })
    }
}

impl Inbox<Items> {
    /// Sends items, one to each target. How many were sent, and why no more.
    pub fn push(&self, targets: Targets<'_>, items: &[u8]) -> (usize, Result<(), Failure>) {
        // The engine refuses it until the round is over, this until the program has heard so.
        if let Err(failure) = self.between_rounds().map(drop) {
            return (0, Err(failure));
        }
        let bytes = self.untyped.item_bytes();
        let mut ranks = Vec::new();
        let mut at = 0;
        let count = items.len() / bytes;
        while at < count {
            let end = count.min(at + TARGETS_AT_ONCE);
            let (targets, bad) = match targets {
                Targets::Ranks(all) => (&all[at..end], None),
                Targets::One(rank) => {
                    ranks.resize(end - at, rank);
                    (&ranks[..end - at], None)
                }
                Targets::Numbers(all) => {
                    ranks.clear();
                    let numbers = all[at..end].iter();
                    ranks.extend(numbers.map_while(|&number| u32::try_from(number).ok()));
                    (&ranks[..], all[at..end].get(ranks.len()))
                }
            };
            let (sent, outcome) = self.push_ranks(targets, &items[at * bytes..]);
            at += sent;
            if let Err(failure) = outcome {
                return (at, Err(failure));
            }
            if let Some(bad) = bad {
                let size = self.untyped.size();
                let why = format!("target {bad} is not a rank of a job of {size}");
                return (at, Err(Failure::Misuse(why)));
            }
        }
        (at, Ok(()))
    }

    /// Sends the first of `items`, one to each target.
    fn push_ranks(&self, targets: &[u32], items: &[u8]) -> (usize, Result<(), Failure>) {
        let bytes = self.untyped.item_bytes();
        let mut sent = 0;
        let outcome = self.with_room(|| {
            let items = &items[sent * bytes..targets.len() * bytes];
            let (taken, outcome) = self.untyped.push_many(&targets[sent..], items);
            sent += taken;
            outcome
        });
        (sent, outcome)
    }

    /// The state, of no round that is under way.
    fn between_rounds(&self) -> Result<MutexGuard<'_, State<Items>>, Failure> {
        let state = self.state();
        if state.round.is_some() {
            let name = self.untyped.name();
            let why = format!("stream `{name}`: a round is under way; wait for it first");
            return Err(Failure::Misuse(why));
        }
        Ok(state)
    }

    pub fn start_round(&self) -> Result<(), Failure> {
        if self.has_handler {
            let mut round = self.handled_round("a round")?;
            *round = Some(self.untyped.step(End::Round).begin()?);
            return Ok(());
        }
        let mut state = self.between_rounds()?;
        state.round = Some(UntypedConveyor::over(Untyped::clone(&self.untyped))?);
        state.advance().inspect_err(|_| state.round = None)?;
        Ok(())
    }

    /// Whether no round is under way any more.
    pub fn test(&self) -> Result<bool, Failure> {
        self.test_or_wake(Waker::noop())
    }

    /// As `test`; where it is not, and the stream has a handler, `waker` is woken once it may be.
    fn test_or_wake(&self, waker: &Waker) -> Result<bool, Failure> {
        if self.has_handler {
            return self.test_handled(waker);
        }
        let mut state = self.state();
        if state.round.is_some() {
            self.check_held(&state)?;
        }
        Ok(state.end_round()?)
    }

    /// As `test_or_wake`, with a handler.
    fn test_handled(&self, waker: &Waker) -> Result<bool, Failure> {
        let mut round = self.handled_round("a round")?;
        let Some(step) = &mut *round else {
            return Ok(true);
        };
        let Poll::Ready(outcome) = Pin::new(step).poll(&mut Context::from_waker(waker)) else {
            return Ok(false);
        };
        outcome?; // what has failed says so again
        *round = None;
        Ok(true)
    }

    /// Waits until no round is under way any more.
    pub fn wait(&self) -> Result<(), Failure> {
        let waker = Waker::from(Arc::new(RoundWaiter(thread::current())));
        let (mut begun, mut here) = (Instant::now(), self.state().bytes());
        let mut looked = begun;
        while !self.test_or_wake(&waker)? {
            let waited = begun.elapsed();
            if self.has_handler && waited > SPIN {
                thread::park_timeout(SIGNALS_EVERY.saturating_sub(looked.elapsed()));
            } else if waited > SPIN {
                let before = std::mem::replace(&mut here, self.state().bytes());
                match before == here {
                    true => thread::sleep((waited / 4).min(LONGEST_NAP)),
                    false => begun = Instant::now(), // there may be more of that
                }
            }
            if looked.elapsed() > SIGNALS_EVERY {
                check_signals()?;
                looked = Instant::now();
            }
        }
        Ok(())
    }

    /// Where a call of this had no room, its round is under way, or over, and is waited for.
    pub fn round(&self) -> Result<(), Failure> {
        let _one = self.one_at_a_time()?;
        let is_under_way = match self.has_handler {
            true => self.handled_round("a round")?.is_some(),
            false => self.state().round.is_some(),
        };
        match (is_under_way, self.has_handler) {
            (true, _) => {}
            (false, true) => return self.end(|| self.untyped.round()),
            (false, false) => self.start_round()?,
        }
        self.wait()
    }
}

impl Inbox<Records> {
    pub fn send(&self, target: u32, kind: u32, bytes: &[u8]) -> Result<(), Failure> {
        self.with_room(|| self.untyped.send(Rank(target), kind, bytes))
    }

    pub fn try_send(&self, target: u32, kind: u32, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.untyped.try_send(Rank(target), kind, bytes)?)
    }

    pub fn round(&self) -> Result<(), Failure> {
        let _one = self.one_at_a_time()?;
        self.end(|| self.untyped.round())
    }
}
