//! What is left where ports, channels and openings end.

use super::*;

/// An owner of one channel with these limits.
fn owner(limits: ChannelLimits) -> Owner {
    let mut owner = Owner::default();
    assert_eq!(owner.create(limits, None), Some((0, 0)));
    owner
}

/// What the owner tells for a request of `rank`: to whom, of which request, how it has ended.
fn ask(owner: &mut Owner, rank: u32, request: Request, bytes: usize) -> Vec<(u32, u64, Status)> {
    ask_at(0, owner, rank, request, bytes)
}

/// As [`ask`], at this time.
fn ask_at(
    now_ns: u64,
    owner: &mut Owner,
    rank: u32,
    request: Request,
    bytes: usize,
) -> Vec<(u32, u64, Status)> {
    let message = vec![7; bytes];
    let taken = owner.take(rank, request, Payload::Borrowed(&message), || now_ns);
    assert_eq!(taken, Ok(()), "{request:?} of rank {rank}");
    told(owner)
}

/// What the owner tells, in the order in which it does; not that a window has room.
fn told(owner: &mut Owner) -> Vec<(u32, u64, Status)> {
    let all = std::iter::from_fn(|| owner.take_answer());
    let all = all.map(|answer| (answer.to, answer.head.id, answer.head.status));
    all.filter(|(.., status)| *status != Status::Credit)
        .collect()
}

/// Opens a port for a rank; its number.
fn open(owner: &mut Owner, rank: u32) -> u32 {
    let open = Request::Open {
        channel: 0,
        epoch: 0,
        port: rank,
    };
    let taken = owner.take(rank, open, Payload::Borrowed(&[]), || 0);
    assert_eq!(taken, Ok(()));
    let answer = owner.take_answer().expect("an opening is answered");
    assert_eq!(answer.head.status, Status::Done);
    answer.head.value as u32
}

fn send(port: u32, id: u64, when: Return, timeout_ns: u64) -> Request {
    Request::Send {
        port,
        id,
        when,
        timeout_ns,
        kind: id as u32,
    }
}

fn get(port: u32, id: u64) -> Request {
    Request::Get {
        port,
        id,
        take: Take::Get,
        timeout_ns: u64::MAX,
    }
}

fn give_back(port: u32, number: u64) -> Request {
    Request::GiveBack {
        port,
        number,
        kind: 0,
        source: 0,
    }
}

/// Kinds of the messages that are got now, one after the other, on the owner's rank.
fn drained(owner: &mut Owner) -> Vec<u32> {
    let all = std::iter::from_fn(|| owner.get_now((0, 0), u64::MAX, || 0));
    all.map(|message| message.about.kind).collect()
}

const NEVER: u64 = u64::MAX;

#[test]
fn who_gets_much_hears_of_each_step_once() {
    const BYTES: usize = 1000;
    let mut owner = owner(ChannelLimits::default());
    let port = open(&mut owner, 1);
    let (mut steps, step) = (0, STEP_BYTES.div_ceil(BYTES + MESSAGE_BYTES));
    for number in 1..=10 * step {
        assert!(!owner.take_step(), "nothing was got since");
        ask(
            &mut owner,
            1,
            send(port, 0, Return::WhenBuffered, NEVER),
            BYTES,
        );
        assert_eq!(drained(&mut owner).len(), 1);
        let is_step = owner.take_step();
        assert_eq!(is_step, number % step == 0, "after {number} messages");
        steps += usize::from(is_step);
    }
    assert_eq!(steps, 10);
}

#[test]
fn messages_that_closed_ports_have_given_back_keep_no_other_from_coming_back() {
    let mut owner = owner(ChannelLimits {
        messages: 1,
        window_messages: 1,
        ..LIMITS
    });
    let ports: Vec<u32> = (1..4).map(|rank| open(&mut owner, rank)).collect();
    for (rank, &port) in (1..).zip(&ports) {
        let deposited = ask(
            &mut owner,
            1,
            send(ports[0], 9, Return::WhenDeposited, NEVER),
            1,
        );
        assert_eq!(deposited, [(1, 9, Status::Done)]);
        let got = ask(&mut owner, rank, get(port, 5), 0);
        assert_eq!(got, [(rank, 5, Status::Done)]);
    }
    ask(
        &mut owner,
        1,
        send(ports[0], 9, Return::WhenDeposited, NEVER),
        1,
    );
    // All are taken back, and each port is closed behind its message.
    for (number, &port) in (1..).zip(&ports) {
        let rank = number as u32;
        ask(&mut owner, rank, give_back(port, number), 1);
        ask(&mut owner, rank, Request::Close { port }, 0);
    }
    assert_eq!(drained(&mut owner).len(), 4);
}

#[test]
fn a_message_comes_back_to_a_channel_that_is_kept_with_what_waited_for_room() {
    let limits = ChannelLimits {
        messages: 1,
        ports: 2,
        window_messages: 2,
        ..LIMITS
    };
    let mut owner = owner(limits);
    let ports = [open(&mut owner, 1), open(&mut owner, 2)];
    // Two of each port are got and could come back; one fills the channel, and four wait.
    for (rank, port) in (1..).zip(ports) {
        for id in 1..=2 {
            ask(
                &mut owner,
                rank,
                send(port, 0, Return::WhenBuffered, NEVER),
                1,
            );
            let got = ask(&mut owner, rank, get(port, id), 0);
            assert_eq!(got, [(rank, id, Status::Done)]);
        }
    }
    ask(
        &mut owner,
        1,
        send(ports[0], 0, Return::WhenBuffered, NEVER),
        1,
    );
    for (rank, port) in (1..).zip(ports) {
        for _ in 0..2 {
            ask(
                &mut owner,
                rank,
                send(port, 0, Return::WhenBuffered, NEVER),
                1,
            );
        }
    }
    assert!(owner.keep(|| 20));
    for number in 1..=4 {
        let rank = 1 + (number as u32 - 1) / 2;
        ask(
            &mut owner,
            rank,
            give_back(ports[rank as usize - 1], number),
            1,
        );
    }
    let places = owner.kept();
    let mut next = Owner::default();
    next.resume(places);
    assert_eq!(drained(&mut next).len(), 9);
}

#[test]
fn a_failure_is_told_before_a_send_behind_it_is_said_to_be_deposited() {
    let mut owner = owner(ChannelLimits {
        messages: 1,
        ..LIMITS
    });
    let port = open(&mut owner, 1);
    ask(
        &mut owner,
        1,
        send(port, 1, Return::WhenDeposited, NEVER),
        1,
    );
    // One that nobody waits for, until 10, and one behind it that is answered.
    ask(&mut owner, 1, send(port, 0, Return::WhenBuffered, 10), 20);
    ask(
        &mut owner,
        1,
        send(port, 2, Return::WhenDeposited, NEVER),
        1,
    );
    // By the time that there is room the first of these is over.
    owner.expire(|| 5);
    assert_eq!(told(&mut owner), []);
    assert_eq!(
        ask_at(20, &mut owner, 1, get(port, 3), 0),
        [
            (1, 0, Status::TimedOut),
            (1, 3, Status::Done),
            (1, 2, Status::Done)
        ]
    );
}

#[test]
fn what_was_left_in_a_closed_channel_is_kept_and_nothing_more_is_sent_to_it() {
    let mut owner = owner(LIMITS);
    let port = open(&mut owner, 1);
    for id in 1..=2 {
        ask(
            &mut owner,
            1,
            send(port, id, Return::WhenDeposited, NEVER),
            1,
        );
    }
    ask(&mut owner, 1, send(port, 3, Return::WhenReceived, NEVER), 1);
    owner.close(0, 0);
    assert!(owner.keep(|| 20));
    assert_eq!(told(&mut owner), [(1, 3, Status::Closed)]);
    let mut next = Owner::default();
    next.resume(owner.kept());
    let port = open(&mut next, 2);
    let sent = ask(&mut next, 2, send(port, 4, Return::WhenDeposited, NEVER), 1);
    assert_eq!(sent, [(2, 4, Status::Closed)]);
    assert_eq!(drained(&mut next), [1, 2, 3]);
    let got = ask(&mut next, 2, get(port, 5), 0);
    assert_eq!(got, [(2, 5, Status::Closed)]);
    // It goes with its last port.
    ask(&mut next, 2, Request::Close { port }, 0);
    assert_eq!(next.create(LIMITS, None), Some((0, 1)));
}

#[test]
fn a_send_whose_time_is_over_is_not_kept() {
    let mut owner = owner(ChannelLimits {
        messages: 1,
        ..LIMITS
    });
    let port = open(&mut owner, 1);
    for (kind, timeout_ns) in [(1, NEVER), (2, 10), (3, NEVER), (4, 1000)] {
        let send = Request::Send {
            port,
            id: 0,
            when: Return::WhenBuffered,
            timeout_ns,
            kind,
        };
        ask(&mut owner, 1, send, 1);
    }
    assert!(owner.keep(|| 20));
    assert_eq!(told(&mut owner), [(1, 0, Status::TimedOut)]);
    let mut next = Owner::default();
    next.resume(owner.kept());
    assert_eq!(drained(&mut next), [1, 3, 4]);
}

#[test]
fn a_closed_port_is_one_of_its_channel_until_nothing_of_it_waits() {
    let mut owner = owner(ChannelLimits {
        messages: 1,
        ports: 2,
        ..LIMITS
    });
    let [sender, other] = [1, 2].map(|rank| open(&mut owner, rank));
    for kind in 1..=3 {
        let request = Request::Send {
            port: sender,
            id: 0,
            when: Return::WhenBuffered,
            timeout_ns: NEVER,
            kind,
        };
        ask(&mut owner, 1, request, 1);
    }
    // One whose caller still waits ends with the port, and nobody hears.
    ask(
        &mut owner,
        1,
        send(sender, 4, Return::WhenDeposited, NEVER),
        1,
    );
    assert_eq!(ask(&mut owner, 1, Request::Close { port: sender }, 0), []);
    let again = Request::Open {
        channel: 0,
        epoch: 0,
        port: 7,
    };
    let refused = [(1, 0, Status::NoPort)];
    assert_eq!(ask(&mut owner, 1, again, 0), refused);
    assert_eq!(ask(&mut owner, 2, get(other, 5), 0), [(2, 5, Status::Done)]);
    assert_eq!(ask(&mut owner, 1, again, 0), refused, "one waits still");
    assert_eq!(drained(&mut owner), [2, 3]);
    assert_eq!(ask(&mut owner, 1, again, 0), [(1, 0, Status::Done)]);
}
