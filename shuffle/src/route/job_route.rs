//! A route with its media: what follows from a rule and from who lives where, for all routes alike.

use trihop_transport::topology::{Rank, Topology};

use super::{
    EndpointId, Medium, Next, Reach, Route, RouteName, Rule, Stage, StageSpec, Tree, direct,
};

/// A route of a job, as one of its ranks sees it: a rule, and the media of its stages.
#[derive(Debug, Clone)]
pub struct JobRoute {
    topology: Topology,
    name: &'static str,
    stages: &'static [StageSpec],
    pub(super) rule: Rule,
}

impl JobRoute {
    /// The route `name` as seen from this rank of `topology`.
    pub fn new(name: RouteName, topology: &Topology) -> Self {
        Self {
            topology: topology.clone(),
            name: name.name(),
            stages: name.stages(),
            rule: Rule::new(name, topology.clone()),
        }
    }

    /// The tree of the collectives as seen from this rank of `topology`.
    pub fn tree(topology: &Topology) -> Self {
        Self {
            topology: topology.clone(),
            name: "tree",
            stages: const { &direct::STAGES },
            rule: Rule::Tree(Tree::new(topology.clone())),
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
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

    /// As [`Route::ranks_behind`].
    pub fn ranks_behind(&self, end: EndpointId) -> Option<u64> {
        rule!(self.ranks_behind(end))
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
        let most = |reach| rule!(self.most_edges(stage, reach));
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

    /// The stages that have lanes, which are those inside a node over shared memory, and the first
    /// one for one's own.
    pub fn lane_stages(&self) -> impl Iterator<Item = Stage> + Clone + '_ {
        let has_lanes = |&stage: &Stage| stage == Stage::FIRST || !self.is_link(stage, Reach::Node);
        self.numbers().filter(has_lanes)
    }

    /// Lanes that each rank of the node writes in an inbox: one for each stage that has lanes.
    pub fn lanes_per_rank(&self) -> u32 {
        self.lane_stages().count() as u32
    }

    /// The lane of an inbox that the local rank `producer` writes at this stage.
    pub fn lane_slot(&self, producer: u32, stage: Stage) -> u32 {
        let place = self
            .lane_stages()
            .take_while(|&other| other < stage)
            .count() as u32;
        self.lanes_per_rank() * producer + place
    }

    /// The stage of a lane of an inbox.
    pub fn stage_of_lane(&self, lane: u32) -> Stage {
        let place = (lane % self.lanes_per_rank()) as usize;
        self.lane_stages()
            .nth(place)
            .expect("a place below their number")
    }

    /// Links that an endpoint of the job needs whatever its route is: representatives have as few
    /// as there can be.
    pub fn least_links(&self) -> u32 {
        Self::new(RouteName::default(), &self.topology).most_links()
    }
}
