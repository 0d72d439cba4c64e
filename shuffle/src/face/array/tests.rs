// Atomics come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

mod moves;
mod steps;

use std::sync::OnceLock;

use super::*;
use crate::conformance::ranks::ranks;
use crate::face::codec::Plain;
use crate::{Job, Options, over, threaded};
use trihop_transport::bootstrap::{Custom, Launcher};
use trihop_transport::sync::{AtomicU64, Ordering::Relaxed};

const RANKS: u32 = 4;
const KEYS: u64 = 24;
const ITEMS: u64 = 600;
const NEWS: u64 = 5;
/// An item that is news to all; others are added up.
const ALL: u64 = 1 << 40;

/// What an element has had: a sum, items, news, moves.
type Had = [u64; 4];

fn mixed(number: u64) -> u64 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) ^ number >> 3
}

type Wanderers<S> = over::Array<Had, u64, Plain, S>;

/// What an element makes of an item: some have it move, some go on to another element.
fn meet<S: Seat>(
    key: u64,
    had: &mut Had,
    item: u64,
    outbox: &mut over::ArrayOutbox<'_, Had, u64, Plain, S>,
) {
    match item {
        ALL => had[2] += 1,
        _ => (had[0], had[1]) = (had[0] + item, had[1] + 1),
    }
    if mixed(key + had[1] + had[2] * 7).is_multiple_of(5) {
        had[3] += 1;
        let to = mixed(key ^ had[0]) % u64::from(outbox.size());
        outbox.migrate(Rank(to as u32)).unwrap();
    }
    if item % 7 == 1 && item < ALL {
        outbox.push((key + item) % KEYS, &(item - 1)).unwrap();
    }
}

fn loopback() -> Options {
    Options {
        loopback: true,
        ..Options::default()
    }
}

fn single() -> Options {
    Options {
        launcher: Some(Launcher::Single),
        ..Options::default()
    }
}

#[test]
fn items_of_an_array_need_nothing_but_their_run() {
    let job = Job::start(single()).unwrap();
    let array = job.array::<u64, u64, _>("array", Plain);
    let array = array.open(|_, sum, item, _| *sum += item).unwrap();
    array.insert(5, 0).unwrap();
    let is_open = || array.handle.of.is_open();
    for item in 0..3 {
        array.push(5, &item).unwrap();
    }
    assert!(is_open());
    array.push(5, &3).unwrap();
    array.try_push(5, &4).unwrap();
    assert!(is_open());
    array.fence().unwrap();
    assert_eq!(array.remove(5).unwrap(), Some(10));
    drop(array);
    job.shutdown().unwrap();
}

fn is_open_here<E, T, C, S: Seat>(array: &Array<E, T, C, S>) -> bool {
    S::window(&array.handle.of).is_open_here()
}

/// Of the thread that calls the handler.
#[test]
fn items_of_a_handler_with_threads_need_nothing_but_their_run() {
    if !trihop_transport::park::can_lease() {
        eprintln!("skipped: no leases on this machine");
        return;
    }
    let job = threaded::Job::start(single()).unwrap();
    let own = Arc::new(OnceLock::<threaded::Array<u64, u64, Plain>>::new());
    let (of, opened, handled) = (Arc::clone(&own), Arc::new([0, 0].map(AtomicU64::new)), 20);
    let counts = Arc::clone(&opened);
    let array = job.array::<u64, u64, _>("pushed on", Plain);
    let array = array.open(move |key, sum, item, outbox| {
        *sum += 1;
        for _ in 0..item {
            outbox.push(key, &0).unwrap();
            let is_open = of.get().is_some_and(is_open_here);
            counts[0].fetch_add(u64::from(is_open), Relaxed);
        }
        counts[1].fetch_add(1, Relaxed);
    });
    let array = array.unwrap();
    own.set(array.clone()).unwrap_or_else(|_| unreachable!());
    array.insert(7, 0).unwrap();
    array.fence().unwrap();
    for time in 1..=100 {
        array.push(7, &handled).unwrap();
        // Not by a call that calls handlers on this thread, which has windows too.
        while opened[1].load(Relaxed) < (handled + 1) * time {
            std::thread::yield_now();
        }
    }
    assert!(opened[0].load(Relaxed) > 0, "none went without the turn");
    array.fence().unwrap();
    assert_eq!(array.remove(7).unwrap(), Some(2100));
    drop((array, own));
    job.shutdown().unwrap();
}

#[test]
fn what_a_rank_pushes_to_its_own_elements_is_handled_at_once_where_it_may_be() {
    let job = Job::start(single()).unwrap();
    let mut array: crate::Array<'_, u64, u64, Plain> = job
        .array("at once", Plain)
        .open(|key, sum: &mut u64, item: u64, outbox| {
            *sum += item;
            if item == 3 {
                outbox.push(key, &2).unwrap();
            }
        })
        .unwrap();
    array.insert(7, 0).unwrap();
    array.fence().unwrap();
    let sum = |array: &crate::Array<'_, u64, u64, Plain>| array.with(|_, sum| *sum).unwrap()[0];
    array.push(7, &1).unwrap();
    assert_eq!(sum(&array), 0, "nobody has asked for that");
    array.fence().unwrap();
    array.own_at_once().unwrap();
    array.push(7, &10).unwrap();
    array.try_push(7, &10).unwrap();
    array.extend([(7, &10)]).unwrap();
    assert_eq!(sum(&array), 31);
    // What is pushed while elements are in use comes later, and behind it so does all else.
    array.with(|key, _| array.push(key, &100).unwrap()).unwrap();
    assert_eq!(sum(&array), 31);
    array.push(7, &100).unwrap();
    assert_eq!(sum(&array), 31);
    array.fence().unwrap();
    assert_eq!(sum(&array), 231);
    // What the handler pushes goes the usual way.
    array.push(7, &3).unwrap();
    assert_eq!(sum(&array), 234);
    array.fence().unwrap();
    assert_eq!(sum(&array), 236);
    assert!(matches!(
        array.step_of(End::Round).err(),
        Some(Error::Misuse { .. })
    ));
    let step = array.step_of(End::Fence).unwrap();
    let step = step.at_start(|array| array.push(7, &3).unwrap());
    let started = step.begin().unwrap();
    array.wait().unwrap();
    drop(started);
    assert_eq!(sum(&array), 241);
    // Two jobs: no handler of the one gets elements while this thread has those of the other.
    let other = Job::start(single()).unwrap();
    let others = other.array::<u64, u64, _>("other", Plain);
    let others = others.open(|_, _, _, _| {}).unwrap();
    others.insert(0, 0).unwrap();
    others.fence().unwrap();
    others.with(|_, _| array.push(7, &1).unwrap()).unwrap();
    array.fence().unwrap();
    assert_eq!(sum(&array), 242);
    other.shutdown().unwrap();
    job.shutdown().unwrap();

    let job = threaded::Job::start(single()).unwrap();
    let array = job.array::<u64, u64, _>("threads", Plain);
    let mut array = array.open(|_, _, _, _| {}).unwrap();
    assert!(matches!(array.own_at_once(), Err(Error::Config { .. })));
    job.shutdown().unwrap();
}

/// Elements move about while items, and news for all, are on their way to them.
fn wander<S: Seat>(
    job: over::Job<S>,
    array: Wanderers<S>,
    barrier: impl Fn(&over::Job<S>) -> Result<()>,
) -> Result<(Vec<(u64, Had)>, u64)> {
    let rank = job.rank().0;
    for key in (0..KEYS).filter(|key| mixed(*key) % u64::from(RANKS) == u64::from(rank)) {
        array.insert(key, Had::default())?;
        assert!(matches!(
            array.insert(key, Had::default()),
            Err(Error::Misuse { .. })
        ));
    }
    array.fence()?;
    for step in 0..4 {
        array.begin_step()?;
        for number in 0..ITEMS {
            array.push(mixed(number + step) % KEYS, &(number % 50))?;
            if number % (ITEMS / NEWS) == 3 {
                array.broadcast(&ALL)?;
            }
            if number % 50 == 0 {
                let here = array.with(|key, _| key)?;
                let first = here.first().copied().unwrap_or(0);
                match array.migrate(first, Rank((rank + 1) % RANKS)) {
                    // A handler may have had it move in between.
                    Ok(()) | Err(Error::Misuse { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        // For as many elements each, wherever they are.
        array.done(KEYS / u64::from(RANKS))?;
        array.wait()?;
        barrier(&job)?;
        array.with(|key, had| {
            assert_eq!(had[2], NEWS * u64::from(RANKS), "news of element {key}");
            had[2] = 0;
        })?;
        barrier(&job)?;
    }
    let late = array.late()?;
    let elements = array.shutdown()?;
    job.shutdown()?;
    Ok((elements, late))
}

fn wander_inline(_: u32, bootstrap: Custom) -> Result<(Vec<(u64, Had)>, u64)> {
    let job = Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job.array("wanderers", Plain).open(meet)?;
    wander(job, array, |job| job.barrier())
}

fn wander_threaded(_: u32, bootstrap: Custom) -> Result<(Vec<(u64, Had)>, u64)> {
    let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job.array("wanderers", Plain).open(meet)?;
    wander(job, array, |job| job.barrier())
}

type Wander = fn(u32, Custom) -> Result<(Vec<(u64, Had)>, u64)>;

fn each_item_finds_its_element_once(wander: Wander) {
    let (mut elements, mut late) = (Vec::new(), 0);
    for (rank, outcome) in ranks(RANKS, |rank| rank / 2, wander) {
        match outcome {
            Ok((mine, so_late)) => (elements.extend(mine), late += so_late).1,
            Err(Error::NoProvider { why }) => return eprintln!("skipped: {why}"),
            Err(error) => panic!("rank {rank}: {error}"),
        }
    }
    elements.sort_unstable();
    let keys: Vec<u64> = elements.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, (0..KEYS).collect::<Vec<_>>());
    let all = |which: usize| elements.iter().map(|(_, had)| had[which]).sum::<u64>();
    assert!(all(3) > 100 && late > 100, "{} moves, {late} late", all(3));
    // What was sent, and what handlers made of it.
    let per_sender: (u64, u64) = (0..ITEMS)
        .map(|number| number % 50)
        .fold((0, 0), |sums, item| {
            let more = if item % 7 == 1 { (1, item - 1) } else { (0, 0) };
            (sums.0 + 1 + more.0, sums.1 + item + more.1)
        });
    let (count, sum) = (all(1), all(0));
    assert_eq!(
        count % per_sender.0,
        0,
        "{count} items, {per_sender:?} of each"
    );
    assert_eq!(sum, count / per_sender.0 * per_sender.1);
}

#[test]
fn elements_move_and_each_item_finds_its_own_once() {
    each_item_finds_its_element_once(wander_inline);
}

#[test]
fn elements_of_threaded_jobs_move_and_each_item_finds_its_own_once() {
    each_item_finds_its_element_once(wander_threaded);
}

#[test]
fn what_nobody_has_ends_the_job() {
    let job = Job::start(single()).unwrap();
    let array = job.array("few", Plain).open(|_, sum, item, _| *sum += item);
    ends_by_a_lost_item(array.unwrap());
    let job = Job::start(single()).unwrap();
    let array = job
        .array("few", Plain)
        .open(|_, sum: &mut u64, item: u64, _| *sum += item);
    let mut array: over::Array<u64, u64, Plain, _> = array.unwrap();
    array.own_at_once().unwrap();
    let lost = array.push(7, &1).unwrap_err();
    assert!(
        matches!(lost, Error::NoElement { rank: 0, key: 7 }),
        "{lost}"
    );
    assert!(array.fence().is_err(), "the job has ended");
    let job = threaded::Job::start(single()).unwrap();
    let array = job.array("few", Plain).open(|_, sum, item, _| *sum += item);
    ends_by_a_lost_item(array.unwrap());
}

fn ends_by_a_lost_item<S: Seat>(array: over::Array<u64, u64, Plain, S>) {
    array.insert(7, 1).unwrap();
    array.push(7, &2).unwrap();
    array.try_push(7, &0).unwrap();
    array.fence().unwrap();
    assert!(matches!(
        array.migrate(8, Rank(0)),
        Err(Error::Misuse { .. })
    ));
    assert!(matches!(array.migrate(7, Rank(1)), Err(Error::Rank { .. })));
    array.migrate(7, Rank(0)).unwrap();
    assert_eq!(array.remove(7).unwrap(), Some(3));
    assert_eq!(array.remove(7).unwrap(), None);
    array.fence().unwrap();
    array.push(7, &1).unwrap();
    let failed = array.fence().unwrap_err();
    assert!(
        matches!(failed, Error::NoElement { rank: 0, key: 7 }),
        "{failed}"
    );
}

#[test]
fn the_owner_believes_the_latest_move() {
    let mut table = Table::<u64>::new();
    let place = |table: &Table<u64>| table.elsewhere[&7].rank;
    table.note(7, Some(Rank(1)), 0).unwrap();
    table.note(7, Some(Rank(3)), 2).unwrap();
    table
        .note(7, Some(Rank(2)), 1)
        .expect("late news are no error");
    assert_eq!(place(&table), Some(Rank(3)));
    table.note(7, Some(Rank(3)), 2).expect("known already");
    table
        .note(7, Some(Rank(1)), 2)
        .expect_err("one key was inserted twice");
    table.note(7, None, 3).unwrap();
    assert_eq!(place(&table), None);
    table.settle(|_| true);
    assert!(table.knows(7), "news of its end may be of this step");
    table.settle(|_| true);
    assert!(!table.knows(7), "it may be inserted again");
}

#[test]
fn a_key_that_two_ranks_insert_is_named() {
    let job = Job::start(single()).unwrap();
    let array = job.array::<u64, u64, _>("twice", Plain);
    let array = array.open(|_, sum, item, _| *sum += item).unwrap();
    for _ in 0..2 {
        let key = 7u64.to_le_bytes();
        array.shuffle().send(Rank(0), INSERTED, &key).unwrap();
    }
    let failed = array.fence().unwrap_err().to_string();
    assert!(failed.contains("element 7 was inserted twice"), "{failed}");
}

#[test]
fn an_element_that_comes_ahead_of_a_broadcast_it_has_had_does_not_get_it_again() {
    let job = Job::start(single()).unwrap();
    let array = job.array::<u64, u64, _>("ahead", Plain);
    let array = array.open(|_, sum, item, _| *sum += item).unwrap();
    array.insert(7, 0).unwrap();
    // As it would come from another rank: its key, one move, and one broadcast of rank 0.
    let came = [9u64, 1, 1, 0, 1, 100].map(u64::to_le_bytes).concat();
    array.shuffle().send(Rank(0), ELEMENT, &came).unwrap();
    array.fence().unwrap();
    // Elements may send while they are used.
    array
        .with(|key, _| array.push(key, &1000).unwrap())
        .unwrap();
    array.broadcast(&1).unwrap();
    array.broadcast(&10).unwrap();
    let mut elements = array.shutdown().unwrap();
    elements.sort_unstable();
    assert_eq!(elements, [(7, 1011), (9, 1110)]);
    job.shutdown().unwrap();
}

/// While elements are in use, calls that need them are refused, and none waits for ever.
fn refuses_nested<S: Seat>(array: &over::Array<u64, u64, Plain, S>) {
    let nested = |refused: Result<()>| {
        assert!(matches!(refused, Err(Error::Nested(_))), "{refused:?}");
    };
    nested(array.insert(9, 0));
    nested(array.remove(7).map(drop));
    nested(array.migrate(7, Rank(0)));
    nested(array.count().map(drop));
    nested(array.late().map(drop));
    nested(array.with(|_, _| ()).map(drop));
    nested(array.fence());
    nested(array.begin_step());
}

#[test]
fn calls_that_need_elements_are_refused_while_they_are_in_use() {
    let job = Job::start(single()).unwrap();
    let array = job
        .array("inline", Plain)
        .open(|_, sum, item, _| *sum += item);
    let array = array.unwrap();
    array.insert(7, 0).unwrap();
    array.with(|_, _| refuses_nested(&array)).unwrap();
    array
        .with(|_, _| array.push(7, &1))
        .unwrap()
        .remove(0)
        .unwrap();
    assert_eq!(array.shutdown().unwrap(), [(7, 1)]);

    let job = threaded::Job::start(single()).unwrap();
    let own = Arc::new(OnceLock::<threaded::Array<u64, u64, Plain>>::new());
    let of_handler = Arc::clone(&own);
    let array = job
        .array("threaded", Plain)
        .open(move |key, sum, item, outbox| {
            *sum += item;
            if item == 2 {
                let own = of_handler.wait();
                refuses_nested(own);
                own.push(key, &10).unwrap();
                outbox.push(key, &20).unwrap();
                own.broadcast(&100).unwrap();
                outbox.broadcast(&200).unwrap();
            }
        });
    assert!(own.set(array.unwrap()).is_ok());
    let array = own.wait();
    array.insert(7, 0).unwrap();
    array.with(|_, _| refuses_nested(array)).unwrap();
    array.push(7, &2).unwrap();
    array.fence().unwrap();
    assert_eq!(array.close().unwrap(), [(7, 332)]);
    job.shutdown().unwrap();
}

/// Pushes while it has the elements for which handlers wait, until there is no room.
fn fill<S: Seat>(job: over::Job<S>, array: over::Array<u64, u64, Plain, S>) -> Result<()> {
    array.insert(7, 0)?;
    let fill = |key: u64, _: &mut u64| {
        (0..).find(|_| match array.push(key, &1) {
            Ok(()) => false,
            Err(Error::WouldBlock) => true,
            Err(error) => panic!("{error}"),
        })
    };
    let pushed = array.with(fill)?;
    array.fence()?;
    assert_eq!(array.shutdown()?, [(7, pushed[0].unwrap())]);
    job.shutdown()
}

fn fill_inline(_: u32, bootstrap: Custom) -> Result<()> {
    let job = Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job
        .array("sums", Plain)
        .open(|_, sum, item, _| *sum += item);
    fill(job, array?)
}

fn fill_threaded(_: u32, bootstrap: Custom) -> Result<()> {
    let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job
        .array("sums", Plain)
        .open(|_, sum, item, _| *sum += item);
    fill(job, array?)
}

#[test]
fn who_has_the_elements_waits_for_no_room() {
    for fill in [fill_inline, fill_threaded] as [fn(u32, Custom) -> Result<()>; 2] {
        ranks(1, |_| 0, fill).remove(0).1.unwrap();
    }
}

/// Bytes of any length.
#[derive(Clone)]
struct Bytes;

impl Codec<Vec<u8>> for Bytes {
    fn encode(&self, value: &Vec<u8>, bytes: &mut Vec<u8>) -> Result<(), String> {
        bytes.extend_from_slice(value);
        match value.len() {
            13 => Err("13 is no length".to_owned()),
            _ => Ok(()),
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        Ok(bytes.to_vec())
    }
}

const LARGE: usize = 100_000;

/// Elements that are longer than any queue go round, faster than they can leave.
fn carry<S: Seat>(
    job: over::Job<S>,
    array: over::Array<Vec<u8>, Vec<u8>, Bytes, S>,
) -> Result<usize> {
    let (rank, size) = (u64::from(job.rank().0), u64::from(job.size()));
    for number in 0..20 {
        array.insert(
            number * size + rank,
            vec![number as u8; LARGE + number as usize],
        )?;
    }
    array.fence()?;
    for round in 1..=size {
        let keys = array.with(|key, _| key)?;
        assert_eq!(keys.len(), 20);
        // Nobody's elements leave before everybody has counted its own.
        array.fence()?;
        for key in keys {
            array.push(key, &vec![round as u8; 3])?;
            array.migrate(key, Rank(((rank + 1) % size) as u32))?;
            assert_eq!(array.remove(key)?, None);
        }
        array.fence()?;
    }
    array.with(|key, bytes| {
        let number = (key / size) as usize;
        assert_eq!(key % size, rank, "it is back home");
        assert_eq!(bytes.len(), LARGE + number + 3 * size as usize);
        assert!(bytes[..LARGE].iter().all(|&byte| byte == number as u8));
        let rounds: Vec<u8> = (1..=size as u8).flat_map(|round| [round; 3]).collect();
        assert_eq!(bytes[LARGE + number..], rounds);
    })?;
    array.insert(1000 + rank, vec![0; 13])?;
    let refused = array.migrate(1000 + rank, Rank(0));
    if rank > 0 {
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    }
    let count = array.shutdown()?.len();
    job.shutdown()?;
    Ok(count)
}

fn carry_inline(_: u32, bootstrap: Custom) -> Result<usize> {
    let job = Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job
        .array("bytes", Bytes)
        .open(|_, to, item, _| to.extend(item))?;
    carry(job, array)
}

fn carry_threaded(_: u32, bootstrap: Custom) -> Result<usize> {
    let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
    let array = job
        .array("bytes", Bytes)
        .open(|_, to, item, _| to.extend(item))?;
    carry(job, array)
}

#[test]
fn elements_longer_than_a_queue_move_and_what_cannot_be_packed_stays() {
    for carry in [carry_inline, carry_threaded] as [fn(u32, Custom) -> Result<usize>; 2] {
        for (rank, outcome) in ranks(3, |_| 0, carry) {
            assert_eq!(
                outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}")),
                21
            );
        }
    }
}

/// What threads of one process push to an element keeps the order of each thread, while others move.
fn push_by_threads(_: u32, bootstrap: Custom) -> Result<()> {
    const THREADS: u64 = 3;
    let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
    let (size, rank) = (u64::from(job.size()), u64::from(job.rank().0));
    // The next number of each thread of each rank.
    let array = job.array::<[u64; 8], [u64; 2], _>("numbers", Plain);
    let array = array.open(|key, next, [from, number], outbox| {
        if key % 2 == 0 {
            assert_eq!(next[from as usize], number, "element {key}, thread {from}");
        } else if number % 10 == 0 {
            let to = (u64::from(outbox.rank().0) + from) % u64::from(outbox.size());
            outbox.migrate(Rank(to as u32)).unwrap();
        }
        next[from as usize] += 1;
    })?;
    (0..4).try_for_each(|key| array.insert(key * size + rank, [0; 8]))?;
    array.fence()?;
    std::thread::scope(|scope| {
        let push = |thread| {
            let array = &array;
            move || {
                for number in 0..500 {
                    let item = [rank * THREADS + thread, number];
                    (0..4 * size).try_for_each(|key| array.push(key, &item))?;
                    array.with(|_, next| assert!(next[0] <= 500))?;
                }
                Result::<()>::Ok(())
            }
        };
        let threads = [0, 1, 2].map(|thread| scope.spawn(push(thread)));
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap())
    })?;
    array.fence()?;
    for (key, next) in array.shutdown()? {
        assert!(
            next[..(THREADS * size) as usize]
                .iter()
                .all(|&next| next == 500),
            "{key}"
        );
    }
    job.shutdown()
}

#[test]
fn threads_that_push_at_once_keep_their_order_and_lose_nothing() {
    for (rank, outcome) in ranks(2, |_| 0, push_by_threads) {
        outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

#[test]
fn handlers_of_other_streams_send_to_an_array() {
    let job = Job::start(single()).unwrap();
    let array = job
        .array::<u64, u64, _>("sums", Plain)
        .open(|_, sum, item, _| *sum += item);
    let array = std::rc::Rc::new(array.unwrap());
    let of_handler = std::rc::Rc::clone(&array);
    let numbers = job.shuffle("numbers").handler(move |message, outbox| {
        let mut outbox = outbox.to(&of_handler).unwrap();
        outbox.push(7, &u64::from(message.kind)).unwrap();
        let refused = outbox.migrate(Rank(0));
        assert!(matches!(refused, Err(Error::Misuse { .. })), "{refused:?}");
        let refused = of_handler.insert(8, 0);
        assert!(matches!(refused, Err(Error::Nested(_))), "{refused:?}");
    });
    let numbers = numbers.open().unwrap();
    array.insert(7, 0).unwrap();
    (1..=4).for_each(|kind| numbers.send(Rank(0), kind, b"").unwrap());
    job.fence().unwrap();
    assert_eq!(array.close().unwrap(), [(7, 10)]);
    numbers.shutdown().unwrap();

    let job = threaded::Job::start(single()).unwrap();
    let array = job
        .array::<u64, u64, _>("sums", Plain)
        .open(|_, sum, item, _| *sum += item);
    let array = Arc::new(array.unwrap());
    let of_handler = Arc::clone(&array);
    let numbers = job.shuffle("numbers").handler(move |message, _| {
        of_handler.push(7, &u64::from(message.kind)).unwrap();
        of_handler.insert(u64::from(message.kind), 1).unwrap();
        of_handler
            .migrate(u64::from(message.kind), Rank(0))
            .unwrap();
    });
    let numbers = numbers.open().unwrap();
    array.insert(7, 0).unwrap();
    (1..=4).for_each(|kind| numbers.send(Rank(0), kind, b"").unwrap());
    job.fence().unwrap();
    let mut elements = array.close().unwrap();
    elements.sort_unstable();
    assert_eq!(elements, [(1, 1), (2, 1), (3, 1), (4, 1), (7, 10)]);
    job.shutdown().unwrap();
}
