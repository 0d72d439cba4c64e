//! What the handler of an array sends with.

use std::marker::PhantomData;

use trihop_transport::topology::Rank;

use super::elements::Elements;
use super::{EVERY, ITEM, Owners, with_words};
use crate::engine::outbox::Outbox;
use crate::error::{Error, Result};
use crate::face::codec::{Codec, encode};
use crate::queue::audience::BroadcastTo;
use crate::seat::{HandlerOutbox, Inline, Seat, Seating};

/// What the handler of an array gets to send with: its sends never wait.
pub struct ArrayOutbox<'a, E, T, C, S: Seat> {
    pub(super) outbox: S::Outbox<'a>,
    pub(super) codec: &'a C,
    pub(super) owners: &'a Owners<S>,
    pub(super) elements: &'a Elements<E>,
    /// Where the element is to move; `None` outside of its handler.
    pub(super) migrates: Option<&'a mut Option<Rank>>,
    pub(super) item: PhantomData<fn() -> T>,
}

impl<E, T, C: Codec<T>, S: Seat> ArrayOutbox<'_, E, T, C, S> {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.outbox.rank()
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.outbox.size()
    }

    /// Sends an item to the element of a key, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::send`]; an item that the codec refuses.
    pub fn push(&mut self, key: u64, item: &T) -> Result<()> {
        let owner = self.owners.of(key);
        with_words(&[key], |bytes| {
            encode(self.codec, item, bytes)?;
            self.outbox.send(owner, ITEM, bytes)
        })
    }

    /// Sends an item to every element, or spills it.
    ///
    /// # Errors
    /// As [`ArrayOutbox::push`].
    pub fn broadcast(&mut self, item: &T) -> Result<()> {
        with_words(&[0], |bytes| {
            encode(self.codec, item, bytes)?;
            self.outbox.send_by(|out| {
                self.elements.number(|number| {
                    bytes[..8].copy_from_slice(&number.to_le_bytes());
                    out.broadcast_or_spill(BroadcastTo::Everyone, EVERY, bytes)
                })
            })
        })
    }

    /// Has the element for which the handler was called move to another rank, as soon as the
    /// handler has returned.
    ///
    /// # Errors
    /// A rank that is not in the job; [`Error::Misuse`] outside of the array's own handler.
    pub fn migrate(&mut self, to: Rank) -> Result<()> {
        let (rank, size) = (to.0, self.size());
        if rank >= size {
            return Err(Error::Rank { rank, size });
        }
        let Some(migrates) = &mut self.migrates else {
            let why = "a handler of something else has no element that could move";
            return Err(Error::misuse("(an array)", why));
        };
        **migrates = Some(to);
        Ok(())
    }

    /// So many contributors of the array's step are done: see [`Array::begin_step`].
    ///
    /// # Errors
    /// As [`crate::Shuffle::done`].
    ///
    /// [`Array::begin_step`]: crate::Array::begin_step
    pub fn done(&mut self, contributors: u64) -> Result<()> {
        self.outbox.done(contributors)
    }
}

impl<'h, E, T, C> ArrayOutbox<'_, E, T, C, Inline<'h>> {
    /// What sends on other streams of the same job: by [`Outbox::on`].
    pub fn outbox(&mut self) -> Outbox<'_> {
        Inline::again(&mut self.outbox)
    }
}
