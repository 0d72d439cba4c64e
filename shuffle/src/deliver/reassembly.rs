//! Long records that arrive in fragments.

use std::collections::HashMap;

use trihop_transport::protocol::wire::{
    BadRun, FRAGMENT_HEADER_BYTES, FragmentHeader, RUN_HEADER_BYTES, Run, RunHeader, align8,
    run_flags,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::queue::spare::bytes_of;
use crate::queue::{Input, long_buffers};

/// A record that arrives in fragments over one lane or link.
#[derive(Debug)]
pub(crate) struct Partial {
    pub source: u32,
    pub kind: u32,
    pub total: usize,
    /// Bytes that are kept free before the record.
    head: usize,
    pub bytes: Vec<u8>,
}

impl Partial {
    /// The record as a run with one item, on a stream of items; `None` where it is longer than a
    /// run can say.
    pub fn into_run(mut self, target: u32) -> Option<Vec<u8>> {
        debug_assert_eq!(
            self.head, RUN_HEADER_BYTES,
            "no room was kept for the header"
        );
        let length = align8(self.bytes.len());
        u32::try_from(length).ok()?;
        self.bytes.resize(length, 0);
        let header = RunHeader {
            target,
            source: self.source,
            count: 1,
            flags: 0,
        };
        header.write(length, &mut self.bytes);
        Some(self.bytes)
    }
}

/// A run as it has to lie: where its bytes are not aligned as items may need, a copy that is.
///
/// # Errors
/// There is no memory for that.
pub(crate) fn aligned<'a>(frame: &'a [u8], copy: &'a mut Vec<u64>) -> Result<&'a [u8], BadRun> {
    if frame.as_ptr().align_offset(align_of::<u64>()) == 0 {
        return Ok(frame);
    }
    let room = copy.try_reserve_exact(frame.len().div_ceil(8));
    room.map_err(|_| BadRun::NoMemory(frame.len()))?;
    copy.extend(frame.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    }));
    Ok(&copy.as_bytes()[..frame.len()])
}

/// What a fragment does to its input's partial record.
pub(crate) enum Assembled {
    /// More is to come.
    Growing,
    /// The record is whole.
    Whole(Partial),
    /// The record may not begin now: the reassembly limit is reached.
    Later,
    /// There is no more of it: its source is gone.
    Cut,
}

/// Records in reassembly, one per inbound lane or link at most, in buffers of `limit_bytes`
/// together (one always may); of these, an eighth is for buffers that wait to be used again, or
/// that are larger than their record.
#[derive(Debug)]
pub(crate) struct Reassembly {
    partials: HashMap<Input, Partial>,
    reserved_bytes: usize,
    limit_bytes: usize,
    max_record_bytes: usize,
}

impl Reassembly {
    pub fn new(limit_bytes: usize, max_record_bytes: usize) -> Self {
        // Kept once, and once more as what a kept buffer has too much.
        let kept_bytes = long_buffers::allow(limit_bytes / 16);
        Self {
            partials: HashMap::new(),
            reserved_bytes: 0,
            limit_bytes: limit_bytes - 2 * kept_bytes,
            max_record_bytes,
        }
    }

    /// Bytes of the buffers of records in reassembly.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Length of the record that this input's fragments make up, 0 when none is in reassembly.
    pub fn record_bytes(&self, input: Input) -> usize {
        self.partials.get(&input).map_or(0, |p| p.total)
    }

    /// Drops the record of this input, of which no more comes; whether there was one.
    pub fn forget(&mut self, input: Input) -> bool {
        let Some(partial) = self.partials.remove(&input) else {
            return false;
        };
        self.reserved_bytes -= bytes_of(&partial.bytes);
        long_buffers::keep(partial.bytes);
        true
    }

    /// Takes one fragment. Of a record that begins, `head` bytes are kept free before it.
    pub fn add(&mut self, input: Input, run: &Run<'_>, head: usize) -> Result<Assembled, BadRun> {
        let mut payload = run.payload;
        if run.header.flags == run_flags::CUT {
            return match self.forget(input) {
                true => Ok(Assembled::Cut),
                false => Err(BadRun::Fragment("an end without a beginning")),
            };
        }
        if run.header.flags == run_flags::FIRST {
            if self.partials.contains_key(&input) {
                return Err(BadRun::Fragment("a record begins inside another"));
            }
            let (header, rest) = FragmentHeader::ref_from_prefix(payload)
                .map_err(|_| BadRun::Fragment("a first fragment without its header"))?;
            let total = usize::try_from(header.total.get()).unwrap_or(usize::MAX);
            if total > self.max_record_bytes {
                return Err(BadRun::Fragment("a record above max_message_bytes"));
            }
            if self.reserved_bytes > 0 && self.reserved_bytes + total > self.limit_bytes {
                return Ok(Assembled::Later);
            }
            let room = match head {
                0 => total,
                _ => head + align8(total),
            };
            let mut bytes = long_buffers::take(room).map_err(|_| BadRun::NoMemory(room))?;
            self.reserved_bytes += bytes_of(&bytes);
            bytes.resize(head, 0);
            let partial = Partial {
                source: run.header.source,
                kind: header.kind.get(),
                total,
                head,
                bytes,
            };
            self.partials.insert(input, partial);
            payload = rest;
            debug_assert_eq!(run.payload.len() - rest.len(), FRAGMENT_HEADER_BYTES);
        }
        let partial = self
            .partials
            .get_mut(&input)
            .ok_or(BadRun::Fragment("a fragment without a beginning"))?;
        if partial.source != run.header.source {
            return Err(BadRun::Fragment("fragments of two sources"));
        }
        let missing = partial.head + partial.total - partial.bytes.len();
        partial
            .bytes
            .extend_from_slice(&payload[..payload.len().min(missing)]);
        let last = run.header.flags == run_flags::LAST;
        match (partial.bytes.len() == partial.head + partial.total, last) {
            (true, true) => {
                let whole = self.partials.remove(&input).expect("found above");
                self.reserved_bytes -= bytes_of(&whole.bytes);
                Ok(Assembled::Whole(whole))
            }
            (false, false) => Ok(Assembled::Growing),
            _ => Err(BadRun::Fragment("fragments do not add up to the record")),
        }
    }
}

/// Longest item: as a run with its header it has a length of 32 bits.
pub(crate) const LONGEST_ITEM: usize = (u32::MAX as usize & !7) - RUN_HEADER_BYTES;

/// Smallest frame that can carry a fragment of at least 8 bytes.
pub(crate) const MIN_FRAGMENT_FRAME: usize = RUN_HEADER_BYTES + FRAGMENT_HEADER_BYTES + 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(flags: u16, source: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; RUN_HEADER_BYTES];
        frame.extend_from_slice(payload);
        frame.resize(frame.len().next_multiple_of(8), 0);
        let length = frame.len();
        RunHeader {
            target: 0,
            source,
            count: 0,
            flags,
        }
        .write(length, &mut frame);
        frame
    }

    fn add(reassembly: &mut Reassembly, input: u32, frame: &[u8]) -> Result<Assembled, BadRun> {
        let (run, _) = Run::split(frame, 10).unwrap();
        reassembly.add(Input(input), &run, 0)
    }

    fn first(total: u64, data: &[u8]) -> Vec<u8> {
        let mut payload = total.to_le_bytes().to_vec();
        payload.extend_from_slice(&5u32.to_le_bytes());
        payload.extend_from_slice(&[0; 4]);
        payload.extend_from_slice(data);
        fragment(run_flags::FIRST, 3, &payload)
    }

    #[test]
    fn fragments_become_a_record() {
        let mut reassembly = Reassembly::new(100, 1000);
        assert!(matches!(
            add(&mut reassembly, 0, &first(13, b"01234567")),
            Ok(Assembled::Growing)
        ));
        assert_eq!(reassembly.reserved_bytes(), 13);
        match add(&mut reassembly, 0, &fragment(run_flags::LAST, 3, b"89abc")) {
            Ok(Assembled::Whole(record)) => {
                assert_eq!(
                    (record.source, record.kind, &record.bytes[..]),
                    (3, 5, &b"0123456789abc"[..])
                );
            }
            _ => panic!("not whole"),
        }
        assert_eq!(reassembly.reserved_bytes(), 0);
    }

    #[test]
    fn fragments_of_an_item_become_a_run() {
        let mut reassembly = Reassembly::new(100, 1000);
        let mut add = |frame: &[u8]| {
            let (run, _) = Run::split(frame, 10).unwrap();
            reassembly.add(Input(0), &run, RUN_HEADER_BYTES).unwrap()
        };
        assert!(matches!(add(&first(13, b"01234567")), Assembled::Growing));
        let Assembled::Whole(item) = add(&fragment(run_flags::LAST, 3, b"89abc")) else {
            panic!("not whole");
        };
        assert_eq!((item.kind, item.total), (5, 13));
        let frame = item.into_run(7).unwrap();
        let (run, rest) = Run::split(&frame, 10).unwrap();
        assert_eq!((run.header.target, run.header.source), (7, 3));
        assert_eq!((run.header.count, rest.len()), (1, 0));
        assert_eq!(
            crate::deliver::items_of(&run, 13).unwrap(),
            b"0123456789abc"
        );
        assert!(crate::deliver::items_of(&run, 17).is_err());
        assert_eq!(reassembly.reserved_bytes(), 0);
    }

    #[test]
    fn a_run_that_lies_anywhere_is_copied_to_where_items_may_lie() {
        let bytes: Vec<u8> = (0..60).collect();
        for start in 0..8 {
            let mut copy = Vec::new();
            let lies = aligned(&bytes[start..start + 48], &mut copy).unwrap();
            assert_eq!(lies, &bytes[start..start + 48]);
            assert_eq!(lies.as_ptr().align_offset(8), 0);
        }
    }

    #[test]
    fn the_limit_delays_a_beginning_and_never_a_continuation() {
        let mut reassembly = Reassembly::new(100, 1000);
        assert!(matches!(
            add(&mut reassembly, 0, &first(900, b"01234567")),
            Ok(Assembled::Growing)
        ));
        assert!(matches!(
            add(&mut reassembly, 1, &first(10, b"01234567")),
            Ok(Assembled::Later)
        ));
        let middle = fragment(run_flags::MORE, 3, &[1; 64]);
        assert!(matches!(
            add(&mut reassembly, 0, &middle),
            Ok(Assembled::Growing)
        ));
    }

    #[test]
    fn a_record_that_is_cut_is_none_and_gives_its_room_back() {
        let mut reassembly = Reassembly::new(100, 1000);
        let cut = fragment(run_flags::CUT, 3, b"");
        assert!(add(&mut reassembly, 0, &cut).is_err(), "nothing has begun");
        for _ in 0..2 {
            let begun = add(&mut reassembly, 0, &first(90, b"01234567"));
            assert!(matches!(begun, Ok(Assembled::Growing)));
            let cut = add(&mut reassembly, 0, &cut);
            assert!(matches!(cut, Ok(Assembled::Cut)));
            assert_eq!(reassembly.reserved_bytes(), 0);
        }
        assert!(!reassembly.forget(Input(0)));
    }

    #[test]
    fn hostile_fragments_are_errors() {
        let mut reassembly = Reassembly::new(100, 1000);
        assert!(add(&mut reassembly, 0, &fragment(run_flags::MORE, 3, b"x")).is_err());
        assert!(add(&mut reassembly, 0, &first(u64::MAX, b"")).is_err());
        assert!(add(&mut reassembly, 0, &fragment(run_flags::FIRST, 3, b"")).is_err());
        assert!(add(&mut reassembly, 0, &first(50, b"01234567")).is_ok());
        assert!(
            add(
                &mut reassembly,
                0,
                &fragment(run_flags::MORE, 4, b"another's")
            )
            .is_err()
        );
        assert!(add(&mut reassembly, 0, &first(50, b"01234567")).is_err());
        assert!(
            add(
                &mut reassembly,
                0,
                &fragment(run_flags::LAST, 3, b"too short")
            )
            .is_err()
        );
    }
}
