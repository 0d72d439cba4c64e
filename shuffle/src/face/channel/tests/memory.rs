//! Messages whose memory the ranks of a node share.

use super::*;
use crate::face::channel::wire::kinds;
use crate::queue::shared::LEAST_BYTES;

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

/// Long messages from another node are fetched into memory that is the receiver's, and go back out
/// of there.
fn over_a_link<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let (me, other) = (job.rank().0, 1 - job.rank().0);
    let all: Result<Vec<_>> = (0..2)
        .map(|owner| shared(job, channels, owner, ChannelLimits::default()))
        .collect();
    let all = all?;
    let (mine, theirs) = (&all[me as usize], &all[other as usize]);
    let long = |turn: u32| -> Vec<u8> { content(turn).repeat(3) };
    for turn in 0..60 {
        if me == 0 {
            theirs.send(turn, &long(turn), Return::WhenDeposited, NEVER)?;
            let back = mine.get(NEVER)?;
            assert!(back.bytes == long(turn) && back.source.0 == other);
        } else {
            let mut got = mine.get(NEVER)?;
            // The first comes before the link has registered the memory.
            let is_there = got.bytes.is_shared() || turn == 0;
            assert!(is_there && got.bytes == long(turn), "{turn}");
            theirs.send_buffer(turn, &mut got.bytes, Return::WhenBuffered, NEVER)?;
        }
    }
    // As many as there is no memory for, all of them kept.
    let count = 3 + StreamOptions::default().memory_bytes / 4 / (3 * BYTES);
    let mut kept = Vec::new();
    for turn in 0..count as u32 {
        if me == 0 {
            theirs.send(turn, &long(turn), Return::WhenDeposited, NEVER)?;
        } else {
            kept.push(mine.get(NEVER)?);
        }
    }
    for (turn, got) in (0..).zip(&kept) {
        assert!(got.bytes == long(turn));
    }
    let shared = kept.iter().filter(|got| got.bytes.is_shared()).count();
    assert!(
        me == 0 || (1..count).contains(&shared),
        "{shared} of {count}"
    );
    job.barrier()
}

#[test]
fn a_long_message_from_another_node_lies_in_memory_that_is_its_receivers() {
    on_both!(2, |rank| rank, over_a_link);
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

/// Memory of this rank alone is given away by a copy, and stays where it is when that is refused.
fn own<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let limits = ChannelLimits {
        window_messages: 1,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    if job.rank().0 == job.size() - 1 {
        let deposited = Return::WhenDeposited;
        let waits = channels.create(ChannelLimits {
            messages: 1,
            ..limits
        })?;
        for number in 0..20 {
            let mut message = Buffer::from(content(number));
            channel.send_buffer(number, &mut message, deposited, NEVER)?;
            assert!(message.is_empty());
            assert!(channel.get(NEVER)?.bytes == content(number));
        }
        waits.send(0, b"", deposited, NEVER)?;
        let first = waits.start_send(1, b"", deposited, NEVER)?;
        let mut message = Buffer::from(content(5));
        let place = message.as_ptr();
        let full = waits.start_send_buffer(2, &mut message, deposited, NEVER);
        assert_eq!(full.err(), Some(Error::WouldBlock));
        assert!(message.as_ptr() == place && message == content(5));
        drop(first);
        // One that has much more memory than bytes does not keep that.
        let mut roomy = Vec::with_capacity(1 << 20);
        roomy.extend_from_slice(b"short");
        let mine = channels.create(limits)?;
        mine.send_buffer(0, &mut roomy.into(), deposited, NEVER)?;
        assert!(mine.get(NEVER)?.bytes.into_vec().capacity() < 1 << 19);
    }
    job.barrier()
}

#[test]
fn memory_of_a_rank_alone_is_given_away_by_a_copy() {
    on_both!(1, |_| 0, own);
    on_both!(2, |_| 0, own);
    on_both!(2, |rank| rank, own);
}

/// A queue that is full refuses a message with its memory, wherever that is, and leaves it there.
#[test]
fn a_queue_that_is_full_leaves_a_message_where_it_is() {
    let limits = ChannelLimits {
        messages: 1 << 20,
        bytes: 1 << 30,
        window_messages: 1 << 16,
        window_bytes: 1 << 30,
        ..ChannelLimits::default()
    };
    let is_full: &std::sync::Barrier = Box::leak(Box::new(std::sync::Barrier::new(2)));
    let program = move |_, bootstrap: Custom| -> Result<()> {
        let job = Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let channel = shared(&job, &channels, 0, limits)?;
        let at_once = Return::Immediately;
        job.barrier()?;
        let mut count = 0;
        if job.rank().0 == 1 {
            while channel.send(0, b"", at_once, NEVER).is_ok() {
                count += 1;
            }
            let mut refused = [Buffer::from(content(1)), buffer(&channel, 2)?];
            for (of, message) in (1..).zip(&mut refused) {
                let place = message.as_ptr();
                for _ in 0..200 {
                    let full = channel.send_buffer(of, message, at_once, NEVER);
                    assert_eq!(full, Err(Error::WouldBlock));
                }
                assert!(message.as_ptr() == place && *message == content(of));
            }
            is_full.wait();
            for (of, message) in (1..).zip(&mut refused) {
                channel.send_buffer(of, message, Return::WhenDeposited, NEVER)?;
                assert!(message.is_empty());
            }
        } else {
            is_full.wait();
        }
        job.allreduce(std::slice::from_mut(&mut count), crate::Reduce::Max)?;
        for _ in 0..count * u64::from(1 - job.rank().0) {
            assert_eq!(channel.get(NEVER)?.kind, 0);
        }
        for of in 1..3 * (1 - job.rank().0) {
            let got = channel.get(NEVER)?;
            assert!(got.kind == of && got.bytes == content(of) && got.bytes.is_shared());
        }
        job.barrier()?;
        drop(channel);
        end(job, channels)
    };
    for (rank, outcome) in ranks(2, |_| 0, program) {
        assert_eq!(outcome, Ok(()), "rank {rank}");
    }
}

/// Over links alone nothing is shared.
#[test]
fn a_route_over_links_alone_shares_no_memory() {
    let by_links = |_, bootstrap: Custom| -> Result<()> {
        let mut options = loopback();
        options.set("route", "fabric-only")?;
        let job = Job::start_with(options, Box::new(bootstrap))?;
        let channels = job.channels("links").open()?;
        let channel = shared(&job, &channels, 0, ChannelLimits::default())?;
        if job.rank().0 == 1 {
            let mut message = buffer(&channel, 1)?;
            assert!(!message.is_shared());
            channel.send_buffer(1, &mut message, Return::WhenDeposited, NEVER)?;
            let got = channel.get(NEVER)?.bytes;
            assert!(!got.is_shared() && got == content(1));
        }
        job.barrier()?;
        drop(channel);
        end(job, channels)
    };
    for (rank, outcome) in ranks(2, |_| 0, by_links) {
        match outcome {
            Ok(()) => {}
            Err(Error::NoProvider { why }) => return eprintln!("skipped: {why}"),
            Err(error) => panic!("rank {rank}: {error}"),
        }
    }
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
        if me == 0 {
            let mut first = kept.swap_remove(0);
            channel.send_buffer(first.kind, &mut first.bytes, deposited, NEVER)?;
            assert!(first.bytes.is_empty());
        }
        job.barrier()?;
        if me == 1 {
            let first = channel.get(NEVER)?;
            assert!(first.bytes.is_shared() && first.bytes == content(first.kind));
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

/// A rank that tells of memory which it has not passed on is broken, and nothing else comes of it.
#[test]
fn memory_that_was_not_passed_on_ends_the_job_with_the_name_of_who_told() {
    let program = |_, bootstrap: Custom| -> Result<()> {
        let job = Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let channel = shared(&job, &channels, 0, ChannelLimits::default())?;
        if job.rank().0 == 1 {
            let message = buffer(&channel, 1)?; // it is held, and not passed on
            let mut record = vec![0; 24];
            record[0] = 1;
            let send = Request::Send {
                port: channel.port().at_owner(),
                id: 0,
                when: Return::WhenBuffered,
                timeout_ns: u64::MAX,
                kind: 0,
            };
            let kind = send.write(&mut record) | kinds::SHARED;
            channels.put(Rank(0), kind, &record)?;
            let failed = loop {
                if let Err(error) = channels.progress() {
                    break error;
                }
            };
            assert!(message == content(1));
            return Err(failed);
        }
        channel.get(NEVER).map(drop)
    };
    for (rank, outcome) in ranks(2, |_| 0, program) {
        match (rank, outcome) {
            (0, Err(Error::BadPeer { rank: 1, .. })) => {}
            (1, Err(Error::PeerFailed { rank: 0, .. })) => {}
            (_, outcome) => panic!("rank {rank}: {outcome:?}"),
        }
    }
}
