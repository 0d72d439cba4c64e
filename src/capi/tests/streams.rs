//! What each verb of a stream promises, on both seats.

use super::*;

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
        narrow.run_bytes = 1024;
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

#[test]
fn of_many_items_the_one_that_is_refused_is_not_counted() {
    for seat in [trihop_seat_t::TRIHOP_THREADED, trihop_seat_t::TRIHOP_INLINE] {
        let (options, _one) = single();
        let (mut job, mut stream) = (null_mut(), null_mut());
        let items = [1u64, 2, 3];
        let push = |stream, targets: &[u32], sent: *mut usize| {
            let items = items.as_ptr().cast();
            // SAFETY: there are as many items as targets at most, and a place for a number.
            unsafe { trihop_stream_push_many(stream, targets.as_ptr(), items, targets.len(), sent) }
        };
        // SAFETY: as above.
        unsafe {
            assert_eq!(trihop_init(seat as i32, &options, &mut job), TRIHOP_OK);
            let name = c"items".as_ptr();
            let opened = trihop_stream_open(job, name, 8, null(), None, null_mut(), &mut stream);
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            let mut sent = 9;
            assert_eq!(push(stream, &[0, 7, 0], &mut sent), TRIHOP_ERR_RANK);
            assert_eq!(sent, 1);
            let ends = trihop_end_t::TRIHOP_ROUND as i32;
            assert_eq!(
                trihop_stream_start(stream, ends),
                TRIHOP_OK,
                "{}",
                last_error()
            );
            sent = 9;
            assert_eq!(push(stream, &[0, 0, 0], &mut sent), TRIHOP_ERR_MISUSE);
            assert_eq!(sent, 0);
            sent = 9;
            assert_eq!(push(null(), &[0], &mut sent), TRIHOP_ERR_INVALID_ARGUMENT);
            assert_eq!(sent, 0);
            assert_eq!(trihop_stream_wait(stream), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_stream_close(stream), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
        }
    }
}

/// What a handler of runs has seen.
#[derive(Default)]
struct Runs {
    calls: u64,
    longest: usize,
    records: Vec<(u32, Vec<u8>)>,
    answers: u64,
}

/// A record of kind 7 is answered by one of kind 8, on the same stream.
unsafe extern "C" fn hear_run(context: *mut c_void, run: *const trihop_message_t) {
    // SAFETY: the context is a `Runs` that nobody else uses while the handler runs; the rest as the
    // header says.
    unsafe {
        let runs = &mut *context.cast::<Runs>();
        runs.calls += 1;
        runs.longest = runs.longest.max((*run).count);
        let mut record = std::mem::zeroed::<trihop_message_t>();
        let mut count = 0;
        while trihop_message_next(run, &mut record) != 0 {
            if count == 0 {
                assert_eq!(((*run).kind, (*run).bytes), (record.kind, record.bytes));
            }
            count += 1;
            assert_eq!(
                (record.source, record.rank, record.size, record.count),
                (0, 0, 1, 1)
            );
            assert_eq!(record.bytes as usize % 8, 0);
            assert_eq!(trihop_message_next(&record, &mut std::mem::zeroed()), 0);
            let bytes = std::slice::from_raw_parts(record.bytes.cast::<u8>(), record.length);
            match record.kind {
                8 => runs.answers += 1,
                kind => runs.records.push((kind, bytes.to_vec())),
            }
            if record.kind == 7 {
                let sent = trihop_stream_send(record.stream, record.source, 8, null(), 0);
                assert_eq!(sent, TRIHOP_OK, "{}", last_error());
            }
        }
        assert_eq!(count, (*run).count);
        assert_eq!(trihop_message_next(run, &mut record), 0);
    }
}

#[test]
fn a_handler_takes_the_records_of_a_run_at_once_on_either_seat() {
    for seat in [trihop_seat_t::TRIHOP_INLINE, trihop_seat_t::TRIHOP_THREADED] {
        let (options, _one) = single();
        let (mut job, mut stream) = (null_mut(), null_mut());
        let mut runs = Box::new(Runs::default());
        let context = (&raw mut *runs).cast();
        let mut expected = Vec::new();
        // SAFETY: a job of this test's, whose context lives as long.
        unsafe {
            assert_eq!(trihop_init(seat as i32, &options, &mut job), TRIHOP_OK);
            let name = c"runs".as_ptr();
            let refused = trihop_stream_open_runs(job, name, null(), None, context, &mut stream);
            assert_eq!(refused, TRIHOP_ERR_INVALID_ARGUMENT);
            let opened =
                trihop_stream_open_runs(job, name, null(), Some(hear_run), context, &mut stream);
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            for number in 0..500u32 {
                // Short ones share a run, and some are longer than any.
                let length = if number % 100 == 99 {
                    100_000
                } else {
                    number as usize % 40
                };
                let bytes = vec![number as u8; length];
                let kind = 6 + number % 2;
                let sent = trihop_stream_send(stream, 0, kind, bytes.as_ptr().cast(), length);
                assert_eq!(sent, TRIHOP_OK, "{}", last_error());
                expected.push((kind, bytes));
            }
            assert_eq!(trihop_stream_fence(stream), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_stream_close(stream), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_message_next(null(), null_mut()), 0);
        }
        assert!(runs.records == expected, "{} records", runs.records.len());
        assert_eq!(runs.answers, 250);
        assert!(runs.longest > 5 && runs.calls < 500, "{} calls", runs.calls);
    }
}

#[test]
fn steps_end_by_rounds_and_fences_in_two_phases_on_either_seat() {
    for seat in [trihop_seat_t::TRIHOP_INLINE, trihop_seat_t::TRIHOP_THREADED] {
        let (options, _one) = single();
        let (mut job, mut items) = (null_mut(), null_mut());
        let mut total = 0u64;
        let (round, fence) = (
            trihop_end_t::TRIHOP_ROUND as i32,
            trihop_end_t::TRIHOP_FENCE as i32,
        );
        // SAFETY: a job of this test's, whose context lives as long and is read between steps only.
        unsafe {
            assert_eq!(trihop_init(seat as i32, &options, &mut job), TRIHOP_OK);
            let context = (&raw mut total).cast();
            let name = c"steps".as_ptr();
            let opened = trihop_stream_open(job, name, 8, null(), Some(add), context, &mut items);
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            let push = |value: u64| {
                let pushed = trihop_stream_push(items, 0, (&raw const value).cast());
                assert_eq!(pushed, TRIHOP_OK, "{}", last_error());
            };
            let mut is_over = 7;
            assert_eq!(trihop_stream_test(items, &mut is_over), TRIHOP_ERR_MISUSE);
            assert_eq!(trihop_stream_wait(items), TRIHOP_ERR_MISUSE);
            assert_eq!(trihop_stream_start(items, 2), TRIHOP_ERR_INVALID_ARGUMENT);
            let mut sum = 0;
            for step in 1..200u64 {
                push(step);
                sum += step;
                match step % 4 {
                    0 => assert_eq!(trihop_stream_round(items), TRIHOP_OK),
                    1 => assert_eq!(trihop_stream_fence(items), TRIHOP_OK),
                    left => {
                        let end = if left == 2 { round } else { fence };
                        assert_eq!(trihop_stream_start(items, end), TRIHOP_OK);
                        let other = trihop_stream_start(items, 1 - end);
                        assert_eq!(other, TRIHOP_ERR_MISUSE, "{}", last_error());
                        if step % 8 < 4 {
                            assert_eq!(trihop_stream_wait(items), TRIHOP_OK);
                        } else {
                            is_over = 0;
                            while is_over == 0 {
                                assert_eq!(trihop_stream_test(items, &mut is_over), TRIHOP_OK);
                            }
                        }
                    }
                }
                assert_eq!(context.cast::<u64>().read(), sum, "step {step}");
            }
            assert!(last_error().contains("while a"), "{}", last_error());
            // What was started and not waited for is over before the stream is.
            push(1);
            let last = if seat == trihop_seat_t::TRIHOP_INLINE {
                round
            } else {
                fence
            };
            assert_eq!(trihop_stream_start(items, last), TRIHOP_OK);
            let late = trihop_stream_push(items, 0, (&raw const sum).cast());
            assert_eq!(late, TRIHOP_ERR_MISUSE, "{}", last_error());
            assert_eq!(trihop_stream_close(items), TRIHOP_OK, "{}", last_error());
            assert_eq!(context.cast::<u64>().read(), sum + 1);
            // In its place, nothing of that is left.
            let opened = trihop_stream_open(job, name, 8, null(), Some(add), context, &mut items);
            assert_eq!(opened, TRIHOP_OK, "{}", last_error());
            assert_eq!(
                trihop_stream_push(items, 0, (&raw const sum).cast()),
                TRIHOP_OK
            );
            assert_eq!(trihop_stream_round(items), TRIHOP_OK, "{}", last_error());
            assert_eq!(context.cast::<u64>().read(), 2 * sum + 1);
            assert_eq!(trihop_stream_close(items), TRIHOP_OK, "{}", last_error());
            assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());
        }
    }
}
