//! Splits tables by a key over all ranks of a job, and proves that nothing was lost: the library of
//! `trihop partition`.
//!
//! Each rank reads an equal share of the bytes of all files (`ranges`, `reader`, `uring`), and what
//! is compressed or comes through a pipe one rank reads alone (`stream`). A first pass counts quotes
//! and line feeds, so that every rank knows whether its share starts inside a quoted field and on
//! which line (`scan`). The second pass cuts records (`split`, `cut`), finds their keys (`record`,
//! `json`, `route`), and sends them (`sender`, `label`) to the ranks that write their parts (`sink`,
//! `sorter`, `parts`). After each step all ranks agree that none has failed (`job`, `exchange`);
//! only then parts get their names (`output`, `hive`).
//!
//! Parquet files, with the cargo feature `parquet`, take the same way: each rank reads some of
//! their row groups (`groups`, `parquet`), and sends rows in the place of lines.
//!
//! It never drops a record silently, never publishes parts whose records are not all those that
//! were read, and never leaves a file of a job that failed. Its memory is bounded, but for the names
//! of parts in a split by value. It uses trihop as any program does: through the public interface
//! alone.
//!
//! [`run`] is one rank's part of it, within a job that the caller has started; `trihop partition`
//! is an example of one.

mod choice;
mod cut;
mod error;
mod exchange;
mod frame;
mod groups;
mod header;
mod hive;
mod inputs;
mod interrupt;
mod job;
mod json;
mod label;
#[cfg(test)]
mod oracle;
mod order;
mod output;
#[cfg_attr(not(feature = "parquet"), path = "parquet/absent.rs")]
mod parquet;
mod parts;
mod plan;
mod progress;
mod ranges;
mod reader;
mod record;
mod request;
mod route;
mod scan;
mod sender;
mod sink;
mod sorter;
mod split;
mod staging;
mod stream;
mod summary;
mod totals;
mod uring;

pub use choice::{Compression, Format, OnBadLine, Split, Unknown};
pub use error::{Error, Result};
pub use exchange::Failed;
pub use job::run;
pub use progress::Front;
pub use reader::Method;
pub use request::{KeyList, Request, parse_delimiter};
pub use summary::{Partition, Subject, Summary};
pub use totals::Totals;
