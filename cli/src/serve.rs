//! `trihop serve`: a rank that serves guests, and does nothing else.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use trihop::agent::AskedToEnd;
use trihop::channel::Timeout;
use trihop::transport::memory::descriptors::wait_for_any;
use trihop::{ChannelLimits, Options, guest, threaded};

use crate::agent::{Asked, raise_descriptors, say_ready};

const AFTER_HELP: &str = "\
Guests are processes of the same user on a node that are no ranks of any job: they come and go at
any time, one by one, make channels, and send to, get from and poll all channels of the job, in
Rust, C, C++ and Python, and by `trihop channel`. One of these on each node connects the nodes:

  trihop serve &                                 guests of this machine
  mpiexec -n 2 -ppn 1 trihop serve &             guests of two nodes
  tasks=$(trihop channel create)
  echo hello | trihop channel send $tasks
  trihop channel get $tasks

Channels that guests make are this process's, and gone with it. A program that is a job itself
serves guests as well: `serve_guests` of its channels.

SIGNALS
  SIGTERM, SIGINT and SIGHUP end it, on all nodes: its guests hear that. It waits for those of other
  nodes, which their launcher tells; a second signal ends it at once.

EXIT STATUS
  0  a signal has ended it
  1  it cannot start, or its job has failed; the reason is on standard error
  2  wrong usage

ENVIRONMENT
  TRIHOP_GUESTS  the name, where `--name` is not given";

/// Serve guests, processes that are no ranks, with channels
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct ServeArgs {
    /// Abstract name to be found by on this node [default: TRIHOP_GUESTS, or `trihop-guests-` and
    /// the user's number]
    #[arg(long)]
    name: Option<String>,
    /// Do not say `ready` and the name on standard output once guests may come, to all nodes
    #[arg(long)]
    quiet: bool,
}

/// Serves guests until a signal comes.
///
/// # Errors
/// The library's.
pub fn run(args: ServeArgs) -> Result<(), trihop::Error> {
    raise_descriptors();
    let name = args.name.unwrap_or_else(guest::default_name);
    let job = threaded::Job::start(Options::from_env()?)?;
    let channels = job.channels("guests").open()?;
    let guests = channels.serve_guests(&name)?;
    job.barrier()?;
    // Before, others may be waited for: a signal ends it.
    let asked = Asked::new()?;
    if !args.quiet {
        say_ready(&name);
    }
    // Nobody sends to it: it tells when the job fails.
    let own = channels.create(ChannelLimits::default())?;
    let mut failure = own.start_get(Timeout::Never)?;
    while !asked.take() {
        let failed = failure.event()?;
        let others = [asked.descriptor(), failed.as_fd()];
        wait_for_any(&others, Instant::now() + Duration::from_secs(3600))?;
        failure.test()?;
    }
    drop(failure);
    drop((own, guests));
    // From now on a signal ends it.
    drop(asked);
    channels.shutdown()?;
    job.shutdown()
}
