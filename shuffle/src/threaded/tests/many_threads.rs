//! Several threads that use one stream.

use std::sync::OnceLock;

use super::*;
use crate::face::codec::Plain;
use crate::threaded::Coded;

#[test]
fn many_threads_send_each_in_order_while_others_flush() {
    let job = job();
    let (shuffle, heard) = listening(&job, "threads");
    const EACH: u32 = 20_000;
    let senders: Vec<_> = (0..4u32)
        .map(|number| {
            let shuffle = shuffle.clone();
            thread::spawn(move || {
                for at in 0..EACH {
                    shuffle.send(Rank(0), number, &at.to_le_bytes()).unwrap();
                    if at % 4096 == number {
                        shuffle.flush(Queues::ORIGIN).unwrap();
                    }
                }
            })
        })
        .collect();
    for sender in senders {
        sender.join().unwrap();
    }
    shuffle.fence().unwrap();
    let mut next = [0u32; 4];
    for (number, bytes) in heard.lock().unwrap().iter() {
        let at = u32::from_le_bytes(bytes[..].try_into().unwrap());
        assert_eq!(std::mem::replace(&mut next[*number as usize], at + 1), at);
    }
    assert_eq!(next, [EACH; 4]);
    job.shutdown().unwrap();
}

#[test]
fn long_records_of_two_threads_are_those_of_their_senders() {
    let job = job();
    const EACH: usize = 64;
    let heard = Arc::new(Mutex::new([0; 2]));
    let shuffle = job
        .shuffle("long")
        .handler({
            let heard = Arc::clone(&heard);
            move |m, _| {
                assert_eq!(m.bytes.len(), LENGTHS[m.kind as usize]);
                assert!(m.bytes.iter().all(|&byte| u32::from(byte) == m.kind));
                heard.lock().unwrap()[m.kind as usize] += 1;
                // Slower than its senders: what they lend waits.
                thread::sleep(Duration::from_micros(200));
            }
        })
        .open()
        .unwrap();
    const LENGTHS: [usize; 2] = [100_000, 300_000];
    let senders = [0, 1].map(|number| {
        let shuffle = shuffle.clone();
        thread::spawn(move || {
            let record = vec![number as u8; LENGTHS[number]];
            for _ in 0..EACH {
                shuffle.send(Rank(0), number as u32, &record).unwrap();
            }
        })
    });
    for sender in senders {
        sender.join().unwrap();
    }
    shuffle.fence().unwrap();
    assert_eq!(*heard.lock().unwrap(), [EACH; 2]);
    job.shutdown().unwrap();
}

/// Opens a stream that adds up what it gets.
fn adding(job: &Job, name: &str) -> (Stream<u64>, Arc<AtomicU64>) {
    let sum = Arc::new(AtomicU64::new(0));
    let add = Arc::clone(&sum);
    let stream = job
        .stream::<u64>(name)
        .handler(move |_, items, _| {
            add.fetch_add(items.iter().sum(), Ordering::Relaxed);
        })
        .open()
        .unwrap();
    (stream, sum)
}

/// Pushes until one goes without the turn.
fn push_until_open(stream: &Stream<u64>) -> u64 {
    let mut pushed = 0;
    until("a push without the turn", || {
        stream.push(Rank(0), 1).unwrap();
        pushed += 1;
        Threaded::window(&stream.handle.of).is_open()
    });
    pushed
}

#[test]
fn pushes_without_the_turn_are_there_for_every_other_call() {
    if !trihop_transport::park::can_lease() {
        eprintln!("skipped: no leases on this machine");
        return;
    }
    let job = job();
    let (stream, sum) = adding(&job, "items");
    let mut pushed = push_until_open(&stream);
    for _ in 0..3 {
        stream.push(Rank(0), 1).unwrap();
        pushed += 1;
    }
    assert_eq!(stream.stats().unwrap().sent, pushed);
    pushed += push_until_open(&stream);
    // Another thread has no part in it, and ends it.
    let other = stream.clone();
    let there = thread::spawn(move || other.push(Rank(0), 100).unwrap());
    there.join().unwrap();
    stream.fence().unwrap();
    assert_eq!(sum.load(Ordering::Relaxed), pushed + 100);
    // What the application leaves in a run goes by age although it never calls again.
    pushed += push_until_open(&stream);
    stream.push(Rank(0), 1).unwrap();
    until("what was pushed without the turn", || {
        sum.load(Ordering::Relaxed) == pushed + 101
    });
    stream.push(Rank(0), 1).unwrap();
    // Who needs the turn for a push lets others have it at once.
    push_until_open(&stream);
    assert!(!stream.handle.push_here(Rank(1), &[0; 8]));
    assert!(!Threaded::window(&stream.handle.of).is_open());
    assert!(stream.push(Rank(1), 0).is_err(), "no such rank");
    push_until_open(&stream);
    job.shutdown().unwrap();
    assert!(matches!(stream.push(Rank(0), 1), Err(Error::Closed(_))));
}

/// What is called on its thread behind a handler is bound by the ends of steps, as that is not.
#[test]
fn what_a_handler_pushes_without_the_turn_ends_with_it() {
    if !trihop_transport::park::can_lease() {
        eprintln!("skipped: no leases on this machine");
        return;
    }
    const TIMES: u64 = 500;
    let job = job();
    let (stream, sum) = adding(&job, "pushed to");
    let opened = Arc::new(AtomicU64::new(0));
    let (to, opens) = (stream.clone(), Arc::clone(&opened));
    let pushes = job.stream::<u64>("pushes").handler(move |_, items, _| {
        for _ in 0..5 * items.len() {
            to.push(Rank(0), 1).unwrap();
        }
        let is_open = Threaded::window(&to.handle.of).is_open();
        opens.fetch_add(u64::from(is_open), Ordering::Relaxed);
    });
    let pushes = pushes.open().unwrap();
    let (to, looked) = (stream.clone(), Arc::new([0, 0].map(AtomicU64::new)));
    let looks_at = Arc::clone(&looked);
    let looks = job.stream::<u64>("looks").handler(move |_, items, _| {
        let is_open = Threaded::window(&to.handle.of).is_open();
        looks_at[1].fetch_add(u64::from(is_open), Ordering::Relaxed);
        looks_at[0].fetch_add(items.len() as u64, Ordering::Relaxed);
    });
    let looks = looks.open().unwrap();
    for time in 1..=TIMES {
        pushes.push(Rank(0), 1).unwrap();
        looks.push(Rank(0), 1).unwrap();
        // Not by a call that takes the turn: the delivery thread hands out both, one behind the
        // other.
        until("both handlers", || {
            looked[0].load(Ordering::Relaxed) == time
        });
    }
    job.fence().unwrap();
    assert_eq!(sum.load(Ordering::Relaxed), 5 * TIMES);
    assert_eq!(stream.stats().unwrap().sent, 5 * TIMES);
    assert!(opened.load(Ordering::Relaxed) > 0, "no push went without");
    assert_eq!(
        looked[1].load(Ordering::Relaxed),
        0,
        "it outlived a handler"
    );
    job.shutdown().unwrap();
}

#[test]
fn pushes_of_many_threads_arrive_each_in_order_and_once() {
    const THREADS: u64 = 3;
    const ITEMS: u64 = 100_000;
    let job = job();
    let last = Arc::new(Mutex::new([0; THREADS as usize]));
    let heard = Arc::clone(&last);
    let stream = job
        .stream::<u64>("in order")
        .handler(move |_, items, _| {
            let mut heard = heard.lock().unwrap();
            for item in items {
                let of = &mut heard[(item % THREADS) as usize];
                assert_eq!(item / THREADS, *of, "in the order of its thread");
                *of += 1;
            }
        })
        .open()
        .unwrap();
    let other = adding(&job, "beside");
    thread::scope(|scope| {
        for of in 0..THREADS {
            let (stream, other) = (&stream, &other.0);
            scope.spawn(move || {
                for number in 0..ITEMS {
                    stream.push(Rank(0), number * THREADS + of).unwrap();
                    // One of them does other things too, in long intervals.
                    if of == 0 && number % 5_000 == 0 {
                        other.push(Rank(0), 1).unwrap();
                        other.poll().unwrap();
                    }
                }
            });
        }
    });
    stream.fence().unwrap();
    assert_eq!(*last.lock().unwrap(), [ITEMS; THREADS as usize]);
    assert_eq!(stream.stats().unwrap().sent, THREADS * ITEMS);
    job.shutdown().unwrap();
    assert_eq!(other.1.load(Ordering::Relaxed), ITEMS / 5_000);
}

/// A record of a thread: its number, and as many bytes as that says.
fn record_of(number: u64) -> Vec<u8> {
    let length = (number * 7 % 90) as usize;
    let mut record = number.to_le_bytes().to_vec();
    record.resize(8 + length, number as u8);
    record
}

#[test]
fn records_of_many_threads_arrive_each_in_order_and_once() {
    const THREADS: u64 = 3;
    const RECORDS: u64 = 50_000;
    let job = job();
    let last = Arc::new(Mutex::new([0; THREADS as usize]));
    let heard = Arc::clone(&last);
    let shuffle = job
        .shuffle("records in order")
        .handler(move |message, _| {
            let of = &mut heard.lock().unwrap()[message.kind as usize];
            assert_eq!(message.bytes, record_of(*of), "the next of its thread");
            *of += 1;
        })
        .open()
        .unwrap();
    let without = [(); THREADS as usize].map(|()| AtomicU64::new(0));
    let send = |shuffle: &Shuffle, of: u64, number: u64| {
        let record = record_of(number);
        match shuffle.handle.send_here(Rank(0), of as u32, &record) {
            true => drop(without[of as usize].fetch_add(1, Ordering::Relaxed)),
            false => shuffle.send(Rank(0), of as u32, &record).unwrap(),
        }
    };
    // One alone, then all at once.
    (0..RECORDS).for_each(|number| send(&shuffle, 0, number));
    assert_eq!(shuffle.stats().unwrap().sent, RECORDS);
    let alone = without[0].load(Ordering::Relaxed);
    let may = trihop_transport::park::can_lease();
    assert_eq!(alone > 0, may, "{alone} without the turn");
    thread::scope(|scope| {
        for of in 0..THREADS {
            let (shuffle, send) = (&shuffle, &send);
            let first = if of == 0 { RECORDS } else { 0 };
            scope.spawn(move || {
                for number in first..first + RECORDS {
                    send(shuffle, of, number);
                    if of == 1 && number % 5_000 == 0 {
                        shuffle.poll().unwrap();
                    }
                }
            });
        }
    });
    shuffle.fence().unwrap();
    let heard = *last.lock().unwrap();
    assert_eq!(heard, [2 * RECORDS, RECORDS, RECORDS]);
    for without in without {
        // By turns, whatever control blocks they have.
        let without = without.into_inner();
        assert_eq!(without > 0, may, "{without} of a thread without the turn");
    }
    let stats = shuffle.stats().unwrap();
    let bytes = |records: u64| (0..records).map(|number| record_of(number).len() as u64);
    let wanted: u64 = heard.iter().flat_map(|&records| bytes(records)).sum();
    assert_eq!((stats.sent, stats.sent_bytes), (4 * RECORDS, wanted));
    job.shutdown().unwrap();
}

#[test]
fn records_of_handlers_go_without_the_turn_until_they_return() {
    if !trihop_transport::park::can_lease() {
        eprintln!("skipped: no leases on this machine");
        return;
    }
    const TIMES: u64 = 500;
    let job = job();
    let count = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&count);
    let heard = job.shuffle("heard").handler(move |message, _| {
        assert_eq!(message.bytes, record_of(message.kind.into()));
        counts.fetch_add(1, Ordering::Relaxed);
    });
    let heard = heard.open().unwrap();
    let opened = Arc::new([0, 0].map(AtomicU64::new));
    let (to, opens) = (heard.clone(), Arc::clone(&opened));
    let asked = job.stream::<u64>("asked").handler(move |_, items, _| {
        for kind in 0..20 * items.len() as u32 {
            to.send(Rank(0), kind, &record_of(kind.into())).unwrap();
            let is_open = Threaded::window(&to.handle.of).is_open_here();
            opens[0].fetch_add(u64::from(is_open), Ordering::Relaxed);
        }
    });
    let asked = asked.open().unwrap();
    // By the outbox of a handler, on its own stream: each value is sent on until it is 0.
    let own = Arc::new(OnceLock::<Coded<u64, Plain>>::new());
    let (of, opens) = (Arc::clone(&own), Arc::clone(&opened));
    let handled = Arc::new(AtomicU64::new(0));
    let handles = Arc::clone(&handled);
    let values = job.coded::<u64, _>("values", Plain);
    let values = values.handler(move |_, value, outbox| {
        handles.fetch_add(1, Ordering::Relaxed);
        let mut left = value;
        while left > 0 {
            left -= 1;
            outbox.push(Rank(0), &0).unwrap();
            let is_open = of
                .get()
                .map(|of| Threaded::window(&of.handle.of).is_open_here());
            opens[1].fetch_add(u64::from(is_open == Some(true)), Ordering::Relaxed);
        }
    });
    let values = values.open().unwrap();
    own.set(values.clone()).unwrap_or_else(|_| unreachable!());
    for time in 1..=TIMES {
        asked.push(Rank(0), 1).unwrap();
        values.push(Rank(0), &20).unwrap();
        // Not by a call that calls handlers on this thread, which has windows too.
        until("both handlers", || {
            handled.load(Ordering::Relaxed) == 21 * time
                && count.load(Ordering::Relaxed) == 20 * time
        });
    }
    job.fence().unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 20 * TIMES);
    assert_eq!(heard.stats().unwrap().sent, 20 * TIMES);
    assert_eq!(values.stats().unwrap().sent, 21 * TIMES);
    for opened in opened.iter() {
        assert!(opened.load(Ordering::Relaxed) > 0, "none went without");
    }
    drop((asked, values, own));
    job.shutdown().unwrap();
}

/// One answer at a time: the window that is opened behind it takes nothing.
#[test]
fn handlers_that_send_once_open_windows_less_and_less() {
    if !trihop_transport::park::can_lease() {
        eprintln!("skipped: no leases on this machine");
        return;
    }
    let job = job();
    let (answers, sum) = adding(&job, "answers");
    let opened = Arc::new(AtomicU64::new(0));
    let (to, opens) = (answers.clone(), Arc::clone(&opened));
    let asked = job.stream::<u64>("asked").handler(move |_, items, _| {
        assert_eq!(items.len(), 1);
        to.push(Rank(0), items[0]).unwrap();
        let is_open = Threaded::window(&to.handle.of).is_open();
        opens.fetch_add(u64::from(is_open), Ordering::Relaxed);
    });
    let asked = asked.open().unwrap();
    // Whatever windows have paid for before.
    (0..20_000).for_each(|_| answers.push(Rank(0), 0).unwrap());
    answers.fence().unwrap();
    for time in 1..=1000 {
        asked.push(Rank(0), 1).unwrap();
        // Not by a call that calls handlers on this thread, which would count beside the other.
        until("the answer", || sum.load(Ordering::Relaxed) == time);
    }
    let opened = opened.load(Ordering::Relaxed);
    assert!((1..20).contains(&opened), "{opened} times");
    job.shutdown().unwrap();
}
