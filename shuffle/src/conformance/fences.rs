//! When fences and delivery flushes end, turn by turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use trihop_transport::sim::{Net, SimOptions};
use trihop_transport::topology::{Rank, Topology};

use super::schedule::{Replay, mixed, seeds, shape, sim, sim_with_eager, tiny};
use super::world::{World, at_random};
use crate::config::StreamOptions;
use crate::deliver::Delivery;
use crate::engine::outbox::Outbox;
use crate::engine::sink::Sink;
use crate::error::Error;
use crate::face::shuffle::each_message;
use crate::route::RouteName;
use crate::simulation::{Fabric, Member, Simulation, SimulationOptions, TICK_NS};
use crate::terminate::flush::{Fence, Flush, Queues};

/// A message that makes its receiver send to ranks 1 and 3, and what these hear.
const REQUEST: u32 = 1;
const NEWS: u32 = 2;

/// Ranks that take turns when the test says so.
struct Turns {
    job: Simulation<'static>,
    net: Net,
    now_ns: u64,
    fences: Vec<Fence>,
    /// They are of all streams.
    of_all: bool,
    handled: Rc<Cell<u32>>,
}

impl Turns {
    fn new(nodes: &[u32]) -> Self {
        let topology = Topology::from_node_sizes(nodes, Rank(0)).unwrap();
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
        let net = Net::new(SimOptions::default());
        let fabric = Fabric::Simulated(net.clone());
        Self {
            net,
            job: Simulation::over(fabric, &topology, &options, sink, Box::new(handle)).unwrap(),
            now_ns: 0,
            fences: (0..topology.size()).map(|_| Fence::default()).collect(),
            of_all: false,
            handled: Rc::clone(&handled),
        }
    }

    /// Progress of one rank, until nothing moves there any more: what is partial leaves once
    /// nothing else does.
    fn progress(&mut self, rank: usize) {
        let mut fruitless = 0;
        while fruitless < 64 {
            self.now_ns += TICK_NS;
            self.net.tick();
            match self.job.round(Rank(rank as u32), self.now_ns).unwrap() {
                true => fruitless = 0,
                false => fruitless += 1,
            }
        }
    }

    /// Whether the fence has ended for a rank, which joins it by asking.
    fn fenced(&mut self, rank: usize) -> bool {
        let (member, fence) = (&mut self.job.members[rank], &mut self.fences[rank]);
        if self.of_all {
            return member.engine.poll_fence(fence);
        }
        let (state, out, collectives) = member.stream_mut();
        fence.poll(state, out, collectives)
    }
}

/// What fences are of.
#[derive(PartialEq)]
enum Of {
    Stream,
    All,
    /// All, of which one is opened once the fence is under way.
    AllAndMore,
}

/// Ranks 0, 2 and 3 have been counted before anything was sent. What is handled after that at rank
/// 2 makes it send twice: one of these is counted as delivered, and stands for the one that is
/// still under way.
fn counts_that_agree_by_chance(nodes: &[u32], of: Of) {
    let mut turns = Turns {
        of_all: of != Of::Stream,
        ..Turns::new(nodes)
    };
    let opens = of == Of::AllAndMore;
    let members = turns.job.members.iter_mut();
    members.filter(|_| opens).for_each(Member::close);
    for rank in [0, 2, 3] {
        assert!(!turns.fenced(rank));
        turns.progress(rank);
    }
    let members = turns.job.members.iter_mut();
    let reopen = |of: &mut Member| of.reopen(&SimulationOptions::default()).unwrap();
    members.filter(|_| opens).for_each(reopen);
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

#[test]
fn a_fence_does_not_end_by_counts_that_agree_by_chance() {
    counts_that_agree_by_chance(&[4], Of::Stream);
}

#[test]
fn a_fence_of_nodes_does_not_end_by_counts_that_agree_by_chance() {
    counts_that_agree_by_chance(&[1; 4], Of::Stream);
}

#[test]
fn a_fence_of_all_streams_does_not_end_by_counts_that_agree_by_chance() {
    counts_that_agree_by_chance(&[4], Of::All);
    counts_that_agree_by_chance(&[1; 4], Of::All);
}

#[test]
fn a_fence_of_all_streams_counts_those_that_are_opened_beside_it() {
    counts_that_agree_by_chance(&[4], Of::AllAndMore);
    counts_that_agree_by_chance(&[1; 4], Of::AllAndMore);
}

/// Others count nothing while a handler runs, however long that takes.
#[test]
fn who_handles_something_shows_nothing() {
    let mut turns = Turns::new(&[2]);
    let is_shown = |turns: &mut Turns| {
        let (_, out, _) = turns.job.members[0].stream_mut();
        out.queues
            .census_mut()
            .is_some_and(|census| census.is_shown())
    };
    assert!(!turns.fenced(0));
    assert!(is_shown(&mut turns));
    turns.job.try_send(Rank(1), Rank(0), NEWS, b"").unwrap();
    turns.progress(1);
    assert!(is_shown(&mut turns), "nothing has come");
    turns.progress(0);
    assert_eq!(turns.handled.get(), 1);
    assert!(!is_shown(&mut turns));
}

fn who_is_about_to_sleep(of_all: bool) {
    let mut turns = Turns {
        of_all,
        ..Turns::new(&[2])
    };
    assert!(!turns.fenced(0));
    turns.progress(0);
    let is_awake = |turns: &mut Turns| turns.job.members[0].engine.must_stay_awake();
    assert!(!is_awake(&mut turns), "nothing has come");
    assert!(turns.fenced(1));
    assert!(is_awake(&mut turns), "nothing has come but the end");
    assert!(turns.fenced(0));
    assert!(!is_awake(&mut turns));
}

#[test]
fn who_is_about_to_sleep_sees_that_its_fence_is_over() {
    who_is_about_to_sleep(false);
    who_is_about_to_sleep(true);
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

/// Streams of a job that is fenced as a whole, and its fences.
const STREAMS: u16 = 3;
const FENCES: u32 = 4;
const TOO_LONG: u64 = 2_000_000;

/// A message to be sent.
struct Send {
    stream: u16,
    target: Rank,
    /// The fence that it comes before, and how often it is sent on.
    kind: u32,
    bytes: usize,
}

/// Each message is handled on one stream, and sent on over the next: fences of one stream after the
/// other would not do.
fn fence_of_all(seed: u64, route: RouteName) {
    let replay = Replay(seed);
    let topology = Topology::from_node_sizes(&shape(seed), Rank(0)).unwrap();
    let size = topology.size();
    let options = SimulationOptions {
        streams: STREAMS,
        ..at_random(seed, route, tiny(seed))
    };
    let handled = Rc::new(RefCell::new(vec![0; FENCES as usize]));
    let next: Rc<RefCell<Vec<VecDeque<Send>>>> = Rc::default();
    next.borrow_mut().resize_with(size as usize, VecDeque::new);
    let handle = {
        let (handled, next) = (Rc::clone(&handled), Rc::clone(&next));
        move |here: Rank, delivery: Delivery<'_>, done: usize, _: &mut Outbox<'_>| {
            each_message(delivery, done, |message, _| {
                let (step, left) = (message.kind >> 8, message.kind & 255);
                handled.borrow_mut()[step as usize] += 1;
                if left > 0 {
                    next.borrow_mut()[here.0 as usize].push_back(Send {
                        stream: (left % u32::from(STREAMS)) as u16,
                        target: Rank((here.0 * 5 + 1 + left) % size),
                        kind: step << 8 | (left - 1),
                        bytes: message.bytes.len(),
                    });
                }
                Ok(true)
            })
        }
    };
    let sink = |_| Sink::Handler;
    let mut job = Simulation::over(sim(seed), &topology, &options, sink, Box::new(handle)).unwrap();
    let mut expected = vec![0; FENCES as usize];
    let mut own: Vec<VecDeque<Send>> = Vec::new();
    for _ in 0..size {
        let mut all = VecDeque::new();
        for step in 0..FENCES {
            for _ in 0..job.random() % 6 {
                let hops = job.random() as u32 % 5;
                expected[step as usize] += 1 + hops;
                all.push_back(Send {
                    stream: job.random() as u16 % STREAMS,
                    target: Rank(job.random() as u32 % size),
                    kind: step << 8 | hops,
                    bytes: mixed(job.random()),
                });
            }
        }
        own.push(all);
    }
    let mut players: Vec<(u32, Option<Fence>)> = vec![(0, None); size as usize];
    let mut turns = 0;
    while players.iter().any(|(step, _)| *step < FENCES) {
        let rank = job.random() as usize % size as usize;
        let (step, fence) = &mut players[rank];
        // What its handlers send counts with what they have handled.
        let mut by_handlers = next.borrow_mut();
        let is_due = |send: &Send| send.kind >> 8 == *step;
        let queue = match by_handlers[rank].is_empty() {
            true if own[rank].front().is_some_and(is_due) => Some(&mut own[rank]),
            true => None,
            false => Some(&mut by_handlers[rank]),
        };
        if let Some(queue) = queue {
            let send = &queue[0];
            let bytes = vec![rank as u8; send.bytes];
            let source = Rank(rank as u32);
            match job.try_send_on(send.stream, source, send.target, send.kind, &bytes) {
                Ok(()) => drop(queue.pop_front()),
                Err(Error::WouldBlock) => {}
                Err(error) => panic!("{error}"),
            }
        } else if *step < FENCES {
            let fence = fence.get_or_insert_default();
            if job.members[rank].engine.poll_fence(fence) {
                let handled = handled.borrow()[*step as usize];
                assert_eq!(
                    handled, expected[*step as usize],
                    "rank {rank}, fence {step}"
                );
                players[rank] = (*step + 1, None);
            }
        }
        drop(by_handlers);
        job.wake(rank);
        job.step().unwrap();
        turns += 1;
        if turns > TOO_LONG {
            (0..size).for_each(|rank| eprintln!("{}", job.dump(Rank(rank))));
            panic!("{route} is stuck");
        }
    }
    std::mem::forget(replay);
}

#[test]
fn a_fence_of_all_streams_ends_when_all_is_handled_on_whichever() {
    let routes = RouteName::several();
    for seed in seeds(60) {
        fence_of_all(seed, routes[seed as usize % routes.len()]);
    }
}
