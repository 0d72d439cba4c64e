//! A frame over two lanes: the relay between them sleeps on one doorbell for work and for room at
//! once.
#![cfg(trihop_shuttle)]

use std::sync::Arc;

use trihop_loom_tests::shuttled::{BlockingSleeper, TimeLimit, explore};
use trihop_loom_tests::{ModelLane, ModelReader, put};
use trihop_transport::ring::bitmap::Watch;
use trihop_transport::ring::spsc::Writer;
use trihop_transport::ring::{Shipped, doorbell};
use trihop_transport::sync::{AtomicU64, thread};

/// Frames that pass, of 8 and 16 bytes in turn: more than both lanes hold.
const FRAMES: u32 = 12;

/// What the relay looks at again between announcing a sleep and sleeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    WorkAndRoom,
    WorkOnly,
    RoomOnly,
}

fn bytes_of(value: u32) -> usize {
    if value.is_multiple_of(2) { 16 } else { 8 }
}

/// One lane, with its bit and both who may sleep at its ends.
#[derive(Clone)]
struct Hop {
    lane: ModelLane,
    active: Arc<[AtomicU64; 1]>,
    producer: BlockingSleeper,
    consumer: BlockingSleeper,
}

impl Hop {
    fn new(producer: &BlockingSleeper, consumer: &BlockingSleeper) -> Self {
        let active: Arc<[AtomicU64; 1]> = Arc::default();
        Self {
            lane: ModelLane::in_nursery(8, 0).in_inbox(active.clone(), 0),
            active,
            producer: producer.clone(),
            consumer: consumer.clone(),
        }
    }

    fn writer(&self) -> Writer<ModelLane, Shipped> {
        Writer::resume(self.lane.clone()).unwrap()
    }

    fn reader(&self) -> ModelReader<Shipped> {
        ModelReader::resume(self.lane.clone())
    }

    fn publish(&self, writer: &mut Writer<ModelLane, Shipped>) {
        writer.publish(&self.consumer);
    }

    fn release(&self, reader: &mut ModelReader<Shipped>) {
        if reader.release() {
            doorbell::ring(&self.producer);
        }
    }

    fn take(&self, watch: &mut Watch) -> bool {
        let mut found = false;
        watch.take::<_, Shipped>(&self.active[..], 1, |_| self.lane.clone(), |_| found = true);
        found
    }

    fn any(&self, watch: &Watch) -> bool {
        watch.any(&self.active[..], |_| self.lane.clone())
    }
}

fn source(hop: &Hop, limit: TimeLimit) {
    let mut writer = hop.writer();
    for value in 1..=FRAMES {
        while !put(&mut writer, bytes_of(value), value) {
            writer.want_space();
            hop.producer
                .park(limit, || writer.has_room(bytes_of(value)));
        }
        hop.publish(&mut writer);
    }
}

/// Moves frames on while there are any and there is room; then sleeps.
fn relay(from: &Hop, to: &Hop, look: Look, limit: TimeLimit) {
    let (mut reader, mut writer) = (from.reader(), to.writer());
    let (mut moved, mut listed, mut watch) = (0, false, Watch::default());
    while moved < FRAMES {
        listed |= from.take(&mut watch);
        let mut wanted = None;
        while listed {
            let Some((value, bytes)) = reader.peek() else {
                listed = false;
                break;
            };
            if !put(&mut writer, bytes, value) {
                wanted = Some(bytes);
                break;
            }
            reader.pop();
            moved += 1;
        }
        from.release(&mut reader);
        to.publish(&mut writer);
        if moved == FRAMES {
            break;
        }
        if wanted.is_some() {
            writer.want_space();
        }
        from.consumer.park(limit, || {
            let work = from.any(&watch);
            let room = wanted.is_some_and(|bytes| writer.has_room(bytes));
            work && look != Look::RoomOnly || room && look != Look::WorkOnly
        });
    }
}

fn target(hop: &Hop, limit: TimeLimit) {
    let (mut reader, mut watch) = (hop.reader(), Watch::default());
    let mut received = 0;
    while received < FRAMES {
        if !hop.take(&mut watch) {
            hop.consumer.park(limit, || hop.any(&watch));
        }
        while let Some(value) = reader.get() {
            received += 1;
            assert_eq!(value, received, "out of order");
            hop.release(&mut reader);
        }
    }
}

fn passes(look: Look, limit: TimeLimit) {
    explore(move || {
        let [src, rep, dst] = [0; 3].map(|_| BlockingSleeper::default());
        let (first, second) = (Hop::new(&src, &rep), Hop::new(&rep, &dst));
        let threads = [
            {
                let first = first.clone();
                thread::spawn(move || source(&first, limit))
            },
            {
                let (first, second) = (first.clone(), second.clone());
                thread::spawn(move || relay(&first, &second, look, limit))
            },
        ];
        target(&second, limit);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn frames_pass_a_relay_that_sleeps_for_work_and_room() {
    passes(Look::WorkAndRoom, TimeLimit::None);
}

#[test]
fn they_pass_when_sleeps_time_out() {
    passes(Look::WorkAndRoom, TimeLimit::Some);
}

#[test]
#[should_panic(expected = "deadlock")]
fn twin_relay_does_not_look_for_room() {
    passes(Look::WorkOnly, TimeLimit::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn twin_relay_does_not_look_for_work() {
    passes(Look::RoomOnly, TimeLimit::None);
}
