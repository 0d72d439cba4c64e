//! What ends a step, through every order of what can happen on three ranks: each choice of who
//! does something next is followed, and no state twice.

mod censuses;
mod fences;
mod nodes;
mod rounds;

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use trihop_transport::topology::Rank;

use crate::terminate::collective::{Collectives, Outgoing};

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

/// Messages of collectives that are under way, by sender and receiver; those between two ranks
/// keep their order, as on an edge.
#[derive(Debug, Clone)]
struct News {
    ranks: usize,
    edges: Vec<VecDeque<Outgoing>>,
}

impl News {
    fn between(ranks: usize) -> Self {
        Self {
            ranks,
            edges: vec![VecDeque::new(); ranks * ranks],
        }
    }

    /// What a rank's collectives have to say goes to its edges.
    fn let_out(&mut self, rank: usize, collectives: &mut Collectives) {
        assert!(collectives.take_mismatch().is_none());
        while let Some(out) = collectives.front() {
            self.edges[rank * self.ranks + out.target.0 as usize].push_back(out.clone());
            collectives.pop();
        }
    }

    /// Edges on which something is under way.
    fn under_way(&self) -> impl Iterator<Item = usize> {
        let edges = self.edges.iter().enumerate();
        edges.filter(|(_, of)| !of.is_empty()).map(|(edge, _)| edge)
    }

    /// The oldest on an edge is heard by the collectives of the rank there, which `of` has.
    fn hear<'a>(&mut self, edge: usize, of: impl FnOnce(usize) -> &'a mut Collectives) {
        let out = self.edges[edge].pop_front().unwrap();
        let (from, to) = (edge / self.ranks, edge % self.ranks);
        let collectives = of(to);
        let source = Rank(from as u32);
        collectives.receive(source, out.kind, &out.bytes).unwrap();
        self.let_out(to, collectives);
    }
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
