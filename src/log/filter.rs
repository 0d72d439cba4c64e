//! Levels, facilities, and which of the one pass for which of the other.

use std::fmt;
use std::str::FromStr;

use super::config;
use crate::Error;

/// How urgent a message is; as a limit, everything up to it passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// As a limit: nothing passes. No message has it.
    Off = 0,
    /// Something failed, and a call returns an error or a peer's traffic is dropped.
    Error = 1,
    /// Something is not as it should be, and work goes on.
    Warn = 2,
    /// Said once or twice in a job or stream.
    Info = 3,
    /// How a decision was made.
    Debug = 4,
    /// Every step, but no single message.
    Trace = 5,
}

impl Level {
    /// All levels, ascending.
    pub const ALL: [Self; 6] = [
        Self::Off,
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    /// Name as in a filter.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl From<tracing::Level> for Level {
    fn from(level: tracing::Level) -> Self {
        match level {
            tracing::Level::ERROR => Self::Error,
            tracing::Level::WARN => Self::Warn,
            tracing::Level::INFO => Self::Info,
            tracing::Level::DEBUG => Self::Debug,
            tracing::Level::TRACE => Self::Trace,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Part of the library that a message comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Facility {
    /// Calls of the application: jobs, shuffles, streams, flushes, collectives, the command line.
    Client = 0,
    /// Which way messages go.
    Route = 1,
    /// Queues and lanes inside a node, and what waits in them.
    Queue = 2,
    /// Batches, credit and order between two representatives.
    Link = 3,
    /// Handing messages to the application.
    Deliver = 4,
    /// Launchers, and who is where.
    Bootstrap = 5,
    /// libfabric: providers, endpoints, completions.
    Fabric = 6,
    /// Registered and shared memory.
    Memory = 7,
    /// Everything that is not this library's.
    Other = 8,
}

/// Facilities of modules; the longest path that a message's module begins with counts.
const MODULES: [(&str, Facility); 17] = [
    ("trihop", Facility::Client),
    ("trihop_partition", Facility::Client),
    ("trihop_shuffle", Facility::Client),
    ("trihop_shuffle::route", Facility::Route),
    ("trihop_shuffle::queue", Facility::Queue),
    ("trihop_shuffle::engine", Facility::Queue),
    ("trihop_shuffle::engine::inbound", Facility::Link),
    ("trihop_shuffle::engine::incoming", Facility::Link),
    ("trihop_shuffle::deliver", Facility::Deliver),
    ("trihop_transport", Facility::Fabric),
    ("trihop_transport::bootstrap", Facility::Bootstrap),
    ("trihop_transport::topology", Facility::Bootstrap),
    ("trihop_transport::memory", Facility::Memory),
    ("trihop_transport::ring", Facility::Queue),
    ("trihop_transport::park", Facility::Queue),
    ("trihop_transport::protocol", Facility::Link),
    ("trihop_transport::link", Facility::Link),
];

impl Facility {
    /// All facilities, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Client,
        Self::Route,
        Self::Queue,
        Self::Link,
        Self::Deliver,
        Self::Bootstrap,
        Self::Fabric,
        Self::Memory,
        Self::Other,
    ];

    /// Name as in a filter and in the lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Route => "route",
            Self::Queue => "queue",
            Self::Link => "link",
            Self::Deliver => "deliver",
            Self::Bootstrap => "bootstrap",
            Self::Fabric => "fabric",
            Self::Memory => "memory",
            Self::Other => "other",
        }
    }

    /// Facility of a message with this `tracing` target, which is the path of its module.
    pub fn of_target(target: &str) -> Self {
        MODULES
            .iter()
            .filter(|(module, _)| {
                target
                    .strip_prefix(module)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            })
            .max_by_key(|(module, _)| module.len())
            .map_or(Self::Other, |(_, facility)| *facility)
    }
}

impl fmt::Display for Facility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A level for each facility. As text: levels and `FACILITY=LEVEL`, separated by commas, later ones
/// win, such as `info,fabric=debug`; facilities that it does not name have `warn`. Case and blanks
/// do not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    levels: [Level; Facility::ALL.len()],
}

impl Filter {
    /// One level for all facilities.
    pub const fn uniform(level: Level) -> Self {
        Self {
            levels: [level; Facility::ALL.len()],
        }
    }

    /// Changes the level of a facility.
    pub fn set(&mut self, facility: Facility, level: Level) {
        self.levels[facility as usize] = level;
    }

    /// Up to which level messages of a facility pass.
    pub fn level(&self, facility: Facility) -> Level {
        self.levels[facility as usize]
    }

    /// Whether a message passes.
    pub fn passes(&self, facility: Facility, level: Level) -> bool {
        level != Level::Off && level <= self.level(facility)
    }

    /// This filter, changed as `text` says: what it does not name stays as it is here.
    ///
    /// # Errors
    /// [`Error::Config`], with the word that is wrong, its position and what is possible.
    pub fn changed_by(self, text: &str) -> Result<Self, Error> {
        self.parse_over(text)
            .map_err(|why| config("log filter", why))
    }

    pub(super) fn parse_over(mut self, text: &str) -> Result<Self, String> {
        for entry in text.split(',') {
            let place = |word: &str| {
                // The word is a part of `text`: its distance from the beginning, in characters from
                // 1.
                let offset = word.as_ptr() as usize - text.as_ptr() as usize;
                text[..offset].chars().count() + 1
            };
            let level = |word: &str| {
                let found = named(word, Level::ALL, Level::name);
                found.ok_or_else(|| {
                    wrong(
                        word,
                        "level",
                        place(word),
                        text,
                        &Level::ALL.map(Level::name),
                    )
                })
            };
            match entry.split_once('=') {
                None => self = Self::uniform(level(entry.trim())?),
                Some((word, value)) => {
                    let word = word.trim();
                    let found = named(word, Facility::ALL, Facility::name);
                    let facility = found.ok_or_else(|| {
                        let names = Facility::ALL.map(Facility::name);
                        wrong(word, "facility", place(word), text, &names)
                    })?;
                    self.set(facility, level(value.trim())?);
                }
            }
        }
        Ok(self)
    }
}

impl Default for Filter {
    fn default() -> Self {
        Self::uniform(Level::Warn)
    }
}

impl FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::default().changed_by(text)
    }
}

/// The shortest text that parses to this filter.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |level: Level| self.levels.iter().filter(|l| **l == level).count();
        let most = Level::ALL
            .into_iter()
            .max_by_key(|l| count(*l))
            .expect("six levels");
        write!(f, "{most}")?;
        for facility in Facility::ALL.into_iter().filter(|x| self.level(*x) != most) {
            write!(f, ",{facility}={}", self.level(facility))?;
        }
        Ok(())
    }
}

fn named<T: Copy, const N: usize>(
    word: &str,
    all: [T; N],
    name: fn(T) -> &'static str,
) -> Option<T> {
    all.into_iter()
        .find(|x| name(*x).eq_ignore_ascii_case(word))
}

fn wrong(word: &str, what: &str, position: usize, text: &str, possible: &[&str]) -> String {
    format!(
        "`{word}` at position {position} of `{text}` is no {what}; possible are {}",
        possible.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_facilities_are_taken_in_order() {
        let filter: Filter = "info, Fabric=DEBUG,queue=off".parse().unwrap();
        assert_eq!(filter.level(Facility::Client), Level::Info);
        assert!(
            filter.passes(Facility::Fabric, Level::Debug)
                && !filter.passes(Facility::Fabric, Level::Trace)
        );
        assert!(!filter.passes(Facility::Queue, Level::Error));
        assert_eq!(filter.to_string(), "info,queue=off,fabric=debug");
        assert_eq!(filter.to_string().parse::<Filter>().unwrap(), filter);
        let later: Filter = "fabric=debug,info".parse().unwrap();
        assert_eq!(later, Filter::uniform(Level::Info), "the last word wins");
        let some: Filter = "link=trace".parse().unwrap();
        assert_eq!(
            (some.level(Facility::Link), some.level(Facility::Route)),
            (Level::Trace, Level::Warn)
        );
        let base = Filter::uniform(Level::Error)
            .changed_by("link=trace")
            .unwrap();
        assert_eq!(base.level(Facility::Route), Level::Error);
        assert!(!Filter::uniform(Level::Trace).passes(Facility::Link, Level::Off));
    }

    #[test]
    fn every_filter_comes_back_from_its_text() {
        let mut filter = Filter::default();
        for (number, facility) in Facility::ALL.into_iter().enumerate() {
            filter.set(facility, Level::ALL[number % Level::ALL.len()]);
            assert_eq!(filter.to_string().parse::<Filter>().unwrap(), filter);
            assert_eq!(facility as usize, number);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_what_is_possible() {
        let why = |text: &str| text.parse::<Filter>().unwrap_err().to_string();
        assert_eq!(
            why("info,fabric=debgu"),
            "option log filter: `debgu` at position 13 of `info,fabric=debgu` is no level; possible are off, error, \
             warn, info, debug, trace"
        );
        let text = why("info, fabrik=debug");
        assert!(
            text.contains("`fabrik` at position 7 of")
                && text.contains("no facility; possible are client, route,"),
            "{text}"
        );
        for (text, place) in [
            ("", 1),
            ("info,", 6),
            ("ä,info", 1),
            ("info,ä=warn", 6),
            ("link=", 6),
            ("warn,link=ä", 11),
        ] {
            let said = why(text);
            assert!(
                said.contains(&format!("at position {place} of `{text}`")),
                "{said}"
            );
        }
    }

    #[test]
    fn modules_belong_to_facilities_by_their_longest_path() {
        for (target, facility) in [
            ("trihop_transport::bootstrap::pmi1", Facility::Bootstrap),
            ("trihop_transport::fabric::cq", Facility::Fabric),
            ("trihop_transport::memory::pool", Facility::Memory),
            ("trihop_shuffle::engine::inbound", Facility::Link),
            ("trihop_shuffle::engine::outbound", Facility::Queue),
            ("trihop_shuffle::job", Facility::Client),
            ("trihop_partition", Facility::Client),
            ("trihop_shuffle", Facility::Client),
            ("trihop_partition::reader", Facility::Client),
            ("trihop_shufflers", Facility::Other),
            ("other_crate::trihop", Facility::Other),
            ("", Facility::Other),
        ] {
            assert_eq!(Facility::of_target(target), facility, "{target}");
        }
    }
}
