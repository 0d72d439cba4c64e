//! `trihop partition`: splits tables by the hash of a key over all ranks of a job.
//!
//! Each rank reads an equal share of the bytes of all files (`ranges`, `reader`, `uring`). A first
//! pass counts quotes and line feeds, so that every rank knows whether its share starts inside a
//! quoted field and on which line (`scan`). The second pass cuts records (`split`, `cut`), finds
//! their keys (`record`, `json`, `route`), and sends them to their owners (`exchange`), which write
//! them (`writer`). After each step all ranks agree that none has failed (`job`); only then
//! partitions get their names (`output`).

mod args;
mod cut;
mod error;
mod exchange;
mod interrupt;
mod job;
mod json;
#[cfg(test)]
mod oracle;
mod output;
mod plan;
mod progress;
mod ranges;
mod reader;
mod record;
mod route;
mod scan;
mod split;
mod summary;
mod uring;
mod writer;

pub use args::PartitionArgs;
pub use job::run;
