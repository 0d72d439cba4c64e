//! Ranks that sleep outside of the library once a call has returned: on the inline seat nobody
//! makes progress for them then, and nobody may need it.

use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use trihop_transport::bootstrap::Custom;

use super::{Shape, over_network};
use crate::conformance::ranks::ranks;
use crate::seat::Seating;
use crate::{End, Job, Rank, Reduce, Result, State};

/// Where the ranks of a job meet without a call of the library: how many have come so far.
type Meeting = (Mutex<u32>, Condvar);

/// Of each test, of which one job runs at a time.
static CALLS: Meeting = (Mutex::new(0), Condvar::new());
static ROUNDS: Meeting = (Mutex::new(0), Condvar::new());
static FENCES: Meeting = (Mutex::new(0), Condvar::new());
static STARTED: Meeting = (Mutex::new(0), Condvar::new());
static ALL: Meeting = (Mutex::new(0), Condvar::new());

/// Jobs of ranks that fence.
const FENCED: [Shape; 4] = [
    (3, |_| 0),
    (2, |rank| rank),
    (6, |rank| rank / 2),
    (8, |rank| rank % 3),
];

/// Runs jobs of these shapes, one after the other.
fn on_shapes(shapes: &[Shape], meeting: &Meeting, run: fn(u32, Custom) -> Result<()>) {
    for &(count, node) in shapes {
        *meeting.0.lock().unwrap() = 0;
        for (rank, outcome) in ranks(count, node, run) {
            outcome.unwrap_or_else(|error| panic!("rank {rank} of {count}: {error}"));
        }
    }
}

fn meet((come, all_here): &Meeting, size: u32) {
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
        meet(&CALLS, size);
        assert!(
            sums.iter()
                .all(|&sum| sum == u64::from(size * (size - 1) / 2))
        );
        come();
        let all = job.allgather(&vec![rank as u8; values])?;
        meet(&CALLS, size);
        assert!(all.iter().all(|of| of.len() == values));
        come();
        let mine = if rank == last {
            vec![7; values]
        } else {
            Vec::new()
        };
        let told = job.broadcast(Rank(last), &mine)?;
        meet(&CALLS, size);
        assert_eq!(told.len(), values);
    }
    job.shutdown()
}

#[test]
fn who_has_the_result_of_a_collective_call_may_sleep_outside_of_the_library() {
    on_shapes(
        &[(2, |_| 0), (5, |_| 0), (6, |rank| rank / 2)],
        &CALLS,
        call_and_sleep,
    );
}

/// Each rank is the last one to end a round in turn, in which all send much to all.
fn end_and_sleep(rank: u32, bootstrap: Custom) -> Result<()> {
    let heard = State::new(0_u64);
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let shuffle = job
        .shuffle("silent rounds")
        .handler_with(&heard, |heard, message, _| {
            *heard += message.bytes.len() as u64;
        })
        .open()?;
    let size = job.size();
    let mut all = 0;
    for (last, bytes) in
        (0..size).flat_map(|last| [8, 3000, 100_000, 700_000].map(|bytes| (last, bytes)))
    {
        for target in 0..size {
            shuffle.send(Rank(target), 0, &vec![7; bytes])?;
        }
        if rank == last {
            thread::sleep(Duration::from_millis(2));
        }
        shuffle.round()?;
        meet(&ROUNDS, size);
        all += u64::from(size) * bytes as u64;
        assert_eq!(heard.with(|heard| *heard), all);
    }
    shuffle.shutdown()?;
    job.shutdown()
}

#[test]
fn who_has_ended_a_round_may_sleep_outside_of_the_library() {
    on_shapes(
        &[
            (2, |_| 0),
            (5, |_| 0),
            (2, |rank| rank),
            (6, |rank| rank / 2),
        ],
        &ROUNDS,
        end_and_sleep,
    );
}

/// Each rank is the last one to come to a fence in turn, before which handlers send on.
fn fence_and_sleep(rank: u32, bootstrap: Custom) -> Result<()> {
    let heard = State::new(0_u64);
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let size = job.size();
    let stream = job
        .stream::<u32>("silent fences")
        .handler_with(&heard, move |heard, _, items, outbox| {
            *heard += items.len() as u64;
            for &left in items.iter().filter(|left| **left > 0) {
                outbox.push(Rank((rank + left) % size), left - 1).unwrap();
            }
        })
        .open()?;
    let mut all = 0;
    for last in (0..size).cycle().take(40) {
        for target in 0..size {
            stream.push(Rank(target), 3)?;
        }
        if rank == last {
            thread::sleep(Duration::from_millis(2));
        }
        stream.fence()?;
        all += 4 * u64::from(size * size);
        let mut sum = [heard.with(|heard| *heard)];
        meet(&FENCES, size);
        job.allreduce(&mut sum, Reduce::Sum)?;
        assert_eq!(sum, [all]);
    }
    stream.shutdown()?;
    job.shutdown()
}

#[test]
fn who_has_ended_a_fence_may_sleep_outside_of_the_library() {
    on_shapes(&FENCED, &FENCES, fence_and_sleep);
}

/// Each rank is the last one to come to a fence of all streams in turn, before which handlers of
/// one send on another. Beside it streams are opened, sent on, and closed at different times.
fn fence_all_and_sleep(rank: u32, bootstrap: Custom) -> Result<()> {
    let heard = State::new([0_u64; 3]);
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let size = job.size();
    let second = job
        .stream::<u32>("second")
        .handler_with(&heard, move |heard, _, items, outbox| {
            heard[1] += items.len() as u64;
            for &left in items.iter().filter(|left| **left > 0) {
                outbox.push(Rank((rank + left) % size), left - 1).unwrap();
            }
        })
        .open()?;
    let on_second = second.clone();
    let first = job
        .stream::<u32>("first")
        .handler_with(&heard, move |heard, source, items, outbox| {
            heard[0] += items.len() as u64;
            for &left in items {
                outbox.on(&on_second).unwrap().push(source, left).unwrap();
            }
        })
        .open()?;
    let mut all = [0; 3];
    let check = |all: [u64; 3]| -> Result<()> {
        let mut sums = heard.with(|heard| *heard);
        meet(&ALL, size);
        job.allreduce(&mut sums, Reduce::Sum)?;
        assert_eq!(sums, all);
        Ok(())
    };
    for last in (0..size).cycle().take(24) {
        for target in 0..size {
            first.push(Rank(target), 2)?;
        }
        let pairs = u64::from(size * size);
        (all[0], all[1]) = (all[0] + pairs, all[1] + 3 * pairs);
        if rank == last {
            thread::sleep(Duration::from_millis(2));
        }
        job.fence()?;
        check(all)?;
        job.start_fence()?;
        let beside = job
            .stream::<u64>("beside")
            .handler_with(&heard, |heard, _, items, _| heard[2] += items.len() as u64)
            .open()?;
        for target in 0..size {
            beside.push(Rank(target), 7)?;
        }
        all[2] += pairs;
        job.wait_fence()?;
        job.fence()?;
        check(all)?;
        if rank != last {
            // Some have closed it, and are in the next fence, while another one has not.
            beside.shutdown()?;
            first.push(Rank(last), 2)?;
        } else {
            beside.shutdown()?;
            thread::sleep(Duration::from_millis(2));
        }
        let more = u64::from(size - 1);
        (all[0], all[1]) = (all[0] + more, all[1] + 3 * more);
        job.fence()?;
        check(all)?;
    }
    first.shutdown()?;
    second.shutdown()?;
    job.shutdown()
}

#[test]
fn who_has_ended_a_fence_of_all_streams_may_sleep_outside_of_the_library() {
    on_shapes(&FENCED, &ALL, fence_all_and_sleep);
}

/// The ranks that other nodes speak with start a fence, and make progress until it is known to be
/// over; all others wait for it.
fn start_and_sleep(rank: u32, bootstrap: Custom) -> Result<()> {
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let size = job.size();
    let stream = job.stream::<u32>("started").handler(|_, _, _| ()).open()?;
    for _ in 0..50 {
        stream.push(Rank((rank + 1) % size), 7)?;
        stream.start(End::Fence)?;
        let channel = job.seat().with("a look", |job| {
            let (state, _) = job.engine.open_streams().nth(1).expect("it is open");
            Ok(state.id)
        })?;
        let look = || {
            job.seat().with("a look", |job| {
                let is_counting = job.engine.collectives.is_counting(channel);
                Ok((is_counting, job.engine.has_passed_on_results()))
            })
        };
        job.progress()?;
        match look()?.0 {
            true => {
                while look()? != (false, true) {
                    job.progress()?;
                }
                meet(&STARTED, size);
                stream.wait()?;
            }
            false => {
                stream.wait()?;
                meet(&STARTED, size);
            }
        }
    }
    stream.shutdown()?;
    job.shutdown()
}

#[test]
fn who_hears_that_a_fence_is_over_tells_its_node_before_it_returns() {
    on_shapes(
        &[(4, |rank| rank / 2), (6, |rank| rank / 2)],
        &STARTED,
        start_and_sleep,
    );
}

/// Handlers send long records while their rank ends a round, behind its marks: these wait for the
/// end of the round at their targets, and so may keep nobody from it.
fn send_behind(rank: u32, bootstrap: Custom) -> Result<()> {
    let heard = State::new([0_u32; 2]);
    let job = Job::start_with(over_network(), Box::new(bootstrap))?;
    let shuffle = job
        .shuffle("behind")
        .handler_with(&heard, |heard, message, outbox| {
            heard[message.kind as usize] += 1;
            if message.kind == 0 {
                for _ in 0..6 {
                    outbox.send(message.source, 1, &[7; 300_000]).unwrap();
                }
            }
        })
        .open()?;
    let (size, rounds) = (job.size(), 20);
    for _ in 0..rounds {
        for target in (0..size).filter(|&target| target != rank) {
            shuffle.send(Rank(target), 0, b"answer this")?;
        }
        shuffle.round()?;
    }
    shuffle.fence()?;
    let asked = rounds * (size - 1);
    assert_eq!(heard.with(|heard| *heard), [asked, 6 * asked]);
    shuffle.shutdown()?;
    job.shutdown()
}

#[test]
fn what_handlers_send_behind_the_end_of_a_round_keeps_nobody_in_it() {
    let shapes: [Shape; 2] = [(2, |rank| rank), (4, |rank| rank / 2)];
    for (count, node) in shapes {
        for (rank, outcome) in ranks(count, node, send_behind) {
            outcome.unwrap_or_else(|error| panic!("rank {rank} of {count}: {error}"));
        }
    }
}
