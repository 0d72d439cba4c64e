//! The only place of this package that talks to the engine: agreement of all ranks, and what
//! arrives from them.

use std::cell::{Cell, RefCell};

use trihop::{Job, Message};

use super::error::Error;
use super::sink::Sink;
use super::summary::Partition;

/// Kinds of messages; those below [`kind::SKIPPED`] are records of the part of this number.
pub mod kind {
    /// A record that was left out, for rank 0.
    pub const SKIPPED: u32 = u32::MAX - 16;
    /// The plan, from rank 0.
    pub const PLAN: u32 = u32::MAX - 1;
    /// One byte of [`super::Halt`]: another rank has failed.
    pub const HALT: u32 = u32::MAX - 2;
    /// Bytes read since the last one (u64), for rank 0.
    pub const PROGRESS: u32 = u32::MAX - 3;
    /// A part that was written, for rank 0.
    pub const PART: u32 = u32::MAX - 4;
    /// The first bad record of a rank, for rank 0.
    pub const FLAW: u32 = u32::MAX - 5;
    /// A rank has read all files that it reads alone.
    pub const READ: u32 = u32::MAX - 6;
}

/// What the failure of another rank means for this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Halt {
    /// Nothing has failed.
    #[default]
    No = 0,
    /// A record behind this rank's was refused: an earlier one may be the true reason, so look on,
    /// but send no more.
    CheckOnly = 1,
    /// Stop.
    Stop = 2,
}

/// A record that could not be taken, and that did not end the job.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Flawed {
    /// Number of the file in the list.
    pub file: usize,
    /// Offset of the record.
    pub offset: u64,
    /// Line of the record.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
}

/// What arrives for this rank.
#[derive(Debug, Default)]
pub struct Desk {
    /// The parts, once they are begun.
    pub sink: RefCell<Option<Sink>>,
    /// The plan of rank 0.
    pub plan: RefCell<Vec<u8>>,
    /// The worst that other ranks have told.
    pub halt: Cell<Halt>,
    /// Bytes that the others have read, as far as they told.
    pub progress: Cell<u64>,
    /// Ranks that have read all files that they read alone.
    pub readers_done: Cell<usize>,
    /// On rank 0: all parts that were told.
    pub parts: RefCell<Vec<Partition>>,
    /// On rank 0: the first bad record of each rank that has one.
    pub flaws: RefCell<Vec<Flawed>>,
}

impl Desk {
    /// Takes one message.
    pub fn take(&self, message: Message<'_>) {
        match message.kind {
            part if part <= kind::SKIPPED => {
                if let Some(sink) = self.sink.borrow_mut().as_mut() {
                    sink.take(part, message.bytes);
                }
            }
            kind::PLAN => message.bytes.clone_into(&mut self.plan.borrow_mut()),
            kind::HALT => {
                let told = if message.bytes == [Halt::CheckOnly as u8] {
                    Halt::CheckOnly
                } else {
                    Halt::Stop
                };
                self.halt.set(self.halt.get().max(told));
            }
            kind::PROGRESS => {
                if let Ok(bytes) = message.bytes.try_into() {
                    self.progress
                        .set(self.progress.get() + u64::from_le_bytes(bytes));
                }
            }
            kind::PART => self
                .parts
                .borrow_mut()
                .extend(serde_json::from_slice(message.bytes).ok()),
            kind::FLAW => self
                .flaws
                .borrow_mut()
                .extend(serde_json::from_slice(message.bytes).ok()),
            kind::READ => self.readers_done.set(self.readers_done.get() + 1),
            // A peer of another version; the engine's version check lets none through.
            _ => {}
        }
    }

    /// Whether parts can no longer be written.
    pub fn cannot_write(&self) -> bool {
        self.sink.borrow().as_ref().is_some_and(Sink::has_failed)
    }
}

/// Why this rank cannot go on.
#[derive(Debug)]
pub enum Failed {
    /// All ranks know, and have the same text.
    Agreed {
        /// For the user.
        text: String,
        /// Exit status.
        status: i32,
    },
    /// The engine cannot carry an agreement any more.
    Alone(Error),
}

impl From<trihop::Error> for Failed {
    fn from(error: trihop::Error) -> Self {
        Self::Alone(Error::Engine(error))
    }
}

/// Longest error text that is passed on.
const TEXT_BYTES: usize = 2000;

/// All ranks learn whether one of them failed. Of several failures the one that comes first in the
/// input counts, since the later ones may follow from it; then any other.
///
/// # Errors
/// The failure that counts, the same on all ranks; or the engine's.
pub fn agree<T>(job: &Job<'_>, mine: Result<T, Error>) -> Result<T, Failed> {
    if let Err(Error::Engine(error)) = mine {
        return Err(error.into());
    }
    let class = |error: &Error| match error {
        Error::Input { at, .. } => [1, at.0, at.1],
        Error::Usage(_) => [2, 0, 0],
        Error::Output { .. } => [3, 0, 0],
        Error::System { .. } | Error::Unwritten(_) | Error::Lost(_) | Error::Engine(_) => [4, 0, 0],
    };
    let words = mine.as_ref().err().map_or([u64::MAX; 3], class);
    let told: Vec<u8> = words.into_iter().flat_map(u64::to_be_bytes).collect();
    // Big-endian words compare as bytes; the first of equal ones is the lowest rank.
    let all = job.allgather(&told)?;
    let first = (0..all.len()).min_by_key(|&rank| &all[rank]).unwrap_or(0);
    if all[first].iter().all(|&byte| byte == 0xFF) {
        return mine.map_err(Failed::Alone);
    }
    let text = match &mine {
        Err(error) if job.rank().0 as usize == first => error.to_string(),
        _ => String::new(),
    };
    let texts = job.allgather(&text.as_bytes()[..text.len().min(TEXT_BYTES)])?;
    let text = String::from_utf8_lossy(&texts[first]).into_owned();
    let status = if all[first][7] == 2 { 2 } else { 1 };
    Err(Failed::Agreed { text, status })
}
