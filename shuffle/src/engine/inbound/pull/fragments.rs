//! A part of a record, made the fragments that its source would have sent.

use trihop_transport::protocol::wire::{
    BATCH_HEADER_BYTES, FRAGMENT_HEADER_BYTES, FragmentHeader, PART_UNIT_BYTES, RUN_HEADER_BYTES,
    Run, RunHeader, align8, paint, run_flags,
};
use zerocopy::IntoBytes;

/// Bytes of a record in a fragment that a frame of so many carries, the first one too: whole units.
fn fragment_bytes(frame_bytes: usize) -> usize {
    (frame_bytes - RUN_HEADER_BYTES - FRAGMENT_HEADER_BYTES) & !(PART_UNIT_BYTES - 1)
}

/// Bytes of a part whose fragments fit a buffer.
pub(super) fn part_bytes(buffer_bytes: usize, frame_bytes: usize) -> usize {
    let fragment = fragment_bytes(frame_bytes);
    let room = buffer_bytes - BATCH_HEADER_BYTES - FRAGMENT_HEADER_BYTES;
    room / (RUN_HEADER_BYTES + fragment) * fragment
}

/// A part of a record as fragments.
pub(super) struct Fragments<'a> {
    /// A run of the record's.
    pub frame: &'a [u8],
    pub kind: u32,
    pub total: usize,
    /// Where the part begins in the record.
    pub from: usize,
    pub frame_bytes: usize,
}

impl Fragments<'_> {
    /// Makes the first so many bytes of a buffer, which are the part, runs behind the place of a
    /// batch's header; the bytes of these.
    pub fn lay_out(&self, buffer: &mut [u8], bytes: usize) -> usize {
        let fragment = fragment_bytes(self.frame_bytes);
        let (is_first, is_last) = (self.from == 0, self.from + bytes == self.total);
        let count = bytes.div_ceil(fragment);
        let (run, _) = Run::split(self.frame, u32::MAX).expect("it was checked when it came");
        let (header, colour) = (run.header, run.colour());
        let mut end = 0;
        // From behind: each moves to where only those are that have moved.
        for at in (0..count).rev() {
            let begins = is_first && at == 0;
            let ends = is_last && at + 1 == count;
            let piece = (bytes - at * fragment).min(fragment);
            let before = match is_first && at > 0 {
                true => FRAGMENT_HEADER_BYTES,
                false => 0,
            };
            let start = BATCH_HEADER_BYTES + before + at * (RUN_HEADER_BYTES + fragment);
            let head = RUN_HEADER_BYTES + if begins { FRAGMENT_HEADER_BYTES } else { 0 };
            let length = head + align8(piece);
            let from = at * fragment;
            buffer.copy_within(from..from + piece, start + head);
            buffer[start + head + piece..start + length].fill(0);
            let header = RunHeader {
                count: u16::from(ends),
                flags: match (begins, ends) {
                    (true, _) => run_flags::FIRST,
                    (false, true) => run_flags::LAST,
                    (false, false) => run_flags::MORE,
                },
                ..header
            };
            header.write(length, &mut buffer[start..]);
            paint(&mut buffer[start..], colour);
            if begins {
                let fragment = FragmentHeader {
                    total: (self.total as u64).into(),
                    kind: self.kind.into(),
                    reserved: 0.into(),
                };
                buffer[start + RUN_HEADER_BYTES..start + head].copy_from_slice(fragment.as_bytes());
            }
            end = end.max(start + length);
        }
        end - BATCH_HEADER_BYTES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::deliver::{Assembled, Reassembly};
    use crate::engine::queues::SHARED_RUN_BYTES;
    use crate::queue::Input;

    proptest! {
        #![proptest_config(crate::seed::properties())]

        /// The oracle is the reassembly of records that their source has cut.
        #[test]
        fn parts_are_the_fragments_of_their_record(
            frame in 16_usize..64, batch in 0_usize..4096, total in 1_usize..20_000,
            kind: u32, colour in 0_usize..4, salt: u8,
        ) {
            let frame_bytes = frame * 8;
            let buffer_bytes = frame_bytes + BATCH_HEADER_BYTES + batch;
            let total = total + frame_bytes;
            let record: Vec<u8> = (0..total).map(|at| at as u8 ^ salt).collect();
            let mut run = [0; SHARED_RUN_BYTES];
            let header = RunHeader { target: 3, source: 7, count: 1, flags: run_flags::SHARED };
            header.write(SHARED_RUN_BYTES, &mut run);
            paint(&mut run, colour);
            let most = part_bytes(buffer_bytes, frame_bytes);
            prop_assert!(most > 0 && most.is_multiple_of(PART_UNIT_BYTES));
            let mut reassembly = Reassembly::new(1 << 20, 1 << 20);
            let mut whole = None;
            for (at, part) in record.chunks(most).enumerate() {
                let mut buffer = vec![0xa5; buffer_bytes];
                buffer[..part.len()].copy_from_slice(part);
                let fragments = Fragments {
                    frame: &run, kind, total, from: at * most, frame_bytes,
                };
                let bytes = fragments.lay_out(&mut buffer, part.len());
                let mut runs = &buffer[BATCH_HEADER_BYTES..][..bytes];
                while !runs.is_empty() {
                    prop_assert!(whole.is_none());
                    let (run, rest) = Run::split(runs, 10).unwrap();
                    prop_assert!(run.frame.len() <= frame_bytes && run.colour() == colour);
                    prop_assert_eq!((run.header.source, run.header.target), (7, 3));
                    match reassembly.add(Input(0), &run, 0).unwrap() {
                        Assembled::Whole(record) => whole = Some(record),
                        Assembled::Growing => {}
                        Assembled::Later | Assembled::Cut => unreachable!(),
                    }
                    runs = rest;
                }
            }
            let whole = whole.unwrap();
            prop_assert_eq!((whole.kind, whole.source), (kind, 7));
            prop_assert!(whole.bytes == record);
        }
    }
}
