//! What a receiver knows about what it got: a counter per source, never a list of messages.

use trihop::{BroadcastTo, Message};

use super::args::Sizes;
use super::payload::{Contents, EVERYONE, Identity, NUMBER_MASK};

/// Kind of the last message of a pair: how many came before it (u64).
pub const TALLY: u32 = 1 << 31;

/// Faults whose text is kept per rank; more are counted.
const TEXTS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct FromSource {
    /// Number of the message that must come next.
    next: u64,
    received: u64,
    told: Option<u64>,
    /// A fault of this source has its text already.
    named: bool,
}

/// Everything that one rank received.
#[derive(Debug)]
pub struct Ledger {
    rank: u32,
    /// Target of what must come: this rank, or [`EVERYONE`].
    target: u32,
    sizes: Sizes,
    contents: Contents,
    sources: Vec<FromSource>,
    texts: Vec<String>,
    faults: u64,
    received: u64,
}

impl Ledger {
    /// A ledger of `rank` in a job of `size` ranks.
    pub fn new(rank: u32, size: u32, sizes: Sizes, contents: Contents) -> Self {
        let sources = vec![FromSource::default(); size as usize];
        Self {
            rank,
            target: rank,
            sizes,
            contents,
            sources,
            texts: Vec::new(),
            faults: 0,
            received: 0,
        }
    }

    /// The same for broadcasts: everything must be what its source sent to everyone.
    pub fn of_broadcasts(mut self, to: BroadcastTo) -> Self {
        self.target = EVERYONE;
        if to == BroadcastTo::Others {
            self.sources[self.rank as usize].told = Some(0);
        }
        self
    }

    /// Messages that came, right or wrong, without tallies.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Wrong or missing messages, and more of them than there should be.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// The first faults, at most one per source.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Takes and checks one message.
    #[inline]
    pub fn take(&mut self, message: Message<'_>) {
        let source = message.source.0;
        let Some(row) = self.sources.get_mut(source as usize) else {
            let text = format!("a message came from rank {source}, which does not exist");
            return self.fault(None, 1, text);
        };
        if message.kind == TALLY {
            return self.take_tally(source, message.bytes);
        }
        let identity = Identity {
            source,
            target: self.target,
            number: row.next,
        };
        let as_it_must_be = message.kind == (row.next as u32 & NUMBER_MASK)
            && row.told.is_none()
            && message.bytes.len() == self.sizes.pick(self.contents.key(identity))
            && self.contents.is_right(identity, message.bytes);
        row.received += 1;
        self.received += 1;
        if as_it_must_be {
            row.next += 1;
        } else {
            self.take_wrong(message);
        }
    }

    #[cold]
    fn take_wrong(&mut self, message: Message<'_>) {
        let (source, rank) = (message.source.0, self.rank);
        let row = &mut self.sources[source as usize];
        let pair = format!("from rank {source} to rank {rank}");
        if let Some(told) = row.told {
            let text = format!(
                "{pair}: a message (kind {:#x}) came after the last of {told}",
                message.kind
            );
            return self.fault(Some(source), 1, text);
        }
        let expected = row.next;
        let ahead = message.kind.wrapping_sub(expected as u32) & NUMBER_MASK;
        if message.kind > NUMBER_MASK || ahead > NUMBER_MASK / 2 {
            let text = format!(
                "{pair}: message kind {:#x} came where {expected} was due: doubled or late",
                message.kind
            );
            return self.fault(Some(source), 1, text);
        }
        let number = expected + u64::from(ahead);
        row.next = number + 1;
        if ahead > 0 {
            let text = format!(
                "{pair}: messages {expected} to {} are missing; {number} came in their place",
                number - 1
            );
            self.fault(Some(source), u64::from(ahead), text);
        }
        let identity = Identity {
            source,
            target: self.target,
            number,
        };
        let length = self.sizes.pick(self.contents.key(identity));
        if message.bytes.len() != length {
            let text = format!(
                "{pair}: message {number} has {} bytes instead of {length}",
                message.bytes.len()
            );
            self.fault(Some(source), 1, text);
        } else if !self.contents.is_right(identity, message.bytes) {
            let text = format!("{pair}: message {number} of {length} bytes has a wrong checksum");
            self.fault(Some(source), 1, text);
        }
    }

    fn take_tally(&mut self, source: u32, bytes: &[u8]) {
        let row = &mut self.sources[source as usize];
        match (bytes.try_into().map(u64::from_le_bytes), row.told) {
            (Ok(told), None) => row.told = Some(told),
            (told, before) => {
                let text = format!(
                    "from rank {source} to rank {}: the count of messages came as {told:?} after {before:?}",
                    self.rank
                );
                self.fault(Some(source), 1, text);
            }
        }
    }

    /// After the flush that ends the exchange: compares what came with what was sent.
    pub fn close(&mut self) {
        for source in 0..self.sources.len() as u32 {
            let FromSource {
                next,
                received,
                told,
                ..
            } = self.sources[source as usize];
            let pair = format!("from rank {source} to rank {}", self.rank);
            match told {
                None => {
                    let text = format!(
                        "{pair}: the flush ended before the last message came ({received} received)"
                    );
                    self.fault(Some(source), 1, text);
                }
                Some(told) if told != received || told != next => {
                    let text = format!("{pair}: {told} messages sent, {received} received");
                    self.sources[source as usize].named = false;
                    self.fault(Some(source), told.abs_diff(next), text);
                }
                Some(_) => {}
            }
        }
    }

    /// What has not come although its source says that it was sent, and sources that have not said
    /// anything.
    pub fn outstanding(&self) -> String {
        let mut silent = Vec::new();
        for (source, row) in self.sources.iter().enumerate() {
            match row.told {
                None => silent.push(source.to_string()),
                Some(told) if told != row.received => {
                    return format!(
                        "from rank {source}: {told} messages sent, {} received",
                        row.received
                    );
                }
                Some(_) => {}
            }
        }
        match silent.len() {
            0 => "everything that was sent to here has come".to_owned(),
            1..=8 => format!(
                "the last messages of ranks {} have not come",
                silent.join(", ")
            ),
            many => format!("the last messages of {many} ranks have not come"),
        }
    }

    fn fault(&mut self, source: Option<u32>, count: u64, text: String) {
        self.faults += count.max(1);
        let named = source.map(|source| &mut self.sources[source as usize].named);
        let first = named.is_none_or(|named| !std::mem::replace(named, true));
        if first && self.texts.len() < TEXTS {
            self.texts.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trihop::Rank;

    /// Something that a broken engine could do to a ledger.
    type Act<'a> = &'a dyn Fn(&mut Ledger);

    const SIZES: Sizes = Sizes::Range(0, 40);

    fn ledger() -> Ledger {
        Ledger::new(1, 3, SIZES, Contents::new(9))
    }

    fn bytes(source: u32, number: u64) -> Vec<u8> {
        let contents = Contents::new(9);
        let message = Identity {
            source,
            target: 1,
            number,
        };
        let mut bytes = vec![0; SIZES.pick(contents.key(message))];
        contents.write(message, &mut bytes);
        bytes
    }

    fn give(ledger: &mut Ledger, source: u32, kind: u64, bytes: &[u8]) {
        ledger.take(Message {
            source: Rank(source),
            kind: kind as u32,
            bytes,
        });
    }

    fn send(ledger: &mut Ledger, source: u32, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            give(
                ledger,
                source,
                number & u64::from(NUMBER_MASK),
                &bytes(source, number),
            );
        }
    }

    fn hear(ledger: &mut Ledger, tallies: [u64; 3]) {
        for (source, told) in tallies.into_iter().enumerate() {
            give(ledger, source as u32, u64::from(TALLY), &told.to_le_bytes());
        }
    }

    fn text_of(mut ledger: Ledger) -> String {
        ledger.close();
        assert!(ledger.faults() > 0);
        ledger.texts().join("; ")
    }

    #[test]
    fn what_must_come_is_no_fault() {
        let mut ledger = ledger();
        send(&mut ledger, 0, 0..50);
        send(&mut ledger, 2, 0..30);
        hear(&mut ledger, [50, 0, 30]);
        assert_eq!(
            ledger.outstanding(),
            "everything that was sent to here has come"
        );
        ledger.close();
        assert_eq!(
            (ledger.faults(), ledger.received()),
            (0, 80),
            "{:?}",
            ledger.texts()
        );
    }

    #[test]
    fn broadcasts_must_be_what_everyone_gets_and_from_others_only() {
        let contents = Contents::new(9);
        let message = |source, target| {
            let message = Identity {
                source,
                target,
                number: 0,
            };
            let mut bytes = vec![0; SIZES.pick(contents.key(message))];
            contents.write(message, &mut bytes);
            bytes
        };
        let told = |ledger: &mut Ledger, source| {
            give(ledger, source, u64::from(TALLY), &1u64.to_le_bytes())
        };
        let mut others = ledger().of_broadcasts(BroadcastTo::Others);
        for source in [0, 2] {
            give(&mut others, source, 0, &message(source, EVERYONE));
            told(&mut others, source);
        }
        assert_eq!(
            others.outstanding(),
            "everything that was sent to here has come"
        );
        others.close();
        assert_eq!(others.faults(), 0, "{:?}", others.texts());
        give(&mut others, 1, 0, &message(1, EVERYONE));
        assert_eq!(others.faults(), 1, "its own broadcast was not for it");

        let mut everyone = ledger().of_broadcasts(BroadcastTo::Everyone);
        assert!(everyone.outstanding().contains("ranks 0, 1, 2"));
        give(&mut everyone, 0, 0, &message(0, 1));
        assert_eq!(everyone.faults(), 1, "what is for one rank is no broadcast");
    }

    #[test]
    fn a_gap_is_named_and_what_follows_it_is_right_again() {
        let mut ledger = ledger();
        send(&mut ledger, 2, (0..5).chain(8..20));
        assert_eq!(ledger.faults(), 3);
        hear(&mut ledger, [0, 0, 20]);
        let text = text_of(ledger);
        assert!(
            text.contains("from rank 2 to rank 1: messages 5 to 7 are missing"),
            "{text}"
        );
        assert!(text.contains("20 messages sent, 17 received"), "{text}");
    }

    #[test]
    fn a_missing_end_is_named() {
        let mut ledger = ledger();
        send(&mut ledger, 0, 0..5);
        hear(&mut ledger, [6, 0, 0]);
        assert_eq!(
            ledger.outstanding(),
            "from rank 0: 6 messages sent, 5 received"
        );
        assert!(text_of(ledger).contains("from rank 0 to rank 1: 6 messages sent, 5 received"));
    }

    #[test]
    fn a_flush_that_ends_early_is_named() {
        let mut ledger = ledger();
        send(&mut ledger, 0, 0..5);
        assert!(ledger.outstanding().contains("ranks 0, 1, 2"));
        assert!(text_of(ledger).contains("from rank 0 to rank 1: the flush ended before"));
    }

    #[test]
    fn doubled_swapped_changed_cut_and_foreign_messages_are_faults() {
        let wrong: [(&str, Act); 7] = [
            ("doubled or late", &|l| send(l, 0, [3])),
            ("are missing", &|l| send(l, 0, [5, 4])),
            ("wrong checksum", &|l| {
                give(
                    l,
                    0,
                    4,
                    &bytes(2, 4)
                        .iter()
                        .map(|_| 0)
                        .chain([0; 40])
                        .take(bytes(0, 4).len())
                        .collect::<Vec<_>>(),
                )
            }),
            ("bytes instead of", &|l| give(l, 0, 4, &[0; 41])),
            ("doubled or late", &|l| {
                give(l, 0, u64::from(TALLY) + 4, &bytes(0, 4))
            }),
            ("after the last of", &|l| {
                hear(l, [4, 0, 0]);
                send(l, 0, [4]);
            }),
            ("the count of messages came", &|l| {
                give(l, 0, u64::from(TALLY), b"short")
            }),
        ];
        for (text, act) in wrong {
            let mut ledger = ledger();
            send(&mut ledger, 0, 0..4);
            act(&mut ledger);
            assert!(ledger.faults() > 0, "{text}");
            assert!(
                ledger.texts()[0].contains("from rank 0 to rank 1"),
                "{:?}",
                ledger.texts()
            );
            assert!(ledger.texts()[0].contains(text), "{:?}", ledger.texts());
        }
    }

    #[test]
    fn numbers_wrap_in_the_kind_only() {
        let mut ledger = ledger();
        let start = u64::from(NUMBER_MASK) - 1;
        ledger.sources[0] = FromSource {
            next: start,
            received: start,
            ..FromSource::default()
        };
        send(&mut ledger, 0, start..start + 5);
        hear(&mut ledger, [start + 5, 0, 0]);
        ledger.close();
        assert_eq!(ledger.faults(), 0, "{:?}", ledger.texts());
    }
}
