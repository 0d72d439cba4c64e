//! State dumps: a call asks for one, and a thread writes it.
//!
//! A signal handler may ask, and it may have interrupted the very thread that has the engine,
//! inside of malloc or with a lock taken. No call can know that of itself. So none waits: asking is
//! one write to a pipe, from handlers and from anywhere else. What was asked for before is written
//! when its shuffle or nexus ends, and when the process exits.

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::IntoRawFd;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use super::openings::Opening;
use crate::capi::dump::write_recent;
use crate::capi::status::Failure;
use crate::threaded::{Job, Shuffle, ThreadUse};
use crate::transport::masked;
use crate::transport::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::{DetailedStats, Error, log};

/// Naps of a millisecond that [`settle`] takes at most.
const NAPS: u32 = 2_000;

/// A request on its way: the handle of a shuffle, and whether stderr wants it.
const REQUEST_BYTES: usize = 16;
/// Requests that are taken from the pipe at once: as many as it holds.
const REQUESTS: usize = 4096;

/// The writing end of the pipe plus 1, 0 until [`start`] has made it; its store pairs with the load
/// in [`ask`].
static ASK: AtomicU32 = AtomicU32::new(0);
/// The process whose thread answers; alone, so relaxed.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Requests that were made, and that were answered or found no room; the additions to the latter
/// pair with the load in [`settle`].
static ASKED: AtomicU64 = AtomicU64::new(0);
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// What can be dumped.
pub(super) struct Dumped {
    /// The handle that a caller has.
    pub handle: usize,
    pub shuffle: Arc<Opening>,
    /// Whose threads serve it.
    pub job: Job,
    pub notes: Arc<Notes>,
}

/// What this interface knows of a shuffle beyond the engine.
#[derive(Default)]
pub(super) struct Notes {
    /// The first failure that was not the caller's fault.
    failure: Mutex<Option<String>>,
}

impl Notes {
    /// Keeps the failure of a call, unless the caller can do better.
    pub fn keep(&self, error: &Error) {
        if !matches!(
            error,
            Error::Rank { .. }
                | Error::TooLarge { .. }
                | Error::NoMemory { .. }
                | Error::Nested(_)
                | Error::WouldBlock
        ) {
            self.failure().get_or_insert_with(|| error.to_string());
        }
    }

    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(failure) = &*self.failure() {
            writeln!(out, "  failed: {failure}")?;
        }
        Ok(())
    }
}

static SHUFFLES: Mutex<Vec<Dumped>> = Mutex::new(Vec::new());

fn shuffles() -> MutexGuard<'static, Vec<Dumped>> {
    SHUFFLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at a shuffle for a dump, a tenth of a second each where the engine is in use: less than a
/// process waits for dumps when it exits.
const LOOKS: usize = 10;

/// From now on the shuffle can be dumped.
pub(super) fn enter(dumped: Dumped) {
    shuffles().push(dumped);
}

/// The shuffle cannot be dumped any more.
pub(super) fn leave(handle: usize) {
    let mut shuffles = shuffles();
    let at = shuffles.iter().position(|dumped| dumped.handle == handle);
    let gone = at.map(|at| shuffles.swap_remove(at));
    drop(shuffles);
    drop(gone);
}

/// Starts the thread that dumps. It lives as long as the process, because a call that asks for a
/// dump may have read the descriptor before.
pub(super) fn start() -> Result<(), Failure> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    // Pairs with the store below of another nexus.
    if ASK.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let pipe = pipe_with(PipeFlags::CLOEXEC);
    let (reader, writer) =
        pipe.map_err(|e| Failure::system("a pipe for state dumps", &e.into()))?;
    // An asker never waits for room: a full pipe means that dumps enough are asked for.
    rustix::io::ioctl_fionbio(&writer, true)
        .map_err(|e| Failure::system("a pipe for state dumps that does not block", &e.into()))?;
    masked::spawn("trihop-dump", move || answer(File::from(reader))).map_err(Error::from)?;
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: the function is there as long as the process. Where no room is left for it, dumps may
    // be lost at the exit.
    let _ = unsafe { libc::atexit(settle) };
    // Never closed.
    ASK.store(writer.into_raw_fd() as u32 + 1, Ordering::Release);
    Ok(())
}

/// Asks for a dump, and never waits. May be called by a signal handler.
pub(super) fn ask(handle: usize, to_stderr: bool) {
    let descriptor = ASK.load(Ordering::Acquire);
    if descriptor == 0 {
        return;
    }
    ASKED.fetch_add(1, Ordering::Relaxed);
    let mut request = [0; REQUEST_BYTES];
    request[..8].copy_from_slice(&(handle as u64).to_le_bytes());
    request[8] = to_stderr.into();
    // SAFETY: a system call that a signal handler may make; errno is given back what it was, as the
    // interrupted code expects.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let written = libc::write(
            descriptor as c_int - 1,
            request.as_ptr().cast(),
            REQUEST_BYTES,
        );
        if written < 0 {
            // No room: so many are asked for already that this one is among them, or nobody reads
            // any more.
            ANSWERED.fetch_add(1, Ordering::Release);
        }
        *errno = before;
    }
}

/// Waits until what was asked for before is written, or for two seconds. Not for signal handlers,
/// but for the exit that they may begin: the thread that writes waits for nobody.
pub(super) extern "C" fn settle() {
    let asked = ASKED.load(Ordering::Relaxed);
    if PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return; // a fork, without the thread
    }
    for _ in 0..NAPS {
        // Pairs with the additions of who answers.
        if ANSWERED.load(Ordering::Acquire) >= asked {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The thread: answers requests as long as the process lives. Equal ones that wait together are
/// answered by one dump.
fn answer(mut requests: File) {
    let mut bytes = vec![0; REQUESTS * REQUEST_BYTES];
    // Requests are written whole, and the buffer holds whole ones: none is read in pieces.
    while let Ok(length @ 1..) = requests.read(&mut bytes) {
        let (asked, _) = bytes[..length].as_chunks::<REQUEST_BYTES>();
        let mut written: Vec<[u8; REQUEST_BYTES]> = Vec::new();
        for request in asked {
            if !written.contains(request) {
                write_dump(request);
                written.push(*request);
            }
        }
        ANSWERED.fetch_add(asked.len() as u64, Ordering::Release);
    }
}

fn write_dump(request: &[u8; REQUEST_BYTES]) {
    let (handle, rest) = request.split_at(8);
    let handle = u64::from_le_bytes(handle.try_into().expect("8 bytes")) as usize;
    let text = describe(handle);
    if rest[0] != 0 {
        let mut text = text.clone();
        // Memory takes all of it.
        let _ = write_recent(&mut text);
        // One write, so that ranks do not mix their lines more than they must. Nobody is there to
        // be told of a failure.
        let _ = io::stderr().write_all(&text);
    }
    log::keep(&String::from_utf8_lossy(&text));
}

/// What each queue of a shuffle has done, and what the threads have used, as lines. Empty where the
/// engine does not come free.
pub(super) fn statistics(shuffle: &Shuffle, threads: &[ThreadUse]) -> String {
    let details = shuffle.detailed_stats();
    details.map_or_else(String::new, |details| lines_of(&details, threads))
}

fn lines_of(details: &DetailedStats, threads: &[ThreadUse]) -> String {
    let threads = threads.iter().map(|thread| format!("  thread {thread}\n"));
    details.to_string() + &threads.collect::<String>()
}

/// The dump of a shuffle; a handle that is none, any more, is said to be so.
fn describe(handle: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let found = shuffles()
        .iter()
        .find(|dumped| dumped.handle == handle)
        .map(|dumped| {
            (
                Arc::clone(&dumped.shuffle),
                dumped.job.clone(),
                Arc::clone(&dumped.notes),
            )
        });
    match found {
        Some((opening, job, notes)) => {
            // On a busy machine who has the engine may not have a processor for long.
            let look = |shuffle: &Shuffle| (0..LOOKS).find_map(|_| shuffle.dump_and_stats());
            let found = opening.stream().map(look);
            // Memory takes all of it.
            let _ = match &found {
                Some(Some((queues, _))) => text.write_all(queues),
                Some(None) => writeln!(
                    text,
                    "shuffle `{}` is in use, or was shut down",
                    opening.name()
                ),
                None => writeln!(
                    text,
                    "shuffle `{}`: not all ranks have called shuffle_init yet",
                    opening.name()
                ),
            }
            .and_then(|()| notes.write(&mut text));
            if let Some(Some((_, details))) = found {
                text.extend_from_slice(lines_of(&details, &job.threads()).as_bytes());
            }
        }
        None => text.extend_from_slice(b"trihop: shuffle_statedump: this shuffle is not open\n"),
    }
    text
}
