//! What only shows where ranks are threads of processes with relays.

use std::cell::Cell;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use trihop_transport::Error as TransportError;
use trihop_transport::bootstrap::Custom;
use trihop_transport::memory::segment::Segment;

use crate::config::{Options, StreamOptions};
use crate::conformance::ranks::ranks;
use crate::error::{Error, Result};
use crate::job::{JobState, Started};
use crate::over::Job;
use crate::seat::end::arrive;
use crate::seat::start::{join, take_bootstrap};
use crate::seat::{Inline, Seating, relay};
use crate::{Rank, State};

/// Far longer than a test may take: nothing is to wait for this.
const TIMEOUT_MS: u64 = 900_000;

/// As [`crate::minirank::run`], for a process of one node of which the test knows the insides.
fn process<R: Send>(
    bootstrap: Custom,
    ranks: u32,
    prepare: impl FnOnce(&mut JobState),
    program: impl Fn(Started) -> R + Sync,
) -> Vec<R> {
    let options = Options {
        loopback: true,
        bootstrap_timeout_ms: TIMEOUT_MS,
        ..Options::default()
    };
    let mut started = JobState::start_minis(options, Box::new(bootstrap), ranks).unwrap();
    let mut host = started.pop().unwrap();
    prepare(&mut host.state);
    thread::scope(|scope| {
        let start = |started| scope.spawn(|| program(started));
        let threads: Vec<_> = started.into_iter().map(start).collect();
        relay(Inline::new(host).unwrap()).unwrap();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn join_as(started: Started) -> Job<Inline<'static>> {
    let seat = Inline::new(started).unwrap();
    join(&seat).unwrap();
    Job::over(seat).unwrap()
}

/// Options that ranks need not have in common, and a relay has of one of them, do not make streams
/// take another place at each opening.
#[test]
fn streams_of_ranks_with_options_of_their_own_take_their_places_again() {
    let program = |started| {
        let job = join_as(started);
        let me = job.rank().0;
        for turn in 0..24 {
            let heard = State::new(0u64);
            let options = StreamOptions {
                priority: me as u8,
                ..StreamOptions::default()
            };
            // Another rank each time is the first to ask the relay.
            for _ in 0..(me + turn) % 4 * 400 {
                job.progress().unwrap();
            }
            let shuffle = job.shuffle("again").options(options);
            let shuffle = shuffle
                .handler_with(&heard, |heard, _, _| *heard += 1)
                .open()
                .unwrap();
            let mut dump = Vec::new();
            shuffle.dump(&mut dump).unwrap();
            let dump = String::from_utf8(dump).unwrap();
            assert!(dump.starts_with("stream 1 "), "turn {turn}: {dump}");
            for rank in 0..job.size() {
                shuffle.send(Rank(rank), 0, b"heard").unwrap();
            }
            shuffle.fence().unwrap();
            assert_eq!(heard.with(|heard| *heard), u64::from(job.size()));
            shuffle.shutdown().unwrap();
        }
        job.shutdown().unwrap();
    };
    ranks(
        2,
        |_| 0,
        move |_, bootstrap| process(bootstrap, 4, |_| (), program),
    );
}

/// The third segment of a thread is refused.
fn two_segments(bytes: usize) -> Result<Arc<Segment>, TransportError> {
    thread_local!(static MADE: Cell<u32> = const { Cell::new(0) });
    match MADE.replace(MADE.get() + 1) {
        0 | 1 => Segment::create(bytes),
        _ => Err(TransportError::Config {
            key: "segment".to_owned(),
            why: "none is left".to_owned(),
        }),
    }
}

#[test]
fn a_relay_that_refuses_a_stream_is_waited_for_by_no_rank_of_its_node() {
    let program = |started| {
        let job = join_as(started);
        let options = |priority| StreamOptions {
            priority,
            ..StreamOptions::default()
        };
        let first = job.shuffle("first").options(options(0)).open().unwrap();
        first.shutdown().unwrap();
        // It could have the place of the first one in process 0, and not in process 1.
        let second = options(job.rank().0 as u8);
        let refused = job.shuffle("second").options(second).open().err().unwrap();
        let kept = |state: &mut JobState| (0..4).find_map(|id| state.node.refused(id));
        let kept = job.seat().look(kept).unwrap();
        assert_eq!(kept, None, "what came for it is forgotten");
        job.shutdown().unwrap();
        refused
    };
    let refused = ranks(
        2,
        |_| 0,
        move |process_number, bootstrap| {
            let prepare = |relay: &mut JobState| {
                if process_number == 0 {
                    relay.engine.create_segment = two_segments;
                }
            };
            process(bootstrap, 1, prepare, program).remove(0)
        },
    );
    for (rank, refused) in refused {
        let text = refused.to_string();
        match rank {
            0 => assert!(text.contains("none is left"), "{text}"),
            _ => assert!(text.contains("relay 2 (of rank 0) could not"), "{text}"),
        }
    }
}

/// The end without a launcher: what ranks of other processes still send may go by a relay whose own
/// ranks have arrived.
#[test]
fn a_relay_leaves_behind_the_ranks_of_all_processes_of_its_node() {
    let (left, has_left) = mpsc::channel();
    let ends: &Mutex<_> = Box::leak(Box::new(Mutex::new([Some(has_left), None])));
    let left: &Mutex<_> = Box::leak(Box::new(Mutex::new(left)));
    let program = move |me: u32, started: Started| {
        let seat = Inline::new(started).unwrap();
        join(&seat).unwrap();
        if me == 1 {
            let has_left = ends.lock().unwrap()[0].take().unwrap();
            let early: Result<u32, _> = has_left.recv_timeout(Duration::from_millis(300));
            assert!(early.is_err(), "process 0 has left alone");
            ends.lock().unwrap()[1] = Some(has_left);
        }
        let bootstrap = take_bootstrap(&seat).unwrap();
        let outcome = arrive(&seat, bootstrap, true).map(drop);
        left.lock().unwrap().send(me).unwrap();
        outcome
    };
    let outcomes = ranks(
        2,
        |_| 0,
        move |me, bootstrap| {
            process(bootstrap, 1, |_| (), |started| program(me, started)).remove(0)
        },
    );
    for (_, outcome) in outcomes {
        assert_eq!(outcome, Ok::<(), Error>(()));
    }
}

/// What the threads of a process lock together, they lock to open and close streams: sends, rounds,
/// fences and sleeps go on while somebody holds that lock.
#[test]
fn mini_ranks_pass_messages_while_somebody_holds_the_lock_of_their_desk() {
    let program = |_: u32, bootstrap: Custom| {
        let ((lock, must_lock), (free, must_free)) = (mpsc::channel(), mpsc::channel());
        let (locked, is_locked) = mpsc::channel();
        let ends = Mutex::new(Some((lock, is_locked, free)));
        let rank = |started| {
            let heard = State::new(0u64);
            let job = join_as(started);
            let shuffle = job.shuffle("unlocked");
            let shuffle = shuffle
                .handler_with(&heard, |heard, _, _| *heard += 1)
                .open()
                .unwrap();
            let first = job.rank() == Rank(0);
            let ends = first.then(|| ends.lock().unwrap().take().unwrap());
            if let Some((lock, is_locked, _)) = &ends {
                lock.send(()).unwrap();
                is_locked.recv().unwrap();
            }
            job.barrier().unwrap();
            for turn in 1..=20 {
                for number in 0..3000 {
                    shuffle.send(Rank(number % 3), 0, b"unlocked").unwrap();
                }
                match turn % 2 {
                    0 => shuffle.round().unwrap(),
                    _ => shuffle.fence().unwrap(),
                }
                // Others may be in the next turn already.
                let heard = heard.with(|heard| *heard);
                assert!((turn * 3000..=turn * 3000 + 3000).contains(&heard));
            }
            assert_eq!(heard.with(|heard| *heard), 20 * 3000);
            job.barrier().unwrap();
            if let Some((_, _, free)) = ends {
                free.send(()).unwrap();
            }
            job.shutdown().unwrap();
        };
        thread::scope(|scope| {
            let hold = |relay: &mut JobState| {
                let shared = relay.node.process();
                scope.spawn(move || {
                    must_lock.recv().unwrap();
                    shared.hold(|| {
                        locked.send(()).unwrap();
                        must_free.recv().unwrap();
                    });
                });
            };
            process(bootstrap, 3, hold, rank).len()
        })
    };
    assert_eq!(ranks(1, |_| 0, program), [(0, 3)]);
}
