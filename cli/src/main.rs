//! Command line of trihop.

fn main() {}
