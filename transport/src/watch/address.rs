//! Where a node's watch can be reached.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::ptr;

use crate::error::{Error, Result};

/// Most addresses of a watch that others are told.
const MAX_ADDRESSES: usize = 4;

/// Addresses at which other nodes may reach this one: loopback where nodes are simulated, those of
/// the chosen interfaces, which are names and addresses, else those of all interfaces that are up.
pub(super) fn own_addresses(wanted: &[String], loopback: bool) -> Result<Vec<IpAddr>> {
    if loopback {
        return Ok(vec![Ipv4Addr::LOCALHOST.into()]);
    }
    let mut chosen: Vec<IpAddr> = wanted.iter().filter_map(|name| name.parse().ok()).collect();
    let all = interfaces()?;
    let named = all.iter().filter(|(name, _)| wanted.contains(name));
    chosen.extend(named.map(|(_, address)| *address));
    if chosen.is_empty() {
        // They may be domains of a fabric, which have no addresses of this kind.
        // Bridges of containers and of virtual machines, which have the same address on each node,
        // come last.
        let is_virtual = |name: &str| {
            let about = Path::new("/sys/class/net").join(name);
            about.join("bridge").exists() || about.join("tun_flags").exists()
        };
        let mut all = all;
        all.sort_by_key(|(name, _)| is_virtual(name));
        chosen.extend(all.into_iter().map(|(_, address)| address));
    }
    if chosen.is_empty() {
        // A machine without a network: its nodes can only be simulated ones.
        chosen.push(Ipv4Addr::LOCALHOST.into());
    }
    // Those of version 4 first: where a host has both, they are the ones that clusters use.
    chosen.sort_by_key(IpAddr::is_ipv6);
    chosen.truncate(MAX_ADDRESSES);
    Ok(chosen)
}

/// Names and addresses of the interfaces that are up, without loopback and without what holds for
/// one link only.
fn interfaces() -> Result<Vec<(String, IpAddr)>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the call fills in a list that is ours until `freeifaddrs`.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::system(
            "listing the network interfaces for the watch",
            error,
        ));
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: each entry is valid until the list is freed, and so is the next one that it names.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let up = entry.ifa_flags & libc::IFF_UP as libc::c_uint != 0;
        if !up || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: not null, and of the family that it names; `address` goes by that family.
        let address = unsafe { address(entry.ifa_addr) };
        // SAFETY: the name of an entry is a C string.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        if let Some(address) = address.filter(is_reachable) {
            found.push((name.to_string_lossy().into_owned(), address));
        }
    }
    // SAFETY: the list is that of `getifaddrs`, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// `socket_address` is as long as its family says.
unsafe fn address(socket_address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises; the family comes first in each of them.
    let family = unsafe { ptr::addr_of!((*socket_address).sa_family).read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one.
            let four = unsafe { socket_address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(four.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is one.
            let six = unsafe { socket_address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(six.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn is_reachable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => !four.is_loopback() && !four.is_link_local() && !four.is_unspecified(),
        IpAddr::V6(six) => {
            !six.is_loopback() && !six.is_unicast_link_local() && !six.is_unspecified()
        }
    }
}

/// Addresses and port as bytes for a start-up card.
pub fn encode_addresses(addresses: &[SocketAddr]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in addresses {
        match address.ip() {
            IpAddr::V4(four) => {
                bytes.push(4);
                bytes.extend(four.octets());
            }
            IpAddr::V6(six) => {
                bytes.push(6);
                bytes.extend(six.octets());
            }
        }
        bytes.extend(address.port().to_le_bytes());
    }
    bytes
}

/// Back from [`encode_addresses`]; none where the bytes are no addresses.
pub fn decode_addresses(mut bytes: &[u8]) -> Option<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        let (ip, rest): (IpAddr, _) = match kind {
            4 => rest
                .split_first_chunk::<4>()
                .map(|(four, rest)| (Ipv4Addr::from(*four).into(), rest))?,
            6 => rest
                .split_first_chunk::<16>()
                .map(|(six, rest)| (Ipv6Addr::from(*six).into(), rest))?,
            _ => return None,
        };
        let (port, rest) = rest.split_first_chunk::<2>()?;
        addresses.push(SocketAddr::new(ip, u16::from_le_bytes(*port)));
        bytes = rest;
    }
    (addresses.len() <= MAX_ADDRESSES).then_some(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_travel_as_bytes_and_others_are_refused() {
        let addresses = ["10.1.2.3:4567", "[fd00::7]:1"].map(|text| text.parse().unwrap());
        let bytes = encode_addresses(&addresses);
        assert_eq!(decode_addresses(&bytes).unwrap(), addresses);
        assert_eq!(decode_addresses(&[]), Some(Vec::new()));
        for length in 1..bytes.len() {
            let whole = length == 7;
            assert_eq!(
                decode_addresses(&bytes[..length]).is_some(),
                whole,
                "{length} bytes"
            );
        }
        assert_eq!(decode_addresses(&[5; 7]), None);
        assert_eq!(decode_addresses(&bytes.repeat(3)), None);
    }

    #[test]
    fn an_address_or_loopback_is_taken_as_it_is() {
        assert_eq!(
            own_addresses(&[], true).unwrap(),
            [IpAddr::V4(Ipv4Addr::LOCALHOST)]
        );
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            own_addresses(&names, false).unwrap()
        };
        let two = ["10.201.0.2", "10.201.0.3"];
        assert_eq!(named(&two), two.map(|text| text.parse::<IpAddr>().unwrap()));
        let all = named(&["no such interface"]);
        assert!((1..=MAX_ADDRESSES).contains(&all.len()), "{all:?}");
    }
}
