//! Logs through the C interface: once per process, so a test program of their own.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use trihop::capi::job::*;
use trihop::capi::log::*;
use trihop::capi::options::*;
use trihop::capi::seat::trihop_seat_t;
use trihop::capi::status::trihop_status_t::*;
use trihop::capi::status::*;

#[derive(Debug, PartialEq)]
struct Line {
    level: i32,
    facility: String,
    text: String,
}

unsafe extern "C" fn note(
    context: *mut c_void,
    level: i32,
    facility: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the context is a list that outlives the process's logs; both texts end with NUL.
    unsafe {
        let lines = &*context.cast::<Mutex<Vec<Line>>>();
        lines.lock().unwrap().push(Line {
            level,
            facility: CStr::from_ptr(facility).to_str().unwrap().to_owned(),
            text: CStr::from_ptr(text).to_str().unwrap().to_owned(),
        });
    }
}

fn last_error() -> String {
    // SAFETY: the text of this thread, copied at once.
    let text = unsafe { CStr::from_ptr(trihop_last_error()) };
    text.to_string_lossy().into_owned()
}

#[test]
fn what_a_filter_lets_through_reaches_callback_ring_and_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("{}/log\0", folder.path().display());
    let lines: &Mutex<Vec<Line>> = Box::leak(Box::default());
    let mut job = null_mut();
    // SAFETY: what the header asks for: structs of ours, texts that live until `trihop_log_install`
    // has returned, a context that is never freed.
    unsafe {
        let mut options = std::mem::zeroed::<trihop_log_options_t>();
        let size = size_of_val(&options);
        assert_eq!(
            trihop_log_options_init(&mut options, size),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        options.record = c"info,queue=sometimes".as_ptr();
        assert_eq!(trihop_log_install(&options), TRIHOP_ERR_CONFIG);
        assert!(last_error().contains("sometimes"), "{}", last_error());
        options.record = c"off,client=trace".as_ptr();
        options.to_stderr = c"off".as_ptr();
        options.file = file.as_ptr().cast();
        options.file_per_rank = 2;
        assert_eq!(trihop_log_install(&options), TRIHOP_ERR_INVALID_ARGUMENT);
        assert!(last_error().contains("file_per_rank"), "{}", last_error());
        options.file_per_rank = 1;
        options.callback = Some(note);
        options.context = (&raw const *lines).cast_mut().cast();
        assert_eq!(trihop_log_install(&options), TRIHOP_OK, "{}", last_error());
        assert_eq!(
            trihop_log_install(&options),
            TRIHOP_ERR_CONFIG,
            "once per process"
        );

        let mut of_job = std::mem::zeroed::<trihop_options_t>();
        let size = size_of_val(&of_job);
        assert_eq!(
            trihop_options_init(&mut of_job, size),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        let set = trihop_options_set(&mut of_job, c"launcher".as_ptr(), c"single".as_ptr());
        assert_eq!(set, TRIHOP_OK, "{}", last_error());
        assert_eq!(
            trihop_init(trihop_seat_t::TRIHOP_THREADED as i32, &of_job, &mut job),
            TRIHOP_OK,
            "{}",
            last_error()
        );
        let dump = format!("{}/dump\0", folder.path().display());
        let dumped = trihop_dump_to_file(job, dump.as_ptr().cast());
        assert_eq!(dumped, TRIHOP_OK, "{}", last_error());
        let dumped = std::fs::read_to_string(folder.path().join("dump")).unwrap();
        assert_eq!(trihop_finalize(job), TRIHOP_OK, "{}", last_error());

        let lines = lines.lock().unwrap();
        let first = lines.first().expect("a job says that it started");
        let known = (1..=5).contains(&first.level) && first.facility == "client";
        assert!(known && !first.text.is_empty(), "{first:?}");
        assert!(
            lines.iter().all(|line| line.facility == "client"),
            "{lines:?}"
        );

        let mut length = 0;
        assert_eq!(
            trihop_log_recent(null_mut(), 0, &mut length),
            TRIHOP_ERR_BUFFER_TOO_SMALL
        );
        let mut recent = vec![0u8; length + 1];
        let status = trihop_log_recent(recent.as_mut_ptr().cast(), length + 1, &mut length);
        assert_eq!(status, TRIHOP_OK, "{}", last_error());
        let recent = CStr::from_bytes_until_nul(&recent)
            .unwrap()
            .to_str()
            .unwrap();
        assert!(recent.contains(&first.text), "{recent}");
        let (state, log) = dumped
            .split_once("last lines of the log:\n")
            .expect(&dumped);
        assert!(state.starts_with("stream 0 "), "{dumped}");
        assert!(
            !log.is_empty() && recent.starts_with(log),
            "{dumped}\n{recent}"
        );
        let written = std::fs::read_to_string(folder.path().join("log.0")).unwrap();
        assert!(written.contains(&first.text), "{written}");
        assert_eq!(
            trihop_log_recent(null_mut(), 0, null_mut()),
            TRIHOP_ERR_INVALID_ARGUMENT
        );
        assert_eq!(trihop_log_install(null()), TRIHOP_ERR_CONFIG);
    }
}
