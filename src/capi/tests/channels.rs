//! Calls on channels: those that are started and not waited for, what a channel says of itself, and
//! messages that come into memory of the caller's.

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
            trihop_channel_start_poll(channel, 20, never, &mut refused),
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

/// What is asked of channels, and got into memory of the caller's.
fn asked_of_job(seat: trihop_seat_t) {
    let (options, _one) = single();
    let (mut job, mut channels, mut channel) = (null_mut(), null_mut(), null_mut());
    let mut opening = std::mem::MaybeUninit::uninit();
    let mut limits = std::mem::MaybeUninit::<trihop_channel_limits_t>::uninit();
    let mut counters = std::mem::MaybeUninit::<trihop_stats_t>::uninit();
    let (mut owner, mut length) = (7, 0);
    let never = TRIHOP_NO_TIMEOUT;
    // SAFETY: as in the test above.
    unsafe {
        let ok = |status| assert_eq!(status, TRIHOP_OK, "{}", last_error());
        ok(trihop_init(seat as i32, &options, &mut job));
        ok(trihop_channels_options_init(
            opening.as_mut_ptr(),
            size_of::<trihop_channels_options_t>(),
        ));
        let mut opening = opening.assume_init();
        opening.stream = &options;
        opening.getmsg_bytes = 1000;
        ok(trihop_channels_open_with(
            job,
            c"asked".as_ptr(),
            &opening,
            &mut channels,
        ));
        let asked = trihop_channel_limits_t {
            size: size_of::<trihop_channel_limits_t>(),
            bytes: 5000,
            window_bytes: 0,
            messages: 0,
            ports: 9,
            window_messages: 0,
            reserved: 0,
        };
        ok(trihop_channel_create(channels, &asked, &mut channel));
        ok(trihop_channel_owner(channel, &mut owner));
        assert_eq!(owner, 0);
        let size = size_of::<trihop_channel_limits_t>();
        ok(trihop_channel_limits(channel, limits.as_mut_ptr(), size));
        let limits = limits.assume_init();
        assert_eq!((limits.size, limits.bytes, limits.ports), (size, 5000, 9));
        assert_eq!((limits.messages, limits.window_messages), (100, 64));
        assert_eq!((limits.window_bytes, limits.reserved), (256 << 10, 0));
        // An older program knows less, a newer one finds zeros.
        let mut older = [u64::MAX; 3];
        ok(trihop_channel_limits(
            channel,
            older.as_mut_ptr().cast(),
            16,
        ));
        assert_eq!(older, [16, 5000, u64::MAX]);
        let mut newer = [u64::MAX; 6];
        ok(trihop_channel_limits(
            channel,
            newer.as_mut_ptr().cast(),
            48,
        ));
        assert_eq!((newer[0], newer[5]), (48, 0));

        let mut bytes = [0xff_u8; 8];
        let into = bytes.as_mut_ptr().cast();
        let mut filled = trihop_filled_t {
            length: 99,
            source: 99,
            kind: 99,
        };
        let nothing = trihop_filled_t {
            length: 0,
            source: 0,
            kind: 0,
        };
        let none = trihop_channel_get_into(channel, TRIHOP_ONCE, into, 8, &mut filled);
        assert_eq!((none, filled), (TRIHOP_ERR_WOULD_BLOCK, nothing));
        let late = trihop_channel_get_into(channel, 1000, into, 8, &mut filled);
        assert_eq!(late, TRIHOP_ERR_TIMED_OUT);
        let news = c"news".as_ptr().cast();
        let deposited = trihop_return_t::TRIHOP_WHEN_DEPOSITED as i32;
        ok(trihop_channel_send(channel, 5, news, 4, deposited, never));
        for (room, place) in [(3, into), (0, null_mut())] {
            let refused = trihop_channel_get_into(channel, never, place, room, &mut filled);
            let of = (refused, filled.length, filled.kind);
            assert_eq!(of, (TRIHOP_ERR_BUFFER_TOO_SMALL, 4, 0));
            let why = format!("has 4 bytes, and the buffer has room for {room}");
            assert!(last_error().contains(&why), "{}", last_error());
        }
        assert_eq!(bytes, [0xff; 8]);
        ok(trihop_channel_get_into(
            channel,
            never,
            into,
            8,
            &mut filled,
        ));
        assert_eq!((filled.length, filled.kind, filled.source), (4, 5, 0));
        assert_eq!(bytes, *b"news\xff\xff\xff\xff");

        // A job of one rank sends nothing for its channels.
        let size = size_of::<trihop_stats_t>();
        ok(trihop_channels_stats(channels, counters.as_mut_ptr(), size));
        let counters = counters.assume_init();
        assert_eq!((counters.size, counters.sent), (size, 0));
        let short = trihop_channels_stats_json(channels, null_mut(), 0, &mut length);
        assert_eq!(short, TRIHOP_ERR_BUFFER_TOO_SMALL);
        let mut text = vec![0_u8; length + 1];
        let place = text.as_mut_ptr().cast();
        ok(trihop_channels_stats_json(
            channels,
            place,
            length + 1,
            &mut length,
        ));
        let json: serde_json::Value = serde_json::from_slice(&text[..length]).unwrap();
        assert_eq!(json["sent"], 0);

        let (mut refused, mut kept) = (null_mut(), null_mut());
        let name = c"again".as_ptr();
        for status in [
            trihop_channel_get_into(channel, never, null_mut(), 8, &mut filled),
            trihop_channel_get_into(channel, never, into, 8, null_mut()),
            trihop_channel_get_into(channel, -2, into, 8, &mut filled),
            trihop_channel_get_into(null(), never, into, 8, &mut filled),
            trihop_channel_owner(channel, null_mut()),
            trihop_channel_owner(null(), &mut owner),
            trihop_channel_limits(channel, null_mut(), 40),
            trihop_channel_limits(channel, older.as_mut_ptr().cast(), 12),
            trihop_channels_stats(channels, null_mut(), size),
            trihop_channels_stats(null(), (&raw mut newer).cast(), 48),
            trihop_channels_options_init(null_mut(), 32),
            trihop_channels_options_init((&raw mut newer).cast(), 5),
            trihop_channels_open_kept(job, name, null(), null(), &mut refused),
        ] {
            assert_eq!(status, TRIHOP_ERR_INVALID_ARGUMENT);
        }
        // One of a newer program that asks for what there is not here.
        let mut asks: [usize; 5] = [40, 0, 0, 0, 1];
        let newer = asks.as_ptr().cast();
        let status = trihop_channels_open_with(job, name, newer, &mut refused);
        assert_eq!((status, refused), (TRIHOP_ERR_INVALID_ARGUMENT, null_mut()));
        asks[4] = 0;
        let newer = asks.as_ptr().cast();
        ok(trihop_channels_open_with(job, name, newer, &mut refused));
        ok(trihop_channels_close(refused));

        ok(trihop_channel_free(channel));
        ok(trihop_channels_keep(channels, &mut kept));
        let opening = trihop_channels_options_t {
            size: 24, // of one that knows no bound
            stream: null(),
            kept,
            getmsg_bytes: u64::MAX,
        };
        ok(trihop_channels_open_with(
            job,
            name,
            &opening,
            &mut channels,
        ));
        trihop_kept_free(kept);
        ok(trihop_channels_close(channels));
        ok(trihop_channels_open_with(job, name, null(), &mut channels));
        ok(trihop_channels_close(channels));
        ok(trihop_finalize(job));
    }
}

#[test]
fn channels_say_what_they_are_and_fill_buffers_with_threads() {
    asked_of_job(trihop_seat_t::TRIHOP_THREADED);
}

#[test]
fn channels_say_what_they_are_and_fill_buffers_inline() {
    asked_of_job(trihop_seat_t::TRIHOP_INLINE);
}

#[test]
fn calls_that_are_started_end_once_with_threads() {
    of_job(trihop_seat_t::TRIHOP_THREADED);
}

#[test]
fn calls_that_are_started_end_once_inline() {
    of_job(trihop_seat_t::TRIHOP_INLINE);
}
