//! Messages that are copied into memory of the program's.

use super::*;

const NEVER: Timeout = Timeout::Never;

/// The last rank gets what is in rank 0's channel into a buffer that is too small for some of it.
fn into_a_buffer<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let channel = shared(job, channels, 0, ChannelLimits::default())?;
    let sender = Rank(job.size() / 2);
    if job.rank() == sender {
        for (kind, length) in (0..).zip([0, 3, 70_000, 5]) {
            let bytes = vec![kind as u8 + 1; length];
            channel.send(kind, &bytes, Return::WhenDeposited, NEVER)?;
        }
    }
    job.barrier()?;
    let mut buffer = vec![0; 80_000];
    let is_last = job.rank().0 == job.size() - 1;
    if is_last {
        for (kind, length) in (0..).zip([0_usize, 3, 70_000, 5]) {
            if let Some(room) = length.checked_sub(1) {
                // However often it is tried, nothing is taken.
                for timeout in [Timeout::Once, NEVER] {
                    let too_small = Error::BufferTooSmall {
                        bytes: length,
                        room,
                    };
                    let refused = channel.get_into(&mut buffer[..room], timeout);
                    assert_eq!(refused, Err(too_small));
                }
                assert_eq!(channel.peek(Timeout::Once)?.kind, kind);
            }
            buffer.fill(0);
            let room = if kind % 2 == 0 { length } else { 80_000 };
            let filled = channel.get_into(&mut buffer[..room], NEVER)?;
            let source = sender;
            assert_eq!(
                filled,
                Filled {
                    source,
                    kind,
                    length
                }
            );
            let (bytes, rest) = buffer.split_at(length);
            assert!(bytes.iter().all(|&byte| byte == kind as u8 + 1));
            assert!(rest.iter().all(|&byte| byte == 0), "behind {length} bytes");
        }
        let nothing = channel.get_into(&mut buffer, Timeout::Once);
        assert_eq!(nothing, Err(Error::WouldBlock));
        let short = Timeout::After(Duration::from_millis(5));
        let nothing = channel.get_into(&mut buffer, short);
        assert!(matches!(nothing, Err(Error::TimedOut(_))), "{nothing:?}");
    }
    job.barrier()?;
    if job.rank().0 == 0 {
        channel.close()?;
    }
    job.barrier()?;
    let closed = channel.get_into(&mut buffer, NEVER);
    assert!(matches!(closed, Err(Error::ChannelClosed { .. })));
    job.barrier()
}

#[test]
fn a_message_is_copied_into_a_buffer_that_has_room_for_it_and_else_stays() {
    on_both!(1, |_| 0, into_a_buffer);
    on_both!(2, |_| 0, into_a_buffer);
    on_both!(3, |rank| rank, into_a_buffer);
    for bytes in [1, 50_000] {
        on_both_bound(Some(bytes), 2, |_| 0, into_a_buffer, into_a_buffer);
        on_both_bound(Some(bytes), 2, |rank| rank, into_a_buffer, into_a_buffer);
    }
}

/// A get that waits with a short buffer lets a long message be, which the next get has; its sender
/// hears of that one alone.
fn a_get_that_waits<S: Seat>(job: &over::Job<S>, channels: &over::Channels<S>) -> Result<()> {
    let [tasks, news] = [0, 0].map(|owner| shared(job, channels, owner, ChannelLimits::default()));
    let (tasks, news) = (tasks?, news?);
    let (me, last) = (job.rank().0, job.size() - 1);
    for turn in 0..20 {
        if me == last {
            let mut buffer = [0; 8];
            let refused = tasks.get_into(&mut buffer, NEVER);
            let too_small = Error::BufferTooSmall { bytes: 9, room: 8 };
            assert_eq!(refused, Err(too_small), "turn {turn}");
            news.send(turn, b"it was too long", Return::WhenDeposited, NEVER)?;
        }
        if me == 0 {
            let sent = tasks.start_send(turn, &[7; 9], Return::WhenReceived, NEVER)?;
            assert_eq!(news.get(NEVER)?.kind, turn);
            assert_eq!(tasks.poll(Poll::Size, NEVER)?, 1);
            let mut buffer = [0; 9];
            let filled = tasks.get_into(&mut buffer, NEVER)?;
            assert_eq!((filled.kind, buffer), (turn, [7; 9]));
            sent.wait()?;
        }
        job.barrier()?;
    }
    Ok(())
}

#[test]
fn a_long_message_ends_a_get_that_waits_with_a_short_buffer() {
    on_both!(2, |_| 0, a_get_that_waits);
    on_both!(2, |rank| rank, a_get_that_waits);
}
