//! Grids: lengths, and the ways along them that meshes of ranks and of nodes share.
//!
//! Places are numbered along the grid, the last dimension fastest. A way corrects one coordinate
//! after the other, the last one first.
//!
//! # Holes
//! A grid may have more places than there are members; those missing are the last ones. Let the
//! *block* of a dimension be what its coordinate and all later ones span: `L` places. A hop from
//! member `m` along the dimension leads to a place `v` of the same block, and `v` can only be missing
//! when `m` is in the last block. Then `v - L` stands in for it, the same place of the block before,
//! which is complete. It has the coordinates that were corrected so far, so the way goes on from
//! there with the dimensions that are left. No way gets longer.

use std::fmt;
use std::str::FromStr;

use super::stage;
use trihop_transport::topology::Topology;

/// Most dimensions of a grid: those of a hypercube of a million ranks.
pub(super) const DIMENSIONS: usize = 20;

/// Names of the stages between ranks, or nodes, along one dimension after the other.
#[rustfmt::skip]
pub(super) const BETWEEN: [&str; DIMENSIONS] = [
    stage::REMOTE, "remote2", "remote3", "remote4", "remote5", "remote6", "remote7", "remote8",
    "remote9", "remote10", "remote11", "remote12", "remote13", "remote14", "remote15", "remote16",
    "remote17", "remote18", "remote19", "remote20",
];

/// Lengths of a grid: given, or only how many there are. `4x2` is one of four by two, `3d` one of
/// three dimensions whose lengths are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lengths {
    /// One for each dimension, then zeros; all zeros where they are to be chosen.
    sizes: [u32; DIMENSIONS],
    dimensions: u8,
}

impl Lengths {
    const fn chosen(dimensions: u8) -> Self {
        let sizes = [0; DIMENSIONS];
        Self { sizes, dimensions }
    }

    fn sizes(&self) -> &[u32] {
        match self.sizes[0] {
            0 => &[],
            _ => &self.sizes[..usize::from(self.dimensions)],
        }
    }

    /// Lengths as equal as they can be for so many members, but for those of the last dimension
    /// where these are given.
    fn equal(self, members: u32, last: Option<u32>) -> Self {
        let mut chosen = self;
        let dimensions = usize::from(self.dimensions);
        let equal = dimensions - usize::from(last.is_some());
        let mut left = members.div_ceil(last.unwrap_or(1));
        for at in 0..equal {
            let size = root_above(left, (equal - at) as u32);
            chosen.sizes[at] = size;
            left = left.div_ceil(size);
        }
        if let Some(last) = last {
            chosen.sizes[equal] = last;
        }
        chosen
    }

    fn hold(self, members: u32, what: &str) -> Result<Self, String> {
        let places: u64 = self.sizes().iter().map(|&size| u64::from(size)).product();
        match places < u64::from(members) {
            true => Err(format!("{self} has {places} places for {members} {what}")),
            false => Ok(self),
        }
    }
}

/// The least number whose `power`-th power is at least `value`.
fn root_above(value: u32, power: u32) -> u32 {
    let reaches = |root: u32| {
        let product = u64::from(root).checked_pow(power);
        product.is_none_or(|product| product >= value.into())
    };
    let guess = f64::from(value).powf(1.0 / f64::from(power)) as u32;
    let least = guess.saturating_sub(1).max(1);
    (least..).find(|&root| reaches(root)).unwrap_or(value)
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.sizes() else {
            return write!(f, "{}d", self.dimensions);
        };
        write!(f, "{first}")?;
        rest.iter().try_for_each(|size| write!(f, "x{size}"))
    }
}

impl FromStr for Lengths {
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
        let mut lengths = Self::chosen(sizes.len() as u8);
        lengths.sizes[..sizes.len()].copy_from_slice(&sizes);
        Ok(lengths)
    }
}

/// Makes a grid of a kind of its own: what it is of, and who chooses its lengths.
macro_rules! grid {
    ($(#[$about:meta])* $name:ident, $dimensions:literal) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(Lengths);

        impl Default for $name {
            fn default() -> Self {
                Self(Lengths::chosen($dimensions))
            }
        }

        impl $name {
            /// How many dimensions it has.
            pub fn dimensions(&self) -> usize {
                usize::from(self.0.dimensions)
            }

            /// Its lengths, the slowest dimension first; none while they are to be chosen.
            pub fn sizes(&self) -> &[u32] {
                self.0.sizes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                text.parse().map(Self)
            }
        }
    };
}

grid!(
    /// A grid of ranks.
    Grid, 2
);

grid!(
    /// A grid of nodes.
    NodeGrid, 2
);

impl Grid {
    /// The grid for a job: where lengths are to be chosen, the last dimension is a node, if there
    /// are several nodes and several ranks on one, and the others are as equal as they can be.
    ///
    /// # Errors
    /// It has fewer places than the job has ranks.
    pub fn for_job(self, topology: &Topology) -> Result<Self, String> {
        if !self.sizes().is_empty() {
            return self.0.hold(topology.size(), "ranks").map(Self);
        }
        // Nodes of different sizes are not rows of a grid.
        let node = topology.most_local();
        let has_nodes = topology.nodes() > 1 && node > 1 && self.dimensions() > 1;
        let last = has_nodes.then_some(node);
        Ok(Self(self.0.equal(topology.size(), last)))
    }
}

impl NodeGrid {
    /// The grid for a job: where lengths are to be chosen, they are as equal as they can be.
    ///
    /// # Errors
    /// It has fewer places than the job has nodes.
    pub fn for_job(self, topology: &Topology) -> Result<Self, String> {
        match self.sizes() {
            [] => Ok(Self(self.0.equal(topology.nodes(), None))),
            _ => self.0.hold(topology.nodes(), "nodes").map(Self),
        }
    }
}

/// One dimension of a grid, as one member sees it.
#[derive(Debug, Clone)]
pub struct Row {
    size: u32,
    /// Places between two neighbours.
    stride: u32,
    /// This member's coordinate.
    own: u32,
    /// Where a way goes that has to have this coordinate; short where holes are in a block that
    /// nobody stands in for, since no way ends in them.
    forward: Box<[u32]>,
    /// All that share an edge with this member, ascending: those it sends to, and those that it
    /// stands in for somebody to.
    pub neighbours: Box<[u32]>,
    /// The most that any member has.
    pub most: u32,
}

impl Row {
    fn new(me: u32, members: u32, size: u32, stride: u32) -> Self {
        let own = me / stride % size;
        let base = me - own * stride;
        let block = size * stride;
        let there = |base: u32| members.saturating_sub(base).div_ceil(stride).min(size);
        let stand_in = |coordinate| Some(base.checked_sub(block)? + coordinate * stride);
        let forward = (0..size).map_while(|coordinate| match coordinate < there(base) {
            true => Some(base + coordinate * stride),
            false => stand_in(coordinate),
        });
        let forward: Box<[u32]> = forward.collect();
        let senders = match me.checked_add(block) {
            Some(above) if above >= members => there(base + block),
            _ => 0,
        };
        let senders = (0..senders).map(|coordinate| base + block + coordinate * stride);
        let mut neighbours: Vec<u32> = forward.iter().copied().chain(senders).collect();
        neighbours.retain(|&member| member != me);
        neighbours.sort_unstable();
        // A member that stands in has the senders' edges beside its own.
        let left = (members % block).div_ceil(stride).min(size);
        let most = match members {
            _ if members < block => left - 1,
            _ => size - 1 + left,
        };
        Self {
            size,
            stride,
            own,
            forward,
            neighbours: neighbours.into(),
            most,
        }
    }

    /// The rows of a member of a grid with these lengths, the last dimension first.
    pub fn all(sizes: &[u32], me: u32, members: u32) -> Box<[Self]> {
        let mut stride = 1;
        let row = |&size: &u32| {
            let row = Self::new(me, members, size, stride);
            stride *= size;
            row
        };
        sizes.iter().rev().map(row).collect()
    }

    /// Places of this dimension and all later ones together.
    pub fn block(&self) -> u32 {
        self.size * self.stride
    }

    /// Places between two neighbours.
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// Its length.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether it is full for each member: then nobody stands in for another.
    pub fn is_full(&self, members: u32) -> bool {
        members.is_multiple_of(self.block())
    }

    /// A member's coordinate.
    #[inline]
    pub fn coordinate(&self, member: u32) -> u32 {
        member / self.stride % self.size
    }

    /// How many it sends to.
    pub fn others(&self) -> u32 {
        self.forward.len() as u32 - 1
    }

    /// Each of them.
    pub fn other(&self, number: u32) -> u32 {
        self.forward[number as usize + usize::from(number >= self.own)]
    }

    /// Those that send to it, ascending: its neighbours but those that stand in for somebody.
    pub fn heard(&self) -> impl Iterator<Item = u32> {
        let me = self.forward[self.own as usize];
        let block = me - me % self.block();
        let neighbours = self.neighbours.iter().copied();
        neighbours.filter(move |&member| member >= block)
    }
}

/// Where a way goes from a member of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It is there.
    Here,
    /// To this member, along the row with this number.
    To(u32, usize),
}

/// The next step from this member, on a way whose first `done` dimensions are corrected; `None`
/// where they are not, or where no way leads.
#[inline]
pub(super) fn step(rows: &[Row], done: usize, target: u32) -> Option<Step> {
    let mut left = target;
    for (number, row) in rows.iter().enumerate() {
        let coordinate = left % row.size;
        left /= row.size;
        if coordinate == row.own {
            continue;
        }
        let next = row.forward.get(coordinate as usize)?;
        return (number >= done).then_some(Step::To(*next, number));
    }
    Some(Step::Here)
}

/// The steps of the way from `source` to this member, one of so many: each from whom, to whom, and
/// along which row.
pub(super) fn steps(
    rows: &[Row],
    members: u32,
    source: u32,
) -> impl Iterator<Item = (u32, u32, usize)> {
    let mut holder = source;
    rows.iter().enumerate().filter_map(move |(number, row)| {
        let coordinate = row.coordinate(holder);
        if coordinate == row.own {
            return None;
        }
        let from = holder;
        holder = holder - coordinate * row.stride + row.own * row.stride;
        if holder >= members {
            holder -= row.block();
        }
        Some((from, holder, number))
    })
}

#[cfg(test)]
mod tests {
    use trihop_transport::topology::Rank;

    use super::*;

    #[test]
    fn lengths_that_nobody_gives_suit_the_job() {
        for (nodes, each, dimensions, ranks, of_nodes) in [
            (4, 8, "2d", "4x8", "2x2"),
            (16, 4, "3d", "4x4x4", "3x3x2"),
            (100, 64, "3d", "10x10x64", "5x5x4"),
            (7, 2, "3d", "3x3x2", "2x2x2"),
            (1, 7, "2d", "3x3", "1x1"),
            (9, 1, "2d", "3x3", "3x3"),
            (2, 3, "1d", "6", "2"),
            (1, 1, "4d", "1x1x1x1", "1x1x1x1"),
        ] {
            let topology = Topology::from_node_sizes(&vec![each; nodes], Rank(0)).unwrap();
            let grid: Grid = dimensions.parse().unwrap();
            assert_eq!(grid.for_job(&topology).unwrap().to_string(), ranks);
            let grid: NodeGrid = dimensions.parse().unwrap();
            assert_eq!(grid.for_job(&topology).unwrap().to_string(), of_nodes);
        }
        // A smaller node does not fill its row.
        let topology = Topology::from_node_sizes(&[4, 4, 2], Rank(0)).unwrap();
        let grid = Grid::default().for_job(&topology).unwrap();
        assert_eq!(grid.to_string(), "3x4");
    }

    #[test]
    fn grids_that_are_none_are_refused_with_the_reason() {
        for text in [
            "",
            "x",
            "4x",
            "0x4",
            "21d",
            "0d",
            "-1",
            "4x4x",
            "65536x65536",
            "1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1",
        ] {
            let refused = text.parse::<Grid>().unwrap_err();
            assert!(refused.contains("`4x4x8`"), "{refused}");
        }
        let topology = Topology::from_node_sizes(&[3, 2], Rank(0)).unwrap();
        let grid: Grid = "2x2".parse().unwrap();
        let refused = grid.for_job(&topology).unwrap_err();
        assert_eq!(refused, "2x2 has 4 places for 5 ranks");
        let grid: NodeGrid = "1x1".parse().unwrap();
        let refused = grid.for_job(&topology).unwrap_err();
        assert_eq!(refused, "1x1 has 1 places for 2 nodes");
    }

    /// Followed from every member to every other: one step for each coordinate that differs, along
    /// rows in order, and the steps are known at the end.
    #[test]
    fn every_way_ends_with_holes_and_without() {
        for sizes in [
            &[7][..],
            &[3, 4],
            &[4, 3],
            &[2, 3, 4],
            &[2, 2, 2, 2],
            &[1, 5, 1],
        ] {
            let places: u32 = sizes.iter().product();
            for members in 1..=places {
                let all: Vec<_> = (0..members)
                    .map(|member| Row::all(sizes, member, members))
                    .collect();
                let rows = &all;
                for (source, target) in (0..members).flat_map(|s| (0..members).map(move |t| (s, t)))
                {
                    let (mut here, mut done, mut taken) = (source, 0, Vec::new());
                    while let Step::To(next, row) =
                        step(&rows[here as usize], done, target).expect("a way")
                    {
                        assert!(row >= done && next < members && next != here);
                        let of_row = &rows[here as usize][row];
                        assert!(of_row.neighbours.contains(&next));
                        let back = &rows[next as usize][row];
                        assert!(back.neighbours.contains(&here), "{next} knows {here}");
                        assert!(back.heard().any(|from| from == here), "{next} hears {here}");
                        taken.push((here, next, row));
                        (here, done) = (next, row + 1);
                    }
                    assert_eq!(here, target);
                    let known: Vec<_> = steps(&rows[target as usize], members, source).collect();
                    assert_eq!(known, taken);
                }
                for row in 0..sizes.len() {
                    // Who hears somebody is one of those that this one sends to.
                    for (me, rows) in (0..).zip(rows) {
                        for from in rows[row].heard() {
                            let there = &all[from as usize][row];
                            assert!((0..there.others()).any(|number| there.other(number) == me));
                        }
                    }
                    let most = rows.iter().map(|rows| rows[row].neighbours.len()).max();
                    assert!(most <= Some(rows[0][row].most as usize));
                }
            }
        }
    }
}
