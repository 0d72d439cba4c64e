//! Many-to-many messaging for HPC jobs.
