//! Kills at random moments: start-up, opening of streams, sending, long records, fences, shutdown.
//! Ranks are in Rust and in C (`tests/lives/phases.c`), by turns, inline, with threads, and
//! inline with agents.
//!
//! `TRIHOP_KILLS=N` says how many, `TRIHOP_SEED=N` which ones. A survivor names the rank that was
//! killed. Two things else are allowed: a survivor that has not joined yet may have its error from
//! the launcher, or name another rank that has not joined either and ended because of the first;
//! and who has arrived at the end may find all others there.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use trihop::Result;
use trihop::capi::status::trihop_status_t::TRIHOP_ERR_PEER_DEAD;

use crate::launched::compiled::{Compiler, client_of};
use crate::launched::kills::{Random, Times, asked_for};
use crate::ranks::{Post, Ranks, Seat, SeatKind, Spec, WATCHDOG, is_rank, number, rank, say};

/// Kills of a run that nobody asked for more of.
const QUICK: u64 = 12;

/// What ranks say when they come to it; a kill follows one of these after a random time.
pub const PHASES: [&str; 6] = ["begins", "opens", "sends", "long", "fences", "ends"];

/// Those with agents have equally many ranks on each node.
const SHAPES: [&str; 5] = ["2,2", "1,1,1", "4", "3,1", "1,2,2"];
const EQUAL_SHAPES: u64 = 3;

/// Longest time from a rank's word to its death.
pub const DELAY_US: u64 = 30_000;

/// For about 40 ms, whatever the machine's speed, so that a kill falls into the phase.
fn busily(mut step: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let until = Instant::now() + Duration::from_millis(40);
    for turn in 0.. {
        step(turn)?;
        if Instant::now() >= until {
            break;
        }
    }
    Ok(())
}

pub fn all_phases(seat: Seat) -> Result<()> {
    say("opens");
    let size = seat.size();
    let open = |name: &str| seat.open(name, |_| ());
    let posts: Vec<Post> = ["a", "b", "c"]
        .map(open)
        .into_iter()
        .collect::<Result<_>>()?;
    say("sends");
    busily(|turn| posts[0].send((number() + turn) % size, &[1; 100]))?;
    say("long");
    let long = vec![2; 1 << 20];
    busily(|turn| posts[1].send((number() + turn) % size, &long))?;
    say("fences");
    for post in &posts {
        post.fence()?;
    }
    // As many for all: a fence is everybody's.
    for _ in 0..20 {
        posts[2].send((number() + 1) % size, &[3; 10])?;
        posts[2].fence()?;
    }
    drop(posts);
    say("ends");
    seat.shutdown()
}

/// What a job's ranks are.
struct Kind {
    seat: SeatKind,
    /// In C; else they are this test.
    program: Option<PathBuf>,
}

impl Kind {
    /// All that can be had here.
    fn all() -> Vec<Self> {
        let mut programs = vec![None];
        if Compiler::C.is_there() {
            let in_c = client_of("lives", "phases", Compiler::C, &["include"]);
            programs.push(Some(in_c));
        }
        let seats = |program: Option<PathBuf>| {
            let seats = [SeatKind::Inline, SeatKind::Threaded, SeatKind::Agent];
            seats.map(|seat| Self {
                seat,
                program: program.clone(),
            })
        };
        programs.into_iter().flat_map(seats).collect()
    }

    fn name(&self) -> String {
        let language = if self.program.is_some() { "C" } else { "Rust" };
        format!("{language} {:?}", self.seat)
    }

    /// Whether this end of a survivor names the dead; in C by its status too.
    fn names(&self, end: &str, victim: u32) -> bool {
        let status = match self.program {
            Some(_) => format!("error {}: ", TRIHOP_ERR_PEER_DEAD as i32),
            None => "error ".to_owned(),
        };
        end.starts_with(&status) && end.contains(&format!("rank {victim} is gone"))
    }
}

/// One kill; how long it took the last survivor to name the dead, unless the job was over before.
fn kill(test: &str, kind: &Kind, random: &mut Random) -> (String, Option<Duration>) {
    let shapes = match kind.seat {
        SeatKind::Agent => EQUAL_SHAPES,
        _ => SHAPES.len() as u64,
    };
    let node_sizes = SHAPES[random.below(shapes) as usize];
    let size: u32 = node_sizes
        .split(',')
        .map(|n| n.parse::<u32>().unwrap())
        .sum();
    let victim = random.below(u64::from(size)) as u32;
    // Of a rank that dies before its agent has received it, only the launcher and the time for the
    // start can tell.
    let phases = match kind.seat {
        SeatKind::Agent => &PHASES[1..],
        _ => &PHASES[..],
    };
    let phase = phases[random.below(phases.len() as u64) as usize];
    let delay = Duration::from_micros(random.below(DELAY_US));
    let name = kind.name();
    let what = format!("nodes {node_sizes}, {name}, rank {victim} {delay:?} after `{phase}`");
    let spec = Spec {
        program: kind.program.as_deref(),
        ..Spec::new(test, node_sizes, kind.seat, victim)
    };
    let mut ranks = spec.start();
    let deadline = Instant::now() + Duration::from_secs(60);
    while ranks.next(deadline).is_some() {
        if ranks.has_said(victim, phase) && ranks.all_have_begun() {
            // The moment of death is random, and nothing waits for it.
            std::thread::sleep(delay);
            let killed = Instant::now();
            let ran = ranks.try_signal(victim, Signal::KILL);
            ranks.wait_for_survivors(Some(victim), WATCHDOG);
            return (
                what.clone(),
                check(&ranks, kind, &what, victim, size, killed, ran),
            );
        }
    }
    panic!(
        "{what}: the rank never came there: {:?}\n{}",
        ranks.ends,
        ranks.told()
    );
}

fn check(
    ranks: &Ranks,
    kind: &Kind,
    what: &str,
    victim: u32,
    size: u32,
    killed: Instant,
    ran: bool,
) -> Option<Duration> {
    let told = || format!("{:?}\n{}", ranks.ends, ranks.told());
    let mut last = None;
    for rank in (0..size).filter(|rank| *rank != victim) {
        let Some((at, end)) = ranks.ends.get(&rank) else {
            panic!("{what}: rank {rank} hangs: {}", told());
        };
        if end == "done" {
            let arrived = !ran || ranks.has_said(victim, "ends");
            assert!(arrived, "{what}: rank {rank} has not noticed: {}", told());
            continue;
        }
        let named = kind.names(end, victim);
        let starting = [
            "bootstrap",
            "before the job had started",
            "takes no descriptors",
        ];
        let early =
            !ranks.has_said(rank, "opens") && starting.iter().any(|text| end.contains(text));
        assert!(
            named || early,
            "{what}: rank {rank} says `{end}`: {}",
            told()
        );
        last = last.max(Some(at.saturating_duration_since(killed)));
    }
    last
}

#[test]
fn whoever_is_killed_at_a_random_moment_is_named_by_every_survivor() {
    let test = "kills::whoever_is_killed_at_a_random_moment_is_named_by_every_survivor";
    if is_rank() {
        return rank(all_phases);
    }
    let (kills, mut random) = asked_for(QUICK);
    let kinds = Kind::all();
    let (mut times, mut over) = (Times::default(), 0);
    for kill_number in 0..kills {
        let kind = &kinds[kill_number as usize % kinds.len()];
        let (what, last) = kill(test, kind, &mut random);
        eprintln!("kill {kill_number}: {what}: {last:?}");
        match last {
            Some(time) => times.add(time),
            None => over += 1,
        }
    }
    eprintln!(
        "time to the last survivor's error, of {} kills ({over} came after the job's end):\n{times}",
        kills - over
    );
}
