//! Tables in Parquet files, in and out.
//!
//! Row groups are dealt out to the ranks (`groups`), read batch by batch (`read`, `footer`), and
//! each row becomes bytes of its own (`row`): so rows travel, are sorted and spilled as the lines
//! of other formats are, and their checksum does not depend on order or batches. The rank that
//! writes a part makes columns of them again (`write`). What a key is as text, which decides its
//! part, is in `key`; what all files have in common in `table`.

mod footer;
mod key;
mod read;
mod row;
mod table;
mod write;

pub use read::Source;
pub use row::{Row, Unfit};
pub use table::{Looked, Table};
pub use write::Writer;
