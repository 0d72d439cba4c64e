//! An asker is lost: what it had sent still comes, and nothing is kept for it.

use trihop_transport::topology::Topology;

use super::*;
use crate::error::Error;
use crate::member::Who;

const LOST: u32 = 1;

/// An owner with a channel of two ports: of the rank that is lost, and of another one.
struct Asked {
    owner: Owner,
    ports: [u32; 2],
    next_id: u64,
}

fn loss() -> Loss {
    let topology = Topology::from_node_sizes(&[3], Rank(0)).unwrap();
    Loss::new(Who::Rank(Rank(LOST)), Error::WouldBlock, &topology)
}

impl Asked {
    fn new(gate: Option<Gate>) -> Self {
        let mut owner = Owner::new(Some(1));
        let (channel, epoch) = owner.create(LIMITS, gate).unwrap();
        let ports = [LOST, 2].map(|rank| {
            let request = Request::Open {
                channel,
                epoch,
                port: 5,
            };
            owner
                .take(rank, request, Payload::Borrowed(b""), || 0)
                .unwrap();
            let opened = owner.take_answer().unwrap();
            u32::try_from(opened.head.value).unwrap()
        });
        Self {
            owner,
            ports,
            next_id: 0,
        }
    }

    /// Makes a request, of the rank that is lost or of the other one; its number.
    fn ask(&mut self, rank: u32, bytes: &[u8], of: impl FnOnce(u32, u64) -> Request) -> u64 {
        self.next_id += 1;
        let port = self.ports[rank as usize - 1];
        let request = of(port, self.next_id);
        let taken = self
            .owner
            .take(rank, request, Payload::Borrowed(bytes), || 0);
        assert_eq!(taken, Ok(()), "{request:?}");
        self.next_id
    }

    fn send(&mut self, rank: u32, bytes: &[u8]) -> u64 {
        self.ask(rank, bytes, |port, id| Request::Send {
            port,
            id,
            when: Return::WhenReceived,
            timeout_ns: u64::MAX,
            kind: 0,
        })
    }

    fn get(&mut self, rank: u32) -> u64 {
        self.ask(rank, b"", |port, id| Request::Get {
            port,
            id,
            take: Take::Get,
            timeout_ns: u64::MAX,
        })
    }

    fn poll(&mut self, rank: u32, poll: Poll) -> u64 {
        self.ask(rank, b"", |port, id| Request::Poll {
            port,
            id,
            poll,
            timeout_ns: u64::MAX,
        })
    }

    /// Who is answered what, beside credit; never who is lost.
    fn answers(&mut self) -> Vec<(u64, Status, Option<Vec<u8>>)> {
        let mut all = Vec::new();
        while let Some(answer) = self.owner.take_answer() {
            assert_eq!(answer.to, 2);
            if answer.head.status != Status::Credit {
                all.push((
                    answer.head.id,
                    answer.head.status,
                    answer.bytes.map(|bytes| bytes.to_vec()),
                ));
            }
        }
        all
    }

    fn ports_of_channel(&self) -> u32 {
        self.owner.places[0].queue.as_ref().unwrap().ports
    }
}

#[test]
fn messages_are_not_for_who_is_lost_and_what_it_had_sent_comes() {
    let mut asked = Asked::new(None);
    // Its first get has had all that may be handed out, and its second one waits.
    asked.send(2, b"gone with it");
    asked.get(LOST);
    assert_eq!(asked.owner.take_answer().unwrap().to, 2);
    assert_eq!(asked.owner.take_answer().unwrap().to, LOST);
    asked.get(LOST);
    let get = asked.get(2);
    asked.owner.lose(&loss());
    let sent = asked.send(2, b"to the other one");
    let all = asked.answers();
    let message = Some(b"to the other one".to_vec());
    assert_eq!(
        all,
        [(sent, Status::Done, None), (get, Status::Done, message)]
    );
    let arrived = |port, _| Request::Arrived { port, bytes: 16 };
    asked.ask(2, b"", arrived);
    // What it asks for late counts for nothing, and what it sends late comes.
    asked.get(LOST);
    asked.send(LOST, b"late");
    asked.ask(LOST, b"", |port, id| Request::Cancel {
        port,
        id,
        given_up: false,
    });
    let late = asked.get(2);
    assert_eq!(
        asked.answers(),
        [(late, Status::Done, Some(b"late".to_vec()))]
    );
    assert_eq!(asked.ports_of_channel(), 2);
    asked.owner.forget(&loss());
    assert_eq!(asked.ports_of_channel(), 1);
    // From now on nothing of it counts, whatever it is.
    asked.send(LOST, b"too late");
    asked.get(LOST);
    let get = asked.get(2);
    assert_eq!(asked.answers(), []);
    asked.ask(2, b"", |port, _| Request::Arrived { port, bytes: 4 });
    let sent = asked.send(2, b"a");
    let all = asked.answers();
    assert_eq!(all[0].0, sent);
    assert_eq!((all[1].0, all[1].2.as_deref()), (get, Some(&b"a"[..])));
}

#[test]
fn who_is_lost_does_not_wait_in_a_barrier_and_keeps_a_semaphore() {
    let barrier = Gate::Barrier {
        parties: 2,
        arrived: 0,
        broken: false,
    };
    let mut asked = Asked::new(Some(barrier));
    asked.poll(LOST, Poll::Arrive);
    asked.owner.lose(&loss());
    let waiting = asked.poll(2, Poll::Waiting);
    asked.poll(2, Poll::Arrive);
    let all = asked.answers();
    assert_eq!(all, [(waiting, Status::Done, None)], "nobody lets it go");

    let mut asked = Asked::new(Some(Gate::Semaphore { value: 1, most: 1 }));
    asked.poll(LOST, Poll::Acquire);
    assert_eq!(asked.owner.take_answer().unwrap().to, LOST);
    asked.poll(LOST, Poll::Acquire);
    let acquire = asked.poll(2, Poll::Acquire);
    asked.owner.forget(&loss());
    assert_eq!(asked.answers(), []);
    let release = asked.poll(2, Poll::Release);
    let mut all = asked.answers();
    all.sort_by_key(|(id, ..)| *id);
    let ids: Vec<u64> = all.iter().map(|(id, ..)| *id).collect();
    assert_eq!(ids, [acquire, release]);
}
