//! Options by name: those of the environment, and what sets one.

mod unknown;

use std::ffi::OsString;

use super::Options;
use crate::error::{Error, Result};

/// Variables that belong to the launcher, the command line, the logs or tests, not to [`Options`];
/// those of tests alone are `TEST_*`, and those of the library in `doors/mpi` `ALLTOALL_*`.
const NOT_OPTIONS: [&str; 25] = [
    "AGENT",
    "AGENT_JOB",
    "AGENT_LINGER_MS",
    "AGENT_NODES",
    "AGENT_PLACE",
    "AGENT_START",
    "AGENT_STARTED",
    "BOOT_FD",
    "BOUND",
    "GUESTS",
    "MAX_GETMSG_MB",
    "MINIS_PER_RANK",
    "PROGRESS_FD",
    "RANK",
    "SIZE",
    "NODE_SIZES",
    "IO",
    "SEED",
    "SCHEDULES",
    "LOG",
    "LOG_FILE",
    "TRACE",
    "KILLS",
    "MASTER",
    "SECRET_FILE",
];

fn is_option(name: &str) -> bool {
    Options::TABLE.iter().any(|row| row.name == name)
}

impl Options {
    /// Defaults, overridden by the process's environment.
    ///
    /// # Errors
    /// A `TRIHOP_*` variable that is nearly the name of an option, or an impossible value. Other
    /// unknown variables, such as the `TRIHOP_ROOT` of an environment module, are named in one
    /// warning.
    pub fn from_env() -> Result<Self> {
        // Names of ours are plain text.
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self::read(variables)
    }

    /// As [`Options::from_env`], from any list of variables.
    ///
    /// # Errors
    /// As [`Options::from_env`].
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        Self::read(
            variables
                .into_iter()
                .map(|(name, value)| (name, value.into())),
        )
    }

    fn read(variables: impl Iterator<Item = (String, OsString)>) -> Result<Self> {
        let (options, unknown) = Self::parse(variables)?;
        unknown::warn(&unknown);
        Ok(options)
    }

    /// Options, and the variables that say nothing to them.
    fn parse(variables: impl Iterator<Item = (String, OsString)>) -> Result<(Self, Vec<String>)> {
        let mut options = Self::default();
        let mut fi_provider = None;
        let mut unknown = Vec::new();
        for (name, value) in variables {
            let key = name.strip_prefix("TRIHOP_");
            if value.is_empty() || (key.is_none() && name != "FI_PROVIDER") {
                continue; // as if it were not set, or somebody else's
            }
            let is_anothers = |key: &str| key.starts_with("TEST_") || key.starts_with("ALLTOALL_");
            if key.is_some_and(|key| NOT_OPTIONS.contains(&key) || is_anothers(key)) {
                continue;
            }
            if options
                .pools
                .set_variable(&name, &value.to_string_lossy())?
            {
                continue;
            }
            if let Some(key) = key.filter(|key| !is_option(&key.to_lowercase())) {
                match unknown::nearest(key) {
                    Some(meant) => {
                        let why = format!("no such option; {meant}: correct or unset it");
                        return Err(Error::config(&name, why));
                    }
                    None => unknown.push(name),
                }
                continue;
            }
            // Where a value is not text, it is at least shown where it is wrong.
            let value = value.into_string().map_err(|value| {
                Error::config(&name, format!("the value {value:?} is not UTF-8"))
            })?;
            if name == "FI_PROVIDER" {
                // A list or an exclusion filters inside libfabric, and the scores decide among what
                // is left.
                fi_provider = (!value.starts_with('^') && !value.contains(',')).then_some(value);
                continue;
            }
            let Some(key) = name.strip_prefix("TRIHOP_") else {
                continue;
            };
            options
                .set(&key.to_lowercase(), &value)
                .map_err(|error| match error {
                    Error::Config { why, .. } => Error::config(&name, why),
                    other => other,
                })?;
        }
        if options.provider.is_none() {
            options.provider = fi_provider;
        }
        options.check()?;
        Ok((options, unknown))
    }
}

/// The error for a name that no option has.
pub(super) fn unknown_name(key: &str) -> Error {
    let why = match unknown::likest(key) {
        Some(meant) => format!("no such option; {meant}"),
        None => "no such option; docs/OPTIONS.md lists them all".to_owned(),
    };
    Error::config(key, why)
}

#[cfg(test)]
mod tests {
    use trihop_transport::link::Mover;

    use super::*;
    use crate::config::OptionRow;

    fn from(pairs: &[(&str, &str)]) -> Result<Options> {
        Options::from_variables(
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
        )
    }

    #[test]
    fn bounds_of_pools_are_variables_and_no_options() {
        let options = from(&[("TRIHOP_MAX_INJECTION_MB", "2")]).unwrap();
        assert_eq!(options.pools.injection_bytes, 2 << 20);
        let text = from(&[("TRIHOP_MAX_EJECTION_MB", "2M")])
            .unwrap_err()
            .to_string();
        assert!(text.contains("TRIHOP_MAX_EJECTION_MB"), "{text}");
        let mut options = options;
        assert!(options.set("max_injection_mb", "2").is_err());
    }

    #[test]
    fn every_name_can_be_set_and_is_known() {
        let other = |row: &OptionRow| {
            let values = ["77", "300000", "1", "0", "direct", "single", "read", "own"];
            let differs = |value: &&str| {
                let mut options = Options::default();
                options.set(row.name, value).is_ok() && options != Options::default()
            };
            values.into_iter().find(differs).unwrap()
        };
        for row in Options::TABLE {
            let value = other(row);
            let (mut by_name, defaults) = (Options::default(), Options::default());
            by_name.set(row.name, value).unwrap();
            let by_variable = from(&[(&row.variable(), value)]).unwrap();
            assert_eq!(by_variable, by_name, "{}", row.name);
            assert_eq!(
                by_name.get(row.name).as_deref(),
                Some(value),
                "{}",
                row.name
            );
            let changed = |row: &&OptionRow| by_name.get(row.name) != defaults.get(row.name);
            let changed: Vec<&str> = Options::TABLE
                .iter()
                .filter(changed)
                .map(|row| row.name)
                .collect();
            assert_eq!(changed, [row.name], "one option is one field");
        }
        assert_eq!(Options::default().get("no such option"), None);
    }

    #[test]
    fn a_value_out_of_its_range_is_refused_with_the_range() {
        let mut ranges = 0;
        for row in Options::TABLE
            .iter()
            .filter(|row| row.values.contains(" to "))
        {
            let (low, high) = row.values.rsplit_once(" to ").unwrap();
            let number = |text: &str| {
                let (digits, unit) = text.split_once(' ').unwrap_or((text, ""));
                let shift = ["", "KiB", "MiB", "GiB", "TiB"]
                    .iter()
                    .position(|u| *u == unit);
                digits.replace('_', "").parse::<u64>().unwrap() << (10 * shift.unwrap())
            };
            let low = number(low.trim_start_matches("0 or "));
            let high = number(high);
            for beyond in [
                low.checked_sub(1).filter(|least| *least > 0),
                high.checked_add(1),
            ] {
                let Some(beyond) = beyond else { continue };
                let text = from(&[(&row.variable(), &beyond.to_string())])
                    .unwrap_err()
                    .to_string();
                assert!(text.contains(&row.variable()), "{text}");
                assert!(
                    text.contains(&format!("between {low} and {high}")),
                    "{text}"
                );
                let by_field = Options::default().set(row.name, &beyond.to_string());
                assert!(by_field.is_err(), "{}", row.name);
            }
            for none in ["x", "-1", "1.5", "99999999999999999999999"] {
                let refused = Options::default().set(row.name, none);
                let text = refused.unwrap_err().to_string();
                let expected = format!("a whole number between {low} and {high}");
                let is_told = text.contains(row.name) && text.contains(none);
                assert!(is_told && text.contains(&expected), "{text}");
            }
            for within in [low, high] {
                Options::default()
                    .set(row.name, &within.to_string())
                    .unwrap();
            }
            ranges += 1;
        }
        assert_eq!(ranges, 16);
        let mut options = Options::default();
        options.stream.memory_bytes = 1;
        let text = options.check().unwrap_err().to_string();
        assert!(
            text.contains("memory_bytes") && text.contains("between 65536 and"),
            "{text}"
        );
    }

    #[test]
    fn an_option_that_is_gone_says_what_has_its_place() {
        for (gone, now) in [
            (
                "TRIHOP_SEND_POOL_BYTES",
                "a fixed share of `memory_bytes` (TRIHOP_MEMORY_BYTES)",
            ),
            (
                "TRIHOP_LANE_BUDGET",
                "a fixed share of `memory_bytes` (TRIHOP_MEMORY_BYTES)",
            ),
            (
                "TRIHOP_REASSEMBLY_BYTES",
                "`max_message_bytes` (TRIHOP_MAX_MESSAGE_BYTES)",
            ),
            (
                "TRIHOP_ORIGIN_SENDER_LIMIT",
                "localsenderlimit of `struct shuffle_opts`",
            ),
            (
                "TRIHOP_PEER_TIMEOUT_MS",
                "`watch_timeout_ms` (TRIHOP_WATCH_TIMEOUT_MS)",
            ),
        ] {
            let text = from(&[(gone, "1")]).unwrap_err().to_string();
            assert!(text.contains(gone) && text.contains(now), "{text}");
        }
        let text = Options::default()
            .set("deliverq_bytes", "1")
            .unwrap_err()
            .to_string();
        assert!(text.contains("`memory_bytes`"), "{text}");
    }

    #[test]
    fn environment_names_are_field_names() {
        let options = from(&[
            ("TRIHOP_REMOTE_MAXRPC", "9"),
            ("TRIHOP_MOVER", "read"),
            ("HOME", "/"),
        ])
        .unwrap();
        assert_eq!(
            (options.stream.remote_maxrpc, options.mover),
            (9, Some(Mover::Read))
        );
        let options = from(&[("FI_PROVIDER", "shm"), ("TRIHOP_PROVIDER", "")]).unwrap();
        assert_eq!(options.provider.as_deref(), Some("shm"));
        assert_eq!(
            from(&[("FI_PROVIDER", "^shm")]).unwrap().provider,
            None,
            "left to libfabric"
        );
        assert_eq!(
            from(&[("FI_PROVIDER", "net,tcp")]).unwrap().provider,
            None,
            "left to libfabric"
        );
        assert!(from(&[("TRIHOP_LOOPBACK", "1"), ("TRIHOP_INTERFACE", "eth0")]).is_err());
    }

    fn unknown(names: &[&str]) -> Result<Vec<String>> {
        let variables = names.iter().map(|name| ((*name).to_owned(), "1".into()));
        Options::parse(variables).map(|(_, unknown)| unknown)
    }

    #[test]
    fn variables_of_modules_and_of_kubernetes_are_no_error() {
        let names = [
            "TRIHOP_ROOT",
            "TRIHOP_HOME",
            "TRIHOP_DIR",
            "TRIHOP_PATH",
            "TRIHOP_LIB",
            "TRIHOP_INC",
            "TRIHOP_VERSION",
            "TRIHOP_MODE",
            "TRIHOP_ID",
            "TRIHOP_FOO",
            "TRIHOP_SERVICE_HOST",
            "TRIHOP_SERVICE_PORT",
            "TRIHOP_PORT",
            "TRIHOP_PORT_80_TCP_ADDR",
        ];
        assert_eq!(unknown(&names).unwrap(), names);
    }

    #[test]
    fn a_typo_is_an_error_that_names_the_option() {
        for (typo, meant) in [
            ("TRIHOP_REMOTE_MAXRCP", "TRIHOP_REMOTE_MAXRPC"),
            ("TRIHOP_REMOTE_BUFTARGET", "TRIHOP_REMOTE_BUFTARGET_BYTES"),
            ("TRIHOP_LINGER_MS", "TRIHOP_LINGER_US"),
            ("TRIHOP_WATCH_TIMEOUT", "TRIHOP_WATCH_TIMEOUT_MS"),
            ("TRIHOP_PEER_TIMEOUT", "TRIHOP_WATCH_TIMEOUT_MS"),
            ("TRIHOP_ROUTES", "TRIHOP_ROUTE"),
            ("TRIHOP_PROVIDR", "TRIHOP_PROVIDER"),
            ("TRIHOP_LANCHER", "TRIHOP_LAUNCHER"),
            ("TRIHOP_LOGFILE", "TRIHOP_LOG_FILE"),
        ] {
            let text = unknown(&[typo]).unwrap_err().to_string();
            assert!(
                text.contains(typo) && text.contains(&format!("({meant})")),
                "{text}"
            );
        }
    }

    #[test]
    fn values_of_strangers_may_be_any_bytes() {
        use std::os::unix::ffi::OsStringExt;
        let bytes = || OsString::from_vec(vec![0xff, b'/']);
        let parse = |name: &str| Options::parse([(name.to_owned(), bytes())].into_iter());
        assert_eq!(parse("TRIHOP_ROOT").unwrap().1, ["TRIHOP_ROOT"]);
        assert!(parse("TRIHOP_ALLTOALL_LIMIT").unwrap().1.is_empty());
        let text = parse("TRIHOP_INTERFACE").unwrap_err().to_string();
        assert!(
            text.contains("TRIHOP_INTERFACE") && text.contains("not UTF-8"),
            "{text}"
        );
    }

    #[test]
    fn unknown_and_impossible_values_are_refused_with_the_reason() {
        let text = from(&[("TRIHOP_REMOTE_MAXRCP", "9")])
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("TRIHOP_REMOTE_MAXRCP") && text.contains("remote_maxrpc"),
            "{text}"
        );
        let text = from(&[("TRIHOP_PEER_TIMEOUT_MS", "9")])
            .unwrap_err()
            .to_string();
        assert!(text.contains("(TRIHOP_WATCH_TIMEOUT_MS)"), "{text}");
        let text = from(&[("TRIHOP_REMOTE_MAXRPC", "0")])
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("TRIHOP_REMOTE_MAXRPC") && text.contains("1024"),
            "{text}"
        );
        assert!(from(&[("TRIHOP_RUN_BYTES", "many")]).is_err());
        assert!(from(&[("TRIHOP_SPILL_BYTES", "1000")]).is_err());
    }
}
