//! The fence of all streams of a job.

use std::fmt::Display;
use std::task::Waker;

use super::{JobState, Way};
use crate::endpoint::Engine;
use crate::error::{Error, Result};
use crate::terminate::flush::Fence;

/// A fence of all streams, as far as it has come.
pub(super) struct Fencing {
    way: Way,
    fence: Fence,
    pub(super) is_over: bool,
    /// Of all that this rank has begun.
    number: u64,
    /// Is woken once it is over.
    pub(super) waker: Option<Waker>,
}

impl Fencing {
    /// Goes on with it; whether it is over.
    pub fn poll(&mut self, engine: &mut Engine) -> bool {
        self.is_over = self.is_over || engine.poll_fence(&mut self.fence);
        self.is_over
    }
}

impl JobState {
    /// Begins a fence of all streams; its number. A call that waits goes on with one that gave way.
    ///
    /// # Errors
    /// [`Error::Misuse`] while one is started, or the end of a step of a stream is.
    pub fn begin_fence(&mut self, way: Way) -> Result<u64> {
        let what = "a fence of all streams";
        self.check_not_fencing(&what)?;
        self.engine
            .open_streams()
            .try_for_each(|(_, out)| out.check_no_step(what))?;
        match &self.parked.of_all {
            Some(fence) if way == Way::Waited => return Ok(fence.number),
            Some(_) => {
                let why = format!("{what} gave way to deliveries: call it again until it is over");
                return Err(Error::misuse("", why));
            }
            None => {}
        }
        self.parked.begun += 1;
        let mut begun = Fencing {
            way,
            fence: Fence::default(),
            is_over: false,
            number: self.parked.begun,
            waker: None,
        };
        begun.poll(&mut self.engine);
        self.parked.of_all = Some(begun);
        Ok(self.parked.begun)
    }

    /// Whether the fence with this number is under way.
    pub fn is_fencing(&self, number: u64) -> bool {
        let fence = self.parked.of_all.as_ref();
        fence.is_some_and(|fence| fence.number == number)
    }

    /// Has this woken when the fence of all streams is over; the waker that had waited for it.
    pub fn wake_at_fence(&mut self, waker: &Waker) -> Option<Waker> {
        let fence = self.parked.of_all.as_mut()?;
        fence.waker.replace(waker.clone())
    }

    /// Whether the fence of all streams is over; that is said once.
    ///
    /// # Errors
    /// [`Error::Misuse`] where none is under way.
    pub fn is_fence_over(&mut self) -> Result<bool> {
        let Some(fence) = &mut self.parked.of_all else {
            let why = "no fence of all streams is under way: start one first";
            return Err(Error::misuse("", why));
        };
        let is_over = fence.poll(&mut self.engine);
        if !is_over {
            if let Err(gone) = self.check_whole() {
                if let Some(given_up) = self.parked.of_all.take() {
                    self.parked.woken.extend(given_up.waker);
                    if given_up.way == Way::Started {
                        self.parked.given_up.push(given_up.number);
                    }
                }
                self.engine.give_up_fence();
                return Err(gone);
            }
        } else {
            self.parked.woken.extend(fence.waker.take());
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
                Err(Error::misuse("", why))
            }
            _ => Ok(()),
        }
    }
}
