//! A job that goes on without those that it loses: who is out of reach, what that ends, and who
//! hears of it.

use std::sync::Arc;
use std::task::Waker;

use trihop_transport::topology::{EndpointId, Rank, Topology};
use trihop_transport::watch::News;

use super::JobState;
use super::lives::GRACE_NS;
use crate::endpoint::Engine;
use crate::error::{Error, Result};
use crate::member::{Loss, Who};

/// How long what somebody has sent may take to arrive once that one is lost, over links.
const ARRIVAL_NS: u64 = 1_000_000_000;
/// And rounds of progress that this rank makes until then.
const ARRIVAL_ROUNDS: u64 = 64;

/// How far a loss is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossStage {
    /// It has become known. What was sent before may still come.
    Known,
    /// Nothing more comes.
    Over,
}

/// Hears of a loss, and may send; whom it wakes goes to the last argument. False once nobody needs
/// it any more, which it says without a loss, too.
pub(crate) type OnLoss =
    Box<dyn FnMut(&mut Engine, Option<(&Loss, LossStage)>, &mut Vec<Waker>) -> bool + Send>;

/// Those that a job has lost.
#[derive(Default)]
pub(super) struct Lost {
    all: Arc<[Loss]>,
    /// When the first became known here.
    since_ns: u64,
    /// When those who wait for an end are to hear of the last, 0 once they have.
    waking_ns: u64,
    /// Those that are not over.
    open: Vec<Open>,
    hearers: Vec<OnLoss>,
}

/// A loss that is not over.
struct Open {
    loss: Loss,
    /// Not before this time, and this round of progress: who has made none for long has to take
    /// what had come first.
    at_ns: u64,
    at_round: u64,
}

impl Lost {
    /// Whether there is any.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl JobState {
    /// Has this hear of losses: those that there are, and later ones. Those whom nobody needs any
    /// more go.
    pub fn hear_of_losses_by(&mut self, mut hears: OnLoss) {
        let (engine, mut woken) = (&mut self.engine, Vec::new());
        (self.lost.hearers).retain_mut(|hears| hears(engine, None, &mut woken));
        for loss in &*self.lost.all {
            hears(engine, Some((loss, LossStage::Known)), &mut woken);
            let is_open = |open: &Open| open.loss.is_same(loss);
            if !self.lost.open.iter().any(is_open) {
                hears(engine, Some((loss, LossStage::Over)), &mut woken);
            }
        }
        self.parked.add_woken(&mut woken);
        self.lost.hearers.push(hears);
    }

    /// Whether a rank is lost.
    pub fn has_lost(&self, rank: Rank) -> bool {
        self.lost.all.iter().any(|loss| loss.has(rank))
    }

    /// Ranks that this one cannot reach any more, ascending.
    pub fn lost_ranks(&self) -> Vec<Rank> {
        let all = (0..self.engine.topology.size()).map(Rank);
        match self.lost.is_empty() {
            true => Vec::new(),
            false => all.filter(|rank| self.has_lost(*rank)).collect(),
        }
    }

    /// The job goes on without those that these news tell of.
    pub(super) fn lose(&mut self, news: News) {
        let topology = self.engine.topology.clone();
        let Some((who, ends)) = out_of_reach(&news, &topology) else {
            return;
        };
        if who == Who::OtherNodes {
            self.lives.lost_agent = Some(news.rank);
        }
        let error: Error = news.into_error(&topology).into();
        if !topology.is_relay() {
            tracing::warn!(%error, "the job goes on without");
        }
        let loss = Loss::new(who, error, &topology);
        let now_ns = self.now_ns();
        if self.lost.is_empty() {
            self.lost.since_ns = now_ns;
        }
        let all = self.lost.all.iter().chain([&loss]).cloned();
        self.lost.all = all.collect();
        self.engine.lose(&self.lost.all, &ends, now_ns + ARRIVAL_NS);
        let is_here = ends.iter().any(|&end| topology.is_here(end));
        let takes_ns = if is_here { GRACE_NS } else { ARRIVAL_NS };
        self.tell(&loss, LossStage::Known);
        self.lost.open.push(Open {
            loss,
            at_ns: now_ns + takes_ns,
            at_round: self.rounds + ARRIVAL_ROUNDS,
        });
        self.lost.waking_ns = now_ns + GRACE_NS;
        self.bell.ring();
    }

    /// Goes on with losses that are not over; whether any is now.
    #[cold]
    pub(super) fn end_losses(&mut self, now_ns: u64) -> bool {
        if self.lost.waking_ns > 0 && now_ns >= self.lost.waking_ns {
            self.lost.waking_ns = 0;
            // From now on what they wait for has failed.
            self.parked.wake_ends();
        }
        if !self.engine.has_drained_lost() {
            return false;
        }
        let rounds = self.rounds;
        let is_over = |open: &mut Open| open.at_ns <= now_ns && open.at_round <= rounds;
        let over: Vec<_> = self.lost.open.extract_if(.., is_over).collect();
        over.iter()
            .for_each(|open| self.tell(&open.loss, LossStage::Over));
        !over.is_empty()
    }

    /// Whether there are any.
    #[inline]
    pub(super) fn has_open_losses(&self) -> bool {
        !self.lost.open.is_empty()
    }

    fn tell(&mut self, loss: &Loss, stage: LossStage) {
        let mut woken = Vec::new();
        let engine = &mut self.engine;
        let loss = Some((loss, stage));
        (self.lost.hearers).retain_mut(|hears| hears(engine, loss, &mut woken));
        self.parked.add_woken(&mut woken);
    }

    /// Whether all ranks can take part in something. What those that are gone had sent for it may
    /// still arrive for a while.
    ///
    /// # Errors
    /// The first that is lost.
    #[inline]
    pub fn check_whole(&self) -> Result<()> {
        match self.lost.is_empty() {
            true => Ok(()),
            false => self.say_lost(),
        }
    }

    #[cold]
    fn say_lost(&self) -> Result<()> {
        let is_late = self.now_ns() >= self.lost.since_ns + GRACE_NS;
        match self.lost.all.first().filter(|_| is_late) {
            Some(loss) => Err(loss.error().clone()),
            None => Ok(()),
        }
    }

    /// As a relay: whether any of its ranks is left.
    ///
    /// # Errors
    /// None is; the first that was lost.
    pub fn check_ranks_left(&self) -> Result<()> {
        if self.lost.is_empty() {
            return Ok(());
        }
        let topology = &self.engine.topology;
        let mut ranks = topology.ranks_of(topology.node());
        match ranks.all(|rank| self.has_lost(rank)) {
            true => Err(self.lost.all[0].error().clone()),
            false => Ok(()),
        }
    }

    /// Whether what progress has failed with is the end of a link to somebody that is lost: that is
    /// waited for.
    pub(super) fn is_due_to_loss(&mut self, error: &Error) -> bool {
        let rank = match error {
            Error::LinkFailed { rank, .. } => Some(Rank(*rank)),
            Error::Fabric { .. } => None,
            _ => return false,
        };
        // At the very end peers go when they like.
        if !self.may_lose() || self.closing {
            return false;
        }
        let of_links = |lost: &Lost| {
            let of_links = lost.all.iter().filter(|loss| loss.is_of_links());
            match rank {
                Some(rank) => of_links.filter(|loss| loss.has(rank)).count(),
                None => of_links.count(),
            }
        };
        // Of a rank one is enough that was known; of nobody a new one is.
        let known = rank.map_or_else(|| of_links(&self.lost), |_| 0);
        self.wait_for_news(|job| {
            let looked = job.look_after_peers(job.now_ns());
            looked.is_err() || of_links(&job.lost) > known
        });
        of_links(&self.lost) > known
    }
}

/// Whom news put out of reach of an endpoint, and which endpoints that it may exchange something
/// with; `None` where that is nobody.
fn out_of_reach(news: &News, topology: &Topology) -> Option<(Who, Vec<EndpointId>)> {
    if !news.cause.is_of_node() {
        let end = EndpointId::from(news.rank);
        let ends = topology.is_here(end).then_some(end);
        let is_other = end != topology.endpoint();
        return is_other.then(|| (Who::Rank(news.rank), ends.into_iter().collect()));
    }
    let node = topology.node_of(news.rank);
    let agent = topology.relay_of(topology.process_of_rank(news.rank));
    match (node == topology.node(), topology.is_relay()) {
        (true, true) => None,
        (true, false) => Some((Who::OtherNodes, vec![agent])),
        (false, true) => Some((Who::Node(node), vec![agent])),
        (false, false) => Some((Who::Node(node), Vec::new())),
    }
}
