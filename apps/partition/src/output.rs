//! The output directory: what may be in it at the start, and how a finished job is marked.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::error::shown;
use super::error::{Error, Result};
use trihop::log::Escaped;

/// Marks a directory whose partitions are complete.
pub const MARKER: &str = "_SUCCESS";

/// Name of a rank's partition.
pub fn part_name(rank: u32) -> String {
    format!("part-{rank:05}")
}

/// The rank whose partition has this name.
fn part_rank(name: &OsStr) -> Option<u64> {
    let digits = name.to_str()?.strip_prefix("part-")?;
    (digits.len() >= 5 && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

/// Whether this is the name of a partition in the making.
fn is_temporary(name: &OsStr) -> bool {
    name.to_str()
        .is_some_and(|name| name.starts_with(".part-") && name.ends_with(".tmp"))
}

/// The directory of one job.
#[derive(Clone, Debug)]
pub struct Output {
    dir: PathBuf,
    /// In the names of temporary files, so that jobs do not meet.
    token: u64,
}

impl Output {
    /// The directory, with the job's token.
    pub fn new(dir: &Path, token: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            token,
        }
    }

    /// Final name of a rank's partition.
    pub fn part(&self, rank: u32) -> PathBuf {
        self.dir.join(part_name(rank))
    }

    /// Name of a rank's partition in the making.
    pub fn temporary(&self, rank: u32) -> PathBuf {
        self.dir
            .join(format!(".part-{rank:05}.{:016x}.tmp", self.token))
    }

    /// Creates the directory, where each node has its own too.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn create(&self) -> Result<()> {
        fs::create_dir_all(&self.dir).map_err(|error| {
            Error::system(
                format!("cannot create the directory {}", shown(&self.dir)),
                error,
            )
        })
    }

    /// Makes sure that nothing is in the way, and removes what killed jobs have left.
    ///
    /// # Errors
    /// Partitions or a marker without `force`, or another job that is writing there.
    pub fn prepare(&self, force: bool) -> Result<()> {
        self.create()?;
        let mut present = None;
        for name in self.names()? {
            if is_temporary(&name) {
                self.remove_stale(&name)?;
            } else if name == MARKER || (part_rank(&name).is_some() && present.is_none()) {
                present = Some(name);
            }
        }
        match present {
            Some(name) if !force => Err(Error::Usage(format!(
                "{} already holds {}; choose another directory or add --force",
                shown(&self.dir),
                Escaped(name.as_encoded_bytes())
            ))),
            _ => Ok(()),
        }
    }

    /// Removes an old marker, then the old partitions that the job does not replace.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn clear_old(&self, ranks: u32) -> Result<()> {
        self.remove(OsStr::new(MARKER))?;
        self.sync()?;
        for name in self.names()? {
            if part_rank(&name).is_some_and(|rank| rank >= u64::from(ranks)) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Writes the marker; its content is the summary.
    ///
    /// # Errors
    /// The operating system's answer; there is no marker then.
    pub fn mark(&self, summary: &str) -> Result<()> {
        let marker = self.dir.join(MARKER);
        let temporary = self
            .dir
            .join(format!(".part-{MARKER}.{:016x}.tmp", self.token));
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(summary.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&temporary, &marker)
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            Error::system(format!("cannot write {}", shown(&marker)), error)
        })?;
        self.sync()
    }

    /// Waits until renames are on the disk.
    ///
    /// # Errors
    /// The operating system's answer, unless directories cannot be synchronised there.
    pub fn sync(&self) -> Result<()> {
        let synced = File::open(&self.dir).and_then(|dir| dir.sync_all());
        match synced {
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(Error::system(
                format!("cannot synchronise the directory {}", shown(&self.dir)),
                error,
            )),
            _ => Ok(()),
        }
    }

    fn names(&self) -> Result<Vec<std::ffi::OsString>> {
        fs::read_dir(&self.dir)
            .and_then(|entries| {
                entries
                    .map(|entry| entry.map(|entry| entry.file_name()))
                    .collect()
            })
            .map_err(|error| {
                Error::system(
                    format!("cannot list the directory {}", shown(&self.dir)),
                    error,
                )
            })
    }

    fn remove(&self, name: &OsStr) -> Result<()> {
        let path = self.dir.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::system(
                format!("cannot remove the old {}", shown(&path)),
                error,
            )),
            _ => Ok(()),
        }
    }

    /// Removes a temporary file that nobody has locked.
    fn remove_stale(&self, name: &OsStr) -> Result<()> {
        let path = self.dir.join(name);
        let Ok(file) = File::open(&path) else {
            return Ok(());
        };
        match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Usage(format!(
                "another job is writing {}; wait for it or choose another directory",
                shown(&path)
            ))),
            _ => self.remove(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::writer::PartWriter;
    use super::*;

    fn touch(dir: &Path, name: &str) {
        fs::write(dir.join(name), b"x").unwrap();
    }

    fn listed(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn old_partitions_are_refused_without_force_and_go_when_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::new(dir.path(), 7);
        touch(dir.path(), "notes.txt");
        touch(dir.path(), "part-1");
        output.prepare(false).unwrap();
        for name in ["part-00000", MARKER, "part-123456"] {
            touch(dir.path(), name);
            let text = output.prepare(false).unwrap_err().to_string();
            assert!(
                text.contains("already holds") && text.contains("--force"),
                "{text}"
            );
            output.prepare(true).unwrap();
        }
        output.clear_old(2).unwrap();
        assert_eq!(listed(dir.path()), ["notes.txt", "part-00000", "part-1"]);
        output.mark("{}").unwrap();
        assert_eq!(
            listed(dir.path()),
            ["_SUCCESS", "notes.txt", "part-00000", "part-1"]
        );
    }

    #[test]
    fn leftovers_of_killed_jobs_go_but_not_those_of_a_running_one() {
        let dir = tempfile::tempdir().unwrap();
        touch(dir.path(), ".part-00003.0000000000000001.tmp");
        Output::new(dir.path(), 2).prepare(false).unwrap();
        assert!(listed(dir.path()).is_empty());
        let running = Output::new(dir.path(), 3);
        let part = PartWriter::create(running.temporary(0), running.part(0), b"").unwrap();
        let text = Output::new(dir.path(), 4)
            .prepare(true)
            .unwrap_err()
            .to_string();
        assert!(text.contains("another job is writing"), "{text}");
        drop(part);
        Output::new(dir.path(), 4).prepare(false).unwrap();
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = Output::new(file.path(), 0)
            .prepare(false)
            .unwrap_err()
            .to_string();
        assert!(text.contains("cannot create the directory"), "{text}");
    }
}
