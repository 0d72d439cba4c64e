//! Shared, sealed, anonymous segments.
