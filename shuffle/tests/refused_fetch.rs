//! A fetch that the provider refuses for the moment is tried again, although nothing else is left
//! to wake the rank.

use std::cell::Cell;

use trihop_shuffle::simulation::{Simulation, SimulationOptions};
use trihop_shuffle::{Rank, Shares, StreamOptions, Topology};
use trihop_transport::link::{Limits, Mover};
use trihop_transport::sim::{Rules, SimOptions};

/// Enough that a refusal meets a rank with nothing else to do, and again when it looks once more
/// before it sleeps.
const SEEDS: u64 = 1000;

/// One record for a rank on another node, where every second post is refused. Returns whether it
/// was announced, and whether it has arrived when all sleep.
fn one_record(mover: Mover, seed: u64) -> (bool, bool) {
    let topology = Topology::from_node_sizes(&[1, 1], Rank(0)).unwrap();
    let options = SimulationOptions {
        network: SimOptions {
            refuses_areas: false,
            seed,
            max_delay: 0,
            refuse_one_in: 2,
            bytes_per_tick: 0,
            bytes_per_message: 0,
            kept_bytes: 0,
            limits: Limits {
                eager_bytes: 256,
                mover,
                ..SimOptions::default().limits
            },
            rules: Rules::default(),
        },
        stream: StreamOptions {
            remote_buftarget_bytes: 1,
            given_shares: Some(Shares {
                small_slot_bytes: 256,
                ..Shares::default()
            }),
            ..StreamOptions::default()
        },
        ..SimulationOptions::default()
    };
    let arrived = Cell::new(0);
    let mut job = Simulation::new(&topology, options, |_, message, _| {
        assert_eq!(message.bytes, [7; 3000]);
        arrived.set(arrived.get() + 1);
    })
    .unwrap();
    job.try_send(Rank(0), Rank(1), 0, &[7; 3000]).unwrap();
    job.settle().unwrap();
    (job.stats(Rank(1)).announced > 0, arrived.get() == 1)
}

#[test]
fn a_fetch_that_was_refused_lets_nobody_sleep_for_good() {
    for mover in [Mover::Segments, Mover::Read] {
        for seed in 0..SEEDS {
            let (announced, arrived) = one_record(mover, seed);
            assert!(announced, "{mover:?}, seed {seed}: sent without asking");
            assert!(
                arrived,
                "{mover:?}, seed {seed}: all sleep, and the record was not fetched"
            );
        }
    }
}
