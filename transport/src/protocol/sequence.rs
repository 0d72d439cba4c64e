//! Link sequence: batches are taken strictly in the order in which their sender numbered them.

use std::collections::VecDeque;

/// Reorder window of one direction of a link. What arrives early waits; a replay or a number beyond
/// the window is refused.
#[derive(Debug)]
pub struct Window<T> {
    next: u64,
    slots: VecDeque<Option<T>>,
    limit: usize,
}

/// Why a batch number is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSequence {
    /// The batch was taken, or stored, before.
    #[error("batch {sequence} arrived twice")]
    Replay {
        /// Number of the batch.
        sequence: u64,
    },
    /// More batches in flight than the peer may have.
    #[error("batch {sequence} is beyond the window of {limit} behind batch {next}")]
    Beyond {
        /// Number of the batch.
        sequence: u64,
        /// Next batch to take.
        next: u64,
        /// Batches that may be in flight.
        limit: usize,
    },
}

impl<T> Window<T> {
    /// A window for at most `limit` batches in flight.
    pub fn new(limit: usize) -> Self {
        Self {
            next: 0,
            slots: VecDeque::with_capacity(limit),
            limit,
        }
    }

    /// Stores batch `sequence`.
    ///
    /// # Errors
    /// [`BadSequence`]; the item is dropped.
    pub fn insert(&mut self, sequence: u64, item: T) -> Result<(), BadSequence> {
        let ahead = sequence
            .checked_sub(self.next)
            .ok_or(BadSequence::Replay { sequence })?;
        if ahead >= self.limit as u64 {
            return Err(BadSequence::Beyond {
                sequence,
                next: self.next,
                limit: self.limit,
            });
        }
        let index = ahead as usize;
        while self.slots.len() <= index {
            self.slots.push_back(None);
        }
        if self.slots[index].is_some() {
            return Err(BadSequence::Replay { sequence });
        }
        self.slots[index] = Some(item);
        Ok(())
    }

    /// The batch to take next, if it is here.
    pub fn front(&mut self) -> Option<&mut T> {
        self.slots.front_mut()?.as_mut()
    }

    /// As [`Window::front`], to look at.
    pub fn peek(&self) -> Option<&T> {
        self.slots.front()?.as_ref()
    }

    /// Takes the next batch, if it is here.
    pub fn pop(&mut self) -> Option<T> {
        let item = self.slots.front_mut()?.take()?;
        self.slots.pop_front();
        self.next += 1;
        Some(item)
    }

    /// A stored batch.
    pub fn get_mut(&mut self, sequence: u64) -> Option<&mut T> {
        let index = usize::try_from(sequence.checked_sub(self.next)?).ok()?;
        self.slots.get_mut(index)?.as_mut()
    }

    /// Batches that are stored, in order, with their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        let next = self.next;
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(move |(i, s)| Some((next + i as u64, s.as_mut()?)))
    }

    /// As [`Window::iter_mut`], to look at and without numbers.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    /// Number of the batch to take next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn any_arrival_order_within_the_window_is_taken_in_order(seed: u64, limit in 1usize..9, total in 1u64..60) {
            let mut window = Window::new(limit);
            let (mut sent, mut taken, mut state) = (0u64, 0u64, seed | 1);
            let mut in_flight: Vec<u64> = Vec::new();
            while taken < total {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if sent < total && sent - taken < limit as u64 && (state >> 60 & 1 == 0 || in_flight.is_empty()) {
                    in_flight.push(sent);
                    sent += 1;
                } else if !in_flight.is_empty() {
                    let index = (state >> 33) as usize % in_flight.len();
                    let sequence = in_flight.swap_remove(index);
                    window.insert(sequence, sequence).unwrap();
                    while let Some(got) = window.pop() {
                        prop_assert_eq!(got, taken);
                        taken += 1;
                    }
                }
            }
            prop_assert!(window.is_empty());
        }
    }

    #[test]
    fn replays_and_floods_are_refused() {
        let mut window = Window::new(2);
        window.insert(1, 'b').unwrap();
        assert_eq!(
            window.insert(1, 'b'),
            Err(BadSequence::Replay { sequence: 1 })
        );
        assert_eq!(
            window.insert(2, 'c'),
            Err(BadSequence::Beyond {
                sequence: 2,
                next: 0,
                limit: 2
            })
        );
        assert!(window.front().is_none());
        window.insert(0, 'a').unwrap();
        assert_eq!(
            (window.pop(), window.pop(), window.pop()),
            (Some('a'), Some('b'), None)
        );
        assert_eq!(
            window.insert(0, 'a'),
            Err(BadSequence::Replay { sequence: 0 })
        );
    }
}
