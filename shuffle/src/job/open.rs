//! Opening a stream: all ranks agree on it, those of a node exchange their inboxes, and only then may anybody send.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use trihop_transport::memory::segment::Segment;

use super::JobState;
use crate::config::StreamOptions;
use crate::endpoint::{Endpoint, Prepared, SYSTEM_STREAM};
use crate::engine::Core;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::node::{Label, not_arrived};
use crate::terminate::collective::{Operation, Reduce};

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
        let prepared = self.endpoint.prepare(name, options, item_bytes);
        // Whether all ranks mean the same stream is agreed before anything of it is shared. A rank that failed says so by
        // a pair that agrees with nobody's, rather than leave the others waiting.
        let eager = self.options.eager_bytes.unwrap_or(0);
        let pair = prepared.as_ref().map_or([0, 0], |p| {
            let word = p.agreement(eager) | 1;
            [word, !word]
        });
        let least = self.agree(&pair)?;
        let prepared = prepared?;
        if least != pair {
            let why = format!(
                "rank {} has {options:?} with items of {item_bytes} bytes; another rank differs, or failed and says why",
                self.endpoint.topology.rank()
            );
            let (id, name) = (prepared.id, prepared.name);
            return Err(Error::Mismatch {
                name: format!("{name} (number {id})"),
                why,
            });
        }
        let core = self.connect(prepared, sink);
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
        Ok(core)
    }

    /// Opens the stream of the collectives, over which all others are agreed on.
    pub(super) fn open_system_stream(&self) -> Result<()> {
        let prepared = self
            .endpoint
            .prepare("(collectives)", &Endpoint::system_options(), 0)?;
        debug_assert_eq!(prepared.id, SYSTEM_STREAM);
        self.connect(prepared, self.endpoint.system_sink()).map(|_| ())
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
    fn connect(&self, prepared: Prepared, sink: Sink<'h>) -> Result<Rc<Core<'h>>> {
        let (topology, cookie) = (&self.endpoint.topology, self.endpoint.cookie);
        let deadline = Instant::now() + self.options.bootstrap_timeout();
        let label = Label {
            cookie,
            stream: prepared.id,
            rank: topology.rank().0,
        };
        let given = self
            .node
            .borrow()
            .give(topology, &label, &[prepared.segment.descriptor()?], deadline);
        self.explained(given)?;
        self.wait(|| {
            let mut node = self.node.borrow_mut();
            node.keep_arrived(topology, cookie)?;
            let missing = node.missing(topology, prepared.id);
            if !missing.is_empty() && Instant::now() >= deadline {
                return Err(not_arrived(&missing, &"bootstrap_timeout_ms has passed"));
            }
            Ok(missing.is_empty().then_some(()))
        })?;
        let segments: Vec<Arc<Segment>> = self
            .node
            .borrow_mut()
            .taken(topology, prepared.id)?
            .into_iter()
            .map(|theirs| match theirs {
                None => Ok(Arc::clone(&prepared.segment)),
                Some([memory]) => Ok(Segment::attach(memory, prepared.segment_bytes())?),
            })
            .collect::<Result<_>>()?;
        self.endpoint.connect(prepared, &segments, sink)
    }
}
