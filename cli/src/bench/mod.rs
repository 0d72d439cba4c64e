//! `trihop bench`: starts its own ranks, warms up once, repeats, checks every result, prints one
//! row per case.
//!
//! Run inside a job (under `trihop run` or `mpiexec`), it measures that job instead of starting
//! one.

mod a2a;
mod agents;
mod agups;
mod around;
mod attach;
mod c;
mod cc;
mod channel;
mod deltafs;
mod exchange;
mod histo;
mod ig;
mod p2p;
mod pair;
mod push;
mod random;
mod ring;
mod round;
mod rounds;
mod row;
mod scale;
mod seated;
mod session;
mod shared;
mod skew;
mod startup;
mod syscalls;
pub mod table;

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use trihop::route::RouteName;
use trihop::transport::bootstrap::{self, Launcher};
use trihop::{DumpOutput, Job, Options, Topology};

use crate::number::whole;
use crate::run::{self, LaunchSpec, OutputMode};
use crate::topo::load::Load;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Two processes of one node over a ring, beside a cache-line ping-pong and memcpy
    Ring,
    /// Two nodes over the fabric, eager and by both rendezvous, beside fi_pingpong
    P2p,
    /// Random updates of a distributed table: one 8-byte item per update
    Histo,
    /// Index gather: a request of 16 bytes and a reply of 16 bytes for a random entry of a
    /// distributed table
    Ig,
    /// All-to-all of messages of one size to uniform destinations, typed and bytes
    A2a,
    /// Updates whose handlers send the next update, ten times; ends by quiescence
    Agups,
    /// Connected components by label propagation on an R-MAT graph: handlers send on their own
    /// stream
    Cc,
    /// One message around all ranks, and three hops to and fro: latency with polling and with
    /// parked ranks
    Around,
    /// Bulk-synchronous steps: a message from each rank to every rank, then the end of the round
    Round,
    /// Histogram with a call per update and a call of a handler, or a pull, per arrival; in Rust and
    /// through the C interface
    Push,
    /// The first and the last rank through channels: half a round trip, a get from the other's
    /// channel, and a stream
    Channel,
    /// Jobs of one rank that join at an agent which stays, and leave it, one after the other
    Attach,
    /// Jobs of their own, one after the other: from the launcher's start to the first messages
    Startup,
    /// What nexus-runner does: byte records to random other ranks, each checked
    Exchange,
    /// Histogram with the indices of an RMAT graph, with Zipf's, and from all ranks to one
    Skew,
    /// Up to hundreds of thousands of ranks in this process, over a simulated fabric: memory, hops,
    /// cost per message
    Scale,
}

impl Name {
    /// Refuses what cannot be measured before any rank is started.
    fn check_shape(self, (ranks, nodes): (u32, u32)) -> Result<(), Error> {
        let wanted = match self {
            Self::Ring if nodes != 1 => "ring is between two ranks of one node",
            Self::P2p if nodes != 2 => "p2p is between two ranks of two nodes",
            Self::Attach if (ranks, nodes) != (1, 1) => "attach is of one rank, on one node",
            Self::Channel if ranks < 2 => "channel is between two ranks",
            Self::Ring | Self::P2p if ranks != 2 => {
                let why = format!("{} is between two ranks, this job has {ranks}", text(self));
                return Err(Error::Shape(why));
            }
            _ => return Ok(()),
        };
        Err(Error::Shape(wanted.to_owned()))
    }

    /// Ranks and nodes where the user asks for none.
    fn shape(self) -> (u32, u32) {
        match self {
            Self::Ring | Self::Channel => (2, 1),
            Self::P2p => (2, 2),
            Self::Attach => (1, 1),
            Self::Around => (4, 2),
            Self::Startup => (8, 4),
            _ => (4, 1),
        }
    }

    /// Refuses options that this benchmark cannot follow.
    fn check(self, args: &BenchArgs) -> Result<(), Error> {
        let name = text(self);
        if self != Self::Skew && !args.indices.is_empty() {
            return Err(Error::Shape(format!("{name} has no --indices; `skew` has")));
        }
        if self != Self::Scale && args.scale.any() {
            return Err(Error::Shape(format!(
                "{name} has none of --per-node, --messages, --pattern and --seed; `scale` has"
            )));
        }
        let has_api = |api: &a2a::Api| match self {
            Self::A2a => !push::APIS[1..].contains(api) && *api != a2a::Api::Guest,
            Self::Push => push::APIS.contains(api),
            Self::Channel => *api == a2a::Api::Guest && args.seat == Seat::Threaded,
            _ => false,
        };
        if let Some(&api) = args.api.iter().find(|api| !has_api(api)) {
            let api = text(api);
            return Err(Error::Shape(format!(
                "{name} has no --api {api}; `a2a` has typed, bytes, threaded and deltafs, `push` has typed, conveyor, c and \
                 c-conveyor, `channel --seat threaded` has guest"
            )));
        }
        if matches!(self, Self::Ring | Self::P2p) && args.route.is_some() {
            return Err(Error::Shape(format!(
                "{name} drives rings or the fabric itself and has no --route; the others have"
            )));
        }
        seated::check(self, args)?;
        if self == Self::Cc && args.count > Some(cc::MOST_VERTICES) {
            return Err(Error::Shape(format!(
                "cc numbers its vertices by 32 bits: --count is at most {}",
                cc::MOST_VERTICES
            )));
        }
        let (smallest, largest) = match self {
            Self::Ring | Self::P2p => (8, 1 << 20),
            Self::Histo | Self::Skew | Self::Scale | Self::Cc | Self::Push => (8, 8),
            Self::Ig | Self::Agups | Self::Around => (16, 16),
            Self::A2a | Self::Round | Self::Channel => (8, usize::MAX),
            Self::Exchange => (0, usize::MAX),
            Self::Attach if args.size.is_empty() => return Ok(()),
            Self::Attach => {
                let why = "attach sends no messages, and has no --size";
                return Err(Error::Shape(why.to_owned()));
            }
            Self::Startup => (8, 8),
        };
        match args
            .size
            .iter()
            .find(|size| !(smallest..=largest).contains(*size))
        {
            None => Ok(()),
            Some(size) if smallest == largest => Err(Error::Size(format!(
                "{name} has items of {smallest} bytes, not of {size}; `a2a` takes other sizes"
            ))),
            Some(size) if largest < usize::MAX => Err(Error::Size(format!(
                "{name} takes messages of {smallest} bytes to {} MiB, not of {size}",
                largest >> 20
            ))),
            Some(size) => Err(Error::Size(format!(
                "{name} messages carry a checked word of {smallest} bytes; {size} is less"
            ))),
        }
    }

    fn run(self, args: &BenchArgs, options: Options) -> Result<(), Error> {
        match self {
            Self::Ring => ring::run(args, options),
            Self::P2p => p2p::run(args, options),
            Self::Histo => histo::run(args, options),
            Self::Ig => ig::run(args, options),
            Self::A2a => a2a::run(args, options),
            Self::Agups => agups::run(args, options),
            Self::Cc => cc::run(args, options),
            Self::Channel => channel::run(args, options),
            Self::Around => around::run(args, options),
            Self::Attach => attach::run(args, &options),
            Self::Startup => startup::run(args, options),
            Self::Round => rounds::run(args, options),
            Self::Push => push::run(args, options),
            Self::Exchange => exchange::run(args, options),
            Self::Skew => skew::run(args, options),
            Self::Scale => scale::run(args, options.stream.route),
        }
    }
}

/// A value as the command line spells it.
fn text(value: impl ValueEnum) -> String {
    let spelled = value.to_possible_value().expect("no value is hidden");
    spelled.get_name().to_owned()
}

/// Options of `trihop bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// What to measure
    pub name: Name,
    /// Ranks to start [default: 4; ring, p2p, channel: 2; attach: 1; startup: 8; scale: 10,000
    /// simulated ones]
    #[arg(long, value_name = "P", value_parser = whole::<u32>(1..))]
    pub ranks: Option<u32>,
    /// Simulated nodes to spread them over [default: 1; p2p, around: 2; startup: 4; scale: as
    /// --per-node asks]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    pub nodes: Option<u32>,
    /// libfabric provider between nodes
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Message size in bytes; repeat for several (only ring, p2p, channel, a2a, round and exchange have a choice)
    #[arg(long, value_name = "BYTES", value_parser = whole::<usize>(..))]
    pub size: Vec<usize>,
    /// Messages per rank and repetition (ring, p2p, channel: of the stream, and round trips at most; agups:
    /// updaters; cc: vertices of the whole graph; around: laps; round: rounds; attach: jobs)
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..))]
    pub count: Option<u64>,
    /// skew: how indices are drawn; repeat for several [default: all]
    #[arg(long, value_enum, value_name = "KIND")]
    pub indices: Vec<skew::Indices>,
    /// a2a, push, channel: how messages are sent; repeat for several [default: a2a: typed, bytes; push:
    /// all of its own; channel: between ranks]
    #[arg(long, value_enum, value_name = "API")]
    pub api: Vec<a2a::Api>,
    #[command(flatten)]
    pub scale: scale::ScaleArgs,
    /// Route of the messages: three-hop, direct, fabric-only, mesh, node-mesh, team-mesh,
    /// three-hop:K, three-hop:K+N, mesh:AxB..., mesh:Nd, and node-mesh: and team-mesh: as mesh:
    /// [default: TRIHOP_ROUTE, or three-hop]
    #[arg(long, value_name = "NAME")]
    pub route: Option<RouteName>,
    /// Whose calls make progress: those of the rank's one thread, or a thread for it; or ranks are
    /// threads, and one more in each process speaks with other nodes; or agents of each node do.
    /// Each benchmark has inline; attach always has an agent
    #[arg(long, value_enum, default_value = "inline")]
    pub seat: Seat,
    /// --seat minirank: ranks of each process [default: those of a node, at most 1024]
    #[arg(long, value_name = "M", value_parser = whole::<u32>(1..=1024))]
    pub minis_per_rank: Option<u32>,
    /// --seat agent: agents of each node, which share its ranks evenly; with --netns a node has as
    /// many adapters [default: 1]
    #[arg(long, value_name = "K", value_parser = whole::<u32>(1..))]
    pub nics: Option<u32>,
    /// Measured repetitions after the warm-up, 3 at least (scale runs once)
    #[arg(long, default_value_t = 3, value_name = "R", value_parser = whole::<u32>(3..))]
    pub reps: u32,
    /// Each node in a network namespace of its own (root)
    #[arg(long)]
    pub netns: bool,
    /// One JSON object per row
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    /// The sizes to measure.
    fn sizes(&self, defaults: &[usize]) -> Vec<usize> {
        match &self.size[..] {
            [] => defaults.to_vec(),
            some => some.to_vec(),
        }
    }
}

/// Most hops of a message.
fn hops(route: RouteName, topology: &Topology) -> u32 {
    if topology.has_relays() {
        // By way of relays, which no rank is.
        return match route {
            _ if topology.nodes() == 1 => 1,
            RouteName::ThreeHop(_) => 3,
            _ => hops(route, &topology.processes()) + 2,
        };
    }
    let load = Load::new(topology, route);
    load.map_or(route.stages().len(), |load| load.most_hops()) as u32
}

/// Why a benchmark gave no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library's.
    #[error(transparent)]
    Library(#[from] trihop::Error),
    /// The transport's.
    #[error(transparent)]
    Transport(#[from] trihop::transport::Error),
    /// The launcher's.
    #[error(transparent)]
    Run(#[from] run::Error),
    /// A result was wrong.
    #[error("{bench}: {why}")]
    Wrong {
        /// Benchmark.
        bench: &'static str,
        /// What was expected and what came.
        why: String,
    },
    /// A C function's.
    #[error("{call}: {why}")]
    Call {
        /// The function.
        call: &'static str,
        /// What it said.
        why: String,
    },
    /// A size that the benchmark cannot do.
    #[error("{0}")]
    Size(String),
    /// A number of ranks or nodes that the benchmark cannot do.
    #[error("{0}")]
    Shape(String),
    /// The results cannot be written.
    #[error(transparent)]
    Unwritten(#[from] crate::output::Unwritten),
    /// This executable cannot be found again to start ranks.
    #[error("finding this executable: {0}")]
    Executable(#[source] std::io::Error),
}

impl Error {
    /// Exit status of a process that ends by this error: 2 for options, 1 for everything else.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Size(_) | Self::Shape(_) | Self::Library(trihop::Error::Config { .. }) => 2,
            Self::Run(error) => error.exit_status(),
            _ => 1,
        }
    }
}

/// Who sits in the representative's seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Seat {
    /// The ranks themselves, in the calls of their one thread
    Inline,
    /// Threads for progress and for handlers beside the rank's own (histo, skew, ig, agups,
    /// exchange, cc, channel, round, push --api c; a2a has --api threaded)
    Threaded,
    /// Ranks are threads of a process, and one more thread in it is their relay (all but p2p,
    /// attach and scale)
    Minirank,
    /// Processes of each node are the relays of its ranks, which are processes without a fabric
    /// (all but ring, p2p and scale)
    Agent,
}

/// Runs the benchmark, or starts the ranks that do.
///
/// # Errors
/// [`Error`]; a wrong or missing item is one.
pub fn run(mut args: BenchArgs) -> Result<i32, Error> {
    let (ranks, nodes) = args.name.shape();
    let shape = (args.ranks.unwrap_or(ranks), args.nodes.unwrap_or(nodes));
    let mut options = Options::from_env()?;
    args.name.check(&args)?;
    if args.name == Name::Push && args.api.is_empty() {
        args.api = push::APIS.to_vec();
    }
    if args.name == Name::Scale {
        args.name.run(&args, options)?;
        return Ok(0);
    }
    if bootstrap::detect(options.launcher)? == Launcher::Single {
        args.name.check_shape(shape)?;
        if args.seat == Seat::Minirank {
            args.minis_per_rank = Some(seated::minis(args.minis_per_rank, shape)?);
        }
        if args.name == Name::Startup {
            return startup::start(&args, shape);
        }
        if shape != (1, 1) {
            return start_jobs(&args, shape);
        }
        if args.netns {
            let why = "--netns separates nodes, and one rank is alone on one; leave it out, or start more ranks";
            return Err(Error::Shape(why.to_owned()));
        }
        if args.name == Name::Attach {
            return attach::start(&args);
        }
    } else if args.ranks.is_some() || args.nodes.is_some() || args.netns {
        let why =
            "this is a rank of a job already; --ranks, --nodes and --netns are for starting one";
        return Err(Error::Shape(why.to_owned()));
    }
    if args.provider.is_some() {
        options.provider.clone_from(&args.provider);
    }
    options.stream.route = *args.route.get_or_insert(options.stream.route);
    args.name.run(&args, options)?;
    Ok(0)
}

/// Joins the job that this process was started in; SIGUSR1 then shows its queues.
///
/// # Errors
/// The library's.
fn start<'h>(options: Options) -> Result<Job<'h>, Error> {
    let job = Job::start(options)?;
    job.dump_on(libc::SIGUSR1, DumpOutput::Stderr)?;
    Ok(job)
}

/// A job for each kind of job that the interfaces need: a process is in one only.
fn start_jobs(args: &BenchArgs, shape: (u32, u32)) -> Result<i32, Error> {
    if args.api.is_empty() {
        return start_ranks(args, shape);
    }
    for api in a2a::by_job(&args.api) {
        let args = BenchArgs {
            api,
            ..args.clone()
        };
        let status = start_ranks(&args, shape)?;
        if status != 0 {
            return Ok(status);
        }
    }
    Ok(0)
}

fn start_ranks(args: &BenchArgs, (ranks, nodes): (u32, u32)) -> Result<i32, Error> {
    let executable = std::env::current_exe().map_err(Error::Executable)?;
    let mut command: Vec<OsString> =
        vec![executable.into(), "bench".into(), text(args.name).into()];
    let mut option = |name: &str, value: String| command.extend([name.into(), value.into()]);
    for size in &args.size {
        option("--size", size.to_string());
    }
    for &indices in &args.indices {
        option("--indices", text(indices));
    }
    for &api in &args.api {
        option("--api", text(api));
    }
    if let Some(count) = args.count {
        option("--count", count.to_string());
    }
    if let Some(provider) = &args.provider {
        option("--provider", provider.clone());
    }
    if let Some(route) = args.route {
        option("--route", route.to_string());
    }
    option("--seat", text(args.seat));
    if let Some(minis) = args.minis_per_rank {
        option("--minis-per-rank", minis.to_string());
    }
    option("--reps", args.reps.to_string());
    if args.json {
        command.push("--json".into());
    }
    let processes = ranks / args.minis_per_rank.unwrap_or(1);
    let mut spec = LaunchSpec::new(run::spread(processes, nodes)?, command);
    spec.output = OutputMode::Plain;
    spec.minis = args.minis_per_rank.unwrap_or(1);
    // These keep to cores themselves, and have what they compare with keep to them.
    spec.binds = !matches!(args.name, Name::Ring | Name::P2p);
    spec.netns = args.netns;
    spec.agents = run::agents(args.seat == Seat::Agent, args.nics)?;
    // Where the job is not started by us but through the DeltaFS interface, it looks here.
    let provider = args
        .provider
        .clone()
        .map(|name| ("TRIHOP_PROVIDER".into(), name.into()));
    let route = args
        .route
        .map(|route| ("TRIHOP_ROUTE".into(), route.to_string().into()));
    spec.env.extend(provider.into_iter().chain(route));
    Ok(run::launch(spec)?.status)
}

#[cfg(test)]
mod tests {
    use trihop::Rank;
    use trihop::route::{JobRoute, Next, Stage};

    use super::*;

    /// Hops of a message, as the engines of the ranks on its way would send it on.
    fn walked(route: RouteName, topology: &Topology, source: Rank, target: Rank) -> u32 {
        let (mut here, mut stage, mut hops) = (source, Stage::SOURCE, 0);
        loop {
            let seen = topology.seen_from(here).unwrap();
            let job_route = JobRoute::new(route, &seen).unwrap();
            let Next::To(next, over) = job_route.next(stage, target).expect("a route leads on")
            else {
                return hops;
            };
            let next = seen.rank_of(next);
            hops += u32::from(next != here);
            (here, stage) = (next, over);
        }
    }

    #[test]
    fn hops_are_those_of_the_longest_way_in_the_job() {
        let shapes: [&[u32]; 10] = [
            &[1],
            &[3],
            &[1, 1],
            &[1, 1, 1],
            &[2, 1],
            &[1, 1, 3],
            &[2, 2],
            &[2, 1, 2],
            &[4, 4, 4],
            &[1, 2, 3],
        ];
        let mut seen = std::collections::BTreeSet::new();
        for sizes in shapes {
            let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
            let ranks = || (0..topology.size()).map(Rank);
            for route in RouteName::all() {
                let pairs = ranks().flat_map(|source| ranks().map(move |target| (source, target)));
                let longest =
                    pairs.map(|(source, target)| walked(route, &topology, source, target));
                let longest = longest.max().expect("a job has a rank");
                assert_eq!(hops(route, &topology), longest, "{route} on {sizes:?}");
                seen.insert(longest);
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
}
