//! Waits in tests: each ends, with a panic where what it waits for does not happen.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// After this time a test is taken for hanging.
pub(crate) const PERIOD: Duration = Duration::from_secs(60);

/// The status of a child that is about to end; one that does not is killed.
pub(crate) fn end_of(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PERIOD;
    loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().expect("the child is ours");
            child.wait().expect("the child is ours");
            panic!("process {} still ran after {PERIOD:?}", child.id());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
