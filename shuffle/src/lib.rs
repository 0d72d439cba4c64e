//! What moves where, and when it is done.
