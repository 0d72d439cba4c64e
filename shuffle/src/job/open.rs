//! Opening a stream: all ranks agree on it, those of a node exchange their inboxes, and only then may anybody send.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use trihop_transport::memory::segment::Segment;

use super::JobState;
use crate::config::StreamOptions;
use crate::dump;
use crate::endpoint::{Endpoint, Need, Plan, Prepared, SYSTEM_STREAM};
use crate::engine::Core;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::node::{Label, not_arrived};
use crate::route::Route;
use crate::terminate::collective::{Operation, Reduce};

/// Name of the stream of the collectives.
pub(super) const SYSTEM_NAME: &str = "(collectives)";

/// A stream that is about to be opened, before the other ranks know of it.
enum Begun {
    /// In the place of a closed one.
    Again(u16, Plan),
    New(Prepared),
}

impl<'h> JobState<'h> {
    /// Opens a stream on all ranks.
    pub fn open(
        &self,
        name: &str,
        options: &StreamOptions,
        item_bytes: usize,
        sink: Sink<'h>,
    ) -> Result<Rc<Core<'h>>> {
        if self.endpoint.is_busy() {
            return Err(Error::Nested("opening a stream"));
        }
        let begun = self.endpoint.plan(name, options, item_bytes).and_then(|plan| {
            let agreed = plan.agreed(&self.options);
            let begun = match self.endpoint.reusable(&plan) {
                Some(id) => Begun::Again(id, plan),
                None => {
                    self.admit(name, options)?;
                    Begun::New(self.endpoint.prepare(plan)?)
                }
            };
            Ok((agreed, begun))
        });
        // Whether all ranks mean the same stream is agreed before anything of it is shared. A rank that failed says so by
        // a pair that agrees with nobody's, rather than leave the others waiting.
        let pair = begun.as_ref().map_or([0, 0], |(agreed, _)| {
            let word = agreed.word();
            [word, !word]
        });
        // A closed stream whose place this one can take, if it is the same on all ranks.
        let old = match &begun {
            Ok((_, Begun::Again(id, _))) => u64::from(*id),
            _ => 0,
        };
        let least = self.agree(&[pair[0], pair[1], old, !old])?;
        let (agreed, begun) = begun?;
        if least[..2] != pair {
            let why = match least[0] {
                0 => "another rank could not open it, and says why".to_owned(),
                _ => agreed.differences(&self.agree(&agreed.pairs())?),
            };
            let name = name.to_owned();
            return Err(Error::Mismatch { name, why });
        }
        let core = match begun {
            Begun::Again(id, plan) if least[2..] == [old, !old] => self.endpoint.reopen(id, plan, sink),
            begun => self.endpoint.take_number().and_then(|id| {
                let prepared = match begun {
                    Begun::New(prepared) => prepared,
                    Begun::Again(_, plan) => self.endpoint.prepare(plan)?,
                };
                self.connect(id, prepared, sink)
            }),
        };
        // Nobody sends on the stream before everybody has posted its receives.
        let all_open = self.agree(&[u64::from(core.is_ok())])? == [1];
        let core = core?;
        if !all_open {
            let why = "another rank could not open it, and says why".to_owned();
            return Err(Error::Mismatch {
                name: name.to_owned(),
                why,
            });
        }
        self.tell_opened(&core);
        Ok(core)
    }

    /// Refuses a stream that does not fit beside those that were opened before.
    fn admit(&self, name: &str, options: &StreamOptions) -> Result<()> {
        let link = self.endpoint.link.borrow();
        let limits = link.as_ref().map(|l| l.limits());
        let need = |options: &_| Need::of(&self.endpoint.topology, &self.endpoint.route, options, limits);
        let mut needs = Vec::new();
        for (name, options) in self.endpoint.held() {
            needs.push((name, need(&options)?));
        }
        let mut needs: Vec<_> = needs.iter().map(|(name, need)| (name.as_str(), *need)).collect();
        needs.push((name, need(options)?));
        self.budget.admit(&needs)
    }

    /// What became of the options: each facility tells its part.
    fn tell_opened(&self, core: &Core<'_>) {
        let options = &core.options;
        tracing::debug!(stream = core.name, id = core.id, "stream opened");
        tracing::info!(
            target: "trihop_shuffle::queue",
            stream = core.name,
            frame_bytes = core.frame_bytes,
            run_bytes = options.run_bytes,
            origin_maxrpc = options.origin_maxrpc,
            relay_maxrpc = options.relay_maxrpc,
            "queues inside the node"
        );
        tracing::info!(
            target: "trihop_shuffle::engine::inbound",
            stream = core.name,
            links = self.endpoint.route.links(),
            remote_maxrpc = options.remote_maxrpc,
            small_slot_bytes = options.shares().small_slot_bytes,
            "links to other nodes"
        );
        tracing::debug!(
            target: "trihop_shuffle::queue",
            stream = core.name,
            origin_buftarget_bytes = options.origin_buftarget_bytes,
            relay_buftarget_bytes = options.relay_buftarget_bytes,
            run_table_bytes = options.shares().run_table_bytes,
            linger_us = options.linger_us,
            "when queues are shown"
        );
        if let Some(bound) = dump::Bound::of(core) {
            tracing::info!(target: "trihop_transport::memory", stream = core.name, "at most: {bound}");
        }
        let by = match &*core.sink.borrow() {
            Sink::Handler(_) => "the handler",
            Sink::Queue(_) => "the application's calls",
            Sink::Thread(_) => "a delivery thread",
            Sink::Closed => "nobody",
        };
        tracing::info!(
            target: "trihop_shuffle::deliver",
            stream = core.name,
            by,
            deliverq_max = options.deliverq_max,
            "deliveries"
        );
    }

    /// Opens the stream of the collectives, over which all others are agreed on.
    pub(super) fn open_system_stream(&self) -> Result<()> {
        let system = Endpoint::system_options();
        let plan = self.endpoint.plan(SYSTEM_NAME, &system, 0)?;
        let prepared = self.endpoint.prepare(plan)?;
        let id = self.endpoint.take_number()?;
        debug_assert_eq!(id, SYSTEM_STREAM);
        self.connect(id, prepared, self.endpoint.system_sink())
            .map(|_| ())
    }

    /// Smallest of all ranks' values.
    fn agree(&self, values: &[u64]) -> Result<Vec<u64>> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let least = self.collective(Operation::Reduce(Reduce::Min), &bytes)?;
        Ok(least
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes(c.try_into().expect("chunks of 8")))
            .collect())
    }

    /// Exchanges inboxes with the node's ranks, with progress since others may need it to come this far.
    fn connect(&self, id: u16, prepared: Prepared, sink: Sink<'h>) -> Result<Rc<Core<'h>>> {
        let (topology, cookie) = (&self.endpoint.topology, self.endpoint.cookie);
        let deadline = Instant::now() + self.options.bootstrap_timeout();
        let label = Label {
            cookie,
            stream: id,
            rank: topology.rank().0,
        };
        let given = self
            .node
            .borrow()
            .give(topology, &label, &[prepared.segment.descriptor()?], deadline);
        self.explained(given)?;
        self.wait("other ranks of the node, to open a stream", || {
            let mut node = self.node.borrow_mut();
            node.keep_arrived(topology, cookie)?;
            let missing = node.missing(topology, id);
            if !missing.is_empty() && Instant::now() >= deadline {
                return Err(not_arrived(&missing, &"bootstrap_timeout_ms has passed"));
            }
            Ok(missing.is_empty().then_some(()))
        })?;
        let segments: Vec<Arc<Segment>> = self
            .node
            .borrow_mut()
            .taken(topology, id)?
            .into_iter()
            .map(|theirs| match theirs {
                None => Ok(Arc::clone(&prepared.segment)),
                Some([memory]) => Ok(Segment::attach(memory, prepared.segment_bytes())?),
            })
            .collect::<Result<_>>()?;
        self.endpoint.connect(id, prepared, &segments, sink)
    }
}
