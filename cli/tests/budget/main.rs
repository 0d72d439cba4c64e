//! What a message may cost in steady state: allocations, memory, system calls. Counted, never
//! timed.
//!
//! Each test starts itself again as the ranks of a job (see `ranks`), so that every rank has an
//! allocator, a memory and system calls of its own to count.

mod allocations;
mod allocator;
mod bound;
#[path = "../launched/mod.rs"]
mod launched;
mod memory;
mod ranks;
mod steps;
mod streams;
mod syscalls;
