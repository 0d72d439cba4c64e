//! What a stream's options say of the queues of a stage.

use crate::config::StreamOptions;
use crate::route::{JobRoute, StageSpec, stage};

/// Options of the queues of one stage.
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
    /// Those of a stage, by its name: what is no other is a stage between nodes.
    pub fn of(spec: &StageSpec, options: &StreamOptions) -> Self {
        match spec.name {
            stage::ORIGIN => Self {
                buftarget_bytes: options.origin_buftarget_bytes,
                maxrpc: options.origin_maxrpc,
                sender_limit: options.shim.origin_sender_limit,
            },
            stage::RELAY => Self {
                buftarget_bytes: options.relay_buftarget_bytes,
                maxrpc: options.relay_maxrpc,
                sender_limit: 0,
            },
            _ => Self {
                buftarget_bytes: options.remote_buftarget_bytes,
                maxrpc: options.remote_maxrpc,
                sender_limit: options.shim.remote_sender_limit,
            },
        }
    }

    /// Those of all stages of a route, in order.
    pub fn of_all(route: &JobRoute, options: &StreamOptions) -> Vec<Self> {
        let stages = route.stages().iter();
        stages.map(|spec| Self::of(spec, options)).collect()
    }
}
