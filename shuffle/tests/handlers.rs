//! Handlers that send: on their own stream, on another one, once or many times for each message.
//! With default options: memory takes what no queue has room for, so that no job stands still.

use std::cell::{Cell, RefCell};

use trihop_shuffle::simulation::{Simulation, SimulationError, SimulationOptions};
use trihop_shuffle::{BroadcastTo, Error, Rank, StreamOptions, Topology};

/// Attempts of one rank to send that may be refused in a row.
const TOO_MANY: u32 = 1000;

/// Every rank sends `count` requests of `bytes`, to the others in turn, as fast as it can.
fn send_requests(
    job: &mut Simulation<'_>,
    ranks: u32,
    count: u32,
    bytes: usize,
) -> Result<(), SimulationError> {
    let request = vec![7; bytes];
    let mut left = vec![count; ranks as usize];
    let mut refused = 0;
    while left.iter().any(|&l| l > 0) {
        let mut sent = false;
        for source in 0..ranks {
            while left[source as usize] > 0 {
                let target = (source + 1 + left[source as usize] % ranks.max(2)) % ranks;
                match job.try_send(Rank(source), Rank(target), 0, &request) {
                    Ok(()) => left[source as usize] -= 1,
                    Err(Error::WouldBlock) => break,
                    Err(error) => return Err(error.into()),
                }
                sent = true;
            }
        }
        job.settle()?;
        refused = if sent { 0 } else { refused + 1 };
        assert!(
            refused < TOO_MANY,
            "{left:?} requests find no room:\n{}",
            job.dump(Rank(0))
        );
    }
    Ok(())
}

/// A job in which each request is answered once, on the stream that it came by.
fn answer_once(nodes: &[u32], count: u32, bytes: usize) {
    let topology = Topology::from_node_sizes(nodes, Rank(0)).unwrap();
    let ranks = topology.size();
    let answers = Cell::new(0);
    let mut job = Simulation::new(
        &topology,
        SimulationOptions::default(),
        |_, message, outbox| match message.kind {
            0 => outbox.send(message.source, 1, message.bytes).unwrap(),
            _ => answers.set(answers.get() + 1),
        },
    )
    .unwrap();
    send_requests(&mut job, ranks, count, bytes).unwrap_or_else(|error| panic!("{error}"));
    job.fence().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(answers.get(), ranks * count);
    for rank in 0..ranks {
        let dump = job.dump(Rank(rank));
        assert!(dump.contains("spill: 0 runs and records, 0 of"), "{dump}");
    }
}

#[test]
fn requests_that_are_answered_on_their_own_stream_do_not_stand_still_between_two_nodes() {
    answer_once(&[1, 1], 4000, 4000);
}

#[test]
fn requests_that_are_answered_on_their_own_stream_do_not_stand_still_on_one_node() {
    answer_once(&[3], 4000, 4000);
}

#[test]
fn requests_that_are_answered_on_their_own_stream_do_not_stand_still_in_a_job_of_one() {
    answer_once(&[1], 2000, 4000);
}

#[test]
fn requests_that_are_answered_on_their_own_stream_do_not_stand_still_over_relays() {
    answer_once(&[2, 3, 1], 2000, 1000);
}

#[test]
fn long_requests_that_are_answered_do_not_stand_still() {
    answer_once(&[2, 2], 60, 150_000);
}

/// Labels spread over a graph: a handler that hears of a smaller one tells all neighbours, on its
/// own stream.
#[test]
fn a_handler_that_forwards_labels_to_many_does_not_stand_still() {
    const VERTICES: u32 = 4096;
    const NEIGHBOURS: u32 = 16;
    let topology = Topology::from_node_sizes(&[2, 2], Rank(0)).unwrap();
    let ranks = topology.size();
    let neighbour = |vertex: u32, number: u32| {
        let mixed = (u64::from(vertex) * 0x9e37 + u64::from(number) * 0x85eb_ca6b) ^ 0x5bd1;
        (mixed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as u32 % VERTICES
    };
    let neighbours = |vertex: u32| {
        let line = [(vertex + 1) % VERTICES, (vertex + VERTICES - 1) % VERTICES];
        line.into_iter()
            .chain((0..NEIGHBOURS).map(move |n| neighbour(vertex, n)))
    };
    let labels = RefCell::new((0..VERTICES).collect::<Vec<_>>());
    let words =
        |vertex: u32, label: u32| (u64::from(vertex) << 32 | u64::from(label)).to_le_bytes();
    let options = SimulationOptions {
        item_bytes: 8,
        ..SimulationOptions::default()
    };
    let mut job = Simulation::new(&topology, options, |here, message, outbox| {
        let word = u64::from_le_bytes(message.bytes.try_into().unwrap());
        let (vertex, label) = ((word >> 32) as u32, word as u32);
        assert_eq!(vertex % ranks, here.0);
        let mut labels = labels.borrow_mut();
        if label < labels[vertex as usize] {
            labels[vertex as usize] = label;
            for other in neighbours(vertex) {
                outbox
                    .send(Rank(other % ranks), 0, &words(other, label))
                    .unwrap();
            }
        }
    })
    .unwrap();
    for vertex in 0..VERTICES {
        for other in neighbours(vertex) {
            let item = words(other, vertex);
            let mut tries = 0;
            while let Err(error) = job.try_send(Rank(vertex % ranks), Rank(other % ranks), 0, &item)
            {
                assert!(matches!(error, Error::WouldBlock), "{error}");
                job.settle().unwrap_or_else(|error| panic!("{error}"));
                tries += 1;
                assert!(tries < TOO_MANY, "no room:\n{}", job.dump(Rank(0)));
            }
        }
    }
    job.fence().unwrap_or_else(|error| panic!("{error}"));
    drop(job);
    assert!(
        labels.borrow().iter().all(|&label| label == 0),
        "one ring holds all vertices"
    );
}

/// Each message becomes two, for ever: no memory suffices.
#[test]
fn handlers_that_multiply_messages_end_with_an_error_that_names_stream_budget_and_remedy() {
    let topology = Topology::from_node_sizes(&[1, 1], Rank(0)).unwrap();
    let options = SimulationOptions {
        stream: StreamOptions {
            spill_bytes: 8 << 20,
            ..StreamOptions::default()
        },
        ..SimulationOptions::default()
    };
    let refused = Cell::new(false);
    let mut job = Simulation::new(&topology, options, |_, message, outbox| {
        for target in 0..2 {
            let sent = outbox.send(Rank(target), 0, message.bytes);
            refused.set(refused.get() | sent.is_err());
        }
    })
    .unwrap();
    job.try_send(Rank(0), Rank(1), 0, &[1; 100]).unwrap();
    let text = job.fence().expect_err("messages without end").to_string();
    assert!(refused.get(), "a send was refused");
    for word in ["spill_bytes", "8388608", "handlers"] {
        assert!(text.contains(word), "no {word} in: {text}");
    }
}

/// Broadcasts of handlers and long records go through the spill as well, and order is kept.
#[test]
fn what_a_handler_sends_keeps_its_order_through_the_spill() {
    let topology = Topology::from_node_sizes(&[1, 1], Rank(0)).unwrap();
    let heard = RefCell::new(vec![0u32; 2]);
    let next = RefCell::new(vec![0u32; 2]);
    let mut job = Simulation::new(
        &topology,
        SimulationOptions::default(),
        |here, message, outbox| {
            if message.kind != 0 {
                let mut heard = heard.borrow_mut();
                heard[here.0 as usize] += 1;
                assert_eq!(
                    message.kind, heard[here.0 as usize],
                    "answers of {} out of order",
                    message.source
                );
                return;
            }
            let mut next = next.borrow_mut();
            let kind = &mut next[here.0 as usize];
            *kind += 1;
            let other = Rank(1 - here.0);
            match *kind % 5 {
                0 => outbox
                    .broadcast(*kind, &[5; 3000], BroadcastTo::Others)
                    .unwrap(),
                1 => outbox.send(other, *kind, &[1; 40_000]).unwrap(),
                2 => outbox.send(other, *kind, &[2; 5000]).unwrap(),
                _ => outbox.send(other, *kind, &[3; 100]).unwrap(),
            }
        },
    )
    .unwrap();
    send_requests(&mut job, 2, 1500, 2000).unwrap_or_else(|error| panic!("{error}"));
    job.fence().unwrap_or_else(|error| panic!("{error}"));
    drop(job);
    let sent = next.borrow().clone();
    assert_eq!(sent.iter().sum::<u32>(), 3000);
    assert_eq!(
        *heard.borrow(),
        [sent[1], sent[0]],
        "each hears what the other's handler sent"
    );
}

/// Short records, one that goes by rendezvous and one of many fragments, from a rank of the same
/// node and one of another.
#[test]
fn what_comes_before_a_handler_is_live_waits_for_it() {
    const BYTES: [usize; 5] = [8, 40_000, 300, 200_000, 1_000];
    /// Rounds of sending with the handler held.
    const HELD: u32 = 20;
    let topology = Topology::from_node_sizes(&[2, 2], Rank(0)).unwrap();
    let heard = RefCell::new(Vec::new());
    let mut job = Simulation::new(
        &topology,
        SimulationOptions::default(),
        |rank, message, _| {
            assert_eq!(rank, Rank(1));
            let wrong = message.bytes.iter().any(|&byte| byte != 9);
            assert!(!wrong, "bytes of {}", message.kind);
            let mut heard = heard.borrow_mut();
            heard.push((message.source, message.kind as usize, message.bytes.len()));
        },
    )
    .unwrap();
    job.hold_handler(Rank(1));
    let mut sent = [0; 2];
    for round in 0..2 * HELD {
        for (source, sent) in [Rank(0), Rank(3)].into_iter().zip(&mut sent) {
            while *sent < BYTES.len() {
                match job.try_send(source, Rank(1), *sent as u32, &vec![9; BYTES[*sent]]) {
                    Ok(()) => *sent += 1,
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        // A rank that waits for its handler does not rest.
        for _ in 0..1000 {
            job.step().unwrap();
        }
        if round == HELD {
            assert!(sent.iter().all(|&sent| sent > 0), "{sent:?}");
            assert_eq!(*heard.borrow(), []);
            job.release_handler(Rank(1));
        }
    }
    assert_eq!(sent, [BYTES.len(); 2]);
    job.fence().unwrap();
    for source in [Rank(0), Rank(3)] {
        let of_source = heard
            .borrow()
            .iter()
            .filter(|entry| entry.0 == source)
            .copied()
            .collect::<Vec<_>>();
        let all = BYTES.into_iter().enumerate();
        assert_eq!(
            of_source,
            all.map(|(kind, bytes)| (source, kind, bytes))
                .collect::<Vec<_>>()
        );
    }
}
