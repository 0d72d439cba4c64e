//! What ranks send, and whether it came: every item says which message it is, and every receiver
//! adds up.

use trihop::Rank;

use super::super::Error;

/// Ranks up to which the order of every pair is checked too.
const MOST_FOR_ORDER: u32 = 4_096;

fn mixed(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Expected and received messages of every rank: how many, and the sum of their items.
pub struct Ledger {
    seed: u64,
    expected: Vec<(u32, u64)>,
    received: Vec<(u32, u64)>,
    /// By pair of ranks: the next message that may be sent, and come.
    next: Option<(Vec<u16>, Vec<u16>)>,
    ranks: u32,
    wrong: Option<String>,
}

impl Ledger {
    /// Nothing sent yet.
    pub fn new(ranks: u32, seed: u64) -> Self {
        let pairs = ranks as usize * ranks as usize;
        Self {
            seed,
            expected: vec![(0, 0); ranks as usize],
            received: vec![(0, 0); ranks as usize],
            next: (ranks <= MOST_FOR_ORDER).then(|| (vec![0; pairs], vec![0; pairs])),
            ranks,
            wrong: None,
        }
    }

    /// The `number`-th random target of `source`.
    pub fn target(&self, source: Rank, number: u32) -> Rank {
        let place = u64::from(source.0) << 32 | u64::from(number);
        let random = mixed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mixed(place));
        Rank(((u128::from(random) * u128::from(self.ranks)) >> 64) as u32)
    }

    /// The item of message `number`: the number, and 48 bits that only this message has.
    fn item(&self, source: Rank, target: Rank, number: u16) -> u64 {
        let pair = u64::from(source.0) << 32 | u64::from(target.0);
        let hash = mixed(mixed(pair ^ self.seed) ^ u64::from(number));
        hash << 16 | u64::from(number)
    }

    /// The item of the next message from `source` to `target`, its `number`-th of all.
    pub fn next(&self, source: Rank, target: Rank, number: u32) -> u64 {
        let number = match &self.next {
            Some((sent, _)) => sent[self.pair(source, target)],
            None => number as u16,
        };
        self.item(source, target, number)
    }

    /// That message was taken.
    pub fn sent(&mut self, source: Rank, target: Rank, item: u64) {
        let pair = self.pair(source, target);
        if let Some((sent, _)) = &mut self.next {
            sent[pair] = sent[pair].wrapping_add(1);
        }
        let (count, sum) = &mut self.expected[target.0 as usize];
        *count += 1;
        *sum = sum.wrapping_add(mixed(item));
    }

    /// A message came.
    pub fn came(&mut self, source: Rank, target: Rank, bytes: &[u8]) {
        let item = bytes.try_into().map_or(0, u64::from_le_bytes);
        let number = item as u16;
        let pair = self.pair(source, target);
        let due = match &mut self.next {
            Some((_, came)) => {
                let due = came[pair];
                came[pair] = due.wrapping_add(1);
                due
            }
            None => number,
        };
        if item != self.item(source, target, due) && self.wrong.is_none() {
            self.wrong = Some(format!(
                "message {due} from rank {source} to rank {target} has item {item:#x}"
            ));
        }
        let (count, sum) = &mut self.received[target.0 as usize];
        *count += 1;
        *sum = sum.wrapping_add(mixed(item));
    }

    fn pair(&self, source: Rank, target: Rank) -> usize {
        source.0 as usize * self.ranks as usize + target.0 as usize
    }

    /// Whether everything came, once, and in order where that is known.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |why| Error::Wrong {
            bench: "scale",
            why,
        };
        if let Some(why) = &self.wrong {
            return Err(wrong(why.clone()));
        }
        for (rank, (expected, received)) in self.expected.iter().zip(&self.received).enumerate() {
            if expected != received {
                return Err(wrong(format!(
                    "rank {rank} received {} messages with sum {:#x}, expected are {} with {:#x}",
                    received.0, received.1, expected.0, expected.1
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(ledger: &mut Ledger) -> u64 {
        let item = ledger.next(Rank(1), Rank(2), 0);
        ledger.sent(Rank(1), Rank(2), item);
        item
    }

    #[test]
    fn what_is_lost_doubled_changed_or_out_of_order_is_noticed() {
        for ranks in [10, MOST_FOR_ORDER + 1] {
            let mut ledger = Ledger::new(ranks, 7);
            let item = one(&mut ledger);
            assert!(ledger.check().is_err(), "lost");
            ledger.came(Rank(1), Rank(2), &item.to_le_bytes());
            ledger.check().unwrap();
            ledger.came(Rank(1), Rank(2), &item.to_le_bytes());
            assert!(ledger.check().is_err(), "doubled");

            let mut ledger = Ledger::new(ranks, 7);
            let item = one(&mut ledger);
            ledger.came(Rank(1), Rank(3), &item.to_le_bytes());
            assert!(ledger.check().is_err(), "at another rank");
            assert!((0..100).all(|number| ledger.target(Rank(4), number).0 < ranks));
        }
        let mut ledger = Ledger::new(10, 7);
        let items = [one(&mut ledger), one(&mut ledger)];
        for item in [items[1], items[0]] {
            ledger.came(Rank(1), Rank(2), &item.to_le_bytes());
        }
        assert!(ledger.check().is_err(), "out of order");
    }
}
