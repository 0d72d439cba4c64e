//! Rendezvous, receiving side: what of announced batches and records is being fetched, and how many
//! bytes at once (ejection limit).

use super::wire::Epoch;

/// What is on its way after an announcement. A fetch has a slot number that is also its segment
/// tag.
#[derive(Debug)]
pub struct Fetches {
    slots: Vec<Option<Fetch>>,
    bytes: usize,
}

/// One batch, or a part of a record, on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// Index of the link at this receiver.
    pub link: usize,
    /// Epoch of the endpoint at its other end.
    pub epoch: Epoch,
    /// Number of the batch on its link.
    pub sequence: u64,
    /// Where they begin in what was announced.
    pub from: usize,
    /// Bytes on their way.
    pub bytes: usize,
    /// What they are.
    pub what: Fetched,
}

/// What is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// A batch, with its header.
    Batch,
    /// A part of a record, which has none, into a fetch buffer.
    Part,
    /// The same into the block that the record is to lie in.
    PartInPlace,
}

impl Fetches {
    /// None yet, with room for so many: whoever starts them bounds them.
    pub fn new(slots: usize) -> Self {
        Self {
            slots: vec![None; slots],
            bytes: 0,
        }
    }

    /// Starts a fetch.
    pub fn begin(&mut self, fetch: Fetch) -> usize {
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            // Those of peers that are lost may never end.
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(fetch);
        self.bytes += fetch.bytes;
        slot
    }

    /// The fetch that runs in a slot, if one does.
    pub fn get(&self, slot: usize) -> Option<Fetch> {
        self.slots.get(slot).copied().flatten()
    }

    /// Ends a fetch; `None` when none was running in that slot.
    pub fn end(&mut self, slot: usize) -> Option<Fetch> {
        let fetch = self.slots.get_mut(slot)?.take()?;
        self.bytes -= fetch.bytes;
        Some(fetch)
    }

    /// Bytes on their way.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_have_slots_of_their_own_until_they_end() {
        let mut fetches = Fetches::new(4);
        let fetch = |bytes| Fetch {
            link: 0,
            epoch: Epoch::FIRST,
            sequence: 0,
            from: 0,
            bytes,
            what: Fetched::Batch,
        };
        let big = fetches.begin(fetch(1000));
        assert_eq!(fetches.bytes(), 1000);
        assert_eq!(fetches.get(big), Some(fetch(1000)));
        assert_eq!(fetches.end(big), Some(fetch(1000)));
        assert_eq!((fetches.get(big), fetches.end(big)), (None, None));
        let slots: Vec<_> = (0..5).map(|_| fetches.begin(fetch(20))).collect();
        assert_eq!(slots, [0, 1, 2, 3, 4], "more than there was room for");
        assert_eq!(fetches.bytes(), 100);
        assert_eq!(fetches.end(99), None);
    }
}
