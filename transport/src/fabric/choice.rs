//! What the user asks for.

use crate::error::{Error, Result};
use crate::link::Mover;

/// Which provider and interface to take, and what to override.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Provider by libfabric's name (`net`, `tcp;ofi_rxm`, `verbs;ofi_rxm`, `cxi`, `shm`), or `tcp` for native
    /// datagrams over TCP by whatever name (over connections where there are none), `verbs`, `udp`, `rxm`. Default:
    /// the best one.
    pub provider: Option<String>,
    /// Domain (`eth0`, `mlx5_0`), libfabric's fabric name, or the IP address of an interface. Default: the provider's
    /// first that another node can reach.
    pub interface: Option<String>,
    /// Overrides the provider's eager limit, in bytes.
    pub eager_bytes: Option<usize>,
    /// Overrides the provider's faster way for batches above the eager limit.
    pub mover: Option<Mover>,
    /// Listen on 127.0.0.1 only, for simulated nodes on one machine. Providers that do not use IP ignore it.
    pub loopback_only: bool,
    /// Open no descriptor to wait on, for an owner that always spins: saves about 1 us per message on `tcp;ofi_rxm`,
    /// where each completion writes to it. [`Link::wait_descriptor`](crate::link::Link::wait_descriptor) is `None` then.
    pub spin_only: bool,
    /// Endpoints in the job, by which some providers size their queues. Sets `FI_UNIVERSE_SIZE` unless it is set.
    pub universe: Option<usize>,
}

impl Choice {
    /// Reads `TRIHOP_PROVIDER` (else `FI_PROVIDER`), `TRIHOP_INTERFACE`, `TRIHOP_EAGER_BYTES` and `TRIHOP_MOVER`.
    ///
    /// # Errors
    /// When a value is impossible.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|key| std::env::var(key).ok().filter(|value| !value.is_empty()))
    }

    fn from_lookup(value: impl Fn(&str) -> Option<String>) -> Result<Self> {
        // A list or an exclusion in FI_PROVIDER filters inside libfabric, and its order of candidates decides.
        let filter = value("FI_PROVIDER").filter(|v| !v.starts_with('^') && !v.contains(','));
        let eager_bytes = match value("TRIHOP_EAGER_BYTES") {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| {
                Error::config(
                    "TRIHOP_EAGER_BYTES",
                    format!("`{text}` is not a number of bytes, such as 65536"),
                )
            })?),
        };
        let mover = match value("TRIHOP_MOVER").as_deref() {
            None => None,
            Some("read") => Some(Mover::Read),
            Some("segments") => Some(Mover::Segments),
            Some(other) => {
                return Err(Error::config(
                    "TRIHOP_MOVER",
                    format!("`{other}` is neither `read` nor `segments`"),
                ));
            }
        };
        Ok(Self {
            provider: value("TRIHOP_PROVIDER").or(filter),
            interface: value("TRIHOP_INTERFACE"),
            eager_bytes,
            mover,
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_read_and_checked() {
        let read = |pairs: &[(&str, &str)]| {
            Choice::from_lookup(|key| {
                pairs
                    .iter()
                    .find(|(k, _)| *k == key)
                    .map(|(_, v)| (*v).to_owned())
            })
        };
        let choice = read(&[
            ("FI_PROVIDER", "net"),
            ("TRIHOP_PROVIDER", "shm"),
            ("TRIHOP_MOVER", "segments"),
        ])
        .expect("valid values");
        assert_eq!(
            (choice.provider.as_deref(), choice.mover),
            (Some("shm"), Some(Mover::Segments))
        );
        assert_eq!(
            read(&[("FI_PROVIDER", "^shm")])
                .expect("left to libfabric")
                .provider,
            None
        );
        assert!(read(&[("TRIHOP_EAGER_BYTES", "64k")]).is_err());
        assert!(read(&[("TRIHOP_MOVER", "pigeon")]).is_err());
    }
}
