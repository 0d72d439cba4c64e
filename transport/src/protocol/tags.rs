//! Tags and tokens: which stream and which class of slot an operation belongs to.

use super::eager::Slot;
use crate::link::{Tag, Token};

/// Class of a posted operation. A tag uses 16 bits for the stream, 4 for the class and 28 for a number: 48 in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TagClass {
    /// Counters and clear-to-send notices.
    Control = 1,
    /// A batch or an announcement, into the slot that every link always has.
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

/// Tag of a message.
pub fn tag(stream: u16, class: TagClass, number: u32) -> Tag {
    debug_assert!(number < 1 << 28);
    Tag(u64::from(stream) << 32 | (class as u64) << 28 | u64::from(number))
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
        assert!(tag(u16::MAX, TagClass::Segment, (1 << 28) - 1).0 < 1 << 48);
        let token = token(0xabcd, TagClass::Segment, 77);
        assert_eq!(split(token), Some((0xabcd, TagClass::Segment, 77)));
        assert_eq!(split(Token(u64::MAX)), None);
    }
}
