use std::time::{Duration, Instant};

use proptest::prelude::*;
use trihop_transport::memory::page::Page;
use trihop_transport::secret::Secret;
use trihop_transport::topology::Topology;

use super::read::{Words, moment};
use super::{Seen, Shown, StreamSeen, WaitNote, of_process};
use crate::job::{JobState, Started, detect};
use crate::over::Threaded;
use crate::{Error, Inline, Job, Options, Rank, Seat, minirank, over, threaded};

/// Looks at this process until what is looked for is there.
fn until<T>(what: &str, mut look: impl FnMut(Vec<Seen>) -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = of_process(std::process::id()).ok().and_then(&mut look) {
            return found;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "in vain: {what}"
        );
        std::thread::yield_now();
    }
}

/// The stream of this name: other tests have jobs in this process, too.
fn stream_of(seen: &Seen, name: &str) -> Option<StreamSeen> {
    let streams = &seen.now.as_ref()?.streams;
    streams.iter().find(|stream| stream.name == name).cloned()
}

fn counts_itself<S: Seat>(job: over::Job<S>, name: &str) {
    let shuffle = job.shuffle(name).open().unwrap();
    (0..7).for_each(|kind| shuffle.send(Rank(0), kind, b"four").unwrap());
    let seen = until("all is sent", |all| {
        job.progress().unwrap();
        all.into_iter().find_map(|seen| {
            let stream = stream_of(&seen, name)?;
            (stream.totals.delivered == 7).then_some((seen, stream))
        })
    });
    let (seen, stream) = seen;
    assert_eq!(stream.totals, shuffle.stats().unwrap());
    assert_eq!((stream.waiting_records, stream.totals.sent_bytes), (7, 28));
    let origin = &stream.stages[0];
    assert_eq!((&*origin.name, origin.queues), ("origin", 1));
    assert_eq!(origin.all.own_runs, stream.totals.origin_frames);
    let (used, most) = seen.memory();
    assert!(0 < used && used < most, "{used} of {most}");
    assert!(stream.used_bytes("delivery queue") >= 28);
    let about = &seen.about;
    assert_eq!((about.ranks, about.nodes, about.is_relay), (1, 1, false));
    assert!(about.job.len() == 16 && !about.host.is_empty());
    while shuffle.take(|_| ()).unwrap() > 0 {}
    job.shutdown().unwrap();
}

#[test]
fn an_endpoint_shows_what_it_counts_on_every_seat() {
    let inline: over::Job<Inline<'_>> = Job::start(Options::default()).unwrap();
    counts_itself(inline, "seen inline");
    let threaded: over::Job<Threaded> = threaded::Job::start(Options::default()).unwrap();
    counts_itself(threaded, "seen threaded");
}

#[test]
fn a_job_shows_nothing_where_its_option_says_so() {
    let hidden = Options {
        counters_page: false,
        ..Options::default()
    };
    let hidden = Job::start(hidden).unwrap();
    let kept = hidden.shuffle("hidden").open().unwrap();
    let shown = Job::start(Options::default()).unwrap();
    let seen = shown.shuffle("not hidden").open().unwrap();
    let all = until("the job that shows itself", |all| {
        hidden.progress().unwrap();
        shown.progress().unwrap();
        let is_there = all
            .iter()
            .any(|seen| stream_of(seen, "not hidden").is_some());
        is_there.then_some(all)
    });
    assert!(all.iter().all(|seen| stream_of(seen, "hidden").is_none()));
    drop((kept, seen));
}

#[test]
fn a_rank_that_waits_shows_what_for_and_takes_that_back() {
    let name = "waited for";
    minirank::run(Options::default(), 2, |mini| {
        let job = mini.start()?;
        let shuffle = job.shuffle(name).open()?;
        let other = |all: Vec<Seen>| {
            let is_it = |seen: &Seen| seen.about.endpoint == 1 && stream_of(seen, name).is_some();
            all.into_iter().find(is_it)
        };
        if job.rank() == Rank(0) {
            let waited_ns = until("rank 1 waits", |all| {
                let seen = other(all)?;
                let wait = seen.longest_wait()?;
                let (text, _) = &seen.text;
                let says = wait.what == "a collective"
                    && text.contains("a call waits for a collective")
                    && text.contains("rank 0, or ranks behind, have not come to a collective call")
                    && text.contains("stream 1 `waited for` on rank 1");
                says.then_some(wait.waited_ns)
            });
            until("the wait goes on, and so do its numbers", |all| {
                (other(all)?.longest_wait()?.waited_ns > waited_ns).then_some(())
            });
            job.barrier()?;
            // Rank 1 calls nothing until it hears from here.
            until("the wait is over", |all| {
                other(all)?.now?.waits.is_empty().then_some(())
            });
            shuffle.send(Rank(1), 1, b"")?;
        } else {
            job.barrier()?;
            let begun = Instant::now();
            while shuffle.take(|_| ())? == 0 {
                assert!(begun.elapsed() < Duration::from_secs(120), "nothing came");
                std::thread::yield_now();
            }
        }
        job.shutdown()
    })
    .unwrap()
    .into_iter()
    .collect::<Result<(), Error>>()
    .unwrap();
}

#[test]
fn a_text_is_of_a_time_in_which_the_call_has_waited() {
    let topology = Topology::from_node_sizes(&[1], Rank(0)).unwrap();
    let page = Page::create(1).unwrap().remove(0);
    let mut shown = Shown::on(page, &topology, &Secret::random().unwrap());
    let write = |shown: &mut Shown, now_ns| {
        let text = shown.take_text(now_ns);
        let is_due = text.is_some();
        text.into_iter()
            .for_each(|text| shown.show_text(now_ns, text));
        is_due
    };
    assert!(write(&mut shown, 5) && !write(&mut shown, 900_000_000));
    let mut note = WaitNote::default();
    shown.begin_wait(&mut note, "news", 1_000);
    assert!(!write(&mut shown, 100_000_999), "it may be over soon");
    assert!(write(&mut shown, 100_001_000) && !write(&mut shown, 1_100_000_999));
    assert!(write(&mut shown, 1_100_001_000), "once in a second");
    assert!(
        !shown.end_wait(&mut note),
        "no numbers were shown meanwhile"
    );
}

#[test]
fn a_text_that_took_long_is_not_written_anew_for_each_wait() {
    let (_started, mut shown) = endpoint_and_page();
    let text = shown.take_text(0).unwrap();
    shown.show_text(0, text);
    shown.rest_of_text(3_000_000, 3_000_000);
    let mut note = WaitNote::default();
    shown.begin_wait(&mut note, "news", 3_000_000);
    // It lasts, and there was no text of it, but the last one took 3 ms.
    assert!(shown.take_text(3_074_999_999).is_none());
    assert!(shown.take_text(3_075_000_000).is_some());
}

/// An endpoint without streams, and a page that tests show by themselves.
fn endpoint_and_page() -> (Started, Shown) {
    let options = Options {
        counters_page: false,
        ..Options::default()
    };
    let bootstrap = detect(&options).unwrap();
    let started = JobState::start(options, bootstrap).unwrap();
    let page = Page::create(1).unwrap().remove(0);
    let secret = Secret::random().unwrap();
    let shown = Shown::on(page, &started.state.engine.topology, &secret);
    (started, shown)
}

#[test]
fn the_end_of_a_wait_shows_nothing_while_others_wait() {
    let (started, mut shown) = endpoint_and_page();
    let engine = &started.state.engine;
    let mut notes: [WaitNote; 2] = Default::default();
    notes
        .iter_mut()
        .for_each(|note| shown.begin_wait(note, "news", 1));
    shown.show(2, 1, engine);
    // Two threads that wait in turn, always one at least.
    for turn in 0..4 {
        let note = &mut notes[turn % 2];
        assert!(!shown.end_wait(note), "turn {turn}");
        shown.begin_wait(note, "news", 3);
    }
    let [one, other] = &mut notes;
    assert!(!shown.end_wait(one) && shown.end_wait(other));
    shown.show(4, 2, engine);
    shown.begin_wait(one, "news", 5);
    assert!(!shown.end_wait(one), "the page says that nobody waits");
}

proptest! {
    /// Whatever words there are, numbers are read or refused.
    #[test]
    fn words_of_a_broken_process_are_a_moment_or_none(
        words in proptest::collection::vec(prop_oneof![0..9_u64, any::<u64>()], 0..400)
    ) {
        if let Some(moment) = moment(&mut Words::new(&words), 1) {
            prop_assert!(moment.waits.len() <= 8 && moment.streams.len() <= words.len());
        }
    }
}
