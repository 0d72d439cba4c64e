//! The errors of deliveries.

use std::sync::Arc;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug)]
pub enum Error {
    Stopped(Arc<Error>),
    Handler,
}
