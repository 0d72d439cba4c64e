//! Where private segments lie: in a few large reservations of address space, so that many segments
//! need neither descriptors nor mappings of their own (Linux allows a process 65,530 mappings).

use std::collections::BTreeMap;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, Result};
use crate::memory::hugepage;
use crate::sync::{PoisonError, StaticMutex};

/// Address space reserved at a time. It costs nothing until pages are touched.
const RESERVED_BYTES: usize = 1 << 30;

static SPACE: StaticMutex<Space> = StaticMutex::new(Space {
    process: 0,
    next: 0,
    left_bytes: 0,
    free: BTreeMap::new(),
});

/// Address space of this process that no segment uses.
struct Space {
    /// Whose: the reservations are not there in a forked child.
    process: u32,
    /// First address that was never handed out, and how much follows it.
    next: usize,
    left_bytes: usize,
    /// Addresses of ranges that were given back, by their length. Their pages are gone.
    free: BTreeMap<usize, Vec<usize>>,
}

/// A zeroed range of whole pages that nobody else has.
pub(super) struct Range {
    first: NonNull<u8>,
    bytes: usize,
}

impl Range {
    /// At least `bytes`, on ordinary pages, each touched on first use.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        let bytes = super::whole_pages(bytes.max(1), hugepage::page_bytes())?;
        let mut space = SPACE.lock().unwrap_or_else(PoisonError::into_inner);
        let address = space.take(bytes)?;
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        Ok(Self {
            first: first.expect("no mapping begins at address 0"),
            bytes,
        })
    }

    pub(super) fn first(&self) -> NonNull<u8> {
        self.first
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range is ours alone, and nobody has pointers into it any more.
        let emptied = unsafe {
            rustix::mm::madvise(
                self.first.as_ptr().cast(),
                self.bytes,
                Advice::LinuxDontNeed,
            )
        };
        // Pages that the kernel keeps (locked ones) would not be zeroed for the next user: then the
        // range is not used again.
        if emptied.is_ok() {
            let mut space = SPACE.lock().unwrap_or_else(PoisonError::into_inner);
            let address = self.first.as_ptr().expose_provenance();
            space.free.entry(self.bytes).or_default().push(address);
        }
    }
}

impl Space {
    fn take(&mut self, bytes: usize) -> Result<usize> {
        if self.process != std::process::id() {
            self.process = std::process::id();
            self.left_bytes = 0;
            self.free.clear();
        }
        if let Some(address) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(address);
        }
        if bytes > self.left_bytes {
            self.reserve(bytes.max(RESERVED_BYTES))?;
        }
        let address = self.next;
        self.next += bytes;
        self.left_bytes -= bytes;
        Ok(address)
    }

    /// Goes on in a new reservation; what was left of the last one stays unused.
    fn reserve(&mut self, bytes: usize) -> Result<()> {
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        );
        // SAFETY: the kernel chooses the place.
        let first = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }
            .map_err(|e| {
                let what = format!(
                    "reserving {bytes} bytes of address space for private segments (see `ulimit -v` and vm.overcommit_memory)"
                );
                Error::system(what, e)
            })?;
        // SAFETY: the mapping was made just now, and nobody uses it yet.
        unsafe { rustix::mm::madvise(first, bytes, Advice::LinuxDontFork) }
            .map_err(|e| Error::system("keeping private segments from forked children", e))?;
        // A hugepage would make the first touch of a lane cost 2 MiB. Kernels that have none refuse
        // the advice.
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::madvise(first, bytes, Advice::LinuxNoHugepage) };
        self.next = first.expose_provenance();
        self.left_bytes = bytes;
        Ok(())
    }
}
