//! One network adapter.

use std::fmt;
use std::str::FromStr;

/// A network adapter, or an interface without one, that an endpoint may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nic {
    /// Name of the device (`cxi0`, `mlx5_0`) or interface (`eth0`).
    pub device: String,
    /// Its place on the PCI bus; none for what is no device of its own, such as `lo` or `bond0`.
    pub bus: Option<PciAddress>,
    /// NUMA node whose memory and cores are next to it, where the machine says so.
    pub numa_node: Option<u32>,
    /// Whether its cable leads anywhere.
    pub link: LinkState,
    /// Speed of its link in bits per second, where it is known.
    pub bits_per_second: Option<u64>,
    /// The bond whose part it is: who uses it reaches others through that.
    pub bond: Option<String>,
}

impl Nic {
    /// The kind of network, by the device's name.
    pub fn family(&self) -> &'static str {
        let is = |family: &&Family| {
            let named = |prefix: &&str| self.device.starts_with(*prefix);
            family.prefixes.iter().any(named)
        };
        FAMILIES.iter().find(is).map_or("other", |f| f.name)
    }
}

/// What libfabric says about an adapter. Providers leave out what they do not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reported {
    /// Name of the device.
    pub device: Option<String>,
    /// Place on the PCI bus.
    pub bus: Option<PciAddress>,
    /// State of the link.
    pub link: LinkState,
    /// Speed of the link in bits per second.
    pub bits_per_second: Option<u64>,
}

/// A place on the PCI bus, as `lspci -D` writes it: `0000:c1:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// PCI domain.
    pub domain: u32,
    /// Bus in the domain.
    pub bus: u8,
    /// Device on the bus, below 32.
    pub device: u8,
    /// Function of the device, below 8: one port of a card with several.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// A text that is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no place on the PCI bus, such as 0000:c1:00.0")]
pub struct NotPci;

impl FromStr for PciAddress {
    type Err = NotPci;

    fn from_str(text: &str) -> Result<Self, NotPci> {
        let mut parts = text.split([':', '.']);
        let mut next = |digits: std::ops::RangeInclusive<usize>| {
            let part = parts.next().ok_or(NotPci)?;
            let hexadecimal = part.bytes().all(|b| b.is_ascii_hexdigit());
            match hexadecimal && digits.contains(&part.len()) {
                true => u32::from_str_radix(part, 16).map_err(|_| NotPci),
                false => Err(NotPci),
            }
        };
        let (domain, bus) = (next(4..=8)?, next(2..=2)?);
        let (device, function) = (next(2..=2)?, next(1..=1)?);
        if parts.next().is_some() || device >= 32 || function >= 8 {
            return Err(NotPci);
        }
        let [bus, device, function] = [bus, device, function].map(|part| part as u8);
        Ok(Self {
            domain,
            bus,
            device,
            function,
        })
    }
}

/// Whether a link is up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkState {
    /// Nobody says so.
    #[default]
    Unknown,
    /// No cable, no carrier, or switched off.
    Down,
    /// It carries traffic.
    Up,
}

impl LinkState {
    /// `up`, `down` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Down => "down",
            Self::Up => "up",
        }
    }
}

/// A kind of network and the names of its devices and interfaces.
struct Family {
    name: &'static str,
    prefixes: &'static [&'static str],
}

/// Names as drivers and udev give them; the first match counts.
const FAMILIES: &[Family] = &[
    Family {
        name: "Slingshot",
        prefixes: &["cxi", "hsn"],
    },
    Family {
        name: "EFA",
        prefixes: &["rdmap", "efa"],
    },
    Family {
        name: "Omni-Path",
        prefixes: &["hfi1_", "ibopa"],
    },
    // mlx5_0 may be a card for Ethernet as well: its name does not say so.
    Family {
        name: "InfiniBand or RoCE",
        prefixes: &["mlx5_", "mlx4_", "ib", "bnxt_re", "irdma", "roce", "rxe"],
    },
    Family {
        name: "loopback",
        prefixes: &["lo"],
    },
    Family {
        name: "Ethernet",
        prefixes: &["eth", "en", "em", "bond", "team"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_read_as_they_are_written() {
        for text in ["0000:c1:00.0", "0002:00:1f.7", "10000:01:00.0"] {
            let address: PciAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            "c1:00.0",
            "0000:c1:00",
            "0000:c1:00.0.1",
            "0000:c1:20.0",
            "0000:c1:00.8",
            "pci0000:00",
            "virtio2",
            "0000:c1:0.0",
            "0000:+1:00.0",
            "0000:c1:00:0.0",
        ] {
            assert_eq!(text.parse::<PciAddress>(), Err(NotPci), "{text}");
        }
    }

    #[test]
    fn families_go_by_the_names_of_devices() {
        let family = |device: &str| {
            let nic = Nic {
                device: device.to_owned(),
                ..Nic::default()
            };
            nic.family()
        };
        for (device, name) in [
            ("cxi0", "Slingshot"),
            ("hsn3", "Slingshot"),
            ("mlx5_2", "InfiniBand or RoCE"),
            ("ib0", "InfiniBand or RoCE"),
            ("ibp65s0", "InfiniBand or RoCE"),
            ("ibopa0", "Omni-Path"),
            ("rdmap0s31", "EFA"),
            ("efa_0", "EFA"),
            ("hfi1_0", "Omni-Path"),
            ("eth0", "Ethernet"),
            ("enp3s0f1", "Ethernet"),
            ("bond0", "Ethernet"),
            ("lo", "loopback"),
            ("wlan0", "other"),
        ] {
            assert_eq!(family(device), name, "{device}");
        }
    }
}
