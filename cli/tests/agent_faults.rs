//! What ends a job, or some of its ranks, and nothing else: ranks that leave, an agent that is
//! short of something, a relay that panics.

mod launched;

use std::cell::Cell;
use std::fmt::Debug;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use launched::agents::{
    ENV_ROLE, exchange_until_told, has_ended_well, have_attached, role, start_agent,
    start_agent_with, start_rank, status, threads_of_jobs,
};
use launched::{Launched, until};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use trihop::agent::{self, AskedToEnd};
use trihop::transport::memory::descriptors::wait_for_any;
use trihop::{Error, Job, Options, Rank, Seat, over, threaded};

/// The file by which a rank that has left hears that the others have heard of it.
const ENV_HEARD: &str = "TRIHOP_TEST_HEARD";

/// Drops the job on rank 1, which lives on; the other one waits for it in a fence.
fn leave_and_live<S: Seat>(job: over::Job<S>) {
    let heard = PathBuf::from(std::env::var_os(ENV_HEARD).unwrap());
    let stream = job.shuffle("left").open().unwrap();
    stream.fence().unwrap();
    eprintln!("attached");
    if job.rank() == Rank(1) {
        drop(stream);
        drop(job);
        return until("the other rank has heard of it", || heard.exists());
    }
    let gone = stream.fence().unwrap_err();
    let is_told =
        matches!(&gone, Error::PeerFailed { rank: 1, why } if why.contains("has left the job"));
    assert!(is_told, "{gone}");
    let again = job.barrier().unwrap_err();
    assert_eq!(again, gone);
    fs::write(heard, "").unwrap();
}

fn leave_and_live_on(seat: &str) {
    let options = Options::from_env().unwrap();
    match seat {
        "threaded" => {
            let job = threaded::Job::start(options).unwrap();
            // A handler that keeps a handle does not keep the job.
            static KEPT: Mutex<Option<threaded::Shuffle>> = Mutex::new(None);
            let keep = |_: trihop::Message<'_>, shuffle: &threaded::Shuffle| {
                KEPT.lock().unwrap().get_or_insert_with(|| shuffle.clone());
            };
            let kept = job.shuffle("kept").handler(keep).open().unwrap();
            kept.send(job.rank(), 0, b"").unwrap();
            kept.fence().unwrap();
            drop(kept);
            assert!(KEPT.lock().unwrap().is_some());
            leave_and_live(job);
        }
        _ => leave_and_live(Job::start(options).unwrap()),
    }
}

#[test]
fn a_rank_that_drops_its_job_and_lives_on_is_missed_at_its_agent() {
    let test = "a_rank_that_drops_its_job_and_lives_on_is_missed_at_its_agent";
    if let Some(seat) = role() {
        return leave_and_live_on(&seat);
    }
    let (agent, name) = start_agent("left", 2, "never");
    for seat in ["inline", "threaded"] {
        let folder = tempfile::tempdir().unwrap();
        let ranks = [(), ()].map(|()| {
            let mut rank = Command::new(std::env::current_exe().unwrap());
            rank.args([test, "--exact", "--nocapture"]);
            rank.env(ENV_ROLE, seat).env("TRIHOP_AGENT", &name);
            rank.env("TRIHOP_LOG", "error"); // that it leaves is a warning
            rank.env(ENV_HEARD, folder.path().join("heard"));
            Launched::start(rank)
        });
        for rank in ranks {
            has_ended_well(&rank.wait(), seat);
        }
        until("its agent has ended that job", || {
            threads_of_jobs(agent.id()) == 0
        });
    }
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.wait().status, 0);
}

/// With agents and without, on one node and on two.
#[test]
fn a_rank_that_drops_its_job_and_lives_on_is_missed_by_all() {
    let test = "a_rank_that_drops_its_job_and_lives_on_is_missed_by_all";
    if let Some(seat) = role() {
        return leave_and_live_on(&seat);
    }
    for how in ["-n 2", "-n 2 --nodes 2", "--seat agent -n 2 --nodes 2"] {
        for seat in ["inline", "threaded"] {
            let folder = tempfile::tempdir().unwrap();
            let exe = std::env::current_exe().unwrap();
            let command = format!("{how} -- {} {test} --exact --nocapture", exe.display());
            let words = command.split_whitespace().map(str::to_owned);
            let mut job = Launched::command(words);
            job.env(ENV_ROLE, seat);
            job.env(ENV_HEARD, folder.path().join("heard"));
            let ended = Launched::start(job).wait();
            let outcome = format!("{how}, {seat}: {}\n{}", ended.stdout, ended.stderr);
            if ended.stderr.contains("no usable libfabric provider") {
                eprintln!("skipped: {outcome}");
                continue;
            }
            assert!(has_heard(folder.path()), "{outcome}");
            // An agent says that its job has failed, where it hears so before both ranks have ended.
            let may_be = 0..=i32::from(how.contains("agent"));
            assert!(may_be.contains(&ended.status), "{outcome}");
        }
    }
}

fn has_heard(folder: &Path) -> bool {
    folder.join("heard").exists()
}

/// A job for which its descriptors do not suffice ends; those that it has go on, with none left.
#[test]
fn an_agent_without_descriptors_refuses_the_job_that_wants_them() {
    let test = "an_agent_without_descriptors_refuses_the_job_that_wants_them";
    match role().as_deref() {
        None => {}
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some(_) => {
            if let Err(error) = exchange_until_told(false) {
                eprintln!("ends: {error}");
            }
            return;
        }
    }
    let (agent, name) = start_agent_with("short", 2, 72);
    let steady = [(), ()].map(|()| start_rank(test, &name, "steady", "steady"));
    have_attached(&steady);
    let limit = "may have 72 descriptors: raise `ulimit -n`";
    let mut guests = Vec::new();
    let refused = loop {
        assert!(guests.len() < 40, "none of 40 jobs was refused");
        let number = guests.len().to_string();
        let mut pair = [(), ()].map(|()| start_rank(test, &name, &number, "guest"));
        let mut is_refused = false;
        until("a job is there, or refused", || {
            is_refused = pair.iter().any(|rank| rank.has_said(limit));
            let have_ended = pair.iter_mut().all(|rank| !rank.runs());
            is_refused || have_ended || pair.iter().all(|rank| rank.has_said("attached"))
        });
        if is_refused {
            break pair;
        }
        let mut runs = pair.iter_mut().map(Launched::runs);
        assert!(runs.all(|runs| runs), "neither rank says why");
        guests.push(pair);
    };
    assert!(!guests.is_empty(), "not one job has found room");
    for mut rank in refused {
        // One may wait for the other, which was refused.
        if rank.runs() {
            rank.signal(libc::SIGKILL);
        }
        rank.wait();
    }
    for mut rank in guests.into_iter().flatten() {
        rank.close_stdin();
        let ended = rank.wait();
        has_ended_well(&ended, "a job that was there");
        assert!(!ended.stderr.contains("ends:"), "{ended:?}");
    }
    until("these jobs have ended", || threads_of_jobs(agent.id()) == 1);
    for mut rank in steady {
        rank.close_stdin();
        has_ended_well(&rank.wait(), "the first job");
    }
    agent.signal(libc::SIGTERM);
    let said = agent.wait();
    assert_eq!(said.status, 0, "{}", said.stderr);
}

/// A limit of its memory that leaves no room for another thread's stack.
#[test]
fn an_agent_without_threads_refuses_the_job_that_wants_one() {
    let test = "an_agent_without_threads_refuses_the_job_that_wants_one";
    match role().as_deref() {
        None => {}
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some(_) => return eprintln!("ends: {}", exchange_until_told(true).unwrap_err()),
    }
    let (agent, name) = start_agent("threads", 2, "never");
    let both = |role: &str| [(), ()].map(|()| start_rank(test, &name, role, role));
    let steady = both("steady");
    have_attached(&steady);
    let process = Pid::from_raw(agent.id() as i32);
    let before = getrlimit(Resource::As);
    let limit = Rlimit {
        current: Some((status(agent.id(), "VmSize") + 1024) << 10),
        ..before
    };
    prlimit(process, Resource::As, limit).unwrap();
    for rank in both("refused") {
        let ended = rank.wait();
        let why = "starting the thread `trihop-agent-job` (bounded by `ulimit -u`";
        let is_told = ended.stderr.contains("refuses this rank") && ended.stderr.contains(why);
        assert!(is_told, "{ended:?}");
    }
    prlimit(process, Resource::As, before).unwrap();
    let another = both("steady");
    have_attached(&another);
    for mut rank in steady.into_iter().chain(another) {
        rank.close_stdin();
        has_ended_well(&rank.wait(), "a job with a thread");
    }
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.wait().status, 0);
}

/// Panics where the relay of the first job says that this has started.
struct PanicsOnce(Mutex<bool>);

impl tracing::Subscriber for PanicsOnce {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        about.target().starts_with("trihop")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut |_: &tracing::field::Field, value: &dyn Debug| {
            let is_it = format!("{value:?}") == "job started";
            if is_it && !std::mem::replace(&mut *self.0.lock().unwrap(), true) {
                panic!("as the test wants");
            }
        });
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Asks by the end of standard input.
struct InputEnds(Cell<bool>);

impl AskedToEnd for InputEnds {
    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: standard input is open for as long as the process.
        unsafe { BorrowedFd::borrow_raw(0) }
    }

    fn take(&self) -> bool {
        let now = std::time::Instant::now();
        let has_ended = wait_for_any(&[std::io::stdin().as_fd()], now)
            .unwrap()
            .is_some();
        has_ended && !self.0.replace(true)
    }
}

fn serve_with_a_panic() {
    tracing::subscriber::set_global_default(PanicsOnce(Mutex::new(false))).unwrap();
    let (options, name) = (Options::default(), std::env::var(agent::ENV_NAME).unwrap());
    let asked = InputEnds(Cell::new(false));
    agent::serve_jobs(options, &name, 2, Some(Duration::MAX), Some(&asked), || {
        eprintln!("attached");
    })
    .unwrap();
}

#[test]
fn a_relay_that_panics_ends_its_job_alone() {
    let test = "a_relay_that_panics_ends_its_job_alone";
    match role().as_deref() {
        None => {}
        Some("agent") => return serve_with_a_panic(),
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some(_) => return eprintln!("ends: {}", exchange_until_told(true).unwrap_err()),
    }
    let name = format!("trihop-test-panics-{}", std::process::id());
    let mut agent = start_rank(test, &name, "", "agent");
    until("the agent is there", || agent.has_said("attached"));
    let both = |role: &str| [(), ()].map(|()| start_rank(test, &name, role, role));
    for rank in both("unlucky") {
        let ended = rank.wait();
        let is_told = ended.stderr.contains("the agent of its node has panicked");
        assert!(is_told, "{ended:?}");
    }
    let steady = both("steady");
    have_attached(&steady);
    for mut rank in steady {
        rank.close_stdin();
        has_ended_well(&rank.wait(), "the job behind it");
    }
    agent.close_stdin();
    let ended = agent.wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(ended.stderr.contains("as the test wants"), "{ended:?}");
}
