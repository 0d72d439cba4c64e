//! What a stream's opening asks of the state: whether it is possible, and what it is made of.

use std::time::Instant;

use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::protocol::wire::Epoch;

use super::JobState;
use crate::config::StreamOptions;
use crate::dump;
use crate::endpoint::{Agreed, Engine, Need, Plan, Prepared, StreamId, is_on_demand};
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::node::{Label, not_arrived};
use crate::queue::limits::LinkTerms;
use crate::route::EndpointId;

/// Name of the stream of the collectives.
pub(crate) const SYSTEM_NAME: &str = "(collectives)";

/// A stream that is about to be opened, before the other ranks know of it.
pub(crate) enum Begun {
    /// In the place of a closed one.
    Again(u16, Plan),
    New(Prepared),
}

impl JobState {
    /// Begins to open a stream, with what all ranks must have in common; in the place of the closed
    /// stream that `reusable` picks, if all agree on that.
    pub fn begin_opening(
        &mut self,
        name: &str,
        options: &StreamOptions,
        item_bytes: usize,
        reusable: impl FnOnce(&Engine, &Plan) -> Option<u16>,
    ) -> Result<(Agreed, Begun)> {
        let plan = self.engine.plan(name, options, item_bytes)?;
        let agreed = plan.agreed(&self.options);
        self.attach_ends(&plan)?;
        let begun = match reusable(&self.engine, &plan) {
            Some(id) => Begun::Again(id, plan),
            None => Begun::New(self.prepare(plan)?),
        };
        Ok((agreed, begun))
    }

    /// First half of opening a new stream, which has to fit beside the others; without memory for
    /// long records where streams would take more than half of what there is with it: those that
    /// follow are to fit, too.
    pub fn prepare(&mut self, mut plan: Plan) -> Result<Prepared> {
        self.limit_pools(&mut plan)?;
        if plan.block_bytes > 0 && !self.budget.has_twice(&self.needs_with(&plan)?) {
            plan.block_bytes = 0;
            tracing::info!(
                stream = plan.name,
                "no memory in which long records may lie: they go in pieces"
            );
        }
        self.budget.admit(&self.needs_with(&plan)?)?;
        self.engine.prepare(plan)
    }

    /// Gives the pools of a stream half of what others leave of an agent's limits, so that streams
    /// behind it have some too; all that is left, where the least that it needs is more.
    fn limit_pools(&self, plan: &mut Plan) -> Result<()> {
        let all = self.options.pools;
        if !all.any() {
            return Ok(());
        }
        let mut held = [0, 0];
        for (_, need) in self.engine.needs()? {
            let [sent, received] = need.pools();
            held = [held[0] + sent, held[1] + received];
        }
        let left = all.beside(held);
        plan.pools = left.halved();
        let needed = self.need_of(plan)?.pools();
        if plan.pools.hold(needed) {
            return Ok(());
        }
        // Cut to the least already, which may be more than half of what is left one way.
        plan.pools = plan.pools.at_least(needed);
        left.check(&all, &plan.name, needed)
    }

    /// Attaches the other ends of a stream's links that no stream before had.
    pub fn attach_ends(&mut self, plan: &Plan) -> Result<()> {
        let topology = self.engine.topology.clone();
        let mut ends = self.engine.ends_missing(plan);
        ends.sort_by_key(|&end| topology.node_of_endpoint(end));
        for ends in
            ends.chunk_by(|&a, &b| topology.node_of_endpoint(a) == topology.node_of_endpoint(b))
        {
            // It stays until the job ends, and all cards lie there.
            let Some(directory) = &self.directory else {
                return Err(Error::config("stream", "a mini-rank has no links"));
            };
            let store = self
                .bootstrap
                .as_mut()
                .map(|store| &mut **store as &mut dyn Bootstrap);
            let node = topology.node_of_endpoint(ends[0]);
            let processes: Vec<EndpointId> = ends
                .iter()
                .map(|&end| EndpointId(topology.process_of(end)))
                .collect();
            let addresses = directory.addresses_of(node, &processes, store)?;
            for (&end, address) in ends.iter().zip(&addresses) {
                tracing::trace!(target: "trihop_shuffle::route", to = end.0, "link");
                // All endpoints of a job join once, at its start.
                self.engine.attach_end(end, Epoch::FIRST, address)?;
            }
        }
        Ok(())
    }

    /// Gives the node's endpoints this one's inbox of a stream.
    pub fn give_inbox(&mut self, id: u16, prepared: &Prepared, deadline: Instant) -> Result<()> {
        let needs_agents = !self.goes_without_agents();
        let (topology, label) = (&self.engine.topology, self.label(id));
        let given = self
            .node
            .give(topology, &label, &prepared.segment, needs_agents, deadline);
        self.explained(given)
    }

    /// Tells the node's endpoints that this one has no inbox for a stream: they wait for it no more.
    pub fn refuse_inbox(&mut self, id: u16) -> Result<()> {
        let deadline = Instant::now() + self.options.bootstrap_timeout();
        let label = self.label(id);
        let told = self.node.refuse(&self.engine.topology, &label, deadline);
        self.explained(told)
    }

    /// As a relay: tells those of the node's other processes that the ranks of this one have arrived
    /// at the end of the job.
    pub fn tell_arrived(&mut self, deadline: Instant) -> Result<()> {
        let topology = &self.engine.topology;
        self.node.tell_arrived(topology, &self.label(0), deadline)
    }

    /// Whether the ranks of all processes of the node have, as their relays have told.
    pub fn has_node_arrived(&mut self) -> Result<bool> {
        let (topology, cookie) = (&self.engine.topology, self.engine.cookie);
        self.node.keep_arrived(topology, cookie)?;
        Ok(self.node.has_node_arrived(topology))
    }

    /// What this endpoint's descriptors for a stream come with.
    fn label(&self, id: u16) -> Label {
        Label {
            cookie: self.engine.cookie,
            stream: id,
            end: self.engine.topology.endpoint().0,
        }
    }

    /// Whether the inboxes of all endpoints of the node have arrived.
    ///
    /// # Errors
    /// [`Error::Mismatch`]: an endpoint has none.
    pub fn inboxes_have_arrived(&mut self, id: u16, deadline: Option<Instant>) -> Result<bool> {
        let (topology, cookie) = (&self.engine.topology, self.engine.cookie);
        self.node.keep_arrived(topology, cookie)?;

        let needs_agents = !self.goes_without_agents();
        let missing = self.node.missing(topology, id, needs_agents);
        if let Some(end) = self.node.refused(id) {
            let why = format!("{} could not open it, and says why", topology.name_of(end));
            return Err(Error::mismatch(&format!("(number {id})"), why));
        }
        if missing.is_empty() {
            return Ok(true);
        }
        self.check_agent()?;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(not_arrived(&missing, &"bootstrap_timeout_ms has passed"));
        }
        Ok(false)
    }

    /// Keeps nothing of what endpoints of the node have given for a stream that not all could open.
    pub fn forget_inboxes(&mut self, id: u16) -> Result<()> {
        let (topology, cookie) = (&self.engine.topology, self.engine.cookie);
        self.node.keep_arrived(topology, cookie)?;
        self.node.forget(id);
        Ok(())
    }

    /// Attaches the inboxes that have arrived.
    pub fn attach(
        &mut self,
        id: u16,
        prepared: Prepared,
        terms: LinkTerms,
        sink: Sink,
    ) -> Result<StreamId> {
        let bytes = prepared.segment_bytes();
        let inboxes = self.node.taken(&self.engine.topology, id, bytes)?;
        let stream = self.engine.connect(id, prepared, terms, sink)?;
        for (end, inbox) in inboxes {
            self.engine.attach_inbox(stream, end, inbox)?;
        }
        Ok(stream)
    }

    /// What streams need that were opened before, and one that is to be opened.
    fn needs_with<'a>(&'a self, plan: &'a Plan) -> Result<Vec<(&'a str, Need)>> {
        let mut needs = self.engine.needs()?;
        needs.push((&plan.name, self.need_of(plan)?));
        Ok(needs)
    }

    /// What a stream needs that is to be opened.
    fn need_of(&self, plan: &Plan) -> Result<Need> {
        let limits = self.engine.link.as_ref().map(|l| l.limits());
        let (topology, pools) = (&self.engine.topology, &plan.pools);
        let shared = is_on_demand(&plan.route, &plan.options, self.engine.receives());
        let need = Need::of(topology, &plan.route, &plan.options, pools, shared, limits)?;
        Ok(need.sharing(plan.block_bytes))
    }

    /// What a stream takes of memory at most.
    pub fn log_bound(&self, id: StreamId) {
        if let Ok((state, out)) = self.engine.stream(id) {
            let (stream, bound) = (&state.name, dump::Bound::of(state, out));
            tracing::info!(target: "trihop_transport::memory", stream, "at most: {bound}");
        }
    }

    /// What became of the options: each facility tells its part.
    pub fn log_opened(&self, id: StreamId) {
        let Ok((state, out)) = self.engine.stream(id) else {
            return;
        };
        let options = &state.options;
        tracing::debug!(stream = state.name, id = state.id, "stream opened");
        tracing::info!(
            target: "trihop_shuffle::route",
            stream = state.name,
            route = out.queues.route.name(),
            links = out.queues.route.links(),
            "route chosen"
        );
        tracing::info!(
            target: "trihop_shuffle::queue",
            stream = state.name,
            frame_bytes = state.frame_bytes,
            run_bytes = options.run_bytes,
            origin_maxrpc = options.origin_maxrpc,
            relay_maxrpc = options.relay_maxrpc,
            "queues inside the node"
        );
        tracing::info!(
            target: "trihop_shuffle::engine::inbound",
            stream = state.name,
            links = out.queues.route.links(),
            remote_maxrpc = options.remote_maxrpc,
            small_slot_bytes = options.shares().small_slot_bytes,
            "links to other nodes"
        );
        tracing::debug!(
            target: "trihop_shuffle::queue",
            stream = state.name,
            origin_buftarget_bytes = options.origin_buftarget_bytes,
            relay_buftarget_bytes = options.relay_buftarget_bytes,
            run_table_bytes = options.shares().run_table_bytes,
            linger_us = options.linger_us,
            "when queues are shown"
        );
        self.log_bound(id);
        let by = match &state.sink {
            Sink::Handler => "the handler",
            Sink::Queue(_) => "the application's calls",
            Sink::Thread(_) => "a delivery thread",
            Sink::Collectives(_) => "the engine",
            Sink::Closed => "nobody",
        };
        tracing::info!(
            target: "trihop_shuffle::deliver",
            stream = state.name,
            by,
            deliverq_max = options.deliverq_max,
            "deliveries"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use trihop_transport::bootstrap::Custom;
    use trihop_transport::memory::limit::{Limit, Scope};
    use trihop_transport::topology::Rank;

    use super::super::budget::Budget;
    use super::*;
    use crate::conformance::ranks::ranks;
    use crate::seat::Seating;
    use crate::{Job, Options};

    const BYTES: usize = 100_000;

    /// A stream for whose long records the first rank's memory does not suffice, by this much, and
    /// what comes of them: whether each rank has some of its memory for them.
    fn opened(rank: u32, bootstrap: Custom, short_of: usize) -> Result<bool> {
        let sum = Cell::new(0);
        let job = Job::start_with(Options::default(), Box::new(bootstrap))?;
        if rank == 0 {
            job.seat().with("a test", |state| {
                let mut plan = state.engine.plan("long", &StreamOptions::default(), 0)?;
                plan.block_bytes = 0;
                let before = state.engine.needs()?;
                let before: usize = before.iter().map(|(_, need)| need.bytes()).sum();
                let limit = Limit {
                    bytes: (before + state.need_of(&plan)?.bytes() - short_of) as u64,
                    source: "the test".to_owned(),
                    scope: Scope::Process,
                };
                let topology = &state.engine.topology;
                state.budget = Budget::new(vec![limit], topology, 1, false, 0);
                Ok(())
            })?;
        }
        let shuffle = job
            .shuffle("long")
            .handler(|message, _| {
                assert!(message.bytes == [message.kind as u8; BYTES]);
                sum.set(sum.get() + message.kind);
            })
            .open()?;
        for kind in 1..=100 {
            shuffle.send(Rank(1 - rank), kind, &[kind as u8; BYTES])?;
        }
        shuffle.fence()?;
        assert_eq!(sum.get(), 5050);
        let shares = job.seat().with("a test", |state| {
            let needs = state.engine.needs()?;
            let (_, need) = needs.iter().find(|(name, _)| *name == "long").unwrap();
            Ok(need.bytes() > need.sharing(0).bytes())
        })?;
        shuffle.shutdown()?;
        job.shutdown()?;
        Ok(shares)
    }

    #[test]
    fn a_stream_opens_without_memory_for_long_records_where_that_does_not_fit() {
        let opened_by = |short_of: usize| {
            let run = move |rank, bootstrap| opened(rank, bootstrap, short_of);
            let mut outcomes = ranks(2, |_| 0, run);
            outcomes.sort_by_key(|(rank, _)| *rank);
            outcomes
        };
        let fits: Vec<_> = opened_by(0).into_iter().map(|(_, got)| got).collect();
        assert_eq!(fits, [Ok(false), Ok(true)], "the other rank has some");
        for (rank, outcome) in opened_by(1) {
            let text = outcome.unwrap_err().to_string();
            assert!(rank == 1 || text.contains("lower memory_bytes"), "{text}");
        }
    }
}
