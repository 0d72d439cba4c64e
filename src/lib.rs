//! Many-to-many messaging for HPC jobs.

pub use trihop_transport as transport;
