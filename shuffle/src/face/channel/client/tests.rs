//! What an asker tells an owner, and in which order.

use trihop_transport::sync::{Arc, Count};
use trihop_transport::topology::Topology;

use super::super::wire::{About, write_limits};
use super::*;
use crate::error::Error;
use crate::member::Who;

const OWNER: u32 = 3;
const AT_OWNER: u32 = 12;

fn answer(port: u32, id: u64, about: About) -> AnswerHead {
    AnswerHead {
        port,
        status: Status::Done,
        id,
        value: AT_OWNER.into(),
        ended: Ended::default(),
        about,
    }
}

/// A port that is open; its number.
fn open(client: &mut Client) -> u32 {
    let descriptor = Descriptor {
        job: 1,
        owner: OWNER,
        number: 0,
        epoch: 0,
    };
    let port = client.add(descriptor).unwrap();
    let mut limits = Vec::new();
    write_limits(&ChannelLimits::default(), &mut limits);
    let opening = answer(port, 0, About::default());
    let opened = client.answer(OWNER, opening, Payload::Borrowed(&limits));
    opened.map(drop).unwrap();
    assert_eq!(client.take_answer(port, 0).unwrap().status, Status::Done);
    port
}

/// Of the message that an owner answers with.
const ABOUT: About = About {
    number: 5,
    source: 2,
    kind: 9,
};

#[test]
fn a_port_is_closed_behind_the_message_that_goes_back() {
    let mut client = Client::default();
    let port = open(&mut client);
    let id = client.begin(port, Expects::Message);
    let cancel = Request::Cancel {
        port: AT_OWNER,
        id,
        given_up: true,
    };
    assert_eq!(client.abandon(port, id).0, [(cancel, Bytes::default())]);
    assert_eq!(client.close(port), None);
    let head = answer(port, id, ABOUT);
    let effects = client.answer(OWNER, head, Payload::Borrowed(b"late"));
    let Effects { back, close, .. } = effects.unwrap();
    let request = Request::GiveBack {
        port: AT_OWNER,
        number: 5,
        kind: 9,
        source: 2,
    };
    assert_eq!(back, Some((id, request, b"late".to_vec().into())));
    assert_eq!(close, None, "it would overtake the message");
    let again = client.answer(OWNER, head, Payload::Borrowed(b"late"));
    assert_eq!(again.err(), Some("a second answer to one request"));
    let close = Request::Close { port: AT_OWNER };
    assert_eq!(client.returned(port, id), Some(close));
    assert_eq!(client.returned(port, id), None);
}

#[test]
fn only_what_was_asked_for_within_so_many_bytes_may_be_too_long() {
    let mut client = Client::default();
    let port = open(&mut client);
    let refused = Some("a message that is longer than was asked for, or is called so");
    let said_long = |client: &mut Client, id, value| {
        let head = AnswerHead {
            status: Status::TooLong,
            value,
            ..answer(port, id, About::default())
        };
        let taken = client.answer(OWNER, head, Payload::Borrowed(&[]));
        taken.map(drop).err()
    };
    for expects in [
        Expects::Word,
        Expects::Number,
        Expects::Permit,
        Expects::Message,
    ] {
        let id = client.begin(port, expects);
        assert_eq!(said_long(&mut client, id, 100), refused, "{expects:?}");
    }
    let id = client.begin(port, Expects::MessageWithin(4));
    let head = answer(port, id, ABOUT);
    let longer = client.answer(OWNER, head, Payload::Borrowed(b"later"));
    assert_eq!(longer.map(drop).err(), refused);
    assert_eq!(said_long(&mut client, id, 4), refused, "it would fit");
    assert_eq!(said_long(&mut client, id, 5), None);
    let answered = client.take_answer(port, id).unwrap();
    assert_eq!((answered.status, answered.value), (Status::TooLong, 5));
    assert!(answered.message.is_none());
    let id = client.begin(port, Expects::MessageWithin(4));
    let head = answer(port, id, ABOUT);
    let fits = client.answer(OWNER, head, Payload::Borrowed(b"late"));
    assert!(fits.is_ok());
    let message = client.take_answer(port, id).unwrap().message;
    assert_eq!(&message.unwrap().bytes[..], b"late");
}

#[test]
fn a_port_is_closed_behind_what_a_handler_could_not_ask() {
    let mut client = Client::default();
    let port = open(&mut client);
    let id = client.begin(port, Expects::Number);
    let cancel = Request::Cancel {
        port: AT_OWNER,
        id,
        given_up: true,
    };
    let requests = client.abandon(port, id).0.into_iter();
    let requests = requests.map(|(request, bytes)| (OWNER, request, bytes));
    client.unasked.extend(requests);
    assert_eq!(client.close(port), None);
    let head = answer(port, id, About::default());
    let effects = client.answer(OWNER, head, Payload::Borrowed(&[]));
    let Effects { back, close, .. } = effects.unwrap();
    assert_eq!((back, close), (None, None));
    let close = Request::Close { port: AT_OWNER };
    let behind = [cancel, close].map(|request| (OWNER, request, Bytes::default()));
    assert_eq!(client.unasked, behind);
}

#[test]
fn who_tries_again_and_again_asks_for_room_once() {
    let mut client = Client::default();
    let port = open(&mut client);
    assert!(client.want(port));
    assert!(!client.want(port));
    let credit = AnswerHead {
        status: Status::Credit,
        ..answer(port, 0, About::default())
    };
    let told = client.answer(OWNER, credit, Payload::Borrowed(&[]));
    told.map(drop).unwrap();
    assert!(client.want(port));
}

#[test]
fn what_was_acquired_for_nobody_goes_back() {
    let mut client = Client::default();
    let port = open(&mut client);
    let back = Request::GiveBack {
        port: AT_OWNER,
        number: 0,
        kind: 0,
        source: 0,
    };
    let end = |client: &mut Client, id, status| {
        let head = AnswerHead {
            status,
            ..answer(port, id, About::default())
        };
        client
            .answer(OWNER, head, Payload::Borrowed(&[]))
            .unwrap()
            .back
    };
    // Answered before it is taken back, and after.
    let id = client.begin(port, Expects::Permit);
    assert_eq!(end(&mut client, id, Status::Done), None);
    assert_eq!(client.abandon(port, id).0, [(back, Bytes::default())]);
    for (status, goes) in [
        (Status::Done, Some((id + 1, back, Bytes::default()))),
        (Status::TimedOut, None),
    ] {
        let id = client.begin(port, Expects::Permit);
        let cancel = Request::Cancel {
            port: AT_OWNER,
            id,
            given_up: true,
        };
        assert_eq!(client.abandon(port, id).0, [(cancel, Bytes::default())]);
        assert_eq!(end(&mut client, id, status), goes);
        assert_eq!(client.returned(port, id), None);
    }
    assert_eq!(client.close(port), Some(Request::Close { port: AT_OWNER }));
}

#[test]
fn what_was_peeked_at_or_dropped_for_nobody_does_not_go_back() {
    let mut client = Client::default();
    let port = open(&mut client);
    let end = |client: &mut Client, id| {
        let head = answer(port, id, ABOUT);
        let answered = client.answer(OWNER, head, Payload::Borrowed(b"late"));
        answered.unwrap().back
    };
    // Answered before it is taken back, and after.
    let id = client.begin(port, Expects::MessageOnce);
    assert_eq!(end(&mut client, id), None);
    assert_eq!(client.abandon(port, id).0, []);
    let id = client.begin(port, Expects::MessageOnce);
    let cancel = Request::Cancel {
        port: AT_OWNER,
        id,
        given_up: true,
    };
    assert_eq!(client.abandon(port, id).0, [(cancel, Bytes::default())]);
    assert_eq!(end(&mut client, id), None);
    assert_eq!(client.close(port), Some(Request::Close { port: AT_OWNER }));
}

/// Whether a send of so many bytes has room now.
fn begins(client: &mut Client, port: u32, bytes: u64, place: Option<u64>) -> bool {
    matches!(client.begin_send(port, bytes, false, place), Room::Free(_))
}

#[test]
fn who_waits_for_room_looks_again_when_a_send_before_was_not_taken() {
    let mut client = Client::default();
    let port = open(&mut client);
    let window = ChannelLimits::default().window_bytes;
    assert!(begins(&mut client, port, window, None));
    let before = match client.begin_send(port, 1, false, None) {
        Room::None(before) => before,
        Room::Free(_) => panic!("the window is full"),
    };
    let place = client.line_up(port);
    assert!(client.undo_send(port, window, 0), "somebody waits");
    assert_ne!(client.changes(port), before);
    assert!(begins(&mut client, port, 1, Some(place)));
    assert!(!client.leave_line(port, place), "nobody else waits");
    assert!(!client.undo_send(port, 1, 0));
}

#[test]
fn a_long_send_that_waits_for_room_is_not_passed_by_short_ones() {
    let mut client = Client::default();
    let port = open(&mut client);
    let long = 2 * ChannelLimits::default().window_bytes;
    let ended = |messages, bytes| AnswerHead {
        status: Status::Credit,
        ended: Ended { messages, bytes },
        ..answer(port, 0, About::default())
    };
    assert!(begins(&mut client, port, 8, None));
    assert!(!begins(&mut client, port, long, None));
    let [first, second] = [(); 2].map(|()| client.line_up(port));
    // There is room for a short one, but not before the long one.
    assert!(!begins(&mut client, port, 8, None));
    assert!(!begins(&mut client, port, 8, Some(second)));
    assert!(!begins(&mut client, port, long, Some(first)));
    let told = client.answer(OWNER, ended(1, 8), Payload::Borrowed(&[]));
    told.map(drop).unwrap();
    assert!(!begins(&mut client, port, 8, Some(second)));
    assert!(begins(&mut client, port, long, Some(first)));
    let before = client.changes(port);
    assert!(client.leave_line(port, first));
    assert_ne!(client.changes(port), before, "the next one looks");
    // Who gives up keeps nobody waiting.
    assert!(!client.leave_line(port, second));
    let told = client.answer(OWNER, ended(2, 8 + long), Payload::Borrowed(&[]));
    told.map(drop).unwrap();
    assert!(begins(&mut client, port, 8, None));
}

#[test]
fn who_waits_for_an_owner_that_is_lost_is_woken_and_its_ports_go() {
    struct Told(Count);
    impl std::task::Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.add_one();
        }
    }
    let told = Arc::new(Told(Count::default()));
    let waker = Waker::from(Arc::clone(&told));
    let mut client = Client::default();
    let (kept, closed) = (open(&mut client), open(&mut client));
    let id = client.begin(kept, Expects::Message);
    assert!(client.wake(kept, id, &waker).is_none());
    client.begin(closed, Expects::Message);
    assert_eq!(client.close(closed), None, "its get is under way");
    let topology = Topology::from_node_sizes(&[5], Rank(0)).unwrap();
    let loss = |rank| Loss::new(Who::Rank(Rank(rank)), Error::WouldBlock, &topology);
    assert_eq!(client.lose(&loss(OWNER + 1), true).len(), 0);
    client
        .lose(&loss(OWNER), false)
        .into_iter()
        .for_each(Waker::wake);
    assert_eq!(told.0.get(), 1);
    // What has come all the same is there to be taken.
    let head = answer(kept, id, ABOUT);
    client
        .answer(OWNER, head, Payload::Borrowed(b"late"))
        .map(drop)
        .unwrap();
    client.lose(&loss(OWNER), true);
    assert!(client.take_answer(kept, id).is_some());
    assert!(client.find(closed).is_none() && client.find(kept).is_some());
    // What it has answered later still is for nobody, and no defect of its.
    let late = client.answer(OWNER, answer(closed, 9, ABOUT), Payload::Borrowed(b""));
    assert!(late.is_ok());
    let other = client.answer(OWNER - 1, answer(closed, 9, ABOUT), Payload::Borrowed(b""));
    assert!(other.is_err());
}
