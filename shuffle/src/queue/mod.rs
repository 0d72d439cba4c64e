//! Output queues, one for each edge, and what gathers records before them.

pub(crate) mod audience;
pub(crate) mod counters;
pub(crate) mod edge;
pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod limits;
pub(crate) mod pressure;
pub(crate) mod remote;
pub(crate) mod remotes;
pub(crate) mod runs;
pub(crate) mod spare;
pub(crate) mod spill;

/// Who feeds records into a queue: the application, or one inbound lane or link. A record that is
/// longer than a frame occupies its queues, for its feeder, from its first fragment to its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Feeder(pub u32);

impl Feeder {
    /// The application of this rank.
    pub const APPLICATION: Feeder = Feeder(0);

    /// An inbound lane.
    pub fn lane(lane: u32) -> Self {
        Self(1 + lane)
    }

    /// An inbound link, numbered behind the inbox's lanes.
    pub fn link(lanes: u32, link: usize) -> Self {
        Self(1 + lanes + link as u32)
    }
}

/// Keeps fragmented records whole in a queue: between a first and a last fragment only their feeder
/// may add.
#[derive(Debug, Default)]
pub(crate) struct FragmentGuard(Option<Feeder>);

impl FragmentGuard {
    /// Whether `feeder` may add a frame now.
    pub fn admits(&self, feeder: Feeder) -> bool {
        self.0.is_none_or(|holder| holder == feeder)
    }

    /// A frame with these run flags was added.
    pub fn added(&mut self, feeder: Feeder, flags: u16) {
        use trihop_transport::protocol::wire::run_flags::{FIRST, LAST};
        if flags & FIRST != 0 {
            self.0 = Some(feeder);
        } else if flags & LAST != 0 {
            self.0 = None;
        }
    }
}
