//! Channels of whole jobs, whose ranks are threads of the test, on both seats.

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::conformance::ranks::ranks;
use crate::{Job, Options, StreamOptions, over, threaded};
use trihop_transport::bootstrap::Custom;

fn loopback() -> Options {
    Options {
        loopback: true,
        ..Options::default()
    }
}

/// What the ranks of a job do; every channel is made and named by rank 0.
type Program<S> = fn(&over::Job<S>, &over::Channels<S>) -> Result<()>;

fn end<S: Seat>(job: over::Job<S>, channels: over::Channels<S>) -> Result<()> {
    channels.shutdown()?;
    job.shutdown()
}

/// Runs a program on both seats, on as many ranks and nodes.
fn on_both(
    count: u32,
    node: fn(u32) -> u32,
    inline: Program<crate::Inline<'static>>,
    threaded: Program<threaded::Threaded>,
) {
    on_both_bound(None, count, node, inline, threaded);
}

/// As `on_both`; owners hand out so many bytes at most.
fn on_both_bound(
    bytes: Option<u64>,
    count: u32,
    node: fn(u32) -> u32,
    inline: Program<crate::Inline<'static>>,
    threaded: Program<threaded::Threaded>,
) {
    let by_inline = move |_, bootstrap: Custom| -> Result<()> {
        let job = Job::start_with(loopback(), Box::new(bootstrap))?;
        let mut builder = job.channels("channels");
        if let Some(bytes) = bytes {
            builder = builder.getmsg_bytes(bytes);
        }
        let channels = builder.open()?;
        inline(&job, &channels)?;
        end(job, channels)
    };
    let by_threads = move |_, bootstrap: Custom| -> Result<()> {
        let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
        let mut builder = job.channels("channels");
        if let Some(bytes) = bytes {
            builder = builder.getmsg_bytes(bytes);
        }
        let channels = builder.open()?;
        threaded(&job, &channels)?;
        end(job, channels)
    };
    for outcomes in [
        ranks(count, node, by_inline),
        ranks(count, node, by_threads),
    ] {
        for (rank, outcome) in outcomes {
            match outcome {
                Ok(()) => {}
                Err(Error::NoProvider { why }) => return eprintln!("skipped: {why}"),
                Err(error) => panic!("rank {rank}: {error}"),
            }
        }
    }
}

macro_rules! on_both {
    ($count:expr, $node:expr, $program:ident) => {
        on_both($count, $node, $program, $program)
    };
}

mod alone;
mod events;
mod gates;
mod get_into;
mod getmsg;
mod given_up;
mod kept;
mod long;
mod memory;

/// A channel that rank `owner` makes, on all ranks.
fn shared<S: Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
    owner: u32,
    limits: ChannelLimits,
) -> Result<Channel<S>> {
    let mine = match job.rank().0 == owner {
        true => Some(channels.create(limits)?),
        false => None,
    };
    let named = mine.as_ref().map(|mine| mine.descriptor().to_bytes());
    let named = job.broadcast(Rank(owner), &named.unwrap_or_default())?;
    match mine {
        Some(mine) => Ok(mine),
        None => channels.attach(&Descriptor::from_bytes(&named)?),
    }
}

fn word(received: &Received) -> u64 {
    u64::from_le_bytes(received.bytes[..8].try_into().unwrap())
}

/// Each rank has a channel, and sends to all: in each way, what one port has sent comes in order.
fn all_to_all<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    const EACH: u64 = 200;
    let (me, size) = (job.rank().0, job.size());
    let limits = ChannelLimits {
        messages: 7,
        window_messages: 5,
        ..ChannelLimits::default()
    };
    let open = |owner| shared(job, channels, owner, limits);
    let all = (0..size).map(open).collect::<Result<Vec<_>>>()?;
    let ways = [
        Return::WhenBuffered,
        Return::WhenDeposited,
        Return::Immediately,
    ];
    let (mut sent, mut heard) = (vec![0; size as usize], vec![0; size as usize]);
    let take = |heard: &mut Vec<u64>, timeout| -> Result<bool> {
        match all[me as usize].get(timeout) {
            Ok(received) => {
                let of = &mut heard[received.source.0 as usize];
                assert_eq!(word(&received), *of, "from {}", received.source);
                assert_eq!(received.kind, *of as u32 ^ 0x5555);
                assert!(received.bytes[8..].iter().all(|&byte| byte == *of as u8));
                *of += 1;
                Ok(true)
            }
            Err(Error::WouldBlock) => Ok(false),
            Err(error) => Err(error),
        }
    };
    while sent.iter().any(|&sent| sent < EACH) {
        for (target, number) in sent
            .iter_mut()
            .enumerate()
            .filter(|(_, sent)| **sent < EACH)
        {
            let mut bytes = vec![*number as u8; 8 + (*number as usize * 37) % 300];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            let way = ways[*number as usize % 3];
            // Who waits without an end takes nothing meanwhile: all could wait for each other.
            let timeout = match way {
                Return::WhenDeposited => Timeout::Once,
                _ => Timeout::Never,
            };
            let way = match way {
                Return::WhenBuffered => Return::Immediately,
                way => way,
            };
            match all[target].send(*number as u32 ^ 0x5555, &bytes, way, timeout) {
                Ok(()) => *number += 1,
                Err(Error::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        while take(&mut heard, Timeout::Once)? {}
    }
    while heard.iter().any(|&heard| heard < EACH) {
        take(&mut heard, Timeout::Never)?;
    }
    job.barrier()?;
    assert_eq!(all[me as usize].poll(Poll::Size, Timeout::Never)?, 0);
    assert!(all.iter().all(|channel| channel.failures() == (0, None)));
    Ok(())
}

#[test]
fn what_a_port_sends_comes_once_and_in_order() {
    on_both!(1, |_| 0, all_to_all);
    on_both!(3, |_| 0, all_to_all);
    on_both!(4, |rank| rank / 2, all_to_all);
}

/// Rank 0 has the queue, the others ask and answer.
fn calls_wait_as_long_as_they_may<S: Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
) -> Result<()> {
    let limits = ChannelLimits {
        messages: 2,
        bytes: 1000,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    assert_eq!(channel.limits(), limits);
    let short = Timeout::After(Duration::from_millis(20));
    job.barrier()?;
    // The last asks: another than the owner, if there is one.
    if job.rank().0 == job.size() - 1 {
        assert_eq!(channel.get(Timeout::Once), Err(Error::WouldBlock));
        assert_eq!(channel.peek(Timeout::Once), Err(Error::WouldBlock));
        assert_eq!(
            channel.poll(Poll::In, Timeout::Once),
            Err(Error::WouldBlock)
        );
        assert!(matches!(channel.get(short), Err(Error::TimedOut(_))));
        assert!(matches!(
            channel.poll(Poll::Full, short),
            Err(Error::TimedOut(_))
        ));
        // Nobody takes it: it is not left in the channel.
        let unread = channel.send(0, b"unread", Return::WhenReceived, short);
        assert!(matches!(unread, Err(Error::TimedOut(_))), "{unread:?}");
        let dropped = channel.start_send(0, b"unread", Return::WhenReceived, Timeout::Never)?;
        drop(dropped);
        assert_eq!(channel.poll(Poll::Size, Timeout::Never)?, 0);
        assert_eq!(channel.poll(Poll::Out, Timeout::Never)?, 2);
        assert_eq!(channel.poll(Poll::InOrOut, Timeout::Never)?, 2);
        channel.send(1, &[1; 400], Return::WhenDeposited, Timeout::Never)?;
        channel.send(2, &[2; 400], Return::WhenDeposited, Timeout::Never)?;
        assert_eq!(channel.poll(Poll::Full, Timeout::Never)?, 2);
        assert_eq!(channel.poll(Poll::Capacity, Timeout::Never)?, 2);
        let refused = channel.send(3, &[], Return::WhenDeposited, Timeout::Once);
        assert_eq!(refused, Err(Error::WouldBlock));
        let refused = channel.send(3, &[], Return::WhenReceived, short);
        assert!(matches!(refused, Err(Error::TimedOut(_))));
        let refused = channel.send(3, &[0; 1001], Return::WhenDeposited, Timeout::Never);
        let too_large = Error::TooLarge {
            bytes: 1001,
            limit: 1000,
        };
        assert_eq!(refused, Err(too_large));
        // Nobody waits for these: what becomes of them is counted.
        channel.send(4, &[], Return::Immediately, Timeout::Once)?;
        assert_eq!(channel.poll(Poll::Size, Timeout::Never)?, 2);
        assert_eq!(channel.failures(), (1, Some(Error::WouldBlock)));
        channel.send(5, &[], Return::WhenBuffered, short)?;
        while channel.failures().0 == 1 {
            // The owner looks at its clock when it is asked.
            assert_eq!(channel.poll(Poll::Size, Timeout::Never)?, 2);
        }
        let (failed, last) = channel.failures();
        assert!(matches!((failed, last), (2, Some(Error::TimedOut(_)))));
        assert_eq!(channel.pop(Timeout::Never)?.kind, 1);
        let kept = channel.peek(Timeout::Never)?;
        assert_eq!((kept.kind, kept.bytes.len()), (2, 400));
        assert_eq!(kept, channel.get(Timeout::Never)?);
        assert_eq!(channel.failures().0, 2);
        assert_eq!(channel.pop(Timeout::Once), Err(Error::WouldBlock));
        assert_eq!(channel.poll(Poll::Empty, Timeout::Never)?, 0);
        assert_eq!(channel.poll(Poll::Receivers, Timeout::Never)?, 0);
        let waiting = [
            channel.start_get(Timeout::Never)?,
            channel.start_get(Timeout::Never)?,
        ];
        assert_eq!(channel.poll(Poll::Receivers, Timeout::Never)?, 2);
        channel.send(6, &[], Return::WhenReceived, Timeout::Never)?;
        assert_eq!(channel.poll(Poll::Receivers, Timeout::Never)?, 1);
        drop(waiting); // the first one's message goes back
        assert_eq!(channel.poll(Poll::Receivers, Timeout::Never)?, 0);
        assert_eq!(channel.get(Timeout::Never)?.kind, 6);
    }
    job.barrier()
}

#[test]
fn timeouts_are_kept_and_say_so() {
    on_both!(2, |_| 0, calls_wait_as_long_as_they_may);
    on_both!(2, |rank| rank, calls_wait_as_long_as_they_may);
    on_both!(1, |_| 0, calls_wait_as_long_as_they_may);
}

/// A send returns once its message is received, and not before.
fn receipts<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let [asked, answered] =
        [0, 1].map(|owner| shared(job, channels, owner, ChannelLimits::default()));
    let (asked, answered) = (asked?, answered?);
    match job.rank().0 {
        1 => {
            asked.send(0, b"to be received", Return::WhenReceived, Timeout::Never)?;
            // Who has taken it has sent something first.
            assert_eq!(answered.get(Timeout::Once)?.kind, 77);
        }
        _ => {
            asked.peek(Timeout::Never)?;
            answered.send(77, b"", Return::WhenDeposited, Timeout::Never)?;
            assert_eq!(asked.get(Timeout::Never)?.bytes, b"to be received");
        }
    }
    job.barrier()
}

#[test]
fn a_send_that_returns_when_received_returns_after_a_get() {
    on_both!(2, |_| 0, receipts);
    on_both!(2, |rank| rank, receipts);
}

/// Long messages, beyond the port's window, and as long as the channel.
fn long_messages<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let limits = ChannelLimits {
        bytes: 3 << 20,
        window_bytes: 1000,
        ..ChannelLimits::default()
    };
    let channel = shared(job, channels, 0, limits)?;
    let filled = |length: usize| vec![length as u8 ^ 7; length];
    for length in [0, 999, 5000, 1 << 20, 3 << 20, 17] {
        if job.rank().0 == 1 {
            channel.send(0, &filled(length), Return::WhenBuffered, Timeout::Never)?;
        }
        // It is got here, or there.
        if job.rank().0 == length as u32 % 2 {
            let received = channel.get(Timeout::Never)?;
            assert!(
                received.bytes == filled(length),
                "{length} bytes were changed"
            );
        }
        job.barrier()?;
    }
    Ok(())
}

#[test]
fn messages_as_long_as_the_channel_pass() {
    on_both!(2, |_| 0, long_messages);
    on_both!(2, |rank| rank, long_messages);
}

/// Whether a descriptor is readable now, or comes to be so.
pub(crate) fn is_readable(event: BorrowedFd<'_>, waits: bool) -> bool {
    let limit = Timespec {
        tv_sec: if waits { 60 } else { 0 },
        tv_nsec: 0,
    };
    let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
    poll(&mut polled, Some(&limit)).unwrap() == 1
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        match std::pin::Pin::new(&mut future).poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            // A wake-up that is lost is a job that hangs.
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// A word goes to and fro, by futures.
fn awaited<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let ends = [0, 1].map(|owner| shared(job, channels, owner, ChannelLimits::default()));
    let [first, second] = ends;
    let (first, second) = (first?, second?);
    for number in 0..50 {
        if job.rank().0 == 0 {
            block_on(second.start_send(number, b"to", Return::WhenReceived, Timeout::Never)?)?;
            assert_eq!(block_on(first.start_get(Timeout::Never)?)?.kind, number);
        } else {
            assert_eq!(block_on(second.start_poll(Poll::In, Timeout::Never)?)?, 1);
            assert_eq!(block_on(second.start_get(Timeout::Never)?)?.bytes, b"to");
            block_on(first.start_send(number, b"fro", Return::WhenBuffered, Timeout::Never)?)?;
        }
    }
    job.barrier()
}

#[test]
fn requests_can_be_awaited() {
    on_both!(2, |_| 0, awaited);
    on_both!(2, |rank| rank, awaited);
}

/// The owner closes a channel, and then leaves.
fn owner_leaves<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let closed = |owner| Error::ChannelClosed { number: 0, owner };
    let [first, kept] = [0, 0].map(|owner| shared(job, channels, owner, ChannelLimits::default()));
    let (first, kept) = (first?, kept?);
    let descriptor = first.descriptor();
    if job.rank().0 == 0 {
        first.send(1, b"left", Return::WhenDeposited, Timeout::Never)?;
        first.close()?;
        assert_eq!(
            first.send(1, b"late", Return::WhenDeposited, Timeout::Never),
            Err(closed(0))
        );
        drop(first);
        job.barrier()?;
        job.barrier()?;
        // Others wait in it: all hear of its end by the shutdown of the test.
        return Ok(());
    }
    job.barrier()?;
    // Rank 1 takes what is left, maybe before others ask.
    let left = first.poll(Poll::Closed, Timeout::Never)?;
    assert!(left == 1 || job.rank().0 != 1 && left == 0, "{left}");
    assert_eq!(
        first.send(1, b"late", Return::WhenReceived, Timeout::Never),
        Err(closed(0))
    );
    if job.rank().0 == 1 {
        assert!(matches!(first.close(), Err(Error::Misuse { .. })));
        assert_eq!(first.get(Timeout::Never)?.bytes, b"left");
        assert_eq!(first.get(Timeout::Never), Err(closed(0)));
    }
    drop(first);
    job.barrier()?;
    // With its last port the channel is gone.
    let gone = |outcome: Result<Channel<S>>| match outcome {
        Err(Error::NoChannel { why, .. }) => why,
        other => panic!("{:?}", other.map(|channel| channel.descriptor())),
    };
    loop {
        match channels.attach(&descriptor) {
            // The other ranks' ports may still be open.
            Ok(_) => continue,
            other => break assert!(gone(other).contains("rank 0 has no such channel")),
        }
    }
    let foreign = Descriptor {
        job: !descriptor.job,
        ..descriptor
    };
    assert!(gone(channels.attach(&foreign)).contains("another job"));
    let nowhere = Descriptor {
        owner: 99,
        ..descriptor
    };
    assert!(gone(channels.attach(&nowhere)).contains("a rank that the job does not have"));
    let end = kept.get(Timeout::Never);
    assert_eq!(
        end,
        Err(Error::ChannelClosed {
            number: 1,
            owner: 0
        })
    );
    Ok(())
}

#[test]
fn a_channel_whose_owner_leaves_is_told_closed_and_by_whom() {
    on_both!(3, |_| 0, owner_leaves);
    on_both!(3, |rank| rank, owner_leaves);
}

#[test]
fn who_awaits_an_answer_hears_that_the_job_has_failed() {
    let failing = |_, bootstrap: Custom| -> Result<Error> {
        let job = threaded::Job::start_with(loopback(), Box::new(bootstrap))?;
        let channels = job.channels("channels").open()?;
        let channel = channels.create(ChannelLimits::default())?;
        let bad = job.shuffle("bad").handler(|_, _| panic!("by the test"));
        let bad = bad.open()?;
        let get = channel.start_get(Timeout::Never)?;
        // What fails the job comes while the get is awaited, or before.
        bad.send(Rank(0), 0, b"")?;
        Ok(block_on(get).expect_err("nobody sends"))
    };
    for (_, outcome) in ranks(1, |_| 0, failing) {
        assert!(matches!(outcome, Ok(Error::Handler { .. })), "{outcome:?}");
    }
}

#[test]
fn messages_too_short_for_an_opening_are_refused_and_the_shortest_do() {
    let program = |_, bootstrap: Custom| -> Result<()> {
        let job = Job::start_with(loopback(), Box::new(bootstrap))?;
        let open = |max_message_bytes| {
            let options = StreamOptions {
                max_message_bytes,
                ..loopback().stream
            };
            job.channels("channels").options(options).open()
        };
        for bytes in [0, 56, 57, 95] {
            let key = match open(bytes) {
                Err(Error::Config { key, .. }) => key,
                other => panic!("{bytes}: {:?}", other.map(drop)),
            };
            assert_eq!(key, "max_message_bytes");
        }
        let channels = open(96)?;
        let channel = shared(&job, &channels, 0, ChannelLimits::default())?;
        let send = |bytes| channel.send(0, bytes, Return::WhenReceived, Timeout::Never);
        match job.rank().0 {
            0 => assert_eq!(channel.get(Timeout::Never)?.bytes, [1; 40]),
            _ => send(&[1; 40])?,
        }
        let too_large = Error::TooLarge {
            bytes: 41,
            limit: 40,
        };
        assert_eq!(send(&[1; 41]), Err(too_large));
        drop(channel);
        end(job, channels)
    };
    for (rank, outcome) in ranks(2, |_| 0, program) {
        outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}
