//! Push, pull and advance: a stream for programs that neither wait nor have handlers, as conveyors
//! have it.

use std::marker::PhantomData;

use trihop_transport::topology::Rank;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::deliver::Entry;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::face::stream::{Item, Stream};
use crate::face::untyped::{Untyped, of_usual_size};
use crate::seat::{Handle, Seat, Seating};
use crate::terminate::End;

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

/// Where pulls are in a run. Pulls are short, and programs go far into memory between them: what a
/// processor may do at once then is what counts, so a pull looks at two places and changes one.
struct Cursor {
    /// The next item.
    next: *const u8,
    /// Where items end of which each is pulled by itself, without anything else to be done.
    limit: *const u8,
}

// SAFETY: it points into memory of the belt that has it, which goes where it goes.
unsafe impl Send for Cursor {}

impl Cursor {
    const NOWHERE: Self = Self {
        next: std::ptr::null(),
        limit: std::ptr::null(),
    };
}

/// The items of a step, of whatever type.
pub(crate) struct Belt<S: Seating> {
    handle: Handle<S>,
    item_bytes: usize,
    cursor: Cursor,
    source: Rank,
    /// Runs that have come, of which those before `current` have been pulled. They count in the
    /// stream's delivery queue until all have.
    arrived: Vec<Entry>,
    current: usize,
    /// A run has begun: `current` is its number, and `end` where its items end.
    has_begun: bool,
    end: *const u8,
    /// Bytes that the last pull took.
    step: usize,
    /// Where the last pull began that cannot be given back.
    floor: *const u8,
    /// Where the next item was at the last advance, and how many of them in a row have moved nothing.
    since: *const u8,
    fruitless: u32,
    state: ConveyorState,
}

// SAFETY: as `Cursor`; `end` and `floor` are compared, and never read through.
unsafe impl<S: Seating + Send> Send for Belt<S> where Handle<S>: Send {}

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
            cursor: Cursor::NOWHERE,
            source: Rank(0),
            arrived: Vec::new(),
            current: 0,
            has_begun: false,
            end: std::ptr::null(),
            step: 0,
            floor: std::ptr::null(),
            since: std::ptr::null(),
            fruitless: 0,
            state: ConveyorState::Working,
        })
    }

    /// Takes an item if there is room.
    #[inline(always)] // so that an item's size is a constant of the copy
    pub fn push<T>(&mut self, target: Rank, item: &T) -> Result<bool>
    where
        T: IntoBytes + Immutable + ?Sized,
    {
        if self.state != ConveyorState::Working {
            return Err(self.misuse("a push after the last one was announced: reset it first"));
        }
        let pushed = self
            .handle
            .with_out("a push", |out| out.try_push(target, item.as_bytes()));
        match pushed {
            Ok(()) => Ok(true),
            Err(Error::WouldBlock) => Ok(false),
            Err(error) => Err(error),
        }
    }

    #[cold]
    fn misuse(&self, why: &str) -> Error {
        Error::misuse(&self.handle.name, why)
    }

    /// The next item, where that is all there is to do; else [`Belt::pull`] has to.
    #[inline(always)] // so that an item's size is a constant
    pub fn pull_one(&mut self, item_bytes: usize) -> Option<(Rank, &[u8])> {
        let at = self.cursor.next;
        if at == self.cursor.limit {
            return None;
        }
        debug_assert_eq!(item_bytes, self.item_bytes);
        // SAFETY: between `next` and `limit` lie whole items of the current run, which stays as long
        // as this is borrowed.
        let item = unsafe {
            self.cursor.next = at.add(item_bytes);
            std::slice::from_raw_parts(at, item_bytes)
        };
        Some((self.source, item))
    }

    /// The next items of one source that are here, at most so many.
    #[cold]
    pub fn pull(&mut self, most: usize) -> Result<Option<(Rank, &[u8])>> {
        if self.cursor.next == self.end && !self.open_next()? {
            return Ok(None);
        }
        let at = self.cursor.next;
        let left = self.end.addr() - at.addr();
        self.step = left.min(most.saturating_mul(self.item_bytes));
        self.floor = at;
        // SAFETY: `step` bytes are left in the current run, which stays as long as this is borrowed.
        let items = unsafe {
            self.cursor.next = at.add(self.step);
            std::slice::from_raw_parts(at, self.step)
        };
        // Behind a pull of one the next ones are no more than that.
        self.cursor.limit = match self.step == self.item_bytes {
            true => self.end,
            false => self.cursor.next,
        };
        Ok(Some((self.source, items)))
    }

    /// Begins the next run.
    fn open_next(&mut self) -> Result<bool> {
        self.floor = self.cursor.next;
        let next = self.current + usize::from(self.has_begun);
        let Some(entry) = self.arrived.get(next) else {
            return Ok(false);
        };
        let run = entry.run(self.handle.size);
        let run = run.map_err(|why| Error::bad_peer(self.source.0, why))?;
        let bytes = usize::from(run.header.count) * self.item_bytes;
        let source = run.header.source;
        let Some(items) = run.payload.get(..bytes) else {
            let why = format!("{bytes} bytes of items in {}", run.payload.len());
            return Err(Error::bad_peer(source, why));
        };
        self.source = Rank(source);
        (self.current, self.has_begun) = (next, true);
        let begin = items.as_ptr_range();
        (self.cursor.next, self.cursor.limit, self.end) = (begin.start, begin.start, begin.end);
        self.floor = begin.start;
        Ok(true)
    }

    /// What was pulled last is pulled again.
    pub fn unpull(&mut self) -> Result<()> {
        if self.cursor.next == self.floor {
            return Err(self.misuse("nothing was pulled that could be given back"));
        }
        // SAFETY: the last pull took so many bytes of the current run, and nothing since has.
        self.cursor.next = unsafe { self.cursor.next.sub(self.step) };
        self.floor = self.cursor.next;
        self.cursor.limit = self.cursor.next;
        Ok(())
    }

    /// Whether all that has come was pulled.
    fn is_empty(&self) -> bool {
        let last = self.current + usize::from(self.has_begun);
        self.cursor.next == self.end && last >= self.arrived.len()
    }

    /// Whether [`Belt::pull_one`] is all there is to do.
    #[inline(always)] // as that
    fn is_plain(&self) -> bool {
        self.cursor.next != self.cursor.limit
    }

    /// A round of progress, without waiting; false once the step is complete.
    pub fn advance(&mut self, is_done: bool) -> Result<bool> {
        let what = "an advance";
        if is_done && self.state == ConveyorState::Working {
            self.handle.start(End::Round)?;
            self.state = ConveyorState::Endgame;
        }
        if self.handle.seat.progress(what)? || self.cursor.next != self.since {
            self.fruitless = 0;
        } else {
            // Whoever this waits for may need the processor.
            self.fruitless += 1;
            if self.fruitless > 1 {
                std::thread::yield_now();
            }
        }
        self.since = self.cursor.next;
        let is_empty = self.is_empty();
        let is_ending = self.state == ConveyorState::Endgame;
        let is_working = self.state == ConveyorState::Working;
        if is_ending || is_working && is_empty {
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
                self.clear();
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

    /// What has not been pulled waits for the stream's next taker; a run of which a part has been
    /// pulled does not.
    fn give_back(&mut self) {
        let entries = std::mem::take(&mut self.arrived);
        let done = self.current + usize::from(self.has_begun);
        // A job that has failed takes nothing more.
        let _ = self.handle.seat.with("a conveyor", |job| {
            let (state, _, _) = job.engine.stream_mut(self.handle.id)?;
            if let Sink::Queue(queue) = &mut state.sink {
                let done = done.min(entries.len());
                queue.put_back(entries, done);
            }
            Ok(())
        });
        self.clear();
    }

    /// No run has begun.
    fn clear(&mut self) {
        self.cursor = Cursor::NOWHERE;
        (self.current, self.has_begun) = (0, false);
        (self.end, self.floor) = (std::ptr::null(), std::ptr::null());
    }
}

impl<S: Seating> Drop for Belt<S> {
    fn drop(&mut self) {
        self.give_back();
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

            /// A round of progress, which never waits; fetches what has come, once all that was
            /// fetched before has been pulled. `is_done`: this rank pushes no more in this step,
            /// which is said once or in each call from then on. False once nobody does and
            /// everything has been pulled: the step is complete here.
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
            /// announced or none has. What nobody has pulled is given up, and so is what comes until
            /// all are here; the log says how much.
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
/// its calls waits. Each step ends on all ranks once each has said that it pushes no more.
///
/// Where a push finds no room, advance and pull, then push again. Delivery queues are bounded, so a
/// rank that does not pull keeps those waiting who push to it.
///
/// ```no_run
/// use trihop_shuffle::{Conveyor, Job, Options, Rank};
///
/// let job = Job::start(Options::from_env()?)?;
/// let mut table = vec![0u64; 1000];
/// let mut left = (0..10_000u64).map(|n| (Rank((n % u64::from(job.size())) as u32), n % 1000)).peekable();
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
        self.belt.push(target, &item)
    }

    /// The next item that is here, in place, and who sent it.
    ///
    /// # Errors
    /// A peer whose bytes make no sense.
    #[inline]
    pub fn pull(&mut self) -> Result<Option<(Rank, &T)>> {
        // Looked at first, and asked for then: a reference that is returned would be held too long.
        let pulled = match self.belt.is_plain() {
            true => self.belt.pull_one(size_of::<T>()),
            false => self.belt.pull(1)?,
        };
        let Some((source, bytes)) = pulled else {
            return Ok(None);
        };
        let item = T::ref_from_bytes(bytes).map_err(|_| misaligned(source))?;
        Ok(Some((source, item)))
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

    /// As [`Conveyor::pull`]: the bytes of an item, where no more is to be done for that than to say
    /// where they lie.
    #[inline]
    pub fn pull_here(&mut self) -> Option<(Rank, &[u8])> {
        self.belt.pull_one(self.belt.item_bytes)
    }

    /// As [`Conveyor::pull_many`]: the bytes of items.
    ///
    /// # Errors
    /// As [`Conveyor::pull`].
    pub fn pull(&mut self, most: usize) -> Result<Option<(Rank, &[u8])>> {
        self.belt.pull(most.max(1))
    }
}

common_calls!([S: Seat] UntypedConveyor<S>);
