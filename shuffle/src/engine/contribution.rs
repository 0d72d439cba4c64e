//! Who sends in a step, and what they have said: completion detection.

/// Who says when a step has all that is sent in it. A contributor is whatever the program likes: a
/// thread, an object, a task; it sends, and then says once that it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Contributors {
    /// So many of this rank; other ranks have their own. A rank with none is done at once.
    Local(u64),
    /// So many of all ranks together, wherever they turn out to be: each rank says the same
    /// number.
    All(u64),
}

/// What contributors of this rank have said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Contribution {
    /// No step has begun.
    #[default]
    None,
    /// So many of this rank are not done yet.
    Local { left: u64 },
    /// So many have said that they are done since that was last passed on.
    All { done: u64 },
    /// All are done, on all ranks.
    Complete,
}

impl Contribution {
    pub fn new(contributors: Contributors) -> Self {
        match contributors {
            Contributors::Local(left) => Self::Local { left },
            Contributors::All(_) => Self::All { done: 0 },
        }
    }

    /// So many are done.
    ///
    /// # Errors
    /// Why they cannot be.
    pub fn done(&mut self, count: u64) -> Result<(), String> {
        match self {
            Self::None => Err("no step has begun: begin one first".to_owned()),
            Self::Complete => Err("all contributors of the step were done already".to_owned()),
            Self::Local { left } => {
                let Some(rest) = left.checked_sub(count) else {
                    return Err(format!(
                        "more contributors are done ({count}) than were left ({left})"
                    ));
                };
                *left = rest;
                Ok(())
            }
            Self::All { done } => {
                let sum = done.checked_add(count);
                *done = sum.ok_or_else(|| format!("{done} and {count} contributors are done"))?;
                Ok(())
            }
        }
    }

    /// Whether contributors of a step that has begun are not all done.
    pub fn waits(self) -> bool {
        matches!(self, Self::Local { .. } | Self::All { .. }) && !self.is_complete()
    }

    /// Whether nothing but handlers sends in this step any more.
    pub fn is_complete(self) -> bool {
        matches!(self, Self::Local { left: 0 } | Self::Complete)
    }
}
