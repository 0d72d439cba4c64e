//! The one table of what is special about a provider. Everything else in this folder treats all
//! providers alike.

use libfabric_sys as sys;

use super::settings::{MATCHING, NO_SHARED_MEMORY, OWN_KEYS, SHARED_RECEIVES, Setting, UNIVERSE};
use crate::link::{Limits, Mover};
use crate::protocol::tags::TAG_BITS;

/// What we know about a provider (with one protocol), and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quirk {
    /// Name as libfabric gives it; empty for the row that covers everything unknown.
    pub provider: &'static str,
    /// Protocol without `FI_PROTO_`; empty for any.
    pub protocol: &'static str,
    /// Rank among the candidates: higher is taken first.
    pub score: i32,
    /// Whether it may be taken without being asked for by name.
    pub automatic: bool,
    /// Whether it can be used at all; if not, `why` says what is wrong with it.
    pub usable: bool,
    /// Largest batch that is worth one tagged send, in bytes.
    pub eager_bytes: usize,
    /// Faster way for larger batches.
    pub mover: Mover,
    /// Whether a completion queue with a descriptor is worth trying.
    pub wait_descriptor: bool,
    /// Whether it listens on an IP interface, so that loopback is a choice.
    pub over_ip: bool,
    /// Memory that it pins for itself, in bytes, where it pins memory (then RLIMIT_MEMLOCK counts).
    pub pinned_reserve_bytes: Option<usize>,
    /// Operations to ask for at once, where its default is small and may be raised.
    pub depth: Option<usize>,
    /// Receives that one endpoint takes by default, and sends, where that is known without the
    /// device: what is offered is asked of libfabric, and this is for simulations, and for
    /// providers that name no limit.
    pub receives: usize,
    /// Longest message that is copied at once, in bytes, for simulations.
    pub inject_bytes: usize,
    /// Longest message in bytes, for simulations.
    pub max_message_bytes: usize,
    /// Bits of a tag, for simulations.
    pub tag_bits: u32,
    /// Rules of registration (`FI_MR_*`), for simulations.
    pub mr_mode: u64,
    /// Variables that libfabric is told by, unless the user has set them.
    pub settings: &'static [Setting],
    /// Whether its objects can be closed before the process ends.
    pub closes: bool,
    /// The reasons for the row.
    pub why: &'static str,
    /// Where that is from; what is measured was measured on libfabric 1.17 and 2.x.
    pub source: &'static str,
}

const MIB: usize = 1 << 20;

/// A network adapter with its own rendezvous: the base of most rows.
const ADAPTER: Quirk = Quirk {
    provider: "",
    protocol: "",
    score: 200,
    automatic: true,
    usable: true,
    eager_bytes: 16 << 10,
    mover: Mover::Read,
    wait_descriptor: true,
    over_ip: false,
    pinned_reserve_bytes: None,
    depth: None,
    receives: 1024,
    inject_bytes: 0,
    max_message_bytes: 1 << 30,
    tag_bits: TAG_BITS,
    mr_mode: BASIC,
    settings: &[],
    closes: true,
    why: "not in the table of providers, so it is used with cautious settings and after the known ones",
    source: "assumed",
};

/// What registration asks for where the provider names keys and peers name addresses.
const BASIC: u64 = sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY;

/// Registration without rules: we name the key, and addresses begin at 0.
const SCALABLE: u64 = 0;

/// Longest message of providers that name no limit, in simulations.
const UNLIMITED: usize = usize::MAX;

/// A provider that must be asked for by name.
const BY_NAME: Quirk = Quirk {
    automatic: false,
    score: 50,
    ..ADAPTER
};

/// Sockets of the kernel: copies are the cost, a read needs the target's processor as a send does.
const KERNEL_TCP: Quirk = Quirk {
    eager_bytes: 64 << 10,
    mover: Mover::Segments,
    over_ip: true,
    inject_bytes: 128,
    max_message_bytes: UNLIMITED,
    tag_bits: 64,
    mr_mode: SCALABLE,
    source: "measured; fi_tcp(7)",
    ..ADAPTER
};

impl Quirk {
    /// The rules of registration by their names, without `FI_MR_`.
    pub fn mr_rules(&self) -> Vec<&'static str> {
        let names = [
            (sys::FI_MR_LOCAL, "LOCAL"),
            (sys::FI_MR_VIRT_ADDR, "VIRT_ADDR"),
            (sys::FI_MR_ALLOCATED, "ALLOCATED"),
            (sys::FI_MR_PROV_KEY, "PROV_KEY"),
            (sys::FI_MR_ENDPOINT, "ENDPOINT"),
        ];
        let has = |(bit, _): &(u64, &str)| self.mr_mode & bit != 0;
        names
            .into_iter()
            .filter(has)
            .map(|(_, name)| name)
            .collect()
    }

    /// Limits as an endpoint of this provider has them by default, for simulations.
    pub fn limits(&self) -> Limits {
        Limits {
            eager_bytes: self.eager_bytes,
            max_message_bytes: self.max_message_bytes,
            posted_receives: self.depth.unwrap_or(self.receives),
            posted_sends: self.depth.unwrap_or(self.receives),
            mover: self.mover,
            tag_bits: self.tag_bits,
        }
    }
}

/// First match wins; the last row matches everything.
pub const TABLE: &[Quirk] = &[
    Quirk {
        provider: "cxi",
        score: 1000,
        pinned_reserve_bytes: Some(64 * MIB),
        inject_bytes: 192,
        max_message_bytes: u32::MAX as usize,
        tag_bits: 48,
        mr_mode: sys::FI_MR_ENDPOINT | sys::FI_MR_ALLOCATED,
        settings: &[MATCHING, OWN_KEYS],
        why: "Slingshot: hardware tag matching, whose entries the ranks of a card share, 48-bit tags, own rendezvous \
              from 16 KiB on, regions are bound to the endpoint and addressed by offset; FI_UNIVERSE_SIZE has made \
              older versions crash at their start",
        source: "fi_cxi(7), prov/cxi/include/cxip.h; never run",
        ..ADAPTER
    },
    Quirk {
        provider: "verbs;ofi_rxm",
        protocol: "RXM",
        score: 900,
        pinned_reserve_bytes: Some(96 * MIB),
        over_ip: false,
        receives: 2048,
        inject_bytes: 192,
        max_message_bytes: 8 * MIB,
        tag_bits: 64,
        mr_mode: sys::FI_MR_LOCAL | BASIC,
        settings: &[UNIVERSE, SHARED_RECEIVES],
        closes: false,
        why: "InfiniBand and RoCE: eager buffers of 16 KiB, 64 MiB of them for all peers together where these are \
              more than 32 (FI_OFI_RXM_USE_SRX=0 where a device has no shared receives), its completion queue \
              holds FI_UNIVERSE_SIZE times the depth, a memlock limit that is nearly enough makes it hang without an error, and 1.17 crashes in \
              fi_close once peers have left, so its objects stay open until the process ends",
        source: "measured in guests with software RDMA; fi_rxm(7), fi_verbs(7)",
        ..ADAPTER
    },
    Quirk {
        provider: "efa",
        score: 850,
        wait_descriptor: false,
        pinned_reserve_bytes: Some(64 * MIB),
        max_message_bytes: UNLIMITED,
        tag_bits: 64,
        mr_mode: BASIC,
        settings: &[NO_SHARED_MEMORY],
        why: "Elastic Fabric Adapter: no descriptor to wait on, no sends that are copied at once, and a \
              shared-memory path of its own, which our rings replace",
        source: "fi_efa(7); never run",
        ..ADAPTER
    },
    Quirk {
        provider: "psm3",
        score: 840,
        pinned_reserve_bytes: Some(64 * MIB),
        receives: 4096,
        inject_bytes: 64,
        max_message_bytes: u32::MAX as usize & !0xfff,
        tag_bits: 60,
        mr_mode: SCALABLE,
        why: "Ethernet and Omni-Path by PSM3: messages above 64 KiB pin through its kernel module, and it names no \
              limit of operations",
        source: "prov/psm3/src/psmx3_attr.c, psmx3_init.c; never run",
        ..ADAPTER
    },
    Quirk {
        provider: "opx",
        score: 830,
        wait_descriptor: false,
        receives: 4096,
        max_message_bytes: UNLIMITED,
        tag_bits: 64,
        mr_mode: SCALABLE,
        why: "Omni-Path: asks for contexts of 64 bytes and for vectors that stay put, both of which every call here \
              gives, has one domain for all adapters, and names no limit of operations",
        source: "fi_opx(7), prov/opx/src/fi_opx_domain.c; never run",
        ..ADAPTER
    },
    Quirk {
        provider: "psm2",
        score: 700,
        receives: 4096,
        why: "Omni-Path by PSM2, superseded by opx and gone from libfabric 2.x",
        source: "fi_psm2(7); never run",
        ..ADAPTER
    },
    Quirk {
        provider: "tcp",
        protocol: "XNET",
        score: 500,
        depth: Some(4096),
        why: "native datagrams over TCP (libfabric 1.18 and newer): sends beat reads up to 256 KiB",
        ..KERNEL_TCP
    },
    Quirk {
        provider: "net",
        protocol: "XNET",
        score: 500,
        depth: Some(4096),
        why: "native datagrams over TCP, as libfabric 1.16 and 1.17 call them: reads are slower than sends at every \
              size",
        ..KERNEL_TCP
    },
    Quirk {
        provider: "tcp;ofi_rxm",
        protocol: "RXM",
        score: 400,
        receives: 2048,
        inject_bytes: 64,
        settings: &[UNIVERSE, SHARED_RECEIVES],
        source: "measured; fi_rxm(7)",
        why: "datagrams emulated over TCP connections, slower than native ones by 1 to 2 us; the only TCP where \
              libfabric is old",
        ..KERNEL_TCP
    },
    Quirk {
        provider: "net;ofi_rxm",
        protocol: "RXM",
        score: 40,
        automatic: false,
        inject_bytes: 64,
        settings: &[UNIVERSE, SHARED_RECEIVES],
        why: "puts an emulation over a provider that has datagrams of its own; ask for net",
        ..KERNEL_TCP
    },
    Quirk {
        provider: "shm",
        inject_bytes: 4096,
        max_message_bytes: UNLIMITED,
        tag_bits: 64,
        mr_mode: sys::FI_MR_VIRT_ADDR,
        source: "measured; fi_shm(7)",
        why: "reaches only this node, where rings are faster, and never reports a dead peer; ask for it by name",
        ..BY_NAME
    },
    Quirk {
        provider: "sm2",
        usable: false,
        why: "has no remote reads and returns wrong completion flags",
        source: "measured on libfabric 2.x",
        ..BY_NAME
    },
    Quirk {
        provider: "lnx",
        why: "links other providers (shm with a network) that FI_LNX_PROV_LINKS names; untried here, ask for it by name",
        source: "fi_lnx(7); never run",
        ..BY_NAME
    },
    Quirk {
        provider: "sockets",
        score: 10,
        over_ip: true,
        source: "measured",
        why: "deprecated, and some hundred microseconds per message; ask for it by name to test with it",
        ..BY_NAME
    },
    Quirk {
        provider: "udp;ofi_rxd",
        score: 5,
        over_ip: true,
        source: "measured",
        why: "a demonstration over datagrams: slow, lossy under load, and it cuts a message that is too long without an \
              error; ask for it by name to test with it",
        ..BY_NAME
    },
    ADAPTER,
];

/// Providers whose limits the simulated fabric can have: short name, provider, protocol.
pub const SIMULATED: &[(&str, &str, &str)] = &[
    ("cxi", "cxi", "CXI"),
    ("verbs", "verbs;ofi_rxm", "RXM"),
    ("efa", "efa", "EFA"),
    ("psm3", "psm3", "PSMX3"),
    ("opx", "opx", "OPX"),
    ("tcp", "tcp", "XNET"),
    ("rxm", "tcp;ofi_rxm", "RXM"),
    ("shm", "shm", "SHM"),
];

/// The row of one of [`SIMULATED`], by its short name.
pub fn simulated(name: &str) -> Option<&'static Quirk> {
    let row = SIMULATED.iter().find(|(short, ..)| *short == name)?;
    Some(lookup(row.1, row.2))
}

/// The row for a provider and its protocol (without `FI_PROTO_`).
pub fn lookup(provider: &str, protocol: &str) -> &'static Quirk {
    // Debugging hooks add themselves to the name; what is under them stays what it is.
    let bare: Vec<&str> = provider
        .split(';')
        .filter(|part| !part.starts_with("ofi_hook_"))
        .collect();
    let bare = bare.join(";");
    TABLE
        .iter()
        .find(|row| {
            (row.provider.is_empty() || row.provider == bare)
                && (row.protocol.is_empty() || row.protocol == protocol)
        })
        .unwrap_or(&ADAPTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_name_and_protocol() {
        assert_eq!(lookup("net", "XNET").score, 500);
        assert_eq!(lookup("tcp", "XNET").mover, Mover::Segments);
        assert_eq!(lookup("verbs;ofi_rxm", "RXM").mover, Mover::Read);
        assert_eq!(lookup("net;ofi_hook_perf", "XNET").provider, "net");
        assert_eq!(lookup("something-new", "NEW").provider, "");
    }

    #[test]
    fn simulated_providers_have_rows_of_their_own_that_we_can_use() {
        for (name, ..) in SIMULATED {
            let row = simulated(name).expect("it is in the list");
            assert!(row.usable && !row.provider.is_empty(), "{name}");
            assert!(row.tag_bits >= TAG_BITS && row.receives >= 1024, "{name}");
            assert!(row.eager_bytes <= row.max_message_bytes, "{name}");
        }
        assert_eq!(simulated("udp"), None);
    }

    #[test]
    fn every_row_names_its_source() {
        assert!(TABLE.iter().all(|row| !row.source.is_empty()));
    }

    #[test]
    fn last_row_matches_everything() {
        let last = TABLE.last().expect("the table has rows");
        assert!(last.provider.is_empty() && last.protocol.is_empty());
        assert_eq!(
            TABLE.iter().filter(|row| row.provider.is_empty()).count(),
            1
        );
    }
}
