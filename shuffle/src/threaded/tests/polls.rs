//! A program that asks again and again, and does not wait.

use std::time::Instant;

use super::*;

/// Polls for so long without a pause; whether the progress thread has left progress to that.
fn poll_for(job: &Job, time: Duration) -> bool {
    let end = Instant::now() + time;
    let mut stands_by = false;
    while Instant::now() < end && !stands_by {
        job.progress().unwrap();
        stands_by = job.seat().stands_by() == Some(true);
    }
    stands_by
}

#[test]
fn who_polls_without_a_pause_makes_progress_in_place_of_the_progress_thread() {
    let job = job();
    for _ in 0..2 {
        until_asleep(&job);
        assert!(poll_for(&job, WATCHDOG));
        // And no longer.
        until("it looks after the job", || {
            job.seat().stands_by() == Some(false)
        });
    }
    job.shutdown().unwrap();
}

#[test]
fn who_polls_between_pauses_has_the_progress_thread_go_on() {
    let job = job();
    until_asleep(&job);
    for _ in 0..200 {
        for _ in 0..2 {
            job.progress().unwrap();
        }
        assert_ne!(job.seat().stands_by(), Some(true));
        thread::sleep(Duration::from_micros(500));
        assert_ne!(job.seat().stands_by(), Some(true));
    }
    job.shutdown().unwrap();
}

/// Where they have cores enough not to yield at once.
#[test]
fn polls_of_threads_are_counted_until_one_finds_something() {
    let job = job();
    if job.seat().fruitless_polls().is_none() {
        eprintln!("skipped: this machine has one core");
        return job.shutdown().unwrap();
    }
    let fruitless = || job.seat().fruitless_polls().unwrap();
    while !job.progress().unwrap() && fruitless() < 3 {}
    job.seat().give_way(false);
    assert!(fruitless() > 0);
    job.seat().give_way(true);
    assert_eq!(fruitless(), 0);
    job.shutdown().unwrap();
}
