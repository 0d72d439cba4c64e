//! What the documents show in C and C++ compiles, against the header of this tree, shells can read
//! what is for them, and links lead somewhere. What they show in Rust is run, as tests of documents
//! (`src/lib.rs`), and so is Python (`python/tests/test_documents.py`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Words by which `documents/fragments.h` knows what a fragment is about.
const ABOUT: [(&str, &str); 4] = [
    ("trihop_message_next", "IN_RUNS"),
    ("trihop_replies_", "IN_REPLIES"),
    ("MPI_", "IN_MPI"),
    ("trihop::Array", "IN_CELLS"),
];

/// A block between two fences of a document.
struct Block {
    /// Document and line.
    place: String,
    /// The line before it.
    before: String,
    language: String,
    text: String,
}

/// The README and all in `docs/`.
fn documents() -> Vec<PathBuf> {
    let docs = fs::read_dir(Path::new(ROOT).join("docs")).unwrap();
    let mut documents: Vec<PathBuf> = docs.map(|entry| entry.unwrap().path()).collect();
    documents.push(Path::new(ROOT).join("README.md"));
    documents.retain(|path| path.extension().is_some_and(|end| end == "md"));
    documents
}

fn blocks_of(document: &Path) -> Vec<Block> {
    let all = fs::read_to_string(document).unwrap();
    let (mut blocks, mut open, mut before) = (Vec::new(), None::<Block>, "");
    for (number, line) in (1..).zip(all.lines()) {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block {
                    place: format!("{}:{number}", document.display()),
                    before: before.to_owned(),
                    language: language.to_owned(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
        before = line;
    }
    assert!(open.is_none(), "{}: a block has no end", document.display());
    blocks
}

/// Programs are whole; of a fragment, what is not in a function of its own is put in one.
fn source_of(block: &Block) -> String {
    if block.text.contains("#include") {
        return block.text.clone();
    }
    let (mut outside, mut inside, mut is_outside) = (String::new(), String::new(), false);
    for line in block.text.lines().filter(|line| *line != "...") {
        let begins = line.starts_with("static ") || line.starts_with("struct ");
        is_outside |= begins;
        let part = match is_outside {
            true => &mut outside,
            false => &mut inside,
        };
        part.extend([line, "\n"]);
        is_outside &= !(line.starts_with('}') || begins && line.ends_with([';', '}']));
    }
    let about = ABOUT
        .iter()
        .filter(|(word, _)| block.text.contains(word))
        .map(|(_, name)| format!("#define {name}\n"));
    format!(
        "{}#include \"fragments.h\"\n{outside}void fragment(void);\nvoid fragment(void)\n{{\n{inside}}}\n",
        about.collect::<String>()
    )
}

fn has(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").output();
    asked.is_ok_and(|asked| asked.status.success())
}

#[test]
fn blocks_in_c_and_cpp_compile() {
    let folder = tempfile::tempdir().unwrap();
    let (mut compiled, mut wrong) = (0, Vec::new());
    for block in documents().iter().flat_map(|path| blocks_of(path)) {
        let (compiler, standard, end) = match block.language.as_str() {
            "c" if block.text.contains("MPI_") => ("mpicc", "c99", "c"),
            "c" => ("cc", "c99", "c"),
            "cpp" => ("c++", "c++17", "cpp"),
            _ => continue,
        };
        if !has(compiler) {
            eprintln!("skipped: no {compiler} for {}", block.place);
            continue;
        }
        let file = folder.path().join(format!("block.{end}"));
        fs::write(&file, source_of(&block)).unwrap();
        let output = Command::new(compiler)
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
            .args(["-Wno-unused", "-Wno-unused-parameter"])
            .arg(format!("-std={standard}"))
            .arg(format!("-I{ROOT}/include"))
            .arg(format!("-I{ROOT}/include/trihop/deltafs"))
            .arg(format!("-I{ROOT}/tests/documents"))
            .arg(&file)
            .output()
            .unwrap();
        compiled += 1;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            wrong.push(format!("{}:\n{errors}", block.place));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compiled >= 15, "only {compiled} blocks were found");
}

/// A shell reads what the documents show it, and a line before says whether `.ci/documents` runs
/// it.
#[test]
fn blocks_of_shell_have_a_meaning() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("block.sh");
    let mut read = 0;
    for block in documents().iter().flat_map(|path| blocks_of(path)) {
        if block.language != "sh" {
            continue;
        }
        let mark = block.before.strip_prefix("<!-- ").unwrap_or_default();
        let is_marked = ["run -->", "run: ", "not run: "]
            .iter()
            .any(|it| mark.starts_with(it));
        let why = "no line before says that it is run, or why it is not: see .ci/documents";
        assert!(
            is_marked && mark.ends_with(" -->"),
            "{}: {why}",
            block.place
        );
        fs::write(&file, &block.text).unwrap();
        let output = Command::new("sh").arg("-n").arg(&file).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", block.place);
        read += 1;
    }
    assert!(read >= 15, "only {read} blocks were found");
}

/// Links inside of the repository lead to a file, and to a heading where they name one.
#[test]
fn links_lead_somewhere() {
    let mut documents = documents();
    documents.push(Path::new(ROOT).join("CONTRIBUTING.md"));
    let (mut followed, mut wrong) = (0, Vec::new());
    for document in &documents {
        for link in links_of(document) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => document.clone(),
                _ => document.parent().unwrap().join(path),
            };
            let is_there = target.exists();
            let names_headings = target.extension().is_some_and(|end| end == "md");
            let has = || heading.is_empty() || headings_of(&target).iter().any(|it| it == heading);
            if !is_there || names_headings && !has() {
                wrong.push(format!("{}: {link}", document.display()));
            }
            followed += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(followed >= 100, "only {followed} links were found");
}

/// Lines outside of blocks.
fn prose_of(document: &Path) -> Vec<String> {
    let mut is_prose = true;
    let text = fs::read_to_string(document).unwrap();
    let lines = text.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        is_prose ^= is_fence;
        is_prose && !is_fence
    });
    lines.map(str::to_owned).collect()
}

/// Where links of a document lead that stay in the repository.
fn links_of(document: &Path) -> Vec<String> {
    let text = prose_of(document).join("\n");
    let links = text.split("](").skip(1);
    let links = links.filter_map(|rest| rest.split_once(')').map(|(link, _)| link.to_owned()));
    links.filter(|link| !link.contains("://")).collect()
}

/// Headings of a document as links name them.
fn headings_of(document: &Path) -> Vec<String> {
    let lines = prose_of(document).into_iter();
    let headings = lines.filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// The book has every document, once, and its pages are there.
#[test]
fn the_book_has_every_document() {
    let docs = Path::new(ROOT).join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let named = summary.split("](").skip(1);
    let mut named: Vec<&str> = named.filter_map(|rest| rest.split(')').next()).collect();
    named.sort_unstable();
    let entries = fs::read_dir(&docs).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut there: Vec<String> = names
        .filter(|name| name.ends_with(".md") && name != "SUMMARY.md")
        .collect();
    there.sort_unstable();
    assert_eq!(named, there);
}
