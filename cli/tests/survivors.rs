//! Jobs that go on without ranks that were killed, and without agents.

mod launched;

use std::process::Command;
use std::time::{Duration, Instant};

use launched::agents::{
    Agents, end_agent, end_told, have_attached, input_has_ended, role, start_agent, start_rank_at,
};
use launched::compiled::{Compiler, client_of};
use launched::{Launched, until};
use trihop::channel::{Descriptor, Poll, Return, Timeout};
use trihop::{ChannelLimits, Error, Job, Options, Rank, Result, Seat, over, threaded};

const TRIHOP: &str = env!("CARGO_BIN_EXE_trihop");

/// The rank that is killed.
const VICTIM: u32 = 1;

/// What it has sent to each other before.
const LETTERS: u64 = 20;
const LONG: usize = 600_000;

/// Bytes of its last record, of which it may be killed in the middle.
const UNENDING: usize = 8 << 20;

/// What survivors do with each other then.
const TURNS: u64 = 500;

/// Who waits longer for what must come hangs.
const HANGS: Duration = Duration::from_secs(60);

/// A job of one rank of these tests, with what all have opened.
struct Part<S: Seat> {
    job: over::Job<S>,
    channels: over::Channels<S>,
    records: over::Shuffle<S>,
    /// Letters to this rank; and of rank 0 what two wait for, and a lock.
    mine: over::Channel<S>,
    named: Vec<Vec<u8>>,
}

/// Whether a call has failed because the victim is gone.
#[track_caller]
fn misses<T>(outcome: Result<T>, what: &str) {
    match outcome {
        Err(Error::PeerDead { rank: VICTIM, .. }) => {}
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what} goes on"),
    }
}

impl<S: Seat> Part<S> {
    fn begin(job: over::Job<S>) -> Result<Self> {
        job.survive()?;
        // Nothing of a stream that is closed is lost, nor waited for.
        job.shuffle("early").open()?.shutdown()?;
        let channels = job.channels("letters").open()?;
        let records = job.shuffle("records").open()?;
        // With room for all letters.
        let bytes = 16 << 20;
        let mine = channels.create(ChannelLimits {
            bytes,
            window_bytes: bytes,
            ..ChannelLimits::default()
        })?;
        let tasks = channels.create(ChannelLimits::default())?;
        let lock = channels.semaphore(1, 1, ChannelLimits::default())?;
        let all = [&mine, &tasks, &lock].map(|port| port.descriptor().to_bytes());
        let named = job.allgather(all.as_flattened())?;
        // Those of this rank are there as long as its job is.
        std::mem::forget((tasks, lock));
        Ok(Self {
            job,
            channels,
            records,
            mine,
            named,
        })
    }

    /// The channel of a rank with this number.
    fn attach(&self, rank: u32, number: usize) -> Result<over::Channel<S>> {
        let named = &self.named[rank as usize][number * Descriptor::BYTES..][..Descriptor::BYTES];
        self.channels.attach(&Descriptor::from_bytes(named)?)
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<S> {
        let me = self.job.rank().0;
        (0..self.job.size()).filter(move |rank| ![me, VICTIM].contains(rank))
    }

    /// Sends, waits for a task, holds a lock, and is killed.
    fn die(&self) -> Result<()> {
        for rank in self.others() {
            let letters = self.attach(rank, 0)?;
            for number in 0..LETTERS {
                let mut letter = number.to_le_bytes().to_vec();
                letter.resize(if number % 5 == 4 { LONG } else { 8 }, 1);
                letters.send(7, &letter, Return::WhenBuffered, Timeout::Never)?;
            }
            std::mem::forget(letters);
        }
        let (tasks, lock) = (self.attach(0, 1)?, self.attach(0, 2)?);
        let waits = tasks.start_get(Timeout::Never)?;
        lock.poll(Poll::Acquire, Timeout::Never)?;
        // Once all has left.
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            self.job.progress()?;
        }
        // On an inline seat a part of it leaves now, and nothing more.
        let unending = vec![9; UNENDING];
        let _ = self.records.try_send(Rank(2), 0, &unending);
        eprintln!("attached");
        let _ = std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new());
        drop(waits);
        Ok(())
    }

    /// Takes records of the others. That of the victim comes as a whole, or not at all.
    fn hear(&self, heard: &mut u64) -> Result<()> {
        let taken = self.records.take(|message| match message.source {
            Rank(VICTIM) => assert_eq!((message.bytes[0], message.bytes.len()), (9, UNENDING)),
            _ => {
                assert_eq!(message.bytes[0], 3);
                *heard += 1;
            }
        });
        taken.map(drop)
    }

    /// Goes on without it.
    fn live(self) -> Result<()> {
        let (me, size) = (self.job.rank().0, self.job.size());
        let told = input_has_ended();
        let to_it = self.attach(VICTIM, 0)?;
        let waits_for_it = self.attach(VICTIM, 1)?.start_get(Timeout::Never)?;
        eprintln!("attached");
        let begun = Instant::now();
        while self.job.lost()?.is_empty() {
            self.job.progress()?;
            assert!(begun.elapsed() < HANGS, "nobody is missed");
        }
        assert_eq!(self.job.lost()?, [Rank(VICTIM)]);
        // What is wanted of it fails.
        misses(waits_for_it.wait(), "a get that waits");
        misses(to_it.get(Timeout::Never), "a get");
        for when in [Return::Immediately, Return::WhenDeposited] {
            misses(to_it.send(0, b"", when, Timeout::Never), "a send");
        }
        misses(to_it.poll(Poll::Size, Timeout::Once), "a poll");
        misses(self.attach(VICTIM, 1), "an attach");
        misses(self.records.send(Rank(VICTIM), 0, b"a record"), "a record");
        // What it had sent has come, in its order.
        for number in 0..LETTERS {
            let letter = self.mine.get(Timeout::Never)?;
            assert_eq!((letter.kind, letter.source), (7, Rank(VICTIM)));
            assert_eq!(letter.bytes[..8], number.to_le_bytes());
            let length = if number % 5 == 4 { LONG } else { 8 };
            assert_eq!(letter.bytes.len(), length);
        }
        // A task is not for who is gone; what it had acquired stays so.
        let (tasks, lock) = (self.attach(0, 1)?, self.attach(0, 2)?);
        assert_eq!(
            lock.poll(Poll::Acquire, Timeout::Once),
            Err(Error::WouldBlock)
        );
        if me == 0 {
            self.others().try_for_each(|of| {
                tasks.send(of, b"a task", Return::WhenDeposited, Timeout::Never)
            })?;
        } else {
            assert_eq!(tasks.get(Timeout::Never)?.bytes[..], *b"a task");
        }
        // The others exchange, by channels and by records, long ones too.
        let next = (me + 1..)
            .map(|rank| rank % size)
            .find(|&rank| rank != VICTIM);
        let next = self.attach(next.unwrap(), 0)?;
        let mut heard = 0;
        for turn in 0..TURNS {
            next.send(
                8,
                &turn.to_le_bytes(),
                Return::WhenDeposited,
                Timeout::Never,
            )?;
            let got = self.mine.get(Timeout::Never)?;
            assert_eq!((got.kind, &got.bytes[..]), (8, &turn.to_le_bytes()[..]));
            let length = if turn % 100 == 0 { LONG } else { 100 };
            for rank in self.others() {
                self.records.send(Rank(rank), 0, &vec![3; length])?;
            }
            self.hear(&mut heard)?;
        }
        let expected = TURNS * self.others().count() as u64;
        while heard < expected {
            self.hear(&mut heard)?;
            assert!(begun.elapsed() < HANGS, "{heard} of {expected} records");
        }
        // What all take part in says who is missing.
        misses(self.records.fence(), "a fence");
        misses(self.job.barrier(), "a barrier");
        misses(self.job.shuffle("another").open(), "opening a stream");
        // Who leaves first is missed by the others, so each waits until all are done.
        eprintln!("done");
        while !told.is_raised() {
            self.job.progress()?;
        }
        let outcome = self.job.shutdown();
        match outcome {
            Err(Error::PeerDead { .. } | Error::PeerFailed { .. }) => Ok(()),
            other => panic!("the end: {other:?}"),
        }
    }
}

fn take_part(seat: &str) {
    let options = Options::from_env().unwrap();
    fn go_on<S: Seat>(job: over::Job<S>) -> Result<()> {
        let part = Part::begin(job)?;
        match part.job.rank().0 {
            VICTIM => part.die(),
            _ => part.live(),
        }
    }
    match seat {
        "inline" => go_on(Job::start(options).unwrap()).unwrap(),
        _ => go_on(threaded::Job::start(options).unwrap()).unwrap(),
    }
}

/// Kills the victim, once all have attached; the others end well.
fn kill_one(mut ranks: Vec<Launched>, what: &str) {
    have_attached(&ranks);
    let victim = ranks.remove(VICTIM as usize);
    victim.signal(libc::SIGKILL);
    victim.wait();
    end_when_done(ranks, what);
}

/// Ends ranks once all are done, or one has failed, which that says.
fn end_when_done(mut ranks: Vec<Launched>, what: &str) {
    until("all are done", || {
        let mut all = ranks.iter_mut();
        all.all(|rank| rank.has_said("done") || !rank.runs())
    });
    end_told(ranks, what);
}

/// A node's part of a job goes on without its agent, or another node's.
fn go_on_by_lanes<S: Seat>(job: over::Job<S>) -> Result<()> {
    let told = input_has_ended();
    job.survive()?;
    let channels = job.channels("letters").open()?;
    let records = job.shuffle("records").open()?;
    let mine = channels.create(ChannelLimits::default())?;
    let named = job.allgather(&mine.descriptor().to_bytes())?;
    let me = job.rank().0;
    // Ranks 0 and 1 are of one node, and 2 and 3 of another.
    let (here, beyond) = (me ^ 1, me ^ 2);
    let attach = |rank: u32| channels.attach(&Descriptor::from_bytes(&named[rank as usize])?);
    let (next, other) = (attach(here)?, attach(beyond)?);
    other.send(1, b"before", Return::WhenDeposited, Timeout::Never)?;
    let waits = other.start_poll(Poll::Full, Timeout::Never)?;
    assert_eq!(mine.get(Timeout::Never)?.source, Rank(beyond));
    eprintln!("attached");
    // It writes to the other node while that goes out of reach.
    let begun = Instant::now();
    let (mut sends, long) = (0, vec![1; LONG]);
    let lost = loop {
        let lost = job.lost()?;
        if !lost.is_empty() {
            break lost;
        }
        let length = if sends % 4 == 3 { LONG } else { 3000 };
        match records.try_send(Rank(beyond), 0, &long[..length]) {
            Err(Error::WouldBlock | Error::AgentDead { .. }) => {}
            sent => {
                sent?;
                sends += 1;
            }
        }
        records.take(|message| assert_eq!(message.bytes[0], 1))?;
        job.progress()?;
        assert!(begun.elapsed() < HANGS, "nobody is missed");
    };
    assert_eq!(lost, [beyond & 2, beyond | 1].map(Rank));
    let is_agents = |outcome: Result<()>, what: &str| match outcome {
        Err(Error::AgentDead { rank: 0, .. }) => {}
        other => panic!("{what}: {other:?}"),
    };
    is_agents(waits.wait().map(drop), "a poll that waits");
    is_agents(records.send(Rank(beyond), 0, b"a record"), "a record");
    let sent = other.send(2, b"", Return::WhenDeposited, Timeout::Never);
    is_agents(sent, "a send");
    let mut heard = 0;
    let mut hear = || {
        let taken = records.take(|message| heard += u64::from(message.bytes[0] == 2));
        taken.map(|_| heard)
    };
    for turn in 0..TURNS {
        next.send(
            3,
            &turn.to_le_bytes(),
            Return::WhenDeposited,
            Timeout::Never,
        )?;
        let got = mine.get(Timeout::Never)?;
        assert_eq!((got.kind, &got.bytes[..]), (3, &turn.to_le_bytes()[..]));
        let length = if turn % 100 == 0 { LONG } else { 100 };
        records.send(Rank(here), 0, &vec![2; length])?;
        hear()?;
    }
    while hear()? < TURNS {
        assert!(begun.elapsed() < HANGS, "records");
    }
    is_agents(records.fence(), "a fence");
    is_agents(records.fence(), "another one");
    is_agents(job.shuffle("another").open().map(drop), "opening a stream");
    eprintln!("done");
    while !told.is_raised() {
        job.progress()?;
    }
    is_agents(job.shutdown(), "the end");
    Ok(())
}

/// The process of an agent, which is a child of a shell of its launcher's.
fn process_of(agent: &str) -> u32 {
    let runs = |id: &u32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        let is_agent = words.nth(1) == Some(b"agent");
        is_agent && words.any(|word| word == agent.as_bytes())
    };
    let all = std::fs::read_dir("/proc").unwrap();
    let ids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let mut agents = ids.filter(runs);
    agents.next().expect("it runs")
}

#[test]
fn programs_in_c_go_on_without_a_rank_that_was_killed() {
    if !Compiler::C.is_there() {
        return eprintln!("skipped: there is no C compiler");
    }
    let program = client_of("lives", "survivors", Compiler::C, &["include"]);
    for seat in ["inline", "threaded"] {
        let (agent, name) = start_agent(&format!("survivors-c-{seat}"), 4, "never");
        let rank = |place: u32| {
            let mut rank = Command::new(&program);
            rank.arg(seat).env("TRIHOP_AGENT", &name);
            rank.env("TRIHOP_AGENT_PLACE", place.to_string());
            Launched::start(rank)
        };
        let mut ranks: Vec<_> = (0..4).map(rank).collect();
        let victim = ranks.remove(VICTIM as usize).wait();
        assert_eq!(victim.status, 128 + libc::SIGKILL, "{}", victim.stderr);
        let is_over = |rank: &mut Launched| rank.wait_for_lines(1) == ["goes on"];
        assert!(ranks.iter_mut().all(is_over), "{seat}");
        end_told(ranks, seat);
        end_agent(agent);
    }
}

#[test]
fn nodes_go_on_when_an_agent_is_killed() {
    let test = "nodes_go_on_when_an_agent_is_killed";
    let options = || Options::from_env().unwrap();
    match role().as_deref() {
        None => {}
        Some("inline") => return go_on_by_lanes(Job::start(options()).unwrap()).unwrap(),
        Some(_) => return go_on_by_lanes(threaded::Job::start(options()).unwrap()).unwrap(),
    }
    for seat in ["inline", "threaded"] {
        // A shell stays in the place of the agent, so that its launcher ends nobody.
        let name = format!("trihop-test-cut-{}-{seat}-", std::process::id());
        let agent =
            format!("{TRIHOP} agent --ranks 2 --name {name}$TRIHOP_RANK; echo ended; read -r word");
        let run = ["-n", "2", "--nodes", "2", "--no-prefix", "--", "sh", "-c"];
        let mut words: Vec<String> = run.map(str::to_owned).into();
        words.push(agent);
        let mut agents = Launched::trihop(words);
        agents.wait_for_lines(2);
        let place = |rank: u32| {
            let agent = format!("{name}{}", rank / 2);
            start_rank_at(rank % 2, test, &agent, "", seat)
        };
        let ranks: Vec<_> = (0..4).map(place).collect();
        have_attached(&ranks);
        let victim = process_of(&format!("{name}0"));
        // SAFETY: a system call on integers; the shell that waits for it has not reaped it.
        assert_eq!(unsafe { libc::kill(victim as i32, libc::SIGKILL) }, 0);
        end_when_done(ranks, seat);
        agents.signal(libc::SIGTERM);
        agents.wait();
    }
}

#[test]
fn ranks_of_an_agent_go_on_without_one_that_was_killed() {
    let test = "ranks_of_an_agent_go_on_without_one_that_was_killed";
    if let Some(seat) = role() {
        return take_part(&seat);
    }
    let (agent, name) = start_agent("survivors", 4, "never");
    for seat in ["inline", "threaded"] {
        let ranks = (0..4).map(|place| start_rank_at(place, test, &name, seat, seat));
        kill_one(ranks.collect(), seat);
    }
    end_agent(agent);
}

#[test]
fn ranks_of_agents_of_several_nodes_go_on_without_one_that_was_killed() {
    let test = "ranks_of_agents_of_several_nodes_go_on_without_one_that_was_killed";
    if let Some(seat) = role() {
        return take_part(&seat);
    }
    let agents = Agents::start_on("survivors-nodes", &[2, 2], "never", "");
    for seat in ["inline", "threaded"] {
        kill_one(agents.ranks(test, seat, seat), seat);
        until("the job has ended", || agents.threads_of_jobs() == 0);
    }
    agents.launcher.signal(libc::SIGTERM);
    agents.launcher.wait();
}
