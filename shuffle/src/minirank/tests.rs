use std::cell::Cell;
use std::sync::Mutex;
use std::thread;

use trihop_transport::bootstrap::Custom;
use trihop_transport::topology::{Rank, Topology};

use super::{Host, barrier, index};
use crate::config::{Options, StreamOptions};
use crate::conformance::ranks::ranks;
use crate::error::Error;
use crate::queue::audience::BroadcastTo;
use crate::route::{Direct, RouteName, register};

fn host(bootstrap: Custom, ranks: u32) -> Host {
    let options = Options {
        loopback: true,
        // Far longer than a test may take.
        bootstrap_timeout_ms: 900_000,
        ..Options::default()
    };
    Host::start_with(options, Box::new(bootstrap), ranks).unwrap()
}

#[test]
fn a_barrier_of_a_process_waits_for_all_of_its_ranks_and_for_no_others() {
    let program = |process: u32, bootstrap: Custom| {
        let host = host(bootstrap, 3);
        let turns = Mutex::new(0);
        thread::scope(|scope| {
            for number in 0..3 {
                let (mini, turns) = (host.minirank(number).unwrap(), &turns);
                scope.spawn(move || {
                    let job = mini.start().unwrap();
                    assert_eq!((index(&job), job.rank().0), (number, 3 * process + number));
                    // Process 1 comes to more of them than process 0.
                    for turn in 0..60 * (process + 1) {
                        if turn % 3 == number {
                            *turns.lock().unwrap() += 1;
                        }
                        barrier(&job).unwrap();
                        assert_eq!(*turns.lock().unwrap(), turn + 1);
                        barrier(&job).unwrap();
                    }
                    job.shutdown().unwrap();
                });
            }
        });
        let refused = |number| match host.minirank(number).err() {
            Some(Error::MiniRank { index, why }) if index == number => why,
            other => panic!("{other:?}"),
        };
        assert!(refused(1).contains("taken before"));
        assert!(refused(3).contains("from 0 to 2"));
        host.finish().unwrap();
    };
    assert_eq!(ranks(2, |_| 0, program).len(), 2);
}

/// Between the processes of mini-ranks, as between ranks that are processes.
#[test]
fn mini_ranks_go_by_a_route_of_the_program() {
    let stages = RouteName::Direct.stages();
    let direct = |topology: &Topology| Direct::new(topology.clone());
    let route = register("minis-direct", stages, direct).unwrap();
    let program = move |_: u32, bootstrap: Custom| {
        let host = host(bootstrap, 2);
        thread::scope(|scope| {
            for number in 0..2 {
                let mini = host.minirank(number).unwrap();
                scope.spawn(move || {
                    let sum = Cell::new(0);
                    let job = mini.start().unwrap();
                    let options = StreamOptions {
                        route,
                        ..StreamOptions::default()
                    };
                    let stream = job.stream::<u64>("own").options(options);
                    let stream = stream.handler(|source, items, _| {
                        sum.set(sum.get() + items.iter().sum::<u64>() * u64::from(source.0 + 1));
                    });
                    let stream = stream.open().unwrap();
                    for item in 0..300 {
                        for target in 0..job.size() {
                            stream.push(Rank(target), item).unwrap();
                        }
                    }
                    stream.broadcast(1000, BroadcastTo::Others).unwrap();
                    stream.fence().unwrap();
                    let sources =
                        |from: u32| (0..from).map(|rank| u64::from(rank + 1)).sum::<u64>();
                    let own = u64::from(job.rank().0 + 1);
                    let all = sources(job.size());
                    assert_eq!(sum.get(), all * (299 * 300 / 2) + (all - own) * 1000);
                    stream.shutdown().unwrap();
                    job.shutdown().unwrap();
                });
            }
        });
        host.finish().unwrap();
    };
    assert_eq!(ranks(4, |process| process / 2, program).len(), 4);
}

#[test]
fn a_mini_rank_that_nobody_takes_has_failed_once_its_host_ends() {
    let program = |_: u32, bootstrap: Custom| {
        let host = host(bootstrap, 2);
        let mini = host.minirank(1).unwrap();
        thread::scope(|scope| {
            let started = scope.spawn(move || mini.start().err());
            let ended = host.finish().unwrap_err();
            for error in [started.join().unwrap().unwrap(), ended] {
                let text = error.to_string();
                assert!(text.contains("rank 0"), "{text}");
                assert!(text.contains("without shutting it down"), "{text}");
            }
        });
    };
    ranks(1, |_| 0, program);
}
