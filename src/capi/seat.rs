//! Where the engine of a C program's job runs.

use super::status::{Failure, trihop_status_t};
use crate::transport::park::this_thread;

/// Where the engine of a job runs, and who calls its handlers.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum trihop_seat_t {
    /// Any thread may call. A progress thread keeps traffic going while the program computes, and a
    /// delivery thread calls the handlers of its streams, one call at a time, unless a call that
    /// waits for the end of a step does; a stream with the option `own_thread` has a thread of its
    /// own.
    TRIHOP_THREADED = 0,
    /// One thread calls, the one that has started the job. Progress is made inside of its calls,
    /// and handlers are called there too: no lock is taken per message, so that small ones cost
    /// least. A program that computes for long forwards nothing meanwhile, unless it calls
    /// `trihop_poll` now and then.
    TRIHOP_INLINE = 1,
}

impl trihop_seat_t {
    pub(crate) fn parse(number: i32) -> Result<Self, Failure> {
        [Self::TRIHOP_THREADED, Self::TRIHOP_INLINE]
            .into_iter()
            .find(|known| *known as i32 == number)
            .ok_or_else(|| {
                Failure::argument(format!(
                    "{number} is neither TRIHOP_THREADED nor TRIHOP_INLINE"
                ))
            })
    }
}

/// What a handle of a C program is for, over one seat or the other.
#[derive(Clone)]
pub(crate) enum Either<T, I> {
    Threaded(T),
    /// Used by the thread that has started the job only: the header says so.
    Inline(I),
}

/// The thread that alone may use a handle, where its job has no threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home(Option<usize>);

impl Home {
    /// This thread, for what an inline job has.
    pub fn of<T, I>(handle: &Either<T, I>) -> Self {
        Self(match handle {
            Either::Threaded(_) => None,
            Either::Inline(_) => return Self::here(),
        })
    }

    /// Any thread.
    pub fn anywhere() -> Self {
        Self(None)
    }

    /// This thread, for what only inline jobs have.
    pub fn here() -> Self {
        Self(Some(this_thread()))
    }

    /// Refuses a call on another thread: what is behind the handle is not shared. A thread may have
    /// the number of one that has ended.
    #[inline(always)] // part of every send
    pub fn check(self, name: &str) -> Result<(), Failure> {
        match self.0 {
            Some(thread) if thread != this_thread() => Err(elsewhere(name)),
            _ => Ok(()),
        }
    }
}

#[cold]
fn elsewhere(name: &str) -> Failure {
    let why = format!(
        "`{name}` belongs to an inline job, which only the thread that has started it may use; give each thread a mini-rank, or start the job with TRIHOP_THREADED"
    );
    Failure::new(trihop_status_t::TRIHOP_ERR_MISUSE, why)
}

/// A handle that knows where it may be used.
pub(crate) trait Homed {
    fn home(&self) -> Home;
}

/// Calls the method of the seat that the handle is over.
macro_rules! either {
    ($self:expr, $inner:ident => $call:expr) => {
        match $self {
            $crate::capi::seat::Either::Threaded($inner) => $call,
            $crate::capi::seat::Either::Inline($inner) => $call,
        }
    };
}

pub(crate) use either;
