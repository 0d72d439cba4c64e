//! The process that something was made in.

/// A fork shares the descriptors of the process that it comes from, and has none of its threads: it
/// ends nothing of what was made there, since that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// This process.
    pub fn here() -> Self {
        Self(std::process::id())
    }

    /// Whether the caller is in the process that this was noted in.
    pub fn is_here(self) -> bool {
        self == Self::here()
    }
}
