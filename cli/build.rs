//! Compiles the benchmarks that are programs in C, against the header of the library.

fn main() {
    let include = std::env::var("DEP_TRIHOP_INCLUDE").expect("the build script of trihop sets it");
    let header = format!("{include}/trihop.h");
    println!("cargo::rustc-env=HEADER_OF_TRIHOP={header}");
    for file in ["src/bench/push.c", "src/bench/push.h", &header] {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new()
        .file("src/bench/push.c")
        .include(include)
        .warnings(true)
        .extra_warnings(true)
        .compile("trihop-bench");
}
