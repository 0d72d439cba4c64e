//! Splits tables by the hash of a key over all ranks of a job, and proves that nothing was lost:
//! the library of `trihop partition`.
//!
//! Each rank reads an equal share of the bytes of all files (`ranges`, `reader`, `uring`). A first
//! pass counts quotes and line feeds, so that every rank knows whether its share starts inside a
//! quoted field and on which line (`scan`). The second pass cuts records (`split`, `cut`), finds
//! their keys (`record`, `json`, `route`), and sends them to their owners (`exchange`), which write
//! them (`writer`). After each step all ranks agree that none has failed (`job`); only then
//! partitions get their names (`output`).
//!
//! It uses trihop as any program does: through the public interface alone.

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
mod request;
mod route;
mod scan;
mod split;
mod summary;
mod uring;
mod writer;

pub use error::{Error, Result};
pub use exchange::Failed;
pub use job::run;
pub use progress::Front;
pub use reader::Method;
pub use request::{Format, Request, Unknown};
pub use summary::{Partition, Summary};
pub use writer::Totals;
