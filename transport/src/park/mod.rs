//! Waiting: spin briefly, yield, then sleep on the doorbell and on other descriptors at once.

mod backoff;
mod parker;
mod process;

pub use backoff::{Backoff, Step, spin_budget};
pub use parker::Parker;
pub use process::ProcessWatch;
