use super::*;

pub(in crate::fabric) fn offer(
    provider: &str,
    protocol: &str,
    domain: &str,
    source: Option<&str>,
) -> Description {
    Description {
        provider: provider.to_owned(),
        protocol: protocol.to_owned(),
        endpoint: "RDM".to_owned(),
        fabric: "fabric".to_owned(),
        domain: domain.to_owned(),
        address_format: "SOCKADDR_IN".to_owned(),
        source: source.map(|text| text.parse().expect("an IP address")),
        capabilities: CAPABILITIES,
        mode: 0,
        mr_mode: 0,
        mr_key_bytes: 8,
        tag_bits: 64,
        inject_bytes: 128,
        max_message_bytes: usize::MAX,
        transmit_depth: 256,
        receive_depth: 256,
        adapter: Reported::default(),
    }
}

fn debian_117() -> Vec<Description> {
    vec![
        offer("tcp;ofi_rxm", "RXM", "eth0", Some("192.0.2.2")),
        offer("tcp;ofi_rxm", "RXM", "lo", Some("127.0.0.1")),
        offer("net", "XNET", "eth0", Some("192.0.2.2")),
        offer("net", "XNET", "eth0", Some("fe80::1")),
        offer("net", "XNET", "lo", Some("::1")),
        offer("net", "XNET", "lo", Some("127.0.0.1")),
        offer("shm", "SHM", "shm", None),
        offer("sockets", "SOCK_TCP", "eth0", Some("192.0.2.2")),
    ]
}

fn chosen(offers: &[Description], choice: &Choice) -> Option<usize> {
    best_of(&rank(&offers.iter().collect::<Vec<_>>(), choice))
}

fn by_name(provider: &str) -> Choice {
    Choice {
        provider: Some(provider.to_owned()),
        ..Choice::default()
    }
}

#[test]
fn default_is_native_tcp_on_an_address_that_others_reach() {
    assert_eq!(chosen(&debian_117(), &Choice::default()), Some(2));
}

#[test]
fn simulated_nodes_stay_on_loopback() {
    let choice = Choice {
        loopback_only: true,
        ..Choice::default()
    };
    assert_eq!(chosen(&debian_117(), &choice), Some(5));
    assert_eq!(
        chosen(
            &debian_117(),
            &Choice {
                loopback_only: true,
                ..by_name("tcp;ofi_rxm")
            }
        ),
        Some(1)
    );
    assert_eq!(
        chosen(
            &debian_117(),
            &Choice {
                loopback_only: true,
                ..by_name("shm")
            }
        ),
        Some(6)
    );
}

#[test]
fn tcp_means_native_by_whatever_name_else_over_connections() {
    assert_eq!(chosen(&debian_117(), &by_name("tcp")), Some(2));
    assert_eq!(chosen(&debian_117(), &by_name("net")), Some(2));
    assert_eq!(chosen(&debian_117()[..2], &by_name("tcp")), Some(0));
    let newer = vec![offer("tcp", "XNET", "eth0", Some("192.0.2.2"))];
    assert_eq!(chosen(&newer, &by_name("net")), Some(0));
}

#[test]
fn providers_for_tests_only_come_by_name() {
    let only = vec![
        offer("sockets", "SOCK_TCP", "eth0", Some("192.0.2.2")),
        offer("sm2", "SM2", "sm2", None),
    ];
    assert_eq!(chosen(&only, &Choice::default()), None);
    assert_eq!(chosen(&only, &by_name("sockets")), Some(0));
    assert_eq!(chosen(&only, &by_name("sm2")), None);
}

#[test]
fn an_adapter_beats_tcp_and_an_unknown_one_does_not() {
    let mut offers = debian_117();
    offers.push(offer("brand-new", "NEW", "new0", None));
    assert_eq!(chosen(&offers, &Choice::default()), Some(2));
    offers.push(offer("verbs;ofi_rxm", "RXM", "mlx5_0", None));
    assert_eq!(chosen(&offers, &Choice::default()), Some(9));
}

#[test]
fn interface_is_a_domain_or_an_address() {
    for wanted in ["lo", "127.0.0.1"] {
        let choice = Choice {
            interfaces: vec![wanted.to_owned()],
            ..by_name("tcp;ofi_rxm")
        };
        assert_eq!(chosen(&debian_117(), &choice), Some(1), "{wanted}");
    }
    let absent = Choice {
        interfaces: vec!["eth7".to_owned()],
        ..Choice::default()
    };
    assert_eq!(chosen(&debian_117(), &absent), None);
}

#[test]
fn narrow_tags_are_refused() {
    let narrow = Description {
        tag_bits: 32,
        ..offer("cxi", "CXI", "cxi0", None)
    };
    assert_eq!(chosen(&[narrow], &Choice::default()), None);
}
