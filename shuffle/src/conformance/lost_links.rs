//! What a connection takes with it that breaks between two that live.

use trihop_transport::link::{Access, Completion, Link, Token};
use trihop_transport::memory::pool::Pool;
use trihop_transport::protocol::tags::TagClass;
use trihop_transport::protocol::wire::{BATCH_HEADER_BYTES, BatchHeader, BatchKind};
use trihop_transport::sim::Net;

use super::broken_peers::{attacked, cookie, header, network, network_of};
use super::world::World;
use crate::error::Error;
use crate::simulation::TICK_NS;

const SECOND_NS: u64 = 1_000_000_000;

/// Rank 1, and control messages of rank 0 that come to it.
struct Hearer {
    net: Net,
    world: World,
    pool: Pool,
    now_ns: u64,
}

impl Hearer {
    fn new() -> Self {
        // Long records come in many parts.
        let net = network_of(20 << 10);
        let world = attacked(&net);
        let mut stranger = net.stranger();
        let pool = stranger.create_pool(512, 64, Access::Arrivals).unwrap();
        let now_ns = SECOND_NS;
        Self {
            net,
            world,
            pool,
            now_ns,
        }
    }

    /// So many seconds later rank 0 says that this many batches have left.
    fn hear(&mut self, after_s: u64, left: u64) -> Result<(), Error> {
        self.now_ns += after_s * SECOND_NS;
        self.world.round(1, self.now_ns).unwrap();
        let mut buffer = self.pool.take().unwrap();
        let header = BatchHeader {
            sequence: left,
            ..header(BatchKind::Control, 0)
        };
        header.write(cookie(), &mut buffer);
        let completion = Completion::Received {
            token: Token(0),
            buffer,
            bytes: BATCH_HEADER_BYTES,
        };
        self.world.complete(1, TagClass::Control, 0, completion)
    }

    /// Some rounds of these ranks, in which messages arrive.
    fn rounds(&mut self, ranks: &[u32]) {
        for _ in 0..100 {
            self.net.tick();
            self.now_ns += TICK_NS;
            for &rank in ranks {
                self.world.round(rank, self.now_ns).unwrap();
            }
        }
    }
}

fn is_of_rank_0(lost: &Error) -> bool {
    matches!(lost, Error::LinkFailed { rank: 0, .. })
}

/// Its sender says how many have left as long as one is not accepted, and its receiver finds that
/// one has not come.
#[test]
fn a_batch_that_is_lost_on_its_way_is_an_error_that_names_the_link() {
    let mut ranks = Hearer::new();
    // Batches 0 and 1 have left, word of which may overtake them; and they may come when the one
    // who sends them is at work again.
    ranks.hear(0, 2).unwrap();
    ranks.hear(100, 2).unwrap();
    for _ in 0..10 {
        ranks.hear(5, 2).unwrap();
    }
    let lost = ranks.hear(5, 2).unwrap_err();
    let said = lost.to_string();
    assert!(is_of_rank_0(&lost), "{said}");
    assert!(
        said.contains("rank 0") && said.contains("batch 0 has not come"),
        "{said}"
    );
}

/// The clear-to-send is lost, or what it asked for.
#[test]
fn what_was_announced_and_does_not_come_is_an_error_that_names_the_link() {
    // In segments: a batch above what is sent at once, and a record in many parts.
    for (bytes, parts) in [(3_000, 1), (300_000, 3)] {
        let mut ranks = Hearer::new();
        // So that the link may read what rank 0 has in blocks.
        ranks.world.out(0).queues.lanes.lending(0);
        ranks.world.round(0, 0).unwrap();
        assert!(ranks.world.send(0, 1, 0, bytes));
        ranks.rounds(&[0]);
        // Some of the parts come, each time after most of a minute.
        for _ in 1..parts {
            ranks.rounds(&[1]);
            for _ in 0..11 {
                ranks.hear(5, 1).unwrap();
            }
            ranks.rounds(&[0]);
        }
        ranks.rounds(&[1]);
        for at in 0..12 {
            ranks
                .hear(5, 1)
                .unwrap_or_else(|e| panic!("{bytes} bytes, {at}: {e}"));
        }
        let lost = ranks.hear(5, 1).unwrap_err();
        let said = lost.to_string();
        assert!(is_of_rank_0(&lost), "{said}");
        assert!(
            said.contains("batch 0 was announced, and nothing more of it came"),
            "{said}"
        );
    }
}

/// What it was told is lost, and with it the room for more control messages.
#[test]
fn a_peer_that_confirms_nothing_is_an_error_that_names_the_link() {
    let mut ranks = Hearer::new();
    // It is answered while there is room for that. Hours in which it was stopped do not count.
    ranks.hear(0, 0).unwrap();
    for _ in 0..6 {
        ranks.hear(0, 0).unwrap();
        ranks.rounds(&[1]);
    }
    ranks.hear(10_000, 0).unwrap();
    for at in 0..10 {
        ranks.hear(5, 0).unwrap_or_else(|e| panic!("{at}: {e}"));
    }
    let lost = (0..3).find_map(|_| ranks.hear(5, 0).err()).unwrap();
    let said = lost.to_string();
    assert!(is_of_rank_0(&lost), "{said}");
    assert!(
        said.contains("confirmed nothing that it was told"),
        "{said}"
    );
}

#[test]
fn who_has_sent_what_is_not_accepted_says_so_again_and_again() {
    let net = network();
    let mut world = attacked(&net);
    assert!(world.send(0, 1, 0, 100));
    let mut controls = Vec::new();
    // Rank 1 does nothing, and confirms no message.
    for second in 1..130 {
        (0..3).for_each(|round| {
            world.round(0, second * SECOND_NS + round).unwrap();
        });
        controls.push(world.stats(0).controls_sent);
    }
    let first = controls[0];
    assert_eq!(controls[4], first, "{controls:?}");
    assert_eq!(controls[6], first + 1, "{controls:?}");
    assert_eq!(controls[16], first + 3, "{controls:?}");
    // This provider keeps what is not taken: no more than half of the buffers that all links have.
    assert_eq!(controls.last(), Some(&(first + 4)), "{controls:?}");
}
