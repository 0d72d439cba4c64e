//! What each anonymous file that this process maps is used as: one layout for all of its mappings,
//! until the last one goes.
//!
//! Two layouts over the same bytes would hand out the same bytes twice. The file itself says what
//! it is laid out as too, but other processes write there.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use crate::error::{Error, Result};
use crate::sync::{PoisonError, StaticMutex};

static FILES: StaticMutex<BTreeMap<FileId, Use>> = StaticMutex::new(BTreeMap::new());

/// A file, by the kernel's numbers of its file system and of itself there. No other file has them
/// while this one is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileId {
    device: u64,
    number: u64,
}

/// How this process uses a file.
#[derive(Debug, Default)]
struct Use {
    mappings: usize,
    shape: Option<u64>,
}

/// The place of one mapping among those of its file.
#[derive(Debug)]
pub(super) struct Place(FileId);

impl Place {
    /// One more mapping of this file.
    pub(super) fn of(file: BorrowedFd<'_>) -> Result<Self> {
        let status = rustix::fs::fstat(file)
            .map_err(|e| Error::system("asking which file a segment is", e))?;
        let id = FileId {
            device: status.st_dev,
            number: status.st_ino,
        };
        files(|files| files.entry(id).or_default().mappings += 1);
        Ok(Self(id))
    }

    /// The file's shape: this one, where it has none yet.
    pub(super) fn settle(&self, shape: u64) -> u64 {
        files(|files| *files.entry(self.0).or_default().shape.get_or_insert(shape))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        files(|files| {
            if let Some(of_file) = files.get_mut(&self.0) {
                of_file.mappings -= 1;
                if of_file.mappings == 0 {
                    files.remove(&self.0);
                }
            }
        });
    }
}

fn files<T>(work: impl FnOnce(&mut BTreeMap<FileId, Use>) -> T) -> T {
    work(&mut FILES.lock().unwrap_or_else(PoisonError::into_inner))
}
