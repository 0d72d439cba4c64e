//! The lives of a job's ranks: how this one hears that another is gone or has failed, and how it
//! says so itself.
//!
//! Silence proves nothing: a rank that computes, blocks or is stopped is slow. Inside a node the
//! kernel tells each rank when the process of another ends. The first that finds something out
//! posts it on the node's board, a word of shared memory that every rank looks at in each round of
//! progress, and the node's watch tells the other nodes (`trihop_transport::watch`). The first news
//! on a board count for all ranks of its node: those that end because of them are not taken for the
//! cause.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::notice;
use trihop_transport::park::ProcessWatch;
use trihop_transport::ring::Bell;
use trihop_transport::secret::Secret;
use trihop_transport::sync::thread;
use trihop_transport::topology::{EndpointId, NodeId, Rank, Topology};
use trihop_transport::watch::{
    self, Board, Cause, Listening, Neighbour, News, Setup, Watch, agent_dead, neighbours,
};

use super::JobState;
use crate::config::Options;
use crate::error::{Error, Result};
use crate::node::{Met, NodeExchange};

/// How long a link's failure waits for news that explain it: a dead rank's links fail before its
/// watch has told.
const EXPLANATION: Duration = Duration::from_secs(1);
/// How long calls go on after the first news of a process that ended.
pub(super) const GRACE_NS: u64 = 100_000_000;
/// How often a call looks before the first news end it: one that got no core for a while looks at
/// what has come meanwhile.
const GRACE_LOOKS: u32 = 4;
/// How often it looks for them.
const LOOK: Duration = Duration::from_millis(1);
/// How long the rank that has the watch keeps its process from ending before news have gone out.
const TELLING: Duration = Duration::from_secs(1);

/// What a rank knows of the others' lives, and how it tells them of its own failure.
pub(super) struct Lives {
    board: Board,
    bells: Vec<Arc<Bell>>,
    /// Wakes the node's watch.
    wake: Option<Arc<OwnedFd>>,
    /// Of the node's first rank, where there are several nodes.
    watch: Option<Watch>,
    /// When this rank first saw news of a process that ended, 0 while it has not.
    seen_ns: u64,
    /// How often this rank has looked since.
    looks: u32,
    /// The news that end the job have been waited for to go out.
    told: bool,
    /// This rank, until it has ended the job: no kernel tells that it leaves before. Of a relay,
    /// the first rank of its process.
    joined: Option<Rank>,
    /// A forked child has no part in the job, nor this memory.
    process: u32,
    is_relay: bool,
    is_agent: bool,
    /// All ranks have joined.
    has_started: bool,
    /// An agent of this node is gone, and its job goes on as far as it can without.
    pub(super) lost_agent: Option<Rank>,
    /// Losses on the board that this one knows of.
    losses: usize,
}

impl Drop for Lives {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Lives {
    /// Of the endpoint that looks.
    pub fn new(met: Met, topology: &Topology) -> Self {
        Self {
            board: met.board.of_endpoint(topology),
            bells: met.bells,
            wake: met.wake,
            watch: None,
            seen_ns: 0,
            looks: 0,
            told: false,
            joined: Some(topology.rank()),
            process: std::process::id(),
            is_relay: topology.is_relay(),
            is_agent: topology.is_relay() && topology.has_agents(),
            has_started: false,
            lost_agent: None,
            losses: 0,
        }
    }

    /// Whether the job cannot go on: one load while all is well.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.board.has_news() && !self.board.is_over()
    }

    /// Whether it has lost somebody, and goes on: one load.
    #[inline]
    fn has_lost(&self) -> bool {
        self.board.has_lost(self.losses)
    }

    /// The next that it has lost, unless a broken process has made that up.
    fn next_loss(&mut self) -> Option<News> {
        let loss = self.board.loss(self.losses);
        self.losses += 1;
        loss.filter(|_| !self.board.is_over())
    }

    /// Whether all ranks have arrived at the end, so that a rank that leaves does so properly.
    pub fn is_over(&self) -> bool {
        self.board.is_over()
    }

    /// This one has failed. Where the job goes on without it, it is to the others as gone as one
    /// that has left.
    fn failed(&self, rank: Rank, why: &str) -> News {
        match self.board.goes_on() && !self.is_relay {
            true => News {
                rank,
                cause: Cause::Left,
            },
            false => News::failed(rank, why),
        }
    }

    /// A rank goes without having ended the job, and its process may live on: all others hear of
    /// it.
    fn leave(&mut self) {
        let Some(rank) = self.joined.take() else {
            return;
        };
        if self.process != std::process::id() || self.board.is_over() {
            return;
        }
        let is_first = self.has_started && !self.board.has_news();
        if is_first && !thread::panicking() && !self.is_relay {
            tracing::warn!(%rank, "the job is left without a shutdown");
            notice::unless_logged(format_args!(
                "rank {rank} leaves the job without shutting it down: what it has sent since the last \
                 fence may be lost, and what has come for it"
            ));
        }
        let news = match (thread::panicking(), self.is_relay) {
            (true, false) => self.failed(rank, "its program has panicked"),
            (true, true) if self.is_agent => {
                News::failed(rank, "the agent of its node has panicked")
            }
            (true, true) => News::failed(rank, "the relay of its process has panicked"),
            (false, false) => News {
                rank,
                cause: Cause::Left,
            },
            // It ends by an error that its ranks are told of.
            (false, true) => return,
        };
        self.post(&news);
        self.let_tell();
    }

    /// What has the watch may end as soon as it has heard of news: the watch tells its neighbours
    /// before.
    fn let_tell(&mut self) {
        if !self.board.has_news() || std::mem::replace(&mut self.told, true) {
            return;
        }
        if let Some(watch) = &self.watch
            && !watch.wait_told(TELLING)
        {
            tracing::warn!("the watch has not told other nodes within a second why this job ends");
        }
    }

    fn news(&self) -> Option<News> {
        self.board.news().filter(|_| !self.board.is_over())
    }

    /// News that end the job at this time.
    fn ending_news(&mut self, now_ns: u64) -> Option<News> {
        let news = self.news()?;
        // A program that ends its processes without ending its job may have done so after its last
        // step: what it sent before that arrives later than the news, and completes what is waited
        // for here.
        let may_wait = news.cause.is_end() && self.is_within_grace(now_ns);
        (!may_wait).then_some(news)
    }

    /// Whether what was sent before a process ended may still be on its way.
    fn is_within_grace(&mut self, now_ns: u64) -> bool {
        if self.seen_ns == 0 {
            self.seen_ns = now_ns;
        }
        self.looks = self.looks.saturating_add(1);
        now_ns.saturating_sub(self.seen_ns) < GRACE_NS || self.looks < GRACE_LOOKS
    }

    /// Posts news unless there are some, and wakes everybody for them.
    fn post(&self, news: &News) {
        if self.board.post(news) {
            self.bells.iter().for_each(|bell| bell.ring());
        }
        if let Some(wake) = &self.wake {
            watch::wake(wake);
        }
    }

    /// All ranks have arrived at the end of the job.
    pub fn end(&mut self) {
        self.joined = None;
        self.board.end();
        if let Some(watch) = self.watch.take() {
            watch.goodbye();
        }
    }
}

/// Starts the watch of a node, from its first rank.
pub(super) struct WatchStart {
    pub listening: Listening,
    pub neighbours: Vec<Neighbour>,
}

impl WatchStart {
    /// Listens, so that the start-up card can say where.
    pub fn listen(options: &Options, topology: &Topology) -> Result<Option<Self>> {
        let has_watch = topology
            .ends_of_process()
            .any(|end| end == topology.keeper());
        if topology.nodes() == 1 || !has_watch {
            return Ok(None);
        }
        let listening = Listening::open(&options.interfaces(), options.loopback)?;
        Ok(Some(Self {
            listening,
            neighbours: Vec::new(),
        }))
    }

    /// Nodes whose first ranks' cards are needed.
    pub fn nodes(topology: &Topology) -> Vec<NodeId> {
        neighbours(topology.node(), topology.nodes())
    }

    /// Starts the thread.
    pub fn start(
        self,
        options: &Options,
        topology: &Topology,
        secret: &Secret,
        node: &NodeExchange,
        lives: &mut Lives,
    ) -> Result<()> {
        let Some(wake) = lives.wake.clone() else {
            return Ok(());
        };
        let open = |(end, process): &(EndpointId, ProcessWatch)| {
            Ok::<_, Error>((*end, process.try_clone()?))
        };
        let watch = Watch::start(Setup {
            topology: topology.clone(),
            secret: secret.clone(),
            listening: self.listening,
            neighbours: self.neighbours,
            board: lives.board.of_watch(),
            bells: lives.bells.clone(),
            processes: node.watches.iter().map(open).collect::<Result<_>>()?,
            wake,
            timeout: options.watch_timeout(),
        })?;
        lives.watch = Some(watch);
        Ok(())
    }
}

impl JobState {
    /// The news that end the job, as an error.
    #[inline]
    pub(super) fn check_news(&mut self) -> Result<()> {
        if self.lives.has_lost() {
            self.hear_of_losses();
        }
        if self.lives.has_news() {
            return self.hear_news();
        }
        Ok(())
    }

    #[cold]
    fn hear_news(&mut self) -> Result<()> {
        match self.lives.ending_news(self.now_ns()) {
            Some(news) => Err(news.into_error(&self.engine.topology).into()),
            None => Ok(()),
        }
    }

    /// See [`crate::minirank::leave`].
    pub fn leave(&mut self) {
        self.lives.leave();
    }

    /// Whether news are there that no call has failed with yet: they are looked at again soon.
    pub(super) fn has_pending_news(&self) -> bool {
        self.lives.has_news() || self.lives.has_lost()
    }

    /// From now on this node's part of the job goes on without those that it loses.
    ///
    /// # Errors
    /// [`Error::Misuse`] where ranks have no agent.
    pub fn go_on(&mut self) -> Result<()> {
        if !self.engine.topology.has_agents() {
            let why = "ranks that have no agent relay for others: a job goes on without some only \
                       where each node has an agent";
            return Err(Error::misuse("", why));
        }
        self.lives.board.go_on();
        Ok(())
    }

    /// Whether it goes on so, as the others of this node have said.
    pub(super) fn may_lose(&self) -> bool {
        self.lives.board.goes_on()
    }

    #[cold]
    fn hear_of_losses(&mut self) {
        while self.lives.has_lost() {
            if let Some(loss) = self.lives.next_loss() {
                self.lose(loss);
            }
        }
    }

    /// A local peer that has ended before the job did ends it with its rank.
    pub fn look_after_peers(&mut self, now_ns: u64) -> Result<()> {
        self.checked_ns = now_ns;
        if self.lives.is_over() {
            return Ok(());
        }
        let watches = self.node.watches.iter();
        let ended = watches.filter_map(|(end, watch)| watch.has_ended().then_some(*end));
        for end in ended.collect::<Vec<_>>() {
            let topology = &self.engine.topology;
            let news = News::ended(end, topology);
            // Between the ranks of one node nothing goes by the agent.
            if news.cause == Cause::AgentEnded && topology.nodes() == 1 {
                self.lose_agent(end);
                continue;
            }
            // Unless the board knows what it has ended because of.
            self.lives.post(&news);
        }
        self.check_news()
    }

    fn lose_agent(&mut self, agent: EndpointId) {
        let gone = self.node.watches.extract_if(.., |(end, _)| *end == agent);
        let gone: Vec<_> = gone.map(|(_, watch)| watch).collect();
        self.node.ended.extend(gone);
        self.lives.lost_agent = Some(self.engine.topology.rank_of(agent));
        tracing::warn!("an agent of this node has ended");
    }

    /// Whether nobody asks an agent any more: one of the node is gone, and nothing of a job on one
    /// node needs any once all have joined.
    pub fn goes_without_agents(&self) -> bool {
        let is_on_one_node = self.engine.topology.nodes() == 1;
        self.lives.lost_agent.is_some() && is_on_one_node && self.lives.has_started
    }

    /// The same, and all have arrived at the end.
    pub fn is_over_without_agents(&self) -> bool {
        self.goes_without_agents() && self.lives.is_over()
    }

    /// # Errors
    /// The agent of this rank is gone, and it cannot do without.
    pub(super) fn check_agent(&self) -> Result<()> {
        match self.lives.lost_agent {
            Some(rank) if !self.goes_without_agents() => Err(agent_dead(rank.0).into()),
            _ => Ok(()),
        }
    }

    /// What has ended progress, if anything has.
    #[inline]
    pub fn check_failure(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Progress has met `error`. What all calls of this rank fail with from now on; all others hear
    /// of it.
    #[cold]
    pub fn fail(&mut self, error: Error) -> Error {
        let error = self.explain(error);
        // At the very end peers go when they like: nobody needs them any more.
        if self.closing {
            return error;
        }
        // Nobody would relieve a spill any more.
        for (_, out) in self.engine.open_streams() {
            out.gauge().end();
        }
        // Who asks hears of it.
        self.parked.wake_all();
        self.failure.get_or_insert(error).clone()
    }

    /// The program cannot go on, and says why: that is what all calls fail with from now on, here
    /// and on all other ranks, where nothing else was before.
    pub fn say_failed(&mut self, why: &str) -> Error {
        let news = self.lives.news().unwrap_or_else(|| {
            let rank = self.engine.topology.rank();
            if !self.closing && !self.lives.is_over() {
                let news = self.lives.failed(rank, why);
                self.lives.post(&news);
            }
            News::failed(rank, why)
        });
        let error = news.into_error(&self.engine.topology).into();
        self.fail(error)
    }

    /// What `error` is due to; where that is this rank itself, all others hear of it.
    fn explain(&mut self, error: Error) -> Error {
        let own = match &error {
            // At the very end peers go when they like.
            _ if self.lives.is_over() => return error,
            error if error.is_about_peer() => false,
            Error::LinkFailed { .. } | Error::Fabric { .. } | Error::System { .. } => {
                if self.closing {
                    return error;
                }
                self.wait_for_explanation();
                true
            }
            _ => true,
        };
        let error = match self.lives.news() {
            Some(news) if own => {
                tracing::debug!(%error, "explained by news of another rank");
                news.into_error(&self.engine.topology).into()
            }
            None if own => {
                let rank = self.engine.topology.rank();
                let news = self.lives.failed(rank, &error.to_string());
                self.lives.post(&news);
                error
            }
            _ => error,
        };
        self.lives.let_tell();
        error
    }

    /// The outcome of a call beside progress; a failure that news explain is theirs.
    pub fn explained<T>(&mut self, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            self.wait_for_explanation();
            if let Some(news) = self.lives.news() {
                return Err(self.explain(news.into_error(&self.engine.topology).into()));
            }
            self.check_agent()?;
        }
        outcome
    }

    /// Waits for the news that a link's failure is due to, if there are any.
    fn wait_for_explanation(&mut self) {
        let is_known = self.goes_without_agents();
        self.wait_for_news(|job| {
            job.board_says_why() || !is_known && job.lives.lost_agent.is_some()
        });
    }

    /// Waits for news that explain a failure, for a while.
    pub(super) fn wait_for_news(&mut self, mut have_come: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + EXPLANATION;
        while !have_come(self) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
    }

    fn board_says_why(&mut self) -> bool {
        // A peer of the node may be the cause, and nobody else may have looked yet.
        let _ = self.look_after_peers(self.now_ns());
        self.lives.has_news() || self.lives.is_over()
    }

    /// All ranks have joined.
    pub fn begin_lives(&mut self) {
        self.lives.has_started = true;
    }

    /// All ranks have arrived at the end: who goes from now on does so properly, and the watch says
    /// so.
    pub fn end_lives(&mut self) {
        self.lives.end();
    }

    /// Whether the node's watch, if it is here, is connected as well as it can be.
    pub fn watch_is_settled(&self) -> bool {
        self.lives.watch.as_ref().is_none_or(Watch::is_settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a rank whose node's board has `news`.
    fn lives(news: &News) -> Lives {
        let topology = Topology::from_node_sizes(&[2], Rank(0)).unwrap();
        let met = Met {
            board: Board::create(&topology).unwrap(),
            bells: Vec::new(),
            wake: None,
        };
        let lives = Lives::new(met, &topology);
        assert_eq!(lives.news(), None);
        lives.post(news);
        lives
    }

    #[test]
    fn what_was_sent_before_a_process_ended_has_a_while_to_arrive() {
        for cause in [Cause::Ended, Cause::Closed, Cause::Left] {
            let ended = News {
                rank: Rank(1),
                cause,
            };
            let mut lives = lives(&ended);
            // Since this rank sees it: whatever time it is, and however late that is.
            let seen_ns = 7 * GRACE_NS;
            for now_ns in [seen_ns, seen_ns + 1, seen_ns + GRACE_NS - 1] {
                assert_eq!(lives.ending_news(now_ns), None, "at {now_ns}");
            }
            for now_ns in [seen_ns + GRACE_NS, seen_ns + 2 * GRACE_NS] {
                assert_eq!(
                    lives.ending_news(now_ns),
                    Some(ended.clone()),
                    "at {now_ns}"
                );
            }
        }
    }

    #[test]
    fn a_failure_ends_the_job_at_once() {
        let failed = News::failed(Rank(1), "no room");
        assert_eq!(lives(&failed).ending_news(1), Some(failed));
    }

    #[test]
    fn nothing_ends_a_job_that_is_over() {
        let failed = News::failed(Rank(1), "no room");
        let mut lives = lives(&failed);
        lives.end();
        assert_eq!(lives.ending_news(1), None);
    }
}
