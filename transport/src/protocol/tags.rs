//! Tags and tokens: which stream and which class of slot an operation belongs to.

use std::fmt;

use super::eager::Slot;
use crate::link::{Tag, Token};
use crate::secret::Secret;

/// Class of a posted operation. A tag has 16 bits for the stream, 4 for the class and 28 for a
/// number: 48 in all, under the mask of [`Tags`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TagClass {
    /// Counters and clear-to-send notices.
    Control = 1,
    /// A batch or an announcement, into the slot that a link has of its own.
    Small = 2,
    /// A batch, into a shared large slot.
    Large = 3,
    /// An announced batch.
    Segment = 4,
    /// Only in tokens: a send that ended.
    Sent = 5,
    /// Only in tokens: a read that ended.
    Read = 6,
}

impl TagClass {
    /// Tag class of a receive slot.
    pub fn of(slot: Slot) -> Self {
        match slot {
            Slot::Small => Self::Small,
            Slot::Large => Self::Large,
        }
    }
}

/// Bits that the fields of a tag take.
pub const TAG_BITS: u32 = 48;

/// The tags of one job: their fields under a mask that only its members know.
///
/// A message whose tag nobody has posted a receive for touches no slot. Without the mask any user
/// who reaches the port could name such a tag. A guess hits one of `n` posted tags with a chance of
/// `n / 2^bits`, at most 2^-32 with the narrowest provider and 65,536 of them. Who reads messages
/// on their way knows the mask, as he knows all else that they show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tags {
    mask: u64,
}

impl Tags {
    /// The tags of the job with this secret, over links whose tags have `bits` bits: the same on
    /// all its ranks.
    ///
    /// # Panics
    /// When the fields do not fit, which no link is opened with.
    pub fn new(secret: &Secret, bits: u32) -> Self {
        assert!(
            (TAG_BITS..=u64::BITS).contains(&bits),
            "tags of {bits} bits for fields of {TAG_BITS}"
        );
        Self {
            mask: secret.derive("tags") >> (u64::BITS - bits),
        }
    }

    /// Tag of a message.
    pub fn tag(self, stream: u16, class: TagClass, number: u32) -> Tag {
        debug_assert!(number < 1 << 28);
        let fields = u64::from(stream) << 32 | (class as u64) << 28 | u64::from(number);
        Tag(fields ^ self.mask)
    }
}

impl fmt::Debug for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tags")
    }
}

/// Token of a posted operation.
pub fn token(stream: u16, class: TagClass, number: u32) -> Token {
    Token(u64::from(stream) << 40 | (class as u64) << 32 | u64::from(number))
}

/// Stream, class and number of a token.
pub fn split(token: Token) -> Option<(u16, TagClass, u32)> {
    let class = match (token.0 >> 32) as u8 {
        1 => TagClass::Control,
        2 => TagClass::Small,
        3 => TagClass::Large,
        4 => TagClass::Segment,
        5 => TagClass::Sent,
        6 => TagClass::Read,
        _ => return None,
    };
    Some(((token.0 >> 40) as u16, class, token.0 as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_fit_in_48_bits_and_tokens_come_back() {
        let tags = Tags::new(&Secret::random().unwrap(), TAG_BITS);
        for number in [0, 1, (1 << 28) - 1] {
            assert!(tags.tag(u16::MAX, TagClass::Segment, number).0 < 1 << 48);
        }
        let token = token(0xabcd, TagClass::Segment, 77);
        assert_eq!(split(token), Some((0xabcd, TagClass::Segment, 77)));
        assert_eq!(split(Token(u64::MAX)), None);
    }

    #[test]
    fn a_stranger_cannot_name_the_tags_of_a_job() {
        let secret = Secret::random().unwrap();
        for bits in [48, 63, 64] {
            let (ours, others) = (
                Tags::new(&secret, bits),
                Tags::new(&Secret::random().unwrap(), bits),
            );
            let mut seen = std::collections::HashSet::new();
            for (stream, class) in [
                (0, TagClass::Control),
                (1, TagClass::Control),
                (1, TagClass::Large),
            ] {
                let tag = ours.tag(stream, class, 0);
                assert!(seen.insert(tag), "two receives with one tag");
                assert_eq!(tag, Tags::new(&secret, bits).tag(stream, class, 0));
                assert_ne!(tag, others.tag(stream, class, 0));
                assert_ne!(tag.0, u64::from(stream) << 32 | (class as u64) << 28);
                assert!(bits == 64 || tag.0 >> bits == 0, "{bits} bits");
            }
            assert_eq!(format!("{ours:?}"), "Tags");
        }
    }
}
