//! When fences and delivery flushes end, turn by turn.

use std::cell::Cell;
use std::rc::Rc;

use trihop_transport::sim::{Net, SimOptions};
use trihop_transport::topology::{Rank, Topology};

use super::schedule::sim_with_eager;
use super::world::World;
use crate::config::StreamOptions;
use crate::deliver::Delivery;
use crate::engine::outbox::Outbox;
use crate::engine::sink::Sink;
use crate::face::shuffle::each_message;
use crate::simulation::{Fabric, Simulation, SimulationOptions, TICK_NS};
use crate::terminate::flush::{Fence, Flush, Queues};

/// A message that makes its receiver send to ranks 1 and 3, and what these hear.
const REQUEST: u32 = 1;
const NEWS: u32 = 2;

/// Ranks that take turns when the test says so.
struct Turns {
    job: Simulation<'static>,
    now_ns: u64,
    fences: Vec<Fence>,
    handled: Rc<Cell<u32>>,
}

impl Turns {
    fn new(ranks: u32) -> Self {
        let topology = Topology::from_node_sizes(&[ranks], Rank(0)).unwrap();
        let handled = Rc::new(Cell::new(0));
        let handle = {
            let handled = Rc::clone(&handled);
            move |_: Rank, delivery: Delivery<'_>, done: usize, outbox: &mut Outbox<'_>| {
                each_message(delivery, done, |message, _| {
                    handled.set(handled.get() + 1);
                    if message.kind == REQUEST {
                        outbox.send(Rank(1), NEWS, b"").unwrap();
                        outbox.send(Rank(3), NEWS, b"").unwrap();
                    }
                    Ok(true)
                })
            }
        };
        let options = SimulationOptions::default();
        let sink = |_| Sink::Handler;
        let fabric = Fabric::Simulated(Net::new(SimOptions::default()));
        Self {
            job: Simulation::over(fabric, &topology, &options, sink, Box::new(handle)).unwrap(),
            now_ns: 0,
            fences: (0..ranks).map(|_| Fence::default()).collect(),
            handled: Rc::clone(&handled),
        }
    }

    /// Progress of one rank, until nothing moves there any more: what is partial leaves once
    /// nothing else does.
    fn progress(&mut self, rank: usize) {
        let mut fruitless = 0;
        while fruitless < 3 {
            self.now_ns += TICK_NS;
            match self.job.round(Rank(rank as u32), self.now_ns).unwrap() {
                true => fruitless = 0,
                false => fruitless += 1,
            }
        }
    }

    /// Whether the fence has ended for a rank, which joins it by asking.
    fn fenced(&mut self, rank: usize) -> bool {
        let (state, out, collectives) = self.job.members[rank].stream_mut();
        self.fences[rank].poll(state, out, collectives)
    }
}

/// Ranks 0, 2 and 3 have been counted before anything was sent. What is handled after that at rank
/// 2 makes it send twice: one of these is counted as delivered, and stands for the one that is
/// still under way.
#[test]
fn a_fence_does_not_end_by_counts_that_agree_by_chance() {
    let mut turns = Turns::new(4);
    for rank in [0, 2, 3] {
        assert!(!turns.fenced(rank));
        turns.progress(rank);
    }
    turns.job.try_send(Rank(1), Rank(2), REQUEST, b"").unwrap();
    // The request goes; it is handled, and two messages go; one of these is handled, and rank 1 is
    // counted.
    for rank in [1, 2, 1] {
        turns.progress(rank);
    }
    assert_eq!(
        turns.handled.get(),
        2,
        "the other one is under way to rank 3"
    );
    assert!(!turns.fenced(1));
    turns.progress(1);
    turns.progress(0);
    assert!(!turns.fenced(0), "it ends with a message under way");
    let mut ended = [false; 4];
    for _ in 0..1000 {
        for (rank, ended) in ended.iter_mut().enumerate() {
            turns.progress(rank);
            *ended = *ended || turns.fenced(rank);
            assert!(!*ended || turns.handled.get() == 3);
        }
    }
    assert_eq!(ended, [true; 4]);
}

/// A rank that is asked for deliveries while three have come and one fits its queue.
fn delivery_flush_of(sizes: &[u32]) {
    let options = StreamOptions {
        deliverq_max: 1,
        run_bytes: 24,
        ..StreamOptions::default()
    };
    let mut world = World::new(sizes, &options, 1, sim_with_eager(1, 4096), false, false);
    for number in 0..3 {
        assert!(world.send(0, 1, number, 8));
    }
    for _ in 0..1000 {
        world.step();
    }
    let (state, out, _) = world.job.members[1].stream_mut();
    let mut flush = Flush::begin(Queues::Delivery, state, out);
    for left in (0..3).rev() {
        let (state, out, _) = world.job.members[1].stream_mut();
        assert!(
            !flush.poll(state, out).unwrap() || left == 0,
            "{left} more wait"
        );
        if let Sink::Queue(queue) = &mut state.sink {
            let taken = queue.take_all();
            assert!(!taken.is_empty(), "{left} more wait");
            queue.put_back(taken, 1);
        }
        world.job.wake(1);
        for _ in 0..1000 {
            world.step();
        }
    }
    let (state, out, _) = world.job.members[1].stream_mut();
    assert!(flush.poll(state, out).unwrap());
}

#[test]
fn a_delivery_flush_waits_for_what_had_come_over_lanes() {
    delivery_flush_of(&[2]);
}

#[test]
fn a_delivery_flush_waits_for_what_had_come_over_links() {
    delivery_flush_of(&[1, 1]);
}

#[test]
fn an_origin_flush_waits_for_the_consumers_of_lanes() {
    let options = StreamOptions::default();
    let mut world = World::new(&[2], &options, 1, sim_with_eager(1, 4096), false, true);
    assert!(world.send(0, 1, 0, 8));
    let (state, out, _) = world.job.members[0].stream_mut();
    let mut flush = Flush::begin(Queues::ORIGIN, state, out);
    let mut has_ended = |world: &mut World| {
        let (state, out, _) = world.job.members[0].stream_mut();
        flush.poll(state, out).unwrap()
    };
    for tick in 1..10 {
        world.round(0, tick * TICK_NS).unwrap();
        assert!(!has_ended(&mut world), "nobody has taken it");
    }
    assert_eq!(world.heard(1, 0), []);
    world.round(1, 10 * TICK_NS).unwrap();
    assert_eq!(world.heard(1, 0), [0]);
    assert!(has_ended(&mut world));
}
