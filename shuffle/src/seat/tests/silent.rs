//! Ranks that sleep outside of the library once a call has returned: on the inline seat nobody
//! makes progress for them then, and nobody may need it.

use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use trihop_transport::bootstrap::Custom;

use super::{Shape, over_network};
use crate::conformance::ranks::ranks;
use crate::{Job, Rank, Reduce, Result};

/// Where the ranks of the test's job meet without a call of the library: how many have come so far.
/// One job runs at a time.
static MEETING: (Mutex<u32>, Condvar) = (Mutex::new(0), Condvar::new());

fn meet(size: u32) {
    let (come, all_here) = &MEETING;
    let mut come = come.lock().unwrap();
    *come += 1;
    let all = come.div_ceil(size) * size;
    all_here.notify_all();
    drop(all_here.wait_while(come, |come| *come < all).unwrap());
}

/// Each rank is the last one to come to a collective call in turn, with results of all lengths.
fn call_and_sleep(rank: u32, bootstrap: Custom) -> Result<()> {
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let size = job.size();
    for (last, values) in
        (0..size).flat_map(|last| [1, 30, 64, 300, 2000, 20_000].map(|n| (last, n)))
    {
        let come = || {
            if rank == last {
                thread::sleep(Duration::from_millis(2));
            }
        };
        come();
        let mut sums = vec![u64::from(rank); values];
        job.allreduce(&mut sums, Reduce::Sum)?;
        meet(size);
        assert!(
            sums.iter()
                .all(|&sum| sum == u64::from(size * (size - 1) / 2))
        );
        come();
        let all = job.allgather(&vec![rank as u8; values])?;
        meet(size);
        assert!(all.iter().all(|of| of.len() == values));
        come();
        let mine = if rank == last {
            vec![7; values]
        } else {
            Vec::new()
        };
        let told = job.broadcast(Rank(last), &mine)?;
        meet(size);
        assert_eq!(told.len(), values);
    }
    job.shutdown()
}

#[test]
fn who_has_the_result_of_a_collective_call_may_sleep_outside_of_the_library() {
    let shapes: [Shape; 3] = [(2, |_| 0), (5, |_| 0), (6, |rank| rank / 2)];
    for (count, node) in shapes {
        *MEETING.0.lock().unwrap() = 0;
        for (rank, outcome) in ranks(count, node, call_and_sleep) {
            outcome.unwrap_or_else(|error| panic!("rank {rank} of {count}: {error}"));
        }
    }
}
