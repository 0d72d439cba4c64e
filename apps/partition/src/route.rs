//! Decides for each record which rank owns it, and what is wrong with it.

use std::borrow::Cow;

use super::json;
use super::record::{Dialect, owner};
use super::split::{Record, Torn, TornBy, without_line_end};
use trihop::log::Escaped;

/// What UTF-8 files from some editors start with.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// `bytes` without a byte order mark.
pub fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}

/// The header of all files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Column names, unquoted.
    pub names: Vec<Vec<u8>>,
    /// As it stands in the first file, with its line end, without byte order mark.
    pub line: Vec<u8>,
}

impl Header {
    /// Takes the first record of a file.
    ///
    /// # Errors
    /// A sentence about a blank or torn header.
    pub fn parse(record: &[u8], dialect: Dialect) -> Result<Self, String> {
        let line = without_bom(record);
        let content = without_line_end(line);
        if content.is_empty() {
            return Err("the header line is blank".to_owned());
        }
        let names = dialect
            .fields(content)
            .map_err(|flaw| format!("header: {flaw}"))?;
        let mut line = line.to_vec();
        if !line.ends_with(b"\n") {
            line.truncate(content.len());
            line.push(b'\n');
        }
        Ok(Self {
            names: names.into_iter().map(Cow::into_owned).collect(),
            line,
        })
    }

    /// Number (from 0) of the column that `--by` means: the one of that name, else the one of that
    /// number.
    ///
    /// # Errors
    /// A sentence that lists the columns.
    pub fn column(&self, by: &str) -> Result<usize, String> {
        let mut named = (0..self.names.len()).filter(|&column| self.names[column] == by.as_bytes());
        match (named.next(), named.next()) {
            (Some(column), None) => return Ok(column),
            (Some(first), Some(second)) => {
                return Err(format!(
                    "columns {} and {} are both named `{by}`; give the number",
                    first + 1,
                    second + 1
                ));
            }
            (None, _) => {}
        }
        match by.parse::<usize>() {
            Ok(number) if (1..=self.names.len()).contains(&number) => Ok(number - 1),
            Ok(number) => Err(format!(
                "there is no column {number}: the header has {}, {}",
                self.names.len(),
                self.listed()
            )),
            Err(_) => Err(format!(
                "there is no column `{by}`; the header has {}",
                self.listed()
            )),
        }
    }

    fn listed(&self) -> String {
        let names: Vec<_> = self
            .names
            .iter()
            .take(40)
            .map(|name| Escaped(name).to_string())
            .collect();
        format!(
            "{}{}",
            names.join(", "),
            if self.names.len() > 40 { ", ..." } else { "" }
        )
    }

    /// How `other`, the header of another file, differs from this one of `first`.
    fn difference(&self, other: &Self, first: &str) -> Option<String> {
        let text = |name: &[u8]| Escaped(name).to_string();
        for (index, (ours, theirs)) in self.names.iter().zip(&other.names).enumerate() {
            if ours != theirs {
                let (number, theirs, ours) = (index + 1, text(theirs), text(ours));
                return Some(format!(
                    "header differs: column {number} is `{theirs}`, in {first} it is `{ours}`"
                ));
            }
        }
        if self.names.len() == other.names.len() {
            return None;
        }
        let (found, expected) = (other.names.len(), self.names.len());
        let (which, name) = if found < expected {
            ("missing", text(&self.names[found]))
        } else {
            ("additional", text(&other.names[expected]))
        };
        Some(format!(
            "header differs: {found} columns, {expected} in {first}; `{name}` is {which}"
        ))
    }
}

/// What to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed<'r> {
    /// The file's header, equal to the others.
    Header,
    /// A line without anything.
    Blank,
    /// A record for this rank.
    To {
        /// Rank that owns it.
        owner: u32,
        /// The record with its line end.
        bytes: &'r [u8],
    },
}

/// How keys are found.
#[derive(Clone, Debug)]
pub enum Grammar {
    /// csv and tsv.
    Table {
        /// Separator and quotes.
        dialect: Dialect,
        /// Header of all files.
        header: Header,
        /// Number of the key's column, from 0.
        key: usize,
        /// Name of the file that `header` is from.
        first: String,
    },
    /// jsonl.
    Lines(json::Path),
    /// No file holds a record.
    Nothing,
}

/// Sends records of well-formed files to their owners.
#[derive(Clone, Debug)]
pub struct Router {
    /// How keys are found.
    pub grammar: Grammar,
    /// Ranks of the job.
    pub ranks: u32,
    /// Longest record.
    pub limit: usize,
}

impl Router {
    /// The quote character, if quotes mean anything.
    pub fn quote(&self) -> Option<u8> {
        match &self.grammar {
            Grammar::Table { dialect, .. } => dialect.quote,
            Grammar::Lines(_) | Grammar::Nothing => None,
        }
    }

    /// What is at the top of each partition.
    pub fn header_line(&self) -> &[u8] {
        match &self.grammar {
            Grammar::Table { header, .. } => &header.line,
            Grammar::Lines(_) | Grammar::Nothing => b"",
        }
    }

    /// The line end that a record without one gets.
    pub fn line_end(&self) -> &'static [u8] {
        if self.header_line().ends_with(b"\r\n") {
            b"\r\n"
        } else {
            b"\n"
        }
    }

    /// Decides about one record.
    ///
    /// # Errors
    /// A sentence about what is wrong with it.
    pub fn route<'r>(&self, record: &Record<'r>) -> Result<Routed<'r>, String> {
        let bytes = if record.offset == 0 {
            without_bom(record.bytes)
        } else {
            record.bytes
        };
        let content = without_line_end(bytes);
        match &self.grammar {
            Grammar::Table {
                dialect,
                header,
                first,
                ..
            } if record.offset == 0 => {
                if record.bytes == BYTE_ORDER_MARK {
                    return Ok(Routed::Blank);
                }
                let own = Header::parse(record.bytes, *dialect)?;
                header
                    .difference(&own, first)
                    .map_or(Ok(Routed::Header), Err)
            }
            _ if content.is_empty() => Ok(Routed::Blank),
            Grammar::Table {
                dialect,
                header,
                key,
                ..
            } => {
                let key = dialect
                    .key(content, record.has_quotes, *key, header.names.len())
                    .map_err(|flaw| flaw.to_string())?;
                Ok(Routed::To {
                    owner: owner(&key, self.ranks),
                    bytes,
                })
            }
            Grammar::Lines(path) => Ok(Routed::To {
                owner: owner(&path.key(content)?, self.ranks),
                bytes,
            }),
            Grammar::Nothing => {
                Err("a record was found in a file that was empty at the start".to_owned())
            }
        }
    }

    /// A sentence about a record without end.
    pub fn torn(&self, torn: &Torn) -> String {
        let flaw = match &self.grammar {
            Grammar::Table { dialect, .. } => {
                let bytes = if torn.offset == 0 {
                    without_bom(&torn.bytes)
                } else {
                    &torn.bytes
                };
                dialect.fields(bytes).err().map(|flaw| flaw.to_string())
            }
            Grammar::Lines(_) | Grammar::Nothing => None,
        };
        match (torn.why, flaw) {
            (TornBy::FileEnd, Some(flaw)) => flaw,
            (TornBy::FileEnd, None) => "the file ends inside a record".to_owned(),
            (TornBy::Limit, flaw) => format!(
                "the record is longer than {} bytes, the longest message; raise TRIHOP_MAX_MESSAGE_BYTES{}",
                self.limit,
                flaw.map(|flaw| format!(", or mend the record: {flaw}"))
                    .unwrap_or_default()
            ),
        }
    }
}
