//! Lines of a cache, which mostly come from that of another core.

/// Bytes of a line.
pub(crate) const BYTES: usize = 64;

/// Begins to fetch a line, where the processor has an instruction for that. It is a hint: it may
/// lie anywhere.
#[inline(always)]
pub(crate) fn fetch(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: it changes nothing that a program can see, and faults nowhere.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: it changes nothing that a program can see, and faults nowhere.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{0}]", in(reg) line, options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = line;
}
