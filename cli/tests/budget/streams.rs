//! Opening and closing streams, and steps: what one has taken is given back, or used again by the
//! next.

use std::cell::Cell;
use std::rc::Rc;

use trihop::{Contributors, Job, Rank, StreamOptions};

use crate::memory::kib;
use crate::ranks::on_ranks;

/// Streams that each phase opens and closes, one after the other.
const STREAMS: u32 = 500;

/// Steps that each phase begins and ends.
const STEPS: u32 = 3000;

/// What a process holds: descriptors, mappings, resident memory in KiB.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    descriptors: usize,
    mappings: usize,
    resident_kib: u64,
}

impl Held {
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            mappings: std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .lines()
                .count(),
            resident_kib: kib(&status, "RssAnon:") + kib(&status, "RssShmem:"),
        }
    }

    /// It is what was held before `what`, but for a few pages of the allocator's.
    pub fn check_against(&self, before: &Self, what: &str) {
        let text = format!("{what}: {before:?}, then {self:?}");
        assert_eq!(self.descriptors, before.descriptors, "{text}");
        assert!(self.mappings <= before.mappings + 2, "{text}");
        assert!(self.resident_kib <= before.resident_kib + 256, "{text}");
    }
}

/// Opens a stream, sends to everybody, closes it.
fn use_once(job: &Job<'_>, number: u32, options: &StreamOptions) {
    // The job's handlers live as long as the job, so they own what they count in.
    let count = Rc::new(Cell::new(0u32));
    let counting = Rc::clone(&count);
    let stream = job
        .shuffle(&format!("number {number}"))
        .options(options.clone())
        .handler(move |message, _| {
            assert_eq!(message.kind, number);
            counting.set(counting.get() + 1);
        })
        .open()
        .unwrap();
    for rank in 0..job.size() {
        stream.send(Rank(rank), number, b"once").unwrap();
    }
    stream.fence().unwrap();
    assert_eq!(count.get(), job.size());
    let stats = stream.stats().unwrap();
    assert_eq!(
        stats.sent,
        u64::from(job.size()),
        "counters begin anew: {stats:?}"
    );
    assert_eq!(stats.delivered, u64::from(job.size()));
    stream.shutdown().unwrap();
}

fn open_and_close(job: Job<'static>) {
    let options = [
        StreamOptions::default(),
        StreamOptions {
            priority: 3,
            remote_buftarget_bytes: 4096,
            ..StreamOptions::default()
        },
    ];
    let phase = |first: u32| {
        for number in first..first + STREAMS {
            use_once(&job, number, &options[number as usize % 2]);
        }
        Held::now()
    };
    let before = phase(1);
    let after = phase(STREAMS + 1);
    eprintln!("rank {}: {before:?}, then {after:?}", job.rank());
    after.check_against(&before, &format!("{STREAMS} streams"));
    job.shutdown().unwrap();
}

#[test]
fn streams_that_are_opened_and_closed_for_ever_take_nothing_more_between_nodes() {
    let test =
        "streams::streams_that_are_opened_and_closed_for_ever_take_nothing_more_between_nodes";
    on_ranks(test, "1,1,1,1", open_and_close);
}

#[test]
fn streams_that_are_opened_and_closed_for_ever_take_nothing_more_inside_a_node() {
    let test =
        "streams::streams_that_are_opened_and_closed_for_ever_take_nothing_more_inside_a_node";
    on_ranks(test, "3", open_and_close);
}

/// Ends steps of a stream in each of the ways, one after the other.
fn step_after_step(job: Job<'static>) {
    let shuffle = job.shuffle("steps").handler(|_, _| ()).open().unwrap();
    let (own, all) = (Contributors::Local(1), Contributors::All(job.size().into()));
    let phase = || {
        for number in 0..STEPS {
            let of = match number % 4 {
                0 => Some(own),
                1 => Some(all),
                _ => None,
            };
            let step = of.map(|of| shuffle.begin_step(of).unwrap());
            shuffle
                .send(Rank(number % job.size()), number, b"step")
                .unwrap();
            match step {
                Some(_) => {
                    shuffle.done(1).unwrap();
                    shuffle.wait().unwrap();
                }
                None if number % 4 == 2 => shuffle.round().unwrap(),
                None => shuffle.fence().unwrap(),
            }
        }
        Held::now()
    };
    let before = phase();
    let after = phase();
    eprintln!("rank {}: {before:?}, then {after:?}", job.rank());
    assert_eq!(after.descriptors, before.descriptors);
    assert!(
        after.resident_kib <= before.resident_kib + 128,
        "{before:?}, then {after:?}"
    );
    shuffle.shutdown().unwrap();
    job.shutdown().unwrap();
}

#[test]
fn steps_that_begin_again_thousands_of_times_take_nothing_more() {
    let test = "streams::steps_that_begin_again_thousands_of_times_take_nothing_more";
    on_ranks(test, "2,1", step_after_step);
}

/// Handles that outlive their stream keep nobody from opening another one, and never act on that.
#[test]
fn a_handle_of_a_closed_stream_never_reaches_the_stream_that_took_its_place() {
    let test = "streams::a_handle_of_a_closed_stream_never_reaches_the_stream_that_took_its_place";
    on_ranks(test, "2,1", |job| {
        let open = |name: &str| {
            let shuffle = job.shuffle(name).handler(|_, _| ());
            shuffle.open().unwrap()
        };
        let first = open("first");
        // Of one rank alone: the others could use the place of the first one again.
        let kept = (job.rank() == Rank(1)).then(|| first.clone());
        first.shutdown().unwrap();
        let second = open("second");
        second.send(Rank(0), 0, b"for the second").unwrap();
        if let Some(kept) = &kept {
            let error = kept
                .send(Rank(0), 0, b"for the first")
                .expect_err("it is closed");
            assert!(matches!(error, trihop::Error::Closed(_)), "{error}");
        }
        second.fence().unwrap();
        assert_eq!(second.stats().unwrap().sent, 1);
        drop(kept);
        second.shutdown().unwrap();
        open("third").shutdown().unwrap();
        job.shutdown().unwrap();
    });
}
