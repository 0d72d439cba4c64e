//! Waiting: spin briefly, yield, then sleep on the doorbell and on other descriptors at once. Among
//! threads: taking turns with what only one may use at a time, and handing over what another one
//! works off.

mod backoff;
mod desk;
mod gauge;
mod lease;
mod mailbox;
mod monitor;
mod parker;
mod process;

pub use backoff::{Awake, Backoff, Step};
pub use desk::{Desk, Seen};
pub use gauge::Gauge;
pub use lease::{Lease, LeaseUse, can_lease, this_thread};
pub use mailbox::{Content, Mail, Mailbox};
pub use monitor::{Monitor, MonitorGuard};
pub use parker::Parker;
pub use process::ProcessWatch;
