//! Options by name: those of the environment, and what sets one.

mod unknown;

use std::ffi::OsString;

use trihop_transport::bootstrap::Launcher;
use trihop_transport::link::Mover;

use super::Options;
use crate::error::{Error, Result};

/// Variables that belong to the launcher, the command line or the logs, not to [`Options`].
const NOT_OPTIONS: [&str; 10] = [
    "BOOT_FD",
    "RANK",
    "SIZE",
    "NODE_SIZES",
    "IO",
    "SEED",
    "SCHEDULES",
    "LOG",
    "LOG_FILE",
    "TEST_PROVIDERS",
];

/// Options that have another name, or whose place another one has taken.
const RENAMED: [(&str, &str); 2] = [
    ("peer_timeout_ms", "watch_timeout_ms"),
    ("handler_reserve_bytes", "spill_mark_bytes"),
];

impl Options {
    /// Names of all options, as fields; upper-cased behind `TRIHOP_` they are the environment's.
    pub const NAMES: [&'static str; 33] = [
        "origin_maxrpc",
        "origin_buftarget_bytes",
        "relay_maxrpc",
        "relay_buftarget_bytes",
        "remote_maxrpc",
        "remote_buftarget_bytes",
        "origin_sender_limit",
        "remote_sender_limit",
        "deliverq_max",
        "deliverq_bytes",
        "deliverq_discard",
        "deliverq_threshold",
        "priority",
        "linger_us",
        "run_bytes",
        "run_table_bytes",
        "lane_budget_bytes",
        "spill_bytes",
        "spill_mark_bytes",
        "max_message_bytes",
        "reassembly_bytes",
        "send_pool_bytes",
        "receive_pool_bytes",
        "small_slot_bytes",
        "route",
        "launcher",
        "provider",
        "interface",
        "eager_bytes",
        "mover",
        "loopback",
        "bootstrap_timeout_ms",
        "watch_timeout_ms",
    ];

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
        Self::read(variables.into_iter().map(|(name, value)| (name, value.into())))
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
            if key.is_some_and(|key| NOT_OPTIONS.contains(&key)) {
                continue;
            }
            if let Some(key) = key.filter(|key| !Self::NAMES.contains(&&key.to_lowercase()[..])) {
                match unknown::nearest(key) {
                    Some(meant) => {
                        let variable = meant.to_uppercase();
                        let why = format!(
                            "no such option; the nearest is `{meant}` (TRIHOP_{variable}): correct or unset it"
                        );
                        return Err(Error::config(&name, why));
                    }
                    None => unknown.push(name),
                }
                continue;
            }
            // Where a value is not text, it is at least shown where it is wrong.
            let value = value
                .into_string()
                .map_err(|value| Error::config(&name, format!("the value {value:?} is not UTF-8")))?;
            if name == "FI_PROVIDER" {
                // A list or an exclusion filters inside libfabric, and the scores decide among what is left.
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

    /// Sets one option by name.
    ///
    /// # Errors
    /// An unknown name (with the nearest one) or a value that does not parse.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
            value
                .trim()
                .parse()
                .map_err(|_| Error::config(key, format!("`{value}` is not a whole number in range")))
        }
        let stream = &mut self.stream;
        match key {
            "origin_maxrpc" => stream.origin_maxrpc = number(key, value)?,
            "origin_buftarget_bytes" => stream.origin_buftarget_bytes = number(key, value)?,
            "relay_maxrpc" => stream.relay_maxrpc = number(key, value)?,
            "relay_buftarget_bytes" => stream.relay_buftarget_bytes = number(key, value)?,
            "remote_maxrpc" => stream.remote_maxrpc = number(key, value)?,
            "remote_buftarget_bytes" => stream.remote_buftarget_bytes = number(key, value)?,
            "origin_sender_limit" => stream.origin_sender_limit = number(key, value)?,
            "remote_sender_limit" => stream.remote_sender_limit = number(key, value)?,
            "deliverq_max" => stream.deliverq_max = number(key, value)?,
            "deliverq_bytes" => stream.deliverq_bytes = number(key, value)?,
            "deliverq_discard" => stream.deliverq_discard = switch(key, value)?,
            "deliverq_threshold" => stream.deliverq_threshold = number(key, value)?,
            "priority" => stream.priority = number(key, value)?,
            "linger_us" => stream.linger_us = number(key, value)?,
            "run_bytes" => stream.run_bytes = number(key, value)?,
            "run_table_bytes" => stream.run_table_bytes = number(key, value)?,
            "lane_budget_bytes" => stream.lane_budget_bytes = number(key, value)?,
            "spill_bytes" => stream.spill_bytes = number(key, value)?,
            "spill_mark_bytes" => stream.spill_mark_bytes = number(key, value)?,
            "max_message_bytes" => stream.max_message_bytes = number(key, value)?,
            "reassembly_bytes" => stream.reassembly_bytes = number(key, value)?,
            "send_pool_bytes" => stream.send_pool_bytes = number(key, value)?,
            "receive_pool_bytes" => stream.receive_pool_bytes = number(key, value)?,
            "small_slot_bytes" => stream.small_slot_bytes = number(key, value)?,
            "route" => self.route = value.parse().map_err(|why: String| Error::config(key, why))?,
            "launcher" => {
                let parsed = value.parse::<Launcher>();
                self.launcher = Some(parsed.map_err(|e| match e {
                    trihop_transport::Error::Config { why, .. } => Error::config(key, why),
                    other => Error::config(key, other.to_string()),
                })?);
            }
            "provider" => self.provider = Some(value.to_owned()),
            "interface" => self.interface = Some(value.to_owned()),
            "eager_bytes" => self.eager_bytes = Some(number(key, value)?),
            "mover" => {
                self.mover = Some(match value {
                    "read" => Mover::Read,
                    "segments" => Mover::Segments,
                    _ => {
                        return Err(Error::config(
                            key,
                            format!("`{value}` is neither `read` nor `segments`"),
                        ));
                    }
                });
            }
            "loopback" => self.loopback = switch(key, value)?,
            "bootstrap_timeout_ms" => self.bootstrap_timeout_ms = number(key, value)?,
            "watch_timeout_ms" => self.watch_timeout_ms = number(key, value)?,
            _ => {
                let likeness = |name: &&str| (strsim::jaro_winkler(name, key) * 1000.0) as u32;
                let renamed = RENAMED.iter().find(|(old, _)| *old == key).map(|(_, new)| *new);
                let nearest = renamed.or_else(|| {
                    Self::NAMES
                        .into_iter()
                        .max_by_key(likeness)
                        .filter(|n| likeness(n) > 800)
                });
                let why = match nearest {
                    Some(name) => {
                        format!(
                            "no such option; the nearest is `{name}` (TRIHOP_{})",
                            name.to_uppercase()
                        )
                    }
                    None => "no such option; `Options` lists them all".to_owned(),
                };
                return Err(Error::config(key, why));
            }
        }
        Ok(())
    }
}

fn switch(key: &str, value: &str) -> Result<bool> {
    match value {
        "1" | "true" => Ok(true),
        "0" | "false" | "" => Ok(false),
        _ => Err(Error::config(key, format!("`{value}` is neither `1` nor `0`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Options> {
        Options::from_variables(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
    }

    #[test]
    fn every_name_can_be_set_and_is_known() {
        for name in Options::NAMES {
            let refused = Options::default().set(name, "no such value at all");
            let text = refused.map_err(|e| e.to_string()).err().unwrap_or_default();
            assert!(!text.contains("no such option"), "{name}: {text}");
        }
        assert!(
            Options::NAMES.len() <= 34,
            "a knob more than DeltaFS Shuffle's users need"
        );
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
        let text = parse("TRIHOP_INTERFACE").unwrap_err().to_string();
        assert!(
            text.contains("TRIHOP_INTERFACE") && text.contains("not UTF-8"),
            "{text}"
        );
    }

    #[test]
    fn unknown_and_impossible_values_are_refused_with_the_reason() {
        let text = from(&[("TRIHOP_REMOTE_MAXRCP", "9")]).unwrap_err().to_string();
        assert!(
            text.contains("TRIHOP_REMOTE_MAXRCP") && text.contains("remote_maxrpc"),
            "{text}"
        );
        let text = from(&[("TRIHOP_PEER_TIMEOUT_MS", "9")]).unwrap_err().to_string();
        assert!(text.contains("(TRIHOP_WATCH_TIMEOUT_MS)"), "{text}");
        let text = from(&[("TRIHOP_REMOTE_MAXRPC", "0")]).unwrap_err().to_string();
        assert!(text.contains("remote_maxrpc") && text.contains("1024"), "{text}");
        assert!(from(&[("TRIHOP_RUN_BYTES", "many")]).is_err());
        assert!(from(&[("TRIHOP_SPILL_BYTES", "1000")]).is_err());
    }
}
