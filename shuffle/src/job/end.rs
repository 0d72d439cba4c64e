//! The end of a job: streams are fenced, everyone is waited for, and the launcher is told. Its fence ends the start too.

use std::rc::Rc;
use std::time::Instant;

use trihop_transport::Error as TransportError;
use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::masked;

use super::JobState;
use crate::error::{Error, Result};
use crate::terminate::collective::{Operation, Reduce};

impl JobState<'_> {
    /// See [`super::Job::shutdown`].
    pub fn shutdown(&self) -> Result<()> {
        let streams: Vec<_> = self
            .endpoint
            .streams
            .borrow()
            .iter()
            .skip(1)
            .map(Rc::clone)
            .collect();
        for core in streams.into_iter().filter(|core| !core.out.borrow().closed) {
            let before = core.delivered();
            let untaken = core.give_up_untaken();
            let mut fence = self.parked.fence(core.id);
            self.wait("the last fence of a stream", || {
                Ok(fence
                    .poll(&core, &mut self.endpoint.collectives.borrow_mut())
                    .then_some(()))
            })?;
            if let Some(untaken) = untaken {
                let lost = untaken + core.delivered() - before;
                if lost > 0 {
                    tracing::warn!(
                        stream = core.name,
                        lost,
                        "records were not taken before the job ended"
                    );
                }
            }
            core.out.borrow_mut().closed = true;
            tracing::debug!(
                target: "trihop_shuffle::deliver",
                stream = core.name,
                delivered = core.delivered(),
                "last delivery of a stream"
            );
        }
        let alone = self.any_is_out_of_reach()?;
        let bootstrap = self.bootstrap.borrow_mut().take();
        if let Some(mut bootstrap) = bootstrap {
            if alone {
                self.end_alone();
            } else if bootstrap.fences_on_callers_thread() {
                // Every record of every stream has been delivered, and a barrier's last messages go to ranks one hop away that
                // still wait for them: once they have left, nobody needs this rank's progress. The first barrier has used
                // each of these links both ways, so that none of the second one's waits for a connection.
                self.barrier()?;
                self.wait("the end of the job", || {
                    Ok(self.endpoint.has_left_results().then_some(()))
                })?;
            }
            self.closing.set(true);
            // Nobody's memory and addresses go before the launcher says that all have arrived here.
            if !alone {
                bootstrap = self.launchers_fence(bootstrap)?;
            }
            // Whoever goes from now on does so properly, and the watch says so.
            self.lives.end();
            if !bootstrap.is_out_of_reach() {
                bootstrap.finalize()?;
            }
        }
        Ok(())
    }

    /// The end of a job whose launcher cannot be asked. Everything has been delivered and all ranks
    /// have arrived; a last barrier, whose messages are one hop long, keeps each here until the
    /// results of the first are through. From now on ranks may be gone at any time, which is no
    /// failure of the job any more; what they left behind is still read.
    fn end_alone(&self) {
        self.closing.set(true);
        let deadline = Instant::now() + self.options.bootstrap_timeout();
        let ticket = self
            .endpoint
            .begin_collective(Operation::Reduce(Reduce::Sum), &[]);
        let waited = self.wait("the last barrier", || {
            let through = self.endpoint.collective_result(ticket).is_some();
            Ok((through || Instant::now() >= deadline).then_some(()))
        });
        let waited = waited.and_then(|()| {
            self.wait("the end of the job", || {
                let left = self.endpoint.has_left_results();
                Ok((left || Instant::now() >= deadline).then_some(()))
            })
        });
        if let Err(error) = waited {
            tracing::debug!(%error, "somebody was gone before the last barrier was through");
        }
    }

    /// The process exits while the job goes on: the launcher is told where it would take that for a
    /// crash.
    pub fn exit(&self) {
        if let Ok(mut bootstrap) = self.bootstrap.try_borrow_mut()
            && let Some(mut bootstrap) = bootstrap.take()
        {
            bootstrap.exit();
        }
    }

    /// A barrier, which tells whether any rank's launcher is out of reach: then all end without it.
    fn any_is_out_of_reach(&self) -> Result<bool> {
        let bootstrap = self.bootstrap.borrow();
        let here = bootstrap
            .as_ref()
            .is_some_and(|launcher| launcher.is_out_of_reach());
        drop(bootstrap);
        let here = u64::from(here);
        let sum = self.collective(Operation::Reduce(Reduce::Sum), &here.to_le_bytes())?;
        Ok(sum.iter().any(|&byte| byte != 0))
    }

    /// The launcher's fence: with progress where the launcher allows it, else on this thread, where it must not be needed.
    pub(super) fn launchers_fence(&self, mut bootstrap: Box<dyn Bootstrap>) -> Result<Box<dyn Bootstrap>> {
        if !bootstrap.fences_on_callers_thread() {
            return self.fence_while_progressing(bootstrap);
        }
        self.explained(bootstrap.fence().map_err(Error::from))?;
        Ok(bootstrap)
    }

    /// Runs a launcher's call, which waits, on a thread of its own while this one keeps forwarding.
    fn fence_while_progressing(&self, mut bootstrap: Box<dyn Bootstrap>) -> Result<Box<dyn Bootstrap>> {
        let bell = self.bell();
        let thread = masked::spawn("trihop-fence", move || {
            let outcome = bootstrap.fence();
            bell.ring();
            (bootstrap, outcome)
        })?;
        // The thread rings before it has quite ended, hence naps.
        self.fencing.set(true);
        let waited = self.wait("all ranks, at the launcher", || {
            Ok(thread.is_finished().then_some(()))
        });
        self.fencing.set(false);
        // An error here must come out although the launcher may wait for a dead rank for ever: the thread stays behind.
        // Once all ranks have arrived at the end, though, the first may be gone before we hear of it: nobody needs our
        // progress, and only a rank that died before it arrived is an error.
        match waited {
            Err(error) if !self.closing.get() || error.is_about_peer() => return Err(error),
            _ => {}
        }
        while !thread.is_finished() {
            self.look_after_peers(self.now_ns())
                .map_err(|error| self.explain(error))?;
            self.rest();
        }
        let (bootstrap, outcome) = thread.join().map_err(|_| {
            let why = "the thread that spoke with the launcher panicked".into();
            Error::from(TransportError::Bootstrap {
                launcher: self.launcher.name(),
                why,
            })
        })?;
        // The launcher may be the first to notice that a rank has ended.
        self.explained(outcome.map_err(Error::from))?;
        Ok(bootstrap)
    }
}
