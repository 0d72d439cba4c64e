//! Along a grid: one hop for each coordinate that differs, as Charm++'s TRAM routes.
//!
//! Ranks are numbered along the grid, the last dimension fastest. A message corrects its
//! coordinates one after the other, the last dimension first: where that is as long as a node, the
//! hop inside the node comes before those between nodes. Instead of a link to every rank, one has
//! `s - 1` in each dimension of `s`.
//!
//! # Holes
//! The grid may have more places than the job has ranks; those missing are the last ones. Let the
//! *block* of a dimension be what its coordinate and all later ones span: `L` ranks. A hop from rank
//! `r` along the dimension leads to a rank `v` of the same block, and `v` can only be missing when
//! `r` is in the last block. Then `v - L` stands in for it, the same place of the block before,
//! which is complete. It has the coordinates that were corrected so far, so the message goes on from
//! there with the dimensions that are left. No way gets longer, and all rules above hold.

use std::fmt;
use std::str::FromStr;

use super::{EndpointId, Next, Reach, Route, Stage, StageSpec, stage};
use trihop_transport::topology::{Rank, Topology};

/// Most dimensions of a grid.
const DIMENSIONS: usize = 8;

/// Names of the stages of a grid with so many dimensions: the first and, from three on, the last
/// are called as those of three hops.
const fn named(dimensions: usize) -> [StageSpec; DIMENSIONS] {
    let between = [
        stage::ORIGIN,
        stage::REMOTE,
        "remote2",
        "remote3",
        "remote4",
        "remote5",
        "remote6",
        stage::RELAY,
    ];
    let mut stages = [StageSpec::shared(stage::RELAY); DIMENSIONS];
    let mut at = 0;
    while at < DIMENSIONS {
        if dimensions < 3 || at + 1 < dimensions {
            stages[at] = StageSpec::shared(between[at]);
        }
        at += 1;
    }
    stages
}

/// The stages of a grid of one dimension, of two, and so on.
static STAGES: [[StageSpec; DIMENSIONS]; DIMENSIONS] = {
    let mut all = [named(1); DIMENSIONS];
    let mut at = 1;
    while at < DIMENSIONS {
        all[at] = named(at + 1);
        at += 1;
    }
    all
};

/// Lengths of a grid: given, or only how many there are. `4x2` is one of four by two, `3d` one of
/// three dimensions that suits the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// One for each dimension, then zeros; all zeros where they are to be chosen.
    sizes: [u32; DIMENSIONS],
    dimensions: u8,
}

impl Default for Grid {
    /// Two dimensions that suit the nodes.
    fn default() -> Self {
        Self::chosen(2)
    }
}

impl Grid {
    const fn chosen(dimensions: u8) -> Self {
        let sizes = [0; DIMENSIONS];
        Self { sizes, dimensions }
    }

    /// The stages of a route along it.
    pub(super) fn stages(self) -> &'static [StageSpec] {
        let dimensions = usize::from(self.dimensions);
        &STAGES[dimensions - 1][..dimensions]
    }

    /// Its lengths, the slowest dimension first; none while they are to be chosen.
    pub fn sizes(&self) -> &[u32] {
        match self.sizes[0] {
            0 => &[],
            _ => &self.sizes[..usize::from(self.dimensions)],
        }
    }

    /// The grid for a job: where lengths are to be chosen, the last dimension is a node, if there
    /// are several nodes and several ranks on one, and the others are as equal as they can be.
    ///
    /// # Errors
    /// It has fewer places than the job has ranks.
    pub fn for_job(self, topology: &Topology) -> Result<Self, String> {
        if !self.sizes().is_empty() {
            let places: u64 = self.sizes().iter().map(|&size| u64::from(size)).product();
            let ranks = topology.size();
            return match places < u64::from(ranks) {
                true => Err(format!("{self} has {places} places for {ranks} ranks")),
                false => Ok(self),
            };
        }
        let (nodes, most_local) = (topology.nodes(), topology.most_local());
        let dimensions = usize::from(self.dimensions);
        let has_nodes = nodes > 1 && most_local > 1 && dimensions > 1;
        // Nodes of different sizes are not rows of a grid.
        let mut left = match has_nodes {
            true => topology.size().div_ceil(most_local),
            false => topology.size(),
        };
        let mut chosen = self;
        let equal = dimensions - usize::from(has_nodes);
        for at in 0..equal {
            let size = root_above(left, (equal - at) as u32);
            chosen.sizes[at] = size;
            left = left.div_ceil(size);
        }
        if has_nodes {
            chosen.sizes[equal] = most_local;
        }
        Ok(chosen)
    }
}

/// The least number whose `power`-th power is at least `value`.
fn root_above(value: u32, power: u32) -> u32 {
    let reaches = |root: u32| {
        u64::from(root)
            .checked_pow(power)
            .is_none_or(|p| p >= value.into())
    };
    let guess = f64::from(value).powf(1.0 / f64::from(power)) as u32;
    let least = guess.saturating_sub(1).max(1);
    (least..).find(|&root| reaches(root)).unwrap_or(value)
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.sizes() else {
            return write!(f, "{}d", self.dimensions);
        };
        write!(f, "{first}")?;
        rest.iter().try_for_each(|size| write!(f, "x{size}"))
    }
}

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no grid: give lengths, as `4x4x8`, or dimensions, as `3d`; {DIMENSIONS} at most, and no \
                 more places than 4,294,967,295"
            )
        };
        let may_be = |dimensions: usize| (1..=DIMENSIONS).contains(&dimensions);
        if let Some(dimensions) = text.strip_suffix('d') {
            let dimensions = dimensions.parse().ok().filter(|&number| may_be(number));
            return Ok(Self::chosen(dimensions.ok_or_else(wrong)? as u8));
        }
        let sizes: Result<Vec<u32>, _> = text.split('x').map(str::parse).collect();
        let sizes = sizes.ok().filter(|sizes| may_be(sizes.len()));
        let sizes = sizes.ok_or_else(wrong)?;
        let places = sizes
            .iter()
            .try_fold(1u32, |all, &size| all.checked_mul(size));
        if places.is_none_or(|places| places == 0) {
            return Err(wrong());
        }
        let mut grid = Self::chosen(sizes.len() as u8);
        grid.sizes[..sizes.len()].copy_from_slice(&sizes);
        Ok(grid)
    }
}

/// One dimension, as one rank sees it.
#[derive(Debug, Clone)]
struct Dimension {
    size: u32,
    /// Ranks between two neighbours.
    stride: u32,
    /// This rank's coordinate.
    own: u32,
    /// Where a message goes that has to have this coordinate; short where holes are in a block that
    /// nobody stands in for, since there is no target in them.
    forward: Box<[EndpointId]>,
    /// The other ends of the edges: those of the node, and those beyond it; ascending.
    ends: [Box<[EndpointId]>; 2],
    /// The most that a rank of the job has of each.
    most: [u32; 2],
}

impl Dimension {
    fn new(topology: &Topology, size: u32, stride: u32) -> Self {
        let (me, ranks) = (topology.rank().0, topology.size());
        let own = me / stride % size;
        let base = me - own * stride;
        let block = size * stride;
        let there = Self::there(base, size, stride, ranks);
        let stand_in = |coordinate| Some(base.checked_sub(block)? + coordinate * stride);
        let forward = (0..size).map_while(|coordinate| match coordinate < there {
            true => Some(base + coordinate * stride),
            false => stand_in(coordinate),
        });
        let forward: Box<[EndpointId]> = forward.map(EndpointId).collect();
        // Those that this rank stands in for send it theirs.
        let behind = match me.checked_add(block) {
            Some(missing) if missing < ranks => 0,
            _ => {
                let above = base.saturating_add(block);
                Self::there(above, size, stride, ranks)
            }
        };
        let senders = (0..behind).map(|coordinate| EndpointId(base + block + coordinate * stride));
        let mut ends: Vec<EndpointId> = forward.iter().copied().chain(senders).collect();
        ends.retain(|&end| end != topology.endpoint());
        ends.sort_unstable();
        let (here, beyond): (Vec<_>, Vec<_>) =
            ends.into_iter().partition(|&end| topology.is_here(end));
        Self {
            size,
            stride,
            own,
            forward,
            ends: [here.into(), beyond.into()],
            most: Self::most(topology, size, stride),
        }
    }

    /// Ranks of a row that begins with the rank `base`.
    fn there(base: u32, size: u32, stride: u32, ranks: u32) -> u32 {
        ranks.saturating_sub(base).div_ceil(stride).min(size)
    }

    /// The most edges that a rank has inside its node and beyond it: exact where rows are inside
    /// nodes or go straight across them and no rank stands in for another, a bound elsewhere.
    fn most(topology: &Topology, size: u32, stride: u32) -> [u32; 2] {
        let (ranks, local) = (topology.size(), topology.most_local());
        let block = size * stride;
        // A rank that stands in has the senders' edges beside its own.
        let row = match ranks % block {
            0 => size - 1,
            left if ranks < block => left.div_ceil(stride).min(size) - 1,
            left => size - 1 + left.div_ceil(stride).min(size),
        };
        let is_even = topology.blocks().len() == 1;
        let inside = match is_even {
            true if local % block == 0 => row,
            true if stride.is_multiple_of(local) => 0,
            _ => row.min(local - 1),
        };
        let across = match is_even {
            true if local % block == 0 => 0,
            _ => row.min(ranks - topology.fewest_local()),
        };
        [inside, across]
    }

    fn coordinate(&self, rank: u32) -> u32 {
        rank / self.stride % self.size
    }

    fn ends(&self, reach: Reach) -> &[EndpointId] {
        &self.ends[reach as usize]
    }
}

/// The route along a grid.
#[derive(Debug, Clone)]
pub struct Mesh {
    topology: Topology,
    /// In the order of their stages: the last dimension of the grid first.
    dimensions: Box<[Dimension]>,
}

impl Mesh {
    /// The route as seen from this rank of `topology`, along a grid whose lengths are given.
    pub fn new(topology: Topology, grid: Grid) -> Self {
        let mut stride = 1;
        let sizes = grid.sizes().iter().rev();
        let dimensions = sizes.map(|&size| {
            let dimension = Dimension::new(&topology, size, stride);
            stride *= size;
            dimension
        });
        Self {
            dimensions: dimensions.collect(),
            topology,
        }
    }

    fn dimension(&self, stage: Stage) -> Option<&Dimension> {
        let place = usize::from(stage.0).checked_sub(1)?;
        self.dimensions.get(place)
    }

    /// The dimensions that come later than a stage, each with its stage.
    fn later(&self, at: Stage) -> impl Iterator<Item = (&Dimension, Stage)> {
        let first = usize::from(at.0).min(self.dimensions.len());
        self.dimensions[first..].iter().zip((at.0 + 1..).map(Stage))
    }

    /// The stage of the last hop from `source` to this rank; its own come over the first.
    fn last_stage(&self, source: Rank) -> Stage {
        let (me, ranks) = (self.topology.rank().0, self.topology.size());
        let (mut holder, mut last) = (source.0, Stage::FIRST);
        for (dimension, stage) in self.later(Stage::SOURCE) {
            let at = dimension.coordinate(holder);
            if at != dimension.own {
                let base = holder - at * dimension.stride;
                holder = base + dimension.own * dimension.stride;
                if holder >= ranks {
                    holder -= dimension.size * dimension.stride;
                }
                last = stage;
            }
        }
        debug_assert_eq!(holder, me);
        last
    }
}

impl Route for Mesh {
    #[inline]
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        let mut left = target.0;
        for (stage, dimension) in (1u8..).zip(&self.dimensions) {
            let coordinate = left % dimension.size;
            left /= dimension.size;
            if coordinate == dimension.own {
                continue;
            }
            // What has come over a later stage has these coordinates.
            if stage <= at.0 {
                return None;
            }
            let end = dimension.forward.get(coordinate as usize)?;
            return Some(Next::To(*end, Stage(stage)));
        }
        match at {
            Stage::SOURCE => Some(Next::To(target.into(), Stage::FIRST)),
            _ => Some(Next::Deliver),
        }
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        let dimension = self.dimension(stage);
        dimension.map_or(0, |dimension| dimension.ends(reach).len() as u32)
    }

    fn edge(&self, stage: Stage, reach: Reach, number: u32) -> EndpointId {
        let dimension = self.dimension(stage).expect("a stage with edges");
        dimension.ends(reach)[number as usize]
    }

    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        let dimension = self.dimension(stage);
        dimension.is_some_and(|d| d.ends.iter().any(|ends| ends.binary_search(&peer).is_ok()))
    }

    fn most_edges(&self, stage: Stage, reach: Reach) -> u32 {
        let dimension = self.dimension(stage);
        dimension.map_or(0, |dimension| dimension.most[reach as usize])
    }

    fn copies(&self, at: Stage, _: Rank) -> u32 {
        let rows = self.later(at).map(|(row, _)| row.forward.len() as u32 - 1);
        rows.sum()
    }

    fn copy(&self, at: Stage, source: Rank, number: u32) -> (EndpointId, Stage) {
        let mut left = number as usize;
        for (dimension, stage) in self.later(at) {
            let others = dimension.forward.len() - 1;
            if left < others {
                let place = left + usize::from(left >= dimension.own as usize);
                return (dimension.forward[place], stage);
            }
            left -= others;
        }
        panic!("copy {number} of a broadcast of rank {source} at stage {at}: there are fewer")
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        self.last_stage(source) == at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(text: &str) -> Grid {
        text.parse().unwrap()
    }

    #[test]
    fn lengths_that_nobody_gives_suit_the_nodes() {
        for (nodes, each, dimensions, sizes) in [
            (4, 8, "2d", "4x8"),
            (16, 4, "3d", "4x4x4"),
            (100, 64, "3d", "10x10x64"),
            (7, 2, "3d", "3x3x2"),
            (1, 7, "2d", "3x3"),
            (9, 1, "2d", "3x3"),
            (2, 3, "1d", "6"),
            (1, 1, "4d", "1x1x1x1"),
        ] {
            let topology = Topology::from_node_sizes(&vec![each; nodes], Rank(0)).unwrap();
            let chosen = grid(dimensions).for_job(&topology).unwrap();
            assert_eq!(chosen.to_string(), sizes);
        }
        // A node more begins a row of its own.
        let topology = Topology::from_node_sizes(&[4, 4, 2], Rank(0)).unwrap();
        assert_eq!(grid("2d").for_job(&topology).unwrap(), grid("3x4"));
    }

    #[test]
    fn grids_that_are_none_are_refused_with_the_reason() {
        for text in [
            "",
            "x",
            "4x",
            "0x4",
            "9d",
            "0d",
            "-1",
            "4x4x",
            "65536x65536",
            "1x1x1x1x1x1x1x1x1",
        ] {
            let refused = text.parse::<Grid>().unwrap_err();
            assert!(refused.contains("`4x4x8`"), "{refused}");
        }
        let topology = Topology::from_node_sizes(&[3, 2], Rank(0)).unwrap();
        let refused = grid("2x2").for_job(&topology).unwrap_err();
        assert_eq!(refused, "2x2 has 4 places for 5 ranks");
    }

    /// The way of a message: the last dimension first, one hop for each coordinate that differs.
    #[test]
    fn coordinates_are_corrected_from_the_last_dimension_on() {
        let sizes = [64];
        let at = |rank| {
            Mesh::new(
                Topology::from_node_sizes(&sizes, Rank(rank)).unwrap(),
                grid("4x4x4"),
            )
        };
        let way = [(0, 0), (3, 1), (11, 2), (59, 3)];
        for (step, next) in way.iter().zip(&way[1..]) {
            let next = Next::To(EndpointId(next.0), Stage(next.1));
            assert_eq!(at(step.0).next(Stage(step.1), Rank(59)), Some(next));
        }
        assert_eq!(at(59).next(Stage(3), Rank(59)), Some(Next::Deliver));
        assert_eq!(
            at(11).next(Stage(3), Rank(59)),
            None,
            "no way leads it here at that stage"
        );
        let links: u32 = (1..4)
            .map(|stage| at(5).edges(Stage(stage), Reach::Node))
            .sum();
        assert_eq!(links, 9);
    }

    #[test]
    fn a_missing_place_has_a_stand_in() {
        // Rows of four, the second with three ranks.
        let at = |rank| {
            Mesh::new(
                Topology::from_node_sizes(&[7], Rank(rank)).unwrap(),
                grid("2x4"),
            )
        };
        assert_eq!(
            at(6).next(Stage::SOURCE, Rank(3)),
            Some(Next::To(EndpointId(3), Stage(1)))
        );
        assert_eq!(
            at(6).next(Stage::SOURCE, Rank(1)),
            Some(Next::To(EndpointId(5), Stage(1)))
        );
        assert_eq!(
            at(3).next(Stage::SOURCE, Rank(6)),
            Some(Next::To(EndpointId(2), Stage(1)))
        );
        assert!(
            at(3).has_edge(Stage(1), EndpointId(6)),
            "it hears those that it stands in for"
        );
    }
}
