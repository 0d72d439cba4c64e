//! Variables that libfabric is told by. A process asks it once, so this is the only test of its
//! binary.

use trihop_transport::fabric::{self, Choice};

#[test]
fn what_the_user_has_not_set_is_set_before_libfabric_is_asked() {
    // SAFETY: this test is the only one of its process, and has started no thread.
    unsafe { std::env::set_var("FI_CXI_RX_MATCH_MODE", "software") };
    let choice = Choice {
        universe: Some(50),
        ..Choice::default()
    };
    fabric::survey(&choice).expect("libfabric answers");
    let value = |name: &str| std::env::var(name).unwrap_or_default();
    assert_eq!(value("FI_CXI_RX_MATCH_MODE"), "software", "the user's");
    assert_eq!(value("FI_EFA_ENABLE_SHM_TRANSFER"), "0");
    assert_eq!(value("FI_UNIVERSE_SIZE"), "50");
    assert_eq!(value("FI_OFI_RXM_USE_SRX"), "1");
}
