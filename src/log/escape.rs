//! Bytes from outside as they may be shown: a terminal takes some of them for commands, and a log
//! for the next line.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Bytes of an input or a peer, such as a file name or a key: shown on one line, with escapes for
/// control and direction characters (`\n`, `\u{1b}`), for bytes that are no UTF-8 (`\xff`) and for
/// the backslash.
///
/// ```
/// use trihop::log::Escaped;
/// assert_eq!(Escaped(b"a\x1b[2J\n\xff\\").to_string(), r"a\u{1b}[2J\n\xff\\");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    _ => write_character(f, character)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// A text of ours that may hold what others said: all of it stays, but for control characters other
/// than line ends and tabs, and direction characters, which are escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    let stays = |character| matches!(character, '\n' | '\t') || !is_active(character);
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if stays(character) {
            shown.push(character);
        } else {
            // Writing into a string cannot fail.
            let _ = write_character(&mut shown, character);
        }
    }
    Cow::Owned(shown)
}

/// As [`printable`], for one line of a log: line ends are escaped as well.
pub(super) fn one_line(text: &str) -> Cow<'_, str> {
    match printable(text) {
        shown if shown.contains('\n') => Cow::Owned(shown.replace('\n', "\\n")),
        shown => shown,
    }
}

fn write_character(out: &mut impl Write, character: char) -> fmt::Result {
    if is_active(character) {
        write!(out, "{}", character.escape_default())
    } else {
        out.write_char(character)
    }
}

/// Whether a character does something to what stands around it: controls, line and paragraph ends,
/// and those that turn the direction of writing.
fn is_active(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_escaped() {
        for (bytes, shown) in [
            (&b"plain text, 'quoted'"[..], "plain text, 'quoted'"),
            ("ä\u{301} 漢".as_bytes(), "ä\u{301} 漢"),
            (b"\x1b]0;title\x07", r"\u{1b}]0;title\u{7}"),
            (b"a\r\n\tb", r"a\r\n\tb"),
            (
                "\u{9b}31m\u{202e}\u{2028}".as_bytes(),
                r"\u{9b}31m\u{202e}\u{2028}",
            ),
            (b"\xc3(\xff", r"\xc3(\xff"),
            (b"C:\\n", r"C:\\n"),
        ] {
            assert_eq!(Escaped(bytes).to_string(), shown);
        }
    }

    #[test]
    fn texts_keep_their_lines_and_lose_their_controls() {
        assert!(matches!(printable("one\n\ttwo \\x1b"), Cow::Borrowed(_)));
        assert_eq!(printable("one\n\u{1b}[1mtwo\r"), "one\n\\u{1b}[1mtwo\\r");
        assert_eq!(one_line("one\ntwo\u{7}"), "one\\ntwo\\u{7}");
    }
}
