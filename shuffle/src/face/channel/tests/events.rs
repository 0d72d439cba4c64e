//! Descriptors that are readable while something may be had.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

fn is_readable(event: BorrowedFd<'_>, waits: bool) -> bool {
    let now = Timespec::default();
    let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
    poll(&mut polled, (!waits).then_some(&now)).unwrap() == 1
}

/// Sleeps until it is readable: on the inline seat with progress now and then.
fn sleep_on<S: Seat>(channels: &over::Channels<S>, event: BorrowedFd<'_>) -> Result<()> {
    if S::MOVES_ALONE {
        assert!(is_readable(event, true));
    }
    while !is_readable(event, false) {
        channels.progress()?;
        std::thread::yield_now();
    }
    Ok(())
}

/// One rank sends and another one sleeps: that of the channel, and one that it is not of.
fn woken<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    const EACH: u32 = 3;
    let limits = ChannelLimits {
        messages: 2,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    let size = job.size();
    for round in 0..12 {
        let taker = round % 2 % size;
        if job.rank().0 == (taker + 1) % size {
            for number in (0..EACH).filter(|_| size > 1) {
                channel.send(number, b"x", Return::WhenBuffered, Timeout::Never)?;
            }
        }
        if job.rank().0 == taker {
            let event = channel.event()?;
            let mut next = 0;
            while next < EACH {
                if size == 1 {
                    channel.send(next, b"x", Return::WhenDeposited, Timeout::Never)?;
                }
                sleep_on(channels, event)?;
                // In turns, each of the ways to find nothing.
                let timeout = match round % 3 {
                    0 => Timeout::Once,
                    _ => Timeout::After(Duration::from_micros(50)),
                };
                loop {
                    let got = match round % 3 {
                        2 => channel.start_get(timeout)?.wait(),
                        _ => channel.get(timeout),
                    };
                    match got {
                        Ok(received) => assert_eq!(received.kind, next),
                        Err(Error::WouldBlock | Error::TimedOut(_)) => break,
                        Err(error) => return Err(error),
                    }
                    next += 1;
                }
            }
            // All were taken, and nothing was found.
            assert!(!is_readable(event, false), "round {round}");
        }
        job.barrier()?;
    }
    let event = channel.event()?;
    if job.rank().0 == 0 {
        channel.close()?;
    }
    sleep_on(channels, event)?;
    let closed = Error::ChannelClosed {
        number: 0,
        owner: 0,
    };
    assert_eq!(channel.get(Timeout::Once), Err(closed));
    assert!(is_readable(event, false));
    job.barrier()
}

#[test]
fn an_event_is_readable_while_something_may_be_had() {
    on_both!(2, |_| 0, woken);
    on_both!(3, |rank| rank, woken);
    on_both!(1, |_| 0, woken);
}

#[test]
fn an_event_is_readable_once_the_job_has_failed() {
    let failing = |_, bootstrap: Custom| -> Result<Error> {
        let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let channel = channels.create(ChannelLimits::default())?;
        let bad = job.shuffle("bad").handler(|_, _| panic!("by the test"));
        let bad = bad.open()?;
        let event = channel.event()?;
        bad.send(Rank(0), 0, b"")?;
        assert!(is_readable(event, true));
        Ok(channel.get(Timeout::Never).expect_err("nobody sends"))
    };
    for (_, outcome) in ranks(1, |_| 0, failing) {
        assert!(matches!(outcome, Ok(Error::Handler { .. })), "{outcome:?}");
    }
}

/// Ports with events come and go, and the channel has room for others.
fn dropped<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let limits = ChannelLimits {
        ports: job.size() + 1,
        window_messages: 1,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    if job.rank().0 + 1 == job.size() {
        for round in 0..20 {
            let port = loop {
                // The one before may still be on its way out.
                match channels.attach(&channel.descriptor()) {
                    Err(Error::Config { .. }) => continue,
                    port => break port?,
                }
            };
            let event = port.event()?;
            // It is the one request that may wait.
            assert_eq!(port.get(Timeout::Never), Err(Error::WouldBlock));
            channel.send(round, b"x", Return::WhenDeposited, Timeout::Never)?;
            sleep_on(channels, event)?;
            assert_eq!(channel.pop(Timeout::Never)?.kind, round);
        }
    }
    job.barrier()
}

#[test]
fn a_port_with_an_event_is_closed_as_any() {
    on_both!(2, |_| 0, dropped);
    on_both!(1, |_| 0, dropped);
}
