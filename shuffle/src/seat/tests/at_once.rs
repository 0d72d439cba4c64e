//! What a rank sends to itself and handles in the same call.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use trihop_transport::bootstrap::Custom;

use super::{Shape, over_network, single};
use crate::conformance::ranks::ranks;
use crate::face::codec::Plain;
use crate::{
    BroadcastTo, Contributors, Error, Job, Message, Outbox, Rank, Result, Shuffle, StreamOptions,
};

#[test]
fn what_a_rank_sends_to_itself_is_handled_when_the_call_returns() {
    let (heard, sum) = (RefCell::new(Vec::new()), Cell::new(0u64));
    let job = Job::start(single()).unwrap();
    let shuffle = job.shuffle("records").handler(|message, _| {
        let Message { kind, bytes, .. } = message;
        assert!(bytes.as_ptr().addr().is_multiple_of(8));
        heard.borrow_mut().push((kind, bytes.to_vec()));
    });
    let mut shuffle = shuffle.open().unwrap();
    let usual = shuffle.clone();
    shuffle.own_at_once().unwrap();
    let last = || heard.borrow().last().cloned().unwrap();
    let bytes: Vec<u8> = (0..100_003u32).map(|at| at as u8).collect();
    for length in [0, 1, 8, 13, 5_000, 100_001] {
        let bytes = &bytes[1..][..length]; // not aligned
        shuffle.send(Rank(0), 1, bytes).unwrap();
        assert_eq!(last(), (1, bytes.to_vec()));
        shuffle.try_send(Rank(0), 2, bytes).unwrap();
        assert_eq!(last(), (2, bytes.to_vec()));
        shuffle.broadcast(3, bytes, BroadcastTo::Everyone).unwrap();
        assert_eq!(last(), (3, bytes.to_vec()));
        shuffle
            .try_broadcast(4, bytes, BroadcastTo::Everyone)
            .unwrap();
        assert_eq!(last(), (4, bytes.to_vec()));
        let mut space = shuffle.reserve(Rank(0), 5, length).unwrap();
        space.copy_from_slice(bytes);
        space.commit().unwrap();
        assert_eq!(last(), (5, bytes.to_vec()));
        drop(shuffle.reserve(Rank(0), 6, length).unwrap());
    }
    let stats = shuffle.stats().unwrap();
    assert_eq!((stats.sent, stats.delivered), (30, 30));
    assert_eq!((stats.sent_bytes, stats.broadcasts), (525_115, 12));
    // Another handle of the stream sends as ever, and what follows keeps its place behind that.
    usual.send(Rank(0), 7, b"later").unwrap();
    shuffle.send(Rank(0), 8, b"behind it").unwrap();
    assert_eq!(heard.borrow().len(), 30);
    shuffle.fence().unwrap();
    assert_eq!(
        heard.borrow()[30..],
        [(7, b"later".into()), (8, b"behind it".into())]
    );
    shuffle.send(Rank(0), 9, b"at once again").unwrap();
    assert_eq!(heard.borrow().len(), 33);
    // Also what goes into the run to oneself without a call.
    (0..4).for_each(|_| usual.send(Rank(0), 10, b"later").unwrap());
    assert!(usual.handle.of.send(0, 11, b"here"));
    shuffle.send(Rank(0), 12, b"behind that").unwrap();
    assert_eq!(heard.borrow().len(), 33);
    shuffle.fence().unwrap();
    let kinds = |of: &[(u32, Vec<u8>)]| of.iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
    assert_eq!(kinds(&heard.borrow()[33..]), [10, 10, 10, 10, 11, 12]);
    shuffle.send(Rank(0), 13, b"at once again").unwrap();
    assert!(heard.borrow().len() == 40 && !shuffle.handle.of.is_open());

    let stream = job.stream::<[u32; 3]>("items").handler(|_, items, _| {
        let items = items.iter().flatten();
        sum.set(sum.get() + items.map(|&word| u64::from(word)).sum::<u64>());
    });
    let mut stream = stream.open().unwrap();
    stream.own_at_once().unwrap();
    stream.push(Rank(0), [1, 2, 3]).unwrap();
    assert_eq!(sum.get(), 6);
    stream.try_push(Rank(0), [1, 2, 4]).unwrap();
    assert_eq!(sum.get(), 13);
    stream
        .extend((0..1000).map(|item| (Rank(0), [item, 0, 0])))
        .unwrap();
    assert_eq!(sum.get(), 13 + 499_500);
    stream.broadcast([0, 0, 7], BroadcastTo::Everyone).unwrap();
    assert_eq!(sum.get(), 20 + 499_500);
    assert!(!stream.handle.of.is_open(), "nothing is gathered");

    let coded = job.coded::<u64, _>("values", Plain);
    let mut coded = coded.handler(|_, value, _| sum.set(value)).open().unwrap();
    coded.own_at_once().unwrap();
    coded.push(Rank(0), &77).unwrap();
    assert_eq!(sum.get(), 77);
    coded.try_push(Rank(0), &78).unwrap();
    coded.extend([(Rank(0), &79)]).unwrap();
    assert_eq!(sum.get(), 79);
    let records = [shuffle.stats(), stream.stats(), coded.stats()];
    let counts = records.map(|stats| (stats.as_ref().unwrap().sent, stats.unwrap().delivered));
    assert_eq!(counts, [(40, 40), (1003, 1003), (3, 3)]);
    job.shutdown().unwrap();
}

#[test]
fn untyped_items_of_any_size_are_handled_at_once() {
    let heard = RefCell::new(Vec::new());
    let job = Job::start(single()).unwrap();
    for item_bytes in [1, 4, 8, 12, 16, 33] {
        heard.borrow_mut().clear();
        let stream = job.untyped(&format!("of {item_bytes}"), item_bytes);
        let stream = stream.handler(|arrival, _| heard.borrow_mut().extend(arrival.bytes.to_vec()));
        let mut stream = stream.open().unwrap();
        stream.own_at_once().unwrap();
        let items: Vec<u8> = (0..5 * item_bytes as u8).collect();
        let (sent, outcome) = stream.push_many(&[0, 0, 9, 0, 0], &items);
        assert!(matches!(outcome, Err(Error::Rank { rank: 9, .. })) && sent == 2);
        assert_eq!(*heard.borrow(), items[..2 * item_bytes]);
        stream
            .push(Rank(0), &items[2 * item_bytes..][..item_bytes])
            .unwrap();
        assert_eq!(*heard.borrow(), items[..3 * item_bytes]);
        stream.shutdown().unwrap();
    }
    job.shutdown().unwrap();
}

#[test]
fn what_cannot_be_handled_at_once_is_refused_or_says_why() {
    let is_config = |outcome: Result<()>| matches!(outcome, Err(Error::Config { .. }));
    let calls = Cell::new(0);
    let job = Job::start(single()).unwrap();
    let mut untaken = job.shuffle("untaken").open().unwrap();
    assert!(is_config(untaken.own_at_once()));
    let shuffle = job
        .shuffle("records")
        .handler(|_, _| calls.set(calls.get() + 1));
    let mut shuffle = shuffle.open().unwrap();
    let mut copy = shuffle.clone();
    shuffle.own_at_once().unwrap();
    assert!(matches!(
        shuffle.send(Rank(1), 0, b""),
        Err(Error::Rank { rank: 1, size: 1 })
    ));
    let long = vec![0; (64 << 20) + 1];
    assert!(matches!(
        shuffle.send(Rank(0), 0, &long),
        Err(Error::TooLarge { .. })
    ));
    shuffle.begin_step(Contributors::Local(1)).unwrap();
    shuffle.send(Rank(0), 0, b"").unwrap();
    shuffle.done(1).unwrap();
    assert!(matches!(
        shuffle.send(Rank(0), 0, b""),
        Err(Error::Misuse { .. })
    ));
    shuffle.wait().unwrap();
    // Inside a call that hands out deliveries no handler is called.
    untaken.send(Rank(0), 0, b"").unwrap();
    untaken.fence().unwrap();
    untaken
        .take(|_| shuffle.send(Rank(0), 0, b"").unwrap())
        .unwrap();
    assert_eq!(calls.get(), 1);
    shuffle.fence().unwrap();
    assert_eq!(calls.get(), 2);
    shuffle.clone().shutdown().unwrap();
    assert!(matches!(
        shuffle.send(Rank(0), 0, b""),
        Err(Error::Closed(_))
    ));
    assert!(matches!(copy.own_at_once(), Err(Error::Closed(_))));
    job.shutdown().unwrap();

    let job = crate::threaded::Job::start(single()).unwrap();
    let mut shuffle = job.shuffle("records").handler(|_, _| {}).open().unwrap();
    assert!(is_config(shuffle.own_at_once()));
    job.shutdown().unwrap();
}

#[test]
fn a_handler_that_fails_at_once_ends_the_job() {
    let job = Job::start(single()).unwrap();
    let shuffle = job.shuffle("fragile").handler(|_, _| panic!("on purpose"));
    let mut shuffle = shuffle.open().unwrap();
    shuffle.own_at_once().unwrap();
    let push = || shuffle.send(Rank(0), 0, b"x");
    assert!(catch_unwind(AssertUnwindSafe(push)).is_err());
    let failure = Error::Handler {
        stream: "fragile".to_owned(),
        why: "on purpose".to_owned(),
    };
    assert_eq!(shuffle.send(Rank(0), 0, b"x"), Err(failure.clone()));
    assert_eq!(job.shutdown(), Err(failure));

    let job = Job::start(single()).unwrap();
    let coded = job.coded::<u64, _>("values", Plain).handler(|_, _, _| {});
    let coded = coded.open().unwrap();
    let mut shuffle = Shuffle {
        handle: coded.handle.clone(),
    };
    shuffle.own_at_once().unwrap();
    let failure = shuffle
        .send(Rank(0), 0, b"no value")
        .and(shuffle.send(Rank(0), 0, b"none"));
    assert!(
        matches!(failure, Err(Error::BadPeer { rank: 0, .. })),
        "{failure:?}"
    );
    assert_eq!(
        coded.push(Rank(0), &1).map_err(drop),
        Err(()),
        "the job has ended"
    );
}

/// A rank's sends to each rank, and what it has heard from each: all have numbers.
struct Numbers {
    sent: Vec<u64>,
    heard: Vec<u64>,
    handled: u64,
}

const BROADCAST: u32 = 1 << 31;

fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Takes the number of the next message to a rank.
fn next(numbers: &RefCell<Numbers>, target: Rank) -> u64 {
    let sent = &mut numbers.borrow_mut().sent[target.0 as usize];
    *sent += 1;
    *sent - 1
}

/// Checks the order of what comes, and sends on, mostly to itself, as often as stands in the kind.
fn on_message(numbers: &RefCell<Numbers>, message: Message<'_>, outbox: &mut Outbox<'_>) {
    let here = outbox.rank();
    let place = match message.kind & BROADCAST {
        0 => 0,
        _ => here.0 as usize,
    };
    let number = u64::from_le_bytes(message.bytes[8 * place..][..8].try_into().unwrap());
    {
        let mut numbers = numbers.borrow_mut();
        let heard = &mut numbers.heard[message.source.0 as usize];
        assert_eq!(number, *heard, "from {} to {here}", message.source);
        *heard += 1;
        numbers.handled += 1;
    }
    let left = message.kind & !BROADCAST;
    for other in 0..left.min(2) {
        let target = match number % 4 {
            0 => Rank((here.0 + 1 + other) % outbox.size()),
            _ => here,
        };
        let mut bytes = vec![7; message.bytes.len()];
        bytes[..8].copy_from_slice(&next(numbers, target).to_le_bytes());
        outbox.send(target, left - 1, &bytes).unwrap();
    }
}

/// Sends to any rank, mostly itself, by steps of each kind; returns how many messages were handled
/// in the call that sent them, and on how many the handlers of the job counted in all.
fn play(rank: u32, bootstrap: Custom) -> Result<[u64; 2]> {
    let numbers = RefCell::new(Numbers {
        sent: vec![0; 8],
        heard: vec![0; 8],
        handled: 0,
    });
    let round = Cell::new(0u64);
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let size = job.size();
    // So little room that much is spilled.
    let options = StreamOptions {
        run_bytes: 512,
        memory_bytes: 64 << 10,
        origin_maxrpc: 1,
        origin_buftarget_bytes: 2048,
        ..StreamOptions::default()
    };
    let shuffle = job.shuffle("numbers").options(options);
    let shuffle = shuffle.handler(|message, outbox| on_message(&numbers, message, outbox));
    let mut shuffle = shuffle.open()?;
    shuffle.own_at_once()?;
    let rounds = job.stream::<u64>("rounds").handler(|_, items, _| {
        assert!(items.iter().all(|&item| item == round.get()));
    });
    let mut rounds = rounds.open()?;
    rounds.own_at_once()?;
    let (mut state, mut at_once) = (u64::from(rank) + 1, 0);
    let handled = || numbers.borrow().handled;
    for step in 0..12 {
        let ends = step % 4 == 1;
        if ends {
            shuffle.begin_step(Contributors::Local(1))?;
        }
        for _ in 0..random(&mut state) % 30 {
            let target = match random(&mut state) % 4 {
                0 => Rank(random(&mut state) as u32 % size),
                _ => Rank(rank),
            };
            let length = [64, 72, 300, 900, 6_000][random(&mut state) as usize % 5];
            let left = random(&mut state) as u32 % 4;
            let to_all = random(&mut state).is_multiple_of(8);
            loop {
                let mut bytes = vec![7; length];
                let targets = match to_all {
                    true => 0..size,
                    false => target.0..target.0 + 1,
                };
                for (place, target) in bytes.chunks_exact_mut(8).zip(targets.clone()) {
                    place.copy_from_slice(&next(&numbers, Rank(target)).to_le_bytes());
                }
                let before = handled();
                let sent = match to_all {
                    true => shuffle.try_broadcast(BROADCAST | left, &bytes, BroadcastTo::Everyone),
                    false => shuffle.try_send(target, left, &bytes),
                };
                at_once += handled() - before;
                match sent {
                    Ok(()) => break,
                    Err(Error::WouldBlock) => {
                        for target in targets {
                            numbers.borrow_mut().sent[target as usize] -= 1;
                        }
                        shuffle.poll()?;
                        std::thread::yield_now();
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        match step % 4 {
            0 => shuffle.fence()?,
            1 => {
                shuffle.done(1)?;
                shuffle.wait()?;
            }
            _ => drop(shuffle.poll()?),
        }
        for target in 0..size {
            rounds.push(Rank(target), round.get())?;
        }
        rounds.round()?;
        round.set(round.get() + 1);
    }
    shuffle.fence()?;
    let stats = shuffle.stats().expect("no handler runs");
    let sent: u64 = numbers.borrow().sent.iter().sum();
    assert_eq!((stats.sent, stats.delivered), (sent, handled()));
    let mut all = [sent, handled()];
    job.allreduce(&mut all, crate::Reduce::Sum)?;
    assert_eq!(all[0], all[1], "sent and handled");
    job.shutdown()?;
    Ok([at_once, all[1]])
}

#[test]
fn order_is_kept_between_what_is_handled_at_once_and_what_waits() {
    let shapes: [Shape; 6] = [
        (1, |_| 0),
        (2, |_| 0),
        (3, |_| 0),
        (8, |_| 0),
        (4, |rank| rank / 2),
        (7, |rank| rank / 2),
    ];
    for (count, node) in shapes {
        for (rank, outcome) in ranks(count, node, play) {
            match outcome {
                Err(Error::NoProvider { why }) => eprintln!("skipped: {why}"),
                Ok([at_once, all]) => {
                    assert!(
                        (1..all).contains(&at_once),
                        "rank {rank}: {at_once} of {all}"
                    );
                }
                Err(error) => panic!("rank {rank} of {count}: {error}"),
            }
        }
    }
}
