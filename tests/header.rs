//! The committed header is what `src/capi` says. `HEADER=write` commits to the new one (`make
//! header`).

use std::fs;

#[test]
fn the_committed_header_is_that_of_the_sources() {
    let fresh = include_str!(concat!(env!("OUT_DIR"), "/trihop.h"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/include/trihop.h");
    if std::env::var("HEADER").is_ok_and(|what| what == "write") {
        fs::write(path, fresh).unwrap_or_else(|e| panic!("writing {path}: {e}"));
        return;
    }
    let committed = fs::read_to_string(path).unwrap_or_else(|e| panic!("reading {path}: {e}"));
    let differs = fresh
        .lines()
        .zip(committed.lines())
        .position(|(fresh, committed)| fresh != committed)
        .unwrap_or(fresh.lines().count().min(committed.lines().count()));
    assert!(
        fresh == committed,
        "include/trihop.h is not that of src/capi from line {} on; run `make header` and commit it",
        differs + 1
    );
}
