//! The exchange on one rank, from its start to its report.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use trihop::route::RouteName;
use trihop::{BroadcastTo, Options, Rank, Reduce, log};

use super::args::{Ending, ExchangeArgs};
use super::detail::RankDetail;
use super::error::{Error, Result};
use super::ledger::{Ledger, TALLY};
use super::mailbox::{Inbox, Mailbox};
use super::payload::{Contents, mixed};
use super::report::{Report, Share, Stopwatch};
use super::seat::{Post, Seat};
use super::stall::{Patience, Phase, Pulse, Watch};
use super::traffic::{Messages, Targets};
use super::usage::Usage;
use crate::output;
use crate::topo::Maps;

/// Messages between two looks at the progress bar.
const MESSAGES_PER_TICK: u64 = 4096;
/// Longest text of a fault that is told to rank 0.
const TEXT_BYTES: usize = 2000;

/// Runs the command on this rank and returns its exit status, on which all ranks agree: 0, 1 when a
/// message was wrong or missing, 2 when the options do not fit the job; rank 0 has told why. On
/// rank 0 alone it is 1 where the report cannot be written.
///
/// # Errors
/// What could not be told to the other ranks: bad options before the job starts, or the engine's
/// failure.
pub fn run(args: ExchangeArgs) -> Result<i32> {
    args.check()?;
    let mut options = Options::from_env()?;
    args.options.apply(&mut options)?;
    let limit = options.stream.max_message_bytes;
    if args.size.largest() > limit {
        let largest = args.size.largest();
        return Err(Error::Usage(format!(
            "--size {}: {largest} bytes are above the limit of {limit}; raise --max-message-bytes",
            args.size
        )));
    }
    let own_seed = match args.seed {
        Some(seed) => seed,
        None => seed_of_environment()?,
    };
    let route = options.stream.route;
    let job = Seat::start(options, args.threaded)?;
    log::set_rank(job.rank().0)?;
    let route = route.for_job(&job.topology().processes()).unwrap_or(route);
    let seed = agree_on_seed(&job, own_seed)?;
    let (rank, size) = (job.rank().0, job.size());
    let targets = match agree_on_options(&job, &args) {
        Ok(()) => Targets::new(&args.pattern, seed, rank, size),
        Err(error) => Err(error),
    };
    let targets = match targets {
        Ok(targets) => targets,
        Err(Error::Usage(why)) => {
            say(&job, &why);
            job.shutdown()?;
            return Ok(2);
        }
        Err(error) => return Err(error),
    };
    let mut ledger = Ledger::new(rank, size, args.size.clone(), Contents::new(seed));
    if let Some(to) = args.pattern.audience() {
        ledger = ledger.of_broadcasts(to);
    }
    if let Some(prefix) = &args.topo {
        Maps::new(job.topology(), route).write_files(prefix)?;
    }
    let delay = Duration::from_millis(args.deliver_delay_ms);
    let inbox = Arc::new(Inbox::new(ledger, delay, args.print.then_some(rank)));
    let pulse = Pulse::new(rank, Arc::clone(&inbox));
    let patience = Patience {
        still: Duration::from_secs(args.stall_s),
        whole: Duration::from_secs(args.timeout_s),
    };
    let watch = Watch::start(Arc::clone(&pulse), patience).map_err(|source| Error::System {
        what: "starting the watch for stalls",
        source,
    })?;
    let taking = Arc::clone(&inbox);
    let shuffle = job.open("exchange", args.poll, move |message| taking.take(message))?;
    let rank = ThisRank {
        args: &args,
        job: &job,
        inbox: &inbox,
        pulse: &pulse,
        route,
        seed,
    };
    let status = rank.exchange(&shuffle, targets)?;
    drop(watch);
    job.shutdown()?;
    Ok(status)
}

/// The first that rank 0 has to say.
fn say(job: &Seat, why: &str) {
    if job.rank() == Rank(0) {
        // Without standard error the exit status still tells.
        output::say("trihop exchange", why);
    }
}

fn seed_of_environment() -> Result<u64> {
    match std::env::var_os("TRIHOP_SEED").filter(|text| !text.is_empty()) {
        Some(text) => text
            .to_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                Error::Usage(format!(
                    "TRIHOP_SEED: {text:?} is no whole number below 2^64"
                ))
            }),
        None => {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            // Short, since people copy it.
            Ok(mixed(now.as_nanos() as u64 ^ u64::from(std::process::id())) >> 32)
        }
    }
}

/// The seed of rank 0 is everyone's.
fn agree_on_seed(job: &Seat, own: u64) -> Result<u64> {
    let mut word = [if job.rank() == Rank(0) { own } else { 0 }];
    job.allreduce(&mut word, Reduce::Max)?;
    Ok(word[0])
}

/// Ranks that draw different messages could not check them.
fn agree_on_options(job: &Seat, args: &ExchangeArgs) -> Result<()> {
    let own = args.agreement();
    let mut words = [own, !own];
    job.allreduce(&mut words, Reduce::Min)?;
    if words[0] == !words[1] {
        return Ok(());
    }
    Err(Error::Usage(
        "the ranks were given different options; give all of them the same".to_owned(),
    ))
}

/// What does not change during the exchange.
struct ThisRank<'a> {
    args: &'a ExchangeArgs,
    job: &'a Seat,
    inbox: &'a Inbox,
    pulse: &'a Pulse,
    route: RouteName,
    seed: u64,
}

impl ThisRank<'_> {
    fn exchange(&self, shuffle: &Post, targets: Targets) -> Result<i32> {
        let audience = self
            .args
            .pattern
            .audience()
            .unwrap_or(BroadcastTo::Everyone);
        let mut mailbox = Mailbox::new(shuffle, self.inbox, self.args.poll, audience);
        self.job.barrier()?;
        let begun = Usage::now();
        let stopwatch = Stopwatch::start();
        let mut share = self.send(&mut mailbox, targets)?;
        let sending = Usage::now().since(&begun);
        self.pulse.enter(Phase::Ending);
        self.flush(&mailbox)?;
        (share.elapsed_ns, share.cpu_ns) = stopwatch.read();
        let texts = {
            let mut ledger = self.inbox.ledger();
            ledger.close();
            share.faults = ledger.faults();
            ledger.texts().join("\n")
        };
        let whole = Usage::now().since(&begun);
        self.pulse.enter(Phase::Summing);
        if self.args.dump {
            self.dump(shuffle)?;
        }
        let stats = shuffle.detailed_stats().ok_or_else(|| Error::System {
            what: "reading the counters of the shuffle",
            source: std::io::ErrorKind::WouldBlock.into(),
        })?;
        let totals = &stats.totals;
        let mut report = Report::gather(self.job, self.args, self.route, self.seed, share, totals)?;
        if report.faults() > 0 {
            self.log_faults(&report, &texts)?;
            return Ok(1);
        }
        if self.args.usage {
            report.usage = Some(Usage::gather(
                self.job,
                &[("sending", sending), ("whole", whole)],
            )?);
        }
        if self.args.detail {
            report.detail = Some(RankDetail::gather(self.job, &stats)?);
        }
        if self.job.rank() == Rank(0) {
            let text = if self.args.json {
                report.json()?
            } else {
                report.table()
            };
            // The exchange is over, and the others need not wait for what this rank has to say.
            if let Err(unwritten) = output::write(&text) {
                say(self.job, &unwritten.to_string());
                return Ok(1);
            }
        }
        Ok(0)
    }

    fn flush(&self, mailbox: &Mailbox<'_>) -> Result<()> {
        match self.args.flush {
            Ending::Fence => mailbox.fence()?,
            Ending::Round => mailbox.round()?,
            Ending::Four => mailbox.flush_all(self.route)?,
        }
        Ok(())
    }

    /// Sends all messages of this rank, and to every rank how many there were for it.
    fn send(&self, mailbox: &mut Mailbox<'_>, targets: Targets) -> Result<Share> {
        let (args, contents) = (self.args, Contents::new(self.seed));
        let mut messages = Messages::new(&contents, &args.size, targets);
        let mut share = Share::default();
        let bar = self.bar(messages.any());
        self.pulse.enter(Phase::Sending);
        for index in 0..args.count {
            // The flush at the end is the last fence.
            if args.fence_every > 0 && index > 0 && index % args.fence_every == 0 {
                self.pulse.enter(Phase::Fencing);
                self.flush(mailbox)?;
                self.pulse.enter(Phase::Sending);
            }
            if !messages.any() {
                if args.fence_every == 0 {
                    break;
                }
                continue;
            }
            let (target, kind, bytes) = messages.next();
            mailbox.send(target, kind, bytes)?;
            let (copies, crossing) = self.copies(target);
            share.messages += copies;
            share.bytes += copies * bytes.len() as u64;
            share.crossing += crossing;
            self.pulse.sent(share.messages);
            if let Some(bar) = bar.as_ref().filter(|_| index % MESSAGES_PER_TICK == 0) {
                bar.set_position(index);
            }
        }
        for (target, number) in messages.tallies() {
            mailbox.send(target, TALLY, &number)?;
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        Ok(share)
    }

    /// How many ranks get a message, and how many of them on other nodes.
    fn copies(&self, target: u32) -> (u64, u64) {
        let topology = self.job.topology();
        let all = u64::from(topology.size());
        let away = all - u64::from(topology.local_size());
        match self.args.pattern.audience() {
            None => (1, u64::from(!topology.is_local(Rank(target)))),
            Some(BroadcastTo::Others) => (all - 1, away),
            Some(BroadcastTo::Everyone) => (all, away),
        }
    }

    /// Rank 0's own progress, on a terminal.
    fn bar(&self, sends: bool) -> Option<ProgressBar> {
        let shown = sends
            && !self.args.quiet
            && !self.args.print
            && self.job.rank() == Rank(0)
            && std::io::stderr().is_terminal();
        shown.then(|| {
            let style = ProgressStyle::with_template(
                "rank 0 {bar:40} {pos}/{len} messages {per_sec} {eta}",
            );
            ProgressBar::new(self.args.count)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        })
    }

    fn dump(&self, shuffle: &Post) -> Result<()> {
        let mut text = Vec::new();
        shuffle
            .dump(&mut text)
            .and_then(|()| text.write_all(log::recent().as_bytes()))
            .and_then(|()| std::io::stderr().write_all(&text))
            .map_err(|source| Error::System {
                what: "writing the state of the queues to standard error",
                source,
            })
    }

    /// Rank 0 names the first faults of every rank.
    fn log_faults(&self, report: &Report, texts: &str) -> Result<()> {
        let all = self
            .job
            .allgather(&texts.as_bytes()[..texts.len().min(TEXT_BYTES)])?;
        say(
            self.job,
            &format!("{} messages were wrong or missing", report.faults()),
        );
        for text in all.iter().filter(|text| !text.is_empty()) {
            for line in String::from_utf8_lossy(text).lines() {
                say(self.job, line);
            }
        }
        Ok(())
    }
}
