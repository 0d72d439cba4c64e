//! How a rank gets through to rank 0, which may start later than itself.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::gate::prepare;
use super::handshake::{self, Claim, HELLO_BYTES, Refusal, VERDICT_BYTES};
use super::{ENV_MASTER, ENV_SECRET_FILE, NAME, Place};
use crate::bootstrap::local::wire::VERSION;
use crate::bootstrap::socket::{Broken, LauncherSocket};
use crate::error::{Error, Result};
use crate::random::random_bytes;
use crate::secret::Secret;
use crate::sync::sleep;

/// How long one of several addresses of a host may take to answer.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Between two attempts; doubled after each.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Why an attempt did not succeed.
enum Failure {
    /// Rank 0 may not have started yet, or have no room for a moment.
    Again(String),
    /// Another attempt would end the same.
    Final(Error),
}

/// A connection to rank 0, after both sides have shown that they know the secret.
///
/// # Errors
/// When rank 0 cannot be reached for `wait`, or the two do not belong together.
pub(super) fn dial(
    place: &Place,
    secret: &Secret,
    claim: Claim,
    wait: Duration,
) -> Result<LauncherSocket> {
    let deadline = Instant::now() + wait;
    let mut pause = PAUSE_MIN;
    loop {
        let why = match attempt(place, secret, claim, deadline, wait) {
            Ok(socket) => return Ok(socket),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Again(why)) => why,
        };
        if Instant::now() + pause >= deadline {
            return Err(failed(format!(
                "rank 0 was not reached at {ENV_MASTER}={place} for {wait:?}: {why}; is it started \
                 there, with the same {ENV_MASTER}, and is its port open"
            )));
        }
        sleep(pause);
        pause = PAUSE_MAX.min(2 * pause);
    }
}

fn attempt(
    place: &Place,
    secret: &Secret,
    claim: Claim,
    deadline: Instant,
    wait: Duration,
) -> Result<LauncherSocket, Failure> {
    // Names of containers are known some time after these have started.
    let addresses = (&*place.host, place.port)
        .to_socket_addrs()
        .map_err(|e| Failure::Again(format!("its host is not known: {e}")))?;
    let stream = connect(addresses, deadline).map_err(|e| Failure::Again(e.to_string()))?;
    let socket = LauncherSocket::of(stream.into(), wait);
    match introduce(&socket, secret, claim, deadline) {
        Ok(()) => Ok(socket),
        Err(Unheard::Again(why)) => Err(Failure::Again(why)),
        Err(Unheard::Refused(refusal)) => Err(Failure::Final(refused(refusal, place))),
        Err(Unheard::Failed(error)) => Err(Failure::Final(error)),
    }
}

/// A connection to the first of these addresses that answers.
///
/// # Errors
/// None of them does.
pub(in crate::bootstrap) fn connect(
    addresses: impl Iterator<Item = SocketAddr>,
    deadline: Instant,
) -> io::Result<TcpStream> {
    let mut refusal = io::Error::new(io::ErrorKind::NotFound, "its host has no address");
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left.min(CONNECT_PATIENCE)) {
            // On one machine the kernel may choose the very port for our end, and join the two.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {
                refusal = io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => {
                // Each request waits for its answer, so nothing may wait for more to send.
                prepare(&stream)?;
                return Ok(stream);
            }
            Err(e) => refusal = e,
        }
    }
    Err(refusal)
}

/// Why the other side of a connection does not let this one in.
pub(in crate::bootstrap) enum Unheard {
    /// Another attempt may succeed.
    Again(String),
    Refused(Refusal),
    /// Not the other side's fault.
    Failed(Error),
}

/// Both sides show that they know the secret.
pub(in crate::bootstrap) fn introduce(
    socket: &LauncherSocket,
    secret: &Secret,
    claim: Claim,
    deadline: Instant,
) -> Result<(), Unheard> {
    let broken = |broken| match broken {
        Broken::Closed => Unheard::Again("it closed the connection".into()),
        Broken::Late => Unheard::Again("it does not answer".into()),
        Broken::System(e) => Unheard::Again(e.to_string()),
    };
    let own = random_bytes().map_err(Unheard::Failed)?;
    let hello: [u8; HELLO_BYTES] = receive(socket, deadline).map_err(broken)?;
    let answer = handshake::answer(&hello, secret, claim, &own).map_err(Unheard::Refused)?;
    socket.send_all(&answer, deadline).map_err(broken)?;
    let verdict: [u8; VERDICT_BYTES] = receive(socket, deadline).map_err(broken)?;
    handshake::check_verdict(&verdict, &hello, secret, claim, &own).map_err(Unheard::Refused)
}

/// The next `N` bytes. What is behind them stays: with its verdict rank 0 may send why it refuses
/// this rank.
fn receive<const N: usize>(socket: &LauncherSocket, deadline: Instant) -> Result<[u8; N], Broken> {
    let mut bytes = Vec::with_capacity(N);
    while bytes.len() < N {
        socket.receive_at_most(N - bytes.len(), &mut bytes, deadline)?;
    }
    let mut word = [0; N];
    word.copy_from_slice(&bytes);
    Ok(word)
}

fn refused(refusal: Refusal, place: &Place) -> Error {
    failed(match refusal {
        Refusal::NotOurs => format!(
            "what listens at {ENV_MASTER}={place} is no rank 0 of trihop; choose a free port"
        ),
        Refusal::Version(version) => {
            let theirs = version.map_or_else(|| "another".into(), |v| v.to_string());
            format!(
                "rank 0 at {ENV_MASTER}={place} speaks version {theirs} of the launcher protocol, \
                 this rank speaks {VERSION}; start one version everywhere"
            )
        }
        Refusal::Secret => format!(
            "rank 0 at {ENV_MASTER}={place} has another secret; {ENV_SECRET_FILE} has to name the \
             same bytes for all ranks (or this is rank 0 of another job)"
        ),
    })
}

fn failed(why: String) -> Error {
    Error::Bootstrap {
        launcher: NAME,
        why,
    }
}
