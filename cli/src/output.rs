//! What commands write: it gets there, or the command fails; and nothing in it acts on a terminal.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use trihop::log::{Escaped, printable};

/// Standard output is full, or gone in another way than by a reader who has seen enough.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {0}")]
pub struct Unwritten(#[from] io::Error);

/// Writes to standard output, at once. A pipe that nobody reads any more is the reader's choice and
/// no error.
///
/// # Errors
/// Whatever else keeps it from being written.
pub fn write(text: &str) -> Result<(), Unwritten> {
    let mut out = io::stdout().lock();
    let written = out
        .write_all(printable(text).as_bytes())
        .and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Writes a line, as [`write()`] does.
///
/// # Errors
/// As [`write()`].
pub fn line(text: fmt::Arguments<'_>) -> Result<(), Unwritten> {
    write(&format!("{text}\n"))
}

/// Columns that tables fit into, on a terminal or not.
pub const COLUMNS: usize = 80;

/// The words of a text in lines that fit [`COLUMNS`], each behind so many spaces; a longer word has
/// a line of its own.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length <= COLUMNS {
            lines.push_str(&format!(" {word}"));
            used += 1 + length;
        } else {
            let end = if used > 0 { "\n" } else { "" };
            lines.push_str(&format!("{end}{:indent$}{word}", ""));
            used = indent + length;
        }
    }
    lines
}

/// A table in columns as wide as what stands in them: those of `words` to the left, all others to
/// the right, as numbers are. Nothing is cut or folded: who asks sees to it that lines fit
/// [`COLUMNS`]. Names may have several lines.
pub fn table<const N: usize>(
    names: [&str; N],
    words: &[usize],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(names)
        .add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if !words.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

/// A text whose lines fit [`COLUMNS`]: longer ones go on in the next line, further to the right.
pub fn folded(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        if line.chars().count() <= COLUMNS {
            lines.push_str(line);
        } else {
            lines.push_str(&line[..indent]);
            lines.push_str(wrapped(words, indent + 4).trim_start());
        }
        lines.push('\n');
    }
    lines
}

/// Writes one JSON object on a line, as [`write()`] does.
///
/// # Errors
/// As [`write()`].
pub fn json(value: &impl Serialize) -> Result<(), Unwritten> {
    let text = serde_json::to_string(value).map_err(io::Error::from)?;
    write(&(json_for_terminals(&text) + "\n"))
}

/// JSON leaves characters above ASCII as they are, some of which act on a terminal. They stand
/// inside of strings only.
pub fn json_for_terminals(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        let mut bytes = [0; 4];
        let alone: &str = character.encode_utf8(&mut bytes);
        if character.is_ascii() && character != '\u{7f}' || printable(alone) == alone {
            shown.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                shown += &format!("\\u{unit:04x}");
            }
        }
    }
    shown
}

/// Says something on standard error, `who` in front. Where nobody listens there, the exit status
/// still tells.
pub fn say(who: &str, text: impl fmt::Display) {
    let text = format!("{who}: {text}\n");
    let _ = io::stderr().write_all(printable(&text).as_bytes());
}

/// A file name, on one line.
pub fn path(path: &Path) -> Escaped<'_> {
    Escaped(path.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_behind_their_indent() {
        let text = "word ".repeat(40) + &"x".repeat(100) + " end";
        let lines = wrapped(&text, 4);
        let lines: Vec<&str> = lines.lines().collect();
        // 15 words of four letters, with a space between them, fill 74 of 76 columns.
        assert_eq!(lines[0].split(' ').filter(|w| !w.is_empty()).count(), 15);
        assert!(lines.iter().all(|line| line.starts_with("    ")));
        let too_long: Vec<&&str> = lines.iter().filter(|l| l.len() > COLUMNS).collect();
        assert_eq!(too_long, [&&*format!("    {}", "x".repeat(100))]);
        assert_eq!(*lines.last().unwrap(), "    end");
        assert_eq!(wrapped("", 4), "");
    }

    #[test]
    fn long_lines_go_on_further_to_the_right() {
        let text = format!("a\n  {}\n", "word ".repeat(20).trim_end());
        let lines = folded(&text);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, "a"));
        assert!(lines[1].starts_with("  word") && lines[2].starts_with("      word"));
        assert!(lines.iter().all(|line| line.len() <= COLUMNS));
    }

    #[test]
    fn columns_are_as_wide_as_what_stands_in_them() {
        let long = "x".repeat(100);
        let rows =
            [["a b", "1"], [&long, "18446744073709551615"]].map(|row| row.map(str::to_owned));
        let lines = table(["\nroute", "number\nof"], &[0], rows);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[0], format!("{:100}               number", ""));
        assert_eq!(lines[1], format!("{:100} {:>20}", "route", "of"));
        assert_eq!(lines[2], format!("{:100} {:>20}", "a b", 1));
        assert_eq!(lines[3], format!("{long} 18446744073709551615"));
        assert_eq!(table(["name"], &[], []), "name\n");
    }

    #[test]
    fn json_stays_json_and_says_nothing_to_a_terminal() {
        let value = "ä\u{9b}31m\u{7f}\u{202e}\u{1b}漢";
        let text = json_for_terminals(&serde_json::to_string(value).unwrap());
        assert_eq!(text, r#""ä\u009b31m\u007f\u202e\u001b漢""#);
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), value);
    }
}
