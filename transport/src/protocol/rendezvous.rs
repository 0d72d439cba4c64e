//! Rendezvous, receiving side: which announced batches are being fetched, and how many bytes at
//! once (ejection limit).

/// Batches on their way after an announcement. A fetch has a slot number that is also its segment
/// tag.
#[derive(Debug)]
pub struct Fetches {
    slots: Vec<Option<Fetch>>,
    bytes: usize,
}

/// One batch on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// Index of the link at this receiver.
    pub link: usize,
    /// Number of the batch on its link.
    pub sequence: u64,
    /// Bytes on their way.
    pub bytes: usize,
}

impl Fetches {
    /// At most `slots` fetches.
    pub fn new(slots: usize) -> Self {
        Self {
            slots: vec![None; slots],
            bytes: 0,
        }
    }

    /// Starts a fetch, or `None` while all slots are taken.
    pub fn begin(&mut self, fetch: Fetch) -> Option<usize> {
        let slot = self.slots.iter().position(Option::is_none)?;
        self.slots[slot] = Some(fetch);
        self.bytes += fetch.bytes;
        Some(slot)
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
    fn as_many_fetches_run_as_there_are_slots() {
        let mut fetches = Fetches::new(4);
        let fetch = |bytes| Fetch {
            link: 0,
            sequence: 0,
            bytes,
        };
        let big = fetches.begin(fetch(1000)).expect("all slots are free");
        assert_eq!(fetches.bytes(), 1000);
        assert_eq!(fetches.get(big), Some(fetch(1000)));
        assert_eq!(fetches.end(big), Some(fetch(1000)));
        assert_eq!((fetches.get(big), fetches.end(big)), (None, None));
        let slots: Vec<_> = (0..5).map(|_| fetches.begin(fetch(20))).collect();
        assert_eq!(
            slots.iter().flatten().count(),
            4,
            "as many as there are slots"
        );
        assert_eq!(fetches.bytes(), 80);
        assert_eq!(fetches.end(99), None);
    }
}
