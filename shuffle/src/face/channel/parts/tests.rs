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

#[test]
fn a_message_that_was_given_up_leaves_nothing_and_keeps_nothing_waiting() {
    let whole = message(1, LEAST_BYTES + 1);
    let tail = Tail {
        message: 9,
        begin: 0,
        bytes: whole.len() as u64,
    };
    let parts: Vec<_> = tail.parts(&whole).take(2).collect();
    let left = parts.iter().map(Part::bytes).sum();
    let mut word = Vec::new();
    tail.give_up(left, |kind, record| {
        word.push((kind, record.to_vec()));
        Ok(())
    });
    tail.give_up(0, |_, _| panic!("nothing has left of it"));
    let [word] = <[_; 1]>::try_from(word).unwrap();
    let parts = parts
        .iter()
        .map(|part| (kinds::PART, part.record().unwrap()));
    let parts: Vec<_> = parts.collect();
    // The word comes before the parts that have left, or behind some.
    for at in 0..=parts.len() {
        let mut records = parts.clone();
        records.insert(at, word.clone());
        let mut all = Parts::new(MOST);
        for (number, (kind, record)) in records.iter().enumerate() {
            let taken = all.take(SOURCE, *kind, Payload::Borrowed(record));
            assert!(taken.unwrap().is_none());
            if *kind == kinds::CUT {
                let get = all.take(SOURCE, kinds::GET, Payload::Borrowed(b"behind"));
                assert!(get.unwrap().is_none());
            }
            let next = all.next(SOURCE).unwrap();
            let expected = (number == parts.len()).then(|| (kinds::GET, b"behind".to_vec()));
            assert_eq!(next, expected, "record {number}, word {at}");
        }
        assert!(all.ranks.is_empty(), "word {at}");
    }
}

#[test]
fn a_message_is_given_up_with_what_it_can_have() {
    for begin in [0, LEAST_BYTES as u64 + 1] {
        let mut record = Vec::new();
        Tail {
            message: 0,
            begin,
            bytes: LEAST_BYTES as u64,
        }
        .write(&mut record);
        let taken = Parts::new(MOST).take(SOURCE, kinds::CUT, Payload::Borrowed(&record));
        assert!(taken.is_err(), "{begin} bytes have left");
    }
}

/// Two nodes of four relays, where only two streams could be opened.
#[test]
fn a_message_goes_whole_where_a_part_would_be_longer_than_its_stream_carries() {
    let topology = Topology::from_node_sizes(&[4, 4], Rank(0)).unwrap();
    let topology = topology.with_relays(1).unwrap();
    let planned = Carriers::count(&topology, MOST);
    assert_eq!(planned, 4);
    let longest_part = Carriers::longest_part(planned, MOST);
    let id = |stream| StreamId {
        job: 1,
        stream,
        opened: 0,
    };
    let carriers = Carriers::new(vec![id(1), id(2)], topology, longest_part);
    let far = Rank(4);
    for (bytes, cut_at_once) in [(MOST / 2, true), (MOST / 2 + 1, false), (MOST, false)] {
        assert_eq!(carriers.cut(far, bytes, true), cut_at_once, "{bytes} bytes");
        assert!(carriers.cut(far, bytes, false), "small parts always pass");
    }
    assert!(!carriers.cut(Rank(1), MOST / 2, true), "within the node");
}
