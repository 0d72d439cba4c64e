//! In steady state no message costs an allocation, wherever it passes: at its source, at both
//! representatives, at its target.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use trihop::{Job, Rank, Reduce, Shuffle, Stats, Stream, StreamOptions};

use crate::allocator::counted;
use crate::ranks::{on_ranks, on_ranks_with};

/// What a whole phase may allocate, whatever the number of its messages. The fence at its end has a
/// count of all nodes, or a few, with some small allocations each; and a queue may once become
/// longer than it ever was before, which its bound ends.
const PER_PHASE: u64 = 256;

/// What it may allocate besides in each second that it lasts: a rank that waits writes down why,
/// once a second, and at most twice as often where calls wait for long, for `trihop top`.
const PER_SECOND: u64 = 128;
const MOST_SECONDS: u64 = 5;

/// Messages of the counted phases, all sources together. The second shows growth.
const PHASES: [u64; 2] = [100_000, 1_000_000];

/// Who sends to whom.
#[derive(Clone, Copy)]
enum Pattern {
    /// Rank 0 to the last rank: with two nodes of two ranks, each rank has one role of the four.
    Chain,
    /// Every rank to every rank, itself included.
    All,
}

/// One rank's part of a case. The numbers of received messages are shared with its handler.
struct Case<'a> {
    job: &'a Job<'static>,
    pattern: Pattern,
    received: &'static Cell<u64>,
}

impl Case<'_> {
    /// Sends this rank's share of `messages`, in turn to all its targets, and waits until all are
    /// everywhere. Returns how many it sent.
    fn exchange(
        &self,
        messages: u64,
        mut send: impl FnMut(Rank, u64),
        fence: impl FnOnce(),
    ) -> u64 {
        let size = u64::from(self.job.size());
        let me = u64::from(self.job.rank().0);
        let (share, targets) = match self.pattern {
            Pattern::Chain if me == 0 => (messages, 1),
            Pattern::Chain => (0, 1),
            Pattern::All => (messages / size, size),
        };
        for number in 0..share {
            send(Rank((size - 1 - (number + me) % targets) as u32), number);
        }
        fence();
        share
    }

    /// Warms up, then counts the phases: none may allocate more than a constant.
    fn check(
        &self,
        what: &str,
        scale: u64,
        mut send: impl FnMut(Rank, u64),
        fence: impl Fn(),
        stats: impl Fn() -> Stats,
    ) {
        let phases = PHASES.map(|messages| messages / scale);
        let mut sent = self.exchange(2 * phases[0], &mut send, &fence);
        let mut calls = [(0, 0); PHASES.len()];
        for (calls, messages) in calls.iter_mut().zip(phases) {
            self.job.barrier().unwrap();
            let begun = Instant::now();
            let (count, made) = counted(|| self.exchange(messages, &mut send, &fence));
            *calls = (made, bound(begun.elapsed()));
            sent += count;
        }
        let mut all = [sent, self.received.get()];
        self.job.allreduce(&mut all, Reduce::Sum).unwrap();
        assert_eq!(all[0], all[1], "messages sent and received");
        let role = self.role(&stats());
        eprintln!(
            "{what}, {role}: {calls:?} allocations in phases of {phases:?} messages ({} in all on this rank)",
            stats().sent
        );
        for ((calls, most), messages) in calls.iter().zip(phases) {
            assert!(
                calls <= most,
                "{what}: {role} made {calls} allocations for {messages} messages, at most {most} are of the phase \
                 itself; BUDGET_BACKTRACE=1 shows where"
            );
        }
    }

    /// What this rank did in the case, and that it really did.
    fn role(&self, stats: &Stats) -> &'static str {
        let nodes = self.job.topology().nodes();
        if let (Pattern::Chain, 2, 4) = (self.pattern, nodes, self.job.size()) {
            let role = ["SRC", "SRCREP", "DSTREP", "DST"][self.job.rank().0 as usize];
            let worked = match role {
                "SRC" => stats.sent,
                "SRCREP" => stats.runs_to_fabric,
                "DSTREP" => stats.runs_from_fabric,
                _ => stats.delivered,
            };
            assert!(worked > 0, "{role} has done nothing: {stats:?}");
            return role;
        }
        "everything"
    }
}

/// What a phase that has lasted so long may allocate.
fn bound(lasted: Duration) -> u64 {
    PER_PHASE + PER_SECOND * lasted.as_secs().min(MOST_SECONDS)
}

/// A counter that handlers can keep for as long as the job lives.
fn counter() -> &'static Cell<u64> {
    Box::leak(Box::new(Cell::new(0)))
}

/// Items of 8 bytes.
fn items(job: Job<'static>, pattern: Pattern) {
    let received = counter();
    let stream: Stream<'_, u64> = job
        .stream("items")
        .handler(move |_, items, _| received.set(received.get() + items.len() as u64))
        .open()
        .unwrap();
    let case = Case {
        job: &job,
        pattern,
        received,
    };
    case.check(
        "items of 8 B",
        1,
        |target, number| stream.push(target, number).unwrap(),
        || stream.fence().unwrap(),
        || stream.stats().expect("no handler runs"),
    );
    job.shutdown().unwrap();
}

/// Records of `bytes` bytes; `scale` divides the number of messages.
fn records(job: Job<'static>, pattern: Pattern, bytes: usize, scale: u64) {
    let received = counter();
    let shuffle = job
        .shuffle("records")
        .handler(move |message, _| {
            assert_eq!(message.bytes.len(), bytes);
            received.set(received.get() + 1);
        })
        .open()
        .unwrap();
    let payload = vec![1; bytes];
    let case = Case {
        job: &job,
        pattern,
        received,
    };
    case.check(
        &format!("records of {bytes} B"),
        scale,
        |target, number| shuffle.send(target, number as u32, &payload).unwrap(),
        || shuffle.fence().unwrap(),
        || shuffle.stats().expect("no handler runs"),
    );
    job.shutdown().unwrap();
}

/// One rail between two nodes, so that ranks are three hops apart.
const ALL_HOPS: [(&str, &str); 1] = [("TRIHOP_ROUTE", "three-hop:1")];

#[test]
fn waiting_allocates_little() {
    let test = "allocations::waiting_allocates_little";
    on_ranks(test, "2,2", |job| {
        let stream = job.stream::<u64>("items").handler(|_, _, _| ());
        let stream = stream.open().unwrap();
        stream.push(Rank(0), 1).unwrap();
        stream.fence().unwrap();
        let begun = Instant::now();
        let (_, calls) = counted(|| {
            if job.rank().0 == 3 {
                thread::sleep(Duration::from_secs(3));
            }
            stream.fence().unwrap();
        });
        let most = bound(begun.elapsed());
        eprintln!("{calls} allocations in a wait, at most {most}");
        assert!(calls <= most, "{calls} allocations in a wait");
        job.shutdown().unwrap();
    });
}

#[test]
fn items_allocate_nothing_on_any_of_three_hops() {
    let test = "allocations::items_allocate_nothing_on_any_of_three_hops";
    on_ranks_with(test, "2,2", &ALL_HOPS, |job| items(job, Pattern::Chain));
}

#[test]
fn items_from_all_to_all_allocate_nothing() {
    let test = "allocations::items_from_all_to_all_allocate_nothing";
    for nodes in ["3", "2,2", "3,1"] {
        on_ranks(test, nodes, |job| items(job, Pattern::All));
    }
}

#[test]
fn items_over_direct_connections_allocate_nothing() {
    let test = "allocations::items_over_direct_connections_allocate_nothing";
    on_ranks_with(test, "2,2", &[("TRIHOP_ROUTE", "direct")], |job| {
        items(job, Pattern::All);
    });
}

#[test]
fn records_allocate_nothing_on_any_of_three_hops() {
    let test = "allocations::records_allocate_nothing_on_any_of_three_hops";
    on_ranks_with(test, "2,2", &ALL_HOPS, |job| {
        records(job, Pattern::Chain, 8, 1)
    });
}

#[test]
fn records_of_a_kibibyte_allocate_nothing_on_any_of_three_hops() {
    let test = "allocations::records_of_a_kibibyte_allocate_nothing_on_any_of_three_hops";
    on_ranks_with(test, "2,2", &ALL_HOPS, |job| {
        records(job, Pattern::Chain, 1024, 4)
    });
}

#[test]
fn records_from_all_to_all_allocate_nothing() {
    let test = "allocations::records_from_all_to_all_allocate_nothing";
    for nodes in ["3", "2,2"] {
        on_ranks(test, nodes, |job| records(job, Pattern::All, 24, 1));
    }
}

#[test]
fn records_of_many_fragments_allocate_nothing() {
    let test = "allocations::records_of_many_fragments_allocate_nothing";
    for nodes in ["3", "2,2"] {
        on_ranks(test, nodes, |job| records(job, Pattern::All, 40_000, 100));
    }
}

#[test]
fn records_that_wait_to_be_taken_allocate_nothing() {
    let test = "allocations::records_that_wait_to_be_taken_allocate_nothing";
    on_ranks(test, "2,2", |job| {
        let received = counter();
        // A short queue, so that the warm-up sees it full.
        let options = StreamOptions {
            deliverq_max: 128,
            ..StreamOptions::default()
        };
        let shuffle = job.shuffle("untaken").options(options).open().unwrap();
        let case = Case {
            job: &job,
            pattern: Pattern::All,
            received,
        };
        let take = |shuffle: &Shuffle<'_>| {
            shuffle.take(|_| received.set(received.get() + 1)).unwrap();
        };
        case.check(
            "records of 300 B that are taken",
            4,
            |target, number| {
                while let Err(error) = shuffle.try_send(target, number as u32, &[1; 300]) {
                    assert!(matches!(error, trihop::Error::WouldBlock), "{error}");
                    take(&shuffle);
                }
            },
            || {
                while let Err(error) = shuffle.fence() {
                    assert!(matches!(error, trihop::Error::WouldBlock), "{error}");
                    take(&shuffle);
                }
                take(&shuffle);
            },
            || shuffle.stats().expect("no handler runs"),
        );
        job.shutdown().unwrap();
    });
}

#[test]
fn handlers_that_answer_allocate_nothing() {
    let test = "allocations::handlers_that_answer_allocate_nothing";
    on_ranks(test, "2,2", |job| {
        let received = counter();
        let stream = job
            .stream::<[u64; 2]>("questions")
            .handler(move |source, items, outbox| {
                for &[number, answered] in items {
                    if answered == 0 {
                        outbox.push(source, [number, 1]).unwrap();
                    } else {
                        received.set(received.get() + 1);
                    }
                }
            })
            .open()
            .unwrap();
        let case = Case {
            job: &job,
            pattern: Pattern::All,
            received,
        };
        case.check(
            "items of 16 B that are answered",
            2,
            |target, number| stream.push(target, [number, 0]).unwrap(),
            || stream.fence().unwrap(),
            || stream.stats().expect("no handler runs"),
        );
        job.shutdown().unwrap();
    });
}
