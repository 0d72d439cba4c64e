//! Ports and requests that are dropped while something of them is under way.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;

/// What is taken back leaves its message in the channel, in its place.
fn taken_back<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let channel = shared(job, channels, 0, ChannelLimits::default())?;
    let is_asker = job.rank().0 == 1;
    for number in (0..4).filter(|_| is_asker) {
        channel.send(number, b"x", Return::WhenDeposited, Timeout::Never)?;
    }
    for asked in 0..4 {
        if is_asker {
            let gets = (0..asked).map(|_| channel.start_get(Timeout::Never));
            drop(gets.collect::<Result<Vec<_>>>()?);
            // One that is answered before it is taken back.
            let get = channel.start_get(Timeout::Never)?;
            channel.poll(Poll::Size, Timeout::Never)?;
            drop(get);
        }
        job.fence()?;
    }
    if is_asker {
        let kinds = (0..4).map(|_| Ok(channel.get(Timeout::Never)?.kind));
        assert_eq!(kinds.collect::<Result<Vec<_>>>()?, [0, 1, 2, 3]);
        assert_eq!(channel.get(Timeout::Once), Err(Error::WouldBlock));
    }
    job.barrier()
}

#[test]
fn a_get_that_is_taken_back_leaves_its_message_in_its_place() {
    on_both!(2, |_| 0, taken_back);
    on_both!(2, |rank| rank, taken_back);
    on_both!(1, |_| 0, taken_back);
}

/// A channel that is closed is not said to be so while a message comes back to it.
fn taken_back_behind_the_end<S: Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
) -> Result<()> {
    for _ in 0..20 {
        let channel = shared(job, channels, 0, ChannelLimits::default())?;
        if job.rank().0 == 1 {
            channel.send(7, b"x", Return::WhenDeposited, Timeout::Never)?;
        }
        job.barrier()?;
        if job.rank().0 == 0 {
            channel.close()?;
        }
        job.barrier()?;
        if job.rank().0 == 1 {
            drop(channel.start_get(Timeout::Never)?);
            assert_eq!(channel.get(Timeout::Never)?.kind, 7);
            let closed = channel.get(Timeout::Never);
            assert!(matches!(closed, Err(Error::ChannelClosed { .. })));
        }
        job.barrier()?;
    }
    Ok(())
}

#[test]
fn a_message_that_comes_back_is_had_before_the_end_is_told() {
    on_both!(2, |_| 0, taken_back_behind_the_end);
    on_both!(2, |rank| rank, taken_back_behind_the_end);
}

/// A port is dropped before it can hear that its sends have failed.
fn dropped_with_failures<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let limits = ChannelLimits {
        messages: 1,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    if job.rank().0 == 0 {
        channel.send(0, b"fills", Return::WhenDeposited, Timeout::Never)?;
    }
    job.barrier()?;
    for _ in 0..20 {
        let port = channels.attach(&channel.descriptor())?;
        for when in [Return::WhenBuffered, Return::Immediately] {
            port.send(1, b"finds no room", when, Timeout::Once)?;
        }
        let short = Timeout::After(Duration::from_micros(50));
        port.send(2, b"waits for some", Return::WhenBuffered, short)?;
        drop(port);
        // This is answered behind those.
        assert_eq!(channel.poll(Poll::Size, Timeout::Never)?, 1);
    }
    assert_eq!(channel.failures(), (0, None));
    job.barrier()
}

#[test]
fn a_port_may_be_dropped_while_its_sends_fail() {
    on_both!(1, |_| 0, dropped_with_failures);
    on_both!(2, |_| 0, dropped_with_failures);
    on_both!(2, |rank| rank, dropped_with_failures);
}

/// Channels are not ended beside a fence of all streams, which waits for them.
fn ended_beside_a_fence<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let mine = channels.create(ChannelLimits::default())?;
    mine.send(3, b"still here", Return::WhenDeposited, Timeout::Never)?;
    job.start_fence()?;
    let refused = |outcome| matches!(outcome, Err(Error::Misuse { .. }));
    assert!(refused(channels.clone().shutdown()));
    assert!(refused(channels.clone().keep().map(drop)));
    job.wait_fence()?;
    let message = mine.get(Timeout::Once)?;
    assert_eq!(
        (message.kind, message.bytes),
        (3, b"still here"[..].to_vec().into())
    );
    job.barrier()
}

#[test]
fn channels_that_may_not_end_yet_have_their_messages_still() {
    on_both!(1, |_| 0, ended_beside_a_fence);
    on_both!(2, |rank| rank, ended_beside_a_fence);
}

/// A port is closed while what it has sent waits for room.
fn closed_with_sends<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let limits = ChannelLimits {
        messages: 1,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    let is_sender = job.rank().0 + 1 == job.size();
    for turn in 0..5 {
        if is_sender {
            let port = channels.attach(&channel.descriptor())?;
            for number in 0..10 {
                let when = [Return::WhenBuffered, Return::Immediately][number as usize % 2];
                port.send(10 * turn + number, b"late", when, Timeout::Never)?;
            }
        }
        if job.rank().0 == 0 {
            let kinds = (0..10).map(|_| Ok(channel.get(Timeout::Never)?.kind));
            let expected: Vec<u32> = (10 * turn..10 * turn + 10).collect();
            assert_eq!(kinds.collect::<Result<Vec<_>>>()?, expected);
        }
    }
    job.barrier()
}

#[test]
fn what_a_port_has_sent_comes_also_where_it_is_closed_before() {
    on_both!(1, |_| 0, closed_with_sends);
    on_both!(2, |_| 0, closed_with_sends);
    on_both!(2, |rank| rank, closed_with_sends);
}

#[test]
fn what_a_handler_drops_is_told_to_owners_by_the_next_call() {
    let program = |_, bootstrap: Custom| -> Result<()> {
        let job = Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let limits = ChannelLimits {
            ports: 3,
            ..ChannelLimits::default()
        };
        let channel = shared(&job, &channels, 0, limits)?;
        let kept = Rc::new(RefCell::new(None));
        let (in_handler, inside) = (Rc::clone(&kept), channels.clone());
        let calls = job.shuffle("calls").handler(move |_, _| {
            assert!(matches!(inside.progress(), Err(Error::Nested(_))));
            drop(in_handler.take());
        });
        let calls = calls.open()?;
        if job.rank().0 == 0 {
            channel.send(7, b"kept", Return::WhenDeposited, Timeout::Never)?;
            let get = channel.start_get(Timeout::Never)?;
            // The last port that the channel may have.
            let port = channels.attach(&channel.descriptor())?;
            kept.replace(Some((get, port)));
            job.fence()?;
            job.fence()?;
            while kept.borrow().is_some() {
                channels.progress()?;
            }
            // What the handler has dropped is told before this is asked.
            channels.attach(&channel.descriptor())?;
        } else {
            job.fence()?;
            let get = channel.start_get(Timeout::Never)?;
            // It is over when the handler is called, and nobody has looked.
            let short = channel.start_get(Timeout::After(Duration::from_nanos(1)))?;
            job.fence()?;
            calls.send(Rank(0), 0, b"")?;
            assert_eq!(get.wait()?.kind, 7);
            assert!(matches!(short.wait(), Err(Error::TimedOut(_))));
        }
        job.barrier()?;
        drop(channel);
        calls.shutdown()?;
        end(job, channels)
    };
    for (rank, outcome) in ranks(2, |_| 0, program) {
        outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}
