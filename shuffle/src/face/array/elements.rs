//! What the handler of an array and the calls of its program share: one of them has it at a time.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use trihop_transport::sync::{Arc, Flag, Mutex, MutexGuard, PoisonError, thread_local};

use super::table::Table;
use crate::error::{Error, Result};

thread_local! {
    /// This thread has the elements of an array.
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread has the elements of an array, for which handlers may be waiting.
pub(crate) fn in_use_here() -> bool {
    IN_USE.with(Cell::get)
}

/// The elements of an array on this rank. Who has them may use the engine; who has the engine does
/// not wait for them.
pub(crate) struct Elements<E> {
    table: Mutex<Table<E>>,
    /// Broadcasts that this rank has sent: counted with the engine in use, so that they are sent in
    /// this order.
    broadcasts: Mutex<u64>,
    /// A handler could not send something. Pairs with the look before each call.
    has_failed: Flag,
}

impl<E> Elements<E> {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::new(Table::new()),
            broadcasts: Mutex::new(0),
            has_failed: Flag::default(),
        })
    }

    /// The table, once nobody else has it.
    ///
    /// # Errors
    /// [`Error::Nested`] where this thread has one already, of this array or another: two threads
    /// could wait for each other's.
    pub fn lock(&self, what: &'static str) -> Result<InUse<'_, E>> {
        if IN_USE.with(|in_use| in_use.replace(true)) {
            return Err(Error::Nested(what));
        }
        // What a handler was changing when it panicked is not used any more: the job has failed.
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(InUse { table })
    }

    /// Numbers a broadcast, if it is sent. Only with the engine in use.
    pub fn number(&self, send: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let mut sent = self
            .broadcasts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        send(*sent + 1)?;
        *sent += 1;
        Ok(())
    }

    /// Keeps what a handler could not send, for the next call of the program; whether it could.
    pub fn keep(&self, table: &mut Table<E>, sent: Result<()>) -> bool {
        match sent {
            Ok(()) => true,
            Err(error) => {
                table.failure.get_or_insert(error);
                self.has_failed.raise();
                false
            }
        }
    }

    /// What handlers could not send.
    #[inline] // part of every push
    pub fn check_failure(&self) -> Result<()> {
        match self.has_failed.is_raised() {
            true => self.take_failure(),
            false => Ok(()),
        }
    }

    #[cold]
    fn take_failure(&self) -> Result<()> {
        // Who has the table has another call say so.
        let Ok(mut table) = self.lock("a call") else {
            return Ok(());
        };
        self.has_failed.lower();
        table.failure.take().map_or(Ok(()), Err)
    }
}

/// The table, in the hands of this thread.
pub(crate) struct InUse<'a, E> {
    table: MutexGuard<'a, Table<E>>,
}

impl<E> Drop for InUse<'_, E> {
    fn drop(&mut self) {
        IN_USE.with(|in_use| in_use.set(false));
    }
}

impl<E> Deref for InUse<'_, E> {
    type Target = Table<E>;

    fn deref(&self) -> &Table<E> {
        &self.table
    }
}

impl<E> DerefMut for InUse<'_, E> {
    fn deref_mut(&mut self) -> &mut Table<E> {
        &mut self.table
    }
}
