//! Memory: it does not grow with the number of messages, and never passes the bound that `dump`
//! prints.

use trihop::route::{JobRoute, RouteName};
use trihop::{Error, Job, Rank, Stream, StreamOptions};

use crate::ranks::on_ranks;

/// Resident pages of this process that no file on disk backs, in bytes: its heap, its pools, and
/// what it has touched of its node's shared memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    1024 * (kib(&status, "RssAnon:") + kib(&status, "RssShmem:"))
}

/// Value of a line of `/proc/self/status` or `smaps_rollup`, in KiB.
pub fn kib(text: &str, name: &str) -> u64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Sends this rank's share of `messages` items to all ranks in turn.
fn exchange(job: &Job<'_>, stream: &Stream<'_, u64>, messages: u64) {
    let size = u64::from(job.size());
    let items = (0..messages / size).map(|number| (Rank((number % size) as u32), number));
    stream.extend(items).unwrap();
    stream.fence().unwrap();
}

/// The same, but each rank fills all its queues before it makes one round of progress: whatever can
/// be in use at a time has been in use after some thousand messages.
fn fill_queues(job: &Job<'_>, stream: &Stream<'_, u64>, messages: u64) {
    let size = u64::from(job.size());
    let mut sent = 0;
    while sent < messages / size {
        for target in 0..job.size() {
            loop {
                match stream.try_push(Rank(target), sent) {
                    Ok(()) => sent += 1,
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        job.progress().unwrap();
    }
    stream.fence().unwrap();
}

/// A stream of which all memory is touched, and all memory of the provider: that has a ring of
/// completions, whose pages become resident one by one until it was once around.
pub fn warmed_up<'h>(job: &Job<'h>) -> Stream<'h, u64> {
    // Each run is a batch, and runs are short, so that what is used or leaks once per batch shows.
    let options = StreamOptions {
        remote_buftarget_bytes: 128,
        run_bytes: 1024,
        ..StreamOptions::default()
    };
    let stream = job
        .stream("items")
        .options(options)
        .handler(|_, _, _| ())
        .open()
        .unwrap();
    fill_queues(job, &stream, 100_000);
    exchange(job, &stream, 5_000_000);
    stream
}

/// Growth that is still the same memory: sixteen pages of the allocator's and the provider's own.
/// It would take a leak of less than a hundredth of a byte per message, or of two bytes per batch,
/// to stay below.
const SAME_BYTES: u64 = 64 << 10;

#[test]
fn resident_memory_is_the_same_after_a_hundred_times_as_many_messages() {
    let test = "memory::resident_memory_is_the_same_after_a_hundred_times_as_many_messages";
    for nodes in ["2", "2,2"] {
        on_ranks(test, nodes, |job| {
            let stream = warmed_up(&job);
            exchange(&job, &stream, 100_000);
            let (before, batches) = (resident_bytes(), stream.stats().unwrap().batches_received);
            exchange(&job, &stream, 9_900_000);
            let (after, batches) = (
                resident_bytes(),
                stream.stats().unwrap().batches_received - batches,
            );
            eprintln!(
                "{before} bytes resident after 10^5 messages, {after} after 10^7; {batches} batches received"
            );
            assert!(
                after <= before + SAME_BYTES,
                "{} bytes more after 10^7 messages than after 10^5",
                after - before
            );
            let route = JobRoute::new(RouteName::default(), job.topology()).unwrap();
            let relays = route.links() > 0;
            assert!(!relays || batches > 5_000, "{batches} batches received");
            job.shutdown().unwrap();
        });
    }
}
