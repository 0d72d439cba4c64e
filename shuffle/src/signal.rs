//! A dump when a signal asks for it: the handler sets a flag, and the thread that makes progress
//! looks at it now and then.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use trihop_transport::sync::{Flag, Mutex, PoisonError, Signalled};
use trihop_transport::topology::Rank;

use crate::error::{Error, Result};

/// Where a dump goes that a signal asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpOutput {
    /// Standard error.
    Stderr,
    /// The file `<path>.<rank>`, behind what is in it.
    Files(PathBuf),
}

impl DumpOutput {
    pub(crate) fn open(&self, rank: Rank) -> std::io::Result<Box<dyn Write>> {
        let Self::Files(path) = self else {
            return Ok(Box::new(std::io::stderr()));
        };
        let mut name = path.clone().into_os_string();
        name.push(format!(".{}", rank.0));
        let file = OpenOptions::new().create(true).append(true).open(name)?;
        Ok(Box::new(std::io::BufWriter::new(file)))
    }
}

/// What signals have asked for.
#[derive(Default)]
pub(crate) struct DumpOnSignal {
    /// Something was installed: the usual look costs no lock.
    installed: Flag,
    asked: Mutex<Vec<(Arc<Signalled>, DumpOutput)>>,
}

impl DumpOnSignal {
    pub fn install(&self, signal: i32, output: DumpOutput) -> Result<()> {
        let refused = |why: String| {
            Error::config(
                "signal",
                format!("number {signal} cannot be handled: {why}"),
            )
        };
        if signal_hook::consts::FORBIDDEN.contains(&signal) {
            return Err(refused(
                "it ends or stops a process whatever it does".into(),
            ));
        }
        let asked = Arc::<Signalled>::default();
        signal_hook::flag::register(signal, Arc::clone(&asked)).map_err(|error| {
            Error::config(
                "signal",
                format!("number {signal} cannot be handled: {error}"),
            )
        })?;
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((asked, output));
        self.installed.raise();
        Ok(())
    }

    /// Where to, once per signal.
    pub fn take_asked(&self) -> Option<DumpOutput> {
        if !self.installed.is_raised() {
            return None;
        }
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let found = asked
            .iter()
            .find(|(asked, _)| trihop_transport::sync::take_signalled(asked));
        found.map(|(_, output)| output.clone())
    }
}
