//! `trihop topo`: who represents which nodes, and what a route asks of each rank.
//!
//! Everything is asked of the library's own topology and route, of each rank's as that rank would
//! see it; nothing of a job is started (`shape` says which job is meant, or the launcher does).
//! `maps` is what `nexus_dump` of DeltaFS writes of a rank, `load` counts links, hops and relayed
//! pairs of all ranks, `report` prints both. `agents` counts the same of agents, where these speak
//! for the ranks.

mod advise;
mod agents;
pub mod load;
mod maps;
mod report;
mod shape;
mod tally;

use std::io;
use std::path::PathBuf;

use clap::Args;
use trihop::route::RouteName;
use trihop::transport::bootstrap::{self, Bootstrap, Launcher};
use trihop::{Options, Rank, Topology, transport};

pub use self::maps::Maps;

use self::advise::Advise;
use self::agents::Agents;
use self::load::Load;
use self::shape::{Ranks, Shape, check_picks, picked};
use crate::number::whole;

/// Key under which each rank leaves the placement that its launcher told it.
const PLACEMENT_KEY: &str = "trihop-topo";

/// Show who represents which nodes, and what a route asks of each rank; starts no ranks
///
/// Of a job of any shape, without starting it (`trihop topo --nodes 10000 --per-node 32`), or of
/// the job that it is run in (`mpiexec -n 8 trihop topo`), whose rank 0 prints. Counts are exact,
/// over all ordered pairs of ranks.
///
/// With `--rank`, also what nexus_dump of DeltaFS writes: a line `NX-r: rank size local-rank
/// local-size node nodes`, then `NX-r: lmap RANK ADDRESS` for each rank of its node, and `NX-r:
/// rmap NODE ADDRESS` for each of its links, to the node that it leads to. Where nexus has an
/// address there is the rank that has it. With `--route three-hop:1` the links are those of nexus.
#[derive(Debug, Clone, Args)]
pub struct TopoArgs {
    /// The job that is meant
    #[command(flatten)]
    shape: Shape,

    /// Route: three-hop, direct, fabric-only, mesh, node-mesh, team-mesh, three-hop:K,
    /// three-hop:K+N, mesh:AxB..., mesh:Nd, and node-mesh: and team-mesh: as mesh:;
    /// by default TRIHOP_ROUTE, else three-hop
    #[arg(long, value_name = "NAME")]
    route: Option<RouteName>,

    /// Ranks whose maps are shown: numbers and ranges, or `all` (0,7,16-23)
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    rank: Vec<Ranks>,

    /// Writes maps to PREFIX.RANK.id, .lmap and .rmap instead, as nexus_dump does; of all ranks
    /// unless --rank is given. In a job each rank writes its own
    #[arg(long, value_name = "PREFIX")]
    output: Option<PathBuf>,

    /// Shows what each of so many agents of each node carries instead (`trihop run --seat agent`),
    /// of nodes with these ranks
    #[arg(long, value_name = "K", conflicts_with_all = ["rank", "output", "advise"])]
    #[arg(value_parser = whole::<u32>(1..))]
    nics: Option<u32>,

    /// Routes compared
    #[command(flatten)]
    advise: Advise,

    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

/// Why nothing was shown.
#[derive(Debug, thiserror::Error)]
pub enum TopoError {
    /// Arguments that name no job, or contradict each other.
    #[error("{0}")]
    Usage(String),
    /// The shape is none, in the words of `trihop run`.
    #[error(transparent)]
    Shape(#[from] crate::run::Error),
    /// An option of the environment.
    #[error(transparent)]
    Options(#[from] trihop::Error),
    /// The launcher, or a placement that is none.
    #[error(transparent)]
    Transport(#[from] transport::Error),
    /// A launcher that tells ranks different things.
    #[error(
        "rank {rank} was told the placement {own}, rank 0 was told another; see how the job was started"
    )]
    Disagreement {
        /// The rank that says so.
        rank: Rank,
        /// What its launcher told it.
        own: String,
    },
    /// Standard output or a file cannot be written.
    #[error("writing {what}: {source}")]
    Output {
        /// Which file.
        what: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
}

impl TopoError {
    /// Exit status of a process that ends by this error: 2 for arguments and options, 1 for
    /// everything else.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Usage(_)
            | Self::Shape(_)
            | Self::Options(trihop::Error::Config { .. })
            | Self::Transport(transport::Error::Config { .. }) => 2,
            Self::Options(_)
            | Self::Transport(_)
            | Self::Disagreement { .. }
            | Self::Output { .. } => 1,
        }
    }
}

/// Shows what was asked for.
///
/// # Errors
/// [`TopoError`].
pub fn run(args: TopoArgs) -> Result<(), TopoError> {
    let options = Options::from_env()?;
    let route = args.route.unwrap_or(options.stream.route);
    let shape = args.shape.topology()?;
    let launcher = match bootstrap::detect(options.launcher) {
        // A user who asks for a job that is not started need not be in one.
        Err(_) if shape.is_some() => Launcher::Single,
        found => found?,
    };
    match (launcher, shape, args.nics) {
        (Launcher::Single, Some(topology), Some(nics)) => {
            let agents = Agents::new(&topology, nics, route).map_err(TopoError::Usage)?;
            to_stdout(match args.json {
                true => agents.write_json(),
                false => agents.write_text(),
            })
        }
        (_, None, Some(_)) => Err(TopoError::Usage(
            "--nics is for a job that is not started: give its shape".to_owned(),
        )),
        (Launcher::Single, Some(topology), None) => {
            let route = in_job(route, &topology)?;
            show_all(&args, &topology, route)
        }
        (Launcher::Single, None, None) => Err(TopoError::Usage(
            "which job? give --ranks and --nodes, --nodes and --per-node, --node-sizes or --mapping, or start this \
             command as a job"
                .to_owned(),
        )),
        (_, Some(_), _) => Err(TopoError::Usage(
            "this is a rank of a job already; the options for the shape of a job are for one that is not started"
                .to_owned(),
        )),
        (_, None, None) => {
            let mut bootstrap = bootstrap::start(options.launcher, options.bootstrap_timeout())?;
            agree(&mut *bootstrap)?;
            let route = in_job(route, bootstrap.topology());
            let shown = route.and_then(|route| show_own(&args, bootstrap.topology(), route));
            // A rank that failed leaves the job too: its exit status tells, and nobody waits for
            // it.
            bootstrap.finalize()?;
            shown
        }
    }
}

/// What the route is in this job.
fn in_job(route: RouteName, topology: &Topology) -> Result<RouteName, TopoError> {
    let route = route.for_job(topology);
    route.map_err(|why| TopoError::Usage(format!("route {why}")))
}

/// All ranks were told the same placement, or this one says that they were not.
fn agree(bootstrap: &mut dyn Bootstrap) -> Result<(), TopoError> {
    let (rank, own) = (
        bootstrap.topology().rank(),
        bootstrap.topology().process_mapping(),
    );
    let word = xxhash_rust::xxh3::xxh3_64(own.as_bytes()).to_le_bytes();
    bootstrap.put(PLACEMENT_KEY, &word)?;
    bootstrap.fence()?;
    match bootstrap.get(Rank(0), PLACEMENT_KEY)? {
        Some(first) if first == word => Ok(()),
        _ => Err(TopoError::Disagreement { rank, own }),
    }
}

/// A job that is not started: this process shows all of it.
fn show_all(args: &TopoArgs, topology: &Topology, route: RouteName) -> Result<(), TopoError> {
    check_picks(&args.rank, topology.size())?;
    if let Some(prefix) = &args.output {
        for rank in picked(&args.rank, topology.size(), true) {
            Maps::new(&seen_from(topology, rank), route).write_files(prefix)?;
        }
    }
    print(args, topology, route)
}

/// The job that this process is a rank of: rank 0 prints, each rank writes its own files.
fn show_own(args: &TopoArgs, topology: &Topology, route: RouteName) -> Result<(), TopoError> {
    check_picks(&args.rank, topology.size())?;
    if let Some(prefix) = &args.output
        && picked(&args.rank, topology.size(), true).any(|rank| rank == topology.rank())
    {
        Maps::new(topology, route).write_files(prefix)?;
    }
    match topology.rank() {
        Rank(0) => print(args, topology, route),
        _ => Ok(()),
    }
}

fn print(args: &TopoArgs, topology: &Topology, route: RouteName) -> Result<(), TopoError> {
    if args.advise.is_wanted() {
        let advice = advise::advise(&args.advise, topology, args.route);
        let advice = advice.map_err(|why| TopoError::Usage(format!("route {why}")))?;
        let written = match args.json {
            true => report::write_advice(topology, &advice),
            false => advise::write_text(&mut io::stdout().lock(), &args.advise, &advice),
        };
        return to_stdout(written);
    }
    let load = Load::new(topology, route).map_err(TopoError::Usage)?;
    let shown = match args.output {
        Some(_) => &[][..],
        None => &args.rank[..],
    };
    let maps = picked(shown, topology.size(), false)
        .map(|rank| Maps::new(&seen_from(topology, rank), route));
    let written = match args.json {
        true => report::write_json(topology, route, &load, maps),
        false => report::write_text(topology, route, &load, maps),
    };
    to_stdout(written)
}

/// A reader that has seen enough is no failure.
fn to_stdout(written: io::Result<()>) -> Result<(), TopoError> {
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|source| TopoError::Output {
            what: "standard output".to_owned(),
            source,
        }),
    }
}

fn seen_from(topology: &Topology, rank: Rank) -> Topology {
    topology.seen_from(rank).expect("a rank of this job")
}
