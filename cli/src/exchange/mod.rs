//! `trihop exchange`: every rank sends messages to other ranks, and every receiver checks each of
//! them.
//!
//! What a message holds follows from the job's seed, its source, its target and its number
//! (`payload`), so that its receiver knows what must come and keeps one counter per source
//! (`ledger`). The last message of each pair says how many there were. Targets and sizes are drawn
//! in `traffic`; `seat` is the job, with a progress thread or without, and `mailbox` the only place
//! that talks to the shuffle, with a handler or without; `report` adds up what all ranks measured,
//! and `usage` what each of them used; `stall` ends a job in which nothing moves any more, and says
//! who waits for what. `logs` says what is logged and where to, and `options` makes every option of
//! the library one of this command.

mod args;
mod detail;
mod error;
mod job;
mod ledger;
mod logs;
mod mailbox;
mod options;
mod payload;
mod report;
mod seat;
mod stall;
mod traffic;
mod usage;

pub use args::{ExchangeArgs, Pattern, Sizes};
pub use job::run;
pub use ledger::{Ledger, TALLY};
pub use payload::Contents;
pub use traffic::{Messages, Targets};
