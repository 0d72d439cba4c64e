//! How much memory this process may use: what its control groups, the machine and `ulimit -v`
//! allow.
//!
//! The kernel kills a process that passes a control group's limit, without a word and in the middle
//! of the work. A process that knows the limit at start can refuse what cannot fit, and size the
//! rest.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::hugepage::meminfo_number;
use super::kernel_file;

/// A number of bytes above which somebody is killed or refused memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The limit in bytes; `u64::MAX` where none is known.
    pub bytes: u64,
    /// Where it stands, for messages: a file of a control group, `/proc/meminfo`, `ulimit -v`.
    pub source: String,
    /// Who shares it.
    pub scope: Scope,
}

/// Whose memory counts against a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// This process alone.
    Process,
    /// All processes of a control group. Two processes of one machine that name the same number
    /// mean the same group.
    Group(u64),
    /// All processes of the machine.
    Machine,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            u64::MAX => f.write_str("no memory limit is known"),
            bytes => write!(f, "{bytes} bytes ({})", self.source),
        }
    }
}

/// The least of [`limits`]: what this process and those who share it with this process may use
/// together.
///
/// It is the limit itself, not what others have left of it. Reads a few small files; meant for
/// start, not for each message.
pub fn available() -> Limit {
    available_of(limits())
}

/// As [`available`], of [`limits`] that were asked for before.
pub fn available_of(limits: Vec<Limit>) -> Limit {
    least(limits).unwrap_or_else(|| Limit {
        bytes: u64::MAX,
        source: "neither control groups nor /proc/meminfo could be read".into(),
        scope: Scope::Machine,
    })
}

/// The limits that hold for this process, the least of each [`Scope`]: at most three.
///
/// Control groups are those of version 1 and 2 that this process sees, from its own one up to the
/// root of the mount. What cannot be read limits nothing.
pub fn limits() -> Vec<Limit> {
    limits_under(Path::new("/"), getrlimit(Resource::As).current)
}

/// As [`limits`], of a machine whose files lie below `root`, for a process that may have
/// `address_space` bytes.
pub fn limits_under(root: &Path, address_space: Option<u64>) -> Vec<Limit> {
    let process = address_space.map(|bytes| Limit {
        bytes,
        source: "RLIMIT_AS, see `ulimit -v`".into(),
        scope: Scope::Process,
    });
    let meminfo = read(&root.join("proc/meminfo")).unwrap_or_default();
    let total_kib = meminfo_number(&String::from_utf8_lossy(&meminfo), "MemTotal");
    let machine = total_kib
        .and_then(|kib| kib.checked_mul(1024))
        .map(|bytes| Limit {
            bytes: bytes as u64,
            source: "MemTotal of /proc/meminfo".into(),
            scope: Scope::Machine,
        });
    [process, least(group_limits(root)), machine]
        .into_iter()
        .flatten()
        .collect()
}

/// The least one; of equal ones the last, which is the outermost group.
fn least(limits: Vec<Limit>) -> Option<Limit> {
    limits.into_iter().rev().min_by_key(|limit| limit.bytes)
}

/// What version 1 says where there is no limit: the most pages that a counter takes, which depends
/// on the page size. No machine has as much memory as the least of these numbers.
const UNLIMITED_V1: u64 = i64::MAX as u64 & !0xf_ffff;

/// The two versions of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }
}

/// A mount of a hierarchy of control groups that may limit memory.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The group that lies at the mount point.
    group: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Parses a line of `/proc/self/mountinfo`; `None` for other file systems and for lines that
    /// make no sense.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|&b| b == b' ');
        let (group, point) = (words.nth(3)?, words.next()?);
        // Any number of optional fields, up to a lone dash.
        words.find(|&word| word == b"-")?;
        let (kind, _, options) = (words.next()?, words.next()?, words.next()?);
        let version = match kind {
            b"cgroup2" => Version::Two,
            b"cgroup" if options.split(|&b| b == b',').any(|o| o == b"memory") => Version::One,
            _ => return None,
        };
        Some(Self {
            version,
            group: unescape(group),
            point: unescape(point),
        })
    }

    /// Directory below `root` of the group `own`, where this mount shows it or one that holds it.
    fn directory(&self, root: &Path, own: &Path) -> Option<PathBuf> {
        let point = below(root, &self.point)?;
        let mut outer = self.group.components().skip(1).peekable();
        // A mount made outside of our namespace of groups: its group holds ours, and more is not
        // known.
        if outer.peek().is_some() && outer.all(|c| c == Component::ParentDir) {
            return Some(point);
        }
        below(&point, own.strip_prefix(&self.group).ok()?)
    }
}

/// `path` below `root`; `None` where it leads out of it.
fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut joined = root.to_owned();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => joined.push(name),
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(joined)
}

/// Undoes what the kernel does to blanks and the like in `/proc/self/mountinfo`: `\040` is a space.
fn unescape(word: &[u8]) -> PathBuf {
    let octal = |digits: &[u8]| {
        digits.iter().try_fold(0u8, |value, &digit| {
            let digit = digit.checked_sub(b'0').filter(|&d| d < 8)?;
            value.checked_mul(8)?.checked_add(digit)
        })
    };
    let (mut plain, mut rest) = (Vec::new(), word);
    while let Some((&first, behind)) = rest.split_first() {
        let escaped = behind.get(..3).filter(|_| first == b'\\').and_then(octal);
        plain.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() {
            &behind[3..]
        } else {
            behind
        };
    }
    PathBuf::from(OsStr::from_bytes(&plain))
}

/// The group of this process in the hierarchy that limits memory, from a line of
/// `/proc/self/cgroup`.
fn own_group(line: &[u8]) -> Option<(Version, &Path)> {
    let mut parts = line.splitn(3, |&b| b == b':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let version = match (number, controllers) {
        (b"0", b"") => Version::Two,
        _ if controllers.split(|&b| b == b',').any(|c| c == b"memory") => Version::One,
        _ => return None,
    };
    Some((version, Path::new(OsStr::from_bytes(path))))
}

/// All limits of the groups that hold this process, from its own one outwards.
fn group_limits(root: &Path) -> Vec<Limit> {
    let (Some(groups), Some(mounts)) = (
        read(&root.join("proc/self/cgroup")),
        read(&root.join("proc/self/mountinfo")),
    ) else {
        return Vec::new();
    };
    let own: Vec<_> = groups
        .split(|&b| b == b'\n')
        .filter_map(own_group)
        .collect();
    let mut limits = Vec::new();
    for mount in mounts.split(|&b| b == b'\n').filter_map(Mount::parse) {
        for (_, path) in own.iter().filter(|(version, _)| *version == mount.version) {
            if let (Some(leaf), Some(top)) =
                (mount.directory(root, path), below(root, &mount.point))
            {
                walk_up(&leaf, &top, mount.version, &mut limits);
            }
        }
    }
    limits
}

/// The limits of the group in the directory `leaf` and of those that hold it, up to the one in
/// `top`.
fn walk_up(leaf: &Path, top: &Path, version: Version, limits: &mut Vec<Limit>) {
    let steps = leaf
        .strip_prefix(top)
        .map_or(0, |path| path.components().count());
    for (step, directory) in leaf.ancestors().take(steps + 1).enumerate() {
        // Before Linux 5.11 a group of version 1 could leave those inside it out of its account.
        let alone = || {
            read(&directory.join("memory.use_hierarchy"))
                .is_some_and(|text| text.trim_ascii() == b"0")
        };
        if version == Version::One && step > 0 && alone() {
            return;
        }
        limits.extend(limit_of(directory, version));
    }
}

/// The limit of the group in this directory, if it has one.
fn limit_of(directory: &Path, version: Version) -> Option<Limit> {
    let file = directory.join(version.file());
    let text = read(&file)?;
    let text = String::from_utf8_lossy(&text);
    let bytes = match (version, text.trim(), text.trim().parse::<u64>()) {
        (Version::Two, "max", _) => return None,
        (Version::One, _, Ok(bytes)) if bytes >= UNLIMITED_V1 => return None,
        // What version 1 takes for "none".
        (Version::One, "-1", _) => return None,
        (_, _, Ok(bytes)) => bytes,
        (_, odd, Err(_)) => {
            let odd: String = odd.chars().take(40).collect();
            tracing::warn!("{file:?} says {odd:?}, which is no number of bytes: taken as no limit");
            return None;
        }
    };
    let status = std::fs::metadata(directory).ok()?;
    Some(Limit {
        bytes,
        source: format!("{file:?}"),
        scope: Scope::Group(status.dev().rotate_left(40) ^ status.ino()),
    })
}

/// Contents of a file; `None`, and a word at level debug, where it cannot be read: most groups
/// limit no memory.
fn read(path: &Path) -> Option<Vec<u8>> {
    kernel_file::read(path)
        .inspect_err(|error| tracing::debug!("{path:?} says nothing about memory: {error}"))
        .ok()
}

#[cfg(test)]
#[path = "limit_tests.rs"]
mod tests;
