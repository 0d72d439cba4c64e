//! A route with its media: what follows from a rule and from who lives where, for all routes alike.

use std::sync::Arc;

use trihop_transport::topology::{Rank, Topology};

use crate::error::{Error, Result};

use super::{
    EndpointId, Medium, Next, Reach, Route, RouteName, Rule, Stage, StageSpec, Through, Tree,
    among, direct, three_hop,
};

/// A route of a job, as one of its ranks sees it: a rule, and the media of its stages.
#[derive(Debug, Clone)]
pub struct JobRoute {
    topology: Topology,
    name: Arc<str>,
    stages: &'static [StageSpec],
    /// The stages that have lanes, in order.
    lane_stages: Arc<[Stage]>,
    pub(super) rule: Rule,
}

impl JobRoute {
    /// The route `name` as seen from this rank of `topology`.
    ///
    /// # Errors
    /// [`Error::Config`]: what it is given does not suit the job, or it asks for links of ranks where
    /// the job has relays.
    pub fn new(name: RouteName, topology: &Topology) -> Result<Self> {
        if topology.has_relays() && matches!(name, RouteName::FabricOnly(_)) {
            let ranks = match topology.has_agents() {
                true => "ranks with an agent",
                false => "mini-ranks",
            };
            let why = format!("{ranks} have no links of their own, as `{name}` asks for");
            return Err(Error::config("route", why));
        }
        if !topology.has_relays()
            && let RouteName::ThreeHop(rails) | RouteName::FabricOnly(rails) = name
            && rails.turn() > 0
        {
            let why = format!("the job has no relays, which `{name}` turns");
            return Err(Error::config("route", why));
        }
        let name = name.for_job(&topology.processes());
        let name = name.map_err(|why| Error::config("route", why))?;
        Ok(Self::of_known(name, topology.clone()))
    }

    /// A route as it is in this job.
    pub(super) fn of_known(name: RouteName, topology: Topology) -> Self {
        let stages = match name {
            RouteName::ThreeHop(_) => name.stages(),
            _ if topology.has_relays() => among::stages(name.stages()),
            _ => name.stages(),
        };
        let rule = Rule::new(name, topology.clone());
        Self::of(name.to_string(), stages, rule, &topology)
    }

    fn of(name: String, stages: &'static [StageSpec], rule: Rule, topology: &Topology) -> Self {
        let mut route = Self {
            topology: topology.clone(),
            name: name.into(),
            stages,
            lane_stages: Arc::new([]),
            rule,
        };
        // Those inside a node over shared memory, where any node has edges of them, and the first
        // one for one's own.
        let has_lanes = |&stage: &Stage| {
            let most = route.most_edges(stage, Reach::Node);
            stage == Stage::FIRST || most > 0 && !route.is_link(stage, Reach::Node)
        };
        route.lane_stages = route.numbers().filter(has_lanes).collect();
        route
    }

    /// The tree of the collectives as seen from this rank of `topology`.
    pub fn tree(topology: &Topology) -> Self {
        let rule = Rule::Tree(Tree::new(topology.clone()));
        let stages: &[StageSpec] = match topology.has_relays() {
            true => &three_hop::STAGES,
            false => &direct::STAGES,
        };
        Self::of("tree".to_owned(), stages, rule, topology)
    }

    /// Its name, with what it is given in this job.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The stages of its edges, in order: what is said of [`Stage::FIRST`] stands first.
    pub fn stages(&self) -> &'static [StageSpec] {
        self.stages
    }

    /// The stages of its edges, as numbers.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = Stage> + Clone + use<> {
        (1..=self.stages.len() as u8).map(Stage)
    }

    /// The stage of edges with this number, where the route has one.
    pub fn stage_numbered(&self, number: u8) -> Option<Stage> {
        self.numbers().find(|stage| stage.0 == number)
    }

    /// Name of the stage of an edge.
    pub fn stage_name(&self, stage: Stage) -> &'static str {
        self.stages[stage.index()].name
    }

    /// The stage with this name, where the route has one.
    pub fn stage_named(&self, name: &str) -> Option<Stage> {
        self.numbers().find(|&stage| self.stage_name(stage) == name)
    }

    /// As [`Route::next`].
    #[inline]
    pub fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        rule!(self.next(at, target))
    }

    /// As [`Route::edges`].
    pub fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        rule!(self.edges(stage, reach))
    }

    /// As [`Route::edge`].
    pub fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId {
        rule!(self.edge(stage, reach, number))
    }

    /// Edges of this endpoint of a stage, wherever they lead: all that runs may take there, from
    /// here and to here. Of [`Stage::FIRST`] the lane to oneself is one of them.
    pub fn all_edges(&self, stage: Stage) -> u32 {
        let others: u32 = Reach::BOTH
            .map(|reach| self.edges(stage, reach))
            .iter()
            .sum();
        others + u32::from(stage == Stage::FIRST)
    }

    /// The other end of such an edge, by a number below [`JobRoute::all_edges`].
    pub fn edge_of_all(&self, stage: Stage, mut number: u32) -> EndpointId {
        for reach in Reach::BOTH {
            let edges = self.edges(stage, reach);
            match number.checked_sub(edges) {
                None => return self.edge(stage, reach, number),
                Some(left) => number = left,
            }
        }
        self.topology.endpoint()
    }

    /// As [`Route::has_edge`].
    pub fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        rule!(self.has_edge(stage, peer))
    }

    /// As [`Route::most_edges`].
    pub(super) fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        rule!(self.most_edges(stage, reach))
    }

    /// As [`Route::copies`].
    pub fn copies(&self, at: Stage, source: Rank) -> u32 {
        rule!(self.copies(at, source))
    }

    /// As [`Route::copy`].
    pub fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        rule!(self.copy(at, source, number))
    }

    /// As [`Route::passes`].
    pub fn passes(&self, at: Stage, source: Rank) -> bool {
        rule!(self.passes(at, source))
    }

    /// As [`Route::through`].
    pub fn through(&self, end: EndpointId) -> Option<[Through; 2]> {
        rule!(self.through(end))
    }
}

/// What follows from placement and media, for all routes alike.
impl JobRoute {
    /// Whether the edge of a stage to `peer` is a lane: on one's own node where the stage's medium
    /// is shared memory, and to oneself whatever it is. Any other is a link.
    pub fn is_lane(&self, peer: EndpointId, stage: Stage) -> bool {
        peer == self.topology.endpoint()
            || self.topology.is_here(peer) && !self.is_link(stage, Reach::Node)
    }

    /// Whether edges of a stage to other endpoints that live here or there are links.
    fn is_link(&self, stage: Stage, reach: Reach) -> bool {
        reach == Reach::Beyond || self.stages[stage.index()].medium == Medium::Fabric
    }

    /// The ends at which edges of a stage are links.
    fn link_ends(&self, stage: Stage) -> impl Iterator<Item = Reach> + '_ {
        Reach::BOTH
            .into_iter()
            .filter(move |&reach| self.is_link(stage, reach))
    }

    /// Links of this endpoint of a stage.
    pub fn links_of(&self, stage: Stage) -> u32 {
        self.link_ends(stage)
            .map(|reach| self.edges(stage, reach))
            .sum()
    }

    /// Links of this endpoint.
    pub fn links(&self) -> u32 {
        self.numbers().map(|stage| self.links_of(stage)).sum()
    }

    /// The most links of a stage that any endpoint of the job has.
    pub fn most_links_of(&self, stage: Stage) -> u32 {
        let most = |reach| self.most_edges(stage, reach);
        self.link_ends(stage).map(most).sum()
    }

    /// No endpoint of the job has more links.
    pub fn most_links(&self) -> u32 {
        self.numbers().map(|stage| self.most_links_of(stage)).sum()
    }

    /// The other end and the stage of each link of this endpoint.
    pub fn each_link(&self) -> impl Iterator<Item = (EndpointId, Stage)> + '_ {
        self.numbers().flat_map(move |stage| {
            self.link_ends(stage).flat_map(move |reach| {
                let edges = 0..self.edges(stage, reach);
                edges.map(move |number| (self.edge(stage, reach, number), stage))
            })
        })
    }

    /// Whether this endpoint shares a link of this stage with `peer`, which need not be in the job:
    /// what a header that came has to show.
    pub fn has_link(&self, peer: EndpointId, stage: Stage) -> bool {
        let is_known = self.topology.has_endpoint(peer);
        is_known && rule!(self.has_edge(stage, peer)) && !self.is_lane(peer, stage)
    }

    /// The stages that have lanes.
    pub fn lane_stages(&self) -> &[Stage] {
        &self.lane_stages
    }

    /// Lanes that each endpoint of the node writes in an inbox: one for each stage that has lanes.
    pub fn lanes_per_rank(&self) -> u32 {
        self.lane_stages.len() as u32
    }

    /// The lane of an inbox that the endpoint at the place `producer` writes at this stage.
    pub fn lane_slot(&self, producer: u32, stage: Stage) -> u32 {
        let place = self.lane_stages.partition_point(|&other| other < stage);
        self.lanes_per_rank() * producer + place as u32
    }

    /// The stage of a lane of an inbox.
    pub fn stage_of_lane(&self, lane: u32) -> Stage {
        let place = (lane % self.lanes_per_rank()) as usize;
        self.lane_stages[place]
    }

    /// Links of an endpoint of the job on the default route: a job has the memory for so many
    /// anyway.
    pub fn least_links(&self) -> u32 {
        let route = Self::new(RouteName::default(), &self.topology);
        route.map_or(0, |route| route.most_links())
    }
}
