//! Random jobs on random schedules with tiny queues: nothing is lost, doubled or reordered, and no
//! job stands still.
//!
//! Everything about a job follows from its seed: shape, route, options, what the fabric does, who
//! sends what to whom, who has the next turn. 400 seeds by default; `TRIHOP_SCHEDULES=<count>` runs
//! as many (`make simulate`: 10,000), and `TRIHOP_SEED=<seed>` replays one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::thread;

use trihop_shuffle::route::RouteName;
use trihop_shuffle::simulation::{Schedule, Simulation, SimulationError, SimulationOptions};
use trihop_shuffle::{BroadcastTo, Error, Rank, Shares, ShimOptions, StreamOptions, Topology};
use trihop_transport::link::{Limits, Mover};
use trihop_transport::sim::{Rules, SimOptions};

/// Seeds where nobody asks for more.
const SCHEDULES: u64 = 400;
/// Attempts of all ranks to send that may be refused in a row: far above what any of these jobs
/// needs.
const TOO_MANY: u64 = 100_000;

/// A fast, seeded sequence (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// More links than these jobs have.
const ALL_OWN: usize = 1000;

/// What one seed stands for.
struct Plan {
    sizes: Vec<u32>,
    /// Ranks of each process, of which `sizes` are the numbers on the nodes, where each has a relay;
    /// 0 where there are none.
    minis: u32,
    options: SimulationOptions,
    /// Messages that each rank's application sends, twice with a fence between.
    messages: u64,
    /// Times that a message is sent on by the handler that gets it, at most.
    lives: u64,
    /// One of so many messages is a broadcast.
    broadcast_one_in: u64,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let nodes = 1 + dice.below(5);
        let sizes: Vec<u32> = match dice.below(3) {
            0 => vec![1 + dice.below(4) as u32; nodes as usize],
            _ => (0..nodes).map(|_| 1 + dice.below(4) as u32).collect(),
        };
        let limits = Limits {
            eager_bytes: dice.one_of(&[256, 1024, 4096, 65536]),
            mover: dice.one_of(&[Mover::Read, Mover::Segments]),
            ..SimOptions::default().limits
        };
        let mut stream = tiny(&mut dice);
        let own_slots = stream.given_shares.map_or(0, |shares| shares.own_slots);
        let network = SimOptions {
            seed,
            max_delay: dice.one_of(&[0, 1, 3, 12]),
            refuse_one_in: dice.one_of(&[0, 2, 3, 7]),
            bytes_per_tick: dice.one_of(&[0, 0, 0, 200, 1000]),
            bytes_per_message: 0,
            // Messages that ask for slots, where links have none of their own.
            kept_bytes: if own_slots < ALL_OWN { 128 } else { 0 },
            limits,
            rules: Rules::default(),
            refuses_areas: dice.one_of(&[false, false, false, true]),
        };
        // That of three hops twice as often as any other.
        let routes: Vec<_> = RouteName::all()
            .into_iter()
            .chain(["three-hop", "mesh:3d"].map(|name| name.parse().expect("a route")))
            .collect();
        stream.route = dice.one_of(&routes);
        let mut plan = Self {
            sizes,
            minis: 0,
            options: SimulationOptions {
                network,
                stream,
                streams: 1,
                item_bytes: dice.one_of(&[0, 0, 8, 24, 56]),
                schedule: dice.one_of(&[Schedule::Random, Schedule::Random, Schedule::InTurn]),
            },
            messages: 1 + dice.below(60),
            lives: dice.one_of(&[0, 0, 1, 3]),
            broadcast_one_in: dice.one_of(&[1, 4, 4, 30, u64::MAX]),
        };
        // The one route that leads over relays.
        if matches!(plan.options.stream.route, RouteName::ThreeHop(_)) {
            plan.minis = dice.one_of(&[0, 0, 1, 2, 3]);
        }
        plan
    }

    fn topology(&self) -> Topology {
        let topology = Topology::from_node_sizes(&self.sizes, Rank(0)).expect("nodes have ranks");
        match self.minis {
            0 => topology,
            minis => topology.with_relays(minis).expect("few ranks"),
        }
    }
}

/// Queues that are full most of the time.
fn tiny(dice: &mut Dice) -> StreamOptions {
    StreamOptions {
        origin_maxrpc: 1 + dice.below(3) as u32,
        origin_buftarget_bytes: dice.one_of(&[1, 64, 300, 4096]),
        relay_maxrpc: 1 + dice.below(2) as u32,
        relay_buftarget_bytes: dice.one_of(&[1, 100, 4096]),
        shim: ShimOptions {
            origin_sender_limit: dice.one_of(&[0, 0, 1, 3]),
            remote_sender_limit: dice.one_of(&[0, 0, 1, 2]),
            ..ShimOptions::default()
        },
        remote_maxrpc: 1 + dice.below(3) as u32,
        remote_buftarget_bytes: dice.one_of(&[1, 300, 2000, 65536]),
        linger_us: dice.one_of(&[0, 5, 100]),
        run_bytes: dice.one_of(&[80, 128, 1024]),
        spill_bytes: 4 << 20,
        max_message_bytes: 64 << 10,
        given_shares: Some(Shares {
            run_table_bytes: dice.one_of(&[1024, 4096, 256 << 10]),
            lane_budget_bytes: dice.one_of(&[8192, 64 << 10, 4 << 20]),
            spill_mark_bytes: dice.one_of(&[256, 4096]),
            reassembly_bytes: dice.one_of(&[1, 64 << 10]),
            // What the most ranks of these jobs need for two links to each other, and more.
            send_pool_bytes: dice.one_of(&[2 * 2 * 20 * 4096, 1 << 20]),
            receive_pool_bytes: dice.one_of(&[1, 64 << 10]),
            small_slot_bytes: dice.one_of(&[192, 256, 4096]),
            own_slots: dice.one_of(&[0, 8, ALL_OWN, ALL_OWN]),
            block_bytes: dice.one_of(&[0, 32 << 10, 256 << 10]),
            least_offer_bytes: dice.one_of(&[0, 5000, 128 << 10]),
            ..Shares::default()
        }),
        ..StreamOptions::default()
    }
}

/// Messages by pair of ranks.
struct Books {
    ranks: usize,
    sent: Vec<u32>,
    came: Vec<u32>,
    /// Broadcasts by source, and for each pair which of its messages are broadcasts: number in the
    /// pair, number of the source.
    broadcasts: Vec<u32>,
    shared: Vec<VecDeque<(u32, u32)>>,
}

/// In the place of a target: the bytes of a broadcast are the same for all.
const MANY: Rank = Rank(255);

impl Books {
    fn new(ranks: usize) -> Self {
        Self {
            broadcasts: vec![0; ranks],
            shared: vec![VecDeque::new(); ranks * ranks],
            ranks,
            sent: vec![0; ranks * ranks],
            came: vec![0; ranks * ranks],
        }
    }

    fn pair(&self, source: Rank, target: Rank) -> usize {
        source.0 as usize * self.ranks + target.0 as usize
    }

    /// A broadcast of `source` was taken.
    fn broadcast(&mut self, source: Rank, to: BroadcastTo) {
        let number = self.broadcasts[source.0 as usize];
        self.broadcasts[source.0 as usize] += 1;
        let targets = (0..self.ranks as u32).map(Rank);
        for target in targets.filter(|&target| to == BroadcastTo::Everyone || target != source) {
            let pair = self.pair(source, target);
            self.shared[pair].push_back((self.sent[pair], number));
            self.sent[pair] += 1;
        }
    }

    /// The message must be the next of its pair; returns the lives that it has left.
    fn receive(&mut self, source: Rank, target: Rank, kind: u32, bytes: &[u8]) -> u64 {
        let pair = self.pair(source, target);
        let due = self.came[pair];
        self.came[pair] += 1;
        let lives = match bytes {
            [] => 0,
            _ => u64::from(bytes[0] & 3),
        };
        let shared = &mut self.shared[pair];
        let (whose, number) = match shared.front() {
            Some(&(place, number)) if place == due => {
                shared.pop_front();
                (MANY, number)
            }
            _ => (target, due),
        };
        let expected = payload(source, whose, number, bytes.len(), lives);
        assert!(
            bytes == expected && (kind == number || kind == 0),
            "message {due} from {source} to {target} has kind {kind} and {} bytes, the first of them {:?}",
            bytes.len(),
            &bytes[..bytes.len().min(16)]
        );
        lives
    }
}

/// The bytes of message `number` of a pair: all of them follow from that, but for two bits that say
/// its lives.
fn payload(source: Rank, target: Rank, number: u32, bytes: usize, lives: u64) -> Vec<u8> {
    let place = u64::from(source.0) << 40 | u64::from(target.0) << 32 | u64::from(number);
    let mut dice = Dice(place);
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        data.extend_from_slice(&dice.roll().to_le_bytes());
    }
    data.truncate(bytes);
    if let Some(first) = data.first_mut() {
        *first = *first & !3 | lives as u8;
    }
    data
}

/// Lengths of an application's messages: mostly short, now and then longer than a frame.
fn length(dice: &mut Dice, options: &SimulationOptions, lives: u64) -> usize {
    match (options.item_bytes, lives) {
        (0, 0) => match dice.below(16) {
            0..=9 => dice.below(48) as usize,
            10..=13 => dice.below(700) as usize,
            14 => dice.below(5000) as usize,
            _ => dice.below(20_000) as usize,
        },
        // What is sent on has to fit the spill, all of it.
        (0, _) => 1 + dice.below(40) as usize,
        (item_bytes, _) => item_bytes,
    }
}

fn run(seed: u64) -> Result<(), SimulationError> {
    let plan = Plan::new(seed);
    let topology = plan.topology();
    let ranks = topology.size();
    let books = RefCell::new(Books::new(ranks as usize));
    let mut job = Simulation::new(&topology, plan.options.clone(), |here, message, outbox| {
        let mut books = books.borrow_mut();
        let lives = books.receive(message.source, here, message.kind, message.bytes);
        // One broadcast at the end of a life is much: it goes to all.
        if lives == 1 && bytes_say_broadcast(message.bytes, plan.broadcast_one_in) {
            let number = books.broadcasts[here.0 as usize];
            let data = payload(here, MANY, number, message.bytes.len(), 0);
            let sent = outbox.broadcast(number, &data, BroadcastTo::Others);
            sent.expect("what is under way fits the spill");
            books.broadcast(here, BroadcastTo::Others);
        } else if lives > 0 {
            let target = Rank(u32::from(message.bytes[message.bytes.len() - 1]) % ranks);
            let pair = books.pair(here, target);
            let number = books.sent[pair];
            let data = payload(here, target, number, message.bytes.len(), lives - 1);
            let sent = outbox.send(target, number, &data);
            sent.expect("what is under way fits the spill");
            books.sent[pair] += 1;
        }
    })?;
    let mut dice = Dice(seed ^ 0xabcd);
    for _ in 0..2 {
        exchange(&mut job, &plan, &books, &mut dice)?;
        job.fence()?;
        let books = books.borrow();
        assert_eq!(books.sent, books.came, "messages by pair of ranks");
    }
    job.settle()
}

/// Whether the handler that gets these bytes answers by a broadcast.
fn bytes_say_broadcast(bytes: &[u8], one_in: u64) -> bool {
    u64::from(bytes[bytes.len() / 2]).is_multiple_of(one_in)
}

/// A message that an application is about to send.
#[derive(Clone, Copy)]
struct Next {
    to: To,
    bytes: usize,
    lives: u64,
}

#[derive(Clone, Copy)]
enum To {
    One(Rank),
    Many(BroadcastTo),
}

impl Next {
    fn new(dice: &mut Dice, plan: &Plan, ranks: u32) -> Self {
        if dice.below(plan.broadcast_one_in) == 0 {
            return Self {
                to: To::Many(dice.one_of(&[BroadcastTo::Others, BroadcastTo::Everyone])),
                bytes: length(dice, &plan.options, 0),
                lives: 0,
            };
        }
        let lives = dice.below(plan.lives + 1);
        Self {
            to: To::One(Rank(dice.below(u64::from(ranks)) as u32)),
            bytes: length(dice, &plan.options, lives),
            lives,
        }
    }

    /// Tries to send it, and enters it in the books.
    fn send(
        self,
        job: &mut Simulation<'_>,
        books: &RefCell<Books>,
        source: Rank,
    ) -> Result<(), Error> {
        let Self { to, bytes, lives } = self;
        match to {
            To::One(target) => {
                let pair = books.borrow().pair(source, target);
                let number = books.borrow().sent[pair];
                let data = payload(source, target, number, bytes, lives);
                job.try_send(source, target, number, &data)?;
                books.borrow_mut().sent[pair] += 1;
            }
            To::Many(to) => {
                let number = books.borrow().broadcasts[source.0 as usize];
                let data = payload(source, MANY, number, bytes, lives);
                job.try_broadcast(source, number, &data, to)?;
                books.borrow_mut().broadcast(source, to);
            }
        }
        Ok(())
    }
}

/// Every application sends its messages, between turns of others.
fn exchange(
    job: &mut Simulation<'_>,
    plan: &Plan,
    books: &RefCell<Books>,
    dice: &mut Dice,
) -> Result<(), SimulationError> {
    let ranks = job.topology().size();
    let mut left = vec![plan.messages; ranks as usize];
    let mut waiting: Vec<Option<Next>> = vec![None; ranks as usize];
    let mut refused = 0;
    while left.iter().any(|&l| l > 0) {
        let source = dice.below(u64::from(ranks)) as u32;
        let index = source as usize;
        for _ in 0..dice.below(4).min(left[index]) {
            let next = waiting[index].take();
            let next = next.unwrap_or_else(|| Next::new(dice, plan, ranks));
            match next.send(job, books, Rank(source)) {
                Ok(()) => {
                    left[index] -= 1;
                    refused = 0;
                }
                Err(Error::WouldBlock) => {
                    waiting[index] = Some(next);
                    refused += 1;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        for _ in 0..dice.below(6) {
            job.step()?;
        }
        if dice.below(40) == 0 {
            let dump = job.dump(Rank(source));
            assert!(!dump.contains("CONTRADICTION"), "{dump}");
        }
        assert!(
            refused < TOO_MANY,
            "{left:?} messages cannot be sent:\n{}",
            job.dump(Rank(source))
        );
    }
    Ok(())
}

/// Says how to replay when a job ends by a panic.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("replay with TRIHOP_SEED={}", self.0);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is `{text}`, not a number")))
}

#[test]
fn random_jobs_on_random_schedules_lose_nothing_and_keep_order() {
    let seeds = match number("TRIHOP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("TRIHOP_SCHEDULES").unwrap_or(SCHEDULES) + 1,
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for first in 0..threads {
            let seeds = seeds.clone().skip(first).step_by(threads);
            scope.spawn(move || {
                for seed in seeds {
                    let _replay = Replay(seed);
                    run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                }
            });
        }
    });
}
