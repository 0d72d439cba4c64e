//! Steps that contributors end: `trihop run -n 8 --nodes 4 target/release/examples/steps
//! [PARTICLES] [STEPS]`.
//!
//! Particles live on all ranks. In each step every particle sends what it has to two others, and
//! says then that it is done: no rank knows, or need know, when the others have sent their last.
//! What is called when the step is over adds up what has come, and begins the next one.

use std::cell::{Cell, RefCell};

use trihop::{Contributors, Job, Options, Rank, Reduce, Result, Stream};

/// What is sent: the particle that it is for, whether the step is odd, and a number.
type Item = [u64; 3];

/// What a rank has. Others may be in the next step before this rank has heard of the end of one, so
/// what comes is kept apart by odd and even steps.
struct World {
    particles: u64,
    steps: u64,
    size: Cell<u64>,
    values: RefCell<Vec<u64>>,
    come: RefCell<[Vec<u64>; 2]>,
    over: Cell<u64>,
}

/// To whom a particle sends in a step.
fn targets(particles: u64, particle: u64, step: u64) -> [u64; 2] {
    [particle + 1, particle * 7 + step].map(|target| target % particles)
}

fn begin<'h>(stream: &Stream<'h, Item>, world: &'h World, step: u64) -> Result<()> {
    let here = world.values.borrow().len() as u64;
    stream
        .step(Contributors::Local(here))
        .at_start(|stream| contribute(stream, world, step).expect("the job goes on"))
        .at_end(move |stream| {
            let mut come = world.come.borrow_mut();
            let mut values = world.values.borrow_mut();
            for (value, come) in values.iter_mut().zip(&mut come[step as usize % 2]) {
                *value = value.wrapping_add(std::mem::take(come));
            }
            drop((come, values));
            world.over.set(step + 1);
            if step + 1 < world.steps {
                begin(stream, world, step + 1).expect("the job goes on");
            }
        })
        .begin()
        .map(drop)
}

/// Every particle of this rank sends, and is done.
fn contribute(stream: &Stream<'_, Item>, world: &World, step: u64) -> Result<()> {
    let (rank, size) = (u64::from(stream.rank().0), world.size.get());
    let values = world.values.borrow().clone();
    for (place, value) in (0..).zip(values) {
        let particle = place * size + rank;
        for target in targets(world.particles, particle, step) {
            stream.push(Rank((target % size) as u32), [target, step % 2, value])?;
        }
        stream.done(1)?;
    }
    Ok(())
}

/// The same without any messages.
fn alone(particles: u64, steps: u64) -> Vec<u64> {
    let mut values: Vec<u64> = (0..particles).collect();
    for step in 0..steps {
        let before = values.clone();
        for (particle, value) in (0..).zip(before) {
            for target in targets(particles, particle, step) {
                let sum = &mut values[target as usize];
                *sum = sum.wrapping_add(value);
            }
        }
    }
    values
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |else_| {
        arguments.next().map_or(Ok(else_), |text| {
            text.parse().map_err(|_| format!("{text} is not a number"))
        })
    };
    let world = World {
        particles: number(10_000)?,
        steps: number(100)?,
        size: Cell::new(1),
        values: RefCell::default(),
        come: RefCell::default(),
        over: Cell::new(0),
    };
    let job = Job::start(Options::from_env()?)?;
    let (rank, size) = (u64::from(job.rank().0), u64::from(job.size()));
    world.size.set(size);
    let mine = (rank..world.particles).step_by(size as usize);
    world.values.replace(mine.collect());
    let here = world.values.borrow().len();
    world.come.replace([vec![0; here], vec![0; here]]);
    let stream = job.stream::<Item>("particles").handler(|_, items, _| {
        let mut come = world.come.borrow_mut();
        for &[target, odd, value] in items {
            let sum = &mut come[odd as usize][(target / world.size.get()) as usize];
            *sum = sum.wrapping_add(value);
        }
    });
    let stream = stream.open()?;
    begin(&stream, &world, 0)?;
    while world.over.get() < world.steps {
        stream.wait()?;
    }
    let expected = alone(world.particles, world.steps);
    let values = world.values.borrow();
    let wrong = (0..).zip(&*values);
    let wrong = wrong
        .filter(|&(place, &value): &(u64, _)| value != expected[(place * size + rank) as usize]);
    let mut sum = [wrong.count() as u64];
    job.allreduce(&mut sum, Reduce::Sum)?;
    if rank == 0 {
        let (steps, particles, [wrong]) = (world.steps, world.particles, sum);
        let text = format!("{size} ranks, {steps} steps of {particles} particles: {wrong} wrong\n");
        std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes())?;
    }
    drop(values);
    job.shutdown()?;
    Ok(())
}
