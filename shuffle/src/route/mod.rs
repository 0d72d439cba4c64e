//! Routes: which endpoint takes a run next, over an edge of which stage, and which endpoints a rank
//! shares edges with.
//!
//! A route is a pure function of placement. It names endpoints and stages, never what lies between
//! two endpoints: whether an edge is a lane or a link follows from where its ends live and from the
//! medium of its stage, which [`JobRoute::is_lane`] decides, for all routes.
//!
//! A new route is a file with an implementation of [`Route`], and a row of the table in this one. A
//! program brings its own by [`register`].

mod along_nodes;
mod direct;
mod grid;
mod mesh;
mod node_mesh;
mod own;
mod rails;
mod relayed;
mod team_mesh;
mod three_hop;
mod tree;

pub use direct::Direct;
pub use grid::{Grid, NodeGrid};
pub use job_route::JobRoute;
pub use mesh::Mesh;
pub use node_mesh::NodeMesh;
pub use own::{OwnRoute, register};
pub use rails::Rails;
pub use relayed::Relayed;
pub use team_mesh::TeamMesh;
pub use three_hop::ThreeHop;
pub use tree::Tree;

use std::fmt;
use std::str::FromStr;

pub use trihop_transport::topology::EndpointId;
use trihop_transport::topology::{Rank, Topology};

use among::Among;

/// How far a run has come: a number that only grows on its way. What waits at a stage only ever
/// waits for later ones, so queues never wait for each other in a circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stage(u8);

impl Stage {
    /// With its source's application.
    pub const SOURCE: Self = Self(0);

    /// Come over the first edge of its way. A rank's messages to itself take one of this stage, its
    /// own lane.
    pub const FIRST: Self = Self(1);

    /// The stage with this number: that of the edges from 1 on, in the order of a route's stages.
    pub const fn numbered(number: u8) -> Self {
        Self(number)
    }

    /// As it is on the wire: 0 for the source, and the edges from 1 on.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Place of an edge's stage in [`JobRoute::stages`].
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

/// Longest name of a stage, in bytes.
pub(crate) const STAGE_NAME_BYTES: usize = 64;

/// What is known of the edges of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageSpec {
    /// Name in options, statistics and dumps: at most 64 bytes.
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
    To(EndpointId, Stage),
}

/// Whose messages go through an edge between two nodes, one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Through {
    /// Ranks that send them, the one at this end of the edge included.
    pub sources: u64,
    /// Ranks that they are for, the one at the other end included; 0 where there is none.
    pub targets: u64,
}

/// A routing rule, as one rank sees it; the same for every rank of a job. Those of a program's own
/// are made known by [`register`].
pub trait Route {
    /// Where a run for `target` goes that has come this far, or `None` when no way leads it through
    /// here. To oneself it goes over an edge of [`Stage::FIRST`]; every other step leads to a later
    /// stage and another endpoint.
    fn next(&self, at: Stage, target: Rank) -> Option<Next>;

    /// How many other endpoints share an edge of this stage with this one, of those that live here
    /// or there.
    fn edges(&self, stage: Stage, reach: Reach) -> u32;

    /// The other end of such an edge, by a number below [`Route::edges`].
    fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId;

    /// Whether `peer`, another endpoint of the job, shares an edge of this stage with this one.
    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool;

    /// The most edges of a stage that any endpoint of the job has: sizes that both ends of a link
    /// share follow from it.
    fn most_edges(&self, stage: Stage, reach: Reach) -> u32;

    /// How many copies a broadcast of `source` that has come this far goes on as. They make a tree:
    /// together with those of the other endpoints each rank but the source gets one, and each copy
    /// goes over an edge of a later stage.
    fn copies(&self, at: Stage, source: Rank) -> u32;

    /// Where the copy `number` goes, which is below [`Route::copies`].
    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage);

    /// Whether the tree of a broadcast of `source` passes this endpoint at this stage.
    fn passes(&self, at: Stage, source: Rank) -> bool;

    /// What goes through the edge to an endpoint of another node, there and back. Only of routes
    /// on which the ranks of a node reach each other in one hop, and those of two nodes over one
    /// edge between them. Then loads follow from it; `None` where they can only be counted by
    /// following each pair.
    fn through(&self, _end: EndpointId) -> Option<[Through; 2]> {
        None
    }
}

/// Makes of the table of routes the enum of their names and that of their rules. `$d` is a dollar
/// sign, for the macro that this one makes.
macro_rules! routes {
    ($d:tt $(
        $(#[$about:meta])*
        $variant:ident $(($given:ident: $type:ident))? = $name:literal, $rule:ident, $stages:expr;
    )+) => {
        /// Name of a route, as options and reports give it, with what it is given: `mesh:4x8`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RouteName {
            $($(#[$about])* $variant $(($type))?,)+
            /// One that this program has registered.
            Own(OwnRoute),
        }

        impl RouteName {
            /// All of the table, those that are given something with the default of that.
            pub fn all() -> [Self; [$($name),+].len()] {
                [$(Self::$variant $((<$type>::default()))?),+]
            }

            /// The name alone, without what it is given.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $name,)+
                    Self::Own(own) => own.name(),
                }
            }

            /// The stages of its edges, in order.
            pub fn stages(self) -> &'static [StageSpec] {
                match self {
                    $(Self::$variant $(($given))? => {
                        $(let _ = $given;)?
                        $stages
                    })+
                    Self::Own(own) => own.stages(),
                }
            }

            /// What it is in a job: what it is given suits that, or is chosen.
            ///
            /// # Errors
            /// What it is given does not suit the job.
            pub fn for_job(self, _topology: &Topology) -> Result<Self, String> {
                Ok(match self {
                    $(Self::$variant $(($given))? => {
                        Self::$variant $(($given.for_job(_topology)?))?
                    })+
                    Self::Own(own) => {
                        own.check(_topology).map_err(|why| format!("`{}`: {why}", own.name()))?;
                        self
                    }
                })
            }

            /// The route with this name that is given this, if anything.
            fn given(name: &str, _text: Option<&str>) -> Option<Result<Self, String>> {
                match name {
                    $($name => {
                        let _is_given = false;
                        $(
                            let _is_given = true;
                            let $given: Result<$type, String> =
                                _text.map_or(Ok($type::default()), str::parse);
                            let $given = match $given {
                                Ok(given) => given,
                                Err(why) => return Some(Err(why)),
                            };
                        )?
                        Some(match _text {
                            Some(_) if !_is_given => Err(format!("`{name}` is given nothing")),
                            _ => Ok(Self::$variant $(($given))?),
                        })
                    })+
                    _ => OwnRoute::named(name).map(|own| match _text {
                        Some(_) => Err(format!("`{name}` is given nothing")),
                        None => Ok(Self::Own(own)),
                    }),
                }
            }
        }

        impl fmt::Display for RouteName {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant $(($given))? => {
                        f.write_str($name)?;
                        $(
                            let given = $given.to_string();
                            if !given.is_empty() {
                                write!(f, ":{given}")?;
                            }
                        )?
                        Ok(())
                    })+
                    Self::Own(own) => f.write_str(own.name()),
                }
            }
        }

        /// The rule of a route, or of the collectives' tree.
        #[derive(Debug, Clone)]
        enum Rule {
            $($variant($rule),)+
            Own(own::OwnRule),
            Relayed(Relayed),
            Among(Box<Among>),
            Tree(Tree),
        }

        impl Rule {
            /// Of a route as it is in this job.
            fn new(name: RouteName, topology: Topology) -> Self {
                match name {
                    RouteName::ThreeHop(rails) if topology.has_relays() => {
                        Self::Relayed(Relayed::new(topology, rails))
                    }
                    _ if topology.has_relays() => {
                        let inner = JobRoute::of_known(name, topology.processes());
                        Self::Among(Box::new(Among::new(topology, inner)))
                    }
                    $(RouteName::$variant $(($given))? => {
                        Self::$variant($rule::new(topology $(, $given)?))
                    })+
                    RouteName::Own(own) => Self::Own(own.rule(&topology)),
                }
            }
        }

        /// Calls a method of the rule that the route has.
        macro_rules! rule {
            ($d route:ident.$d method:ident($d($d argument:expr),+)) => {
                match &$d route.rule {
                    $(Rule::$variant(rule) => rule.$d method($d($d argument),+),)+
                    Rule::Own(rule) => rule.0.$d method($d($d argument),+),
                    Rule::Relayed(rule) => rule.$d method($d($d argument),+),
                    Rule::Among(rule) => rule.$d method($d($d argument),+),
                    Rule::Tree(rule) => rule.$d method($d($d argument),+),
                }
            };
        }
    };
}

// The table: what a route is, its name, its rule, and the stages of its edges.
routes! { $
    /// `three-hop`: over the representatives of both nodes. `three-hop:2` has two rails between
    /// any two nodes, `three-hop:1` the representatives that nexus would choose, and `three-hop`
    /// alone as many rails as suit the job. `three-hop:2+1` and `three-hop:+1` go over the relays
    /// that follow, of a job whose nodes have several.
    ThreeHop(rails: Rails) = "three-hop", ThreeHop, &three_hop::STAGES;

    /// `direct`: a link per rank of other nodes.
    Direct = "direct", Direct, &direct::STAGES;

    /// `fabric-only`: as `three-hop`, but ranks of a node reach each other over the fabric too, for
    /// nodes on which the provider is faster than shared memory, or where both shall be compared.
    FabricOnly(rails: Rails) = "fabric-only", ThreeHop, const { &over_fabric(three_hop::STAGES) };

    /// `mesh`: along a grid, one hop for each coordinate that differs. `mesh:4x4x8` has these
    /// lengths, `mesh:3d` three that suit the nodes, and `mesh` alone two.
    Mesh(grid: Grid) = "mesh", Mesh, mesh::stages(grid);

    /// `node-mesh`: along a grid of nodes, between their representatives. `node-mesh:10x10` has
    /// these lengths, `node-mesh:3d` three that suit the job, and `node-mesh` alone two.
    NodeMesh(grid: NodeGrid) = "node-mesh", NodeMesh, along_nodes::stages(grid);

    /// `team-mesh`: along a grid of nodes whose ranks are teams, one for each dimension, that share
    /// its messages. `team-mesh:10x10` has these lengths, `team-mesh:3d` three that suit the job,
    /// and `team-mesh` alone two.
    TeamMesh(grid: NodeGrid) = "team-mesh", TeamMesh, along_nodes::stages(grid);
}

// Behind the table, which makes the macro that they use.
mod among;
mod job_route;
#[cfg(test)]
mod tests;

impl Default for RouteName {
    fn default() -> Self {
        Self::ThreeHop(Rails::default())
    }
}

impl FromStr for RouteName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, given) = match text.split_once(':') {
            Some((name, given)) => (name, Some(given)),
            None => (text, None),
        };
        Self::given(name, given).unwrap_or_else(|| {
            let names = Self::all().map(|route| format!("`{}`", route.name()));
            Err(format!("`{text}` is none of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
impl RouteName {
    /// All of them, and some that are given other things.
    pub fn several() -> Vec<Self> {
        let given = [
            "mesh:1d",
            "mesh:3d",
            "mesh:4d",
            "node-mesh:1d",
            "node-mesh:3d",
            "team-mesh:1d",
            "team-mesh:3d",
            "three-hop:1",
            "three-hop:2",
            "three-hop:3",
            "fabric-only:1",
        ]
        .map(|name| name.parse().unwrap());
        Self::all().into_iter().chain(given).collect()
    }
}

impl serde::Serialize for RouteName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The endpoints at the other ends of all links of these routes, ascending, each once.
pub(crate) fn ends_of(routes: &[&JobRoute]) -> Vec<EndpointId> {
    let links = routes.iter().flat_map(|route| route.each_link());
    let mut ends: Vec<EndpointId> = links.map(|(end, _)| end).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The `number`-th of the node's other ranks.
fn other_local(topology: &Topology, number: u32) -> EndpointId {
    let local = number + u32::from(number >= topology.local_rank());
    topology.rank_at(topology.node(), local).into()
}
