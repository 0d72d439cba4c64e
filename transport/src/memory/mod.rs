//! Hugepage memory: shared segments, registered pools, and the ladder of page sizes under both.

mod arena;
pub mod book;
pub mod descriptors;
pub mod hugepage;
pub(crate) mod kernel_file;
pub mod lent;
pub mod limit;
pub(crate) mod line;
pub mod page;
pub mod pool;
pub mod segment;
pub(crate) mod slots;
