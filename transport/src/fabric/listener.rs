//! The socket on which a provider over IP listens.
//!
//! libfabric 1.17 reads the request for a connection from a socket that blocks, in its header and
//! then the rest. Who sends the header alone, and keeps the connection open, stops the whole
//! process there. No option of libfabric changes that, but a socket that is accepted has the time
//! limit of the one that listens.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_acceptconn};

/// How long a request for a connection may keep its reader. It is one segment, so that what follows
/// its header is there with it.
const PATIENCE: Duration = Duration::from_millis(10);

/// Bounds how long strangers can keep the endpoint with this address (a `sockaddr`) waiting for the
/// rest of a request. Where the socket is not found, it says so and leaves things as they are.
pub(super) fn bound_requests(provider: &str, name: &[u8]) {
    let Some(address) = socket_address(name) else {
        return;
    };
    match limit_listener(address) {
        Ok(true) => {}
        Ok(false) => tracing::debug!("{provider} has no socket that listens on {address}"),
        Err(error) => tracing::warn!(
            "no time limit for requests to {provider} on {address}: {error}; who sends half of one \
             can stop this rank"
        ),
    }
}

/// Whether the socket was found; it has the limit then.
fn limit_listener(address: SocketAddr) -> std::io::Result<bool> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<RawFd>().ok()) else {
            continue;
        };
        // SAFETY: the number is that of an open descriptor, or was: one that another thread has
        // closed meanwhile is refused by the kernel, and one that has its number since is not this
        // endpoint's listening socket, which is asked first.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let listens = socket_acceptconn(descriptor).unwrap_or(false);
        if listens && own_address(descriptor) == Some(address) {
            set_socket_timeout(descriptor, Timeout::Recv, Some(PATIENCE))?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn own_address(descriptor: BorrowedFd<'_>) -> Option<SocketAddr> {
    let address: SocketAddr = rustix::net::getsockname(descriptor).ok()?.try_into().ok()?;
    // Flow and scope are no part of what identifies it.
    Some(SocketAddr::new(address.ip(), address.port()))
}

/// The address in a `sockaddr` of IP; `None` for all others.
fn socket_address(name: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = name.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let ip: IpAddr = match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => (*rest.first_chunk::<4>()?).into(),
        // The flow comes first.
        libc::AF_INET6 => (*rest.get(4..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        let mut v4 = vec![0; 16];
        v4[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        v4[2..8].copy_from_slice(&[0x12, 0x34, 127, 0, 0, 1]);
        assert_eq!(socket_address(&v4), Some(([127, 0, 0, 1], 0x1234).into()));
        let mut v6 = vec![0; 28];
        v6[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        (v6[3], v6[23]) = (80, 1);
        assert_eq!(socket_address(&v6), "[::1]:80".parse().ok());
        for cut in [&v4[..7], &v6[..23], &[][..], b"fi_shm://1"] {
            assert_eq!(socket_address(cut), None, "{cut:?}");
        }
    }

    #[test]
    fn an_accepted_connection_on_which_nothing_comes_keeps_its_reader_for_a_while_only() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(limit_listener(address).unwrap());
        let other: SocketAddr = "127.0.0.1:1".parse().unwrap();
        assert!(!limit_listener(other).unwrap());
        let silent = TcpStream::connect(address).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        // Without the limit this waits for ever.
        let error = accepted.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        drop(silent);
    }
}
