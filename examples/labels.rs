//! Label propagation: every vertex of a graph learns the smallest one that it is connected with. A
//! handler that hears of a smaller label tells all neighbours on its own stream: `trihop run -n 4
//! --nodes 2 -- target/release/examples/labels [VERTICES]`.

use trihop::{Error, Job, Options, Rank, Reduce, State};

/// Edges that are made for each vertex.
const DEGREE: u32 = 8;

/// Vertices of different parts have no path between them.
const PARTS: u32 = 4;

/// A label on its way: vertex and label.
type News = [u32; 2];

/// The neighbours of all vertices. Every rank makes the whole graph, so that the example stays
/// short.
fn graph(vertices: u32) -> Vec<Vec<u32>> {
    let mut neighbours = vec![Vec::new(); vertices as usize];
    for vertex in 0..vertices {
        let part = vertex % PARTS;
        let in_part = (vertices - part).div_ceil(PARTS);
        for edge in 0..DEGREE {
            let word = (u64::from(vertex) * u64::from(DEGREE) + u64::from(edge) + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let other = part + PARTS * ((word >> 32) as u32 % in_part);
            neighbours[vertex as usize].push(other);
            neighbours[other as usize].push(vertex);
        }
    }
    neighbours
}

/// The sequential run: from each vertex that has no label yet, smallest first, to all that it
/// reaches.
fn expected_labels(neighbours: &[Vec<u32>]) -> Vec<u32> {
    let mut labels = vec![u32::MAX; neighbours.len()];
    for smallest in 0..neighbours.len() as u32 {
        let mut reached = vec![smallest];
        while let Some(vertex) = reached.pop() {
            if labels[vertex as usize] == u32::MAX {
                labels[vertex as usize] = smallest;
                reached.extend(&neighbours[vertex as usize]);
            }
        }
    }
    labels
}

/// What a rank knows, which its handler changes. Vertex v is at rank v mod size.
struct Share {
    neighbours: Vec<Vec<u32>>,
    labels: Vec<u32>,
    sent: u64,
    heard: u64,
    wrong: u64,
    /// Why a send of the handler failed.
    failure: Option<Error>,
}

/// A label for all neighbours of a vertex.
fn news(told: &[u32], size: u32, label: u32) -> impl Iterator<Item = (Rank, News)> + '_ {
    told.iter()
        .map(move |&other| (Rank(other % size), [other, label]))
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let vertices: u32 = std::env::args().nth(1).map_or(Ok(20_000), |text| {
        text.parse().map_err(|_| format!("{text} is not a number"))
    })?;
    if vertices < PARTS {
        return Err(format!("at least {PARTS} vertices, not {vertices}").into());
    }
    let neighbours = graph(vertices);
    let share = State::new(Share {
        neighbours: neighbours.clone(),
        labels: (0..vertices).collect(),
        sent: 0,
        heard: 0,
        wrong: 0,
        failure: None,
    });

    let job = Job::start(Options::from_env()?)?;
    let (rank, size) = (job.rank(), job.size());
    let stream = job
        .stream::<News>("labels")
        .handler_with(&share, move |share, _, items, outbox| {
            share.heard += items.len() as u64;
            for &[vertex, label] in items {
                let known = share.labels.get_mut(vertex as usize);
                let Some(known) = known.filter(|_| vertex % size == rank.0) else {
                    share.wrong += 1;
                    continue;
                };
                if label < *known {
                    *known = label;
                    // On the same stream: in a handler a send never waits.
                    let told = &share.neighbours[vertex as usize];
                    share.sent += told.len() as u64;
                    if let Err(error) = outbox.extend(news(told, size, label)) {
                        share.failure.get_or_insert(error);
                    }
                }
            }
        })
        .open()?;
    let mut sent_at_first = 0;
    for vertex in (rank.0..vertices).step_by(size as usize) {
        let told = &neighbours[vertex as usize];
        sent_at_first += told.len() as u64;
        stream.extend(news(told, size, vertex))?;
    }
    stream.fence()?;
    stream.shutdown()?;
    let Ok(share) = share.into_inner() else {
        return Err("the handler is gone with its stream, and leaves the state".into());
    };
    if let Some(error) = share.failure {
        return Err(error.into());
    }
    let expected = expected_labels(&neighbours);
    let own = (rank.0..vertices).step_by(size as usize);
    let unlike = own.filter(|&v| share.labels[v as usize] != expected[v as usize]);
    let wrong = share.wrong + unlike.count() as u64;
    let mut totals = [sent_at_first + share.sent, share.heard, wrong];
    job.allreduce(&mut totals, Reduce::Sum)?;
    if rank == Rank(0) {
        let [sent, heard, wrong] = totals;
        println!(
            "{vertices} vertices on {size} ranks: {sent} labels sent, {heard} heard, {wrong} wrong"
        );
    }
    job.shutdown()?;
    if totals[0] != totals[1] || totals[2] != 0 {
        return Err(
            "every label sent has to be heard, and every vertex to have the right one".into(),
        );
    }
    Ok(())
}
