//! Sorts the lines of a file, each rank a part: `trihop run -n 4 --nodes 2 --
//! target/release/examples/sort [FILE [SORTED]]`.
//!
//! A sample of all lines says which rank gets which range of them, so that all ranks get about
//! equally many (lines that are equal stay together). What is written is what `LC_ALL=C sort`
//! writes; every rank compares its lines with those of a sequential run.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use trihop::{Job, Options, Rank, Reduce, State};

#[path = "text/mod.rs"]
mod text;
use text::Text;

/// Lines that each rank shows to all others, for each rank that there is.
const SAMPLES: usize = 16;

/// Bytes of a line that are shown: a bound between ranks need not be a whole line.
const SHOWN: usize = 64;

fn made() -> String {
    let mut state = 1u64;
    let mut text = String::new();
    for number in 0..100_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text += &format!("{:x} was line {number}\n", state >> (state % 48));
    }
    text
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    lines
        .map(|line| line.strip_suffix(b"\n").unwrap_or(line))
        .collect()
}

/// Where the range of each rank ends that is not the last one.
fn bounds(job: &Job<'_>, sorted: &[&[u8]]) -> trihop::Result<Vec<Vec<u8>>> {
    let wanted = SAMPLES * job.size() as usize;
    let mut own = Vec::new();
    for sample in 0..wanted.min(sorted.len()) {
        let line = sorted[sample * sorted.len() / wanted.min(sorted.len())];
        own.extend_from_slice(&line[..line.len().min(SHOWN)]);
        own.push(b'\n');
    }
    let all = job.allgather(&own)?.concat();
    let mut all = lines(&all);
    all.sort_unstable();
    let end_of = |rank: u32| all.get(rank as usize * all.len() / job.size() as usize);
    let ends = (1..job.size()).filter_map(end_of);
    Ok(ends.map(|line| line.to_vec()).collect())
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = Text::named_or("made lines", made);
    let output = std::env::args().nth(2);
    let arrived = State::new(Vec::<Vec<u8>>::new());

    let job = Job::start(Options::from_env()?)?;
    let (rank, ranks) = (job.rank(), job.size());
    let shuffle = job
        .shuffle("lines")
        .handler_with(&arrived, |arrived, message, _outbox| {
            arrived.push(message.bytes.to_vec());
        })
        .open()?;
    let part = text.part(rank.0, ranks)?;
    let mut own = lines(&part);
    own.sort_unstable();
    let bounds = bounds(&job, &own)?;
    for line in own {
        let target = bounds.partition_point(|bound| &bound[..] <= line);
        shuffle.send(Rank(target as u32), 0, line)?;
    }
    shuffle.round()?;
    let mut sorted = arrived.with(std::mem::take);
    sorted.sort_unstable();

    // Where this rank's lines stand among all lines: how many lines and bytes stand before them.
    let bytes = sorted.iter().map(|line| line.len() as u64 + 1).sum();
    let mut place = [sorted.len() as u64, bytes];
    let mut all = [sorted.len() as u64, sorted.len() as u64];
    job.exscan(&mut place, Reduce::Sum)?;
    job.allreduce(&mut all[..1], Reduce::Sum)?;
    job.allreduce(&mut all[1..], Reduce::Max)?;
    if let Some(path) = &output {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(rank == Rank(0));
        if rank == Rank(0) {
            options.open(path).map_err(|e| format!("{path}: {e}"))?;
        }
        // The file is empty before anybody writes to it.
        job.barrier()?;
        let mut lines = sorted.join(&b'\n');
        lines.extend((!sorted.is_empty()).then_some(b'\n'));
        let file = options.truncate(false).open(path);
        file.and_then(|file| file.write_all_at(&lines, place[1]))
            .map_err(|e| format!("{path}: {e}"))?;
    }

    let whole = text.whole()?;
    let mut expected = lines(&whole);
    expected.sort_unstable();
    let first = place[0] as usize;
    let own = expected.get(first..first + sorted.len());
    let is_right = own.is_some_and(|own| own.iter().eq(&sorted)) && all[0] == expected.len() as u64;
    let mut wrong = [u64::from(!is_right)];
    job.allreduce(&mut wrong, Reduce::Sum)?;
    if rank == Rank(0) {
        let ([lines, most], [wrong]) = (all, wrong);
        println!(
            "{}: {ranks} ranks: {lines} lines, at most {most} at a rank, {wrong} parts are wrong",
            text.name()
        );
    }
    shuffle.shutdown()?;
    job.shutdown()?;
    match wrong {
        [0] => Ok(()),
        _ => Err("every line has to be where a sequential run has it".into()),
    }
}
