use trihop_transport::bootstrap::Launcher;

use super::*;
use crate::{BroadcastTo, Job, Options};

/// A step in which a job's only rank sends items to itself; what it has pulled.
fn step<T: Item>(conveyor: &mut Conveyor<T, Inline<'_>>, items: &[T]) -> Vec<T> {
    let (mut left, mut pulled) = (items, Vec::new());
    while conveyor.advance(left.is_empty()).unwrap() {
        while let [item, rest @ ..] = left
            && conveyor.push(Rank(0), *item).unwrap()
        {
            left = rest;
        }
        while let Some((_, item)) = conveyor.pull().unwrap() {
            pulled.push(*item);
        }
    }
    pulled
}

#[test]
fn a_conveyor_has_other_items_in_the_next_step() {
    let options = Options {
        launcher: Some(Launcher::Single),
        ..Options::default()
    };
    let job = Job::start(options).unwrap();
    let mut words = Conveyor::over(job.stream::<u64>("items").open().unwrap()).unwrap();
    let numbers: Vec<u64> = (0..10_000).collect();
    assert_eq!(step(&mut words, &numbers), numbers);
    let mut bytes = words.reset_as::<[u8; 3]>().unwrap();
    assert_eq!(step(&mut bytes, &[[1, 2, 3]; 10_000]).len(), 10_000);
    let mut long = bytes.reset_as::<[u64; 1000]>().unwrap();
    assert_eq!(step(&mut long, &[[7; 1000]; 10]), [[7; 1000]; 10]);
    let mut longer = long.reset_as::<[u64; 5000]>().unwrap();
    assert_eq!(step(&mut longer, &[[8; 5000]; 10]), [[8; 5000]; 10]);
    let words = longer.reset_as::<u64>().unwrap();
    let refused = words.reset_as::<u32>().map(drop);
    assert!(matches!(refused, Err(Error::Misuse { .. })));

    // Without its conveyor, a stream is as it was.
    let stream = job.stream::<u64>("again").open().unwrap();
    let mut words = Conveyor::over(stream.clone()).unwrap();
    assert_eq!(step(&mut words, &numbers), numbers);
    drop(words.reset_as::<[u8; 3]>().unwrap());
    for word in 0..5 {
        stream.push(Rank(0), word).unwrap();
    }
    stream.broadcast(5, BroadcastTo::Everyone).unwrap();
    let mut words = Conveyor::over(stream).unwrap();
    let mut pulled = step(&mut words, &[6]);
    pulled.sort_unstable();
    assert_eq!(pulled, [0, 1, 2, 3, 4, 5, 6]);

    let stream = job.untyped("sizes", 8).open().unwrap();
    let mut conveyor = UntypedConveyor::over(stream).unwrap();
    while conveyor.advance(true).unwrap() {}
    for impossible in [0, (64 << 20) + 1] {
        let refused = conveyor.reset_to(impossible);
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    }
    conveyor.reset_to(12).unwrap();
    assert!(conveyor.push(Rank(0), &[0; 8]).is_err());
    for _ in 0..5 {
        assert!(conveyor.push(Rank(0), &[1; 12]).unwrap());
    }
    // As where another rank believes in another size.
    conveyor.belt.item_bytes = 8;
    while conveyor.belt.arrived.is_empty() {
        conveyor.advance(false).unwrap();
    }
    let refused = conveyor.pull(1).map(drop);
    assert!(matches!(refused, Err(Error::BadPeer { .. })), "{refused:?}");
    assert_eq!(conveyor.pull(1), Ok(None), "it is told once");
}
