//! An agent that serves jobs as they come: they come and go, and it stays.

mod launched;

use std::process::Command;
use std::time::{Duration, Instant};

use launched::agents::{
    descriptors, exchange_until_told, go_on_without_agent, has_ended_well, have_attached, role,
    start_agent, start_agent_named, start_rank, status, threads_of_jobs, watched_processes,
};
use launched::{Launched, until};
use trihop::{Job, Options, Rank, State};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// Joins a job, has each rank hear from each, and leaves it; how long joining and leaving took.
fn attach_and_detach() -> trihop::Result<Duration> {
    let begun = Instant::now();
    let job = Job::start(Options::from_env()?)?;
    let joined = begun.elapsed();
    let heard = State::new(0);
    let shuffle = job
        .shuffle("hello")
        .handler_with(&heard, |heard, _, _| *heard += 1)
        .open()?;
    (0..job.size()).try_for_each(|rank| shuffle.send(Rank(rank), 0, b"hello"))?;
    shuffle.fence()?;
    assert_eq!(heard.with(|heard| *heard), job.size());
    shuffle.shutdown()?;
    let ending = Instant::now();
    job.shutdown()?;
    Ok(joined + ending.elapsed())
}

/// Comes and goes so often, but not for longer than that all together.
fn come_and_go(turns: u32, limit: Duration) {
    let begun = Instant::now();
    let done = (0..turns).take_while(|_| begun.elapsed() < limit);
    let mut taken: Vec<Duration> = done.map(|_| attach_and_detach().unwrap()).collect();
    taken.sort_unstable();
    let count = taken.len();
    let (median, least) = (taken[count / 2], taken[0]);
    eprintln!("came {count} times: to join and leave took {median:?}, and {least:?} at least");
}

#[test]
fn jobs_come_and_go_a_thousand_times_while_another_one_sends() {
    let test = "jobs_come_and_go_a_thousand_times_while_another_one_sends";
    match role().as_deref() {
        None => {}
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some(turns) => return come_and_go(turns.parse().unwrap(), Duration::from_secs(60)),
    }
    let (agent, name) = start_agent("thousand", 2, "never");
    let both = |job: &str, role: &str| [(), ()].map(|()| start_rank(test, &name, job, role));
    let steady = both("steady", "steady");
    have_attached(&steady);
    let come_and_go = |turns: &str| {
        for rank in both("guest", turns) {
            has_ended_well(&rank.wait(), turns);
        }
        // The last word to a rank is not the last thing that its agent does.
        until("the last job has ended", || {
            threads_of_jobs(agent.id()) == 1
        });
        (descriptors(agent.id()), status(agent.id(), "VmRSS"))
    };
    let (few, early) = come_and_go("100");
    let (many, late) = come_and_go("900");
    assert_eq!(few, many, "descriptors");
    assert!(late < early + 8 * 1024, "{early} to {late} KiB resident");
    // Each by processes of its own.
    for _ in 0..10 {
        let job = || {
            let mut rank = Command::new(TRIHOP);
            rank.args(["exchange", "--count", "100"]);
            rank.env("TRIHOP_AGENT", &name);
            Launched::start(rank)
        };
        for rank in [job(), job()] {
            has_ended_well(&rank.wait(), "a job of new processes");
        }
    }
    until("the last job has ended", || {
        threads_of_jobs(agent.id()) == 1
    });
    assert_eq!(descriptors(agent.id()), many);
    for mut rank in steady {
        rank.close_stdin();
        has_ended_well(&rank.wait(), "the job that stays");
    }
    agent.signal(libc::SIGTERM);
    has_ended_well(&agent.wait(), "the agent");
}

#[test]
fn an_agent_without_jobs_ends_after_its_time_to_linger() {
    if role().is_some() {
        return attach_and_detach().map(drop).unwrap();
    }
    let test = "an_agent_without_jobs_ends_after_its_time_to_linger";
    for linger in ["0", "by variable"] {
        let (agent, name) = start_agent("linger", 1, linger);
        has_ended_well(&start_rank(test, &name, "", "guest").wait(), linger);
        has_ended_well(&agent.wait(), linger);
    }
    for bad in ["", "soon", "-1"] {
        let mut agent = Command::new(TRIHOP);
        agent.args(["agent", "--ranks", "1", &format!("--linger-ms={bad}")]);
        assert_eq!(Launched::start(agent).wait().status, 2, "{bad}");
    }
    let mut agent = Command::new(TRIHOP);
    agent.args(["agent", "--ranks", "1"]);
    agent.env("TRIHOP_AGENT_LINGER_MS", "soon");
    let ended = Launched::start(agent).wait();
    assert_eq!(ended.status, 1);
    assert!(
        ended.stderr.contains("TRIHOP_AGENT_LINGER_MS"),
        "{}",
        ended.stderr
    );
}

/// It takes no further job, gives its name free, and does what its job asks until that ends.
#[test]
fn an_agent_that_is_asked_to_end_does_so_with_its_last_job() {
    let test = "an_agent_that_is_asked_to_end_does_so_with_its_last_job";
    match role().as_deref() {
        None => {}
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some(_) => return eprintln!("refused: {}", attach_and_detach().unwrap_err()),
    }
    let (agent, name) = start_agent("drain", 2, "never");
    let steady = [(), ()].map(|()| start_rank(test, &name, "steady", "steady"));
    have_attached(&steady);
    let before = watched_processes(agent.id());
    let alone = start_rank(test, &name, "alone", "alone");
    until("a rank waits for another one", || {
        watched_processes(agent.id()) > before
    });
    agent.signal(libc::SIGTERM);
    let refused = alone.wait();
    assert!(
        refused
            .stderr
            .contains("refuses this rank: this agent was asked to end"),
        "{}\n{}",
        refused.stdout,
        refused.stderr
    );
    // Another one has its name from now on.
    let successor = start_agent_named(&name, 2, "0");
    for mut rank in steady {
        rank.close_stdin();
        has_ended_well(&rank.wait(), "a rank of the job that it had");
    }
    has_ended_well(&agent.wait(), "the agent");
    successor.signal(libc::SIGTERM);
    has_ended_well(&successor.wait(), "its successor");
}

#[test]
fn a_job_of_which_a_rank_is_killed_ends_alone() {
    let test = "a_job_of_which_a_rank_is_killed_ends_alone";
    match role().as_deref() {
        None => {}
        Some("steady") => return exchange_until_told(true).unwrap(),
        Some(_) => return eprintln!("ends: {}", exchange_until_told(true).unwrap_err()),
    }
    let (agent, name) = start_agent("killed", 2, "never");
    let both = |job: &str, role: &str| {
        let ranks = [(), ()].map(|()| start_rank(test, &name, job, role));
        have_attached(&ranks);
        ranks
    };
    let steady = both("steady", "steady");
    let before = descriptors(agent.id());
    for _ in 0..5 {
        let [victim, other] = both("victim", "victim");
        victim.signal(libc::SIGKILL);
        let other = other.wait();
        let why = "is gone: its process ended before the job did";
        assert!(
            other.stderr.contains(why),
            "{}\n{}",
            other.stdout,
            other.stderr
        );
        until("its agent has ended that job", || {
            threads_of_jobs(agent.id()) == 1
        });
        assert_eq!(descriptors(agent.id()), before);
    }
    // One that is killed before its job is whole leaves its place.
    let watched = watched_processes(agent.id());
    let early = start_rank(test, &name, "early", "victim");
    until("it has come", || watched_processes(agent.id()) > watched);
    early.signal(libc::SIGKILL);
    until("its place is free", || {
        watched_processes(agent.id()) == watched
    });
    for mut rank in steady {
        rank.close_stdin();
        has_ended_well(&rank.wait(), "the job that stays");
    }
    agent.signal(libc::SIGTERM);
    let said = agent.wait();
    assert_eq!(said.status, 0, "{}", said.stderr);
}

#[test]
fn a_job_of_one_node_goes_on_as_before_when_its_agent_is_killed() {
    let test = "a_job_of_one_node_goes_on_as_before_when_its_agent_is_killed";
    if let Some(role) = role() {
        return go_on_without_agent(&role);
    }
    // It may be killed at any point of opening a stream, so that happens several times.
    for seat in ["inline", "threaded"].repeat(10) {
        let (agent, name) = start_agent(seat, 2, "never");
        let role = format!("{seat} {}", agent.id());
        let ranks = [(), ()].map(|()| start_rank(test, &name, "", &role));
        have_attached(&ranks);
        agent.signal(libc::SIGKILL);
        assert_eq!(agent.wait().status, 128 + libc::SIGKILL);
        for rank in ranks {
            has_ended_well(&rank.wait(), "a job without its agent");
        }
    }
}
