//! Whole jobs of real engines in this process, over the simulated fabric: what scale costs in
//! memory, hops and time.
//!
//! The same work is also done by 1,000 ranks at equal messages per link, so that cost per message
//! can be compared.

mod job;
mod report;
mod traffic;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use trihop::route::RouteName;
use trihop::transport::fabric::quirks::{self, Quirk};
use trihop::{Rank, Shares, StreamOptions, Topology};

use super::{BenchArgs, Error};
use crate::number::whole;
use crate::run;
use job::{Fabric, LinksOfAll, Measured, WarmJob, Work};

/// What every rank sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// To ranks drawn at random, itself included
    Random,
    /// To every rank, itself included; up to 4,096 ranks
    AllToAll,
}

/// Reads the short name of a provider whose limits the simulated fabric can have.
fn simulated() -> impl TypedValueParser<Value = &'static Quirk> {
    let names = quirks::SIMULATED.iter().map(|(name, ..)| *name);
    PossibleValuesParser::new(names)
        .try_map(|name| quirks::simulated(&name).ok_or("no provider that can be simulated"))
}

/// Options of `trihop bench scale`.
#[derive(Debug, Clone, Default, Args)]
pub struct ScaleArgs {
    /// scale: ranks on each node, the last one may have fewer [default: 32, or as --nodes asks]
    #[arg(long, value_name = "R", value_parser = whole::<u32>(1..))]
    pub per_node: Option<u32>,
    /// scale: messages per rank, of 8 bytes [default: 32, above 20,000 ranks 4]; for all-to-all per
    /// pair of ranks [default: 1]
    #[arg(long, value_name = "K", value_parser = whole::<u32>(1..=60_000))]
    pub messages: Option<u32>,
    /// scale: who sends to whom [default: random]
    #[arg(long, value_enum)]
    pub pattern: Option<Pattern>,
    /// scale: seed of targets, delays and turns; the same seed is the same run [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(..))]
    pub seed: Option<u64>,
    /// scale: provider whose limits and rules the fabric has, of receives above all; more than it
    /// takes end the run [default: 4,096 receives]
    #[arg(long, value_name = "PROVIDER", value_parser = simulated())]
    pub provider_limits: Option<&'static Quirk>,
    /// scale: streams; each pair of ranks uses one of them [default: 1]
    #[arg(long, value_name = "S", value_parser = whole::<u16>(1..=1000))]
    pub streams: Option<u16>,
}

impl ScaleArgs {
    /// Whether any of them was given.
    pub fn any(&self) -> bool {
        self.per_node.is_some()
            || self.messages.is_some()
            || self.pattern.is_some()
            || self.seed.is_some()
            || self.provider_limits.is_some()
            || self.streams.is_some()
    }
}

/// Ranks where the user asks for none.
const RANKS: u32 = 10_000;
/// Ranks on each node where the user asks for none.
const PER_NODE: u32 = 32;
/// Above so many ranks the default is few messages: the links that they use decide what a rank
/// touches, and 320,000 ranks are to fit 24 GiB.
const RANKS_FOR_MANY_MESSAGES: u32 = 20_000;
/// Ranks of the job that is compared with.
const FEW_RANKS: u32 = 1_000;
/// Most ranks of a complete all-to-all: their square is the number of messages.
const MOST_FOR_ALL_TO_ALL: u32 = 4_096;
/// Messages that the small jobs send together at least, and most of these jobs.
const FEW_MESSAGES: u64 = 20_000;
const MOST_SMALL_JOBS: u64 = 100;

/// Options that fit a job of very many ranks that send small messages: its bound per rank stays
/// below 8 MB.
pub(super) fn stream_options() -> StreamOptions {
    StreamOptions {
        max_message_bytes: 64 << 10,
        spill_bytes: 64 << 10,
        given_shares: Some(Shares {
            reassembly_bytes: 64 << 10,
            spill_mark_bytes: 48 << 10,
            lane_budget_bytes: 256 << 10,
            send_pool_bytes: 4 << 20,
            receive_pool_bytes: 1 << 20,
            block_bytes: 0,
            ..Shares::default()
        }),
        ..StreamOptions::default()
    }
}

/// Runs the job, then the small one, and prints a row.
///
/// # Errors
/// [`Error::Shape`] for what cannot be simulated, and a message that came wrong, twice or not at
/// all.
pub fn run(args: &BenchArgs, route: RouteName) -> Result<(), Error> {
    refuse_others(args)?;
    let ranks = args.ranks.unwrap_or(RANKS);
    let sizes = match (args.scale.per_node, args.nodes) {
        (Some(_), Some(_)) => {
            let why = "--nodes and --per-node say the same thing; give one of them";
            return Err(Error::Shape(why.to_owned()));
        }
        (None, Some(nodes)) => run::spread(ranks, nodes)?,
        (per_node, None) => full_nodes(ranks, per_node.unwrap_or(PER_NODE)),
    };
    let pattern = args.scale.pattern.unwrap_or(Pattern::Random);
    if pattern == Pattern::AllToAll && ranks > MOST_FOR_ALL_TO_ALL {
        return Err(Error::Shape(format!(
            "a complete all-to-all of {ranks} ranks is {} messages; it is done up to {MOST_FOR_ALL_TO_ALL} ranks, above \
             that use `--pattern random`",
            u64::from(ranks) * u64::from(ranks)
        )));
    }
    let seed = args.scale.seed.unwrap_or(1);
    let topology = Topology::from_node_sizes(&sizes, Rank(0))?;
    let messages = args.scale.messages.unwrap_or(match pattern {
        Pattern::Random if ranks > RANKS_FOR_MANY_MESSAGES => 4,
        Pattern::Random => 32,
        Pattern::AllToAll => 1,
    });
    let work = match pattern {
        Pattern::Random => Work::Each(messages),
        Pattern::AllToAll => Work::Pairs(messages),
    };
    let fabric = Fabric {
        route: args.route.unwrap_or(route),
        provider: args.scale.provider_limits,
        streams: args.scale.streams.unwrap_or(1),
    };
    let large = WarmJob::build(&topology, &fabric, work, seed)?.measure()?;
    let small = compared(sizes[0], &fabric, &large, seed)?;
    report::print(args, fabric.route, &large, small.as_ref())
}

/// The same work for few ranks, at equal messages per link. There are fewer links, so there are
/// fewer messages, and there are several such jobs, until they are enough to measure. They lie in
/// memory side by side, as the parts of the large job do: what is compared is the size of a job,
/// not whether it fits the caches of the one machine that simulates it. Nothing on one node, which
/// has no link, or for few ranks.
fn compared(
    per_node: u32,
    fabric: &Fabric,
    large: &Measured,
    seed: u64,
) -> Result<Option<Measured>, Error> {
    let topology = Topology::from_node_sizes(&full_nodes(FEW_RANKS, per_node), Rank(0))?;
    if large.topology.size() <= FEW_RANKS || large.topology.nodes() < 2 || topology.nodes() < 2 {
        return Ok(None);
    }
    let links = LinksOfAll::of(&topology, fabric.route)?;
    let crossing = large.messages_per_link() * links.total as f64;
    // Of random messages one in so many stays on its node.
    let total = (crossing / (1.0 - 1.0 / f64::from(topology.nodes())))
        .round()
        .max(1.0) as u64;
    let jobs = FEW_MESSAGES.div_ceil(total).min(MOST_SMALL_JOBS);
    let warm = |number| WarmJob::build(&topology, fabric, Work::Together(total), seed + number);
    let warm: Vec<WarmJob> = (0..jobs).map(warm).collect::<Result<_, _>>()?;
    let mut small: Option<Measured> = None;
    for job in warm {
        let measured = job.measure()?;
        match &mut small {
            None => small = Some(measured),
            Some(sum) => sum.add(&measured),
        }
    }
    Ok(small)
}

/// So many ranks on each node; the last one may have fewer.
fn full_nodes(ranks: u32, per_node: u32) -> Vec<u32> {
    let mut sizes = vec![per_node; (ranks / per_node) as usize];
    if !ranks.is_multiple_of(per_node) {
        sizes.push(ranks % per_node);
    }
    sizes
}

/// Options of other benchmarks that mean nothing here.
fn refuse_others(args: &BenchArgs) -> Result<(), Error> {
    let given = [
        (args.provider.is_some(), "--provider"),
        (args.netns, "--netns"),
        (args.count.is_some(), "--count (it has --messages)"),
        (
            args.size.iter().any(|&size| size != 8),
            "--size other than 8",
        ),
    ];
    match given.iter().find(|(given, _)| *given) {
        Some((_, name)) => Err(Error::Shape(format!(
            "scale simulates the fabric and has no {name}"
        ))),
        None => Ok(()),
    }
}
