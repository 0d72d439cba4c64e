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
    let all = std::iter::from_fn(|| owner.get_now(0, 0, || 0));
    all.map(|message| message.about.kind).collect()
}

const NEVER: u64 = u64::MAX;

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
