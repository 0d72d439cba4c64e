//! Semaphores and barriers beside a model: a list of requests that is gone through from its
//! beginning after each event, for as long as any of them ends.

use proptest::prelude::*;

use super::super::super::terms::ChannelLimits;
use super::super::super::wire::{About, Request};
use super::super::{Owner, Payload};
use super::*;

const RANKS: u32 = 3;
const MOST: u64 = 3;
const PARTIES: u32 = 4;

fn limits() -> ChannelLimits {
    ChannelLimits {
        ports: RANKS,
        ..ChannelLimits::default()
    }
}

#[derive(Debug, Clone)]
enum Event {
    Poll(u32, Poll, u64),
    /// The request so many back, of the same port.
    Cancel(u32, u64),
    /// An acquisition that nobody waits for.
    GiveBack(u32),
    Pass(u64),
    Reopen(u32),
    Close,
}

fn event(polls: impl Strategy<Value = u32>) -> impl Strategy<Value = Event> {
    let timeout = prop_oneof![2 => Just(0), 4 => Just(u64::MAX), 3 => 1u64..30];
    let poll = prop_oneof![20 => polls, 1 => Just(Poll::Closed as u32)];
    let poll = poll.prop_map(|number| Poll::of(number).unwrap());
    prop_oneof![
        40 => (0..RANKS, poll, timeout).prop_map(|(a, b, c)| Event::Poll(a, b, c)),
        4 => (0..RANKS, 0u64..4).prop_map(|(a, b)| Event::Cancel(a, b)),
        2 => (0..RANKS).prop_map(Event::GiveBack),
        6 => (0u64..20).prop_map(Event::Pass),
        2 => (0..RANKS).prop_map(Event::Reopen),
        1 => Just(Event::Close),
    ]
}

/// What was told of a request: rank, number, status, value.
type Told = (u32, u64, Status, u64);

#[derive(Debug, Clone)]
struct Asked {
    rank: u32,
    id: u64,
    poll: Poll,
    deadline: u64,
}

#[derive(Default)]
struct Model {
    now: u64,
    closed: bool,
    value: u64,
    broken: bool,
    waiting: Vec<Asked>,
    told: Vec<Told>,
}

impl Model {
    fn end(&mut self, at: usize, status: Status, value: u64) -> bool {
        let Asked { rank, id, .. } = self.waiting.remove(at);
        self.told.push((rank, id, status, value));
        true
    }

    /// All that wait in the barrier.
    fn end_barrier(&mut self, status: Status) -> u64 {
        let arrives = |asked: &Asked| asked.poll == Poll::Arrive;
        let mut before = 0;
        while let Some(at) = self.waiting.iter().position(arrives) {
            self.end(at, status, before);
            before += 1;
        }
        before
    }

    /// Does one thing for a request; whether anything has ended.
    fn try_one(&mut self, at: usize) -> bool {
        let poll = self.waiting[at].poll;
        let arrived = self.waiting.iter().filter(|of| of.poll == Poll::Arrive);
        let arrived = arrived.count();
        match poll {
            Poll::Closed => return self.closed && self.end(at, Status::Done, 0),
            _ if self.closed => return self.end(at, Status::Closed, 0),
            Poll::Acquire if self.value > 0 => self.value -= 1,
            Poll::Release if self.value == MOST => return self.end(at, Status::Most, 0),
            Poll::Release => self.value += 1,
            Poll::Zero if self.value == 0 => {}
            Poll::Available if self.value > 0 => {}
            Poll::Value => {}
            Poll::OneMissing if !self.broken => {
                // Those that come once wait for nobody.
                let waits = |of: &&Asked| of.poll == Poll::Arrive && of.deadline > 0;
                let waiting = self.waiting.iter().filter(waits).count() as u64;
                let is_so = waiting + 1 == u64::from(PARTIES);
                return is_so && self.end(at, Status::Done, waiting);
            }
            Poll::Arrive | Poll::OneMissing if self.broken => {
                return self.end(at, Status::Broken, 0);
            }
            Poll::Arrive if arrived == PARTIES as usize => {
                return self.end_barrier(Status::Done) > 0;
            }
            Poll::Abort | Poll::Reset => {
                self.end(at, Status::Done, arrived as u64);
                self.broken = poll == Poll::Abort;
                return self.end_barrier(Status::Broken) < u64::MAX;
            }
            Poll::Waiting => return self.end(at, Status::Done, arrived as u64),
            Poll::Broken => return self.end(at, Status::Done, self.broken.into()),
            _ => return false,
        }
        self.end(at, Status::Done, self.value)
    }

    fn settle(&mut self) {
        while (0..self.waiting.len()).any(|at| self.try_one(at)) {}
    }

    fn end_where(&mut self, over: impl Fn(&Asked) -> bool, status: Status) {
        while let Some(at) = self.waiting.iter().position(&over) {
            self.end(at, status, 0);
        }
    }

    fn expire(&mut self) {
        let now = self.now;
        self.end_where(|asked| asked.deadline <= now, Status::TimedOut);
    }
}

struct Both {
    owner: Owner,
    model: Model,
    ports: [u32; RANKS as usize],
    next_id: u64,
}

impl Both {
    fn new(gate: Gate) -> Self {
        let mut model = Model::default();
        if let Gate::Semaphore { value, .. } = gate {
            model.value = value;
        }
        let mut both = Self {
            owner: Owner::default(),
            model,
            ports: [0; RANKS as usize],
            next_id: 0,
        };
        let kind = gate.kind();
        assert_eq!(both.owner.create(limits(), Some(gate)), Some((0, 0)));
        (0..RANKS).for_each(|rank| both.open(rank, kind));
        both
    }

    fn open(&mut self, rank: u32, kind: ChannelKind) {
        let open = Request::Open {
            channel: 0,
            epoch: 0,
            port: rank,
        };
        self.take(rank, open);
        let answer = self.owner.take_answer().expect("an opening is answered");
        assert_eq!(ChannelKind::of(answer.head.about.kind), Some(kind));
        self.ports[rank as usize] = answer.head.value as u32;
    }

    fn take(&mut self, rank: u32, request: Request) {
        let now = self.model.now;
        let taken = (self.owner).take(rank, request, Payload::Borrowed(&[]), || now);
        taken.unwrap_or_else(|why| panic!("{request:?}: {why}"));
    }

    fn apply(&mut self, event: &Event, kind: ChannelKind) {
        self.next_id += 1;
        let id = self.next_id;
        let Self { model, ports, .. } = self;
        if !matches!(event, Event::Pass(_) | Event::Close) {
            model.expire();
        }
        match *event {
            Event::Poll(rank, poll, timeout_ns) => {
                let deadline = match timeout_ns {
                    0 | u64::MAX => timeout_ns,
                    time => model.now + time,
                };
                model.waiting.push(Asked {
                    rank,
                    id,
                    poll,
                    deadline,
                });
                model.settle();
                model.end_where(|asked| asked.deadline == 0, Status::WouldBlock);
                let port = ports[rank as usize];
                let request = Request::Poll {
                    port,
                    id,
                    poll,
                    timeout_ns,
                };
                self.take(rank, request);
            }
            Event::Cancel(rank, back) => {
                let id = id.saturating_sub(back);
                model.end_where(
                    |asked| (asked.rank, asked.id) == (rank, id),
                    Status::TimedOut,
                );
                let port = ports[rank as usize];
                self.take(
                    rank,
                    Request::Cancel {
                        port,
                        id,
                        given_up: false,
                    },
                );
            }
            Event::GiveBack(rank) if kind == ChannelKind::Semaphore => {
                model.value = MOST.min(model.value + 1);
                model.settle();
                let port = ports[rank as usize];
                let About {
                    number,
                    kind,
                    source,
                } = About::default();
                self.take(
                    rank,
                    Request::GiveBack {
                        port,
                        number,
                        kind,
                        source,
                    },
                );
            }
            Event::GiveBack(_) => {}
            Event::Pass(time) => {
                model.now += time;
                model.expire();
                let now = model.now;
                self.owner.expire(|| now);
            }
            Event::Reopen(_) if model.closed => {}
            Event::Reopen(rank) => {
                model.waiting.retain(|asked| asked.rank != rank);
                let port = ports[rank as usize];
                self.take(rank, Request::Close { port });
                self.open(rank, kind);
            }
            Event::Close => {
                model.closed = true;
                model.settle();
                self.owner.close(0, 0);
            }
        }
    }

    fn compare(&mut self) {
        let answers = std::iter::from_fn(|| self.owner.take_answer());
        let told = answers.map(|of| (of.to, of.head.id, of.head.status, of.head.value));
        let mut told: Vec<Told> = told.collect();
        let mut expected = std::mem::take(&mut self.model.told);
        let key = |told: &Told| (told.0, told.1);
        told.sort_by_key(key);
        expected.sort_by_key(key);
        // How many came before says nothing where they did not come together.
        let without = |told: &mut Told| {
            if told.2 == Status::Broken {
                told.3 = 0;
            }
        };
        told.iter_mut().for_each(without);
        expected.iter_mut().for_each(without);
        assert_eq!(told, expected);
    }
}

fn run(gate: Gate, events: &[Event]) {
    let kind = gate.kind();
    let mut both = Both::new(gate);
    for event in events {
        both.apply(event, kind);
        both.compare();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_semaphore_does_what_a_list_of_requests_would(
        value in 0..=MOST, events in prop::collection::vec(event(prop_oneof![4 => 8u32..12, 1 => Just(Poll::Available as u32)]), 1..60),
    ) {
        run(Gate::Semaphore { value, most: MOST }, &events);
    }

    #[test]
    fn a_barrier_does_what_a_list_of_requests_would(
        events in prop::collection::vec(event(prop_oneof![5 => 12u32..17, 1 => Just(Poll::OneMissing as u32)]), 1..60),
    ) {
        let parties = PARTIES.into();
        run(Gate::Barrier { parties, arrived: 0, broken: false }, &events);
    }
}

#[test]
fn what_a_kind_does_not_know_is_a_request_of_a_broken_peer() {
    let gate = Gate::Semaphore { value: 1, most: 1 };
    let mut both = Both::new(gate);
    let port = both.ports[0];
    let get = Request::Get {
        port,
        id: 1,
        take: super::super::super::terms::Take::Get,
        timeout_ns: 0,
    };
    let arrive = Request::Poll {
        port,
        id: 1,
        poll: Poll::Arrive,
        timeout_ns: 0,
    };
    for request in [get, arrive] {
        let taken = both.owner.take(0, request, Payload::Borrowed(&[]), || 0);
        assert_eq!(
            taken,
            Err("a request that channels of this kind do not know")
        );
        assert_eq!(both.owner.take_answer(), None);
    }
}
