//! Headers as they travel: a batch header per send, a run header per run, a record header per
//! message of a byte run.
//!
//! All integers are little-endian, everything is aligned to 8 bytes. Parsing checks once and yields
//! a type that needs no further check.

mod batch;
mod run;
mod shared;

pub use batch::{
    Announcement, BATCH_HEADER_BYTES, BadHeader, BatchHeader, BatchKind, ClearToSend, Counters,
    Epoch, PART_UNIT_BYTES, RecordAnnouncement,
};
pub use run::{
    BadRun, FRAGMENT_HEADER_BYTES, FragmentHeader, RECORD_HEADER_BYTES, RUN_HEADER_BYTES,
    RecordHeader, Records, Run, RunHeader, paint, run_flags,
};
pub use shared::{SHARED_RECORD_BYTES, SharedRecord};

/// Version of the wire format; both ends of a link must have the same.
pub const VERSION: u8 = 14;

/// Feature number of what ranks and their agent share beside the wire format: what they say to each
/// other before a job and in it, the inboxes, doorbells and boards that they hand each other, and
/// the options that they agree on; and of what guests and their server say to each other.
///
/// Both must have the same, and the same major and minor version; their patch releases may differ.
/// So raise it by one with each change after which an older one of the same minor version would
/// misunderstand a newer one. It never goes back.
pub const FEATURE: u32 = 8;

/// Rounds up to the alignment of everything on the wire.
pub const fn align8(bytes: usize) -> usize {
    (bytes + 7) & !7
}
