//! Ranks that end different steps: each hears which, of the stream by its name, and who waits.

#![allow(clippy::disallowed_types, reason = "what the ranks of a test share")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use trihop_transport::bootstrap::Custom;

use super::{LONG, over_network};
use crate::conformance::ranks::ranks;
use crate::seat::Seating;
use crate::{End, Error, Job, Rank, Result};

/// Ranks that have found what they look for.
static FOUND: AtomicU32 = AtomicU32::new(0);

/// Makes progress until the reasons have these words, and the others have found theirs.
fn find(job: &Job<'_>, words: &[&str]) -> Result<()> {
    let (begun, mut has_found) = (Instant::now(), false);
    while FOUND.load(Ordering::Relaxed) < job.size() {
        job.progress()?;
        let reasons = job.seat().with("a test", |job| Ok(job.reasons(16)))?;
        let reasons = reasons.join("\n");
        assert!(begun.elapsed() < LONG, "no {words:?} in\n{reasons}");
        if !has_found && words.iter().all(|words| reasons.contains(words)) {
            has_found = true;
            FOUND.fetch_add(1, Ordering::Relaxed);
        }
        thread::yield_now();
    }
    Ok(())
}

fn differ(rank: u32, bootstrap: Custom) -> Result<()> {
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let open = |name| job.stream::<u64>(name).handler(|_, _, _| ()).open();
    let (alpha, beta) = (open("alpha")?, open("beta")?);
    alpha.push(Rank(1 - rank), 1)?;
    if rank == 0 {
        alpha.start(End::Round)?;
        let words = [
            "`alpha`: the end of a round waits for rank 1",
            "`beta`: this rank has not come to a fence, or the end of a step, others have: rank 1",
        ];
        find(&job, &words)?;
        alpha.wait()?;
        beta.fence()?;
    } else {
        beta.start(End::Fence)?;
        let words = [
            "`alpha`: this rank has not come to the end of a round, others have: rank 0",
            "`beta`: a fence, or the end of a step, waits for ranks that have not come to it, or \
             whose contributors are not done: rank 0",
        ];
        find(&job, &words)?;
        alpha.round()?;
        beta.wait()?;
    }
    job.shutdown()
}

#[test]
fn ranks_that_end_different_steps_hear_which() {
    for (rank, outcome) in ranks(2, |_| 0, differ) {
        outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}

/// One rank calls a barrier, and the others a fence.
fn call(lone: u32, rank: u32, bootstrap: Custom) -> Result<()> {
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let stream = job.stream::<u64>("alpha").handler(|_, _, _| ()).open()?;
    match rank == lone {
        true => stream.barrier(),
        false => stream.fence(),
    }
}

#[test]
fn ranks_that_call_a_fence_and_a_barrier_hear_so() {
    // On one node, and where ranks 0 and 1 are on another one than ranks 2 and 3.
    let nodes: [fn(u32) -> u32; 2] = [|_| 0, |rank| rank / 2];
    for (lone, node) in (0..4).flat_map(|lone| nodes.map(|node| (lone, node))) {
        let outcomes = ranks(4, node, move |rank, bootstrap| call(lone, rank, bootstrap));
        let is_mismatch = |of: &Result<()>| matches!(of, Err(Error::Mismatch { .. }));
        let all = outcomes.iter().map(|(_, outcome)| outcome);
        assert!(all.clone().any(is_mismatch), "{outcomes:?}");
        assert!(all.clone().all(Result::is_err), "{outcomes:?}");
    }
}

/// The first fences a stream, and the other one all of them.
fn differ_in_streams(rank: u32, bootstrap: Custom) -> Result<()> {
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let alpha = job.stream::<u64>("alpha").handler(|_, _, _| ()).open()?;
    alpha.push(Rank(1 - rank), 1)?;
    if rank == 0 {
        alpha.start(End::Fence)?;
        let words = [
            "all streams: this rank has not come to a fence, or the end of a step, others have: \
             rank 1",
            "`alpha`: a fence, or the end of a step, waits for ranks that have not come to it, or \
             whose contributors are not done: rank 1",
        ];
        find(&job, &words)?;
    } else {
        job.start_fence()?;
        let words = [
            "`alpha`: this rank has not come to a fence, or the end of a step, others have: rank 0",
            "all streams: a fence, or the end of a step, waits for ranks that have not come to it, \
             or whose contributors are not done: rank 0",
        ];
        find(&job, &words)?;
    }
    // Nothing ends what they have begun.
    std::mem::forget(job);
    Ok(())
}

#[test]
fn ranks_that_fence_a_stream_and_all_of_them_hear_so() {
    for (rank, outcome) in ranks(2, |_| 0, differ_in_streams) {
        outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    }
}
