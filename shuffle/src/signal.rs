//! A dump when a signal asks for it: the handler sets a flag, and the thread that makes progress
//! looks at it now and then.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use trihop_transport::sync::{Flag, Mutex, MutexGuard, PoisonError, Signalled};
use trihop_transport::topology::EndpointId;

use crate::error::{Error, Result};

/// Where a dump goes that a signal asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpOutput {
    /// Standard error.
    Stderr,
    /// The file `<path>.<rank>`, behind what is in it. Relays have the numbers behind all ranks.
    Files(PathBuf),
}

impl DumpOutput {
    pub(crate) fn open(&self, end: EndpointId) -> std::io::Result<Box<dyn Write>> {
        let Self::Files(path) = self else {
            return Ok(Box::new(std::io::stderr()));
        };
        let mut name = path.clone().into_os_string();
        name.push(format!(".{end}"));
        let file = OpenOptions::new().create(true).append(true).open(name)?;
        Ok(Box::new(std::io::BufWriter::new(file)))
    }
}

/// What signals have asked for.
#[derive(Default)]
pub(crate) struct DumpOnSignal {
    /// Something was installed: the usual look costs no lock.
    installed: Flag,
    asked: Mutex<Vec<Asked>>,
}

/// A signal, whether it has come, and where it wants a dump.
struct Asked {
    signal: i32,
    is_set: Arc<Signalled>,
    output: DumpOutput,
}

impl DumpOnSignal {
    /// The signal asks for a dump from now on.
    pub fn install(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.add(&mut self.lock(), signal, output)
    }

    /// As [`install`](Self::install), unless this signal asks for something already.
    pub fn install_once(&self, signal: i32, output: DumpOutput) -> Result<()> {
        let mut asked = self.lock();
        match asked.iter().any(|asked| asked.signal == signal) {
            true => Ok(()),
            false => self.add(&mut asked, signal, output),
        }
    }

    fn add(&self, asked: &mut Vec<Asked>, signal: i32, output: DumpOutput) -> Result<()> {
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
        let is_set = Arc::<Signalled>::default();
        signal_hook::flag::register(signal, Arc::clone(&is_set)).map_err(|error| {
            Error::config(
                "signal",
                format!("number {signal} cannot be handled: {error}"),
            )
        })?;
        asked.push(Asked {
            signal,
            is_set,
            output,
        });
        self.installed.raise();
        Ok(())
    }

    /// Where to, once per signal.
    pub fn take_asked(&self) -> Option<DumpOutput> {
        if !self.installed.is_raised() {
            return None;
        }
        let asked = self.lock();
        let mut asked = asked.iter();
        let found = asked.find(|asked| trihop_transport::sync::take_signalled(&asked.is_set));
        found.map(|asked| asked.output.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
