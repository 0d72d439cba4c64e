//! What processes of a node that meet by an abstract name compare first: their versions.

use std::fmt;

use crate::protocol::wire::{FEATURE, VERSION};

/// What must agree between two processes of a node: the wire format, the major and minor version of
/// the release, and the feature number ([`FEATURE`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    pub(super) wire: u8,
    pub(super) release: String,
    pub(super) feature: u32,
}

impl Versions {
    /// Those of this build.
    pub fn ours() -> Self {
        Self {
            wire: VERSION,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            feature: FEATURE,
        }
    }

    /// As they stand before all that is said by those who begin with `magic`: the bytes that every
    /// version understands, with the feature number behind the release's.
    pub fn encode(&self, magic: [u8; 4]) -> Vec<u8> {
        let release = format!("{}+{}", self.release, self.feature);
        // No release has a name of more than 240 bytes.
        let lengths = [self.wire, release.len() as u8];
        [&magic[..], &lengths, release.as_bytes()].concat()
    }

    /// With what stands behind them.
    pub(super) fn decode(magic: [u8; 4], bytes: &[u8]) -> Option<(Self, &[u8])> {
        let rest = bytes.strip_prefix(&magic)?;
        let (&[wire, length], rest) = rest.split_first_chunk()?;
        let (release, rest) = rest.split_at_checked(usize::from(length))?;
        let release = String::from_utf8_lossy(release);
        // Before there were any, it was 0.
        let (release, feature) = release.split_once('+').unwrap_or((&*release, "0"));
        let versions = Self {
            wire,
            release: release.escape_default().to_string(),
            feature: feature.parse().ok()?,
        };
        Some((versions, rest))
    }

    pub(super) fn agree_with(&self, other: &Self) -> bool {
        let compared = |versions: &Self| {
            let mut numbers = versions.release.splitn(3, '.').map(str::to_owned);
            let minor = [numbers.next(), numbers.next()];
            (versions.wire, versions.feature, minor)
        };
        compared(self) == compared(other)
    }

    /// What stands behind the versions of the other process.
    ///
    /// # Errors
    /// Other versions, with ours; an empty text where these are not the bytes of anybody who begins
    /// with `magic`.
    pub fn behind(magic: [u8; 4], bytes: &[u8]) -> Result<&[u8], String> {
        let (theirs, rest) = Self::decode(magic, bytes).ok_or_else(String::new)?;
        let ours = Self::ours();
        match theirs.agree_with(&ours) {
            true => Ok(rest),
            false => Err(format!(
                "trihop {theirs} here and {ours} there; start one version everywhere"
            )),
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wire,
            release,
            feature,
        } = self;
        write!(
            f,
            "{release} (wire version {wire}, feature number {feature})"
        )
    }
}
