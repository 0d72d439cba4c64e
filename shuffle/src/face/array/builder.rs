//! How an array is opened: owners, options, handler.

use std::marker::PhantomData;
use std::rc::Rc;

use trihop_transport::sync::Arc;
use trihop_transport::topology::Rank;

use super::elements::Elements;
use super::keeper::{Keeper, lock};
use super::{Array, ArrayOutbox};
use crate::config::StreamOptions;
use crate::error::Result;
use crate::face::codec::Codec;
use crate::face::shuffle::{ShuffleBuilder, each_message};
use crate::seat::{Inline, Seat, Seating};

/// Who knows where the element of a key is.
pub(crate) struct Owners<S: Seating> {
    given: Option<S::OwnerOf>,
    /// Ranks of the job.
    size: u32,
}

impl<S: Seating> Clone for Owners<S> {
    fn clone(&self) -> Self {
        let (given, size) = (self.given.clone(), self.size);
        Self { given, size }
    }
}

impl<S: Seating> Owners<S> {
    /// What the program says, whether there is such a rank or not; else the ranks in turn.
    pub fn of(&self, key: u64) -> Rank {
        match &self.given {
            Some(owner) => owner(key),
            None => Rank((key % u64::from(self.size)) as u32),
        }
    }
}

/// Opens an [`Array`]: owners, options, handler.
pub struct ArrayBuilder<E, T, C, S: Seat> {
    shuffle: ShuffleBuilder<S>,
    codec: C,
    owners: Owners<S>,
    of: PhantomData<fn() -> (E, T)>,
}

impl<E, T, C, S> ArrayBuilder<E, T, C, S>
where
    C: Codec<E> + Codec<T> + Clone,
    S: Seat,
{
    pub(crate) fn new(seat: &S, name: &str, size: u32, codec: C) -> Self {
        Self {
            shuffle: ShuffleBuilder::new(seat, name),
            codec,
            owners: Owners { given: None, size },
            of: PhantomData,
        }
    }

    pub(crate) fn owned_by(mut self, owner: S::OwnerOf) -> Self {
        self.owners.given = Some(owner);
        self
    }

    /// Options of this array's stream instead of the job's.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.shuffle = self.shuffle.options(options);
        self
    }

    /// What takes the records of the array, by a handler of its program.
    pub(crate) fn keeper<H>(&self, handler: H) -> Keeper<E, T, C, S, H> {
        Keeper {
            elements: Elements::new(),
            codec: self.codec.clone(),
            owners: self.owners.clone(),
            handler,
            of: PhantomData,
        }
    }

    /// Opens the array whose elements a keeper has.
    pub(crate) fn open_by(
        self,
        elements: Arc<Elements<E>>,
        handler: S::Handler,
    ) -> Result<Array<E, T, C, S>> {
        elements.lock("an opening")?.most_logged_bytes = self.shuffle.memory_bytes()?;
        Ok(Array {
            handle: self.shuffle.handle_by(handler).open()?.handle,
            elements,
            codec: self.codec,
            owners: self.owners,
            of: PhantomData,
        })
    }
}

impl<'h, E: 'h, T: 'h, C> ArrayBuilder<E, T, C, Inline<'h>>
where
    C: Codec<E> + Codec<T> + Clone + 'h,
{
    /// Who knows where the element of a key is: the same on all ranks, and for any key, since
    /// those of other ranks are asked for too. Without this, the ranks in turn, by key. What is
    /// sent to an element that is with its owner goes straight there.
    pub fn owner(self, owner: impl Fn(u64) -> Rank + 'h) -> Self {
        self.owned_by(Rc::new(owner))
    }

    /// Opens the array, without elements; collective. `handler` is called for each item with the
    /// key and the element that it was sent to.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(
        self,
        handler: impl FnMut(u64, &mut E, T, &mut ArrayOutbox<'_, E, T, C, Inline<'h>>) + 'h,
    ) -> Result<Array<E, T, C, Inline<'h>>> {
        let mut keeper = self.keeper(handler);
        let elements = Arc::clone(&keeper.elements);
        let handler: <Inline<'h> as Seating>::Handler = Box::new(move |delivery, done, outbox| {
            let elements = Arc::clone(&keeper.elements);
            let mut table = lock(&elements);
            each_message(delivery, done, |message, first| {
                if !first && outbox.has_overfilled() {
                    return Ok(false);
                }
                keeper.take(&mut table, message, outbox)?;
                Ok(true)
            })
        });
        self.open_by(elements, handler)
    }
}
