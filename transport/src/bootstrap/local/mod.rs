//! A rank of `trihop run`: an inherited socket to the launcher, and who is where in `TRIHOP_*`.

pub mod wire;

use std::env;
use std::time::{Duration, Instant};

use self::wire::{Frames, Reply, Request};
use super::socket::{Broken, LauncherSocket};
use super::{Bootstrap, Launcher, check_key, check_value};
use crate::error::{Error, Result};
use crate::topology::{Rank, Topology};

/// Environment variable: descriptor number of the socket to the launcher.
pub const ENV_DESCRIPTOR: &str = "TRIHOP_BOOT_FD";
/// Environment variable: this process's rank.
pub const ENV_RANK: &str = "TRIHOP_RANK";
/// Environment variable: number of ranks.
pub const ENV_SIZE: &str = "TRIHOP_SIZE";
/// Environment variable: ranks on each node, node after node, e.g. `4,3`.
pub const ENV_NODE_SIZES: &str = "TRIHOP_NODE_SIZES";
/// Environment variable: `1` where all nodes are simulated on one machine, so that they talk over
/// loopback only.
pub const ENV_LOOPBACK: &str = "TRIHOP_LOOPBACK";

/// How long the launcher has to say who is missing, once a fence is late.
const MISSING_WAIT: Duration = Duration::from_secs(2);

const NAME: &str = "local";

/// Connection of one rank to `trihop run`.
#[derive(Debug)]
pub struct Local {
    socket: LauncherSocket,
    frames: Frames,
    topology: Topology,
}

impl Local {
    /// Connects by `TRIHOP_BOOT_FD`, `TRIHOP_RANK`, `TRIHOP_SIZE` and `TRIHOP_NODE_SIZES`.
    ///
    /// # Errors
    /// When a variable is missing or contradicts another one, or the launcher does not answer.
    pub fn connect(wait: Duration) -> Result<Self> {
        let topology = placement(&text(ENV_RANK)?, &text(ENV_SIZE)?, &text(ENV_NODE_SIZES)?)?;
        Self::greet(LauncherSocket::inherited(ENV_DESCRIPTOR, wait)?, topology)
    }

    fn greet(socket: LauncherSocket, topology: Topology) -> Result<Self> {
        let rank = topology.rank().0;
        let mut local = Self {
            socket,
            frames: Frames::default(),
            topology,
        };
        local.ask_done(
            &Request::Hello {
                version: wire::VERSION,
                rank,
            },
            "greeting",
        )?;
        Ok(local)
    }

    fn ask_done(&mut self, request: &Request, doing: &str) -> Result<()> {
        match self.ask(request, doing)? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other, doing)),
        }
    }

    fn ask(&mut self, request: &Request, doing: &str) -> Result<Reply> {
        let deadline = self.socket.deadline();
        let reply = self
            .send(request, deadline)
            .and_then(|()| self.reply(deadline));
        match reply {
            Ok(Reply::Failed(why)) => Err(failed(format!("{why} (while {doing})"))),
            Ok(reply) => Ok(reply),
            Err(problem) => Err(problem.into_error(doing)),
        }
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

    /// The fence is late: the launcher knows for whom it waits.
    fn late(&mut self) -> Result<()> {
        let deadline = Instant::now() + MISSING_WAIT;
        let waited = self.socket.wait();
        let missing = match self
            .send(&Request::Missing, deadline)
            .and_then(|()| self.reply(deadline))
        {
            Ok(Reply::Missing(ranks)) => ranks,
            // The fence was completed just now; the answer to the question follows it.
            Ok(Reply::Done) => {
                return self
                    .reply(deadline)
                    .map(|_| ())
                    .map_err(|p| p.into_error("completing a fence"));
            }
            Ok(Reply::Failed(why)) => return Err(failed(why)),
            Ok(_) | Err(_) => "the launcher does not say which".into(),
        };
        Err(failed(format!(
            "ranks missing at a fence after {waited:?}: {missing}"
        )))
    }
}

impl Bootstrap for Local {
    fn launcher(&self) -> Launcher {
        Launcher::Local
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn value_limit(&self) -> usize {
        wire::VALUE_BYTES_MAX
    }

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
        let deadline = self.socket.deadline();
        match self
            .send(&Request::Fence, deadline)
            .and_then(|()| self.reply(deadline))
        {
            Ok(Reply::Done) => Ok(()),
            Ok(Reply::Failed(why)) => Err(failed(why)),
            Ok(other) => Err(unexpected(&other, "waiting at a fence")),
            Err(Problem::Broken(Broken::Late)) => self.late(),
            Err(problem) => Err(problem.into_error("waiting at a fence")),
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
            other => Err(unexpected(&other, "getting a value")),
        }
    }

    fn abort(&mut self, status: i32, why: &str) {
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

    fn finalize(&mut self) -> Result<()> {
        self.ask_done(&Request::Finalize, "taking leave")
    }
}

/// What can go wrong between request and reply.
enum Problem {
    Broken(Broken),
    Bad(wire::BadFrame),
}

impl Problem {
    fn into_error(self, doing: &str) -> Error {
        match self {
            Self::Broken(broken) => broken.into_error(NAME, doing),
            Self::Bad(bad) => failed(format!(
                "the launcher's answer is not valid while {doing}: {bad}"
            )),
        }
    }
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

fn text(variable: &str) -> Result<String> {
    env::var(variable).map_err(|_| {
        Error::config(
            variable,
            format!("not set although {ENV_DESCRIPTOR} is; start with `trihop run`"),
        )
    })
}

fn placement(rank: &str, size: &str, node_sizes: &str) -> Result<Topology> {
    let number = |variable: &str, text: &str| {
        text.parse::<u32>()
            .map_err(|_| Error::config(variable, format!("{text:?} is no number")))
    };
    let sizes: Vec<u32> = node_sizes
        .split(',')
        .map(|s| number(ENV_NODE_SIZES, s))
        .collect::<Result<_>>()?;
    let topology = Topology::from_node_sizes(&sizes, Rank(number(ENV_RANK, rank)?))?;
    if topology.size() != number(ENV_SIZE, size)? {
        return Err(Error::config(
            ENV_NODE_SIZES,
            format!("{node_sizes} does not sum up to {ENV_SIZE}={size}"),
        ));
    }
    Ok(topology)
}

fn failed(why: String) -> Error {
    Error::Bootstrap {
        launcher: NAME,
        why,
    }
}

fn unexpected(reply: &Reply, doing: &str) -> Error {
    let kind = match reply {
        Reply::Done => "done",
        Reply::Value(_) => "a value",
        Reply::Missing(_) => "missing ranks",
        Reply::Failed(why) => return failed(why.clone()),
    };
    failed(format!("the launcher answered {kind:?} while {doing}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn rank_of_two(answers: &[u8]) -> (Result<Local>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answers).unwrap();
        let topology = Topology::from_node_sizes(&[2], Rank(1)).unwrap();
        (
            Local::greet(
                LauncherSocket::of(ours.into(), Duration::from_millis(50)),
                topology,
            ),
            theirs,
        )
    }

    fn encoded(replies: &[Reply]) -> Vec<u8> {
        let mut bytes = Vec::new();
        replies.iter().for_each(|r| r.encode(&mut bytes));
        bytes
    }

    #[test]
    fn the_placement_is_checked() {
        assert_eq!(
            placement("4", "7", "4,3").unwrap().process_mapping(),
            "(vector,(0,1,4),(1,1,3))"
        );
        for (rank, size, sizes) in [
            ("7", "7", "4,3"),
            ("0", "8", "4,3"),
            ("x", "7", "4,3"),
            ("0", "7", "4,,3"),
            ("0", "0", ""),
        ] {
            placement(rank, size, sizes).unwrap_err();
        }
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
