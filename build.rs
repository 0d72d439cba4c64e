//! Embeds the version that `trihop info` and the job handshake report.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=BUILD_PROFILE_OF_TRIHOP={profile}");
}
