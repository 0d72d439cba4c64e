//! The end of a job: streams are fenced, everyone is waited for, and the launcher is told. Its fence ends the start too.

use std::rc::Rc;

use trihop_transport::Error as TransportError;
use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::masked;

use super::JobState;
use crate::error::{Error, Result};

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
            self.wait(|| {
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
        }
        self.barrier()?;
        let bootstrap = self.bootstrap.borrow_mut().take();
        if let Some(bootstrap) = bootstrap {
            if bootstrap.fences_on_callers_thread() {
                // Every record of every stream has been delivered, and a barrier's last messages go to ranks one hop away that
                // still wait for them: once they have left, nobody needs this rank's progress. The first barrier has used
                // each of these links both ways, so that none of the second one's waits for a connection.
                self.barrier()?;
                self.wait(|| Ok(self.endpoint.has_left_results().then_some(())))?;
            }
            self.closing.set(true);
            // Nobody's memory and addresses go before the launcher says that all have arrived here.
            let mut bootstrap = self.launchers_fence(bootstrap)?;
            // Whoever goes from now on does so properly, and the watch says so.
            self.lives.end();
            bootstrap.finalize()?;
        }
        Ok(())
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
        let waited = self.wait(|| Ok(thread.is_finished().then_some(())));
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
