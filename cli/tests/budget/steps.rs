//! Steps that begin and end for ever: nothing is left of those before.

use std::cell::Cell;

use trihop::{Contributors, End, Job, Rank, Stream};

use crate::ranks::on_ranks;
use crate::streams::Held;

/// Steps that each phase takes, of each kind.
const STEPS: u64 = 1000;

/// How the steps of a phase end.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Round,
    Fence,
    /// Contributors of each rank.
    Local,
    /// Those of all ranks together, of which handlers are some.
    All,
    /// Contributors of each rank; what is called at the end begins the next step.
    Chained,
}

const KINDS: [Kind; 5] = [
    Kind::Round,
    Kind::Fence,
    Kind::Local,
    Kind::All,
    Kind::Chained,
];

/// A message whose handler is a contributor.
const CONTRIBUTES: u64 = 1;

/// One to each rank.
fn send(stream: &Stream<'_, u64>, item: u64) {
    for target in 0..stream.size() {
        stream.push(Rank(target), item).unwrap();
    }
}

/// A step that begins the next one, until none is left.
fn chain<'h>(stream: &Stream<'h, u64>, left: &'h Cell<u64>) {
    let step = stream
        .step(Contributors::Local(1))
        .priority((left.get() % 3) as u8)
        .at_start(|stream| {
            send(stream, 0);
            stream.done(1).unwrap();
        })
        .at_end(move |stream| {
            left.set(left.get() - 1);
            if left.get() > 0 {
                chain(stream, left);
            }
        });
    drop(step.begin().unwrap());
}

fn take_steps(stream: &Stream<'static, u64>, kind: Kind, left: &'static Cell<u64>) {
    let size = u64::from(stream.size());
    if let Kind::Chained = kind {
        left.set(STEPS);
        chain(stream, left);
        while left.get() > 0 {
            stream.wait().unwrap();
        }
        return;
    }
    for _ in 0..STEPS {
        match kind {
            Kind::Round | Kind::Fence => {
                send(stream, 0);
                stream.start(match kind {
                    Kind::Round => End::Round,
                    _ => End::Fence,
                })
            }
            Kind::Local => stream.begin_step(Contributors::Local(1)).map(|_| {
                send(stream, 0);
                stream.done(1).unwrap();
            }),
            _ => stream
                .begin_step(Contributors::All(size * size))
                .map(|_| send(stream, CONTRIBUTES)),
        }
        .unwrap();
        stream.wait().unwrap();
    }
}

fn steps_of_each_kind(job: Job<'static>) {
    let left: &'static Cell<u64> = Box::leak(Box::default());
    let stream = job.stream::<u64>("steps").handler(|_, items, outbox| {
        let contributors = items.iter().filter(|&&item| item == CONTRIBUTES).count();
        if contributors > 0 {
            outbox.done(contributors as u64).unwrap();
        }
    });
    let stream = stream.open().unwrap();
    // The first time warms up: queues and lists get the length that they need.
    let phase = |kind| {
        take_steps(&stream, kind, left);
        Held::now()
    };
    let before = KINDS.map(phase);
    let after = KINDS.map(phase);
    let warm = before[KINDS.len() - 1];
    eprintln!("rank {}: {warm:?}, then {after:?}", job.rank());
    for (kind, after) in KINDS.iter().zip(after) {
        after.check_against(&warm, &format!("{STEPS} steps by {kind:?}"));
    }
    job.shutdown().unwrap();
}

#[test]
fn steps_that_begin_and_end_for_ever_take_nothing_more_between_nodes() {
    let test = "steps::steps_that_begin_and_end_for_ever_take_nothing_more_between_nodes";
    on_ranks(test, "1,1", steps_of_each_kind);
}

#[test]
fn steps_that_begin_and_end_for_ever_take_nothing_more_inside_a_node() {
    let test = "steps::steps_that_begin_and_end_for_ever_take_nothing_more_inside_a_node";
    on_ranks(test, "3", steps_of_each_kind);
}
