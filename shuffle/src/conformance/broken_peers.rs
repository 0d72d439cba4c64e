//! Bytes that no working peer sends.

use trihop_transport::link::{Access, Completion, Limits, Link, Mover, Token};
use trihop_transport::memory::pool::Buffer;
use trihop_transport::protocol::tags::{TagClass, Tags};
use trihop_transport::protocol::wire::{
    Announcement, BATCH_HEADER_BYTES, BadHeader, BatchHeader, BatchKind, ClearToSend, Counters,
    Epoch, PART_UNIT_BYTES, RUN_HEADER_BYTES, RecordAnnouncement, RunHeader, SHARED_RECORD_BYTES,
    run_flags,
};
use trihop_transport::secret::Secret;
use trihop_transport::sim::{Net, SimOptions};
use trihop_transport::topology::EndpointId;

use zerocopy::IntoBytes;

use super::schedule::sim_with_eager;
use super::world::World;
use crate::config::{Shares, StreamOptions};
use crate::endpoint::WIRE_LABEL;
use crate::queue::Input;
use crate::queue::counters::SendReason;
use crate::route::Stage;
use crate::simulation::{Fabric, SECRET, TICK_NS};

/// The stage between nodes, on the route of three hops.
const REMOTE: u8 = 2;

/// A job of two ranks on two nodes, whose batches take all ways: small and large slots, and
/// segments.
pub(super) fn attacked(net: &Net) -> World {
    let options = StreamOptions {
        remote_buftarget_bytes: 4000,
        given_shares: Some(Shares {
            small_slot_bytes: 512,
            ..Shares::default()
        }),
        ..StreamOptions::default()
    };
    World::new(
        &[1, 1],
        &options,
        3,
        Fabric::Simulated(net.clone()),
        false,
        true,
    )
}

/// Batches above this many bytes are announced.
const EAGER_BYTES: usize = 2000;

pub(super) fn network() -> Net {
    network_of(SimOptions::default().limits.max_message_bytes)
}

/// One whose messages have so many bytes at most.
pub(super) fn network_of(max_message_bytes: usize) -> Net {
    Net::new(SimOptions {
        limits: Limits {
            eager_bytes: EAGER_BYTES,
            max_message_bytes,
            mover: Mover::Segments,
            ..SimOptions::default().limits
        },
        ..SimOptions::default()
    })
}

/// A header as rank 0 writes it.
pub(super) fn header(kind: BatchKind, bytes: u32) -> BatchHeader {
    BatchHeader {
        kind,
        stream: 1,
        epoch: Epoch::FIRST,
        source: EndpointId(0),
        bytes,
        stage: REMOTE,
        sequence: 0,
        counters: Counters::default(),
    }
}

/// The cookie of the job's headers.
pub(super) fn cookie() -> u64 {
    Secret::from_bytes(SECRET).derive(WIRE_LABEL)
}

/// What is wrong with a message. Each is right in all that is checked before.
#[derive(Debug, Clone, Copy)]
enum Wrong {
    TooShort,
    Magic,
    Version,
    CheckWord,
    Cookie,
    Length,
    Epoch,
    Stream,
    Source,
    Stage,
}

impl Wrong {
    const ALL: [Self; 10] = [
        Self::TooShort,
        Self::Magic,
        Self::Version,
        Self::CheckWord,
        Self::Cookie,
        Self::Length,
        Self::Epoch,
        Self::Stream,
        Self::Source,
        Self::Stage,
    ];

    /// Writes such a message over random bytes; its length.
    fn write(self, random: u64, message: &mut [u8]) -> usize {
        let payload = 100 + random as usize % 60;
        let mut right = header(BatchKind::Eager, payload as u32);
        let mut cookie = cookie();
        let mut bytes = BATCH_HEADER_BYTES + payload;
        match self {
            Self::TooShort => bytes = random as usize % BATCH_HEADER_BYTES,
            Self::Cookie => cookie ^= 1 << (random % 64),
            Self::Length => right.bytes = right.bytes + 1 + random as u32 % 1000,
            Self::Epoch => (0..=random % 1000).for_each(|_| right.epoch = right.epoch.next()),
            Self::Stream => right.stream = 2 + random as u16 % 1000,
            Self::Source => right.source = EndpointId(2 + random as u32 % 1000),
            Self::Stage => right.stage = 4 + random as u8 % 250,
            Self::Magic | Self::Version | Self::CheckWord => {}
        }
        right.write(cookie, message);
        match self {
            Self::Magic => message[random as usize % 2] ^= 0x40,
            Self::Version => message[4] -= 1,
            Self::CheckWord => message[8 + random as usize % (BATCH_HEADER_BYTES - 8)] ^= 1,
            _ => {}
        }
        self.check(BatchHeader::parse(&message[..bytes], self::cookie()));
        bytes
    }

    /// The message fails at the check that it is made for, and passes all before.
    fn check(self, parsed: Result<(BatchHeader, &[u8]), BadHeader>) {
        let as_meant = match self {
            Self::TooShort => matches!(parsed, Err(BadHeader::Short(_))),
            Self::Magic => matches!(parsed, Err(BadHeader::Magic(_))),
            Self::Version => matches!(parsed, Err(BadHeader::Version { .. })),
            Self::CheckWord => matches!(parsed, Err(BadHeader::Check { .. })),
            Self::Cookie => matches!(parsed, Err(BadHeader::Cookie(_))),
            Self::Length => matches!(parsed, Err(BadHeader::Length { .. })),
            Self::Epoch | Self::Stream | Self::Source | Self::Stage => parsed.is_ok(),
        };
        assert!(as_meant, "{self:?}: {parsed:?}");
    }

    /// Whether only somebody who knows the job's cookie can have written it.
    fn is_a_members(self) -> bool {
        matches!(
            self,
            Self::Epoch | Self::Stream | Self::Source | Self::Stage
        )
    }
}

/// Sends broken messages of all kinds to rank 1 with these tags while the job exchanges; returns
/// how many.
fn attack(net: &Net, world: &mut World, tags: Tags) -> u64 {
    const CLASSES: [TagClass; 4] = [
        TagClass::Control,
        TagClass::Small,
        TagClass::Large,
        TagClass::Segment,
    ];
    let mut stranger = net.stranger();
    // Endpoint 1 is rank 1's; stream 1 is the user's.
    let victim = stranger.connect(&1u64.to_le_bytes()).unwrap();
    let pool = stranger.create_pool(8192, 64, Access::Departures).unwrap();
    let mut sent = 0;
    for number in 0..450u32 {
        let wrong = Wrong::ALL[number as usize % Wrong::ALL.len()];
        for class in CLASSES {
            // A member's batch in the place of an announced one is the member's error.
            if class == TagClass::Segment && wrong.is_a_members() {
                continue;
            }
            let Some(mut buffer) = pool.take() else {
                continue;
            };
            for word in buffer.chunks_exact_mut(8) {
                word.copy_from_slice(&world.random().to_le_bytes());
            }
            let mut bytes = wrong.write(world.random(), &mut buffer);
            // Now and then longer than any slot; one that is cut short would have the length that
            // it says.
            let may_be_long = bytes > BATCH_HEADER_BYTES && !matches!(wrong, Wrong::Length);
            if number % 50 > 40 && may_be_long {
                bytes = 8192;
            }
            let tag = tags.tag(1, class, 0);
            if stranger
                .post_send(victim, tag, buffer, bytes, Token(0))
                .is_ok()
            {
                sent += 1;
            }
        }
        for (source, target) in [(0, 1), (1, 0)] {
            while !world.send(source, target, number, 3000) {
                world.step();
            }
        }
        for _ in 0..50 {
            world.step();
        }
        stranger.poll(&mut Vec::new()).unwrap();
    }
    world.fence();
    for (source, target) in [(0, 1), (1, 0)] {
        assert_eq!(world.heard(target, source), (0..450).collect::<Vec<_>>());
    }
    sent
}

/// What comes of a mark with this source and target that rank 0 sends to `end` over an edge of this
/// stage: what the receiver says, or how many marks it has heard.
fn mark(
    world: &mut World,
    end: u32,
    stage: u8,
    (source, target): (u32, u32),
) -> Result<u32, String> {
    let header = RunHeader {
        source,
        target,
        count: 0,
        flags: run_flags::MARK,
    };
    let write = |space: &mut [u8]| header.write(16, space);
    let (edge, queues) = (Stage::numbered(stage), &mut world.out(0).queues);
    let (to, flags) = (EndpointId(end), run_flags::MARK);
    assert!(queues.push_to(to, edge, 16, flags, Input::ROUNDS, write));
    for _ in 0..2000 {
        world.job.step().map_err(|error| error.to_string())?;
    }
    Ok(world.core(end).rounds.heard(edge))
}

/// Marks of rounds that no edge can have: of another source, for another rank, over an edge that the
/// route does not have.
#[test]
fn marks_that_are_not_of_their_edge_are_refused() {
    let world = |sizes: &[u32], route: &str| {
        let (route, options) = (route.parse().unwrap(), StreamOptions::default());
        let fabric = sim_with_eager(1, 4096);
        World::routed(route, sizes, &options, 1, fabric, false, true)
    };
    for (sizes, stage) in [(&[2][..], 1), (&[1, 1], REMOTE)] {
        let world = || world(sizes, "three-hop");
        assert_eq!(mark(&mut world(), 1, stage, (0, 1)), Ok(1));
        for wrong in [(1, 1), (0, 0), (1, 0)] {
            let refused = mark(&mut world(), 1, stage, wrong).unwrap_err();
            assert!(refused.contains("mark of a round"), "{refused}");
        }
    }
    let cube = || world(&[8], "mesh:2x2x2");
    assert_eq!(mark(&mut cube(), 1, 1, (0, 1)), Ok(1));
    let refused = mark(&mut cube(), 3, 1, (0, 3)).unwrap_err();
    assert!(refused.contains("mark of a round"), "{refused}");
}

/// Where each rank has a rail of its own, nothing that comes over one is for a neighbour: there
/// are no lanes for that.
#[test]
fn a_run_that_came_by_anothers_rail_is_refused() {
    let (route, options) = ("three-hop".parse().unwrap(), StreamOptions::default());
    let fabric = sim_with_eager(1, 4096);
    let mut world = World::routed(route, &[2, 2], &options, 1, fabric, false, true);
    let header = RunHeader {
        source: 0,
        target: 3,
        count: 1,
        flags: 0,
    };
    let write = |space: &mut [u8]| {
        space.fill(0);
        header.write(24, space);
    };
    let (queues, edge) = (&mut world.out(0).queues, Stage::numbered(REMOTE));
    assert!(queues.push_to(EndpointId(2), edge, 24, 0, Input::APPLICATION, write));
    queues.mark(edge, SendReason::Full);
    let refused = (0..2000).find_map(|_| world.job.step().err());
    let refused = refused.expect("it has nowhere to go").to_string();
    assert!(
        refused.contains("rank 0") && refused.contains("rank 3"),
        "{refused}"
    );
}

#[test]
fn broken_messages_with_a_jobs_own_tags_are_counted_and_harm_nobody() {
    let net = network();
    let mut world = attacked(&net);
    let tags = Tags::new(
        &Secret::from_bytes(SECRET),
        SimOptions::default().limits.tag_bits,
    );
    let sent = attack(&net, &mut world, tags);
    assert!(world.stats(0).announced > 0, "no batch came as a segment");
    let counted = world.stats(1).bad_headers;
    // Of a fetch there is not always one: then nothing waits for a segment.
    assert!(
        counted >= sent * 3 / 4 && counted <= sent,
        "{counted} of {sent} messages are counted"
    );
    assert_eq!(net.violations(), Vec::<String>::new());
}

#[test]
fn messages_of_who_does_not_know_the_secret_meet_no_slot() {
    let net = network();
    let mut world = attacked(&net);
    let tags = Tags::new(
        &Secret::random().unwrap(),
        SimOptions::default().limits.tag_bits,
    );
    assert!(attack(&net, &mut world, tags) > 0);
    assert_eq!(world.stats(1).bad_headers, 0);
}

/// Hands rank 1 a message of rank 0 that came with a tag of this class, and then again; what the
/// first error says.
fn refused(class: TagClass, header: &BatchHeader, payload: &[u8]) -> String {
    let net = network();
    let mut world = attacked(&net);
    let pool = net
        .stranger()
        .create_pool(512, 2, Access::Arrivals)
        .unwrap();
    let mut refused = (0..2).filter_map(|_| {
        let mut buffer = pool.take().unwrap();
        header.write(cookie(), &mut buffer);
        buffer[BATCH_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
        let completion = Completion::Received {
            token: Token(0),
            buffer,
            bytes: BATCH_HEADER_BYTES + payload.len(),
        };
        world.complete(1, class, 0, completion).err()
    });
    let error = refused
        .next()
        .expect("nothing is wrong with it")
        .to_string();
    assert!(error.contains("rank 0"), "{error}");
    error
}

/// As [`refused`], of a header with these counters.
fn refused_counters(change: fn(&mut Counters)) -> String {
    let mut header = header(BatchKind::Control, 0);
    change(&mut header.counters);
    refused(TagClass::Control, &header, b"")
}

#[test]
fn a_member_that_counts_what_cannot_be_is_an_error_that_names_it() {
    let accepted = refused_counters(|counters| counters.accepted = 1);
    assert!(
        accepted.contains("1 batches accepted, only 0 sent"),
        "{accepted}"
    );
    let returned = refused_counters(|counters| counters.large_returned = 1 << 20);
    assert!(
        returned.contains("1048576 large slots given back"),
        "{returned}"
    );
}

#[test]
fn a_member_whose_message_does_not_fit_its_tag_is_an_error_that_names_it() {
    let data = refused(TagClass::Control, &header(BatchKind::Eager, 0), b"");
    assert!(
        data.contains("data with the tag of control messages"),
        "{data}"
    );
    let control = refused(TagClass::Small, &header(BatchKind::Control, 0), b"");
    assert!(
        control.contains("Control with the tag of batches"),
        "{control}"
    );
    let twice = refused(TagClass::Small, &header(BatchKind::Eager, 0), b"");
    assert!(twice.contains("Small slot that was not granted"), "{twice}");
    let ungranted = refused(TagClass::Large, &header(BatchKind::Eager, 0), b"");
    assert!(
        ungranted.contains("Large slot that was not granted"),
        "{ungranted}"
    );
    let ahead = BatchHeader {
        sequence: 1 << 40,
        ..header(BatchKind::Eager, 0)
    };
    let ahead = refused(TagClass::Small, &ahead, b"");
    assert!(ahead.contains(&(1u64 << 40).to_string()), "{ahead}");
}

#[test]
fn a_member_whose_announcement_cannot_be_is_an_error_that_names_it() {
    let announce = |bytes: u32, mover: u32| {
        let announcement = Announcement {
            address: 0.into(),
            key: 0.into(),
            bytes: bytes.into(),
            mover: mover.into(),
        };
        let payload = announcement.as_bytes();
        let header = header(BatchKind::Announce, payload.len() as u32);
        refused(TagClass::Small, &header, payload)
    };
    assert!(announce(63, 1).contains("63 bytes announced"));
    assert!(announce(1 << 30, 1).contains("1073741824 bytes announced"));
    assert!(announce(1000, 3).contains("mover 3"));
    let short = refused(TagClass::Small, &header(BatchKind::Announce, 8), &[0; 8]);
    assert!(short.contains("wrong length"), "{short}");
}

#[test]
fn a_member_that_offers_a_record_that_cannot_be_is_an_error_that_names_it() {
    let run = RunHeader {
        target: 1,
        source: 0,
        count: 1,
        flags: run_flags::SHARED,
    };
    let offer = |bytes: u32, mover: u32, run: RunHeader| {
        let mut head = [0; RUN_HEADER_BYTES];
        run.write(RUN_HEADER_BYTES + SHARED_RECORD_BYTES, &mut head);
        let announcement = RecordAnnouncement {
            memory: Announcement {
                address: 0.into(),
                key: 0.into(),
                bytes: bytes.into(),
                mover: mover.into(),
            },
            run: head,
            kind: 0.into(),
            reserved: 0.into(),
        };
        let payload = announcement.as_bytes();
        let header = header(BatchKind::Record, payload.len() as u32);
        refused(TagClass::Small, &header, payload)
    };
    let long = 1 << 20;
    assert!(offer(100, 1, run).contains("100 bytes announced"));
    assert!(offer(1 << 30, 1, run).contains("1073741824 bytes announced"));
    assert!(offer(long, 0, run).contains("mover 0"));
    let nobody = RunHeader { target: 2, ..run };
    assert!(offer(long, 2, nobody).contains("rank 2"));
    let plain = RunHeader { flags: 0, ..run };
    assert!(offer(long, 2, plain).contains("announced by a run"));
    let several = RunHeader { count: 2, ..run };
    assert!(offer(long, 2, several).contains("2 records"));
    let short = refused(TagClass::Small, &header(BatchKind::Record, 8), &[0; 8]);
    assert!(short.contains("wrong length"), "{short}");
}

/// What rank 0 says of notices of rank 1's for a record of 300,000 bytes that it has offered.
fn asked(parts: &[(usize, u32)]) -> Option<String> {
    let net = network();
    let mut world = attacked(&net);
    world.out(0).queues.lanes.lending(0);
    world.round(0, 0).unwrap();
    assert!(world.send(0, 1, 0, 300_000));
    for tick in 1..100 {
        net.tick();
        world.round(0, tick * TICK_NS).unwrap();
    }
    let remotes = &mut world.out(0).queues.remotes;
    let notices: Vec<_> = parts
        .iter()
        .map(|&(from, bytes)| ClearToSend {
            sequence: 0.into(),
            slot: 0.into(),
            first: ((from / PART_UNIT_BYTES) as u32).into(),
            bytes: bytes.into(),
        })
        .collect();
    if !notices
        .iter()
        .all(|notice| remotes[0].clear_to_send(notice))
    {
        return Some("none".to_owned());
    }
    (100..200).find_map(|tick| Some(world.round(0, tick * TICK_NS).err()?.to_string()))
}

#[test]
fn each_part_of_a_record_is_sent_once() {
    assert_eq!(asked(&[(0, 1000)]), None);
    assert_eq!(asked(&[(1024, 5), (0, 1000), (299_968, 32)]), None);
    for wrong in [(0, 0), (0, 300_001), (299_968, 33), (300_032, 1)] {
        assert_eq!(asked(&[wrong]).as_deref(), Some("none"), "{wrong:?}");
    }
    for twice in [
        [(0, 1000), (0, 1000)],
        [(0, 1000), (960, 1)],
        [(64, 64), (0, 65)],
    ] {
        let text = asked(&twice).expect("it was asked for before");
        assert!(text.contains("rank 1") && text.contains("twice"), "{text}");
    }
}

#[test]
fn a_member_whose_clear_to_send_cannot_be_is_an_error_that_names_it() {
    let notice = ClearToSend {
        sequence: 5.into(),
        slot: 0.into(),
        first: 0.into(),
        bytes: 0.into(),
    };
    let control = |payload: &[u8]| {
        let header = header(BatchKind::Control, payload.len() as u32);
        refused(TagClass::Control, &header, payload)
    };
    let unannounced = control(notice.as_bytes());
    assert!(
        unannounced.contains("batch 5 that is not announced"),
        "{unannounced}"
    );
    let short = control(&[0; 7]);
    assert!(short.contains("wrong length"), "{short}");
}

#[test]
fn a_members_message_that_is_cut_is_an_error_that_names_the_member() {
    let net = network();
    let mut world = attacked(&net);
    let pool = net
        .stranger()
        .create_pool(512, 2, Access::Arrivals)
        .unwrap();
    let mut cut = |write: &dyn Fn(&mut Buffer)| {
        let mut buffer = pool.take().unwrap();
        write(&mut buffer);
        let error = trihop_transport::Error::Fabric {
            call: "fi_trecv",
            code: 104,
            detail: "reset".to_owned(),
        };
        let completion = Completion::Broken {
            token: Token(0),
            buffer,
            cut: true,
            error,
        };
        world.complete(1, TagClass::Small, 0, completion)
    };
    let header = header(BatchKind::Eager, 100);
    let error = cut(&|buffer| header.write(cookie(), buffer)).unwrap_err();
    assert!(error.to_string().contains("rank 0"), "{error}");
    cut(&|buffer| header.write(!cookie(), buffer)).unwrap();
    assert_eq!(world.stats(1).bad_headers, 1);
    assert_eq!(pool.free_slots(), 0, "both wait to be posted again");
}

/// What rank 1 says of a run of `bytes` with `count` records that rank 0 sends to rank 2, which
/// rank 1 represents.
fn refusal(bytes: usize, count: u16) -> String {
    let mut world = World::new(
        &[1, 2],
        &StreamOptions::default(),
        1,
        sim_with_eager(1, 65536),
        false,
        true,
    );
    {
        let out = world.out(0);
        let queues = &mut out.queues;
        let header = trihop_transport::protocol::wire::RunHeader {
            target: 2,
            source: 0,
            count,
            flags: 0,
        };
        let index = queues.open_to(EndpointId(1), 2).unwrap();
        queues.remotes.wake(index);
        let pool = queues.remotes.pool_for(index).cloned();
        let remote = &mut queues.remotes[index];
        let input = crate::queue::Input::APPLICATION;
        assert!(remote.push_with(bytes, 0, input, pool.as_ref(), |space| {
            space.fill(0);
            header.write(bytes, space);
        }));
        remote.seal(SendReason::Full);
    }
    let refused = (1..20_000).find_map(|tick| {
        if let Fabric::Simulated(net) = &world.job.fabric {
            net.tick();
        }
        world.round(0, tick * TICK_NS).unwrap();
        world.round(1, tick * TICK_NS).err()
    });
    refused.expect("the run is refused").to_string()
}

#[test]
fn a_run_longer_than_a_frame_is_an_error_that_names_its_sender() {
    let text = refusal(20_000, 1);
    assert!(text.contains("rank 0") && text.contains("20000"), "{text}");
}

/// Nothing would be delivered for it, and fences count what is delivered.
#[test]
fn a_run_without_records_is_an_error_that_names_its_sender() {
    for bytes in [16, 24] {
        let text = refusal(bytes, 0);
        assert!(
            text.contains("rank 0") && text.contains("0 records"),
            "{text}"
        );
    }
}
