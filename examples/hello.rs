//! Every rank greets every rank: `trihop run -n 4 --nodes 2 -- target/debug/examples/hello`.

use std::cell::Cell;
use trihop::{Job, Options, Rank};

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), trihop::Error> {
    let heard = Cell::new(0);
    let job = Job::start(Options::from_env()?)?;
    let greetings = job
        .shuffle("greetings")
        .handler(|_message, _outbox| heard.set(heard.get() + 1))
        .open()?;
    for rank in 0..job.size() {
        greetings.send(
            Rank(rank),
            0,
            format!("hello from {}", job.rank()).as_bytes(),
        )?;
    }
    greetings.fence()?;
    println!("rank {} heard {} greetings", job.rank(), heard.get());
    greetings.shutdown()?;
    job.shutdown()
}
