//! `trihop partition`: the command in front of `trihop-partition`.

mod args;
mod front;

use trihop::{DumpOutput, Job, Options, Rank, log};
use trihop_partition::{Error, Failed, Method};

pub use args::PartitionArgs;
use front::Terminal;

use crate::output;

/// Runs the command on this rank and returns its exit status: 0, or what all ranks agreed on after
/// rank 0 has told why.
///
/// # Errors
/// What could not be told to the other ranks: the engine's failure.
pub fn run(args: PartitionArgs) -> Result<i32, Error> {
    let method = match Method::from_env() {
        Ok(method) => method,
        Err(text) => return Ok(write_to_user(&text, 2)),
    };
    let options = Options::from_env()?;
    let json = args.json;
    let request = args.request(method, options.stream.max_message_bytes);
    let job = Job::start(options)?;
    job.dump_on(libc::SIGUSR1, DumpOutput::Stderr)?;
    log::set_rank(job.rank().0)?;
    let status = match trihop_partition::run(&job, &request, &mut Terminal::new(json)) {
        Ok(()) => 0,
        Err(Failed::Agreed { text, status }) => {
            let status = if job.rank() == Rank(0) {
                write_to_user(&text, status)
            } else {
                status
            };
            job.barrier()?;
            status
        }
        Err(Failed::Alone(error)) => return Err(error),
    };
    job.shutdown()?;
    Ok(status)
}

/// Says why the job failed; where nobody listens the exit status still tells.
fn write_to_user(text: &str, status: i32) -> i32 {
    output::say("trihop partition", text);
    status
}
