//! Compiles the benchmarks that are programs in C.

fn main() {
    for file in [
        "src/bench/push.c",
        "src/bench/push.h",
        "../include/trihop.h",
    ] {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new()
        .file("src/bench/push.c")
        .include("../include")
        .warnings(true)
        .extra_warnings(true)
        .compile("trihop-bench");
}
