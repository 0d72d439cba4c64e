//! Output queues, one for each edge, and what gathers records before them.

pub(crate) mod audience;
pub(crate) mod census;
pub(crate) mod counters;
pub(crate) mod edge;
mod frames;
pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod limits;
pub(crate) mod long_buffers;
pub(crate) mod offer;
pub(crate) mod pressure;
pub(crate) mod remote;
pub(crate) mod remotes;
pub(crate) mod runs;
pub(crate) mod shared;
pub(crate) mod spare;
pub(crate) mod spill;
pub(crate) mod window;
mod words;

/// Where records of a queue come from: the application, or one inbound lane or link. A record that
/// is longer than a frame occupies its queues, for its input, from its first fragment to its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Input(pub u32);

impl Input {
    /// The application of this rank.
    pub const APPLICATION: Input = Input(0);

    /// The rounds of this rank: marks on all edges.
    pub const ROUNDS: Input = Input(u32::MAX);

    /// Whether it is this rank itself.
    pub fn is_own(self) -> bool {
        self == Self::APPLICATION || self == Self::ROUNDS
    }

    /// An inbound lane.
    pub fn lane(lane: u32) -> Self {
        Self(1 + lane)
    }

    /// The number of the inbound link, where it is one.
    pub fn as_link(self, lanes: u32) -> Option<usize> {
        let number = self.0.checked_sub(Self::link(lanes, 0).0)?;
        (self != Self::ROUNDS).then_some(number as usize)
    }

    /// An inbound link, numbered behind the inbox's lanes.
    pub fn link(lanes: u32, link: usize) -> Self {
        Self(1 + lanes + link as u32)
    }
}

/// Keeps fragmented records whole in a queue: between a first and a last fragment only their input
/// may add.
#[derive(Debug, Default)]
pub(crate) struct FragmentGuard(Option<Input>);

impl FragmentGuard {
    /// Whether `input` may add a frame now.
    pub fn admits(&self, input: Input) -> bool {
        self.0.is_none_or(|holder| holder == input)
    }

    /// The input whose record has begun and not ended.
    pub fn holder(&self) -> Option<Input> {
        self.0
    }

    /// A frame with these run flags was added.
    pub fn added(&mut self, input: Input, flags: u16) {
        use trihop_transport::protocol::wire::run_flags::{CUT, FIRST, LAST};
        if flags & FIRST != 0 {
            self.0 = Some(input);
        } else if flags & (LAST | CUT) != 0 {
            self.0 = None;
        }
    }
}
