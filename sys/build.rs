//! Generates the bindings.

fn main() {}
