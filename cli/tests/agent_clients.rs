//! Ranks of agents that stay: one that is stopped comes back unharmed, those that do nothing cost
//! nothing, and many that come and go leave nothing behind, however little their agents may hold.

mod launched;

use std::fs;
use std::io::Read;
use std::thread;
use std::time::Duration;

use launched::agents::{
    Agents, descriptors, end_well, has_ended_well, have_attached, input_has_ended, role,
    start_agent, start_rank, status, threads_of_jobs,
};
use launched::{Launched, until};
use trihop::channel::{Descriptor, Return, Timeout};
use trihop::transport::sync::Flag;
use trihop::{
    ChannelLimits, Error, Job, Message, Options, Rank, Reduce, Result, Seat, State, over, threaded,
};

/// The rank that is stopped; the others form a ring.
const STOPPED: u32 = 1;
const OTHERS: [usize; 3] = [0, 2, 3];

/// Bytes of the numbered records.
const RECORD: usize = 1024;

/// Turns in a row in which no record for the stopped rank finds room.
const IS_FULL: u32 = 50;

/// What ranks have sent and heard of numbered records, by rank.
struct Numbered {
    record: Vec<u8>,
    sent: Vec<u64>,
    heard: Vec<u64>,
}

impl Numbered {
    fn new(ranks: u32) -> Self {
        Self {
            record: vec![7; RECORD],
            sent: vec![0; ranks as usize],
            heard: vec![0; ranks as usize],
        }
    }

    /// Sends the next record to a rank, where there is room; whether there was.
    fn send<S: Seat>(&mut self, stream: &over::Shuffle<S>, target: u32) -> Result<bool> {
        let number = &mut self.sent[target as usize];
        self.record[..8].copy_from_slice(&number.to_le_bytes());
        match stream.try_send(Rank(target), 0, &self.record) {
            Err(Error::WouldBlock) => Ok(false),
            outcome => {
                *number += 1;
                outcome.map(|()| true)
            }
        }
    }

    /// Hears a record: no number is missing, or comes twice.
    fn hear(&mut self, message: Message<'_>) {
        let number = &mut self.heard[message.source.0 as usize];
        let is_next = message.bytes[..8] == number.to_le_bytes();
        assert!(
            is_next && message.bytes.len() == RECORD,
            "{number} of {}",
            message.source
        );
        *number += 1;
    }

    fn take<S: Seat>(&mut self, stream: &over::Shuffle<S>) -> Result<()> {
        stream.take(|message| self.hear(message)).map(drop)
    }

    /// Fences the stream, and sees that all has come that any rank has sent here.
    fn end<S: Seat>(mut self, job: &over::Job<S>, stream: over::Shuffle<S>) -> Result<()> {
        loop {
            match stream.fence() {
                Err(Error::WouldBlock) => self.take(&stream)?,
                outcome => break outcome?,
            }
        }
        self.take(&stream)?;
        let sent: Vec<u8> = self
            .sent
            .iter()
            .flat_map(|sent| sent.to_le_bytes())
            .collect();
        let all = job.allgather(&sent)?;
        let me = 8 * job.rank().0 as usize;
        let to_me = |of: &Vec<u8>| u64::from_le_bytes(of[me..me + 8].try_into().unwrap());
        assert_eq!(self.heard, all.iter().map(to_me).collect::<Vec<_>>());
        stream.shutdown()
    }
}

/// Sends to all others and takes what they send: the rank that is stopped meanwhile.
fn send_to_all<S: Seat>(told: &Flag, stream: &over::Shuffle<S>, all: &mut Numbered) -> Result<()> {
    let mut turns = 0_u64;
    while !told.is_raised() {
        for target in (0..stream.size()).filter(|target| *target != STOPPED) {
            all.send(stream, target)?;
        }
        all.take(stream)?;
        thread::yield_now();
        turns += 1;
        if turns.is_multiple_of(100) {
            eprintln!("turn {turns}.");
        }
    }
    Ok(())
}

/// The other ranks of a ring: each hands on by channels, and by records, and sends the stopped rank
/// as much as finds room.
struct Ring<'a, S: Seat> {
    told: &'a Flag,
    with_it: &'a over::Shuffle<S>,
    beside: &'a over::Shuffle<S>,
    mine: over::Channel<S>,
    next: over::Channel<S>,
}

impl<S: Seat> Ring<'_, S> {
    fn turn(&self, to_it: &mut Numbered, around: &mut Numbered) -> Result<[u64; 2]> {
        let next = self.next.descriptor().owner().0;
        let (mut handed, mut got, mut full, mut said) = (0_u64, 0_u64, 0, false);
        while !self.told.is_raised() {
            let before = to_it.sent[STOPPED as usize];
            while to_it.sent[STOPPED as usize] < before + 64 && to_it.send(self.with_it, STOPPED)? {
            }
            full = match to_it.sent[STOPPED as usize] > before {
                true => 0,
                false => full + 1,
            };
            if full == IS_FULL && !said {
                eprintln!("it is full");
                said = true;
            }
            to_it.take(self.with_it)?;
            around.send(self.beside, next)?;
            around.take(self.beside)?;
            self.next.send(
                0,
                &handed.to_le_bytes(),
                Return::WhenBuffered,
                Timeout::Never,
            )?;
            handed += 1;
            // Each waits for the one before it, unless that has been told to end.
            while got < handed && !self.told.is_raised() {
                match self.mine.get(Timeout::After(Duration::from_millis(50))) {
                    Err(Error::TimedOut(_)) => {}
                    message => {
                        assert_eq!(message?.bytes[..], got.to_le_bytes());
                        got += 1;
                    }
                }
            }
            if handed.is_multiple_of(20) {
                let records: u64 = around.heard.iter().sum();
                eprintln!("turn {handed}. records {records}.");
            }
        }
        Ok([handed, got])
    }

    /// Takes what is left in the channel, where that many have been put there.
    fn drain(self, mut got: u64, put: u64) -> Result<()> {
        while got < put {
            let message = self.mine.get(Timeout::Never)?;
            assert_eq!(message.bytes[..], got.to_le_bytes());
            got += 1;
        }
        assert_eq!(self.mine.get(Timeout::Once).err(), Some(Error::WouldBlock));
        Ok(())
    }
}

fn exchange_beside_one<S: Seat>(job: over::Job<S>, channels: over::Channels<S>) -> Result<()> {
    let told = input_has_ended();
    let (me, size) = (job.rank().0, job.size());
    let with_it = job.shuffle("with it").open()?;
    let beside = job.shuffle("beside").open()?;
    let mine = channels.create(ChannelLimits::default())?;
    let named = job.allgather(&mine.descriptor().to_bytes())?;
    let next = (me + 1..)
        .map(|rank| rank % size)
        .find(|rank| *rank != STOPPED);
    let next = channels.attach(&Descriptor::from_bytes(&named[next.unwrap() as usize])?)?;
    let (mut to_it, mut around) = (Numbered::new(size), Numbered::new(size));
    job.barrier()?;
    eprintln!("attached");
    let ring = Ring {
        told: &told,
        with_it: &with_it,
        beside: &beside,
        mine,
        next,
    };
    let [handed, got] = match me == STOPPED {
        true => send_to_all(&told, &with_it, &mut to_it).map(|()| [0, 0])?,
        false => ring.turn(&mut to_it, &mut around)?,
    };
    to_it.end(&job, with_it.clone())?;
    around.end(&job, beside.clone())?;
    let handed = job.allgather(&handed.to_le_bytes())?;
    let before = (0..me)
        .rev()
        .chain((0..size).rev())
        .find(|rank| *rank != STOPPED);
    let put = &handed[before.unwrap() as usize];
    match me == STOPPED {
        true => drop(ring),
        false => ring.drain(got, u64::from_le_bytes(put[..].try_into().unwrap()))?,
    }
    job.barrier()?;
    channels.shutdown()?;
    job.shutdown()
}

/// The last number that a rank has said behind this word.
fn number(rank: &Launched, word: &str) -> u64 {
    let said = rank.said();
    let mut behind = said.rsplit(word);
    let number = behind.find_map(|rest| rest.split_once('.')?.0.parse().ok());
    number.unwrap_or(0)
}

/// Joins a job, hears from each rank, and leaves it.
fn greet() -> Result<()> {
    let job = Job::start(Options::from_env()?)?;
    let heard = State::new(0);
    let shuffle = job.shuffle("hello");
    let shuffle = shuffle.handler_with(&heard, |heard, _, _| *heard += 1);
    let shuffle = shuffle.open()?;
    (0..job.size()).try_for_each(|rank| shuffle.send(Rank(rank), 0, b"hello"))?;
    shuffle.fence()?;
    assert_eq!(heard.with(|heard| *heard), job.size());
    shuffle.shutdown()?;
    job.shutdown()
}

/// Waits for a condition that must come true, while all of these run.
fn come_to(what: &str, ranks: &mut [Launched], condition: impl Fn(&[Launched]) -> bool) {
    until(what, || {
        for rank in &mut *ranks {
            assert!(rank.runs(), "{what}: {}", rank.said());
        }
        condition(ranks)
    });
}

/// Waits until the other ranks have exchanged more by channels and by records.
fn others_go_on(ranks: &mut [Launched]) {
    let progress = |ranks: &[Launched]| {
        let of = |rank: usize| ["turn ", "records "].map(|word| number(&ranks[rank], word));
        OTHERS.map(of)
    };
    let before = progress(ranks);
    come_to("the other ranks exchange", ranks, |ranks| {
        let now = progress(ranks);
        let mut pairs = now.as_flattened().iter().zip(before.as_flattened());
        pairs.all(|(now, before)| *now >= before + 100)
    });
}

/// Ranks 0 and 1 are of one node, and 2 and 3 of another one.
#[test]
fn a_rank_of_an_agent_that_is_stopped_comes_back_unharmed_and_the_others_go_on() {
    let test = "a_rank_of_an_agent_that_is_stopped_comes_back_unharmed_and_the_others_go_on";
    let options = || Options::from_env().unwrap();
    match role().as_deref() {
        None => {}
        Some("guest") => return greet().unwrap(),
        Some("inline") => {
            let job = Job::start(options()).unwrap();
            let channels = job.channels("ring").open().unwrap();
            return exchange_beside_one(job, channels).unwrap();
        }
        Some(_) => {
            let job = threaded::Job::start(options()).unwrap();
            let channels = job.channels("ring").open().unwrap();
            return exchange_beside_one(job, channels).unwrap();
        }
    }
    let hasty = "TRIHOP_WATCH_TIMEOUT_MS=500";
    let agents = Agents::start_on("stopped", &[2, 2], "never", hasty);
    for seat in ["inline", "threaded"] {
        let mut ranks = agents.ranks(test, "stopped", seat);
        have_attached(&ranks);
        come_to("all send and receive", &mut ranks, |ranks| {
            ranks.iter().all(|rank| number(rank, "turn ") > 0)
        });
        let (victim, process) = (STOPPED as usize, ranks[STOPPED as usize].id());
        ranks[victim].signal(libc::SIGSTOP);
        until("it stands still", || has_state(process, 'T'));
        let at = number(&ranks[victim], "turn ");
        others_go_on(&mut ranks);
        come_to("nothing more finds room", &mut ranks, |ranks| {
            let is_full = |rank: &usize| ranks[*rank].has_said("it is full");
            OTHERS.iter().all(is_full)
        });
        // Several times as long as anybody may be out of reach.
        thread::sleep(Duration::from_millis(1500));
        others_go_on(&mut ranks);
        let guests = agents.ranks(test, "guest", "guest");
        end_well(guests, "another job of the agents");
        assert!(has_state(process, 'T'), "{seat}");
        ranks[victim].signal(libc::SIGCONT);
        come_to("it goes on", &mut ranks, |ranks| {
            number(&ranks[victim], "turn ") > at + 100
        });
        others_go_on(&mut ranks);
        ranks.iter_mut().for_each(Launched::close_stdin);
        end_well(ranks, seat);
    }
    until("the jobs have ended", || agents.threads_of_jobs() == 0);
    agents.launcher.signal(libc::SIGTERM);
    agents.launcher.wait();
}

fn has_state(process: u32, state: char) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let behind = stat.rsplit_once(") ").expect("a name");
    behind.1.starts_with(state)
}

/// Joins a job and does nothing there until it is told to leave it.
fn stay_idle<S: Seat>(job: over::Job<S>) -> Result<()> {
    let stream = job.shuffle("idle").open()?;
    (0..job.size()).try_for_each(|rank| stream.send(Rank(rank), 0, b"once"))?;
    stream.fence()?;
    stream.take(|_| ())?;
    eprintln!("attached");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    stream.shutdown()?;
    job.shutdown()
}

/// Ticks of a core that a process has used, of which there are a hundred in a second, and how often
/// its threads have slept.
fn used(process: u32) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let behind = stat.rsplit_once(") ").expect("a name").1;
    // Behind the name stand the state, ten numbers, and what was used by it and for it.
    let ticks = behind.split(' ').skip(11).take(2);
    let ticks = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let sleeps = threads.map(|thread| {
        let path = thread.unwrap().path().join("status");
        let text = fs::read_to_string(path).unwrap_or_default();
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.map_or(0, |count| count.trim().parse::<u64>().unwrap())
    });
    (ticks, sleeps.sum())
}

/// For so long agents are looked at. One that spins uses 200 ticks meanwhile, and one that looks
/// around each millisecond sleeps 2,000 times.
const LOOKED_AT: Duration = Duration::from_secs(2);
const MOST_TICKS: u64 = 20;
const MOST_SLEEPS: u64 = 200;

/// What each of these agents does while nobody asks it for anything.
fn are_idle(agents: &[u32], what: &str) {
    // What they were asked before is done by then, or counts.
    thread::sleep(LOOKED_AT / 4);
    let before: Vec<_> = agents.iter().map(|agent| used(*agent)).collect();
    thread::sleep(LOOKED_AT);
    for (agent, before) in agents.iter().zip(before) {
        let now = used(*agent);
        let (ticks, sleeps) = (now.0 - before.0, now.1 - before.1);
        eprintln!("{what}: {ticks} ticks, {sleeps} sleeps");
        assert!(
            ticks <= MOST_TICKS,
            "{what}: {ticks} ticks, {sleeps} sleeps"
        );
        assert!(
            sleeps <= MOST_SLEEPS,
            "{what}: {ticks} ticks, {sleeps} sleeps"
        );
    }
}

#[test]
fn agents_use_nothing_while_their_ranks_do_nothing() {
    let test = "agents_use_nothing_while_their_ranks_do_nothing";
    let options = || Options::from_env().unwrap();
    match role().as_deref() {
        None => {}
        Some("inline") => return stay_idle(Job::start(options()).unwrap()).unwrap(),
        Some(_) => return stay_idle(threaded::Job::start(options()).unwrap()).unwrap(),
    }
    let (alone, name) = start_agent("idle", 2, "never");
    let two = Agents::start_on("idle-nodes", &[1, 1], "never", "");
    let all = [vec![alone.id()], two.ids()].concat();
    are_idle(&all, "without jobs");
    let seats = ["inline", "threaded"];
    let of_one = |seat| [(), ()].map(|()| start_rank(test, &name, seat, seat));
    let mut ranks: Vec<_> = seats.into_iter().flat_map(of_one).collect();
    ranks.extend(
        seats
            .into_iter()
            .flat_map(|seat| two.ranks(test, seat, seat)),
    );
    have_attached(&ranks);
    are_idle(&all, "with ranks that do nothing");
    ranks.iter_mut().for_each(Launched::close_stdin);
    end_well(ranks, "an idle rank");
    until("the jobs have ended", || {
        threads_of_jobs(alone.id()) + two.threads_of_jobs() == 0
    });
    are_idle(&all, "behind all jobs");
    alone.signal(libc::SIGTERM);
    has_ended_well(&alone.wait(), "the agent");
    two.launcher.signal(libc::SIGTERM);
    two.launcher.wait();
}

/// What agents may hold for other nodes, and much smaller batches, of which many fit into that.
const TIGHT: &str = "TRIHOP_MAX_INJECTION_MB=1 TRIHOP_MAX_EJECTION_MB=1";

/// Options of a job's streams: batches of so many bytes, and as many as a link may have.
fn tight(batch_bytes: usize) -> Result<Options> {
    let mut options = Options::from_env()?;
    options.stream.remote_buftarget_bytes = batch_bytes;
    options.stream.remote_maxrpc = 64;
    Ok(options)
}

/// Sends all ranks as much as they take, in rounds, until the standard input of one has ended.
fn send_hard() -> Result<()> {
    const EACH: u64 = 500;
    let told = input_has_ended();
    let job = Job::start(tight(4096)?)?;
    let size = job.size();
    let heard = State::new([0_u64; 2]);
    let stream = job.shuffle("hard");
    let stream = stream.handler_with(&heard, |heard: &mut [u64; 2], message, _| {
        heard[0] += 1;
        heard[1] += message.bytes.len() as u64;
    });
    let stream = stream.open()?;
    eprintln!("attached");
    let (mut rounds, mut stop, bytes) = (0, [0_u64], vec![7; 1 << 20]);
    while stop == [0] {
        for number in 0..EACH {
            for rank in 0..size {
                stream.send(Rank(rank), 0, &bytes[..number as usize])?;
            }
        }
        (0..size).try_for_each(|rank| stream.send(Rank(rank), 0, &bytes))?;
        stream.fence()?;
        rounds += u64::from(size);
        let sum = EACH * (EACH - 1) / 2 + bytes.len() as u64;
        assert_eq!(
            heard.with(|heard| *heard),
            [rounds * (EACH + 1), rounds * sum]
        );
        stop = [u64::from(told.is_raised())];
        job.allreduce(&mut stop, Reduce::Sum)?;
    }
    stream.shutdown()?;
    job.shutdown()
}

/// Opens streams until their agents have no room for one more, has each rank hear from each by
/// those that it has, and leaves.
fn open_all_that_fit() -> Result<()> {
    const MOST: u64 = 100;
    let job = Job::start(tight(64 << 10)?)?;
    let (size, heard) = (job.size(), State::new(0));
    let mut streams = Vec::new();
    let refused = loop {
        let stream = job.shuffle(&format!("{} of many", streams.len()));
        let stream = stream.handler_with(&heard, |heard, _, _| *heard += 1);
        match stream.open() {
            Ok(stream) => streams.push(stream),
            Err(error) => break error.to_string(),
        }
        assert!((streams.len() as u64) < MOST, "all streams have found room");
    };
    let is_named = ["TRIHOP_MAX_INJECTION_MB", "TRIHOP_MAX_EJECTION_MB"]
        .iter()
        .any(|name| refused.contains(name));
    assert!(is_named && !streams.is_empty(), "{refused}");
    for stream in &streams {
        for rank in 0..size {
            (0..20).try_for_each(|_| stream.send(Rank(rank), 0, &[7; 3000]))?;
        }
    }
    streams.iter().try_for_each(|stream| stream.fence())?;
    assert_eq!(heard.with(|heard| *heard), 20 * size * streams.len() as u32);
    streams
        .into_iter()
        .try_for_each(|stream| stream.shutdown())?;
    job.shutdown()
}

#[test]
fn jobs_come_and_go_at_agents_whose_pools_are_used_up() {
    let test = "jobs_come_and_go_at_agents_whose_pools_are_used_up";
    match role().as_deref() {
        None => {}
        Some("hard") => return send_hard().unwrap(),
        Some(turns) => {
            return (0..turns.parse().unwrap()).for_each(|_: u32| open_all_that_fit().unwrap());
        }
    }
    let asked = std::env::var("TRIHOP_TEST_JOBS").ok();
    let turns: u32 = asked.map_or(24, |jobs| jobs.parse().expect("TRIHOP_TEST_JOBS"));
    let agents = Agents::start_on("tight", &[2, 1], "never", TIGHT);
    let idle = || {
        agents
            .ids()
            .into_iter()
            .map(descriptors)
            .collect::<Vec<_>>()
    };
    let before = idle();
    let mut hard = agents.ranks(test, "hard", "hard");
    have_attached(&hard);
    let come_and_go = |turns: u32| {
        end_well(agents.ranks(test, "guest", &turns.to_string()), "a guest");
        until("the last job has ended", || agents.threads_of_jobs() == 2);
        let of = |agent| (descriptors(agent), status(agent, "VmRSS"));
        agents.ids().into_iter().map(of).collect::<Vec<_>>()
    };
    let few = come_and_go(turns / 4);
    let many = come_and_go(turns);
    eprintln!("descriptors and resident KiB: {few:?} and {many:?}");
    for (few, many) in few.iter().zip(&many) {
        assert_eq!(few.0, many.0, "descriptors");
        assert!(
            many.1 < few.1 + 8 * 1024,
            "{} to {} KiB resident",
            few.1,
            many.1
        );
    }
    assert!(hard.iter_mut().all(Launched::runs), "the job that sends");
    hard.iter_mut().for_each(Launched::close_stdin);
    end_well(hard, "the job that sends");
    until("all jobs have ended", || agents.threads_of_jobs() == 0);
    assert_eq!(idle(), before, "descriptors without jobs");
    agents.launcher.signal(libc::SIGTERM);
    agents.launcher.wait();
}
