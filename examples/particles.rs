//! Particles that move over a plane which the ranks share as a grid, and go to another rank
//! where they cross a border: `trihop run -n 4 --nodes 2 -- target/release/examples/particles
//! [PARTICLES [STEPS]]`.
//!
//! The plane has 64 x 64 cells, and its ends meet. Where more than a few particles are in one cell,
//! they turn. Every rank compares its particles with those of a sequential run.

use trihop::zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
use trihop::{Job, Options, Rank, Reduce, State};

/// Cells of a side: the upper six bits of a coordinate.
const SIDE: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[zerocopy(crate = "trihop::zerocopy")]
#[repr(C)]
struct Particle {
    number: u32,
    /// Coordinates; 2^32 is 0 again.
    place: [u32; 2],
    /// What is added to these in a step.
    velocity: [u32; 2],
}

impl Particle {
    fn new(number: u32) -> Self {
        let mut word = (u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = || {
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word ^= word >> 31;
            (word >> 32) as u32
        };
        let place = [random(), random()];
        // Three cells at most, either way.
        let velocity = [random(), random()].map(|word| ((word as i32) / 11) as u32);
        Self {
            number,
            place,
            velocity,
        }
    }

    /// Column and row.
    fn cell(&self) -> [u32; 2] {
        self.place.map(|at| at / (u32::MAX / SIDE + 1))
    }

    /// Where it is a step later, in a cell that is crowded or not.
    fn step(&mut self, is_crowded: bool) {
        if is_crowded {
            let [x, y] = self.velocity;
            self.velocity = [y.wrapping_neg(), x];
        }
        let moved = |axis: usize| self.place[axis].wrapping_add(self.velocity[axis]);
        self.place = [moved(0), moved(1)];
    }
}

/// A step of all particles that are together. Each cell is in one place only, with all that it has.
fn step(particles: &mut [Particle], crowd: u32) {
    let mut cells = vec![0; (SIDE * SIDE) as usize];
    let index = |particle: &Particle| {
        let [column, row] = particle.cell();
        (row * SIDE + column) as usize
    };
    for particle in &*particles {
        cells[index(particle)] += 1;
    }
    for particle in particles {
        let is_crowded = cells[index(particle)] > crowd;
        particle.step(is_crowded);
    }
}

/// Ranks in a row and in a column: as near to a square as their number allows.
fn grid(size: u32) -> [u32; 2] {
    let divides = |&columns: &u32| size.is_multiple_of(columns) && columns * columns <= size;
    let columns = (1..=size).rev().find(divides).unwrap_or(1);
    [columns, size / columns]
}

/// Who has the cell that a particle is in.
fn owner(particle: &Particle, grid: [u32; 2]) -> Rank {
    let [column, row] = particle.cell();
    Rank(row * grid[1] / SIDE * grid[0] + column * grid[0] / SIDE)
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |else_| {
        arguments.next().map_or(Ok(else_), |text| {
            text.parse::<u32>()
                .map_err(|_| format!("{text} is not a number"))
        })
    };
    let (count, steps) = (number(20_000)?, number(50)?);
    // A third more than there are in the mean.
    let crowd = count / (SIDE * SIDE) * 4 / 3 + 1;
    let all = || (0..count).map(Particle::new);
    let arrived = State::new(Vec::new());

    let job = Job::start(Options::from_env()?)?;
    let (rank, size) = (job.rank(), job.size());
    let grid = grid(size);
    let borders = job
        .stream::<Particle>("borders")
        .handler_with(&arrived, |arrived, _source, particles, _outbox| {
            arrived.extend_from_slice(particles);
        })
        .open()?;
    let mut own: Vec<Particle> = all().filter(|one| owner(one, grid) == rank).collect();
    let mut gone = 0;
    for _ in 0..steps {
        step(&mut own, crowd);
        for particle in own.extract_if(.., |one| owner(one, grid) != rank) {
            borders.push(owner(&particle, grid), particle)?;
            gone += 1;
        }
        borders.round()?;
        // Before any other call, in which those of the next step may arrive.
        own.append(&mut arrived.with(std::mem::take));
    }

    let mut expected: Vec<Particle> = all().collect();
    (0..steps).for_each(|_| step(&mut expected, crowd));
    expected.retain(|one| owner(one, grid) == rank);
    own.sort_by_key(|one| one.number);
    let mut totals = [own.len() as u64, gone, u64::from(own != expected)];
    job.allreduce(&mut totals, Reduce::Sum)?;
    let [there, gone, wrong] = totals;
    if rank == Rank(0) {
        println!(
            "{size} ranks, {} x {}: {there} particles, {gone} crossings in {steps} steps, {wrong} \
             ranks are wrong",
            grid[0], grid[1]
        );
    }
    borders.shutdown()?;
    job.shutdown()?;
    match totals {
        [there, _, 0] if there == u64::from(count) => Ok(()),
        _ => Err("every particle has to be where a sequential run has it".into()),
    }
}
