//! Routes: which endpoint takes a run next, over an edge of which stage, and which endpoints a rank shares edges with.
//!
//! A route is a pure function of placement. It names endpoints and stages, never what lies between two endpoints: whether
//! an edge is a lane or a link follows from where its ends live and from the medium of its stage, which
//! [`Chosen::is_lane`] decides, for all routes.
//!
//! A new route is a file with an implementation of [`Route`], and a row of the table in this one.

mod direct;
mod three_hop;
mod tree;

pub use direct::Direct;
pub use three_hop::ThreeHop;
pub use tree::Tree;

use std::fmt;
use std::str::FromStr;

use trihop_transport::topology::{Rank, Topology};

/// Whoever has an inbox. Each rank is one.
pub type Endpoint = Rank;

/// How far a run has come: a number that only grows on its way. What waits at a stage only ever waits for later ones, which
/// is what keeps queues from waiting for each other in a circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stage(u8);

impl Stage {
    /// With its source's application.
    pub const SOURCE: Self = Self(0);

    /// Come over the first edge of its way. A rank's messages to itself take one of this stage, its own lane.
    pub const FIRST: Self = Self(1);

    /// As it is on the wire: 0 for the source, and the edges from 1 on.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Place of an edge's stage in [`Chosen::stages`].
    ///
    /// # Panics
    /// For [`Stage::SOURCE`], to which no edge leads.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
            .checked_sub(1)
            .expect("no edge leads to a source")
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names of stages that options, flushes and the C interface know.
pub mod stage {
    /// The first one of every route.
    pub const ORIGIN: &str = "origin";
    /// To another node.
    pub const REMOTE: &str = "remote";
    /// To a rank of the node that a run has come to.
    pub const RELAY: &str = "relay";
}

/// What the edges of a stage go over inside a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Shared memory.
    Shared,
    /// The fabric.
    Fabric,
}

/// What is known of the edges of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageSpec {
    /// Name in options, statistics and dumps.
    pub name: &'static str,
    /// What they go over inside a node. Between nodes there is only the fabric.
    pub medium: Medium,
}

impl StageSpec {
    /// A stage whose edges inside a node are lanes.
    pub const fn shared(name: &'static str) -> Self {
        let medium = Medium::Shared;
        Self { name, medium }
    }

    /// A stage whose edges are links wherever they lead.
    pub const fn fabric(name: &'static str) -> Self {
        let medium = Medium::Fabric;
        Self { name, medium }
    }
}

/// The same stages, with links in the place of lanes.
const fn over_fabric<const N: usize>(mut stages: [StageSpec; N]) -> [StageSpec; N] {
    let mut at = 0;
    while at < N {
        stages[at] = StageSpec::fabric(stages[at].name);
        at += 1;
    }
    stages
}

/// Where the other end of an edge lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// On the same node.
    Node,
    /// On another one.
    Beyond,
}

impl Reach {
    /// Both of them.
    pub const BOTH: [Self; 2] = [Self::Node, Self::Beyond];
}

/// Where a run goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is here.
    Deliver,
    /// To this endpoint, over an edge of this stage.
    To(Endpoint, Stage),
}

/// A routing rule, as one rank sees it; the same for every rank of a job.
pub trait Route {
    /// Where a run for `target` goes that has come this far, or `None` when no way leads it through here. To oneself it goes
    /// over an edge of [`Stage::FIRST`]; every other step leads to a later stage and another endpoint.
    fn next(&self, at: Stage, target: Rank) -> Option<Next>;

    /// How many other endpoints share an edge of this stage with this one, of those that live here or there.
    fn edges(&self, stage: Stage, reach: Reach) -> u32;

    /// The other end of such an edge, by a number below [`Route::edges`].
    fn edge(&self, stage: Stage, reach: Reach, number: u32) -> Endpoint;

    /// Whether `peer`, another endpoint of the job, shares an edge of this stage with this one.
    fn has_edge(&self, stage: Stage, peer: Endpoint) -> bool;

    /// The most edges of a stage that any endpoint of the job has: sizes that both ends of a link share follow from it.
    fn most_edges(&self, stage: Stage, reach: Reach) -> u32;

    /// How many copies a broadcast that has come this far goes on as. They make a tree: together with those of the other
    /// endpoints each rank but the source gets one, and each copy goes over an edge of a later stage.
    fn copies(&self, at: Stage) -> u32;

    /// Where the copy `number` goes, which is below [`Route::copies`].
    fn copy(&self, at: Stage, number: u32) -> (Endpoint, Stage);

    /// Whether the tree of a broadcast of `source` passes this endpoint at this stage.
    fn passes(&self, at: Stage, source: Rank) -> bool;

    /// How many ranks an endpoint speaks for: those whose messages its edges to other nodes carry, itself included. Only of
    /// routes on which the ranks of a node reach each other in one hop, and those of two nodes over one edge between them.
    /// Then loads follow from it; `None` where they can only be counted by following each pair.
    fn ranks_behind(&self, _end: Endpoint) -> Option<u64> {
        None
    }
}

/// Makes of the table of routes the enum of their names and that of their rules. `$d` is a dollar sign, for the macro that
/// this one makes.
macro_rules! routes {
    ($d:tt $($(#[$about:meta])* $variant:ident = $name:literal, $rule:ident, $stages:expr;)+) => {
        /// Name of a route, as options and reports give it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum RouteName {
            $($(#[$about])* $variant,)+
        }

        impl RouteName {
            /// All names.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name as text.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The stages of its edges, in order.
            pub fn stages(self) -> &'static [StageSpec] {
                match self {
                    $(Self::$variant => const { &$stages },)+
                }
            }
        }

        /// The rule of a route, or of the collectives' tree.
        #[derive(Debug, Clone)]
        enum Rule {
            $($variant($rule),)+
            Tree(Tree),
        }

        impl Rule {
            fn new(name: RouteName, topology: Topology) -> Self {
                match name {
                    $(RouteName::$variant => Self::$variant($rule::new(topology)),)+
                }
            }
        }

        /// Calls a method of whichever rule it is.
        macro_rules! rule {
            ($d route:ident.$d method:ident($d($d argument:expr),+)) => {
                match &$d route.rule {
                    $(Rule::$variant(rule) => rule.$d method($d($d argument),+),)+
                    Rule::Tree(rule) => rule.$d method($d($d argument),+),
                }
            };
        }
    };
}

// The table: what a route is, its name, its rule, and the stages of its edges.
routes! { $
    /// `three-hop`: over the representatives of both nodes.
    #[default]
    ThreeHop = "three-hop", ThreeHop, three_hop::STAGES;

    /// `direct`: a link per rank of other nodes.
    Direct = "direct", Direct, direct::STAGES;

    /// `fabric-only`: as `three-hop`, but ranks of a node reach each other over the fabric too, for nodes on which the
    /// provider is faster than shared memory, or where both shall be compared.
    FabricOnly = "fabric-only", ThreeHop, over_fabric(three_hop::STAGES);
}

impl fmt::Display for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RouteName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|route| route.name() == text)
            .ok_or_else(|| {
                format!(
                    "`{text}` is none of {}",
                    Self::ALL.map(|route| format!("`{route}`")).join(", ")
                )
            })
    }
}

/// A route of a job, as one of its ranks sees it: a rule, and the media of its stages.
#[derive(Debug, Clone)]
pub struct Chosen {
    topology: Topology,
    name: &'static str,
    stages: &'static [StageSpec],
    rule: Rule,
}

impl Chosen {
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
    pub fn edge(&self, stage: Stage, reach: Reach, number: u32) -> Endpoint {
        rule!(self.edge(stage, reach, number))
    }

    /// As [`Route::copies`].
    pub fn copies(&self, at: Stage) -> u32 {
        rule!(self.copies(at))
    }

    /// As [`Route::copy`].
    pub fn copy(&self, at: Stage, number: u32) -> (Endpoint, Stage) {
        rule!(self.copy(at, number))
    }

    /// As [`Route::passes`].
    pub fn passes(&self, at: Stage, source: Rank) -> bool {
        rule!(self.passes(at, source))
    }

    /// As [`Route::ranks_behind`].
    pub fn ranks_behind(&self, end: Endpoint) -> Option<u64> {
        rule!(self.ranks_behind(end))
    }
}

/// What follows from placement and media, for all routes alike.
impl Chosen {
    /// Whether the edge of a stage to `peer` is a lane: on one's own node where the stage's medium is shared memory, and to
    /// oneself whatever it is. Any other is a link.
    pub fn is_lane(&self, peer: Endpoint, stage: Stage) -> bool {
        peer == self.topology.rank() || self.topology.is_local(peer) && !self.is_link(stage, Reach::Node)
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
        self.link_ends(stage).map(|reach| self.edges(stage, reach)).sum()
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
    pub fn each_link(&self) -> impl Iterator<Item = (Endpoint, Stage)> + '_ {
        self.numbers().flat_map(move |stage| {
            self.link_ends(stage).flat_map(move |reach| {
                let edges = 0..self.edges(stage, reach);
                edges.map(move |number| (self.edge(stage, reach, number), stage))
            })
        })
    }

    /// The stage with this number, if this endpoint shares a link of it with `peer`: what a header that came has to show.
    pub fn link_with(&self, peer: Endpoint, number: u16) -> Option<Stage> {
        let stage = self.numbers().find(|stage| u16::from(stage.0) == number)?;
        let shared = peer.0 < self.topology.size() && rule!(self.has_edge(stage, peer));
        (shared && !self.is_lane(peer, stage)).then_some(stage)
    }

    /// The stages that have lanes, which are those inside a node over shared memory, and the first one for one's own.
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
        let place = self.lane_stages().take_while(|&other| other < stage).count() as u32;
        self.lanes_per_rank() * producer + place
    }

    /// The stage of a lane of an inbox.
    pub fn stage_of_lane(&self, lane: u32) -> Stage {
        let place = (lane % self.lanes_per_rank()) as usize;
        self.lane_stages().nth(place).expect("a place below their number")
    }

    /// Links that an endpoint of the job needs whatever its route is: representatives have as few as there can be.
    pub fn least_links(&self) -> u32 {
        Self::new(RouteName::default(), &self.topology).most_links()
    }
}

/// The ranks at the other ends of all links of these routes, ascending, each once.
pub(crate) fn ends_of(routes: &[&Chosen]) -> Vec<Rank> {
    let links = routes.iter().flat_map(|route| route.each_link());
    let mut ends: Vec<Rank> = links.map(|(end, _)| end).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The `number`-th of the node's other ranks.
fn other_local(topology: &Topology, number: u32) -> Endpoint {
    let local = number + u32::from(number >= topology.local_rank());
    topology.rank_at(topology.node(), local)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Follows all copies of a broadcast; returns how often each rank got it, and how many copies crossed links.
    fn follow_copies(name: RouteName, sizes: &[u32], source: u32) -> (Vec<u32>, u32) {
        let at_rank = |rank: Rank| Chosen::new(name, &Topology::from_node_sizes(sizes, rank).unwrap());
        let mut got = vec![0; sizes.iter().sum::<u32>() as usize];
        let mut crossed = 0;
        let mut under_way = vec![(Rank(source), Stage::SOURCE)];
        while let Some((here, stage)) = under_way.pop() {
            let route = at_rank(here);
            if stage != Stage::SOURCE {
                got[here.0 as usize] += 1;
                assert!(route.passes(stage, Rank(source)), "{here} at {stage}");
            }
            for number in 0..route.copies(stage) {
                let next = route.copy(stage, number);
                assert!(next.1 > stage && next.0 != here);
                crossed += u32::from(!route.is_lane(next.0, next.1));
                under_way.push(next);
            }
        }
        (got, crossed)
    }

    /// Follows a message from `source` to `target`; returns the ranks that it passed on its way.
    fn follow(name: RouteName, sizes: &[u32], source: u32, target: u32) -> Vec<u32> {
        let at_rank = |rank: Rank| Chosen::new(name, &Topology::from_node_sizes(sizes, rank).unwrap());
        let (mut here, mut stage) = (Rank(source), Stage::SOURCE);
        let mut passed = vec![source];
        while let Next::To(next, over) = at_rank(here).next(stage, Rank(target)).expect("a route") {
            assert!(over > stage);
            if next == here {
                assert_eq!(
                    (next, stage),
                    (Rank(target), Stage::SOURCE),
                    "only one's own stays"
                );
                assert!(over == Stage::FIRST && at_rank(here).is_lane(next, over));
            } else {
                assert!(!passed.contains(&next.0), "{next} is passed twice");
                passed.push(next.0);
            }
            (here, stage) = (next, over);
        }
        assert_eq!(here, Rank(target));
        passed
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        /// Every route ends at its target, over each stage once at most, and no endpoint is passed twice.
        #[test]
        fn every_route_ends_at_its_target(sizes in proptest::collection::vec(1u32..6, 1..9), picks: (u32, u32)) {
            let total: u32 = sizes.iter().sum();
            let (source, target) = (picks.0 % total, picks.1 % total);
            for name in RouteName::ALL {
                prop_assert!(follow(name, &sizes, source, target).len() <= 1 + name.stages().len());
            }
            prop_assert!(follow(RouteName::Direct, &sizes, source, target).len() <= 2);
            let [lanes, fabric] = [RouteName::ThreeHop, RouteName::FabricOnly].map(|name| follow(name, &sizes, source, target));
            prop_assert_eq!(lanes, fabric, "the same way");
        }

        /// A broadcast reaches every other rank once, and an endpoint and stage that it does not reach know that.
        #[test]
        fn copies_of_a_broadcast_make_a_tree(sizes in proptest::collection::vec(1u32..6, 1..9), pick: u32) {
            let total: u32 = sizes.iter().sum();
            let source = pick % total;
            for name in RouteName::ALL {
                let (got, _) = follow_copies(name, &sizes, source);
                for (rank, &times) in got.iter().enumerate() {
                    prop_assert_eq!(times, u32::from(rank as u32 != source), "rank {}", rank);
                    let here = Topology::from_node_sizes(&sizes, Rank(rank as u32)).unwrap();
                    let route = Chosen::new(name, &here);
                    let passed = route.numbers().filter(|&stage| route.passes(stage, Rank(source))).count();
                    prop_assert_eq!(passed, 1, "rank {} of {:?} from {}", rank, sizes, source);
                }
            }
        }

        /// Over each pair of nodes once where there are representatives.
        #[test]
        fn copies_of_a_broadcast_cross_as_few_links_as_the_route_allows(
            sizes in proptest::collection::vec(1u32..6, 1..9), pick: u32,
        ) {
            let total: u32 = sizes.iter().sum();
            let source = pick % total;
            let topology = Topology::from_node_sizes(&sizes, Rank(source)).unwrap();
            for (name, links) in [
                (RouteName::ThreeHop, topology.nodes() - 1),
                (RouteName::Direct, total - topology.local_size()),
                (RouteName::FabricOnly, total - 1),
            ] {
                prop_assert_eq!(follow_copies(name, &sizes, source).1, links, "{}", name);
            }
        }

        /// Both ends of an edge know each other, and what each counts is what there is; the same for the collectives' tree.
        #[test]
        fn edges_have_two_ends(sizes in proptest::collection::vec(1u32..6, 1..9), pick: u32) {
            let total: u32 = sizes.iter().sum();
            let me = Rank(pick % total);
            let see = |rank| Topology::from_node_sizes(&sizes, rank).unwrap();
            let named = RouteName::ALL.map(|name| Some(name));
            for name in named.into_iter().chain([None]) {
                let at_rank = |rank| match name {
                    Some(name) => Chosen::new(name, &see(rank)),
                    None => Chosen::tree(&see(rank)),
                };
                let route = at_rank(me);
                let mut seen = std::collections::BTreeSet::new();
                for stage in route.numbers() {
                    for reach in Reach::BOTH {
                        prop_assert!(route.edges(stage, reach) <= rule!(route.most_edges(stage, reach)));
                        for number in 0..route.edges(stage, reach) {
                            let peer = route.edge(stage, reach, number);
                            prop_assert!(peer != me && seen.insert((peer, stage)));
                            prop_assert_eq!(see(me).is_local(peer), reach == Reach::Node);
                            let other = at_rank(peer);
                            prop_assert!(rule!(other.has_edge(stage, me)), "{} of {}", peer, route.name());
                            prop_assert_eq!(other.is_lane(me, stage), route.is_lane(peer, stage));
                        }
                    }
                    for rank in (0..total).map(Rank) {
                        prop_assert_eq!(rule!(route.has_edge(stage, rank)), seen.contains(&(rank, stage)));
                    }
                }
                let links: Vec<_> = route.each_link().collect();
                prop_assert!(links.len() as u32 == route.links() && route.links() <= route.most_links());
                let counted = seen.iter().filter(|(peer, stage)| !route.is_lane(*peer, *stage)).count();
                prop_assert_eq!(links.len(), counted);
                for (peer, stage) in links {
                    prop_assert_eq!(route.link_with(peer, stage.number().into()), Some(stage));
                }
                prop_assert_eq!(route.link_with(me, 1).or(route.link_with(Rank(total), 1)), None);
            }
        }

        /// Lanes are numbered without gaps, and each knows its writer and its stage.
        #[test]
        fn lanes_are_numbered_by_rank_and_stage(sizes in proptest::collection::vec(1u32..6, 1..4)) {
            let topology = Topology::from_node_sizes(&sizes, Rank(0)).unwrap();
            for name in RouteName::ALL {
                let route = Chosen::new(name, &topology);
                let mut next = 0;
                for local in 0..topology.local_size() {
                    for stage in route.lane_stages() {
                        prop_assert_eq!(route.lane_slot(local, stage), next);
                        prop_assert_eq!((next / route.lanes_per_rank(), route.stage_of_lane(next)), (local, stage));
                        next += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in RouteName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
            let route = Chosen::new(name, &Topology::from_node_sizes(&[1], Rank(0)).unwrap());
            for stage in route.numbers() {
                assert_eq!(
                    route.stage_named(route.stage_name(stage)),
                    Some(stage),
                    "each name once"
                );
            }
        }
        assert!("two-hop".parse::<RouteName>().unwrap_err().contains("three-hop"));
    }
}
