//! Manual pages, from the same words as `--help`.

use crate::output;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder that gets a page for trihop and one for each of its commands
    folder: PathBuf,
}

/// Writes the pages of `command` and of what is below it.
pub fn run(args: ManArgs, command: clap::Command) -> Result<(), String> {
    write(&args.folder, command).map_err(|e| {
        format!(
            "writing manual pages to {}: {e}",
            output::path(&args.folder)
        )
    })
}

fn write(folder: &Path, command: clap::Command) -> io::Result<()> {
    // Terminals wrap a page at their own width.
    clap_mangen::generate_to(command.term_width(usize::MAX), folder)?;
    for page in fs::read_dir(folder)? {
        let page = page?.path();
        fs::write(&page, with_sections(&fs::read_to_string(&page)?))?;
    }
    Ok(())
}

/// What a command says below its options has headings of its own, where a page would have one that
/// says `EXTRA`.
fn with_sections(page: &str) -> String {
    let mut written = String::with_capacity(page.len());
    let mut in_extra = false;
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix(".SH ") {
            in_extra = heading == "EXTRA";
            if in_extra {
                continue;
            }
        }
        let is_heading = in_extra
            && line.starts_with(|c: char| c.is_ascii_uppercase())
            && line.chars().all(|c| c.is_ascii_uppercase() || c == ' ');
        if is_heading {
            written.push_str(".SH ");
        }
        written.push_str(line);
        written.push('\n');
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_of_a_command_are_those_of_its_page() {
        let page =
            ".SH OPTIONS\nTEXT\n.SH EXTRA\nEXIT STATUS\n  0  done\nA sentence\n.SH VERSION\nV\n";
        let expected =
            ".SH OPTIONS\nTEXT\n.SH EXIT STATUS\n  0  done\nA sentence\n.SH VERSION\nV\n";
        assert_eq!(with_sections(page), expected);
    }
}
