//! Routes: which endpoint takes a run next, and which endpoints a rank is linked with.

mod direct;
mod fabric_only;
mod three_hop;

pub use direct::Direct;
pub use fabric_only::FabricOnly;
pub use three_hop::ThreeHop;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::str::FromStr;

use trihop_transport::topology::{Rank, Topology};

/// How a run reached the endpoint that asks. Places are ordered: a run only ever moves to a later one, which is what
/// keeps queues of different hops from waiting for each other in a circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// From its own application.
    Source,
    /// Over an origin lane of its node.
    SourceRep,
    /// Over the fabric.
    TargetRep,
    /// Over a relay lane of its node.
    Target,
}

/// What a link carries. Classes never share a link, as they never share a lane: what waits in one keeps no other waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum LinkClass {
    /// Runs between nodes.
    Remote = 0,
    /// Runs of a rank's own to a rank of its node, which gets them or represents their node.
    Origin = 1,
    /// Runs from other nodes to a rank of the representative's node.
    Relay = 2,
}

impl LinkClass {
    /// All classes, by number.
    pub const ALL: [Self; 3] = [Self::Remote, Self::Origin, Self::Relay];

    /// The class of a number that came over the wire.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Place of a run that came over such a link.
    #[inline]
    pub fn arrival(self) -> Place {
        match self {
            Self::Remote => Place::TargetRep,
            Self::Origin => Place::SourceRep,
            Self::Relay => Place::Target,
        }
    }
}

impl fmt::Display for LinkClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Remote => "remote",
            Self::Origin => "origin",
            Self::Relay => "relay",
        })
    }
}

/// Where a run goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// It is here.
    Deliver,
    /// Over a lane, to this local rank of the node.
    Local(u32),
    /// Over the fabric, by this link.
    Fabric(u32),
}

/// A routing rule. The same on every rank of a job.
pub trait Route {
    /// Next hop of a run for `target` that is at this endpoint, or `None` when no route leads it through here.
    fn next_hop(&self, at: Place, target: Rank) -> Option<Hop>;

    /// Links of this endpoint, numbered from 0.
    fn links(&self) -> u32;

    /// The rank at the other end of a link.
    ///
    /// # Panics
    /// When there is no such link.
    fn peer(&self, link: u32) -> Rank;

    /// What a link carries, the same at both ends.
    fn class(&self, _link: u32) -> LinkClass {
        LinkClass::Remote
    }

    /// The link of this class whose other end is `rank`, if there is one.
    fn link_to(&self, rank: Rank, class: LinkClass) -> Option<u32>;

    /// How many copies a broadcast that is at this endpoint goes on as. They make a tree: together with those of the other
    /// endpoints each rank but the source gets one, and each hop leads to a later place.
    fn copies(&self, at: Place) -> u32;

    /// Next hop of the copy `number`, which is below [`Route::copies`].
    fn copy(&self, at: Place, number: u32) -> Hop;

    /// Whether the tree of a broadcast of `source` passes this endpoint at this place.
    fn passes(&self, at: Place, source: Rank) -> bool;

    /// Most links that an endpoint of this job has: sizes that both ends of a link share follow from it.
    fn most_links(&self) -> u32;
}

/// Name of a route, as options and reports give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum RouteName {
    /// `three-hop`: over the representatives of both nodes.
    #[default]
    ThreeHop,
    /// `direct`: a link per rank of other nodes.
    Direct,
    /// `fabric-only`: as `three-hop`, but ranks of a node reach each other over the fabric too.
    FabricOnly,
}

impl RouteName {
    /// All names.
    pub const ALL: [Self; 3] = [Self::ThreeHop, Self::Direct, Self::FabricOnly];

    /// The name as text.
    pub fn name(self) -> &'static str {
        match self {
            Self::ThreeHop => "three-hop",
            Self::Direct => "direct",
            Self::FabricOnly => "fabric-only",
        }
    }
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

/// The route of a job.
#[derive(Debug, Clone)]
pub enum Chosen {
    /// See [`ThreeHop`].
    ThreeHop(ThreeHop),
    /// See [`Direct`].
    Direct(Direct),
    /// See [`FabricOnly`].
    FabricOnly(FabricOnly),
}

impl Chosen {
    /// The route `name` as seen from this rank of `topology`.
    pub fn new(name: RouteName, topology: &Topology) -> Self {
        match name {
            RouteName::ThreeHop => Self::ThreeHop(ThreeHop::new(topology.clone())),
            RouteName::Direct => Self::Direct(Direct::new(topology.clone())),
            RouteName::FabricOnly => Self::FabricOnly(FabricOnly::new(topology.clone())),
        }
    }

    /// Which one it is.
    pub fn name(&self) -> RouteName {
        match self {
            Self::ThreeHop(_) => RouteName::ThreeHop,
            Self::Direct(_) => RouteName::Direct,
            Self::FabricOnly(_) => RouteName::FabricOnly,
        }
    }
}

/// Calls the method of whichever route was chosen.
macro_rules! chosen {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            Chosen::ThreeHop(route) => route.$method($($argument),*),
            Chosen::Direct(route) => route.$method($($argument),*),
            Chosen::FabricOnly(route) => route.$method($($argument),*),
        }
    };
}

impl Route for Chosen {
    #[inline]
    fn next_hop(&self, at: Place, target: Rank) -> Option<Hop> {
        chosen!(self.next_hop(at, target))
    }

    fn links(&self) -> u32 {
        chosen!(self.links())
    }

    fn peer(&self, link: u32) -> Rank {
        chosen!(self.peer(link))
    }

    #[inline]
    fn class(&self, link: u32) -> LinkClass {
        chosen!(self.class(link))
    }

    fn link_to(&self, rank: Rank, class: LinkClass) -> Option<u32> {
        chosen!(self.link_to(rank, class))
    }

    fn copies(&self, at: Place) -> u32 {
        chosen!(self.copies(at))
    }

    fn copy(&self, at: Place, number: u32) -> Hop {
        chosen!(self.copy(at, number))
    }

    fn passes(&self, at: Place, source: Rank) -> bool {
        chosen!(self.passes(at, source))
    }

    fn most_links(&self) -> u32 {
        chosen!(self.most_links())
    }
}

impl Chosen {
    /// The other ends of all links, by link; `connect` is asked once for each rank there.
    pub(crate) fn connect<P: Copy, E>(
        &self,
        mut connect: impl FnMut(Rank) -> Result<P, E>,
    ) -> Result<Vec<P>, E> {
        let mut connected = HashMap::new();
        let ends = (0..self.links()).map(|link| self.peer(link));
        ends.map(|rank| match connected.entry(rank) {
            Entry::Occupied(peer) => Ok(*peer.get()),
            Entry::Vacant(place) => Ok(*place.insert(connect(rank)?)),
        })
        .collect()
    }
}

/// The `number`-th of the node's other local ranks, as a hop.
fn other_local(topology: &Topology, number: u32) -> Hop {
    Hop::Local(number + u32::from(number >= topology.local_rank()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Follows all copies of a broadcast; returns how often each rank got it, and how many copies crossed links.
    fn follow_copies(name: RouteName, sizes: &[u32], source: u32) -> (Vec<u32>, u32) {
        let at_rank = |rank| Topology::from_node_sizes(sizes, Rank(rank)).unwrap();
        let mut got = vec![0; sizes.iter().sum::<u32>() as usize];
        let mut crossed = 0;
        let mut under_way = vec![(source, Place::Source)];
        while let Some((here, place)) = under_way.pop() {
            let topology = at_rank(here);
            let route = Chosen::new(name, &topology);
            if place != Place::Source {
                got[here as usize] += 1;
                assert!(route.passes(place, Rank(source)), "{here} at {place:?}");
            }
            for number in 0..route.copies(place) {
                let next = match route.copy(place, number) {
                    Hop::Deliver => panic!("a copy that goes nowhere"),
                    Hop::Local(local) => {
                        let next = topology.rank_at(topology.node(), local).0;
                        let relayed = place == Place::TargetRep;
                        (next, if relayed { Place::Target } else { Place::SourceRep })
                    }
                    Hop::Fabric(link) => {
                        crossed += 1;
                        (route.peer(link).0, route.class(link).arrival())
                    }
                };
                assert!(next.1 > place && next.0 != here);
                under_way.push(next);
            }
        }
        (got, crossed)
    }

    /// Follows a message from `source` to `target`; returns the ranks that it passed on its way.
    fn follow(name: RouteName, sizes: &[u32], source: u32, target: u32) -> Vec<u32> {
        let at_rank = |rank| Topology::from_node_sizes(sizes, Rank(rank)).unwrap();
        let (mut here, mut place) = (source, Place::Source);
        let mut passed = vec![source];
        loop {
            let topology = at_rank(here);
            let route = Chosen::new(name, &topology);
            let (next, next_place) = match route.next_hop(place, Rank(target)).expect("a route") {
                Hop::Deliver => break,
                Hop::Local(local) => (
                    topology.rank_at(topology.node(), local).0,
                    if place == Place::TargetRep {
                        Place::Target
                    } else {
                        Place::SourceRep
                    },
                ),
                Hop::Fabric(link) => (route.peer(link).0, route.class(link).arrival()),
            };
            assert!(next_place > place);
            if next == here {
                assert_eq!(next, target, "only a message to oneself stays");
            } else {
                assert!(!passed.contains(&next), "{next} is passed twice");
                passed.push(next);
            }
            (here, place) = (next, next_place);
        }
        assert_eq!(here, target);
        passed
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        /// Every route ends at its target within its number of hops, and no endpoint is passed twice.
        #[test]
        fn every_route_ends_at_its_target(sizes in proptest::collection::vec(1u32..6, 1..9), picks: (u32, u32)) {
            let total: u32 = sizes.iter().sum();
            let (source, target) = (picks.0 % total, picks.1 % total);
            for (name, hops) in [(RouteName::ThreeHop, 3), (RouteName::Direct, 1)] {
                prop_assert!(follow(name, &sizes, source, target).len() <= 1 + hops);
            }
            let [lanes, fabric] = [RouteName::ThreeHop, RouteName::FabricOnly].map(|name| follow(name, &sizes, source, target));
            prop_assert_eq!(lanes, fabric, "the same way");
        }

        /// A broadcast reaches every other rank once, over each pair of nodes once where there are representatives, and
        /// a place that it does not reach knows that.
        #[test]
        fn copies_of_a_broadcast_make_a_tree(sizes in proptest::collection::vec(1u32..6, 1..9), pick: u32) {
            let total: u32 = sizes.iter().sum();
            let source = pick % total;
            for name in RouteName::ALL {
                let (got, crossed) = follow_copies(name, &sizes, source);
                let topology = Topology::from_node_sizes(&sizes, Rank(source)).unwrap();
                let links = match name {
                    RouteName::ThreeHop => topology.nodes() - 1,
                    RouteName::Direct => total - topology.local_size(),
                    RouteName::FabricOnly => total - 1,
                };
                prop_assert_eq!(crossed, links);
                for (rank, &times) in got.iter().enumerate() {
                    prop_assert_eq!(times, u32::from(rank as u32 != source), "rank {}", rank);
                    let here = Topology::from_node_sizes(&sizes, Rank(rank as u32)).unwrap();
                    let route = Chosen::new(name, &here);
                    let places = [Place::SourceRep, Place::TargetRep, Place::Target];
                    let passed = places.iter().filter(|&&place| route.passes(place, Rank(source))).count();
                    prop_assert_eq!(passed, 1, "rank {} of {:?} from {}", rank, sizes, source);
                }
            }
        }

        /// Links are numbered without gaps, both ends know each other, and none has more than `most_links`.
        #[test]
        fn links_have_two_ends(sizes in proptest::collection::vec(1u32..6, 1..9), pick: u32) {
            let total: u32 = sizes.iter().sum();
            for name in RouteName::ALL {
                let at_rank = |rank| Chosen::new(name, &Topology::from_node_sizes(&sizes, Rank(rank)).unwrap());
                let me = pick % total;
                let route = at_rank(me);
                prop_assert!(route.links() <= route.most_links());
                let mut seen = std::collections::BTreeSet::new();
                for link in 0..route.links() {
                    let (peer, class) = (route.peer(link), route.class(link));
                    prop_assert!(seen.insert((peer, class)));
                    prop_assert_eq!(route.link_to(peer, class), Some(link));
                    let other = at_rank(peer.0);
                    let back = other.link_to(Rank(me), class).expect("the other end");
                    prop_assert_eq!((other.peer(back), other.class(back)), (Rank(me), class));
                }
                for class in LinkClass::ALL {
                    for rank in (0..total).filter(|&r| !seen.contains(&(Rank(r), class))) {
                        prop_assert_eq!(route.link_to(Rank(rank), class), None, "{} has a link to {}", me, rank);
                    }
                }
            }
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in RouteName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert!("two-hop".parse::<RouteName>().unwrap_err().contains("three-hop"));
    }
}
