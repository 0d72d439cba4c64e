//! Which way a batch goes: eager into a small or a large posted slot, or announced (rendezvous).

use crate::protocol::credit::Sending;

/// Class of a posted receive slot; each class has its own tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// One per link, granted from the start, so that every peer can say something; none where links
    /// are too many for that.
    Small,
    /// From the pool that busy peers share.
    Large,
}

/// How a batch goes out, and which slot it uses up at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// The batch itself fits the slot.
    Eager(Slot),
    /// Only its announcement goes into the slot.
    Announce(Slot),
}

/// Chooses the passage of a message of `bytes` (header included), or `None` while credit is
/// missing.
///
/// A message that needs a large slot and finds none is announced at once in a small one: that is
/// also how a peer with sudden demand makes it known.
pub fn choose(
    credit: &Sending,
    bytes: usize,
    small_bytes: usize,
    large_bytes: usize,
) -> Option<Passage> {
    if !credit.may_start() {
        return None;
    }
    let (small, large) = (credit.has_small(), credit.has_large());
    if bytes <= small_bytes && small {
        Some(Passage::Eager(Slot::Small))
    } else if bytes <= large_bytes && large {
        Some(Passage::Eager(Slot::Large))
    } else if small {
        Some(Passage::Announce(Slot::Small))
    } else if large {
        Some(Passage::Announce(Slot::Large))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire::Counters;

    #[test]
    fn passage_follows_size_and_credit() {
        let mut credit = Sending::new(8);
        assert_eq!(choose(&credit, 100, 4096, 65536), None);
        credit
            .update(&Counters {
                small_granted: 1,
                ..Counters::default()
            })
            .unwrap();
        assert_eq!(
            choose(&credit, 4096, 4096, 65536),
            Some(Passage::Eager(Slot::Small))
        );
        assert_eq!(
            choose(&credit, 4097, 4096, 65536),
            Some(Passage::Announce(Slot::Small))
        );
        credit
            .update(&Counters {
                small_granted: 1,
                large_granted: 1,
                ..Counters::default()
            })
            .unwrap();
        assert_eq!(
            choose(&credit, 4097, 4096, 65536),
            Some(Passage::Eager(Slot::Large))
        );
        assert_eq!(
            choose(&credit, 70000, 4096, 65536),
            Some(Passage::Announce(Slot::Small))
        );
        credit.start(Slot::Small);
        assert_eq!(
            choose(&credit, 70000, 4096, 65536),
            Some(Passage::Announce(Slot::Large))
        );
        assert_eq!(
            choose(&credit, 10, 4096, 65536),
            Some(Passage::Eager(Slot::Large))
        );
    }
}
