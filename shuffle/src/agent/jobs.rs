//! An agent that serves as many jobs as come.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::bootstrap::{Bootstrap, Party, Reception, Single, start_beside_agents};
use trihop_transport::masked::{self, MaskedThread};
use trihop_transport::memory::descriptors::wait_for_any;
use trihop_transport::sync::{Mutex, PoisonError};
use trihop_transport::watch::{eventfd, is_woken, wake};

use crate::config::Options;
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::seat::{Inline, Park, relay};

/// Most jobs of which some ranks have come to an agent and others not.
pub const MOST_WAITING: usize = 64;

/// How long it sleeps where nothing has to be looked at.
const LONG: Duration = Duration::from_secs(3600);

/// How an agent hears that it is to end.
pub trait AskedToEnd {
    /// Becomes readable when somebody asks.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether somebody has asked since the last call.
    fn take(&self) -> bool;
}

/// Serves jobs of `ranks` processes each, on this node alone: takes `name`, and relays for each
/// job whose ranks have come, until its ranks have shut it down.
///
/// It ends once it has had a job and then none for as long as `linger`, without end where that is
/// `None`; or when it is asked to. Then it gives its name free for another agent, refuses ranks
/// that wait for others of their job, and ends with the last of its jobs. Asked once more it
/// returns at once; the jobs that it has then end with its process.
///
/// A job that fails is logged at level warn, and is the end of that job alone; so is one for which
/// no thread is to be had or descriptors run out, and one whose relay panics: its ranks hear why.
/// Memory is bounded for each of them; threads and descriptors are the process's. `ready` is called
/// once ranks may come.
///
/// # Errors
/// A name that another agent has; a launcher that knows several agents.
pub fn serve_jobs(
    options: Options,
    name: &str,
    ranks: u32,
    linger: Option<Duration>,
    asked: Option<&dyn AskedToEnd>,
    ready: impl Fn(),
) -> Result<()> {
    options.check()?;
    let bootstrap = start_beside_agents(options.launcher, options.bootstrap_timeout())?;
    if bootstrap.topology().size() > 1 {
        let why = "several agents, of one node or more, serve one job; start them without a time \
                   to linger";
        return Err(Error::config("agent", why));
    }
    let reception = Reception::open(name, ranks, MOST_WAITING)?;
    let agent = Agent {
        options,
        ranks,
        bootstrap,
        jobs: Jobs::new()?,
    };
    ready();
    agent.serve(reception, linger, asked)
}

struct Agent {
    options: Options,
    ranks: u32,
    /// The launcher's, who is told of the end.
    bootstrap: Box<dyn Bootstrap>,
    jobs: Jobs,
}

impl Agent {
    fn serve(
        mut self,
        reception: Reception,
        linger: Option<Duration>,
        asked: Option<&dyn AskedToEnd>,
    ) -> Result<()> {
        let mut reception = Some(reception);
        // Since the last job has ended.
        let mut alone_since = None;
        loop {
            if self.jobs.reap() && self.jobs.running.is_empty() {
                alone_since = Some(Instant::now());
            }
            if asked.is_some_and(AskedToEnd::take) {
                match reception.take() {
                    Some(reception) => reception.close("this agent was asked to end"),
                    None => return Ok(()),
                }
            }
            let Some(open) = &mut reception else {
                if self.jobs.running.is_empty() {
                    break;
                }
                self.jobs.wait(asked)?;
                continue;
            };
            let is_alone = self.jobs.running.is_empty() && open.is_empty();
            let end = linger.and_then(|linger| alone_since?.checked_add(linger));
            let end = end.filter(|_| is_alone);
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            let woken = self.jobs.ended.woken.as_fd();
            let others: Vec<_> = [woken]
                .into_iter()
                .chain(asked.map(AskedToEnd::descriptor))
                .collect();
            if let Some(party) = open.receive(&others, end)? {
                let started = self
                    .jobs
                    .start(self.options.clone(), self.ranks, party.clone());
                match started {
                    Ok(()) => alone_since = None,
                    Err(error) => {
                        tracing::warn!(%error, "refused a job");
                        open.refuse_all(&party, &error.to_string());
                    }
                }
            }
        }
        if let Some(reception) = reception {
            reception.close("this agent has ended, since no job had come for its time to linger");
        }
        Ok(self.bootstrap.finalize()?)
    }
}

/// The jobs that an agent has.
struct Jobs {
    running: HashMap<u64, MaskedThread<()>>,
    started: u64,
    ended: Arc<Ended>,
}

/// Jobs whose threads are about to end.
struct Ended {
    numbers: Mutex<Vec<u64>>,
    woken: OwnedFd,
}

impl Jobs {
    fn new() -> Result<Self> {
        Ok(Self {
            running: HashMap::new(),
            started: 0,
            ended: Arc::new(Ended {
                numbers: Mutex::default(),
                woken: eventfd()?,
            }),
        })
    }

    /// Starts the relay of a job, on a thread of its own.
    fn start(&mut self, options: Options, ranks: u32, party: Party) -> Result<()> {
        let number = self.started;
        self.started += 1;
        let ended = TellEnded(Arc::clone(&self.ended), number);
        let thread = masked::spawn("trihop-agent-job", move || {
            let _ended = ended;
            match serve_job(options, ranks, party) {
                Ok(()) => tracing::debug!(number, "a job of this agent has ended"),
                Err(error) => tracing::warn!(%error, number, "a job of this agent has failed"),
            }
        })?;
        self.running.insert(number, thread);
        Ok(())
    }

    /// Forgets the jobs that have ended; whether there were any. One whose thread could not start
    /// was none.
    fn reap(&mut self) -> bool {
        is_woken(&self.ended.woken);
        let numbers = std::mem::take(&mut *self.ended.lock());
        let before = self.running.len();
        for number in numbers {
            let thread = self.running.remove(&number);
            if thread.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!(number, "a job of this agent has ended by a panic");
            }
        }
        self.running.len() < before
    }

    /// Waits until one of them has ended, or somebody asks.
    fn wait(&self, asked: Option<&dyn AskedToEnd>) -> Result<()> {
        let woken = self.ended.woken.as_fd();
        let descriptors: Vec<_> = [woken]
            .into_iter()
            .chain(asked.map(AskedToEnd::descriptor))
            .collect();
        wait_for_any(&descriptors, Instant::now() + LONG)?;
        Ok(())
    }
}

impl Ended {
    fn lock(&self) -> impl std::ops::DerefMut<Target = Vec<u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a job's thread ends, also by a panic.
struct TellEnded(Arc<Ended>, u64);

impl Drop for TellEnded {
    fn drop(&mut self) {
        self.0.lock().push(self.1);
        wake(&self.0.woken);
    }
}

/// Relays for one job, whose ranks are all of it.
fn serve_job(options: Options, ranks: u32, party: Party) -> Result<()> {
    let mut waiting = Unwelcomed(Some(party));
    let started = Single::new().map_err(Error::from).and_then(|launcher| {
        let mut receive = |_: &[&str]| Ok(waiting.0.take().expect("a job is received once"));
        JobState::start_agent(options, Box::new(launcher), ranks, &mut receive)
    });
    let mut started = match started {
        Ok(started) => started,
        Err(error) => {
            waiting.refuse(&error.to_string());
            return Err(error);
        }
    };
    match Park::new(&started.doorbell, &started.state) {
        Ok(park) => relay(Inline::of_parts(started, park)),
        // The ranks are welcomed already, and hear it as of any job that fails.
        Err(error) => {
            started.state.give_up(error.clone());
            Err(error)
        }
    }
}

/// Ranks that have come, and have not heard of each other yet. A panic refuses them too.
struct Unwelcomed(Option<Party>);

impl Unwelcomed {
    fn refuse(&mut self, why: &str) {
        if let Some(party) = self.0.take() {
            party.refuse(why);
        }
    }
}

impl Drop for Unwelcomed {
    fn drop(&mut self) {
        self.refuse("it has panicked, as its log says");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_whose_thread_does_not_start_is_none_that_has_ended() {
        let mut jobs = Jobs::new().unwrap();
        drop(TellEnded(Arc::clone(&jobs.ended), 0)); // as a spawn that fails drops it
        assert!(!jobs.reap(), "an agent would begin to linger");
        let ended = TellEnded(Arc::clone(&jobs.ended), 1);
        let thread = masked::spawn("job", move || drop(ended)).unwrap();
        jobs.running.insert(1, thread);
        jobs.wait(None).unwrap();
        assert!(jobs.reap());
    }
}
