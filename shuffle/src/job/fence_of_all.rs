//! The fence of all streams of a job.

use std::fmt::Display;

use super::{JobState, Way};
use crate::endpoint::Engine;
use crate::error::{Error, Result};
use crate::terminate::flush::Fence;

/// A fence of all streams, as far as it has come.
pub(super) struct FenceOfAll {
    way: Way,
    fence: Fence,
    is_over: bool,
}

impl FenceOfAll {
    /// Goes on with it; whether it is over.
    pub fn poll(&mut self, engine: &mut Engine) -> bool {
        self.is_over = self.is_over || engine.poll_fence(&mut self.fence);
        self.is_over
    }
}

impl JobState {
    /// Begins a fence of all streams. A call that waits goes on with one that gave way.
    ///
    /// # Errors
    /// [`Error::Misuse`] while one is started, or the end of a step of a stream is.
    pub fn begin_fence(&mut self, way: Way) -> Result<()> {
        let what = "a fence of all streams";
        self.check_not_fencing(&what)?;
        self.engine
            .open_streams()
            .try_for_each(|(_, out)| out.check_no_step(what))?;
        match &self.parked.of_all {
            Some(_) if way == Way::Waited => return Ok(()),
            Some(_) => {
                let why = format!("{what} gave way to deliveries: call it again until it is over");
                return Err(Error::misuse("job", why));
            }
            None => {}
        }
        let mut begun = FenceOfAll {
            way,
            fence: Fence::default(),
            is_over: false,
        };
        begun.poll(&mut self.engine);
        self.parked.of_all = Some(begun);
        Ok(())
    }

    /// Whether the fence of all streams is over; that is said once.
    ///
    /// # Errors
    /// [`Error::Misuse`] where none is under way.
    pub fn is_fence_over(&mut self) -> Result<bool> {
        let Some(fence) = &mut self.parked.of_all else {
            let why = "no fence of all streams is under way: start one first";
            return Err(Error::misuse("job", why));
        };
        let is_over = fence.poll(&mut self.engine);
        if is_over {
            self.parked.of_all = None;
        }
        Ok(is_over)
    }

    /// Refuses what may not begin while a fence of all streams is started.
    ///
    /// # Errors
    /// [`Error::Misuse`].
    pub fn check_not_fencing(&self, what: &dyn Display) -> Result<()> {
        match &self.parked.of_all {
            Some(fence) if fence.way == Way::Started => {
                let why =
                    format!("{what} while a fence of all streams is started: wait for that first");
                Err(Error::misuse("job", why))
            }
            _ => Ok(()),
        }
    }
}
