//! Finds the installed libfabric, generates the bindings, and compiles the C side of its inline
//! functions.

use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::exit;

use bindgen::callbacks::{IntKind, ParseCallbacks};
use object::Endianness;
use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader as _, Sym as _};

/// Oldest libfabric whose headers these bindings were written against.
const OLDEST: &str = "1.17";

/// Its calls that are symbols of the library: `src/load.rs` finds them when they are needed.
const LOADED: [&str; 7] = [
    "fi_getinfo",
    "fi_freeinfo",
    "fi_dupinfo",
    "fi_fabric",
    "fi_version",
    "fi_strerror",
    "fi_tostr_r",
];

const REMEDY: &str = "install libfabric-dev, libclang-dev, pkg-config and gcc on Debian; libfabric-devel, clang-devel, \
                      pkgconf and gcc on RHEL; libfabric-devel, clang-devel (libclang), pkg-config and gcc on SLES";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/fabric.h");
    println!("cargo::rerun-if-changed=src/shim.h");
    println!("cargo::rerun-if-changed=src/shim.c");
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    let links = std::env::var_os("CARGO_FEATURE_LINK").is_some();

    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let library = pkg_config::Config::new()
        .atleast_version(OLDEST)
        .cargo_metadata(links)
        .probe("libfabric")
        .unwrap_or_else(|e| {
            let found = match e {
                pkg_config::Error::ProbeFailure { .. } | pkg_config::Error::Failure { .. } => {
                    "pkg-config finds none"
                }
                pkg_config::Error::Command { .. } => "pkg-config itself cannot be run",
                _ => "pkg-config gives no answer",
            };
            fail(&format!(
                "libfabric {OLDEST} or newer is needed but {found}"
            ))
        });
    if !links {
        find_versions(&out);
    }
    generate(&out, &library.include_paths, links);
    compile(&out, &library.include_paths);
}

/// Fails the build with one sentence: cargo prints that line alone when the script itself ends
/// well.
fn fail(what: &str) -> ! {
    println!("cargo::error={what}: {REMEDY}.");
    exit(0)
}

/// Writes in which version the library has the calls that are loaded: a newer library has others of
/// the same names, for headers of its own.
fn find_versions(out: &Path) {
    let folder = pkg_config::get_variable("libfabric", "libdir").unwrap_or_default();
    let path = Path::new(&folder).join("libfabric.so");
    let versions = std::fs::read(&path)
        .map_err(|why| why.to_string())
        .and_then(|library| versions_in(&library).map_err(|why| why.to_string()));
    let lines = versions.and_then(|versions| {
        let line = |name: &&str| {
            let version = versions.get(*name).ok_or(format!("it has no {name}"))?;
            Ok(format!(
                "pub const {name}: &::std::ffi::CStr = c\"{version}\";\n"
            ))
        };
        let lines: Result<String, String> = LOADED.iter().map(line).collect();
        lines
    });
    let lines = lines.unwrap_or_else(|why| {
        let path = path.display();
        fail(&format!(
            "the versions of libfabric's calls cannot be read from {path} ({why})"
        ))
    });
    let place = out.join("versions.rs");
    if let Err(why) = std::fs::write(&place, lines) {
        fail(&format!("{} cannot be written ({why})", place.display()))
    }
}

/// The version of each symbol that a program is linked with; of a library without versions, none.
fn versions_in(library: &[u8]) -> object::Result<HashMap<String, String>> {
    let header = FileHeader64::<Endianness>::parse(library)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, library)?;
    let table = sections.versions(endian, library)?;
    let symbols = sections.symbols(endian, library, SHT_DYNSYM)?;
    let mut versions = HashMap::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(endian) {
            continue;
        }
        let name = String::from_utf8_lossy(symbols.symbol_name(endian, symbol)?).into_owned();
        let mut version = String::new();
        if let Some(table) = &table {
            let index = table.version_index(endian, index);
            if index.is_hidden() {
                continue; // for programs that were linked with older libraries
            }
            if let Some(of) = table.version(index.index())? {
                version = String::from_utf8_lossy(of.name()).into_owned();
            }
        }
        versions.insert(name, version);
    }
    Ok(versions)
}

fn generate(out: &Path, includes: &[PathBuf], links: bool) {
    let mut builder = bindgen::builder()
        .header("src/fabric.h")
        .clang_args(includes.iter().map(|p| format!("-I{}", p.display())))
        .allowlist_function("fi_.*")
        .allowlist_type("(fi|fid)_.*|fid")
        .allowlist_var("FI_.*")
        .blocklist_function("fi_(log|param|param_define|open|import).*")
        .prepend_enum_name(false)
        .derive_default(false)
        .generate_comments(false)
        .layout_tests(true)
        // Casts in C, which only a second pass of libclang would resolve: written by hand in
        // lib.rs.
        .blocklist_item("FI_(ADDR_UNSPEC|ADDR_NOTAVAIL|KEY_NOTAVAIL)")
        .wrap_static_fns(true)
        .wrap_static_fns_path(out.join("inline"))
        .parse_callbacks(Box::new(MacroTypes));
    if !links {
        // The first is inline over one of the others.
        let ours = format!("fi_allocinfo|{}", LOADED.join("|"));
        builder = builder.blocklist_function(ours);
    }

    // bindgen panics where libclang cannot be loaded; only our sentence may reach the user.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let generated = panic::catch_unwind(AssertUnwindSafe(|| builder.generate()));
    panic::set_hook(hook);
    let bindings = match generated {
        Ok(Ok(bindings)) => bindings,
        Ok(Err(e)) => {
            let reason = e.to_string();
            let first = reason
                .lines()
                .find(|l| l.contains("error"))
                .unwrap_or(reason.trim())
                .to_owned();
            fail(&format!(
                "libclang cannot read the libfabric headers ({first})"
            ))
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text
                .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_default();
            if text.contains("libclang") {
                fail("libclang is needed to read the libfabric headers but cannot be loaded")
            }
            fail(&format!(
                "bindgen stopped on the libfabric headers ({text})"
            ))
        }
    };
    if let Err(e) = bindings.write_to_file(out.join("bindings.rs")) {
        fail(&format!(
            "{} cannot be written ({e})",
            out.join("bindings.rs").display()
        ))
    }
}

fn compile(out: &Path, includes: &[PathBuf]) {
    let mut build = cc::Build::new();
    // The generated wrappers include the header by the path given above, relative to this package.
    build
        .file(out.join("inline.c"))
        .file("src/shim.c")
        .include(".")
        .includes(includes);
    build.warnings(false).opt_level(2).cargo_warnings(false);
    if let Err(e) = build.try_compile("libfabric_inline") {
        let reason = e.to_string();
        fail(&format!(
            "a C compiler is needed for libfabric's inline functions but failed ({reason})"
        ))
    }
}

/// Gives each macro constant the type that libfabric's calls take it in.
#[derive(Debug)]
struct MacroTypes;

impl ParseCallbacks for MacroTypes {
    fn int_macro(&self, name: &str, value: i64) -> Option<IntKind> {
        if name.ends_with("_VERSION") {
            return Some(IntKind::U32);
        }
        // Error numbers (FI_EAGAIN) are C ints; FI_EP_... and the like are not error numbers.
        if name.starts_with("FI_E") && !name[3..].contains('_') && (0..1024).contains(&value) {
            return Some(IntKind::I32);
        }
        Some(IntKind::U64)
    }
}
