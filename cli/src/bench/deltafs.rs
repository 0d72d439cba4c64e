//! A job and a shuffle as clients of the DeltaFS interface have them: every call goes through its C
//! functions, and the options are those that `shuffle_opts_init` gives.

use std::ffi::{CString, c_int, c_void};
use std::hint::{black_box, spin_loop};
use std::panic::resume_unwind;
use std::{ptr, thread};

use trihop::capi::deltafs::{mercury, nexus, progressor, shuffle};
use trihop::{Rank, threaded};

use super::Error;

/// A client's callback.
pub(crate) type Deliver =
    extern "C" fn(source: c_int, target: c_int, kind: u32, bytes: *mut c_void, length: u32);

type Enqueue = unsafe extern "C" fn(*mut shuffle::shuffle, c_int, u32, *mut c_void, u32) -> c_int;

/// The job.
pub(crate) struct Nexus(*mut nexus::nexus_ctx);

impl Nexus {
    /// Joins the job that the environment names.
    pub fn bootstrap() -> Result<Self, Error> {
        // SAFETY: the text ends with NUL; class, context and progressor are used in the order in
        // which they are made, and given back once the nexus has taken references of its own. The
        // functions that get null pointers refuse them.
        let nexus = unsafe {
            let class = mercury::trihop_mercury_init(c"ofi+tcp".as_ptr(), 1);
            let context = mercury::trihop_mercury_context_create(class);
            let progressor = progressor::trihop_mercury_progressor_init(class, context);
            let nexus = nexus::nexus_bootstrap(progressor, ptr::null_mut());
            if !progressor.is_null() {
                progressor::trihop_mercury_progressor_freehandle(progressor);
                mercury::trihop_mercury_context_destroy(context);
                mercury::trihop_mercury_finalize(class);
            }
            nexus
        };
        // The reason was said on stderr, as the interface does.
        if nexus.is_null() {
            return Err(failed("nexus_bootstrap", "a null pointer"));
        }
        Ok(Self(nexus))
    }

    /// The job, for what the interface does not have.
    pub fn job(&self) -> &threaded::Job {
        // SAFETY: `bootstrap` made it, and only dropping ends it.
        unsafe { &*self.0 }.job()
    }

    /// A barrier that keeps this thread busy until all have come, as those of MPI do that clients
    /// call.
    fn spinning_barrier(&self) -> Result<(), Error> {
        let job = self.job();
        thread::scope(|scope| {
            let waits = scope.spawn(|| job.barrier());
            while !waits.is_finished() {
                spin_loop();
            }
            let outcome = waits.join().unwrap_or_else(|panic| resume_unwind(panic));
            Ok(outcome?)
        })
    }

    /// Opens a shuffle with the options that a client gets who sets none.
    pub fn shuffle(&self, name: &str, deliver: Deliver) -> Result<Shuffle<'_>, Error> {
        let name = CString::new(name).expect("names of benchmarks have no NUL");
        let mut options = std::mem::MaybeUninit::uninit();
        // SAFETY: the options are written by the first call; nexus and name are alive, and the name
        // is only read.
        let handle = unsafe {
            shuffle::shuffle_opts_init(options.as_mut_ptr());
            shuffle::shuffle_init(
                self.0,
                name.as_ptr().cast_mut(),
                Some(deliver),
                options.as_mut_ptr(),
            )
        };
        if handle.is_null() {
            return Err(failed("shuffle_init", "a null pointer"));
        }
        Ok(Shuffle {
            nexus: self,
            handle,
            // Through a pointer that the compiler cannot see through, as from another library.
            enqueue: black_box(shuffle::shuffle_enqueue),
        })
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        // SAFETY: `bootstrap` made it; shuffles borrow it, so none is left.
        unsafe { nexus::nexus_destroy(self.0) };
    }
}

/// A shuffle.
pub(crate) struct Shuffle<'a> {
    nexus: &'a Nexus,
    handle: *mut shuffle::shuffle,
    enqueue: Enqueue,
}

impl Shuffle<'_> {
    /// `shuffle_enqueue`.
    #[inline]
    pub fn enqueue(&self, target: Rank, kind: u32, bytes: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the handle is open, and the bytes are those of a slice.
        let status = unsafe {
            (self.enqueue)(
                self.handle,
                target.0 as c_int,
                kind,
                bytes.as_mut_ptr().cast(),
                bytes.len() as u32,
            )
        };
        returned("shuffle_enqueue", status)
    }

    /// The four flushes and three barriers after which everything that any rank has enqueued is
    /// delivered.
    pub fn flush_all(&self) -> Result<(), Error> {
        const REMOTE: c_int = 0;
        const ORIGIN: c_int = 1;
        const RELAY: c_int = 2;
        for queues in [ORIGIN, REMOTE, RELAY] {
            // SAFETY: the handle is open.
            returned("shuffle_flush_qs", unsafe {
                shuffle::shuffle_flush_qs(self.handle, queues)
            })?;
            self.nexus.spinning_barrier()?;
        }
        // SAFETY: the handle is open.
        returned("shuffle_flush_delivery", unsafe {
            shuffle::shuffle_flush_delivery(self.handle)
        })
    }

    /// Bytes that this rank has handed to the fabric.
    pub fn wire_bytes(&self) -> u64 {
        // SAFETY: the handle is open.
        let engine = unsafe { &*self.handle }.engine();
        let stats = engine.and_then(|engine| engine.stats());
        stats.map_or(0, |stats| stats.wire_bytes)
    }

    /// `shuffle_shutdown`.
    pub fn shutdown(self) -> Result<(), Error> {
        // SAFETY: the handle is open, and not used again.
        returned("shuffle_shutdown", unsafe {
            shuffle::shuffle_shutdown(self.handle)
        })
    }
}

fn returned(call: &str, status: c_int) -> Result<(), Error> {
    match status {
        0 => Ok(()),
        status => Err(failed(call, &status.to_string())),
    }
}

#[cold]
fn failed(call: &str, what: &str) -> Error {
    Error::Wrong {
        bench: "a2a",
        why: format!("{call} returned {what}"),
    }
}
