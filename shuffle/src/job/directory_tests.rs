//! Starts as the launcher sees them: ranks of real and of simulated jobs against a PMI server that
//! counts.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;

use trihop_transport::bootstrap::Pmi1;
use trihop_transport::watch::encode_addresses;

use super::*;
use crate::route::{Rails, ends_of};

#[path = "../../../transport/src/pmi_server.rs"]
mod pmi_server;

use pmi_server::{Asked, PmiServer};

/// Bound of every wait, far above what one takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bound of a wait that is to end without what it waits for.
const SHORT: Duration = Duration::from_millis(50);

/// A fabric address as those of tcp: the ranks of a node differ by their port.
fn address(topology: &Topology, rank: Rank, session: u32) -> Vec<u8> {
    let [high, low] = (40_000 + topology.local_rank_of(rank) as u16).to_be_bytes();
    let node = topology.node_of(rank).0.to_be_bytes();
    let host = [&[10][..], &node[1..]].concat();
    [&[2, 0, high, low][..], &host, &[session as u8; 8]].concat()
}

fn watch(node: NodeId) -> Vec<u8> {
    encode_addresses(&[SocketAddr::from(([10, 1, 2, 3], 1 + node.0 as u16))])
}

struct Job {
    server: Arc<PmiServer>,
    topology: Topology,
    route: RouteName,
    session: u32,
    timeout: Duration,
    /// What the processes of a node host.
    hosts: fn(Rank) -> Hosts,
}

impl Job {
    /// A job of which the ranks of some nodes really run.
    fn new(sizes: &[u32], present: &[u32]) -> Self {
        let topology = Topology::from_node_sizes(sizes, Rank(0)).unwrap();
        let ranks = present
            .iter()
            .map(|node| sizes[*node as usize] as usize)
            .sum();
        Self {
            server: PmiServer::new(topology.size(), ranks, &topology.process_mapping()),
            topology,
            route: RouteName::default(),
            session: 0,
            timeout: TIMEOUT,
            hosts: |_| Hosts(0),
        }
    }

    fn connect(&self, rank: Rank) -> Pmi1 {
        let (socket, size) = (self.server.connect(rank.0).into(), self.topology.size());
        Pmi1::over(socket, rank, size, self.session, TIMEOUT).unwrap()
    }

    fn seen_from(&self, rank: Rank) -> Topology {
        self.topology.seen_from(rank).unwrap()
    }

    /// Leaves the cards of nodes whose ranks do not run.
    fn leave_cards(&self, nodes: impl Iterator<Item = NodeId>) {
        for node in nodes {
            let topology = self.seen_from(self.topology.rank_at(node, 0));
            let ranks = topology.ranks_of(node);
            let addresses: Vec<_> = ranks.map(|rank| address(&topology, rank, 0)).collect();
            let card = Card::encode(Hosts(0), &watch(node), &addresses);
            Card::leave(&card, &mut self.connect(topology.rank())).unwrap();
        }
    }

    /// What a rank does at its start.
    fn arrive(&self, rank: Rank) -> Result<Arrival> {
        let mut bootstrap = self.connect(rank);
        let topology = self.seen_from(rank);
        assert_eq!(
            bootstrap.topology().process_mapping(),
            topology.process_mapping()
        );
        let nonce = u64::from_le_bytes(random_bytes().unwrap());
        let listener = DescriptorListener::listen(&socket_name(nonce, rank), 1024).unwrap();
        let newcomer = Newcomer {
            introduction: Introduction {
                nonce,
                group: u64::from(rank.0 % 2),
                hosts: (self.hosts)(rank),
                address: address(&topology, rank, self.session),
            },
            listener: &listener,
            watch: if topology.local_rank() == 0 {
                watch(topology.node())
            } else {
                Vec::new()
            },
            route: self.route,
            timeout: self.timeout,
        };
        arrive(&mut bootstrap, &topology, newcomer)
    }

    /// Starts all ranks of some nodes; each then has found the ends of its links on `routes` without
    /// asking the launcher. What `see` makes of each rank.
    fn run<T: Send + 'static>(
        self,
        nodes: &[u32],
        routes: &[RouteName],
        see: impl Fn(&Self, Rank, &Arrival) -> T + Send + Sync + 'static,
    ) -> (Arc<Self>, Vec<(Rank, T)>) {
        let (job, see) = (Arc::new(self), Arc::new(see));
        let ranks: Vec<Rank> = nodes
            .iter()
            .flat_map(|node| job.topology.ranks_of(NodeId(*node)))
            .collect();
        // As the exchange of doorbells has it.
        let met = Arc::new(Barrier::new(ranks.len()));
        let start = |rank: Rank| {
            let (job, see, met) = (Arc::clone(&job), Arc::clone(&see), Arc::clone(&met));
            let routes = routes.to_vec();
            let body = move || {
                let arrival = job.arrive(rank).unwrap();
                met.wait();
                job.find_ends(&arrival, rank, &routes);
                see(&job, rank, &arrival)
            };
            thread::Builder::new()
                .stack_size(512 << 10)
                .spawn(body)
                .unwrap()
        };
        let threads: Vec<_> = ranks.into_iter().map(|rank| (rank, start(rank))).collect();
        let seen = threads
            .into_iter()
            .map(|(rank, thread)| (rank, thread.join().unwrap()));
        let seen = seen.collect();
        (job, seen)
    }

    fn find_ends(&self, arrival: &Arrival, rank: Rank, routes: &[RouteName]) {
        let topology = self.seen_from(rank);
        let routes = routes
            .iter()
            .map(|route| JobRoute::new(*route, &topology).unwrap());
        for route in routes.chain([JobRoute::tree(&topology)]) {
            for end in ends_of(&[&route]) {
                let node = topology.node_of_endpoint(end);
                let found = arrival.directory.addresses_of(node, &[end], None).unwrap();
                assert_eq!(
                    found,
                    [address(&topology, topology.rank_of(end), self.session)]
                );
            }
        }
        if topology.local_rank() == 0 {
            for node in neighbours(topology.node(), topology.nodes()) {
                assert_eq!(arrival.directory.watch_of(node, None).unwrap(), watch(node));
            }
        }
    }
}

/// What a rank asks of the launcher until it knows the others.
fn expected(topology: &Topology, rank: Rank) -> (u64, u64, u64, u64) {
    let (node, ranks) = (
        topology.node_of(rank),
        topology.local_size_of(topology.node_of(rank)),
    );
    let local = topology.local_rank_of(rank);
    let first = local == 0;
    // The cards of other nodes are dealt out to the ranks of this one.
    let share = (0..topology.nodes()).filter(|other| *other != node.0 && other % ranks == local);
    // Who is where, and the greeting of rank 0 or of the first rank of the node.
    let gets = 1 + u64::from(rank != Rank(0)) + share.count() as u64;
    (gets, 2 * u64::from(first), 2, 3)
}

/// What a rank has asked of the launcher, and how much of the node's book is full.
fn what_it_took(job: &Job, rank: Rank, arrival: &Arrival) -> (Asked, usize) {
    (job.server.asked(rank.0), arrival.directory.used_bytes())
}

fn assert_asked(topology: &Topology, rank: Rank, asked: Asked) {
    let counts = (asked.gets, asked.puts, asked.barriers, asked.others);
    assert_eq!(
        counts,
        expected(topology, rank),
        "rank {rank} of {topology:?}: {asked:?}"
    );
}

/// Descriptors that a test with many ranks in one process needs.
fn allow_descriptors(count: u64) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    if limit.maximum.is_some_and(|most| most < count) {
        eprintln!(
            "skipped: {count} descriptors are needed, the hard limit is {:?}",
            limit.maximum
        );
        return false;
    }
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).is_ok()
}

fn tell(what: &str, seen: &[(Rank, (Asked, usize))], took: Duration) {
    let requests = seen.iter().map(|(_, (asked, _))| asked.requests());
    let bytes = seen.iter().map(|(_, (asked, _))| asked.bytes);
    eprintln!(
        "{what}: {} requests of a rank at most, {} of all that run; {} bytes at most, {} of all; \
         {} bytes of a node's book; {took:.1?} until all know each other",
        requests.clone().max().unwrap(),
        requests.sum::<u64>(),
        bytes.clone().max().unwrap(),
        bytes.sum::<u64>(),
        seen[0].1.1,
    );
}

#[test]
fn unequal_nodes_and_nodes_with_one_rank_meet_and_find_each_other() {
    let sizes = [3, 1, 4, 2, 1];
    let all = [0, 1, 2, 3, 4];
    let routes = &[RouteName::ThreeHop(Rails::default()), RouteName::Direct];
    let (job, seen) = Job::new(&sizes, &all).run(&all, routes, |job, rank, arrival| {
        (
            job.server.asked(rank.0),
            arrival.secret.derive("test"),
            arrival.names.clone(),
            arrival.sharers,
        )
    });
    let of_zero = seen[0].1.1;
    for (rank, (asked, word, names, sharers)) in &seen {
        assert_asked(&job.topology, *rank, *asked);
        assert_eq!(*word, of_zero, "the secret is that of rank 0");
        let node = job.topology.node_of(*rank);
        let same = |other: &Rank| other.0 % 2 == rank.0 % 2;
        assert_eq!(
            *sharers as usize,
            job.topology.ranks_of(node).filter(same).count()
        );
        let theirs = seen
            .iter()
            .filter(|(other, _)| job.topology.node_of(*other) == node);
        assert!(
            theirs.clone().all(|(_, seen)| seen.2 == *names),
            "one roster on a node"
        );
        assert_eq!(names.len(), theirs.count());
    }
}

#[test]
fn a_job_of_1024_ranks_asks_ten_requests_of_a_rank_at_most() {
    if !allow_descriptors(16 << 10) {
        return;
    }
    let all: Vec<u32> = (0..16).collect();
    let routes = &[RouteName::ThreeHop(Rails::default()), RouteName::Direct];
    let (job, began) = (Job::new(&[64; 16], &all), Instant::now());
    let (job, seen) = job.run(&all, routes, what_it_took);
    tell("16 x 64", &seen, began.elapsed());
    for (rank, (asked, book_bytes)) in &seen {
        assert_asked(&job.topology, *rank, *asked);
        assert!(asked.requests() <= 10, "{asked:?}");
        // 15 of the cards, whose addresses differ by a port, come in one piece each.
        assert!(asked.bytes < 1500, "{asked:?}");
        assert!(*book_bytes < 8 << 10, "{book_bytes}");
    }
}

/// The ranks of three nodes run, against the cards of all.
#[test]
fn a_job_of_320000_ranks_asks_for_each_node_once_on_a_node() {
    const NODES: u32 = 10_000;
    let present = [0, NODES / 2, NODES - 1];
    let job = Job::new(&[32; NODES as usize], &present);
    job.leave_cards(
        (0..NODES)
            .filter(|node| !present.contains(node))
            .map(NodeId),
    );
    let routes = &[RouteName::ThreeHop(Rails::default())];
    let began = Instant::now();
    let (job, seen) = job.run(&present, routes, what_it_took);
    tell("10,000 x 32, 96 of them running", &seen, began.elapsed());
    for (rank, (asked, book_bytes)) in &seen {
        assert_asked(&job.topology, *rank, *asked);
        assert!(
            asked.requests() <= 2 + 3 + 2 + 2 + u64::from(NODES.div_ceil(32)),
            "{asked:?}"
        );
        // Of the node, for 32 ranks.
        assert!(*book_bytes < 140 * NODES as usize, "{book_bytes}");
    }
}

#[test]
fn a_later_session_finds_its_own_addresses() {
    let sizes = [2, 2];
    let server = Job::new(&sizes, &[0, 1]).server;
    for session in 0..2 {
        let mut job = Job::new(&sizes, &[0, 1]);
        (job.server, job.session) = (Arc::clone(&server), session);
        job.run(
            &[0, 1],
            &[RouteName::ThreeHop(Rails::default())],
            |_, _, _| (),
        );
    }
}

#[test]
fn a_route_that_needs_few_nodes_fetches_no_others_and_a_later_stream_fetches_the_rest() {
    // A grid of 6 x 6 nodes, of which a node has links to 10; the tree and the watch have some more.
    let mut job = Job::new(&[2; 36], &[0]);
    job.route = "node-mesh:6x6".parse().unwrap();
    job.leave_cards((1..36).map(NodeId));
    let (job, seen) = job.run(
        &[0],
        &["node-mesh:6x6".parse().unwrap()],
        |job, rank, arrival| {
            let before = job.server.asked(rank.0).gets;
            // What a later stream with a link there does.
            let (node, end) = (NodeId(15), EndpointId(31));
            let mut pmi = job.connect(rank);
            let connected = job.server.asked(rank.0).gets;
            let store: Store<'_> = Some(&mut pmi);
            let found = arrival.directory.addresses_of(node, &[end], store).unwrap();
            assert_eq!(found, [address(&job.topology, Rank(31), 0)]);
            (before, job.server.asked(rank.0).gets - connected)
        },
    );
    let at_start: u64 = seen.iter().map(|(_, (gets, _))| gets).sum();
    // Both ask who is where, one for the greeting.
    assert!((3 + 10..3 + 20).contains(&at_start), "{at_start}");
    let later: u64 = seen.iter().map(|(_, (_, gets))| gets).sum();
    assert!((1..=2).contains(&later), "{later}");
    // It is in the node's book, for all of them.
    let first = job.server.asked(0).gets + job.server.asked(1).gets;
    assert_eq!(first, at_start + later + 2, "connecting asks who is where");
}

/// A rank that does not do what it should.
fn beside(job: &Job, rank: u32, script: impl FnOnce(&mut Pmi1) + Send + 'static) {
    let mut bootstrap = job.connect(Rank(rank));
    thread::spawn(move || script(&mut bootstrap));
}

/// The rank under test may have given up, and then nobody comes.
fn fence(pmi: &mut Pmi1) {
    let _ = pmi.fence();
}

fn error(outcome: Result<Arrival>) -> Error {
    outcome.err().expect("it cannot start")
}

/// A door as the first rank of a node opens it, and the listener behind it.
fn open_door(first: Rank, pmi: &mut Pmi1) -> (Door, DescriptorListener) {
    let nonce = u64::from_le_bytes(random_bytes().unwrap());
    let listener = DescriptorListener::listen(&socket_name(nonce, first), 8).unwrap();
    let door = Door { nonce, password: 7 };
    let greeting = Greeting {
        door,
        secret: Secret::random().unwrap(),
    };
    greeting.leave(pmi).unwrap();
    (door, listener)
}

#[test]
fn a_card_that_is_missing_or_broken_is_an_error_that_names_its_rank() {
    let good = Card::encode(Hosts(0), &watch(NodeId(1)), &[vec![1; 16]]);
    let of_two_ranks = Card::encode(Hosts(0), &watch(NodeId(1)), &[vec![1; 16], vec![2; 16]]);
    for card in [
        None,
        Some(good[..9].to_vec()),
        Some(b"no card".to_vec()),
        Some(of_two_ranks),
    ] {
        let job = Job::new(&[1, 1], &[0, 1]);
        beside(&job, 1, move |pmi| {
            fence(pmi);
            card.iter().for_each(|card| Card::leave(card, pmi).unwrap());
            fence(pmi);
        });
        let error = error(job.arrive(Rank(0)));
        let text = error.to_string();
        assert!(
            text.contains("rank 1 has left no valid start-up card"),
            "{text}"
        );
    }
}

#[test]
fn cards_and_greetings_of_another_version_are_told_apart() {
    let job = Job::new(&[1, 1], &[0, 1]);
    beside(&job, 1, |pmi| {
        fence(pmi);
        let mut card = Card::encode(Hosts(0), &watch(NodeId(1)), &[vec![1; 16]]);
        card[4] += 1;
        Card::leave(&card, pmi).unwrap();
        fence(pmi);
    });
    assert!(matches!(
        error(job.arrive(Rank(0))),
        Error::Version { rank: 1, .. }
    ));
    let job = Job::new(&[2], &[0]);
    beside(&job, 0, |pmi| {
        pmi.put("trihop", b"3hop\x01what that version says")
            .unwrap();
        fence(pmi);
    });
    assert!(matches!(
        error(job.arrive(Rank(1))),
        Error::Version {
            rank: 0,
            theirs: 1,
            ..
        }
    ));
}

#[test]
fn a_first_rank_that_ends_before_the_others_come_is_named_by_them() {
    let job = Job::new(&[2], &[0]);
    beside(&job, 0, |pmi| {
        drop(open_door(Rank(0), pmi));
        fence(pmi);
    });
    let error = error(job.arrive(Rank(1)));
    assert!(matches!(error, Error::PeerDead { rank: 0, .. }), "{error}");
}

#[test]
fn a_first_rank_that_hands_nothing_over_is_named_by_the_others() {
    let mut job = Job::new(&[2], &[0]);
    job.timeout = SHORT;
    beside(&job, 0, |pmi| {
        let open = open_door(Rank(0), pmi);
        fence(pmi);
        fence(pmi);
        // Goes on listening until the launcher has heard enough.
        fence(pmi);
        drop(open);
    });
    let text = error(job.arrive(Rank(1))).to_string();
    assert!(
        text.contains("ranks [0]") && text.contains("book"),
        "{text}"
    );
}

#[test]
fn a_rank_that_does_not_introduce_itself_is_named_by_the_first() {
    let mut job = Job::new(&[3], &[0]);
    // Far longer than rank 2 takes to say its name.
    job.timeout = Duration::from_secs(2);
    for rank in [1, 2] {
        beside(&job, rank, move |pmi| {
            fence(pmi);
            let topology = Topology::from_node_sizes(&[3], Rank(rank)).unwrap();
            let door = Greeting::of(&topology, Rank(0), pmi).unwrap().door;
            let introduction = Introduction {
                nonce: 1,
                group: 0,
                hosts: Hosts(0),
                address: Vec::new(),
            };
            let (name, deadline) = (socket_name(door.nonce, Rank(0)), Instant::now() + TIMEOUT);
            // What no rank of the job says is not heard: no word at all, a wrong password, ranks that
            // are not here.
            let say = |bytes: &[u8]| {
                DescriptorListener::send_to_listener(&name, bytes, &[], deadline).unwrap()
            };
            say(b"?");
            say(&[0; 64]);
            let password = door.password ^ 1;
            Door { password, ..door }
                .introduce(&topology, Rank(1), &introduction, deadline)
                .unwrap();
            for stranger in [0, 3, u32::MAX] {
                door.introduce(&topology, Rank(stranger), &introduction, deadline)
                    .unwrap();
            }
            if rank == 2 {
                door.introduce(&topology, Rank(2), &introduction, deadline)
                    .unwrap();
            }
            fence(pmi);
        });
    }
    let text = error(job.arrive(Rank(0))).to_string();
    assert!(text.contains("ranks [1] of this node"), "{text}");
}

/// What each process of a job says where they host different numbers of ranks.
fn differing(sizes: &[u32], hosts: fn(Rank) -> Hosts) -> Vec<Option<String>> {
    let nodes: Vec<u32> = (0..sizes.len() as u32).collect();
    let mut job = Job::new(sizes, &nodes);
    job.hosts = hosts;
    let job = Arc::new(job);
    let arrive = |rank| {
        let job = Arc::clone(&job);
        thread::spawn(move || job.arrive(Rank(rank)).err().map(|error| error.to_string()))
    };
    let arriving: Vec<_> = (0..job.topology.size()).map(arrive).collect();
    let said = arriving.into_iter().map(|rank| rank.join().unwrap());
    said.collect()
}

#[test]
fn processes_with_different_numbers_of_ranks_are_told_both() {
    let of_last = |rank: Rank| Hosts([3, 3, 2][rank.0 as usize]);
    for sizes in [&[3][..], &[2, 1], &[1, 2], &[1, 1, 1]] {
        let said = differing(sizes, of_last);
        for text in said.iter().flatten() {
            assert!(
                text.contains("3 with a relay") && text.contains("2 with a relay"),
                "{sizes:?}: {text}"
            );
        }
        // On another node it is found by whoever fetches the card.
        assert!(said[2].is_some() && (said[0].is_some() || said[1].is_some()));
    }
    for text in differing(&[1, 1], |rank| Hosts(rank.0)) {
        let text = text.unwrap();
        assert!(
            text.contains("1 with a relay") && text.contains("1 without a relay"),
            "{text}"
        );
    }
}

/// Errors of the start name ranks of the job where processes host several.
#[test]
fn a_process_that_does_not_introduce_itself_is_named_by_its_first_rank() {
    let mut job = Job::new(&[2], &[0]);
    job.timeout = SHORT;
    let hosting = job.topology.with_relays(4).unwrap();
    job.topology = hosting.processes();
    beside(&job, 1, |pmi| {
        fence(pmi);
        fence(pmi);
    });
    let text = error(job.arrive(Rank(0))).to_string();
    assert!(text.contains("ranks [4] of this node"), "{text}");
    let job = Job::new(&[1, 1], &[0, 1]);
    let hosting = job.topology.with_relays(4).unwrap();
    let job = Job {
        topology: hosting.processes(),
        ..job
    };
    beside(&job, 1, |pmi| {
        fence(pmi);
        fence(pmi);
    });
    let text = error(job.arrive(Rank(0))).to_string();
    assert!(text.contains("rank 4 has left no valid"), "{text}");
}

#[test]
fn a_book_without_room_leaves_each_rank_to_ask_for_itself() {
    let job = Job::new(&[1; 3], &[0]);
    job.leave_cards([NodeId(1), NodeId(2)].into_iter());
    let topology = job.seen_from(Rank(0));
    let roster = Roster {
        secret: Secret::random().unwrap(),
        members: vec![Member {
            nonce: 1,
            group: 2,
            hosts: Hosts(0),
        }],
    };
    let directory = Directory {
        book: NodeBook::create(&topology, &roster, 0).unwrap(),
        topology,
        hosts: Hosts(0),
    };
    let mut pmi = job.connect(Rank(0));
    for _ in 0..2 {
        let before = job.server.asked(0).gets;
        let store: Store<'_> = Some(&mut pmi);
        let found = directory
            .addresses_of(NodeId(2), &[EndpointId(2)], store)
            .unwrap();
        assert_eq!(found, [address(&job.topology, Rank(2), 0)]);
        assert_eq!(job.server.asked(0).gets, before + 1);
    }
    let text = directory.watch_of(NodeId(1), None).unwrap_err().to_string();
    assert!(text.contains("shut down"), "{text}");
}
