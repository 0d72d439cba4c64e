//! Fields of one record: the strict grammar of RFC 4180, and where the key is.

use std::borrow::Cow;
use std::fmt;

/// How fields are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Between two fields.
    pub separator: u8,
    /// Around fields that hold separators, quotes or line breaks; `None` if quotes mean nothing.
    pub quote: Option<u8>,
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A quote inside a field that does not start with one (column counted from 1).
    StrayQuote(usize),
    /// Text between a closing quote and the next separator.
    AfterQuote(usize),
    /// A quoted field that never ends; its opening quote is this many lines below the record's
    /// start.
    OpenQuote { column: usize, lines_below: u64 },
    /// Another number of fields than the header's.
    Columns { found: usize, expected: usize },
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StrayQuote(column) => write!(
                f,
                "quote inside the unquoted field of column {column}; quote the field and double its quotes, or use --no-quotes"
            ),
            Self::AfterQuote(column) => {
                write!(
                    f,
                    "text after the closing quote of column {column}; double quotes inside a quoted field"
                )
            }
            Self::OpenQuote {
                column,
                lines_below: 0,
            } => {
                write!(f, "the quote opened in column {column} is never closed")
            }
            Self::OpenQuote {
                column,
                lines_below,
            } => {
                write!(
                    f,
                    "the quote opened in column {column}, {lines_below} lines below, is never closed"
                )
            }
            Self::Columns { found, expected } => {
                write!(
                    f,
                    "the record has {found} column{}, the header has {expected}",
                    if *found == 1 { "" } else { "s" }
                )
            }
        }
    }
}

/// Where a field is in its record, without the quotes around it.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    start: usize,
    end: usize,
    /// Holds doubled quotes.
    escaped: bool,
}

impl Dialect {
    /// All fields of a record without line end, unquoted.
    ///
    /// # Errors
    /// The first breach of the grammar.
    pub fn fields(&self, content: &[u8]) -> Result<Vec<Vec<u8>>, Flaw> {
        let mut found = Vec::new();
        self.locate(content, &mut found)?;
        Ok(found
            .into_iter()
            .map(|field| {
                let mut plain = Vec::new();
                self.unquote(content, field, &mut plain);
                plain
            })
            .collect())
    }

    /// Where all fields of a record without line end are; `found` is overwritten.
    ///
    /// # Errors
    /// The first breach of the grammar.
    pub fn locate(&self, content: &[u8], found: &mut Vec<Field>) -> Result<(), Flaw> {
        found.clear();
        let mut at = Some(0);
        while let Some(start) = at {
            let (field, next) = self.field(content, start, found.len() + 1)?;
            found.push(field);
            at = next;
        }
        Ok(())
    }

    /// Appends a field of `content` to `plain`, without quotes.
    pub fn unquote(&self, content: &[u8], field: Field, plain: &mut Vec<u8>) {
        let mut rest = &content[field.start..field.end];
        if let (true, Some(quote)) = (field.escaped, self.quote) {
            while let Some(at) = memchr::memchr(quote, rest) {
                plain.extend_from_slice(&rest[..=at]);
                rest = rest.get(at + 2..).unwrap_or_default();
            }
        }
        plain.extend_from_slice(rest);
    }

    /// The field number `key` (from 0), unquoted, of a record that must have `columns` fields.
    ///
    /// # Errors
    /// The first breach of the grammar, or the wrong number of fields.
    pub fn key<'a>(
        &self,
        content: &'a [u8],
        has_quotes: bool,
        key: usize,
        columns: usize,
    ) -> Result<Cow<'a, [u8]>, Flaw> {
        if !has_quotes || self.quote.is_none() {
            return self.key_unquoted(content, key, columns);
        }
        let (mut found, mut key_field) = (0, None);
        let mut at = Some(0);
        while let Some(start) = at {
            let (field, next) = self.field(content, start, found + 1)?;
            if found == key {
                key_field = Some(field);
            }
            found += 1;
            at = next;
        }
        match key_field {
            Some(field) if found == columns && !field.escaped => {
                Ok(Cow::Borrowed(&content[field.start..field.end]))
            }
            Some(field) if found == columns => {
                let mut plain = Vec::new();
                self.unquote(content, field, &mut plain);
                Ok(Cow::Owned(plain))
            }
            _ => Err(Flaw::Columns {
                found,
                expected: columns,
            }),
        }
    }

    /// As `key`, where no quote is anywhere.
    fn key_unquoted<'a>(
        &self,
        content: &'a [u8],
        key: usize,
        columns: usize,
    ) -> Result<Cow<'a, [u8]>, Flaw> {
        let (mut found, mut start, mut field) = (0, 0, None);
        for end in memchr::memchr_iter(self.separator, content).chain([content.len()]) {
            if found == key {
                field = Some(&content[start..end]);
            }
            found += 1;
            start = end + 1;
        }
        match field {
            Some(field) if found == columns => Ok(Cow::Borrowed(field)),
            _ => Err(Flaw::Columns {
                found,
                expected: columns,
            }),
        }
    }

    /// The field that starts at `start`, and where the next one starts.
    fn field(
        &self,
        content: &[u8],
        start: usize,
        column: usize,
    ) -> Result<(Field, Option<usize>), Flaw> {
        let field = |start, end, escaped| Field {
            start,
            end,
            escaped,
        };
        let rest = &content[start..];
        let Some(quote) = self.quote else {
            let next = memchr::memchr(self.separator, rest).map(|end| start + end + 1);
            let end = next.map_or(content.len(), |next| next - 1);
            return Ok((field(start, end, false), next));
        };
        if rest.first() != Some(&quote) {
            return match memchr::memchr2(self.separator, quote, rest) {
                None => Ok((field(start, content.len(), false), None)),
                Some(end) if rest[end] == self.separator => {
                    Ok((field(start, start + end, false), Some(start + end + 1)))
                }
                Some(_) => Err(Flaw::StrayQuote(column)),
            };
        }
        let (mut at, mut escaped) = (start + 1, false);
        loop {
            let Some(close) = memchr::memchr(quote, &content[at..]) else {
                let lines_below = memchr::memchr_iter(b'\n', &content[..start]).count() as u64;
                return Err(Flaw::OpenQuote {
                    column,
                    lines_below,
                });
            };
            at += close + 1;
            let closed = field(start + 1, at - 1, escaped);
            match content.get(at) {
                None => return Ok((closed, None)),
                Some(&byte) if byte == quote => (at, escaped) = (at + 1, true),
                Some(&byte) if byte == self.separator => return Ok((closed, Some(at + 1))),
                Some(_) => return Err(Flaw::AfterQuote(column)),
            }
        }
    }
}

/// Which of `parts` parts a key belongs to: `xxh3_64(key) * parts >> 64`.
pub fn owner(key: &[u8], parts: u32) -> u32 {
    ((u128::from(xxhash_rust::xxh3::xxh3_64(key)) * u128::from(parts)) >> 64) as u32
}

/// Name of the hash of keys and checksums.
pub const HASH_NAME: &str = "xxh3-64";

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: Dialect = Dialect {
        separator: b',',
        quote: Some(b'"'),
    };
    const RAW: Dialect = Dialect {
        separator: b'\t',
        quote: None,
    };

    fn fields(content: &str) -> Result<Vec<String>, Flaw> {
        Ok(CSV
            .fields(content.as_bytes())?
            .iter()
            .map(|field| String::from_utf8_lossy(field).into_owned())
            .collect())
    }

    #[test]
    fn quoted_fields_lose_their_quotes() {
        assert_eq!(
            fields("a,\"b,\"\"c\"\"\n\",\"\",").unwrap(),
            ["a", "b,\"c\"\n", "", ""]
        );
        assert_eq!(fields("").unwrap(), [""]);
        assert_eq!(fields("\"\"\"\"").unwrap(), ["\""]);
    }

    #[test]
    fn breaches_are_told_by_column() {
        assert_eq!(fields("a,5\" pipe"), Err(Flaw::StrayQuote(2)));
        assert_eq!(fields("\"a\"b"), Err(Flaw::AfterQuote(1)));
        assert_eq!(
            fields("\"a\nb\",\"c"),
            Err(Flaw::OpenQuote {
                column: 2,
                lines_below: 1
            })
        );
        assert_eq!(
            CSV.key(b"a,b", false, 0, 3),
            Err(Flaw::Columns {
                found: 2,
                expected: 3
            })
        );
        assert_eq!(
            CSV.key(b"\"a\",b", true, 0, 3),
            Err(Flaw::Columns {
                found: 2,
                expected: 3
            })
        );
        assert_eq!(
            CSV.key(b"\"a\",b", true, 5, 2),
            Err(Flaw::Columns {
                found: 2,
                expected: 2
            })
        );
    }

    #[test]
    fn the_key_is_the_same_quoted_or_not() {
        assert_eq!(
            CSV.key(b"x,Paris,1", false, 1, 3).unwrap(),
            CSV.key(b"x,\"Paris\",1", true, 1, 3).unwrap()
        );
        assert_eq!(RAW.key(b"a\"\tb", true, 0, 2).unwrap().as_ref(), b"a\"");
    }

    #[test]
    fn owners_never_change() {
        // Written down once: a change of these values breaks every stored partition.
        assert_eq!(owner(b"", 8), 1);
        assert!((0..1000u32).all(|key| owner(&key.to_le_bytes(), 7) < 7));
        assert_eq!(owner(b"anything", 1), 0);
    }
}
