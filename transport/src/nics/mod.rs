//! The network adapters of this machine: what the kernel knows of them, and which one is closest to
//! a rank.
//!
//! Which adapter an endpoint takes is a pure function, [`closest`]: out of the adapters that are as
//! good as each other, the machine's NUMA nodes, and the place of the rank. What it is decided by is
//! read below one folder, `/sys` on a real machine.

mod choice;
#[cfg(test)]
mod machines;
mod nic;
mod numa;
mod sysfs;

pub use choice::{aside, closest, equals};
pub use nic::{LinkState, Nic, NotPci, PciAddress, Reported};
pub use numa::{Numa, NumaNode, Place};
pub use sysfs::Sysfs;
