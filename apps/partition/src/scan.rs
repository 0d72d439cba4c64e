//! Quotes and line breaks: where a record ends, and what a range of bytes does to the state of the
//! next one.

/// Quotes and line breaks of some bytes.
///
/// In well-formed input a place is inside a quoted field exactly when the number of quotes before
/// it is odd, so tallies of ranges add up to the state and the line at which any range starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Quote characters.
    pub quotes: u64,
    /// Line feeds, inside quoted fields too.
    pub newlines: u64,
}

impl Tally {
    /// Counts `bytes` in.
    pub fn add(&mut self, bytes: &[u8], quote: Option<u8>) {
        if let Some(quote) = quote {
            self.quotes += memchr::memchr_iter(quote, bytes).count() as u64;
        }
        self.newlines += memchr::memchr_iter(b'\n', bytes).count() as u64;
    }
}

/// Finds record ends in bytes that come piece by piece.
#[derive(Clone, Debug)]
pub struct Boundary {
    quote: Option<u8>,
    /// Whether the next byte is inside a quoted field.
    pub quoted: bool,
    /// Line feeds passed so far.
    pub newlines: u64,
    /// Quote characters passed so far.
    pub quotes: u64,
}

impl Boundary {
    /// Starts outside (`quoted` false) or inside a quoted field; without a `quote` character no
    /// field is quoted.
    pub fn new(quote: Option<u8>, quoted: bool) -> Self {
        Self {
            quote,
            quoted: quoted && quote.is_some(),
            newlines: 0,
            quotes: 0,
        }
    }

    /// Length of the piece of `bytes` that ends with the next line feed outside quotes; `None` if
    /// there is none, and all of `bytes` is passed.
    pub fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let Some(quote) = self.quote else {
            let end = memchr::memchr(b'\n', bytes)? + 1;
            self.newlines += 1;
            return Some(end);
        };
        let mut at = 0;
        while at < bytes.len() {
            if self.quoted {
                let Some(close) = memchr::memchr(quote, &bytes[at..]) else {
                    self.newlines += memchr::memchr_iter(b'\n', &bytes[at..]).count() as u64;
                    return None;
                };
                self.newlines += memchr::memchr_iter(b'\n', &bytes[at..at + close]).count() as u64;
                self.quoted = false;
                self.quotes += 1;
                at += close + 1;
            } else {
                let found = at + memchr::memchr2(quote, b'\n', &bytes[at..])?;
                at = found + 1;
                if bytes[found] == b'\n' {
                    self.newlines += 1;
                    return Some(at);
                }
                self.quoted = true;
                self.quotes += 1;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_break_inside_quotes_ends_nothing() {
        let mut boundary = Boundary::new(Some(b'"'), false);
        assert_eq!(boundary.find(b"a,\"x\ny\",b\nrest"), Some(10));
        assert_eq!(
            (boundary.newlines, boundary.quotes, boundary.quoted),
            (2, 2, false)
        );
    }

    #[test]
    fn the_state_survives_any_cut() {
        let text = b"\"a\"\"\n\",b\nnext\n";
        for cut in 0..=text.len() {
            let mut boundary = Boundary::new(Some(b'"'), false);
            let end = match boundary.find(&text[..cut]) {
                Some(end) => end,
                None => cut + boundary.find(&text[cut..]).expect("the record ends"),
            };
            assert_eq!(end, 9, "cut at {cut}");
        }
    }

    #[test]
    fn without_a_quote_character_quotes_are_text() {
        let mut boundary = Boundary::new(None, true);
        assert_eq!(boundary.find(b"5\" pipe\nx"), Some(8));
        let mut tally = Tally::default();
        tally.add(b"\"\n\n", None);
        assert_eq!(
            tally,
            Tally {
                quotes: 0,
                newlines: 2
            }
        );
    }
}
