//! Who takes the next turn.

use std::collections::VecDeque;

/// Order in which the ranks of a simulation take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// In the order in which they woke, each as long as it moves anything; time passes when all
    /// sleep. The fastest.
    InTurn,
    /// At random by the seed, one round of progress each; now and then one that sleeps, or time
    /// passes.
    Random,
}

/// What a rank is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Until it is woken.
    Asleep,
    /// Until it is woken or time has passed.
    Napping,
    /// It will have a turn.
    Awake,
}

/// The ranks that are awake, and those that wait for time.
#[derive(Debug)]
pub(super) struct Awake {
    states: Vec<State>,
    queue: VecDeque<u32>,
    napping: Vec<u32>,
}

impl Awake {
    /// All of `ranks` are awake.
    pub fn new(ranks: u32) -> Self {
        Self {
            states: vec![State::Awake; ranks as usize],
            queue: (0..ranks).collect(),
            napping: Vec::new(),
        }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.states.len()
    }

    /// Gives a rank a turn, if it does not wait for one already.
    pub fn wake(&mut self, rank: u32) {
        let state = &mut self.states[rank as usize];
        if *state != State::Awake {
            *state = State::Awake;
            self.queue.push_back(rank);
        }
    }

    /// The rank that has waited longest; it sleeps from now on.
    pub fn next(&mut self) -> Option<u32> {
        let rank = self.queue.pop_front()?;
        self.states[rank as usize] = State::Asleep;
        Some(rank)
    }

    /// One of the ranks that wait; it sleeps from now on.
    pub fn any(&mut self, random: u64) -> Option<u32> {
        if self.queue.is_empty() {
            return None;
        }
        let index = (random % self.queue.len() as u64) as usize;
        let rank = self.queue.swap_remove_back(index)?;
        self.states[rank as usize] = State::Asleep;
        Some(rank)
    }

    /// A rank that sleeps wants a turn when time has passed.
    pub fn nap(&mut self, rank: u32) {
        if self.states[rank as usize] == State::Asleep {
            self.states[rank as usize] = State::Napping;
            self.napping.push(rank);
        }
    }

    /// Time has passed; whether anyone waited for that.
    pub fn time_passed(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.napping.len() {
            let rank = self.napping[index];
            // One that was woken meanwhile, and perhaps naps again, is in the list twice.
            if self.states[rank as usize] == State::Napping {
                self.wake(rank);
                any = true;
            }
        }
        self.napping.clear();
        any
    }

    /// Whether this rank waits for a turn.
    pub fn is_awake(&self, rank: u32) -> bool {
        self.states[rank as usize] == State::Awake
    }

    /// Whether nobody waits for a turn.
    pub fn all_sleep(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_waits_once_however_often_it_is_woken() {
        let mut awake = Awake::new(3);
        assert_eq!(
            (awake.next(), awake.next(), awake.next()),
            (Some(0), Some(1), Some(2))
        );
        assert!(awake.all_sleep() && awake.next().is_none() && awake.any(7).is_none());
        awake.nap(1);
        awake.wake(2);
        awake.wake(2);
        awake.nap(2);
        assert!(awake.time_passed() && !awake.time_passed());
        assert_eq!(
            (awake.next(), awake.next(), awake.next()),
            (Some(2), Some(1), None)
        );
        awake.nap(1);
        awake.wake(1);
        assert_eq!(awake.next(), Some(1));
        awake.nap(1);
        assert!(awake.time_passed());
        assert_eq!((awake.any(5), awake.any(5)), (Some(1), None));
    }
}
