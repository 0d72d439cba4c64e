//! Who is where: the numbers of this rank, and those of all others.

use super::argument;
use super::job::trihop_job_t;
use super::seat::either;
use super::status::{Failure, guard, guard_or, trihop_status_t};
use crate::{NodeId, Rank, Topology};

/// A number of the job's topology; `UINT32_MAX` and a noted failure where there is no job.
///
/// # Safety
/// `job` is null or a job that has not ended.
unsafe fn number(job: *const trihop_job_t, of: impl FnOnce(&Topology) -> u32) -> u32 {
    guard_or(|| {
        // SAFETY: as the caller promises.
        let job = unsafe { argument::reference(job, "job")? };
        Ok(of(either!(&job.job, job => job.topology())))
    })
    .unwrap_or(u32::MAX)
}

/// This rank: 0 to `trihop_size` - 1. `UINT32_MAX` where `job` is null, as for the other numbers.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_rank(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, |topology| topology.rank().0) }
}

/// Ranks of the job.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_size(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, Topology::size) }
}

/// Node of this rank: 0 to `trihop_nodes` - 1.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_node(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, |topology| topology.node().0) }
}

/// Nodes of the job.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_nodes(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, Topology::nodes) }
}

/// Number of this rank among the ranks of its node, from 0.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_local_rank(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, Topology::local_rank) }
}

/// Ranks of this rank's node.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_local_size(job: *const trihop_job_t) -> u32 {
    // SAFETY: the header asks for null or a job that has not ended.
    unsafe { number(job, Topology::local_size) }
}

fn checked_rank(topology: &Topology, rank: u32) -> Result<Rank, Failure> {
    let size = topology.size();
    if rank < size {
        Ok(Rank(rank))
    } else {
        Err(crate::Error::Rank { rank, size }.into())
    }
}

fn checked_node(topology: &Topology, node: u32) -> Result<NodeId, Failure> {
    let nodes = topology.nodes();
    if node < nodes {
        Ok(NodeId(node))
    } else {
        let why = format!("node {node} does not exist in a job of {nodes} nodes");
        Err(Failure::argument(why))
    }
}

/// Stores an answer of the topology.
///
/// # Safety
/// `job` is null or a job that has not ended; `place` is null or a place for a number.
unsafe fn answer(
    job: *const trihop_job_t,
    place: *mut u32,
    name: &str,
    find: impl FnOnce(&Topology) -> Result<u32, Failure>,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: as the caller promises.
        let (job, place) = unsafe {
            (
                argument::reference(job, "job")?,
                argument::place(place, name)?,
            )
        };
        *place = find(either!(&job.job, job => job.topology()))?;
        Ok(())
    })
}

/// Stores the node of a rank.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_node_of(
    job: *const trihop_job_t,
    rank: u32,
    node: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| Ok(topology.node_of(checked_rank(topology, rank)?).0);
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, node, "node", find) }
}

/// Stores the number of a rank among the ranks of its node.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_local_rank_of(
    job: *const trihop_job_t,
    rank: u32,
    local_rank: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| Ok(topology.local_rank_of(checked_rank(topology, rank)?));
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, local_rank, "local_rank", find) }
}

/// Stores how many ranks a node has.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_local_size_of(
    job: *const trihop_job_t,
    node: u32,
    local_size: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| Ok(topology.local_size_of(checked_node(topology, node)?));
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, local_size, "local_size", find) }
}

/// Stores the rank with number `local_rank` on a node.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_rank_at(
    job: *const trihop_job_t,
    node: u32,
    local_rank: u32,
    rank: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| {
        let node = checked_node(topology, node)?;
        let size = topology.local_size_of(node);
        if local_rank >= size {
            let why = format!("node {node} has {size} ranks, and none with number {local_rank}");
            return Err(Failure::argument(why));
        }
        Ok(topology.rank_at(node, local_rank).0)
    };
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, rank, "rank", find) }
}

/// Stores the rank on node `of` that speaks with node `towards` where there is one link between
/// two nodes: on the route `three-hop:1`.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_representative(
    job: *const trihop_job_t,
    of: u32,
    towards: u32,
    rank: *mut u32,
) -> trihop_status_t {
    let find = |topology: &Topology| {
        let (of, towards) = (
            checked_node(topology, of)?,
            checked_node(topology, towards)?,
        );
        Ok(topology.representative(of, towards).0)
    };
    // SAFETY: the header asks for what `answer` does.
    unsafe { answer(job, rank, "rank", find) }
}
