//! A queue of work: `trihop run -n 4 --nodes 2 -- target/release/examples/channels [TASKS]`.
//!
//! Rank 0 has two channels: tasks, which the other ranks take as they are free, and results. Both
//! are short, so that nobody runs ahead. Each result is checked.

use std::time::Duration;

use trihop::channel::{Descriptor, Return, Timeout};
use trihop::{ChannelLimits, Error, Job, Options, Rank};

/// What a worker does with a number: steps until 1 of the Collatz sequence.
fn steps(mut number: u64) -> u64 {
    let mut steps = 0;
    while number > 1 {
        number = match number % 2 {
            0 => number / 2,
            _ => 3 * number + 1,
        };
        steps += 1;
    }
    steps
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().expect("chunks of 8")))
        .collect()
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = std::env::args().nth(1).map_or(Ok(10_000), |text| {
        text.parse().map_err(|_| format!("{text} is not a number"))
    })?;
    let job = Job::start(Options::from_env()?)?;
    let channels = job.channels("work").open()?;
    let limits = ChannelLimits {
        messages: 50,
        ..ChannelLimits::default()
    };
    if job.rank() != Rank(0) {
        let named = job.broadcast(Rank(0), &[])?;
        let (tasks, results) = named.split_at(Descriptor::BYTES);
        let tasks = channels.attach(&Descriptor::from_bytes(tasks)?)?;
        let results = channels.attach(&Descriptor::from_bytes(results)?)?;
        loop {
            let task = match tasks.get(Timeout::Never) {
                Ok(task) => words(&task.bytes)[0],
                Err(Error::ChannelClosed { .. }) => break,
                Err(error) => return Err(error.into()),
            };
            let result = [task.to_le_bytes(), steps(task).to_le_bytes()].concat();
            results.send(0, &result, Return::WhenDeposited, Timeout::Never)?;
        }
        drop((tasks, results));
        channels.shutdown()?;
        return Ok(job.shutdown()?);
    }
    let (tasks, results) = (channels.create(limits)?, channels.create(limits)?);
    let named = [
        tasks.descriptor().to_bytes(),
        results.descriptor().to_bytes(),
    ]
    .concat();
    job.broadcast(Rank(0), &named)?;
    let (mut sent, mut heard, mut wrong) = (0, vec![false; count as usize], 0);
    let mut left = count;
    while left > 0 {
        // As many tasks as there is room for, then a result.
        while sent < count {
            match tasks.send(0, &sent.to_le_bytes(), Return::WhenDeposited, Timeout::Once) {
                Ok(()) => sent += 1,
                Err(Error::WouldBlock) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if job.size() == 1 {
            // Nobody else takes them.
            let task = words(&tasks.get(Timeout::Never)?.bytes)[0];
            let result = [task.to_le_bytes(), steps(task).to_le_bytes()].concat();
            results.send(0, &result, Return::WhenDeposited, Timeout::Never)?;
        }
        let result = results.get(Timeout::After(Duration::from_secs(60)))?;
        let [task, found] = words(&result.bytes)[..] else {
            return Err(format!("a result of {} bytes", result.bytes.len()).into());
        };
        let is_new = !std::mem::replace(&mut heard[task as usize], true);
        wrong += u64::from(!is_new || found != steps(task));
        left -= 1;
    }
    tasks.close()?;
    println!(
        "{} ranks: {count} tasks, {} results, {wrong} wrong",
        job.size(),
        heard.len()
    );
    drop((tasks, results));
    channels.shutdown()?;
    Ok(job.shutdown()?)
}
