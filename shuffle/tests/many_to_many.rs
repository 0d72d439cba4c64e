//! What all ranks send to all at once, over adapters that send so many bytes in a tick and take in
//! as many.

use std::cell::Cell;

use trihop_shuffle::simulation::{Simulation, SimulationOptions};
use trihop_shuffle::{Error, Rank, Topology};
use trihop_transport::sim::SimOptions;

/// Bytes that an adapter sends in a tick, and takes in.
const BYTES_PER_TICK: u64 = 512;

const NANOSECONDS_PER_TICK: u64 = 1000;

/// The order in which each rank sends to all.
#[derive(Debug, Clone, Copy)]
enum Order {
    Up,
    Down,
    FromOwn,
}

/// Each of so many nodes sends one record to each in this order: the ticks until all have come, and those that the busiest adapter needs for its bytes.
fn exchange(nodes: u32, bytes: usize, order: Order) -> (u64, u64) {
    let topology = Topology::from_node_sizes(&vec![1; nodes as usize], Rank(0)).unwrap();
    let options = SimulationOptions {
        network: SimOptions {
            bytes_per_tick: BYTES_PER_TICK as usize,
            ..SimulationOptions::default().network
        },
        ..SimulationOptions::default()
    };
    let came = Cell::new(0);
    let mut job = Simulation::new(&topology, options, |_, _, _| came.set(came.get() + 1)).unwrap();
    let sent = |job: &Simulation<'_>| {
        let ranks = (0..nodes).map(|rank| job.stats(Rank(rank)).wire_bytes);
        ranks.collect::<Vec<u64>>()
    };
    let record = vec![7; bytes];
    let mut measured = (0, 0);
    // Tables grow in the first turns.
    for turn in 1..=4 {
        let (begun, before) = (job.now_ns(), sent(&job));
        for (source, step) in (0..nodes * nodes).map(|pair| (pair / nodes, pair % nodes)) {
            let target = match order {
                Order::Up => step,
                Order::Down => nodes - 1 - step,
                Order::FromOwn => (source + step) % nodes,
            };
            while let Err(why) = job.try_send(Rank(source), Rank(target), 0, &record) {
                assert!(matches!(why, Error::WouldBlock), "{why}");
                assert!(job.step().unwrap(), "no room, and all sleep");
            }
        }
        while came.get() < turn * nodes * nodes {
            assert!(job.step().unwrap(), "all sleep, and {} came", came.get());
        }
        let ticks = (job.now_ns() - begun) / NANOSECONDS_PER_TICK;
        let bytes = sent(&job).into_iter().zip(before);
        let bytes = bytes.map(|(after, before)| after - before);
        measured = (ticks, bytes.max().unwrap_or(0).div_ceil(BYTES_PER_TICK));
        job.fence().unwrap();
    }
    measured
}

/// Where each rank would serve its targets in the same order, one target after the other would have
/// all at once, while the others' adapters had nothing to take in: twice as long.
#[test]
fn what_all_send_to_all_takes_as_long_as_its_bytes() {
    let short = [8, 32, 64].map(|nodes| [256, 1024, 4096].map(|bytes| (nodes, bytes, Order::Up)));
    let down = [(8, 1024, Order::Down), (32, 1024, Order::Down)];
    // What is long leaves in the order in which it is sent.
    let long = [
        (8, 64 << 10, Order::FromOwn),
        (16, 64 << 10, Order::FromOwn),
    ];
    for (nodes, bytes, order) in short.into_iter().flatten().chain(down).chain(long) {
        let (ticks, needed) = exchange(nodes, bytes, order);
        let what = format!("{nodes} nodes, {bytes} bytes, {order:?}");
        eprintln!("{what}: {ticks} ticks, {needed} for the bytes alone");
        assert!(
            ticks * 4 <= needed * 5,
            "{what}: {ticks} ticks, {needed} for the bytes alone"
        );
    }
}
