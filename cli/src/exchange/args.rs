//! Command line of `trihop exchange`.

use std::str::FromStr;

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use trihop::Options;

use super::error::{Error, Result};

/// Exchanges messages between all ranks and checks every one of them.
///
/// Every rank runs the same command (`trihop run -n 8 --nodes 4 -- trihop exchange ...`, or `mpiexec`); without a launcher it is a job
/// of one rank. Each receiver checks number and order per source, kind, length and checksum of every message, and counts
/// them against what their sources have sent. Rank 0 prints what all ranks measured.
///
/// Exit status: 0 done, 1 failed (a wrong or missing message is named with source and target), 2 bad options.
///
/// TRIHOP_SEED=N is --seed N.
#[derive(Clone, Debug, clap::Args)]
pub struct ExchangeArgs {
    /// Messages that each sending rank sends
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub count: u64,

    /// Length of a message: one (64), any in a range (0-4K), or one of a list (8,64,1K); K and M are binary
    #[arg(long, value_name = "BYTES", default_value = "64")]
    pub size: Sizes,

    /// Who sends to whom
    #[command(flatten)]
    pub pattern: Pattern,

    /// Seed of targets, sizes and contents; by default TRIHOP_SEED, else a random one, which is printed
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// All ranks fence after each N messages of a sender; 0 is never
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub fence_every: u64,

    /// Each receiver sleeps this long for each message
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub deliver_delay_ms: u64,

    /// How the exchange ends: one fence, or flushes of the origin, remote and relay queues and of the deliveries with barriers in between
    #[arg(long, value_enum, default_value = "fence")]
    pub flush: Ending,

    /// Takes messages by polling instead of by a handler
    #[arg(long)]
    pub poll: bool,

    /// Gives up when this rank has sent and received nothing for so many seconds; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub stall_s: u64,

    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,

    /// Each rank writes the state of its queues to standard error at the end
    #[arg(long)]
    pub dump: bool,

    /// Options of the queues
    #[command(flatten)]
    pub queues: QueueOptions,
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
            queues: QueueOptions::default(),
            ..self.clone()
        };
        xxhash_rust::xxh3::xxh3_64(format!("{same:?}").as_bytes())
    }
}

/// Who sends to whom; by default every rank to uniformly random ones, itself included.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Pattern {
    /// All messages go to this rank
    #[arg(long, value_name = "RANK", conflicts_with = "round_robin")]
    pub only_to: Option<u32>,

    /// Lowest rank that sends
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub min_sender: u32,

    /// Highest rank that sends; by default the last
    #[arg(long, value_name = "RANK")]
    pub max_sender: Option<u32>,

    /// Targets in turn, each rank beginning behind itself, instead of uniformly random ones
    #[arg(long)]
    pub round_robin: bool,

    /// No rank sends to itself
    #[arg(long)]
    pub exclude_self: bool,
}

/// How an exchange ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// One collective fence.
    Fence,
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
    let number = digits.parse::<u32>().ok().map(|number| u64::from(number) * unit);
    match number.and_then(|bytes| u32::try_from(bytes).ok()) {
        Some(bytes) => Ok(bytes as usize),
        None => Err(format!("`{text}` is no number of bytes below 4096M")),
    }
}

/// Field of `StreamOptions`, its long option, what it means.
const QUEUES: [(&str, &str, &str); 23] = [
    (
        "origin_maxrpc",
        "origin-maxrpc",
        "Batches of the origin class that may be unconsumed per local queue",
    ),
    (
        "origin_buftarget_bytes",
        "origin-buftarget-bytes",
        "Bytes after which an origin lane is shown to its consumer",
    ),
    (
        "relay_maxrpc",
        "relay-maxrpc",
        "As --origin-maxrpc, for relay lanes",
    ),
    (
        "relay_buftarget_bytes",
        "relay-buftarget-bytes",
        "As --origin-buftarget-bytes, for relay lanes",
    ),
    (
        "remote_maxrpc",
        "remote-maxrpc",
        "Batches per link that may be in flight",
    ),
    (
        "remote_buftarget_bytes",
        "remote-buftarget-bytes",
        "Bytes at which a batch between nodes is sealed",
    ),
    (
        "origin_sender_limit",
        "origin-sender-limit",
        "Publishes of own sends that may be unconsumed in all origin lanes together",
    ),
    (
        "remote_sender_limit",
        "remote-sender-limit",
        "Batches with own sends that may be outstanding to all nodes together",
    ),
    (
        "deliverq_max",
        "deliverq-max",
        "Records that may wait for an application without a handler",
    ),
    (
        "deliverq_bytes",
        "deliverq-bytes",
        "Bytes that may wait for an application without a handler",
    ),
    (
        "deliverq_discard",
        "deliverq-discard",
        "For debugging: 1 drops what arrives, counted",
    ),
    (
        "deliverq_threshold",
        "deliverq-threshold",
        "Records for which a delivery thread is woken",
    ),
    (
        "linger_us",
        "linger-us",
        "Longest wait of a partial run or batch in microseconds",
    ),
    ("run_bytes", "run-bytes", "Size of a run"),
    (
        "run_table_bytes",
        "run-table-bytes",
        "Memory of short open runs; long ones take as much again",
    ),
    (
        "lane_budget_bytes",
        "lane-budget-bytes",
        "Memory of the lanes into a rank",
    ),
    (
        "spill_bytes",
        "spill-bytes",
        "Bound of what handlers' sends may spill",
    ),
    (
        "handler_reserve_bytes",
        "handler-reserve-bytes",
        "Spill that must be free before a handler is called",
    ),
    ("max_message_bytes", "max-message-bytes", "Longest record"),
    (
        "reassembly_bytes",
        "reassembly-bytes",
        "Bytes of long records that a rank puts together at a time",
    ),
    (
        "send_pool_bytes",
        "send-pool-bytes",
        "Memory for send batches of a rank",
    ),
    (
        "receive_pool_bytes",
        "receive-pool-bytes",
        "Memory for shared large receive slots of a rank",
    ),
    (
        "small_slot_bytes",
        "small-slot-bytes",
        "Size of the receive slot that every link always has",
    ),
];

/// Options of the queues as given: one long option per field of `trihop::StreamOptions`, checked by the library.
#[derive(Clone, Debug, Default)]
pub struct QueueOptions(Vec<(&'static str, String)>);

impl QueueOptions {
    /// Sets what was given, above the environment.
    ///
    /// # Errors
    /// The library's, for a value that is none or does not fit the others.
    pub fn apply(&self, options: &mut Options) -> Result<()> {
        for (name, value) in &self.0 {
            options.set(name, value)?;
        }
        Ok(options.check()?)
    }
}

impl FromArgMatches for QueueOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Self::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (name, _, _) in QUEUES {
            if let Some(value) = matches.get_one::<String>(name) {
                self.0.push((name, value.clone()));
            }
        }
        Ok(())
    }
}

impl clap::Args for QueueOptions {
    fn augment_args(command: Command) -> Command {
        let args = QUEUES.map(|(name, long, help)| {
            Arg::new(name)
                .long(long)
                .value_name("N")
                .help(help)
                .help_heading("Queues (as TRIHOP_*)")
        });
        command.args(args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
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
        Cli::try_parse_from(["exchange"].iter().chain(args)).unwrap().args
    }

    #[test]
    fn every_field_of_the_stream_options_is_a_long_option() {
        let fields = serde_json::to_value(trihop::StreamOptions::default()).unwrap();
        let mut fields: Vec<&String> = fields.as_object().unwrap().keys().collect();
        let mut names = QUEUES.map(|(name, _, _)| name);
        fields.sort();
        names.sort_unstable();
        assert_eq!(fields, names);
        for (name, long, _) in QUEUES {
            assert_eq!(name.replace('_', "-"), long);
        }
    }

    #[test]
    fn queue_options_reach_the_library_and_its_errors_come_back() {
        let mut options = Options::default();
        parsed(&["--remote-maxrpc", "1", "--linger-us=7"])
            .queues
            .apply(&mut options)
            .unwrap();
        assert_eq!((options.stream.remote_maxrpc, options.stream.linger_us), (1, 7));
        for value in ["0", "many"] {
            let error = parsed(&["--remote-maxrpc", value])
                .queues
                .apply(&mut Options::default())
                .unwrap_err();
            assert!(error.to_string().contains("remote_maxrpc"), "{error}");
            assert_eq!(error.exit_status(), 2);
        }
    }

    #[test]
    fn sizes_are_one_a_range_or_a_list() {
        assert_eq!("64".parse(), Ok(Sizes::List(vec![64])));
        assert_eq!("0-4K".parse(), Ok(Sizes::Range(0, 4096)));
        assert_eq!("8, 1k,64M".parse(), Ok(Sizes::List(vec![8, 1024, 64 << 20])));
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
        assert_eq!((range.largest(), Sizes::List(vec![5, 9, 2]).largest()), (6, 9));
        for text in ["64", "0-4096", "8,1024"] {
            assert_eq!(text.parse::<Sizes>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_decides_the_traffic_is_agreed_on_and_nothing_else() {
        let word = parsed(&[]).agreement();
        assert_eq!(parsed(&["--json", "--dump", "--seed", "4"]).agreement(), word);
        for other in [
            ["--count", "9"],
            ["--size", "9"],
            ["--min-sender", "1"],
            ["--flush", "four"],
        ] {
            assert_ne!(parsed(&other).agreement(), word, "{other:?}");
        }
        let backwards = parsed(&["--min-sender", "3", "--max-sender", "2"]);
        assert!(backwards.check().is_err());
    }
}
