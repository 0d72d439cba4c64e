//! What handlers send: where queues have no room it is spilled, since a handler cannot wait.

use trihop_transport::topology::Rank;
use zerocopy::{Immutable, IntoBytes};

use super::Outbound;
use crate::error::{Error, Result};
use crate::queue::audience::{Audience, BroadcastTo};
use crate::queue::runs::Stop;

impl Outbound {
    /// A send of a handler.
    #[inline]
    pub fn send_or_spill(&mut self, target: Rank, kind: u32, payload: &[u8]) -> Result<()> {
        if self.append(target, kind, payload) {
            return Ok(());
        }
        self.send_or_spill_slow(target, kind, payload)
    }

    #[cold]
    fn send_or_spill_slow(&mut self, target: Rank, kind: u32, payload: &[u8]) -> Result<()> {
        self.check(target, payload.len())?;
        if self.spill.is_empty() {
            match self.accept(target, kind, payload) {
                Err(Error::WouldBlock) => {}
                other => return other,
            }
        }
        self.spill_or_refuse(Audience::One(target), kind, payload)
    }

    /// A broadcast of a handler.
    pub fn broadcast_or_spill(&mut self, to: BroadcastTo, kind: u32, payload: &[u8]) -> Result<()> {
        self.check(Rank(self.rank), payload.len())?;
        if self.spill.is_empty() {
            match self.accept_broadcast(to, kind, payload) {
                Err(Error::WouldBlock) => {}
                other => return other,
            }
        }
        self.spill_or_refuse(Audience::Many(to), kind, payload)
    }

    /// An item of a handler.
    #[inline]
    pub fn push_or_spill(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        if self.append_item(target, item) {
            return Ok(());
        }
        self.push_or_spill_slow(target, item)
    }

    /// Items of a handler. Comes back with the one for which not even the spill has room, if there is one.
    pub fn extend_or_spill<T: IntoBytes + Immutable>(
        &mut self,
        items: &mut impl Iterator<Item = (Rank, T)>,
    ) -> Result<Option<(Rank, T)>> {
        loop {
            match self.gather(usize::MAX, items) {
                Stop::End => return Ok(None),
                Stop::Enough => {}
                Stop::At(target, item) => match self.push_or_spill(target, item.as_bytes()) {
                    Ok(()) => {}
                    Err(Error::WouldBlock) => return Ok(Some((target, item))),
                    Err(error) => return Err(error),
                },
            }
        }
    }

    #[cold]
    fn push_or_spill_slow(&mut self, target: Rank, item: &[u8]) -> Result<()> {
        self.check(target, item.len())?;
        if self.spill.is_empty() {
            match self.accept_item(target, item) {
                Err(Error::WouldBlock) => {}
                other => return other,
            }
        }
        self.spill_or_refuse(Audience::One(target), 0, item)
    }

    fn spill_or_refuse(&mut self, audience: Audience, kind: u32, payload: &[u8]) -> Result<()> {
        if self.spill.push(audience, kind, payload) {
            Ok(())
        } else {
            self.refused()
        }
    }
}
