//! What a stream's options say of the queues of a stage.

use trihop_transport::link::Mover;

use crate::config::StreamOptions;
use crate::route::{JobRoute, Medium, StageSpec, stage};

/// Options of the lanes, or of the links, of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StageOptions {
    /// Bytes after which a lane is shown, or a batch of a link is sealed.
    pub buftarget_bytes: usize,
    /// So many times that may be unconsumed in a lane, or so many batches in flight on a link.
    pub maxrpc: u32,
    /// So many times that, or so many batches, a rank's own sends may have in all queues of the
    /// stage together; 0 for no such limit.
    pub sender_limit: u32,
}

impl StageOptions {
    fn origin(options: &StreamOptions) -> Self {
        Self {
            buftarget_bytes: options.origin_buftarget_bytes,
            maxrpc: options.origin_maxrpc,
            sender_limit: options.shim.origin_sender_limit,
        }
    }

    fn relay(options: &StreamOptions) -> Self {
        Self {
            buftarget_bytes: options.relay_buftarget_bytes,
            maxrpc: options.relay_maxrpc,
            sender_limit: 0,
        }
    }

    fn remote(options: &StreamOptions) -> Self {
        Self {
            buftarget_bytes: options.remote_buftarget_bytes,
            maxrpc: options.remote_maxrpc,
            sender_limit: options.shim.remote_sender_limit,
        }
    }

    /// Those of a stage's lanes: of all stages but the first they are relays'.
    fn of_lanes(spec: &StageSpec, options: &StreamOptions) -> Self {
        match spec.name {
            stage::ORIGIN => Self::origin(options),
            _ => Self::relay(options),
        }
    }

    /// Those of a stage's links: as of lanes where they are in the place of these.
    fn of_links(spec: &StageSpec, options: &StreamOptions) -> Self {
        match (spec.medium, spec.name) {
            (Medium::Fabric, stage::ORIGIN) => Self::origin(options),
            (Medium::Fabric, stage::RELAY) => Self::relay(options),
            _ => Self::remote(options),
        }
    }

    /// Those of the lanes of all stages of a route, in order.
    pub fn of_all_lanes(route: &JobRoute, options: &StreamOptions) -> Vec<Self> {
        let stages = route.stages().iter();
        stages.map(|spec| Self::of_lanes(spec, options)).collect()
    }

    /// Those of the links of all stages of a route, in order.
    pub fn of_all_links(route: &JobRoute, options: &StreamOptions) -> Vec<Self> {
        let stages = route.stages().iter();
        stages.map(|spec| Self::of_links(spec, options)).collect()
    }
}

/// What the links of an endpoint take, and of all those of a job the least, by which both ends of
/// each go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkTerms {
    /// Receives that may be posted beside those that are.
    pub receives: u64,
    /// The longest record that is worth an offer.
    pub longest_offer: u64,
}

impl LinkTerms {
    /// Of who has no link.
    pub const ANY: Self = Self {
        receives: u64::MAX,
        longest_offer: u64::MAX,
    };

    /// The longest record that is offered where processors copy what links send: a longer one
    /// leaves the caches between its copies, while fragments stay in them.
    const LONGEST_COPIED: u64 = 512 << 10;

    /// Of a link that takes so many receives more.
    pub fn of(receives: u64, mover: Mover) -> Self {
        let longest_offer = match mover {
            Mover::Read => u64::MAX,
            Mover::Segments => Self::LONGEST_COPIED,
        };
        Self {
            receives,
            longest_offer,
        }
    }

    /// What both take.
    pub fn and(self, other: Self) -> Self {
        Self {
            receives: self.receives.min(other.receives),
            longest_offer: self.longest_offer.min(other.longest_offer),
        }
    }
}
