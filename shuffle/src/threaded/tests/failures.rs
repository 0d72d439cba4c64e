//! What becomes of handlers, callers and dumps once a job has failed, or somebody does not read
//! what is dumped.

use std::ffi::CString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::Receiver;

use trihop_transport::bootstrap::Custom;

use super::*;
use crate::conformance::ranks::ranks;
use crate::error::Result;
use crate::seat::Seating;

const RECORDS: u64 = 1000;

/// Opens a shuffle whose handler waits for a permit at each call, and sends it records; returns
/// when the first call waits.
fn waiting(job: &Job, permits: Receiver<()>, called: impl Fn() + Send + 'static) -> Shuffle {
    let (tell, told) = mpsc::channel();
    let mut first = Some(tell);
    let options = StreamOptions {
        own_thread: true,
        ..StreamOptions::default()
    };
    let slow = job
        .shuffle("slow")
        .options(options)
        .handler(move |_, _| {
            called();
            if let Some(tell) = first.take() {
                tell.send(()).unwrap();
            }
            // An error says that all may go on.
            let _ = permits.recv_timeout(WATCHDOG);
        })
        .open()
        .unwrap();
    for _ in 0..RECORDS {
        slow.send(Rank(0), 0, b"record").unwrap();
    }
    slow.flush(Queues::ORIGIN).unwrap();
    told.recv_timeout(WATCHDOG).unwrap();
    slow
}

/// Ends the job's progress.
fn fail(job: &Job) {
    let fragile = job
        .shuffle("fragile")
        .handler(|_, _| panic!("on purpose"))
        .open()
        .unwrap();
    fragile.send(Rank(0), 0, b"").unwrap();
    assert!(fragile.fence().is_err());
}

/// As `close`, which fails, with the first call of a handler under way. No call may begin after it
/// has returned.
fn no_call_after(close: impl FnOnce(Job, Shuffle) -> Result<()>) {
    let job = job();
    let returned = Arc::new(AtomicBool::new(false));
    let late = Arc::new(AtomicU64::new(0));
    let (permit, permits) = mpsc::channel();
    let slow = waiting(&job, permits, {
        let (returned, late) = (Arc::clone(&returned), Arc::clone(&late));
        move || _ = late.fetch_add(u64::from(returned.load(Ordering::SeqCst)), Ordering::SeqCst)
    });
    fail(&job);
    let releasing = thread::spawn({
        let returned = Arc::clone(&returned);
        move || {
            // Not before the close has returned, where it does although a call is under way.
            for _ in 0..200 {
                if returned.load(Ordering::SeqCst) {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            drop(permit);
        }
    });
    let kept = (job.clone(), slow.clone());
    assert!(close(job, slow).is_err());
    returned.store(true, Ordering::SeqCst);
    releasing.join().unwrap();
    let stats = kept.1.stats().unwrap();
    drop(kept);
    assert_eq!(late.load(Ordering::SeqCst), 0);
    assert_eq!(stats.delivered + stats.undelivered, RECORDS, "{stats}");
}

#[test]
fn no_handler_is_called_after_a_shutdown_of_its_stream_that_failed() {
    no_call_after(|_, slow| slow.shutdown());
}

#[test]
fn no_handler_is_called_after_a_shutdown_of_the_job_that_failed() {
    no_call_after(|job, _| job.shutdown());
}

/// As `end`, with a thousand records queued for a handler. Each call needs a permit, of which there
/// is one every now and then.
fn few_calls_before(end: impl FnOnce(Job, Shuffle)) {
    let job = job();
    let calls = Arc::new(AtomicU64::new(0));
    let (permit, permits) = mpsc::channel();
    let slow = waiting(&job, permits, {
        let calls = Arc::clone(&calls);
        move || _ = calls.fetch_add(1, Ordering::SeqCst)
    });
    fail(&job);
    let ended = Arc::new(AtomicBool::new(false));
    let permitting = thread::spawn({
        let ended = Arc::clone(&ended);
        move || {
            while !ended.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
                let _ = permit.send(());
            }
        }
    });
    end(job, slow);
    ended.store(true, Ordering::SeqCst);
    permitting.join().unwrap();
    let calls = calls.load(Ordering::SeqCst);
    assert!(calls < RECORDS, "all {calls} calls were made");
}

#[test]
fn dropping_a_job_that_failed_waits_for_one_call_and_not_for_all_that_was_queued() {
    few_calls_before(|job, slow| drop((job, slow)));
}

#[test]
fn shutting_a_job_that_failed_down_waits_for_one_call_and_not_for_all_that_was_queued() {
    few_calls_before(|job, _| assert!(job.shutdown().is_err()));
}

#[test]
fn what_one_threads_progress_fails_with_all_hear_of() {
    let job = job();
    let (permit, permits) = mpsc::channel();
    let slow = waiting(&job, permits, || {});
    let fencing = thread::spawn({
        let slow = slow.clone();
        move || slow.fence()
    });
    let kept = job
        .seat()
        .with("a test", |job| {
            for (state, _) in job.engine.open_streams() {
                if let Some(handover) = &state.handover {
                    handover.fail(Error::bad_peer(7, "on purpose"));
                }
            }
            Ok(())
        })
        .and_then(|()| job.seat().progress("a test"))
        .and_then(|_| job.seat().with("a test", |_| Ok(())));
    let failure = Error::bad_peer(7, "on purpose");
    assert_eq!(kept, Err(failure.clone()));
    assert_eq!(fencing.join().unwrap(), Err(failure));
    drop(permit);
    assert!(job.shutdown().is_err());
}

/// Raises a signal that has a handler.
fn raise(signal: i32) {
    // SAFETY: raising a signal that has a handler has no requirements.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

#[test]
fn a_signal_makes_a_job_that_failed_dump_too() {
    let job = job();
    fail(&job);
    let directory = tempfile::tempdir().unwrap();
    job.dump_on(
        libc::SIGUSR1,
        DumpOutput::Files(directory.path().join("dump")),
    )
    .unwrap();
    raise(libc::SIGUSR1);
    until("a dump is written", || {
        let text = std::fs::read_to_string(directory.path().join("dump.0")).unwrap_or_default();
        text.contains("stream 1 `fragile`") && text.contains("thread progress")
    });
    assert!(job.shutdown().is_err());
}

fn make_fifo(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a text that ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[test]
fn a_dump_that_nobody_reads_holds_up_no_progress() {
    let job = job();
    let (tell, told) = mpsc::channel();
    let shuffle = job
        .shuffle("by age")
        .handler(move |m, _| tell.send(m.kind).unwrap())
        .open()
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dump");
    let pipe = directory.path().join("dump.0");
    make_fifo(&pipe);
    job.dump_on(libc::SIGWINCH, DumpOutput::Files(path))
        .unwrap();
    raise(libc::SIGWINCH);
    for kind in 0..5 {
        shuffle.send(Rank(0), kind, b"on its own").unwrap();
        assert_eq!(told.recv_timeout(WATCHDOG), Ok(kind));
        until_asleep(&job);
    }
    let mut text = String::new();
    std::fs::File::open(pipe)
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(
        text.contains("stream 1 `by age`") && text.contains("thread progress"),
        "{text}"
    );
    job.shutdown().unwrap();
}

/// A writer in which the engine is used.
struct Using<'a>(&'a Shuffle);

impl Write for Using<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .send(Rank(0), 0, b"")
            .map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_engine_is_free_while_a_dump_is_written() {
    let job = job();
    let (shuffle, heard) = listening(&job, "used");
    let writing = thread::spawn({
        let (job, shuffle) = (job.clone(), shuffle.clone());
        move || {
            job.dump(&mut Using(&shuffle)).unwrap();
            shuffle.dump(&mut Using(&shuffle)).unwrap();
        }
    });
    until("a dump lets others have the engine", || {
        writing.is_finished()
    });
    writing.join().unwrap();
    shuffle.fence().unwrap();
    assert!(!heard.lock().unwrap().is_empty());
    job.shutdown().unwrap();
}

#[test]
fn an_abort_that_could_not_ask_the_launcher_says_so() {
    let job = job();
    let other = job.clone();
    let asked = job.seat().with("a test", |_| {
        let aborting = thread::spawn(move || other.abort(1, "not asked"));
        Ok(aborting.join().unwrap())
    });
    assert!(!asked.unwrap());
    assert!(job.abort(1, "on purpose"));
    let failed = job.shutdown().unwrap_err();
    assert_eq!(failed.to_string(), "rank 0 has failed: on purpose");
}

#[test]
fn options_that_are_impossible_on_one_rank_keep_no_other_waiting() {
    let program = |rank: u32, bootstrap: Custom| -> Result<Result<()>> {
        let job = Job::start_with(
            Options {
                loopback: true,
                ..Options::default()
            },
            Box::new(bootstrap),
        )?;
        let options = StreamOptions {
            max_message_bytes: [1 << 20, 1 << 40][rank as usize],
            ..StreamOptions::default()
        };
        let stream = job.shuffle("one").options(options).handler(|_, _| {});
        let opened = stream.open().map(drop);
        job.shutdown()?;
        Ok(opened)
    };
    for (rank, outcome) in ranks(2, |_| 0, program) {
        match (rank, outcome) {
            (0, Ok(Err(Error::Mismatch { .. }))) | (1, Ok(Err(Error::Config { .. }))) => {}
            (_, outcome) => panic!("rank {rank}: {outcome:?}"),
        }
    }
}
