//! Shared, sealed, anonymous segments: memory that two processes map, and that vanishes with the
//! last of them. And private ones, for ranks that live in one process.

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::memory::hugepage::{self, PageKind};
use crate::sync::OnceLock;

/// Seals that every segment carries: its size is fixed for good, so that no peer can make our
/// accesses fault.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

#[path = "segment_private.rs"]
mod private;
#[path = "segment_settled.rs"]
mod settled;

/// A shared mapping of an anonymous file, cheap to create and lazily touched, except on hugetlb
/// pages; or a range of private memory.
///
/// A forked child does not inherit the mapping; descriptors close on exec.
pub struct Segment {
    first: NonNull<u8>,
    bytes: usize,
    backing: ManuallyDrop<Backing>,
    /// Its layout, where only this value maps the memory.
    shape: OnceLock<u64>,
    pages: PageKind,
    owner_process: u32,
}

/// What keeps the memory.
enum Backing {
    Shared {
        _map: MmapRaw,
        // Declared before the file: once that is closed, another file may have its number.
        place: settled::Place,
        file: OwnedFd,
    },
    Private {
        _range: private::Range,
    },
    /// Ordinary heap memory, for Miri, which cannot map files.
    #[cfg(test)]
    Heap,
}

// SAFETY: the mapping stays where it is until drop, no matter which thread holds it; code that
// reads or writes it through `as_ptr` takes care of order.
unsafe impl Send for Segment {}
// SAFETY: no method of `Segment` accesses the mapped bytes.
unsafe impl Sync for Segment {}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} B, {})", self.len(), self.pages)
    }
}

impl Segment {
    /// Creates a zeroed segment of at least `bytes`, rounded up to whole pages.
    ///
    /// On hugetlb pages when it fills an eighth of one at least and enough are free; these are
    /// allocated now.
    /// Otherwise on ordinary pages, each touched on first use, with a hint for transparent
    /// hugepages.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn create(bytes: usize) -> Result<Arc<Self>> {
        let segment = Self::create_planned(bytes.max(1))?;
        tracing::debug!(bytes, pages = ?segment.pages, "shared segment");
        Ok(segment)
    }

    fn create_planned(bytes: usize) -> Result<Arc<Self>> {
        if bytes < hugepage::least_segment_bytes() {
            return Self::create_ordinary(whole_pages(bytes, hugepage::page_bytes())?);
        }
        let plan = hugepage::Plan::of_this_machine(bytes);
        if let PageKind::Huge { page_bytes } = plan.first {
            if bytes >= page_bytes / 8 {
                match Self::create_huge(whole_pages(bytes, page_bytes)?, page_bytes) {
                    Ok(segment) => return Ok(segment),
                    Err(e) => hugepage::report_fallback(&format!("a shared segment: {e}")),
                }
            }
        } else if let Some(why) = &plan.why {
            hugepage::report_fallback(why);
        }
        Self::create_ordinary(whole_pages(bytes, hugepage::page_bytes())?)
    }

    fn create_huge(bytes: usize, page_bytes: usize) -> Result<Arc<Self>> {
        let size_code = page_bytes.trailing_zeros() << 26;
        let flags = MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(size_code);
        let file = Self::new_file(bytes, flags)?;
        // Allocating here turns a limit that would be a fault on first touch (cgroup, cpuset) into
        // an error.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)
            .map_err(|e| Error::system(format!("allocating {bytes} bytes of hugepages"), e))?;
        Self::map(file, bytes, PageKind::Huge { page_bytes })
    }

    fn create_ordinary(bytes: usize) -> Result<Arc<Self>> {
        let file = Self::new_file(bytes, MemfdFlags::empty())?;
        Self::map(file, bytes, PageKind::Ordinary)
    }

    /// Creates a zeroed segment on ordinary pages that others only read: where the kernel can (from
    /// 5.1 on) it refuses whoever wants to write to it, but for this mapping. `name` is what its
    /// descriptor shows in `/proc`.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn create_shown(name: &str, bytes: usize) -> Result<Arc<Self>> {
        let bytes = whole_pages(bytes.max(1), hugepage::page_bytes())?;
        let file = Self::new_unsealed(name, bytes, MemfdFlags::empty())?;
        let sealed = file
            .try_clone()
            .map_err(|e| Error::system("duplicating a descriptor", e))?;
        let segment = Self::map(file, bytes, PageKind::Ordinary)?;
        let readers_only = SEALS.union(SealFlags::FUTURE_WRITE);
        // An older kernel does not know the last of them, and refuses all.
        seal(&sealed, readers_only).or_else(|_| seal(&sealed, SEALS))?;
        Ok(segment)
    }

    fn new_file(bytes: usize, flags: MemfdFlags) -> Result<OwnedFd> {
        let file = Self::new_unsealed("trihop", bytes, flags)?;
        seal(&file, SEALS)?;
        Ok(file)
    }

    fn new_unsealed(name: &str, bytes: usize, flags: MemfdFlags) -> Result<OwnedFd> {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // A hardened kernel (vm.memfd_noexec=2) wants to hear that nothing in it is run; older ones
        // do not know that.
        let file = rustix::fs::memfd_create(name, flags)
            .or_else(|error| match error {
                Errno::ACCESS => rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL),
                error => Err(error),
            })
            .map_err(|e| Error::system("creating an anonymous file", e))?;
        rustix::fs::ftruncate(&file, bytes as u64)
            .map_err(|e| Error::system(format!("sizing an anonymous file to {bytes} bytes"), e))?;
        Ok(file)
    }

    /// Maps a segment that another process created with `bytes`.
    ///
    /// # Errors
    /// When it is not an anonymous file sealed against shrinking and growing, or not of that size;
    /// the peer is then broken or hostile.
    pub fn attach(file: OwnedFd, bytes: usize) -> Result<Arc<Self>> {
        Self::attach_up_to(file, bytes, bytes)
    }

    /// As [`Segment::attach`], of one that was created with `bytes` to `most` bytes.
    ///
    /// # Errors
    /// As there.
    pub fn attach_up_to(file: OwnedFd, bytes: usize, most: usize) -> Result<Arc<Self>> {
        let refuse = |why: String| {
            Error::system(
                format!("attaching a segment of {bytes} bytes"),
                std::io::Error::new(std::io::ErrorKind::InvalidData, why),
            )
        };
        tracing::trace!(bytes, "segment of a neighbour");
        let seals = rustix::fs::fcntl_get_seals(&file)
            .map_err(|e| refuse(format!("the descriptor is not an anonymous file: {e}")))?;
        if !seals.contains(SEALS) {
            return Err(refuse(format!(
                "the file carries seals {:#x}, needed are {:#x}",
                seals.bits(),
                SEALS.bits()
            )));
        }
        let status = rustix::fs::fstat(&file)
            .map_err(|e| Error::system("reading the size of a segment", e))?;
        let size = usize::try_from(status.st_size).unwrap_or(0);
        let block = usize::try_from(status.st_blksize)
            .unwrap_or(0)
            .max(hugepage::page_bytes());
        let most = most.max(1).checked_next_multiple_of(block);
        if size < bytes.max(1) || most.is_none_or(|most| size > most) {
            return Err(refuse(format!(
                "the file has {size} bytes in pages of {block}"
            )));
        }
        let filesystem = rustix::fs::fstatfs(&file)
            .map_err(|e| Error::system("asking what a segment is on", e))?;
        let pages = if filesystem.f_type as u64 == libc::HUGETLBFS_MAGIC as u64 {
            PageKind::Huge { page_bytes: block }
        } else {
            PageKind::Ordinary
        };
        Self::map(file, size, pages)
    }

    fn map(file: OwnedFd, bytes: usize, pages: PageKind) -> Result<Arc<Self>> {
        let map = MmapOptions::new()
            .len(bytes)
            .map_raw(&file)
            .map_err(|e| Error::system(format!("mapping a segment of {bytes} bytes"), e))?;
        map.advise(Advice::DontFork)
            .map_err(|e| Error::system("keeping a segment from forked children", e))?;
        if pages == PageKind::Ordinary && bytes >= hugepage::TRANSPARENT_BYTES {
            // A hint: kernels without transparent hugepages in shared memory refuse it, and nothing
            // is lost.
            let _ = map.advise(Advice::HugePage);
        }
        let first = NonNull::new(map.as_mut_ptr()).expect("no mapping begins at address 0");
        let backing = Backing::Shared {
            _map: map,
            place: settled::Place::of(file.as_fd())?,
            file,
        };
        Ok(Self::over(first, bytes, backing, pages))
    }

    fn over(first: NonNull<u8>, bytes: usize, backing: Backing, pages: PageKind) -> Arc<Self> {
        Arc::new(Self {
            first,
            bytes,
            backing: ManuallyDrop::new(backing),
            shape: OnceLock::new(),
            pages,
            owner_process: std::process::id(),
        })
    }

    /// Creates a zeroed segment for this process alone, rounded up to whole pages: ordinary ones,
    /// each touched on first use. It takes no descriptor and no mapping of its own, so that a
    /// process may have hundreds of thousands; the pages are given back when it is dropped, the
    /// address space is kept for the next one of its size.
    ///
    /// # Errors
    /// When address space runs out.
    pub fn private(bytes: usize) -> Result<Arc<Self>> {
        let range = private::Range::new(bytes)?;
        let (first, bytes) = (range.first(), range.bytes());
        let backing = Backing::Private { _range: range };
        Ok(Self::over(first, bytes, backing, PageKind::Ordinary))
    }

    /// First byte. The mapping is page aligned and stays until the segment is dropped.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// Length in bytes: what was asked for, rounded up to whole pages.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the segment is empty (it never is).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pages under the mapping.
    pub fn page_kind(&self) -> PageKind {
        self.pages
    }

    /// Descriptor to pass to another process.
    ///
    /// # Errors
    /// When the segment is private.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        match &*self.backing {
            Backing::Shared { file, .. } => Ok(file.as_fd()),
            _ => Err(Error::config(
                "segment",
                "a private segment has no descriptor; share one that `Segment::create` made",
            )),
        }
    }

    /// Fixes what this memory is laid out as, for all of its mappings in this process: the first
    /// call decides. Two layouts would give two owners to the same bytes.
    ///
    /// # Errors
    /// What it is laid out as, where that is something else.
    pub(crate) fn settle(&self, shape: u64) -> Result<(), u64> {
        let settled = match &*self.backing {
            Backing::Shared { place, .. } => place.settle(shape),
            _ => *self.shape.get_or_init(|| shape),
        };
        if settled == shape {
            Ok(())
        } else {
            Err(settled)
        }
    }

    /// Whether the mapping exists in this process: false in a forked child, where touching it
    /// faults.
    pub(crate) fn is_mapped_here(&self) -> bool {
        self.owner_process == std::process::id()
    }

    /// A segment on the heap, for Miri.
    #[cfg(test)]
    pub(crate) fn on_heap(bytes: usize) -> Arc<Self> {
        let bytes = bytes.next_multiple_of(4096);
        let layout =
            std::alloc::Layout::from_size_align(bytes, 4096).expect("a layout of whole pages");
        // SAFETY: `layout` has a size above zero.
        let first = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory");
        Self::over(first, bytes, Backing::Heap, PageKind::Ordinary)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.is_mapped_here() {
            // In a forked child the addresses may since belong to another mapping; only the
            // descriptor is leaked.
            return;
        }
        #[cfg(test)]
        if let Backing::Heap = *self.backing {
            let layout = std::alloc::Layout::from_size_align(self.bytes, 4096)
                .expect("a layout of whole pages");
            // SAFETY: `on_heap` allocated these bytes with this very layout, and nobody else frees
            // them.
            unsafe { std::alloc::dealloc(self.as_ptr(), layout) };
        }
        // SAFETY: this is the only drop of the field, and nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.backing) };
    }
}

fn seal(file: &OwnedFd, seals: SealFlags) -> Result<()> {
    rustix::fs::fcntl_add_seals(file, seals)
        .map_err(|e| Error::system("sealing an anonymous file", e))
}

/// `bytes` rounded up to whole pages.
fn whole_pages(bytes: usize, page_bytes: usize) -> Result<usize> {
    bytes.checked_next_multiple_of(page_bytes).ok_or_else(|| {
        let why = format!(
            "{bytes} bytes in pages of {page_bytes}, which is more than there are addresses"
        );
        Error::config("segment", why)
    })
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
