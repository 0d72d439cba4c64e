//! The output directory: what may be in it at the start, and how a finished job is marked.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use trihop::log::Escaped;

use super::error::{Error, Result, shown};
use super::hive;

/// Marks a directory whose parts are complete.
pub const MARKER: &str = "_SUCCESS";

/// What the file of left out records is called, without extension.
const SKIPPED: &str = "_skipped";

/// Whether this is the name of a part, or of left out records, with whichever extension.
fn is_part(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    let stem = name.split('.').next().unwrap_or_default();
    let is_number =
        |digits: &str| digits.len() >= 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    stem == SKIPPED || stem.strip_prefix("part-").is_some_and(is_number)
}

/// Whether this is the name of parts in the making.
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
    /// Of parts, with its dot.
    extension: String,
}

impl Output {
    /// The directory, with the job's token and the extension of parts.
    pub fn new(dir: &Path, token: u64, extension: String) -> Self {
        Self {
            dir: dir.to_owned(),
            token,
            extension,
        }
    }

    /// Name of a part of a split by hash.
    pub fn part(&self, number: u32) -> PathBuf {
        format!("part-{number:05}{}", self.extension).into()
    }

    /// Name of the part in a directory of values.
    pub fn part_in(&self, directory: &[u8]) -> PathBuf {
        Path::new(&*String::from_utf8_lossy(directory)).join(self.part(0))
    }

    /// Name of the file of left out records.
    pub fn skipped(&self) -> PathBuf {
        format!("{SKIPPED}{}", self.extension).into()
    }

    /// Where a part of this name is.
    pub fn path(&self, name: &Path) -> PathBuf {
        self.dir.join(name)
    }

    /// Where a rank makes its parts.
    pub fn staging(&self, rank: u32) -> PathBuf {
        self.dir
            .join(format!(".part-{rank:05}.{:016x}.tmp", self.token))
    }

    /// Creates the directory.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn create(&self) -> Result<()> {
        fs::create_dir_all(&self.dir).map_err(|error| {
            Error::system(
                format!("cannot create the directory {} (--out)", shown(&self.dir)),
                error,
            )
        })
    }

    /// Makes sure that this is the directory in which rank 0 makes its parts too, once all ranks
    /// do.
    ///
    /// # Errors
    /// It is another one, as on a disk of this node alone.
    pub fn check_shared(&self, rank: u32) -> Result<()> {
        match self.staging(0).symlink_metadata() {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Usage(format!(
                "{} of rank {rank} on {} is not that of rank 0: the parts of a job are in one \
                 directory; choose one that all nodes share",
                shown(&self.dir),
                rustix::system::uname().nodename().to_string_lossy()
            ))),
            Err(error) => Err(Error::system(
                format!("cannot look into {}", shown(&self.dir)),
                error,
            )),
        }
    }

    /// Makes sure that nothing is in the way, and removes what killed jobs have left.
    ///
    /// # Errors
    /// Parts or a marker without `force`, parts that are `inputs`, or another job that is writing
    /// there.
    pub fn prepare<'p>(&self, force: bool, inputs: impl Iterator<Item = &'p Path>) -> Result<()> {
        self.create()?;
        for name in self.names(Path::new(""))? {
            if is_temporary(&name) {
                self.remove_stale(&name)?;
            }
        }
        let old = self.old_parts()?;
        let marker = Some(PathBuf::from(MARKER)).filter(|name| self.path(name).exists());
        let present = marker.or_else(|| old.first().cloned());
        if let (Some(name), false) = (present, force) {
            return Err(Error::Usage(format!(
                "{} already holds {}; choose another directory or add --force",
                shown(&self.dir),
                Escaped(name.as_os_str().as_encoded_bytes())
            )));
        }
        let real = |path: &Path| fs::canonicalize(path).ok();
        let old: HashSet<PathBuf> = old
            .iter()
            .filter_map(|name| real(&self.path(name)))
            .collect();
        let mut inputs = inputs.filter(|path| real(path).is_some_and(|path| old.contains(&path)));
        match inputs.next() {
            Some(path) => Err(Error::Usage(format!(
                "{} is an input, and --force would replace it; choose another directory",
                shown(path)
            ))),
            None => Ok(()),
        }
    }

    /// All parts in the directory and in directories of values below it.
    fn old_parts(&self) -> Result<Vec<PathBuf>> {
        let (mut found, mut below) = (Vec::new(), vec![PathBuf::new()]);
        while let Some(directory) = below.pop() {
            for name in self.names(&directory)? {
                let path = directory.join(&name);
                if is_part(&name) {
                    found.push(path);
                } else if hive::is_name(name.as_encoded_bytes()) && self.is_directory(&path) {
                    below.push(path);
                }
            }
        }
        Ok(found)
    }

    /// Whether it is a directory itself: a link may lead anywhere, also back.
    fn is_directory(&self, path: &Path) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok_and(|metadata| metadata.is_dir())
    }

    /// Removes an old marker, then the old parts that the job does not replace.
    ///
    /// # Errors
    /// The operating system's answer.
    pub fn clear_old<'n>(&self, replaced: impl Iterator<Item = &'n str>) -> Result<()> {
        self.remove(Path::new(MARKER))?;
        self.sync()?;
        let replaced: HashSet<&Path> = replaced.map(Path::new).collect();
        for name in self.old_parts()? {
            if !replaced.contains(&*name) {
                self.remove(&name)?;
                self.remove_empty(&name);
            }
        }
        Ok(())
    }

    /// Takes a part away again; its directories go with the last one in them.
    pub fn withdraw(&self, name: &Path) {
        if let Err(error) = self.remove(name) {
            tracing::warn!("{error}");
        }
        self.remove_empty(name);
    }

    /// Removes the directories of values of a part that is gone, where nothing is in them.
    fn remove_empty(&self, name: &Path) {
        for directory in name.ancestors().skip(1) {
            let is_ours = !directory.as_os_str().is_empty();
            if !is_ours || fs::remove_dir(self.path(directory)).is_err() {
                break;
            }
        }
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

    fn names(&self, below: &Path) -> Result<Vec<std::ffi::OsString>> {
        fs::read_dir(self.path(below))
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

    fn remove(&self, name: &Path) -> Result<()> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::system(
                format!("cannot remove the old {}", shown(&path)),
                error,
            )),
            _ => Ok(()),
        }
    }

    /// Removes parts in the making that nobody has locked.
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
            _ if path.is_dir() => fs::remove_dir_all(&path).map_err(|error| {
                Error::system(format!("cannot remove the old {}", shown(&path)), error)
            }),
            _ => self.remove(Path::new(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::staging::Staging;
    use super::*;

    fn output(dir: &Path, token: u64) -> Output {
        Output::new(dir, token, ".csv".to_owned())
    }

    fn prepare(output: &Output, force: bool) -> Result<()> {
        output.prepare(force, [].into_iter())
    }

    fn touch(dir: &Path, name: &str) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"x").unwrap();
    }

    fn listed(dir: &Path) -> Vec<String> {
        let below = walkdir::WalkDir::new(dir).min_depth(1).sort_by_file_name();
        below
            .into_iter()
            .map(|entry| {
                let entry = entry.unwrap();
                let name = entry.path().strip_prefix(dir).unwrap();
                name.to_str().unwrap().to_owned()
            })
            .collect()
    }

    #[test]
    fn old_parts_are_refused_without_force_and_go_when_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let output = output(dir.path(), 7);
        std::os::unix::fs::symlink(".", dir.path().join("link=")).unwrap();
        let others = [
            "a=b/notes.txt",
            "notes.txt",
            "part-1",
            "values/part-00000.csv",
        ];
        others.iter().for_each(|name| touch(dir.path(), name));
        prepare(&output, false).unwrap();
        let old = [
            "part-00000",
            MARKER,
            "part-123456",
            "part-00001.csv.gz",
            "a=b/c=/part-00000.csv",
            "a=b/part-00000.csv",
            "_skipped.csv",
            "part-00000.csv",
        ];
        for name in old {
            touch(dir.path(), name);
            let text = prepare(&output, false).unwrap_err().to_string();
            assert!(
                text.contains("already holds") && text.contains("--force"),
                "{text}"
            );
            prepare(&output, true).unwrap();
        }
        output
            .clear_old(["part-00000.csv", "a=b/part-00000.csv"].into_iter())
            .unwrap();
        output.mark("{}").unwrap();
        assert_eq!(
            listed(dir.path()),
            [
                "_SUCCESS",
                "a=b",
                "a=b/notes.txt",
                "a=b/part-00000.csv",
                "link=",
                "notes.txt",
                "part-00000.csv",
                "part-1",
                "values",
                "values/part-00000.csv"
            ]
        );
    }

    #[test]
    fn parts_that_are_inputs_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["part-00000.csv", "other.csv"] {
            touch(dir.path(), name);
        }
        let output = output(dir.path(), 7);
        let (other, part) = (
            dir.path().join("other.csv"),
            dir.path().join("./part-00000.csv"),
        );
        output.prepare(true, [&*other].into_iter()).unwrap();
        let text = output
            .prepare(true, [&*other, &*part].into_iter())
            .unwrap_err()
            .to_string();
        assert!(text.contains("part-00000.csv is an input"), "{text}");
    }

    #[test]
    fn leftovers_of_killed_jobs_go_but_not_those_of_a_running_one() {
        let dir = tempfile::tempdir().unwrap();
        touch(dir.path(), ".part-00003.0000000000000001.tmp/0");
        touch(dir.path(), ".part-_SUCCESS.0000000000000001.tmp");
        prepare(&output(dir.path(), 2), false).unwrap();
        assert!(listed(dir.path()).is_empty());
        let running = Staging::create(output(dir.path(), 3).staging(0)).unwrap();
        let text = prepare(&output(dir.path(), 4), true)
            .unwrap_err()
            .to_string();
        assert!(text.contains("another job is writing"), "{text}");
        drop(running);
        prepare(&output(dir.path(), 4), false).unwrap();
    }

    #[test]
    fn a_withdrawn_part_takes_its_directories_along() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a=1/b=2/part-00000.csv", "a=1/b=3/part-00000.csv"] {
            touch(dir.path(), name);
        }
        let output = output(dir.path(), 7);
        output.withdraw(&output.part_in(b"a=1/b=2"));
        assert_eq!(
            listed(dir.path()),
            ["a=1", "a=1/b=3", "a=1/b=3/part-00000.csv"]
        );
        output.withdraw(&output.part_in(b"a=1/b=3"));
        assert!(listed(dir.path()).is_empty());
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = prepare(&output(file.path(), 0), false)
            .unwrap_err()
            .to_string();
        assert!(text.contains("cannot create the directory"), "{text}");
    }
}
