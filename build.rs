//! Embeds the version that `trihop info` and the job handshake report, and writes the C header.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=BUILD_PROFILE_OF_TRIHOP={profile}");
    let own = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::metadata=include={own}/include");
    #[cfg(feature = "header")]
    write_header();
}

#[cfg(feature = "header")]
#[path = "shuffle/src/config/table.rs"]
mod options;

/// The struct of options as plain source, since cbindgen expands no macros.
#[cfg(feature = "header")]
macro_rules! options_source {
    (
        stream { $($(#[doc = $s_doc:literal])+ $s_who:ident $s:ident: $s_type:ty as $s_c:tt
            = $s_default:tt in $s_values:tt $s_unit:tt;)+ }
        job { $($(#[doc = $j_doc:literal])+ $j_who:ident $j:ident: $j_type:ty as $j_c:tt
            = $j_default:tt in $j_values:tt $j_unit:tt;)+ }
    ) => {{
        let note = |note: &str| format!(" {}", note.replace('_', ","));
        let mut source = Struct::new(
            "trihop_options_t",
            &[
                " Options of a job and of its streams, with the names, units, ranges and defaults of the library's",
                " documentation (docs/OPTIONS.md, or `Options` and `StreamOptions` of the Rust interface). 0 and empty texts",
                " stand for what is absent.",
                "",
                " Fill it with `trihop_options_init`, or with `trihop_job_options` for a stream that differs from its job; then",
                " change fields, or set them by name. Later versions add fields at the end. Those from `launcher` on are for jobs:",
                " a stream looks no further.",
            ],
        );
        source.field(&[" Bytes of this struct as the caller knows it; set by `trihop_options_init`."], "size", "usize");
        $(
            let last = note(crate::option_note!($s_who $s_default $s_values $s_unit));
            source.field(&[$($s_doc,)+ &last], stringify!($s), stringify!($s_c));
        )+
        $(
            let last = note(crate::option_note!($j_who $j_default $j_values $j_unit));
            source.field(&[$($j_doc,)+ &last], stringify!($j), stringify!($j_c));
        )+
        source.0 + "}\n"
    }};
}

#[cfg(feature = "header")]
#[path = "shuffle/src/stats/table.rs"]
mod counters;

/// The structs of counters as plain source.
#[cfg(feature = "header")]
macro_rules! counters_source {
    (
        stream { $($(#[doc = $doc:literal])+ $name:ident $unit:tt $text:tt;)+ }
        queue { $($(#[doc = $q_doc:literal])+ $whole:ident $q:ident $q_unit:tt $q_text:tt;)+ }
    ) => {{
        let size = " Bytes of this struct as the caller knows it; set by the library.";
        let mut stream = Struct::new(
            "trihop_stats_t",
            &[" What a stream has done on this rank since it was opened. Later versions add fields at the end."],
        );
        stream.field(&[size], "size", "usize");
        $(stream.field(&[$($doc),+], stringify!($name), "u64");)+
        let mut stage = Struct::new(
            "trihop_stage_stats_t",
            &[" What the queues of one stage have done together. Later versions add fields at the end."],
        );
        stage.field(&[size], "size", "usize");
        stage.field(
            &[" Queues of the stage that were ever used: `trihop_details_queue` takes numbers below it."],
            "queues",
            "u64",
        );
        stage.field(
            &[" Times that own sends met the stage's limit, which clients of DeltaFS set."],
            "limit_hits",
            "u64",
        );
        $(stage.field(&[&whole(stringify!($whole), stringify!($q))], stringify!($q), "u64");)+
        let mut queue = Struct::new(
            "trihop_queue_stats_t",
            &[" What one output queue has done. Later versions add fields at the end."],
        );
        queue.field(&[size], "size", "usize");
        queue.field(&[" Rank at the other end."], "peer", "u64");
        $(queue.field(&[$($q_doc),+], stringify!($q), "u64");)+
        [stream, stage, queue].map(|source| source.0 + "}\n").concat()
    }};
}

/// What the queues' counters of this name come to in their stage.
#[cfg(feature = "header")]
fn whole(how: &str, name: &str) -> String {
    match how {
        "sum" => format!(" Sum over the queues of `{name}`."),
        "max" => format!(" Largest of the queues' `{name}`."),
        _ => unreachable!("the table has sums and maxima"),
    }
}

/// The source of a struct for C, without its end.
#[cfg(feature = "header")]
struct Struct(String);

#[cfg(feature = "header")]
impl Struct {
    fn new(name: &str, doc: &[&str]) -> Self {
        let mut source = Self(String::new());
        source.doc(doc);
        source.0 += &format!("#[repr(C)]\npub struct {name} {{\n");
        source
    }

    fn doc(&mut self, lines: &[&str]) {
        for line in lines {
            self.0 += &format!("///{line}\n");
        }
    }

    fn field(&mut self, doc: &[&str], name: &str, kind: &str) {
        self.doc(doc);
        self.0 += &format!("pub {name}: {kind},\n");
    }
}

/// Writes the C header to OUT_DIR, where `tests/header.rs` compares it with the committed one.
#[cfg(feature = "header")]
fn write_header() {
    println!("cargo::rerun-if-changed=cbindgen.toml");
    println!("cargo::rerun-if-changed=src/capi");
    for room in ["config", "stats"] {
        println!("cargo::rerun-if-changed=shuffle/src/{room}/table.rs");
    }
    let mut config = cbindgen::Config::from_file("cbindgen.toml").expect("cbindgen.toml is valid");
    let number =
        |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it");
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
        "seat",
        "job",
        "topology",
        "survivors",
        "collective",
        "custom",
        "stream/message",
        "stream/open",
        "stream/send",
        "stream",
        "stream/step",
        "conveyor",
        "replies",
        "merging",
        "minirank",
        "array/element",
        "array/open",
        "array",
        "channel/open",
        "channel",
        "channel/poll",
        "channel/asked",
        "guest",
        "stats",
        "details",
        "threads",
        "log",
    ];
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let structs = format!("{out}/structs.rs");
    let source = crate::options_table!(options_source) + &crate::counters_table!(counters_source);
    std::fs::write(&structs, source).expect("OUT_DIR can be written to");
    let builder = cbindgen::Builder::new()
        .with_config(config)
        .with_src(structs);
    let builder = files.iter().fold(builder, |builder, file| {
        builder.with_src(format!("src/capi/{file}.rs"))
    });
    let mut header = Vec::new();
    builder
        .generate()
        .expect("src/capi is what cbindgen reads")
        .write(&mut header);
    let header = String::from_utf8(header).expect("the sources are UTF-8");
    let end = header.rfind("\n#endif").expect("there is an include guard");
    let windows = std::fs::read_to_string("src/capi/windows.h").expect("src/capi has windows.h");
    let (before, guard) = header.split_at(end);
    std::fs::write(
        format!("{out}/trihop.h"),
        format!("{before}{windows}{guard}"),
    )
    .expect("OUT_DIR can be written to");
}
