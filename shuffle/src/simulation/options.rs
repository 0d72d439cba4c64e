//! What a simulated job is like.

use trihop_transport::sim::SimOptions;

use super::awake::Schedule;
use crate::config::StreamOptions;

/// What a simulated job is like.
#[derive(Debug, Clone)]
pub struct SimulationOptions {
    /// The fabric between the nodes: seed, delays, refusals, limits. Default: short delays, nothing
    /// refused.
    pub network: SimOptions,
    /// Options of the stream.
    pub stream: StreamOptions,
    /// Streams with these options, of which one at a time is used: see
    /// [`Simulation::use_stream`](super::Simulation::use_stream). Default 1.
    pub streams: u16,
    /// Bytes of an item, at most a quarter of a lane; 0 (the default) for a stream of byte records.
    pub item_bytes: usize,
    /// Who takes the next turn. Default [`Schedule::InTurn`].
    pub schedule: Schedule,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        Self {
            network: SimOptions {
                max_delay: 2,
                refuse_one_in: 0,
                ..SimOptions::default()
            },
            stream: StreamOptions::default(),
            streams: 1,
            item_bytes: 0,
            schedule: Schedule::InTurn,
        }
    }
}
