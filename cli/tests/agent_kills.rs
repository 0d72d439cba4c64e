//! Ranks of agents that stay, and such agents, are killed at random points of a job: while ranks
//! come, open streams, send, fence and leave. Who lives hears of it or ends well, nothing of that
//! job stays with its agent, and the next job is as any other.
//!
//! `TRIHOP_KILLS=N` says how many kills of each kind, `TRIHOP_SEED=N` which ones.

mod launched;

use std::collections::BTreeMap;
use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use launched::agents::{
    Agents, both_of, descriptors, end_well, role, shared_mappings, start_agent, start_agent_named,
    start_rank_at, start_two, threads_of_jobs, watched_processes,
};
use launched::kills::{Random, Times, asked_for};
use launched::{Launched, alive, until};
use trihop::{Error, Job, Options, Rank, Result, State};

/// Kills of ranks that nobody asked for more of.
const QUICK: u64 = 30;

/// Kills of agents, of one node and of two.
const QUICK_AGENTS: [u64; 2] = [20, 10];

/// Ranks of an agent that is alone.
const RANKS: u32 = 3;

/// What ranks say when they come to it. Kills follow all of these but the last.
const PHASES: [&str; 6] = ["comes", "opens", "sends", "fences", "leaves", "ends"];

/// The later a kill is, the later it may be behind a rank's word: by so much more each.
const STEP_US: u64 = 300;
const MOST_DELAY_US: u64 = 20_000;

/// An agent that has something of a job that is over after this time will have it for ever.
const HANGS: Duration = Duration::from_secs(20);

/// Bytes of the longer records.
const LONG: usize = 100_000;

/// The mark of a rank's words.
fn marked(word: &str) -> String {
    format!("@{word}")
}

fn say(word: &str) {
    eprintln!("{}", marked(word));
}

/// All that a rank does, but for coming and leaving; it says where it is.
fn exchange(job: &Job<'_>) -> Result<()> {
    say("opens");
    (0..4).try_for_each(|_| job.shuffle("opened").open()?.shutdown())?;
    let size = job.size();
    let next = State::new(vec![0_u64; size as usize]);
    let shuffle = job.shuffle("life");
    let shuffle = shuffle.handler_with(&next, |next: &mut Vec<u64>, message, _| {
        let next = &mut next[message.source.0 as usize];
        let number = u64::from_le_bytes(message.bytes[..8].try_into().unwrap());
        assert_eq!(number, *next, "of rank {}", message.source);
        *next += 1;
    });
    let shuffle = shuffle.open()?;
    say("sends");
    let (mut sent, mut bytes) = (0_u64, vec![7; LONG]);
    // For so long, whatever the machine's speed, that a kill falls into it.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(30) {
        bytes[..8].copy_from_slice(&sent.to_le_bytes());
        let length = if sent % 50 == 49 { LONG } else { 100 };
        (0..size).try_for_each(|rank| shuffle.send(Rank(rank), 0, &bytes[..length]))?;
        sent += 1;
    }
    say("fences");
    (0..20).try_for_each(|_| shuffle.fence())?;
    let all = job.allgather(&sent.to_le_bytes())?;
    let all: Vec<u64> = all
        .iter()
        .map(|sent| u64::from_le_bytes(sent[..].try_into().unwrap()))
        .collect();
    assert_eq!(next.with(|next| next.clone()), all);
    shuffle.shutdown()
}

/// A rank from its coming to its end, of which it says what that was. It stays until its standard
/// input ends, with its job where that has failed: nobody is to hear of it before all have spoken.
fn live() {
    say("comes");
    let (job, outcome) = match Options::from_env().and_then(Job::start) {
        Err(error) => (None, Err(error)),
        Ok(job) => match exchange(&job) {
            Err(error) => (Some(job), Err(error)),
            Ok(()) => {
                say("leaves");
                (None, job.shutdown())
            }
        },
    };
    match outcome {
        Ok(()) => say("ends well"),
        Err(error) => {
            let about = match &error {
                Error::AgentDead { .. } => "an agent",
                Error::PeerDead { .. } | Error::PeerFailed { .. } => "a rank",
                _ => "something else",
            };
            say(&format!("ends, told of {about}: {error}"));
        }
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(job);
}

/// A whole job of ranks that do little.
fn greet() {
    let job = Job::start(Options::from_env().unwrap()).unwrap();
    let heard = State::new(0);
    let shuffle = job.shuffle("hello");
    let shuffle = shuffle.handler_with(&heard, |heard, _, _| *heard += 1);
    let shuffle = shuffle.open().unwrap();
    for rank in 0..job.size() {
        shuffle.send(Rank(rank), 0, b"hello").unwrap();
    }
    shuffle.fence().unwrap();
    assert_eq!(heard.with(|heard| *heard), job.size());
    shuffle.shutdown().unwrap();
    job.shutdown().unwrap();
}

/// What a rank of these tests does.
fn take_part(role: &str) {
    match role {
        "life" => live(),
        _ => greet(),
    }
}

/// Where a rank was last, by its words.
fn last_phase(said: &str) -> &'static str {
    let came_to = |phase: &&&str| said.contains(&marked(phase));
    PHASES.iter().rev().find(came_to).copied().unwrap_or("")
}

/// How a rank says that it has ended.
fn end(said: &str) -> &str {
    let mut lines = said.lines();
    let end = lines.find_map(|line| {
        line.strip_prefix("@ends")
            .map(|rest| rest.trim_start_matches([',', ' ']))
    });
    end.unwrap_or_else(|| panic!("it says no end: {said}"))
}

/// Waits until a rank has come there, and then for a moment that is random, and longer the more
/// kills were before.
fn wait_for_moment(rank: &mut Launched, phase: &str, (number, random): (u64, &mut Random)) {
    let word = marked(phase);
    let begun = Instant::now();
    while !rank.has_said(&word) {
        let hangs = begun.elapsed() > 3 * HANGS || !rank.runs();
        assert!(!hangs, "it has not come to `{phase}`: {}", rank.said());
        thread::sleep(Duration::from_micros(100));
    }
    let most = (STEP_US * (1 + number)).min(MOST_DELAY_US);
    thread::sleep(Duration::from_micros(random.below(most)));
}

fn wait_for_ends(ranks: &mut [Launched], what: &str) {
    until(what, || {
        let mut ranks = ranks.iter_mut();
        ranks.all(|rank| rank.has_said("@ends") || !rank.runs())
    });
}

/// What an agent has for its jobs.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    threads: usize,
    descriptors: usize,
    processes: usize,
    mappings: usize,
}

impl Held {
    fn by(agent: u32) -> Self {
        Self {
            threads: threads_of_jobs(agent),
            descriptors: descriptors(agent),
            processes: watched_processes(agent),
            mappings: shared_mappings(agent),
        }
    }

    /// Waits until an agent has no more than that; how long it took.
    fn is_again_by(&self, agent: u32, what: &str) -> Duration {
        let begun = Instant::now();
        loop {
            let now = Self::by(agent);
            if now == *self {
                return begun.elapsed();
            }
            assert!(
                begun.elapsed() < HANGS,
                "{what}: it has {now:?}, before {self:?}"
            );
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Checks how those have ended of whose job a rank was killed. Where it was killed before its job
/// had all ranks, another one may have taken its place.
fn check_survivors(ranks: &[Launched], victim: u32, (last, replaced): (&str, bool), what: &str) {
    let gone = format!("told of a rank: rank {victim} is gone");
    for rank in ranks {
        let said = rank.said();
        let may_be = match end(&said) {
            "well" => replaced || matches!(last, "leaves" | "ends"),
            // Before a job has begun, who hears of it and ends is gone for others.
            end if !rank.has_said("@opens") => end.contains(" is gone"),
            end => end.starts_with(&gone),
        };
        assert!(may_be, "{what}, which had come to `{last}`: {said}");
    }
}

#[test]
fn a_rank_that_is_killed_at_any_point_leaves_nothing_with_its_agent() {
    let test = "a_rank_that_is_killed_at_any_point_leaves_nothing_with_its_agent";
    if let Some(role) = role() {
        return take_part(&role);
    }
    let (kills, mut random) = asked_for(QUICK);
    let (agent, name) = start_agent("kills", RANKS, "never");
    let start = |place: u32, job: &str, role: &str| start_rank_at(place, test, &name, job, role);
    let greet = || {
        end_well(
            (0..RANKS)
                .map(|place| start(place, "", "greet"))
                .collect::<Vec<_>>(),
            "the next job",
        )
    };
    greet();
    until("the first job has ended", || {
        threads_of_jobs(agent.id()) == 0
    });
    let before = Held::by(agent.id());
    let (mut met, mut times) = (BTreeMap::<_, u64>::new(), Times::default());
    for number in 0..kills {
        let phase = PHASES[number as usize % (PHASES.len() - 1)];
        let victim = random.below(RANKS.into()) as u32;
        let what = format!("kill {number}, of rank {victim} after `{phase}`");
        let job = number.to_string();
        let mut ranks: Vec<_> = (0..RANKS).map(|place| start(place, &job, "life")).collect();
        let mut dead = ranks.remove(victim as usize);
        wait_for_moment(&mut dead, phase, (number, &mut random));
        dead.signal(libc::SIGKILL);
        let last = last_phase(&dead.wait().stderr);
        // Where the job has not begun, the others wait for one more.
        let mut other = (last == PHASES[0]).then(|| start(victim, &job, "life"));
        wait_for_ends(&mut ranks, &what);
        check_survivors(&ranks, victim, (last, other.is_some()), &what);
        if let Some(mut other) = other.take() {
            // It is of their job, or waits for ranks of one that never comes.
            match ranks.iter().all(|rank| rank.has_said("@ends well")) {
                true => wait_for_ends(std::slice::from_mut(&mut other), &what),
                false => other.signal(libc::SIGKILL),
            }
            other.wait();
        }
        end_well_or_not(ranks);
        times.add(before.is_again_by(agent.id(), &what));
        *met.entry(last).or_default() += 1;
        greet();
        before.is_again_by(agent.id(), "the next job");
    }
    eprintln!("where the dead were: {met:?}; until the agent had reclaimed all:\n{times}");
    assert!(kills < QUICK || met.len() >= 4, "{met:?}");
    agent.signal(libc::SIGTERM);
    let said = agent.wait();
    assert_eq!(said.status, 0, "{}", said.stderr);
}

/// Has ranks end that have said how their job did.
fn end_well_or_not(ranks: Vec<Launched>) {
    for rank in ranks {
        let ended = rank.wait();
        assert_eq!(ended.status, 0, "{}", ended.stderr);
    }
}

/// Checks how the ranks have ended whose agent was killed. On several nodes none ends well unless
/// all had come to the end by then. On one node all do once all have joined; before, who has joined
/// may hear of one that has not.
fn check_orphans(ranks: &[Launched], had_all_left: bool, of_one_node: bool, what: &str) {
    let goes_on = of_one_node && ranks.iter().all(|rank| rank.has_said("@opens"));
    for rank in ranks {
        let said = rank.said();
        let may_be = match end(&said) {
            "well" => had_all_left || goes_on,
            end => {
                let is_left = of_one_node && end.contains("has left the job without");
                !goes_on && (end.starts_with("told of an agent: ") || is_left)
            }
        };
        assert!(may_be, "{what}: {said}");
    }
}

fn have_all_left(ranks: &[Launched]) -> bool {
    ranks.iter().all(|rank| rank.has_said("@leaves"))
}

#[test]
fn an_agent_that_is_killed_at_any_point_has_a_successor_for_the_next_job() {
    let test = "an_agent_that_is_killed_at_any_point_has_a_successor_for_the_next_job";
    if let Some(role) = role() {
        return take_part(&role);
    }
    let (kills, mut random) = asked_for(QUICK_AGENTS[0]);
    let (mut agent, name) = start_agent("killed-agents", RANKS, "never");
    let ranks = |job: &str, role: &str| -> Vec<_> {
        let start = |place| start_rank_at(place, test, &name, job, role);
        (0..RANKS).map(start).collect()
    };
    let mut met = BTreeMap::<_, u64>::new();
    for number in 0..kills {
        let phase = PHASES[1 + number as usize % 4];
        let what = format!("kill {number}, after `{phase}`");
        let mut job = ranks("", "life");
        let heard = random.below(RANKS.into()) as usize;
        wait_for_moment(&mut job[heard], phase, (number, &mut random));
        let last = last_phase(&job[heard].said());
        agent.signal(libc::SIGKILL);
        assert_eq!(agent.wait().status, 128 + libc::SIGKILL);
        let had_all_left = have_all_left(&job);
        wait_for_ends(&mut job, &what);
        check_orphans(&job, had_all_left, true, &what);
        end_well_or_not(job);
        *met.entry(last).or_default() += 1;
        agent = start_agent_named(&name, RANKS, "never");
        end_well(ranks("", "greet"), "the successor's job");
    }
    eprintln!("where the agents' ranks were: {met:?}");
    assert!(kills < QUICK_AGENTS[0] || met.len() >= 3, "{met:?}");
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.wait().status, 0);
}

/// Whichever of them it is, and wherever they are, they end well once all have joined.
#[test]
fn ranks_of_one_node_end_well_when_one_of_its_agents_is_killed_at_any_point() {
    let test = "ranks_of_one_node_end_well_when_one_of_its_agents_is_killed_at_any_point";
    if let Some(role) = role() {
        return take_part(&role);
    }
    let (kills, mut random) = asked_for(QUICK_AGENTS[1]);
    let mut met = BTreeMap::<_, u64>::new();
    for number in 0..kills {
        let phase = PHASES[1 + number as usize % 4];
        let (agents, name) = start_two("killed-nics", &["--linger-ms", "never"]);
        let victim = random.below(2) as usize;
        let what = format!("kill {number}, of agent {victim} after `{phase}`");
        let mut job: Vec<_> = (0..RANKS)
            .map(|place| start_rank_at(place, test, &name, "", "life"))
            .collect();
        let heard = random.below(RANKS.into()) as usize;
        wait_for_moment(&mut job[heard], phase, (number, &mut random));
        let last = last_phase(&job[heard].said());
        // SAFETY: a system call on integers; what has started it has not reaped it.
        let killed = unsafe { libc::kill(both_of(&agents)[victim] as i32, libc::SIGKILL) };
        assert_eq!(killed, 0);
        let had_all_left = have_all_left(&job);
        wait_for_ends(&mut job, &what);
        check_orphans(&job, had_all_left, true, &what);
        end_well_or_not(job);
        // The other one has ended its part, too.
        agents.wait();
        *met.entry(last).or_default() += 1;
    }
    eprintln!("where the agents' ranks were: {met:?}");
    assert!(kills < QUICK_AGENTS[1] || met.len() >= 3, "{met:?}");
}

#[test]
fn agents_of_two_nodes_of_which_one_is_killed_have_successors_for_the_next_job() {
    let test = "agents_of_two_nodes_of_which_one_is_killed_have_successors_for_the_next_job";
    if let Some(role) = role() {
        return take_part(&role);
    }
    let (kills, mut random) = asked_for(QUICK_AGENTS[1]);
    let start = || Agents::start("killed-nodes", "never", "");
    let mut agents = start();
    let mut met = BTreeMap::<_, u64>::new();
    for number in 0..kills {
        let phase = PHASES[1 + number as usize % 4];
        let victim = random.below(2) as usize;
        let what = format!("kill {number}, of agent {victim} after `{phase}`");
        let mut job = agents.ranks(test, "", "life");
        let heard = random.below(job.len() as u64) as usize;
        wait_for_moment(&mut job[heard], phase, (number, &mut random));
        let (last, process) = (last_phase(&job[heard].said()), agents.id(victim));
        agents.signal(victim, libc::SIGKILL);
        until("it is dead", || !alive(process));
        let had_all_left = have_all_left(&job);
        wait_for_ends(&mut job, &what);
        assert_ne!(agents.launcher.wait().status, 0, "{what}");
        check_orphans(&job, had_all_left, false, &what);
        end_well_or_not(job);
        *met.entry(last).or_default() += 1;
        agents = start();
        end_well(agents.ranks(test, "", "greet"), "the successors' job");
    }
    eprintln!("where the agents' ranks were: {met:?}");
    assert!(kills < QUICK_AGENTS[1] || met.len() >= 3, "{met:?}");
    agents.launcher.signal(libc::SIGTERM);
    agents.launcher.wait();
}
