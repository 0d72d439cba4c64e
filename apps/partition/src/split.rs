//! Cuts a piece of a file into records, block by block, whatever the borders cut through.

use super::ranges::{Entry, Span};
use super::scan::Boundary;

/// One record as it stands in the file.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// All its bytes with its line end, which only a file's last record may lack.
    pub bytes: &'a [u8],
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Line of its first byte; relative to the piece where the piece's entry is.
    pub line: u64,
    /// Whether a quote character is in it.
    pub has_quotes: bool,
}

/// `bytes` without a closing LF or CR LF, or the CR that a file ends with.
pub fn without_line_end(bytes: &[u8]) -> &[u8] {
    match bytes {
        [content @ .., b'\r', b'\n'] | [content @ .., b'\n'] | [content @ .., b'\r'] => content,
        _ => bytes,
    }
}

/// A record that cannot be handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Offset of the record's first byte.
    pub offset: u64,
    /// Line of its first byte.
    pub line: u64,
    /// The bytes read of it.
    pub bytes: Vec<u8>,
    /// Why it ends here.
    pub why: TornBy,
}

/// Why a record has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TornBy {
    /// The file ends inside a quoted field.
    FileEnd,
    /// The record is longer than what one message carries.
    Limit,
}

/// Whether a splitter wants more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The next bytes of the file are needed.
    More,
    /// All records of the piece have been handed out.
    Done,
}

/// Cuts one piece.
///
/// A piece owns the record that starts at the file's first byte, if that is in it, and those that
/// start behind its first byte, up to and including the byte behind its last: so neighbours share
/// no record and miss none, and nobody looks at the byte before its own.
#[derive(Debug)]
pub struct Splitter {
    boundary: Boundary,
    entry_line: u64,
    /// Offset of the next byte fed.
    offset: u64,
    end: u64,
    /// Bytes before the first record boundary belong to a record of the piece before.
    skipping: bool,
    record_offset: u64,
    record_line: u64,
    record_quotes: u64,
    limit: usize,
    /// Start of a record whose end is in a later block; at most `limit` bytes and one block.
    carry: Vec<u8>,
}

impl Splitter {
    /// For `span`, found in state `entry`; records of more than `limit` bytes are refused.
    pub fn new(span: &Span, entry: Entry, quote: Option<u8>, limit: usize) -> Self {
        Self {
            boundary: Boundary::new(quote, entry.quoted),
            entry_line: entry.line,
            offset: span.start,
            end: span.end,
            skipping: span.start > 0,
            record_offset: span.start,
            record_line: entry.line,
            record_quotes: 0,
            limit,
            carry: Vec::new(),
        }
    }

    /// Takes the file's next bytes and hands out the records that end in them.
    ///
    /// # Errors
    /// What `each` returns, or the record that passes the limit.
    pub fn feed<E: From<Torn>>(
        &mut self,
        block: &[u8],
        each: &mut impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<Progress, E> {
        let mut at = 0;
        while at < block.len() {
            if self.is_done() {
                return Ok(Progress::Done);
            }
            let Some(length) = self.boundary.find(&block[at..]) else {
                if !self.skipping {
                    self.carry.extend_from_slice(&block[at..]);
                }
                at = block.len();
                break;
            };
            let piece = &block[at..at + length];
            at += length;
            if !self.skipping {
                if self.carry.is_empty() {
                    self.hand_out(piece, each)?;
                } else {
                    let mut carry = std::mem::take(&mut self.carry);
                    carry.extend_from_slice(piece);
                    self.hand_out(&carry, each)?;
                    carry.clear();
                    self.carry = carry;
                }
            }
            self.skipping = false;
            self.start_record(self.offset + at as u64);
        }
        self.offset += at as u64;
        if self.carry.len() > self.limit {
            return Err(self.torn(TornBy::Limit).into());
        }
        Ok(if self.is_done() {
            Progress::Done
        } else {
            Progress::More
        })
    }

    /// Hands out what the file's end leaves: its last record, if that lacks a line end.
    ///
    /// # Errors
    /// What `each` returns, or the record whose quoted field is still open.
    pub fn finish<E: From<Torn>>(
        mut self,
        each: &mut impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.carry.is_empty() {
            return Ok(());
        }
        if self.boundary.quoted {
            return Err(self.torn(TornBy::FileEnd).into());
        }
        let carry = std::mem::take(&mut self.carry);
        self.hand_out(&carry, each)
    }

    /// Nothing that may still come belongs to this piece.
    fn is_done(&self) -> bool {
        if self.skipping {
            self.offset >= self.end
        } else {
            self.carry.is_empty() && self.record_offset > self.end
        }
    }

    fn start_record(&mut self, offset: u64) {
        self.record_offset = offset;
        self.record_line = self.entry_line + self.boundary.newlines;
        self.record_quotes = self.boundary.quotes;
    }

    fn hand_out<E: From<Torn>>(
        &self,
        bytes: &[u8],
        each: &mut impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if bytes.len() > self.limit {
            return Err(Torn {
                offset: self.record_offset,
                line: self.record_line,
                bytes: bytes.to_vec(),
                why: TornBy::Limit,
            }
            .into());
        }
        each(Record {
            bytes,
            offset: self.record_offset,
            line: self.record_line,
            has_quotes: self.boundary.quotes != self.record_quotes,
        })
    }

    fn torn(&mut self, why: TornBy) -> Torn {
        Torn {
            offset: self.record_offset,
            line: self.record_line,
            bytes: std::mem::take(&mut self.carry),
            why,
        }
    }
}
