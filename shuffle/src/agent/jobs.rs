//! An agent that serves as many jobs as come.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::bootstrap::{
    Bootstrap, ENV_STARTED, Follower, JobOfAgents, Joiner, Meeting, Party, Reception, Rest, Single,
    ranks_of_nodes, start_beside_agents,
};
use trihop_transport::masked::{self, MaskedThread};
use trihop_transport::memory::descriptors::wait_for_any;
use trihop_transport::sync::{Mutex, PoisonError};
use trihop_transport::watch::{eventfd, is_woken, wake};

use super::unless_asked;
use crate::config::Options;
use crate::error::Result;
use crate::job::JobState;
use crate::seat::{Inline, Park, relay};

/// Most jobs of which some ranks have come to an agent and others not.
pub const MOST_WAITING: usize = 64;

/// How long it sleeps where nothing has to be looked at.
pub(super) const LONG: Duration = Duration::from_secs(3600);

/// What ranks hear that wait for others of their job when an agent is asked to end.
pub(super) const ASKED: &str = "this agent was asked to end";

/// How long it sleeps at least before it asks others whether they have jobs, after the first time
/// and after many.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// How an agent hears that it is to end.
pub trait AskedToEnd {
    /// Becomes readable when somebody asks.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether somebody has asked since the last call.
    fn take(&self) -> bool;
}

/// Serves jobs of `ranks` processes each on this node: takes `name`, and relays for each job whose
/// ranks have come, until its ranks have shut it down.
///
/// Where the launcher has started agents on several nodes, a job has ranks on all of them, or on as
/// many as these say ([`ENV_NODES`](super::ENV_NODES)), of each node as many as its agents were
/// told, and begins once all have come: jobs of one name and number of nodes in the order in which
/// their ranks came, on each node. Those that come at about the same time need names of their own:
/// nothing else tells whose ranks are whose. Where it has started several on a node, the first one
/// there takes the name, and all of them share the ranks of each job.
///
/// It ends once it has had a job and then none for as long as `linger`, and no other agent of its
/// launch either, without end where that is `None`; where a rank has started it and none has come
/// for as long, or for `bootstrap_timeout_ms`, if that is longer; when it is asked to; or when
/// another agent ends. Then it gives its name free for another agent, refuses ranks that wait for
/// others of their job, and ends with the last of its jobs. Asked once more it returns at once; the
/// jobs that it has then end with its process.
///
/// A job that fails is logged at level warn, and is the end of that job alone; so is one for which
/// no thread is to be had or descriptors run out, and one whose relay panics: its ranks hear why.
/// Memory is bounded for each of them; threads and descriptors are the process's. `ready` is
/// called, at the first agent of a node, once ranks may come.
///
/// # Errors
/// A name that another agent has; a node without ranks, or with fewer than agents, or whose agents
/// were told different numbers; the launcher's own; the first agent cannot be reached by the
/// others.
pub fn serve_jobs(
    options: Options,
    name: &str,
    ranks: u32,
    linger: Option<Duration>,
    asked: Option<&dyn AskedToEnd>,
    ready: impl Fn(),
) -> Result<()> {
    options.check()?;
    match begin(options, name, ranks, ready) {
        Ok((agent, doors)) => agent.serve(doors, linger, asked),
        Err(error) => unless_asked(asked, error),
    }
}

/// An agent, once ranks may come.
fn begin(options: Options, name: &str, ranks: u32, ready: impl Fn()) -> Result<(Agent, Doors)> {
    let mut bootstrap = start_beside_agents(options.launcher, options.bootstrap_timeout())?;
    let topology = bootstrap.topology();
    let (agents, nodes, is_first) = (
        topology.size(),
        topology.nodes(),
        topology.local_rank() == 0,
    );
    let reception = is_first.then(|| Reception::open(name, ranks, 1..=nodes, MOST_WAITING));
    let reception = reception.transpose()?;
    let mut meet = || {
        // Each job asks for those of its own nodes; what is wrong with any is said now.
        ranks_of_nodes(&mut *bootstrap, ranks)?;
        let (interfaces, wait) = (options.interfaces(), options.bootstrap_timeout());
        let waits = (wait, options.watch_timeout());
        let open = || Meeting::open(&mut *bootstrap, &interfaces, options.loopback, waits);
        Ok((agents > 1).then(open).transpose()?)
    };
    let meeting = match meet() {
        Ok(meeting) => meeting,
        Err(error) => {
            // Ranks may have come.
            if let Some(reception) = reception {
                reception.close(&format!("this agent cannot start: {error}"));
            }
            return Err(error);
        }
    };
    let entrance = match (reception, &meeting) {
        (Some(reception), _) => Entrance::Ranks(reception),
        (None, meeting) => Entrance::FirstAgent {
            follower: meeting
                .as_ref()
                .expect("others are here")
                .joiner()
                .follower(),
            failures: 0,
        },
    };
    let agent = Agent {
        options,
        ranks,
        bootstrap,
        jobs: Jobs::new()?,
    };
    if is_first {
        ready();
    }
    Ok((agent, Doors { entrance, meeting }))
}

struct Agent {
    options: Options,
    ranks: u32,
    /// The launcher's, who is told of the end.
    bootstrap: Box<dyn Bootstrap>,
    jobs: Jobs,
}

/// By what jobs come to an agent.
struct Doors {
    entrance: Entrance,
    /// With other agents.
    meeting: Option<Meeting>,
}

enum Entrance {
    /// Ranks come, to the first agent of a node.
    Ranks(Reception),
    /// Any other one there hears it when those of all nodes have.
    FirstAgent {
        follower: Follower,
        /// Times in a row that it could not ask.
        failures: u32,
    },
}

/// A job that has come.
enum Coming {
    /// To this agent: its ranks have, and others may have to.
    Ranks(Party, Option<Joiner>),
    /// To all of its agents.
    All(JobOfAgents),
}

impl Doors {
    /// Whether its time to linger counts: nobody waits here for the other ranks of a job. Only the
    /// first agent of a node knows that, which has all jobs that the others there have.
    fn may_linger(&self) -> bool {
        match &self.entrance {
            Entrance::Ranks(reception) => reception.is_empty(),
            Entrance::FirstAgent { .. } => false,
        }
    }

    /// Waits for a job, as [`Reception::receive`]. Only who [may linger](Self::may_linger) has a
    /// deadline.
    fn receive(
        &mut self,
        others: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<Option<Coming>> {
        let stays = self.meeting.as_ref().map(Meeting::stays);
        let mut descriptors: Vec<_> = others.iter().copied().chain(stays).collect();
        let (follower, failures) = match &mut self.entrance {
            Entrance::Ranks(reception) => {
                let party = reception.receive(&descriptors, deadline)?;
                let joiner = self.meeting.as_ref().map(Meeting::joiner);
                return Ok(party.map(|party| Coming::Ranks(party, joiner)));
            }
            Entrance::FirstAgent { follower, failures } => (follower, failures),
        };
        let next = follower.next_job();
        *failures = if next.is_ok() { 0 } else { *failures + 1 };
        let next = match next {
            Ok(Some(job)) => return Ok(Some(Coming::All(job))),
            Ok(None) => LONG,
            Err(error) => {
                // Where the meeting is over, that says so itself before it fails again.
                if *failures == 2 {
                    tracing::warn!(%error, "this agent cannot ask for its next job");
                }
                LOOK_AGAIN[0]
            }
        };
        descriptors.extend(follower.descriptor());
        wait_for_any(&descriptors, Instant::now() + next)?;
        Ok(None)
    }

    /// A job that has begun at this agent's others, and that it has not looked for yet.
    fn begun(&mut self) -> Option<Coming> {
        match &mut self.entrance {
            Entrance::Ranks(_) => None,
            Entrance::FirstAgent { follower, .. } => {
                follower.begun_job().ok().flatten().map(Coming::All)
            }
        }
    }

    /// Has the ranks of a job that had come hear why it does not begin.
    fn refuse(&self, party: &Party, why: &str) {
        if let Entrance::Ranks(reception) = &self.entrance {
            reception.refuse_all(party, why);
        }
    }

    /// What is left of the time to linger, where others have had jobs meanwhile that this node had
    /// no part of; at least so long where they have some, or cannot be asked.
    fn left_of(&self, linger: Option<Duration>, again: Duration) -> Option<Duration> {
        let linger = linger.unwrap_or_default();
        let quiet = match self.meeting.as_ref()?.quiet_for() {
            Ok(quiet) => quiet,
            // Where the first agent is gone, so is the meeting, which says so itself.
            Err(error) => {
                tracing::debug!(%error, "whether other agents have jobs is not known");
                None
            }
        };
        match quiet {
            None => Some(linger.max(again)),
            Some(quiet) if quiet >= linger => None,
            Some(quiet) => Some((linger - quiet).max(LOOK_AGAIN[0])),
        }
    }

    /// Lets no further job in; what others may still need then.
    fn close(self, why: &str) -> Option<Rest> {
        if let Entrance::Ranks(reception) = self.entrance {
            reception.close(why);
        }
        self.meeting.and_then(Meeting::leave)
    }
}

impl Agent {
    fn serve(
        mut self,
        doors: Doors,
        linger: Option<Duration>,
        asked: Option<&dyn AskedToEnd>,
    ) -> Result<()> {
        let (mut doors, mut rest) = (Some(doors), None);
        let mut was_asked = false;
        // Once a job has ended, and no other one runs; the rank that has started it may be gone.
        let was_started = std::env::var_os(ENV_STARTED).is_some();
        let first = linger.filter(|_| was_started);
        let first = first.map(|linger| linger.max(self.options.bootstrap_timeout()));
        let mut ends_at = first.and_then(|first| Instant::now().checked_add(first));
        let mut again = LOOK_AGAIN[0];
        loop {
            if self.jobs.reap() && self.jobs.running.is_empty() {
                ends_at = linger.and_then(|linger| Instant::now().checked_add(linger));
                again = LOOK_AGAIN[0];
            }
            if asked.is_some_and(AskedToEnd::take) {
                if was_asked {
                    return Ok(());
                }
                was_asked = true;
                // It may have none any more, because another agent was asked before.
                if let Some(doors) = doors.take() {
                    rest = self.close(doors, ASKED);
                }
            }
            let is_alone = self.jobs.running.is_empty();
            let Some(open) = &mut doors else {
                if is_alone && rest.as_ref().is_none_or(Rest::is_over) {
                    break;
                }
                let rest = rest.as_ref().filter(|_| is_alone);
                self.jobs.wait(asked, rest)?;
                continue;
            };
            let is_alone = is_alone && open.may_linger();
            let end = ends_at.filter(|_| is_alone);
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            if is_over && let Some(left) = open.left_of(linger, again) {
                ends_at = Instant::now().checked_add(left);
                again = (2 * again).min(LOOK_AGAIN[1]);
                continue;
            }
            let why = match &mut open.meeting {
                _ if is_over => Some("no job had come for its time to linger".into()),
                Some(meeting) => meeting.why_over(),
                None => None,
            };
            if let Some(why) = why {
                tracing::info!(why, "this agent takes no more jobs");
                let why = format!("this agent has ended: {why}");
                rest = doors.take().and_then(|doors| self.close(doors, &why));
                continue;
            }
            let others: Vec<_> = [self.jobs.ended.woken.as_fd()]
                .into_iter()
                .chain(asked.map(AskedToEnd::descriptor))
                .collect();
            if let Some(job) = open.receive(&others, end)? {
                let party = match &job {
                    Coming::Ranks(party, _) => Some(party.clone()),
                    Coming::All(_) => None,
                };
                match self.start(job) {
                    Ok(()) => ends_at = None,
                    Err(error) => {
                        party.inspect(|party| open.refuse(party, &error.to_string()));
                    }
                }
            }
        }
        Ok(self.bootstrap.finalize()?)
    }

    fn start(&mut self, job: Coming) -> Result<()> {
        let started = self.jobs.start(self.options.clone(), self.ranks, job);
        started.inspect_err(|error| tracing::warn!(%error, "refused a job"))
    }

    /// Lets no further job in, but the one that has begun already.
    fn close(&mut self, mut doors: Doors, why: &str) -> Option<Rest> {
        if let Some(job) = doors.begun() {
            // Where it cannot start, the others of the job hear of it.
            let _ = self.start(job);
        }
        doors.close(why)
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
    fn start(&mut self, options: Options, ranks: u32, job: Coming) -> Result<()> {
        let number = self.started;
        self.started += 1;
        let ended = TellEnded(Arc::clone(&self.ended), number);
        let thread = masked::spawn("trihop-agent-job", move || {
            let _ended = ended;
            match serve_job(options, ranks, job) {
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

    /// Waits until one of them has ended, nobody needs the rest of a meeting, or somebody asks.
    fn wait(&self, asked: Option<&dyn AskedToEnd>, rest: Option<&Rest>) -> Result<()> {
        let descriptors: Vec<_> = [self.ended.woken.as_fd()]
            .into_iter()
            .chain(asked.map(AskedToEnd::descriptor))
            .chain(rest.map(Rest::ends))
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

/// Relays for one job: these ranks are all of it, or all of this node.
fn serve_job(options: Options, ranks: u32, job: Coming) -> Result<()> {
    let (launcher, party) = match job {
        Coming::Ranks(party, joiner) => (store_of_job(&party, joiner), Some(party)),
        Coming::All(job) => (Ok(Box::new(job) as Box<dyn Bootstrap>), None),
    };
    let mut waiting = Unwelcomed(party);
    let started = launcher.and_then(|launcher| {
        let mut receive = |_: &[&str]| {
            let party = waiting.0.take();
            Ok(party.expect("the first agent of a node receives a job's ranks once"))
        };
        JobState::start_agent(options, launcher, ranks, &mut receive)
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

fn store_of_job(party: &Party, joiner: Option<Joiner>) -> Result<Box<dyn Bootstrap>> {
    Ok(match joiner {
        Some(joiner) => Box::new(joiner.join(party)?),
        None => Box::new(Single::new()?),
    })
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
        jobs.wait(None, None).unwrap();
        assert!(jobs.reap());
    }
}
