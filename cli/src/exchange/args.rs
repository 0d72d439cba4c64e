//! Command line of `trihop exchange`.

use std::path::PathBuf;
use std::str::FromStr;

use trihop::BroadcastTo;

use super::error::{Error, Result};
use super::logs::LogOptions;
use super::options::EngineOptions;
use crate::number::whole;

/// Exchange messages between all ranks, each verified by its receiver
///
/// Every rank runs the same command (`trihop run -n 8 --nodes 4 -- trihop exchange ...`, or
/// `mpiexec`); without a launcher it is a job of one rank. Each receiver checks number and order
/// per source, kind, length and checksum of every message, and counts them against what their
/// sources have sent. Rank 0 prints what all ranks measured.
///
/// Exit status: 0 done, 1 failed (a wrong or missing message is named with source and target), 2
/// bad options.
///
/// TRIHOP_SEED=N is --seed N.
#[derive(Clone, Debug, clap::Args)]
pub struct ExchangeArgs {
    /// Messages that each sending rank sends
    #[arg(short = 'c', long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = whole::<u64>(..))]
    pub count: u64,

    /// Length of a message: one (64), any in a range (0-4K), or one of a list (8,64,1K); K and M
    /// are binary
    #[arg(short = 'i', long, value_name = "BYTES", default_value = "64")]
    pub size: Sizes,

    /// Who sends to whom
    #[command(flatten)]
    pub pattern: Pattern,

    /// Seed of targets, sizes and contents; by default TRIHOP_SEED, else a random one, which is
    /// printed
    #[arg(long, value_name = "N", value_parser = whole::<u64>(..))]
    pub seed: Option<u64>,

    /// All ranks flush, as --flush says, after each N messages of a sender; 0 is never
    #[arg(short = 'f', long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = whole::<u64>(..))]
    pub fence_every: u64,

    /// Each receiver sleeps this long for each message
    #[arg(short = 'o', long, value_name = "MS", default_value_t = 0)]
    #[arg(value_parser = whole::<u64>(..))]
    pub deliver_delay_ms: u64,

    /// How all ranks flush, at the end and before it: one fence, one round, or flushes of the
    /// origin, remote and relay queues and of the deliveries with barriers in between
    #[arg(long, value_enum, default_value = "fence")]
    pub flush: Ending,

    /// Takes messages by polling instead of by a handler
    #[arg(long)]
    pub poll: bool,

    /// A thread makes progress and another one delivers, instead of the calls of the exchange
    #[arg(long, conflicts_with = "poll")]
    pub threaded: bool,

    /// Gives up when this rank has sent and received nothing for so many seconds; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = whole::<u64>(..))]
    pub stall_s: u64,

    /// Gives up when the exchange takes longer than so many seconds; 0 is never
    #[arg(short = 't', long, value_name = "SECONDS", default_value_t = 0)]
    #[arg(value_parser = whole::<u64>(..))]
    pub timeout_s: u64,

    /// Each rank writes what it knows of the others to PREFIX.RANK.id, .lmap and .rmap, as `trihop
    /// topo --output` does
    #[arg(short = 'N', long, value_name = "PREFIX")]
    pub topo: Option<PathBuf>,

    /// Shows no progress bar (there is none unless standard error is a terminal)
    #[arg(short = 'q', long, conflicts_with = "print")]
    pub quiet: bool,

    /// Each rank writes a line to standard error for each message that it sends or receives
    #[arg(long)]
    pub print: bool,

    /// Number of this run, to tell reports apart
    #[arg(short = 'r', long, value_name = "N", value_parser = whole::<u64>(..))]
    pub run_number: Option<u64>,

    /// Reports time, page faults and context switches of each rank, while it was sending and
    /// altogether
    #[arg(short = 'T', long)]
    pub usage: bool,

    /// Reports what each queue of each rank has done: runs of its own and forwarded, batches and
    /// why they left, waits; and with --threaded what each thread has used
    #[arg(long)]
    pub detail: bool,

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,

    /// Each rank writes the state of its queues to standard error at the end
    #[arg(long)]
    pub dump: bool,

    /// What is logged, and where to
    #[command(flatten)]
    pub logs: LogOptions,

    /// Options of the library
    #[command(flatten)]
    pub options: EngineOptions,
}

impl ExchangeArgs {
    /// Checks what needs no job to be known.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(&self) -> Result<()> {
        let min = self.pattern.min_sender;
        match self.pattern.max_sender {
            Some(max) if max < min => Err(Error::Usage(format!(
                "--max-sender {max} is below --min-sender {min}; no rank would send"
            ))),
            _ => Ok(()),
        }
    }

    /// What must be equal on all ranks, as one word.
    pub fn agreement(&self) -> u64 {
        let same = Self {
            seed: None,
            stall_s: 0,
            deliver_delay_ms: 0,
            json: false,
            dump: false,
            poll: false,
            threaded: false,
            timeout_s: 0,
            topo: None,
            quiet: false,
            print: false,
            run_number: None,
            logs: LogOptions::default(),
            options: EngineOptions::default(),
            ..self.clone()
        };
        xxhash_rust::xxh3::xxh3_64(format!("{same:?}").as_bytes())
    }
}

/// Who sends to whom; by default every rank to uniformly random ones, itself included.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Pattern {
    /// All messages go to this rank
    #[arg(short = 'R', long, value_name = "RANK", conflicts_with = "round_robin")]
    #[arg(value_parser = whole::<u32>(..))]
    pub only_to: Option<u32>,

    /// Lowest rank that sends
    #[arg(short = 'n', long, value_name = "RANK", default_value_t = 0)]
    #[arg(value_parser = whole::<u32>(..))]
    pub min_sender: u32,

    /// Highest rank that sends; by default the last
    #[arg(short = 's', long, value_name = "RANK", value_parser = whole::<u32>(..))]
    pub max_sender: Option<u32>,

    /// Targets in turn, each rank beginning behind itself, instead of uniformly random ones
    #[arg(short = 'l', long)]
    pub round_robin: bool,

    /// No rank sends to itself
    #[arg(short = 'e', long)]
    pub exclude_self: bool,

    /// Each message is a broadcast, to all ranks but its sender
    #[arg(short = 'A', long, conflicts_with_all = ["only_to", "round_robin", "exclude_self"])]
    pub broadcast: bool,

    /// Broadcasts come to their sender too
    #[arg(short = 'k', long, requires = "broadcast")]
    pub broadcast_self: bool,
}

impl Pattern {
    /// Who gets each message, where messages are broadcasts.
    pub fn audience(&self) -> Option<BroadcastTo> {
        match (self.broadcast, self.broadcast_self) {
            (false, _) => None,
            (true, false) => Some(BroadcastTo::Others),
            (true, true) => Some(BroadcastTo::Everyone),
        }
    }
}

/// How an exchange ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// One collective fence.
    Fence,
    /// One round, as programs end their steps whose handlers do not send.
    Round,
    /// The four flushes of DeltaFS, with barriers in between.
    Four,
}

/// Lengths of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Every length from the first to the second, both included.
    Range(usize, usize),
    /// One of these.
    List(Vec<usize>),
}

impl Sizes {
    /// The length that a random word stands for.
    pub fn pick(&self, random: u64) -> usize {
        match self {
            Self::Range(low, high) => low + below(random, (high - low) as u64 + 1) as usize,
            Self::List(all) => all[below(random, all.len() as u64) as usize],
        }
    }

    /// Longest of them.
    pub fn largest(&self) -> usize {
        match self {
            Self::Range(_, high) => *high,
            Self::List(all) => all.iter().copied().max().unwrap_or(0),
        }
    }
}

/// Maps a random word evenly to 0 .. `limit`.
pub fn below(random: u64, limit: u64) -> u64 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u64
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Range(low, high) => write!(f, "{low}-{high}"),
            Self::List(all) => {
                let texts: Vec<String> = all.iter().map(usize::to_string).collect();
                f.write_str(&texts.join(","))
            }
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((low, high)) = text.split_once('-') {
            let (low, high) = (bytes(low)?, bytes(high)?);
            if low > high {
                return Err(format!("{low} is above {high}"));
            }
            return Ok(Self::Range(low, high));
        }
        text.split(',')
            .map(bytes)
            .collect::<Result<_, _>>()
            .map(Self::List)
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number = digits
        .parse::<u32>()
        .ok()
        .map(|number| u64::from(number) * unit);
    match number.and_then(|bytes| u32::try_from(bytes).ok()) {
        Some(bytes) => Ok(bytes as usize),
        None => Err(format!("`{text}` is no number of bytes below 4096M")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ExchangeArgs,
    }

    fn parsed(args: &[&str]) -> ExchangeArgs {
        Cli::try_parse_from(["exchange"].iter().chain(args))
            .unwrap()
            .args
    }

    #[test]
    fn sizes_are_one_a_range_or_a_list() {
        assert_eq!("64".parse(), Ok(Sizes::List(vec![64])));
        assert_eq!("0-4K".parse(), Ok(Sizes::Range(0, 4096)));
        assert_eq!(
            "8, 1k,64M".parse(),
            Ok(Sizes::List(vec![8, 1024, 64 << 20]))
        );
        for wrong in [
            "",
            "x",
            "9-3",
            "1,",
            "-1",
            "4096M",
            "5000000000",
            "K",
            "99999999999M",
        ] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
        let range = Sizes::Range(3, 6);
        let mut seen: Vec<usize> = (0..64).map(|i| range.pick(i << 58)).collect();
        seen.dedup();
        assert_eq!(seen, [3, 4, 5, 6]);
        assert_eq!(range.pick(u64::MAX), 6);
        assert_eq!(
            (range.largest(), Sizes::List(vec![5, 9, 2]).largest()),
            (6, 9)
        );
        for text in ["64", "0-4096", "8,1024"] {
            assert_eq!(text.parse::<Sizes>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn short_options_are_those_of_nexus_runner() {
        let default = format!("{:?}", parsed(&[]));
        for (short, long) in [
            (&["-c", "9"][..], &["--count", "9"][..]),
            (&["-D", "info"], &["--log", "info"]),
            (
                &["-E", "info", "-X", "9"],
                &["--log-extra", "info", "--log-extra-max", "9"],
            ),
            (
                &["-F", "x", "-S", "warn"],
                &["--log-file", "x", "--log-stderr", "warn"],
            ),
            (&["-I", "9"], &["--log-ring-bytes", "9"]),
            (&["-A", "-k"], &["--broadcast", "--broadcast-self"]),
            (&["-e"], &["--exclude-self"]),
            (&["-f", "9"], &["--fence-every", "9"]),
            (&["-i", "9"], &["--size", "9"]),
            (&["-l"], &["--round-robin"]),
            (&["-N", "x"], &["--topo", "x"]),
            (&["-n", "9"], &["--min-sender", "9"]),
            (&["-o", "9"], &["--deliver-delay-ms", "9"]),
            (&["-q"], &["--quiet"]),
            (&["-R", "9"], &["--only-to", "9"]),
            (&["-r", "9"], &["--run-number", "9"]),
            (&["-s", "9"], &["--max-sender", "9"]),
            (&["-T"], &["--usage"]),
            (&["-t", "9"], &["--timeout-s", "9"]),
        ] {
            let [short, long] = [short, long].map(|args| format!("{:?}", parsed(args)));
            assert_eq!(short, long);
            assert_ne!(short, default);
        }
    }

    #[test]
    fn what_decides_the_traffic_is_agreed_on_and_nothing_else() {
        let word = parsed(&[]).agreement();
        assert_eq!(
            parsed(&[
                "--json",
                "--dump",
                "--seed",
                "4",
                "--print",
                "-r",
                "1",
                "--threaded"
            ])
            .agreement(),
            word
        );
        for other in [
            ["--count", "9"],
            ["--size", "9"],
            ["--min-sender", "1"],
            ["--flush", "four"],
            ["-f", "9"],
            ["-A", "-k"],
        ] {
            assert_ne!(parsed(&other).agreement(), word, "{other:?}");
        }
        let backwards = parsed(&["--min-sender", "3", "--max-sender", "2"]);
        assert!(backwards.check().is_err());
    }
}
