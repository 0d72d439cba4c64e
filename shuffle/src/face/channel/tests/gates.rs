//! Semaphores and barriers of whole jobs.

#![allow(clippy::disallowed_types, reason = "what the ranks of a test share")]

use trihop_transport::sync::{AtomicU32, Ordering};

use super::*;

/// What rank 0 makes, on all ranks, by the text that names it.
fn made<S: Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
    make: impl FnOnce() -> Result<Channel<S>>,
) -> Result<Channel<S>> {
    let mine = (job.rank().0 == 0).then(make).transpose()?;
    let text = mine.as_ref().map(|mine| mine.descriptor().to_string());
    let text = job.broadcast(Rank(0), text.unwrap_or_default().as_bytes())?;
    match mine {
        Some(mine) => Ok(mine),
        None => channels.attach(&String::from_utf8_lossy(&text).parse()?),
    }
}

fn usual() -> ChannelLimits {
    ChannelLimits::default()
}

const SHORT: Timeout = Timeout::After(Duration::from_micros(50));

/// Who has it, of all ranks of a job.
static HOLDERS: AtomicU32 = AtomicU32::new(0);

fn one_at_a_time<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let lock = made(job, channels, || channels.semaphore(1, 1, usual()))?;
    assert_eq!(lock.kind(), ChannelKind::Semaphore);
    for timeout in [Timeout::Never, SHORT, Timeout::Once] {
        for _ in 0..20 {
            let left = loop {
                match lock.poll(Poll::Acquire, timeout) {
                    Err(Error::WouldBlock) if timeout == Timeout::Once => {}
                    Err(Error::TimedOut(_)) if timeout == SHORT => {}
                    outcome => break outcome?,
                }
            };
            assert_eq!((left, HOLDERS.fetch_add(1, Ordering::Relaxed)), (0, 0));
            assert_eq!(lock.poll(Poll::Zero, Timeout::Once)?, 0);
            assert_eq!(HOLDERS.fetch_sub(1, Ordering::Relaxed), 1);
            assert_eq!(lock.poll(Poll::Release, Timeout::Never)?, 1);
        }
    }
    job.barrier()?;
    assert_eq!(lock.poll(Poll::Value, Timeout::Never)?, 1);
    let outcome = lock.poll(Poll::Release, Timeout::Never);
    assert!(matches!(outcome, Err(Error::Misuse { .. })), "{outcome:?}");
    assert_eq!(
        lock.poll(Poll::Zero, SHORT),
        Err(Error::TimedOut(port::POLL))
    );
    job.barrier()
}

#[test]
fn a_semaphore_of_one_is_held_by_one_at_a_time() {
    on_both!(3, |_| 0, one_at_a_time);
    on_both!(3, |rank| rank, one_at_a_time);
    on_both!(1, |_| 0, one_at_a_time);
}

/// Acquisitions that are taken back, before and after they were answered.
fn taken_back<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let both = made(job, channels, || channels.semaphore(2, u64::MAX, usual()))?;
    if job.rank().0 + 1 == job.size() {
        for _ in 0..10 {
            let asked = (0..4).map(|_| both.start_poll(Poll::Acquire, Timeout::Never));
            let asked = asked.collect::<Result<Vec<_>>>()?;
            assert_eq!(both.poll(Poll::Value, Timeout::Never)?, 0);
            drop(asked);
            drop(both.start_poll(Poll::Acquire, Timeout::Never)?);
            // What goes back may be on its way.
            for _ in 0..2 {
                both.poll(Poll::Acquire, Timeout::Never)?;
            }
            for value in [1, 2] {
                assert_eq!(both.poll(Poll::Release, Timeout::Never)?, value);
            }
        }
    }
    job.barrier()
}

#[test]
fn what_is_acquired_for_nobody_goes_back() {
    on_both!(2, |_| 0, taken_back);
    on_both!(2, |rank| rank, taken_back);
    on_both!(1, |_| 0, taken_back);
}

fn meet<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let (me, size) = (job.rank().0, job.size());
    let parties = 2 * size;
    let barrier = made(job, channels, || channels.barrier(parties, usual()))?;
    assert_eq!(barrier.kind(), ChannelKind::Barrier);
    let arrive = || barrier.start_poll(Poll::Arrive, Timeout::Never);
    for _ in 0..20 {
        // Some call has not come.
        assert_eq!(
            barrier.poll(Poll::Arrive, Timeout::Once),
            Err(Error::WouldBlock)
        );
        assert!(matches!(
            barrier.poll(Poll::Arrive, SHORT),
            Err(Error::TimedOut(_))
        ));
        job.barrier()?;
        let (first, second) = (arrive()?, arrive()?);
        let mine = [first.wait()? as u32, second.wait()? as u32];
        let all = job.allgather(mine.map(u32::to_le_bytes).as_flattened())?;
        let mut all: Vec<_> = all
            .concat()
            .as_chunks()
            .0
            .iter()
            .copied()
            .map(u32::from_le_bytes)
            .collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..parties));
    }
    // One call is missing as it is broken.
    let broken = Err(Error::BarrierBroken {
        number: 0,
        owner: 0,
    });
    let asked = match me {
        0 => vec![arrive()?],
        _ => vec![arrive()?, arrive()?],
    };
    if me == 0 {
        let missing = u64::from(parties) - 1;
        while barrier.poll(Poll::Waiting, Timeout::Never)? < missing {}
        assert_eq!(barrier.poll(Poll::Broken, Timeout::Never)?, 0);
        assert_eq!(barrier.poll(Poll::Abort, Timeout::Never)?, missing);
    }
    for asked in asked {
        assert_eq!(asked.wait(), broken);
    }
    assert_eq!(barrier.poll(Poll::Arrive, Timeout::Never), broken);
    assert_eq!(barrier.poll(Poll::Broken, Timeout::Never)?, 1);
    job.barrier()?;
    if me + 1 == size {
        assert_eq!(barrier.poll(Poll::Reset, Timeout::Never)?, 0);
        let asked = arrive()?;
        assert_eq!(barrier.poll(Poll::Reset, Timeout::Never)?, 1);
        assert_eq!(asked.wait(), broken);
    }
    job.barrier()?;
    let (first, second) = (arrive()?, arrive()?);
    first.wait()?;
    second.wait()?;
    job.barrier()
}

#[test]
fn a_barrier_lets_all_parties_go_or_none() {
    on_both!(3, |_| 0, meet);
    on_both!(3, |rank| rank, meet);
    on_both!(1, |_| 0, meet);
}

#[test]
fn what_waits_on_a_port_is_let_go_by_the_same_port() {
    for (_, outcome) in ranks(
        1,
        |_| 0,
        |_, bootstrap| {
            let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
            let channels = job.channels("one place").open()?;
            let limits = ChannelLimits {
                window_messages: 1,
                ..usual()
            };
            let lock = channels.semaphore(0, 1, limits)?;
            std::thread::scope(|scope| {
                // It takes the port's one place, as soon as that is free.
                let acquire = || loop {
                    match lock.poll(Poll::Acquire, Timeout::Never) {
                        Err(Error::WouldBlock) => {}
                        outcome => break outcome,
                    }
                };
                let waits = scope.spawn(acquire);
                let is_free = |outcome: Result<u64>| !matches!(outcome, Err(Error::WouldBlock));
                while is_free(lock.poll(Poll::Zero, Timeout::Once)) {}
                assert_eq!(lock.poll(Poll::Value, Timeout::Never)?, 0);
                assert_eq!(lock.poll(Poll::Release, Timeout::Never)?, 1);
                assert_eq!(waits.join().unwrap()?, 0);
                Ok::<(), Error>(())
            })?;
            drop(lock);
            channels.shutdown()?;
            job.shutdown()
        },
    ) {
        outcome.unwrap();
    }
}

fn misused<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let all = [
        made(job, channels, || channels.create(usual()))?,
        made(job, channels, || channels.semaphore(0, 1, usual()))?,
        made(job, channels, || channels.barrier(1, usual()))?,
    ];
    let polls = [Poll::In, Poll::Acquire, Poll::Arrive];
    let why = |outcome: Result<()>| match outcome {
        Err(Error::Misuse { why, .. }) => why,
        outcome => panic!("{outcome:?}"),
    };
    for (number, channel) in all.iter().enumerate() {
        for (other, poll) in polls.into_iter().enumerate().filter(|of| of.0 != number) {
            let why = why(channel.poll(poll, Timeout::Never).map(drop));
            let name = channel.kind().name();
            let said =
                format!("channel {number} of rank 0 is {name}, and knows no poll `{poll:?}`");
            assert_eq!((why, other == number), (said, false));
        }
    }
    for gate in &all[1..] {
        why(gate.send(0, b"", Return::Immediately, Timeout::Never));
        why(gate.get(Timeout::Once).map(drop));
    }
    let key = |outcome: Result<Channel<S>>| match outcome {
        Err(Error::Config { key, .. }) => key,
        outcome => panic!("{:?}", outcome.map(drop)),
    };
    assert_eq!(key(channels.semaphore(2, 1, usual())), "value");
    assert_eq!(key(channels.barrier(0, usual())), "parties");
    assert_eq!(key(channels.barrier(1024 * 64 + 1, usual())), "parties");
    // Who waits as the owner leaves hears of it.
    job.barrier()?;
    if job.rank().0 == 0 {
        return Ok(());
    }
    let closed = Err(Error::ChannelClosed {
        number: 1,
        owner: 0,
    });
    assert_eq!(all[1].poll(Poll::Acquire, Timeout::Never), closed);
    assert_eq!(all[1].poll(Poll::Value, Timeout::Never), closed);
    assert_eq!(all[2].poll(Poll::Closed, Timeout::Never), Ok(0));
    Ok(())
}

#[test]
fn misuse_and_owners_that_are_gone_are_told() {
    on_both!(2, |_| 0, misused);
    on_both!(3, |rank| rank, misused);
}
