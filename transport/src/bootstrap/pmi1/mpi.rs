//! Whether MPI is at work in this process, asked of its library without linking to it.

use std::ffi::{CStr, c_int};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// MPI libraries that speak PMI-1; a plugin may have loaded them outside of the global scope.
const LIBRARIES: [&str; 4] = ["libmpich.so.12", "libmpi.so.12", "libmpich.so", "libmpi.so"];

/// Whether MPI is or was initialised here, so that the launcher's descriptor belongs to it.
pub(super) fn is_active() -> bool {
    says(c"MPI_Initialized")
}

/// Whether MPI has ended here, and with it the launcher's connection.
pub(super) fn has_ended() -> bool {
    says(c"MPI_Finalized")
}

/// What one of MPI's questions about its own state is answered with; no, where no MPI is loaded.
fn says(question: &CStr) -> bool {
    let loaded = LIBRARIES.iter().filter_map(|name| {
        // SAFETY: with RTLD_NOLOAD nothing is loaded, so no code of a library runs.
        unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok()
    });
    std::iter::once(Library::this())
        .chain(loaded)
        .any(|library| ask(&library, question))
}

fn ask(library: &Library, question: &CStr) -> bool {
    let name = question.to_bytes_with_nul();
    // SAFETY: the MPI standard gives both symbols this signature (MPI 4.1, 11.2.1 and 11.2.2).
    let symbol = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(name) };
    symbol.is_ok_and(|call| {
        let mut flag: c_int = 0;
        // SAFETY: it may be called at any time, and writes one int through the pointer.
        let code = unsafe { call(&raw mut flag) };
        code == 0 && flag != 0
    })
}
