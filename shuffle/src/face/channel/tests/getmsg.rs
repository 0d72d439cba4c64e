//! Owners that hand out no more than so many bytes at once.

use std::collections::VecDeque;

use super::*;
use crate::Reduce;

/// Messages that the owner sends, long and short, and of which few may be on their way at once, are
/// got by all, some by gets that are taken back; each is got once.
fn bounded<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    const MESSAGES: u64 = 200;
    let limits = ChannelLimits {
        messages: 9,
        bytes: 300_000,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    let message = |number: u32| {
        let most = if number.is_multiple_of(9) {
            90_000
        } else {
            900
        };
        vec![number as u8; number as usize * 7919 % most]
    };
    let (mut count, mut sum) = (0, 0);
    let mut note = |received: Received| {
        let number = received.kind;
        assert!(received.bytes == message(number), "message {number}");
        count += 1;
        sum += u64::from(number);
    };
    if job.rank().0 == 0 {
        for number in 0..MESSAGES as u32 {
            let (deposited, never) = (Return::WhenDeposited, Timeout::Never);
            channel.send(number, &message(number), deposited, never)?;
            if number % 10 == 9 {
                match channel.get(Timeout::Once) {
                    Err(Error::WouldBlock) => {}
                    received => note(received?),
                }
            }
        }
        channel.close()?;
    } else {
        let mut under_way = VecDeque::new();
        let mut is_open = true;
        for round in 0.. {
            while is_open && under_way.len() < 8 {
                under_way.push_back(channel.start_get(Timeout::Never)?);
            }
            if round % 4 == 0 {
                drop(under_way.pop_back());
            }
            let Some(asked) = under_way.pop_front() else {
                break;
            };
            match asked.wait() {
                Err(Error::ChannelClosed { .. }) => is_open = false,
                received => note(received?),
            }
        }
        // What came for gets that were taken back is on its way to the owner behind the first of
        // these, and there behind the second.
        for _ in 0..2 {
            channel.poll(Poll::Size, Timeout::Never)?;
        }
    }
    job.barrier()?;
    if job.rank().0 == 0 {
        while let Ok(received) = channel.get(Timeout::Once) {
            note(received);
        }
    }
    let mut all = [count, sum];
    job.allreduce(&mut all, Reduce::Sum)?;
    assert_eq!(all, [MESSAGES, MESSAGES * (MESSAGES - 1) / 2]);
    job.barrier()
}

#[test]
fn what_is_handed_out_is_bound_and_got_once() {
    for bytes in [1, 1000, 100_000] {
        on_both_bound(Some(bytes), 2, |_| 0, bounded, bounded);
        on_both_bound(Some(bytes), 3, |rank| rank, bounded, bounded);
    }
}
