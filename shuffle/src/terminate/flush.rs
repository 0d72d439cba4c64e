//! The four flushes of DeltaFS Shuffle, and the fence. All as tickets that are asked again after each round of progress.
//!
//! A fence is counted quiescence: rounds of a sum over all ranks of (records sent, records delivered), joined by a rank
//! when nothing of the stream waits on it, until two rounds in a row say the same and both counts agree.

use crate::engine::Core;
use crate::engine::marks::DeliveryMarks;
use crate::engine::outbound::{Gathered, Outbound};
use crate::engine::queues::Queues as OutputQueues;
use crate::error::{Error, Result};
use crate::queue::lanes::Lanes;
use crate::queue::remote::RemoteQueue;
use crate::queue::tally::Why;
use crate::route::LinkClass;
use crate::terminate::collective::{Collectives, Operation, Reduce, Ticket};

/// Which queues a flush empties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    /// Open runs and origin queues: until the next hop has taken everything that was sent before.
    Origin,
    /// Batches to remote representatives: until they have taken everything that was batched before.
    Remote,
    /// Relay queues: until their ranks have taken everything that was relayed before.
    Relay,
    /// Deliveries: until everything that had arrived before was handled.
    Delivery,
}

/// A flush under way.
pub(crate) struct Flush {
    queues: Queues,
    stage: Stage,
}

enum Stage {
    /// Not all private runs are in a queue yet; of own sends (`Origin`) those that were there at the beginning.
    Gathering(Option<Gathered>),
    /// Positions that lanes must pass, and batches that links must acknowledge.
    Queues {
        lanes: Vec<u64>,
        links: Vec<u64>,
    },
    Deliveries(DeliveryMarks),
    /// Records with which the delivery thread must be through.
    Handed(u64),
}

impl Flush {
    pub fn begin(queues: Queues, core: &mut Core, out: &Outbound) -> Self {
        let stage = match queues {
            Queues::Delivery => Stage::Deliveries(core.marks()),
            Queues::Origin => Stage::Gathering(Some(out.gathered())),
            Queues::Remote | Queues::Relay => Stage::Gathering(None),
        };
        Self { queues, stage }
    }

    /// The links that it waits for.
    fn class(&self) -> LinkClass {
        match self.queues {
            Queues::Origin => LinkClass::Origin,
            Queues::Relay => LinkClass::Relay,
            Queues::Remote | Queues::Delivery => LinkClass::Remote,
        }
    }

    /// Whether the flush is complete; to be asked after each round of progress.
    pub fn poll(&mut self, core: &mut Core, out: &mut Outbound) -> Result<bool> {
        if let Stage::Deliveries(marks) = &self.stage {
            if !core.passed(marks) {
                return Ok(false);
            }
            self.stage = Stage::Handed(core.handover.as_ref().map_or(0, |h| h.handed()));
        }
        if let Stage::Handed(count) = self.stage {
            return Ok(core.handover.as_ref().is_none_or(|h| h.has_done(count)));
        }
        if let Stage::Gathering(gathered) = &mut self.stage {
            if gathered.as_mut().is_some_and(|gathered| !out.has_left(gathered)) {
                return Ok(false);
            }
            out.publish(Why::Flush);
            let queues = &mut out.queues;
            let class = self.class();
            queues.remotes.seal_class(class, Why::Flush);
            let sealed = |r: &RemoteQueue| if r.class == class { r.sealed() } else { 0 };
            self.stage = Stage::Queues {
                lanes: lanes_of(class, queues)
                    .map_or(Vec::new(), |l| l.iter().map(|l| l.produced()).collect()),
                links: queues.remotes.iter().map(sealed).collect(),
            };
        }
        match &self.stage {
            Stage::Queues { lanes, links } => {
                // Lanes and links that were opened since have nothing that was sent before.
                let open = lanes_of(self.class(), &mut out.queues);
                for (lane, &position) in open.into_iter().flat_map(Lanes::iter_mut).zip(lanes) {
                    let consumed = lane.consumed().map_err(|why| {
                        let rank = core.topology.rank_at(core.topology.node(), lane.local);
                        Error::bad_peer(rank.0, why)
                    })?;
                    if consumed < position {
                        return Ok(false);
                    }
                }
                let mut links = out.queues.remotes.iter().zip(links);
                Ok(links.all(|(r, &number)| r.credit.accepted() >= number))
            }
            _ => Ok(false),
        }
    }
}

/// The lanes that carry what the links of this class do.
fn lanes_of(class: LinkClass, queues: &mut OutputQueues) -> Option<&mut Lanes> {
    match class {
        LinkClass::Origin => Some(&mut queues.origin),
        LinkClass::Relay => Some(&mut queues.relay),
        LinkClass::Remote => None,
    }
}

/// A fence under way.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    round: Option<Ticket>,
    last: Option<(u64, u64)>,
    /// It hurries its stream.
    hurries: bool,
    /// Rounds that were needed.
    pub rounds: u32,
}

impl Fence {
    /// Whether the fence is complete on all ranks; to be asked after each round of progress.
    pub fn poll(&mut self, core: &mut Core, out: &Outbound, collectives: &mut Collectives) -> bool {
        if !std::mem::replace(&mut self.hurries, true) {
            core.hurry();
        }
        loop {
            if let Some(ticket) = self.round {
                let Some(result) = collectives.result(ticket) else {
                    return false;
                };
                self.round = None;
                let mut values = result
                    .chunks_exact(8)
                    .map(|c| u64::from_le_bytes(c.try_into().expect("chunks of 8")));
                let sums = (values.next().unwrap_or(0), values.next().unwrap_or(1));
                let same = self.last.replace(sums) == Some(sums);
                if same && sums.0 == sums.1 {
                    core.calm();
                    self.hurries = false;
                    return true;
                }
                if same {
                    return false;
                }
            }
            if !core.is_quiet(out) {
                return false;
            }
            // The next round begins in the same call: nothing else might wake a rank that has heard the last one's result.
            let mut counts = out.sent.to_le_bytes().to_vec();
            counts.extend_from_slice(&core.delivered().to_le_bytes());
            self.round = Some(collectives.begin(core.id, Operation::Reduce(Reduce::Sum), &counts));
            self.rounds += 1;
        }
    }
}
