//! trihop and its rivals on the same work in the same minute.

fn main() {}
