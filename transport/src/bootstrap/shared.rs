//! One launcher for all endpoints of a process: what each of them holds of it.

use std::time::Duration;

use super::{Bootstrap, Launcher};
use crate::error::{Error, Result};
use crate::sync::{Arc, FairMutex};
use crate::topology::{Rank, Topology};

/// How long the end of a job by one of a process's ranks waits for the launcher, which another one
/// may wait in.
const PATIENCE: Duration = Duration::from_millis(500);

/// A process's launcher, as one of its endpoints holds it. Only the host speaks with the launcher;
/// all may end the job.
#[derive(Clone)]
pub struct Shared {
    launcher: Launcher,
    topology: Topology,
    value_limit: usize,
    fences_on_callers_thread: bool,
    is_host: bool,
    bootstrap: Arc<FairMutex<Box<dyn Bootstrap>>>,
}

impl Shared {
    /// The host's hold, which takes leave of the launcher for all.
    pub fn host(bootstrap: Box<dyn Bootstrap>) -> Self {
        Self {
            launcher: bootstrap.launcher(),
            topology: bootstrap.topology().clone(),
            value_limit: bootstrap.value_limit(),
            fences_on_callers_thread: bootstrap.fences_on_callers_thread(),
            is_host: true,
            bootstrap: Arc::new(FairMutex::new(bootstrap)),
        }
    }

    fn check_host(&self) -> Result<()> {
        match self.is_host {
            true => Ok(()),
            false => Err(Error::Bootstrap {
                launcher: self.launcher.name(),
                why: "the relay of the process speaks with it".into(),
            }),
        }
    }
}

impl Bootstrap for Shared {
    fn launcher(&self) -> Launcher {
        self.launcher
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn value_limit(&self) -> usize {
        self.value_limit
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.check_host()?;
        self.bootstrap.lock().put(key, value)
    }

    fn fence(&mut self) -> Result<()> {
        self.check_host()?;
        self.bootstrap.lock().fence()
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        self.check_host()?;
        self.bootstrap.lock().get(from, key)
    }

    fn why_missed(&mut self) -> Result<Option<String>> {
        self.check_host()?;
        self.bootstrap.lock().why_missed()
    }

    fn abort(&mut self, status: i32, why: &str) {
        // Where the launcher is being waited in, it sees the process end.
        if let Some(mut bootstrap) = self.bootstrap.try_lock_for(PATIENCE) {
            bootstrap.abort(status, why);
        }
    }

    fn finalize(&mut self) -> Result<()> {
        match self.is_host {
            true => self.bootstrap.lock().finalize(),
            false => Ok(()),
        }
    }

    fn is_out_of_reach(&self) -> bool {
        self.bootstrap.lock().is_out_of_reach()
    }

    fn guest(&self) -> Option<Box<dyn Bootstrap>> {
        Some(Box::new(Self {
            is_host: false,
            ..self.clone()
        }))
    }

    fn fences_on_callers_thread(&self) -> bool {
        self.fences_on_callers_thread
    }
}
