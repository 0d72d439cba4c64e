//! `attach`: what it takes a process to join a job at an agent that stays, and to leave it again.
//!
//! The rank is a process of its own, which joins and leaves jobs of one rank, one after the other:
//! all of it is between this process and the agent. Each job is asked for a sum, so that it was
//! one, between the two times.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use trihop::transport::bootstrap::{self, Launcher};
use trihop::{Job, Options, Reduce, agent};

use super::pair::median;
use super::{BenchArgs, Error, table};
use crate::output;

/// Jobs of a repetition.
const JOBS: u64 = 200;

/// How long the agent stays behind where this benchmark is killed.
const LINGER_MS: u32 = 10_000;

#[derive(Debug, Serialize)]
struct AttachRow {
    bench: &'static str,
    seat: &'static str,
    /// Jobs of a repetition, one after the other.
    count: u64,
    reps: u32,
    /// Microseconds to join a job and to leave it: medians of all repetitions.
    join_us: f64,
    leave_us: f64,
    /// Both together: the median, and the least of all.
    attach_us: f64,
    least_us: f64,
}

/// Runs an agent, and the rank as a process of its own.
///
/// # Errors
/// Either of them cannot be started; the agent's, or the rank's.
pub fn start(args: &BenchArgs) -> Result<i32, Error> {
    let name = format!("trihop-bench-attach-{}", std::process::id());
    let agent = Agent::start(&name)?;
    let mut rank = this()?;
    rank.args(["bench", "attach", "--reps", &args.reps.to_string()]);
    if let Some(count) = args.count {
        rank.args(["--count", &count.to_string()]);
    }
    if args.json {
        rank.arg("--json");
    }
    // A job of its own, whatever this process is told of launchers.
    rank.env("TRIHOP_LAUNCHER", "agent")
        .env(agent::ENV_NAME, &name);
    let status = rank.status().map_err(Error::Executable)?;
    drop(agent);
    Ok(status.code().unwrap_or(1))
}

fn this() -> Result<Command, Error> {
    Ok(Command::new(
        std::env::current_exe().map_err(Error::Executable)?,
    ))
}

/// An agent that is ready.
struct Agent(Child);

impl Agent {
    fn start(name: &str) -> Result<Self, Error> {
        let mut agent = this()?;
        agent.args(["agent", "--ranks", "1", "--name", name]);
        agent.args(["--linger-ms", &LINGER_MS.to_string()]);
        agent.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut agent = Self(agent.spawn().map_err(Error::Executable)?);
        let mut ready = String::new();
        if let Some(out) = agent.0.stdout.take() {
            BufReader::new(out)
                .read_line(&mut ready)
                .map_err(Error::Executable)?;
        }
        match ready.is_empty() {
            true => Err(Error::Wrong {
                bench: "attach",
                why: "the agent has ended instead of saying that it is ready".to_owned(),
            }),
            false => Ok(agent),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(process) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// Joins and leaves, as the rank.
///
/// # Errors
/// The library's.
pub fn run(args: &BenchArgs, options: &Options) -> Result<(), Error> {
    if bootstrap::detect(options.launcher)? != Launcher::Agent {
        let why = "attach starts its agent and its rank by itself: not inside of another job";
        return Err(Error::Shape(why.to_owned()));
    }
    let count = args.count.unwrap_or(JOBS);
    let (mut joins, mut leaves, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 0..=args.reps {
        for _ in 0..count {
            let (join, leave) = join_and_leave(options.clone())?;
            // The first repetition warms up.
            if repetition > 0 {
                let us = |time: Duration| time.as_secs_f64() * 1e6;
                joins.push(us(join));
                leaves.push(us(leave));
                both.push(us(join + leave));
            }
        }
    }
    let least_us = both.iter().copied().fold(f64::INFINITY, f64::min);
    print(
        args,
        &AttachRow {
            bench: "attach",
            seat: "agent",
            count,
            reps: args.reps,
            join_us: median(joins),
            leave_us: median(leaves),
            attach_us: median(both),
            least_us,
        },
    )
}

fn join_and_leave(options: Options) -> Result<(Duration, Duration), Error> {
    let begun = Instant::now();
    let job = Job::start(options)?;
    let joined = begun.elapsed();
    let mut sum = [1_u64];
    job.allreduce(&mut sum, Reduce::Sum)?;
    if (job.size(), sum) != (1, [1]) {
        let why = format!(
            "a job of one rank has {}, and its sum is {sum:?}",
            job.size()
        );
        return Err(Error::Wrong {
            bench: "attach",
            why,
        });
    }
    let leaving = Instant::now();
    job.shutdown()?;
    Ok((joined, leaving.elapsed()))
}

fn print(args: &BenchArgs, row: &AttachRow) -> Result<(), Error> {
    if args.json {
        return Ok(output::json(row)?);
    }
    output::line(format_args!(
        "# attach: jobs of one rank at an agent that stays, one after the other"
    ))?;
    let us = |us: f64| format!("{us:.1}");
    let cells = [
        ("Jobs", 10, row.count.to_string()),
        ("Join (us)", 12, us(row.join_us)),
        ("Leave (us)", 12, us(row.leave_us)),
        ("Both (us)", 12, us(row.attach_us)),
        ("Least (us)", 12, us(row.least_us)),
    ];
    table::print(&cells, true)?;
    Ok(())
}
