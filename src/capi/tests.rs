//! The C functions in a job of one rank, and what they refuse.

use std::ffi::{CStr, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

mod channels;
mod counters;
mod refusals;
mod streams;

use super::collective::*;
use super::details::*;
use super::job::*;
use super::options::*;
use super::seat::trihop_seat_t;
use super::stats::*;
use super::status::trihop_status_t::*;
use super::status::*;
use super::stream::message::*;
use super::stream::open::*;
use super::stream::send::*;
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

unsafe extern "C" fn note(context: *mut c_void, _: *const trihop_message_t) {
    // SAFETY: the context is the `Heard` that counts the records, and nobody else uses it
    // meanwhile.
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
