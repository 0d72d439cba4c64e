//! `startup`: how long a job takes from the start of its launcher to its first messages.
//!
//! Each repetition is a job of its own, under `trihop run`. Each of its ranks sends a message to a
//! rank of another node; times are those of the kernel's monotonic clock, which all processes
//! share. Beside it, in turns: as many processes that do nothing, which is what a launcher and a
//! program cost, and as many as the job has endpoints with a fabric that only load libfabric and
//! ask what it has, all at once.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use trihop::transport::bootstrap::{self, Launcher};
use trihop::{NodeId, Options, Rank, Reduce, State, Topology};

use super::pair::median;
use super::seated::{self, Start};
use super::{BenchArgs, Error, Seat, table, text};
use crate::output;

const BENCH: &str = "startup";

/// Moments of a job, by the monotonic clock, as its rank 0 says them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Moments {
    /// The last rank has joined.
    joined_ns: u64,
    /// The first message has come, and the last one of them.
    first_ns: u64,
    last_ns: u64,
}

#[derive(Debug, Serialize)]
struct StartupRow {
    bench: &'static str,
    ranks: u32,
    nodes: u32,
    seat: String,
    /// Processes of the job, those that are agents included, and those with a fabric.
    processes: u32,
    fabrics: u32,
    reps: u32,
    /// From the launcher's start, each the median of the repetitions: until all ranks have joined,
    /// until the first message has come, and until all have, one from each rank.
    joined_seconds: f64,
    first_message_seconds: f64,
    seconds: f64,
    /// The whole job, its end included; processor time of all of its processes.
    job_seconds: f64,
    job_cpu_seconds: f64,
    /// As many processes that do nothing.
    empty_seconds: f64,
    empty_cpu_seconds: f64,
    /// As many processes as have a fabric, which only open libfabric; none where no rank needs it.
    libfabric_seconds: Option<f64>,
    libfabric_cpu_seconds: Option<f64>,
    checked: bool,
}

/// What a launch took.
struct Launched {
    began_ns: u64,
    seconds: f64,
    cpu_seconds: f64,
    output: String,
}

/// Starts the jobs, and prints the row.
///
/// # Errors
/// A job that fails, or in which a message is missing; standard output's.
pub fn start(args: &BenchArgs, (ranks, nodes): (u32, u32)) -> Result<i32, Error> {
    let processes = ranks / args.minis_per_rank.unwrap_or(1);
    let agents = match args.seat {
        Seat::Agent => nodes * args.nics.unwrap_or(1),
        _ => 0,
    };
    let fabrics = match (nodes, agents) {
        (1, _) => 0,
        (_, 0) => processes,
        (_, agents) => agents,
    };
    let (mut jobs, mut empty, mut fabric) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 0..=args.reps {
        let nothing = launch(args, (processes, nodes), &["--version"])?;
        let asking = match fabrics {
            0 => None,
            fabrics => Some(launch(args, (fabrics, 1), &["info", "--json"])?),
        };
        let job = job(args, (processes, nodes))?;
        // The first one warms up.
        if repetition > 0 {
            empty.push(nothing);
            fabric.extend(asking);
            jobs.push(job);
        }
    }
    let since = |moment: fn(&Moments) -> u64| {
        let of = |(launched, moments): &(Launched, Moments)| {
            moment(moments).saturating_sub(launched.began_ns) as f64 / 1e9
        };
        median(jobs.iter().map(of))
    };
    let wall = |launched: &[Launched]| median(launched.iter().map(|one| one.seconds));
    let cpu = |launched: &[Launched]| median(launched.iter().map(|one| one.cpu_seconds));
    let asked = !fabric.is_empty();
    let row = StartupRow {
        bench: BENCH,
        ranks,
        nodes,
        seat: text(args.seat),
        processes: processes + agents,
        fabrics,
        reps: args.reps,
        joined_seconds: since(|moments| moments.joined_ns),
        first_message_seconds: since(|moments| moments.first_ns),
        seconds: since(|moments| moments.last_ns),
        job_seconds: median(jobs.iter().map(|(job, _)| job.seconds)),
        job_cpu_seconds: median(jobs.iter().map(|(job, _)| job.cpu_seconds)),
        empty_seconds: wall(&empty),
        empty_cpu_seconds: cpu(&empty),
        libfabric_seconds: asked.then(|| wall(&fabric)),
        libfabric_cpu_seconds: asked.then(|| cpu(&fabric)),
        checked: true,
    };
    print(args, &row)?;
    Ok(0)
}

/// Launches as many processes of this program with these words.
fn launch(args: &BenchArgs, (count, nodes): (u32, u32), words: &[&str]) -> Result<Launched, Error> {
    let executable = std::env::current_exe().map_err(Error::Executable)?;
    let mut run = Command::new(&executable);
    run.args(["run", "--no-prefix", "-n", &count.to_string()]);
    run.args(["--nodes", &nodes.to_string()]);
    let is_job = words.first() == Some(&"bench");
    if is_job && args.seat == Seat::Agent {
        run.args(["--seat", "agent"]);
        let nics = args
            .nics
            .map(|nics| ["--nics".to_owned(), nics.to_string()]);
        run.args(nics.into_iter().flatten());
    }
    // Said also where it is one: what the environment asks for is not for these ranks.
    let minis = args.minis_per_rank.filter(|_| is_job).unwrap_or(1);
    run.args(["--minis-per-rank", &minis.to_string()]);
    if is_job && args.netns {
        run.arg("--netns");
    }
    run.arg("--").arg(&executable).args(words);
    if is_job {
        run.args(rank_words(args));
    }
    run.stdin(Stdio::null()).stderr(Stdio::inherit());
    let (cpu_before, began_ns) = (cpu_of_children(), now_ns());
    let ended = run.output().map_err(Error::Executable)?;
    let (ended_ns, cpu_after) = (now_ns(), cpu_of_children());
    if !ended.status.success() {
        return Err(wrong(format!(
            "`trihop {}` on {count} ranks has ended with {}",
            words.join(" "),
            ended.status
        )));
    }
    Ok(Launched {
        began_ns,
        seconds: (ended_ns - began_ns) as f64 / 1e9,
        cpu_seconds: cpu_after - cpu_before,
        output: String::from_utf8_lossy(&ended.stdout).into_owned(),
    })
}

/// What its ranks are told beside `bench startup`.
fn rank_words(args: &BenchArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["--seat".into(), text(args.seat).into()];
    let mut option = |name: &str, value: String| words.extend([name.into(), value.into()]);
    if let Some(minis) = args.minis_per_rank {
        option("--minis-per-rank", minis.to_string());
    }
    if let Some(provider) = &args.provider {
        option("--provider", provider.clone());
    }
    if let Some(route) = args.route {
        option("--route", route.to_string());
    }
    words
}

/// A job, and what its rank 0 says of it.
fn job(args: &BenchArgs, shape: (u32, u32)) -> Result<(Launched, Moments), Error> {
    let launched = launch(args, shape, &["bench", BENCH])?;
    match serde_json::from_str(launched.output.trim()) {
        Ok(moments) => Ok((launched, moments)),
        Err(why) => Err(wrong(format!(
            "a job has said {:?}: {why}",
            launched.output
        ))),
    }
}

/// The ranks of this process, in a job that [`start`] has started.
///
/// # Errors
/// The library's; a message that is missing, or of the wrong rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    if !matches!(
        bootstrap::detect(options.launcher)?,
        Launcher::Local | Launcher::Agent
    ) {
        let why = "startup starts its jobs by itself: not inside of another one";
        return Err(Error::Shape(why.to_owned()));
    }
    seated::on_ranks(args, options, rank)
}

fn rank(start: Start) -> Result<(), Error> {
    let job = start.job()?;
    let joined_ns = now_ns();
    let heard: State<Vec<(u64, u64)>> = State::new(Vec::with_capacity(1));
    let stream = job
        .stream::<u64>(BENCH)
        .handler_with(&heard, |heard, _, words, _| {
            heard.extend(words.iter().map(|word| (*word, now_ns())));
        })
        .open()?;
    stream.push(
        target_of(job.topology(), job.rank()),
        u64::from(job.rank().0),
    )?;
    stream.fence()?;
    let mut came = heard.with(|heard| heard.clone());
    came.sort_unstable();
    let words: Vec<u64> = came.iter().map(|(word, _)| *word).collect();
    let expected = sources_of(job.topology(), job.rank());
    if words != expected {
        let why = format!("{} has heard {words:?} instead of {expected:?}", job.rank());
        return Err(wrong(why));
    }
    let moments = came.iter().map(|(_, came_ns)| *came_ns);
    let mut last = [joined_ns, moments.clone().max().unwrap_or(0)];
    job.allreduce(&mut last, Reduce::Max)?;
    let mut first = [moments.min().unwrap_or(u64::MAX)];
    job.allreduce(&mut first, Reduce::Min)?;
    let is_first = job.rank() == Rank(0);
    stream.shutdown()?;
    job.shutdown()?;
    if is_first {
        output::json(&Moments {
            joined_ns: last[0],
            first_ns: first[0],
            last_ns: last[1],
        })?;
    }
    Ok(())
}

/// The rank to which one sends: of the next node, or the next one of the only node.
fn target_of(topology: &Topology, rank: Rank) -> Rank {
    let (node, local) = (topology.node_of(rank), topology.local_rank_of(rank));
    if topology.nodes() == 1 {
        return Rank((rank.0 + 1) % topology.size());
    }
    let next = NodeId((node.0 + 1) % topology.nodes());
    topology.rank_at(next, local % topology.local_size_of(next))
}

/// Those that send to a rank, in order.
fn sources_of(topology: &Topology, rank: Rank) -> Vec<u64> {
    let nodes = topology.nodes();
    let before = NodeId((topology.node_of(rank).0 + nodes - 1) % nodes);
    let sources = topology.ranks_of(before);
    let sources = sources.filter(|&source| target_of(topology, source) == rank);
    sources.map(|source| u64::from(source.0)).collect()
}

fn wrong(why: String) -> Error {
    Error::Wrong { bench: BENCH, why }
}

fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// User and system time of all processes below this one that have ended, in seconds.
fn cpu_of_children() -> f64 {
    // SAFETY: all zero bytes are a `rusage`, a structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage` to where one is.
    let status = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    debug_assert_eq!(status, 0, "RUSAGE_CHILDREN is always known");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn print(args: &BenchArgs, row: &StartupRow) -> Result<(), Error> {
    if args.json {
        return Ok(output::json(row)?);
    }
    output::line(format_args!(
        "# startup: {} ranks in {} processes on {} nodes, from the start of `trihop run`;\n\
         # beside processes that do nothing, and {} that open libfabric; medians, in ms",
        row.ranks, row.processes, row.nodes, row.fabrics
    ))?;
    let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
    let or_dash = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), ms);
    let cells = [
        ("Joined", 9, ms(row.joined_seconds)),
        ("First", 8, ms(row.first_message_seconds)),
        ("All", 8, ms(row.seconds)),
        ("Job", 8, ms(row.job_seconds)),
        ("CPU", 7, ms(row.job_cpu_seconds)),
        ("Empty", 8, ms(row.empty_seconds)),
        ("CPU", 7, ms(row.empty_cpu_seconds)),
        ("Fabric", 8, or_dash(row.libfabric_seconds)),
        ("CPU", 7, or_dash(row.libfabric_cpu_seconds)),
    ];
    table::print(&cells, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_sends_to_another_node_where_there_is_one() {
        for sizes in [
            &[2, 2, 2, 2][..],
            &[3, 2],
            &[2, 1, 1],
            &[1, 3, 2],
            &[1, 1],
            &[3],
            &[1],
        ] {
            let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
            let mut sources: Vec<u64> = Vec::new();
            for rank in (0..topology.size()).map(Rank) {
                let target = target_of(&topology, rank);
                let same = topology.node_of(target) == topology.node_of(rank);
                assert_eq!(same, sizes.len() == 1, "{sizes:?}, {rank}");
                sources.extend(sources_of(&topology, rank));
            }
            sources.sort_unstable();
            let all: Vec<u64> = (0..u64::from(topology.size())).collect();
            assert_eq!(sources, all, "{sizes:?}: each is awaited once");
        }
    }
}
