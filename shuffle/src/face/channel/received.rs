//! A message that was got, and its memory.

use std::fmt;
use std::ops::{Deref, DerefMut};

use trihop_transport::topology::Rank;

use super::bytes::Bytes;
use super::owner::{SPARE_BYTES, Stored};
use crate::queue::long_buffers;

/// A message that was got from a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Rank that sent it.
    pub source: Rank,
    /// The 32 bits that the sender gave with it.
    pub kind: u32,
    /// Its bytes.
    pub bytes: Buffer,
}

impl Received {
    pub(super) fn of(message: Stored) -> Self {
        Self {
            source: Rank(message.about.source),
            kind: message.about.kind,
            bytes: message.bytes.into(),
        }
    }
}

/// A message whose bytes are in a buffer of the program's: see
/// [`Channel::get_into`](super::Channel::get_into).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// Rank that sent it.
    pub source: Rank,
    /// The 32 bits that the sender gave with it.
    pub kind: u32,
    /// How many bytes it has, from the beginning of the buffer on.
    pub length: usize,
}

/// The bytes of a message, in the memory in which they came, or [from which they
/// are](super::Channel::buffer) to be sent: a slice. Where they are many, dropping it leaves the
/// memory to the next messages, which spares them fresh pages; [`Buffer::into_vec`] keeps it.
///
/// That memory may be shared with other ranks of the node. Nobody else uses it meanwhile, but a
/// forked child does not have it: what is to outlive a `fork` is copied before.
#[derive(Default)]
pub struct Buffer(Bytes);

impl Buffer {
    /// The bytes in memory that is the caller's for good. Nothing is copied, but for what lies in
    /// memory of a neighbour.
    pub fn into_vec(mut self) -> Vec<u8> {
        match self.take() {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(block) => block.to_vec(),
        }
    }

    /// As [`Buffer::into_vec`], of bytes that need not be copied for that.
    ///
    /// # Errors
    /// They would have to be: they lie in memory of a neighbour.
    pub fn try_into_vec(mut self) -> Result<Vec<u8>, Self> {
        match self.take() {
            Bytes::Own(bytes) => Ok(bytes),
            shared => Err(Self(shared)),
        }
    }

    /// Leaves it empty.
    pub(super) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.0)
    }

    /// Whether they are in memory that is shared.
    #[cfg(test)]
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.0, Bytes::Shared(_))
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<Buffer> for Vec<u8> {
    fn from(buffer: Buffer) -> Self {
        buffer.into_vec()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Those of shorter ones would drive long ones out.
        if let Bytes::Own(bytes) = &mut self.0
            && bytes.capacity() > SPARE_BYTES
        {
            long_buffers::keep(std::mem::take(bytes));
        }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(block) => block,
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

impl PartialEq<[u8]> for Buffer {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl PartialEq<&[u8]> for Buffer {
    fn eq(&self, other: &&[u8]) -> bool {
        **self == **other
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Buffer {
    fn eq(&self, other: &[u8; N]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Buffer {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == **other
    }
}

impl PartialEq<Vec<u8>> for Buffer {
    fn eq(&self, other: &Vec<u8>) -> bool {
        **self == **other
    }
}
