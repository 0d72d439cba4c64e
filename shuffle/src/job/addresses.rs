//! The fabric addresses of a node's ranks as bytes: what they have in common is written once.
//!
//! Addresses of one node differ in few bytes, a port or a queue's number, so the card of a node with
//! many ranks stays short.

/// Bytes in front of each address: its length.
const LENGTH_BYTES: usize = 2;

/// Appends the addresses: the longest one's length, the first address with its own length in front
/// and padded to the longest, a bit for each byte of that in which any two differ, and of each
/// address these bytes.
pub(super) fn pack(addresses: &[Vec<u8>], bytes: &mut Vec<u8>) {
    let longest = addresses.iter().map(Vec::len).max().unwrap_or(0);
    let padded = |address: &Vec<u8>| {
        let mut padded = (address.len() as u16).to_le_bytes().to_vec();
        padded.extend_from_slice(address);
        padded.resize(LENGTH_BYTES + longest, 0);
        padded
    };
    let padded: Vec<Vec<u8>> = addresses.iter().map(padded).collect();
    let Some(first) = padded.first() else {
        return;
    };
    let differing = |at: &usize| padded.iter().any(|other| other[*at] != first[*at]);
    let differing: Vec<usize> = (0..first.len()).filter(differing).collect();
    let mut mask = vec![0_u8; first.len().div_ceil(8)];
    for at in &differing {
        mask[at / 8] |= 1 << (at % 8);
    }
    bytes.extend_from_slice(&(longest as u16).to_le_bytes());
    bytes.extend_from_slice(first);
    bytes.extend_from_slice(&mask);
    for address in &padded {
        bytes.extend(differing.iter().map(|&at| address[at]));
    }
}

/// Addresses that [`pack`] has written.
pub(super) struct PackedAddresses<'a> {
    first: &'a [u8],
    mask: &'a [u8],
    /// The bytes in which they differ, address by address.
    own: &'a [u8],
    ranks: usize,
}

impl<'a> PackedAddresses<'a> {
    /// Of so many ranks, at least one; `None` where these bytes are nothing of the kind.
    pub fn parse(bytes: &'a [u8], ranks: u32) -> Option<Self> {
        let (longest, rest) = bytes.split_first_chunk::<2>()?;
        let width = LENGTH_BYTES + usize::from(u16::from_le_bytes(*longest));
        let (first, rest) = rest.split_at_checked(width)?;
        let (mask, own) = rest.split_at_checked(width.div_ceil(8))?;
        let differing: usize = mask.iter().map(|bits| bits.count_ones() as usize).sum();
        let ranks = ranks as usize;
        let is_whole = ranks > 0 && differing <= width && own.len() == ranks * differing;
        is_whole.then_some(Self {
            first,
            mask,
            own,
            ranks,
        })
    }

    /// The address of a local rank; `None` where its length is impossible.
    ///
    /// # Panics
    /// When the node has no such rank.
    pub fn get(&self, local: u32) -> Option<Vec<u8>> {
        let differing = self.own.len() / self.ranks;
        let mut own = self.own[local as usize * differing..].iter();
        let mut padded = self.first.to_vec();
        for (at, byte) in padded.iter_mut().enumerate() {
            if self.mask[at / 8] >> (at % 8) & 1 == 1 {
                *byte = *own.next()?;
            }
        }
        let (length, address) = padded.split_first_chunk::<LENGTH_BYTES>()?;
        Some(
            address
                .get(..usize::from(u16::from_le_bytes(*length)))?
                .to_vec(),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(addresses: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(addresses, &mut bytes);
        bytes
    }

    #[test]
    fn addresses_that_differ_by_a_port_take_two_bytes_each() {
        let address = |port: u16| {
            let [high, low] = port.to_be_bytes();
            [&[2, 0, high, low, 10, 0, 0, 7][..], &[0; 8]].concat()
        };
        let addresses: Vec<Vec<u8>> = (0..64).map(|local| address(40_000 + 257 * local)).collect();
        let bytes = packed(&addresses);
        assert_eq!(bytes.len(), 2 + 2 + 16 + 3 + 64 * 2);
        let read = PackedAddresses::parse(&bytes, 64).unwrap();
        assert_eq!(read.get(63).as_ref(), Some(&addresses[63]));
        assert!(PackedAddresses::parse(&bytes, 63).is_none());
        assert!(PackedAddresses::parse(&bytes, 0).is_none());
    }

    #[test]
    fn an_impossible_length_is_no_address() {
        let mut bytes = packed(&[vec![7; 4]]);
        bytes[2] = 5;
        assert_eq!(PackedAddresses::parse(&bytes, 1).unwrap().get(0), None);
    }

    proptest! {
        #![proptest_config(crate::seed::properties())]

        #[test]
        fn addresses_of_any_lengths_come_back(addresses in prop::collection::vec(prop::collection::vec(0_u8..3, 0..40), 1..20)) {
            let bytes = packed(&addresses);
            let ranks = addresses.len() as u32;
            let read = PackedAddresses::parse(&bytes, ranks).unwrap();
            for (local, address) in (0..).zip(&addresses) {
                prop_assert_eq!(read.get(local), Some(address.clone()));
            }
            for cut in 0..bytes.len() {
                prop_assert!(PackedAddresses::parse(&bytes[..cut], ranks).is_none());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in any::<Vec<u8>>(), ranks in 0_u32..9) {
            if let Some(read) = PackedAddresses::parse(&bytes, ranks) {
                (0..ranks).for_each(|local| drop(read.get(local)));
            }
        }
    }
}
