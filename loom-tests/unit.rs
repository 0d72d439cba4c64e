//! Eight bytes of a lane: not atomic in what ships, so watched for accesses that overlap.

#[cfg(trihop_shuttle)]
pub use torn_by_shuttle::Unit;
#[cfg(trihop_loom)]
pub use watched_by_loom::Unit;

#[cfg(trihop_loom)]
mod watched_by_loom {
    use trihop_transport::sync::UnsafeCell;

    /// Loom ends the model by an error where an access to this overlaps with a write.
    #[derive(Debug)]
    pub struct Unit(UnsafeCell<u64>);

    // SAFETY: loom checks every access for races; the models are there for that.
    unsafe impl Send for Unit {}
    // SAFETY: as above.
    unsafe impl Sync for Unit {}

    impl Default for Unit {
        fn default() -> Self {
            Self(UnsafeCell::new(0))
        }
    }

    impl Unit {
        pub fn get(&self) -> u64 {
            // SAFETY: loom checks that nobody writes the unit meanwhile.
            self.0.with(|unit| unsafe { *unit })
        }

        pub fn update(&self, change: impl FnOnce(u64) -> u64) {
            // SAFETY: loom checks that nobody else accesses the unit meanwhile.
            self.0.with_mut(|unit| unsafe { *unit = change(*unit) });
        }
    }
}

#[cfg(trihop_shuttle)]
mod torn_by_shuttle {
    use trihop_transport::sync::{AtomicU64, Ordering};

    /// Shuttle may run others before each access: what overlaps shows as a wrong value.
    #[derive(Debug, Default)]
    pub struct Unit(AtomicU64);

    impl Unit {
        pub fn get(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        pub fn update(&self, change: impl FnOnce(u64) -> u64) {
            let value = self.0.load(Ordering::Relaxed);
            self.0.store(change(value), Ordering::Relaxed);
        }
    }
}
