//! Which endpoints are looked at.

use std::fs;
use std::io;

use trihop::observe::{self, Seen};

use super::LookError;
use super::rates::key;
use crate::number::whole;

/// Steps from a process to one above it that are taken at most.
const MOST_ANCESTORS: usize = 64;

/// The processes and jobs that are meant; all where nothing is said.
#[derive(Debug, Clone, clap::Args)]
pub struct Choice {
    /// Processes: ranks, or a launcher, which stands for all ranks that it has started
    #[arg(long, value_name = "PID", value_parser = whole::<u32>(..))]
    pid: Vec<u32>,

    /// The job whose number begins so
    #[arg(long, value_name = "NUMBER")]
    job: Option<String>,
}

impl Choice {
    /// What the endpoints that are meant show, by job and number.
    ///
    /// # Errors
    /// A process or job that is named and shows nothing.
    pub fn look(&self) -> Result<Vec<Seen>, LookError> {
        let mut all = match &self.pid[..] {
            [] => observe::find().map_err(LookError::Processes)?,
            processes => {
                let mut all = Vec::new();
                for &process in processes {
                    all.extend(of_process(process)?);
                }
                // A rank may be named twice, or beside its launcher.
                all.sort_by_cached_key(key);
                all.dedup_by_key(|seen| key(seen));
                all
            }
        };
        if let Some(job) = &self.job {
            all.retain(|seen| seen.about.job.starts_with(&job.to_lowercase()));
            if all.is_empty() {
                return Err(LookError::NoJob(job.clone()));
            }
        }
        Ok(all)
    }
}

/// What a process shows, or those that it has started.
///
/// # Errors
/// None of them shows anything, or may be looked into.
pub fn of_process(process: u32) -> Result<Vec<Seen>, LookError> {
    let refused = |source| LookError::Process { process, source };
    match observe::of_process(process) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_there(process) => {
            let mut all = observe::find().map_err(LookError::Processes)?;
            all.retain(|seen| is_below(seen.process, process));
            match all.is_empty() {
                true => Err(refused(error)),
                false => Ok(all),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(refused(io::Error::new(error.kind(), "there is none")))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let why = "it may not be looked into: only its own user may do that";
            Err(refused(io::Error::new(error.kind(), why)))
        }
        outcome => outcome.map_err(refused),
    }
}

fn is_there(process: u32) -> bool {
    fs::metadata(format!("/proc/{process}")).is_ok()
}

/// Whether `ancestor` has started a process, or one that has.
fn is_below(mut process: u32, ancestor: u32) -> bool {
    for _ in 0..MOST_ANCESTORS {
        match parent_of(process) {
            Some(parent) if parent == ancestor => return true,
            Some(parent) if parent > 1 => process = parent,
            _ => return false,
        }
    }
    false
}

fn parent_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may be anything: state, then parent.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_below_those_that_have_started_it() {
        let own = std::process::id();
        let parent = parent_of(own).unwrap();
        assert!(is_below(own, parent) && !is_below(parent, own));
        assert!(!is_below(own, own));
    }

    #[test]
    fn a_process_that_is_named_twice_is_seen_once() {
        let job = trihop::Job::start(trihop::Options::default()).unwrap();
        let own = std::process::id();
        let choice = Choice {
            pid: vec![own, own],
            job: None,
        };
        let seen = choice.look().unwrap();
        let mut keys: Vec<_> = seen.iter().map(key).collect();
        keys.dedup();
        assert!(!seen.is_empty() && keys.len() == seen.len());
        job.shutdown().unwrap();
    }
}
