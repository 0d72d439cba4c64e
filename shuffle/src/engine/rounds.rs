//! Rounds of a stream as its edges know them. Who ends a round says so by a mark on each edge, which
//! nothing overtakes: all that came before it belongs to the round, all that follows to the next.

use crate::queue::Input;
use crate::route::{JobRoute, Stage};

/// Which edges into a rank have had their mark of the present round.
pub(crate) struct Rounds {
    /// What follows on these waits for the end of the round here; by input, as many as have had one.
    marked: Vec<bool>,
    /// Any has.
    any: bool,
    /// By stage, how many they are.
    heard: Box<[u32]>,
}

impl Rounds {
    /// None has, of a stream over this route.
    pub fn new(route: &JobRoute) -> Self {
        Self {
            marked: Vec::new(),
            any: false,
            heard: vec![0; route.stages().len()].into(),
        }
    }

    /// Whether what comes next from there belongs to a later round.
    #[inline]
    pub fn holds(&self, input: Input) -> bool {
        self.any
            && self
                .marked
                .get(input.0 as usize)
                .is_some_and(|&marked| marked)
    }

    /// Whether any mark of the present one has come.
    pub fn is_begun(&self) -> bool {
        self.any
    }

    /// The mark of an edge of this stage has come.
    pub fn hear(&mut self, stage: Stage, input: Input) {
        let at = input.0 as usize;
        if self.marked.len() <= at {
            self.marked.resize(at + 1, false);
        }
        self.any = true;
        let before = std::mem::replace(&mut self.marked[at], true);
        self.heard[stage.index()] += u32::from(!before);
    }

    /// How many edges of a stage have had theirs.
    pub fn heard(&self, stage: Stage) -> u32 {
        self.heard[stage.index()]
    }

    /// The round has ended here.
    pub fn end(&mut self) {
        self.any = false;
        self.marked.fill(false);
        self.heard.fill(0);
    }
}
