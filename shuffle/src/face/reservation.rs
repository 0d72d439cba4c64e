//! Records that are filled in place: space in the open run of their target instead of a copy.

use std::cell::RefMut;
use std::ops::{Deref, DerefMut};

use trihop_transport::topology::Rank;

use crate::engine::outbound::Outbound;
use crate::error::Result;
use crate::face::handle::Handle;
use crate::face::shuffle::Shuffle;

impl<'h> Shuffle<'h> {
    /// Space for a record of `bytes` bytes, to be filled in place and committed. Waits like [`Shuffle::send`].
    ///
    /// A dropped reservation is given up. A forgotten one (`std::mem::forget`) makes every later call on the shuffle
    /// an [`Error::Nested`].
    ///
    /// # Errors
    /// As [`Shuffle::send`].
    pub fn reserve(&mut self, target: Rank, kind: u32, bytes: usize) -> Result<Reservation<'_, 'h>> {
        let small = bytes <= self.handle.outbound()?.reservable_bytes();
        let space = if small {
            Space::InPlace(self.handle.reserve(target, kind, bytes)?)
        } else {
            self.handle.outbound()?.check(target, bytes)?;
            Space::Staged(vec![0; bytes])
        };
        Ok(Reservation {
            handle: &self.handle,
            space: Some(space),
            target,
            kind,
            bytes,
        })
    }
}

enum Space<'a> {
    InPlace(RefMut<'a, Outbound>),
    Staged(Vec<u8>),
}

/// Space for one record; dereferences to its bytes, zeroed.
pub struct Reservation<'a, 'h> {
    handle: &'a Handle<'h>,
    space: Option<Space<'a>>,
    target: Rank,
    kind: u32,
    bytes: usize,
}

impl Reservation<'_, '_> {
    /// Makes the space a record, as if it had been sent.
    ///
    /// # Errors
    /// Only for a record that is longer than a run: as [`Shuffle::send`].
    pub fn commit(mut self) -> Result<()> {
        match self.space.take() {
            Some(Space::InPlace(mut out)) => {
                out.note_sent(self.bytes);
                Ok(())
            }
            Some(Space::Staged(bytes)) => {
                let (target, kind) = (self.target, self.kind);
                self.handle.send_with(|out| out.try_send(target, kind, &bytes))
            }
            None => Ok(()),
        }
    }
}

impl Deref for Reservation<'_, '_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.space {
            Some(Space::InPlace(out)) => out.reserved_ref(self.target, self.bytes),
            Some(Space::Staged(bytes)) => bytes,
            None => &[],
        }
    }
}

impl DerefMut for Reservation<'_, '_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.space {
            Some(Space::InPlace(out)) => out.reserved(self.target, self.bytes),
            Some(Space::Staged(bytes)) => bytes,
            None => &mut [],
        }
    }
}

impl Drop for Reservation<'_, '_> {
    fn drop(&mut self) {
        if let Some(Space::InPlace(mut out)) = self.space.take() {
            out.retract(self.target, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::{Job, Options};
    use trihop_transport::bootstrap::Launcher;

    #[test]
    fn reservations_become_records_in_place_and_are_safe_to_drop_or_forget() {
        let heard = std::cell::RefCell::new(Vec::new());
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = Job::start(options).unwrap();
        let open = |name: &str| {
            job.shuffle(name)
                .handler(|m, _| heard.borrow_mut().push((m.kind, m.bytes.to_vec())))
                .open()
                .unwrap()
        };
        let mut shuffle = open("reserved");
        for (kind, bytes) in [(1u32, 0usize), (2, 5), (3, 900), (4, 5000), (5, 100_000)] {
            let mut space = shuffle.reserve(Rank(0), kind, bytes).unwrap();
            assert_eq!(space.len(), bytes);
            space.fill(kind as u8);
            space.commit().unwrap();
            let mut dropped = shuffle.reserve(Rank(0), 99, bytes).unwrap();
            dropped.fill(99);
        }
        assert!(matches!(
            shuffle.reserve(Rank(1), 0, 8),
            Err(Error::Rank { rank: 1, size: 1 })
        ));
        shuffle.fence().unwrap();
        let expected: Vec<_> = [(1u32, 0usize), (2, 5), (3, 900), (4, 5000), (5, 100_000)]
            .map(|(kind, bytes)| (kind, vec![kind as u8; bytes]))
            .into();
        assert_eq!(*heard.borrow(), expected);

        let mut held = open("forgotten");
        let other = held.clone();
        std::mem::forget(held.reserve(Rank(0), 0, 8).unwrap());
        assert!(matches!(other.send(Rank(0), 0, b"x"), Err(Error::Nested(_))));
        assert!(matches!(other.fence(), Err(Error::Nested(_))));
        assert!(matches!(other.flush_origin(), Err(Error::Nested(_))));
        assert!(matches!(other.poll(), Err(Error::Nested(_))));
        assert_eq!(other.stats().sent, 0);
        assert!(other.dump(&mut Vec::new()).is_err());
    }

    #[test]
    fn a_reservation_is_not_sent_on_before_it_is_filled() {
        let (got, wrong) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let options = Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        };
        let job = Job::start(options).unwrap();
        let mut shuffle = job
            .shuffle("reserved")
            .handler(|message, _| {
                got.set(got.get() + 1);
                wrong.set(wrong.get() + u32::from(message.bytes != [7u8; 16]));
            })
            .open()
            .unwrap();
        for _ in 0..20_000 {
            let mut space = shuffle.reserve(Rank(0), 1, 16).unwrap();
            space.fill(7);
            space.commit().unwrap();
        }
        shuffle.fence().unwrap();
        assert_eq!((got.get(), wrong.get()), (20_000, 0));
    }
}
