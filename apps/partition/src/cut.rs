//! Runs a rank's pieces through splitter and router, wherever the bytes come from.

use std::cell::Cell;

use super::ranges::{Entry, FILE_START, Span};
use super::route::{Routed, Router, Scratch};
use super::split::{Progress, Record, Splitter, Torn};

/// Bytes of a rank's pieces, in order, then those of the last piece's file behind it, for as long
/// as they are asked for.
pub trait Blocks {
    /// What ends reading.
    type Error;

    /// The next bytes with the number of their piece; `None` behind the end of the last piece's
    /// file.
    fn next_block(&mut self) -> Result<Option<(usize, &[u8])>, Self::Error>;
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the file in the list.
    pub file: usize,
    /// Offset of the record.
    pub offset: u64,
    /// Line of the record.
    pub line: u64,
    /// `line` counts from the start of the first piece, since nobody counted those before it.
    pub is_relative: bool,
}

/// Why cutting stopped.
#[derive(Debug)]
pub enum Halt<E> {
    /// A record cannot be taken.
    Bad {
        /// Where it is.
        place: Place,
        /// What is wrong with it.
        why: String,
    },
    /// Reading or sending failed.
    Other(E),
}

/// What the closure of a splitter stops with.
enum Refusal<E> {
    Torn(Torn),
    Flaw { offset: u64, line: u64, why: String },
    Other(E),
}

impl<E> From<Torn> for Refusal<E> {
    fn from(torn: Torn) -> Self {
        Self::Torn(torn)
    }
}

/// Cuts the `spans`, the first of which is found in state `entry`, and hands each record to `each`:
/// where it goes, and where it is.
///
/// # Errors
/// The first bad record, or what `blocks` or `each` returned.
pub fn cut<B: Blocks>(
    spans: &[Span],
    entry: Entry,
    router: &Router,
    blocks: &mut B,
    mut each: impl FnMut(Routed<'_>, Place) -> Result<(), B::Error>,
) -> Result<(), Halt<B::Error>> {
    let Some(last) = spans.len().checked_sub(1) else {
        return Ok(());
    };
    // Only quotes make ranks count what lies before them.
    let is_relative = router.quote().is_none() && spans[0].start > 0;
    let piece = Cell::new(0);
    let place = |offset, line| Place {
        file: spans[piece.get()].file,
        offset,
        line,
        is_relative: is_relative && piece.get() == 0,
    };
    let mut scratch = Scratch::default();
    let mut take = |record: Record<'_>| {
        let (offset, line) = (record.offset, record.line);
        let place = place(offset, line);
        match router.route(place.file, &record, &mut scratch) {
            Ok(routed) => each(routed, place).map_err(Refusal::Other),
            Err(why) => Err(Refusal::Flaw { offset, line, why }),
        }
    };
    let halt = |refusal: Refusal<B::Error>| match refusal {
        Refusal::Torn(torn) => Halt::Bad {
            place: place(torn.offset, torn.line),
            why: router.torn(&torn),
        },
        Refusal::Flaw { offset, line, why } => Halt::Bad {
            place: place(offset, line),
            why,
        },
        Refusal::Other(error) => Halt::Other(error),
    };
    let start = |piece: usize| {
        let entry = if piece == 0 { entry } else { FILE_START };
        Splitter::new(&spans[piece], entry, router.quote(), router.limit)
    };
    let mut splitter = start(0);
    while let Some((of, block)) = blocks.next_block().map_err(Halt::Other)? {
        while piece.get() < of {
            splitter.finish(&mut take).map_err(halt)?;
            piece.set(piece.get() + 1);
            splitter = start(piece.get());
        }
        if splitter.feed(block, &mut take).map_err(halt)? == Progress::Done && piece.get() == last {
            return Ok(());
        }
    }
    splitter.finish(&mut take).map_err(halt)
}
