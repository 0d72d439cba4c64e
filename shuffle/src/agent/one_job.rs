//! An agent that serves one job.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::bootstrap::{Bootstrap, Party, Reception, check_agents, start_beside_agents};
use trihop_transport::masked;
use trihop_transport::memory::descriptors::wait_for_any;
use trihop_transport::sync::{Mutex, PoisonError};
use trihop_transport::watch::{eventfd, is_woken, wake};

use super::jobs::{ASKED, LONG};
use super::{AskedToEnd, unless_asked};
use crate::config::Options;
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::seat::{Inline, relay};

/// How often one of several agents looks whether the others live, while ranks are to come.
const LOOK: Duration = Duration::from_secs(1);

/// Serves one job on this node, which has `ranks` processes in it, as its agent: takes `name`,
/// waits for them, and relays until all ranks of the job have shut it down.
///
/// The launcher of this process knows the agents of all nodes as the ranks of a job. Where it has
/// started several on a node, all of them are told the number of the node's ranks, and the first
/// one there takes the name. Ranks are numbered agent by agent, and on a node by their place: those
/// of node `n` follow those of the nodes before it, where the launcher counts agents node by node.
/// `ready` is called, at the first agent of a node, once it has its name and its fabric: ranks that
/// come before wait.
///
/// Where it is `asked` to end before its job has begun, it does so without an error, and tells the
/// ranks that wait for others of their node why. A job that has begun comes to its end first. Asked
/// before any rank may come, or once more, it returns at once, and what its thread still does ends
/// with the process. Where somebody may ask, the job has a thread of its own, and else the caller's.
///
/// # Errors
/// A name that another agent has; a node without ranks, or with fewer than agents; as
/// [`Job::start`]; what has ended the job.
///
/// # Examples
/// ```no_run
/// use trihop_shuffle::{Options, agent};
///
/// agent::serve(Options::from_env()?, &agent::default_name(), 4, None, || println!("ready"))?;
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
///
/// [`Job::start`]: crate::over::Job::start
pub fn serve(
    options: Options,
    name: &str,
    ranks: u32,
    asked: Option<&dyn AskedToEnd>,
    ready: impl Fn() + Send + 'static,
) -> Result<()> {
    options.check()?;
    let (launcher, wait) = (options.launcher, options.bootstrap_timeout());
    let connect = move || start_beside_agents(launcher, wait).map_err(Error::from);
    let Some(asked) = asked else {
        return serve_with(options, connect()?, name, ranks, ready);
    };
    let (end, ended) = (Arc::new(End::new()?), Arc::new(eventfd()?));
    let (asked_for, name) = (Arc::clone(&end), name.to_owned());
    let at_end = WakeAtEnd(Arc::clone(&ended));
    let job = masked::spawn("trihop-agent-job", move || {
        let _at_end = at_end;
        serve_until(&asked_for, options, connect()?, &name, ranks, ready)
    })?;
    let mut was_asked = false;
    while !is_woken(&ended) {
        let descriptors = [ended.as_fd(), asked.descriptor()];
        wait_for_any(&descriptors, Instant::now() + LONG)?;
        if asked.take() {
            if was_asked || !end.ask() {
                return Ok(());
            }
            was_asked = true;
        }
    }
    match job.join().unwrap_or_else(|panic| resume_unwind(panic)) {
        Err(_) if was_asked && !end.has_begun() => Ok(()),
        Err(error) if !end.has_begun() => unless_asked(Some(asked), error),
        outcome => outcome,
    }
}

/// As [`serve`], with a bootstrap of the caller's, whose ranks are the agents; nobody asks for its
/// end.
///
/// # Errors
/// As [`serve`].
pub fn serve_with(
    options: Options,
    bootstrap: Box<dyn Bootstrap>,
    name: &str,
    ranks: u32,
    ready: impl Fn(),
) -> Result<()> {
    serve_until(&End::new()?, options, bootstrap, name, ranks, ready)
}

fn serve_until(
    end: &End,
    options: Options,
    bootstrap: Box<dyn Bootstrap>,
    name: &str,
    ranks: u32,
    ready: impl Fn(),
) -> Result<()> {
    let is_first = bootstrap.topology().local_rank() == 0;
    let nodes = bootstrap.topology().nodes();
    let reception = is_first.then(|| Reception::open(name, ranks, nodes..=nodes, 1));
    let mut reception = reception.transpose()?;
    let mut receive = |agents: &[&str]| {
        let reception = reception.as_mut().expect("the first agent receives");
        end.receive(reception, agents, &ready)
    };
    let started = JobState::start_agent(options, bootstrap, ranks, &mut receive);
    let was_asked = !end.let_it(match started {
        Ok(_) => Stage::Run,
        Err(_) => Stage::Failed,
    });
    match started {
        Ok(started) => {
            drop(reception); // who comes now finds nobody
            relay(Inline::new(started)?)
        }
        Err(error) => {
            let why = match was_asked {
                true => ASKED.to_owned(),
                false => format!("this agent cannot start its job: {error}"),
            };
            if let Some(reception) = reception {
                reception.close(&why);
            }
            if was_asked { Ok(()) } else { Err(error) }
        }
    }
}

/// How the thread of a job hears that its agent is to end.
struct End {
    stage: Mutex<Stage>,
    /// Readable once its ranks are to be received no longer.
    is_wanted: OwnedFd,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No rank has been received: nobody has anything to lose.
    Start,
    /// Ranks come, and may wait for others.
    Receive,
    /// The agent was asked to end before all had come.
    GiveUp,
    /// It could not begin.
    Failed,
    /// Its ranks have come, or it has begun.
    Run,
}

impl End {
    fn new() -> Result<Self> {
        Ok(Self {
            stage: Mutex::new(Stage::Start),
            is_wanted: eventfd()?,
        })
    }

    /// Asks; whether the job comes to an end of its own, which is to be waited for.
    fn ask(&self) -> bool {
        let mut stage = self.lock();
        let before = *stage;
        if matches!(before, Stage::Start | Stage::Receive) {
            *stage = Stage::GiveUp;
            wake(&self.is_wanted);
        }
        before != Stage::Start
    }

    fn has_begun(&self) -> bool {
        *self.lock() == Stage::Run
    }

    /// The job goes on to a stage, unless it is to give up.
    fn let_it(&self, next: Stage) -> bool {
        let mut stage = self.lock();
        let goes_on = *stage != Stage::GiveUp;
        if goes_on {
            *stage = next;
        }
        goes_on
    }

    /// The ranks of the job, as long as the node's other agents live, which have sockets of these
    /// names.
    fn receive(
        &self,
        reception: &mut Reception,
        agents: &[&str],
        ready: &dyn Fn(),
    ) -> Result<Party> {
        let gives_up = || Error::Bootstrap {
            launcher: "agent",
            why: ASKED.to_owned(),
        };
        if !self.let_it(Stage::Receive) {
            return Err(gives_up());
        }
        ready();
        loop {
            // Where it is the only agent it just waits for all.
            let look = (!agents.is_empty()).then(|| Instant::now() + LOOK);
            let party = reception.receive(&[self.is_wanted.as_fd()], look)?;
            let next = match &party {
                Some(_) => Stage::Run,
                None => Stage::Receive,
            };
            match (self.let_it(next), party) {
                (true, Some(party)) => return Ok(party),
                (true, None) => check_agents(agents)?,
                (false, party) => {
                    party.inspect(|party| party.refuse(ASKED));
                    return Err(gives_up());
                }
            }
        }
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes who waits for the end of a thread, also of one that panics.
struct WakeAtEnd(Arc<OwnedFd>);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        wake(&self.0);
    }
}
