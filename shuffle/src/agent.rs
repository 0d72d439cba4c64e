//! Agents: processes of a node that are the relays of all rank processes there.
//!
//! An agent owns what a node needs once: fabric, launcher, watch. Its ranks are processes, which
//! open no fabric and ask no launcher: they find their agent by the name that it has taken, are
//! told by it who they are, and have lanes to it and to each other. From then on it is a relay as
//! that of [mini-ranks](crate::minirank) is, and its ranks are ranks as any others.
//!
//! A node may have several agents, one for each of its adapters. They share its ranks evenly: each
//! asks for its own ranks and counts them, and carries what goes to the ranks of the agent that it
//! has a link to. The first one has the name, and tells all others of the node who is there.
//!
//! An agent serves one job ([`serve`]), or as many as come ([`serve_jobs`]): each has a relay of
//! its own, on a thread of the agent, and shares nothing with the others but the process.

mod jobs;
mod one_job;

pub use crate::config::PoolLimits;
pub use jobs::{AskedToEnd, MOST_WAITING, serve_jobs};
pub use one_job::{serve, serve_with};
pub use trihop_transport::bootstrap::{
    ENV_AGENT as ENV_NAME, ENV_JOB, ENV_NODES, ENV_PLACE, ENV_START,
    MOST_AGENT_RANKS as MOST_RANKS, default_agent_name as default_name,
};

/// What becomes of an agent that could not begin. Where it was asked to end meanwhile, another one
/// that was asked at the same time may have ended first.
fn unless_asked(asked: Option<&dyn AskedToEnd>, error: crate::Error) -> crate::Result<()> {
    match asked.is_some_and(AskedToEnd::take) {
        true => {
            tracing::debug!(%error, "an agent that is asked to end before it has begun");
            Ok(())
        }
        false => Err(error),
    }
}
