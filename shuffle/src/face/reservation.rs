//! Records that are filled in place: space in the open run of their target instead of a copy.

use std::cell::RefMut;
use std::ops::{Deref, DerefMut};

use trihop_transport::topology::Rank;
use zerocopy::FromZeros;

use crate::engine::outbound::Outbound;
use crate::error::{Error, Result};
use crate::face::shuffle::Shuffle;
use crate::seat::{Handle, Seat, Seating};

const WHAT: &str = "a call with an open reservation";

impl<S: Seat> Shuffle<S> {
    /// Space for a record of `bytes` bytes, to be filled in place and committed. Waits like
    /// [`Shuffle::send`].
    ///
    /// A dropped reservation is given up. On an inline job a forgotten one (`std::mem::forget`)
    /// makes every later call of the job an [`Error::Nested`]. A job with threads does not stand
    /// still for a reservation: it is filled beside the engine, and copied when it is committed.
    ///
    /// # Errors
    /// As [`Shuffle::send`].
    pub fn reserve(&mut self, target: Rank, kind: u32, bytes: usize) -> Result<Reservation<'_, S>> {
        reserve(&self.handle, target, kind, bytes)
    }
}

/// A reservation on a stream of records.
pub(crate) fn reserve<S: Seat>(
    handle: &Handle<S>,
    target: Rank,
    kind: u32,
    bytes: usize,
) -> Result<Reservation<'_, S>> {
    let due = handle.with_out(WHAT, |out| {
        out.check(target, bytes)?;
        Ok(out.count_call())
    })?;
    if due {
        handle.seat.progress_in_passing()?;
    }
    // What is to be handled at once is not gathered first; what finds no room in a call at the end
    // of a step is spilled.
    let gathered = match handle.is_at_once(target) || handle.seat.is_at_end() {
        true => None,
        false => in_place(handle, target, kind, bytes)?,
    };
    let space = match gathered {
        Some(out) => Space::InPlace(out),
        None => Space::Staged(zeroed(bytes)?),
    };
    Ok(Reservation {
        handle,
        space: Some(space),
        target,
        kind,
        bytes,
    })
}

/// Memory for a record that is not filled in place.
///
/// # Errors
/// There is none.
pub(crate) fn zeroed(bytes: usize) -> Result<Vec<u8>> {
    u8::new_vec_zeroed(bytes).map_err(|_| Error::NoMemory { bytes })
}

/// Space in the open run of `target`, where it has any. The borrow that finds it is the one that
/// keeps it: any progress in between could send the run on.
fn in_place<S: Seating>(
    handle: &Handle<S>,
    target: Rank,
    kind: u32,
    bytes: usize,
) -> Result<Option<RefMut<'_, Outbound>>> {
    loop {
        let Some(mut out) = handle.seat.hold(handle.id, WHAT)? else {
            return Ok(None);
        };
        if bytes > out.reservable_bytes() {
            return Ok(None);
        }
        match out.reserve(target, kind, bytes) {
            Ok(()) => return Ok(Some(out)),
            Err(Error::WouldBlock) => {}
            Err(error) => return Err(error),
        }
        drop(out);
        // Waits until the same reservation would succeed, and gives that one up again.
        handle.send_waiting(&mut |out| {
            out.reserve(target, kind, bytes)?;
            out.retract(target, bytes);
            Ok(())
        })?;
    }
}

enum Space<'a> {
    InPlace(RefMut<'a, Outbound>),
    Staged(Vec<u8>),
}

/// Space for one record; dereferences to its bytes, zeroed.
pub struct Reservation<'a, S: Seat> {
    handle: &'a Handle<S>,
    space: Option<Space<'a>>,
    target: Rank,
    kind: u32,
    bytes: usize,
}

impl<S: Seat> Reservation<'_, S> {
    /// Makes the space a record, as if it had been sent.
    ///
    /// # Errors
    /// Only for a record that was not filled in place: as [`Shuffle::send`].
    pub fn commit(mut self) -> Result<()> {
        match self.space.take() {
            Some(Space::InPlace(mut out)) => {
                out.note_sent(self.bytes);
                Ok(())
            }
            Some(Space::Staged(bytes)) => {
                let (target, kind) = (self.target, self.kind);
                self.handle.send_record(target, kind, &bytes)
            }
            None => Ok(()),
        }
    }
}

impl<S: Seat> Deref for Reservation<'_, S> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.space {
            Some(Space::InPlace(out)) => out.reserved_ref(self.target, self.bytes),
            Some(Space::Staged(bytes)) => bytes,
            None => &[],
        }
    }
}

impl<S: Seat> DerefMut for Reservation<'_, S> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.space {
            Some(Space::InPlace(out)) => out.reserved(self.target, self.bytes),
            Some(Space::Staged(bytes)) => bytes,
            None => &mut [],
        }
    }
}

impl<S: Seat> Drop for Reservation<'_, S> {
    fn drop(&mut self) {
        if let Some(Space::InPlace(mut out)) = self.space.take() {
            out.retract(self.target, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(matches!(
            other.send(Rank(0), 0, b"x"),
            Err(Error::Nested(_))
        ));
        assert!(matches!(other.fence(), Err(Error::Nested(_))));
        assert!(matches!(other.flush_origin(), Err(Error::Nested(_))));
        assert!(matches!(other.poll(), Err(Error::Nested(_))));
        assert!(other.stats().is_none());
        other.dump(&mut Vec::new()).unwrap();
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
