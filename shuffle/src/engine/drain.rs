//! Moves runs out of the lanes and links of a stream.

use trihop_transport::protocol::wire::Run;
use trihop_transport::ring::Inbox;

use super::Backlog;
use super::forward::Forwarding;
use super::inbound::Links;
use super::sink::Handlers;
use crate::error::{Error, Result};
use crate::queue::Input;
use crate::route::{EndpointId, Stage};
use crate::trace::OfBatch;

/// Frames that one lane may move per round, so that no lane starves the others.
const FRAMES_PER_ROUND: usize = 4096;

/// The lanes into a rank, while their runs move on.
pub(super) struct Lanes<'a> {
    pub inbox: &'a mut Inbox,
    pub backlog: &'a mut [Backlog],
    pub listed: &'a mut [bool],
    pub drained: &'a mut [u64],
}

impl Lanes<'_> {
    /// Moves runs out of the lanes of one stage.
    pub fn drain(
        &mut self,
        stage: Stage,
        forwarding: &mut Forwarding<'_, impl Handlers>,
    ) -> Result<bool> {
        let Some(own) = self.backlog.iter().position(|b| b.stage == stage) else {
            return Ok(false);
        };
        let mut lanes = std::mem::take(&mut self.backlog[own].lanes);
        let worked = in_turn(&mut lanes, |lane| self.drain_lane(lane, forwarding));
        self.backlog[own].lanes = lanes;
        worked
    }

    /// Moves runs out of one lane.
    fn drain_lane(
        &mut self,
        lane: u32,
        forwarding: &mut Forwarding<'_, impl Handlers>,
    ) -> Result<Drained> {
        let topology = forwarding.topology;
        let (place, at) = writer_of(self.backlog, lane);
        let end = topology.endpoint_at(place).0;
        forwarding.from = end;
        let mut consumer = self.inbox.lane(lane);
        let mut moved = 0;
        let is_empty = loop {
            if moved == FRAMES_PER_ROUND {
                break false;
            }
            let Some(frame) = consumer.front().map_err(|why| Error::bad_peer(end, why))? else {
                break true;
            };
            let taken = Run::split(frame, topology.size())
                .and_then(|(run, _)| forwarding.forward(at, &run, Input::lane(lane)));
            if !taken.map_err(|why| Error::bad_run(end, why))? {
                break false;
            }
            consumer.pop();
            moved += 1;
        };
        if moved > 0 {
            consumer.release();
            forwarding.stats.frames_received += moved as u64;
        }
        if is_empty {
            self.drained[lane as usize] += 1;
            self.listed[lane as usize] = false;
        }
        Ok(Drained {
            has_moved: moved > 0,
            is_empty,
        })
    }
}

/// What came of moving on what an input has.
struct Drained {
    /// Some of it has moved.
    has_moved: bool,
    /// All has.
    is_empty: bool,
}

/// Drains inputs, and leaves those that are not empty. What comes free of a queue between two
/// rounds goes to whoever comes first, so in the next one those come first of which nothing has
/// moved. Whether anything has.
fn in_turn(inputs: &mut Vec<u32>, mut drain: impl FnMut(u32) -> Result<Drained>) -> Result<bool> {
    let (mut worked, mut kept, count) = (false, 0, inputs.len());
    for position in 0..count {
        let input = inputs[position];
        let drained = drain(input).inspect_err(|_| drop(inputs.drain(kept..position)))?;
        worked |= drained.has_moved;
        match (drained.is_empty, drained.has_moved) {
            (true, _) => {}
            (false, true) => inputs.push(input),
            (false, false) => {
                inputs[kept] = input;
                kept += 1;
            }
        }
    }
    inputs.drain(kept..count);
    Ok(worked)
}

/// Place of the endpoint that writes a lane, and the lane's stage.
pub(super) fn writer_of(backlog: &[Backlog], lane: u32) -> (u32, Stage) {
    let stages = backlog.len() as u32;
    (lane / stages, backlog[(lane % stages) as usize].stage)
}

/// The front batch of a link has moved on.
fn accept(
    links: &mut Links,
    index: usize,
    end: u32,
    forwarding: &mut Forwarding<'_, impl Handlers>,
) {
    let number = links.incoming[index].receiving.accepted();
    let remote = &forwarding.out().queues.remotes[index];
    let (trace, stage) = (&remote.trace, remote.stage);
    trace.batch(OfBatch::Accepted, EndpointId(end), stage, number, 0);
    links.accept(index);
}

/// Moves runs out of the batches that have arrived over links of one stage.
pub(super) fn drain_links(
    links: &mut Links,
    lanes: u32,
    at: Stage,
    forwarding: &mut Forwarding<'_, impl Handlers>,
) -> Result<bool> {
    let mut arrived = std::mem::take(&mut links.arrived);
    let worked = in_turn(&mut arrived, |index| {
        drain_link(links, index as usize, lanes, at, forwarding)
    });
    arrived.append(&mut links.arrived);
    links.arrived = arrived;
    worked
}

/// The same of one link, if it is of this stage.
fn drain_link(
    links: &mut Links,
    index: usize,
    lanes: u32,
    at: Stage,
    forwarding: &mut Forwarding<'_, impl Handlers>,
) -> Result<Drained> {
    let mut drained = Drained {
        has_moved: false,
        is_empty: false,
    };
    let remote = &forwarding.out().queues.remotes[index];
    let (stage, is_beyond, end) = (remote.stage, remote.is_beyond, remote.end.0);
    if stage != at {
        return Ok(drained);
    }
    forwarding.from = end;
    let input = Input::link(lanes, index);
    let mut blocked = false;
    while !blocked {
        let incoming = &mut links.incoming[index];
        if let Some(record) = incoming.whole_record() {
            let moved = forwarding.forward_record(at, record, input);
            blocked = !moved.map_err(|why| Error::bad_run(end, why))?;
            drained.has_moved |= !blocked;
            if !blocked {
                accept(links, index, end, forwarding);
            }
            continue;
        }
        let Some(runs) = incoming.window.front().and_then(|front| front.runs()) else {
            break;
        };
        let before = incoming.cursor as usize;
        let (mut cursor, mut moved) = (before, 0);
        while cursor < runs.len() {
            match forwarding.forward_arrived(at, &runs[cursor..], input) {
                Ok(Some(length)) => {
                    cursor += length;
                    moved += 1;
                }
                Ok(None) => {
                    blocked = true;
                    break;
                }
                Err(why) => {
                    // What has moved on shall not move on again.
                    links.incoming[index].cursor = cursor as u32;
                    return Err(Error::bad_run(end, why));
                }
            }
        }
        drained.has_moved |= cursor > before || !blocked;
        if !is_beyond {
            forwarding.stats.frames_received += moved;
        }
        incoming.cursor = cursor as u32;
        if let Some(goes_on) = forwarding.record.take() {
            incoming.in_record = goes_on;
        }
        if !blocked && !links.went_on(index) {
            accept(links, index, end, forwarding);
        }
    }
    if !blocked {
        links.incoming[index].listed = false;
        drained.is_empty = true;
    } else if forwarding.rounds.holds(input) {
        links.set_aside(index)?;
    }
    Ok(drained)
}
