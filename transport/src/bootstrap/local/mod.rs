//! A rank of `trihop run`: an inherited socket to the launcher, and who is where in `TRIHOP_*`.

pub(super) mod client;
pub mod connection;
pub mod service;
pub mod wire;

use std::env;
use std::time::Duration;

use self::client::Client;
use super::hosts::Store;
use super::socket::LauncherSocket;
use super::{Bootstrap, Launcher, number};
use crate::error::{Error, Result};
use crate::topology::{Rank, Topology};

/// Environment variable: descriptor number of the socket to the launcher.
pub const ENV_DESCRIPTOR: &str = "TRIHOP_BOOT_FD";
/// Environment variable: this process's rank.
pub const ENV_RANK: &str = "TRIHOP_RANK";
/// Environment variable: number of ranks.
pub const ENV_SIZE: &str = "TRIHOP_SIZE";
/// Environment variable: ranks on each node, node after node, e.g. `4,3`.
pub const ENV_NODE_SIZES: &str = "TRIHOP_NODE_SIZES";
/// Environment variable: `1` where all nodes are simulated on one machine, so that they talk over
/// loopback only.
pub const ENV_LOOPBACK: &str = "TRIHOP_LOOPBACK";
/// Environment variable: `1` where the launcher has bound each process to cores of its own.
pub const ENV_BOUND: &str = "TRIHOP_BOUND";

const NAME: &str = "local";

/// Whether this process is bound to cores that no other one of its job has: by `trihop run`, where
/// that is the `launcher`, or has started the agents too.
pub fn is_bound(launcher: Launcher) -> bool {
    matches!(launcher, Launcher::Local | Launcher::Agent)
        && env::var_os(ENV_BOUND).is_some_and(|value| value == "1")
}

/// Connection of one rank to `trihop run`.
#[derive(Debug)]
pub struct Local {
    client: Client,
    topology: Topology,
}

impl Local {
    /// Connects by `TRIHOP_BOOT_FD`, `TRIHOP_RANK`, `TRIHOP_SIZE` and `TRIHOP_NODE_SIZES`.
    ///
    /// # Errors
    /// When a variable is missing or contradicts another one, or the launcher does not answer.
    pub fn connect(wait: Duration) -> Result<Self> {
        let topology = placement(&text(ENV_RANK)?, &text(ENV_SIZE)?, &text(ENV_NODE_SIZES)?)?;
        let socket = LauncherSocket::inherited(ENV_DESCRIPTOR, wait)?;
        let client = Client::greet(socket, NAME, topology.rank())?;
        Ok(Self { client, topology })
    }
}

impl Bootstrap for Local {
    fn launcher(&self) -> Launcher {
        Launcher::Local
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

    fn abort(&mut self, status: i32, why: &str) {
        self.client.abort(status, why);
    }

    fn finalize(&mut self) -> Result<()> {
        self.client.finalize()
    }
}

fn text(variable: &str) -> Result<String> {
    env::var(variable).map_err(|_| {
        Error::config(
            variable,
            format!("not set although {ENV_DESCRIPTOR} is; start with `trihop run`"),
        )
    })
}

fn placement(rank: &str, size: &str, node_sizes: &str) -> Result<Topology> {
    let sizes: Vec<u32> = node_sizes
        .split(',')
        .map(|s| number(ENV_NODE_SIZES, s))
        .collect::<Result<_>>()?;
    let topology = Topology::from_node_sizes(&sizes, Rank(number(ENV_RANK, rank)?))?;
    if topology.size() != number(ENV_SIZE, size)? {
        return Err(Error::config(
            ENV_NODE_SIZES,
            format!("{node_sizes} does not sum up to {ENV_SIZE}={size}"),
        ));
    }
    Ok(topology)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_placement_is_checked() {
        assert_eq!(
            placement("4", "7", "4,3").unwrap().process_mapping(),
            "(vector,(0,1,4),(1,1,3))"
        );
        for (rank, size, sizes) in [
            ("7", "7", "4,3"),
            ("0", "8", "4,3"),
            ("x", "7", "4,3"),
            ("0", "7", "4,,3"),
            ("0", "0", ""),
        ] {
            placement(rank, size, sizes).unwrap_err();
        }
    }
}
