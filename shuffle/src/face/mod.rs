//! What an application holds: a job, its shuffles of bytes, its streams of items.

pub(crate) mod array;
mod broadcast;
pub(crate) mod channel;
pub(crate) mod codec;
pub(crate) mod coded;
pub(crate) mod conveyor;
pub(crate) mod job;
pub(crate) mod merging;
pub(crate) mod replies;
pub(crate) mod reservation;
pub(crate) mod shuffle;
pub(crate) mod state;
pub(crate) mod step;
pub(crate) mod stream;
pub(crate) mod untyped;
mod verbs;
