//! Whole jobs whose ranks are threads that lend trihop their allgather, as ranks inside MPI do: it
//! is called on the rank's own thread only, and no rank needs another's progress while that one
//! sits in it.

use std::cell::RefCell;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use trihop_shuffle::{Error, Job, Options, Rank, Reduce, Result, StreamOptions, threaded};
use trihop_transport::bootstrap::{Allgather, Bootstrap, Custom, Launcher};

/// How long a job may take before the test gives up on it.
const WATCHDOG: Duration = Duration::from_secs(120);

/// What the ranks of one job share.
struct Gathering {
    table: Mutex<Vec<u8>>,
    barrier: Barrier,
}

impl Gathering {
    /// The callback of one rank; `calls` counts its calls.
    fn callback(self: &Arc<Self>, rank: usize, calls: &Arc<Mutex<u32>>) -> Allgather {
        let (this, calls, owner) = (Arc::clone(self), Arc::clone(calls), thread::current().id());
        Box::new(move |mine, all| {
            assert_eq!(thread::current().id(), owner, "called on another thread");
            *calls.lock().unwrap() += 1;
            {
                let mut table = this.table.lock().unwrap();
                table.resize(all.len(), 0);
                table[rank * mine.len()..][..mine.len()].copy_from_slice(mine);
            }
            this.barrier.wait();
            all.copy_from_slice(&this.table.lock().unwrap());
            this.barrier.wait();
            Ok(())
        })
    }
}

/// Runs a job with a rank on each of these nodes; what the ranks return, in their order.
fn run<T: Send + 'static>(
    nodes: &[u64],
    options: &Options,
    rank: fn(Options, Box<dyn Bootstrap>) -> T,
) -> Vec<(T, u32)> {
    let gathering = Arc::new(Gathering {
        table: Mutex::default(),
        barrier: Barrier::new(nodes.len()),
    });
    let (done, ended) = mpsc::channel();
    for (number, &node) in nodes.iter().enumerate() {
        let (gathering, done, size) = (Arc::clone(&gathering), done.clone(), nodes.len() as u32);
        let options = options.clone();
        thread::spawn(move || {
            let calls = Arc::default();
            let callback = gathering.callback(number, &calls);
            let bootstrap = Custom::new(number as u32, size, node, callback).unwrap();
            let outcome = rank(options, Box::new(bootstrap));
            let calls = *calls.lock().unwrap();
            done.send((number, (outcome, calls))).unwrap();
        });
    }
    drop(done);
    let mut outcomes: Vec<_> = (0..nodes.len())
        .map(|_| {
            ended
                .recv_timeout(WATCHDOG)
                .expect("a rank panicked, or the job hangs")
        })
        .collect();
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn loopback() -> Options {
    Options {
        loopback: true,
        // What the environment says of launchers does not count.
        launcher: Some(Launcher::Pmix),
        ..Options::default()
    }
}

/// Whether the fabric is missing here; then the test has nothing to say.
fn lacks_provider<T>(outcome: &Result<T>) -> bool {
    match outcome {
        Err(error @ Error::NoProvider { .. }) => {
            eprintln!("skipped: {error}");
            true
        }
        _ => false,
    }
}

/// Every rank sends to every rank, and the job ends.
fn exchange(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<(Vec<u32>, u64)> {
    let heard = RefCell::new(Vec::new());
    let job = Job::start_with(options, bootstrap)?;
    assert_eq!(job.launcher().name(), "custom");
    let shuffle = job
        .shuffle("all")
        .handler(|message, _| {
            assert_eq!(message.bytes, message.source.0.to_le_bytes());
            heard.borrow_mut().push(message.source.0);
        })
        .open()?;
    for round in 0..50 {
        for target in (0..job.size()).map(Rank) {
            shuffle.send(target, round, &job.rank().0.to_le_bytes())?;
        }
    }
    shuffle.fence()?;
    let mut sum = [1u64 << job.rank().0];
    job.allreduce(&mut sum, Reduce::Sum)?;
    drop(shuffle);
    job.shutdown()?;
    Ok((heard.take(), sum[0]))
}

/// Opens a stream that no two ranks mean alike, then one that all do; what is said of the first.
fn differ(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<String> {
    let job = Job::start_with(options, bootstrap)?;
    let mut stream = StreamOptions {
        remote_maxrpc: 4 + job.rank().0,
        linger_us: u64::from(job.rank().0),
        ..StreamOptions::default()
    };
    let refused = job.shuffle("facts").options(stream.clone()).open().err();
    stream.remote_maxrpc = 4;
    let shuffle = job.shuffle("facts").options(stream).open()?;
    shuffle.fence()?;
    drop(shuffle);
    job.shutdown()?;
    Ok(refused.map_or_else(String::new, |error| error.to_string()))
}

#[test]
fn ranks_with_other_options_are_told_which_and_both_values() {
    for (rank, (outcome, _)) in run(&[1, 2, 2], &loopback(), differ).into_iter().enumerate() {
        if lacks_provider(&outcome) {
            return;
        }
        let text = outcome.unwrap();
        let why = format!(
            "remote_maxrpc is 4 on one rank and 6 on another, {} here;",
            4 + rank
        );
        assert!(
            text.contains("`facts` differs") && text.contains(&why),
            "rank {rank}: {text}"
        );
        assert!(!text.contains("linger_us"), "each rank has its own: {text}");
    }
}

#[test]
fn a_job_over_two_nodes_starts_exchanges_and_ends() {
    let nodes = [900, 7, 900, 7];
    for (outcome, calls) in run(&nodes, &loopback(), exchange) {
        if lacks_provider(&outcome) {
            return;
        }
        let (mut heard, sum) = outcome.unwrap();
        heard.sort_unstable();
        let expected: Vec<u32> = (0..4).flat_map(|rank| [rank; 50]).collect();
        assert_eq!((heard, sum), (expected, 0b1111));
        // Who is where; lengths and greetings; lengths and cards; the receives are posted; the end.
        assert_eq!(
            calls, 7,
            "what the engine does between start and end needs no allgather"
        );
    }
}

#[test]
fn a_job_on_one_node_and_a_job_of_one_need_no_provider() {
    for nodes in [&[3; 4][..], &[5]] {
        for (outcome, _) in run(nodes, &loopback(), exchange) {
            assert_eq!(outcome.unwrap().0.len(), 50 * nodes.len());
        }
    }
}

/// Ranks that have arrived at the end make no progress any more: the others must come there without
/// them.
#[test]
fn nobody_needs_a_rank_that_waits_in_the_callback_at_the_end() {
    fn end(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<()> {
        Job::start_with(options, bootstrap)?.shutdown()
    }
    fn end_after_collectives(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<()> {
        let job = Job::start_with(options, bootstrap)?;
        for length in [1, 3000, 20_000] {
            let all = job.allgather(&vec![job.rank().0 as u8; length])?;
            assert!(
                all.iter()
                    .zip(0..)
                    .all(|(bytes, rank)| bytes == &vec![rank; length])
            );
        }
        job.shutdown()
    }
    // Two and three ranks a node, so that leaders and representatives differ; ten nodes have three
    // levels of a tree.
    let shapes: [Vec<u64>; 3] = [
        (0..6).map(|rank| rank / 3).collect(),
        (0..8).map(|rank| rank % 4).collect(),
        (0..20).map(|rank| rank % 7 + rank / 10).collect(),
    ];
    for nodes in &shapes {
        for rank in [end, end_after_collectives] {
            for (outcome, _) in run(nodes, &loopback(), rank) {
                if lacks_provider(&outcome) {
                    return;
                }
                outcome.unwrap();
            }
        }
    }
}

#[test]
fn a_progress_thread_never_calls_the_callback() {
    fn exchange(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<usize> {
        let heard = Arc::new(Mutex::new(0));
        let count = Arc::clone(&heard);
        let job = threaded::Job::start_with(options, bootstrap)?;
        let shuffle = job
            .shuffle("all")
            .handler(move |message, _| *count.lock().unwrap() += message.bytes.len())
            .open()?;
        for target in (0..job.size()).map(Rank) {
            shuffle.send(target, 0, b"hello")?;
        }
        shuffle.fence()?;
        job.shutdown()?;
        let heard = *heard.lock().unwrap();
        Ok(heard)
    }
    for (outcome, calls) in run(&[1, 2, 1, 2], &loopback(), exchange) {
        if lacks_provider(&outcome) {
            return;
        }
        assert_eq!((outcome.unwrap(), calls), (20, 7));
    }
}

#[test]
fn a_callback_that_fails_at_the_end_is_the_error_of_shutdown() {
    let mut calls = 0;
    let callback: Allgather = Box::new(move |mine, all| {
        calls += 1;
        all.copy_from_slice(mine);
        if calls == 6 { Err(42) } else { Ok(()) }
    });
    let bootstrap = Custom::new(0, 1, 0, callback).unwrap();
    let job = Job::start_with(loopback(), Box::new(bootstrap)).unwrap();
    let text = job.shutdown().unwrap_err().to_string();
    assert!(
        text.contains("custom") && text.contains("returned 42 while exchanging lengths at a fence"),
        "{text}"
    );
}

/// The job's end comes for both ranks, though each looks after its streams in another order.
fn cross_priorities(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<()> {
    let job = Job::start_with(options.clone(), bootstrap)?;
    let open = |name: &str, priority| {
        let options = StreamOptions {
            priority,
            ..options.stream.clone()
        };
        job.shuffle(name).options(options).handler(|_, _| ()).open()
    };
    let own = job.rank().0 as u8;
    let streams = [open("first", own)?, open("second", 1 - own)?];
    streams
        .iter()
        .try_for_each(|stream| stream.send(Rank(1 - job.rank().0), 0, b"x"))?;
    job.shutdown()
}

#[test]
fn ranks_may_serve_their_streams_in_different_orders_and_end_together() {
    for (outcome, _) in run(&[7, 7], &loopback(), cross_priorities) {
        outcome.unwrap();
    }
}

/// Calls on another handle of a job that was shut down.
fn use_after_the_end(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Vec<Error>> {
    let job = Job::start_with(options, bootstrap)?;
    let shuffle = job.shuffle("left open").open()?;
    let other = job.clone();
    job.shutdown()?;
    let calls = [
        other.barrier(),
        other.allreduce(&mut [1u64], Reduce::Sum),
        other.allgather(b"x").map(drop),
        other.shuffle("late").open().map(drop),
        shuffle.take(|_| ()).map(drop),
        other.shutdown(),
    ];
    Ok(calls.into_iter().filter_map(Result::err).collect())
}

#[test]
fn a_job_that_was_shut_down_says_so_to_its_other_handles() {
    for (outcome, _) in run(&[7, 7], &loopback(), use_after_the_end) {
        let errors = outcome.unwrap();
        assert_eq!(errors.len(), 6, "{errors:?}");
        assert!(
            errors.iter().all(|error| matches!(error, Error::Closed(_))),
            "{errors:?}"
        );
    }
}

/// The last rank gives several pieces, and none.
fn broadcast_much(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<()> {
    let job = Job::start_with(options, bootstrap)?;
    let last = Rank(job.size() - 1);
    for length in [0, 3, 4 << 20, (9 << 20) + 1] {
        let bytes: Vec<u8> = (0..length).map(|at| (at >> 9) as u8).collect();
        let mine = match job.rank() == last {
            true => &bytes[..],
            false => b"what others give",
        };
        assert!(job.broadcast(last, mine)? == bytes, "{length} bytes");
    }
    // All hear of a root that none of them is.
    let nobody = job.broadcast(Rank(job.size()), b"");
    assert!(matches!(nobody, Err(Error::Rank { .. })), "{nobody:?}");
    job.shutdown()
}

#[test]
fn a_broadcast_has_any_length() {
    for nodes in [&[7][..], &[7, 7, 7], &[7, 8, 7]] {
        for (outcome, _) in run(nodes, &loopback(), broadcast_much) {
            if lacks_provider(&outcome) {
                return;
            }
            outcome.unwrap();
        }
    }
}

/// One rank names a root that none of them is: it takes part, and all fail.
fn broadcast_of_nobody(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Error> {
    let job = Job::start_with(options, bootstrap)?;
    let told = job.broadcast(Rank(job.rank().0 * 9), b"");
    Ok(told.and_then(|_| job.barrier()).unwrap_err())
}

#[test]
fn no_rank_waits_for_one_that_names_another_root() {
    for (outcome, _) in run(&[7, 7], &loopback(), broadcast_of_nobody) {
        let error = outcome.unwrap();
        assert!(
            error.to_string().contains("broadcasts what rank"),
            "{error}"
        );
    }
}

/// One rank gathers where the other reduces, or reduces more values.
fn call_another(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<Vec<Error>> {
    let more = options.bootstrap_timeout_ms % 2 == 1;
    let job = Job::start_with(options, bootstrap)?;
    let outcome = match (job.rank().0, more) {
        (0, _) => job.allreduce(&mut [1u64], Reduce::Max),
        (_, true) => job.allreduce(&mut [1u64, 2], Reduce::Max),
        _ => job.allgather(b"something").map(drop),
    };
    // A rank that has not heard of it yet does so here.
    let later = job.barrier();
    Ok([outcome, later]
        .into_iter()
        .filter_map(Result::err)
        .collect())
}

#[test]
fn collective_calls_that_differ_end_the_job_on_all_ranks() {
    for bootstrap_timeout_ms in [60_000, 60_001] {
        let options = Options {
            bootstrap_timeout_ms,
            ..loopback()
        };
        let mut said = String::new();
        for (outcome, _) in run(&[7, 7], &options, call_another) {
            let errors = outcome.unwrap();
            assert!(!errors.is_empty());
            errors.iter().for_each(|error| said += &error.to_string());
        }
        assert!(said.contains("same collective calls"), "{said}");
    }
}

#[test]
fn a_rank_of_another_version_is_named_with_both_versions() {
    fn start(options: Options, bootstrap: Box<dyn Bootstrap>) -> Result<()> {
        Job::start_with(options, bootstrap).map(drop)
    }
    let gathering = Arc::new(Gathering {
        table: Mutex::default(),
        barrier: Barrier::new(2),
    });
    let (done, ended) = mpsc::channel();
    for rank in 0..2 {
        let (gathering, done) = (Arc::clone(&gathering), done.clone());
        thread::spawn(move || {
            let mut gather = gathering.callback(rank, &Arc::default());
            let bend = move |mine: &[u8], all: &mut [u8]| {
                gather(mine, all)?;
                // What rank 0 leaves is read as if another version of the library had left it.
                let theirs = &mut all[..mine.len()];
                if let Some(at) = theirs.windows(5).position(|bytes| bytes[..4] == *b"3hop") {
                    theirs[at + 4] += 1;
                }
                Ok(())
            };
            let bootstrap = Custom::new(rank as u32, 2, 7, Box::new(bend)).unwrap();
            done.send((rank, start(loopback(), Box::new(bootstrap))))
                .unwrap();
        });
    }
    // Rank 0 waits for the other one until its launcher ends it, or in vain.
    match ended.recv_timeout(WATCHDOG) {
        Ok((
            1,
            Err(Error::Version {
                rank: 0,
                ours,
                theirs,
            }),
        )) => assert_eq!(theirs, ours + 1),
        other => panic!("rank 1 has to refuse another version: {other:?}"),
    }
}
