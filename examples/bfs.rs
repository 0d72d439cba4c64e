//! A search by breadth through a graph: how many edges away is each vertex?
//! `trihop run -n 4 --nodes 2 -- target/release/examples/bfs [EDGES [FIRST]]`.
//!
//! EDGES is a file with an edge a line, two numbers, as collections of graphs have them (SNAP,
//! Konect, networkrepository); lines that begin with # or % say something else. Edges go both ways.
//! FIRST is the vertex to begin at, otherwise the smallest. No rank has the whole graph before the
//! end, when every rank compares its vertices with a sequential run.

use std::collections::HashMap;

use trihop::{Job, Options, Rank, Reduce, State};

#[path = "text/mod.rs"]
mod text;
use text::Text;

/// Edges that go from a vertex to another one, and for these the distance that is told.
type Pair = [u32; 2];

/// What a vertex knows: its neighbours, and how far it is, once that is known.
#[derive(Default)]
struct Vertex {
    neighbours: Vec<u32>,
    distance: Option<u32>,
}

/// The vertices of a rank: vertex v is at rank v mod size.
#[derive(Default)]
struct Share {
    vertices: HashMap<u32, Vertex>,
    /// What a vertex gets that is reached in this step.
    distance: u32,
    /// Vertices that were reached in this step.
    reached: Vec<u32>,
}

impl Share {
    fn reach(&mut self, vertex: u32) {
        let known = self.vertices.get_mut(&vertex);
        if let Some(known) = known.filter(|known| known.distance.is_none()) {
            known.distance = Some(self.distance);
            self.reached.push(vertex);
        }
    }
}

/// A graph in which few vertices have many edges, and some have none of the others.
fn made() -> String {
    let mut state = 1u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut vertex = move || (0..12).fold(0, |number, _| 2 * number + u64::from(random() % 10 > 6));
    let mut text = "# made\n".to_owned();
    for _ in 0..20_000 {
        text += &format!("{}\t{}\n", vertex(), vertex());
    }
    text
}

/// The edges of some lines.
fn edges(lines: &[u8]) -> Result<Vec<Pair>, String> {
    let lines = std::str::from_utf8(lines).map_err(|e| format!("no text: {e}"))?;
    let is_edge = |line: &&str| !line.trim().is_empty() && !line.starts_with(['#', '%']);
    let edge = |line: &str| {
        let mut numbers = line
            .split([' ', '\t', ',', '\r'])
            .filter(|word| !word.is_empty());
        let mut number = || numbers.next()?.parse().ok();
        number()
            .zip(number())
            .map(|(a, b)| [a, b])
            .ok_or_else(|| format!("`{line}`: two numbers below 2^32 are an edge"))
    };
    lines.lines().filter(is_edge).map(edge).collect()
}

/// The sequential run.
fn distances(edges: &[Pair], first: u32) -> HashMap<u32, Option<u32>> {
    let mut neighbours = HashMap::<u32, Vec<u32>>::new();
    for &[a, b] in edges {
        neighbours.entry(a).or_default().push(b);
        neighbours.entry(b).or_default().push(a);
    }
    let mut found: HashMap<u32, Option<u32>> = neighbours.keys().map(|&v| (v, None)).collect();
    let mut queue = std::collections::VecDeque::from([(first, 0)]);
    while let Some((vertex, distance)) = queue.pop_front() {
        if let Some(unknown @ None) = found.get_mut(&vertex) {
            *unknown = Some(distance);
            queue.extend(
                neighbours[&vertex]
                    .iter()
                    .map(|&other| (other, distance + 1)),
            );
        }
    }
    found
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = Text::named_or("a made graph", made);
    let first = std::env::args()
        .nth(2)
        .map(|text| {
            text.parse::<u32>()
                .map_err(|_| format!("{text} is not a number"))
        })
        .transpose()?;
    let share = State::new(Share::default());

    let job = Job::start(Options::from_env()?)?;
    let (rank, size) = (job.rank(), job.size());
    let owner = |vertex: u32| Rank(vertex % size);
    let graph = job
        .stream::<Pair>("edges")
        .handler_with(&share, |share, _source, edges, _outbox| {
            for &[from, to] in edges {
                share.vertices.entry(from).or_default().neighbours.push(to);
            }
        })
        .open()?;
    let search = job
        .stream::<u32>("search")
        .handler_with(&share, |share, _source, vertices, _outbox| {
            vertices.iter().for_each(|&vertex| share.reach(vertex));
        })
        .open()?;
    for [a, b] in edges(&text.part(rank.0, size)?)? {
        graph.push(owner(a), [a, b])?;
        graph.push(owner(b), [b, a])?;
    }
    graph.round()?;

    let mut smallest =
        [share.with(|share| share.vertices.keys().min().map_or(u64::MAX, |&v| v.into()))];
    job.allreduce(&mut smallest, Reduce::Min)?;
    let first = first.unwrap_or(smallest[0] as u32);
    if rank == owner(first) {
        share.with(|share| share.reach(first));
    }
    let mut steps = 0;
    loop {
        // What others send in the next step may arrive as soon as this rank calls: so the share is
        // ready for it before.
        let reached = share.with(|share| {
            share.distance += 1;
            std::mem::take(&mut share.reached)
        });
        let mut all = [reached.len() as u64];
        job.allreduce(&mut all, Reduce::Sum)?;
        if all == [0] {
            break;
        }
        steps += 1;
        let neighbours = share.with(|share| {
            let neighbours = reached
                .iter()
                .map(|vertex| &share.vertices[vertex].neighbours);
            neighbours.flatten().copied().collect::<Vec<u32>>()
        });
        search.extend(neighbours.into_iter().map(|vertex| (owner(vertex), vertex)))?;
        search.round()?;
    }

    let expected = distances(&edges(&text.whole()?)?, first);
    let mut totals = share.with(|share| {
        let own = share.vertices.iter();
        let wrong = own
            .clone()
            .filter(|(vertex, known)| expected.get(vertex) != Some(&known.distance));
        let missing = expected
            .keys()
            .filter(|&&v| owner(v) == rank && !share.vertices.contains_key(&v));
        [
            own.clone().count(),
            own.clone().map(|(_, vertex)| vertex.neighbours.len()).sum(),
            own.filter(|(_, vertex)| vertex.distance.is_some()).count(),
            wrong.count() + missing.count(),
        ]
        .map(|count| count as u64)
    });
    job.allreduce(&mut totals, Reduce::Sum)?;
    let [vertices, ends, found, wrong] = totals;
    if rank == Rank(0) {
        println!(
            "{}: {size} ranks: {vertices} vertices, {} edges; from {first} {found} are reached in \
             {steps} steps, {wrong} wrong",
            text.name(),
            ends / 2
        );
    }
    graph.shutdown()?;
    search.shutdown()?;
    job.shutdown()?;
    match wrong {
        0 => Ok(()),
        _ => Err("every vertex has to be as far as a sequential run finds".into()),
    }
}
