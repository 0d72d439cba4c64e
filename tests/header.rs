//! The committed header is what `src/capi` says. `HEADER=write` commits to the new one (`make
//! header`).

use std::fs;
use std::path::Path;

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

/// DeltaFS's clients have headers of their own.
#[test]
fn each_function_that_the_library_exports_is_in_the_committed_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The committed one is the same, and may just be written.
    let header = include_str!(concat!(env!("OUT_DIR"), "/trihop.h"));
    let mut count = 0;
    let mut folders = vec![root.join("src/capi")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.extend((!path.ends_with("deltafs")).then_some(path));
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            for rest in source.split("extern \"C\" fn trihop_").skip(1) {
                let name = rest.split('(').next().unwrap_or_default();
                let declared = format!("trihop_{name}(");
                let path = path.display();
                assert!(
                    header.contains(&declared),
                    "{path}: `{declared})` is not in include/trihop.h; name the file in build.rs"
                );
                count += 1;
            }
        }
    }
    assert!(count > 100, "only {count} functions were found");
}
