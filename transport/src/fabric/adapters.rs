//! Which of the best provider's adapters an endpoint takes.

use libfabric_sys as sys;

use super::choice::Choice;
use super::info::{Description, Rank, best_of, string};
use crate::nics::{
    LinkState, Nic, Numa, PciAddress, Place, Reported, Sysfs, aside, closest, equals,
};

/// The candidates that are as good as the best one, each on an adapter of its own, and the machine
/// that they are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapters {
    /// Candidates, by their numbers in libfabric's order.
    pub candidates: Vec<usize>,
    /// The adapter of each.
    pub nics: Vec<Nic>,
    /// The machine's NUMA nodes.
    pub numa: Numa,
    /// The NUMA node that the asking thread is bound to.
    pub numa_node: Option<u32>,
}

impl Adapters {
    /// Of these offers and of this machine.
    pub(super) fn of(offers: &[&Description], ranks: &[Rank], choice: &Choice) -> Self {
        let sysfs = Sysfs::default();
        let candidates = group(offers, ranks, choice);
        let nics = candidates.iter().map(|&i| offers[i].nic(&sysfs)).collect();
        let numa = sysfs.numa();
        Self {
            numa_node: Place::of_this_thread(&numa, 0).numa_node,
            candidates,
            nics,
            numa,
        }
    }

    /// The candidate that a rank bound to `numa_node`, or to none, takes.
    pub fn taken_by(&self, numa_node: Option<u32>, local_rank: u32) -> Option<usize> {
        let place = Place {
            numa_node,
            local_rank,
        };
        let taken = closest(&self.nics, &self.numa, &place)?;
        Some(self.candidates[taken])
    }

    /// The candidates that are closest to `numa_node`, or all, in the order in which ranks take
    /// them.
    pub fn closest_to(&self, numa_node: Option<u32>) -> Vec<usize> {
        let equals = equals(&self.nics, &self.numa, numa_node);
        equals.into_iter().map(|i| self.candidates[i]).collect()
    }

    /// Why no rank takes a candidate while another one will do.
    pub fn aside(&self, candidate: usize) -> Option<String> {
        let index = self.candidates.iter().position(|&c| c == candidate)?;
        let others = self.closest_to(None);
        aside(&self.nics, index).filter(|_| !others.contains(&candidate))
    }

    /// The candidate that the asking thread takes.
    pub(super) fn own(&self, choice: &Choice) -> Option<usize> {
        let taken = self.taken_by(self.numa_node, choice.local_rank)?;
        if let [_, _, ..] = *self.nics {
            let index = self.candidates.iter().position(|&c| c == taken)?;
            let nic = &self.nics[index];
            tracing::debug!(
                device = nic.device,
                bus = nic.bus.map(tracing::field::display),
                device_numa_node = nic.numa_node,
                numa_node = self.numa_node,
                local_rank = choice.local_rank,
                of = self.nics.len(),
                "network adapter taken"
            );
        }
        Some(taken)
    }
}

impl Description {
    /// The adapter, as libfabric and the kernel know it.
    pub(super) fn nic(&self, sysfs: &Sysfs) -> Nic {
        sysfs.nic(&self.domain, &self.adapter)
    }
}

/// The offers that ranks of one node share among them: those of the best one's provider, with
/// addresses of the same kind.
///
/// Where the user has named interfaces, it is one for each name, and they are believed to reach
/// each other. Otherwise they are in one network by libfabric's name, one for each adapter: of two
/// networks nobody knows whether they do. Simulated nodes stay on one loopback address.
fn group(offers: &[&Description], ranks: &[Rank], choice: &Choice) -> Vec<usize> {
    let Some(best) = best_of(ranks) else {
        return Vec::new();
    };
    if choice.loopback_only {
        return vec![best];
    }
    let like = |i: &usize| {
        let (ours, theirs) = (offers[*i], offers[best]);
        ours.provider == theirs.provider
            && ours.protocol == theirs.protocol
            && ours.address_format == theirs.address_format
            && ranks[*i] == ranks[best]
    };
    let alike: Vec<usize> = (0..offers.len()).filter(like).collect();
    let mut group: Vec<usize> = Vec::new();
    if choice.interfaces.is_empty() {
        let device = |i: usize| {
            offers[i]
                .adapter
                .device
                .as_deref()
                .unwrap_or(&offers[i].domain)
        };
        for i in alike {
            let new = group.iter().all(|&known| device(known) != device(i));
            if new && offers[i].fabric == offers[best].fabric {
                group.push(i);
            }
        }
    } else {
        for name in &choice.interfaces {
            let named = alike.iter().copied().find(|&i| offers[i].is_at(name));
            group.extend(named.filter(|i| !group.contains(i)));
        }
    }
    group
}

/// What libfabric says about the adapter of an offer.
///
/// # Safety
/// `nic` is null or complete, with attributes that are null or complete.
pub(super) unsafe fn reported(nic: *const sys::fid_nic) -> Reported {
    // SAFETY: caller's promise.
    let Some(nic) = (unsafe { nic.as_ref() }) else {
        return Reported::default();
    };
    // SAFETY: as above, of each of the three.
    let (device, bus, link) = unsafe {
        (
            nic.device_attr.as_ref(),
            nic.bus_attr.as_ref(),
            nic.link_attr.as_ref(),
        )
    };
    let on_pci = bus.filter(|bus| bus.bus_type == sys::FI_BUS_PCI);
    Reported {
        // SAFETY: the name is null or NUL-terminated.
        device: device
            .map(|d| unsafe { string(d.name) })
            .filter(|name| !name.is_empty()),
        bus: on_pci.map(|bus| {
            // SAFETY: the bus is PCI, and that is its part of the union.
            let pci = unsafe { bus.attr.pci };
            PciAddress {
                domain: pci.domain_id.into(),
                bus: pci.bus_id,
                device: pci.device_id,
                function: pci.function_id,
            }
        }),
        link: match link.map_or(sys::FI_LINK_UNKNOWN, |link| link.state) {
            sys::FI_LINK_UP => LinkState::Up,
            sys::FI_LINK_DOWN => LinkState::Down,
            _ => LinkState::Unknown,
        },
        bits_per_second: link.map(|link| link.speed as u64).filter(|&bits| bits > 0),
    }
}

#[cfg(test)]
#[path = "adapters_tests.rs"]
mod tests;
