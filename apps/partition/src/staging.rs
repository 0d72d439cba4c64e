//! The directory in which a rank makes its files, under numbers, before they get their names.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::error::{Error, Result, shown};
use super::interrupt;

/// A directory of files in the making; it is removed at the end.
#[derive(Debug)]
pub struct Staging {
    path: PathBuf,
    /// Its lock tells it from one that a killed job left behind.
    directory: File,
    files: u64,
}

impl Staging {
    /// Creates `path`, which is not there yet.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn create(path: PathBuf) -> Result<Self> {
        let failed =
            |error: io::Error| Error::system(format!("cannot create {}", shown(&path)), error);
        interrupt::remove_on_signal(&path);
        fs::create_dir(&path).map_err(failed)?;
        let directory = File::open(&path).map_err(failed)?;
        // A file system without locks is no reason to fail: the lock only protects from cleaning by
        // another job.
        if let Err(error) =
            rustix::fs::flock(directory.as_fd(), FlockOperation::NonBlockingLockExclusive)
        {
            tracing::debug!("{} cannot be locked: {error}", shown(&path));
        }
        Ok(Self {
            path,
            directory,
            files: 0,
        })
    }

    /// The number of a file to be.
    pub fn number(&mut self) -> u64 {
        self.files += 1;
        self.files - 1
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where file number `number` is.
    pub fn file(&self, number: u64) -> PathBuf {
        self.path.join(number.to_string())
    }

    /// Opens file number `number` to write at its end; creates it first if it `is_new`.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn append(&self, number: u64, is_new: bool) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create_new(is_new)
            .open(self.file(number))
    }

    /// Waits until everything on this file system is on the disk: cheaper than file by file where
    /// files are many.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(self.directory.as_fd())?)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes a staging directory, or as much of it as can be.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!("{} cannot be removed: {error}", shown(path));
    }
}
