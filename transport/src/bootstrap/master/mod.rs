//! Ranks that were started by anything at all, a shell loop or a container's platform, and know
//! their rank, their number and the address of rank 0, which keeps the store for all of them.
//!
//! Rank 0 listens at `TRIHOP_MASTER`. Every rank shows that it knows the secret in
//! `TRIHOP_SECRET_FILE`, and is shown the same, before anything else is said; the secret itself is
//! never sent. What follows is the protocol of `trihop run`, in clear.

pub(super) mod dial;
pub(super) mod gate;
pub(super) mod handshake;
mod secret_file;
mod server;

use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use self::handshake::Claim;
use self::server::Server;
use super::hosts::{self, Store};
use super::local::client::Client;
use super::local::{ENV_RANK, ENV_SIZE, wire};
use super::socket::LauncherSocket;
use super::{Bootstrap, Launcher};
use crate::error::{Error, Result};
use crate::secret::Secret;
use crate::topology::{Rank, Topology};

/// Environment variable: `HOST:PORT` at which rank 0 listens.
pub const ENV_MASTER: &str = "TRIHOP_MASTER";
/// Environment variable: path of the file with the secret of the job's ranks.
pub const ENV_SECRET_FILE: &str = "TRIHOP_SECRET_FILE";

const NAME: &str = "master";

/// One rank of a job that meets at the address of its rank 0.
#[derive(Debug)]
pub struct Master {
    client: Client,
    topology: Topology,
    /// Of rank 0; ends with it.
    _server: Option<Server>,
}

impl Master {
    /// Meets the other ranks by `TRIHOP_MASTER`, `TRIHOP_RANK`, `TRIHOP_SIZE` and
    /// `TRIHOP_SECRET_FILE`. Rank 0 starts a thread that serves the others.
    ///
    /// # Errors
    /// When a variable is missing or impossible, the secret's file is not fit for it, rank 0 cannot
    /// listen or cannot be reached within `wait`, or it refuses this rank.
    pub fn connect(wait: Duration) -> Result<Self> {
        let place = Place::parse(&text(ENV_MASTER)?)?;
        let claim = Claim {
            rank: Rank(number(ENV_RANK)?),
            size: number(ENV_SIZE)?,
        };
        let secret = secret_file::read(Path::new(&text(ENV_SECRET_FILE)?))?;
        Self::meet(&place, &secret, claim, wait)
    }

    fn meet(place: &Place, secret: &Secret, claim: Claim, wait: Duration) -> Result<Self> {
        let Claim { rank, size } = claim;
        if rank.0 >= size {
            return Err(Error::config(
                ENV_RANK,
                format!("{rank} is no rank of {size} ({ENV_SIZE}), they count from 0"),
            ));
        }
        match rank {
            Rank(0) => Self::serve(place.listen()?, secret, size, wait),
            _ => Self::join(dial::dial(place, secret, claim, wait)?, claim, None),
        }
    }

    fn serve(listener: TcpListener, secret: &Secret, size: u32, wait: Duration) -> Result<Self> {
        let (server, ours) = Server::start(listener, secret.clone(), size)?;
        let rank = Rank(0);
        Self::join(
            LauncherSocket::of(ours, wait),
            Claim { rank, size },
            Some(server),
        )
    }

    fn join(socket: LauncherSocket, claim: Claim, server: Option<Server>) -> Result<Self> {
        let mut client = Client::greet(socket, NAME, claim.rank)?;
        let topology = hosts::exchange(&mut client, NAME, claim.size, claim.rank)?;
        Ok(Self {
            client,
            topology,
            _server: server,
        })
    }
}

impl Bootstrap for Master {
    fn launcher(&self) -> Launcher {
        Launcher::Master
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn value_limit(&self) -> usize {
        wire::VALUE_BYTES_MAX
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.client.put(key, value)
    }

    fn fence(&mut self) -> Result<()> {
        self.client.fence()
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        self.client.get(from, key)
    }

    fn why_missed(&mut self) -> Result<Option<String>> {
        self.client.why_missed()
    }

    /// The other ranks hear of it in their next call; nobody can end their processes.
    fn abort(&mut self, status: i32, why: &str) {
        tracing::error!(status, why, "abort");
        self.client.abort(status, why);
    }

    /// That of rank 0 returns when all others have taken leave, so that its process may end.
    fn finalize(&mut self) -> Result<()> {
        self.client.finalize()
    }
}

/// `HOST:PORT`, not yet looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// A name, or an address without the brackets of IPv6.
    host: String,
    port: u16,
}

impl Place {
    fn parse(text: &str) -> Result<Self> {
        let parsed = text.rsplit_once(':').and_then(|(host, port)| {
            let port = port.parse().ok().filter(|port| *port != 0)?;
            let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
            // A colon is part of an address only within brackets.
            let host = bare.or((!host.contains(':')).then_some(host))?;
            let host = Some(host.to_owned()).filter(|host| !host.is_empty())?;
            Some(Self { host, port })
        });
        parsed.ok_or_else(|| {
            Error::config(
                ENV_MASTER,
                format!(
                    "{text:?} is not HOST:PORT of rank 0, such as node1:7777 or [fd00::1]:7777"
                ),
            )
        })
    }

    /// Listens at the address that is given, and at all of this machine where it is a name: others
    /// may know it by another address than this machine does.
    fn listen(&self) -> Result<TcpListener> {
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        let own: &[IpAddr] = match (self.host.parse(), &*self.host) {
            (Ok(address), _) => &[address],
            (Err(_), "localhost") => &[Ipv4Addr::LOCALHOST.into()],
            (Err(_), _) => &any,
        };
        let places: Vec<SocketAddr> = own
            .iter()
            .map(|address| SocketAddr::new(*address, self.port))
            .collect();
        TcpListener::bind(&places[..]).map_err(|e| {
            Error::system(
                format!(
                    "rank 0 cannot listen at {ENV_MASTER}={self}; it has to be an address of the \
                     machine of rank 0, and a port that nobody else uses there"
                ),
                e,
            )
        })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

fn text(variable: &str) -> Result<String> {
    let value = env::var(variable).ok().filter(|value| !value.is_empty());
    value.ok_or_else(|| {
        let remedy = match variable {
            ENV_SECRET_FILE => {
                "name a file that only its owner may read, the same bytes for all ranks; \
                 `(umask 077; head -c 32 /dev/urandom | base64 >FILE)` makes one"
            }
            ENV_RANK => "give each process a number of its own, from 0",
            _ => "give all processes the number of ranks",
        };
        Error::config(
            variable,
            format!("not set, or not text, although {ENV_MASTER} is; {remedy}"),
        )
    })
}

fn number(variable: &str) -> Result<u32> {
    super::number(variable, &text(variable)?)
}

#[cfg(test)]
mod tests;
