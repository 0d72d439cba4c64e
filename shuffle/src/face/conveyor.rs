//! Push, pull and advance: a stream for programs that neither wait nor have handlers, as conveyors
//! have it.

use std::marker::PhantomData;
use std::rc::Rc;

use trihop_transport::protocol::wire::RUN_HEADER_BYTES;
use trihop_transport::topology::Rank;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::deliver::Entry;
use crate::engine::outbound::{Outbound, Pushes};
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::face::stream::{Item, Stream, check_item};
use crate::face::untyped::{Untyped, of_usual_size};
use crate::job::JobState;
use crate::queue::window::PushWindow;
use crate::seat::{Handle, Inline, Seat, Seating};
use crate::terminate::End;

/// How many advances in a row have to move nothing until each gives the processor away.
const FRUITLESS_YIELDS: u32 = 2;
/// Until each sleeps, where the program can do nothing with its streams: it pushes no more, or its
/// pushes find no room, and nothing is here to be pulled.
const FRUITLESS_PAUSES: u32 = 6;

/// How far a step of a [`Conveyor`] has come on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConveyorState {
    /// It may push.
    Working,
    /// It pushes no more, and others may.
    Endgame,
    /// Nobody pushes any more, and all that was pushed to this rank is here to be pulled.
    Cleanup,
    /// All of it has been pulled.
    Complete,
}

/// What has come of a call's slow part. A whole result would be given back by its address, which
/// takes registers from a program's loop; its error stays in the belt until it is fetched.
enum Outcome {
    Done,
    NotNow,
    Failed,
}

/// The items of a step, of whatever type. Pulls are short, and programs go far into memory
/// between them: what a processor may do at once then is what counts. So a pull of one item looks
/// at the run that has begun and at two places in it, and changes one.
pub(crate) struct Belt<S: Seating> {
    handle: Handle<S>,
    item_bytes: usize,
    /// The run that has begun, out of its entry as long as it is pulled; empty where none has.
    run: Vec<u64>,
    /// Where the next item begins in it.
    next: usize,
    /// Where items end of which each is pulled by itself, without anything else to be done.
    limit: usize,
    /// Where the items end.
    end: usize,
    source: Rank,
    /// Bytes that the last pull took.
    step: usize,
    /// Where the last pull began that cannot be given back.
    floor: usize,
    /// Runs that have come, of which those before `current` have been pulled. They count in the
    /// stream's delivery queue until all have.
    arrived: Vec<Entry>,
    current: usize,
    /// Where pulls were at the last advance.
    since: (usize, usize),
    /// Advances in a row that have moved nothing.
    fruitless: u32,
    /// A push found no room since the last advance.
    is_refused: bool,
    state: ConveyorState,
    /// Why the last call has failed, until that is fetched.
    failure: Option<Error>,
}

impl<S: Seating> Belt<S> {
    /// Over a stream without a handler.
    pub fn new(handle: Handle<S>, item_bytes: usize) -> Result<Self> {
        if item_bytes == 0 {
            let why = "a conveyor carries items of one size, and this stream has records";
            return Err(Error::misuse(&handle.name, why));
        }
        handle.seat.with("a conveyor", |job| {
            let (state, _) = job.engine.stream(handle.id)?;
            let why = match &state.sink {
                Sink::Closed => return Err(Error::Closed(state.name.clone())),
                Sink::Queue(_) if job.parked.end_of(handle.id.stream).is_none() => return Ok(()),
                Sink::Queue(_) => "a step is still ending on this stream: wait for that first",
                _ => "this stream has a handler; a conveyor is for streams without one",
            };
            Err(Error::misuse(&state.name, why))
        })?;
        Ok(Self {
            handle,
            item_bytes,
            run: Vec::new(),
            next: 0,
            limit: 0,
            end: 0,
            source: Rank(0),
            step: 0,
            floor: 0,
            arrived: Vec::new(),
            current: 0,
            since: (0, 0),
            fruitless: 0,
            is_refused: false,
            state: ConveyorState::Working,
            failure: None,
        })
    }

    /// Takes an item if there is room.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub fn push<T>(&mut self, target: Rank, item: &T) -> Result<bool>
    where
        T: IntoBytes + Immutable + ?Sized,
    {
        match self.push_here(target, item.as_bytes()) {
            true => Ok(true),
            false => self.push_on(target, item.as_bytes()),
        }
    }

    /// Takes an item that needs nothing but its run; whether it is such an item.
    #[inline(always)] // as that
    fn push_here(&self, target: Rank, item: &[u8]) -> bool {
        self.state == ConveyorState::Working && self.handle.push_here(target, item)
    }

    /// As [`Belt::push`], where more than its run is needed.
    #[inline(always)] // as that
    fn push_on(&mut self, target: Rank, item: &[u8]) -> Result<bool> {
        if self.state != ConveyorState::Working {
            return Err(self.misuse("a push after the last one was announced: reset it first"));
        }
        let handle = &self.handle;
        let pushed = handle.push_on(target, item, Pushes::Unpaced, || {
            match handle.with_out("a push", |out| out.try_push(target, item)) {
                Err(Error::WouldBlock) => handle.try_again(|out| out.try_push(target, item)),
                pushed => pushed,
            }
        });
        match pushed {
            Ok(()) => Ok(true),
            Err(Error::WouldBlock) => {
                self.is_refused = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether only others can have this go on, as far as the job's streams tell.
    fn has_nothing_to_do(&self, what: &'static str) -> Result<bool> {
        let pushes = self.state == ConveyorState::Working && !self.is_refused;
        if pushes || !self.is_empty() {
            return Ok(false);
        }
        let pulled: usize = self.arrived.iter().map(Entry::records).sum();
        let untaken = |job: &mut JobState| Ok(job.engine.untaken());
        Ok(self.handle.seat.with(what, untaken)? == pulled)
    }

    #[cold]
    fn misuse(&self, why: &str) -> Error {
        Error::misuse(&self.handle.name, why)
    }

    /// Pulls one item where [`Belt::next`] is at the limit: it begins at [`Belt::floor`] then.
    #[cold]
    #[inline(never)]
    fn pull_on(&mut self) -> Outcome {
        let pulled = self.pull(1).map(|items| items.is_some());
        self.outcome(pulled)
    }

    fn outcome(&mut self, done: Result<bool>) -> Outcome {
        match done {
            Ok(true) => Outcome::Done,
            Ok(false) => Outcome::NotNow,
            Err(error) => {
                self.failure = Some(error);
                Outcome::Failed
            }
        }
    }

    /// Of the call that has failed.
    #[cold]
    #[inline(never)]
    fn take_failure(&mut self) -> Error {
        let failure = self.failure.take();
        failure.unwrap_or_else(|| self.misuse("a failure that was told before"))
    }

    /// The next items of one source that are here, at most so many.
    #[cold]
    pub fn pull(&mut self, most: usize) -> Result<Option<(Rank, &[u8])>> {
        if self.next == self.end && !self.open_next()? {
            return Ok(None);
        }
        self.floor = self.next;
        self.step = (self.end - self.next).min(most.saturating_mul(self.item_bytes));
        self.next += self.step;
        // Behind a pull of one the next ones are no more than that.
        self.limit = match self.step == self.item_bytes {
            true => self.end,
            false => self.next,
        };
        let items = &self.run.as_bytes()[self.floor..self.next];
        Ok(Some((self.source, items)))
    }

    /// Begins the next run.
    fn open_next(&mut self) -> Result<bool> {
        self.close_run();
        let Some(entry) = self.arrived.get_mut(self.current) else {
            return Ok(false);
        };
        let header = match entry.items(self.handle.size, self.item_bytes) {
            Ok(header) => header,
            Err((source, why)) => {
                // Told once: the run is given up.
                self.current += 1;
                return Err(Error::bad_peer(source.unwrap_or(self.source.0), why));
            }
        };
        let bytes = usize::from(header.count) * self.item_bytes;
        self.source = Rank(header.source);
        entry.swap(&mut self.run);
        let end = RUN_HEADER_BYTES + bytes;
        // Pulls of one rely on it.
        assert!(end <= size_of_val(&self.run[..]), "items are in their run");
        (self.next, self.end) = (RUN_HEADER_BYTES, end);
        (self.limit, self.floor) = (self.next, self.next);
        Ok(true)
    }

    /// The run that has begun goes back to its entry, pulled.
    fn close_run(&mut self) {
        if !self.run.is_empty() {
            self.arrived[self.current].swap(&mut self.run);
            self.current += 1;
        }
        (self.next, self.limit, self.end, self.floor) = (0, 0, 0, 0);
    }

    /// Of the items that the last pull gave, so many bytes were not used, and come again. The
    /// others count as pulled one by one.
    pub fn give_rest_back(&mut self, bytes: usize) {
        self.next -= bytes.min(self.next - self.floor);
        self.limit = self.next;
        self.step = self.item_bytes.min(self.next - self.floor);
    }

    /// What was pulled last is pulled again.
    pub fn unpull(&mut self) -> Result<()> {
        if self.next == self.floor {
            return Err(self.misuse("nothing was pulled that could be given back"));
        }
        self.next -= self.step;
        (self.limit, self.floor) = (self.next, self.next);
        Ok(())
    }

    /// Whether all that has come was pulled.
    fn is_empty(&self) -> bool {
        let left = self.arrived.len() - self.current;
        self.next == self.end && left <= usize::from(!self.run.is_empty())
    }

    /// A round of progress, without waiting; false once the step is complete.
    #[inline(never)] // programs' loops of pushes and pulls around it keep their registers
    pub fn advance(&mut self, is_done: bool) -> Result<bool> {
        let what = "an advance";
        if is_done && self.state == ConveyorState::Working {
            self.handle.start(End::Round)?;
            self.state = ConveyorState::Endgame;
        }
        let before = std::mem::replace(&mut self.since, (self.current, self.next));
        if self.handle.seat.progress(what)? || before != self.since {
            self.fruitless = 0;
        } else {
            // Whoever this waits for may need the processor.
            self.fruitless += 1;
            match self.fruitless {
                ..FRUITLESS_YIELDS => {}
                FRUITLESS_PAUSES.. if self.has_nothing_to_do(what)? => {
                    self.handle.seat.pause(what)?;
                }
                _ => std::thread::yield_now(),
            }
        }
        self.is_refused = false;
        let is_empty = self.is_empty();
        let is_ending = self.state == ConveyorState::Endgame;
        let is_working = self.state == ConveyorState::Working;
        if is_ending || is_working && is_empty {
            if is_empty {
                self.close_run();
            }
            let (id, arrived) = (self.handle.id, &mut self.arrived);
            let is_over = self.handle.seat.with(what, |job| {
                // From then on, what comes is of the next step.
                let is_over = is_ending && job.is_over(id)?;
                let (state, _, _) = job.engine.stream_mut(id)?;
                let Sink::Queue(queue) = &mut state.sink else {
                    return Err(Error::Closed(state.name.clone()));
                };
                if is_empty {
                    let count = arrived.len();
                    queue.put_back(std::mem::take(arrived), count);
                    *arrived = queue.take_all();
                } else if is_over {
                    arrived.extend(queue.take_all());
                }
                Ok(is_over)
            })?;
            if is_empty {
                self.current = 0;
            }
            if is_over {
                self.state = ConveyorState::Cleanup;
            }
        }
        if self.state == ConveyorState::Cleanup && self.is_empty() {
            self.give_back();
            self.state = ConveyorState::Complete;
        }
        Ok(self.state != ConveyorState::Complete)
    }

    pub fn state(&self) -> ConveyorState {
        self.state
    }

    /// The next step begins.
    pub fn reset(&mut self) -> Result<()> {
        match self.state {
            ConveyorState::Complete => {
                self.state = ConveyorState::Working;
                Ok(())
            }
            _ => Err(self.misuse("a reset before the step is complete")),
        }
    }

    /// The next step begins, with items of another size.
    pub fn reset_to(&mut self, item_bytes: usize) -> Result<()> {
        if self.state != ConveyorState::Complete {
            return Err(self.misuse("a reset before the step is complete"));
        }
        let resize = |out: &mut Outbound| out.resize_items(item_bytes);
        self.handle.with_out("a reset", resize)?;
        self.item_bytes = item_bytes;
        self.reset()
    }

    /// What has not been pulled waits for the stream's next taker; a run of which a part has been
    /// pulled does not.
    fn give_back(&mut self) {
        self.close_run();
        let entries = std::mem::take(&mut self.arrived);
        let done = std::mem::take(&mut self.current);
        // A job that has failed takes nothing more.
        let _ = self.handle.seat.with("a conveyor", |job| {
            let (state, _, _) = job.engine.stream_mut(self.handle.id)?;
            if let Sink::Queue(queue) = &mut state.sink {
                queue.put_back(entries, done);
            }
            Ok(())
        });
    }
}

impl<S: Seating> Drop for Belt<S> {
    fn drop(&mut self) {
        self.give_back();
        // The stream goes on as it was opened; one that was closed needs nothing.
        let restore = |out: &mut Outbound| {
            out.restore_items();
            Ok(())
        };
        let _ = self.handle.with_out("a conveyor", restore);
    }
}

/// Gives a conveyor what all have.
macro_rules! common_calls {
    ([$($generics:tt)*] $face:ty) => {
        impl<$($generics)*> $face {
            /// The next pull gives what the last one gave; once for each pull.
            ///
            /// # Errors
            /// [`Error::Misuse`] where nothing was pulled since, or the last pull found nothing.
            pub fn unpull(&mut self) -> Result<()> {
                self.belt.unpull()
            }

            /// A round of progress; fetches what has come, once all that was fetched before has
            /// been pulled. It waits for nothing, but gives the processor away where it moves
            /// nothing twice in a row; where that goes on, the last push was announced or found no
            /// room, and nothing is here on any stream, it sleeps until something comes, at most
            /// for a millisecond. `is_done`: this rank pushes no more in this step, which is said
            /// once or in each call from then on. False once nobody does and everything has been
            /// pulled: the step is complete here.
            ///
            /// # Errors
            /// As [`Stream::poll`].
            pub fn advance(&mut self, is_done: bool) -> Result<bool> {
                self.belt.advance(is_done)
            }

            /// How far the step has come.
            pub fn state(&self) -> ConveyorState {
                self.belt.state()
            }

            /// Shuts the stream down, on all ranks in the same step, whose last push they all have
            /// announced or none has. What nobody has pulled is given up, and so is what comes
            /// until all are here; how much is said.
            ///
            /// # Errors
            /// As [`Stream::shutdown`].
            pub fn shutdown(self) -> Result<()> {
                let handle = self.belt.handle.clone();
                drop(self);
                handle.give_up_untaken()?;
                handle.shut_down()
            }

            /// Begins the next step, where one is complete. Ranks do so at their own times: nothing
            /// of a later step is pulled in an earlier one.
            ///
            /// # Errors
            /// [`Error::Misuse`] before the step is complete.
            pub fn reset(&mut self) -> Result<()> {
                self.belt.reset()
            }
        }
    };
}

/// A stream by push, pull and advance: for programs that neither wait nor have handlers. None of
/// its calls waits for others. Each step ends on all ranks once each has said that it pushes no
/// more.
///
/// Where a push finds no room, advance and pull, then push again. Delivery queues are bounded, so a
/// rank that does not pull keeps those waiting who push to it.
///
/// ```no_run
/// use trihop_shuffle::{Conveyor, Job, Options, Rank};
///
/// let job = Job::start(Options::from_env()?)?;
/// let mut table = vec![0u64; 1000];
/// let ranks = u64::from(job.size());
/// let mut left = (0..10_000u64).map(|n| (Rank((n % ranks) as u32), n % 1000)).peekable();
/// let mut conveyor = Conveyor::over(job.stream::<u64>("updates").open()?)?;
/// while conveyor.advance(left.peek().is_none())? {
///     while let Some(&(target, index)) = left.peek() {
///         if !conveyor.push(target, index)? {
///             break;
///         }
///         left.next();
///     }
///     while let Some((_, index)) = conveyor.pull()? {
///         table[*index as usize] += 1;
///     }
/// }
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Conveyor<T, S: Seat> {
    belt: Belt<S>,
    item: PhantomData<fn() -> T>,
}

impl<T: Item, S: Seat> Conveyor<T, S> {
    /// Of a stream without a handler, which is used by nothing else meanwhile. It is shut down by
    /// [`Conveyor::shutdown`], or with the job, and not dropped inside of a handler.
    ///
    /// # Errors
    /// [`Error::Misuse`]: the stream has a handler, or a step that ends; one that was shut down.
    pub fn over(stream: Stream<T, S>) -> Result<Self> {
        Ok(Self {
            belt: Belt::new(stream.handle, size_of::<T>())?,
            item: PhantomData,
        })
    }

    /// Sends an item; false, with nothing taken, where there is no room now.
    ///
    /// # Errors
    /// [`Error::Misuse`] after the last push was announced; a bad rank; what has ended the job.
    #[inline]
    pub fn push(&mut self, target: Rank, item: T) -> Result<bool> {
        if self.belt.push_here(target, item.as_bytes()) {
            return Ok(true);
        }
        match self.push_on(target, item) {
            Outcome::Done => Ok(true),
            Outcome::NotNow => Ok(false),
            Outcome::Failed => Err(self.belt.take_failure()),
        }
    }

    /// As `Stream::push_on`.
    #[inline(never)]
    fn push_on(&mut self, target: Rank, item: T) -> Outcome {
        let pushed = self.belt.push_on(target, item.as_bytes());
        self.belt.outcome(pushed)
    }

    /// As [`Conveyor::reset`], with items of another type in the next step: of the same on all
    /// ranks. A run of items from a rank that has another one fails to be pulled where so many
    /// cannot be in its bytes; else it is taken for what it is not. The size is within what the
    /// stream's options allow. On failure the stream goes on until its job ends.
    ///
    /// # Errors
    /// [`Error::Misuse`] before the step is complete; [`Error::Config`] on an item that is too
    /// long.
    pub fn reset_as<U: Item>(mut self) -> Result<Conveyor<U, S>> {
        const { check_item::<U>() }
        self.belt.reset_to(size_of::<U>())?;
        Ok(Conveyor {
            belt: self.belt,
            item: PhantomData,
        })
    }

    /// The next item that is here, in place, and who sent it. [`Conveyor::pull_many`] gives slices,
    /// which a program gets through in half the time where it goes far into memory for each item.
    ///
    /// # Errors
    /// A peer whose bytes make no sense.
    #[inline]
    pub fn pull(&mut self) -> Result<Option<(Rank, &T)>> {
        let belt = &mut self.belt;
        let mut at = belt.next;
        if at == belt.limit {
            match belt.pull_on() {
                Outcome::Done => at = belt.floor,
                Outcome::NotNow => return Ok(None),
                Outcome::Failed => return Err(belt.take_failure()),
            }
        }
        // Behind such a call it is there already. Written on both ways, a compiler knows it in a
        // loop of pulls, and does not load it back, which takes as long as an item does.
        belt.next = at + size_of::<T>();
        // SAFETY: below the limit, as in front of `next` behind a pull of one, whole items are in
        // the run, of `item_bytes` each, which is the size of `T`: `open_next` has looked. The run
        // is of words, and they begin at the end of its header: `check_item` knows that `T` needs
        // no more than that. Any bytes are a `T`. What is given keeps the belt, and so the run,
        // from changes.
        let item = unsafe { &*belt.run.as_ptr().cast::<u8>().add(at).cast::<T>() };
        Ok(Some((belt.source, item)))
    }

    /// The next items of one source that are here, in place: one at least, `most` at most.
    ///
    /// # Errors
    /// As [`Conveyor::pull`].
    pub fn pull_many(&mut self, most: usize) -> Result<Option<(Rank, &[T])>> {
        let Some((source, bytes)) = self.belt.pull(most.max(1))? else {
            return Ok(None);
        };
        let items = <[T]>::ref_from_bytes(bytes).map_err(|_| misaligned(source))?;
        Ok(Some((source, items)))
    }
}

common_calls!([T: Item, S: Seat] Conveyor<T, S>);

fn misaligned(source: Rank) -> Error {
    Error::bad_peer(source.0, "items of another size")
}

/// A [`Conveyor`] of items whose size is known at run time only: for bindings to other languages.
pub struct UntypedConveyor<S: Seat> {
    belt: Belt<S>,
}

impl<S: Seat> UntypedConveyor<S> {
    /// As [`Conveyor::over`].
    ///
    /// # Errors
    /// [`Error::Misuse`]: the stream has a handler, or records; one that was shut down.
    pub fn over(stream: Untyped<S>) -> Result<Self> {
        let item_bytes = stream.item_bytes();
        Ok(Self {
            belt: Belt::new(stream.handle, item_bytes)?,
        })
    }

    /// Bytes of an item.
    pub fn item_bytes(&self) -> usize {
        self.belt.item_bytes
    }

    /// As [`Conveyor::reset_as`], with items of so many bytes.
    ///
    /// # Errors
    /// As [`Conveyor::reset_as`]: nothing has changed then.
    pub fn reset_to(&mut self, item_bytes: usize) -> Result<()> {
        self.belt.reset_to(item_bytes)
    }

    /// As [`Conveyor::push`].
    ///
    /// # Errors
    /// As [`Conveyor::push`]; an item of another length.
    #[inline]
    pub fn push(&mut self, target: Rank, item: &[u8]) -> Result<bool> {
        if item.len() != self.belt.item_bytes {
            let (is, wanted) = (item.len(), self.belt.item_bytes);
            return Err(self
                .belt
                .misuse(&format!("an item of {is} bytes, of {wanted}")));
        }
        of_usual_size!(item => self.belt.push(target, item))
    }

    /// As [`Conveyor::pull_many`]: the bytes of items.
    ///
    /// # Errors
    /// As [`Conveyor::pull`].
    pub fn pull(&mut self, most: usize) -> Result<Option<(Rank, &[u8])>> {
        self.belt.pull(most.max(1))
    }

    /// Of the items that the last pull gave, so many bytes at their end were not used, and come
    /// again. The others count as pulled one by one.
    pub fn give_rest_back(&mut self, bytes: usize) {
        self.belt.give_rest_back(bytes);
    }
}

impl UntypedConveyor<Inline<'_>> {
    /// As [`Untyped::window`].
    pub fn window(&self) -> *const PushWindow {
        Rc::as_ptr(&self.belt.handle.of)
    }
}

common_calls!([S: Seat] UntypedConveyor<S>);

#[cfg(test)]
mod tests;
