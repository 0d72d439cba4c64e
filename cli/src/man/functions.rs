//! Manual pages of the C functions, one for each group of them, out of the header's comments.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

/// The header as it is installed.
const HEADER: &str = include_str!(env!("HEADER_OF_TRIHOP"));

/// Name of a page, what its functions are for, and how their names begin. The first that fits
/// counts; functions of no other page are those of a job.
const PAGES: [(&str, &str, &[&str]); 13] = [
    (
        "trihop_diagnostics",
        "counters, dumps and logs",
        &[
            "trihop_stream_stats",
            "trihop_stream_details",
            "trihop_stream_dump",
            "trihop_details_",
            "trihop_threads",
            "trihop_dump",
            "trihop_log_",
        ],
    ),
    (
        "trihop_stream",
        "streams of records and items",
        &["trihop_stream_", "trihop_message_", "trihop_step_"],
    ),
    (
        "trihop_minirank",
        "ranks that are threads of one process",
        &["trihop_minirank_"],
    ),
    (
        "trihop_conveyor",
        "push, pull and advance",
        &["trihop_conveyor_"],
    ),
    (
        "trihop_replies",
        "requests that are answered",
        &["trihop_replies_"],
    ),
    (
        "trihop_merging",
        "items of one key that merge before they leave",
        &["trihop_merging_"],
    ),
    (
        "trihop_array",
        "elements with keys that may move between ranks",
        &["trihop_array_", "trihop_pack"],
    ),
    (
        "trihop_guest",
        "processes that are no ranks, and use channels",
        &["trihop_guest"],
    ),
    (
        "trihop_collectives",
        "calls of all ranks together",
        &[
            "trihop_barrier",
            "trihop_fence",
            "trihop_allreduce",
            "trihop_exscan",
            "trihop_broadcast",
            "trihop_allgather",
        ],
    ),
    (
        "trihop_options",
        "options of jobs and streams",
        &["trihop_options_", "trihop_job_options"],
    ),
    (
        "trihop_status",
        "what a call returns, and the version",
        &["trihop_strerror", "trihop_last_error", "trihop_version"],
    ),
    (
        "trihop_channel",
        "bounded queues of messages",
        &["trihop_channel", "trihop_received_"],
    ),
    ("trihop_job", "jobs, and who is where", &["trihop_"]),
];

/// A function of the header.
struct Function<'a> {
    name: &'a str,
    /// Lines of its comment.
    comment: Vec<&'a str>,
    /// Lines of its declaration.
    declaration: Vec<&'a str>,
}

/// Writes the pages, and one for each function that leads to its group's.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    for (page, functions) in by_page(HEADER) {
        fs::write(
            folder.join(format!("{}.3", PAGES[page].0)),
            text(page, &functions),
        )?;
        for function in functions {
            let leads_to = format!(".so man3/{}.3\n", PAGES[page].0);
            fs::write(folder.join(format!("{}.3", function.name)), leads_to)?;
        }
    }
    Ok(())
}

fn by_page(header: &str) -> BTreeMap<usize, Vec<Function<'_>>> {
    let mut pages = BTreeMap::<usize, Vec<Function<'_>>>::new();
    for function in functions(header) {
        let fits = |(_, _, begins): &(&str, &str, &[&str])| {
            begins.iter().any(|begin| function.name.starts_with(begin))
        };
        let page = PAGES.iter().position(fits).unwrap_or(PAGES.len() - 1);
        pages.entry(page).or_default().push(function);
    }
    pages
}

/// The functions that the library exports, in the order of the header: declarations at the
/// beginning of a line, each with the comment right before it.
fn functions(header: &str) -> Vec<Function<'_>> {
    let mut functions = Vec::new();
    let (mut comment, mut declaration) = (Vec::new(), Vec::new());
    for line in header.lines() {
        if let Some(text) = line.strip_prefix("//") {
            comment.push(text.strip_prefix(' ').unwrap_or(text));
            continue;
        }
        let begins = line.starts_with(|c: char| c.is_ascii_lowercase());
        let is_other = ["typedef", "static", "struct", "enum", "extern", "union"]
            .iter()
            .any(|word| line.starts_with(word));
        if !declaration.is_empty() || (begins && !is_other && line.contains("trihop_")) {
            declaration.push(line);
        }
        if declaration.is_empty() || line.ends_with(';') {
            let declaration = std::mem::take(&mut declaration);
            let comment = std::mem::take(&mut comment);
            if let Some(name) = name_of(&declaration) {
                functions.push(Function {
                    name,
                    comment,
                    declaration,
                });
            }
        }
    }
    functions
}

fn name_of<'a>(declaration: &[&'a str]) -> Option<&'a str> {
    let (before, _) = declaration.first()?.split_once('(')?;
    before.rsplit([' ', '*']).next()
}

fn text(page: usize, functions: &[Function<'_>]) -> String {
    let (name, about, _) = PAGES[page];
    let names: Vec<&str> = functions.iter().map(|f| f.name).collect();
    let mut text = format!(
        ".TH {} 3 \"\" \"trihop {}\" \"Library Functions\"\n.SH NAME\n{} \\- {about}\n\
         .SH SYNOPSIS\n.B #include <trihop.h>\n.SH FUNCTIONS\n",
        name.to_uppercase(),
        trihop::VERSION,
        names.join(", "),
    );
    for function in functions {
        let _ = writeln!(text, ".SS {}()\n.nf", function.name);
        for line in &function.declaration {
            let _ = writeln!(text, "{}", verbatim(line));
        }
        text.push_str(".fi\n");
        let mut in_code = false;
        for line in &function.comment {
            let _ = match *line {
                line if line.starts_with("```") => {
                    in_code = !in_code;
                    writeln!(text, "{}", if in_code { ".nf" } else { ".fi" })
                }
                line if in_code => writeln!(text, "{}", verbatim(line)),
                "" => writeln!(text, ".PP"),
                // What each comment ends with.
                line if line.starts_with("Threads: ") => {
                    writeln!(text, ".PP\n{}", emphasised(line))
                }
                line => writeln!(text, "{}", emphasised(line)),
            };
        }
    }
    text.push_str(".SH SEE ALSO\n.BR trihop (3)");
    for (other, ..) in PAGES.iter().filter(|(other, ..)| *other != name) {
        let _ = write!(text, ",\n.BR {other} (3)");
    }
    text.push('\n');
    text
}

/// A line as it is, whatever roff would make of its characters.
fn verbatim(line: &str) -> String {
    let escaped = line.replace('\\', "\\e").replace('-', "\\-");
    match escaped.starts_with(['.', '\'']) {
        true => format!("\\&{escaped}"),
        false => escaped,
    }
}

/// A line whose words between backticks are names.
fn emphasised(line: &str) -> String {
    let mut text = String::new();
    for (at, part) in verbatim(line).split('`').enumerate() {
        text.push_str(if at == 0 {
            ""
        } else {
            ["\\fR", "\\fB"][at % 2]
        });
        text.push_str(part);
    }
    // A name may go on in the next line.
    let is_open = line.matches('`').count() % 2 == 1;
    text + if is_open { "\\fR" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_of_the_header_is_in_one_page_with_a_comment() {
        let pages = by_page(HEADER);
        assert_eq!(pages.len(), PAGES.len(), "each page has functions");
        let mut count = 0;
        for function in pages.values().flatten() {
            assert!(!function.comment.is_empty(), "{}", function.name);
            assert!(function.declaration.last().unwrap().ends_with(';'));
            count += 1;
        }
        // What begins a line with a type and has a name of ours before a parenthesis.
        let begins = |line: &&str| {
            let before = line.split('(').next().unwrap_or_default();
            line.contains('(')
                && !line.starts_with(['/', ' ', '#', '}', '\t'])
                && !line.starts_with("static")
                && !line.starts_with("TRIHOP_IN_HEADER")
                && !line.starts_with("typedef")
                && before
                    .rsplit([' ', '*'])
                    .next()
                    .is_some_and(|n| n.starts_with("trihop_"))
        };
        assert_eq!(count, HEADER.lines().filter(begins).count());
        assert!(count > 100, "{count}");
    }

    #[test]
    fn comments_become_text_and_declarations_stay() {
        let header = "// Does `this`\n// - or that.\n//\n// ```c\n// `\n// ```\n// Threads: any.\nint trihop_poll(int a,\n         int b);\n\
                      typedef int trihop_x;\nstatic inline int trihop_no(void) {\n}\n";
        let functions = functions(header);
        assert_eq!(functions.len(), 1);
        let text = text(PAGES.len() - 1, &functions);
        let expected = ".SS trihop_poll()\n.nf\nint trihop_poll(int a,\n         int b);\n.fi\n\
                        Does \\fBthis\\fR\n\\- or that.\n.PP\n.nf\n`\n.fi\n.PP\nThreads: any.\n";
        assert!(text.contains(expected), "{text}");
        assert_eq!(verbatim(".\\x"), "\\&.\\ex");
    }
}
