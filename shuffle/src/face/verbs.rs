//! The verbs that all streams have, whatever they carry.

/// Gives a face with a `handle` the verbs of all streams.
macro_rules! common_verbs {
    ([$($generics:tt)*] $face:ty) => {
        impl<$($generics)*> $face {
            /// Name given at opening.
            pub fn name(&self) -> &str {
                &self.handle.name
            }

            /// This rank.
            pub fn rank(&self) -> $crate::Rank {
                self.handle.rank
            }

            /// Ranks of the job.
            pub fn size(&self) -> u32 {
                self.handle.size
            }

            /// What this rank sends to itself by this handle, and by those that are cloned from it
            /// later, is handed to the handler in the call itself: by a send, push or extend, the
            /// commit of a reservation, and the own copy of a broadcast. Other ranks need not do
            /// the same.
            ///
            /// Order is kept: while something waits that was sent before (by handlers to this rank,
            /// or for want of room), the next one goes the usual way, and is handled in a later
            /// call that makes progress. So are what a handler sends, the messages of a call of
            /// [`Self::take`] on another stream, and a broadcast that has to wait for room. The
            /// handler sends by its outbox, as ever; whoever pushes has borrowed nothing that it
            /// borrows too.
            ///
            /// # Errors
            /// [`Error::Config`](crate::Error::Config) on a job with threads, where a delivery
            /// thread calls the handler, and of a stream without one;
            /// [`Error::Nested`](crate::Error::Nested) inside a handler.
            pub fn own_at_once(&mut self) -> $crate::error::Result<()> {
                self.handle.handle_own_at_once()
            }

            /// One round of progress; returns how many records or items were delivered to this
            /// stream meanwhile. Where nothing moved, others may run first.
            ///
            /// # Errors
            /// The transport's, and [`Error::Nested`](crate::Error::Nested) inside an inline
            /// handler.
            pub fn poll(&self) -> $crate::error::Result<u64> {
                self.handle.poll()
            }

            /// Waits until the queues of one stage have passed on what was in them;
            /// [`Queues::Delivery`](crate::Queues::Delivery) waits for the handler.
            ///
            /// # Errors
            /// As [`Self::poll`]; without a handler [`Error::WouldBlock`](crate::Error::WouldBlock)
            /// when only taking deliveries can make room.
            pub fn flush(&self, queues: $crate::terminate::flush::Queues) -> $crate::error::Result<()> {
                self.handle.flush(queues)
            }

            /// Collective: returns on every rank when everything that any rank sent before, and
            /// everything that handlers sent because of it, has been handled (or waits for
            /// [`Self::take`]).
            ///
            /// # Errors
            /// As [`Self::flush`]; after [`Error::WouldBlock`](crate::Error::WouldBlock) take
            /// deliveries and call again on this rank.
            pub fn fence(&self) -> $crate::error::Result<()> {
                self.handle.end($crate::terminate::End::Fence)
            }

            /// Collective: returns on every rank when everything that any rank sent before has been
            /// handled (or waits for [`Self::take`]), and nothing that a rank sends here after its
            /// own call is handled earlier; on another stream it may be. For programs that go in
            /// steps: each rank sends, then all wait. It costs one message per edge of the route
            /// instead of the counts of a fence between nodes, and fewer turns than a fence on one.
            ///
            /// Handlers do not send in such a program, nor other threads while one ends a round:
            /// what they send may belong to this round or to the next, and waits in memory, as far
            /// as there is any for it, until the round is over everywhere. Use [`Self::fence`] where
            /// they do.
            ///
            /// Others may be in the next round already when this returns, and what they send may be
            /// handled in this rank's next call that makes progress, on whichever stream: what
            /// handlers need for the next round is made ready before.
            ///
            /// # Errors
            /// As [`Self::fence`].
            pub fn round(&self) -> $crate::error::Result<()> {
                self.handle.end($crate::terminate::End::Round)
            }

            /// Starts a [`fence`](Self::fence) or a [`round`](Self::round), and does not wait: the
            /// program computes, or uses other streams, and asks by [`Self::test`] or
            /// [`Self::wait`] whether it is over. Until then only handlers send on this stream: a
            /// send, flush or other end of the program's is [`Error::Misuse`](crate::Error::Misuse).
            /// Collective, as these. On an inline job it moves on in the calls that make progress.
            ///
            /// # Errors
            /// [`Error::Misuse`](crate::Error::Misuse) while an end is under way; a stream that was
            /// shut down; [`Error::Nested`](crate::Error::Nested) inside a handler.
            pub fn start(&self, end: $crate::terminate::End) -> $crate::error::Result<()> {
                self.handle.start(end).map(drop)
            }

            /// Begins a step that its contributors end, and does not wait: the program sends, and
            /// calls [`done`](Self::done) for each contributor that has sent what it has to send;
            /// handlers send too, and may do that. The step is over on all ranks when all
            /// contributors are done and all that was sent is handled, also what handlers sent
            /// because of it. The future says when, or [`Self::test`] and [`Self::wait`] do.
            ///
            /// Collective: each rank begins as many steps, in the same order as other ends.
            /// Messages may come before this rank has begun its own.
            ///
            /// # Errors
            /// As [`Self::start`].
            pub fn begin_step(
                &self,
                contributors: $crate::Contributors,
            ) -> $crate::error::Result<$crate::over::Step<S>> {
                self.step(contributors).begin()
            }

            /// As [`Self::begin_step`] by [`Contributors`](crate::Contributors), and as
            /// [`Self::start`] by another [`End`](crate::End), with a priority, with calls when the
            /// step begins and when it is over, and with its end as a future: see
            /// [`StepBuilder`](crate::over::StepBuilder).
            pub fn step<'s>(
                &self,
                end: impl Into<$crate::terminate::End>,
            ) -> $crate::over::StepBuilder<'s, Self, S> {
                let mut face = self.clone();
                face.handle = self.handle.on_seat($crate::seat::Seating::for_calls(&self.handle.seat));
                $crate::over::StepBuilder::new(self.handle.clone(), face, end.into())
            }

            /// So many contributors of the step that has [begun](Self::begin_step) have sent what
            /// they have to send. Once all of this rank are done, or all of all ranks, a send of
            /// the program's is [`Error::Misuse`](crate::Error::Misuse) until the step is over.
            /// An inline job's handlers say it by their outbox. What handlers say before the step
            /// has begun here, or once all that count here are done, counts in the next one. That
            /// none is done, 0, may be said at any time.
            ///
            /// The call makes a round of progress where it is the last of this rank's, and, where
            /// those of all ranks are counted, if it is one of the first 16 of a step. Later ones
            /// are passed on by the next call that makes progress; with threads, by the progress
            /// thread.
            ///
            /// # Errors
            /// [`Error::Misuse`](crate::Error::Misuse) without a step, and for more contributors
            /// than there are: where those of all ranks are counted, it may be another rank that
            /// finds too many, and the job ends with [`Error::Mismatch`](crate::Error::Mismatch).
            pub fn done(&self, contributors: u64) -> $crate::error::Result<()> {
                self.handle.done(contributors)
            }

            /// One round of progress; true when what was [started](Self::start) is over here.
            /// That is said once: then nothing is under way any more. Without a handler, take
            /// what comes meanwhile: a delivery queue that is full keeps all ranks from the end.
            ///
            /// # Errors
            /// [`Error::Misuse`](crate::Error::Misuse) when nothing was started; as [`Self::poll`].
            pub fn test(&self) -> $crate::error::Result<bool> {
                self.handle.test()
            }

            /// Waits until what was [started](Self::start) is over.
            ///
            /// # Errors
            /// [`Error::Misuse`](crate::Error::Misuse) when nothing was started; as [`Self::fence`].
            pub fn wait(&self) -> $crate::error::Result<()> {
                self.handle.wait()
            }

            /// As [`Job::barrier`](crate::Job::barrier), but gives way when only taking deliveries
            /// can make room, so that the flushes of others can end: for streams without a handler.
            ///
            /// # Errors
            /// As [`Self::fence`].
            pub fn barrier(&self) -> $crate::error::Result<()> {
                self.handle.barrier()
            }

            /// Counters of this rank; `None` inside an inline handler or with an open reservation,
            /// and when the engine is in use and does not come free.
            pub fn stats(&self) -> Option<$crate::stats::Stats> {
                self.handle.stats()
            }

            /// Bytes of this stream that the relay of this rank has handed to the fabric, for all
            /// ranks that have it (those of a process, or of an agent): their own
            /// [`Self::stats`] count none. 0 where there is no relay. All ranks of the relay ask,
            /// in the same order as other collective calls; others have no part in it.
            ///
            /// # Errors
            /// The transport's, and [`crate::Error::Nested`] inside a handler.
            pub fn relays_wire_bytes(&self) -> $crate::error::Result<u64> {
                self.handle.relays_wire_bytes()
            }

            /// As [`Self::stats`], with each queue's.
            pub fn detailed_stats(&self) -> Option<$crate::stats::DetailedStats> {
                self.handle.detailed_stats()
            }

            /// Writes every queue of this rank with its use and its bound, and the memory formula
            /// with its value. Does not wait for long: where the engine cannot be had, it says so.
            ///
            /// # Errors
            /// The writer's.
            pub fn dump(&self, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
                self.handle.dump(writer)
            }

            /// What [`Self::dump`] writes and [`Self::detailed_stats`] gives, of one moment.
            #[doc(hidden)]
            pub fn dump_and_stats(&self) -> Option<(Vec<u8>, $crate::stats::DetailedStats)> {
                self.handle.dump_and_stats()
            }

            /// A fence, after which the stream takes and delivers nothing more, and its handler is
            /// gone. Collective. Without a handler, what still waits for [`Self::take`] is given
            /// up; how much is said. Its memory is kept for another stream of the same options,
            /// of records where it is, or of items of any size below 16 KiB, since libfabric
            /// cannot take posted receives back.
            ///
            /// # Errors
            /// As [`Self::fence`]; after `WouldBlock` nothing but taking and this call again, for
            /// which a clone is kept: a fence in between would be the others' shutdown.
            /// [`Error::Misuse`](crate::Error::Misuse), with nothing done, where contributors of
            /// this rank's are not done in a step.
            pub fn shutdown(self) -> $crate::error::Result<()> {
                self.handle.shut_down()
            }
        }
    };
}

/// Gives what a handler gets to send with, around an [`Outbox`](crate::Outbox), what all have.
macro_rules! outbox_verbs {
    ([$($generics:tt)*] $face:ty) => {
        impl<$($generics)*> $face {
            /// This rank.
            pub fn rank(&self) -> $crate::Rank {
                self.outbox.rank()
            }

            /// Ranks of the job.
            pub fn size(&self) -> u32 {
                self.outbox.size()
            }

            /// So many contributors of the stream's step are done, as by the stream's own `done`.
            ///
            /// # Errors
            /// As that.
            pub fn done(&mut self, contributors: u64) -> $crate::error::Result<()> {
                self.outbox.done(contributors)
            }
        }
    };
}

pub(crate) use {common_verbs, outbox_verbs};
