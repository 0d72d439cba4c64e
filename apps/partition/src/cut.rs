//! Runs a rank's pieces through splitter and router, wherever the bytes come from.

use super::ranges::{Entry, FILE_START, Span};
use super::route::{Routed, Router};
use super::split::{Progress, Splitter, Torn};

/// Bytes of a rank's pieces, in order, then those of the last piece's file behind it, for as long
/// as they are asked for.
pub trait Blocks {
    /// What ends reading.
    type Error;

    /// The next bytes with the number of their piece; `None` behind the end of the last piece's
    /// file.
    fn next_block(&mut self) -> Result<Option<(usize, &[u8])>, Self::Error>;
}

/// Why cutting stopped.
#[derive(Debug)]
pub enum Halt<E> {
    /// A record cannot be taken.
    Bad {
        /// Number of the file in the list.
        file: usize,
        /// Offset of the record.
        offset: u64,
        /// Line of the record; relative to the first piece if that one's entry was.
        line: u64,
        /// What is wrong with it.
        why: String,
        /// `line` counts from the start of the first piece.
        in_first_piece: bool,
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
/// number of its file, where it goes.
///
/// # Errors
/// The first bad record, or what `blocks` or `each` returned.
pub fn cut<B: Blocks>(
    spans: &[Span],
    entry: Entry,
    router: &Router,
    blocks: &mut B,
    mut each: impl FnMut(Routed<'_>) -> Result<(), B::Error>,
) -> Result<(), Halt<B::Error>> {
    let mut take = |record: super::split::Record<'_>| match router.route(&record) {
        Ok(routed) => each(routed).map_err(Refusal::Other),
        Err(why) => Err(Refusal::Flaw {
            offset: record.offset,
            line: record.line,
            why,
        }),
    };
    let halt = |piece: usize, refusal: Refusal<B::Error>| {
        let bad = |offset, line, why| Halt::Bad {
            file: spans[piece].file,
            offset,
            line,
            why,
            in_first_piece: piece == 0,
        };
        match refusal {
            Refusal::Torn(torn) => bad(torn.offset, torn.line, router.torn(&torn)),
            Refusal::Flaw { offset, line, why } => bad(offset, line, why),
            Refusal::Other(error) => Halt::Other(error),
        }
    };
    let start = |piece: usize| {
        let entry = if piece == 0 { entry } else { FILE_START };
        Splitter::new(&spans[piece], entry, router.quote(), router.limit)
    };
    let Some(last) = spans.len().checked_sub(1) else {
        return Ok(());
    };
    let mut piece = 0;
    let mut splitter = start(0);
    while let Some((of, block)) = blocks.next_block().map_err(Halt::Other)? {
        while piece < of {
            splitter
                .finish(&mut take)
                .map_err(|refusal| halt(piece, refusal))?;
            piece += 1;
            splitter = start(piece);
        }
        if splitter
            .feed(block, &mut take)
            .map_err(|refusal| halt(piece, refusal))?
            == Progress::Done
            && piece == last
        {
            return Ok(());
        }
    }
    splitter
        .finish(&mut take)
        .map_err(|refusal| halt(piece, refusal))
}
