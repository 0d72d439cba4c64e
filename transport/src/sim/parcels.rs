//! What is under way or waits to be seen, in lists through one table.
//!
//! A list is two numbers, so that an endpoint with nothing to say costs 8 bytes, and the table is
//! as long as the most that was ever under way at once.

use crate::link::{Tag, Token};
use crate::memory::pool::{Buffer, Pool};

/// End of a list.
const NONE: u32 = u32::MAX;

/// Something that a network moves, or an endpoint is told.
pub(super) enum Parcel {
    /// No parcel: this place in the table is free.
    Empty,
    /// A message on its way.
    Message {
        target: u32,
        sender: u32,
        tag: Tag,
        token: Token,
        bytes: Box<[u8]>,
        /// Pool of the sender's buffer, which is promised to the completion; `None` once that was
        /// told.
        pool: Option<Pool>,
    },
    /// A message that has arrived, and that waits for a receive.
    Kept {
        target: u32,
        sender: u32,
        tag: Tag,
        bytes: Box<[u8]>,
    },
    /// A read on its way back.
    Read {
        owner: u32,
        reader: u32,
        token: Token,
        data: Box<[u8]>,
        buffer: Buffer,
    },
    /// A send is complete; its buffer is promised.
    Sent { token: Token, pool: Pool },
    /// A message has arrived in a posted buffer, which is promised.
    Arrived {
        token: Token,
        pool: Pool,
        bytes: Box<[u8]>,
    },
    /// A message was too long for the posted buffer that it met, which is promised.
    Broken {
        token: Token,
        pool: Pool,
        bytes: usize,
    },
    /// A read is complete.
    Done { token: Token, buffer: Buffer },
}

impl Parcel {
    /// The endpoint whose adapter sends the bytes.
    pub fn from(&self) -> u32 {
        match self {
            Self::Message { sender, .. } => *sender,
            Self::Read { owner, .. } => *owner,
            _ => unreachable!("nothing else is under way"),
        }
    }

    /// The endpoint whose adapter takes them in.
    pub fn to(&self) -> u32 {
        match self {
            Self::Message { target, .. } => *target,
            Self::Read { reader, .. } => *reader,
            _ => unreachable!("nothing else is under way"),
        }
    }

    /// Bytes that travel.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Message { bytes, .. } => bytes.len(),
            Self::Read { data, .. } => data.len(),
            _ => unreachable!("nothing else is under way"),
        }
    }
}

/// Parcels in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl Default for List {
    fn default() -> Self {
        Self {
            first: NONE,
            last: NONE,
        }
    }
}

impl List {
    pub fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

/// All parcels of a network.
pub(super) struct Parcels {
    places: Vec<(u32, Parcel)>,
    free: u32,
}

impl Default for Parcels {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: NONE,
        }
    }
}

impl Parcels {
    fn place(&mut self, parcel: Parcel) -> u32 {
        if self.free == NONE {
            let index = u32::try_from(self.places.len()).expect("less than 2^32 parcels");
            self.places.push((NONE, parcel));
            return index;
        }
        let index = self.free;
        self.free = self.places[index as usize].0;
        self.places[index as usize] = (NONE, parcel);
        index
    }

    /// Whether there is such a parcel in any list.
    pub fn any(&self, is: impl Fn(&Parcel) -> bool) -> bool {
        self.places.iter().any(|(_, parcel)| is(parcel))
    }

    /// The first parcel.
    pub fn first(&self, list: &List) -> Option<&Parcel> {
        let place = self.places.get(list.first as usize);
        place.map(|(_, parcel)| parcel)
    }

    /// Adds a parcel behind the others.
    pub fn push_back(&mut self, list: &mut List, parcel: Parcel) {
        let index = self.place(parcel);
        if list.is_empty() {
            list.first = index;
        } else {
            self.places[list.last as usize].0 = index;
        }
        list.last = index;
    }

    /// Adds a parcel before the others.
    pub fn push_front(&mut self, list: &mut List, parcel: Parcel) {
        let index = self.place(parcel);
        self.places[index as usize].0 = list.first;
        if list.is_empty() {
            list.last = index;
        }
        list.first = index;
    }

    /// Removes the first parcel.
    pub fn pop(&mut self, list: &mut List) -> Option<Parcel> {
        if list.is_empty() {
            return None;
        }
        let index = list.first;
        let (next, parcel) =
            std::mem::replace(&mut self.places[index as usize], (self.free, Parcel::Empty));
        self.free = index;
        list.first = next;
        if next == NONE {
            list.last = NONE;
        }
        Some(parcel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::RemoteMemory;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn numbered(number: u64) -> Parcel {
        let store = std::sync::Arc::new(crate::memory::slots::SlotStore::new(64));
        let first = RemoteMemory { address: 0, key: 0 };
        let pool = Pool::on_demand(store, 1, 0, first);
        Parcel::Sent {
            token: Token(number),
            pool,
        }
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        /// Two lists through one table, against two queues.
        #[test]
        fn lists_are_queues(steps in proptest::collection::vec((0usize..2, 0u8..4), 0..200)) {
            let mut parcels = Parcels::default();
            let mut lists = [List::default(); 2];
            let mut model: [VecDeque<u64>; 2] = Default::default();
            for (number, (which, step)) in (0u64..).zip(steps) {
                match step {
                    0 => {
                        parcels.push_back(&mut lists[which], numbered(number));
                        model[which].push_back(number);
                    }
                    1 => {
                        parcels.push_front(&mut lists[which], numbered(number));
                        model[which].push_front(number);
                    }
                    _ => {
                        let got = parcels.pop(&mut lists[which]).map(|p| match p {
                            Parcel::Sent { token, .. } => token.0,
                            _ => unreachable!("only these were added"),
                        });
                        prop_assert_eq!(got, model[which].pop_front());
                    }
                }
                prop_assert_eq!(lists[which].is_empty(), model[which].is_empty());
            }
        }
    }
}
