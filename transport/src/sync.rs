//! The only importer of atomics, cells and thread primitives; under `cfg(trihop_loom)` they are loom's, under
//! `cfg(trihop_shuttle)` shuttle's.
//!
//! Words in mapped memory are plain machine words whoever compiles us: [`MappedU64`]. The algorithms see either kind
//! through [`Word`], so that loom and shuttle run the code that ships.
#![allow(clippy::disallowed_types)]

#[cfg(not(any(trihop_loom, trihop_shuttle)))]
pub use std::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread,
};

#[cfg(trihop_loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread,
};

#[cfg(trihop_shuttle)]
pub use shuttle::{
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread,
};
// Shuttle has no cell: what happens between two of its operations is one step.
#[cfg(trihop_shuttle)]
pub use std::cell::UnsafeCell;

pub use std::sync::{Mutex, Once, PoisonError};
pub use std::thread::{available_parallelism, sleep};

/// A word in mapped memory, shared with threads and processes.
pub type MappedU64 = std::sync::atomic::AtomicU64;

const _: () = assert!(size_of::<MappedU64>() == 8 && align_of::<MappedU64>() == 8);

/// A shared 64-bit word. The fence that goes with it is [`fence`].
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Ordering);
    /// Writes it and returns what was there.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Sets bits and returns what was there.
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64;
}

macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                <$atomic>::load(self, order)
            }
            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                <$atomic>::store(self, value, order);
            }
            #[inline]
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                <$atomic>::swap(self, value, order)
            }
            #[inline]
            fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
                <$atomic>::fetch_or(self, bits, order)
            }
        }
    };
}

word!(MappedU64);
#[cfg(any(trihop_loom, trihop_shuttle))]
word!(AtomicU64);
