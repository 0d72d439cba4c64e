//! A job of one rank: no launcher at all.

use std::collections::HashMap;

use super::{Bootstrap, Launcher, check_key, check_value};
use crate::error::Result;
use crate::topology::{Rank, Topology};

/// The job of one.
#[derive(Debug)]
pub struct Single {
    topology: Topology,
    store: HashMap<String, Vec<u8>>,
}

impl Single {
    /// Largest value, in bytes.
    pub const VALUE_BYTES_MAX: usize = 1 << 20;

    /// Rank 0 of 1 on one node.
    ///
    /// # Errors
    /// Never; the signature is that of the other launchers.
    pub fn new() -> Result<Self> {
        Ok(Self {
            topology: Topology::from_node_sizes(&[1], Rank(0))?,
            store: HashMap::new(),
        })
    }
}

impl Bootstrap for Single {
    fn launcher(&self) -> Launcher {
        Launcher::Single
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn value_limit(&self) -> usize {
        Self::VALUE_BYTES_MAX
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value, Self::VALUE_BYTES_MAX)?;
        self.store.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    fn fence(&mut self) -> Result<()> {
        Ok(())
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        Ok((from == Rank(0))
            .then(|| self.store.get(key).cloned())
            .flatten())
    }

    fn abort(&mut self, status: i32, why: &str) {
        tracing::error!(status, why, "abort");
    }

    fn finalize(&mut self) -> Result<()> {
        Ok(())
    }
}
