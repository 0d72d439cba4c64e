//! Random bytes of the kernel's.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

/// `N` bytes that nobody can foretell.
///
/// # Errors
/// When the kernel refuses.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::system("asking the kernel for random bytes", e)),
        }
    }
    Ok(bytes)
}
