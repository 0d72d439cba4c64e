//! The C functions in a job of one rank, and what they refuse.

use std::ffi::{CStr, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::collective::*;
use super::details::*;
use super::job::*;
use super::options::*;
use super::seat::trihop_seat_t;
use super::stats::*;
use super::status::trihop_status_t::*;
use super::status::*;
use super::stream::*;
use super::threads::*;
use super::topology::*;

const RECORDS: u64 = 1_000;

/// Ends the whole program where a test hangs.
struct Watchdog(#[expect(dead_code, reason = "its end is the message")] Sender<()>);

fn watchdog() -> Watchdog {
    let (alive, ended) = channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a test of the C interface hangs");
            std::process::abort();
        }
    });
    Watchdog(alive)
}

/// Options of a job of one, whatever started the test; one such job at a time.
fn single() -> (trihop_options_t, (MutexGuard<'static, ()>, Watchdog)) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let one = (one, watchdog());
    let mut options = trihop_options_t::from_rust(&crate::Options::default()).unwrap();
    // SAFETY: options of our own, and texts that end with NUL.
    let status =
        unsafe { trihop_options_set(&mut options, c"launcher".as_ptr(), c"single".as_ptr()) };
    assert_eq!(status, TRIHOP_OK);
    (options, one)
}

fn last_error() -> String {
    // SAFETY: the text of this thread, copied at once.
    let text = unsafe { CStr::from_ptr(trihop_last_error()) };
    text.to_string_lossy().into_owned()
}

/// What the handlers of a test have seen.
#[derive(Default)]
struct Heard {
    shuffle: *mut trihop_stream_t,
    records: u64,
    sum: u64,
    answers: u64,
    nested: Vec<trihop_status_t>,
}

/// Kind 0 is answered by kind 1.
unsafe extern "C" fn hear(context: *mut c_void, message: *const trihop_message_t) {
    // SAFETY: as the header says.
    let message = unsafe { &*message };
    let trihop_message_t {
        kind,
        length,
        bytes,
        ..
    } = *message;
    assert_eq!(
        (message.source, message.rank, message.size, message.count),
        (0, 0, 1, 1)
    );
    // SAFETY: the context is a `Heard` that nobody else uses while the handler runs; the record has
    // `length` bytes.
    unsafe {
        let heard = &mut *context.cast::<Heard>();
        if kind == 1 {
            assert_eq!(length, 0);
            assert!(!bytes.is_null());
            heard.answers += 1;
            return;
        }
        assert_eq!(length, 8);
        heard.records += 1;
        heard.sum += bytes.cast::<u64>().read_unaligned();
        assert_eq!(
            trihop_stream_send(message.stream, 0, 1, null(), 0),
            TRIHOP_OK
        );
        if heard.records == 1 {
            heard.nested = vec![
                trihop_stream_fence(heard.shuffle),
                trihop_stream_flush(heard.shuffle, trihop_queues_t::TRIHOP_ORIGIN_QUEUES as i32),
                trihop_stream_close(heard.shuffle),
            ];
        }
    }
}

unsafe extern "C" fn add(context: *mut c_void, message: *const trihop_message_t) {
    // SAFETY: the context is a number that nobody else uses while the handler runs; there are
    // `count` items of 8 bytes.
    unsafe {
        let trihop_message_t {
            count,
            length,
            bytes,
            ..
        } = *message;
        assert_eq!(length % (8 * count), 0);
        let items = std::slice::from_raw_parts(bytes.cast::<u64>(), count);
        *context.cast::<u64>() += items.iter().sum::<u64>();
    }
}

#[test]
fn a_job_of_one_with_threads_sends_answers_and_ends() {
    a_job_of_one(trihop_seat_t::TRIHOP_THREADED);
}

#[test]
fn an_inline_job_of_one_sends_answers_and_ends() {
    a_job_of_one(trihop_seat_t::TRIHOP_INLINE);
}

#[test]
fn without_a_handler_what_has_come_is_taken_on_either_seat() {
    for seat in [trihop_seat_t::TRIHOP_THREADED, trihop_seat_t::TRIHOP_INLINE] {
        let (options, _one) = single();
        let (mut job, mut items, mut shuffle) = (null_mut(), null_mut(), null_mut());
        let (mut total, mut count, mut moved) = (0u64, 0u64, 7);
        // SAFETY: as above.
        unsafe {
            assert_eq!(trihop_init(seat as i32, &options, &mut job), TRIHOP_OK);
            let opened = trihop_stream_open(
                job,
                c"taken".as_ptr(),
                8,
                null(),
                None,
                null_mut(),
                &mut items,
            );
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            let name = c"records".as_ptr();
            let opened = trihop_stream_open(job, name, 0, null(), None, null_mut(), &mut shuffle);
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            for number in 1..=RECORDS {
                let item = (&raw const number).cast();
                assert_eq!(trihop_stream_try_push(items, 0, item), TRIHOP_OK);
                assert_eq!(trihop_stream_send(shuffle, 0, 0, item, 8), TRIHOP_OK);
            }
            assert_eq!(trihop_stream_fence(items), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_poll(job, &mut moved), TRIHOP_OK, "{}", last_error());
            assert!(moved == 0 || moved == 1);
            let context = (&raw mut total).cast();
            assert_eq!(
                trihop_stream_take(items, Some(add), context, &mut count),
                TRIHOP_OK
            );
            assert_eq!((total, count), (RECORDS * (RECORDS + 1) / 2, RECORDS));
            assert_eq!(
                trihop_stream_take(items, None, context, &mut count),
                TRIHOP_ERR_INVALID_ARGUMENT
            );
            assert_eq!(trihop_stream_fence(shuffle), TRIHOP_OK, "{}", last_error());
            let mut heard = Heard::default();
            let context = (&raw mut heard).cast();
            assert_eq!(
                trihop_stream_take(shuffle, Some(note), context, &mut count),
                TRIHOP_OK
            );
            assert_eq!((heard.records, count), (RECORDS, RECORDS));
            assert_eq!(trihop_stream_close(items), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_stream_close(shuffle), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
        }
    }
}

#[test]
fn a_close_that_gives_way_keeps_the_stream_and_is_made_again() {
    for seat in [trihop_seat_t::TRIHOP_THREADED, trihop_seat_t::TRIHOP_INLINE] {
        let (options, _one) = single();
        let (mut job, mut stream) = (null_mut(), null_mut());
        let mut narrow = options.clone();
        narrow.deliverq_max = 1;
        let mut heard = Heard::default();
        let context = (&raw mut heard).cast();
        // SAFETY: as above.
        unsafe {
            assert_eq!(trihop_init(seat as i32, &options, &mut job), TRIHOP_OK);
            let name = c"narrow".as_ptr();
            let opened = trihop_stream_open(job, name, 0, &narrow, None, null_mut(), &mut stream);
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            let mut sent = 0;
            while sent < 200 && trihop_stream_try_send(stream, 0, 0, null(), 0) == TRIHOP_OK {
                sent += 1;
                trihop_poll(job, null_mut());
            }
            let mut gave_way = 0;
            while trihop_stream_close(stream) != TRIHOP_OK {
                gave_way += 1;
                let taken = trihop_stream_take(stream, Some(note), context, null_mut());
                assert_eq!(taken, TRIHOP_OK, "{}", last_error());
            }
            // What was still on its way when the queue had room is given up.
            assert!(
                gave_way > 0 && heard.records <= sent,
                "{gave_way} {}",
                heard.records
            );
            assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
        }
    }
}

#[test]
fn many_items_give_way_with_how_many_were_taken_and_are_gone_on_with() {
    for seat in [trihop_seat_t::TRIHOP_THREADED, trihop_seat_t::TRIHOP_INLINE] {
        let (options, _one) = single();
        let (mut job, mut stream) = (null_mut(), null_mut());
        let mut narrow = options.clone();
        narrow.deliverq_max = 100;
        let values: Vec<u64> = (1..=100_000).collect();
        let targets = vec![0u32; values.len()];
        let (mut total, mut from, mut gave_way) = (0u64, 0, 0);
        let context = (&raw mut total).cast();
        // SAFETY: as above.
        unsafe {
            assert_eq!(trihop_init(seat as i32, &options, &mut job), TRIHOP_OK);
            let name = c"narrow".as_ptr();
            let opened = trihop_stream_open(job, name, 8, &narrow, None, null_mut(), &mut stream);
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            loop {
                let mut sent = usize::MAX;
                let (targets, values) = (&targets[from..], &values[from..]);
                let items = values.as_ptr().cast();
                let pushed = trihop_stream_push_many(
                    stream,
                    targets.as_ptr(),
                    items,
                    values.len(),
                    &mut sent,
                );
                from += sent;
                let taken = trihop_stream_take(stream, Some(add), context, null_mut());
                assert_eq!(taken, TRIHOP_OK, "{}", last_error());
                match pushed {
                    TRIHOP_OK => break,
                    status => assert_eq!(status, TRIHOP_ERR_WOULD_BLOCK, "{}", last_error()),
                }
                gave_way += 1;
            }
            assert!(gave_way > 0 && from == values.len(), "{gave_way} {from}");
            while trihop_stream_fence(stream) == TRIHOP_ERR_WOULD_BLOCK {
                trihop_stream_take(stream, Some(add), context, null_mut());
            }
            trihop_stream_take(stream, Some(add), context, null_mut());
            assert_eq!(total, 100_000 * 100_001 / 2);
            assert_eq!(trihop_stream_close(stream), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
        }
    }
}

#[test]
fn a_record_is_filled_in_place_and_verbs_of_the_other_kind_are_refused() {
    unsafe extern "C" fn fill(context: *mut c_void, bytes: *mut c_void, length: usize) {
        // SAFETY: the context is a byte, and there are `length` others.
        unsafe {
            std::slice::from_raw_parts_mut(bytes.cast::<u8>(), length).fill(*context.cast::<u8>())
        };
    }
    unsafe extern "C" fn hear_filled(context: *mut c_void, message: *const trihop_message_t) {
        // SAFETY: the context is a `Heard` that nobody else uses while the handler runs.
        let (heard, message) = unsafe { (&mut *context.cast::<Heard>(), &*message) };
        // SAFETY: as the header says.
        let bytes =
            unsafe { std::slice::from_raw_parts(message.bytes.cast::<u8>(), message.length) };
        assert!(bytes.iter().all(|byte| u32::from(*byte) == message.kind));
        heard.records += 1;
        heard.sum += message.length as u64;
        if message.kind == 7 {
            let mut byte = 8u8;
            let context = (&raw mut byte).cast();
            // SAFETY: as in the test.
            let sent =
                unsafe { trihop_stream_reserve(message.stream, 0, 8, 40, Some(fill), context) };
            assert_eq!(sent, TRIHOP_OK, "{}", last_error());
        }
    }
    for seat in [trihop_seat_t::TRIHOP_THREADED, trihop_seat_t::TRIHOP_INLINE] {
        let (options, _one) = single();
        let (mut job, mut records, mut items) = (null_mut(), null_mut(), null_mut());
        let mut heard = Heard::default();
        let mut byte = 7u8;
        let context = (&raw mut byte).cast();
        // SAFETY: as above.
        unsafe {
            assert_eq!(trihop_init(seat as i32, &options, &mut job), TRIHOP_OK);
            let name = c"records".as_ptr();
            let place = (&raw mut heard).cast();
            let opened =
                trihop_stream_open(job, name, 0, null(), Some(hear_filled), place, &mut records);
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            let name = c"items".as_ptr();
            let opened = trihop_stream_open(job, name, 8, null(), None, null_mut(), &mut items);
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            for length in [0, 24, 100_000] {
                let sent = trihop_stream_reserve(records, 0, 7, length, Some(fill), context);
                assert_eq!(sent, TRIHOP_OK, "{}", last_error());
            }
            let none = trihop_stream_reserve(records, 0, 7, 8, None, context);
            assert_eq!(none, TRIHOP_ERR_INVALID_ARGUMENT);
            let everyone = trihop_broadcast_t::TRIHOP_TO_EVERYONE as i32;
            for refused in [
                trihop_stream_reserve(items, 0, 7, 8, Some(fill), context),
                trihop_stream_send(items, 0, 0, [0u64].as_ptr().cast(), 8),
                trihop_stream_push(records, 0, context),
                trihop_stream_try_push(records, 0, context),
                trihop_stream_push_many(records, [0u32].as_ptr(), context, 1, null_mut()),
                trihop_stream_broadcast(items, 1, [0u64].as_ptr().cast(), 8, everyone),
                trihop_stream_broadcast(items, 0, [0u64].as_ptr().cast(), 7, everyone),
            ] {
                assert_eq!(refused, TRIHOP_ERR_CONFIG, "{}", last_error());
            }
            assert_eq!(trihop_stream_fence(records), TRIHOP_OK, "{}", last_error());
            assert_eq!((heard.records, heard.sum), (6, 100_024 + 3 * 40));
            assert_eq!(trihop_stream_close(records), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_stream_close(items), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
        }
    }
}

unsafe extern "C" fn note(context: *mut c_void, _: *const trihop_message_t) {
    // SAFETY: the context is what is taken into, and nobody else uses it meanwhile.
    unsafe { (*context.cast::<Heard>()).records += 1 };
}

fn a_job_of_one(seat: trihop_seat_t) {
    let (options, _one) = single();
    let mut job = null_mut();
    let mut heard = Heard::default();
    let mut total = 0u64;
    // SAFETY: what the header asks for: handles of ours, used until they are given back; the
    // handlers' contexts outlive the streams, and are looked at after a fence only.
    unsafe {
        assert_eq!(
            trihop_init(seat as i32, &options, &mut job),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        assert_eq!(
            (trihop_rank(job), trihop_size(job), trihop_nodes(job)),
            (0, 1, 1)
        );
        assert_eq!(CStr::from_ptr(trihop_launcher(job)), c"single");
        let mut own = options.clone();
        assert_eq!(
            trihop_job_options(job, &mut own, size_of_val(&own)),
            TRIHOP_OK
        );
        own.deliverq_max = 7;

        let context = (&raw mut heard).cast();
        let place = &raw mut heard.shuffle;
        let status =
            trihop_stream_open(job, c"words".as_ptr(), 0, &own, Some(hear), context, place);
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        let shuffle = heard.shuffle;
        for number in 0..RECORDS {
            let status = trihop_stream_send(shuffle, 0, 0, (&raw const number).cast(), 8);
            assert_eq!(status, TRIHOP_OK, "{}", last_error());
        }
        assert_eq!(trihop_stream_fence(shuffle), TRIHOP_OK, "{}", last_error());
        assert_eq!((heard.records, heard.answers), (RECORDS, RECORDS));
        assert_eq!(heard.sum, RECORDS * (RECORDS - 1) / 2);
        assert_eq!(heard.nested, [TRIHOP_ERR_NESTED; 3]);

        let mut counters = std::mem::zeroed::<trihop_stats_t>();
        assert_eq!(
            trihop_stream_stats(shuffle, &mut counters, size_of_val(&counters)),
            TRIHOP_OK
        );
        assert_eq!(
            (counters.sent, counters.delivered),
            (2 * RECORDS, 2 * RECORDS)
        );
        let mut length = 0;
        let status = trihop_stream_stats_json(shuffle, null_mut(), 0, &mut length);
        assert_eq!(status, TRIHOP_ERR_BUFFER_TOO_SMALL);
        let mut json = vec![0u8; length + 1];
        let status =
            trihop_stream_stats_json(shuffle, json.as_mut_ptr().cast(), length + 1, &mut length);
        assert_eq!(status, TRIHOP_OK);
        let json: serde_json::Value = serde_json::from_slice(&json[..length]).unwrap();
        assert_eq!(json["delivered"], 2 * RECORDS);

        let mut items = null_mut();
        let context = (&raw mut total).cast();
        let status = trihop_stream_open(
            job,
            c"sum".as_ptr(),
            8,
            null(),
            Some(add),
            context,
            &mut items,
        );
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        let values: Vec<u64> = (0..RECORDS).collect();
        let targets = vec![0u32; values.len()];
        let status = trihop_stream_push_many(
            items,
            targets.as_ptr(),
            values.as_ptr().cast(),
            values.len(),
            null_mut(),
        );
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        assert_eq!(
            trihop_stream_push(items, 0, (&raw const values[7]).cast()),
            TRIHOP_OK
        );
        assert_eq!(trihop_stream_fence(items), TRIHOP_OK, "{}", last_error());
        assert_eq!(total, RECORDS * (RECORDS - 1) / 2 + 7);

        let mut sum = [41u64, 1];
        assert_eq!(
            trihop_allreduce(job, trihop_reduce_t::TRIHOP_SUM as i32, sum.as_mut_ptr(), 2),
            TRIHOP_OK
        );
        assert_eq!(sum, [41, 1]);
        let mut all = [0u8; 3];
        assert_eq!(
            trihop_allgather(job, b"abc".as_ptr().cast(), 3, all.as_mut_ptr().cast()),
            TRIHOP_OK
        );
        assert_eq!(&all, b"abc");
        // As MPI has it: what is sent lies in its place already.
        let all = all.as_mut_ptr().cast::<c_void>();
        assert_eq!(
            trihop_allgather(job, all, 3, all),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        assert_eq!(
            trihop_allgather(job, all, 3, null_mut()),
            TRIHOP_ERR_INVALID_ARGUMENT
        );

        assert_eq!(trihop_stream_close(items), TRIHOP_OK, "{}", last_error());
        assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
        let refused = trihop_stream_send(shuffle, 0, 0, null(), 0);
        assert_eq!(refused, TRIHOP_ERR_CLOSED, "{}", last_error());
        assert_eq!(trihop_stream_close(shuffle), TRIHOP_OK, "{}", last_error());
    }
}

#[test]
fn a_broadcast_reaches_everyone_or_all_others() {
    let (options, _one) = single();
    let (others, everyone) = (
        trihop_broadcast_t::TRIHOP_TO_OTHERS as i32,
        trihop_broadcast_t::TRIHOP_TO_EVERYONE as i32,
    );
    let (mut job, mut items) = (null_mut(), null_mut());
    let mut heard = Heard::default();
    let mut total = 0u64;
    // SAFETY: as in the test above.
    unsafe {
        assert_eq!(
            trihop_init(trihop_seat_t::TRIHOP_THREADED as i32, &options, &mut job),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        let context = (&raw mut heard).cast();
        let place = &raw mut heard.shuffle;
        let status = trihop_stream_open(
            job,
            c"words".as_ptr(),
            0,
            null(),
            Some(hear),
            context,
            place,
        );
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        let shuffle = heard.shuffle;
        // Kind 1 is heard and not answered.
        for (to, times) in [(others, 0), (everyone, 1)] {
            let status = trihop_stream_broadcast(shuffle, 1, null(), 0, to);
            assert_eq!(status, TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_stream_fence(shuffle), TRIHOP_OK, "{}", last_error());
            assert_eq!((heard.answers, heard.records), (times, 0));
        }
        let context = (&raw mut total).cast();
        let status = trihop_stream_open(
            job,
            c"sum".as_ptr(),
            8,
            null(),
            Some(add),
            context,
            &mut items,
        );
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        let item = 7u64;
        for (to, sum) in [(others, 0), (everyone, 7)] {
            let status = trihop_stream_broadcast(items, 0, (&raw const item).cast(), 8, to);
            assert_eq!(status, TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_stream_fence(items), TRIHOP_OK, "{}", last_error());
            assert_eq!(total, sum);
        }
        for refused in [
            trihop_stream_broadcast(shuffle, 1, null(), 0, 2),
            trihop_stream_broadcast(shuffle, 1, null(), 1, everyone),
            trihop_stream_broadcast(items, 0, null(), 8, everyone),
            trihop_stream_broadcast(items, 0, (&raw const item).cast(), 8, -1),
        ] {
            assert_eq!(refused, TRIHOP_ERR_INVALID_ARGUMENT);
        }
        assert!(last_error().contains("-1 is neither"), "{}", last_error());
        assert_eq!(trihop_stream_close(shuffle), TRIHOP_OK, "{}", last_error());
        assert_eq!(trihop_stream_close(items), TRIHOP_OK, "{}", last_error());
        assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
    }
}

/// A struct of counters as the library fills it.
fn filled<T>(fill: impl FnOnce(*mut T, usize) -> trihop_status_t) -> T {
    let mut counters = std::mem::MaybeUninit::<T>::zeroed();
    let status = fill(counters.as_mut_ptr(), size_of::<T>());
    assert_eq!(status, TRIHOP_OK, "{}", last_error());
    // SAFETY: the structs of this test are plain numbers, which the library has filled.
    unsafe { counters.assume_init() }
}

/// A text as the library gives it: asked for its length first.
fn text(ask: impl Fn(*mut std::ffi::c_char, usize, *mut usize) -> trihop_status_t) -> String {
    let mut length = 0;
    assert_eq!(ask(null_mut(), 0, &mut length), TRIHOP_ERR_BUFFER_TOO_SMALL);
    let mut bytes = vec![1u8; length + 1];
    let status = ask(bytes.as_mut_ptr().cast(), bytes.len(), &mut length);
    assert_eq!(status, TRIHOP_OK, "{}", last_error());
    assert_eq!(bytes.pop(), Some(0));
    String::from_utf8(bytes).unwrap()
}

#[test]
fn counters_of_each_queue_and_thread_are_read_one_by_one() {
    let (options, _one) = single();
    let origin = trihop_queues_t::TRIHOP_ORIGIN_QUEUES as i32;
    let (mut job, mut heard) = (null_mut(), Heard::default());
    // SAFETY: as in the test above.
    unsafe {
        assert_eq!(
            trihop_init(trihop_seat_t::TRIHOP_THREADED as i32, &options, &mut job),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        let context = (&raw mut heard).cast();
        let place = &raw mut heard.shuffle;
        let status = trihop_stream_open(
            job,
            c"counted".as_ptr(),
            0,
            null(),
            Some(hear),
            context,
            place,
        );
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        let shuffle = heard.shuffle;
        let number = 7u64;
        assert_eq!(
            trihop_stream_send(shuffle, 0, 0, (&raw const number).cast(), 8),
            TRIHOP_OK
        );
        assert_eq!(trihop_stream_fence(shuffle), TRIHOP_OK, "{}", last_error());

        let mut details = null_mut();
        assert_eq!(trihop_stream_details(shuffle, &mut details), TRIHOP_OK);
        let totals = filled(|place, size| trihop_details_totals(details, place, size));
        assert_eq!(
            (totals.sent, totals.delivered),
            (2, 2),
            "the handler answers"
        );
        let stage = filled(|place, size| trihop_details_stage(details, origin, place, size));
        assert_eq!((stage.size, stage.queues), (size_of_val(&stage), 1));
        let queue = filled(|place, size| trihop_details_queue(details, origin, 0, place, size));
        assert_eq!((queue.size, queue.peer), (size_of_val(&queue), 0));
        assert_eq!((queue.own_runs, queue.forwarded_runs), (2, 0));
        assert!(queue.sends == 2 && queue.flush_sends > 0, "{queue:?}");
        assert_eq!(
            (stage.own_runs, stage.sends, stage.flush_sends, stage.waits),
            (queue.own_runs, queue.sends, queue.flush_sends, queue.waits)
        );
        let mut other = queue;
        for (stage, index, why) in [
            (origin, 1, "of which 1 were used"),
            (
                trihop_queues_t::TRIHOP_REMOTE_QUEUES as i32,
                0,
                "of which 0 were used",
            ),
            (
                trihop_queues_t::TRIHOP_DELIVERY_QUEUE as i32,
                0,
                "blocked_deliveries",
            ),
            (9, 0, "none of trihop_queues_t"),
        ] {
            let refused =
                trihop_details_queue(details, stage, index, &mut other, size_of_val(&queue));
            assert_eq!(refused, TRIHOP_ERR_INVALID_ARGUMENT, "{stage}");
            assert!(last_error().contains(why), "{}", last_error());
        }
        let mut older = [u64::MAX; 5];
        let known = 4 * size_of::<u64>();
        let status = trihop_details_stage(details, origin, older.as_mut_ptr().cast(), known);
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        assert_eq!(
            older,
            [known as u64, 1, 0, 2, u64::MAX],
            "what an older program knows"
        );
        assert_eq!(
            trihop_details_stage(details, origin, older.as_mut_ptr().cast(), 9),
            TRIHOP_ERR_INVALID_ARGUMENT
        );

        // The details are those of their moment.
        assert_eq!(trihop_stream_send(shuffle, 0, 1, null(), 0), TRIHOP_OK);
        assert_eq!(trihop_stream_close(shuffle), TRIHOP_OK, "{}", last_error());
        let json =
            text(|place, capacity, length| trihop_details_json(details, place, capacity, length));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (json["stream"].as_str(), &json["totals"]["sent"]),
            (Some("counted"), &2.into())
        );
        assert_eq!(json["origin"]["queues"][0]["own_runs"], 2);
        let lines =
            text(|place, capacity, length| trihop_details_text(details, place, capacity, length));
        assert!(
            lines.contains("to rank 0: 2 runs own, 0 forwarded; 2 sends"),
            "{lines}"
        );
        trihop_details_free(details);
        trihop_details_free(null_mut());

        let mut items = null_mut();
        let mut total = 0u64;
        // The struct has room for the first half of the last letter.
        let name = format!("{}\u{e9}\0", "n".repeat(54));
        let context = (&raw mut total).cast();
        let status = trihop_stream_open(
            job,
            name.as_ptr().cast(),
            8,
            null(),
            Some(add),
            context,
            &mut items,
        );
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        assert_eq!(
            trihop_stream_push(items, 0, (&raw const number).cast()),
            TRIHOP_OK
        );
        assert_eq!(trihop_stream_fence(items), TRIHOP_OK, "{}", last_error());
        assert_eq!(trihop_stream_details(items, &mut details), TRIHOP_OK);
        let stage = filled(|place, size| trihop_details_stage(details, origin, place, size));
        assert_eq!((stage.queues, stage.own_runs), (1, 1));
        trihop_details_free(details);

        let mut count = 0;
        let size = size_of::<trihop_thread_use_t>();
        let refused = trihop_threads(job, null_mut(), size, 0, &mut count);
        assert_eq!((refused, count), (TRIHOP_ERR_BUFFER_TOO_SMALL, 2));
        let threads = loop {
            let mut threads = [const { std::mem::MaybeUninit::<trihop_thread_use_t>::zeroed() }; 3];
            let status = trihop_threads(job, threads.as_mut_ptr().cast(), size, 3, &mut count);
            assert_eq!((status, count), (TRIHOP_OK, 2), "{}", last_error());
            let threads = threads.map(|thread| thread.assume_init());
            // With nothing to do, both wait sooner or later.
            if threads[..2]
                .iter()
                .all(|thread| thread.voluntary_switches > 0)
            {
                break threads;
            }
            std::thread::yield_now();
        };
        assert_eq!(threads.map(|thread| thread.size), [size, size, 0]);
        let names = threads.map(|thread| {
            CStr::from_ptr(thread.name.as_ptr())
                .to_str()
                .unwrap()
                .to_owned()
        });
        let expected = ["progress", &format!("deliver {}", "n".repeat(54)), ""];
        assert_eq!(names, expected);
        let refused = trihop_threads(job, null_mut(), size, 2, &mut count);
        assert_eq!(refused, TRIHOP_ERR_INVALID_ARGUMENT);
        let json =
            text(|place, capacity, length| trihop_threads_json(job, place, capacity, length));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            json[1]["name"],
            format!("deliver {}", name.trim_end_matches('\0'))
        );

        assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
        assert_eq!(trihop_stream_close(items), TRIHOP_OK, "{}", last_error());
    }
}

#[test]
fn items_longer_than_a_frame_are_refused_with_the_option_that_helps() {
    let (options, _one) = single();
    let (mut job, mut items) = (null_mut(), null_mut());
    let mut total = 0u64;
    // SAFETY: as in the test above.
    unsafe {
        assert_eq!(
            trihop_init(trihop_seat_t::TRIHOP_THREADED as i32, &options, &mut job),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        let context = (&raw mut total).cast();
        let mut open = |bytes, options| {
            trihop_stream_open(
                job,
                c"long".as_ptr(),
                bytes,
                options,
                Some(add),
                context,
                &mut items,
            )
        };
        assert_eq!(open(16_321, null()), TRIHOP_ERR_CONFIG);
        assert!(
            last_error().contains("send records of a shuffle"),
            "{}",
            last_error()
        );
        let mut short = options.clone();
        short.memory_bytes = 1 << 20;
        assert_eq!(open(16_320, &raw const short), TRIHOP_ERR_CONFIG);
        let advice = "memory_bytes is 1048576 for 1 ranks of a node and 1 links: make it 2097152";
        assert!(last_error().contains(advice), "{}", last_error());
        short.memory_bytes = 2 << 20;
        assert_eq!(
            open(16_320, &raw const short),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        let item = [7u64; 2040];
        assert_eq!(
            trihop_stream_push(items, 0, item.as_ptr().cast()),
            TRIHOP_OK
        );
        assert_eq!(trihop_stream_fence(items), TRIHOP_OK, "{}", last_error());
        assert_eq!(total, 7);
        assert_eq!(trihop_stream_close(items), TRIHOP_OK, "{}", last_error());
        assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
    }
}

#[test]
fn impossible_arguments_are_refused_by_name() {
    let (options, _one) = single();
    let mut job = null_mut();
    let mut shuffle = null_mut::<trihop_stream_t>();
    let mut heard = Heard::default();
    let mut number = 0;
    // SAFETY: as in the test above; null is what this test is about.
    unsafe {
        assert_eq!(
            trihop_init(trihop_seat_t::TRIHOP_THREADED as i32, &options, null_mut()),
            TRIHOP_ERR_INVALID_ARGUMENT
        );
        assert_eq!(last_error(), "`job` is a null pointer");
        assert_eq!(trihop_size(null()), u32::MAX);
        assert_eq!(trihop_finalize(null_mut()), TRIHOP_ERR_INVALID_ARGUMENT);
        assert_eq!(trihop_stream_fence(null()), TRIHOP_ERR_INVALID_ARGUMENT);

        assert_eq!(
            trihop_init(trihop_seat_t::TRIHOP_THREADED as i32, &options, &mut job),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        let mut none = null_mut();
        assert_eq!(
            trihop_init(2, &options, &mut none),
            TRIHOP_ERR_INVALID_ARGUMENT
        );
        assert!(last_error().contains("TRIHOP_INLINE"), "{}", last_error());
        let context = (&raw mut heard).cast();
        let name = c"words".as_ptr();
        assert!(shuffle.is_null());
        let latin = c"caf\xe9".as_ptr();
        let status = trihop_stream_open(job, latin, 0, null(), Some(hear), context, &mut shuffle);
        assert_eq!(status, TRIHOP_ERR_INVALID_ARGUMENT);
        assert!(last_error().contains("UTF-8"), "{}", last_error());
        let mut wrong = options.clone();
        wrong.remote_maxrpc = 0;
        let status = trihop_stream_open(job, name, 0, &wrong, Some(hear), context, &mut shuffle);
        assert_eq!(status, TRIHOP_ERR_CONFIG);
        assert!(last_error().contains("remote_maxrpc"), "{}", last_error());

        let status = trihop_stream_open(job, name, 0, null(), Some(hear), context, &mut shuffle);
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        assert_eq!(
            trihop_stream_send(shuffle, 1, 0, null(), 0),
            TRIHOP_ERR_RANK
        );
        assert_eq!(last_error(), "rank 1 does not exist in a job of 1 ranks");
        assert_eq!(
            trihop_stream_send(shuffle, 0, 0, null(), 1),
            TRIHOP_ERR_INVALID_ARGUMENT
        );
        let one = b"x".as_ptr().cast();
        assert_eq!(
            trihop_stream_send(shuffle, 0, 0, one, usize::MAX),
            TRIHOP_ERR_INVALID_ARGUMENT
        );
        let too_long = vec![0u8; options.max_message_bytes as usize + 1];
        let status = trihop_stream_send(shuffle, 0, 0, too_long.as_ptr().cast(), too_long.len());
        assert_eq!(status, TRIHOP_ERR_TOO_LARGE);
        assert_eq!(trihop_stream_flush(shuffle, 9), TRIHOP_ERR_INVALID_ARGUMENT);
        assert_eq!(
            trihop_allreduce(job, 9, null_mut(), 0),
            TRIHOP_ERR_INVALID_ARGUMENT
        );
        assert_eq!(trihop_node_of(job, 1, &mut number), TRIHOP_ERR_RANK);
        assert_eq!(
            trihop_rank_at(job, 0, 1, &mut number),
            TRIHOP_ERR_INVALID_ARGUMENT
        );
        assert_eq!(
            trihop_representative(job, 0, 1, &mut number),
            TRIHOP_ERR_INVALID_ARGUMENT
        );
        assert_eq!(
            trihop_node_of(job, 0, null_mut()),
            TRIHOP_ERR_INVALID_ARGUMENT
        );

        assert_eq!(trihop_dump(job, -1), TRIHOP_ERR_INVALID_ARGUMENT);
        let nowhere = c"/nonexistent/folder/dump".as_ptr();
        assert_eq!(trihop_dump_to_file(job, nowhere), TRIHOP_ERR_SYSTEM);
        assert!(
            last_error().contains("/nonexistent/folder/dump"),
            "{}",
            last_error()
        );
        assert_eq!(trihop_stream_close(shuffle), TRIHOP_OK, "{}", last_error());
        assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
    }
}

#[test]
fn a_dump_goes_to_a_descriptor_that_stays_open() {
    let (options, _one) = single();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let descriptor = std::os::fd::OwnedFd::from(writer).into_raw_fd();
    let mut job = null_mut();
    // SAFETY: as in the tests above; the descriptor is ours, and closed once.
    unsafe {
        assert_eq!(
            trihop_init(trihop_seat_t::TRIHOP_THREADED as i32, &options, &mut job),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        assert_eq!(trihop_dump(job, descriptor), TRIHOP_OK, "{}", last_error());
        assert_eq!(trihop_dump(job, descriptor), TRIHOP_OK, "{}", last_error());
        assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
        drop(<std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(descriptor));
    }
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(text.matches("(collectives)").count() % 2, 0, "{text}");
    assert!(text.contains("(collectives)"), "{text}");
}
