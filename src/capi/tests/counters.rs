//! Counters, dumps of queues, and texts that are asked for.

use super::*;

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
    let (mut options, _one) = single();
    // SAFETY: options of our own, and texts that end with NUL.
    let set = unsafe { trihop_options_set(&mut options, c"own_thread".as_ptr(), c"1".as_ptr()) };
    assert_eq!(set, TRIHOP_OK, "{}", last_error());
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
        let why = queue.aged_sends + queue.flush_sends;
        assert_eq!((queue.sends, why), (2, 2), "none was full: {queue:?}");
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
