//! PMI-1 on the wire: one line per request and reply, `key=value` words in any order; values in
//! chunks of base64.

use std::fmt;

use crate::error::{Error, Result};

/// Longest line that is sent or taken, in bytes, whatever the launcher says it can do: MPICH's own
/// client has this limit, so every server copes with it.
pub(super) const LINE_BYTES_MAX: usize = 1023;

/// Longest reply that is taken, in bytes; a process mapping can be longer than what we send.
pub(super) const REPLY_BYTES_MAX: usize = 1 << 20;

/// Most chunks of one value.
const CHUNKS_MAX: usize = 64;

/// Digits and point in front of the first chunk.
const PREFIX_BYTES_MAX: usize = 8;

/// A reply: its words, unordered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply<'a> {
    line: &'a str,
}

impl<'a> Reply<'a> {
    /// The reply to a request, which must carry `cmd=command` and, where it has an `rc`, success.
    pub(super) fn parse(line: &'a [u8], command: &str) -> Result<Self> {
        let line = std::str::from_utf8(line)
            .map_err(|_| refused(format!("an answer to {command} is not text")))?;
        let reply = Self { line };
        match reply.word("cmd") {
            Some(cmd) if cmd == command => Ok(reply),
            _ => Err(refused(format!(
                "expected an answer {command}, got {:?}",
                shorten(line)
            ))),
        }
    }

    /// A word's value. The last word may hold blanks where it is a message or a value, so it runs
    /// to the end.
    pub(super) fn word(&self, name: &str) -> Option<&'a str> {
        self.line
            .split_ascii_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// A word that must be a number.
    pub(super) fn number(&self, name: &str) -> Result<usize> {
        let word = self
            .word(name)
            .ok_or_else(|| refused(format!("no {name}= in {:?}", shorten(self.line))))?;
        word.parse()
            .map_err(|_| refused(format!("{name}={:?} is no number", shorten(word))))
    }

    /// Whether the launcher says that it went well; silence is consent (a barrier has no `rc`).
    pub(super) fn succeeded(&self) -> bool {
        self.word("rc").is_none_or(|rc| rc == "0")
    }

    /// Error where it did not go well.
    pub(super) fn success(self, doing: &str) -> Result<Self> {
        if self.succeeded() {
            return Ok(self);
        }
        Err(refused(format!(
            "{doing} was refused: {:?}",
            shorten(self.line)
        )))
    }
}

/// How values fit into this launcher's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Characters per chunk, a multiple of 4.
    characters: usize,
}

impl Chunks {
    /// Fits chunks into the longest value and, with `overhead` other bytes, into a line.
    pub(super) fn fit(value_bytes_max: usize, overhead: usize) -> Result<Self> {
        let room = value_bytes_max
            .saturating_sub(1)
            .min(LINE_BYTES_MAX.saturating_sub(overhead));
        let characters = room.saturating_sub(PREFIX_BYTES_MAX) / 4 * 4;
        if characters < 16 {
            return Err(refused(format!(
                "values of {value_bytes_max} bytes in lines of {LINE_BYTES_MAX} with {overhead} others leave no room"
            )));
        }
        Ok(Self { characters })
    }

    /// Largest value, in raw bytes.
    pub(super) fn value_limit(self) -> usize {
        self.characters / 4 * 3 * CHUNKS_MAX
    }

    /// The texts that carry `value`, one per chunk, at least one; the first starts with the length.
    pub(super) fn split(self, value: &[u8]) -> impl Iterator<Item = String> + '_ {
        let raw = self.characters / 4 * 3;
        let first = format!("{}.{}", value.len(), encode(&value[..raw.min(value.len())]));
        std::iter::once(first).chain(value.chunks(raw).skip(1).map(encode))
    }

    /// Puts a value together; `next` fetches chunk after chunk.
    pub(super) fn join(
        self,
        mut next: impl FnMut(usize) -> Result<Option<String>>,
    ) -> Result<Option<Vec<u8>>> {
        let bad = |why: &str| refused(format!("a value in the store is not ours: {why}"));
        let Some(first) = next(0)? else {
            return Ok(None);
        };
        let (length, text) = first
            .split_once('.')
            .ok_or_else(|| bad("it has no length"))?;
        let length: usize = length.parse().map_err(|_| bad("its length is no number"))?;
        if length > self.value_limit() {
            return Err(bad("it is longer than possible"));
        }
        let mut value = decode(text).ok_or_else(|| bad("it is not base64"))?;
        for chunk in 1..CHUNKS_MAX {
            if value.len() >= length {
                break;
            }
            let text = next(chunk)?.ok_or_else(|| bad("a chunk is missing"))?;
            let before = value.len();
            value.extend(decode(&text).ok_or_else(|| bad("it is not base64"))?);
            if value.len() == before {
                return Err(bad("a chunk is empty"));
            }
        }
        if value.len() != length {
            return Err(bad("its length is not that of its chunks"));
        }
        Ok(Some(value))
    }
}

/// Letters, digits, `-` and `_`: no padding, since some servers split words at every `=`.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group
            .iter()
            .fold(0_u32, |bits, b| bits << 8 | u32::from(*b))
            << (8 * (3 - group.len()));
        let letters = (0..=group.len()).map(|i| ALPHABET[(bits >> (18 - 6 * i)) as usize & 63]);
        text.extend(letters.map(char::from));
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        if group.len() == 1 {
            return None;
        }
        let mut bits = 0_u32;
        for letter in group {
            let value = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'-' => 62,
                b'_' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

/// An error of this launcher.
pub(super) fn refused(why: impl fmt::Display) -> Error {
    Error::Bootstrap {
        launcher: "pmi1",
        why: why.to_string(),
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_come_in_any_order() {
        let line = b"cmd=maxes vallen_max=1024 rc=0 keylen_max=64 kvsname_max=256";
        let reply = Reply::parse(line, "maxes").unwrap();
        assert_eq!(reply.number("keylen_max").unwrap(), 64);
        assert!(reply.number("rank").is_err() && reply.succeeded());
        assert!(
            Reply::parse(b"rc=-1 msg=no cmd=get_result", "get_result")
                .unwrap()
                .success("get")
                .is_err()
        );
        assert!(
            Reply::parse(b"cmd=barrier_out", "barrier_out")
                .unwrap()
                .success("barrier")
                .is_ok()
        );
        assert!(
            Reply::parse(b"cmd=other", "maxes").is_err() && Reply::parse(b"\xff", "maxes").is_err()
        );
    }

    #[test]
    fn known_texts_of_base64() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(encode(&[0xfb, 0xff]), "-_8");
        assert!(decode("A").is_none() && decode("Zg==").is_none());
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn values_come_back(value in prop::collection::vec(any::<u8>(), 0..900), max in 26_usize..400) {
            let chunks = Chunks::fit(max, 100).unwrap();
            prop_assume!(value.len() <= chunks.value_limit());
            let texts: Vec<String> = chunks.split(&value).collect();
            prop_assert!(!texts.is_empty() && texts.iter().all(|t| t.len() < max));
            prop_assert_eq!(chunks.join(|i| Ok(texts.get(i).cloned())).unwrap(), Some(value.clone()));
            if texts.len() > 1 {
                prop_assert!(chunks.join(|i| Ok(texts[..texts.len() - 1].get(i).cloned())).is_err());
            }
        }

        #[test]
        fn arbitrary_text_never_panics(line in any::<Vec<u8>>(), texts in prop::collection::vec("[0-9]{0,6}[.A-Za-z]{0,20}", 0..4)) {
            if let Ok(reply) = Reply::parse(&line, "x") {
                let _ = reply.number("rc");
            }
            let _ = Chunks::fit(64, 0).unwrap().join(|i| Ok(texts.get(i).cloned()));
        }
    }

    #[test]
    fn a_launcher_without_room_is_refused() {
        assert!(
            Chunks::fit(8, 0).is_err()
                && Chunks::fit(0, 0).is_err()
                && Chunks::fit(1024, 1020).is_err()
        );
        assert!(Chunks::fit(1024, 160).unwrap().value_limit() > 32 << 10);
    }
}
