//! Steps of a stream, as far as they bear on its sends: contributors that are done or not, and an
//! end that has been started, after which only handlers send.

use super::Outbound;
use crate::engine::contribution::{Contribution, Contributors};
use crate::error::{Error, Result};

/// After each of so many calls by which contributors are done in a step the rank makes progress,
/// where other ranks count them too; after more of them, when it is due.
const PROMPT_CALLS: u32 = 16;

/// How soon others are to hear that contributors are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// They need not, or will with what was said before.
    None,
    /// At the next round of progress, whoever makes it.
    Soon,
    Now,
}

impl Outbound {
    /// The application sends nothing until the step is over, or may again.
    pub fn set_ending(&mut self, is_ending: bool) {
        self.is_ending = is_ending;
        self.set_checked();
    }

    /// A step begins, of contributors of which some may be done already.
    ///
    /// # Errors
    /// [`Error::Misuse`] where those are too many.
    pub fn begin_step(&mut self, contributors: Contributors) -> Result<()> {
        let mut contribution = Contribution::new(contributors);
        contribution.done(self.early).map_err(|why| {
            let why = format!("{why}, as handlers have said before the step");
            Error::misuse(&self.name, why)
        })?;
        (self.early, self.dones) = (0, 0);
        self.set_contribution(contribution);
        Ok(())
    }

    /// As [`Outbound::done`], by a handler: where no step is under way here that waits for it, it
    /// is one of the next.
    pub fn done_in_handler(&mut self, count: u64) -> Result<Urgency> {
        if self.contribution.waits() {
            return self.done(count);
        }
        let early = self.early.checked_add(count);
        let why = || format!("{} and {count} contributors are done", self.early);
        self.early = early.ok_or_else(|| Error::misuse(&self.name, why()))?;
        Ok(Urgency::None)
    }

    /// So many contributors of the step have sent what they have to send. A rank without any may
    /// say 0 at any time: it does not know when others have ended the step.
    ///
    /// # Errors
    /// [`Error::Misuse`] without a step, and for more than there are.
    pub fn done(&mut self, count: u64) -> Result<Urgency> {
        self.check_open()?;
        if count == 0 {
            return Ok(Urgency::None);
        }
        let said = self.contribution.done(count);
        said.map_err(|why| Error::misuse(&self.name, why))?;
        if self.contribution.is_complete() {
            self.set_ending(true);
            return Ok(Urgency::Now);
        }
        self.dones = self.dones.saturating_add(1);
        Ok(match self.contribution {
            Contribution::All { .. } if self.dones <= PROMPT_CALLS => Urgency::Now,
            Contribution::All { done } if done == count => Urgency::Soon,
            _ => Urgency::None,
        })
    }

    /// Refuses the end of the stream while contributors of this rank are not done: nobody else
    /// could end their step.
    ///
    /// # Errors
    /// [`Error::Misuse`].
    pub fn check_contributed(&self) -> Result<()> {
        match self.contribution {
            Contribution::Local { left: left @ 1.. } => {
                let why = format!("shut down in a step: {left} of its contributors are not done");
                Err(Error::misuse(&self.name, why))
            }
            _ => Ok(()),
        }
    }

    /// What contributors of the step have said.
    pub fn contribution(&self) -> Contribution {
        self.contribution
    }

    /// What is known of them now. Once all are done, only handlers send.
    pub fn set_contribution(&mut self, contribution: Contribution) {
        self.contribution = contribution;
        self.set_ending(contribution.is_complete());
    }

    /// What was under way on the stream is over, and the application sends again.
    pub fn end_step(&mut self) {
        self.contribution = Contribution::None;
        self.set_ending(false);
    }

    /// Refuses what would count as part of a step's end while a step is under way.
    ///
    /// # Errors
    /// [`Error::Misuse`].
    pub fn check_no_step(&self, what: &str) -> Result<()> {
        self.check_not_ending(what)?;
        match self.contribution {
            Contribution::None => Ok(()),
            _ => {
                let why = format!("{what} in a step of contributors: wait for its end first");
                Err(Error::misuse(&self.name, why))
            }
        }
    }

    /// Refuses what the application may not do while a step ends that it has started to end.
    pub fn check_not_ending(&self, what: &str) -> Result<()> {
        match self.is_ending {
            false => Ok(()),
            true => {
                let why =
                    format!("{what} after the end of the step was started: wait for that first");
                Err(Error::misuse(&self.name, why))
            }
        }
    }
}
