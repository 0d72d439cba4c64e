//! Private mappings, on the largest pages that can be had.

use crate::error::{Error, Result};
use memmap2::MmapMut;

/// A private, zeroed mapping.
#[derive(Debug)]
pub struct Mapping {
    map: MmapMut,
}

impl Mapping {
    /// Maps at least `bytes`, rounded up to whole pages.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn allocate(bytes: usize) -> Result<Self> {
        let map = MmapMut::map_anon(bytes.max(1)).map_err(|e| Error::system(format!("mapping {bytes} bytes"), e))?;
        Ok(Self { map })
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr().cast_mut()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the mapping is empty (it never is).
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}
