//! Calls of guests that are started, and descriptors that they sleep on.

use std::os::fd::AsFd;

use super::*;
use crate::face::channel::tests::{block_on, is_readable};
use crate::guest::reactor::awaited;

const SOON: Timeout = Timeout::After(Duration::from_millis(5));

#[test]
fn calls_are_started_tested_waited_for_and_slept_on() {
    served(|guest, channels| {
        let mut mine = guest.create(limits(2, 64), Lifetime::Server).unwrap();
        let rank = channels.attach(&mine.descriptor()).unwrap();
        let mut got = mine.start_get(Timeout::Never).unwrap();
        assert!(got.is_under_way() && !is_readable(got.event().unwrap(), false));
        assert_eq!(got.test(), Ok(None));
        // The port goes on beside it, and what it started stays when it is dropped.
        assert_eq!(mine.poll(Poll::Size, Timeout::Never), Ok(0));
        let in_time = mine.start_get(SOON).unwrap();
        assert!(matches!(in_time.wait(), Err(Error::TimedOut(_))));
        let once = mine.start_get(Timeout::Once).unwrap();
        assert_eq!(once.wait(), Err(Error::WouldBlock));
        let mut other = guest.attach(&mine.descriptor()).unwrap();
        drop(mine);
        rank.send(3, b"news", Return::WhenDeposited, Timeout::Never)
            .unwrap();
        assert!(is_readable(got.event().unwrap(), true));
        let message = got.test().unwrap().unwrap();
        assert_eq!((message.kind, &message.bytes[..]), (3, &b"news"[..]));
        assert!(!got.is_under_way() && is_readable(got.event().unwrap(), true));
        assert!(matches!(got.test(), Err(Error::Misuse { .. })));
        // Each way to send: those that return at once are over then.
        for when in [Return::Immediately, Return::WhenBuffered] {
            let mut sent = other.start_send(4, b"x", when, Timeout::Never).unwrap();
            assert!(!sent.is_under_way() && is_readable(sent.event().unwrap(), false));
            assert_eq!(sent.test(), Ok(Some(())));
        }
        let mut sent = other
            .start_send(5, &[7; 100_000], Return::WhenReceived, Timeout::Never)
            .unwrap();
        let full = other.start_poll(Poll::Full, Timeout::Never).unwrap();
        assert_eq!((full.wait(), sent.test()), (Ok(2), Ok(None)));
        for kind in [4, 4, 5] {
            let got = other.start_get(Timeout::Never).unwrap().wait().unwrap();
            assert_eq!(got.kind, kind);
        }
        assert_eq!(sent.wait(), Ok(()));
        assert_eq!(other.failures(), Ok((0, None)));
        rank.close().unwrap();
        let closed = other.start_get(Timeout::Never).unwrap().wait();
        assert!(
            matches!(closed, Err(Error::ChannelClosed { .. })),
            "{closed:?}"
        );
        let closed = other.start_send(0, b"", Return::WhenDeposited, Timeout::Never);
        let closed = closed.and_then(Asked::wait);
        assert!(
            matches!(closed, Err(Error::ChannelClosed { .. })),
            "{closed:?}"
        );
        let refused = other.start_poll(Poll::Acquire, Timeout::Never).map(drop);
        assert!(matches!(refused, Err(Error::Misuse { .. })), "{refused:?}");
    });
}

#[test]
fn a_call_ends_in_time_though_nobody_asks() {
    served(|guest, _| {
        let mut mine = guest.create(limits(2, 64), Lifetime::Guest).unwrap();
        let mut late = mine.start_get(SOON).unwrap();
        assert!(is_readable(late.event().unwrap(), true));
        assert!(matches!(late.wait(), Err(Error::TimedOut(_))));
    });
}

#[test]
fn a_call_that_has_ended_and_is_dropped_has_taken_nothing() {
    served(|guest, channels| {
        let mut mine = guest.create(limits(10, 64), Lifetime::Server).unwrap();
        let mut lock = guest
            .semaphore(1, 1, ChannelLimits::default(), Lifetime::Server)
            .unwrap();
        let rank = channels.attach(&mine.descriptor()).unwrap();
        for number in 0..50 {
            let mut got = mine.start_get(Timeout::Never).unwrap();
            rank.send(number, b"first", Return::WhenDeposited, Timeout::Never)
                .unwrap();
            rank.send(number, b"second", Return::WhenDeposited, Timeout::Never)
                .unwrap();
            assert!(is_readable(got.event().unwrap(), true));
            drop(got);
            until("what was taken back is in its place", || {
                rank.poll(Poll::Size, Timeout::Never) == Ok(2)
            });
            assert_eq!(mine.get(Timeout::Once).unwrap().bytes, b"first");
            assert_eq!(mine.get(Timeout::Once).unwrap().bytes, b"second");
            let mut held = lock.start_poll(Poll::Acquire, Timeout::Never).unwrap();
            assert!(is_readable(held.event().unwrap(), true));
            drop(held);
            assert_eq!(lock.poll(Poll::Acquire, Timeout::Never), Ok(0));
            lock.poll(Poll::Release, Timeout::Never).unwrap();
        }
        // What was sent comes all the same.
        let full = limits(1, 64);
        let mut full = guest.create(full, Lifetime::Server).unwrap();
        for number in 0..3 {
            let when = Return::WhenDeposited;
            drop(full.start_send(number, b"", when, Timeout::Never).unwrap());
        }
        for number in 0..3 {
            assert_eq!(full.get(Timeout::Never).unwrap().kind, number);
        }
    });
}

#[test]
fn a_port_has_as_many_under_way_as_its_window() {
    served(|guest, channels| {
        let mut mine = guest.create(limits(100, 5), Lifetime::Guest).unwrap();
        for _ in 0..100 {
            let start = |_| mine.start_get(Timeout::Never).unwrap();
            let all: Vec<_> = (0..5).map(start).collect();
            assert_eq!(
                mine.start_get(Timeout::Never).unwrap_err(),
                Error::WouldBlock
            );
            // Taken back, they make room at once.
            drop(all);
            drop(mine.start_get(Timeout::Never).unwrap());
        }
        // As a port of the rank itself: some are in the channel, and the others wait for room.
        let of_rank = channels.create(limits(1, 5)).unwrap();
        let mut mine = guest.create(limits(1, 5), Lifetime::Guest).unwrap();
        let (when, never) = (Return::WhenReceived, Timeout::Never);
        let (mut by_rank, mut sent) = (Vec::new(), Vec::new());
        while let Ok(asked) = of_rank.start_send(0, b"x", when, never) {
            by_rank.push(asked);
        }
        let refused = loop {
            match mine.start_send(0, b"x", when, never) {
                Ok(asked) => sent.push(asked),
                Err(error) => break error,
            }
        };
        // Which may have heard of the one that is in the channel, or not.
        let as_many = by_rank.len()..=by_rank.len() + 1;
        assert!(as_many.contains(&sent.len()), "{} sends", sent.len());
        assert_eq!(refused, Error::WouldBlock);
        for asked in sent {
            mine.get(Timeout::Never).unwrap();
            asked.wait().unwrap();
        }
    });
}

#[test]
fn calls_are_awaited_by_whoever_there_is() {
    served(|guest, _| {
        let mut mine = guest.create(limits(3, 64), Lifetime::Server).unwrap();
        let mut other = guest.attach(&mine.descriptor()).unwrap();
        let sender = thread::spawn(move || {
            for number in 0..200u32 {
                let bytes = number.to_le_bytes().repeat(number as usize * 10);
                let sent = other.start_send(number, &bytes, Return::WhenReceived, Timeout::Never);
                block_on(sent.unwrap()).unwrap();
            }
        });
        for number in 0..200u32 {
            let got = block_on(mine.start_get(Timeout::Never).unwrap()).unwrap();
            let bytes = number.to_le_bytes().repeat(number as usize * 10);
            assert!(got.kind == number && got.bytes == bytes[..]);
        }
        sender.join().unwrap();
        let late = block_on(mine.start_get(SOON).unwrap());
        assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
        let sent = mine.start_send(1, b"", Return::WhenBuffered, Timeout::Never);
        assert_eq!(block_on(sent.unwrap()), Ok(()));
    });
}

#[test]
fn a_port_is_slept_on() {
    served(|guest, channels| {
        let mut mine = guest.create(limits(10, 64), Lifetime::Server).unwrap();
        let rank = channels.attach(&mine.descriptor()).unwrap();
        for round in 0..30 {
            assert!(!is_readable(mine.event().unwrap(), false), "round {round}");
            for number in 0..3 {
                rank.send(number, b"x", Return::WhenDeposited, Timeout::Never)
                    .unwrap();
            }
            assert!(is_readable(mine.event().unwrap(), true));
            // In turns, each of the ways to find nothing.
            for number in 0..4 {
                let got = match round % 3 {
                    0 => mine.get(Timeout::Once),
                    1 => mine.get(SOON),
                    _ => mine.start_get(Timeout::Once).and_then(Asked::wait),
                };
                match got {
                    Ok(got) => assert_eq!(got.kind, number),
                    Err(Error::WouldBlock | Error::TimedOut(_)) => assert_eq!(number, 3),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let mut lock = guest
            .semaphore(0, 1, ChannelLimits::default(), Lifetime::Guest)
            .unwrap();
        assert!(!is_readable(lock.event().unwrap(), false));
        lock.poll(Poll::Release, Timeout::Never).unwrap();
        assert!(is_readable(lock.event().unwrap(), true));
        rank.close().unwrap();
        assert!(is_readable(mine.event().unwrap(), true));
        let closed = mine.get(Timeout::Once);
        assert!(
            matches!(closed, Err(Error::ChannelClosed { .. })),
            "{closed:?}"
        );
    });
}

#[test]
fn who_sleeps_hears_that_the_server_has_ended() {
    let (job, channels) = alone();
    let guests = channels.serve_guests(&name()).unwrap();
    let guest = Guest::of(guests.name(), WAIT).unwrap();
    let mut mine = guest.create(limits(10, 64), Lifetime::Server).unwrap();
    let mut slept_on = mine.start_get(Timeout::Never).unwrap();
    let awaited = mine.start_get(Timeout::Never).unwrap();
    let awaits = thread::spawn(move || block_on(awaited));
    assert!(!is_readable(mine.event().unwrap(), false));
    thread::sleep(Duration::from_millis(20));
    drop(guests);
    assert!(is_readable(mine.event().unwrap(), true));
    assert!(is_readable(slept_on.event().unwrap(), true));
    let outcomes = [
        slept_on.wait().map(drop),
        awaits.join().unwrap().map(drop),
        mine.start_get(Timeout::Never).map(drop),
    ];
    for outcome in outcomes {
        let has_failed = matches!(outcome, Err(Error::ServerFailed { .. }));
        assert!(has_failed, "{outcome:?}");
    }
    // Whoever has it in a loop takes it out of that.
    assert!(is_readable(mine.event().unwrap(), true));
    channels.shutdown().unwrap();
    job.shutdown().unwrap();
}

#[test]
fn calls_that_are_started_leave_nothing() {
    served(|guest, _| {
        let mut mine = guest.create(limits(10, 64), Lifetime::Guest).unwrap();
        let mut come = |count: u32| {
            for number in 0..count {
                let mut got = mine.start_get(Timeout::Never).unwrap();
                if number % 3 == 0 {
                    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
                    let polled = Future::poll(std::pin::Pin::new(&mut got), context);
                    assert!(polled.is_pending());
                }
                if number % 2 == 0 {
                    mine.send(0, b"", Return::WhenDeposited, Timeout::Never)
                        .unwrap();
                    got.wait().unwrap();
                }
            }
        };
        come(10);
        // Other tests of this process have descriptors of their own.
        let before = descriptors();
        come(1000);
        until("descriptors are given back", || {
            descriptors() < before + 200
        });
        until("nobody is awaited any more", || awaited() < 20);
    });
}

#[test]
fn a_start_that_is_none_is_refused_and_others_go_on() {
    served(|guest, _| {
        let mut mine = guest.create(limits(10, 64), Lifetime::Guest).unwrap();
        // What cannot be started.
        let mut head = Call::Close.encode(true);
        for is_started in [1u32, 2] {
            head[12..16].copy_from_slice(&is_started.to_le_bytes());
            let mut bad = guest.attach(&mine.descriptor()).unwrap();
            bad.connection.send(&head, &[]).unwrap();
            let outcome = bad.poll(Poll::Size, Timeout::Never);
            let has_failed = matches!(outcome, Err(Error::ServerFailed { .. }));
            assert!(has_failed, "{outcome:?}");
        }
        // Who has started calls and asks no more, in the middle of the answer too.
        let get = Call::Take {
            take: Take::Get,
            timeout: Timeout::Never,
        };
        for _ in 0..20 {
            let mut gone = guest.attach(&mine.descriptor()).unwrap();
            gone.connection.send(&get.encode(true), &[]).unwrap();
            gone.connection.send(&get.encode(true), &[]).unwrap();
            drop(gone);
        }
        // A guest that ends in the middle of what is to be started.
        let send = Call::Send {
            kind: 0,
            when: Return::WhenDeposited,
            timeout: Timeout::Never,
            bytes: 100_000,
        };
        let mut cut = guest.attach(&mine.descriptor()).unwrap();
        cut.connection
            .send(&send.encode(true), &[1; 50_000])
            .unwrap();
        drop(cut);
        mine.send(1, b"on", Return::WhenDeposited, Timeout::Never)
            .unwrap();
        assert_eq!(mine.get(Timeout::Never).unwrap().bytes, b"on");
    });
}

/// As a fork has, or whoever gives the descriptor to another library.
#[test]
fn copies_of_descriptors_keep_no_call_under_way() {
    served(|guest, channels| {
        let mut mine = guest.create(limits(10, 64), Lifetime::Server).unwrap();
        let rank = channels.attach(&mine.descriptor()).unwrap();
        for number in 0..20 {
            let mut got = mine.start_get(Timeout::Never).unwrap();
            let copy = got.event().unwrap().try_clone_to_owned().unwrap();
            if number % 2 == 0 {
                rank.send(number, b"x", Return::WhenDeposited, Timeout::Never)
                    .unwrap();
                assert!(is_readable(copy.as_fd(), true));
            }
            drop(got);
            assert!(is_readable(copy.as_fd(), true));
            if number % 2 == 1 {
                rank.send(number, b"x", Return::WhenDeposited, Timeout::Never)
                    .unwrap();
            }
            assert_eq!(rank.get(Timeout::Never).unwrap().kind, number);
        }
    });
}

#[test]
fn a_send_finds_the_room_that_another_one_has_left() {
    served(|guest, _| {
        let mut mine = guest.create(limits(1, 2), Lifetime::Guest).unwrap();
        let mut other = guest.attach(&mine.descriptor()).unwrap();
        let (deposited, buffered) = (Return::WhenDeposited, Return::WhenBuffered);
        mine.send(0, b"", deposited, Timeout::Never).unwrap();
        mine.send(1, b"", buffered, Timeout::Never).unwrap();
        let late = mine.start_send(2, b"", deposited, SOON).unwrap();
        mine.send(3, b"", buffered, Timeout::Never).unwrap();
        assert!(matches!(late.wait(), Err(Error::TimedOut(_))));
        // Behind the send that has waited for the room.
        assert_eq!(mine.get(Timeout::Never).unwrap().kind, 0);
        // The same, of one that nobody has started.
        mine.send(4, b"", buffered, SOON).unwrap();
        mine.send(5, b"", buffered, Timeout::Never).unwrap();
        assert_eq!(mine.poll(Poll::Size, Timeout::Never), Ok(1));
        let kinds = [(); 3].map(|()| other.get(Timeout::Never).unwrap().kind);
        assert_eq!(kinds, [1, 3, 5]);
    });
}

#[test]
fn a_waker_that_panics_ends_nothing_of_others() {
    struct Panics(std::sync::mpsc::Sender<()>);

    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            let _ = self.0.send(());
            panic!("as it should");
        }
    }

    served(|guest, channels| {
        let mut mine = guest.create(limits(10, 64), Lifetime::Server).unwrap();
        let rank = channels.attach(&mine.descriptor()).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let mut bad = mine.start_get(Timeout::Never).unwrap();
        let waker = std::sync::Arc::new(Panics(tell)).into();
        let context = &mut std::task::Context::from_waker(&waker);
        assert!(Future::poll(std::pin::Pin::new(&mut bad), context).is_pending());
        let good = mine.start_get(Timeout::Never).unwrap();
        let awaits = thread::spawn(move || block_on(good));
        for number in 0..2 {
            rank.send(number, b"", Return::WhenDeposited, Timeout::Never)
                .unwrap();
        }
        told.recv().unwrap();
        assert_eq!(awaits.join().unwrap().unwrap().kind, 1);
        assert_eq!(bad.wait().unwrap().kind, 0);
    });
}

#[test]
fn started_calls_reach_channels_of_other_ranks() {
    on_ranks(
        |rank| rank / 2,
        limits(4, 64),
        |job, channels, _, far| {
            if job.rank().0 != 0 {
                return Ok(());
            }
            let guests = channels.serve_guests(&name())?;
            let mut port = Guest::of(guests.name(), WAIT)?.attach(&far)?;
            for number in 0..100 {
                let mut got = port.start_get(Timeout::Never)?;
                let dropped = port.start_get(Timeout::Never)?;
                assert!(number > 0 || !is_readable(port.event()?, false));
                let (when, in_time) = (Return::WhenReceived, Timeout::After(WAIT));
                let sent = port.start_send(number, &[3; 2_000], when, in_time)?;
                match number % 2 {
                    0 => assert_eq!(block_on(&mut got)?.kind, number),
                    _ => assert_eq!(got.wait_mut()?.kind, number),
                }
                assert_eq!(sent.wait(), Ok(()));
                drop(dropped);
            }
            drop((port, guests));
            Ok(())
        },
    );
}
