//! Every option of the library as a long option, as it is called there.

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use trihop::Options;

use super::error::Result;

/// Name in the library, long option, short option as `nexus-runner` has it, what it means.
type Known = (&'static str, &'static str, Option<char>, &'static str);

/// Fields of `trihop::StreamOptions`.
const QUEUES: &[Known] = &[
    (
        "origin_maxrpc",
        "origin-maxrpc",
        Some('m'),
        "Batches of the origin class that may be unconsumed per local queue",
    ),
    (
        "origin_buftarget_bytes",
        "origin-buftarget-bytes",
        Some('a'),
        "Bytes after which an origin lane is shown to its consumer",
    ),
    (
        "relay_maxrpc",
        "relay-maxrpc",
        Some('y'),
        "As --origin-maxrpc, for relay lanes",
    ),
    (
        "relay_buftarget_bytes",
        "relay-buftarget-bytes",
        Some('b'),
        "As --origin-buftarget-bytes, for relay lanes",
    ),
    (
        "remote_maxrpc",
        "remote-maxrpc",
        Some('M'),
        "Batches per link that may be in flight",
    ),
    (
        "remote_buftarget_bytes",
        "remote-buftarget-bytes",
        Some('B'),
        "Bytes at which a batch between nodes is sealed",
    ),
    (
        "origin_sender_limit",
        "origin-sender-limit",
        Some('z'),
        "Bytes of own sends that may be unconsumed in all origin lanes together, in units of --origin-buftarget-bytes; 0 for no limit",
    ),
    (
        "remote_sender_limit",
        "remote-sender-limit",
        Some('Z'),
        "Batches with own sends that may be unacknowledged in all remote queues together; 0 for no limit",
    ),
    (
        "deliverq_max",
        "deliverq-max",
        Some('d'),
        "Records that may wait for a delivery thread (--threaded), or to be taken (--poll)",
    ),
    (
        "deliverq_bytes",
        "deliverq-bytes",
        None,
        "As --deliverq-max, in bytes",
    ),
    (
        "deliverq_discard",
        "deliverq-discard",
        None,
        "For debugging: 1 drops what arrives, counted",
    ),
    (
        "deliverq_threshold",
        "deliverq-threshold",
        None,
        "Records for which a delivery thread is woken; fewer wait a millisecond, or until a flush",
    ),
    (
        "priority",
        "priority",
        None,
        "Streams of a higher priority are served first, up to 255",
    ),
    (
        "linger_us",
        "linger-us",
        None,
        "Longest wait of a partial run or batch in microseconds",
    ),
    ("run_bytes", "run-bytes", None, "Size of a run"),
    (
        "run_table_bytes",
        "run-table-bytes",
        None,
        "Memory of short open runs; long ones take as much again",
    ),
    (
        "lane_budget_bytes",
        "lane-budget-bytes",
        None,
        "Memory of the lanes into a rank",
    ),
    (
        "spill_bytes",
        "spill-bytes",
        None,
        "Bound of what handlers' sends may spill; 0: a share of memory",
    ),
    (
        "spill_mark_bytes",
        "spill-mark-bytes",
        None,
        "Spill from which on deliveries wait as long as it drains",
    ),
    ("max_message_bytes", "max-message-bytes", None, "Longest record"),
    (
        "reassembly_bytes",
        "reassembly-bytes",
        None,
        "Bytes of long records that a rank puts together at a time",
    ),
    (
        "send_pool_bytes",
        "send-pool-bytes",
        None,
        "Memory for send batches of a rank",
    ),
    (
        "receive_pool_bytes",
        "receive-pool-bytes",
        None,
        "Memory for shared large receive slots of a rank",
    ),
    (
        "small_slot_bytes",
        "small-slot-bytes",
        None,
        "Size of the receive slot that every link always has",
    ),
];

/// The other fields of `trihop::Options`.
const JOB: &[Known] = &[
    (
        "route",
        "route",
        None,
        "How messages travel: three-hop, direct or fabric-only (ranks of a node use the fabric too)",
    ),
    ("provider", "provider", None, "libfabric provider between nodes"),
    (
        "interface",
        "interface",
        None,
        "Network interface, domain or address",
    ),
    (
        "eager_bytes",
        "eager-bytes",
        None,
        "Longest batch that is sent without asking",
    ),
    (
        "mover",
        "mover",
        None,
        "How longer batches move: read or segments",
    ),
    (
        "launcher",
        "launcher",
        None,
        "Who started the job: pmix, pmi1, local or single",
    ),
    (
        "loopback",
        "loopback",
        None,
        "1 where nodes are simulated on one machine",
    ),
    (
        "bootstrap_timeout_ms",
        "bootstrap-timeout-ms",
        None,
        "Longest wait for other ranks at start, in milliseconds",
    ),
    (
        "watch_timeout_ms",
        "watch-timeout-ms",
        None,
        "How long another node may be out of reach before its ranks count as dead, in milliseconds",
    ),
];

/// Options of the library as given, by their names there; the library checks them.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions(Vec<(&'static str, String)>);

impl EngineOptions {
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

impl FromArgMatches for EngineOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Self::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (name, ..) in QUEUES.iter().chain(JOB) {
            if let Some(value) = matches.get_one::<String>(name) {
                self.0.push((name, value.clone()));
            }
        }
        Ok(())
    }
}

impl clap::Args for EngineOptions {
    fn augment_args(command: Command) -> Command {
        let args = |known: &'static [Known], value: &'static str, heading: &'static str| {
            known.iter().map(move |&(name, long, short, help)| {
                let arg = Arg::new(name).long(long).value_name(value);
                let arg = arg.help(help).help_heading(heading);
                match short {
                    Some(short) => arg.short(short),
                    None => arg,
                }
            })
        };
        command
            .args(args(QUEUES, "N", "Queues (as TRIHOP_*)"))
            .args(args(JOB, "VALUE", "Job (as TRIHOP_*)"))
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
        options: EngineOptions,
    }

    fn parsed(args: &[&str]) -> EngineOptions {
        Cli::try_parse_from(["exchange"].iter().chain(args))
            .unwrap()
            .options
    }

    #[test]
    fn every_option_of_the_library_is_a_long_option_of_the_same_name() {
        let known: Vec<&Known> = QUEUES.iter().chain(JOB).collect();
        let mut names: Vec<&str> = known.iter().map(|known| known.0).collect();
        let mut all = Options::NAMES;
        names.sort_unstable();
        all.sort_unstable();
        assert_eq!(names, all);
        for (name, long, ..) in known {
            assert_eq!(name.replace('_', "-"), *long);
        }
    }

    /// A value for each option that is not its default.
    fn other_value(name: &str) -> String {
        let words = ["direct", "shm", "127.0.0.9", "read", "single"].map(str::to_owned);
        let numbers = (0..40).map(|power| ((1u64 << power) + 1).to_string());
        let fits = |value: &String| {
            let mut options = Options::default();
            let set = options.set(name, value);
            set.is_ok() && options.check().is_ok() && options != Options::default()
        };
        let one = std::iter::once("1".to_owned());
        words
            .into_iter()
            .chain(one)
            .chain(numbers)
            .find(fits)
            .unwrap_or_else(|| panic!("no other value for {name}"))
    }

    #[test]
    fn every_option_long_or_short_sets_its_field_and_no_other() {
        for &(name, long, short, _) in QUEUES.iter().chain(JOB) {
            let value = other_value(name);
            let mut expected = Options::default();
            expected.set(name, &value).unwrap();
            let short = short.map(|short| format!("-{short}"));
            for option in [Some(format!("--{long}")), short].into_iter().flatten() {
                let mut options = Options::default();
                parsed(&[&option, &value]).apply(&mut options).unwrap();
                assert_eq!(options, expected, "{option} {value}");
            }
        }
    }

    #[test]
    fn options_reach_the_library_and_its_errors_come_back() {
        let mut options = Options::default();
        parsed(&["-M", "1", "--linger-us=7", "--provider", "shm"])
            .apply(&mut options)
            .unwrap();
        assert_eq!((options.stream.remote_maxrpc, options.stream.linger_us), (1, 7));
        assert_eq!(options.provider.as_deref(), Some("shm"));
        for value in ["0", "many"] {
            let error = parsed(&["--remote-maxrpc", value])
                .apply(&mut Options::default())
                .unwrap_err();
            assert!(error.to_string().contains("remote_maxrpc"), "{error}");
            assert_eq!(error.exit_status(), 2);
        }
    }
}
