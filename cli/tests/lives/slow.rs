//! Slow is not dead: handlers that block, handlers that work long, and stopped ranks.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use trihop::Result;

use crate::ranks::{Seat, SeatKind, Spec, is_rank, number, rank, say, victim};

/// Messages that every other rank sends to the slow one: more than all queues on their way hold.
const MESSAGES: u64 = 20_000;

/// A deadline that everything here takes longer than.
const HASTY: [(&str, &str); 1] = [("TRIHOP_WATCH_TIMEOUT_MS", "500")];

/// Sends to the slow rank, whose handler calls `pause` with the number of the message.
fn fill_queues(seat: Seat, messages: u64, pause: fn(u64)) -> Result<()> {
    let count = Arc::new(Mutex::new(0_u64));
    let counted = Arc::clone(&count);
    let post = seat.open("slow", move |_| {
        let number = {
            let mut count = counted.lock().unwrap();
            *count += 1;
            *count
        };
        pause(number);
    })?;
    if number() != victim() {
        let bytes = [7; 400];
        for _ in 0..messages {
            post.send(victim(), &bytes)?;
        }
    }
    post.fence()?;
    let expected = match number() == victim() {
        true => messages * u64::from(seat.size() - 1),
        false => 0,
    };
    assert_eq!(*count.lock().unwrap(), expected, "messages were lost");
    drop(post);
    seat.shutdown()
}

fn slow(test: &str, body: impl Fn(Seat) -> Result<()> + Sync) {
    if is_rank() {
        return rank(body);
    }
    for seat in SeatKind::ALL {
        let spec = Spec {
            variables: &HASTY,
            ..Spec::new(test, "2,1,1", seat, 2)
        };
        spec.start().assert_done();
    }
}

#[test]
fn a_handler_that_blocks_for_longer_than_the_deadline_is_waited_for() {
    let pause = |number| {
        if number == 100 {
            thread::sleep(Duration::from_secs(3));
        }
    };
    slow(
        "slow::a_handler_that_blocks_for_longer_than_the_deadline_is_waited_for",
        |seat| fill_queues(seat, MESSAGES, pause),
    );
}

#[test]
fn a_handler_that_takes_3_ms_for_each_message_is_waited_for() {
    slow(
        "slow::a_handler_that_takes_3_ms_for_each_message_is_waited_for",
        |seat| fill_queues(seat, 600, |_| thread::sleep(Duration::from_millis(3))),
    );
}

/// Rank 2 has the watch of its node, rank 1 has none.
#[test]
fn a_stopped_rank_goes_on_and_nobody_is_accused() {
    let test = "slow::a_stopped_rank_goes_on_and_nobody_is_accused";
    if is_rank() {
        return rank(|seat| {
            seat.barrier()?;
            say("ready");
            fill_queues(seat, MESSAGES, |_| ())
        });
    }
    for (seat, victim) in [
        (SeatKind::Inline, 1),
        (SeatKind::Inline, 2),
        (SeatKind::Threaded, 2),
    ] {
        let spec = Spec {
            variables: &HASTY,
            ..Spec::new(test, "2,1,1", seat, victim)
        };
        let mut ranks = spec.start();
        ranks.wait_for(4, "ready");
        ranks.signal(victim, Signal::STOP);
        // The test lets the rank stand still for several times the deadline.
        let stopped = Instant::now();
        ranks.wait_for_survivors(None, Duration::from_secs(3));
        assert!(
            ranks.ends.is_empty(),
            "{:?} within {:?}",
            ranks.ends,
            stopped.elapsed()
        );
        ranks.signal(victim, Signal::CONT);
        ranks.assert_done();
    }
}
