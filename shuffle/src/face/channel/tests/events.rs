//! Descriptors that are readable while something may be had.

use super::*;

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

/// What rank 0 makes, on all ranks.
fn of_rank_0<S: Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
    make: impl FnOnce() -> Result<Channel<S>>,
) -> Result<Channel<S>> {
    let mine = (job.rank().0 == 0).then(make).transpose()?;
    let name = mine.as_ref().map(|mine| mine.descriptor().to_bytes());
    let name = job.broadcast(Rank(0), name.as_ref().map_or(&[], |name| &name[..]))?;
    mine.map_or_else(|| channels.attach(&Descriptor::from_bytes(&name)?), Ok)
}

/// The last rank takes from a semaphore what all others give, and sleeps between.
fn acquired<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    const EACH: u32 = 20;
    let limits = ChannelLimits::default();
    let lock = of_rank_0(job, channels, || channels.semaphore(0, u64::MAX, limits))?;
    let (me, size) = (job.rank().0, job.size());
    if me + 1 < size {
        for _ in 0..EACH {
            lock.poll(Poll::Release, Timeout::Never)?;
        }
    } else {
        let event = lock.event()?;
        assert!(size > 1 || !is_readable(event, false));
        let all = EACH * (size - 1).max(1);
        let mut taken = 0;
        while taken < all {
            if size == 1 {
                lock.poll(Poll::Release, Timeout::Never)?;
            }
            sleep_on(channels, event)?;
            let take = |taken: u32| match taken % 3 {
                0 => lock.poll(Poll::Acquire, Timeout::Once),
                1 => lock.poll(Poll::Acquire, Timeout::After(Duration::from_micros(50))),
                _ => lock.start_poll(Poll::Acquire, Timeout::Once)?.wait(),
            };
            let outcome = loop {
                match take(taken) {
                    Ok(_) => taken += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(outcome, Error::WouldBlock | Error::TimedOut(_)));
        }
        assert_eq!((taken, is_readable(event, false)), (all, false));
        assert_eq!(
            lock.poll(Poll::Available, Timeout::Once),
            Err(Error::WouldBlock)
        );
    }
    job.barrier()
}

#[test]
fn the_event_of_a_semaphore_is_readable_while_one_may_be_acquired() {
    on_both!(2, |_| 0, acquired);
    on_both!(3, |rank| rank, acquired);
    on_both!(1, |_| 0, acquired);
}

/// The last rank comes to a barrier twice: first it starts that, and then it comes as the last one.
fn met<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    const ROUNDS: u32 = 10;
    let (me, size) = (job.rank().0, job.size());
    let before = u64::from(size);
    let limits = ChannelLimits::default();
    let barrier = of_rank_0(job, channels, || channels.barrier(size + 1, limits))?;
    if me + 1 < size {
        for _ in 0..ROUNDS {
            assert!(barrier.poll(Poll::Arrive, Timeout::Never)? < before);
        }
        job.barrier()?;
    } else {
        let event = barrier.event()?;
        assert!(!is_readable(event, false));
        for _ in 0..ROUNDS {
            let mut first = barrier.start_poll(Poll::Arrive, Timeout::Never)?;
            assert!(!is_readable(first.event()?, false));
            let last = loop {
                sleep_on(channels, event)?;
                match barrier.poll(Poll::Arrive, Timeout::Once) {
                    Err(Error::WouldBlock) => {}
                    last => break last?,
                }
            };
            sleep_on(channels, first.event()?)?;
            let first = first.test()?.expect("its descriptor is readable");
            assert!(last == before && first < before, "{first} {last}");
        }
        let outcome = barrier.poll(Poll::Arrive, Timeout::Once);
        assert_eq!(outcome, Err(Error::WouldBlock));
        assert!(!is_readable(event, false));
        barrier.poll(Poll::Abort, Timeout::Never)?;
        sleep_on(channels, event)?;
        let outcome = barrier.poll(Poll::Arrive, Timeout::Once);
        assert!(matches!(outcome, Err(Error::BarrierBroken { .. })));
        let outcome = barrier.poll(Poll::OneMissing, Timeout::Never);
        assert!(matches!(outcome, Err(Error::BarrierBroken { .. })));
        job.barrier()?;
    }
    job.barrier()
}

#[test]
fn the_event_of_a_barrier_is_readable_for_who_comes_last() {
    on_both!(2, |_| 0, met);
    on_both!(3, |rank| rank, met);
    on_both!(1, |_| 0, met);
}

/// Gets that are started before there is anything; sends that end when somebody has taken them.
fn started<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    const EACH: u32 = 5;
    let channel = shared(job, channels, 0, ChannelLimits::default())?;
    let (me, size) = (job.rank().0, job.size());
    if me + 1 == size {
        let mut gets = Vec::new();
        for _ in 0..EACH {
            let mut get = channel.start_get(Timeout::Never)?;
            assert!(!is_readable(get.event()?, false));
            gets.push(get);
        }
        job.barrier()?;
        if size == 1 {
            for number in 0..EACH {
                channel.send(number, b"x", Return::WhenDeposited, Timeout::Never)?;
            }
        }
        for (number, get) in gets.iter_mut().enumerate() {
            sleep_on(channels, get.event()?)?;
            let got = get.test()?.expect("its descriptor is readable");
            assert_eq!(got.kind as usize, number);
            assert!(is_readable(get.event()?, false));
        }
        // One that has ended before its descriptor is made.
        channel.send(9, b"y", Return::WhenBuffered, Timeout::Never)?;
        let mut get = channel.start_get(Timeout::Never)?;
        channel.poll(Poll::Size, Timeout::Never)?;
        sleep_on(channels, get.event()?)?;
        assert_eq!(get.wait_mut()?.kind, 9);
        let short = Timeout::After(Duration::from_micros(50));
        let mut late = channel.start_get(short)?;
        let outcome = loop {
            match late.test() {
                Ok(None) => {}
                outcome => break outcome,
            }
        };
        assert!(matches!(outcome, Err(Error::TimedOut(_))), "{outcome:?}");
        assert!(is_readable(late.event()?, false));
    } else {
        job.barrier()?;
    }
    if me == 0 && size > 1 {
        for number in 0..EACH {
            let (when, never) = (Return::WhenReceived, Timeout::Never);
            let mut sent = channel.start_send(number, b"x", when, never)?;
            sleep_on(channels, sent.event()?)?;
            assert_eq!(sent.test(), Ok(Some(())));
        }
    }
    job.barrier()
}

#[test]
fn a_request_has_a_descriptor_that_is_readable_once_it_has_ended() {
    on_both!(2, |_| 0, started);
    on_both!(3, |rank| rank, started);
    on_both!(1, |_| 0, started);
}

#[test]
fn an_event_is_readable_once_the_job_has_failed() {
    let failing = |_, bootstrap: Custom| -> Result<Error> {
        let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let channel = channels.create(ChannelLimits::default())?;
        let bad = job.shuffle("bad").handler(|_, _| panic!("by the test"));
        let bad = bad.open()?;
        let mut get = channel.start_get(Timeout::Never)?;
        let (event, of_get) = (channel.event()?, get.event()?);
        assert!(!is_readable(of_get, false));
        bad.send(Rank(0), 0, b"")?;
        assert!(is_readable(event, true) && is_readable(of_get, true));
        // As a loop does that takes until nothing is found, and then sleeps.
        for _ in 0..2 {
            let failed = channel.get(Timeout::Once).expect_err("the job has failed");
            assert!(matches!(failed, Error::Handler { .. }), "{failed:?}");
            assert!(is_readable(event, false));
        }
        let sent = channel.send(0, b"x", Return::WhenDeposited, Timeout::Never);
        assert!(matches!(sent, Err(Error::Handler { .. })), "{sent:?}");
        let other = channels.create(ChannelLimits::default());
        assert!(matches!(other, Err(Error::Handler { .. })));
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

/// A job is shut down while channels are open, and somebody sleeps until something comes.
#[test]
fn an_event_is_readable_once_the_job_has_ended() {
    fn ending<S: Seat>(job: over::Job<S>) -> Result<Error> {
        let channels = job.channels("channels").open()?;
        let channel = channels.create(ChannelLimits::default())?;
        let mut get = channel.start_get(Timeout::Never)?;
        channel.event()?;
        get.event()?;
        job.shutdown()?;
        if S::MOVES_ALONE {
            assert!(is_readable(channel.event()?, true) && is_readable(get.event()?, true));
        }
        assert!(matches!(get.test(), Err(Error::Closed(_))));
        Ok(channel.get(Timeout::Once).expect_err("the job has ended"))
    }
    let inline = |_, bootstrap: Custom| ending(Job::start_with(loopback(), Box::new(bootstrap))?);
    let threaded =
        |_, bootstrap: Custom| ending(threaded::Job::start_with(loopback(), Box::new(bootstrap))?);
    for (_, outcome) in ranks(1, |_| 0, inline)
        .into_iter()
        .chain(ranks(1, |_| 0, threaded))
    {
        assert!(matches!(outcome, Ok(Error::Closed(_))), "{outcome:?}");
    }
}

/// How a request has ended is said once.
#[test]
fn a_request_whose_end_was_said_says_so() {
    let twice = |_, bootstrap: Custom| -> Result<()> {
        let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let channel = channels.create(ChannelLimits::default())?;
        channel.send(0, b"x", Return::WhenDeposited, Timeout::Never)?;
        let mut get = channel.start_get(Timeout::Never)?;
        assert_eq!(get.wait_mut()?.bytes, *b"x");
        assert!(matches!(get.test(), Err(Error::Misuse { .. })));
        assert!(matches!(get.wait_mut(), Err(Error::Misuse { .. })));
        drop((get, channel));
        channels.shutdown()?;
        job.shutdown()
    };
    for (_, outcome) in ranks(1, |_| 0, twice) {
        outcome.unwrap();
    }
}
