//! Ranks that are threads: each process hosts as many as `--minis-per-rank` says, and each rank
//! greets all of them, wherever they live.
//!
//! `trihop run -n 4 --nodes 2 --minis-per-rank 3 -- minirank`

use trihop::minirank::{self, MiniRank};
use trihop::{Error, Options, Rank, Reduce, State};

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Error> {
    let ranks = minirank::asked_for()?;
    let heard = minirank::run(Options::from_env()?, ranks, greet)?;
    for heard in heard {
        let (rank, heard, size) = heard?;
        println!("rank {rank} heard {heard} of {size} greetings");
    }
    Ok(())
}

/// What one rank does, on its thread.
fn greet(mini: MiniRank) -> Result<(Rank, u64, u64), Error> {
    let heard = State::new(0);
    let job = mini.start()?;
    let greetings = job
        .shuffle("greetings")
        .handler_with(&heard, |heard, _message, _outbox| *heard += 1)
        .open()?;
    for rank in 0..job.size() {
        greetings.send(
            Rank(rank),
            0,
            format!("hello from {}", job.rank()).as_bytes(),
        )?;
    }
    greetings.fence()?;
    let mut size = [1];
    job.allreduce(&mut size, Reduce::Sum)?;
    let rank = job.rank();
    greetings.shutdown()?;
    job.shutdown()?;
    Ok((rank, heard.with(|heard| *heard), size[0]))
}
