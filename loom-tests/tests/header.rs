//! An attacher that looks at the header while the owner lays the inbox out: it sees nothing, or all
//! of it.
#![cfg(trihop_loom)]

use std::sync::Arc;

use loom::thread;
use trihop_transport::ring::layout::Header;
use trihop_transport::ring::{InboxLayout, Orderings, Shipped};
use trihop_transport::sync::{AtomicU64, Ordering};

#[derive(Default)]
struct Words {
    magic: AtomicU64,
    shape: AtomicU64,
    owned: AtomicU64,
}

impl Words {
    fn header(&self) -> Header<'_, AtomicU64> {
        Header {
            magic: &self.magic,
            shape: &self.shape,
            owned: &self.owned,
        }
    }
}

fn lays_out<O: Orderings + 'static>() {
    loom::model(|| {
        let layout = InboxLayout::new(2, 4096).unwrap();
        let words = Arc::new(Words::default());
        let owner = {
            let words = words.clone();
            thread::spawn(move || words.header().claim::<O>(layout).unwrap())
        };
        if let Err(e) = words.header().check::<O>(layout) {
            let text = e.to_string();
            assert!(
                text.contains("begins with 0x0000000000000000"),
                "half a header: {text}"
            );
        }
        owner.join().unwrap();
        words.header().check::<O>(layout).unwrap();
        assert!(words.header().claim::<O>(layout).is_err());
    });
}

#[test]
fn a_header_is_seen_whole_or_not_at_all() {
    lays_out::<Shipped>();
}

macro_rules! twin {
    ($test:ident, $constant:ident) => {
        #[test]
        #[should_panic(expected = "half a header")]
        fn $test() {
            struct Weak;
            impl Orderings for Weak {
                const $constant: Ordering = Ordering::Relaxed;
            }
            lays_out::<Weak>();
        }
    };
}

twin!(twin_relaxed_header_store, HEADER_STORE);
twin!(twin_relaxed_header_load, HEADER_LOAD);
