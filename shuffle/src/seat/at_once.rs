//! What a rank sends to itself, and wants handled in the same call.

use trihop_transport::topology::Rank;

use super::Seating;
use super::calls::{Handle, check_open};
use crate::engine::at_once::OwnSend;
use crate::engine::long::Record;
use crate::engine::outbound::Pushes;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};

impl<S: Seating> Handle<S> {
    /// What this rank sends to itself by this handle is handled at once.
    ///
    /// # Errors
    /// [`Error::Config`] where another thread calls the handler, and where there is none.
    pub(crate) fn handle_own_at_once(&mut self) -> Result<()> {
        let what = "own_at_once";
        self.seat.may_wait(what)?;
        if S::MOVES_ALONE {
            let why = "a delivery thread calls the handlers of a job with threads, one call at a \
                       time, and may be in one: start the job inline, or let it send as ever";
            return Err(Error::config(what, why));
        }
        self.seat.with(what, |job| {
            let (state, out) = job.engine.stream(self.id)?;
            check_open(state, out)?;
            match state.sink {
                Sink::Handler => Ok(()),
                _ => {
                    let why = format!("stream `{}` has no handler to be called", self.name);
                    Err(Error::config(what, why))
                }
            }
        })?;
        self.at_once = Some(self.rank);
        Ok(())
    }

    /// Whether what is sent to this rank by this handle is handled at once, where it can be.
    #[inline(always)] // part of every send
    pub(crate) fn is_at_once(&self, target: Rank) -> bool {
        self.at_once == Some(target)
    }

    /// Sends to this rank by a call of the handler; false where it has to go the way of all others.
    ///
    /// # Errors
    /// See [`Seating::deliver_own`].
    pub(crate) fn deliver_own(&self, send: OwnSend<'_>, pushes: Pushes) -> Result<bool> {
        let is_sent = self.seat.deliver_own(self.id, send)?;
        // A rank that only sends to itself makes progress too.
        if is_sent
            && pushes == Pushes::Paced
            && self.with_out("a send", |out| Ok(out.count_call()))?
        {
            self.seat.progress_in_passing()?;
        }
        Ok(is_sent)
    }

    #[inline(always)] // part of every send
    pub(crate) fn is_handled_at_once(
        &self,
        target: Rank,
        kind: u32,
        bytes: &[u8],
        pushes: Pushes,
    ) -> Result<bool> {
        let send = OwnSend {
            kind,
            bytes,
            to_others: false,
        };
        Ok(self.is_at_once(target) && self.deliver_own(send, pushes)?)
    }

    /// Sends a record: waits while there is no room, but not in a handler.
    #[inline]
    pub(crate) fn send_record(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        match self.send_here(target, kind, bytes) {
            true => Ok(()),
            false => self.send_record_on(target, kind, bytes),
        }
    }

    /// As [`Handle::send_record`], where more than its run is needed.
    fn send_record_on(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        let pushes = Pushes::Paced;
        if self.is_handled_at_once(target, kind, bytes, pushes)? {
            return Ok(());
        }
        if self.sends_lent(bytes.len()) {
            return self.send_lent(target, kind, Record { bytes, tail: &[] });
        }
        self.send(
            |out| out.try_send(target, kind, bytes),
            |out| out.send_or_spill(target, kind, bytes),
        )?;
        self.allow_sends_here(bytes.len(), pushes);
        Ok(())
    }

    /// Sends a record if there is room, and makes no progress.
    #[inline]
    pub(crate) fn try_send_record(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        match self.send_here(target, kind, bytes) {
            true => Ok(()),
            false => self.try_send_record_on(target, kind, bytes),
        }
    }

    /// As [`Handle::try_send_record`], where more than its run is needed.
    fn try_send_record_on(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        let pushes = Pushes::Unpaced;
        if self.is_handled_at_once(target, kind, bytes, pushes)? {
            return Ok(());
        }
        self.try_send(|out| out.try_send(target, kind, bytes))?;
        self.allow_sends_here(bytes.len(), pushes);
        Ok(())
    }

    /// Sends a record that needs nothing but its run; whether it is such a record.
    #[inline(always)] // part of every send
    pub(crate) fn send_here(&self, target: Rank, kind: u32, bytes: &[u8]) -> bool {
        self.seat.send_here(&self.of, target, kind, bytes)
    }

    /// A record of so many bytes was sent that [`Handle::send_here`] had left; those that follow
    /// may go by that, if this one is short.
    pub(crate) fn allow_sends_here(&self, bytes: usize, pushes: Pushes) {
        if bytes <= self.short_bytes {
            self.seat.allow_pushes_here(self.id, &self.of, pushes);
        }
    }
}
