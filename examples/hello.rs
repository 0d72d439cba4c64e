//! Every rank greets every rank: `trihop run -n 4 --nodes 2 -- target/debug/examples/hello`.

use trihop::{Job, Options, Rank, State};

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), trihop::Error> {
    let job = Job::start(Options::from_env()?)?;
    let heard = State::new(0);
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
    println!(
        "rank {} heard {} greetings",
        job.rank(),
        heard.with(|heard| *heard)
    );
    greetings.shutdown()?;
    job.shutdown()
}
