//! What the kernel tells about adapters and NUMA nodes, below `/sys`.
//!
//! What cannot be read is unknown, and nothing here fails: a container without these files has its
//! adapters all the same.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::nic::{LinkState, Nic, PciAddress, Reported};
use super::numa::{Numa, NumaNode};
use crate::cores;

/// Classes of devices whose names providers use, in the order in which a name is looked for.
const CLASSES: [&str; 3] = ["net", "infiniband", "cxi"];

/// Most processors of a range in a list of the kernel, and most NUMA nodes.
const MOST: u32 = 1 << 16;

/// The kernel's tree of devices.
#[derive(Debug, Clone)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    /// This machine's.
    fn default() -> Self {
        Self::below("/sys")
    }
}

impl Sysfs {
    /// A tree whose root is this folder in the place of `/sys`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The adapter behind a domain of libfabric. What libfabric says counts more than what the
    /// kernel says, but for the state of the link, where it is the other way round.
    pub fn nic(&self, domain: &str, reported: &Reported) -> Nic {
        let device = reported.device.as_deref().unwrap_or(domain);
        let folder = self.folder(device);
        let found = folder.as_ref().and_then(|folder| {
            let path = fs::canonicalize(folder.join("device")).ok()?;
            let mut names = path.iter().rev().filter_map(|name| name.to_str());
            names.find_map(|name| name.parse().ok())
        });
        let bus = reported.bus.or(found);
        let interface = folder.as_deref().and_then(interface);
        let seen = folder.as_deref().map_or(Link::default(), Link::of);
        let below = interface.as_deref().map_or(Link::default(), Link::of);
        // The interface of a card may be switched off while the card itself works.
        let states = [seen.state, reported.link, below.state];
        let known = states.into_iter().find(|s| *s != LinkState::Unknown);
        Nic {
            device: device.to_owned(),
            bus,
            numa_node: bus.and_then(|bus| self.numa_node(bus)),
            link: known.unwrap_or_default(),
            bits_per_second: reported.bits_per_second.or(seen.speed).or(below.speed),
            bond: interface.as_deref().and_then(bond),
        }
    }

    /// The machine's NUMA nodes; none where the kernel lists none.
    pub fn numa(&self) -> Numa {
        let folder = self.root.join("devices/system/node");
        let mut numbers: Vec<u32> = entries(&folder)
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers.truncate(MOST as usize);
        let node = |&number: &u32| {
            let folder = folder.join(format!("node{number}"));
            let distances = text(&folder.join("distance")).unwrap_or_default();
            NumaNode {
                number,
                cpus: ranges(&text(&folder.join("cpulist")).unwrap_or_default()),
                distances: distances
                    .split_whitespace()
                    .map_while(|d| d.parse().ok())
                    .collect(),
            }
        };
        Numa {
            nodes: numbers.iter().map(node).collect(),
        }
    }

    fn numa_node(&self, bus: PciAddress) -> Option<u32> {
        let folder = self.root.join("bus/pci/devices").join(bus.to_string());
        // -1 is a machine that does not say.
        text(&folder.join("numa_node"))?.parse().ok()
    }

    /// The folder of a device of this name. Domains may have an appendix to it, as in
    /// `rdmap0s31-rdm` and `mlx5_0-xrc`.
    fn folder(&self, device: &str) -> Option<PathBuf> {
        let without = device.rsplit_once('-').map(|(name, _)| name);
        [Some(device), without]
            .into_iter()
            .flatten()
            .find_map(|name| {
                let is_a_name = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
                let classes = CLASSES.iter().filter(|_| is_a_name);
                let folders = classes.map(|class| self.root.join("class").join(class).join(name));
                folders.into_iter().find(|folder| folder.is_dir())
            })
    }
}

/// Processors that the calling thread may run on.
pub(super) fn own_cpus() -> Vec<u32> {
    let cores = cores::allowed().unwrap_or_default();
    cores.into_iter().map(|core| core as u32).collect()
}

/// State and speed of a link, by the files of one class or another.
#[derive(Debug, Default)]
struct Link {
    state: LinkState,
    speed: Option<u64>,
}

impl Link {
    fn of(folder: &Path) -> Self {
        match text(&folder.join("operstate")) {
            Some(state) => Self {
                state: match &*state {
                    "up" => LinkState::Up,
                    // Dummies and tunnels have no carrier to ask for.
                    "unknown" => LinkState::Unknown,
                    _ => LinkState::Down,
                },
                speed: text(&folder.join("speed"))
                    .and_then(|mbit| mbit.parse::<u64>().ok())
                    .filter(|&mbit| mbit > 0 && mbit < u64::from(u32::MAX))
                    .map(|mbit| mbit * 1_000_000),
            },
            None => Self::of_ports(&folder.join("ports")),
        }
    }

    /// InfiniBand's: a device is up where a port is, and as fast as its fastest one.
    fn of_ports(ports: &Path) -> Self {
        let mut link = Self::default();
        for port in entries(ports) {
            let file = |name: &str| text(&ports.join(&port).join(name));
            let Some(state) = file("state") else { continue };
            if state.ends_with("ACTIVE") {
                link.state = LinkState::Up;
            } else if link.state == LinkState::Unknown {
                link.state = LinkState::Down;
            }
            let rate = file("rate").unwrap_or_default();
            let gbit = rate
                .split_whitespace()
                .next()
                .and_then(|g| g.parse::<f64>().ok());
            let gbit = gbit.filter(|g| (0.1..1e6).contains(g));
            let bits = gbit.map(|gbit| (gbit * 1e9) as u64);
            link.speed = link.speed.max(bits.filter(|_| state.ends_with("ACTIVE")));
        }
        link
    }
}

/// The network interface of a device, which may be one itself.
fn interface(folder: &Path) -> Option<PathBuf> {
    if folder.join("operstate").exists() {
        return Some(folder.to_owned());
    }
    let below = folder.join("device/net");
    let mut names: Vec<String> = entries(&below).collect();
    names.sort_unstable();
    names.first().map(|name| below.join(name))
}

/// The bond that an interface is part of.
fn bond(interface: &Path) -> Option<String> {
    let master = fs::read_link(interface.join("master")).ok()?;
    let is_bond = interface.join("bonding_slave").is_dir()
        || interface.join("master").join("bonding").is_dir();
    is_bond.then(|| Some(master.file_name()?.to_str()?.to_owned()))?
}

fn entries(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// A list such as `0-15,128-143`; what is no range is left out.
fn ranges(list: &str) -> Vec<RangeInclusive<u32>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < MOST).then_some(first..=last)
    };
    list.split(',').filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_ranges_and_single_ones() {
        assert_eq!(ranges("0-15,128-143"), [0..=15, 128..=143]);
        assert_eq!(ranges("7"), [7..=7]);
        assert_eq!(ranges("3-1,x,,5-,0-4294967295,2"), [2..=2]);
    }

    #[test]
    fn this_thread_may_run_somewhere() {
        assert!(!own_cpus().is_empty());
    }
}
