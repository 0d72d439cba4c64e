//! The bytes of a message, wherever they are.

use std::ops::Deref;

use trihop_transport::ring::Block;

use crate::error::{Error, Result};
use crate::queue::long_buffers;

/// The bytes of a message in a channel, or on its way.
#[derive(Debug)]
pub(crate) enum Bytes {
    Own(Vec<u8>),
    /// In memory that ranks of the node share, and that goes back to the one whose it is with the
    /// last that uses it.
    Shared(Block),
}

/// Messages are moved often.
const _: () = assert!(size_of::<Bytes>() == size_of::<Vec<u8>>());

impl Bytes {
    /// As memory that is this process's own; where they are copied for that, with room for some
    /// more.
    ///
    /// # Errors
    /// There is no memory for that.
    pub fn into_vec_with(self, room: usize) -> Result<Vec<u8>> {
        match self {
            Self::Own(bytes) => Ok(bytes),
            Self::Shared(block) => {
                let bytes = block.len() + room;
                let mut copy = long_buffers::take(bytes).map_err(|_| Error::NoMemory { bytes })?;
                copy.extend_from_slice(&block);
                Ok(copy)
            }
        }
    }

    /// In memory that is not much longer: messages are counted by their bytes.
    pub fn fitting(self) -> Self {
        match self {
            Self::Own(mut bytes) => {
                let most = (2 * bytes.len() + 64).max(bytes.len() + (5 << 10));
                if bytes.capacity() > most {
                    bytes.shrink_to_fit();
                }
                Self::Own(bytes)
            }
            shared => shared,
        }
    }

    /// Their first `count` bytes.
    #[inline]
    pub fn first(self, count: usize) -> Self {
        match self {
            Self::Own(mut bytes) => {
                bytes.truncate(count);
                Self::Own(bytes)
            }
            Self::Shared(mut block) => {
                block.truncate(count);
                Self::Shared(block)
            }
        }
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Own(bytes)
    }
}

impl From<Block> for Bytes {
    fn from(block: Block) -> Self {
        Self::Shared(block)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(block) => block,
        }
    }
}

impl Clone for Bytes {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}
