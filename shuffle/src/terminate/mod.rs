//! When it is done: flushes, the fence, and the collectives that carry them.

pub(crate) mod collective;
pub(crate) mod flush;
