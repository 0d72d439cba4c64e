//! What ends a step, through every order of what can happen on three ranks: each choice of who does
//! something next is followed, and no state twice.

mod censuses;
mod fences;
mod nodes;
mod rounds;

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

const RANKS: usize = 3;

/// The ranks, and what is on its way between them.
trait World: Clone + Debug {
    /// Who does what next.
    type Choice;

    /// All that can be next.
    fn choices(&self) -> Vec<Self::Choice>;

    /// It happens; where it breaks what is promised, that is a panic.
    fn take(&mut self, choice: Self::Choice);

    /// Of all that the state says of itself.
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        hasher.finish()
    }

    /// Whether nothing is followed from here.
    fn is_given_up(&self) -> bool {
        false
    }

    /// Whether all that was to be done is done.
    fn is_done(&self) -> bool;
}

/// Follows every choice; the number of states.
fn explore<W: World>(world: W) -> usize {
    let mut seen = HashSet::from([world.hash()]);
    let mut open = vec![world];
    let mut ends = 0;
    while let Some(world) = open.pop() {
        if world.is_given_up() {
            continue;
        }
        let mut is_end = true;
        let here = world.hash();
        for choice in world.choices() {
            let mut next = world.clone();
            next.take(choice);
            let hash = next.hash();
            is_end &= hash == here;
            if seen.insert(hash) {
                open.push(next);
            }
        }
        if is_end {
            ends += 1;
            assert!(world.is_done(), "stuck: {world:#?}");
        }
    }
    assert!(ends > 0, "no path came to an end");
    seen.len()
}
