//! Descriptors: what names a channel in messages, arguments and files.

use std::fmt;
use std::str::FromStr;

use trihop_transport::topology::Rank;

use crate::error::{Error, Result};

const PREFIX: &str = "trihop-ch";
/// What is missing where the last part is.
const CHECK: &str = "check digits are";
const MAGIC: [u8; 4] = *b"thc1";

/// Names a channel on every rank of its job: 28 bytes, or a line of text of at most 64 characters
/// that parses back. One that is left over from another job, whose channels were not
/// [kept](super::Channels::keep), or from a channel that is gone, is refused by
/// [`attach`](super::Channels::attach) with [`Error::NoChannel`].
///
/// ```
/// use trihop_shuffle::channel::Descriptor;
///
/// let text = "trihop-ch:51f2c3a90b7d6e84:3:0:1:";
/// let refused = text.parse::<Descriptor>().unwrap_err().to_string();
/// assert!(refused.contains("its check digits are missing"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// What the channels of one opening have in common.
    pub(super) job: u64,
    pub(super) owner: u32,
    pub(super) number: u32,
    /// How many channels have had this number before.
    pub(super) epoch: u32,
}

impl Descriptor {
    /// Bytes of a descriptor.
    pub const BYTES: usize = 28;

    /// The rank that has the channel.
    pub fn owner(&self) -> Rank {
        Rank(self.owner)
    }

    /// Its number there.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// To be sent, or stored, as it is.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [self.owner, self.number, self.epoch, self.check()];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..12].copy_from_slice(&self.job.to_le_bytes());
        for (place, word) in bytes[12..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What [`Descriptor::to_bytes`] has given.
    ///
    /// # Errors
    /// [`Error::NoChannel`] for whatever else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let shown = || format!("{} bytes", bytes.len());
        if bytes.len() != Self::BYTES {
            let why = format!("a descriptor has {} bytes", Self::BYTES);
            return Err(Error::no_channel(shown(), why));
        }
        if bytes[..4] != MAGIC {
            return Err(Error::no_channel(shown(), "they are no descriptor"));
        }
        let word = |at: usize| {
            let (words, _) = bytes[12..].as_chunks();
            u32::from_le_bytes(words[at])
        };
        let (jobs, _) = bytes[4..].as_chunks();
        let descriptor = Self {
            job: u64::from_le_bytes(jobs[0]),
            owner: word(0),
            number: word(1),
            epoch: word(2),
        };
        match descriptor.check() == word(3) {
            true => Ok(descriptor),
            false => Err(Error::no_channel(shown(), "they were changed")),
        }
    }

    /// Digits by which what was cut or mistyped is found (FNV-1a). They keep nobody from making a
    /// descriptor up.
    fn check(&self) -> u32 {
        let words = [self.owner, self.number, self.epoch];
        let bytes = words.into_iter().flat_map(u32::to_le_bytes);
        let bytes = self.job.to_le_bytes().into_iter().chain(bytes);
        bytes.fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            job,
            owner,
            number,
            epoch,
        } = self;
        let check = self.check();
        write!(
            f,
            "{PREFIX}:{job:016x}:{owner:x}:{number:x}:{epoch:x}:{check:08x}"
        )
    }
}

impl FromStr for Descriptor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: String| {
            // Of what was meant to be something else, the beginning says enough.
            let shown: String = text.chars().take(80).collect();
            Error::no_channel(format!("`{}`", shown.escape_debug()), why)
        };
        let mut parts = text.split(':');
        if parts.next() != Some(PREFIX) {
            return Err(bad(format!("a descriptor begins with `{PREFIX}:`")));
        }
        let mut number = |what: &str, digits: usize| {
            let part = parts.next().filter(|part| !part.is_empty());
            let part = part.ok_or_else(|| bad(format!("its {what} missing")))?;
            let is_hex = part.len() <= digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            // Digits that are cut off would make another number.
            let is_hex = is_hex && (what != CHECK || part.len() == digits);
            let number = is_hex.then(|| u64::from_str_radix(part, 16).ok()).flatten();
            number.ok_or_else(|| {
                bad(format!(
                    "`{}` is no hexadecimal number of {digits} digits",
                    part.escape_debug()
                ))
            })
        };
        let job = number("job is", 16)?;
        let [owner, channel, epoch, check] = [
            number("owner is", 8)?,
            number("number is", 8)?,
            number("epoch is", 8)?,
            number(CHECK, 8)?,
        ]
        .map(|word| word as u32);
        if let Some(rest) = parts.next() {
            return Err(bad(format!("`:{}` stands behind it", rest.escape_debug())));
        }
        let descriptor = Self {
            job,
            owner,
            number: channel,
            epoch,
        };
        match descriptor.check() == check {
            true => Ok(descriptor),
            false => Err(bad("it was changed: its check digits do not fit".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_descriptor_parses_back_and_is_short(
            job: u64, owner: u32, number: u32, epoch: u32, flip in 0usize..224, at: usize,
        ) {
            let descriptor = Descriptor { job, owner, number, epoch };
            let (bytes, text) = (descriptor.to_bytes(), descriptor.to_string());
            prop_assert!(bytes.len() <= 64 && text.len() <= 64, "{}", text);
            prop_assert_eq!(Descriptor::from_bytes(&bytes), Ok(descriptor));
            prop_assert_eq!(text.parse(), Ok(descriptor));
            let mut changed = bytes;
            changed[flip / 8] ^= 1 << (flip % 8);
            prop_assert!(Descriptor::from_bytes(&changed).is_err());
            prop_assert!(text[..at % text.len()].parse::<Descriptor>().is_err());
        }

        #[test]
        fn whatever_else_is_refused(text: String, bytes: Vec<u8>) {
            prop_assert!(text.parse::<Descriptor>().is_err());
            prop_assert!(Descriptor::from_bytes(&bytes).is_err());
            let text = format!("{PREFIX}:{text}");
            prop_assert!(text.parse::<Descriptor>().is_err());
        }
    }
}
