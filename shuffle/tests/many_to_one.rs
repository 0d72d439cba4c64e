//! What all ranks send to one at once, over adapters that send so many bytes in a tick and take in
//! as many, and to which a message is as much work as some hundreds of bytes: along graphs in which
//! a node hears few others, what others have for it comes together on its way.

use std::cell::Cell;

use trihop_shuffle::route::{JobRoute, RouteName};
use trihop_shuffle::simulation::{Simulation, SimulationOptions};
use trihop_shuffle::{Error, Rank, StreamOptions, Topology};
use trihop_transport::sim::SimOptions;

/// Bytes that an adapter sends in a tick, and takes in.
const BYTES_PER_TICK: usize = 512;

/// What a message takes beside its bytes. At 25 GB/s and 50 million messages a second, as adapters
/// have them, it is 500.
const BYTES_PER_MESSAGE: usize = 500;

const NANOSECONDS_PER_TICK: u64 = 1000;

/// Nodes, of one rank each.
const NODES: u32 = 256;

/// What one route makes of it.
#[derive(Debug)]
struct Measured {
    /// Links of a rank at most: those that it may be sent to over all at once.
    links: u32,
    /// Until all has come.
    ticks: u64,
    /// Batches that came to the target.
    batches: u64,
}

/// Each rank sends one record to the first one.
fn gather(route: &str, bytes: usize) -> Measured {
    let topology = Topology::from_node_sizes(&[1; NODES as usize], Rank(0)).unwrap();
    let route: RouteName = route.parse().unwrap();
    let links = JobRoute::new(route, &topology).unwrap().most_links();
    let options = SimulationOptions {
        network: SimOptions {
            bytes_per_tick: BYTES_PER_TICK,
            bytes_per_message: BYTES_PER_MESSAGE,
            ..SimulationOptions::default().network
        },
        stream: StreamOptions {
            route,
            ..StreamOptions::default()
        },
        ..SimulationOptions::default()
    };
    let came = Cell::new(0);
    let mut job = Simulation::new(&topology, options, |_, _, _| came.set(came.get() + 1)).unwrap();
    let record = vec![7; bytes];
    let mut measured = (0, 0);
    // Tables grow in the first turns.
    for turn in 1..=4 {
        let (begun, before) = (job.now_ns(), batches(&job));
        for source in 0..NODES {
            while let Err(why) = job.try_send(Rank(source), Rank(0), 0, &record) {
                assert!(matches!(why, Error::WouldBlock), "{why}");
                assert!(job.step().unwrap(), "no room, and all sleep");
            }
        }
        while came.get() < turn * NODES {
            assert!(job.step().unwrap(), "all sleep, and {} came", came.get());
        }
        let ticks = (job.now_ns() - begun) / NANOSECONDS_PER_TICK;
        measured = (ticks, batches(&job) - before);
        job.fence().unwrap();
    }
    let (ticks, batches) = measured;
    Measured {
        links,
        ticks,
        batches,
    }
}

fn batches(job: &Simulation<'_>) -> u64 {
    job.stats(Rank(0)).batches_received
}

#[test]
fn a_graph_of_few_neighbours_takes_what_many_send_to_one_sooner() {
    for bytes in [8, 64, 256] {
        let [all, rows, cube] = ["three-hop", "node-mesh:16x16", "node-mesh:8x8x4"].map(|route| {
            let measured = gather(route, bytes);
            eprintln!("{route}, {bytes} bytes: {measured:?}");
            measured
        });
        assert_eq!([all.links, rows.links, cube.links], [255, 30, 17]);
        // A batch of its own of each node, where they do not come together.
        assert!(all.batches >= u64::from(NODES) - 1, "{all:?}");
        for few in [rows, cube] {
            assert!(few.batches * 4 <= all.batches, "{few:?} beside {all:?}");
            assert!(few.ticks * 2 <= all.ticks, "{few:?} beside {all:?}");
        }
    }
}
