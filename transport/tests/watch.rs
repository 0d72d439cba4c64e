//! Watches of several nodes over real connections: news, goodbyes, ends without one, and strangers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trihop_transport::park::ProcessWatch;
use trihop_transport::ring::Doorbell;
use trihop_transport::secret::Secret;
use trihop_transport::topology::{EndpointId, NodeId, Rank, Topology};
use trihop_transport::watch::{
    Board, Cause, Listening, Neighbour, News, Setup, Watch, eventfd, neighbours, wake,
};

const WATCHDOG: Duration = Duration::from_secs(60);

/// A node as its first rank has it.
struct Node {
    watch: Watch,
    board: Board,
    wake: Arc<std::os::fd::OwnedFd>,
    address: std::net::SocketAddr,
    /// What a rank of the node sleeps on.
    doorbell: Doorbell,
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Nodes of two ranks each; `processes` are those of the last one. The secret of the last one may
/// be another.
fn start(
    nodes: u32,
    secrets: [&Secret; 2],
    mut processes: Vec<(EndpointId, ProcessWatch)>,
) -> Vec<Node> {
    let first = Topology::from_node_sizes(&vec![2; nodes as usize], Rank(0)).unwrap();
    let listening: Vec<Listening> = (0..nodes)
        .map(|_| Listening::open(&[], true).unwrap())
        .collect();
    let addresses: Vec<_> = listening.iter().map(|l| l.addresses().to_vec()).collect();
    let mut started = Vec::new();
    for (node, listening) in (0..nodes).zip(listening) {
        let topology = first.seen_from(Rank(2 * node)).unwrap();
        let (board, wake) = (
            Board::create(&topology).unwrap(),
            Arc::new(eventfd().unwrap()),
        );
        let (doorbell, last) = (Doorbell::create().unwrap(), node + 1 == nodes);
        let neighbours = neighbours(NodeId(node), nodes).into_iter();
        let watch = Watch::start(Setup {
            secret: secrets[usize::from(last)].clone(),
            neighbours: neighbours
                .map(|node| Neighbour {
                    node,
                    addresses: addresses[node.0 as usize].clone(),
                })
                .collect(),
            board: board.of_watch(),
            bells: vec![doorbell.bell()],
            processes: if last {
                std::mem::take(&mut processes)
            } else {
                Vec::new()
            },
            wake: Arc::clone(&wake),
            timeout: Duration::from_secs(1),
            listening,
            topology,
        });
        let (watch, address) = (watch.unwrap(), addresses[node as usize][0]);
        started.push(Node {
            watch,
            board,
            wake,
            address,
            doorbell,
        });
    }
    started
}

fn settled(nodes: &[Node]) {
    until("all watches are connected", || {
        nodes.iter().all(|node| node.watch.is_settled())
    });
}

fn secret() -> Secret {
    Secret::random().unwrap()
}

#[test]
fn a_failure_posted_on_one_board_is_on_all() {
    let secret = secret();
    let nodes = start(12, [&secret, &secret], Vec::new());
    settled(&nodes);
    let news = News::failed(Rank(7), "no room for it");
    assert!(nodes[3].board.post(&news));
    wake(&nodes[3].wake);
    assert!(nodes[3].watch.wait_told(WATCHDOG));
    until("everybody knows", || {
        nodes
            .iter()
            .all(|node| node.board.news().as_ref() == Some(&news))
    });
}

#[test]
fn a_process_that_ends_is_news_on_every_node() {
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .spawn()
        .expect("`cat` starts");
    let process = ProcessWatch::open(child.id()).unwrap();
    let secret = secret();
    let nodes = start(3, [&secret, &secret], vec![(EndpointId(5), process)]);
    settled(&nodes);
    nodes.iter().for_each(|node| node.doorbell.announce_sleep());
    drop(child.stdin.take());
    let news = Some(News {
        rank: Rank(5),
        cause: Cause::Ended,
    });
    until("everybody knows", || {
        nodes.iter().all(|node| node.board.news() == news)
    });
    until("who sleeps is woken for it", || {
        nodes.iter().all(|node| !node.doorbell.is_asleep())
    });
    child.wait().unwrap();
}

#[test]
fn a_watch_that_ends_without_a_goodbye_is_news_and_one_with_it_is_none() {
    let secret = secret();
    let mut nodes = start(3, [&secret, &secret], Vec::new());
    settled(&nodes);
    drop(nodes.remove(1).watch);
    let news = Some(News {
        rank: Rank(2),
        cause: Cause::Closed,
    });
    until("everybody knows", || {
        nodes.iter().all(|node| node.board.news() == news)
    });

    let mut nodes = start(3, [&secret, &secret], Vec::new());
    settled(&nodes);
    nodes.remove(1).watch.goodbye();
    until("the job is over", || {
        nodes.iter().all(|node| node.board.is_over())
    });
    // Nothing is news any more.
    drop(nodes.remove(0).watch);
    nodes[0].board.end();
    assert!(nodes.iter().all(|node| node.board.news().is_none()));
}

#[test]
fn strangers_on_the_port_are_dropped_and_harm_nobody() {
    let secret = secret();
    let nodes = start(2, [&secret, &secret], Vec::new());
    let mut strangers = Vec::new();
    for number in 0..40_usize {
        let mut stranger = TcpStream::connect(nodes[number % 2].address).unwrap();
        stranger.set_read_timeout(Some(WATCHDOG)).unwrap();
        if number % 3 > 0 {
            // This may fail: the test wants the peer to drop us.
            let _ = stranger.write_all(&vec![number as u8; 7 * number]);
        }
        strangers.push(stranger);
    }
    settled(&nodes);
    for mut stranger in strangers {
        // Its challenge, then the end: by then or after a while.
        let mut bytes = Vec::new();
        let _ = stranger.read_to_end(&mut bytes);
        assert!(bytes.len() <= 64, "a stranger hears {} bytes", bytes.len());
    }
    let news = News::failed(Rank(1), "still heard");
    assert!(nodes[0].board.post(&news));
    wake(&nodes[0].wake);
    until("the other node knows", || {
        nodes[1].board.news().as_ref() == Some(&news)
    });
}

#[test]
fn a_watch_with_another_secret_joins_nobody() {
    let (ours, theirs) = (secret(), secret());
    let nodes = start(2, [&ours, &theirs], Vec::new());
    settled(&nodes);
    assert!(nodes[1].board.post(&News::failed(Rank(3), "a lie")));
    wake(&nodes[1].wake);
    assert!(nodes[1].watch.wait_told(WATCHDOG));
    assert_eq!(nodes[0].board.news(), None);
}
