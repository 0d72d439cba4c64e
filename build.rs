//! Embeds the version that `trihop info` and the job handshake report, and writes the C header.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=BUILD_PROFILE_OF_TRIHOP={profile}");
    #[cfg(feature = "header")]
    write_header();
}

/// Writes the C header to OUT_DIR, where `tests/header.rs` compares it with the committed one.
#[cfg(feature = "header")]
fn write_header() {
    println!("cargo::rerun-if-changed=cbindgen.toml");
    println!("cargo::rerun-if-changed=src/capi");
    let mut config = cbindgen::Config::from_file("cbindgen.toml").expect("cbindgen.toml is valid");
    let number = |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it");
    config.after_includes = Some(format!(
        "\n#define TRIHOP_VERSION_MAJOR {}\n#define TRIHOP_VERSION_MINOR {}\n#define TRIHOP_VERSION_PATCH {}",
        number("MAJOR"),
        number("MINOR"),
        number("PATCH")
    ));
    // In the order in which a reader meets them.
    let files = [
        "status",
        "options",
        "job",
        "topology",
        "collective",
        "custom",
        "shuffle",
        "items",
        "stats",
        "details",
        "threads",
        "log",
    ];
    let builder = files
        .iter()
        .fold(cbindgen::Builder::new().with_config(config), |builder, file| {
            builder.with_src(format!("src/capi/{file}.rs"))
        });
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    builder
        .generate()
        .expect("src/capi is what cbindgen reads")
        .write_to_file(format!("{out}/trihop.h"));
}
