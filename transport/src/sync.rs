//! The only importer of atomics, cells and thread primitives.
