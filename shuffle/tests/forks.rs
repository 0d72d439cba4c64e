//! A process that forks while it has a job: the fork, which has none of the job's threads, drops
//! what it has of it and ends, and the job goes on.

use std::time::{Duration, Instant};

use trihop_shuffle::guest::Guest;
use trihop_shuffle::{Job, Options, Rank, minirank, threaded};

/// What a fork ends with that has come to its end.
const ENDS: i32 = 3;

/// Who takes longer hangs.
const HANGS: Duration = Duration::from_secs(30);

/// A fork drops these, and ends.
fn dropped_by_a_fork<T>(all: T) -> T {
    // SAFETY: the fork drops what it was given, and ends by `_exit`. glibc sees to it that it may
    // use its heap, and no other thread of a test holds another lock for long.
    let fork = unsafe { libc::fork() };
    assert!(fork >= 0, "no further process");
    if fork == 0 {
        drop(all);
        // SAFETY: nothing of this process runs behind it.
        unsafe { libc::_exit(ENDS) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: it is a child of this process, and `status` is writable.
    while unsafe { libc::waitpid(fork, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > HANGS {
            // SAFETY: the child has not been waited for.
            unsafe { libc::kill(fork, libc::SIGKILL) };
            panic!("the fork hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), ENDS);
    all
}

#[test]
fn a_fork_drops_a_job_with_threads_and_the_job_goes_on() {
    let (tell, told) = std::sync::mpsc::channel();
    let job = threaded::Job::start(Options::default()).unwrap();
    let shuffle = job.shuffle("letters").handler(move |message, _| {
        tell.send(message.kind).unwrap();
    });
    let shuffle = shuffle.open().unwrap();
    let (shuffle, job) = dropped_by_a_fork((shuffle, job));
    shuffle.send(Rank(0), 7, b"a letter").unwrap();
    shuffle.fence().unwrap();
    assert_eq!(told.try_recv(), Ok(7));
    shuffle.shutdown().unwrap();
    job.shutdown().unwrap();
}

#[test]
fn a_fork_drops_an_inline_job_and_the_job_goes_on() {
    let job = Job::start(Options::default()).unwrap();
    let shuffle = job.shuffle("letters").open().unwrap();
    let (shuffle, job) = dropped_by_a_fork((shuffle, job));
    shuffle.send(Rank(0), 7, b"a letter").unwrap();
    shuffle.fence().unwrap();
    assert_eq!(shuffle.take(|message| assert_eq!(message.kind, 7)), Ok(1));
    shuffle.shutdown().unwrap();
    job.shutdown().unwrap();
}

#[test]
fn a_fork_drops_a_host_of_mini_ranks_and_they_go_on() {
    let host = minirank::Host::start(Options::default(), 2).unwrap();
    let host = dropped_by_a_fork(host);
    std::thread::scope(|scope| {
        for index in 0..host.ranks() {
            let mini = host.minirank(index).unwrap();
            scope.spawn(move || {
                let job = mini.start().unwrap();
                minirank::barrier(&job).unwrap();
                job.shutdown().unwrap();
            });
        }
    });
    host.finish().unwrap();
}

#[test]
fn a_fork_drops_a_server_of_guests_and_it_goes_on() {
    let job = threaded::Job::start(Options::default()).unwrap();
    let channels = job.channels("letters").open().unwrap();
    let name = format!("trihop-test-forks-{}", std::process::id());
    let guests = channels.serve_guests(&name).unwrap();
    let guests = dropped_by_a_fork(guests);
    drop(Guest::of(&name, HANGS).unwrap());
    drop(guests);
    channels.shutdown().unwrap();
    job.shutdown().unwrap();
}
