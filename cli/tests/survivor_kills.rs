//! Ranks of agents are killed at random points while all ranks exchange by channels and by records,
//! and the others go on.
//!
//! `TRIHOP_KILLS=N` says how many kills of each kind, `TRIHOP_SEED=N` which ones.

mod launched;

use std::thread;
use std::time::{Duration, Instant};

use launched::agents::{
    Agents, end_agent, end_told, have_attached, input_has_ended, role, start_agent, start_rank_at,
};
use launched::kills::{Random, Times, asked_for};
use launched::{Launched, until};
use trihop::channel::{Descriptor, Return, Timeout};
use trihop::{
    ChannelLimits, Error, Job, Message, Options, Rank, Result, Seat, State, over, threaded,
};

/// Kills that nobody asked for more of: of ranks of one node, and of two.
const QUICK: [u64; 2] = [16, 8];

/// Turns that survivors make beyond the death.
const TURNS_AFTER: u32 = 50;

/// Later than this after the others have begun nobody is killed.
const MOST_DELAY_US: u64 = 50_000;

/// Bytes of messages: of one in so many, and of the others.
const LONG: usize = 300_000;
const ONE_IN: u64 = 20;

/// How many messages a rank has sent to each, and heard of each, of one kind.
struct Numbered {
    sent: Vec<u64>,
    heard: Vec<u64>,
    bytes: Vec<u8>,
}

impl Numbered {
    fn new(ranks: u32) -> Self {
        Self {
            sent: vec![0; ranks as usize],
            heard: vec![0; ranks as usize],
            bytes: vec![5; LONG],
        }
    }

    /// Sends the next one to a rank where there is room; whether it is gone.
    fn send(&mut self, rank: u32, send: impl FnOnce(&[u8]) -> Result<()>) -> Result<bool> {
        let number = &mut self.sent[rank as usize];
        self.bytes[..8].copy_from_slice(&number.to_le_bytes());
        let length = if *number % ONE_IN == ONE_IN - 1 {
            LONG
        } else {
            8
        };
        match send(&self.bytes[..length]) {
            Ok(()) => *number += 1,
            Err(Error::WouldBlock | Error::TimedOut(_)) => {}
            Err(Error::PeerDead { .. } | Error::PeerFailed { .. }) => return Ok(true),
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// Hears one: none is missing before it, or comes twice.
    fn hear(&mut self, source: Rank, bytes: &[u8]) {
        let number = &mut self.heard[source.0 as usize];
        assert_eq!(bytes[..8], number.to_le_bytes(), "of rank {source}");
        let length = if *number % ONE_IN == ONE_IN - 1 {
            LONG
        } else {
            8
        };
        assert_eq!(bytes.len(), length, "number {number} of rank {source}");
        assert!(bytes[8..].iter().all(|byte| *byte == 5));
        *number += 1;
    }
}

fn exchange<S: Seat>(
    job: over::Job<S>,
    records: &over::Shuffle<S>,
    heard: &dyn Fn(&mut Numbered) -> Result<()>,
) -> Result<()> {
    let told = input_has_ended();
    let (me, size) = (job.rank().0, job.size());
    let channels = job.channels("letters").open()?;
    let mine = channels.create(ChannelLimits::default())?;
    let named = job.allgather(&mine.descriptor().to_bytes())?;
    let others = || (0..size).filter(move |rank| *rank != me);
    let attach = |rank: u32| channels.attach(&Descriptor::from_bytes(&named[rank as usize])?);
    let to: Vec<_> = others()
        .map(|rank| Ok((rank, attach(rank)?)))
        .collect::<Result<_>>()?;
    let (mut by_channel, mut by_record) = (Numbered::new(size), Numbered::new(size));
    job.barrier()?;
    eprintln!("attached");
    let mut after = 0;
    while !told.is_raised() {
        let mut misses = false;
        for (rank, letters) in &to {
            let limit = Timeout::After(Duration::from_millis(5));
            let when = Return::WhenDeposited;
            misses |= by_channel.send(*rank, |bytes| letters.send(0, bytes, when, limit))?;
            misses |= by_record.send(*rank, |bytes| records.try_send(Rank(*rank), 0, bytes))?;
        }
        loop {
            match mine.get(Timeout::Once) {
                Err(Error::WouldBlock) => break,
                letter => {
                    let letter = letter?;
                    by_channel.hear(letter.source, &letter.bytes);
                }
            }
        }
        heard(&mut by_record)?;
        job.progress()?;
        after += u32::from(misses);
        if after == TURNS_AFTER {
            eprintln!("goes on");
        }
    }
    Ok(())
}

fn take_part(seat: &str) -> Result<()> {
    let options = Options::from_env()?;
    if seat == "threaded" {
        let job = threaded::Job::start(options)?;
        job.survive()?;
        let records = job.shuffle("records").open()?;
        return exchange(job, &records, &|all| {
            let hear = |message: Message<'_>| all.hear(message.source, message.bytes);
            records.take(hear).map(drop)
        });
    }
    let heard = State::new(Vec::new());
    let job = Job::start(options)?;
    job.survive()?;
    let records = job.shuffle("records");
    let records = records.handler_with(&heard, |heard: &mut Vec<_>, message, _| {
        heard.push((message.source, message.bytes.to_vec()));
    });
    let records = records.open()?;
    exchange(job, &records, &|all| {
        heard.with(|heard| {
            heard
                .drain(..)
                .for_each(|(source, bytes)| all.hear(source, &bytes));
        });
        Ok(())
    })
}

/// Kills one of the ranks at some moment; the others go on, and hear of it soon.
fn kill_one(mut ranks: Vec<Launched>, what: &str, random: &mut Random, times: &mut Times) {
    have_attached(&ranks);
    thread::sleep(Duration::from_micros(random.below(MOST_DELAY_US)));
    let victim = random.below(ranks.len() as u64) as usize;
    let victim = ranks.remove(victim);
    victim.signal(libc::SIGKILL);
    let begun = Instant::now();
    victim.wait();
    until(what, || {
        for rank in &mut ranks {
            assert!(rank.runs(), "{what}: {}", rank.said());
        }
        ranks.iter().all(|rank| rank.has_said("goes on"))
    });
    times.add(begun.elapsed());
    end_told(ranks, what);
}

#[test]
fn ranks_of_an_agent_go_on_whenever_one_is_killed() {
    let test = "ranks_of_an_agent_go_on_whenever_one_is_killed";
    if let Some(seat) = role() {
        return take_part(&seat).unwrap();
    }
    let (agent, name) = start_agent("survivor-kills", 3, "never");
    let ((kills, mut random), mut times) = (asked_for(QUICK[0]), Times::default());
    for number in 0..kills {
        let seat = ["inline", "threaded"][number as usize % 2];
        let (job, what) = (number.to_string(), format!("kill {number}, {seat}"));
        let rank = |place| start_rank_at(place, test, &name, &job, seat);
        kill_one((0..3).map(rank).collect(), &what, &mut random, &mut times);
    }
    eprintln!("{kills} kills; until all went on:\n{times}");
    end_agent(agent);
}

#[test]
fn ranks_of_two_nodes_go_on_whenever_one_is_killed() {
    let test = "ranks_of_two_nodes_go_on_whenever_one_is_killed";
    if let Some(seat) = role() {
        return take_part(&seat).unwrap();
    }
    let agents = Agents::start_on("survivor-kills-nodes", &[3, 1], "never", "");
    let ((kills, mut random), mut times) = (asked_for(QUICK[1]), Times::default());
    for number in 0..kills {
        let seat = ["inline", "threaded"][number as usize % 2];
        let what = format!("kill {number}, {seat}");
        let ranks = agents.ranks(test, &number.to_string(), seat);
        kill_one(ranks, &what, &mut random, &mut times);
    }
    until("the jobs have ended", || agents.threads_of_jobs() == 0);
    eprintln!("{kills} kills; until all went on:\n{times}");
    agents.launcher.signal(libc::SIGTERM);
    agents.launcher.wait();
}
