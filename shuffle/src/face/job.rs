//! One rank's part of a job, as its application holds it: the same over any seat.

use std::io::Write;
use std::sync::Arc;

use trihop_transport::bootstrap::{Bootstrap, Launcher};
use trihop_transport::topology::{Rank, Topology};

use super::array::ArrayBuilder;
use super::channel::ChannelsBuilder;
use super::codec::Codec;
use super::coded::CodedBuilder;
use super::shuffle::ShuffleBuilder;
use super::step::FenceOfAll;
use super::stream::{Item, StreamBuilder};
use super::untyped::UntypedBuilder;
use crate::config::Options;
use crate::endpoint::Channel;
use crate::error::Result;
use crate::job::{JobState, detect_as_rank};
use crate::seat::{self, Inline, Seat, Seating};
use crate::signal::DumpOutput;
use crate::terminate::reduce::{Number, Reduce};

/// One rank's part of a job. Clones are handles of the same job.
///
/// Collective calls are made in the same order on every rank, no matter which threads make them.
#[derive(Clone)]
pub struct Job<S: Seat> {
    seat: S,
    about: Arc<About>,
    _guard: S::Guard,
}

/// What never changes.
struct About {
    topology: Topology,
    launcher: Launcher,
    provider: Option<String>,
}

impl Job<Inline<'_>> {
    /// Joins the job that this process was started in; without a launcher, a job of one. It stays
    /// on the thread that calls.
    ///
    /// # Errors
    /// A bad option, no usable provider, a rank that does not arrive within `bootstrap_timeout_ms`,
    /// memory.
    pub fn start(options: Options) -> Result<Self> {
        let bootstrap = detect_as_rank(&options)?;
        Self::start_with(options, bootstrap)
    }

    /// As [`Job::start`], with a bootstrap of the caller's:
    /// [`Custom`](trihop_transport::bootstrap::Custom) for ranks that know each other already.
    /// `options.launcher` then says nothing.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn start_with(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Self> {
        Self::over(seat::start(options, bootstrap)?)
    }
}

impl<S: Seat> Job<S> {
    /// A job that a seat has.
    pub(crate) fn over(seat: S) -> Result<Self> {
        let about = seat.with("the start", |job| {
            Ok(About {
                topology: job.engine.topology.clone(),
                launcher: job.launcher,
                provider: job.provider.clone(),
            })
        })?;
        Ok(Self {
            about: Arc::new(about),
            _guard: seat.guard(),
            seat,
        })
    }

    pub(crate) fn seat(&self) -> &S {
        &self.seat
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.topology().rank()
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.topology().size()
    }

    /// Who is where.
    pub fn topology(&self) -> &Topology {
        &self.about.topology
    }

    /// Who started the job.
    pub fn launcher(&self) -> Launcher {
        self.about.launcher
    }

    /// Provider that carries traffic between nodes, where there are several.
    pub fn provider(&self) -> Option<&str> {
        self.about.provider.as_deref()
    }

    /// A shuffle of byte records. Opening is collective; the same names in the same order on every
    /// rank.
    pub fn shuffle(&self, name: &str) -> ShuffleBuilder<S> {
        ShuffleBuilder::new(&self.seat, name)
    }

    /// A stream of items of one type. Opening is collective; the same names in the same order on
    /// every rank.
    pub fn stream<T: Item>(&self, name: &str) -> StreamBuilder<T, S> {
        StreamBuilder::new(&self.seat, name)
    }

    /// A stream of values of any length, which `codec` writes and reads. Opening is collective;
    /// the same names in the same order on every rank.
    pub fn coded<V, C: Codec<V> + Clone>(&self, name: &str, codec: C) -> CodedBuilder<V, C, S> {
        CodedBuilder::new(&self.seat, name, codec)
    }

    /// An array of elements `E` with keys, to which items `T` are sent by key; `codec` writes and
    /// reads both. Opening is collective; the same names in the same order on every rank.
    pub fn array<E, T, C>(&self, name: &str, codec: C) -> ArrayBuilder<E, T, C, S>
    where
        C: Codec<E> + Codec<T> + Clone,
    {
        ArrayBuilder::new(&self.seat, name, self.size(), codec)
    }

    /// Channels: bounded queues of messages, each on the rank that makes it, used by all ranks.
    /// Opening is collective; the same names in the same order on every rank.
    pub fn channels(&self, name: &str) -> ChannelsBuilder<S> {
        ChannelsBuilder::new(&self.seat, name)
    }

    /// A stream of items of `item_bytes` bytes, or of byte records where that is 0: for bindings to
    /// other languages. Opening is collective; the same names in the same order on every rank.
    pub fn untyped(&self, name: &str, item_bytes: usize) -> UntypedBuilder<S> {
        UntypedBuilder::new(&self.seat, name, item_bytes)
    }

    /// Waits until every rank has called this as often as this rank.
    ///
    /// # Errors
    /// The transport's, and [`crate::Error::Nested`] inside a handler.
    pub fn barrier(&self) -> Result<()> {
        self.collective("a barrier", || seat::barrier(&self.seat))
    }

    /// From now on the job goes on without ranks, or nodes, that are gone: else the first of them
    /// ends it for all. Collective, as a barrier; for ranks that have an agent, which relay for
    /// nobody else.
    ///
    /// From then on what a call wants of a rank that is gone fails with the error that names it: a
    /// send to it, and a call on a channel of its. So does what all ranks take part in: a fence, a
    /// round, a collective, the opening of a stream, [`Job::shutdown`]. All else goes on, as if that
    /// rank were silent; [`Job::lost`] says who is gone. What had left the rank arrives, and what is
    /// on its way to it is dropped (`dropped_runs`).
    /// Where an agent is gone, or a node, so are for other nodes its ranks, and for these those of
    /// all other nodes, with [`Error::AgentDead`](crate::Error::AgentDead) or
    /// [`Error::PeerDead`](crate::Error::PeerDead). The 65th loss ends the job.
    ///
    /// # Errors
    /// [`Error::Misuse`](crate::Error::Misuse) for ranks without an agent; as [`Job::barrier`].
    pub fn survive(&self) -> Result<()> {
        self.collective("survival", || seat::survive(&self.seat))
    }

    /// Ranks that this one cannot reach any more, ascending: those that are gone since
    /// [`Job::survive`], and those behind an agent that is.
    ///
    /// # Errors
    /// As of every call where the job has failed.
    pub fn lost(&self) -> Result<Vec<Rank>> {
        self.seat
            .with("those that are lost", |job| Ok(job.lost_ranks()))
    }

    /// Returns on every rank when everything that any rank sent before on any stream, and everything
    /// that handlers sent because of it on whichever stream, has been handled (or waits to be
    /// taken). Where handlers of one stream send on another, a fence of each after the other does
    /// not say that; this one does.
    ///
    /// # Errors
    /// As [`Job::barrier`]; [`crate::Error::Misuse`] while the end of a step of a stream is started;
    /// after [`crate::Error::WouldBlock`] take deliveries of the streams
    /// without a handler, and call again on this rank, with no other collective call in between.
    pub fn fence(&self) -> Result<()> {
        self.collective("a fence of all streams", || seat::fence(&self.seat))
    }

    /// Starts a [`fence`](Self::fence) of all streams, and does not wait: the program computes, and
    /// asks by [`Self::test_fence`] or [`Self::wait_fence`] whether it is over. It may send
    /// meanwhile; whether that is handled when the fence is over, nobody says, and a program that
    /// always sends puts off its end. Other collective calls of the job go on beside it, but no
    /// step of a stream ends, and the job is not shut down. Collective. On an inline job it moves
    /// on in the calls that make progress.
    ///
    /// # Errors
    /// [`crate::Error::Misuse`] while one is under way, or a step of a stream;
    /// [`crate::Error::Nested`] inside a handler.
    pub fn start_fence(&self) -> Result<()> {
        self.begin_fence().map(drop)
    }

    /// As [`Self::start_fence`], with its end as a future.
    ///
    /// # Errors
    /// As that.
    pub fn begin_fence(&self) -> Result<FenceOfAll<S>> {
        let number = self.collective("a fence of all streams", || seat::start_fence(&self.seat))?;
        Ok(FenceOfAll::new(self.seat.clone(), number))
    }

    /// One round of progress; true when the fence that was [started](Self::start_fence) is over
    /// here, which is said once. Streams without a handler are taken from meanwhile: a delivery
    /// queue that is full keeps all ranks from the end.
    ///
    /// # Errors
    /// [`crate::Error::Misuse`] when none was started; as [`Job::barrier`].
    pub fn test_fence(&self) -> Result<bool> {
        self.collective("a test of a fence", || seat::test_fence(&self.seat))
    }

    /// Waits until the fence that was [started](Self::start_fence) is over.
    ///
    /// # Errors
    /// [`crate::Error::Misuse`] when none was started; as [`Job::fence`].
    pub fn wait_fence(&self) -> Result<()> {
        self.collective("a wait for a fence", || seat::wait_for_fence(&self.seat))
    }

    /// Replaces each value by its reduction over all ranks; every rank gives as many values, all
    /// `u64`, `i64` or `f64`.
    ///
    /// # Errors
    /// As [`Job::barrier`]; bits of floating-point numbers.
    pub fn allreduce<N: Number>(&self, values: &mut [N], reduce: Reduce) -> Result<()> {
        self.collective("a reduction", || {
            seat::allreduce(&self.seat, Channel::Calls, values, reduce)
        })
    }

    /// Replaces each value by its reduction over the ranks before this one, of which rank 0 has
    /// none: it gets what changes no other value (0 of a sum). So ranks find where their parts of
    /// something begin. Every rank gives as many values; they are gathered, so that each rank needs
    /// memory for those of all.
    ///
    /// # Errors
    /// As [`Job::allreduce`].
    pub fn exscan<N: Number>(&self, values: &mut [N], reduce: Reduce) -> Result<()> {
        self.collective("a scan", || seat::exscan(&self.seat, values, reduce))
    }

    /// What the rank `root` gives as `bytes`; what others give counts for nothing. Many MiB go in
    /// pieces of 4, and each rank has room for all.
    /// Of messages on a stream, [`crate::Shuffle::broadcast`] takes more than one at a time.
    ///
    /// # Errors
    /// As [`Job::barrier`]; a root that is not in the job, and ranks that name different ones.
    pub fn broadcast(&self, root: Rank, bytes: &[u8]) -> Result<Vec<u8>> {
        self.collective("a broadcast", || seat::broadcast(&self.seat, root, bytes))
    }

    /// Every rank's contribution, by rank; they may differ in length. For small strings: the result is as large as all of them
    /// on every rank, and each may have at most 4 GiB / ranks, less 16 bytes.
    ///
    /// # Errors
    /// As [`Job::barrier`]; a longer contribution, with nothing done.
    pub fn allgather(&self, contribution: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.collective("a gathering", || seat::allgather(&self.seat, contribution))
    }

    /// As [`Job::allreduce`], in an order of its own beside other collective calls: see
    /// [`ShuffleBuilder::open_apart`].
    #[doc(hidden)]
    pub fn allreduce_apart(&self, values: &mut [u64], reduce: Reduce) -> Result<()> {
        seat::allreduce(&self.seat, Channel::Apart, values, reduce)
    }

    fn collective<R>(&self, what: &'static str, call: impl FnOnce() -> Result<R>) -> Result<R> {
        self.seat.one_at_a_time(None, what, call)
    }

    /// One round of progress of everything in the job; true when anything moved. Where nothing did,
    /// others may run first (`sched_yield`): ranks may outnumber cores.
    ///
    /// # Errors
    /// As [`Job::barrier`].
    pub fn progress(&self) -> Result<bool> {
        let has_moved = self.seat.progress("poll")?;
        self.seat.give_way(has_moved);
        Ok(has_moved)
    }

    /// Rounds of progress that were made so far, no matter which call made them; `None` inside an
    /// inline handler, and when the engine is in use and does not come free.
    pub fn rounds(&self) -> Option<u64> {
        self.seat.look(|job| job.rounds)
    }

    /// Ends the whole job: the other ranks hear that this one has failed, and why, and the launcher
    /// ends them, where it can; the caller still has to exit. Whether the launcher could be asked:
    /// not while the job is being shut down, nor when the engine is in use and does not come free.
    pub fn abort(&self, status: i32, why: &str) -> bool {
        self.seat
            .look(|job| {
                // Its status is the job's, whatever others do once they hear.
                let asked = job.abort(status, why);
                job.say_failed(why);
                asked
            })
            .unwrap_or(false)
    }

    /// This rank's program cannot go on: from now on its calls fail, and those of all other ranks
    /// say that it has failed, and why. For languages in which a job outlives what ended it.
    #[doc(hidden)]
    pub fn fail(&self, why: &str) {
        let _: Result<()> = self.seat.with("a failure", |job| Err(job.say_failed(why)));
    }

    /// Writes every stream's queues with their use and their bounds. Does not wait for long: where
    /// the engine cannot be had, it says so.
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        write_state(&self.seat, writer)?;
        self.seat.dump_own(writer)
    }

    /// Dumps whenever the process gets `signal` (`libc::SIGUSR1`, say): the handler sets a flag,
    /// and the next call that makes progress writes, at most once in a tenth of a second; of a job
    /// with a progress thread, that one has it written, also of a job that has failed. Whatever
    /// handled the signal before is called too. Where this rank is a thread, so does the relay of
    /// its process.
    ///
    /// # Errors
    /// A signal that cannot be handled.
    pub fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.seat.dump_on(signal, output)
    }

    /// Fences every stream that is still open, waits for everyone, and leaves the job. Collective.
    /// Later calls of a job with threads fail with [`crate::Error::Closed`].
    ///
    /// Records that wait for [`crate::Shuffle::take`] are given up here, and how many is said.
    ///
    /// Of a job with threads, these have ended then, where it fails too: handlers are not called
    /// any more, and what waited for them is dropped and counted ([`crate::Stats::undelivered`]). A
    /// call of a handler that is being made is waited for. That holds as well where the last handle
    /// of a job that has failed is dropped.
    ///
    /// # Errors
    /// As [`Job::barrier`]; with nothing done [`crate::Error::Nested`] inside a handler, and
    /// [`crate::Error::Misuse`] where contributors of this rank's are not done in a step.
    pub fn shutdown(self) -> Result<()> {
        let outcome = self.collective("shutting down", || seat::shut_down(&self.seat));
        if !matches!(
            outcome,
            Err(crate::Error::Nested(_) | crate::Error::Closed(_) | crate::Error::Misuse { .. })
        ) {
            self.seat.ended(outcome.is_err());
        }
        outcome
    }
}

/// Writes the queues of all streams. The state is in use for the making of the text only: a writer
/// may wait for its reader.
pub(crate) fn write_state(seat: &impl Seating, writer: &mut dyn Write) -> std::io::Result<()> {
    let mut text = Vec::new();
    match seat.look(|job: &mut JobState| job.dump(&mut text)) {
        Some(written) => written?,
        None => writeln!(text, "the engine is in use and does not come free")?,
    }
    writer.write_all(&text)
}
