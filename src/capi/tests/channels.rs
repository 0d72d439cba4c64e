//! Calls on channels that are started and not waited for.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;

use super::*;
use crate::capi::channel::asked::*;
use crate::capi::channel::open::*;
use crate::capi::channel::poll::*;
use crate::capi::channel::*;

/// Whether a descriptor of ours is readable now.
unsafe fn is_readable(descriptor: i32) -> bool {
    // SAFETY: as the caller promises, it is open.
    let event = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).unwrap() == 1
}

fn of_job(seat: trihop_seat_t) {
    let (options, _one) = single();
    let (mut job, mut channels, mut channel) = (null_mut(), null_mut(), null_mut());
    let (mut get, mut late, mut sent, mut polled) =
        (null_mut(), null_mut(), null_mut(), null_mut());
    let (mut is_over, mut event, mut value) = (7, 0, 0);
    let never = TRIHOP_NO_TIMEOUT;
    let deposited = trihop_return_t::TRIHOP_WHEN_DEPOSITED as i32;
    // SAFETY: what the header asks for: handles of ours, used until they are given back, and
    // places.
    unsafe {
        let ok = |status| assert_eq!(status, TRIHOP_OK, "{}", last_error());
        let mut received = std::mem::zeroed::<trihop_received_t>();
        ok(trihop_init(seat as i32, &options, &mut job));
        ok(trihop_channels_open(
            job,
            c"started".as_ptr(),
            null(),
            &mut channels,
        ));
        ok(trihop_channel_create(channels, null(), &mut channel));

        ok(trihop_channel_start_get(channel, never, &mut get));
        ok(trihop_asked_event(get, &mut event));
        assert!(!is_readable(event));
        ok(trihop_asked_test(get, &mut is_over));
        assert_eq!(is_over, 0);
        let none = trihop_asked_received(get, &mut received);
        assert_eq!(none, TRIHOP_ERR_MISUSE);
        assert!(
            last_error().contains("the request has no message"),
            "{}",
            last_error()
        );

        let news = c"news".as_ptr().cast();
        ok(trihop_channel_start_send(
            channel, 5, news, 4, deposited, never, &mut sent,
        ));
        ok(trihop_asked_wait(sent));
        ok(trihop_asked_wait(sent));
        assert_eq!(
            trihop_asked_received(sent, &mut received),
            TRIHOP_ERR_MISUSE
        );
        assert_eq!(trihop_asked_value(sent, &mut value), TRIHOP_ERR_MISUSE);
        ok(trihop_asked_wait(get));
        assert!(is_readable(event));
        ok(trihop_asked_received(get, &mut received));
        assert_eq!((received.length, received.kind, received.source), (4, 5, 0));
        trihop_received_free(&mut received);
        let again = trihop_asked_received(get, &mut received);
        assert_eq!((again, received.length), (TRIHOP_ERR_MISUSE, 0));

        // What is given back before its end takes nothing.
        ok(trihop_channel_start_get(channel, never, &mut late));
        ok(trihop_asked_free(late));
        ok(trihop_channel_send(channel, 6, news, 1, deposited, never));
        let size = trihop_poll_t::TRIHOP_POLL_SIZE as i32;
        ok(trihop_channel_start_poll(channel, size, never, &mut polled));
        ok(trihop_asked_wait(polled));
        ok(trihop_asked_value(polled, &mut value));
        assert_eq!(value, 1);
        ok(trihop_channel_pop(channel, TRIHOP_ONCE));
        // What is left until a time that has passed is not without end.
        let refused = trihop_channel_pop(channel, -2);
        assert_eq!(refused, TRIHOP_ERR_INVALID_ARGUMENT);

        ok(trihop_channel_start_get(channel, 1000, &mut late));
        let ended = loop {
            let status = trihop_asked_test(late, &mut is_over);
            if is_over != 0 {
                break status;
            }
            ok(status);
        };
        assert_eq!(ended, TRIHOP_ERR_TIMED_OUT);
        assert_eq!(trihop_asked_wait(late), TRIHOP_ERR_TIMED_OUT);
        assert_eq!(trihop_asked_test(late, &mut is_over), TRIHOP_ERR_TIMED_OUT);
        ok(trihop_asked_free(late));

        let mut refused = null_mut();
        for status in [
            trihop_channel_start_poll(channel, 19, never, &mut refused),
            trihop_channel_start_send(channel, 0, news, 1, 4, never, &mut refused),
            trihop_channel_start_get(channel, never, null_mut()),
            trihop_channel_start_get(null(), never, &mut refused),
            trihop_asked_test(null_mut(), &mut is_over),
            trihop_asked_test(get, null_mut()),
        ] {
            assert_eq!(status, TRIHOP_ERR_INVALID_ARGUMENT);
        }
        let acquire = trihop_poll_t::TRIHOP_POLL_ACQUIRE as i32;
        let status = trihop_channel_start_poll(channel, acquire, never, &mut refused);
        assert_eq!((status, refused), (TRIHOP_ERR_MISUSE, null_mut()));
        ok(trihop_asked_free(null_mut()));

        // A request goes on without the port that it was started by, and ends with the channel.
        ok(trihop_channel_start_get(channel, never, &mut late));
        ok(trihop_channel_close(channel));
        ok(trihop_channel_free(channel));
        assert_eq!(trihop_asked_wait(late), TRIHOP_ERR_CLOSED);
        for asked in [get, late, sent, polled] {
            ok(trihop_asked_free(asked));
        }
        ok(trihop_channels_close(channels));
        ok(trihop_finalize(job));
    }
}

#[test]
fn calls_that_are_started_end_once_with_threads() {
    of_job(trihop_seat_t::TRIHOP_THREADED);
}

#[test]
fn calls_that_are_started_end_once_inline() {
    of_job(trihop_seat_t::TRIHOP_INLINE);
}
