//! What a call says about itself: a number, a sentence for it, and the full text of this thread's
//! last failure.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Error;
use crate::transport::Error as TransportError;

/// What a call returns. The numbers are stable; new ones may be added.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_status_t {
    /// Done.
    TRIHOP_OK = 0,
    /// No room now. A send has taken nothing; a flush, fence, barrier or close goes on at the next
    /// call. Make progress, take what waits on streams without a handler, and call again.
    TRIHOP_ERR_WOULD_BLOCK = 1,
    /// A rank outside of the job.
    TRIHOP_ERR_RANK = 2,
    /// A record above `max_message_bytes`.
    TRIHOP_ERR_TOO_LARGE = 3,
    /// A call that waits for others, from inside a handler.
    TRIHOP_ERR_NESTED = 4,
    /// The job, the stream or the channel was shut down.
    TRIHOP_ERR_CLOSED = 5,
    /// The ranks do not agree about a stream or a collective.
    TRIHOP_ERR_MISMATCH = 6,
    /// An option that is unknown, impossible, or contradicts another.
    TRIHOP_ERR_CONFIG = 7,
    /// A libfabric call failed for good.
    TRIHOP_ERR_FABRIC = 8,
    /// No provider of libfabric meets the needs.
    TRIHOP_ERR_NO_PROVIDER = 9,
    /// A call of the operating system failed.
    TRIHOP_ERR_SYSTEM = 10,
    /// The launcher, or the allgather of `trihop_init_custom`, failed or a rank did not arrive.
    TRIHOP_ERR_BOOTSTRAP = 11,
    /// A peer runs another version of the wire format.
    TRIHOP_ERR_WIRE_VERSION = 12,
    /// A peer sent bytes that cannot be true.
    TRIHOP_ERR_BAD_PEER = 13,
    /// A peer died or stopped answering.
    TRIHOP_ERR_PEER_DEAD = 14,
    /// An argument that cannot be: a null pointer, a text that is not UTF-8, an unknown number.
    TRIHOP_ERR_INVALID_ARGUMENT = 15,
    /// The caller's buffer does not hold the result; the length that is needed was stored.
    TRIHOP_ERR_BUFFER_TOO_SMALL = 16,
    /// No memory.
    TRIHOP_ERR_NO_MEMORY = 17,
    /// A defect of the library: please report the text. The object that was called is in no known
    /// state.
    TRIHOP_ERR_PANIC = 18,
    /// A failure that this interface has no number for yet; the text says what it is.
    TRIHOP_ERR_OTHER = 19,
    /// A peer lives, but its part of the job has failed; the text has its error.
    TRIHOP_ERR_PEER_FAILED = 20,
    /// A call that makes no sense after those before it: two ends of a step at once, or the end of
    /// none; a mini-rank that was taken before; what belongs to an inline job, on another thread
    /// than the one that started that. Nothing was done.
    TRIHOP_ERR_MISUSE = 21,
    /// A call on a channel has taken as long as it may, with nothing done.
    TRIHOP_ERR_TIMED_OUT = 22,
    /// A text that names no channel: no descriptor, or one of another job or of a channel that is
    /// gone.
    TRIHOP_ERR_NO_CHANNEL = 23,
    /// A barrier was aborted, or was reset while this call waited in it.
    TRIHOP_ERR_BROKEN = 24,
    /// The agent of this node is gone.
    TRIHOP_ERR_AGENT_DEAD = 25,
    /// What served a guest has ended, or can serve it no longer. What was sent and not waited for
    /// may be lost. Attach at the next server.
    TRIHOP_ERR_SERVER_FAILED = 26,
}

use trihop_status_t::*;

impl trihop_status_t {
    /// Number and sentence of every status, in order of their numbers.
    const ALL: [(Self, &'static CStr); 27] = [
        (TRIHOP_OK, c"done"),
        (
            TRIHOP_ERR_WOULD_BLOCK,
            c"no room now, or nothing to take; take what waits, and call again",
        ),
        (TRIHOP_ERR_RANK, c"there is no such rank in the job"),
        (
            TRIHOP_ERR_TOO_LARGE,
            c"the record is longer than max_message_bytes, or than its channel allows",
        ),
        (TRIHOP_ERR_NESTED, c"this cannot be called inside a handler"),
        (
            TRIHOP_ERR_CLOSED,
            c"the job, the stream or the channel is shut down",
        ),
        (TRIHOP_ERR_MISMATCH, c"the ranks do not agree"),
        (TRIHOP_ERR_CONFIG, c"an option is unknown or impossible"),
        (TRIHOP_ERR_FABRIC, c"a libfabric call failed"),
        (
            TRIHOP_ERR_NO_PROVIDER,
            c"no provider of libfabric can be used",
        ),
        (TRIHOP_ERR_SYSTEM, c"a call of the operating system failed"),
        (TRIHOP_ERR_BOOTSTRAP, c"the job could not be put together"),
        (
            TRIHOP_ERR_WIRE_VERSION,
            c"a peer runs another version of trihop",
        ),
        (TRIHOP_ERR_BAD_PEER, c"a peer sent bytes that are not valid"),
        (TRIHOP_ERR_PEER_DEAD, c"a peer is gone"),
        (TRIHOP_ERR_INVALID_ARGUMENT, c"an argument is not valid"),
        (
            TRIHOP_ERR_BUFFER_TOO_SMALL,
            c"the buffer is too small for the result",
        ),
        (TRIHOP_ERR_NO_MEMORY, c"no memory"),
        (TRIHOP_ERR_PANIC, c"a defect inside trihop"),
        (TRIHOP_ERR_OTHER, c"trihop failed"),
        (TRIHOP_ERR_PEER_FAILED, c"a peer has failed"),
        (
            TRIHOP_ERR_MISUSE,
            c"this makes no sense after the calls before it",
        ),
        (
            TRIHOP_ERR_TIMED_OUT,
            c"the call has taken as long as it may",
        ),
        (TRIHOP_ERR_NO_CHANNEL, c"there is no such channel"),
        (TRIHOP_ERR_BROKEN, c"the barrier is broken"),
        (TRIHOP_ERR_AGENT_DEAD, c"an agent is gone"),
        (TRIHOP_ERR_SERVER_FAILED, c"the server of guests is gone"),
    ];

    /// The status of an error of the library.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::WouldBlock => TRIHOP_ERR_WOULD_BLOCK,
            Error::Rank { .. } => TRIHOP_ERR_RANK,
            Error::TooLarge { .. } => TRIHOP_ERR_TOO_LARGE,
            Error::BufferTooSmall { .. } => TRIHOP_ERR_BUFFER_TOO_SMALL,
            Error::NoMemory { .. } | Error::SpillFull { .. } | Error::BroadcastsFull { .. } => {
                TRIHOP_ERR_NO_MEMORY
            }
            Error::Nested(_) => TRIHOP_ERR_NESTED,
            Error::Closed(_) | Error::ChannelClosed { .. } => TRIHOP_ERR_CLOSED,
            Error::TimedOut(_) => TRIHOP_ERR_TIMED_OUT,
            Error::BarrierBroken { .. } => TRIHOP_ERR_BROKEN,
            Error::NoChannel { .. } => TRIHOP_ERR_NO_CHANNEL,
            Error::MiniRank { .. } => TRIHOP_ERR_MISUSE,
            Error::Mismatch { .. } => TRIHOP_ERR_MISMATCH,
            Error::Config { .. } | Error::Environment { .. } => TRIHOP_ERR_CONFIG,
            Error::Handler { .. } => TRIHOP_ERR_PANIC,
            Error::Fabric { .. } => TRIHOP_ERR_FABRIC,
            Error::NoProvider { .. } => TRIHOP_ERR_NO_PROVIDER,
            Error::System { source, .. } => Self::of_system(source),
            Error::Bootstrap { .. } => TRIHOP_ERR_BOOTSTRAP,
            Error::Version { .. } => TRIHOP_ERR_WIRE_VERSION,
            Error::BadPeer { .. } | Error::NoElement { .. } => TRIHOP_ERR_BAD_PEER,
            Error::PeerDead { .. } => TRIHOP_ERR_PEER_DEAD,
            Error::AgentDead { .. } => TRIHOP_ERR_AGENT_DEAD,
            Error::PeerFailed { .. } => TRIHOP_ERR_PEER_FAILED,
            Error::ServerFailed { .. } => TRIHOP_ERR_SERVER_FAILED,
            Error::LinkFailed { .. } => TRIHOP_ERR_FABRIC,
            Error::Misuse { .. } => TRIHOP_ERR_MISUSE,
            _ => TRIHOP_ERR_OTHER,
        }
    }

    fn of_system(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::OutOfMemory => TRIHOP_ERR_NO_MEMORY,
            _ => TRIHOP_ERR_SYSTEM,
        }
    }
}

/// A failed call: its status and the sentence for [`trihop_last_error`].
#[derive(Debug)]
pub(crate) struct Failure {
    pub status: trihop_status_t,
    pub text: String,
}

impl Failure {
    pub fn new(status: trihop_status_t, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    pub fn argument(text: impl Into<String>) -> Self {
        Self::new(TRIHOP_ERR_INVALID_ARGUMENT, text)
    }

    pub fn system(what: impl std::fmt::Display, error: &std::io::Error) -> Self {
        Self::new(
            trihop_status_t::of_system(error),
            format!("{what}: {error}"),
        )
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(trihop_status_t::of(&error), error.to_string())
    }
}

impl From<TransportError> for Failure {
    fn from(error: TransportError) -> Self {
        Error::from(error).into()
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Notes a failure for [`trihop_last_error`] of this thread.
pub(crate) fn note(failure: Failure) -> trihop_status_t {
    // A text from outside may hold a NUL, which C would take for its end.
    let text = CString::new(failure.text.replace('\0', "\u{fffd}")).unwrap_or_default();
    // At the end of a thread there may be nowhere left to note it.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
    failure.status
}

/// Runs the body of a C function: a failure is noted, and a panic stops here.
#[inline]
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> trihop_status_t {
    guard_or(body).map_or_else(|status| status, |()| TRIHOP_OK)
}

/// As [`guard`], for functions that return something else than a status.
#[inline]
pub(crate) fn guard_or<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, trihop_status_t> {
    // What a panic leaves half done is only reached through handles, and the header says that these
    // are lost then.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failure)) => Err(note(failure)),
        Err(panic) => Err(note(Failure::new(
            TRIHOP_ERR_PANIC,
            panic_text(panic.as_ref()),
        ))),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let said = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text");
    format!("a defect inside trihop: {said}; please report it")
}

/// What a status means, in a few words; never null. Statuses that this version does not know have
/// words too.
///
/// Threads: any. The text lives as long as the library.
#[unsafe(no_mangle)]
pub extern "C" fn trihop_strerror(status: i32) -> *const c_char {
    let known = usize::try_from(status)
        .ok()
        .and_then(|number| trihop_status_t::ALL.get(number));
    known.map_or(c"unknown status", |(_, words)| words).as_ptr()
}

/// The full sentence about the last call of this thread that failed: what, on which object, with
/// which value, and the remedy. Empty where none has; never null. Successful calls leave it as it
/// is.
///
/// Threads: any, each sees its own. The text is valid until the next call of this thread that
/// fails.
#[unsafe(no_mangle)]
pub extern "C" fn trihop_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the pointer is to this thread's text, which no call changes before it is copied.
        unsafe { CStr::from_ptr(trihop_last_error()) }
            .to_string_lossy()
            .into_owned()
    }

    fn words(status: i32) -> &'static CStr {
        // SAFETY: the words are static and end with NUL.
        unsafe { CStr::from_ptr(trihop_strerror(status)) }
    }

    #[test]
    fn every_status_has_its_number_and_words_of_its_own() {
        let all = trihop_status_t::ALL;
        let different: std::collections::HashSet<_> = all.iter().map(|(_, words)| words).collect();
        assert_eq!(different.len(), all.len());
        for (number, (status, known)) in all.iter().enumerate() {
            assert_eq!(*status as usize, number);
            assert_eq!(words(number as i32), *known);
        }
        for unknown in [-1, i32::MIN, i32::MAX, all.len() as i32] {
            assert_eq!(words(unknown), c"unknown status");
        }
    }

    #[test]
    fn a_failure_is_noted_with_its_whole_sentence_and_only_for_its_thread() {
        assert_eq!(last_error(), "");
        assert_eq!(
            guard(|| Err(Error::Rank { rank: 9, size: 4 }.into())),
            TRIHOP_ERR_RANK
        );
        assert_eq!(last_error(), "rank 9 does not exist in a job of 4 ranks");
        assert_eq!(guard(|| Ok(())), TRIHOP_OK);
        assert_eq!(last_error(), "rank 9 does not exist in a job of 4 ranks");
        std::thread::spawn(|| assert_eq!(last_error(), ""))
            .join()
            .unwrap();
        assert_eq!(
            guard(|| Err(Failure::argument("a\0b"))),
            TRIHOP_ERR_INVALID_ARGUMENT
        );
        assert_eq!(last_error(), "a\u{fffd}b");
    }

    #[test]
    fn a_panic_stops_at_the_boundary() {
        let status = guard(|| panic!("thrown by the test of the boundary"));
        assert_eq!(status, TRIHOP_ERR_PANIC);
        assert!(
            last_error().contains("thrown by the test of the boundary"),
            "{}",
            last_error()
        );
    }
}
