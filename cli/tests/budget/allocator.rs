//! An allocator that counts: every call that hands out memory, while counting is on.
//!
//! With `BUDGET_BACKTRACE=1` in the environment each counted call prints where it came from.
#![allow(
    clippy::disallowed_types,
    reason = "a counter of the test itself, which no model replaces"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;

use trihop::transport::sync::{AtomicBool, AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// All relaxed: the counter is read by the thread that turns counting on and off, and other threads
// of a rank do nothing that is to be counted exactly.
static ON: AtomicBool = AtomicBool::new(false);
static SHOWN: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Set while a backtrace is taken and printed, which allocates.
    static SHOWING: Cell<bool> = const { Cell::new(false) };
}

fn note(layout: Layout) {
    if !ON.load(Ordering::Relaxed) || SHOWING.get() {
        return;
    }
    CALLS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
    if SHOWN.load(Ordering::Relaxed) {
        SHOWING.set(true);
        eprintln!("{} bytes at\n{}", layout.size(), Backtrace::force_capture());
        SHOWING.set(false);
    }
}

// SAFETY: every call goes to the system's allocator with the arguments that came; counting touches
// no memory of the caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(layout);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Calls of the allocator, by any thread of this process, while `work` runs.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    SHOWN.store(
        std::env::var_os("BUDGET_BACKTRACE").is_some(),
        Ordering::Relaxed,
    );
    CALLS.store(0, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    let result = work();
    ON.store(false, Ordering::Relaxed);
    (result, CALLS.load(Ordering::Relaxed))
}

/// Bytes that calls of the allocator ask for, by any thread of this process, while `work` runs.
pub fn counted_bytes<T>(work: impl FnOnce() -> T) -> (T, u64) {
    BYTES.store(0, Ordering::Relaxed);
    let (result, _) = counted(work);
    (result, BYTES.load(Ordering::Relaxed))
}

#[test]
fn the_allocator_counts_what_is_allocated() {
    let (_kept, calls) = counted(|| (Box::new(1u64), vec![0u8; 100]));
    assert!(calls >= 2, "{calls} calls counted for a box and a vector");
}
