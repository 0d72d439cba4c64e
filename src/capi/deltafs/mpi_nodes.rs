//! Nodes as MPI has them, where a client has initialised it: the original asks MPI, whose nodes
//! need not be the launcher's (several to a machine for tests, one where containers share a
//! kernel).
//!
//! MPI is asked through its C interface, without linking to it. Its handles are what each family of
//! libraries made them: that of MPICH has numbers, Open MPI has addresses.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, transmute_copy};

use crate::transport::bootstrap::{Attachment, Bootstrap, Launcher};
use crate::transport::error::{Error, Result};
use crate::{NodeId, Rank, Topology};

/// Key under which ranks tell each other the first rank of their node.
const KEY: &str = "mpi-node";

/// Room for `MPI_Get_library_version` in bytes; more than any library's
/// `MPI_MAX_LIBRARY_VERSION_STRING`.
const VERSION_BYTES: usize = 16 << 10;

/// A launcher whose nodes are MPI's.
struct MpiNodes {
    launcher: Box<dyn Bootstrap>,
    topology: Topology,
}

/// The launcher, with MPI's nodes where MPI is up here and has others. Collective. Ranks with an
/// agent keep their agents' nodes: they are joined before this, and have no store to ask.
///
/// # Errors
/// The launcher's.
pub(super) fn with_nodes_of_mpi(mut launcher: Box<dyn Bootstrap>) -> Result<Box<dyn Bootstrap>> {
    if launcher.launcher() == Launcher::Agent {
        return Ok(launcher);
    }
    let (size, me) = (launcher.topology().size(), launcher.topology().rank());
    let Some(leader) = first_rank_of_node(size, me) else {
        return Ok(launcher);
    };
    launcher.put(KEY, &leader.to_le_bytes())?;
    launcher.fence()?;
    let mut leaders = Vec::new();
    for rank in 0..size {
        let value = launcher.get(Rank(rank), KEY)?;
        let leader = value
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_le_bytes);
        leaders.push(leader.ok_or_else(|| Error::Bootstrap {
            launcher: launcher.launcher().name(),
            why: format!("rank {rank} did not say on which of MPI's nodes it is"),
        })?);
    }
    let topology = Topology::from_node_of(&in_order(&leaders), me)?;
    let node_of = |topology: &Topology, rank| topology.node_of(Rank(rank));
    if (0..size).all(|rank| node_of(&topology, rank) == node_of(launcher.topology(), rank)) {
        return Ok(launcher);
    }
    tracing::info!(
        nodes = topology.nodes(),
        launcher = launcher.topology().nodes(),
        "MPI has other nodes than the launcher; MPI's are taken"
    );
    Ok(Box::new(MpiNodes { launcher, topology }))
}

/// Nodes by number, in the order of their first rank.
fn in_order(leaders: &[u32]) -> Vec<NodeId> {
    let mut known = HashMap::new();
    let mut number = |leader: &u32| {
        let next = known.len() as u32;
        NodeId(*known.entry(*leader).or_insert(next))
    };
    leaders.iter().map(&mut number).collect()
}

impl Bootstrap for MpiNodes {
    fn launcher(&self) -> Launcher {
        self.launcher.launcher()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn value_limit(&self) -> usize {
        self.launcher.value_limit()
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.launcher.put(key, value)
    }

    fn fence(&mut self) -> Result<()> {
        self.launcher.fence()
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        self.launcher.get(from, key)
    }

    fn abort(&mut self, status: i32, why: &str) {
        self.launcher.abort(status, why);
    }

    fn finalize(&mut self) -> Result<()> {
        self.launcher.finalize()
    }

    fn is_out_of_reach(&self) -> bool {
        self.launcher.is_out_of_reach()
    }

    fn attachment(&mut self) -> Option<Attachment> {
        self.launcher.attachment()
    }

    fn fences_on_callers_thread(&self) -> bool {
        self.launcher.fences_on_callers_thread()
    }
}

/// The first rank of this process's node as MPI splits the world; none where MPI is not up, is of
/// an unknown family, or has another world than the launcher. Collective over MPI's world, which is
/// all or nobody.
fn first_rank_of_node(size: u32, me: Rank) -> Option<u32> {
    if !says_yes(c"MPI_Initialized")? || says_yes(c"MPI_Finalized")? {
        return None;
    }
    let version = library_version()?;
    let leader = if version.contains("Open MPI") {
        let (world, no_info) = (
            address_of(c"ompi_mpi_comm_world")?,
            address_of(c"ompi_mpi_info_null")?,
        );
        // SAFETY: Open MPI's handles are the addresses of its objects, and its MPI_COMM_TYPE_SHARED
        // is 0.
        unsafe { split(world, no_info, 0, size, me) }
    } else if ["MPICH", "MVAPICH", "Intel(R) MPI"]
        .iter()
        .any(|name| version.contains(name))
    {
        // SAFETY: the values of MPICH's common ABI, which these libraries share: MPI_COMM_WORLD,
        // MPI_INFO_NULL, MPI_COMM_TYPE_SHARED.
        unsafe { split::<c_int>(0x4400_0000, 0x1c00_0000, 1, size, me) }
    } else {
        None
    };
    leader
        .and_then(|leader| u32::try_from(leader).ok())
        .filter(|&leader| leader < size)
}

/// Splits the world into nodes, and gives the world's number of the first rank of this one.
///
/// # Safety MPI is up in this process; `H` is its library's kind of handle, the others are that
/// library's values.
unsafe fn split<H: Copy>(
    world: H,
    no_info: H,
    shared: c_int,
    size: u32,
    me: Rank,
) -> Option<c_int> {
    type Of<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
    type Split<H> = unsafe extern "C" fn(H, c_int, c_int, H, *mut H) -> c_int;
    type Group<H> = unsafe extern "C" fn(H, *mut H) -> c_int;
    type Translate<H> = unsafe extern "C" fn(H, c_int, *const c_int, H, *mut c_int) -> c_int;
    type Free<H> = unsafe extern "C" fn(*mut H) -> c_int;
    // SAFETY: the types are those of the standard (MPI 4.1, 7.3.2, 7.4.2 and 7.4.4), with the
    // caller's kind of handle.
    let (rank_of, size_of_world, split, group_of, translate, free_group, free) = unsafe {
        (
            function::<Of<H>>(c"MPI_Comm_rank")?,
            function::<Of<H>>(c"MPI_Comm_size")?,
            function::<Split<H>>(c"MPI_Comm_split_type")?,
            function::<Group<H>>(c"MPI_Comm_group")?,
            function::<Translate<H>>(c"MPI_Group_translate_ranks")?,
            function::<Free<H>>(c"MPI_Group_free")?,
            function::<Free<H>>(c"MPI_Comm_free")?,
        )
    };
    let (mut rank, mut ranks) = (-1, -1);
    // SAFETY: the handles are the library's, as the caller promises; each call writes what it is
    // asked for.
    if unsafe { rank_of(world, &raw mut rank) != 0 || size_of_world(world, &raw mut ranks) != 0 } {
        return None;
    }
    if u32::try_from(rank) != Ok(me.0) || u32::try_from(ranks) != Ok(size) {
        return None;
    }
    let place = MaybeUninit::<H>::uninit;
    let (mut node, mut of_node, mut of_world) = (place(), place(), place());
    let mut leader = -1;
    // SAFETY: as above; what is read was written by a call that succeeded, and what was made is
    // freed once.
    unsafe {
        if split(world, shared, 0, no_info, node.as_mut_ptr()) != 0 {
            return None;
        }
        if group_of(node.assume_init(), of_node.as_mut_ptr()) == 0 {
            if group_of(world, of_world.as_mut_ptr()) == 0 {
                let first = 0;
                let found = translate(
                    of_node.assume_init(),
                    1,
                    &raw const first,
                    of_world.assume_init(),
                    &raw mut leader,
                );
                if found != 0 {
                    leader = -1;
                }
                free_group(of_world.as_mut_ptr());
            }
            free_group(of_node.as_mut_ptr());
        }
        free(node.as_mut_ptr());
    }
    (leader >= 0).then_some(leader)
}

/// Where the process has a symbol.
fn address_of(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with NUL; nothing is loaded.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// A function of the process by its name.
///
/// # Safety
/// `F` is the type of a pointer to this function.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = address_of(name)?;
    // SAFETY: as the caller promises; both are pointers.
    Some(unsafe { transmute_copy(&address) })
}

/// What MPI answers to a question about its own state; none without MPI.
fn says_yes(question: &CStr) -> Option<bool> {
    type Question = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut flag = 0;
    // SAFETY: the standard's type (MPI 4.1, 11.2); it may be called at any time, and writes one
    // int.
    let code = unsafe { function::<Question>(question)?(&raw mut flag) };
    Some(code == 0 && flag != 0)
}

/// How the library calls itself.
fn library_version() -> Option<String> {
    type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    let mut text = vec![0_u8; VERSION_BYTES];
    let mut length = 0;
    // SAFETY: the standard's type (MPI 4.1, 9.1.1); it may be called at any time, and the place is
    // larger than it may ask for.
    let code = unsafe {
        function::<Version>(c"MPI_Get_library_version")?(text.as_mut_ptr().cast(), &raw mut length)
    };
    let length = usize::try_from(length)
        .ok()
        .filter(|&length| code == 0 && length <= text.len())?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_first_rank() {
        assert_eq!(in_order(&[0, 1, 0, 1]), [0, 1, 0, 1].map(NodeId));
        assert_eq!(in_order(&[0, 0, 2, 3, 2]), [0, 0, 1, 2, 1].map(NodeId));
    }

    #[test]
    fn without_mpi_there_are_no_nodes_of_it() {
        assert_eq!(first_rank_of_node(1, Rank(0)), None);
    }
}
