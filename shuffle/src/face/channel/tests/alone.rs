//! What one rank, or one thread, meets alone, and what the others hear of it.

use trihop_transport::sync::Flag;

use super::super::client::Expects;
use super::super::wait::Limit;
use super::*;
use crate::seat::Seating as _;

fn short(max_message_bytes: usize) -> StreamOptions {
    StreamOptions {
        max_message_bytes,
        ..loopback().stream
    }
}

/// Rank 1 asks for what cannot be, and then both for what can.
fn opened_by_one<S: Seat>(job: &over::Job<S>, _: &over::Channels<S>) -> Result<()> {
    // Of channels, and of any stream.
    for impossible in [95, 1 << 40] {
        let bytes = [96, impossible][job.rank().0 as usize];
        let opened = job.channels("one").options(short(bytes)).open().map(drop);
        match (job.rank().0, opened) {
            (0, Err(Error::Mismatch { .. })) => {}
            (1, Err(Error::Config { key, .. })) => assert_eq!(key, "max_message_bytes"),
            (rank, other) => panic!("rank {rank}: {other:?}"),
        }
    }
    let both = job.channels("both").options(short(96)).open()?;
    drop(shared(job, &both, 1, ChannelLimits::default())?);
    job.barrier()?;
    both.shutdown()
}

#[test]
fn options_that_are_impossible_on_one_rank_keep_no_other_waiting() {
    on_both!(2, |_| 0, opened_by_one);
}

/// A message that no answer can bring is in a channel of rank 0's, which asks for nothing of
/// others; rank 1 gets it. What each hears.
fn with_an_untold_get<S: Seat>(
    job: &over::Job<S>,
    waits: impl Fn(&over::Channels<S>, &Channel<S>) -> Error,
) -> Result<Error> {
    let channels = job.channels("short").options(short(1024)).open()?;
    let channel = shared(job, &channels, 0, ChannelLimits::default())?;
    if job.rank().0 == 1 {
        job.barrier()?;
        let got = channel.get(Timeout::Never);
        return Ok(got.expect_err("it is too long"));
    }
    let send = Request::Send {
        port: channel.port().at_owner(),
        id: 0,
        when: Return::WhenBuffered,
        timeout_ns: u64::MAX,
        kind: 0,
    };
    channels.ask_here(send, Payload::Borrowed(&[1; 1024]));
    job.barrier()?;
    Ok(waits(&channels, &channel))
}

#[test]
fn an_owner_that_cannot_answer_ends_the_job_whatever_it_does_meanwhile() {
    let by_inline = |_, bootstrap: Custom| {
        let job = Job::start_with(loopback(), Box::new(bootstrap))?;
        with_an_untold_get(&job, |channels, _| {
            loop {
                if let Err(error) = channels.progress() {
                    break error;
                }
            }
        })
    };
    let by_threads = |_, bootstrap: Custom| {
        let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
        with_an_untold_get(&job, |channels, _| {
            // Its own channel, of which nobody else knows.
            let own = channels.create(ChannelLimits::default()).unwrap();
            block_on(own.start_get(Timeout::Never).unwrap()).expect_err("nobody sends")
        })
    };
    for outcomes in [ranks(2, |_| 0, by_inline), ranks(2, |_| 0, by_threads)] {
        for (rank, outcome) in outcomes {
            match (rank, outcome) {
                (0, Ok(Error::TooLarge { limit: 1024, .. })) => {}
                (1, Ok(Error::PeerFailed { rank: 0, .. })) => {}
                (_, outcome) => panic!("rank {rank}: {outcome:?}"),
            }
        }
    }
}

/// As a request that has left behind the last of all others, when its channels were shut down.
#[test]
fn a_request_that_nobody_answers_any_more_ends_with_its_channels() {
    let program = |_, bootstrap: Custom| -> Result<()> {
        let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let channel = shared(&job, &channels, 0, ChannelLimits::default())?;
        let asker = (job.rank().0 == 1).then(|| {
            let number = channel.port().number();
            let id = channels.office.client().begin(number, Expects::Message);
            let channel = channel.clone();
            std::thread::spawn(move || {
                let never = Limit::new(Timeout::Never);
                channel.port().answer(id, "a get", never).map(drop)
            })
        });
        job.barrier()?;
        drop(channel);
        channels.shutdown()?;
        if let Some(asker) = asker {
            let ended = asker.join().expect("it does not panic");
            assert!(matches!(ended, Err(Error::Closed(_))), "{ended:?}");
        }
        job.shutdown()
    };
    for (rank, outcome) in ranks(2, |_| 0, program) {
        outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

#[test]
fn who_awaits_what_nobody_answers_any_more_is_woken_as_its_channels_end() {
    let program = |_, bootstrap: Custom| -> Result<()> {
        let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let channel = channels.create(ChannelLimits::default())?;
        let number = channel.port().number();
        let id = channels.office.client().begin(number, Expects::Message);
        let never = Limit::new(Timeout::Never);
        let mut get = Asked::<Received, _>::new(channel.port(), id, ("a get", true), never);
        let (tell, told) = std::sync::mpsc::channel();
        let asker = std::thread::spawn(move || {
            assert_eq!(get.test(), Ok(None));
            tell.send(()).unwrap();
            block_on(get).map(drop)
        });
        told.recv().expect("it does not panic");
        drop(channel);
        channels.shutdown()?;
        let ended = asker.join().expect("it does not panic");
        assert!(matches!(ended, Err(Error::Closed(_))), "{ended:?}");
        job.shutdown()
    };
    for (_, outcome) in ranks(1, |_| 0, program) {
        assert_eq!(outcome, Ok(()));
    }
}

/// One thread sends a message that is longer than the window, while another one sends short ones
/// and a third tries to, by the same port, until it has.
#[test]
fn threads_that_share_a_port_have_room_in_their_order() {
    const MOST: u32 = 200_000;
    let limits = ChannelLimits {
        messages: 8,
        window_messages: 4,
        window_bytes: 4096,
        ..ChannelLimits::default()
    };
    let program = move |_, bootstrap: Custom| -> Result<()> {
        let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let channel = shared(&job, &channels, 0, limits)?;
        if job.rank().0 == 0 {
            let mut open = 3;
            while open > 0 {
                open -= u32::from(channel.get(Timeout::Never)?.kind == 2);
            }
        } else {
            let (begun, has_sent) = (Flag::default(), Flag::default());
            let send = |when| {
                let mut count = 0;
                while count < MOST {
                    match channel.send(0, b"short", when, Timeout::Never) {
                        Ok(()) => {
                            count += 1;
                            begun.raise();
                        }
                        Err(Error::WouldBlock) => std::thread::yield_now(),
                        Err(error) => return Err(error),
                    }
                    if has_sent.is_raised() {
                        return channel.send(2, b"", Return::WhenBuffered, Timeout::Never);
                    }
                }
                panic!("the long one has waited for {MOST} short ones");
            };
            let long = || {
                while !begun.is_raised() {
                    std::thread::yield_now();
                }
                for _ in 0..20 {
                    channel.send(1, &[1; 5000], Return::WhenBuffered, Timeout::Never)?;
                }
                has_sent.raise();
                channel.send(2, b"", Return::WhenBuffered, Timeout::Never)
            };
            std::thread::scope(|scope| {
                let short = [Return::WhenBuffered, Return::Immediately];
                let short = short.map(|when| scope.spawn(move || send(when)));
                let long = scope.spawn(long);
                let all = short.into_iter().chain([long]);
                let ended = all.map(|of| of.join().expect("it does not panic"));
                ended.collect::<Result<Vec<_>>>()
            })?;
        }
        job.barrier()?;
        drop(channel);
        end(job, channels)
    };
    for (rank, outcome) in ranks(2, |_| 0, program) {
        outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

#[test]
fn gets_make_progress_where_messages_are_there() {
    let on_rank = |_, bootstrap: Custom| -> Result<u64> {
        let job = Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let mine = channels.create(ChannelLimits::default())?;
        for _ in 0..40 {
            mine.send(0, &[7; 1000], Return::WhenDeposited, Timeout::Never)?;
        }
        let rounds = || channels.handle.seat.look(|job| job.rounds).unwrap_or(0);
        let before = rounds();
        for _ in 0..40 {
            mine.get(Timeout::Never)?;
        }
        let made = rounds() - before;
        drop(mine);
        end(job, channels)?;
        Ok(made)
    };
    // Of 1,000 bytes and what a message has beside them eight are a step.
    let outcomes = ranks(1, |_| 0, on_rank);
    assert_eq!(outcomes, [(0, Ok(5))]);
}
