//! `trihop partition`: the command in front of `trihop-partition`.

mod args;
mod front;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::num::NonZero;

use trihop::transport::bootstrap::{self, Launcher};
use trihop::{DumpOutput, Job, Options, Rank, log};
use trihop_partition::{Failed, Method};

pub use args::PartitionArgs;
use front::Terminal;

use crate::output;
use crate::run::{self, LaunchSpec, OutputMode};

/// Why the command failed, where that is not told yet.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Wrong usage.
    #[error("{0}")]
    Usage(String),
    /// What could not be told to the other ranks.
    #[error(transparent)]
    Job(#[from] trihop_partition::Error),
    /// The library's.
    #[error(transparent)]
    Library(#[from] trihop::Error),
    /// The launcher's.
    #[error(transparent)]
    Run(#[from] run::Error),
    /// No launcher is there, or only half of one.
    #[error(transparent)]
    Transport(#[from] trihop::transport::Error),
    /// This executable cannot be found again to start ranks.
    #[error("finding this executable: {0}")]
    Executable(#[source] std::io::Error),
}

impl Error {
    /// Exit status of a process that ends by this error: 2 for options, 1 for everything else.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Usage(_) | Self::Library(trihop::Error::Config { .. }) => 2,
            Self::Job(error) => error.exit_status(),
            Self::Run(error) => error.exit_status(),
            _ => 1,
        }
    }
}

/// Runs the command on this rank, or starts the ranks that do, and returns its exit status: 0, or
/// what all ranks agreed on after rank 0 has told why.
///
/// # Errors
/// [`Error`].
pub fn run(args: PartitionArgs) -> Result<i32, Error> {
    let method = Method::from_env().map_err(Error::Usage)?;
    let options = Options::from_env()?;
    if bootstrap::detect(options.launcher)? == Launcher::Single {
        let ranks = args.ranks.unwrap_or_else(cores);
        if ranks > 1 {
            if args.inputs.iter().any(|input| input == "-") && std::io::stdin().is_terminal() {
                let why = "standard input is a terminal: give a file, or a pipe";
                return Err(Error::Usage(why.to_owned()));
            }
            return start_ranks(ranks);
        }
    } else if args.ranks.is_some() {
        let why = "this is a rank of a job already; --ranks is for starting one";
        return Err(Error::Usage(why.to_owned()));
    }
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
        Err(Failed::Alone(error)) => return Err(error.into()),
    };
    job.shutdown()?;
    Ok(status)
}

fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    u32::try_from(cores).unwrap_or(u32::MAX)
}

/// Starts ranks on this machine that do as this process was told.
fn start_ranks(ranks: u32) -> Result<i32, Error> {
    let executable = std::env::current_exe().map_err(Error::Executable)?;
    let mut command = vec![executable.into_os_string()];
    command.extend(without_ranks(std::env::args_os().skip(1)));
    let mut spec = LaunchSpec::new(run::spread(ranks, 1)?, command);
    spec.output = OutputMode::Plain;
    spec.says_why = true;
    Ok(run::launch(spec)?.status)
}

/// The words of a command line without `--ranks` and its value. clap has taken them as right, so
/// each word that begins with `--` is an option, up to a lone `--`.
fn without_ranks(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut left, mut words) = (Vec::new(), words);
    while let Some(word) = words.next() {
        if word == "--" {
            left.push(word);
            left.extend(words);
            break;
        }
        if word == "--ranks" {
            words.next();
        } else if !word.as_encoded_bytes().starts_with(b"--ranks=") {
            left.push(word);
        }
    }
    left
}

/// Says why the job failed; where nobody listens the exit status still tells.
fn write_to_user(text: &str, status: i32) -> i32 {
    output::say("trihop partition", text);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_started_with_all_words_but_their_number() {
        let left = |words: &[&str]| -> Vec<String> {
            let left = without_ranks(words.iter().map(Into::into));
            left.into_iter()
                .map(|word| word.into_string().unwrap())
                .collect()
        };
        assert_eq!(
            left(&[
                "partition",
                "--ranks",
                "4",
                "--by=--ranks",
                "a",
                "--ranks=3"
            ]),
            ["partition", "--by=--ranks", "a"]
        );
        assert_eq!(left(&["--", "--ranks", "4"]), ["--", "--ranks", "4"]);
    }
}
