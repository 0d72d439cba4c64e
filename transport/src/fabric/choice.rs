//! What the user asks for.

use crate::link::Mover;

/// Which provider and interface to take, and what to override.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Provider by libfabric's name (`net`, `tcp;ofi_rxm`, `verbs;ofi_rxm`, `cxi`, `shm`), or `tcp`
    /// for native datagrams over TCP by whatever name (over connections where there are none),
    /// `verbs`, `udp`, `rxm`. Default: the best one.
    pub provider: Option<String>,
    /// Domains (`eth0`, `mlx5_0`), libfabric's fabric names, or IP addresses of interfaces, one of
    /// which an endpoint takes. Default: those of the provider's best candidate's network.
    pub interfaces: Vec<String>,
    /// Number of this endpoint's rank among those of its node, by which they take different
    /// adapters.
    pub local_rank: u32,
    /// Overrides the provider's eager limit, in bytes.
    pub eager_bytes: Option<usize>,
    /// Overrides the provider's faster way for batches above the eager limit.
    pub mover: Option<Mover>,
    /// Listen on 127.0.0.1 only, for simulated nodes on one machine. Providers that do not use IP
    /// ignore it.
    pub loopback_only: bool,
    /// Open no descriptor to wait on, for an owner that always spins: saves about 1 us per message
    /// on `tcp;ofi_rxm`, where each completion writes to it.
    /// [`Link::wait_descriptor`](crate::link::Link::wait_descriptor) is `None` then.
    pub spin_only: bool,
    /// Peers that this endpoint will send to or hear from, by which providers size tables and
    /// queues: some [`settings`](super::settings) go by it, which libfabric reads once, at the first
    /// call of a process.
    pub universe: Option<usize>,
}
