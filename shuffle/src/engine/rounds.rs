//! Rounds of a stream as its edges know them. Who ends a round says so by a mark on each edge, which
//! nothing overtakes: all that came before it belongs to the round, all that follows to the next.

use std::collections::HashSet;

use crate::queue::Input;
use crate::route::{JobRoute, Stage};

/// Which edges into a rank have had their mark of the present round.
pub(crate) struct Rounds {
    /// What follows on these waits for the end of the round here.
    marked: HashSet<Input>,
    /// By stage, how many they are.
    heard: Box<[u32]>,
}

impl Rounds {
    /// None has, of a stream over this route.
    pub fn new(route: &JobRoute) -> Self {
        Self {
            marked: HashSet::new(),
            heard: vec![0; route.stages().len()].into(),
        }
    }

    /// Whether what comes next from there belongs to a later round.
    #[inline]
    pub fn holds(&self, input: Input) -> bool {
        !self.marked.is_empty() && self.marked.contains(&input)
    }

    /// The mark of an edge of this stage has come.
    pub fn hear(&mut self, stage: Stage, input: Input) {
        self.heard[stage.index()] += u32::from(self.marked.insert(input));
    }

    /// How many edges of a stage have had theirs.
    pub fn heard(&self, stage: Stage) -> u32 {
        self.heard[stage.index()]
    }

    /// The round has ended here.
    pub fn end(&mut self) {
        self.marked.clear();
        self.heard.fill(0);
    }
}
