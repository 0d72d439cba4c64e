//! What a seed stands for: the shape of a job, its options, its fabric, its messages.

use trihop_transport::fabric::{self, quirks};
use trihop_transport::link::{Limits, Mover};
use trihop_transport::sim::{Net, Rules, SimOptions};

use crate::config::{Shares, StreamOptions};
use crate::engine::inbound::CONTROL_BYTES;
use crate::route::RouteName;

use crate::simulation::Fabric;

use super::world::World;

/// Seeds of a test: the one of `TRIHOP_SEED`, or as many as `TRIHOP_SCHEDULES` or the test says.
pub fn seeds(count: u64) -> Vec<u64> {
    match crate::seed::asked_for() {
        Some(seed) => vec![seed],
        None => (1..=schedules().unwrap_or(count)).collect(),
    }
}

fn schedules() -> Option<u64> {
    let count = std::env::var("TRIHOP_SCHEDULES").ok()?;
    Some(count.parse().expect("TRIHOP_SCHEDULES is a number"))
}

pub fn tiny(seed: u64) -> StreamOptions {
    let (mut options, mut shares) = (StreamOptions::default(), Shares::default());
    if seed.is_multiple_of(2) {
        options.remote_buftarget_bytes = 300;
        options.remote_maxrpc = 1 + (seed / 2 % 3) as u32;
        options.origin_buftarget_bytes = 64;
        options.origin_maxrpc = 1 + (seed / 4 % 4) as u32;
        options.relay_buftarget_bytes = 100;
        options.relay_maxrpc = 1;
        options.run_bytes = 64;
        shares.lane_budget_bytes = 8192;
        shares.receive_pool_bytes = 1;
        shares.small_slot_bytes = 256;
    }
    if is_on_demand(seed) {
        shares.own_slots = 0;
    }
    if seed.is_multiple_of(3) {
        shares.run_table_bytes = options.run_bytes * 2;
    }
    options.given_shares = Some(shares);
    options
}

/// Whether links have no slots of their own, as where they are many.
fn is_on_demand(seed: u64) -> bool {
    seed % 7 < 3
}

/// Messages that the fabric keeps without a receive: those that ask for slots, where links do.
fn kept_bytes(seed: u64) -> usize {
    if is_on_demand(seed) { CONTROL_BYTES } else { 0 }
}

/// A simulated fabric as this seed has it, or with the limits of the provider that
/// `TRIHOP_SIM_PROVIDER` names.
pub fn sim(seed: u64) -> Fabric {
    if let Ok(name) = std::env::var("TRIHOP_SIM_PROVIDER") {
        return sim_of(&name, seed);
    }
    let mover = if seed % 5 < 2 {
        Mover::Segments
    } else {
        Mover::Read
    };
    let eager_bytes = [256, 1024, 4096, 65536][(seed % 4) as usize];
    let limits = Limits {
        eager_bytes,
        mover,
        ..SimOptions::default().limits
    };
    Fabric::Simulated(Net::new(SimOptions {
        seed,
        max_delay: seed % 11,
        refuse_one_in: [0, 3, 7][(seed % 3) as usize],
        bytes_per_tick: [0, 0, 0, 20_000, 0, 4000, 0][(seed % 7) as usize],
        bytes_per_message: 0,
        kept_bytes: kept_bytes(seed),
        limits,
        rules: Rules::default(),
        refuses_areas: seed % 5 == 4,
    }))
}

/// A simulated fabric with the limits and rules of one of the providers of [`quirks::SIMULATED`].
pub fn sim_of(name: &str, seed: u64) -> Fabric {
    let provider = quirks::simulated(name);
    let provider = provider.unwrap_or_else(|| panic!("TRIHOP_SIM_PROVIDER: no {name}"));
    Fabric::Simulated(Net::new(SimOptions {
        seed,
        max_delay: seed % 11,
        refuse_one_in: [0, 3, 7][(seed % 3) as usize],
        kept_bytes: kept_bytes(seed),
        ..SimOptions::of_provider(provider)
    }))
}

pub fn shape(seed: u64) -> Vec<u32> {
    let shapes: [&[u32]; 8] = [
        &[1],
        &[3],
        &[1, 1],
        &[2, 2],
        &[3, 1, 4],
        &[1, 5],
        &[2, 1, 1, 3],
        &[4, 4, 4, 4],
    ];
    shapes[(seed % 8) as usize].to_vec()
}

pub fn mixed(random: u64) -> usize {
    match random % 16 {
        0 => 0,
        1..=9 => (random >> 8) as usize % 64,
        10..=13 => (random >> 8) as usize % 700,
        14 => (random >> 8) as usize % 5000,
        _ => (random >> 8) as usize % 40_000,
    }
}

pub fn run_schedules(
    count: u64,
    replies: bool,
    messages: u64,
    fabric: impl Fn(u64, u32) -> Fabric,
) {
    for seed in seeds(count) {
        let replay = Replay(seed);
        let sizes = shape(seed);
        let fabric = fabric(seed, sizes.iter().sum());
        // Each in its turn, and that of three hops twice more.
        let routes = RouteName::several();
        let turn = seed as usize % (routes.len() + 2);
        let route = routes.get(turn).copied().unwrap_or_default();
        let mut world = World::routed(route, &sizes, &tiny(seed), seed, fabric, replies, true);
        let sent = world.exchange(messages, mixed);
        world.fence();
        world.check(&sent, replies);
        world.settle();
        std::mem::forget(replay);
    }
}
/// Says how to replay when a test ends by a panic.
pub struct Replay(pub u64);

impl Drop for Replay {
    fn drop(&mut self) {
        eprintln!("replay with TRIHOP_SEED={}", self.0);
    }
}
/// Providers of libfabric on this machine that these jobs can use in one process.
pub fn real_providers() -> Vec<&'static str> {
    let survey = fabric::survey(&fabric::Choice {
        loopback_only: true,
        ..fabric::Choice::default()
    });
    let offered: Vec<String> = survey
        .map(|s| s.candidates.iter().map(|c| c.provider.clone()).collect())
        .unwrap_or_default();
    let asked = std::env::var("TRIHOP_TEST_PROVIDERS").unwrap_or_default();
    ["net", "tcp", "tcp;ofi_rxm", "shm", "verbs;ofi_rxm"]
        .into_iter()
        .filter(|name| asked.is_empty() || asked.split(',').any(|a| name.starts_with(a)))
        .filter(|name| {
            let there = offered.iter().any(|o| o == name);
            if !there {
                eprintln!("skipped: provider {name} is not offered on this machine");
            }
            there
        })
        .collect()
}

/// One of them.
pub fn real(provider: &str, mover: Mover, eager_bytes: Option<usize>, ranks: u32) -> Fabric {
    let choice = fabric::Choice {
        provider: Some(provider.to_owned()),
        loopback_only: !provider.starts_with("verbs"),
        mover: Some(mover),
        eager_bytes,
        ..fabric::Choice::default()
    };
    Fabric::open(&choice, ranks).unwrap()
}

/// A simulated fabric with this eager limit, that refuses nothing.
pub fn sim_with_eager(seed: u64, eager_bytes: usize) -> Fabric {
    let limits = Limits {
        eager_bytes,
        ..SimOptions::default().limits
    };
    Fabric::Simulated(Net::new(SimOptions {
        seed,
        max_delay: 5,
        refuse_one_in: 0,
        bytes_per_tick: [0, 0, 0, 20_000, 0, 4000, 0][(seed % 7) as usize],
        bytes_per_message: 0,
        kept_bytes: kept_bytes(seed),
        limits,
        rules: Rules::default(),
        refuses_areas: seed % 5 == 4,
    }))
}
