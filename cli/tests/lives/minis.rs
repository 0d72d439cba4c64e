//! Kills of processes whose threads are ranks, at random moments: see `kills`, which says how many
//! and which. Each mini-rank that lives names one of the process that was killed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use trihop::minirank::{self, MiniRank};
use trihop::{Options, Result};

use crate::kills::{DELAY_US, PHASES, all_phases};
use crate::launched::kills::{Random, Times, asked_for};
use crate::ranks::{Ranks, Seat, SeatKind, Spec, WATCHDOG, is_rank, say};

/// Kills of a run that nobody asked for more of.
const QUICK: u64 = 30;

/// Processes of each node.
const SHAPES: [&str; 4] = ["2", "1,1", "3", "2,1"];

/// Mini-ranks of each process.
const EACH: u32 = 2;

/// Between the ends of the mini-ranks of a process, in what it says.
const AND: &str = " -- and -- ";

/// What the end of a mini-rank is called that has none to tell.
const WELL: &str = "well";

/// A process with mini-ranks, which says how all of them have ended.
fn process() {
    say("begins");
    let program = |mini: MiniRank| mini.start().map(Seat::Inline).and_then(all_phases);
    let ran = Options::from_env().and_then(|options| minirank::run(options, EACH, program));
    let ends: Vec<Result<()>> = ran.unwrap_or_else(|error| vec![Err(error)]);
    if ends.iter().all(Result::is_ok) {
        return say("done");
    }
    let texts = ends.into_iter().map(|end| match end {
        Ok(()) => WELL.to_owned(),
        Err(error) => error.to_string(),
    });
    say(&format!("error {}", texts.collect::<Vec<_>>().join(AND)));
    // As a program that fails.
    std::process::exit(1);
}

/// Checks that all that live name the dead or, where its process had come to its end, end well; how
/// long the last one took, unless the job was over before.
fn check(ranks: &Ranks, what: &str, victim: u32, killed: Instant) -> Option<Duration> {
    let told = || format!("{:?}\n{}", ranks.ends, ranks.told());
    let names_it = |end: &str| {
        let mut dead = victim * EACH..(victim + 1) * EACH;
        dead.any(|rank| end.contains(&format!("rank {rank} is gone")))
    };
    let mut last = None;
    for process in (0..ranks.size()).filter(|process| *process != victim) {
        let Some((at, end)) = ranks.ends.get(&process) else {
            panic!("{what}: process {process} hangs: {}", told());
        };
        let ends = match end.strip_prefix("error ") {
            Some(ends) => ends.split(AND).collect(),
            None => vec![WELL],
        };
        // Of a process that dies before it has joined, only the launcher can tell.
        let is_early = !ranks.has_said(process, "opens") && end.contains("bootstrap");
        for end in ends {
            let may_be = match end {
                WELL => ranks.has_said(victim, "ends"),
                end => names_it(end) || is_early,
            };
            assert!(may_be, "{what}: process {process}: `{end}`: {}", told());
        }
        if end != "done" {
            last = last.max(Some(at.saturating_duration_since(killed)));
        }
    }
    last
}

/// One kill, after this word of a process.
fn kill(test: &str, phase: &str, random: &mut Random) -> (Ranks, u32, String, Instant) {
    let node_sizes = SHAPES[random.below(SHAPES.len() as u64) as usize];
    let size: u32 = node_sizes
        .split(',')
        .map(|n| n.parse::<u32>().unwrap())
        .sum();
    let victim = random.below(u64::from(size)) as u32;
    // Half of them at once, so that short phases are met too.
    let delay = Duration::from_micros(random.below(2) * random.below(DELAY_US));
    let what = format!("nodes {node_sizes}, process {victim} {delay:?} after `{phase}`");
    let mut ranks = Spec::new(test, node_sizes, SeatKind::Minirank, victim).start();
    let deadline = Instant::now() + Duration::from_secs(60);
    while ranks.next(deadline).is_some() {
        if ranks.has_said(victim, phase) && ranks.all_have_begun() {
            // The moment of death is random, and nothing waits for it.
            std::thread::sleep(delay);
            let killed = Instant::now();
            ranks.try_signal(victim, Signal::KILL);
            ranks.wait_for_survivors(Some(victim), WATCHDOG);
            return (ranks, victim, what, killed);
        }
    }
    let (ends, told) = (&ranks.ends, ranks.told());
    panic!("{what}: the process never came there: {ends:?}\n{told}");
}

#[test]
fn a_process_of_several_mini_ranks_that_is_killed_is_named_by_all_that_live() {
    let test = "minis::a_process_of_several_mini_ranks_that_is_killed_is_named_by_all_that_live";
    if is_rank() {
        return process();
    }
    let (kills, mut random) = asked_for(QUICK);
    let (mut met, mut times) = (BTreeMap::<String, u64>::new(), Times::default());
    for number in 0..kills {
        let phase = PHASES[number as usize % PHASES.len()];
        let (ranks, victim, what, killed) = kill(test, phase, &mut random);
        let last = check(&ranks, &what, victim, killed);
        eprintln!("kill {number}: {what}: {last:?}");
        last.into_iter().for_each(|time| times.add(time));
        let word = ranks.said[&victim].last().cloned().unwrap_or_default();
        *met.entry(word).or_default() += 1;
    }
    eprintln!("the last words of the dead: {met:?}; time to the last error:\n{times}");
    assert!(kills < QUICK || met.len() >= 4, "{met:?}");
}
