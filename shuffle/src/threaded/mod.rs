//! Jobs with a progress thread, for applications that compute, sit in other libraries, or call from
//! several threads.
//!
//! The progress thread routes, acknowledges and sends on by age while the application does
//! something else; it sleeps while there is nothing to do, and stands by while calls that wait make
//! progress themselves. Handlers run on a delivery thread, one call at a time and outside of every
//! lock: they may block, and then hold up those who send to them, and the other streams of that
//! thread. The streams of a job share it, but for those with the option `own_thread`. A call that
//! waits for the end of a step (a fence, a round) may call handlers in place of that thread: so a
//! handler waits neither for what the program does behind such a call, nor for a lock that the
//! program keeps meanwhile. All of it is the same engine as [`crate::Job`]'s, used by one thread at
//! a time.

mod at_end;
mod seat;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod thread;
mod turn;
mod usage;
mod window;

use std::sync::Arc;

use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::topology::Rank;

use crate::config::Options;
use crate::deliver::{Message, Messages};
use crate::error::{Error, Result};
use crate::face;
use crate::face::array::lock;
use crate::face::codec::Codec;
use crate::face::coded::decoded;
use crate::face::shuffle::each_message;
use crate::face::step::StepBuilder;
use crate::face::stream::{Item, slice_of};
use crate::face::untyped::{Arrival, each_arrival};
use crate::job::detect_as_rank;
use crate::seat::{Handle, start};

pub use crate::signal::DumpOutput;
use seat::Handler;
pub use seat::Threaded;
pub use state::State;
pub use usage::ThreadUse;

/// One rank's part of a job, for all threads of its process. Clones are handles of the same job.
///
/// Collective calls are made in the same order on every rank, no matter which threads make them.
///
/// ```no_run
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::sync::Arc;
/// use trihop_shuffle::{Options, Rank, threaded};
///
/// let heard = Arc::new(AtomicU32::new(0));
/// let count = Arc::clone(&heard);
/// let job = threaded::Job::start(Options::from_env()?)?;
/// let shuffle = job
///     .shuffle("greetings")
///     .handler(move |_message, _shuffle| {
///         count.fetch_add(1, Ordering::Relaxed);
///     })
///     .open()?;
/// for rank in 0..job.size() {
///     shuffle.send(Rank(rank), 0, b"hello")?;
/// }
/// shuffle.fence()?;
/// assert_eq!(heard.load(Ordering::Relaxed), job.size());
/// job.shutdown()?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub type Job = face::job::Job<Threaded>;

/// A shuffle of byte records, for all threads of a process.
pub type Shuffle = face::shuffle::Shuffle<Threaded>;

/// Opens a [`Shuffle`].
pub type ShuffleBuilder = face::shuffle::ShuffleBuilder<Threaded>;

/// A stream of items of one type, for all threads of a process.
pub type Stream<T> = face::stream::Stream<T, Threaded>;

/// Opens a [`Stream`].
pub type StreamBuilder<T> = face::stream::StreamBuilder<T, Threaded>;

/// A stream of values of a threaded job that a [`Codec`] writes and reads.
pub type Coded<V, C> = face::coded::Coded<V, C, Threaded>;

/// Opens a [`Coded`] stream.
pub type CodedBuilder<V, C> = face::coded::CodedBuilder<V, C, Threaded>;

/// Elements with keys of a threaded job, to which items are sent by key.
pub type Array<E, T, C> = face::array::Array<E, T, C, Threaded>;

/// Opens an [`Array`].
pub type ArrayBuilder<E, T, C> = face::array::ArrayBuilder<E, T, C, Threaded>;

/// What the handler of an [`Array`] gets to send with.
pub type ArrayOutbox<'a, E, T, C> = face::array::ArrayOutbox<'a, E, T, C, Threaded>;

/// The channels of a threaded job on this rank, for all threads of its process.
pub type Channels = face::channel::Channels<Threaded>;

/// A port of a channel of a threaded job.
pub type Channel = face::channel::Channel<Threaded>;

/// Opens [`Channels`].
pub type ChannelsBuilder = face::channel::ChannelsBuilder<Threaded>;

/// A stream by push, pull and advance, for one thread at a time.
pub type Conveyor<T> = face::conveyor::Conveyor<T, Threaded>;

/// A stream whose items have a size that is known at run time only, or none, for all threads of a
/// process.
pub type Untyped = face::untyped::Untyped<Threaded>;

/// Opens an [`Untyped`] stream.
pub type UntypedBuilder = face::untyped::UntypedBuilder<Threaded>;

impl Job {
    /// As [`crate::Job::start`], with a progress thread.
    ///
    /// # Errors
    /// As [`crate::Job::start`], or no thread is to be had.
    pub fn start(options: Options) -> Result<Self> {
        let bootstrap = detect_as_rank(&options)?;
        Self::start_with(options, bootstrap)
    }

    /// As [`crate::Job::start_with`], with a progress thread. A bootstrap that may be used on one
    /// thread only wants [`Job::start_with`] and [`Job::shutdown`] called there.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn start_with(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Self> {
        let started = start(options, bootstrap)?.into_parts();
        let (started, park) = started.ok_or(Error::Nested("starting a progress thread"))?;
        Self::over(Threaded::take_over(started, park)?)
    }

    /// What the job's threads have used so far: progress, and deliveries of each stream.
    pub fn threads(&self) -> Vec<ThreadUse> {
        self.seat().threads()
    }
}

impl ShuffleBuilder {
    /// Calls `handler` for every record that arrives, on the delivery thread of the job, or of the
    /// shuffle where it has the option `own_thread`, or in a call that waits for the end of a step.
    /// It gets the shuffle, to send on; it may send on other streams too, and block, but not flush,
    /// fence or open.
    ///
    /// It is called no more once the shuffle or the job is shut down, with an error too: what waits
    /// then is dropped and counted (`undelivered`), and a call that is being made is waited for.
    pub fn handler(self, mut handler: impl FnMut(Message<'_>, &Shuffle) + Send + 'static) -> Self {
        let mut own = Own::new(|handle| Shuffle { handle });
        self.handle_by(Handler::on_thread(move |delivery, calls, handle| {
            let shuffle = own.of(handle);
            let call = |message: Message<'_>, _| Ok(calls.make(1, || handler(message, shuffle)));
            each_message(delivery, 0, call).map(|_| ())
        }))
    }
}

impl ShuffleBuilder {
    /// As [`handler`](Self::handler), called for all records at once that arrived one after the
    /// other from one source: see the inline job's
    /// [`run_handler`](crate::ShuffleBuilder::run_handler).
    pub fn run_handler(
        self,
        mut handler: impl FnMut(Messages<'_>, &Shuffle) + Send + 'static,
    ) -> Self {
        let mut own = Own::new(|handle| Shuffle { handle });
        self.handle_by(Handler::on_thread(move |delivery, calls, handle| {
            let shuffle = own.of(handle);
            let messages = Messages::of(delivery)?;
            calls.make(messages.len() as u64, || handler(messages, shuffle));
            Ok(())
        }))
    }
}

impl Shuffle {
    /// Calls the handler no more, which is gone afterwards: what arrives is dropped and counted,
    /// and a call that is being made is waited for. The shuffle goes on relaying, until all ranks
    /// shut it down.
    #[doc(hidden)]
    pub fn stop_handler(&self) {
        self.handle.stop_handler();
    }
}

impl<F: Clone + Send + 'static> StepBuilder<'_, F, Threaded> {
    /// Calls `call` once, when the step is over for this rank, whoever asks for that or nobody: on
    /// the delivery thread of the stream, between two calls of handlers, with the stream; where
    /// that has no handler, on the one that the job's streams share. A handler that blocks there
    /// keeps it waiting. It is called as a handler is: it may block, send and call `done`, but not
    /// flush, fence, test or wait. It may begin the next step, too, and they so follow each other
    /// as often as one likes. A panic ends the job, as that of a handler does.
    ///
    /// The step is over before it is called: the stream takes sends again, and others may be in the
    /// next step already. [`wait`](Shuffle::wait), [`test`](Shuffle::test) and the step's future
    /// say so once the call has returned, or has begun the next step. What others send behind a
    /// round is not handled, nor sent on here, until the call has returned or begins the next end.
    /// A job that fails, or is dropped, before the step is over does not make the call; the
    /// stream's shutdown waits for one that is due, and for what that begins. What it keeps of the
    /// job should be what it is called with: another handle keeps the job going.
    pub fn at_end(self, call: impl FnOnce(&F) + Send + 'static) -> Self {
        let face = self.face();
        self.end_with(Box::new(move || call(&face)))
    }
}

impl<T: Item> StreamBuilder<T> {
    /// Calls `handler` for every run that arrives: source, at least one item, and the stream. As
    /// [`ShuffleBuilder::handler`].
    pub fn handler(self, mut handler: impl FnMut(Rank, &[T], &Stream<T>) + Send + 'static) -> Self {
        let mut own = Own::new(Stream::over);
        self.handle_by(Handler::on_thread(move |delivery, calls, handle| {
            let (source, items) = slice_of::<T>(&delivery)?;
            let stream = own.of(handle);
            calls.make(items.len() as u64, || handler(source, items, stream));
            Ok(())
        }))
    }
}

impl<V, C> CodedBuilder<V, C>
where
    V: 'static,
    C: Codec<V> + Clone + Send + 'static,
{
    /// Calls `handler` for every value that arrives: its sender, the value, and the stream. As
    /// [`ShuffleBuilder::handler`].
    pub fn handler(self, mut handler: impl FnMut(Rank, V, &Coded<V, C>) + Send + 'static) -> Self {
        let codec = self.codec.clone();
        let of_stream = codec.clone();
        let mut own = Own::new(move |handle| Coded::over(&Shuffle { handle }, of_stream.clone()));
        self.handled_by(Handler::on_thread(move |delivery, calls, handle| {
            let stream = own.of(handle);
            let call = |message: Message<'_>, _| {
                let value = decoded(&codec, message.source, message.bytes)?;
                Ok(calls.make(1, || handler(message.source, value, stream)))
            };
            each_message(delivery, 0, call).map(drop)
        }))
    }
}

impl<E, T, C> ArrayBuilder<E, T, C>
where
    E: Send + 'static,
    T: 'static,
    C: Codec<E> + Codec<T> + Clone + Send + 'static,
{
    /// As [`owner`](crate::ArrayBuilder::owner) of an inline job's; any thread may call it.
    pub fn owner(self, owner: impl Fn(u64) -> Rank + Send + Sync + 'static) -> Self {
        self.owned_by(Arc::new(owner))
    }

    /// Opens the array, without elements; collective. `handler` is called for each item with the
    /// key and the element that it was sent to, as [`ShuffleBuilder::handler`] says. Meanwhile the
    /// program's calls that use elements wait: they get their turn between two runs.
    ///
    /// # Errors
    /// As [`open`](crate::ArrayBuilder::open) of an inline job's.
    pub fn open(
        self,
        handler: impl FnMut(u64, &mut E, T, &mut ArrayOutbox<'_, E, T, C>) + Send + 'static,
    ) -> Result<Array<E, T, C>> {
        let mut keeper = self.keeper(handler);
        let elements = Arc::clone(&keeper.elements);
        let handler = Handler::on_thread(move |delivery, calls, mut handle| {
            let elements = Arc::clone(&keeper.elements);
            let mut table = lock(&elements);
            let take = |message: Message<'_>, _| {
                let mut outcome = Ok(());
                let take = || outcome = keeper.take(&mut table, message, &mut handle);
                let goes_on = calls.make(1, take);
                outcome.map(|()| goes_on)
            };
            each_message(delivery, 0, take).map(drop)
        });
        self.open_by(elements, handler)
    }
}

impl UntypedBuilder {
    /// Calls `handler` for each record, or for each run of items, that arrives. As
    /// [`ShuffleBuilder::handler`].
    pub fn handler(self, mut handler: impl FnMut(Arrival<'_>, &Untyped) + Send + 'static) -> Self {
        let item_bytes = self.item_bytes();
        let mut own = Own::new(move |handle| Untyped::over(handle, item_bytes));
        self.handle_by(Handler::on_thread(move |delivery, calls, handle| {
            let stream = own.of(handle);
            let call = |arrival: Arrival<'_>, _| {
                calls.make(arrival.count as u64, || handler(arrival, stream))
            };
            each_arrival(delivery, item_bytes, 0, call).map(drop)
        }))
    }
}

impl UntypedBuilder {
    /// As [`ShuffleBuilder::run_handler`]; of streams of records only.
    pub fn run_handler(
        self,
        mut handler: impl FnMut(Messages<'_>, &Untyped) + Send + 'static,
    ) -> Self {
        let item_bytes = self.item_bytes();
        let mut own = Own::new(move |handle| Untyped::over(handle, item_bytes));
        self.handle_records_by(Handler::on_thread(move |delivery, calls, handle| {
            let stream = own.of(handle);
            let messages = Messages::of(delivery)?;
            calls.make(messages.len() as u64, || handler(messages, stream));
            Ok(())
        }))
    }
}

/// A stream as its own handler has it, made at the first call.
struct Own<F, M> {
    face: Option<F>,
    make: M,
}

impl<F, M: FnMut(Handle<Threaded>) -> F> Own<F, M> {
    fn new(make: M) -> Self {
        Self { face: None, make }
    }

    fn of(&mut self, handle: &Handle<Threaded>) -> &F {
        self.face.get_or_insert_with(|| (self.make)(handle.clone()))
    }
}
