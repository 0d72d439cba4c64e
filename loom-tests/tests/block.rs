//! Blocks: who has claimed one sees what was written, and its owner writes there again only once
//! nobody reads it.
#![cfg(trihop_loom)]

use loom::thread;
use trihop_transport::ring::block;
use trihop_transport::ring::{Orderings, Shipped};
use trihop_transport::sync::{Arc, AtomicU64, Ordering, UnsafeCell};

/// A block with one byte, and where others learn of it, which orders nothing.
#[derive(Debug)]
struct Shared {
    word: AtomicU64,
    byte: UnsafeCell<u8>,
    told: AtomicU64,
}

// SAFETY: loom sees whether the accesses to the byte are ordered.
unsafe impl Sync for Shared {}

impl Shared {
    fn write(&self, byte: u8) {
        // SAFETY: whoever has the block is alone with it, which is what is tried.
        self.byte.with_mut(|place| unsafe { *place = byte });
    }

    fn read(&self) -> u8 {
        // SAFETY: as in `write`.
        self.byte.with(|place| unsafe { *place })
    }
}

/// One rank passes a block on, two are told of it, and it writes there again once that is free.
fn passes<O: Orderings + 'static>() {
    loom::model(|| {
        let shared = Arc::new(Shared {
            word: AtomicU64::new(block::made(1, 1)),
            byte: UnsafeCell::new(0),
            told: AtomicU64::new(0),
        });
        let readers = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let passed = shared.told.load(Ordering::Relaxed);
                if !block::claim::<_, O>(&shared.word, passed) {
                    return 0;
                }
                assert_eq!(shared.read(), 7);
                block::free::<_, O>(&shared.word);
                1
            })
        });
        shared.write(7);
        let passed = block::pass::<_, O>(&shared.word);
        shared.told.store(passed, Ordering::Relaxed);
        if block::is_free::<_, O>(&shared.word) {
            shared.write(8);
        }
        let claims = readers.map(|reader| reader.join().unwrap());
        assert!(claims.iter().sum::<u32>() <= 1, "claimed twice");
    });
}

#[test]
fn a_block_is_used_by_one_at_a_time() {
    passes::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident) => {
        #[test]
        #[should_panic(expected = "Causality violation")]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: Ordering = Ordering::Relaxed;
            }
            passes::<Weak>();
        }
    };
}

twin!(twin_passes_on_without_release, BLOCK_PASS);
twin!(twin_claims_without_acquire, BLOCK_CLAIM);
twin!(twin_frees_without_release, BLOCK_FREE);
twin!(twin_looks_without_acquire, BLOCK_LOOK);
