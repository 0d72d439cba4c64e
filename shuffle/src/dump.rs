//! The state of a stream on one rank as text: every queue with its use and bound, and the memory bound as a formula.

use std::io::{self, Write};

use crate::deliver::Sink;
use crate::engine::Core;
use trihop_transport::topology::Rank;

/// Writes the state of `core`. Never waits; a part that is in use by a caller up the stack is named as such.
pub(crate) fn write(core: &Core<'_>, writer: &mut dyn Write) -> io::Result<()> {
    let stats = core.snapshot();
    let topology = &core.topology;
    writeln!(
        writer,
        "stream {} `{}` on rank {} (node {}, local rank {} of {})",
        core.id,
        core.name,
        topology.rank(),
        topology.node(),
        topology.local_rank(),
        topology.local_size()
    )?;
    writeln!(
        writer,
        "  records: {} sent, {} delivered; {} refused for want of room, {} deliveries blocked",
        stats.sent, stats.delivered, stats.would_block, stats.blocked_deliveries
    )?;
    let mut bound = 0usize;
    if let Ok(out) = core.out.try_borrow() {
        writeln!(
            writer,
            "  open runs: {} in a table of {} bytes",
            out.runs.open_runs(),
            out.runs.bytes()
        )?;
        writeln!(
            writer,
            "  spill: {} records, {} of {} bytes; long record: {} bytes left",
            out.spill.len(),
            out.spill.used_bytes(),
            core.options.spill_bytes,
            out.large_bytes()
        )?;
        let queues = &out.queues;
        for (class, lanes) in [("origin", &queues.origin), ("relay", &queues.relay)] {
            for lane in lanes.iter().filter(|l| l.frames > 0) {
                let rank = topology.rank_at(topology.node(), lane.local);
                writeln!(
                    writer,
                    "  {class} queue to rank {rank}: {} frames, {} bytes in use, {} waits",
                    lane.frames,
                    lane.in_use_bytes(),
                    lane.waits
                )?;
            }
        }
        for remote in queues.remotes.iter() {
            let node = topology.node_of(Rank(remote.rank));
            writeln!(
                writer,
                "  remote queue to node {node} (rank {}): {} batches, {} ready, {} in flight (next {}), {} bytes open, \
                 {} large slots held, {} waits",
                remote.rank,
                remote.batches,
                remote.ready_batches(),
                remote.credit.in_flight(),
                remote.credit.next_sequence(),
                remote.open_bytes(),
                remote.credit.large_held(),
                remote.waits
            )?;
        }
        bound += out.runs.bytes() + core.options.spill_bytes;
        let send_pools = queues.remotes.pool_bytes() + core.notices.as_ref().map_or(0, |p| p.bytes());
        bound += send_pools;
        write!(
            writer,
            "  memory bound: run table {} + spill {} + send pools {send_pools}",
            out.runs.bytes(),
            core.options.spill_bytes
        )?;
    } else {
        write!(writer, "  (the sending side is in use by an open reservation)")?;
    }
    match core.inbound.try_borrow() {
        Ok(inbound) => {
            let layout = inbound.inbox.layout();
            let receive_pools = inbound.links.as_ref().map_or(0, |l| l.pool_bytes);
            let long = core.options.reassembly_bytes.max(core.options.max_message_bytes);
            bound += layout.segment_bytes() + receive_pools + 2 * long;
            writeln!(
                writer,
                " + inbox {} ({} lanes x {}) + receive pools {receive_pools} + long records 2 x {long} = {bound} bytes",
                layout.segment_bytes(),
                layout.lanes(),
                layout.lane_bytes()
            )?;
            writeln!(
                writer,
                "  in reassembly: {} bytes",
                inbound.reassembly.reserved_bytes()
            )?;
            if let Some(links) = &inbound.links {
                writeln!(
                    writer,
                    "  receive side: {} large slots free, {} bytes being fetched",
                    links.free_large(),
                    links.fetching_bytes()
                )?;
            }
        }
        Err(_) => writeln!(
            writer,
            " + (inbox and receive side are in use by a handler up the stack)"
        )?,
    }
    if let Ok(sink) = core.sink.try_borrow() {
        match &*sink {
            Sink::Handler(_) => writeln!(writer, "  delivery: handler")?,
            Sink::Queue(queue) => writeln!(
                writer,
                "  delivery queue: {} of {} records, {} of {} bytes",
                queue.records(),
                core.options.deliverq_max,
                queue.bytes(),
                core.options.deliverq_bytes
            )?,
            Sink::Closed => writeln!(writer, "  delivery: shut down")?,
        }
    }
    Ok(())
}
