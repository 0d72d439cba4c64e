//! Guests whose server is a rank of the same process: a socket does not know the difference.

// Counters between threads of a test; nothing here is modelled.
#![allow(clippy::disallowed_types)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use trihop_transport::bootstrap::{Custom, Launcher};

use super::port::Channel as Port;
use super::wire::Call;
use super::*;
use crate::channel::{Descriptor, Poll, Return, Timeout};
use crate::conformance::ranks::ranks;
use crate::face::channel::Take;
use crate::threaded::{self, Channels, Job};
use crate::{ChannelLimits, Error, Options, Rank, Result};

mod started;

const WAIT: Duration = Duration::from_secs(60);

/// A name of this test's own.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("trihop-test-guests-{}-{number}", std::process::id())
}

/// A job of one rank, and its channels.
fn alone() -> (Job, Channels) {
    let options = Options {
        launcher: Some(Launcher::Single),
        ..Options::default()
    };
    let job = Job::start(options).unwrap();
    let channels = job.channels("served").open().unwrap();
    (job, channels)
}

/// Runs a test on a job of one rank that serves guests.
fn served(test: impl FnOnce(&Guest, &Channels)) {
    let (job, channels) = alone();
    let guests = channels.serve_guests(&name()).unwrap();
    let guest = Guest::of(guests.name(), WAIT).unwrap();
    assert_eq!(
        (guest.rank(), guest.size(), guest.channels()),
        (Rank(0), 1, "served")
    );
    test(&guest, &channels);
    drop(guests);
    channels.shutdown().unwrap();
    job.shutdown().unwrap();
}

fn limits(messages: u32, window_messages: u32) -> ChannelLimits {
    ChannelLimits {
        messages,
        window_messages,
        ..ChannelLimits::default()
    }
}

/// Waits for a condition that must come true.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn guests_send_get_and_poll_as_ranks_do() {
    served(|guest, channels| {
        let mut mine = guest.create(limits(3, 64), Lifetime::Server).unwrap();
        let mut other = guest.attach(&mine.descriptor()).unwrap();
        assert_eq!(other.limits(), limits(3, 64));
        let all = [
            Return::Immediately,
            Return::WhenBuffered,
            Return::WhenDeposited,
        ];
        for (kind, when) in (0..).zip(all) {
            other.send(kind, b"bytes", when, Timeout::Never).unwrap();
        }
        assert_eq!(mine.poll(Poll::Full, Timeout::Never), Ok(3));
        let refused = other.send(9, b"", Return::WhenDeposited, Timeout::Once);
        assert_eq!(refused, Err(Error::WouldBlock));
        let late = Timeout::After(Duration::from_millis(5));
        let refused = other.send(9, b"", Return::WhenReceived, late);
        assert!(matches!(refused, Err(Error::TimedOut(_))), "{refused:?}");
        let first = mine.peek(Timeout::Once).unwrap();
        assert_eq!(
            (first.kind, first.source, &first.bytes[..]),
            (0, Rank(0), &b"bytes"[..])
        );
        assert_eq!(mine.get(Timeout::Never).unwrap(), first);
        let mut room = [0; 8];
        let small = mine.get_into(&mut room[..4], Timeout::Never);
        assert_eq!(small, Err(Error::BufferTooSmall { bytes: 5, room: 4 }));
        let filled = mine.get_into(&mut room, Timeout::Never).unwrap();
        assert_eq!((filled.kind, &room[..filled.length]), (1, &b"bytes"[..]));
        assert_eq!(mine.pop(Timeout::Never).unwrap().bytes, b"");
        assert_eq!(mine.get(Timeout::Once), Err(Error::WouldBlock));
        assert!(matches!(mine.get(late), Err(Error::TimedOut(_))));
        assert_eq!(mine.poll(Poll::Size, Timeout::Never), Ok(0));
        // A rank has the same channel.
        let rank = channels.attach(&mine.descriptor()).unwrap();
        rank.send(5, b"of a rank", Return::WhenDeposited, Timeout::Never)
            .unwrap();
        assert_eq!(other.get(Timeout::Never).unwrap().bytes, b"of a rank");
        assert_eq!(other.failures(), Ok((0, None)));
    });
}

#[test]
fn sends_that_nobody_waits_for_come_in_their_order_and_wait_for_room() {
    served(|guest, _| {
        let mut mine = guest.create(limits(5, 3), Lifetime::Guest).unwrap();
        let descriptor = mine.descriptor();
        const COUNT: u32 = 5_000;
        let sender = guest.clone();
        let sender = thread::spawn(move || {
            let mut port = sender.attach(&descriptor).unwrap();
            for number in 0..COUNT {
                let length = number as usize % 300;
                port.send(
                    number,
                    &vec![7; length],
                    Return::WhenBuffered,
                    Timeout::Never,
                )
                .unwrap();
            }
            port.failures().unwrap()
        });
        for number in 0..COUNT {
            let got = mine.get(Timeout::Never).unwrap();
            assert_eq!((got.kind, got.bytes.len()), (number, number as usize % 300));
        }
        assert_eq!(sender.join().unwrap(), (0, None));
    });
}

#[test]
fn what_a_guest_has_sent_comes_once_it_is_gone() {
    served(|guest, channels| {
        let mine = guest.create(limits(1, 2), Lifetime::Server).unwrap();
        let mut sender = guest.attach(&mine.descriptor()).unwrap();
        for number in 0..20 {
            sender
                .send(number, b"left", Return::WhenBuffered, Timeout::Never)
                .unwrap();
        }
        drop(sender);
        let rank = channels.attach(&mine.descriptor()).unwrap();
        for number in 0..20 {
            assert_eq!(rank.get(Timeout::Never).unwrap().kind, number);
        }
        assert_eq!(rank.get(Timeout::Once), Err(Error::WouldBlock));
    });
}

/// What a guest that was killed in a call leaves behind.
fn killed_in(port: &mut Port, call: &Call, bytes: &[u8]) {
    port.connection.send(&call.encode(false), bytes).unwrap();
}

#[test]
fn a_message_that_a_guest_waited_for_stays_where_it_is_gone() {
    served(|guest, channels| {
        let mine = guest.create(limits(10, 64), Lifetime::Server).unwrap();
        let rank = channels.attach(&mine.descriptor()).unwrap();
        for _ in 0..50 {
            let mut getter = guest.attach(&mine.descriptor()).unwrap();
            let get = Call::Take {
                take: Take::Get,
                timeout: Timeout::Never,
            };
            killed_in(&mut getter, &get, &[]);
            // It waits there, or has not even come.
            drop(getter);
            let after = Timeout::After(Duration::from_millis(1));
            assert!(rank.poll(Poll::In, after).is_err());
        }
        // All of them are gone, or this one would not stay.
        rank.send(3, b"", Return::WhenDeposited, Timeout::Never)
            .unwrap();
        thread::sleep(Duration::from_millis(20));
        assert_eq!(rank.get(Timeout::Once).map(|got| got.kind), Ok(3));
    });
}

#[test]
fn a_guest_that_ends_in_the_middle_of_a_message_has_sent_nothing() {
    served(|guest, channels| {
        let mine = guest.create(limits(10, 64), Lifetime::Server).unwrap();
        let rank = channels.attach(&mine.descriptor()).unwrap();
        let send = Call::Send {
            kind: 0,
            when: Return::WhenBuffered,
            timeout: Timeout::Never,
            bytes: 1000,
        };
        for bytes in [0, 1, 999] {
            let mut sender = guest.attach(&mine.descriptor()).unwrap();
            sender
                .send(bytes as u32, b"whole", Return::WhenBuffered, Timeout::Never)
                .unwrap();
            killed_in(&mut sender, &send, &vec![1; bytes]);
            drop(sender);
            let got = rank.get(Timeout::Never).unwrap();
            assert_eq!((got.kind, &got.bytes[..]), (bytes as u32, &b"whole"[..]));
        }
        assert!(rank.get(Timeout::After(Duration::from_millis(20))).is_err());
    });
}

#[test]
fn channels_end_with_their_guest_or_stay_until_they_are_closed() {
    served(|guest, _| {
        let mut ends = guest.create(limits(10, 64), Lifetime::Guest).unwrap();
        let mut stays = guest.create(limits(10, 64), Lifetime::Server).unwrap();
        let names = [ends.descriptor(), stays.descriptor()];
        for port in [&mut ends, &mut stays] {
            port.send(1, b"left", Return::WhenBuffered, Timeout::Never)
                .unwrap();
        }
        let [mut other, mut same] = names.map(|name| guest.attach(&name).unwrap());
        drop((ends, stays));
        // What was left may still be got.
        assert_eq!(other.poll(Poll::Closed, Timeout::Never), Ok(1));
        assert_eq!(other.get(Timeout::Never).unwrap().bytes, b"left");
        assert!(matches!(
            other.get(Timeout::Never),
            Err(Error::ChannelClosed { .. })
        ));
        drop(other);
        until("a channel without ports is gone", || {
            matches!(guest.attach(&names[0]), Err(Error::NoChannel { .. }))
        });
        assert_eq!(same.get(Timeout::Never).unwrap().bytes, b"left");
        same.send(1, b"x", Return::WhenBuffered, Timeout::Never)
            .unwrap();
        let mut closer = guest.attach(&names[1]).unwrap();
        closer.poll(Poll::In, Timeout::Never).unwrap();
        closer.close().unwrap();
        same.send(2, b"late", Return::WhenBuffered, Timeout::Never)
            .unwrap();
        let (failed, last) = same.failures().unwrap();
        let closed = matches!(last, Some(Error::ChannelClosed { number, owner: 0 })
            if number == names[1].number());
        assert_eq!((failed, closed), (1, true));
        let refused = same.send(2, b"late", Return::WhenDeposited, Timeout::Never);
        assert!(matches!(refused, Err(Error::ChannelClosed { .. })));
    });
}

#[test]
fn semaphores_and_barriers_hold_between_guests() {
    served(|guest, _| {
        let lock = guest
            .semaphore(1, 1, ChannelLimits::default(), Lifetime::Server)
            .unwrap();
        let gate = guest
            .barrier(4, ChannelLimits::default(), Lifetime::Server)
            .unwrap();
        let names = [lock.descriptor(), gate.descriptor()];
        let inside = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let [mut lock, mut gate] = names.map(|name| guest.attach(&name).unwrap());
                    for _ in 0..50 {
                        lock.poll(Poll::Acquire, Timeout::Never).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        lock.poll(Poll::Release, Timeout::Never).unwrap();
                        assert!(gate.poll(Poll::Arrive, Timeout::Never).unwrap() < 4);
                    }
                });
            }
        });
        let mut lock = lock;
        let refused = lock.send(0, b"", Return::WhenDeposited, Timeout::Never);
        assert!(matches!(refused, Err(Error::Misuse { .. })), "{refused:?}");
        let refused = lock.poll(Poll::Arrive, Timeout::Never);
        assert!(matches!(refused, Err(Error::Misuse { .. })), "{refused:?}");
        let refused = lock
            .poll(Poll::Release, Timeout::Never)
            .and(lock.poll(Poll::Release, Timeout::Never));
        assert!(matches!(refused, Err(Error::Misuse { .. })), "{refused:?}");
        let broken = gate.descriptor();
        let waits = {
            let guest = guest.clone();
            thread::spawn(move || {
                let mut gate = guest.attach(&broken).unwrap();
                gate.poll(Poll::Arrive, Timeout::Never)
            })
        };
        let mut gate = gate;
        until("somebody waits", || {
            gate.poll(Poll::Waiting, Timeout::Never) == Ok(1)
        });
        gate.poll(Poll::Abort, Timeout::Never).unwrap();
        assert!(matches!(
            waits.join().unwrap(),
            Err(Error::BarrierBroken { .. })
        ));
        let impossible = guest.semaphore(3, 2, ChannelLimits::default(), Lifetime::Guest);
        let key = |error| matches!(error, Error::Config { key, .. } if key == "value");
        assert!(impossible.is_err_and(key));
    });
}

#[test]
fn long_messages_pass_and_longer_ones_are_refused() {
    served(|guest, _| {
        let limits = ChannelLimits {
            bytes: 20 << 20,
            ..ChannelLimits::default()
        };
        let mut mine = guest.create(limits, Lifetime::Guest).unwrap();
        let mut other = guest.attach(&mine.descriptor()).unwrap();
        let long: Vec<u8> = (0..19_999_999u32).map(|at| (at % 251) as u8).collect();
        other
            .send(1, &long, Return::WhenBuffered, Timeout::Never)
            .unwrap();
        other
            .send(2, b"behind", Return::WhenBuffered, Timeout::Never)
            .unwrap();
        assert!(mine.get(Timeout::Never).unwrap().bytes == long[..]);
        assert_eq!(mine.get(Timeout::Never).unwrap().bytes, b"behind");
        let refused = other.send(
            1,
            &vec![0; (20 << 20) + 1],
            Return::WhenBuffered,
            Timeout::Never,
        );
        let limit = 20 << 20;
        assert_eq!(
            refused,
            Err(Error::TooLarge {
                bytes: limit + 1,
                limit
            })
        );
        // It is as good as before.
        other
            .send(3, b"x", Return::WhenDeposited, Timeout::Never)
            .unwrap();
        assert_eq!(mine.get(Timeout::Never).unwrap().kind, 3);
    });
}

#[test]
fn guests_of_a_server_that_ends_hear_it_and_attach_to_the_next() {
    let (job, channels) = alone();
    let name = name();
    let gone = Guest::of(&name, Duration::from_millis(5)).map(drop);
    assert!(matches!(gone, Err(Error::ServerFailed { .. })), "{gone:?}");
    let guests = channels.serve_guests(&name).unwrap();
    let taken = channels.serve_guests(&name).map(drop);
    assert!(matches!(taken, Err(Error::System { .. })), "{taken:?}");
    let guest = Guest::of(&name, WAIT).unwrap();
    let mut mine = guest.create(limits(10, 64), Lifetime::Server).unwrap();
    let mut waits = guest.attach(&mine.descriptor()).unwrap();
    for number in 0..5 {
        mine.send(number, b"kept", Return::WhenBuffered, Timeout::Never)
            .unwrap();
    }
    let descriptor = mine.descriptor();
    let waiting = thread::spawn(move || waits.poll(Poll::Closed, Timeout::Never));
    // It has come, and waits.
    thread::sleep(Duration::from_millis(20));
    drop(guests);
    for outcome in [
        waiting.join().unwrap(),
        mine.poll(Poll::Size, Timeout::Never),
    ] {
        assert!(
            matches!(outcome, Err(Error::ServerFailed { .. })),
            "{outcome:?}"
        );
    }
    let gone = guest.attach(&descriptor).map(drop);
    assert!(matches!(gone, Err(Error::ServerFailed { .. })), "{gone:?}");
    // The same names are good at the next server of the same channels.
    let guests = channels.serve_guests(&name).unwrap();
    let mut mine = guest.attach(&descriptor).unwrap();
    for number in 0..5 {
        assert_eq!(mine.get(Timeout::Never).unwrap().kind, number);
    }
    drop((mine, guests));
    channels.shutdown().unwrap();
    job.shutdown().unwrap();
}

#[test]
fn a_guest_that_never_rests_puts_no_end_off_and_its_channels_end() {
    let (job, channels) = alone();
    let guests = channels.serve_guests(&name()).unwrap();
    let guest = Guest::of(guests.name(), WAIT).unwrap();
    let mine = guest.create(limits(10, 64), Lifetime::Guest).unwrap();
    let rank = channels.attach(&mine.descriptor()).unwrap();
    let sender = {
        let mut port = guest.attach(&mine.descriptor()).unwrap();
        thread::spawn(move || {
            let send = |_| port.send(0, b"on", Return::WhenBuffered, Timeout::Never);
            (0..).map(send).find_map(Result::err)
        })
    };
    let taker = thread::spawn(move || {
        let get = |_| rank.get(Timeout::Never).map(drop);
        (0..).map(get).find_map(Result::err)
    });
    thread::sleep(Duration::from_millis(20));
    drop(guests);
    let (sent, got) = (sender.join().unwrap(), taker.join().unwrap());
    assert!(matches!(sent, Some(Error::ServerFailed { .. })), "{sent:?}");
    // Its guest has ended, and with it the channel, for all.
    assert!(matches!(got, Some(Error::ChannelClosed { .. })), "{got:?}");
    drop(mine);
    channels.shutdown().unwrap();
    job.shutdown().unwrap();
}

#[test]
fn times_end_whenever_they_are_looked_at() {
    served(|guest, _| {
        let mut mine = guest.create(limits(1, 1), Lifetime::Guest).unwrap();
        for round in 0..300 {
            let time = Timeout::After(Duration::from_micros(7 * round));
            assert!(matches!(mine.get(time), Err(Error::TimedOut(_))));
        }
        mine.send(0, b"", Return::WhenBuffered, Timeout::Never)
            .unwrap();
        mine.send(1, b"", Return::WhenBuffered, Timeout::Never)
            .unwrap();
        for round in 0..300 {
            // The window is full, so it does not even leave the server.
            let time = Timeout::After(Duration::from_micros(7 * round));
            let sent = mine.send(2, b"", Return::WhenDeposited, time);
            assert!(matches!(sent, Err(Error::TimedOut(_))), "{sent:?}");
        }
        let got = [(); 2].map(|()| mine.get(Timeout::Never).unwrap().kind);
        assert_eq!(
            (got, mine.get(Timeout::Once)),
            ([0, 1], Err(Error::WouldBlock))
        );
        assert_eq!(mine.failures(), Ok((0, None)));
    });
}

#[test]
fn a_job_that_has_ended_is_said_to_its_guests() {
    let (job, channels) = alone();
    let guests = channels.serve_guests(&name()).unwrap();
    let guest = Guest::of(guests.name(), WAIT).unwrap();
    let mut mine = guest.create(limits(10, 64), Lifetime::Server).unwrap();
    let mut waits = guest.attach(&mine.descriptor()).unwrap();
    let waiting = thread::spawn(move || waits.get(Timeout::Never));
    thread::sleep(Duration::from_millis(20));
    channels.shutdown().unwrap();
    let outcomes = [
        waiting.join().unwrap().map(drop),
        mine.send(0, b"", Return::WhenDeposited, Timeout::Never),
        guest.create(limits(10, 64), Lifetime::Server).map(drop),
    ];
    for outcome in outcomes {
        let failed = matches!(
            outcome,
            Err(Error::ServerFailed { .. } | Error::ChannelClosed { .. } | Error::Config { .. })
        );
        assert!(failed, "{outcome:?}");
    }
    drop(guests);
    job.shutdown().unwrap();
}

/// Runs a program on three ranks, each with a channel of its own; it gets that, and the name of the
/// last rank's.
fn on_ranks(
    node: fn(u32) -> u32,
    limits: ChannelLimits,
    program: fn(&Job, &Channels, &threaded::Channel, Descriptor) -> Result<()>,
) {
    let run = move |_, bootstrap: Custom| {
        let options = Options {
            loopback: true,
            ..Options::default()
        };
        let job = Job::start_with(options, Box::new(bootstrap))?;
        let channels = job.channels("served").open()?;
        let mine = channels.create(limits)?;
        let all = job.allgather(&mine.descriptor().to_bytes())?;
        let last = Descriptor::from_bytes(&all[job.size() as usize - 1])?;
        program(&job, &channels, &mine, last)?;
        job.barrier()?;
        drop(mine);
        channels.shutdown()?;
        job.shutdown()
    };
    for (_, outcome) in ranks(3, node, run) {
        outcome.unwrap();
    }
}

/// Rank 0 serves; the channel is of the last rank.
fn of_another_rank(node: fn(u32) -> u32) {
    on_ranks(node, limits(4, 3), |job, channels, mine, far| {
        if job.rank().0 == 0 {
            let guests = channels.serve_guests(&name())?;
            let guest = Guest::of(guests.name(), WAIT)?;
            let mut near = guest.create(limits(4, 3), Lifetime::Guest)?;
            let mut port = guest.attach(&far)?;
            assert_eq!(port.limits(), limits(4, 3));
            let refused = port.close();
            assert!(matches!(refused, Err(Error::Misuse { .. })), "{refused:?}");
            let name = near.descriptor().to_bytes();
            port.send(0, &name, Return::WhenReceived, Timeout::Never)?;
            let sender = thread::spawn(move || {
                for number in 0..2_000 {
                    port.send(number, &[1; 100], Return::WhenBuffered, Timeout::Never)?;
                }
                port.failures()
            });
            for number in 0..2_000 {
                assert_eq!(near.get(Timeout::Never)?.kind, number);
            }
            assert_eq!(sender.join().unwrap()?, (0, None));
            // Others come and go while that one stays.
            for _ in 0..100 {
                drop(guest.attach(&far)?);
            }
            drop((near, guests));
        } else if job.rank().0 == job.size() - 1 {
            let back = mine.get(Timeout::Never)?;
            let back = channels.attach(&Descriptor::from_bytes(&back.bytes)?)?;
            for number in 0..2_000 {
                let got = mine.get(Timeout::Never)?;
                assert_eq!(
                    (got.kind, got.source, got.bytes.len()),
                    (number, Rank(0), 100)
                );
                back.send(number, &got.bytes, Return::WhenBuffered, Timeout::Never)?;
            }
        }
        Ok(())
    });
}

#[test]
fn channels_of_other_ranks_are_reached_through_the_server() {
    of_another_rank(|_| 0);
    of_another_rank(|rank| rank / 2);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn guests_that_come_and_go_leave_nothing() {
    served(|guest, channels| {
        let mine = channels.create(limits(10, 64)).unwrap();
        let come = |count: u32| {
            for number in 0..count {
                let mut port = guest.attach(&mine.descriptor()).unwrap();
                let mut own = guest.create(limits(2, 2), Lifetime::Guest).unwrap();
                own.send(0, b"", Return::WhenBuffered, Timeout::Never)
                    .unwrap();
                port.send(number, b"x", Return::WhenDeposited, Timeout::Never)
                    .unwrap();
                assert_eq!(port.get(Timeout::Never).unwrap().kind, number);
            }
        };
        come(10);
        // Other tests of this process have descriptors of their own.
        let before = descriptors();
        come(1000);
        until("descriptors are given back", || {
            descriptors() < before + 200
        });
        // Numbers of channels are used again.
        until("channels of guests that are gone are gone", || {
            channels.create(limits(1, 1)).unwrap().descriptor().number() < 50
        });
    });
}

#[test]
fn what_is_no_guest_is_dropped_and_others_go_on() {
    use std::os::fd::AsFd;
    use trihop_transport::memory::descriptors::DescriptorListener;

    served(|guest, _| {
        let mut mine = guest.create(limits(10, 64), Lifetime::Guest).unwrap();
        let hello = super::wire::Hello::Look.encode();
        let (ours, theirs) = super::socket::pair().unwrap();
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let hand = |bytes: &[u8], sockets: &[std::os::fd::BorrowedFd<'_>]| {
            DescriptorListener::send(guest.name(), bytes, sockets).unwrap();
        };
        hand(b"hello", &[theirs.as_fd()]);
        hand(&hello, &[]);
        hand(&hello, &[theirs.as_fd(), ours.as_fd()]);
        hand(&hello, &[file.as_fd()]);
        for cut in [0, 1, 5, 20, hello.len() - 1] {
            hand(&hello[..cut.max(1)], &[theirs.as_fd()]);
        }
        // A call that there is not, and a message that no channel of these takes.
        let mut bad = guest.attach(&mine.descriptor()).unwrap();
        bad.connection.send(&[0xff; 32], &[]).unwrap();
        let outcome = bad.poll(Poll::Size, Timeout::Never);
        assert!(
            matches!(outcome, Err(Error::ServerFailed { .. })),
            "{outcome:?}"
        );
        let mut bad = guest.attach(&mine.descriptor()).unwrap();
        let long = Call::Send {
            kind: 0,
            when: Return::WhenBuffered,
            timeout: Timeout::Never,
            bytes: u64::MAX,
        };
        bad.connection.send(&long.encode(false), &[]).unwrap();
        let outcome = bad.poll(Poll::Size, Timeout::Never);
        assert!(
            matches!(outcome, Err(Error::ServerFailed { .. })),
            "{outcome:?}"
        );
        mine.send(1, b"on", Return::WhenDeposited, Timeout::Never)
            .unwrap();
        assert_eq!(mine.get(Timeout::Never).unwrap().bytes, b"on");
    });
}
