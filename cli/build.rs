//! Compiles the benchmarks that are programs in C, against the header of the library.

fn main() {
    let include = std::env::var("DEP_TRIHOP_INCLUDE").expect("the build script of trihop sets it");
    let header = format!("{include}/trihop.h");
    println!("cargo::rustc-env=HEADER_OF_TRIHOP={header}");
    let of_deltafs = format!("{include}/trihop/deltafs");
    let ours = ["push.c", "push.h", "client.c", "client.h"];
    let ours = ours.map(|file| format!("src/bench/{file}"));
    for file in ours.iter().chain([&header, &of_deltafs]) {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new()
        .files(ours.iter().filter(|file| file.ends_with(".c")))
        .include(include)
        .include(of_deltafs)
        .warnings(true)
        .extra_warnings(true)
        .compile("trihop-bench");
}
