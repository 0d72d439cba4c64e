//! Raw bindings to the installed libfabric.
