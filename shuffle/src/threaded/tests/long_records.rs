//! Long records of ranks of one node: a delivery thread reads them where their source has put them.

use trihop_transport::bootstrap::Custom;

use super::*;
use crate::conformance::ranks::ranks;

/// Neither a whole number of words nor of lines.
const BYTES: usize = 100_003;

fn content(number: u32) -> Vec<u8> {
    (0..BYTES)
        .map(|at| (at as u32 ^ at as u32 >> 8 ^ number) as u8)
        .collect()
}

fn on_two_ranks(program: fn(&Job) -> Result<()>) {
    let run = move |_, bootstrap: Custom| -> Result<()> {
        let job = Job::start_with(Options::default(), Box::new(bootstrap))?;
        program(&job)?;
        job.shutdown()
    };
    for (rank, outcome) in ranks(2, |_| 0, run) {
        outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

/// Bytes of its memory for long records that a rank has found taken when it last looked for room.
fn taken(shuffle: &Shuffle) -> usize {
    let mut text = Vec::new();
    shuffle.dump(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let (_, line) = text.split_once("memory in use: shared records ").unwrap();
    line.split_once(' ').unwrap().0.parse().unwrap()
}

/// While a handler is blocked, what has come waits where it lies; then all of it is free again.
fn wait_where_they_lie(job: &Job) -> Result<()> {
    let (open_gate, gate) = mpsc::channel::<()>();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let shuffle = job
        .shuffle("long")
        .handler(move |message, _| {
            if message.kind == 0 {
                let _ = gate.recv_timeout(WATCHDOG);
            }
            assert!(message.bytes == content(message.kind));
            hears.lock().unwrap().push(message.kind);
        })
        .open()?;
    let other = Rank(1 - job.rank().0);
    for number in 0..20 {
        shuffle.send(other, number, &content(number))?;
    }
    shuffle.flush(Queues::ORIGIN)?;
    job.barrier()?;
    // The next one looks what is free by then.
    shuffle.send(other, 20, &content(20))?;
    assert!(taken(&shuffle) >= 21 * BYTES, "nothing is free yet");
    assert!(heard.lock().unwrap().is_empty());
    job.barrier()?;
    let _ = open_gate.send(());
    shuffle.fence()?;
    assert_eq!(*heard.lock().unwrap(), (0..21).collect::<Vec<_>>());
    job.barrier()?;
    shuffle.send(other, 21, &content(21))?;
    assert!(taken(&shuffle) < 2 * BYTES, "all else is free again");
    shuffle.shutdown()
}

#[test]
fn long_records_that_wait_for_a_handler_wait_where_they_lie() {
    on_two_ranks(wait_where_they_lie);
}

/// Beyond the bound of the delivery queue they wait in lanes, also where they take no room there.
fn wait_for_room(job: &Job) -> Result<()> {
    let (open_gate, gate) = mpsc::channel::<()>();
    let heard = Arc::new(AtomicU32::new(0));
    let hears = Arc::clone(&heard);
    let options = StreamOptions {
        deliverq_max: 4,
        ..StreamOptions::default()
    };
    let shuffle = job
        .shuffle("bounded")
        .options(options)
        .handler(move |message, _| {
            if message.kind == 0 {
                let _ = gate.recv_timeout(WATCHDOG);
            }
            assert_eq!(message.kind, hears.fetch_add(1, Ordering::Relaxed));
        })
        .open()?;
    let other = Rank(1 - job.rank().0);
    for number in 0..20 {
        shuffle.send(other, number, &content(number))?;
    }
    until("deliveries are blocked", || {
        shuffle.stats().unwrap().blocked_deliveries > 0
    });
    let _ = open_gate.send(());
    shuffle.fence()?;
    assert_eq!(heard.load(Ordering::Relaxed), 20);
    shuffle.shutdown()
}

#[test]
fn long_records_wait_for_room_among_deliveries() {
    on_two_ranks(wait_for_room);
}

/// Dropped and counted, and their memory is free again.
fn nobody_handles(job: &Job) -> Result<()> {
    let (shuffle, _heard) = listening(job, "stopped");
    let other = Rank(1 - job.rank().0);
    shuffle.stop_handler();
    job.barrier()?;
    for number in 0..20 {
        shuffle.send(other, number, &content(number))?;
    }
    shuffle.fence()?;
    assert_eq!(shuffle.stats().unwrap().undelivered, 20);
    job.barrier()?;
    shuffle.send(other, 20, &content(20))?;
    assert!(taken(&shuffle) < 2 * BYTES, "all else is free again");
    shuffle.shutdown()
}

#[test]
fn long_records_that_nobody_handles_are_dropped() {
    on_two_ranks(nobody_handles);
}

/// More than there is memory for, to both ranks, with short ones between them, from two threads;
/// handlers answer with records as long.
fn more_than_fits(job: &Job) -> Result<()> {
    const COUNT: u32 = 80;
    const ANSWER: u32 = 1 << 31;
    let heard = Arc::new(Mutex::new(vec![Vec::new(); 4]));
    let hears = Arc::clone(&heard);
    let shuffle = job
        .shuffle("long")
        .handler(move |message, shuffle| {
            let number = message.kind & !ANSWER;
            match number % 3 {
                2 => assert_eq!(message.bytes, [number as u8; 9]),
                _ => assert!(message.bytes == content(number)),
            }
            let is_answer = message.kind & ANSWER != 0;
            if !is_answer {
                let answer = number | ANSWER;
                shuffle.send(message.source, answer, message.bytes).unwrap();
            }
            let of = 2 * message.source.0 as usize + usize::from(is_answer);
            hears.lock().unwrap()[of].push(number);
        })
        .open()?;
    thread::scope(|scope| {
        for target in [Rank(0), Rank(1)] {
            let shuffle = &shuffle;
            scope.spawn(move || {
                for number in 0..COUNT {
                    let record = match number % 3 {
                        2 => vec![number as u8; 9],
                        _ => content(number),
                    };
                    shuffle.send(target, number, &record).unwrap();
                }
            });
        }
    });
    shuffle.fence()?;
    for of in &*heard.lock().unwrap() {
        assert_eq!(*of, (0..COUNT).collect::<Vec<_>>());
    }
    shuffle.shutdown()
}

#[test]
fn long_records_are_whole_and_in_order_whatever_memory_there_is() {
    on_two_ranks(more_than_fits);
}

/// Items, as runs of their own; what waits for an application without a handler is copied.
fn as_items(job: &Job) -> Result<()> {
    let heard = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&heard);
    let items = job
        .untyped("items", BYTES)
        .handler(move |arrival, _| {
            let number = counts.fetch_add(1, Ordering::Relaxed);
            assert!(arrival.bytes == content(number));
        })
        .open()?;
    let taken = job.untyped("taken", BYTES).open()?;
    let other = Rank(1 - job.rank().0);
    for number in 0..60 {
        items.push(other, &content(number))?;
        taken.push(other, &content(number))?;
    }
    items.fence()?;
    taken.fence()?;
    assert_eq!(heard.load(Ordering::Relaxed), 60);
    let mut number = 0;
    taken.take(|arrival| {
        assert!(arrival.bytes == content(number));
        number += 1;
    })?;
    assert_eq!(number, 60);
    items.shutdown()?;
    taken.shutdown()
}

#[test]
fn long_items_are_whole_and_in_order() {
    on_two_ranks(as_items);
}
