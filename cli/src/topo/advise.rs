//! `trihop topo --advise`: what each route would ask of the ranks of a job, by a model of its
//! costs.
//!
//! The model is of a step in which each rank sends so many messages to ranks by chance, and then
//! all wait. The busiest rank decides. It pays for each message that it sends, passes on or
//! receives; for each batch, at least one of which goes over each of its links in a step; and for
//! the bytes that it has on the fabric:
//!
//! ```text
//! time = handled x (HANDLING_NS + bytes / COPYING) + batches x batch_us
//!        + fabric bytes / bandwidth
//! ```

use std::collections::HashMap;
use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use trihop::route::{JobRoute, RouteName, Stage};
use trihop::{Rank, StreamOptions, Topology};

use super::load::{Hop, hop};
use crate::number::whole;
use crate::output;

/// What a rank pays for a message that it handles, in nanoseconds: between what our benchmarks
/// show for a push with a hop over a lane, and for a receipt.
const HANDLING_NS: f64 = 5.0;
/// What it copies meanwhile, in bytes per nanosecond.
const COPYING: f64 = 8.0;
/// Ranks of a job of which every pair is followed; of more, as many pairs by chance.
const ALL_PAIRS: u32 = 1024;
const PAIRS: u64 = 10_000;
/// Ranks whose routes are kept at a time.
const KEPT: usize = 2048;

/// What the model is asked about.
#[derive(Debug, Clone, Args)]
pub struct Advise {
    /// Compares routes for the job by a model of their costs, the cheapest first
    ///
    /// Of a step in which each rank sends messages to ranks by chance and then all wait. Figures
    /// of the model are rough: measure the first two or three with `trihop bench --route`. Hops
    /// and relayed messages of more than 1,024 ranks are those of 10,000 pairs, taken by chance.
    /// With `--route` that one is compared, too.
    #[arg(long, conflicts_with_all = ["rank", "output"])]
    advise: bool,

    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 8, requires = "advise")]
    #[arg(value_parser = whole::<u32>(..))]
    message_bytes: u32,

    /// Messages that each rank sends in a step
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 100_000,
        value_parser = whole::<u64>(..),
        requires = "advise"
    )]
    messages: u64,

    /// What a batch costs at each of its two ends, in microseconds
    #[arg(long, value_name = "US", default_value_t = 2.0)]
    #[arg(value_parser = positive, requires = "advise")]
    batch_us: f64,

    /// Bytes per nanosecond (GB/s) that a rank can have on the fabric
    #[arg(long, value_name = "GB/S", default_value_t = 2.0)]
    #[arg(value_parser = positive, requires = "advise")]
    bandwidth: f64,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("a positive number is needed".to_owned()),
    }
}

impl Advise {
    /// Whether it was asked for.
    pub fn is_wanted(&self) -> bool {
        self.advise
    }
}

/// What a route asks of the ranks of a job, and what that costs.
#[derive(Debug, Clone, Serialize)]
pub struct Advice {
    pub route: String,
    /// Most links of a rank.
    pub links: u64,
    /// Most lanes from a rank.
    pub lanes: u64,
    /// Two batches for each of a rank's links.
    pub buffer_bytes: u64,
    /// Of a message, mean.
    pub hops: f64,
    /// Of these, between nodes.
    pub fabric_hops: f64,
    /// Bytes that a rank passes on in the step: mean, and of the busiest rank.
    pub relayed_bytes: f64,
    pub most_relayed_bytes: f64,
    /// Whether the busiest was found, of all pairs, or is taken for one with the mean.
    pub is_exact: bool,
    /// Time of a step by the model.
    pub predicted_us: f64,
}

/// Grids of two dimensions that are tried on each side of the square one.
const GRIDS: usize = 3;

/// Grids without a hole that are as near to a square as any, the longer side first and last.
fn grids(ranks: u32) -> impl Iterator<Item = String> {
    let root = ranks.isqrt();
    let divisors = (2..=root)
        .rev()
        .filter(move |side| ranks.is_multiple_of(*side));
    let pairs = divisors.take(GRIDS).map(move |side| (ranks / side, side));
    pairs.flat_map(|(long, short)| {
        [(long, short), (short, long)].map(|(a, b)| format!("mesh:{a}x{b}"))
    })
}

/// Routes that suit the job, and the one that is `given`, the cheapest first.
///
/// # Errors
/// The one that is given does not suit it.
pub fn advise(
    asked: &Advise,
    topology: &Topology,
    given: Option<RouteName>,
) -> Result<Vec<Advice>, String> {
    let given = given.map(|name| name.for_job(topology)).transpose();
    let mut names: Vec<RouteName> = given.map_err(|why| why.to_string())?.into_iter().collect();
    let usual = [
        "three-hop:1",
        "three-hop",
        "direct",
        "mesh:2d",
        "mesh:3d",
        "mesh:4d",
        "node-mesh:1d",
        "node-mesh",
        "node-mesh:3d",
        "team-mesh",
        "team-mesh:3d",
    ];
    for text in usual
        .map(str::to_owned)
        .into_iter()
        .chain(grids(topology.size()))
    {
        let name = text.parse::<RouteName>().map_err(|why| why.to_string());
        // A grid of three dimensions or four needs as many ranks, or nodes.
        let name = name.and_then(|name| name.for_job(topology)).ok();
        names.extend(name.filter(|name| !names.contains(name)));
    }
    let all = names.into_iter();
    let mut all: Vec<Advice> = all.map(|name| of(asked, topology, name)).collect();
    all.sort_by(|a, b| a.predicted_us.total_cmp(&b.predicted_us));
    Ok(all)
}

/// Numbers by chance, the same in each run.
fn random(state: &mut u64, below: u32) -> Rank {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    Rank((((*state >> 32) * u64::from(below)) >> 32) as u32)
}

/// What ranks see of the job, made as they are asked for.
struct Ranks<'a> {
    topology: &'a Topology,
    name: RouteName,
    known: HashMap<u32, (Topology, JobRoute)>,
    /// Most of a rank that was asked for.
    links: u64,
    lanes: u64,
}

impl Ranks<'_> {
    fn hop(&mut self, at: Rank, stage: Stage, to: Rank) -> Option<Hop> {
        if self.known.len() >= KEPT && !self.known.contains_key(&at.0) {
            self.known.clear();
        }
        let (links, lanes) = (&mut self.links, &mut self.lanes);
        let seen = self.known.entry(at.0).or_insert_with(|| {
            let here = self.topology.seen_from(at).expect("a rank of this job");
            let route = JobRoute::new(self.name, &here).expect("it suits the job");
            let edges = route.numbers().map(|s| u64::from(route.all_edges(s)));
            let (edges, of_fabric) = (edges.sum::<u64>(), u64::from(route.links()));
            *links = of_fabric.max(*links);
            *lanes = (edges - of_fabric).max(*lanes);
            (here, route)
        });
        hop(seen, stage, to)
    }
}

fn of(asked: &Advise, topology: &Topology, name: RouteName) -> Advice {
    let size = topology.size();
    let is_exact = size <= ALL_PAIRS;
    let mut chance = 1;
    let pairs: Vec<(Rank, Rank)> = match is_exact {
        true => (0..size)
            .flat_map(|from| (0..size).map(move |to| (Rank(from), Rank(to))))
            .collect(),
        false => (0..PAIRS)
            .map(|_| (random(&mut chance, size), random(&mut chance, size)))
            .collect(),
    };
    let mut ranks = Ranks {
        topology,
        name,
        known: HashMap::new(),
        links: 0,
        lanes: 0,
    };
    let mut relayed: HashMap<u32, u64> = HashMap::new();
    let (mut hops, mut fabric_hops) = (0u64, 0u64);
    for &(from, to) in &pairs {
        let (mut at, mut stage) = (from, Stage::SOURCE);
        while let Some(hop) = ranks.hop(at, stage, to) {
            if hop.next != at {
                hops += 1;
                fabric_hops += u64::from(!hop.is_lane);
                if at != from {
                    *relayed.entry(at.0).or_default() += 1;
                }
            }
            (at, stage) = (hop.next, hop.over);
        }
    }
    let (links, lanes) = (ranks.links, ranks.lanes);
    let per_pair = |count: u64| count as f64 / pairs.len() as f64;
    let messages = asked.messages as f64;
    let bytes = f64::from(asked.message_bytes);
    // What is relayed for one message that a rank sends, at a rank as busy as the mean and at the
    // busiest.
    let mean = per_pair(relayed.values().sum());
    let most = match is_exact {
        true => relayed.values().copied().max().unwrap_or(0) as f64 / f64::from(size),
        false => mean,
    };
    let handled = messages * (2.0 + most);
    let fabric_bytes = messages * per_pair(fabric_hops) * bytes * (1.0 + most) / (1.0 + mean);
    let options = StreamOptions::default();
    let room = options.memory_bytes as f64 / 16.0 / links.max(1) as f64;
    let batch_bytes = (options.remote_buftarget_bytes as f64).min(room);
    let batches = (fabric_bytes / batch_bytes).max(links as f64);
    // A batch that is sent, and one that is received.
    let predicted_us = handled * (HANDLING_NS + bytes / COPYING) / 1e3
        + 2.0 * batches * asked.batch_us
        + fabric_bytes / asked.bandwidth / 1e3;
    Advice {
        route: name.to_string(),
        links,
        lanes,
        buffer_bytes: (2.0 * links as f64 * batch_bytes) as u64,
        hops: per_pair(hops),
        fabric_hops: per_pair(fabric_hops),
        relayed_bytes: messages * mean * bytes,
        most_relayed_bytes: messages * most * bytes,
        is_exact,
        predicted_us,
    }
}

/// A table for people.
///
/// # Errors
/// The writer's.
pub fn write_text(out: &mut impl Write, asked: &Advise, advice: &[Advice]) -> io::Result<()> {
    let (messages, bytes) = (asked.messages, asked.message_bytes);
    writeln!(
        out,
        "# a step of {messages} messages of {bytes} bytes from each rank to ranks by chance"
    )?;
    let names = [
        "route",
        "links",
        "lanes",
        "buffers kB",
        "hops",
        "fabric",
        "relayed kB",
        "model us",
    ];
    let rows = advice.iter().map(|of| {
        let most = match of.is_exact {
            true => format!("{:.0}", of.most_relayed_bytes / 1e3),
            false => format!("~{:.0}", of.relayed_bytes / 1e3),
        };
        [
            of.route.clone(),
            of.links.to_string(),
            of.lanes.to_string(),
            (of.buffer_bytes / 1000).to_string(),
            format!("{:.3}", of.hops),
            format!("{:.3}", of.fabric_hops),
            most,
            format!("{:.0}", of.predicted_us),
        ]
    });
    out.write_all(output::table(names, &[0], rows).as_bytes())?;
    writeln!(
        out,
        "\nLinks, lanes and relayed bytes are those of the rank that has most (`~`: the\n\
         mean; then links and lanes are those of ranks met by chance). Buffers are two\n\
         batches for each link. The model is rough: measure the first routes with\n\
         `trihop bench`."
    )
}
