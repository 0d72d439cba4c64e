//! Decides for each record where it goes, and what is wrong with it.

use super::choice::OnBadLine;
use super::exchange::kind;
use super::header::Header;
use super::json;
use super::label::Label;
use super::record::{Dialect, Field, Flaw, owner};
use super::split::{Record, Torn, TornBy, without_line_end};
use super::{hive, order};

/// What UTF-8 files from some editors start with.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// `bytes` without a byte order mark.
pub fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}

/// What to do with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routed<'r> {
    /// The file's header, equal to the others.
    Header,
    /// A line without anything.
    Blank,
    /// A record for this rank.
    To {
        /// Rank that writes it.
        rank: u32,
        /// Number of its part in a split by hash, or a kind of its own.
        kind: u32,
        /// What stands before the record in its message; empty unless records have labels.
        label: &'r [u8],
        /// The record with its line end.
        bytes: &'r [u8],
        /// What is wrong with it, where it is not left out of the job all the same.
        flaw: Option<String>,
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
        /// Numbers of the key's columns, from 0.
        by: Vec<usize>,
        /// Numbers of the columns that records are sorted by.
        sort: Vec<usize>,
        /// Name of the file that `header` is from.
        first: String,
    },
    /// jsonl.
    Lines {
        /// Fields of the key.
        by: Vec<json::Path>,
        /// Fields that records are sorted by.
        sort: Vec<json::Path>,
    },
    /// Rows of columns, whose keys their reader finds.
    Rows,
}

/// What a key says of where its record goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placing {
    /// To one of so many parts.
    Hash { parts: u32 },
    /// To the directory of its values; these are the names of the keys.
    Value { names: Vec<Vec<u8>> },
}

/// Sends records of well-formed files to the ranks that write them.
#[derive(Clone, Debug)]
pub struct Router {
    /// How keys are found.
    pub grammar: Grammar,
    /// What a key says.
    pub placing: Placing,
    /// Ranks of the job.
    pub ranks: u32,
    /// Labels tell where a record was found, behind the fields that it is sorted by.
    pub is_ordered: bool,
    /// What becomes of a record that cannot be taken.
    pub on_bad_line: OnBadLine,
    /// Longest record, and longest label with its record.
    pub limit: usize,
}

/// Memory that is used again for each record.
#[derive(Debug, Default)]
pub struct Scratch {
    fields: Vec<Field>,
    key: Vec<u8>,
    name: Vec<u8>,
    order: Vec<u8>,
    label: Vec<u8>,
}

/// Why a record cannot be taken.
struct Refused {
    why: String,
    /// Where it ends is as uncertain: it can only end the job.
    is_final: bool,
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        let is_final = false;
        Self { why, is_final }
    }
}

impl Refused {
    /// Quotes out of place decide where a record ends, unless it is one line all the same.
    fn by(flaw: &Flaw, content: &[u8]) -> Self {
        let is_final =
            !matches!(flaw, Flaw::Columns { .. }) && memchr::memchr(b'\n', content).is_some();
        Self {
            why: flaw.to_string(),
            is_final,
        }
    }

    fn finally(why: String) -> Self {
        let is_final = true;
        Self { why, is_final }
    }
}

/// The rank that writes a part of a split by hash: all ranks have about as many parts.
pub fn rank_of(part: u32, parts: u32, ranks: u32) -> u32 {
    (u64::from(part) * u64::from(ranks) / u64::from(parts)) as u32
}

fn too_long(limit: usize) -> String {
    format!(
        "the record and its keys are longer than {limit} bytes, the longest message; raise TRIHOP_MAX_MESSAGE_BYTES"
    )
}

/// The fields of a key are joined by this byte before they are hashed.
pub const JOINT: u8 = 0x1F;

impl Router {
    /// The quote character, if quotes mean anything.
    pub fn quote(&self) -> Option<u8> {
        match &self.grammar {
            Grammar::Table { dialect, .. } => dialect.quote,
            Grammar::Lines { .. } | Grammar::Rows => None,
        }
    }

    /// What is at the top of each part.
    pub fn header_line(&self) -> &[u8] {
        match &self.grammar {
            Grammar::Table { header, .. } => &header.line,
            Grammar::Lines { .. } | Grammar::Rows => b"",
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

    /// Whether messages begin with a label.
    pub fn has_labels(&self) -> bool {
        self.is_ordered || matches!(self.placing, Placing::Value { .. })
    }

    /// Decides about one record of file number `file`.
    ///
    /// # Errors
    /// A sentence about what is wrong with it, where that ends the job.
    pub fn route<'r>(
        &self,
        file: usize,
        record: &Record<'r>,
        scratch: &'r mut Scratch,
    ) -> Result<Routed<'r>, String> {
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
                return header
                    .difference(&own, first)
                    .map_or(Ok(Routed::Header), Err);
            }
            _ if content.is_empty() => return Ok(Routed::Blank),
            _ => {}
        }
        let (addressed, flaw) = match self.address(content, record.has_quotes, scratch) {
            Ok(addressed) => (addressed, None),
            Err(Refused { why, is_final }) => match self.on_bad_line {
                _ if is_final => return Err(why),
                OnBadLine::Stop => return Err(why),
                OnBadLine::Skip => ((0, kind::SKIPPED), Some(why)),
                OnBadLine::Keep => (self.address_of_none(scratch), Some(why)),
            },
        };
        if flaw.is_some() {
            scratch.order.clear();
        }
        scratch.label.clear();
        if self.has_labels() {
            if self.is_ordered {
                order::push_place(&mut scratch.order, file, record.offset);
            }
            if addressed.1 == kind::SKIPPED {
                scratch.name.clear();
            }
            Label::write(&scratch.name, &scratch.order, &mut scratch.label);
            if scratch.label.len() + bytes.len() > self.limit {
                return Err(too_long(self.limit));
            }
        }
        let (rank, kind) = addressed;
        Ok(Routed::To {
            rank,
            kind,
            label: &scratch.label,
            bytes,
            flaw,
        })
    }

    /// Rank and kind for a record; its name and the fields that it is sorted by are left in
    /// `scratch`.
    fn address(
        &self,
        content: &[u8],
        has_quotes: bool,
        scratch: &mut Scratch,
    ) -> Result<(u32, u32), Refused> {
        match &self.grammar {
            Grammar::Table {
                dialect,
                header,
                by,
                sort,
                ..
            } => {
                let columns = header.names.len();
                if let (Placing::Hash { parts }, [by], []) = (&self.placing, &by[..], &sort[..]) {
                    scratch.order.clear();
                    let key = dialect
                        .key(content, has_quotes, *by, columns)
                        .map_err(|flaw| Refused::by(&flaw, content))?;
                    return Ok(self.of_hash(&key, *parts));
                }
                let mut fields = std::mem::take(&mut scratch.fields);
                let located = match dialect.locate(content, &mut fields) {
                    Ok(()) if fields.len() != columns => Err(Flaw::Columns {
                        found: fields.len(),
                        expected: columns,
                    }),
                    located => located,
                };
                let addressed = located
                    .map_err(|flaw| Refused::by(&flaw, content))
                    .and_then(|()| {
                        self.address_by(by, sort, scratch, |&column, key| {
                            dialect.unquote(content, fields[column], key);
                            Ok(false)
                        })
                    });
                scratch.fields = fields;
                addressed
            }
            Grammar::Lines { by, sort } => {
                if let (Placing::Hash { parts }, [by], []) = (&self.placing, &by[..], &sort[..]) {
                    scratch.order.clear();
                    return Ok(self.of_hash(&by.key(content)?.bytes, *parts));
                }
                self.address_by(by, sort, scratch, |path, key| {
                    let found = path.key(content)?;
                    key.extend_from_slice(&found.bytes);
                    Ok(found.is_null)
                })
            }
            Grammar::Rows => Err(Refused::finally(
                "a line was found in a file of columns".to_owned(),
            )),
        }
    }

    /// Decides about a row of `length` bytes whose key `by` is: rank and kind, and the label before
    /// it. `read` appends the text of a key, and says whether it is null; `order` appends what
    /// sorts the row.
    ///
    /// # Errors
    /// A sentence about a row that cannot be taken.
    #[cfg(feature = "parquet")]
    pub fn route_row<'r, K>(
        &self,
        by: &[K],
        length: usize,
        scratch: &'r mut Scratch,
        read: impl Fn(&K, &mut Vec<u8>) -> bool,
        order: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(u32, u32, &'r [u8]), String> {
        let read = |key: &K, to: &mut Vec<u8>| Ok(read(key, to));
        let addressed = self.address_by(by, &[], scratch, read);
        let (rank, kind) = addressed.map_err(|refused| refused.why)?;
        scratch.label.clear();
        if self.has_labels() {
            if self.is_ordered {
                order(&mut scratch.order);
            }
            Label::write(&scratch.name, &scratch.order, &mut scratch.label);
        }
        if scratch.label.len() + length > self.limit {
            return Err(too_long(self.limit));
        }
        Ok((rank, kind, &scratch.label))
    }

    /// As `address`; `read` appends a field, and says whether it is null.
    fn address_by<K>(
        &self,
        by: &[K],
        sort: &[K],
        scratch: &mut Scratch,
        read: impl Fn(&K, &mut Vec<u8>) -> Result<bool, Refused>,
    ) -> Result<(u32, u32), Refused> {
        let Scratch {
            key, name, order, ..
        } = scratch;
        order.clear();
        for field in sort {
            key.clear();
            read(field, key)?;
            order::push_field(order, key);
        }
        match &self.placing {
            Placing::Hash { parts } => {
                key.clear();
                for (index, field) in by.iter().enumerate() {
                    if index > 0 {
                        key.push(JOINT);
                    }
                    read(field, key)?;
                }
                Ok(self.of_hash(key, *parts))
            }
            Placing::Value { names } => {
                name.clear();
                for (field, column) in by.iter().zip(names) {
                    key.clear();
                    if read(field, key)? {
                        key.clear();
                    }
                    hive::push(name, column, key).map_err(|hive::TooLong(bytes)| {
                        format!(
                            "the key makes a directory name of {bytes} bytes, and {} are the most; use --split hash",
                            hive::NAME_BYTES_MAX
                        )
                    })?;
                }
                Ok((owner(name, self.ranks), 0))
            }
        }
    }

    /// Where records without a key go.
    fn address_of_none(&self, scratch: &mut Scratch) -> (u32, u32) {
        match &self.placing {
            Placing::Hash { parts } => self.of_hash(b"", *parts),
            Placing::Value { names } => {
                scratch.name.clear();
                for column in names {
                    // The names were found short enough at the start.
                    let _ = hive::push(&mut scratch.name, column, b"");
                }
                (owner(&scratch.name, self.ranks), 0)
            }
        }
    }

    fn of_hash(&self, key: &[u8], parts: u32) -> (u32, u32) {
        let part = owner(key, parts);
        (rank_of(part, parts, self.ranks), part)
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
            Grammar::Lines { .. } | Grammar::Rows => None,
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
