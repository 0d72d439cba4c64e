//! A route of the program's own: a hypercube whose bits are corrected from the highest on, so that
//! the hops between nodes come first. Every rank sends numbers to every other and broadcasts its
//! own: `trihop run -n 8 --nodes 2 -- target/release/examples/own_route [ROUNDS]`, for 1, 2, 4, 8...
//! ranks.

use trihop::route::{EndpointId, Next, Reach, Route, Stage, StageSpec, register};
use trihop::{BroadcastTo, Job, Options, Rank, Reduce, State, StreamOptions, Topology};

/// Its stages: one for each bit, the highest first. A job of fewer ranks uses the last of them.
const STAGES: [StageSpec; 6] = [
    StageSpec::shared("origin"),
    StageSpec::shared("bit4"),
    StageSpec::shared("bit3"),
    StageSpec::shared("bit2"),
    StageSpec::shared("bit1"),
    StageSpec::shared("bit0"),
];

/// A hypercube, as one of its ranks sees it.
struct Halving {
    topology: Topology,
}

/// The bit that the edges of a stage correct.
fn bit_of(stage: Stage) -> u32 {
    1 << (STAGES.len() - stage.index() - 1)
}

impl Halving {
    /// The stages from here on whose bits the job has.
    fn later(&self, at: Stage) -> impl Iterator<Item = Stage> {
        let stages = at.number() + 1..=STAGES.len() as u8;
        let size = self.topology.size();
        let has_bit = move |stage: &Stage| bit_of(*stage) < size;
        stages.map(Stage::numbered).filter(has_bit)
    }

    fn peer(&self, stage: Stage) -> EndpointId {
        Rank(self.topology.rank().0 ^ bit_of(stage)).into()
    }

    fn has(&self, stage: Stage, reach: Reach) -> bool {
        // A job of another number of ranks is refused when the stream is opened.
        let peer = self.peer(stage);
        self.topology.has_endpoint(peer) && self.topology.is_here(peer) == (reach == Reach::Node)
    }
}

impl Route for Halving {
    fn next(&self, at: Stage, target: Rank) -> Option<Next> {
        let differ = self.topology.rank().0 ^ target.0;
        let next = self.later(at).find(|&stage| differ & bit_of(stage) != 0);
        match next {
            Some(stage) => Some(Next::To(self.peer(stage), stage)),
            None if differ != 0 => None,
            None if at == Stage::SOURCE => Some(Next::To(target.into(), Stage::FIRST)),
            None => Some(Next::Deliver),
        }
    }

    fn edges(&self, stage: Stage, reach: Reach) -> u32 {
        u32::from(self.has(stage, reach))
    }

    fn edge(&self, stage: Stage, _reach: Reach, _number: u32) -> EndpointId {
        self.peer(stage)
    }

    fn has_edge(&self, stage: Stage, peer: EndpointId) -> bool {
        bit_of(stage) < self.topology.size() && self.peer(stage) == peer
    }

    fn most_edges(&self, stage: Stage, _reach: Reach) -> u32 {
        u32::from(bit_of(stage) < self.topology.size())
    }

    fn copies(&self, at: Stage, _source: Rank) -> u32 {
        self.later(at).count() as u32
    }

    fn copy(&self, at: Stage, _source: Rank, number: u32) -> (EndpointId, Stage) {
        let stage = self.later(at).nth(number as usize).expect("below copies");
        (self.peer(stage), stage)
    }

    fn passes(&self, at: Stage, source: Rank) -> bool {
        let differ = self.topology.rank().0 ^ source.0;
        let on_the_way = self
            .later(Stage::SOURCE)
            .filter(|&s| differ & bit_of(s) != 0);
        on_the_way.last().unwrap_or(Stage::FIRST) == at
    }
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds: u64 = std::env::args().nth(1).map_or(Ok(10_000), |text| {
        text.parse().map_err(|_| format!("{text} is not a number"))
    })?;
    let route = register("halving", &STAGES, |topology| Halving {
        topology: topology.clone(),
    })?;

    let job = Job::start(Options::from_env()?)?;
    let (rank, size) = (job.rank(), job.size());
    let sums = State::new([0u64; 2]);
    let shuffle = job
        .shuffle("numbers")
        .options(StreamOptions {
            route,
            ..StreamOptions::default()
        })
        .handler_with(&sums, |sums, message, _outbox| {
            let number = message
                .bytes
                .first_chunk()
                .map_or(0, |b| u64::from_le_bytes(*b));
            sums[message.kind as usize] += number;
        })
        .open()?;
    for number in 0..rounds {
        for target in (0..size).map(Rank) {
            shuffle.send(target, 0, &number.to_le_bytes())?;
        }
    }
    let own = u64::from(rank.0 + 1).to_le_bytes();
    shuffle.broadcast(1, &own, BroadcastTo::Everyone)?;
    shuffle.fence()?;

    let ranks = u64::from(size);
    let expected = [
        ranks * (rounds * rounds.saturating_sub(1) / 2),
        ranks * (ranks + 1) / 2,
    ];
    let mut wrong = [u64::from(sums.with(|sums| *sums) != expected)];
    job.allreduce(&mut wrong, Reduce::Sum)?;
    if rank == Rank(0) {
        println!("{size} ranks by {route}: {} have wrong sums", wrong[0]);
    }
    shuffle.shutdown()?;
    job.shutdown()?;
    match wrong {
        [0] => Ok(()),
        _ => Err("every number has to arrive once".into()),
    }
}
