//! Trees of devices in the shapes of real machines, and who takes which adapter there.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// A folder that looks like `/sys`.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// One with `nodes` NUMA nodes of `cpus` processors each: 10 to itself, 12 within halves of
    /// the machine, 32 between them.
    fn with_nodes(nodes: u32, cpus: u32) -> Self {
        let machine = Self::new();
        for node in 0..nodes {
            let folder = format!("devices/system/node/node{node}");
            let (first, last) = (node * cpus, node * cpus + cpus - 1);
            machine.write(&format!("{folder}/cpulist"), &format!("{first}-{last}\n"));
            let half = |n: u32| n * 2 / nodes;
            let to = |n: u32| match n {
                _ if n == node => "10",
                _ if half(n) == half(node) => "12",
                _ => "32",
            };
            let distances: Vec<&str> = (0..nodes).map(to).collect();
            machine.write(&format!("{folder}/distance"), &distances.join(" "));
        }
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, from: &str, to: &str) {
        let from = self.0.path().join(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(self.0.path().join(to), from).unwrap();
    }

    /// A device on the PCI bus, and its names in classes of devices.
    fn card(&self, bus: &str, numa_node: i32, names: &[(&str, &str)]) -> &Self {
        let folder = format!("devices/pci0000:00/0000:00:01.0/{bus}");
        self.write(&format!("{folder}/numa_node"), &format!("{numa_node}\n"));
        self.link(&format!("bus/pci/devices/{bus}"), &folder);
        for (class, name) in names {
            let place = format!("{folder}/{class}/{name}");
            self.link(&format!("{place}/device"), &folder);
            self.link(&format!("class/{class}/{name}"), &place);
        }
        self
    }

    fn slingshot(&self, number: u32, bus: &str, numa_node: i32) {
        let (cxi, hsn) = (format!("cxi{number}"), format!("hsn{number}"));
        self.card(bus, numa_node, &[("cxi", &cxi), ("net", &hsn)]);
        self.write(&format!("class/net/{hsn}/operstate"), "up\n");
        self.write(&format!("class/net/{hsn}/speed"), "200000\n");
    }

    fn infiniband(&self, number: u32, bus: &str, numa_node: i32, state: &str) {
        let name = format!("mlx5_{number}");
        self.card(bus, numa_node, &[("infiniband", &name)]);
        let port = format!("class/infiniband/{name}/ports/1");
        self.write(&format!("{port}/state"), state);
        self.write(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n");
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::below(self.0.path())
    }

    /// Adapters behind these domains, of which libfabric says nothing.
    fn nics(&self, domains: &[&str]) -> Vec<Nic> {
        let nic = |domain: &&str| self.sysfs().nic(domain, &Reported::default());
        domains.iter().map(nic).collect()
    }

    /// What each of `size` ranks takes that are bound to these processors.
    fn taken(&self, nics: &[Nic], size: u32, cpus: impl Fn(u32) -> Vec<u32>) -> Vec<String> {
        let numa = self.sysfs().numa();
        let taken = (0..size).map(|local_rank| {
            let place = Place {
                numa_node: numa.node_of(cpus(local_rank)),
                local_rank,
            };
            nics[closest(nics, &numa, &place).unwrap()].device.clone()
        });
        taken.collect()
    }
}

#[test]
fn four_slingshot_cards_and_four_numa_nodes_as_on_frontier() {
    let machine = Machine::with_nodes(4, 16);
    // The order of the bus is another one than that of the nodes.
    for (number, bus, node) in [
        (0, "0000:c1:00.0", 3),
        (1, "0000:c5:00.0", 1),
        (2, "0000:d1:00.0", 0),
        (3, "0000:d5:00.0", 2),
    ] {
        machine.slingshot(number, bus, node);
    }
    let nics = machine.nics(&["cxi0", "cxi1", "cxi2", "cxi3"]);
    let first = &nics[0];
    assert_eq!(first.bus.unwrap().to_string(), "0000:c1:00.0");
    assert_eq!((first.numa_node, first.family()), (Some(3), "Slingshot"));
    // By the interface of the same card.
    assert_eq!(
        (first.link, first.bits_per_second),
        (LinkState::Up, Some(200_000_000_000))
    );
    // Eight ranks with eight processors each, one after the other.
    let taken = machine.taken(&nics, 8, |r| (r * 8..r * 8 + 8).collect());
    assert_eq!(
        taken,
        [
            "cxi2", "cxi2", "cxi1", "cxi1", "cxi3", "cxi3", "cxi0", "cxi0"
        ]
    );
    // Not bound: in the order of the bus.
    let taken = machine.taken(&nics, 6, |_| (0..64).collect());
    assert_eq!(taken, ["cxi0", "cxi1", "cxi2", "cxi3", "cxi0", "cxi1"]);
}

#[test]
fn four_slingshot_cards_and_eight_numa_nodes_half_of_which_have_none() {
    let machine = Machine::with_nodes(8, 8);
    for (number, node) in [(0, 1), (1, 3), (2, 5), (3, 7)] {
        machine.slingshot(number, &format!("0000:{}1:00.0", number + 1), node);
    }
    let nics = machine.nics(&["cxi0", "cxi1", "cxi2", "cxi3"]);
    let numa = machine.sysfs().numa();
    assert_eq!(equals(&nics, &numa, Some(5)), [2]);
    assert_eq!(equals(&nics, &numa, Some(2)), [0, 1], "those of its half");
    assert_eq!(equals(&nics, &numa, Some(6)), [2, 3]);
    // 16 ranks in blocks of two.
    let taken = machine.taken(&nics, 16, |r| vec![r * 4]);
    let load = |device: &str| taken.iter().filter(|t| *t == device).count();
    assert_eq!(
        ["cxi0", "cxi1", "cxi2", "cxi3"].map(load),
        [4; 4],
        "{taken:?}"
    );
}

#[test]
fn eight_gpus_and_four_adapters_on_two_sockets() {
    let machine = Machine::with_nodes(2, 32);
    for gpu in 0..8 {
        let bus = format!("0000:{}b:00.0", gpu + 1);
        machine.card(&bus, gpu / 4, &[("drm", &format!("card{gpu}"))]);
    }
    for (number, bus, node) in [
        (0, "0000:1a:00.0", 0),
        (1, "0000:3c:00.0", 0),
        (2, "0000:9a:00.0", 1),
        (3, "0000:bc:00.0", 1),
    ] {
        machine.infiniband(number, bus, node, "4: ACTIVE\n");
    }
    let nics = machine.nics(&["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]);
    assert_eq!(nics[3].bits_per_second, Some(400_000_000_000));
    let in_blocks = machine.taken(&nics, 8, |r| vec![r * 8]);
    let in_turn = machine.taken(&nics, 8, |r| vec![r % 2 * 32 + r]);
    for (taken, first, second) in [
        (in_blocks, [0, 1, 2, 3], [4, 5, 6, 7]),
        (in_turn, [0, 2, 4, 6], [1, 3, 5, 7]),
    ] {
        let of = |ranks: [usize; 4]| {
            let mut taken = ranks.map(|rank| &*taken[rank]);
            taken.sort_unstable();
            taken
        };
        assert_eq!(of(first), ["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"]);
        assert_eq!(of(second), ["mlx5_2", "mlx5_2", "mlx5_3", "mlx5_3"]);
    }
}

#[test]
fn one_adapter_is_everybodys() {
    let machine = Machine::with_nodes(2, 4);
    machine.infiniband(0, "0000:81:00.0", 1, "4: ACTIVE\n");
    let nics = machine.nics(&["mlx5_0"]);
    let taken = machine.taken(&nics, 8, |r| vec![r]);
    assert_eq!(taken, ["mlx5_0"; 8]);
}

#[test]
fn a_bond_is_taken_and_its_two_parts_are_not() {
    let machine = Machine::with_nodes(1, 4);
    machine.card(
        "0000:41:00.0",
        0,
        &[("net", "eth0"), ("infiniband", "mlx5_0")],
    );
    machine.card(
        "0000:41:00.1",
        0,
        &[("net", "eth1"), ("infiniband", "mlx5_1")],
    );
    machine.card(
        "0000:61:00.0",
        0,
        &[("net", "eth2"), ("infiniband", "mlx5_2")],
    );
    machine.write("devices/virtual/net/bond0/bonding/slaves", "eth0 eth1\n");
    machine.write("devices/virtual/net/bond0/operstate", "up\n");
    machine.write("devices/virtual/net/bond0/speed", "50000\n");
    machine.link("class/net/bond0", "devices/virtual/net/bond0");
    for name in ["eth0", "eth1", "eth2"] {
        machine.write(&format!("class/net/{name}/operstate"), "up\n");
        machine.write(&format!("class/net/{name}/speed"), "25000\n");
    }
    for name in ["eth0", "eth1"] {
        machine.link(
            &format!("class/net/{name}/master"),
            "devices/virtual/net/bond0",
        );
    }
    let nics = machine.nics(&["eth0", "eth1", "bond0"]);
    assert_eq!(nics[0].bond.as_deref(), Some("bond0"));
    assert_eq!(
        (nics[2].bus, nics[2].bits_per_second),
        (None, Some(50_000_000_000))
    );
    assert_eq!(aside(&nics, 1).unwrap(), "it is part of bond0");
    assert_eq!(machine.taken(&nics, 2, |_| vec![0]), ["bond0", "bond0"]);
    // RDMA devices are parts where their interfaces are.
    let nics = machine.nics(&["mlx5_0", "mlx5_1", "mlx5_2"]);
    assert_eq!(machine.taken(&nics, 2, |_| vec![0]), ["mlx5_2", "mlx5_2"]);
    // The port of a bridge is no part of a bond.
    machine.write("devices/virtual/net/br0/bridge/bridge_id", "1");
    machine.link("class/net/eth2/master", "devices/virtual/net/br0");
    assert_eq!(machine.nics(&["eth2"])[0].bond, None);
}

#[test]
fn a_link_that_is_down_is_left_and_one_that_nobody_knows_of_is_not() {
    let machine = Machine::with_nodes(2, 4);
    machine.infiniband(0, "0000:21:00.0", 0, "4: ACTIVE\n");
    machine.infiniband(1, "0000:a1:00.0", 1, "1: DOWN\n");
    machine.card("0000:b1:00.0", 1, &[("infiniband", "mlx5_2")]);
    let nics = machine.nics(&["mlx5_0", "mlx5_1"]);
    assert_eq!(nics[1].link, LinkState::Down);
    assert_eq!(machine.taken(&nics, 2, |_| vec![7]), ["mlx5_0", "mlx5_0"]);
    let nics = machine.nics(&["mlx5_0", "mlx5_1", "mlx5_2"]);
    assert_eq!(nics[2].link, LinkState::Unknown);
    assert_eq!(machine.taken(&nics, 2, |_| vec![7]), ["mlx5_2", "mlx5_2"]);
    // libfabric may say that it is up, and the kernel knows better.
    let up = Reported {
        link: LinkState::Up,
        ..Reported::default()
    };
    assert_eq!(machine.sysfs().nic("mlx5_1", &up).link, LinkState::Down);
    assert_eq!(machine.sysfs().nic("mlx5_2", &up).link, LinkState::Up);
    // A card of Slingshot works without its interface.
    machine.slingshot(0, "0000:c1:00.0", 0);
    machine.write("class/net/hsn0/operstate", "down\n");
    assert_eq!(machine.sysfs().nic("cxi0", &up).link, LinkState::Up);
    assert_eq!(machine.nics(&["cxi0"])[0].link, LinkState::Down);
}

#[test]
fn what_libfabric_says_is_enough_where_there_is_no_sysfs() {
    let machine = Machine::new();
    assert_eq!(machine.sysfs().numa(), Numa::default());
    let reported = |bus: &str| Reported {
        device: Some("rdmap0s31".to_owned()),
        bus: bus.parse().ok(),
        link: LinkState::Up,
        bits_per_second: Some(100_000_000_000),
    };
    let nics: Vec<Nic> = ["0000:9f:00.0", "0000:1f:00.0"]
        .iter()
        .map(|bus| machine.sysfs().nic("rdmap0s31-rdm", &reported(bus)))
        .collect();
    assert_eq!((nics[0].numa_node, nics[0].family()), (None, "EFA"));
    assert_eq!(nics[0].device, "rdmap0s31");
    // The order of the bus all the same.
    assert_eq!(equals(&nics, &Numa::default(), None), [1, 0]);
    let nothing = machine.sysfs().nic("../../etc", &Reported::default());
    assert_eq!((nothing.bus, nothing.link), (None, LinkState::Unknown));
}

#[test]
fn a_domain_with_an_appendix_is_the_device_before_it() {
    let machine = Machine::with_nodes(2, 4);
    machine.card("0000:9f:00.0", 1, &[("infiniband", "rdmap159s0")]);
    assert_eq!(machine.nics(&["rdmap159s0-rdm"])[0].numa_node, Some(1));
}

#[test]
fn nodes_without_processors_are_nobodys_place() {
    let machine = Machine::with_nodes(2, 4);
    machine.write("devices/system/node/node2/cpulist", "\n");
    machine.write("devices/system/node/node10/cpulist", "8-11\n");
    let numa = machine.sysfs().numa();
    let numbers: Vec<u32> = numa.nodes.iter().map(|node| node.number).collect();
    assert_eq!(numbers, [0, 1, 2, 10], "by number, not by name");
    assert_eq!(numa.node_of([8, 11]), Some(10));
    assert_eq!(numa.node_of([3, 4]), None);
}
