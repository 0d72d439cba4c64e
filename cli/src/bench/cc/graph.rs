//! A seeded R-MAT graph: the part of it that a rank has, and its components by a sequential run.

use crate::bench::random::{Random, Rmat};

/// Edges drawn for each vertex.
const EDGES_PER_VERTEX: u64 = 16;

/// Every rank draws the same graph.
const SEED: u64 = 0x6363;

/// Rank of a neighbour, and its number there.
pub(super) type Neighbour = (u32, u32);

/// A rank's vertices: number v is at rank v mod ranks, as its vertex v / ranks.
pub(super) struct Part {
    all: u64,
    rank: u32,
    ranks: u32,
    /// Where the neighbours of a vertex begin in `neighbours`; one more at the end.
    begins: Vec<usize>,
    neighbours: Vec<Neighbour>,
    /// Smallest vertex of the component of each vertex.
    expected: Vec<u32>,
    components: u64,
}

/// The edges of a graph of so many vertices, the same ones each time.
fn edges(vertices: u64) -> impl Iterator<Item = (u32, u32)> {
    let (mut random, mut rmat) = (Random(SEED), Rmat::new(vertices));
    (0..vertices * EDGES_PER_VERTEX)
        .map(move |_| (rmat.draw(&mut random) as u32, rmat.draw(&mut random) as u32))
}

impl Part {
    /// Draws the whole graph, at most 2^32 vertices of it, and keeps what `rank` has of it.
    pub fn of(vertices: u64, rank: u32, ranks: u32) -> Self {
        let own = vertices
            .saturating_sub(u64::from(rank))
            .div_ceil(u64::from(ranks));
        let is_own = |vertex: u32| vertex % ranks == rank;
        let mut begins = vec![0; own as usize + 1];
        let mut components = Components::new(vertices);
        for (one, other) in edges(vertices) {
            components.join(one, other);
            for vertex in [one, other].into_iter().filter(|&vertex| is_own(vertex)) {
                begins[(vertex / ranks) as usize + 1] += 1;
            }
        }
        for place in 0..own as usize {
            begins[place + 1] += begins[place];
        }
        let mut filled = begins.clone();
        let mut neighbours = vec![(0, 0); begins[own as usize]];
        for (one, other) in edges(vertices) {
            for (vertex, neighbour) in [(one, other), (other, one)] {
                if is_own(vertex) {
                    let at = &mut filled[(vertex / ranks) as usize];
                    neighbours[*at] = (neighbour % ranks, neighbour / ranks);
                    *at += 1;
                }
            }
        }
        let mut part = Self {
            all: vertices,
            rank,
            ranks,
            begins,
            neighbours,
            expected: Vec::new(),
            components: components.count,
        };
        part.expected = part
            .numbers()
            .map(|vertex| components.smallest(vertex))
            .collect();
        part
    }

    /// Vertices of the whole graph.
    pub fn all(&self) -> u64 {
        self.all
    }

    /// Edges of the whole graph; some may be drawn twice, or lead back.
    pub fn edges(&self) -> u64 {
        self.all * EDGES_PER_VERTEX
    }

    /// Components of the whole graph.
    pub fn components(&self) -> u64 {
        self.components
    }

    /// Vertices of this rank.
    pub fn vertices(&self) -> usize {
        self.begins.len() - 1
    }

    /// Their numbers.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, ranks) = (self.rank, self.ranks);
        // Below the number of all vertices, which have 32 bits.
        (0..self.vertices() as u64).map(move |place| (place * u64::from(ranks)) as u32 + rank)
    }

    /// The neighbours of a vertex of this rank, wherever they are.
    pub fn neighbours(&self, place: usize) -> &[Neighbour] {
        &self.neighbours[self.begins[place]..self.begins[place + 1]]
    }

    /// What the labels of this rank's vertices end as.
    pub fn expected(&self) -> &[u32] {
        &self.expected
    }
}

/// Sets of vertices, each under its smallest one.
struct Components {
    parents: Vec<u32>,
    count: u64,
}

impl Components {
    fn new(vertices: u64) -> Self {
        Self {
            parents: (0..vertices).map(|vertex| vertex as u32).collect(),
            count: vertices,
        }
    }

    /// Smallest vertex of the component of `vertex`.
    fn smallest(&mut self, mut vertex: u32) -> u32 {
        while self.parents[vertex as usize] != vertex {
            let parent = self.parents[vertex as usize];
            // Each search halves the way of the next one.
            self.parents[vertex as usize] = self.parents[parent as usize];
            vertex = self.parents[vertex as usize];
        }
        vertex
    }

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.smallest(one), self.smallest(other));
        if one != other {
            self.parents[one.max(other) as usize] = one.min(other);
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_parts_of_all_ranks_are_the_graph_whatever_their_number() {
        let vertices = 100;
        let mut drawn: Vec<(u32, u32)> = edges(vertices)
            .flat_map(|(one, other)| [(one, other), (other, one)])
            .collect();
        drawn.sort_unstable();
        for ranks in [1, 2, 3, 7, 150] {
            let mut kept = Vec::new();
            for rank in 0..ranks {
                let part = Part::of(vertices, rank, ranks);
                assert_eq!(part.expected().len(), part.vertices());
                for (place, vertex) in part.numbers().enumerate() {
                    let neighbours = part.neighbours(place).iter();
                    kept.extend(neighbours.map(|&(rank, place)| (vertex, place * ranks + rank)));
                }
            }
            kept.sort_unstable();
            assert_eq!(kept, drawn, "{ranks} ranks");
        }
    }

    #[test]
    fn a_label_is_the_smallest_vertex_that_can_be_reached() {
        let part = Part::of(200, 0, 1);
        let mut found = BTreeSet::new();
        for start in part.numbers() {
            let (mut reached, mut next) = (BTreeSet::from([start]), vec![start]);
            while let Some(vertex) = next.pop() {
                let neighbours = part.neighbours(vertex as usize).iter();
                next.extend(
                    neighbours
                        .map(|&(_, place)| place)
                        .filter(|&v| reached.insert(v)),
                );
            }
            let smallest = reached.first().copied();
            assert_eq!(
                smallest,
                Some(part.expected()[start as usize]),
                "vertex {start}"
            );
            found.extend(smallest);
        }
        assert_eq!(found.len() as u64, part.components());
        assert!(found.len() > 1, "a graph of one component shows little");
    }
}
