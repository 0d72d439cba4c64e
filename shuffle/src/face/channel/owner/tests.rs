//! The owner beside a model: a list of requests that is gone through from its beginning after each
//! event, for as long as anything can be done.

use proptest::prelude::*;

use super::super::poll::Poll;
use super::super::terms::{Return, Take};
use super::super::wire::About;
use super::*;

mod ends;
mod handed_out;
mod lost;

const RANKS: u32 = 3;
const LIMITS: ChannelLimits = ChannelLimits {
    messages: 3,
    bytes: 40,
    ports: 1000,
    window_messages: 4,
    window_bytes: 30,
};

#[derive(Debug, Clone)]
enum Event {
    Send(u32, Return, u64, usize),
    Get(u32, Take, u64),
    Poll(u32, Poll, u64),
    /// The request so many back, of the same port; whether it is given up.
    Cancel(u32, u64, bool),
    /// The last message that the port has got.
    GiveBack(u32),
    Want(u32),
    /// Time passes, and somebody looks.
    Pass(u64),
    Close,
    /// A port is closed, and opened again where the channel is open.
    Reopen(u32),
}

fn take() -> impl Strategy<Value = Take> {
    let plain = prop_oneof![Just(Take::Get), Just(Take::Peek), Just(Take::Pop)];
    prop_oneof![3 => plain, 1 => (0u64..41).prop_map(Take::Within)]
}

fn event() -> impl Strategy<Value = Event> {
    let port = 0..RANKS;
    let timeout = || prop_oneof![Just(0), Just(u64::MAX), 1u64..30];
    let when = (0u32..4).prop_map(|number| Return::of(number).unwrap());
    let poll = prop_oneof![8 => 0u32..8, 1 => Just(Poll::Receivers as u32)];
    let poll = poll.prop_map(|number| Poll::of(number).unwrap());
    prop_oneof![
        12 => (port.clone(), when, timeout(), 0usize..41).prop_map(|(a, b, c, d)| Event::Send(a, b, c, d)),
        10 => (port.clone(), take(), timeout()).prop_map(|(a, b, c)| Event::Get(a, b, c)),
        6 => (port.clone(), poll, timeout()).prop_map(|(a, b, c)| Event::Poll(a, b, c)),
        4 => (port.clone(), 0u64..4, any::<bool>()).prop_map(|(a, b, c)| Event::Cancel(a, b, c)),
        2 => port.clone().prop_map(Event::GiveBack),
        2 => port.clone().prop_map(Event::Want),
        4 => (0u64..20).prop_map(Event::Pass),
        1 => Just(Event::Close),
        1 => port.prop_map(Event::Reopen),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Wish {
    Send(Return, usize),
    Take(Take),
    Poll(Poll),
}

/// Whose port is closed: nobody hears of its sends, which still wait.
const GONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Asked {
    rank: u32,
    id: u64,
    wish: Wish,
    deadline: u64,
}

/// What was told of a request: rank, number, status, number of the message; of one that is too
/// long, its bytes.
type Told = (u32, u64, Status, u64);

/// Who is told once a message is taken, and until when it may be: rank, request, deadline.
type Receipt = Option<(u32, u64, u64)>;

#[derive(Default)]
struct Model {
    now: u64,
    closed: bool,
    /// Number of each message, its bytes, and who is to be told.
    messages: Vec<(u64, usize, Receipt)>,
    deposited: u64,
    waiting: Vec<Asked>,
    /// Messages by which gets were answered: rank, request, number; and those that come back.
    taken: Vec<(u32, u64, u64)>,
    returning: Vec<(u32, u64)>,
    told: Vec<Told>,
    ended: [Ended; RANKS as usize],
}

impl Model {
    fn bytes(&self) -> usize {
        self.messages.iter().map(|(_, bytes, _)| bytes).sum()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.messages.len() < LIMITS.messages as usize
            && self.bytes() + bytes <= LIMITS.bytes as usize
    }

    fn end(&mut self, asked: &Asked, status: Status, message: u64) {
        if asked.rank == GONE {
            return;
        }
        if let Wish::Send(when, bytes) = asked.wish {
            let ended = &mut self.ended[asked.rank as usize];
            ended.messages += 1;
            ended.bytes += bytes as u64;
            let is_silent = match status {
                Status::Done => !when.is_answered(),
                _ => false,
            };
            if is_silent {
                return;
            }
        }
        self.told.push((asked.rank, asked.id, status, message));
    }

    /// Whether something of its kind waits before it.
    fn waits_behind(&self, at: usize) -> bool {
        let is_send = |asked: &Asked| matches!(asked.wish, Wish::Send(..));
        let is_take = |asked: &Asked| matches!(asked.wish, Wish::Take(_));
        let asked = &self.waiting[at];
        let before = &self.waiting[..at];
        is_send(asked) && before.iter().any(is_send) || is_take(asked) && before.iter().any(is_take)
    }

    /// Does one thing for a request; whether it has ended.
    fn try_one(&mut self, at: usize) -> bool {
        if self.waits_behind(at) {
            return false;
        }
        let asked = self.waiting[at].clone();
        // What is tried once does not wait.
        let waits = |asked: &Asked| matches!(asked.wish, Wish::Send(..)) && asked.deadline > 0;
        let sends = self.waiting.iter().any(waits);
        let size = self.messages.len();
        match asked.wish {
            Wish::Send(..) if self.closed => self.end(&asked, Status::Closed, 0),
            Wish::Send(when, bytes) if self.has_room(bytes) => {
                self.deposited += 1;
                let until = match asked.deadline {
                    0 => u64::MAX,
                    deadline => deadline,
                };
                let receipt = (asked.rank, asked.id, until);
                let receipt = (when == Return::WhenReceived).then_some(receipt);
                self.messages.push((self.deposited, bytes, receipt));
                match receipt {
                    // Told later; what it takes of the window is free.
                    Some(_) => {
                        let ended = &mut self.ended[asked.rank as usize];
                        ended.messages += 1;
                        ended.bytes += bytes as u64;
                    }
                    None => self.end(&asked, Status::Done, 0),
                }
            }
            Wish::Take(take) if size > 0 => {
                let (number, bytes, _) = self.messages[0];
                if matches!(take, Take::Within(most) if bytes as u64 > most) {
                    self.end(&asked, Status::TooLong, bytes as u64);
                    self.waiting.remove(at);
                    return true;
                }
                if take != Take::Peek {
                    let (_, _, receipt) = self.messages.remove(0);
                    if let Some((rank, id, _)) = receipt {
                        self.told.push((rank, id, Status::Done, 0));
                    }
                    if take != Take::Pop {
                        let is_its = |(of, ..): &(u32, u64, u64)| *of == asked.rank;
                        let all = self.taken.iter().filter(|taken| is_its(taken)).count();
                        if all >= LIMITS.window_messages as usize {
                            let first = self.taken.iter().position(is_its);
                            first.map(|at| self.taken.remove(at));
                        }
                        self.taken.push((asked.rank, asked.id, number));
                    }
                }
                self.end(&asked, Status::Done, number);
            }
            Wish::Take(_) if self.closed && self.returning.is_empty() => {
                self.end(&asked, Status::Closed, 0)
            }
            Wish::Poll(poll) => {
                let room = self.has_room(1) && !sends && !self.closed;
                let holds = match poll {
                    Poll::In => size > 0,
                    Poll::Out => room,
                    Poll::InOrOut => size > 0 || room,
                    Poll::Empty => size == 0 && self.returning.is_empty() && !sends,
                    Poll::Full => !room && !self.closed,
                    Poll::Closed => self.closed,
                    Poll::Size | Poll::Capacity | Poll::Receivers => true,
                    _ => unreachable!("of queues of messages"),
                };
                let never = self.closed
                    && match poll {
                        Poll::In | Poll::InOrOut => size == 0 && self.returning.is_empty(),
                        Poll::Out | Poll::Full => true,
                        _ => false,
                    };
                match (holds, never) {
                    (true, _) => self.end(&asked, Status::Done, 0),
                    (_, true) => self.end(&asked, Status::Closed, 0),
                    _ => return false,
                }
            }
            _ => return false,
        }
        self.waiting.remove(at);
        true
    }

    /// Messages move first, then polls are looked at.
    fn settle(&mut self) {
        loop {
            let is_poll = |asked: &Asked| matches!(asked.wish, Wish::Poll(_));
            let moves = (0..self.waiting.len()).filter(|&at| !is_poll(&self.waiting[at]));
            let polls = (0..self.waiting.len()).filter(|&at| is_poll(&self.waiting[at]));
            let all: Vec<_> = moves.chain(polls).collect();
            if !all.into_iter().any(|at| self.try_one(at)) {
                return;
            }
        }
    }

    fn expire(&mut self) {
        let now = self.now;
        self.time_out(|_, _, deadline| deadline <= now);
    }

    /// Ends requests of a rank, number and deadline that are over, in the channel or not.
    fn time_out(&mut self, over: impl Fn(u32, u64, u64) -> bool) {
        self.messages.retain(|(_, _, receipt)| {
            let of = receipt.filter(|&(rank, id, deadline)| over(rank, id, deadline));
            let told = of.map(|(rank, id, _)| (rank, id, Status::TimedOut, 0));
            self.told.extend(told);
            of.is_none()
        });
        let is_over = |asked: &Asked| over(asked.rank, asked.id, asked.deadline);
        self.end_where(is_over, Status::TimedOut);
    }

    fn end_where(&mut self, over: impl Fn(&Asked) -> bool, status: Status) {
        let (ended, rest): (Vec<_>, _) = self.waiting.drain(..).partition(over);
        self.waiting = rest;
        for asked in ended {
            self.end(&asked, status, 0);
        }
        self.settle();
    }

    fn ask(&mut self, rank: u32, id: u64, wish: Wish, timeout: u64) {
        let deadline = match timeout {
            0 | u64::MAX => timeout,
            time => self.now + time,
        };
        self.waiting.push(Asked {
            rank,
            id,
            wish,
            deadline,
        });
        self.settle();
        if timeout == 0 {
            self.end_where(
                |asked| (asked.rank, asked.id) == (rank, id),
                Status::WouldBlock,
            );
        }
    }

    fn waits(&self, rank: u32) -> impl Iterator<Item = &Asked> {
        self.waiting.iter().filter(move |asked| asked.rank == rank)
    }
}

struct Both {
    owner: Owner,
    model: Model,
    /// The owner's numbers of the ports, by rank.
    ports: [u32; RANKS as usize],
    next_id: u64,
    /// Requests that take a message out with its bytes.
    gets: std::collections::HashSet<(u32, u64)>,
    /// Messages that each rank has got so, and could give back.
    got: [Vec<About>; RANKS as usize],
    /// What each has been told of what has ended.
    credit: [Ended; RANKS as usize],
}

impl Both {
    fn new() -> Self {
        Self::over(Owner::default())
    }

    fn over(owner: Owner) -> Self {
        let mut both = Self {
            owner,
            model: Model::default(),
            ports: [0; RANKS as usize],
            next_id: 0,
            gets: Default::default(),
            got: Default::default(),
            credit: Default::default(),
        };
        assert_eq!(both.owner.create(LIMITS, None), Some((0, 0)));
        (0..RANKS).for_each(|rank| both.open(rank));
        both
    }

    fn open(&mut self, rank: u32) {
        let open = Request::Open {
            channel: 0,
            epoch: 0,
            port: 100 + rank,
        };
        self.take(rank, open, 0);
        let answer = self.owner.take_answer().expect("an opening is answered");
        assert_eq!((answer.to, answer.head.port), (rank, 100 + rank));
        assert_eq!(answer.head.status, Status::Done);
        self.ports[rank as usize] = answer.head.value as u32;
    }

    fn take(&mut self, rank: u32, request: Request, bytes: usize) {
        let bytes = vec![7; bytes];
        let now = self.model.now;
        let taken = self
            .owner
            .take(rank, request, Payload::Borrowed(&bytes), || now);
        taken.unwrap_or_else(|why| panic!("{request:?}: {why}"));
    }

    fn apply(&mut self, event: &Event) {
        self.next_id += 1;
        let id = self.next_id;
        let port_of = |rank: u32| self.ports[rank as usize];
        let model = &mut self.model;
        // Whoever asks has what is over ended first.
        if !matches!(event, Event::Pass(_) | Event::Close) {
            model.expire();
        }
        match *event {
            Event::Send(rank, when, timeout_ns, bytes) => {
                let waits = model.waits(rank).filter_map(|asked| match asked.wish {
                    Wish::Send(_, bytes) => Some(bytes as u64),
                    _ => None,
                });
                let (messages, waiting) =
                    waits.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
                let fits = messages < LIMITS.window_messages
                    && waiting + bytes as u64 <= LIMITS.window_bytes;
                if messages > 0 && !fits {
                    return;
                }
                model.ask(rank, id, Wish::Send(when, bytes), timeout_ns);
                let port = port_of(rank);
                let request = Request::Send {
                    port,
                    id,
                    when,
                    timeout_ns,
                    kind: id as u32,
                };
                self.take(rank, request, bytes);
            }
            Event::Get(rank, _, timeout_ns) | Event::Poll(rank, _, timeout_ns) => {
                let others = model
                    .waits(rank)
                    .filter(|asked| !matches!(asked.wish, Wish::Send(..)));
                if others.count() >= LIMITS.window_messages as usize {
                    return;
                }
                let port = port_of(rank);
                let (wish, request) = match *event {
                    Event::Get(_, take, _) => (
                        Wish::Take(take),
                        Request::Get {
                            port,
                            id,
                            take,
                            timeout_ns,
                        },
                    ),
                    Event::Poll(_, poll, _) => (
                        Wish::Poll(poll),
                        Request::Poll {
                            port,
                            id,
                            poll,
                            timeout_ns,
                        },
                    ),
                    _ => unreachable!("of the two above"),
                };
                if matches!(wish, Wish::Take(Take::Get | Take::Within(_))) {
                    self.gets.insert((rank, id));
                }
                model.ask(rank, id, wish, timeout_ns);
                self.take(rank, request, 0);
            }
            Event::Cancel(rank, back, given_up) => {
                let id = id.saturating_sub(back);
                let is_it = |&(of, number, _): &(u32, u64, u64)| (of, number) == (rank, id);
                let taken = model.taken.iter().position(is_it).filter(|_| given_up);
                match taken.map(|at| model.taken.remove(at)) {
                    Some((_, _, number)) => model.returning.push((rank, number)),
                    None => model.time_out(|of, number, _| (of, number) == (rank, id)),
                }
                let port = port_of(rank);
                self.take(rank, Request::Cancel { port, id, given_up }, 0);
            }
            Event::GiveBack(rank) => {
                let Some(About {
                    number,
                    source,
                    kind,
                }) = self.got[rank as usize].pop()
                else {
                    return;
                };
                let at = model.messages.partition_point(|(of, ..)| *of < number);
                model.messages.insert(at, (number, 5, None));
                model.returning.retain(|&(_, of)| of != number);
                model.settle();
                let port = port_of(rank);
                self.take(
                    rank,
                    Request::GiveBack {
                        port,
                        number,
                        source,
                        kind,
                    },
                    5,
                );
            }
            Event::Want(rank) => {
                let port = port_of(rank);
                self.take(rank, Request::Want { port }, 0);
            }
            Event::Pass(time) => {
                model.now += time;
                model.expire();
                let now = model.now;
                self.owner.expire(|| now);
            }
            Event::Close => {
                // The last channel that has ports.
                model.closed = true;
                model.settle();
                self.owner.close(0, 0);
            }
            Event::Reopen(rank) => {
                if model.closed {
                    return;
                }
                model.waiting.retain_mut(|asked| {
                    let went_on = match asked.wish {
                        Wish::Send(when, _) => !when.is_answered(),
                        _ => false,
                    };
                    let is_of = asked.rank == rank;
                    if is_of && went_on {
                        asked.rank = GONE;
                    }
                    !is_of || went_on
                });
                let receipts = model.messages.iter_mut();
                receipts.for_each(|(_, _, receipt)| {
                    receipt.take_if(|(of, ..)| *of == rank);
                });
                model.taken.retain(|(of, ..)| *of != rank);
                model.returning.retain(|(of, _)| *of != rank);
                model.ended[rank as usize] = Ended::default();
                self.credit[rank as usize] = Ended::default();
                self.got[rank as usize].clear();
                model.settle();
                let port = port_of(rank);
                self.take(rank, Request::Close { port }, 0);
                let before: Vec<_> = std::iter::from_fn(|| self.owner.take_answer()).collect();
                self.open(rank);
                self.owner.ports.answers.extend(before);
            }
        }
    }

    /// What the owner has told, and that it is what the model has.
    fn compare(&mut self) {
        let mut told = Vec::new();
        while let Some(answer) = self.owner.take_answer() {
            let (rank, head) = (answer.to, answer.head);
            let credit = &mut self.credit[rank as usize];
            credit.messages = credit.messages.max(head.ended.messages);
            credit.bytes = credit.bytes.max(head.ended.bytes);
            if head.status == Status::Credit {
                continue;
            }
            let number = head.about.number;
            let told_of = match head.status {
                Status::TooLong => head.value,
                _ => number,
            };
            told.push((rank, head.id, head.status, told_of));
            if number != 0 && self.gets.contains(&(rank, head.id)) {
                self.got[rank as usize].push(head.about);
            }
        }
        let mut expected = std::mem::take(&mut self.model.told);
        let key = |told: &Told| (told.0, told.1, told.3);
        told.sort_by_key(key);
        expected.sort_by_key(key);
        assert_eq!(told, expected);
        for rank in 0..RANKS as usize {
            let (told, ended) = (self.credit[rank], self.model.ended[rank]);
            let untold = (ended.messages - told.messages, ended.bytes - told.bytes);
            let is_less = untold.0 * 2 < u64::from(LIMITS.window_messages)
                && untold.1 * 2 < LIMITS.window_bytes;
            assert!(
                is_less,
                "rank {rank} waits for {untold:?}, and was not told"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn an_owner_does_what_a_list_of_requests_would(events in prop::collection::vec(event(), 1..60)) {
        let mut both = Both::new();
        for event in &events {
            both.apply(event);
            both.compare();
        }
    }

    #[test]
    fn no_request_of_a_broken_peer_does_more_than_be_refused(
        requests in prop::collection::vec((0u32..12, prop::collection::vec(0u8..4, 32..60), 0u32..RANKS), 1..40),
    ) {
        let mut both = Both::new();
        for (kind, bytes, rank) in requests {
            // Small numbers meet what is there, in each of their bytes' places.
            let mut bytes = bytes;
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte *= u8::from(at % 4 == 0);
            }
            if let Some((request, rest)) = Request::parse(kind, &bytes) {
                // Whether it is refused or not, what waits is within the bounds.
                let _ = both.owner.take(rank, request, Payload::Borrowed(rest), || 0);
                let waits = LIMITS.messages + LIMITS.ports * LIMITS.window_messages;
                let queue = both.owner.places[0].queue.as_ref();
                prop_assert!(queue.is_none_or(|queue| queue.waiting() <= 2 * waits as usize));
            }
        }
    }
}

#[test]
fn ports_and_channels_that_are_gone_are_told_apart_from_those_that_come_next() {
    let mut owner = Owner::default();
    let limits = ChannelLimits { ports: 3, ..LIMITS };
    assert_eq!(owner.create(limits, None), Some((0, 0)));
    let open = |owner: &mut Owner, epoch| {
        let open = Request::Open {
            channel: 0,
            epoch,
            port: 0,
        };
        owner.take(1, open, Payload::Borrowed(&[]), || 0).unwrap();
        let answer = owner.take_answer().unwrap();
        (answer.head.status, answer.head.value as u32)
    };
    let (status, port) = open(&mut owner, 0);
    assert_eq!(status, Status::Done);
    owner.close(0, 0);
    // As long as somebody has a port it is there.
    let (status, second) = open(&mut owner, 0);
    assert_eq!(status, Status::Done);
    for port in [port, second] {
        owner
            .take(1, Request::Close { port }, Payload::Borrowed(&[]), || 0)
            .unwrap();
    }
    assert_eq!(open(&mut owner, 0).0, Status::Gone);
    assert_eq!(owner.create(limits, None), Some((0, 1)));
    assert_eq!(open(&mut owner, 0).0, Status::Gone);
    let opened: Vec<_> = (0..=limits.ports).map(|_| open(&mut owner, 1).0).collect();
    assert_eq!(
        opened,
        [Status::Done, Status::Done, Status::Done, Status::NoPort]
    );
    let foreign = owner.take(2, Request::Close { port }, Payload::Borrowed(&[]), || 0);
    assert!(foreign.is_err());
    owner
        .take(1, Request::Close { port }, Payload::Borrowed(&[]), || 0)
        .unwrap();
    assert_eq!(open(&mut owner, 1).0, Status::Done);
    owner.leave();
    assert_eq!(open(&mut owner, 1).0, Status::Gone);
    assert_eq!(owner.create(LIMITS, None), None);
}
