//! What `make install` puts in place besides the program: manual pages, from the same words as
//! `--help` and the header's comments, and completions of shells.

mod examples;
mod functions;

use crate::output;
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder that gets man1 (trihop and each of its commands), man3 (the C functions) and
    /// completions (bash, zsh, fish)
    folder: PathBuf,
}

/// Writes the pages of `command`, of what is below it and of the C functions, and completions.
pub fn run(args: ManArgs, command: clap::Command) -> Result<(), String> {
    write(&args.folder, command).map_err(|e| {
        format!(
            "writing manual pages to {}: {e}",
            output::path(&args.folder)
        )
    })
}

fn write(folder: &Path, command: clap::Command) -> io::Result<()> {
    let [commands, functions, completions] =
        ["man1", "man3", "completions"].map(|name| folder.join(name));
    for folder in [&commands, &functions, &completions] {
        fs::create_dir_all(folder)?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        // Adds the commands that clap makes itself, which have no page.
        clap_complete::generate_to(shell, &mut command.clone(), "trihop", &completions)?;
    }
    functions::write(&functions)?;
    let of_all = command.get_after_help().cloned().unwrap_or_default();
    let command = command
        .mut_subcommands(|command| {
            let own = command.get_after_help().unwrap_or(&of_all).to_string();
            let examples = examples::section(command.get_name());
            let whole = examples + &own;
            let of_each = whole.clone();
            command
                .after_help(whole)
                .mut_subcommands(|below| below.after_help(of_each.clone()))
        })
        .after_help(examples::of_all() + &of_all.to_string())
        .disable_help_subcommand(true);
    // Terminals wrap a page at their own width.
    clap_mangen::generate_to(command.term_width(usize::MAX), &commands)?;
    for page in fs::read_dir(commands)? {
        let page = page?.path();
        let name = page
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        let title = format!(
            ".TH {name} 1 \"\" \"trihop {}\" \"User Commands\"",
            trihop::VERSION
        );
        fs::write(&page, with_sections(&fs::read_to_string(&page)?, &title))?;
    }
    Ok(())
}

/// What a command says below its options has headings of its own, where a page would have one that
/// says `EXTRA`, and lists: a name, then, behind two spaces or more, what it stands for, which may
/// go on in the next lines.
///
/// `title` takes the place of the page's own, which has a command's name in that of the package.
fn with_sections(page: &str, title: &str) -> String {
    let mut written = String::with_capacity(page.len());
    let mut in_extra = false;
    for line in page.lines() {
        let line = if line.starts_with(".TH ") {
            title
        } else {
            line
        };
        if let Some(heading) = line.strip_prefix(".SH ") {
            in_extra = heading == "EXTRA";
            if in_extra {
                continue;
            }
        }
        match in_extra.then(|| Extra::of(line)) {
            None => written.push_str(line),
            Some(Extra::Heading) => written.extend([".SH ", line]),
            Some(Extra::Item(name, what)) => written.extend([".TP\n\\fB", name, "\\fR\n", what]),
            Some(Extra::Text(text)) => written.push_str(text),
        }
        written.push('\n');
    }
    written
}

/// A line below the options.
enum Extra<'a> {
    Heading,
    Item(&'a str, &'a str),
    Text(&'a str),
}

impl<'a> Extra<'a> {
    fn of(line: &'a str) -> Self {
        let is_heading = line.starts_with(|c: char| c.is_ascii_uppercase())
            && line.chars().all(|c| c.is_ascii_uppercase() || c == ' ');
        if is_heading {
            return Self::Heading;
        }
        match line.strip_prefix("  ") {
            Some(item) if !item.starts_with(' ') => item
                .split_once("  ")
                .map_or(Self::Text(item), |(name, what)| {
                    Self::Item(name, what.trim_start())
                }),
            _ => Self::Text(line.trim_start()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_and_lists_of_a_command_are_those_of_its_page() {
        let page = ".TH X\n.SH OPTIONS\nTEXT\n.SH EXTRA\nEXIT STATUS\n  0  done\n     and more\n  plain\nA sentence\n\
                    .SH VERSION\nV\n";
        let expected = ".TH T\n.SH OPTIONS\nTEXT\n.SH EXIT STATUS\n.TP\n\\fB0\\fR\ndone\nand more\nplain\n\
                        A sentence\n.SH VERSION\nV\n";
        assert_eq!(with_sections(page, ".TH T"), expected);
    }

    #[test]
    fn each_page_has_examples_a_status_and_an_environment() {
        use clap::CommandFactory;
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), crate::Cli::command()).unwrap();
        let pages = fs::read_dir(folder.path().join("man1")).unwrap();
        let pages: Vec<_> = pages.map(|page| page.unwrap().path()).collect();
        assert!(pages.len() > 8, "{pages:?}");
        for page in pages {
            let text = fs::read_to_string(&page).unwrap();
            for section in ["EXAMPLES", "EXIT STATUS", "ENVIRONMENT"] {
                // Or that of a rank.
                let is_there = text.contains(&format!("\n.SH {section}"));
                assert!(is_there, "{} has no {section}", page.display());
            }
        }
    }
}
