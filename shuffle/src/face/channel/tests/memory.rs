//! Messages whose memory the ranks of a node share.

use super::*;
use crate::face::channel::shared::LEAST_BYTES;

const NEVER: Timeout = Timeout::Never;
const BYTES: usize = 100_000;

fn content(of: u32) -> Vec<u8> {
    (0..BYTES)
        .map(|at| (at as u32 ^ at as u32 >> 8 ^ of) as u8)
        .collect()
}

fn buffer<S: Seat>(channel: &over::Channel<S>, of: u32) -> Result<Buffer> {
    let mut buffer = channel.buffer(BYTES)?;
    buffer.copy_from_slice(&content(of));
    Ok(buffer)
}

/// A message goes around all ranks in the memory in which the first has made it, by a channel of
/// each one's.
fn goes_around<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let (me, size) = (job.rank().0, job.size());
    let all: Result<Vec<_>> = (0..size)
        .map(|owner| shared(job, channels, owner, ChannelLimits::default()))
        .collect();
    let (mine, next) = (&all.as_ref().unwrap()[me as usize], (me + 1) % size);
    let next = &all.as_ref().unwrap()[next as usize];
    for turn in 0..50 {
        if me == 0 {
            let mut message = buffer(next, turn)?;
            let place = message.as_ptr();
            assert!(message.is_shared());
            next.send_buffer(turn, &mut message, Return::WhenDeposited, NEVER)?;
            assert!(message.is_empty());
            let back = mine.get(NEVER)?;
            assert_eq!(back.bytes.as_ptr(), place, "it lies where it was made");
            assert!(back.bytes == content(turn) && back.source.0 == size - 1);
        } else {
            let mut message = mine.get(NEVER)?.bytes;
            assert!(message.is_shared() && message == content(turn));
            next.send_buffer(turn, &mut message, Return::WhenBuffered, NEVER)?;
        }
    }
    job.barrier()
}

#[test]
fn a_message_goes_around_in_the_memory_in_which_it_was_made() {
    on_both!(2, |_| 0, goes_around);
    on_both!(4, |_| 0, goes_around);
}

/// The last rank gets from the channel of the first what the second, if there is one, has sent
/// there; more than there is shared memory for.
fn by_the_owner<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let limits = ChannelLimits {
        messages: 1000,
        bytes: 1 << 30,
        window_messages: 1000,
        window_bytes: 1 << 30,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    let (me, last) = (job.rank().0, job.size() - 1);
    // A quarter of it is that of the sender, and as much that of the owner.
    let count = 10 + StreamOptions::default().memory_bytes / 2 / BYTES;
    if me == 1.min(last) {
        for number in 0..count as u32 {
            channel.send(number, &content(number), Return::WhenDeposited, NEVER)?;
        }
    }
    job.barrier()?;
    if me == last {
        let mut shares = 0;
        let kept: Result<Vec<_>> = (0..count).map(|_| channel.get(NEVER)).collect();
        for (number, got) in (0..).zip(kept?) {
            assert!(got.kind == number && got.bytes == content(number));
            let clone = got.clone();
            assert!(!clone.bytes.is_shared() && clone == got);
            shares += u32::from(got.bytes.is_shared());
            // Whoever keeps the memory has its own.
            assert!(got.bytes.into_vec() == content(number));
        }
        let may_share = job.topology().nodes() == 1 && job.size() > 1;
        assert_eq!(shares > 0, may_share);
        assert!(shares < count as u32, "there is no memory for all of them");
        // All of it is free again.
        for number in 0..count as u32 {
            channel.send_buffer(
                7,
                &mut buffer(&channel, number)?,
                Return::WhenDeposited,
                NEVER,
            )?;
            let got = channel.get(NEVER)?;
            assert!(got.bytes == content(number));
            assert_eq!(got.bytes.is_shared(), may_share);
        }
        // A peek is a copy; a message that goes back is the same.
        channel.send(8, &content(8), Return::WhenDeposited, NEVER)?;
        assert!(channel.peek(NEVER)?.bytes == content(8));
        drop(channel.start_get(NEVER)?);
        assert!(channel.get(NEVER)?.bytes == content(8));
        let short = channel.buffer(LEAST_BYTES - 1)?;
        assert!(!short.is_shared() && short.len() == LEAST_BYTES - 1);
        assert_eq!(channel.buffer(LEAST_BYTES)?.is_shared(), may_share);
        let limit = channels.message_bytes();
        let too_large = Error::TooLarge {
            bytes: limit + 1,
            limit,
        };
        assert_eq!(channel.buffer(limit + 1).err(), Some(too_large));
    }
    job.barrier()
}

#[test]
fn what_finds_no_shared_memory_is_copied() {
    on_both!(1, |_| 0, by_the_owner);
    on_both!(2, |_| 0, by_the_owner);
    on_both!(3, |_| 0, by_the_owner);
    on_both!(2, |rank| rank, by_the_owner);
}

/// What is refused before it has left stays with its sender, and what was refused by the owner is
/// gone, and its memory free.
fn refused<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let limits = ChannelLimits {
        messages: 1,
        window_messages: 2,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    if job.rank().0 == job.size() - 1 {
        let deposited = Return::WhenDeposited;
        channel.send_buffer(0, &mut buffer(&channel, 0)?, deposited, NEVER)?;
        for number in 0..200 {
            let mut message = buffer(&channel, number)?;
            assert!(message.is_shared() || job.size() == 1);
            let full = channel.send_buffer(1, &mut message, deposited, Timeout::Once);
            assert_eq!(full, Err(Error::WouldBlock));
            assert!(message.is_empty(), "the owner has refused it");
        }
        // Two that wait fill the window.
        let waits = [1, 2].map(|number| {
            let mut message = buffer(&channel, number)?;
            channel.start_send_buffer(number, &mut message, deposited, NEVER)
        });
        let mut third = buffer(&channel, 3)?;
        let full = channel.start_send_buffer(3, &mut third, deposited, NEVER);
        assert_eq!(full.err(), Some(Error::WouldBlock));
        let full = channel.send_buffer(3, &mut third, Return::Immediately, NEVER);
        assert_eq!(full, Err(Error::WouldBlock));
        assert!(third == content(3), "it has not left");
        for number in 0..3 {
            assert!(channel.get(NEVER)?.bytes == content(number));
        }
        for waits in waits {
            waits?.wait()?;
        }
        channel.send_buffer(3, &mut third, deposited, NEVER)?;
        assert!(channel.get(NEVER)?.bytes == content(3));
    }
    job.barrier()
}

#[test]
fn what_is_refused_leaves_no_memory_behind() {
    on_both!(1, |_| 0, refused);
    on_both!(2, |_| 0, refused);
}

/// What is held is not written over: not by other messages, nor in another opening.
fn held<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let (me, deposited) = (job.rank().0, Return::WhenDeposited);
    let mut kept = Vec::new();
    for turn in 0..4 {
        let again = (turn > 0)
            .then(|| job.channels("again").open())
            .transpose()?;
        let channels = again.as_ref().unwrap_or(channels);
        let channel = shared(job, channels, 0, ChannelLimits::default())?;
        for number in 0..10 {
            let of = turn * 10 + number;
            if me == 1 {
                channel.send(of, &content(of), deposited, NEVER)?;
            }
            if me == 0 {
                let got = channel.get(NEVER)?;
                assert!(got.bytes.is_shared());
                kept.extend((number % 3 == 0).then_some(got));
            }
        }
        // Of an opening before, it is sent as what it is.
        if let Some(mut first) = kept.first().cloned().map(|first| first.bytes) {
            channel.send_buffer(99, &mut first, deposited, NEVER)?;
        }
        if me == 0 && !kept.is_empty() {
            let mut first = kept.swap_remove(0);
            channel.send_buffer(first.kind, &mut first.bytes, deposited, NEVER)?;
        }
        job.barrier()?;
        if me == 1 {
            assert_eq!(channel.get(NEVER)?.kind, 99);
            let first = channel.get(NEVER)?;
            assert!(first.bytes == content(first.kind));
        }
        job.barrier()?;
        drop(channel);
        if let Some(again) = again {
            again.shutdown()?;
        }
        for got in &kept {
            assert!(got.bytes == content(got.kind), "message {}", got.kind);
        }
    }
    job.barrier()
}

#[test]
fn what_is_held_stays_as_it_is() {
    on_both!(2, |_| 0, held);
    on_both!(3, |_| 0, held);
}
