use super::super::info::{rank, tests::offer};
use super::*;

fn on(device: &str, fabric: &str, source: Option<&str>) -> Description {
    Description {
        fabric: fabric.to_owned(),
        ..offer("tcp", "XNET", device, source)
    }
}

fn named(interfaces: &[&str]) -> Choice {
    Choice {
        interfaces: interfaces.iter().map(|&name| name.to_owned()).collect(),
        ..Choice::default()
    }
}

/// Domain and address of each member.
fn members(offers: &[Description], choice: &Choice) -> Vec<String> {
    let offers: Vec<&Description> = offers.iter().collect();
    let group = group(&offers, &rank(&offers, choice), choice);
    let member = |i: usize| match offers[i].source {
        Some(address) => format!("{} {address}", offers[i].domain),
        None => offers[i].domain.clone(),
    };
    group.into_iter().map(member).collect()
}

fn two_networks() -> Vec<Description> {
    vec![
        on("eth0", "192.0.2.0/24", Some("192.0.2.2")),
        on("eth0", "192.0.2.0/24", Some("192.0.2.3")),
        on("eth1", "192.0.2.0/24", Some("192.0.2.4")),
        on("eth1", "fd00::/64", Some("fd00::4")),
        on("docker0", "172.17.0.0/16", Some("172.17.0.1")),
        on("lo", "127.0.0.0/8", Some("127.0.0.1")),
        on("lo", "127.0.0.0/8", Some("127.0.0.2")),
    ]
}

#[test]
fn adapters_of_the_best_ones_network_are_a_group() {
    let group = members(&two_networks(), &Choice::default());
    assert_eq!(group, ["eth0 192.0.2.2", "eth1 192.0.2.4"]);
    assert!(members(&[], &Choice::default()).is_empty());
}

#[test]
fn interfaces_that_are_named_are_a_group_whatever_network_they_are_in() {
    let of = |names: &[&str]| members(&two_networks(), &named(names));
    assert_eq!(
        of(&["eth1", "docker0"]),
        ["eth1 192.0.2.4", "docker0 172.17.0.1"]
    );
    assert_eq!(
        of(&["127.0.0.2", "127.0.0.1", "127.0.0.2", "eth7"]),
        ["lo 127.0.0.2", "lo 127.0.0.1"]
    );
    assert_eq!(of(&["192.0.2.0/24"]), ["eth0 192.0.2.2"]);
    assert!(of(&["eth7"]).is_empty());
}

#[test]
fn simulated_nodes_stay_on_one_loopback_address() {
    let choice = Choice {
        loopback_only: true,
        local_rank: 1,
        ..Choice::default()
    };
    assert_eq!(members(&two_networks(), &choice), ["lo 127.0.0.1"]);
}

#[test]
fn two_domains_of_one_device_are_one_adapter() {
    let domain = |domain: &str, device: &str| Description {
        adapter: Reported {
            device: Some(device.to_owned()),
            ..Reported::default()
        },
        ..offer("verbs;ofi_rxm", "RXM", domain, None)
    };
    let offers = [
        domain("mlx5_0", "mlx5_0"),
        domain("mlx5_0-xrc", "mlx5_0"),
        domain("mlx5_1", "mlx5_1"),
        domain("mlx5_1-xrc", "mlx5_1"),
    ];
    assert_eq!(members(&offers, &Choice::default()), ["mlx5_0", "mlx5_1"]);
    // By the name of the device, too.
    assert_eq!(members(&offers, &named(&["mlx5_1"])), ["mlx5_1"]);
}

#[test]
fn other_providers_and_kinds_of_addresses_are_not_in_the_group() {
    let cxi = |domain: &str| offer("cxi", "CXI", domain, None);
    let mut offers = two_networks();
    offers.extend([cxi("cxi0"), cxi("cxi1")]);
    let mut by_connection = cxi("cxi2");
    by_connection.address_format = "ADDR_STR".to_owned();
    offers.push(by_connection);
    assert_eq!(members(&offers, &Choice::default()), ["cxi0", "cxi1"]);
}

#[test]
fn an_adapter_that_libfabric_does_not_describe_is_unknown() {
    // SAFETY: null is allowed.
    let nothing = unsafe { reported(std::ptr::null()) };
    assert_eq!(nothing, Reported::default());
}

#[test]
fn what_libfabric_says_of_a_card_is_taken_over() {
    let mut name = c"mlx5_0".to_owned().into_bytes_with_nul();
    // SAFETY: all of them are structures of numbers and pointers, for which zeroes are a value.
    let (mut nic, mut device, mut bus, mut link): (
        sys::fid_nic,
        sys::fi_device_attr,
        sys::fi_bus_attr,
        sys::fi_link_attr,
    ) = unsafe { std::mem::zeroed() };
    device.name = name.as_mut_ptr().cast();
    bus.attr.pci = sys::fi_pci_attr {
        domain_id: 1,
        bus_id: 0xc1,
        device_id: 2,
        function_id: 3,
    };
    link.speed = 200_000_000_000;
    link.state = sys::FI_LINK_UP;
    nic.device_attr = &mut device;
    nic.link_attr = &mut link;
    nic.bus_attr = &mut bus;
    // SAFETY: the attributes live as long as the call.
    let unknown_bus = unsafe { reported(&nic) };
    assert_eq!(unknown_bus.bus, None);
    bus.bus_type = sys::FI_BUS_PCI;
    nic.bus_attr = &mut bus;
    // SAFETY: as above.
    let told = unsafe { reported(&nic) };
    assert_eq!(told.device.as_deref(), Some("mlx5_0"));
    assert_eq!(told.bus.unwrap().to_string(), "0001:c1:02.3");
    assert_eq!(
        (told.link, told.bits_per_second),
        (LinkState::Up, Some(200_000_000_000))
    );
}
