//! What a broadcast costs over each route, and that it arrives: counted in whole simulated jobs.

use std::cell::RefCell;

use trihop_shuffle::route::RouteName;
use trihop_shuffle::simulation::{Simulation, SimulationError, SimulationOptions};
use trihop_shuffle::{BroadcastTo, Error, Rank, Stats, StreamOptions, Topology};

/// Refusals of one job: far above what any of these needs.
const TOO_MANY: u64 = 10_000;

/// All ranks broadcast `rounds` times; returns the sum of all ranks' counters.
fn all_broadcast(
    sizes: &[u32],
    options: SimulationOptions,
    to: BroadcastTo,
    rounds: u32,
    bytes: usize,
) -> Result<Stats, SimulationError> {
    let topology = Topology::from_node_sizes(sizes, Rank(0)).expect("nodes have ranks");
    let ranks = topology.size();
    let item_bytes = options.item_bytes;
    // By target and source: how many came, each the next of its source.
    let came = RefCell::new(vec![0u32; (ranks * ranks) as usize]);
    let mut job = Simulation::new(&topology, options, |here, message, _| {
        let due = &mut came.borrow_mut()[(here.0 * ranks + message.source.0) as usize];
        let expected = if item_bytes > 0 { 0 } else { *due };
        assert_eq!(message.kind, expected, "from {} to {here}", message.source);
        let filler = (message.source.0 ^ *due) as u8;
        assert!(message.bytes.len() == bytes && message.bytes.iter().all(|&b| b == filler));
        *due += 1;
    })?;
    let mut refused = 0;
    for round in 0..rounds {
        for source in 0..ranks {
            let data = vec![(source ^ round) as u8; bytes];
            loop {
                match job.try_broadcast(Rank(source), round, &data, to) {
                    Ok(()) => break,
                    Err(Error::WouldBlock) => {
                        refused += 1;
                        let all = || (0..ranks).map(|r| job.dump(Rank(r))).collect::<String>();
                        assert!(refused < TOO_MANY, "{source} cannot broadcast:\n{}", all());
                        job.settle()?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    job.fence()?;
    for target in 0..ranks {
        for source in 0..ranks {
            let left_out = target == source && to == BroadcastTo::Others;
            let expected = if left_out { 0 } else { rounds };
            let got = came.borrow()[(target * ranks + source) as usize];
            assert_eq!(got, expected, "from {source} to {target}");
        }
    }
    let mut sum = Stats::default();
    for rank in 0..ranks {
        let stats = job.stats(Rank(rank));
        sum.sent += stats.sent;
        sum.delivered += stats.delivered;
        sum.broadcasts += stats.broadcasts;
        sum.broadcast_copies += stats.broadcast_copies;
        sum.origin_frames += stats.origin_frames;
        sum.remote_frames += stats.remote_frames;
        sum.relay_frames += stats.relay_frames;
    }
    Ok(sum)
}

#[test]
fn a_thousand_ranks_broadcast_over_each_rail_once() {
    let (nodes, local) = (40u64, 25u64);
    let ranks = nodes * local;
    let sizes = vec![local as u32; nodes as usize];
    for rails in [1, 4] {
        let mut options = SimulationOptions::default();
        options.stream.route = format!("three-hop:{rails}").parse().unwrap();
        let sum = all_broadcast(&sizes, options, BroadcastTo::Others, 1, 16).unwrap();
        assert_eq!(sum.sent, ranks * (ranks - 1));
        assert_eq!(sum.delivered, sum.sent);
        assert_eq!(sum.broadcasts, ranks);
        // Per broadcast: one frame per other rank of the node, one per rail to each other node,
        // one per rank at which no rail ends.
        assert_eq!(sum.origin_frames, ranks * (local - 1));
        assert_eq!(sum.remote_frames, ranks * (nodes - 1) * rails);
        assert_eq!(sum.relay_frames, ranks * (nodes - 1) * (local - rails));
        assert_eq!(
            sum.broadcast_copies, sum.sent,
            "as many copies as ranks that get one"
        );
    }
}

#[test]
fn every_shape_route_and_length_gets_every_broadcast_once_and_in_order() {
    let shapes: [&[u32]; 6] = [
        &[1],
        &[4],
        &[1, 1, 1],
        &[3, 1, 4],
        &[1, 5],
        &[2, 2, 2, 2, 2],
    ];
    for sizes in shapes {
        for route in RouteName::all() {
            for to in [BroadcastTo::Others, BroadcastTo::Everyone] {
                for bytes in [0, 1, 16, 3000, 40_000, 300_000] {
                    let options = SimulationOptions {
                        stream: StreamOptions {
                            route,
                            ..StreamOptions::default()
                        },
                        ..SimulationOptions::default()
                    };
                    let sum = all_broadcast(sizes, options, to, 3, bytes).unwrap();
                    let ranks = u64::from(sizes.iter().sum::<u32>());
                    let copies = 3 * ranks * u64::from(to.ranks(ranks as u32));
                    assert_eq!(
                        (sum.sent, sum.delivered),
                        (copies, copies),
                        "{sizes:?} {route} {bytes}"
                    );
                    // What does not fit a frame goes to each rank by itself.
                    let along_the_tree = if bytes <= 3000 { copies } else { 0 };
                    assert_eq!(
                        sum.broadcast_copies, along_the_tree,
                        "{sizes:?} {route} {bytes}"
                    );
                }
            }
        }
    }
}

#[test]
fn items_are_broadcast_too() {
    for item_bytes in [1usize, 8, 12, 56] {
        let options = SimulationOptions {
            item_bytes,
            stream: StreamOptions {
                origin_maxrpc: 1,
                origin_buftarget_bytes: 64,
                relay_maxrpc: 1,
                relay_buftarget_bytes: 64,
                remote_maxrpc: 1,
                remote_buftarget_bytes: 300,
                ..StreamOptions::default()
            },
            ..SimulationOptions::default()
        };
        all_broadcast(&[3, 1, 4], options, BroadcastTo::Everyone, 30, item_bytes).unwrap();
    }
}
