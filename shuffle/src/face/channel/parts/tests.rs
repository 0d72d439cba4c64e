use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const SOURCE: Rank = Rank(3);
const MOST: usize = 4 << 20;

fn message(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7 + number) as u8).collect()
}

/// What one rank sends, by stream: its messages are as long as this, and those that are cut have
/// their parts dealt out.
fn sent(lengths: &[usize], streams: usize) -> Vec<VecDeque<(u32, Vec<u8>)>> {
    let mut by = vec![VecDeque::new(); streams];
    for (number, &bytes) in lengths.iter().enumerate() {
        let (whole, kind) = (message(number, bytes), number as u32 + 1);
        if bytes < LEAST_BYTES {
            by[0].push_back((kind, whole));
            continue;
        }
        let tail = Tail {
            message: number as u64,
            begin: 0,
            bytes: bytes as u64,
        };
        let mut head = vec![number as u8; 5];
        tail.write(&mut head);
        // Before the parts or behind them.
        let head = (kind | kinds::CUT, head);
        if number % 2 == 0 {
            by[0].push_back(head.clone());
        }
        for (at, part) in tail.parts(&whole).enumerate() {
            let record = part.record().unwrap();
            by[(number + at) % streams].push_back((kinds::PART, record));
        }
        if number % 2 == 1 {
            by[0].push_back(head);
        }
    }
    by
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..crate::seed::properties() })]

    /// Whatever the order is in which streams bring what they have, messages are handled in the
    /// order in which they were sent, whole, and nothing is left.
    #[test]
    fn messages_come_in_order_whatever_stream_is_ahead(
        lengths in proptest::collection::vec(
            prop_oneof![0..100_usize, LEAST_BYTES - 2..LEAST_BYTES + 700_000],
            1..8,
        ),
        streams in 1..5_usize,
        turns: Vec<u8>,
    ) {
        let mut by = sent(&lengths, streams);
        let (mut parts, mut handled) = (Parts::new(MOST), Vec::new());
        let mut turns = turns.into_iter().chain(0..=255).cycle();
        while by.iter().any(|stream| !stream.is_empty()) {
            let stream = usize::from(turns.next().unwrap()) % streams;
            let Some((kind, record)) = by[stream].pop_front() else {
                continue;
            };
            let taken = parts.take(SOURCE, kind, Payload::Borrowed(&record)).unwrap();
            if let Some((kind, record)) = taken {
                handled.push((kind, record.as_slice().to_vec()));
                continue;
            }
            while let Some(next) = parts.next(SOURCE).unwrap() {
                handled.push(next);
            }
        }
        prop_assert!(parts.ranks.is_empty());
        prop_assert_eq!(handled.len(), lengths.len());
        for (number, (&bytes, (kind, record))) in lengths.iter().zip(handled).enumerate() {
            prop_assert_eq!(kind, number as u32 + 1);
            let mut expected = message(number, bytes);
            if bytes >= LEAST_BYTES {
                expected.extend([number as u8; 5]);
            }
            prop_assert!(record == expected, "{number} of {bytes} bytes");
        }
    }

    #[test]
    fn whatever_comes_is_taken_or_refused(
        records in proptest::collection::vec(
            (any::<bool>(), 0..3_u64, any::<u64>(), 0..3_usize, 0..200_usize),
            0..20,
        ),
    ) {
        let mut parts = Parts::new(MOST);
        for (is_head, message, begin, length, bytes) in records {
            let tail = Tail {
                message,
                begin: if begin % 3 == 0 { begin } else { begin % (MOST as u64) },
                bytes: [LEAST_BYTES, MOST, MOST + 1][length] as u64,
            };
            let mut record = vec![1; bytes];
            tail.write(&mut record);
            record.drain(..if begin % 5 == 0 { bytes.min(9) } else { 0 });
            let kind = if is_head { kinds::CUT | kinds::SEND } else { kinds::PART };
            let taken = parts.take(SOURCE, kind, Payload::Borrowed(&record));
            let is_over = taken.is_err() || parts.next(SOURCE).is_err();
            if is_over {
                return Ok(());
            }
        }
    }
}

#[test]
fn what_others_sent_waits_for_nobody() {
    let mut parts = Parts::new(MOST);
    let mut head = Vec::new();
    let tail = Tail {
        message: 0,
        begin: 0,
        bytes: LEAST_BYTES as u64,
    };
    tail.write(&mut head);
    let mut take = |source, kind, record: &[u8]| {
        let taken = parts.take(source, kind, Payload::Borrowed(record));
        taken.unwrap().is_some()
    };
    assert!(!take(SOURCE, kinds::SEND | kinds::CUT, &head));
    assert!(!take(SOURCE, kinds::GET, b""), "it is behind that");
    assert!(take(Rank(4), kinds::GET, b""));
    assert!(parts.next(SOURCE).unwrap().is_none());
}

#[test]
fn parts_that_cannot_be_are_refused() {
    let refused = |tails: &[(u64, u64, usize)]| {
        let mut parts = Parts::new(MOST);
        let mut last = Ok(None);
        for &(begin, bytes, length) in tails {
            assert!(last.is_ok());
            let mut record = vec![0; length];
            let message = 0;
            Tail {
                message,
                begin,
                bytes,
            }
            .write(&mut record);
            let taken = parts.take(SOURCE, kinds::PART, Payload::Borrowed(&record));
            last = taken.map(|_| None::<()>);
        }
        last.is_err()
    };
    let (least, part) = (LEAST_BYTES as u64, PART_BYTES);
    assert!(!refused(&[(0, least, part)]));
    assert!(refused(&[(0, least - 1, part)]), "it is not cut");
    assert!(refused(&[(0, MOST as u64 + 1, part)]), "it is too long");
    assert!(refused(&[(least, least, 1)]), "it is behind the end");
    assert!(refused(&[(u64::MAX, least, 1)]));
    assert!(refused(&[(least - 1, least, 2)]), "it goes beyond the end");
    assert!(refused(&[(0, least, 0)]), "it is empty");
    assert!(refused(&[(0, least, part), (0, least + 1, part)]));
    let twice = [(0, least, part), (0, least, part), (0, least, 1)];
    assert!(refused(&twice), "there are more than the message has");
}
