//! What a route asks of the agents of a job, so many on each node.

use std::io::{self, BufWriter, Write};

use serde::Serialize;
use trihop::route::{JobRoute, Next, RouteName, Stage};
use trihop::transport::topology::{EndpointId, NodeId};
use trihop::{Rank, Topology};

use super::report::write_summary;
use super::tally::{Summary, Tally};

/// Most agents of a job: what goes between any two is followed.
const AGENTS_MAX: u64 = 2048;

/// What is counted of the agents of a job.
#[derive(Debug, Serialize)]
pub struct Agents {
    report: &'static str,
    ranks: u32,
    nodes: u32,
    agents_per_node: u32,
    route: String,
    /// Ranks that an agent has.
    ranks_per_agent: Summary,
    /// Its links.
    links: Summary,
    /// Ordered pairs of ranks whose messages it has on its links, either way.
    carried_pairs: Summary,
}

/// An agent, and one of its ranks, each with the route as it sees that.
struct Ends {
    agent: JobRoute,
    rank: JobRoute,
    first: Rank,
    node: NodeId,
    ranks: u32,
    links: u32,
    carried: u64,
}

impl Agents {
    /// Of a job whose nodes have these ranks, with so many agents on each.
    ///
    /// # Errors
    /// Too many agents, more than ranks, or a route that does not suit them.
    pub fn new(ranks: &Topology, nics: u32, route: RouteName) -> Result<Self, String> {
        if u64::from(ranks.nodes()) * u64::from(nics) > AGENTS_MAX {
            return Err(format!(
                "{nics} agents on each of {} nodes; possible are {AGENTS_MAX} in all",
                ranks.nodes()
            ));
        }
        let nodes = (0..ranks.nodes()).map(NodeId);
        let sizes: Vec<u32> = nodes.map(|node| ranks.local_size_of(node)).collect();
        let processes = Topology::from_node_sizes(&vec![nics; sizes.len()], Rank(0));
        let job = processes.and_then(|processes| processes.with_agents(&sizes));
        let job = job.map_err(|error| error.to_string())?;
        let mut ends = (0..job.nodes() * nics)
            .map(|agent| Ends::of(&job, agent, route))
            .collect::<Result<Vec<_>, _>>()?;
        for from in 0..ends.len() {
            for to in 0..ends.len() {
                if ends[from].node != ends[to].node {
                    follow(&job, &mut ends, from, to);
                }
            }
        }
        let tally = |count: fn(&Ends) -> u64| {
            let mut tally = Tally::default();
            ends.iter().for_each(|end| tally.add(count(end)));
            tally.summary()
        };
        let route = route.for_job(&job.processes())?;
        Ok(Self {
            report: "agents",
            ranks: job.size(),
            nodes: job.nodes(),
            agents_per_node: nics,
            route: route.to_string(),
            ranks_per_agent: tally(|end| end.ranks.into()),
            links: tally(|end| end.links.into()),
            carried_pairs: tally(|end| end.carried),
        })
    }

    /// Tables for people.
    ///
    /// # Errors
    /// Standard output's.
    pub fn write_text(&self) -> io::Result<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        writeln!(out, "ranks       {} on {} nodes", self.ranks, self.nodes)?;
        writeln!(out, "agents      {} on each", self.agents_per_node)?;
        writeln!(out, "route       {}", self.route)?;
        for (what, summary) in [
            ("ranks per agent", &self.ranks_per_agent),
            ("links per agent", &self.links),
            ("pairs per agent on its links", &self.carried_pairs),
        ] {
            write_summary(&mut out, what, "agents", summary)?;
        }
        out.flush()
    }

    /// One JSON object on a line.
    ///
    /// # Errors
    /// Standard output's.
    pub fn write_json(&self) -> io::Result<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        serde_json::to_writer(&mut out, self)?;
        writeln!(out)?;
        out.flush()
    }
}

impl Ends {
    fn of(job: &Topology, agent: u32, route: RouteName) -> Result<Self, String> {
        let (relay, first) = (job.relay_of(agent), job.first_of_process(agent));
        let seen = |end: EndpointId| {
            let seen = job.seen_by(end).expect("an endpoint of this job");
            JobRoute::new(route, &seen).map_err(|error| error.to_string())
        };
        let agents_route = seen(relay)?;
        Ok(Self {
            links: agents_route.links(),
            agent: agents_route,
            rank: seen(first.into())?,
            node: job.node_of(first),
            ranks: job.ranks_of_process(agent),
            first,
            carried: 0,
        })
    }
}

/// Follows what the ranks of one agent send to those of another one, hop by hop: all go the same
/// way.
fn follow(job: &Topology, ends: &mut [Ends], from: usize, to: usize) {
    let pairs = u64::from(ends[from].ranks) * u64::from(ends[to].ranks);
    let target = ends[to].first;
    let mut next = ends[from].rank.next(Stage::SOURCE, target);
    while let Some(Next::To(end, stage)) = next {
        if end == target.into() {
            return;
        }
        let at = &mut ends[job.process_of(end) as usize];
        at.carried += pairs;
        next = at.agent.next(stage, target);
    }
}
