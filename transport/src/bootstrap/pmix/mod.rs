//! A rank of a PMIx launcher; the client library is loaded when it is needed.
//!
//! PMIx calls wait without limit, so they are made by a thread of their own, and the deadline is
//! kept here.
// They come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

mod abi;

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use self::abi::{Functions, Info, Process};
use super::hosts::{self, Store};
use super::{Bootstrap, Launcher, check_key, check_value, next_session};
use crate::at_exit::{self, AtExit};
use crate::error::{Error, Result};
use crate::home::Home;
use crate::masked;
use crate::sync::{AtomicBool, AtomicU32, Ordering, PoisonError, StaticMutex};
use crate::topology::{NodeId, Rank, Topology};

pub(super) use abi::is_loadable;

/// First byte of each value: ours, and never empty.
const MARK: u8 = b't';

/// How long it may take to leave, at the end of the process; a server may have many to hear then.
const LEAVE: Duration = Duration::from_secs(30);
/// Where a call to it has not come back.
const LEAVE_STUCK: Duration = Duration::from_secs(2);

/// Connection of one rank to a PMIx server.
pub struct Pmix {
    session: Session,
    topology: Topology,
}

impl Pmix {
    /// Largest value, in bytes; PMIx itself has no limit.
    pub const VALUE_BYTES_MAX: usize = 1 << 20;

    /// Loads the library and connects to the server that the environment names.
    ///
    /// # Errors
    /// When the library is missing or of an unknown version, or the server does not answer.
    pub fn connect(wait: Duration) -> Result<Self> {
        let mut session = Session::open(wait)?;
        let (size, me) = (session.size, Rank(session.me.rank));
        // A key of the job is known to all ranks or to none. What is said of single nodes and ranks
        // may be known on some nodes only, so rank 0 looks that up for all.
        let topology = match session.look_up(&[mapped], me)? {
            Some(topology) => topology,
            None => {
                let known = match me {
                    Rank(0) => session.look_up(&[listed, one_by_one], me)?,
                    _ => None,
                };
                hosts::hear(&mut session, "pmix", size, me, known)?
            }
        };
        Ok(Self { session, topology })
    }
}

impl Bootstrap for Pmix {
    fn launcher(&self) -> Launcher {
        Launcher::Pmix
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
        self.session.put(key, value)
    }

    fn fence(&mut self) -> Result<()> {
        self.session.fence()
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        self.session.get(from, key)
    }

    fn abort(&mut self, status: i32, why: &str) {
        tracing::error!(status, why, "abort");
        let text = CString::new(why.replace('\0', " ")).unwrap_or_default();
        if let Err(error) = self
            .session
            .call("aborting", move |pmix, _| pmix.abort(status, &text))
        {
            tracing::error!(%error, "abort did not reach the launcher");
        }
    }

    // The process stays with its server, in case it has another job.
    fn finalize(&mut self) -> Result<()> {
        Ok(())
    }
}

type Call = Box<dyn FnOnce(&Functions, &mut Process) + Send>;

/// To the thread that talks to PMIx: one for all jobs of a process, from the first one's start.
///
/// The process joins its server once, and takes leave when it exits. Servers of Open MPI 4 take
/// none back that has left, and the library of Open MPI 5 crashes in the second leave.
struct Line {
    functions: Functions,
    calls: Sender<Call>,
    /// The server takes the end of this process for a crash until it has taken leave. MPI's own
    /// leave counts only once all users of the library have taken theirs. Pairs with itself: who
    /// takes it back takes leave, and nothing is read by it.
    has_joined: AtomicBool,
    /// Calls whose callers have given up and that have not come back. It alone is asked.
    given_up: AtomicU32,
    home: Home,
}

/// That of this process, or of the one it was forked from.
static LINE: StaticMutex<Option<Arc<Line>>> = StaticMutex::new(None);

impl Line {
    fn of_process() -> Result<Arc<Self>> {
        let mut line = LINE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = &*line {
            return match line.home.is_here() {
                true => Ok(Arc::clone(line)),
                false => Err(failed(
                    "this process is a fork of one that has been a rank, whose place it cannot \
                     take: fork before the first job, or have the launcher start this process"
                        .into(),
                )),
            };
        }
        let functions = Functions::bind().map_err(failed)?;
        let (calls, queue) = channel();
        masked::spawn("trihop-pmix", move || serve(&functions, &queue))?;
        let new = Arc::new(Self {
            functions,
            calls,
            has_joined: AtomicBool::new(false),
            given_up: AtomicU32::new(0),
            home: Home::here(),
        });
        let guarded: Weak<dyn AtExit> = Arc::<Self>::downgrade(&new);
        at_exit::guard(guarded);
        Ok(Arc::clone(line.insert(new)))
    }

    /// Takes leave, unless that has been done.
    fn leave(&self) {
        if !self.home.is_here() || !self.has_joined.swap(false, Ordering::Relaxed) {
            return;
        }
        let (answer, answered) = channel();
        let finalize: Call = Box::new(move |pmix, _| {
            let _ = answer.send(pmix.finalize()); // nobody waits so long
        });
        let sent = self.calls.send(finalize).is_ok();
        let wait = if self.is_stuck() { LEAVE_STUCK } else { LEAVE };
        let left = sent.then(|| answered.recv_timeout(wait));
        if !matches!(left, Some(Ok(abi::SUCCESS))) {
            tracing::warn!("the launcher may take the exit of this process for a crash");
        }
    }
}

impl Line {
    fn is_stuck(&self) -> bool {
        self.given_up.load(Ordering::Relaxed) > 0
    }
}

/// Takes leave of the server, of a process that ends without its exit's doing so.
pub(super) fn take_leave() {
    let line = LINE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(line) = line {
        line.leave();
    }
}

impl AtExit for Line {
    fn try_exit(&self) -> bool {
        self.leave();
        true
    }
}

/// What this rank asks of PMIx, before and after the topology is known.
struct Session {
    line: Arc<Line>,
    /// Which job of this process it is: keys of each are others, since what one has got of a key
    /// may never be asked for again.
    number: u32,
    wait: Duration,
    me: Process,
    size: u32,
}

impl Session {
    fn open(wait: Duration) -> Result<Self> {
        let line = Line::of_process()?;
        let mut session = Self {
            line,
            number: 0,
            wait,
            me: Process::NOBODY,
            size: 0,
        };
        session.me = session.join()?;
        session.number = next_session();
        let job = Process {
            rank: abi::RANK_WILDCARD,
            ..session.me
        };
        let size = session.call("asking for the job's size", move |pmix, _| {
            pmix.get(&job, abi::JOB_SIZE, abi::IMMEDIATE)
                .map(|value| value.number())
        })?;
        session.size = match size {
            Ok(Some(size)) => size,
            Ok(None) => {
                return Err(failed(
                    "the server answered with a job size that is no number".into(),
                ));
            }
            Err(code) => {
                return Err(refused(
                    &session.line.functions,
                    "asking for the job's size",
                    code,
                ));
            }
        };
        Ok(session)
    }

    /// Joins the server, unless an earlier job of the process has done so. Returns who this is.
    fn join(&mut self) -> Result<Process> {
        let line = Arc::clone(&self.line);
        // Also where nobody waits for it any more, or two jobs start at once.
        let (code, me) = self.call("PMIx_Init", move |pmix, me| {
            if line.has_joined.load(Ordering::Relaxed) {
                return (abi::SUCCESS, *me);
            }
            let code = pmix.init(me);
            let is_in = matches!(code, abi::SUCCESS | abi::OPERATION_SUCCEEDED);
            line.has_joined.store(is_in, Ordering::Relaxed);
            (code, *me)
        })?;
        check(&self.line.functions, "PMIx_Init", code)?;
        Ok(me)
    }

    /// Who is where, as far as the library knows it in this process: nobody is asked for it.
    fn look_up(&mut self, ways: &'static [Way], me: Rank) -> Result<Option<Topology>> {
        let size = self.size;
        self.call("asking for the nodes", move |pmix, process| {
            let job = Process {
                rank: abi::RANK_WILDCARD,
                ..*process
            };
            ways.iter().find_map(|way| way(pmix, &job, size, me))
        })
    }

    /// Makes a call in the thread and waits for it until the deadline.
    fn call<T: Send + 'static>(
        &mut self,
        doing: &str,
        call: impl FnOnce(&Functions, &mut Process) -> T + Send + 'static,
    ) -> Result<T> {
        if self.line.is_stuck() {
            return Err(failed(format!(
                "no answer while {doing}: an earlier call to the PMIx server is still waiting"
            )));
        }
        let (answer, answered) = channel();
        let (line, is_wanted) = (Arc::clone(&self.line), Arc::new(AtomicBool::new(true)));
        let wanted = Arc::clone(&is_wanted);
        let boxed: Call = Box::new(move |pmix, me| {
            // Of one that was given up before its turn others would not know.
            if wanted.load(Ordering::Acquire) {
                drop(answer.send(call(pmix, me)));
            }
            if !wanted.swap(false, Ordering::AcqRel) {
                line.given_up.fetch_sub(1, Ordering::Relaxed);
            }
        });
        let gone = || failed(format!("the thread for PMIx has ended while {doing}"));
        self.line.calls.send(boxed).map_err(|_| gone())?;
        answered.recv_timeout(self.wait).map_err(|error| {
            match error {
                RecvTimeoutError::Timeout => {
                    self.line.given_up.fetch_add(1, Ordering::Relaxed);
                    if !is_wanted.swap(false, Ordering::AcqRel) {
                        // It has just come back.
                        self.line.given_up.fetch_sub(1, Ordering::Relaxed);
                    }
                    let hint = if doing == FENCE {
                        "; PMIx does not tell which ranks are missing"
                    } else {
                        ""
                    };
                    failed(format!(
                        "no answer within {:?} while {doing}{hint}",
                        self.wait
                    ))
                }
                RecvTimeoutError::Disconnected => gone(),
            }
        })
    }

    fn success(
        &mut self,
        doing: &'static str,
        call: impl FnOnce(&Functions, &mut Process) -> c_int + Send + 'static,
    ) -> Result<()> {
        let code = self.call(doing, call)?;
        check(&self.line.functions, doing, code)
    }
}

const FENCE: &str = "waiting at a fence";

impl Session {
    fn full_key(&self, key: &str) -> Result<CString> {
        CString::new(format!("trihop.{}.{key}", self.number))
            .map_err(|_| Error::config("bootstrap key", format!("{key:?} holds a NUL")))
    }
}

impl Store for Session {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let (key, value) = (self.full_key(key)?, [&[MARK], value].concat());
        self.success("PMIx_Put", move |pmix, _| pmix.put(&key, &value))
    }

    fn fence(&mut self) -> Result<()> {
        self.success("PMIx_Commit", |pmix, _| pmix.commit())?;
        self.success(FENCE, |pmix, _| pmix.fence())
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        let full = self.full_key(key)?;
        let found = self.call("PMIx_Get", move |pmix, me| {
            pmix.get(
                &Process {
                    rank: from.0,
                    ..*me
                },
                &full,
                abi::IMMEDIATE,
            )
            .map(|value| value.bytes())
        })?;
        match found {
            Ok(Some(bytes)) if bytes.first() == Some(&MARK) => Ok(Some(bytes[1..].to_vec())),
            Ok(_) => Err(failed(format!(
                "the value {key} of rank {from} is not ours"
            ))),
            Err(abi::ERR_NOT_FOUND | abi::ERR_EXISTS_OUTSIDE_SCOPE) => Ok(None),
            Err(code) => Err(refused(&self.line.functions, "PMIx_Get", code)),
        }
    }
}

/// A way to find who is where in a job, seen from one of its ranks.
type Way = fn(&Functions, job: &Process, size: u32, me: Rank) -> Option<Topology>;

/// By one look-up: Slurm.
fn mapped(pmix: &Functions, job: &Process, size: u32, me: Rank) -> Option<Topology> {
    let map = pmix.get(job, abi::ANL_MAP, abi::OPTIONAL).ok()?.text()?;
    Topology::from_process_mapping(&map, size, me).ok()
}

/// By a look-up for each node: Open MPI and PRRTE. The job need not be on all nodes that the
/// launcher has numbered.
fn listed(pmix: &Functions, job: &Process, size: u32, me: Rank) -> Option<Topology> {
    let nodes = pmix
        .get(job, abi::NUM_NODES, abi::OPTIONAL)
        .ok()?
        .number()?;
    let peers = |node| {
        let directives = [
            Info::yes(abi::NODE_INFO),
            Info::number(abi::NODE_ID, node),
            Info::yes(abi::OPTIONAL),
        ];
        pmix.get_by(job, abi::LOCAL_PEERS, &directives).ok()?.text()
    };
    let numbered = 0..nodes.saturating_mul(4).saturating_add(64);
    of_peers(numbered.filter_map(peers), size, me)
}

/// Who is where by the ranks of each node, `0,1,2`; `None` unless each rank below `size` is on one
/// node.
fn of_peers(nodes: impl Iterator<Item = String>, size: u32, me: Rank) -> Option<Topology> {
    // First rank, rank behind the last, node.
    let mut runs: Vec<(u32, u32, usize)> = Vec::new();
    let mut left = size;
    for (node, peers) in nodes.enumerate() {
        for rank in peers.split(',') {
            let rank = rank.trim().parse().ok().filter(|rank| *rank < size)?;
            match runs.last_mut() {
                Some((_, end, of)) if *end == rank && *of == node => *end += 1,
                _ => runs.push((rank, rank + 1, node)),
            }
            left = left.saturating_sub(1);
        }
        if left == 0 {
            break;
        }
    }
    runs.sort_unstable();
    let mut placed = 0;
    let mut numbers = HashMap::new();
    let run = |(first, end, node): (u32, u32, usize)| {
        let next = NodeId(numbers.len() as u32);
        let before = std::mem::replace(&mut placed, end);
        match before == first {
            true => Ok((*numbers.entry(node).or_insert(next), end - first)),
            false => Err(failed(format!("rank {first} follows rank {before}"))),
        }
    };
    let topology = Topology::from_runs(runs.into_iter().map(run), me).ok()?;
    (topology.size() == size).then_some(topology)
}

/// By a look-up for each rank: servers of Open MPI 4 do not know the ranks of all other nodes, but
/// each rank's host.
fn one_by_one(pmix: &Functions, job: &Process, size: u32, me: Rank) -> Option<Topology> {
    let host = |rank| {
        let value = pmix.get(&Process { rank, ..*job }, abi::HOST_NAME, abi::OPTIONAL);
        let name = value.ok().and_then(|value| value.text());
        name.ok_or_else(|| failed(format!("rank {rank} has no host")))
    };
    hosts::by_lowest_rank((0..size).map(host), me).ok()
}

/// Life of the thread: one call after the other, as long as the process.
fn serve(functions: &Functions, queue: &Receiver<Call>) {
    let mut me = Process::NOBODY;
    while let Ok(call) = queue.recv() {
        call(functions, &mut me);
    }
}

fn check(functions: &Functions, doing: &str, code: c_int) -> Result<()> {
    match code {
        abi::SUCCESS | abi::OPERATION_SUCCEEDED => Ok(()),
        code => Err(refused(functions, doing, code)),
    }
}

fn refused(functions: &Functions, doing: &str, code: c_int) -> Error {
    failed(format!("{} while {doing}", functions.error_text(code)))
}

fn failed(why: String) -> Error {
    Error::Bootstrap {
        launcher: "pmix",
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_versions_are_refused() {
        for good in [
            "OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2)",
            "PMIx 3.1.5",
            "OpenPMIx 6.0.0",
        ] {
            abi::check_version(good).unwrap();
        }
        for bad in [
            "OpenPMIx 2.2.5",
            "OpenPMIx 7.0.0",
            "",
            "OpenPMIx",
            "99999999999999",
        ] {
            abi::check_version(bad).unwrap_err();
        }
    }

    fn placed(peers: &[&str], size: u32) -> Option<String> {
        let peers = peers.iter().map(|peers| (*peers).to_owned());
        Some(of_peers(peers, size, Rank(0))?.process_mapping())
    }

    #[test]
    fn the_ranks_of_each_node_make_a_placement() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(placed(&["0,1,2", "3,4,5"], 6), text("(vector,(0,2,3))"));
        assert_eq!(
            placed(&["0, 2", "1,3"], 4),
            text("(vector,(0,2,1),(0,2,1))")
        );
        // Nodes are numbered by their lowest rank, however they are listed.
        assert_eq!(
            placed(&["4,3,2", "0,1"], 5),
            text("(vector,(0,1,2),(1,1,3))")
        );
    }

    #[test]
    fn lists_that_leave_out_a_rank_or_name_one_twice_are_passed_over() {
        for peers in [
            &["0,1", "3"][..],
            &["0,1", "1,2"],
            &["0,1,2", "3,4"],
            &["0-3"],
            &[""],
        ] {
            assert_eq!(placed(peers, 4), None, "{peers:?}");
        }
    }

    #[test]
    fn the_library_is_bound_where_it_is_installed() {
        if is_loadable() {
            assert!(
                !Functions::bind()
                    .map_err(failed)
                    .unwrap()
                    .error_text(abi::ERR_NOT_FOUND)
                    .is_empty()
            );
        } else {
            eprintln!("skipped: {} is not installed", abi::LIBRARY);
        }
    }
}
