//! The state of a rank's part of a job: its engine, its launcher, its node, the lives of its peers.
//! Only what has ended the job is waited for here: news that explain it, for a second at most.

mod addresses;
mod arrived;
mod budget;
mod card;
mod directory;
mod fence_of_all;
mod lives;
mod lost;
mod open;
mod parked;
mod patience;
mod shown;
mod start;
mod stop;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use trihop_transport::bootstrap::{Bootstrap, Launcher};
use trihop_transport::ring::Bell;
use trihop_transport::watch::agent_dead;

use crate::config::Options;
use crate::dump;
use crate::endpoint::{Engine, StreamId};
use crate::engine::at_once::OwnSend;
use crate::engine::sink::Handlers;
use crate::error::{Error, Result};
use crate::node::{Answer, NodeExchange, Request, Talk};
use crate::observe::{Shown, clock_ns};
use crate::signal::{DumpOnSignal, DumpOutput};
use budget::Budget;
use directory::Directory;
use lives::Lives;
pub(crate) use lost::LossStage;
use lost::Lost;
pub(crate) use open::{Begun, SYSTEM_NAME};
use parked::Parked;
pub(crate) use parked::{Awaited, Way, wake_each};
pub(crate) use patience::{LongCalls, Patience};
pub(crate) use start::{Started, detect, detect_as_rank};
pub(crate) use stop::Stop;

/// How often peers' lives are looked at where nothing else happens.
pub(crate) const LOOK_AROUND: Duration = Duration::from_millis(100);

/// Rounds in a row that may be left out because they would do nothing: what is looked at by time,
/// in each that is made, has to be looked at now and then.
const LEFT_OUT: u32 = 7;

/// Target of events about deliveries, by which they have their facility.
const DELIVER: &str = "trihop_shuffle::deliver";

/// One rank's part of a job. Its seat has it.
pub(crate) struct JobState {
    pub engine: Engine,
    pub options: Options,
    /// None while a call of the launcher's is under way on another thread, and at the end.
    pub bootstrap: Option<Box<dyn Bootstrap>>,
    pub launcher: Launcher,
    /// Of this process's fabric, where it has that open.
    pub provider: Option<String>,
    pub node: NodeExchange,
    /// Of the host of a process alone, which has its links.
    directory: Option<Directory>,
    budget: Budget,
    epoch: Instant,
    pub closing: bool,
    /// A thread of ours waits for the launcher's fence.
    pub fencing: bool,
    checked_ns: u64,
    lives: Lives,
    lost: Lost,
    /// What has ended progress: every later call says so.
    failure: Option<Error>,
    /// Rounds of progress that were made so far, no matter which call made them.
    pub rounds: u64,
    /// Of these, the last ones that were left out, since nothing was there to be done.
    left_out: u32,
    /// When the next round is made in any case, by [`coarse_ms`].
    none_left_out_from_ms: u64,
    /// Fences and barriers that gave way.
    pub parked: Parked,
    pub dump_on_signal: Arc<DumpOnSignal>,
    /// That of the host of this process, where this is another endpoint.
    hosts_dump: Arc<DumpOnSignal>,
    /// Records whose delivery the log has heard of.
    told_records: u64,
    /// Calls that wait until some time at most.
    pub timed_waits: u32,
    /// How long a call may wait before the log says so.
    pub patience_ns: u64,
    /// A wait was so long that the user was told, whoever takes logs.
    has_complained: bool,
    pub long_calls: LongCalls,
    /// Wakes the thread that sleeps for this rank.
    pub bell: Arc<Bell>,
    /// What others on this machine see of it.
    shown: Shown,
    /// Of a relay whose process may exit under it.
    pub stop: Option<Arc<Stop>>,
}

/// Milliseconds of a clock that goes by ticks of the kernel, and takes less than any other.
fn coarse_ms() -> u64 {
    clock_ns(ClockId::MonotonicCoarse) / 1_000_000
}

impl JobState {
    /// See [`crate::Job::abort`].
    pub fn abort(&mut self, status: i32, why: &str) -> bool {
        let asked = self.bootstrap.as_mut().map(|b| b.abort(status, why));
        // A rank with an agent has no launcher that it could ask.
        asked.is_some() && self.launcher != Launcher::Agent
    }

    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }

    /// One round of progress; true when anything moved.
    pub fn progress(&mut self, handlers: &mut impl Handlers) -> Result<bool> {
        self.check_failure()?;
        match self.progress_once(handlers) {
            Ok(worked) => Ok(worked),
            Err(error) if self.is_due_to_loss(&error) => Ok(true),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Sends to the own rank by a call of the handler; false where it has to go the way of all
    /// others.
    ///
    /// # Errors
    /// See [`crate::engine::StreamState::deliver_own`].
    pub fn deliver_own(
        &mut self,
        handlers: &mut impl Handlers,
        id: StreamId,
        send: OwnSend<'_>,
    ) -> Result<bool> {
        self.check_failure()?;
        match self.engine.deliver_own(id, handlers, send) {
            // As bytes that came from elsewhere and make no sense.
            Err(error @ (Error::BadPeer { .. } | Error::NoElement { .. })) => Err(self.fail(error)),
            sent => sent,
        }
    }

    fn progress_once(&mut self, handlers: &mut impl Handlers) -> Result<bool> {
        self.stop_if_asked();
        self.check_news()?;
        self.rounds += 1;
        let coarse_ms = coarse_ms();
        if self.left_out < LEFT_OUT
            && coarse_ms < self.none_left_out_from_ms
            && self.parked.is_empty()
            && self.engine.is_still()
        {
            self.left_out += 1;
            return Ok(false);
        }
        self.left_out = 0;
        self.none_left_out_from_ms = coarse_ms + LOOK_AROUND.as_millis() as u64;
        let now_ns = self.now_ns();
        let begun = self.engine.trace.begin();
        let mut worked = self.parked.advance(&mut self.engine);
        if self.engine.round(handlers, now_ns)? {
            worked = true;
            // What has come may be that a fence is over, and others of this node wait to hear that
            // from this rank: the caller may not come back for long. Where other nodes wait for it
            // too, what they are told leaves first: what is called at the end may take long.
            if !self.parked.is_empty() && self.engine.has_passed_on_results() {
                self.parked.advance(&mut self.engine);
            }
        }
        if self.parked.has_woken() {
            self.bell.ring();
        }
        if self.has_open_losses() {
            worked |= self.end_losses(now_ns);
        }
        if worked {
            self.engine.trace.end(begun, "round");
        }
        if now_ns.saturating_sub(self.checked_ns) >= LOOK_AROUND.as_nanos() as u64 {
            self.look_after_peers(now_ns)?;
            self.dump_if_asked();
        }
        if self.shown.is_due(now_ns) {
            self.show(now_ns);
        }
        if tracing::enabled!(target: DELIVER, tracing::Level::TRACE) {
            self.tell_deliveries();
        }
        Ok(worked)
    }

    /// What was delivered since the last round that said so.
    #[cold]
    fn tell_deliveries(&mut self) {
        let streams = self.engine.open_streams();
        let records = streams.skip(1).map(|(state, _)| state.delivered()).sum();
        let before = std::mem::replace(&mut self.told_records, records);
        if records > before {
            tracing::trace!(target: DELIVER, records = records - before, "delivered");
        }
    }

    /// See [`crate::Job::dump_on`]; the relay of this process says what it has, too.
    pub fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.dump_on_signal.install(signal, output.clone())?;
        match Arc::ptr_eq(&self.dump_on_signal, &self.hosts_dump) {
            true => Ok(()),
            false => self.hosts_dump.install_once(signal, output),
        }
    }

    /// See [`crate::Job::dump_on`]. Where the dump cannot be written, work goes on.
    fn dump_if_asked(&self) {
        let Some(output) = self.dump_on_signal.take_asked() else {
            return;
        };
        let written = output
            .open(self.engine.topology.endpoint())
            .and_then(|mut writer| {
                let mut text = Vec::new();
                self.dump(&mut text)?;
                writer.write_all(&text)?;
                writer.flush()
            });
        if let Err(error) = written {
            tracing::error!(%error, ?output, "the dump that a signal asked for could not be written");
        }
    }

    /// Writes the queues of every stream.
    pub fn dump(&self, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
        self.engine
            .open_streams()
            .try_for_each(|(state, out)| dump::write(state, out, writer))
    }

    /// Makes a request of the relay of this rank, where there is one: its number.
    ///
    /// # Errors
    /// The relay is a process that is gone, or that cannot be reached. The latter ends the job: the
    /// requests that follow would be taken for others.
    pub fn ask_relay(&mut self, request: Request) -> Result<Option<u64>> {
        let topology = &self.engine.topology;
        if !topology.has_relays() || topology.is_relay() || self.goes_without_agents() {
            return Ok(None);
        }
        self.check_agent()?;
        let asked = self.node.ask(&talk(&self.engine, &self.options), request);
        let asked = self.explained(asked).map(Some);
        // Nothing follows to an agent that is gone, and the rest goes on.
        self.check_agent()?;
        match asked {
            // Others may have ended the job without it before this rank has looked.
            Err(_) if self.goes_without_agents() || self.lives.is_over() => Ok(None),
            asked => asked.map_err(|error| self.fail(error)),
        }
    }

    /// What the relay has answered, once it has. An agent that is gone once the job is over has
    /// said by that that all have arrived.
    ///
    /// # Errors
    /// What has kept it from that.
    pub fn relays_answer(&mut self, number: u64) -> Result<Option<Answer>> {
        let talk = talk(&self.engine, &self.options);
        // Looked at first: it may have answered before it went.
        let is_gone = self.lives.is_over() && self.node.has_lost_agent(talk.topology);
        let is_dead = self.check_agent();
        let is_on_one_node = talk.topology.nodes() == 1;
        match self.node.answer(&talk, number) {
            // Of an agent that was kept from it by another one's end.
            Ok(Some(Answer::Arrived(Err(_)))) if self.goes_without_agents() && !is_gone => Ok(None),
            Ok(Some(Answer::Arrived(Err(_)))) if is_gone && is_on_one_node => {
                Ok(Some(Answer::Arrived(Ok(()))))
            }
            Ok(Some(answer)) => Ok(Some(answer)),
            Ok(None) | Err(_) if is_gone => Ok(Some(Answer::Arrived(Ok(())))),
            answer => answer.and_then(|_| is_dead.map(|()| None)),
        }
    }

    /// As a relay: the next request of its ranks, once it is there.
    ///
    /// # Errors
    /// What has ended one of them.
    pub fn next_request(&mut self) -> Result<Option<Request>> {
        let talk = talk(&self.engine, &self.options);
        let request = self.node.next_request(&talk)?;
        if request.is_none() {
            self.check_ranks_left()?;
            // They have ended, and asked nothing since another agent was gone.
            if self.lives.is_over() && self.engine.topology.has_agents() {
                let gone = self.lives.lost_agent;
                let gone =
                    gone.unwrap_or(self.engine.topology.rank_of(self.engine.topology.keeper()));
                return Err(agent_dead(gone.0).into());
            }
        }
        Ok(request)
    }

    /// As a relay: answers the last request. Where a rank cannot be told, the job fails, which all
    /// hear of.
    pub fn reply(&mut self, answer: Answer) {
        let talk = talk(&self.engine, &self.options);
        if let Err(error) = self.node.reply(&talk, answer) {
            self.fail(error);
        }
    }

    /// As a relay: has met what ends the job.
    pub fn give_up(&mut self, error: Error) {
        let error = self.fail(error);
        let talk = talk(&self.engine, &self.options);
        self.node.give_up(&talk, &error);
    }

    /// A stream is closed on all ranks, with nothing of it under way.
    pub fn retire(&mut self, id: StreamId) {
        if let Ok((state, _)) = self.engine.stream(id) {
            let number = state.id;
            if let Err(error) = self.ask_relay(Request::Retire(number)) {
                tracing::debug!(%error, "the relay does not hear that a stream is closed");
            }
        }
        self.engine.retire(id);
    }

    /// Before sleeping: asks those who can to ring. True when only a short sleep will do.
    pub fn prepare_to_sleep(&mut self) -> bool {
        let link = self.engine.link.as_ref();
        let blind = link.is_some_and(|l| l.wait_descriptor().is_none());
        self.show_before_sleep();
        self.left_out = LEFT_OUT; // what time brings is looked at behind the sleep
        self.engine.trace.rest();
        let timed = self.engine.prepare_to_sleep();
        let owed = self.node.is_owed();
        let wants_time = self.timed_waits > 0 || self.fencing || self.has_open_losses();
        timed || blind || owed || wants_time || self.has_pending_news()
    }

    /// Once the sleep is announced: whether something came in between.
    pub fn must_stay_awake(&mut self) -> bool {
        self.has_pending_news() || self.node.has_news() || self.engine.must_stay_awake()
    }
}

/// What a rank and its relay say to each other is about this.
fn talk<'a>(engine: &'a Engine, options: &Options) -> Talk<'a> {
    Talk {
        topology: &engine.topology,
        cookie: engine.cookie,
        timeout: options.bootstrap_timeout(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;
    use crate::seat::Seating;

    #[test]
    fn who_makes_progress_now_and_then_looks_after_others_each_time() {
        let job = Job::start(Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        })
        .unwrap();
        let state = |look: fn(&JobState) -> u64| job.seat().look(|state| look(state)).unwrap();
        let left_out = || state(|state| u64::from(state.left_out));
        for _ in 0..1000 {
            job.progress().unwrap();
            if left_out() > 0 {
                break;
            }
        }
        assert!(left_out() > 0, "there was nothing to do");
        let looked = || state(|state| state.checked_ns);
        let before = looked();
        std::thread::sleep(2 * LOOK_AROUND);
        job.progress().unwrap();
        assert!(looked() > before && left_out() == 0);
        job.shutdown().unwrap();
    }
}
