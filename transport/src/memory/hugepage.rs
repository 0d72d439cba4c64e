//! Private mappings on the largest pages that can be had, and the ladder that decides it.
//!
//! The ladder: reserved hugepages (hugetlb), else transparent hugepages on request, else ordinary
//! pages. Going down is reported once per process, with the remedy.

use std::alloc::Layout;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::memory::{arena, kernel_file};
use crate::sync::{Once, OnceLock};

/// Smallest private request that is worth a reserved hugepage.
///
/// Smaller ones share those that are free, and do without where none is.
pub const HUGE_WORTH_BYTES: usize = 1 << 20;

/// Largest reserved hugepage that is taken for any request; a longer one only where an eighth of it
/// is filled.
pub const SHARED_PAGE_BYTES: usize = 32 << 20;

/// Smallest request that can hold a transparent hugepage (2 MiB on x86-64 and on 4 KiB aarch64).
pub const TRANSPARENT_BYTES: usize = 2 << 20;

/// Pages under a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved hugepages of this size.
    Huge {
        /// Size of one page in bytes.
        page_bytes: usize,
    },
    /// Ordinary pages that the kernel was asked to gather into hugepages.
    Transparent,
    /// Ordinary pages.
    Ordinary,
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Huge { page_bytes } => write!(f, "hugepages of {} KiB", page_bytes >> 10),
            Self::Transparent => f.write_str("transparent hugepages"),
            Self::Ordinary => f.write_str("ordinary pages"),
        }
    }
}

/// First rung of the ladder for one request, and why it is not a higher one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Pages to try first.
    pub first: PageKind,
    /// Cause and remedy, where the top rung was wanted and cannot be had.
    pub why: Option<String>,
}

impl Plan {
    /// Decides for `bytes`, from the text of `/proc/meminfo` and of
    /// `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub fn decide(meminfo: &str, transparent: &str, bytes: usize) -> Self {
        let below = match transparent.contains("[always]") || transparent.contains("[madvise]") {
            true if bytes >= TRANSPARENT_BYTES => PageKind::Transparent,
            _ => PageKind::Ordinary,
        };
        // What is small does not miss them.
        let step_down = |why: String| Self {
            first: below,
            why: (bytes >= HUGE_WORTH_BYTES).then_some(why),
        };
        let Some(page_bytes) =
            meminfo_number(meminfo, "Hugepagesize").and_then(|kib| kib.checked_mul(1024))
        else {
            return step_down(
                "/proc/meminfo has no usable Hugepagesize: this kernel has no hugetlb pages".into(),
            );
        };
        if !page_bytes.is_power_of_two() {
            return step_down(format!(
                "/proc/meminfo says Hugepagesize {page_bytes} bytes, not a power of two"
            ));
        }
        if page_bytes > SHARED_PAGE_BYTES && bytes < page_bytes / 8 {
            return Self {
                first: below,
                why: None,
            };
        }
        let needed = bytes.div_ceil(page_bytes);
        // Reserved pages are promised to mappings that have not touched them yet.
        let free = meminfo_number(meminfo, "HugePages_Free").unwrap_or(0);
        let reserved = meminfo_number(meminfo, "HugePages_Rsvd").unwrap_or(0);
        let available = free.saturating_sub(reserved);
        if available < needed {
            return step_down(format!(
                "{bytes} bytes need {needed} hugepages of {} KiB and {available} are free; \
                 reserve some with `sysctl vm.nr_hugepages=N`",
                page_bytes >> 10
            ));
        }
        Self {
            first: PageKind::Huge { page_bytes },
            why: None,
        }
    }

    /// Decides for `bytes` on this machine, now.
    pub fn of_this_machine(bytes: usize) -> Self {
        let meminfo = kernel_file::text("/proc/meminfo");
        // What is shorter has none, whatever the machine allows.
        let transparent = match bytes >= TRANSPARENT_BYTES {
            true => kernel_file::text("/sys/kernel/mm/transparent_hugepage/enabled"),
            false => String::new(),
        };
        let plan = Self::decide(&meminfo, &transparent, bytes);
        static TOLD: Once = Once::new();
        TOLD.call_once(|| tracing::info!(first = ?plan.first, "pages of large pools and segments"));
        plan
    }
}

/// The least that a segment has reserved hugepages for: an eighth of one. Their size stays as the
/// machine has started, so that it is asked once.
pub(crate) fn least_segment_bytes() -> usize {
    static LEAST: OnceLock<usize> = OnceLock::new();
    *LEAST.get_or_init(|| {
        let meminfo = kernel_file::text("/proc/meminfo");
        let page_kib = meminfo_number(&meminfo, "Hugepagesize");
        let eighth = page_kib.and_then(|kib| kib.checked_mul(1024 / 8));
        eighth.map_or(HUGE_WORTH_BYTES, |eighth| eighth.min(HUGE_WORTH_BYTES))
    })
}

/// Value of a line `name:  N [kB]`.
pub(super) fn meminfo_number(meminfo: &str, name: &str) -> Option<usize> {
    meminfo.lines().find_map(|line| {
        let mut words = line
            .strip_prefix(name)?
            .strip_prefix(':')?
            .split_whitespace();
        let number = words.next()?.parse().ok()?;
        matches!(words.next(), None | Some("kB")).then_some(number)
    })
}

/// Size of an ordinary page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Says once per process that hugepages were wanted and are not used.
pub(crate) fn report_fallback(why: &str) {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| tracing::info!("not on reserved hugepages: {why}"));
}

/// A private, zeroed mapping. A forked child does not inherit it.
pub struct Mapping {
    memory: ManuallyDrop<Memory>,
    pages: PageKind,
    owner_process: u32,
}

enum Memory {
    Mapped(MmapRaw),
    Huge(arena::Range),
}

/// Reserved hugepages.
pub(super) struct Pages {
    first: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the pages stay where they are until drop and are freed by any thread alike; nothing here
// accesses them.
unsafe impl Send for Pages {}

impl Pages {
    /// Pages for at least so many bytes. A forked child does not inherit them.
    fn allocate(bytes: usize, page_bytes: usize) -> Option<Self> {
        let layout =
            Layout::from_size_align(bytes.checked_next_multiple_of(page_bytes)?, page_bytes)
                .ok()?;
        // SAFETY: the layout is not empty, and `Plan` found the `Hugepagesize` without which this
        // call panics.
        let first = NonNull::new(unsafe { hugepage_rs::alloc(layout) })?;
        let pages = Self { first, layout };
        // SAFETY: the range was mapped just now, whole, and is used by nobody else.
        let advised = unsafe {
            rustix::mm::madvise(
                first.as_ptr().cast(),
                layout.size(),
                rustix::mm::Advice::LinuxDontFork,
            )
        };
        advised.ok()?;
        // Here a limit of the control group is an error; on first touch it would be a fault.
        // SAFETY: as that; it only makes pages present.
        let present = unsafe {
            rustix::mm::madvise(
                first.as_ptr().cast(),
                layout.size(),
                rustix::mm::Advice::LinuxPopulateWrite,
            )
        };
        match present {
            Ok(()) | Err(Errno::INVAL) => Some(pages), // kernels before 5.14 do not know it
            Err(_) => None,
        }
    }
}

impl arena::Chunk for Pages {
    fn first(&self) -> NonNull<u8> {
        self.first
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn page_bytes(&self) -> usize {
        self.layout.align()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `allocate` got `first` for this layout, and this is the only drop.
        unsafe { hugepage_rs::dealloc(self.first.as_ptr(), self.layout) };
    }
}

// SAFETY: the mapping stays where it is until drop and is freed by any thread alike; `as_ptr` hands
// out a raw pointer, whose user takes care of order.
unsafe impl Send for Mapping {}
// SAFETY: no method of `Mapping` accesses the mapped bytes.
unsafe impl Sync for Mapping {}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} B, {})", self.len(), self.pages)
    }
}

impl Mapping {
    /// Maps at least `bytes`, rounded up to whole pages, on the largest pages that can be had.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn allocate(bytes: usize) -> Result<Self> {
        let mut first = PageKind::Ordinary;
        let range = arena::Range::new(bytes.max(1), |bytes| {
            let plan = Plan::of_this_machine(bytes);
            if let Some(why) = &plan.why {
                report_fallback(why);
            }
            first = plan.first;
            let PageKind::Huge { page_bytes } = first else {
                return None;
            };
            let pages = Pages::allocate(bytes, page_bytes);
            if pages.is_none() {
                report_fallback(&format!(
                    "the kernel refused {bytes} bytes of free hugepages"
                ));
            }
            pages
        });
        match range {
            Some(range) => Ok(Self {
                pages: PageKind::Huge {
                    page_bytes: range.page_bytes(),
                },
                memory: ManuallyDrop::new(Memory::Huge(range)),
                owner_process: std::process::id(),
            }),
            None => Self::allocate_mapped(bytes.max(1), first),
        }
    }

    fn allocate_mapped(bytes: usize, wanted: PageKind) -> Result<Self> {
        let whole = bytes
            .checked_next_multiple_of(page_bytes())
            .ok_or_else(|| {
                let why = format!("{bytes} bytes, which is more than there are addresses");
                Error::config("mapping", why)
            })?;
        let map = MmapOptions::new()
            .len(whole)
            .map_anon()
            .map(MmapRaw::from)
            .map_err(|e| Error::system(format!("mapping {bytes} bytes"), e))?;
        map.advise(Advice::DontFork)
            .map_err(|e| Error::system("keeping a mapping from forked children", e))?;
        let transparent = bytes >= TRANSPARENT_BYTES && wanted != PageKind::Ordinary;
        let pages = match transparent && map.advise(Advice::HugePage).is_ok() {
            true => PageKind::Transparent,
            false => PageKind::Ordinary,
        };
        Ok(Self {
            memory: ManuallyDrop::new(Memory::Mapped(map)),
            pages,
            owner_process: std::process::id(),
        })
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match &*self.memory {
            Memory::Mapped(map) => map.as_mut_ptr(),
            Memory::Huge(range) => range.first(),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &*self.memory {
            Memory::Mapped(map) => map.len(),
            Memory::Huge(range) => range.bytes(),
        }
    }

    /// Whether the mapping is empty (it never is).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pages under the mapping.
    pub fn page_kind(&self) -> PageKind {
        self.pages
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owner_process != std::process::id() {
            // A forked child has no such mapping; the addresses may since belong to another one.
            return;
        }
        // SAFETY: this is the only drop of the field, and nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

#[cfg(test)]
#[path = "hugepage_tests.rs"]
mod tests;
