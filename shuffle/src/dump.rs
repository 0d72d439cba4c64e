//! The state of a stream on one rank as text: every queue with its use and bound, and the memory
//! bound as a formula.

use std::fmt;
use std::io::{self, Write};

use crate::engine::StreamState;
use crate::engine::outbound::Outbound;
use crate::engine::sink::Sink;
use crate::queue::Input;

/// What a stream may take of a rank's memory, by what it is for, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    run_table: usize,
    spill: usize,
    send_pools: usize,
    inbox: usize,
    lanes: u32,
    lane_bytes: u32,
    receive_pools: usize,
    /// Long records that others of the node read in place.
    shared_records: usize,
    /// One that is sent and one that is put together.
    long_record: usize,
    /// What may wait for an application without a handler, or for a delivery thread: into an empty
    /// queue the longest delivery always may come.
    delivery_queue: usize,
}

/// One of the things that a stream takes memory for: its name, what it takes now and what it may
/// take, in bytes.
pub(crate) type Pool = (&'static str, usize, usize);

impl Bound {
    /// The bound of a stream.
    pub fn of(state: &StreamState, out: &Outbound) -> Self {
        let inbound = &state.inbound;
        let layout = inbound.inbox.layout();
        Self {
            run_table: out.runs.bytes(),
            spill: state.options.spill_bytes,
            send_pools: out.queues.remotes.pool_bytes()
                + state.notices.as_ref().map_or(0, |p| p.bytes()),
            inbox: layout.segment_bytes(),
            lanes: layout.lanes(),
            lane_bytes: layout.lane_bytes(),
            receive_pools: inbound.links.as_ref().map_or(0, |l| l.pool_bytes),
            shared_records: out.queues.lanes.shared_bytes().1,
            delivery_queue: match &state.sink {
                Sink::Queue(_) | Sink::Thread(_) => {
                    let longest = state.options.max_message_bytes.max(state.frame_bytes);
                    state
                        .options
                        .shares()
                        .deliverq_bytes
                        .max(longest.next_multiple_of(8))
                }
                Sink::Handler | Sink::Collectives(_) | Sink::Closed => 0,
            },
            long_record: state
                .options
                .shares()
                .reassembly_bytes
                .max(state.options.max_message_bytes),
        }
    }

    /// What is there from the opening on, or from the first messages.
    #[cfg(test)]
    pub fn fixed(&self) -> usize {
        self.run_table + self.send_pools + self.inbox + self.receive_pools + self.shared_records
    }

    /// Names of what a stream takes memory for.
    pub const POOLS: [&'static str; 8] = [
        "run table",
        "spill",
        "send pools",
        "inbox",
        "receive pools",
        "shared records",
        "delivery queue",
        "long records",
    ];

    /// What each pool takes of it now. Buffers that wait for messages are not in use.
    pub fn pools(&self, state: &StreamState, out: &Outbound) -> [Pool; 8] {
        let inbound = &state.inbound;
        let notices = state.notices.as_ref().map_or(0, |pool| pool.in_use_bytes());
        let deliveries = match &state.sink {
            Sink::Queue(queue) => queue.bytes(),
            Sink::Thread(handover) => handover.waiting().1,
            Sink::Handler | Sink::Collectives(_) | Sink::Closed => 0,
        };
        let links = inbound.links.as_ref();
        let sizes = [
            (out.runs.in_use_bytes(), self.run_table),
            (out.spill.used_bytes(), self.spill),
            (
                out.queues.remotes.pool_bytes_in_use() + notices,
                self.send_pools,
            ),
            (inbound.inbox.in_use_bytes(), self.inbox),
            (
                links.map_or(0, |links| links.pool_bytes_in_use()),
                self.receive_pools,
            ),
            out.queues.lanes.shared_bytes(),
            (deliveries, self.delivery_queue),
            (
                out.large_bytes() + inbound.reassembly.reserved_bytes(),
                2 * self.long_record,
            ),
        ];
        std::array::from_fn(|at| (Self::POOLS[at], sizes[at].0, sizes[at].1))
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.queues() + 2 * self.long_record
    }

    /// What is there whether long records come or not.
    pub fn queues(&self) -> usize {
        self.run_table
            + self.spill
            + self.send_pools
            + self.inbox
            + self.receive_pools
            + self.shared_records
            + self.delivery_queue
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "run table {} + spill {} + send pools {} + inbox {} ({} lanes x {}) + receive pools {} + \
             shared records {} + delivery queue {} = {} of queues, + long records 2 x {} = {} bytes",
            self.run_table,
            self.spill,
            self.send_pools,
            self.inbox,
            self.lanes,
            self.lane_bytes,
            self.receive_pools,
            self.shared_records,
            self.delivery_queue,
            self.queues(),
            self.long_record,
            self.total()
        )
    }
}

/// How long something waits, where it does.
struct Waiting(u64);

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            wait_ns => write!(f, ", one for {wait_ns} ns by now"),
        }
    }
}

/// Writes the state of a stream. Never waits.
pub(crate) fn write(state: &StreamState, out: &Outbound, writer: &mut dyn Write) -> io::Result<()> {
    let stats = state.snapshot(out);
    let topology = &state.topology;
    writeln!(
        writer,
        "stream {} `{}` on {} (node {}, local rank {} of {})",
        state.id,
        state.name,
        topology.name_of(topology.endpoint()),
        topology.node(),
        topology.local_rank(),
        topology.local_size()
    )?;
    writeln!(
        writer,
        "  records: {} sent, {} delivered, {} discarded; {} refused for want of room, {} deliveries blocked",
        stats.sent, stats.delivered, stats.discarded, stats.would_block, stats.blocked_deliveries
    )?;
    write_sending(state, out, writer)?;
    let bound = Bound::of(state, out);
    writeln!(writer, "  memory bound: {bound}")?;
    writeln!(
        writer,
        "  memory of the endpoint, once for all streams: {} bytes of contexts and slots of operations",
        state.endpoint_bytes
    )?;
    for (name, used, most) in bound.pools(state, out) {
        writeln!(writer, "  memory in use: {name} {used} of {most} bytes")?;
        contradict(writer, used, most, name)?;
    }
    write_receiving(state, out, writer)?;
    match &state.sink {
        Sink::Handler | Sink::Collectives(_) => writeln!(writer, "  delivery: handler"),
        Sink::Queue(queue) => write_queue(state, "queue", queue.records(), queue.bytes(), writer),
        Sink::Thread(handover) => {
            let (records, bytes) = handover.waiting();
            write_queue(state, "thread's queue", records, bytes, writer)
        }
        Sink::Closed if topology.is_relay() => writeln!(writer, "  delivery: none, by a relay"),
        Sink::Closed => writeln!(writer, "  delivery: shut down"),
    }
}

/// What waits to leave this rank, and where.
fn write_sending(state: &StreamState, out: &Outbound, writer: &mut dyn Write) -> io::Result<()> {
    let topology = &state.topology;
    writeln!(
        writer,
        "  open runs: {} in a table of {} bytes",
        out.runs.open_runs(),
        out.runs.bytes()
    )?;
    writeln!(
        writer,
        "  spill: {} runs and records, {} of {} bytes; long record: {} bytes left",
        out.spill.len(),
        out.spill.used_bytes(),
        state.options.spill_bytes,
        out.large_bytes()
    )?;
    if let Some(copied) = out.copied() {
        writeln!(writer, "  a broadcast waits, with {copied} copies made")?;
    }
    let queues = &out.queues;
    let now_ns = queues.now_ns;
    let name = |stage| queues.route.stage_name(stage);
    for lane in queues.lanes.iter().filter(|l| l.counters.frames() > 0) {
        writeln!(
            writer,
            "  {} queue to {}: {} frames, {} bytes in use, {} waits{}",
            name(lane.stage),
            topology.name_of(lane.peer),
            lane.counters.frames(),
            lane.in_use_bytes(),
            lane.counters.waits(),
            Waiting(lane.counters.waiting_ns(now_ns))
        )?;
        contradict(
            writer,
            lane.in_use_bytes(),
            queues.lanes.most_bytes(),
            "this lane",
        )?;
    }
    for remote in queues.remotes.iter() {
        let node = topology.node_of_endpoint(remote.end);
        writeln!(
            writer,
            "  {} queue to node {node} ({}): {} batches, {} ready, {} in flight (next {}), {} bytes open, \
                 {} large slots held, {} waits{}",
            name(remote.stage),
            topology.name_of(remote.end),
            remote.counters.sends(),
            remote.ready_batches(),
            remote.credit.in_flight(),
            remote.credit.next_sequence(),
            remote.open_bytes(),
            remote.credit.large_held(),
            remote.counters.waits(),
            Waiting(remote.counters.waiting_ns(now_ns))
        )?;
        for (sequence, age_ns) in remote.batches_in_flight(now_ns) {
            writeln!(writer, "    batch {sequence} is in flight for {age_ns} ns")?;
        }
        if let Some(why) = remote.contradiction() {
            writeln!(writer, "    CONTRADICTION: {why}")?;
        }
    }
    Ok(())
}

/// What has come and has not moved on.
fn write_receiving(state: &StreamState, out: &Outbound, writer: &mut dyn Write) -> io::Result<()> {
    let (topology, inbound) = (&state.topology, &state.inbound);
    writeln!(
        writer,
        "  in reassembly: {} bytes",
        inbound.reassembly.reserved_bytes()
    )?;
    for lane in 0..inbound.inbox.layout().lanes() {
        let bytes = inbound.reassembly.record_bytes(Input::lane(lane));
        if inbound.is_listed(lane) || bytes > 0 {
            let (place, stage) = inbound.writer_of(lane);
            let from = topology.name_of(topology.endpoint_at(place));
            writeln!(
                writer,
                "  {} lane from {from}: has frames: {}, {bytes} bytes of a record in reassembly",
                inbound.stage_name(stage),
                inbound.is_listed(lane)
            )?;
        }
    }
    if let Some(links) = &inbound.links {
        writeln!(
            writer,
            "  receive side: {} large slots free, {} bytes being fetched",
            links.free_large(),
            links.fetching_bytes()
        )?;
        if links.aside_bytes > 0 {
            let bytes = links.aside_bytes;
            writeln!(
                writer,
                "  {bytes} bytes of batches are set aside for the next round, beside the bound"
            )?;
        }
        for (index, (remote, incoming)) in
            out.queues.remotes.iter().zip(&links.incoming).enumerate()
        {
            let input = Input::link(inbound.inbox.layout().lanes(), index);
            let bytes = inbound.reassembly.record_bytes(input);
            let front = incoming.front_text();
            if front.is_some() || bytes > 0 {
                writeln!(
                    writer,
                    "  {} link from {}: batch {} is {}, {bytes} bytes of a record in reassembly",
                    inbound.stage_name(remote.stage),
                    topology.name_of(remote.end),
                    incoming.window.next(),
                    front.as_deref().unwrap_or("awaited")
                )?;
            }
        }
    }
    Ok(())
}

/// Says so where more is in use than there may be.
fn contradict(writer: &mut dyn Write, used: usize, most: usize, of: &str) -> io::Result<()> {
    if used <= most {
        return Ok(());
    }
    writeln!(
        writer,
        "    CONTRADICTION: {used} bytes of {of} are in use, {most} may be"
    )
}

fn write_queue(
    state: &StreamState,
    what: &str,
    records: usize,
    bytes: usize,
    writer: &mut dyn Write,
) -> io::Result<()> {
    let (most_records, most_bytes) = (
        state.options.deliverq_max,
        state.options.shares().deliverq_bytes,
    );
    writeln!(
        writer,
        "  delivery {what}: {records} of {most_records} records, {bytes} of {most_bytes} bytes"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_use_than_there_may_be_is_a_contradiction() {
        let text = |used| {
            let mut text = Vec::new();
            contradict(&mut text, used, 100, "spill").unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(text(100), "");
        assert_eq!(
            text(101),
            "    CONTRADICTION: 101 bytes of spill are in use, 100 may be\n"
        );
    }
}
