//! A rank of an `mpiexec` (MPICH's Hydra and its descendants) or of Slurm's `srun --mpi=pmi2`, by
//! PMI-1 on `PMI_FD` or, where there is none (`mpiexec -pmi-port`), over TCP at `PMI_PORT`.
//!
//! MPI in the same process may use the descriptor too. It then has sent `init`, and will send
//! `finalize`, after which the launcher closes the connection: we send neither as long as MPI is
//! initialised. A port takes one connection for each rank, so there it is MPI or us.

mod mpi;
mod wire;

use std::env;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use self::wire::{Chunks, REPLY_BYTES_MAX, Reply, refused};
use super::hosts::{self, Store};
use super::socket::{Broken, LauncherSocket};
use super::{Bootstrap, KEY_BYTES_MAX, Launcher, check_key, check_value, next_session};
use crate::error::{Error, Result};
use crate::sync::{PoisonError, StaticMutex};
use crate::topology::{Rank, Topology};

/// Environment variable of the launcher: descriptor number of the connection.
pub(super) const ENV_DESCRIPTOR: &str = "PMI_FD";

/// Environment variables of the launcher: its address as `HOST:PORT`, and the number by which it
/// knows this process.
const ENV_PORT: &str = "PMI_PORT";
const ENV_ID: &str = "PMI_ID";

/// Longest key that we make: `trihop.SESSION.RANK.KEY.CHUNK`.
const FULL_KEY_BYTES_MAX: usize = 7 + 10 + 1 + 10 + 1 + KEY_BYTES_MAX + 1 + 2;

/// Connection of one rank to a PMI-1 launcher.
#[derive(Debug)]
pub struct Pmi1 {
    session: Session,
    topology: Topology,
    /// The process's own, where it has joined by the descriptor that it was started with.
    visit: Option<Visit>,
}

/// How this process stands with its launcher, by the descriptor that it was started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visits {
    None,
    UnderWay,
    /// It has taken leave, upon which launchers close the connection.
    Over,
}

static VISITS: StaticMutex<Visits> = StaticMutex::new(Visits::None);

/// The time that a process without MPI is with its launcher, one at a time.
#[derive(Debug)]
struct Visit {
    before: Visits,
}

impl Visit {
    fn begin() -> Result<Self> {
        let mut visits = VISITS.lock().unwrap_or_else(PoisonError::into_inner);
        match *visits {
            Visits::UnderWay => Err(once("this process is in a job already")),
            before => {
                *visits = Visits::UnderWay;
                Ok(Self { before })
            }
        }
    }

    /// What has kept it from beginning.
    fn explain(&self, error: Error) -> Error {
        match self.before {
            Visits::Over => once(&format!("this process has left a job before ({error})")),
            _ => error,
        }
    }

    fn end(&mut self) {
        self.before = Visits::Over;
    }
}

fn once(why: &str) -> Error {
    let rule = "launchers that speak PMI-1 take a process once; have one job for as long as it \
                lives, or initialise MPI before, which keeps the connection";
    Error::config(ENV_DESCRIPTOR, format!("{why}, and {rule}"))
}

impl Drop for Visit {
    fn drop(&mut self) {
        *VISITS.lock().unwrap_or_else(PoisonError::into_inner) = self.before;
    }
}

impl Pmi1 {
    /// Connects by `PMI_FD`, `PMI_RANK` and `PMI_SIZE`, or by `PMI_PORT` and `PMI_ID`.
    ///
    /// # Errors
    /// When a variable is missing or impossible, or the launcher does not answer as PMI-1 wants it.
    pub fn connect(wait: Duration) -> Result<Self> {
        // What is empty is not set.
        if env::var_os(ENV_DESCRIPTOR).is_none_or(|text| text.is_empty()) {
            return Self::connect_to_port(wait);
        }
        let me = Rank(number("PMI_RANK", ENV_DESCRIPTOR)?);
        let size = number("PMI_SIZE", ENV_DESCRIPTOR)?;
        let shared = mpi::is_active();
        let visit = if shared { None } else { Some(Visit::begin()?) };
        let socket = LauncherSocket::inherited(ENV_DESCRIPTOR, wait)?;
        let opened = Session::open(socket, me, next_session(), shared);
        let session = opened.map_err(|error| match &visit {
            Some(visit) => visit.explain(error),
            None => error,
        })?;
        let mut joined = Self::join(session, size)?;
        joined.visit = visit;
        Ok(joined)
    }

    /// Speaks over a connection that was handed over otherwise than by the environment, as rank
    /// `me` of `size`. `session` counts how often the processes of the job have joined it before,
    /// the same on all ranks.
    ///
    /// # Errors
    /// When the launcher does not answer as PMI-1 wants it.
    pub fn over(
        socket: OwnedFd,
        me: Rank,
        size: u32,
        session: u32,
        wait: Duration,
    ) -> Result<Self> {
        let socket = LauncherSocket::of(socket, wait);
        Self::join(Session::open(socket, me, session, false)?, size)
    }

    fn connect_to_port(wait: Duration) -> Result<Self> {
        let id = number(ENV_ID, ENV_PORT)?;
        if mpi::is_active() {
            return Err(Error::config(
                ENV_PORT,
                "MPI is initialised and has this process's only connection to the launcher; start without `-pmi-port`, or \
                 give trihop an allgather of MPI (`Job::start_with`, `trihop_init_custom`)",
            ));
        }
        let (session, size) = Session::open_by_id(
            LauncherSocket::connected(ENV_PORT, wait)?,
            id,
            next_session(),
        )?;
        Self::join(session, size)
    }

    fn join(mut session: Session, size: u32) -> Result<Self> {
        let me = session.me;
        let topology = match session.fetch("PMI_process_mapping")? {
            Some(mapping) if !mapping.is_empty() => {
                Topology::from_process_mapping(&mapping, size, me)?
            }
            _ => hosts::exchange(&mut session, "pmi1", size, me)?,
        };
        Ok(Self {
            session,
            topology,
            visit: None,
        })
    }
}

impl Bootstrap for Pmi1 {
    fn launcher(&self) -> Launcher {
        Launcher::Pmi1
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn value_limit(&self) -> usize {
        self.session.chunks.value_limit()
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value, self.value_limit())?;
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
        if let Err(error) = self
            .session
            .send(&format!("cmd=abort exitcode={status}\n"), "aborting")
        {
            tracing::error!(%error, "abort did not reach the launcher");
        }
    }

    fn finalize(&mut self) -> Result<()> {
        if self.session.shared || mpi::is_active() {
            return Ok(());
        }
        if let Some(visit) = &mut self.visit {
            visit.end();
        }
        self.session
            .ask("cmd=finalize\n", "finalize_ack", "taking leave", |_| Ok(()))
    }

    /// MPI's `finalize` closes the connection, even if others still use it.
    fn is_out_of_reach(&self) -> bool {
        mpi::has_ended()
    }
}

/// The connection, before and after the topology is known.
#[derive(Debug)]
struct Session {
    socket: LauncherSocket,
    unread: Vec<u8>,
    me: Rank,
    /// The store lasts as long as the launcher, and which of two values of one key it gives is
    /// chance: keys of a later session must be other ones.
    number: u32,
    store_name: String,
    chunks: Chunks,
    /// MPI was there first: `init` was not ours to send, `finalize` is not either.
    shared: bool,
}

impl Session {
    /// Over an inherited descriptor: the environment says who we are.
    fn open(socket: LauncherSocket, me: Rank, number: u32, shared: bool) -> Result<Self> {
        Self::unopened(socket, me, number, shared)?.opened()
    }

    /// Over a connection of our own: the launcher says who we are, and how many there are.
    fn open_by_id(socket: LauncherSocket, id: u32, number: u32) -> Result<(Self, u32)> {
        let mut session = Self::unopened(socket, Rank(id), number, false)?;
        let doing = "introducing itself at PMI_PORT";
        session.send(&format!("cmd=initack pmiid={id}\n"), doing)?;
        let deadline = session.socket.deadline();
        let greeting = session.line(deadline, doing)?;
        Reply::parse(&greeting, "initack")?.success(doing)?;
        // After that come a line each, in this order in every launcher, but nothing says so.
        let (mut size, mut rank, mut debug) = (None, None, None);
        while size.is_none() || rank.is_none() || debug.is_none() {
            let line = session.line(deadline, doing)?;
            let reply = Reply::parse(&line, "set")?;
            let before = [size, rank, debug];
            for (name, place) in [
                ("size", &mut size),
                ("rank", &mut rank),
                ("debug", &mut debug),
            ] {
                if reply.word(name).is_some() {
                    *place = Some(reply.number(name)?);
                }
            }
            if before == [size, rank, debug] {
                return Err(refused(format!(
                    "a line that says nothing new while {doing}: {}",
                    String::from_utf8_lossy(&line).escape_debug()
                )));
            }
        }
        let told = |name: &str, value: Option<usize>| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .ok_or_else(|| refused(format!("a {name} of {value:?} while {doing}")))
        };
        session.me = Rank(told("rank", rank)?);
        Ok((session.opened()?, told("size", size)?))
    }

    fn unopened(socket: LauncherSocket, me: Rank, number: u32, shared: bool) -> Result<Self> {
        Ok(Self {
            socket,
            unread: Vec::new(),
            me,
            number,
            store_name: String::new(),
            chunks: Chunks::fit(1024, 0)?,
            shared,
        })
    }

    fn opened(mut self) -> Result<Self> {
        let session = &mut self;
        if !session.shared {
            let request = "cmd=init pmi_version=1 pmi_subversion=1\n";
            session.ask(
                request,
                "response_to_init",
                "init with PMI version 1.1",
                |reply| {
                    // The subversion differs between releases and changes nothing that is used
                    // here.
                    match reply.word("pmi_version") {
                        None | Some("1") => Ok(()),
                        Some(other) => Err(refused(format!(
                            "the launcher speaks PMI version {other}, not 1"
                        ))),
                    }
                },
            )?;
        }
        let (key_bytes, value_bytes) =
            session.ask("cmd=get_maxes\n", "maxes", "asking for limits", |reply| {
                Ok((reply.number("keylen_max")?, reply.number("vallen_max")?))
            })?;
        if key_bytes <= FULL_KEY_BYTES_MAX {
            return Err(refused(format!(
                "keys of {key_bytes} bytes are too short, {FULL_KEY_BYTES_MAX} are needed"
            )));
        }
        session.store_name = session.ask(
            "cmd=get_my_kvsname\n",
            "my_kvsname",
            "asking for the store's name",
            |reply| {
                reply
                    .word("kvsname")
                    .map(str::to_owned)
                    .ok_or_else(|| refused("the store has no name"))
            },
        )?;
        let overhead = session.put_line(&"k".repeat(FULL_KEY_BYTES_MAX), "").len();
        session.chunks = Chunks::fit(value_bytes, overhead)?;
        Ok(self)
    }

    fn send(&mut self, request: &str, doing: &str) -> Result<()> {
        let deadline = self.socket.deadline();
        self.socket
            .send_all(request.as_bytes(), deadline)
            .map_err(|b| broken(b, doing))
    }

    /// Sends a line and takes the one that answers it.
    fn ask<T>(
        &mut self,
        request: &str,
        command: &str,
        doing: &str,
        take: impl FnOnce(Reply<'_>) -> Result<T>,
    ) -> Result<T> {
        self.answer(request, command, doing, |reply| take(reply.success(doing)?))
    }

    /// As [`Session::ask`], but a refusal is left to `take`.
    fn answer<T>(
        &mut self,
        request: &str,
        command: &str,
        doing: &str,
        take: impl FnOnce(Reply<'_>) -> Result<T>,
    ) -> Result<T> {
        self.send(request, doing)?;
        let deadline = self.socket.deadline();
        let line = self.line(deadline, doing)?;
        take(Reply::parse(&line, command)?)
    }

    /// The next line that arrives, without its end.
    fn line(&mut self, deadline: Instant, doing: &str) -> Result<Vec<u8>> {
        let end = loop {
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                break end;
            }
            if self.unread.len() > REPLY_BYTES_MAX {
                return Err(refused(format!(
                    "an answer of more than {REPLY_BYTES_MAX} bytes while {doing}"
                )));
            }
            self.socket
                .receive(&mut self.unread, deadline)
                .map_err(|b| broken(b, doing))?;
        };
        let mut line: Vec<u8> = self.unread.drain(..=end).collect();
        line.truncate(end);
        Ok(line)
    }

    fn put_line(&self, key: &str, value: &str) -> String {
        format!(
            "cmd=put kvsname={} key={key} value={value}\n",
            self.store_name
        )
    }

    /// A value of the store as its text; none where there is no such key.
    fn fetch(&mut self, key: &str) -> Result<Option<String>> {
        let request = format!("cmd=get kvsname={} key={key}\n", self.store_name);
        self.answer(&request, "get_result", "getting a value", |reply| {
            Ok(reply
                .succeeded()
                .then(|| reply.word("value").unwrap_or("").to_owned()))
        })
    }

    fn full_key(&self, rank: Rank, key: &str, chunk: usize) -> String {
        let number = self.number;
        if chunk == 0 {
            format!("trihop.{number}.{rank}.{key}")
        } else {
            format!("trihop.{number}.{rank}.{key}.{chunk}")
        }
    }
}

impl Store for Session {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        for (chunk, text) in self.chunks.split(value).enumerate() {
            let request = self.put_line(&self.full_key(self.me, key, chunk), &text);
            self.ask(&request, "put_result", "putting a value", |_| Ok(()))?;
        }
        Ok(())
    }

    fn fence(&mut self) -> Result<()> {
        self.ask(
            "cmd=barrier_in\n",
            "barrier_out",
            "waiting at a barrier",
            |_| Ok(()),
        )
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        self.chunks
            .join(|chunk| self.fetch(&self.full_key(from, key, chunk)))
    }
}

fn broken(broken: Broken, doing: &str) -> Error {
    let late_barrier = matches!(broken, Broken::Late) && doing.contains("barrier");
    let hint = if late_barrier {
        " (PMI-1 does not tell which ranks are missing)"
    } else {
        ""
    };
    broken.into_error("pmi1", &format!("{doing}{hint}"))
}

/// The number in a variable that the launcher sets together with another.
fn number(variable: &str, beside: &str) -> Result<u32> {
    let text = env::var(variable).map_err(|_| {
        Error::config(
            variable,
            format!("not set although {beside} is; start with mpiexec"),
        )
    })?;
    super::number(variable, &text)
}

#[cfg(test)]
mod tests;
