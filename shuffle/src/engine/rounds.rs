//! Rounds of a stream, as one rank decides on them: no queue, no message and no clock is in here. It
//! hears which edges into the rank were marked, and says what is to be done next, and what has to
//! wait. [`crate::terminate::round`] says what a round is, and does it.

use crate::queue::Input;
use crate::route::{JobRoute, Stage};

/// What a rank does next for the end of its round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// It begins the end.
    Begin,
    /// What it has sent itself goes into queues.
    Gather,
    /// It marks the edge of this stage with this number.
    Mark(Stage, u32),
    /// Nothing, before more edges into it are marked.
    Listen,
    /// What others wait for leaves: after the round it may make no progress for long.
    LetGo,
    /// Its delivery thread comes through with what it was given.
    HandOver,
    /// Nothing: the round is over here, until the next one may begin.
    Rest,
}

/// What has been done for the end of the present round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Done {
    Nothing,
    Begun,
    /// Edges of this stage before this number are marked, and those of all earlier stages.
    Marked(Stage, u32),
    LetGo,
    All,
}

/// Which edges into a rank have had their mark of the present round, and how far its own end of
/// the round has come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rounds {
    /// What follows on these waits for the end of the round here; by input, as many as have had one.
    marked: Vec<bool>,
    /// Any has.
    any: bool,
    /// By stage, how many they are.
    heard: Box<[u32]>,
    /// By stage, how many edges there are: as many from here as to here.
    edges: Box<[u32]>,
    done: Done,
    /// None ends any more, since ranks are lost that would have to end it.
    is_given_up: bool,
}

impl Rounds {
    /// None has, of a stream over this route.
    pub fn new(route: &JobRoute) -> Self {
        Self {
            marked: Vec::new(),
            any: false,
            heard: vec![0; route.stages().len()].into(),
            edges: route.numbers().map(|s| route.all_edges(s)).collect(),
            done: Done::Nothing,
            is_given_up: false,
        }
    }

    /// No round ends any more: nothing waits for the next one.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
        self.any = false;
        self.marked.fill(false);
        self.heard.fill(0);
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
        if self.is_given_up {
            return;
        }
        let at = input.0 as usize;
        if self.marked.len() <= at {
            self.marked.resize(at + 1, false);
        }
        self.any = true;
        let before = std::mem::replace(&mut self.marked[at], true);
        self.heard[stage.index()] += u32::from(!before);
    }

    /// How many edges of a stage have had theirs.
    #[cfg(test)]
    pub fn heard(&self, stage: Stage) -> u32 {
        self.heard[stage.index()]
    }

    /// The first stage of which edges into here have not all had theirs: how many have, of how
    /// many.
    pub fn missing(&self) -> Option<(Stage, u32, u32)> {
        let counts = self.heard.iter().zip(&self.edges);
        let mut stages = (1..).map(Stage::numbered).zip(counts);
        let (stage, (&heard, &edges)) = stages.find(|(_, (heard, edges))| heard != edges)?;
        Some((stage, heard, edges))
    }

    /// The inputs that have had their mark.
    pub fn marked(&self) -> impl Iterator<Item = Input> {
        let marked = (0..).zip(&self.marked).filter(|(_, marked)| **marked);
        marked.map(|(input, _)| Input(input))
    }

    /// Whether others have ended the round, and this rank has not begun to.
    pub fn is_behind(&self) -> bool {
        self.any && self.done == Done::Nothing
    }

    /// What is to be done next; [`Rounds::advance`] once it is.
    pub fn task(&self) -> Task {
        let missing = self.missing().map(|(stage, ..)| stage);
        match self.done {
            Done::Nothing => Task::Begin,
            Done::Begun => Task::Gather,
            Done::Marked(stage, number) => match self.edges.get(stage.index()) {
                // All that comes over edges of earlier stages is in the queues of this one.
                Some(_) if missing.is_some_and(|missing| missing < stage) => Task::Listen,
                Some(_) => Task::Mark(stage, number),
                None if missing.is_some() => Task::Listen,
                None => Task::LetGo,
            },
            Done::LetGo => Task::HandOver,
            Done::All => Task::Rest,
        }
    }

    /// The task is done.
    pub fn advance(&mut self) {
        self.done = match self.done {
            Done::Nothing => Done::Begun,
            Done::Begun => self.marked_before(Stage::FIRST, 0),
            Done::Marked(stage, number) => match stage.index() < self.edges.len() {
                true => self.marked_before(stage, number + 1),
                false => Done::LetGo,
            },
            Done::LetGo | Done::All => Done::All,
        };
    }

    /// So many edges of this stage are marked: what is left begins there, or at a later stage.
    fn marked_before(&self, mut stage: Stage, mut number: u32) -> Done {
        while self.edges.get(stage.index()).is_some_and(|&e| e <= number) {
            (stage, number) = (Stage::numbered(stage.number() + 1), 0);
        }
        Done::Marked(stage, number)
    }

    /// Whether the end of a round has begun here, or an edge into here is marked, and the next
    /// round has not begun.
    pub fn is_ending(&self) -> bool {
        self.any || self.done != Done::Nothing
    }

    /// The round has ended here, and the next one begins.
    pub fn end(&mut self) {
        self.any = false;
        self.marked.fill(false);
        self.heard.fill(0);
        self.done = Done::Nothing;
    }
}
