//! The Python package `trihop`, over the public interface of the crate.
//!
//! Jobs have threads here: Python's programs compute, sit in other libraries, and have threads of
//! their own. No call that may wait holds Python's lock.

mod array;
mod channel;
mod detached;
mod error;
mod guest;
mod handler;
mod inbox;
mod job;
mod port;
mod request;
mod stream;

use pyo3::prelude::*;

/// Many-to-many messaging for HPC jobs: any rank sends small messages to any rank, over
/// shared-memory rings inside a node and libfabric between nodes.
#[pymodule(name = "trihop")]
fn package(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", trihop::VERSION)?;
    module.add_class::<job::Job>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<stream::Shuffle>()?;
    module.add_class::<channel::Channels>()?;
    module.add_class::<channel::Channel>()?;
    module.add_class::<channel::Kept>()?;
    module.add_class::<channel::Message>()?;
    module.add_class::<guest::Guest>()?;
    module.add_class::<guest::Guests>()?;
    module.add_class::<request::Request>()?;
    handler::end_at_exit(module.py())?;
    error::add(module)
}
