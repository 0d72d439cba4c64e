//! What a stream has to be on all ranks alike, as one value that is compared whole.

use std::hash::{Hash, Hasher};

use super::StreamSizes;
use crate::config::{AgreedOptions, Options, Shares, StreamOptions};
use crate::route::{Medium, StageSpec, stage};

/// What must be equal on all ranks that open a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Agreed {
    name: String,
    item_bytes: usize,
    options: AgreedOptions,
    shares: Shares,
    stream_sizes: StreamSizes,
}

impl Agreed {
    pub fn new(
        name: &str,
        item_bytes: usize,
        stream: &StreamOptions,
        job: &Options,
        stream_sizes: StreamSizes,
    ) -> Self {
        Self {
            name: name.to_owned(),
            item_bytes,
            options: AgreedOptions::new(stream, job),
            shares: stream.shares(),
            stream_sizes,
        }
    }

    /// All of it as one word, never 0.
    pub fn word(&self) -> u64 {
        let mut hasher = Fnv::default();
        self.hash(&mut hasher);
        hasher.finish() | 1
    }

    /// Its parts by name; as many on every rank, in the same order.
    fn parts(&self) -> Vec<(&'static str, Part)> {
        let mut parts = vec![
            ("the name", Part::text(&self.name)),
            ("the size of items", Part::Number(self.item_bytes as u64)),
        ];
        let options = self.options.texts();
        parts.extend(options.iter().map(|(name, text)| (*name, Part::of(text))));
        // Equal too where links are in the place of lanes, and nothing where they are not.
        for (name, target_bytes, maxrpc) in [
            (stage::ORIGIN, "origin_buftarget_bytes", "origin_maxrpc"),
            (stage::RELAY, "relay_buftarget_bytes", "relay_maxrpc"),
        ] {
            let stages = self.options.route.stages().iter();
            let mut stages = stages.zip(&self.stream_sizes.links);
            let is_replaced =
                |(spec, _): &(&StageSpec, _)| spec.name == name && spec.medium == Medium::Fabric;
            let limits = stages.find(is_replaced).map(|(_, limits)| *limits);
            let limits = limits.unwrap_or_default();
            parts.push((target_bytes, Part::Number(limits.target_bytes as u64)));
            parts.push((maxrpc, Part::Number(limits.maxrpc.into())));
        }
        parts
    }

    /// What ranks have to combine by the minimum to find out where they differ: each part, and its
    /// complement.
    pub fn pairs(&self) -> Vec<u64> {
        let parts = self.parts();
        let words = parts.iter().map(|(_, part)| part.word());
        words.flat_map(|word| [word, !word]).collect()
    }

    /// Where ranks differ, by the minima of their [`pairs`](Self::pairs).
    pub fn differences(&self, least: &[u64]) -> String {
        let mut differences = Vec::new();
        for ((name, part), pair) in self.parts().into_iter().zip(least.chunks_exact(2)) {
            let (low, high) = (pair[0], !pair[1]);
            if low == high {
                continue;
            }
            differences.push(match part {
                Part::Number(here) => {
                    format!("{name} is {low} on one rank and {high} on another, {here} here")
                }
                Part::Text(_, here) => {
                    format!("{name} is `{here}` here and another on another rank")
                }
            });
        }
        match differences.is_empty() {
            true => "the sizes that follow from its options differ".to_owned(),
            false => differences.join("; "),
        }
    }
}

/// A part of what is agreed on.
enum Part {
    Number(u64),
    /// The hash of a text, and the text.
    Text(u64, String),
}

impl Part {
    fn text(text: &str) -> Self {
        let mut hasher = Fnv::default();
        text.hash(&mut hasher);
        Self::Text(hasher.finish(), text.to_owned())
    }

    /// A number where the text is one, so that ranks can say each other's; an absent one is 0.
    fn of(text: &str) -> Self {
        match text.parse() {
            Ok(number) => Self::Number(number),
            Err(_) if text.is_empty() => Self::Number(0),
            Err(_) => Self::text(text),
        }
    }

    fn word(&self) -> u64 {
        match self {
            Self::Number(word) | Self::Text(word, _) => *word,
        }
    }
}

/// FNV-1a: the same on every rank of a job, whose machines are of one kind.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use trihop_transport::topology::{Rank, Topology};

    use super::*;
    use crate::route::JobRoute;
    use crate::route::{Rails, RouteName};

    fn agreed(stream: &StreamOptions, job: &Options) -> Agreed {
        let topology = Topology::from_node_sizes(&[2, 2], Rank(1)).unwrap();
        let route = JobRoute::new(stream.route, &topology).unwrap();
        Agreed::new(
            "facts",
            8,
            stream,
            job,
            StreamSizes::new(&topology, &route, stream),
        )
    }

    fn of(options: &Options) -> Agreed {
        agreed(&options.stream, options)
    }

    /// What a rank with `here` is told when another has `there`.
    fn told(here: &Agreed, there: &Agreed) -> String {
        let pairs = here.pairs().into_iter().zip(there.pairs());
        let least: Vec<u64> = pairs.map(|(here, there)| here.min(there)).collect();
        here.differences(&least)
    }

    /// A value of each option that is not its default.
    fn other(name: &str) -> Options {
        let values = ["direct", "single", "read", "own", "0", "1", "300000", "77"];
        let mut options = Options::default();
        let set = values.into_iter().find(|value| {
            let mut tried = Options::default();
            let set = tried.set(name, value).is_ok() && tried != Options::default();
            if set {
                options = tried;
            }
            set
        });
        assert!(set.is_some(), "no value for {name}");
        options
    }

    #[test]
    fn ranks_differ_in_the_agreed_rows_of_the_table_and_in_no_others() {
        let defaults = of(&Options::default());
        for row in Options::TABLE {
            let differs = of(&other(row.name));
            assert_eq!(
                differs.word() != defaults.word(),
                row.agreed,
                "{}",
                row.name
            );
            if row.agreed && row.name != "route" {
                let text = told(&defaults, &differs);
                assert!(text.starts_with(row.name) && !text.contains(';'), "{text}");
            }
        }
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let mut wider = Options::default();
        wider.stream.remote_maxrpc = 8;
        wider.stream.max_message_bytes = 1000;
        let text = told(&of(&Options::default()), &of(&wider));
        assert_eq!(
            text,
            "remote_maxrpc is 4 on one rank and 8 on another, 4 here; \
             max_message_bytes is 1000 on one rank and 67108864 on another, 67108864 here"
        );
        let mut other = of(&wider);
        "lies".clone_into(&mut other.name);
        let text = told(&of(&wider), &other);
        assert_eq!(text, "the name is `facts` here and another on another rank");
    }

    #[test]
    fn queues_of_a_node_differ_only_where_they_are_links() {
        for (route, differ) in [
            (RouteName::default(), false),
            (RouteName::FabricOnly(Rails::default()), true),
        ] {
            let mut options = Options::default();
            options.stream.route = route;
            let here = of(&options);
            options.stream.origin_maxrpc = 3;
            options.stream.relay_buftarget_bytes = 99;
            let there = of(&options);
            assert_eq!(here.word() != there.word(), differ);
            let text = told(&here, &there);
            assert_eq!(text.contains("origin_maxrpc is 3 "), differ, "{text}");
        }
    }
}
