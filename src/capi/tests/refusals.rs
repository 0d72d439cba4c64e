//! What is refused, and what the caller reads of it.

use super::*;

#[test]
fn items_longer_than_any_message_are_refused_with_the_option_that_helps() {
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
        let mut short = options.clone();
        short.max_message_bytes = 16_319;
        assert_eq!(open(16_320, &raw const short), TRIHOP_ERR_CONFIG);
        let advice = "max_message_bytes: 16319 is below the 16320 bytes of an item";
        assert!(last_error().contains(advice), "{}", last_error());
        short.max_message_bytes = 16_320;
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
    // SAFETY: as in the test above; this test passes null on purpose.
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
