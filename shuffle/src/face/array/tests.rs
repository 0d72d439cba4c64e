use super::*;
use crate::conformance::ranks::ranks;
use crate::face::codec::Plain;
use crate::{Job, Options};
use trihop_transport::bootstrap::{Custom, Launcher};

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

/// Elements move about while items, and news for all, are on their way to them.
fn wander(rank: u32, bootstrap: Custom) -> Result<(Vec<(u64, Had)>, u64)> {
    let options = Options {
        loopback: true,
        ..Options::default()
    };
    let job = Job::start_with(options, Box::new(bootstrap))?;
    let array = job.array::<Had, u64, _>("wanderers", Plain);
    let array = array.open(|key, had, item, outbox| {
        match item {
            ALL => had[2] += 1,
            _ => (had[0], had[1]) = (had[0] + item, had[1] + 1),
        }
        if mixed(key + had[1] + had[2] * 7).is_multiple_of(5) {
            had[3] += 1;
            let to = mixed(key ^ had[0]) % u64::from(outbox.size());
            outbox.migrate(Rank(to as u32)).unwrap();
        }
        // Some go on to another element.
        if item % 7 == 1 && item < ALL {
            outbox.push((key + item) % KEYS, &(item - 1)).unwrap();
        }
    })?;
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
                let here = array.with(|key, _| key);
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
        job.barrier()?;
        array.with(|key, had| {
            assert_eq!(had[2], NEWS * u64::from(RANKS), "news of element {key}");
            had[2] = 0;
        });
        job.barrier()?;
    }
    let late = array.late();
    let elements = array.shutdown()?;
    job.shutdown()?;
    Ok((elements, late))
}

#[test]
fn elements_move_and_each_item_finds_its_own_once() {
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
fn what_nobody_has_ends_the_job() {
    let options = Options {
        launcher: Some(Launcher::Single),
        ..Options::default()
    };
    let job = Job::start(options).unwrap();
    let array = job.array::<u64, u64, _>("few", Plain);
    let array = array.open(|_, sum, item, _| *sum += item).unwrap();
    array.insert(7, 1).unwrap();
    array.push(7, &2).unwrap();
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
    assert!(matches!(failed, Error::BadPeer { .. }), "{failed:?}");
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
fn an_element_that_comes_ahead_of_a_broadcast_it_has_had_does_not_get_it_again() {
    let options = Options {
        launcher: Some(Launcher::Single),
        ..Options::default()
    };
    let job = Job::start(options).unwrap();
    let array = job.array::<u64, u64, _>("ahead", Plain);
    let array = array.open(|_, sum, item, _| *sum += item).unwrap();
    array.insert(7, 0).unwrap();
    // As it would come from another rank: its key, one move, and one broadcast of rank 0.
    let came = [9u64, 1, 1, 0, 1, 100].map(u64::to_le_bytes).concat();
    array.send(Rank(0), ELEMENT, &came).unwrap();
    array.fence().unwrap();
    // Elements may send while they are used.
    array.with(|key, _| array.push(key, &1000).unwrap());
    array.broadcast(&1).unwrap();
    array.broadcast(&10).unwrap();
    let mut elements = array.shutdown().unwrap();
    elements.sort_unstable();
    assert_eq!(elements, [(7, 1011), (9, 1110)]);
    job.shutdown().unwrap();
}
