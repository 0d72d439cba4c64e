//! Every survivor names the dead rank, no matter which rank died and what it owed.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use trihop::channel::{Descriptor, Poll, Timeout};
use trihop::{ChannelLimits, Result, over};

use crate::ranks::{
    ENV_NO_PIDFD, Seat, SeatKind, Spec, WATCHDOG, can_forbid_pidfd, is_installed, is_rank, number,
    rank, say, victim, wait_for_death,
};

/// Kills each rank in turn once all are ready, and prints how long it took the last survivor to say
/// so.
fn kill_each(
    test: &str,
    node_sizes: &str,
    seats: &[SeatKind],
    body: impl Fn(Seat) -> Result<()> + Sync,
) {
    if is_rank() {
        return rank(body);
    }
    let size: u32 = node_sizes
        .split(',')
        .map(|n| n.parse::<u32>().unwrap())
        .sum();
    for &seat in seats {
        for victim in 0..size {
            let spec = Spec::new(test, node_sizes, seat, victim);
            let mut ranks = spec.start();
            ranks.wait_for(size, "ready");
            let killed = Instant::now();
            ranks.signal(victim, Signal::KILL);
            let last = ranks.assert_named(victim, killed);
            eprintln!(
                "{test}: {seat:?}, nodes {node_sizes}, rank {victim}: the last survivor's error after {last:?}"
            );
        }
    }
}

/// The representatives are among them, and the first rank of each node, which has its watch.
#[test]
fn ranks_that_wait_and_are_owed_nothing_hear_of_a_death_on_any_node() {
    let test = "dead::ranks_that_wait_and_are_owed_nothing_hear_of_a_death_on_any_node";
    kill_each(test, "2,2", &SeatKind::WITH_RELAYS, |seat| {
        seat.barrier()?;
        say("ready");
        if number() == victim() {
            wait_for_death();
        }
        seat.barrier()
    });
}

/// Nothing announces the end of a process then. The rank that has its node's watch computes: that
/// the other node hears of the death is the watch's work.
#[test]
fn ranks_without_the_call_that_watches_processes_hear_of_a_death() {
    let test = "dead::ranks_without_the_call_that_watches_processes_hear_of_a_death";
    if is_rank() {
        return rank(|seat| {
            seat.barrier()?;
            say("ready");
            match number() {
                own if own == victim() => wait_for_death(),
                2 => std::thread::sleep(Duration::from_secs(3)),
                _ => {}
            }
            seat.barrier()
        });
    }
    if !can_forbid_pidfd() {
        return eprintln!("skipped: {test}: the system takes no filter of system calls");
    }
    for seat in SeatKind::ALL {
        let spec = Spec {
            variables: &[(ENV_NO_PIDFD, "1")],
            ..Spec::new(test, "2,2", seat, 3)
        };
        let mut ranks = spec.start();
        ranks.wait_for(4, "ready");
        let killed = Instant::now();
        ranks.signal(3, Signal::KILL);
        ranks.assert_named(3, killed);
        if seat == SeatKind::Inline {
            let (others, computes) = ([0, 1].map(|rank| ranks.ends[&rank].0), ranks.ends[&2].0);
            assert!(others.into_iter().all(|at| at < computes), "{seat:?}");
        }
    }
}

#[test]
fn ranks_that_only_receive_hear_of_a_death_on_any_node() {
    let test = "dead::ranks_that_only_receive_hear_of_a_death_on_any_node";
    kill_each(test, "1,2", &SeatKind::ALL, |seat| {
        let post = seat.open("in", |_| ())?;
        seat.barrier()?;
        say("ready");
        if number() == victim() {
            wait_for_death();
        }
        post.only_receive()
    });
}

#[test]
fn a_rank_that_dies_while_others_open_a_stream_is_named() {
    let test = "dead::a_rank_that_dies_while_others_open_a_stream_is_named";
    kill_each(test, "2,2", &SeatKind::WITH_RELAYS, |seat| {
        seat.barrier()?;
        say("ready");
        if number() == victim() {
            wait_for_death();
        }
        seat.open("late", |_| ()).map(drop)
    });
}

/// The first rank of its node waits for its word then, and knows no process that it could watch.
#[test]
fn a_rank_that_dies_before_its_node_knows_it_is_named() {
    let test = "dead::a_rank_that_dies_before_its_node_knows_it_is_named";
    if is_rank() && number() == victim() {
        let launcher = trihop::transport::bootstrap::start(None, WATCHDOG);
        launcher.unwrap().fence().unwrap();
        say("ready");
        wait_for_death();
    }
    if is_rank() {
        return rank(|seat| seat.shutdown());
    }
    for (node_sizes, victim) in [("2", 1), ("1,3", 2)] {
        for seat in [SeatKind::Inline, SeatKind::Threaded, SeatKind::Minirank] {
            let mut ranks = Spec::new(test, node_sizes, seat, victim).start();
            ranks.wait_for(1, "ready");
            ranks.signal(victim, Signal::KILL);
            ranks.wait_for_survivors(Some(victim), WATCHDOG);
            for rank in (0..ranks.size()).filter(|rank| *rank != victim) {
                let end = ranks.ends.get(&rank).map(|(_, end)| end.as_str());
                let names_it = |end: &str| end.contains(&format!("rank {victim} has ended"));
                let told = ranks.told();
                assert!(end.is_some_and(names_it), "rank {rank}: {end:?}\n{told}");
            }
        }
    }
}

/// News goes from watch to watch: most nodes have no connection to the dead one's.
#[test]
fn ranks_of_many_nodes_hear_of_a_death() {
    let test = "dead::ranks_of_many_nodes_hear_of_a_death";
    kill_each(
        test,
        "1,1,2,1,1,1,1,1,1,1,1,1",
        &[SeatKind::Inline],
        |seat| {
            seat.barrier()?;
            say("ready");
            if number() == victim() {
                wait_for_death();
            }
            seat.barrier()
        },
    );
}

#[test]
fn ranks_behind_a_cut_link_all_err() {
    let test = "dead::ranks_behind_a_cut_link_all_err";
    if is_rank() {
        return rank(|seat| {
            seat.barrier()?;
            say("ready");
            seat.open("in", |_| ())?.only_receive()
        });
    }
    if !rustix::process::geteuid().is_root() || !is_installed("nsenter") {
        eprintln!("skipped: a network namespace whose link is cut needs root and `nsenter`");
        return;
    }
    let variables = [("TRIHOP_WATCH_TIMEOUT_MS", "2000")];
    for seat in SeatKind::ALL {
        let spec = Spec {
            launch: &["--netns"],
            variables: &variables,
            ..Spec::new(test, "2,1,1", seat, 2)
        };
        let mut ranks = spec.start();
        ranks.wait_for(4, "ready");
        let pid = ranks.pid(2).to_string();
        let mut cut = std::process::Command::new("nsenter");
        let cut = cut
            .args(["-t", &pid, "-n", "ip", "link", "set", "trihop0", "down"])
            .status();
        assert!(cut.unwrap().success(), "the link can be cut");
        let cut = Instant::now();
        ranks.wait_for_survivors(None, Duration::from_secs(60));
        for rank in 0..4 {
            let Some((at, end)) = ranks.ends.get(&rank) else {
                panic!("rank {rank} hangs: {:?}\n{}", ranks.ends, ranks.told());
            };
            eprintln!(
                "{test}: {seat:?}: rank {rank} after {:?}: {end}",
                at.saturating_duration_since(cut)
            );
            // Those on the near side name the node that is away; the one there, one of theirs.
            let away = if rank == 2 { "rank " } else { "rank 2 is gone" };
            assert!(
                end.contains(away) && end.contains("does not answer"),
                "rank {rank}: {end}"
            );
        }
    }
}

/// The launcher sees no process of its own end, or it would end all others.
#[test]
fn under_mpich_every_survivor_hears_of_a_death_too() {
    let test = "dead::under_mpich_every_survivor_hears_of_a_death_too";
    if is_rank() {
        return rank(|seat| {
            seat.barrier()?;
            say("ready");
            if number() == victim() {
                wait_for_death();
            }
            seat.barrier()
        });
    }
    let Some(hydra) = ["mpiexec.hydra", "mpiexec.mpich"]
        .into_iter()
        .find(|name| is_installed(name))
    else {
        eprintln!("skipped: MPICH's mpiexec is not installed");
        return;
    };
    let launch = "-launcher fork -hosts 127.0.0.1,127.0.0.2 -ppn 2 -n 4";
    let launch: Vec<&str> = launch.split(' ').collect();
    for victim in 0..4 {
        let variables = [("TRIHOP_LOOPBACK", "1")];
        let spec = Spec {
            launch: &launch,
            launcher: Some(hydra),
            variables: &variables,
            ..Spec::new(test, "2,2", SeatKind::Inline, victim)
        };
        let mut ranks = spec.start();
        ranks.wait_for(4, "ready");
        let killed = Instant::now();
        ranks.signal(victim, Signal::KILL);
        let last = ranks.assert_named(victim, killed);
        eprintln!("{test}: rank {victim}: the last survivor's error after {last:?}");
    }
}

/// It lives: its error is told as it is, and is nobody's death.
#[test]
fn a_rank_whose_handler_panics_is_named_with_its_error_by_all_others() {
    let test = "dead::a_rank_whose_handler_panics_is_named_with_its_error_by_all_others";
    if is_rank() {
        return rank(|seat| {
            let post = seat.open("in", |_| panic!("seven\u{7}"))?;
            seat.barrier()?;
            if number() != victim() {
                return seat.barrier();
            }
            post.send(victim(), b"x")?;
            // Nobody else takes part: what ends it is the handler's failure.
            say(&format!("own {}", post.fence().unwrap_err()));
            wait_for_death();
        });
    }
    for victim in 0..4 {
        let mut ranks = Spec::new(test, "2,1,1", SeatKind::Threaded, victim).start();
        ranks.wait_for_survivors(Some(victim), WATCHDOG);
        let expected =
            format!("error rank {victim} has failed: the handler of `in` panicked: seven\\u{{7}}");
        for rank in (0..4).filter(|rank| *rank != victim) {
            let Some((_, end)) = ranks.ends.get(&rank) else {
                panic!("rank {rank} hangs: {:?}\n{}", ranks.ends, ranks.told());
            };
            assert_eq!(end, &expected, "rank {rank}");
        }
        let deadline = Instant::now() + WATCHDOG;
        let own = "own the handler of `in` panicked: seven\u{7}";
        while !ranks.has_said(victim, own) {
            let said = ranks.next(deadline);
            assert!(
                said.is_some(),
                "rank {victim} does not hear of its own failure: {:?}",
                ranks.said
            );
        }
    }
}

/// All have a channel, and use that of rank 0, which some of them are.
fn use_the_first<S: trihop::Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
    mine: over::Channel<S>,
    call: impl FnOnce(&over::Channel<S>) -> Result<()>,
) -> Result<()> {
    let all = job.allgather(&mine.descriptor().to_bytes())?;
    let first = channels.attach(&Descriptor::from_bytes(&all[0])?)?;
    job.barrier()?;
    say("ready");
    call(&first)
}

fn get_from_the_first<S: trihop::Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
) -> Result<()> {
    let mine = channels.create(ChannelLimits::default())?;
    use_the_first(job, channels, mine, |first| {
        first.get(Timeout::Never).map(drop)
    })
}

/// One call is missing in the barrier.
fn arrive_at_the_first<S: trihop::Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
) -> Result<()> {
    let mine = channels.barrier(job.size() + 1, ChannelLimits::default())?;
    use_the_first(job, channels, mine, |first| {
        first.poll(Poll::Arrive, Timeout::Never).map(drop)
    })
}

#[test]
fn who_waits_in_a_barrier_hears_of_the_rank_that_dies_be_it_owner_or_party() {
    let test = "dead::who_waits_in_a_barrier_hears_of_the_rank_that_dies_be_it_owner_or_party";
    kill_each(test, "2,1", &SeatKind::ALL, |seat| match seat {
        Seat::Inline(job) => arrive_at_the_first(&job, &job.channels("gate").open()?),
        Seat::Threaded(job) => arrive_at_the_first(&job, &job.channels("gate").open()?),
    });
}

#[test]
fn gets_from_a_channel_name_the_rank_that_dies_be_it_owner_or_asker() {
    let test = "dead::gets_from_a_channel_name_the_rank_that_dies_be_it_owner_or_asker";
    kill_each(test, "2,1", &SeatKind::ALL, |seat| match seat {
        Seat::Inline(job) => get_from_the_first(&job, &job.channels("queue").open()?),
        Seat::Threaded(job) => get_from_the_first(&job, &job.channels("queue").open()?),
    });
}
