//! Records that need nothing but their run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::single;
use crate::config::{Options, StreamOptions};
use crate::error::Error;
use crate::face::codec::Plain;
use crate::{Job, Rank, Shuffle, UntypedOutbox};

/// The record that is sent as number so and so, of so many bytes.
fn record(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (31 * number + at) as u8).collect()
}

fn is_open(shuffle: &Shuffle<'_>) -> bool {
    shuffle.handle.of.is_open()
}

#[test]
fn records_above_the_limit_of_their_stream_are_refused_by_the_call() {
    let limited = StreamOptions {
        max_message_bytes: 100,
        ..StreamOptions::default()
    };
    let job = Job::start(single()).unwrap();
    let shuffle = job.shuffle("limited").options(limited).handler(|_, _| {});
    let shuffle = shuffle.open().unwrap();
    for _ in 0..3 {
        shuffle.send(Rank(0), 0, b"x").unwrap();
    }
    assert!(is_open(&shuffle));
    let window = Rc::clone(&shuffle.handle.of);
    shuffle.send(Rank(0), 0, &[1; 100]).unwrap();
    shuffle.send(Rank(0), 0, b"x").unwrap();
    assert!(window.send(0, 0, &[1; 100]) && !window.send(0, 0, &[1; 101]));
    let refused = Error::TooLarge {
        bytes: 101,
        limit: 100,
    };
    assert_eq!(shuffle.send(Rank(0), 0, &[1; 101]), Err(refused));
    job.shutdown().unwrap();
}

#[test]
fn values_need_no_state_either() {
    let sum = Cell::new(0);
    let job = Job::start(single()).unwrap();
    let values = job.coded::<u64, _>("values", Plain);
    let values = values.handler(|_, value, _| sum.set(sum.get() + value));
    let values = values.open().unwrap();
    for value in 0..3 {
        values.push(Rank(0), &value).unwrap();
    }
    assert!(values.handle.of.is_open());
    values.try_push(Rank(0), &4).unwrap();
    assert!(values.handle.of.is_open());
    values.fence().unwrap();
    assert_eq!(sum.get(), 7);
    job.shutdown().unwrap();
}

/// Every length that a run takes, and those around.
#[test]
fn records_that_look_at_no_state_are_those_that_calls_would_have_sent() {
    let heard = RefCell::new(Vec::new());
    let options = Options {
        stream: StreamOptions {
            run_bytes: 1024,
            ..StreamOptions::default()
        },
        ..single()
    };
    let job = Job::start(options).unwrap();
    let shuffle = job.shuffle("records").handler(|message, _| {
        let (kind, bytes) = (message.kind, message.bytes.to_vec());
        heard.borrow_mut().push((kind, bytes));
    });
    let shuffle = shuffle.open().unwrap();
    let longest = 496; // with its header half of a run without that
    assert_eq!(shuffle.handle.short_bytes, longest / 4);
    let lengths = (0..80).chain(longest - 40..longest + 40);
    let (mut sent, mut bytes, mut without) = (0, 0, 0);
    for length in lengths.cycle().take(2000) {
        let record = record(sent, length);
        let window = Rc::clone(&shuffle.handle.of);
        let kind = 0x1234_5678 ^ sent as u32;
        // As the call itself would, or by that.
        match window.send(0, kind, &record) {
            true if length > longest => panic!("{length} bytes are a run of their own"),
            true => without += 1,
            false => shuffle.send(Rank(0), kind, &record).unwrap(),
        }
        sent += 1;
        bytes += length as u64;
    }
    assert!(without > 500, "{without} of {sent}");
    let stats = shuffle.stats().unwrap();
    assert_eq!((stats.sent, stats.sent_bytes), (sent as u64, bytes));
    shuffle.fence().unwrap();
    let lengths = (0..80).chain(longest - 40..longest + 40).cycle();
    let heard = heard.take();
    assert_eq!(heard.len(), sent);
    for (number, ((kind, bytes), length)) in heard.into_iter().zip(lengths).enumerate() {
        assert_eq!(kind, 0x1234_5678 ^ number as u32);
        assert_eq!(bytes, record(number, length), "record {number}");
    }
    job.shutdown().unwrap();
}

#[test]
fn a_window_of_records_takes_no_items_and_closes_for_every_other_call() {
    let heard = Cell::new(0);
    let job = Job::start(single()).unwrap();
    let shuffle = job
        .shuffle("records")
        .handler(|_, _| heard.set(heard.get() + 1));
    let shuffle = shuffle.open().unwrap();
    let window = Rc::clone(&shuffle.handle.of);
    let send = || shuffle.send(Rank(0), 1, b"record").unwrap();
    send();
    assert!(!is_open(&shuffle), "the first says nothing of a second");
    send();
    assert!(is_open(&shuffle));
    // As a program does that was compiled before there were windows of records.
    assert!(!window.push(0, b"") && !window.push(0, b"record") && !window.push(0, &[0; 8]));
    assert!(!window.send(1, 0, b"no such rank") && !window.send(u32::MAX, 0, b""));
    assert!(shuffle.send(Rank(1), 0, b"").is_err() && !is_open(&shuffle));
    send();
    shuffle.try_send(Rank(0), 2, b"").unwrap();
    assert!(is_open(&shuffle));
    // What is too long to be gathered does not, although its run has room.
    let longest = window.longest();
    (0..3).for_each(|_| shuffle.send(Rank(0), 4, &[4; 200]).unwrap());
    assert!(!window.send(0, 4, &vec![4; longest + 1]) && window.send(0, 4, &vec![4; longest]));
    // It goes behind all that was.
    for bytes in [40_000, 6_000, 6_000] {
        shuffle.send(Rank(0), 3, &vec![7; bytes]).unwrap();
        assert!(!is_open(&shuffle), "nor does such a record open it");
    }
    send();
    send();
    shuffle.start(crate::End::Round).unwrap();
    let refused = shuffle.send(Rank(0), 1, b"x");
    assert!(matches!(refused, Err(Error::Misuse { .. })));
    shuffle.wait().unwrap();
    assert_eq!(heard.get(), 13);
    // Progress is made now and then.
    let rounds = job.rounds().unwrap();
    (0..1200).for_each(|_| send());
    assert!(job.rounds().unwrap() >= rounds + 2);
    let copy = shuffle.clone();
    job.shutdown().unwrap();
    assert_eq!(heard.get(), 1213);
    assert!(!is_open(&copy));
    assert!(matches!(copy.send(Rank(0), 1, b"x"), Err(Error::Closed(_))));
}

#[test]
fn handlers_send_records_through_a_window_that_all_else_closes() {
    let (heard, calls) = (RefCell::new(Vec::new()), Cell::new(0));
    let job = Job::start(single()).unwrap();
    let answers = job.untyped("answers", 0).handler(|arrival, _| {
        let mut heard = heard.borrow_mut();
        heard.push((arrival.kind, arrival.bytes.to_vec()));
    });
    let answers = answers.open().unwrap();
    let (on, calls) = (answers.clone(), &calls);
    let asked = job.untyped("asked", 8).handler(move |_, outbox| {
        let window = Rc::clone(&on.handle.of);
        let send = |outbox: &mut UntypedOutbox<'_>, kind: u32, bytes: &[u8]| {
            // SAFETY: it is closed below.
            unsafe { outbox.send_on(&on, Rank(0), kind, bytes) }.unwrap();
            window.is_open()
        };
        let is_first = send(outbox, 1, b"a");
        assert!(!is_first && send(outbox, 2, b""));
        assert!(window.send(0, 3, b"eight by"));
        assert!(!window.send(0, 4, &[4; 100]), "more than its frame has");
        assert!(send(outbox, 4, &[4; 100]));
        assert!(!window.push(0, &[7; 8]) && !window.send(1, 0, b""));
        assert!(!send(outbox, 5, &[5; 50_000]), "it went, and opened none");
        let other = outbox.on(&on).unwrap().push(Rank(0), &[0; 8]);
        assert!(other.is_err() && !window.is_open());
        // It ends with one open.
        assert!(!send(outbox, 6, b"x") && send(outbox, 6, b"x"));
        calls.set(calls.get() + 1);
    });
    let asked = asked.open().unwrap();
    for call in 1..100 {
        asked.push(Rank(0), &[1; 8]).unwrap();
        job.fence().unwrap();
        assert!(!answers.handle.of.is_open());
        assert_eq!(calls.get(), call);
        let wanted = [
            (1, b"a".to_vec()),
            (2, Vec::new()),
            (3, b"eight by".to_vec()),
            (4, vec![4; 100]),
            (5, vec![5; 50_000]),
            (6, b"x".to_vec()),
            (6, b"x".to_vec()),
        ];
        assert_eq!(heard.take(), wanted);
        let stats = answers.stats().unwrap();
        let sent = call as u64;
        assert_eq!((stats.sent, stats.sent_bytes), (7 * sent, 50_111 * sent));
    }
    drop((asked, answers));
    job.shutdown().unwrap();
}
