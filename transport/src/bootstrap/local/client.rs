//! A rank's side of the store: requests out, replies in, with a bound on every wait.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::wire::{self, Frames, Reply, Request};
use crate::bootstrap::hosts::Store;
use crate::bootstrap::socket::{Broken, LauncherSocket};
use crate::bootstrap::{check_key, check_value};
use crate::error::{Error, Result};
use crate::topology::Rank;

/// How long the launcher has to say who is missing, once a fence is late.
const MISSING_WAIT: Duration = Duration::from_secs(2);

/// How often somebody who waits for others looks whether it is still worth it.
const LOOK: Duration = Duration::from_millis(100);

/// What another agent of a node does.
const FOLLOWING: &str = "waiting for the next job of this node's first agent";

/// One rank's connection to whoever keeps the store.
#[derive(Debug)]
pub(in crate::bootstrap) struct Client {
    socket: LauncherSocket,
    frames: Frames,
    /// Name of the launcher, for errors.
    launcher: &'static str,
}

impl Client {
    /// Introduces `rank`.
    ///
    /// # Errors
    /// When the launcher does not answer, or refuses.
    pub fn greet(socket: LauncherSocket, launcher: &'static str, rank: Rank) -> Result<Self> {
        let mut client = Self {
            socket,
            frames: Frames::default(),
            launcher,
        };
        client.ask_done(
            &Request::Hello {
                version: wire::VERSION,
                rank: rank.0,
            },
            "greeting",
        )?;
        Ok(client)
    }

    /// Bounds every wait from now on.
    pub fn wait_at_most(&mut self, wait: Duration) {
        self.socket.wait_at_most(wait);
    }

    /// Ends the job with `status`, for the reason that the launcher prints.
    pub fn abort(&mut self, status: i32, why: &str) {
        if let Err(error) = self.ask_done(
            &Request::Abort {
                status,
                why: why.to_owned(),
            },
            "aborting",
        ) {
            tracing::error!(status, why, %error, "abort did not reach the launcher");
        }
    }

    /// Takes leave.
    ///
    /// # Errors
    /// When the launcher does not answer.
    pub fn finalize(&mut self) -> Result<()> {
        self.ask_done(&Request::Finalize, "taking leave")
    }

    /// Why not all others may come any more, if so.
    ///
    /// # Errors
    /// When the launcher does not answer.
    pub fn why_missed(&mut self) -> Result<Option<String>> {
        let doing = "asking for the others of the node";
        match self.exchange(&Request::Check, self.socket.deadline()) {
            Ok(Reply::Done) => Ok(None),
            Ok(Reply::Failed(why)) => Ok(Some(why)),
            Ok(other) => Err(self.unexpected(&other, doing)),
            Err(problem) => Err(self.broken(problem, doing)),
        }
    }

    /// For how long none of the agents has had a job; `None` where one has.
    ///
    /// # Errors
    /// When the other side does not say it.
    pub fn quiet_for(&mut self) -> Result<Option<Duration>> {
        let doing = "asking whether agents have jobs";
        match self.ask(&Request::Quiet, doing)? {
            Reply::Value(None) => Ok(None),
            Reply::Value(Some(value)) => {
                let bytes = <[u8; 8]>::try_from(value);
                let bytes = bytes.map_err(|_| self.failed("no number of milliseconds".into()))?;
                Ok(Some(Duration::from_millis(u64::from_le_bytes(bytes))))
            }
            other => Err(self.unexpected(&other, doing)),
        }
    }

    /// Comes to `job` on so many nodes (0 for all) as the first agent of its node, one of `all`
    /// agents, and waits until all others of it have, unless there is a reason to give up. Returns
    /// their numbers.
    ///
    /// # Errors
    /// That reason; agents that have not come in time, by their numbers.
    pub fn join(
        &mut self,
        (job, nodes): (&str, u32),
        all: u32,
        gives_up: &dyn Fn() -> Option<String>,
    ) -> Result<Vec<u32>> {
        let (doing, deadline) = ("waiting for the other agents", self.socket.deadline());
        let job = job.into();
        let request = Request::Join { nodes, job };
        let sent = self.send(&request, deadline);
        sent.map_err(|problem| self.broken(problem, doing))?;
        let reply = loop {
            match self.reply(deadline.min(Instant::now() + LOOK)) {
                Ok(reply) => break reply,
                Err(Problem::Broken(Broken::Late)) if Instant::now() >= deadline => {
                    break self.late("agents to which no ranks of the job have come")?;
                }
                Err(Problem::Broken(Broken::Late)) => {
                    if let Some(why) = gives_up() {
                        return Err(self.failed(why));
                    }
                }
                Err(problem) => return Err(self.broken(problem, doing)),
            }
        };
        self.agents_of(reply, all, doing)
    }

    /// Asks, as another agent of a node, for the next job to which the first one there comes.
    ///
    /// # Errors
    /// When the other side does not take it.
    pub fn follow(&mut self) -> Result<()> {
        let sent = self.send(&Request::Follow, self.socket.deadline());
        sent.map_err(|problem| self.broken(problem, FOLLOWING))
    }

    /// The agents of that job, of `all` there are, once it has begun.
    ///
    /// # Errors
    /// When the meeting is over, or the other side gone.
    pub fn followed(&mut self, all: u32) -> Result<Option<Vec<u32>>> {
        match self.reply(Instant::now()) {
            Ok(reply) => self.agents_of(reply, all, FOLLOWING).map(Some),
            Err(Problem::Broken(Broken::Late)) => Ok(None),
            Err(problem) => Err(self.broken(problem, FOLLOWING)),
        }
    }

    fn agents_of(&self, reply: Reply, all: u32, doing: &str) -> Result<Vec<u32>> {
        match reply {
            Reply::Value(Some(agents)) => {
                let agents = wire::decode_agents(&agents, all);
                agents.ok_or_else(|| self.failed("numbers of no agents".into()))
            }
            other => Err(self.unexpected(&other, doing)),
        }
    }

    /// Says as an agent that it stays until the meeting is over.
    ///
    /// # Errors
    /// When the other side does not take it.
    pub fn stay(&mut self) -> Result<()> {
        let sent = self.send(&Request::Fence, self.socket.deadline());
        sent.map_err(|problem| self.broken(problem, "joining the meeting of agents"))
    }

    /// Why the meeting is over, of an agent that [stays](Client::stay).
    pub fn why_over(&mut self) -> Option<String> {
        match self.reply(Instant::now()) {
            Err(Problem::Broken(Broken::Late)) => None,
            Ok(Reply::Failed(why)) => Some(why),
            Ok(other) => Some(
                self.unexpected(&other, "staying at the meeting")
                    .to_string(),
            ),
            Err(problem) => Some(self.broken(problem, "staying at the meeting").to_string()),
        }
    }

    fn ask_done(&mut self, request: &Request, doing: &str) -> Result<()> {
        match self.ask(request, doing)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(&other, doing)),
        }
    }

    fn ask(&mut self, request: &Request, doing: &str) -> Result<Reply> {
        match self.exchange(request, self.socket.deadline()) {
            Ok(Reply::Failed(why)) => Err(self.failed(format!("{why} (while {doing})"))),
            Ok(reply) => Ok(reply),
            Err(problem) => Err(self.broken(problem, doing)),
        }
    }

    fn exchange(&mut self, request: &Request, deadline: Instant) -> Result<Reply, Problem> {
        self.send(request, deadline)?;
        self.reply(deadline)
    }

    fn send(&self, request: &Request, deadline: Instant) -> Result<(), Problem> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        Ok(self.socket.send_all(&bytes, deadline)?)
    }

    fn reply(&mut self, deadline: Instant) -> Result<Reply, Problem> {
        loop {
            if let Some(frame) = self.frames.next_frame()? {
                return Ok(Reply::parse(frame)?);
            }
            self.socket.receive(self.frames.tail(), deadline)?;
        }
    }

    /// What was asked for is late: the launcher knows for whom it waits. The answer, if that has
    /// come just now.
    fn late(&mut self, who: &str) -> Result<Reply> {
        let deadline = Instant::now() + MISSING_WAIT;
        let waited = self.socket.wait();
        let missing = match self.exchange(&Request::Missing, deadline) {
            Ok(Reply::Missing(ranks)) => ranks,
            Ok(Reply::Failed(why)) => return Err(self.failed(why)),
            // That to this question follows it.
            Ok(awaited) => {
                let following = self.reply(deadline);
                return match following {
                    Ok(_) => Ok(awaited),
                    Err(problem) => Err(self.broken(problem, "asking who is missing")),
                };
            }
            Err(_) => "the launcher does not say which".into(),
        };
        Err(self.failed(format!("{who} after {waited:?}: {missing}")))
    }

    fn broken(&self, problem: Problem, doing: &str) -> Error {
        match problem {
            Problem::Broken(broken) => broken.into_error(self.launcher, doing),
            Problem::Bad(bad) => self.failed(format!(
                "the launcher's answer is not valid while {doing}: {bad}"
            )),
        }
    }

    fn unexpected(&self, reply: &Reply, doing: &str) -> Error {
        let kind = match reply {
            Reply::Done => "done",
            Reply::Value(_) => "a value",
            Reply::Missing(_) => "missing ranks",
            Reply::Failed(why) => return self.failed(why.clone()),
        };
        self.failed(format!("the launcher answered {kind:?} while {doing}"))
    }

    fn failed(&self, why: String) -> Error {
        Error::Bootstrap {
            launcher: self.launcher,
            why,
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Store for Client {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value, wire::VALUE_BYTES_MAX)?;
        self.ask_done(
            &Request::Put {
                key: key.to_owned(),
                value: value.to_vec(),
            },
            "putting a value",
        )
    }

    fn fence(&mut self) -> Result<()> {
        let reply = match self.exchange(&Request::Fence, self.socket.deadline()) {
            Ok(reply) => reply,
            Err(Problem::Broken(Broken::Late)) => self.late("missing at a fence")?,
            Err(problem) => return Err(self.broken(problem, "waiting at a fence")),
        };
        match reply {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(&other, "waiting at a fence")),
        }
    }

    fn get(&mut self, from: Rank, key: &str) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        match self.ask(
            &Request::Get {
                rank: from.0,
                key: key.to_owned(),
            },
            "getting a value",
        )? {
            Reply::Value(value) => Ok(value),
            other => Err(self.unexpected(&other, "getting a value")),
        }
    }
}

/// What can go wrong between request and reply.
enum Problem {
    Broken(Broken),
    Bad(wire::BadFrame),
}

impl From<Broken> for Problem {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<wire::BadFrame> for Problem {
    fn from(bad: wire::BadFrame) -> Self {
        Self::Bad(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn rank_of_two(answers: &[u8]) -> (Result<Client>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answers).unwrap();
        let socket = LauncherSocket::of(ours.into(), Duration::from_millis(50));
        (Client::greet(socket, "local", Rank(1)), theirs)
    }

    fn encoded(replies: &[Reply]) -> Vec<u8> {
        let mut bytes = Vec::new();
        replies.iter().for_each(|r| r.encode(&mut bytes));
        bytes
    }

    #[test]
    fn a_silent_launcher_is_an_error_at_the_deadline() {
        let (local, _launcher) = rank_of_two(&[]);
        let text = local.unwrap_err().to_string();
        assert!(text.contains("did not answer"), "{text}");
    }

    #[test]
    fn a_late_fence_names_the_missing_ranks() {
        let (local, mut launcher) = rank_of_two(&encoded(&[Reply::Done]));
        let mut local = local.unwrap();
        launcher
            .set_read_timeout(Some(crate::watchdog::PERIOD))
            .unwrap();
        let answer = std::thread::spawn(move || {
            let (mut frames, mut chunk) = (Frames::default(), [0_u8; 64]);
            loop {
                let count = launcher.read(&mut chunk).unwrap();
                frames.tail().extend_from_slice(&chunk[..count]);
                while let Some(frame) = frames.next_frame().unwrap() {
                    if Request::parse(frame).unwrap() == Request::Missing {
                        launcher
                            .write_all(&encoded(&[Reply::Missing("0".into())]))
                            .unwrap();
                        return;
                    }
                }
            }
        });
        let text = local.fence().unwrap_err().to_string();
        assert!(
            text.contains("missing at a fence") && text.ends_with(": 0"),
            "{text}"
        );
        answer.join().unwrap();
    }

    #[test]
    fn answers_that_are_not_valid_are_errors() {
        for bytes in [
            &[0_u8, 0, 0, 0][..],
            &[255; 8],
            &[1, 0, 0, 0, 99],
            &[2, 0, 0, 0, 1, 1],
        ] {
            let (local, _launcher) = rank_of_two(bytes);
            assert!(local.is_err(), "{bytes:?}");
        }
        let (local, _launcher) = rank_of_two(&encoded(&[
            Reply::Done,
            Reply::Value(None),
            Reply::Failed("no".into()),
        ]));
        let mut local = local.unwrap();
        assert!(local.fence().is_err());
        assert!(
            local
                .put("key", b"value")
                .unwrap_err()
                .to_string()
                .contains("no")
        );
    }
}
