//! What an owner has handed out and has not arrived is bound, and nothing waits for ever behind it.

use super::super::super::wire::message;
use super::*;

/// Bytes that may be handed out and not arrived: more than any message, and less than two long
/// ones.
const MOST: u64 = 60;

#[derive(Debug, Clone)]
enum Step {
    Send(u32, usize),
    /// That waits, or is tried once.
    Get(u32, Take, bool),
    /// The message that has been on its way for longest, or the one so many behind it, arrives.
    Arrive(usize),
    /// The get that waits for longest is taken back.
    Cancel,
    Reopen(u32),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let port = 0..RANKS;
    prop_oneof![
        12 => (port.clone(), 0usize..41).prop_map(|(a, b)| Step::Send(a, b)),
        12 => (port.clone(), take(), prop::bool::weighted(0.8)).prop_map(|(a, b, c)| Step::Get(a, b, c)),
        8 => (0usize..4).prop_map(Step::Arrive),
        2 => Just(Step::Cancel),
        1 => port.prop_map(Step::Reopen),
        1 => Just(Step::Close),
    ]
}

struct Asker {
    both: Both,
    next_id: u64,
    /// Gets that were not answered.
    gets: Vec<(u32, u64, Take)>,
    /// Of each message that is on its way: its port, and its bytes.
    under_way: Vec<(u32, u64)>,
    /// Messages that are in the channel, and the last that was taken out.
    left: u64,
    last: u64,
    closed: bool,
}

impl Asker {
    fn new() -> Self {
        Self {
            both: Both::over(Owner::new(Some(MOST))),
            next_id: 0,
            gets: Vec::new(),
            under_way: Vec::new(),
            left: 0,
            last: 0,
            closed: false,
        }
    }

    fn ask(&mut self, rank: u32, request: Request, bytes: usize) -> Result<(), &'static str> {
        let bytes = vec![7; bytes];
        let taken = (self.both.owner).take(rank, request, Payload::Borrowed(&bytes), || 0);
        self.hear();
        taken
    }

    fn apply(&mut self, step: &Step) {
        self.next_id += 1;
        let id = self.next_id;
        let port_of = |rank: u32| self.both.ports[rank as usize];
        match *step {
            Step::Send(rank, bytes) => {
                let send = Request::Send {
                    port: port_of(rank),
                    id,
                    when: Return::WhenDeposited,
                    timeout_ns: u64::MAX,
                    kind: 0,
                };
                // More than its window is refused.
                let _ = self.ask(rank, send, bytes);
            }
            Step::Get(rank, take, waits) => {
                let mine = self.gets.iter().filter(|get| get.0 == rank);
                if mine.count() == LIMITS.window_messages as usize {
                    return;
                }
                let get = Request::Get {
                    port: port_of(rank),
                    id,
                    take,
                    timeout_ns: if waits { u64::MAX } else { 0 },
                };
                self.gets.push((rank, id, take));
                self.ask(rank, get, 0).unwrap();
            }
            Step::Arrive(at) if at < self.under_way.len() => {
                let (rank, bytes) = self.under_way.remove(at);
                let port = self.both.ports[rank as usize];
                self.ask(rank, Request::Arrived { port, bytes }, 0).unwrap();
            }
            Step::Arrive(_) => {}
            Step::Cancel => {
                if let Some(&(rank, id, _)) = self.gets.first() {
                    let port = port_of(rank);
                    self.ask(
                        rank,
                        Request::Cancel {
                            port,
                            id,
                            given_up: false,
                        },
                        0,
                    )
                    .unwrap();
                }
            }
            Step::Reopen(rank) if !self.closed => {
                // As askers do, once nothing of it is under way; then it is a port like any other.
                let is_idle = self.gets.iter().all(|get| get.0 != rank);
                if is_idle {
                    self.under_way.retain(|of| of.0 != rank);
                    let port = port_of(rank);
                    self.ask(rank, Request::Close { port }, 0).unwrap();
                    self.both.open(rank);
                }
            }
            Step::Reopen(_) => {}
            Step::Close => {
                self.closed = true;
                self.both.owner.close(0, 0);
                self.hear();
            }
        }
    }

    fn hear(&mut self) {
        let mut taken = Vec::new();
        while let Some(answer) = self.both.owner.take_answer() {
            let (rank, head) = (answer.to, answer.head);
            let at = (self.gets.iter()).position(|get| (get.0, get.1) == (rank, head.id));
            let Some(at) = at else {
                self.left += u64::from(head.status == Status::Done && head.id != 0);
                continue;
            };
            let (.., take) = self.gets.remove(at);
            if head.status != Status::Done {
                assert!(head.status != Status::Closed || self.closed);
                continue;
            }
            if take != Take::Peek {
                taken.push(head.about.number);
            }
            let bytes = answer.bytes.unwrap().len() as u64;
            assert_eq!(head.value == message::TELLS, bytes > 0);
            if bytes > 0 {
                self.under_way.push((rank, bytes));
            }
        }
        taken.sort_unstable();
        for number in taken {
            assert!(number > self.last, "{number} behind {}", self.last);
            self.last = number;
            self.left -= 1;
        }
        let bytes: u64 = self.under_way.iter().map(|of| of.1).sum();
        assert!(bytes <= MOST, "{bytes} bytes in {:?}", self.under_way);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn what_has_not_arrived_is_bound_and_all_who_can_be_are_served(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut asker = Asker::new();
        for step in &steps {
            asker.apply(step);
        }
        while !asker.under_way.is_empty() {
            asker.apply(&Step::Arrive(0));
        }
        prop_assert!(asker.gets.is_empty() || asker.left == 0, "{:?} {}", asker.gets, asker.left);
        prop_assert!(asker.gets.is_empty() || !asker.closed);
    }
}

#[test]
fn a_message_that_was_not_handed_out_cannot_arrive() {
    let mut asker = Asker::new();
    let port = asker.both.ports[0];
    asker.apply(&Step::Send(1, 8));
    asker.apply(&Step::Get(0, Take::Get, true));
    for bytes in [9, u64::MAX] {
        let refused = asker.ask(0, Request::Arrived { port, bytes }, 0);
        assert_eq!(refused, Err("more has arrived than was handed out"));
    }
    assert_eq!(asker.ask(0, Request::Arrived { port, bytes: 8 }, 0), Ok(()));
}

#[test]
fn who_polls_for_a_message_hears_of_one_that_a_get_would_have() {
    let mut asker = Asker::new();
    let ports = asker.both.ports;
    asker.apply(&Step::Send(0, 40));
    asker.apply(&Step::Get(0, Take::Get, true));
    asker.apply(&Step::Send(0, 25));
    assert_eq!(asker.under_way, [(0, 40)]);
    let owner = &mut asker.both.owner;
    let mut ask = |rank, request| {
        let taken = owner.take(rank, request, Payload::Borrowed(&[]), || 0);
        taken.unwrap();
        let head = owner.take_answer().map(|answer| answer.head);
        head.map(|head| (head.id, head.status, head.value))
    };
    let poll = |id, poll, timeout_ns| Request::Poll {
        port: ports[1],
        id,
        poll,
        timeout_ns,
    };
    let once = ask(1, poll(1000, Poll::In, 0));
    assert_eq!(once, Some((1000, Status::WouldBlock, 0)));
    let room = ask(1, poll(1001, Poll::InOrOut, 0));
    assert_eq!(room, Some((1001, Status::Done, 2)), "room alone");
    assert_eq!(ask(1, poll(1002, Poll::In, u64::MAX)), None);
    let arrived = Request::Arrived {
        port: ports[0],
        bytes: 40,
    };
    assert_eq!(ask(0, arrived), Some((1002, Status::Done, 1)));
}

#[test]
fn that_a_message_is_too_long_is_said_whatever_has_not_arrived() {
    let mut asker = Asker::new();
    let port = asker.both.ports[1];
    asker.apply(&Step::Send(0, 40));
    asker.apply(&Step::Get(0, Take::Get, true));
    asker.apply(&Step::Send(0, 25));
    let owner = &mut asker.both.owner;
    let mut get = |id, most| {
        let get = Request::Get {
            port,
            id,
            take: Take::Within(most),
            timeout_ns: u64::MAX,
        };
        let taken = owner.take(1, get, Payload::Borrowed(&[]), || 0);
        taken.unwrap();
        let head = owner.take_answer().map(|answer| answer.head);
        head.map(|head| (head.id, head.status, head.value))
    };
    assert_eq!(get(1000, 24), Some((1000, Status::TooLong, 25)));
    // It fits, and may not be handed out yet: those behind wait for it.
    assert_eq!(get(1001, 25), None);
    assert_eq!(get(1002, 24), None);
    let port = asker.both.ports[0];
    let arrived = Request::Arrived { port, bytes: 40 };
    let taken = (asker.both.owner).take(0, arrived, Payload::Borrowed(&[]), || 0);
    taken.unwrap();
    let head = asker.both.owner.take_answer().map(|answer| answer.head);
    let told = head.map(|head| (head.id, head.status, head.about.number));
    assert_eq!(told, Some((1001, Status::Done, 2)));
    assert_eq!(asker.both.owner.take_answer(), None, "nothing is there");
}
