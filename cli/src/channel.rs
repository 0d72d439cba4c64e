//! `trihop channel`: channels for scripts, as a guest.

use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

use clap::Subcommand;
use trihop::channel::{Descriptor, Poll, Return, Timeout};
use trihop::guest::{self, Channel, Guest, Lifetime};
use trihop::{ChannelLimits, Error as Failure};

use crate::number::whole;

const AFTER_HELP: &str = "\
Each call is a guest of `trihop serve`, or of a program that serves guests, on this node.

  tasks=$(trihop channel create --messages 1000)
  find . -name '*.txt' | trihop channel send --lines $tasks
  while task=$(trihop channel get --timeout-ms 0 $tasks); do process \"$task\"; done
  trihop channel close $tasks

EXIT STATUS
  0  done
  1  it has failed; the reason is on standard error
  2  wrong usage
  3  there is no message, or no room, in time
  4  the channel is closed, or is none any more

ENVIRONMENT
  TRIHOP_GUESTS  the server's name, where `--name` is not given";

/// Use channels from scripts, as a guest of `trihop serve`
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct ChannelArgs {
    /// Name of the server [default: TRIHOP_GUESTS, or `trihop-guests-` and the user's number]
    #[arg(long, global = true)]
    name: Option<String>,
    /// Milliseconds to wait for a message, for room or for what is polled; 0 tries once [default:
    /// without an end]
    #[arg(long, global = true, value_name = "MS", value_parser = whole::<u64>(..))]
    timeout_ms: Option<u64>,
    /// Milliseconds to wait for a server
    #[arg(long, global = true, value_name = "MS", value_parser = whole::<u64>(..), default_value = "10000")]
    wait_ms: u64,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a channel that is there until it is closed, or its server ends; prints its descriptor
    Create {
        /// Messages that it holds
        #[arg(long, value_parser = whole::<u32>(1..=1 << 24), default_value_t = ChannelLimits::default().messages)]
        messages: u32,
        /// Bytes of these messages
        #[arg(long, value_parser = whole::<u64>(1..=1 << 48), default_value_t = ChannelLimits::default().bytes)]
        bytes: u64,
        /// Make a semaphore instead, with this value, which is also the most that it may be
        #[arg(long, value_name = "VALUE", value_parser = whole::<u64>(..), conflicts_with_all = ["barrier", "messages", "bytes"])]
        semaphore: Option<u64>,
        /// Make a barrier of so many parties instead
        #[arg(long, value_name = "PARTIES", value_parser = whole::<u32>(1..), conflicts_with_all = ["messages", "bytes"])]
        barrier: Option<u32>,
    },
    /// Send what is on standard input as one message
    Send {
        /// As `create` has printed it
        descriptor: String,
        /// Send each line as a message, without its end
        #[arg(long)]
        lines: bool,
        /// 32 bits that go with the message
        #[arg(long, value_parser = whole::<u32>(..), default_value = "0")]
        kind: u32,
    },
    /// Write the first message to standard output, and take it out of the channel
    Get {
        /// As `create` has printed it
        descriptor: String,
        /// Leave it in the channel
        #[arg(long)]
        peek: bool,
    },
    /// Wait until something holds, or use a semaphore or a barrier; prints the number that it gives
    Poll {
        /// As `create` has printed it
        descriptor: String,
        /// What is polled
        #[arg(value_enum)]
        what: What,
    },
    /// Close a channel: whoever waits for a message of it hears that; what is in it goes with it
    /// once nobody is attached
    Close {
        /// As `create` has printed it
        descriptor: String,
    },
}

/// See `trihop::channel::Poll`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum What {
    /// Until there is a message; how many
    In,
    /// Until there is room; for how many messages
    Out,
    /// Until there is none
    Empty,
    /// Until there is no room
    Full,
    /// Until it is closed; how many messages are left
    Closed,
    /// How many messages there are
    Size,
    /// How many it may hold
    Capacity,
    /// Takes one from a semaphore; what is left
    Acquire,
    /// Gives a semaphore one; its value
    Release,
    /// The value of a semaphore
    Value,
    /// Comes to a barrier, and waits for the others; how many came before
    Arrive,
    /// How many wait in a barrier
    Waiting,
}

impl What {
    fn poll(self) -> Poll {
        match self {
            Self::In => Poll::In,
            Self::Out => Poll::Out,
            Self::Empty => Poll::Empty,
            Self::Full => Poll::Full,
            Self::Closed => Poll::Closed,
            Self::Size => Poll::Size,
            Self::Capacity => Poll::Capacity,
            Self::Acquire => Poll::Acquire,
            Self::Release => Poll::Release,
            Self::Value => Poll::Value,
            Self::Arrive => Poll::Arrive,
            Self::Waiting => Poll::Waiting,
        }
    }
}

/// Why a call has done nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the channel.
    #[error(transparent)]
    Channel(Failure),
    /// What was to be done cannot be done now, or in time.
    #[error("not in time")]
    NotInTime,
    /// What is given is the name of no channel.
    #[error(transparent)]
    NoDescriptor(Failure),
    /// A message was taken out of its channel, and is gone.
    #[error("the message is taken, and cannot be written: {0}")]
    Unwritten(io::Error),
    /// Of standard input or output.
    #[error("{0}")]
    Stream(#[from] io::Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::WouldBlock | Failure::TimedOut(_) => Self::NotInTime,
            failure => Self::Channel(failure),
        }
    }
}

impl Error {
    /// Exit status of a command that fails so.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::NotInTime => 3,
            Self::Channel(Failure::ChannelClosed { .. } | Failure::NoChannel { .. }) => 4,
            _ => 1,
        }
    }
}

/// Does one thing with one channel.
///
/// # Errors
/// What it has failed with.
pub fn run(args: ChannelArgs) -> Result<(), Error> {
    let name = args.name.unwrap_or_else(guest::default_name);
    let wait = Duration::from_millis(args.wait_ms);
    let guest = Guest::of(&name, wait)?;
    let timeout = match args.timeout_ms {
        None => Timeout::Never,
        Some(0) => Timeout::Once,
        Some(time) => Timeout::After(Duration::from_millis(time)),
    };
    match args.action {
        Action::Create {
            messages,
            bytes,
            semaphore,
            barrier,
        } => {
            let limits = ChannelLimits {
                messages,
                bytes,
                ..ChannelLimits::default()
            };
            let made = match (semaphore, barrier) {
                (Some(value), _) => guest.semaphore(value, value, limits, Lifetime::Server),
                (None, Some(parties)) => guest.barrier(parties, limits, Lifetime::Server),
                (None, None) => guest.create(limits, Lifetime::Server),
            };
            say(&made?.descriptor().to_string())
        }
        Action::Send {
            descriptor,
            lines,
            kind,
        } => {
            let mut port = guest.attach(&parse(&descriptor)?)?;
            match lines {
                true => send_lines(&mut port, kind, timeout),
                false => {
                    let mut bytes = Vec::new();
                    io::stdin().lock().read_to_end(&mut bytes)?;
                    Ok(port.send(kind, &bytes, Return::WhenDeposited, timeout)?)
                }
            }
        }
        Action::Get { descriptor, peek } => {
            let mut port = guest.attach(&parse(&descriptor)?)?;
            if peek {
                return Ok(write(&port.peek(timeout)?.bytes)?);
            }
            write(&port.get(timeout)?.bytes).map_err(Error::Unwritten)
        }
        Action::Poll { descriptor, what } => {
            let mut port = guest.attach(&parse(&descriptor)?)?;
            say(&port.poll(what.poll(), timeout)?.to_string())
        }
        Action::Close { descriptor } => Ok(guest.attach(&parse(&descriptor)?)?.close()?),
    }
}

/// Sends each line; the last message is in the channel when it returns, and so are all others.
fn send_lines(port: &mut Channel, kind: u32, timeout: Timeout) -> Result<(), Error> {
    for line in io::stdin().lock().split(b'\n') {
        port.send(kind, &line?, Return::WhenDeposited, timeout)?;
    }
    Ok(())
}

fn parse(descriptor: &str) -> Result<Descriptor, Error> {
    descriptor.parse().map_err(Error::NoDescriptor)
}

fn say(line: &str) -> Result<(), Error> {
    Ok(write(format!("{line}\n").as_bytes())?)
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
