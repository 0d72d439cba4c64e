//! A client of the DeltaFS interface: client.c, a program in C over the interface's own headers,
//! with the options that `shuffle_opts_init` gives.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hint::spin_loop;
use std::panic::resume_unwind;
use std::thread;

use trihop::capi::deltafs::{nexus, shuffle};
use trihop::threaded;

use super::Error;

/// What the client's callback has taken in, as client.h has it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub messages: u64,
    pub sum: u64,
    pub wrong: u64,
}

type Barrier = extern "C" fn(context: *mut c_void) -> c_int;

#[allow(
    improper_ctypes,
    reason = "C gets pointers to what it does not look into"
)]
// SAFETY: client.c has these functions, compiled with the headers of the DeltaFS interface.
unsafe extern "C" {
    safe fn bench_client_join() -> *mut nexus::nexus_ctx;
    fn bench_client_open(nexus: *mut nexus::nexus_ctx, name: *mut c_char) -> *mut shuffle::shuffle;
    fn bench_client_send(
        shuffle: *mut shuffle::shuffle,
        targets: *const u32,
        count: usize,
        message: *mut u8,
        bytes: u32,
        barrier: Barrier,
        context: *mut c_void,
        status: *mut c_int,
    ) -> *const c_char;
    fn bench_client_clear(bytes: u32);
    fn bench_client_taken() -> Taken;
}

/// The job.
pub(crate) struct Nexus(*mut nexus::nexus_ctx);

impl Nexus {
    /// Joins the job that the environment names.
    pub fn bootstrap() -> Result<Self, Error> {
        let nexus = bench_client_join();
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
    fn spinning_barrier(&self) -> Result<(), trihop::Error> {
        let job = self.job();
        thread::scope(|scope| {
            let waits = scope.spawn(|| job.barrier());
            while !waits.is_finished() {
                spin_loop();
            }
            waits.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Opens a shuffle with the options that a client gets who sets none.
    pub fn shuffle(&self, name: &str) -> Result<Shuffle<'_>, Error> {
        let name = CString::new(name).expect("names of benchmarks have no NUL");
        // SAFETY: nexus and name are alive, and the name is only read.
        let handle = unsafe { bench_client_open(self.0, name.as_ptr().cast_mut()) };
        if handle.is_null() {
            return Err(failed("shuffle_init", "a null pointer"));
        }
        Ok(Shuffle {
            nexus: self,
            handle,
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
}

impl Shuffle<'_> {
    /// Sends a message of so many bytes to each target, and flushes: after that everything that
    /// any rank has sent is delivered.
    ///
    /// # Errors
    /// What a call has returned; of a barrier the library's.
    pub fn send(&self, targets: &[u32], message: &mut [u8]) -> Result<(), Error> {
        assert!(message.len() >= 8, "no room for the number of a message");
        let mut waits = Waits {
            nexus: self.nexus,
            error: None,
        };
        let mut status = 0;
        // SAFETY: the handle is open; as many targets and bytes as the slices have; the barrier
        // gets what it takes.
        let call = unsafe {
            bench_client_send(
                self.handle,
                targets.as_ptr(),
                targets.len(),
                message.as_mut_ptr(),
                message.len() as u32,
                barrier,
                (&raw mut waits).cast(),
                &mut status,
            )
        };
        if let Some(error) = waits.error {
            return Err(error.into());
        }
        if call.is_null() {
            return Ok(());
        }
        // SAFETY: a text that ends with NUL, and lives as long as the program.
        let call = unsafe { CStr::from_ptr(call) }.to_string_lossy();
        Err(failed(&call, &status.to_string()))
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
        match unsafe { shuffle::shuffle_shutdown(self.handle) } {
            0 => Ok(()),
            status => Err(failed("shuffle_shutdown", &status.to_string())),
        }
    }
}

/// The callback has taken in nothing, of messages of so many bytes.
pub(crate) fn clear(bytes: usize) {
    // SAFETY: between repetitions no message is under way, and so no callback runs.
    unsafe { bench_client_clear(bytes as u32) };
}

/// What the callback has taken in.
pub(crate) fn taken() -> Taken {
    // SAFETY: as above.
    unsafe { bench_client_taken() }
}

/// What a barrier takes.
struct Waits<'a> {
    nexus: &'a Nexus,
    error: Option<trihop::Error>,
}

extern "C" fn barrier(waits: *mut c_void) -> c_int {
    // SAFETY: `Shuffle::send` gives its own, which it does not touch meanwhile.
    let waits = unsafe { &mut *waits.cast::<Waits<'_>>() };
    waits.error = waits.nexus.spinning_barrier().err();
    c_int::from(waits.error.is_some())
}

#[cold]
fn failed(call: &str, what: &str) -> Error {
    Error::Wrong {
        bench: "a2a",
        why: format!("{call} returned {what}"),
    }
}
