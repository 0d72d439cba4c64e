//! Counts the system calls of this process by the kernel's tracepoint `raw_syscalls:sys_enter`.
//!
//! Nothing is stopped or rewritten, unlike under ptrace: each call of the process passes a counter
//! in the kernel.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Where the tracepoint's number stands, below the root of tracefs.
const NUMBER: &str = "events/raw_syscalls/sys_enter/id";

/// Where tracefs usually is.
const MOUNTED: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

const PERF_TYPE_TRACEPOINT: u32 = 2;
/// Bit of `perf_event_attr`: threads that the counted one starts later are counted with it.
const INHERIT: u64 = 1 << 1;

/// `perf_event_attr` as far as its first published size.
#[repr(C)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    breakpoint_address: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// Counters of all threads that the process has, and of those that they will start.
#[derive(Debug)]
pub(crate) struct Counter {
    events: Vec<File>,
}

impl Counter {
    /// Begins to count.
    ///
    /// # Errors
    /// What the kernel does not allow, with the remedy.
    pub fn open() -> Result<Self, String> {
        let number = tracepoint()?;
        let listed = |error: std::io::Error| format!("listing /proc/self/task: {error}");
        let mut events = Vec::new();
        for thread in std::fs::read_dir("/proc/self/task").map_err(listed)? {
            let name = thread.map_err(listed)?.file_name();
            let thread = name.to_str().and_then(|n| n.parse().ok());
            events.push(event(
                number,
                thread.ok_or_else(|| format!("/proc/self/task/{name:?} is no number"))?,
            )?);
        }
        Ok(Self { events })
    }

    /// System calls since the opening; a few of them are those of reading the counters.
    pub fn read(&self) -> Result<u64, String> {
        let mut sum = 0;
        for mut event in &self.events {
            let mut value = [0; 8];
            let read = event.read(&mut value);
            if !matches!(read, Ok(8)) {
                return Err(format!("reading a counter of system calls: {read:?}"));
            }
            sum += u64::from_ne_bytes(value);
        }
        Ok(sum)
    }
}

/// The tracepoint's number on this kernel.
fn tracepoint() -> Result<u64, String> {
    let mut why = String::new();
    for root in MOUNTED {
        match std::fs::read_to_string(format!("{root}/{NUMBER}")) {
            Ok(text) => return parsed(&text),
            Err(error) => why += &format!("{root}/{NUMBER}: {error}; "),
        }
    }
    // Root needs no mounted tracefs: an instance that is attached nowhere will do.
    let text = unattached().map_err(|error| {
        format!(
            "{why}opening tracefs: {error}; as root: mount -t tracefs -o mode=755 none /sys/kernel/tracing"
        )
    })?;
    parsed(&text)
}

fn unattached() -> std::io::Result<String> {
    let context = rustix::mount::fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let root = rustix::mount::fsmount(&context, flags, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    let number = rustix::fs::openat(
        &root,
        NUMBER,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut text = String::new();
    File::from(number).read_to_string(&mut text)?;
    Ok(text)
}

fn parsed(text: &str) -> Result<u64, String> {
    let number = text.trim().parse();
    number.map_err(|_| format!("{NUMBER} of tracefs holds `{text}` instead of a number"))
}

fn event(tracepoint: u64, thread: i32) -> Result<File, String> {
    let attributes = Attributes {
        kind: PERF_TYPE_TRACEPOINT,
        bytes: size_of::<Attributes>() as u32,
        config: tracepoint,
        sample_period: 0,
        sample_type: 0,
        read_format: 0,
        flags: INHERIT,
        wakeup_events: 0,
        breakpoint: 0,
        breakpoint_address: 0,
    };
    const ANY_CPU: libc::c_long = -1;
    const NO_GROUP: libc::c_long = -1;
    const CLOEXEC: libc::c_long = 1 << 3;
    // SAFETY: the attributes are alive during the call and say how long they are; the kernel only
    // reads them.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            libc::c_long::from(thread),
            ANY_CPU,
            NO_GROUP,
            CLOEXEC,
        )
    };
    if descriptor < 0 {
        let error = std::io::Error::last_os_error();
        let remedy = "needs root, CAP_PERFMON, or kernel.perf_event_paranoid at most 1";
        return Err(format!(
            "perf_event_open of raw_syscalls:sys_enter: {error}; {remedy}"
        ));
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
    Ok(File::from(owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_thread_and_of_those_that_it_starts_are_counted() {
        // Not of the whole process: other tests run in it.
        let this = rustix::thread::gettid().as_raw_nonzero().get();
        let counter = match tracepoint().and_then(|number| event(number, this)) {
            Ok(event) => Counter {
                events: vec![event],
            },
            Err(why) => return eprintln!("counting system calls: skipped: {why}"),
        };
        let count = |calls: u32| {
            let before = counter.read().unwrap();
            let ask = move || {
                (0..calls).for_each(|_| {
                    let _ = rustix::process::getppid();
                })
            };
            ask();
            std::thread::spawn(ask).join().unwrap();
            counter.read().unwrap() - before
        };
        let (few, many) = (count(0), count(5000));
        assert!(
            (10_000..10_100 + 2 * few).contains(&many),
            "{few} and {many}"
        );
    }
}
