//! What `memory_bytes` is divided into, in fixed shares.

/// Makes [`Shares`] and the rows of `docs/OPTIONS.md` out of one table. A row is
/// `/// What it is for.` and `name = 1 / part in (least to most)`.
macro_rules! shares {
    ($($(#[doc = $doc:literal])+ $name:ident = 1 / $part:literal in ($low:literal to $high:expr);)+) => {
        /// Sizes of a stream's parts on a rank, in bytes: shares of `memory_bytes`, or given one by
        /// one for streams that are unlike any other, and for tests.
        #[doc(hidden)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
        pub struct Shares {
            $($(#[doc = $doc])+ pub $name: usize,)+
            /// Long records that a rank puts together at a time (one always may).
            pub reassembly_bytes: usize,
            /// Links, over all streams together, that have receive slots of their own at most, if
            /// the provider takes enough receives for so many. Where there are more, all ask for
            /// slots that they share.
            pub own_slots: usize,
            /// The longest that a lane gets, where its share affords that.
            pub longest_lane_bytes: usize,
            /// The shortest record that links offer to their other ends, which fetch it out of the
            /// memory that it lies in.
            pub least_offer_bytes: usize,
        }

        impl Shares {
            /// Name, divisor of `memory_bytes`, and what it is for.
            #[doc(hidden)]
            pub const TABLE: &'static [(&'static str, usize, &'static str)] =
                &[$((stringify!($name), $part, concat!($($doc),+))),+];

            pub(super) fn of(memory_bytes: usize, max_message_bytes: usize) -> Self {
                Self {
                    $($name: (memory_bytes / $part).clamp($low, $high),)+
                    reassembly_bytes: (2 * max_message_bytes).max(1),
                    own_slots: usize::MAX,
                    longest_lane_bytes: Self::LANE_BYTES,
                    least_offer_bytes: Self::LEAST_OFFER_BYTES,
                }
            }

            /// All of them as numbers, for another process of the same library.
            pub(crate) fn words(&self) -> Vec<u64> {
                let own = [
                    self.reassembly_bytes,
                    self.own_slots,
                    self.longest_lane_bytes,
                    self.least_offer_bytes,
                ];
                let words = [$(self.$name),+].into_iter().chain(own);
                words.map(|word| word as u64).collect()
            }

            /// Back from [`Shares::words`]; none where these are not as many.
            pub(crate) fn of_words(words: &[u64]) -> Option<Self> {
                let mut words = words.iter().map(|&word| word as usize);
                let shares = Self {
                    $($name: words.next()?,)+
                    reassembly_bytes: words.next()?,
                    own_slots: words.next()?,
                    longest_lane_bytes: words.next()?,
                    least_offer_bytes: words.next()?,
                };
                words.next().is_none().then_some(shares)
            }
        }
    };
}

shares! {
    /// Deliveries that wait for a delivery thread, or for an application without a handler; one run
    /// or record always may.
    deliverq_bytes = 1 / 2 in (1 to usize::MAX);
    /// Send batches of a rank. Every link has two, which are shorter than `remote_buftarget_bytes`
    /// where links are many, never below a small slot.
    send_pool_bytes = 1 / 8 in (1 to usize::MAX);
    /// Shared large receive slots of a rank; one always.
    receive_pool_bytes = 1 / 8 in (1 to usize::MAX);
    /// Lanes into a rank. Each has 64 KiB (of DeltaFS 256) where that affords it, less where many
    /// ranks share a node, never below 4 KiB.
    lane_budget_bytes = 1 / 16 in (8192 to usize::MAX);
    /// Records of 16 KiB and more that a rank sends inside of its node, where they are read in
    /// place; those of 128 KiB and more that it sends to other nodes, or gets from there. Nothing
    /// where no record is so long, or the route is `fabric-only`.
    block_bytes = 1 / 8 in (0 to 64 << 20);
    /// Open runs of all targets: their frames take twice this at most.
    run_table_bytes = 1 / 128 in (64 to usize::MAX);
    /// Spill from which on deliveries wait as long as it drains. When it has, so much of it is
    /// kept for 20 ms.
    spill_mark_bytes = 1 / 32 in (1 to usize::MAX);
    /// The receive slot that every link always has, where links are not many; 192 to 4,096 bytes.
    small_slot_bytes = 1 / 8192 in (192 to Self::LARGEST_SMALL_SLOT);
}

impl Shares {
    /// The most that a share of memory makes of a small slot.
    pub(crate) const LARGEST_SMALL_SLOT: usize = 4096;

    /// Longest lane of a stream, unless given otherwise: more than that drives what producer and
    /// consumer have in their caches out of them.
    const LANE_BYTES: usize = 64 << 10;

    /// The shortest record that is offered, unless given otherwise: a shorter one is in a batch
    /// sooner than it is asked for.
    const LEAST_OFFER_BYTES: usize = 128 << 10;

    /// The `memory_bytes` of which so many are the share of this name.
    pub(crate) fn whole(name: &str, bytes: usize) -> usize {
        let part = Self::TABLE.iter().find(|(share, ..)| *share == name);
        part.map_or(bytes, |(_, part, _)| bytes.saturating_mul(*part))
    }
}

impl Default for Shares {
    /// Those of a stream with default options.
    fn default() -> Self {
        super::StreamOptions::default().shares()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Options, StreamOptions};

    #[test]
    fn the_shares_of_the_default_are_within_it() {
        let Shares {
            deliverq_bytes,
            send_pool_bytes,
            receive_pool_bytes,
            lane_budget_bytes,
            run_table_bytes,
            spill_mark_bytes,
            small_slot_bytes,
            reassembly_bytes,
            own_slots: _,
            longest_lane_bytes: _,
            least_offer_bytes: _,
            block_bytes,
        } = Shares::default();
        let memory = deliverq_bytes + send_pool_bytes + receive_pool_bytes + lane_budget_bytes;
        let memory = memory + block_bytes;
        // Short frames, and as much again for long ones.
        let memory = memory + 2 * run_table_bytes;
        assert!(memory <= StreamOptions::default().memory_bytes, "{memory}");
        assert_eq!((spill_mark_bytes, small_slot_bytes), (1 << 20, 4096));
        assert_eq!(
            reassembly_bytes,
            2 * StreamOptions::default().max_message_bytes
        );
    }

    #[test]
    fn whatever_memory_there_is_every_share_is_possible() {
        let row = Options::TABLE.iter().find(|row| row.name == "memory_bytes");
        let most = row.and_then(|row| row.most()).unwrap();
        for power in 16..=most.ilog2() {
            let stream = StreamOptions {
                memory_bytes: 1 << power,
                ..StreamOptions::default()
            };
            stream.check().unwrap();
            let shares = stream.shares();
            assert!(shares.lane_budget_bytes >= 8192 && shares.run_table_bytes >= 512);
            assert!((192..=4096).contains(&shares.small_slot_bytes));
            assert_eq!(
                Shares::whole("send_pool_bytes", shares.send_pool_bytes),
                1 << power
            );
        }
    }
}
