//! A producer that is killed after each of its stores: it is stepped instruction by instruction,
//! and ended where its next store has reached the shared memory.

use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::Arc;

use super::{fill, is_filled};
use crate::memory::segment::Segment;
use crate::ring::{Doorbell, Inbox, InboxLayout, Producer};

const LANE_BYTES: u32 = 4 << 10;

/// Exit status of a child that may not be traced.
const UNTRACED: i32 = 77;

/// Exit status of a child that has no shared memory.
const UNMAPPED: i32 = 78;

/// More instructions than any of these children has.
const MOST_STEPS: usize = 2_000_000;

/// What a child sends: sizes of frames, and a publish behind each batch of them.
type Batches = &'static [&'static [usize]];

/// Length of the frames that come and go before the child begins.
const BEFORE_BYTES: usize = 1000;

/// The two lanes of an inbox, the first of which belongs to the child.
struct Rig {
    segment: Arc<Segment>,
    inbox: Inbox,
    producers: Vec<Producer>,
    before: u64,
}

impl Rig {
    /// With so many frames that were sent and received.
    fn new(before: u64) -> Self {
        let layout = InboxLayout::new(2, LANE_BYTES).unwrap();
        let segment = Segment::create(layout.segment_bytes()).unwrap();
        let inbox = Inbox::new(Arc::clone(&segment), layout).unwrap();
        let bell = Doorbell::private().bell();
        let producer =
            |lane| Producer::new(Arc::clone(&segment), layout, lane, Arc::clone(&bell)).unwrap();
        let mut rig = Self {
            producers: (0..2).map(producer).collect(),
            segment,
            inbox,
            before,
        };
        for number in 0..before {
            assert!(send(&mut rig.producers[0], &filled(BEFORE_BYTES, number)));
            rig.producers[0].publish();
            assert_eq!(rig.receive(0, number), number + 1);
        }
        rig
    }

    /// Takes all frames of a lane, the first of which has this number; the number behind the last.
    fn receive(&mut self, lane: u32, mut number: u64) -> u64 {
        while let Some(frame) = self.inbox.lane(lane).front().expect("what can be true") {
            assert!(is_filled(frame, number), "frame {number} of lane {lane}");
            number += 1;
            self.inbox.lane(lane).pop();
        }
        self.inbox.lane(lane).release();
        number
    }

    /// What the shared memory holds now.
    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.segment.len()];
        let read = rustix::io::pread(self.segment.descriptor().unwrap(), &mut bytes, 0).unwrap();
        assert_eq!(read, bytes.len());
        bytes
    }

    /// Starts a child that sends these, stopped before its first frame; `None` where it may not be
    /// traced.
    fn start(&mut self, batches: Batches) -> Option<Child> {
        let sizes = batches.iter().flat_map(|batch| *batch);
        let frames = sizes.zip(self.before..);
        let frames: Vec<_> = frames
            .map(|(&bytes, number)| filled(bytes, number))
            .collect();
        let (place, length) = (self.segment.as_ptr(), self.segment.len());
        let file = self.segment.descriptor().unwrap().as_raw_fd();
        // SAFETY: the child calls nothing that allocates or takes a lock, and ends by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no further process");
        if pid == 0 {
            // SAFETY: these calls are those that a forked child may make. Its mapping lies where
            // the parent's does, which a child does not inherit, and is as long.
            unsafe {
                let (place, access) = (place.cast(), libc::PROT_READ | libc::PROT_WRITE);
                let how = libc::MAP_SHARED | libc::MAP_FIXED;
                if libc::mmap(place, length, access, how, file, 0) != place {
                    libc::_exit(UNMAPPED);
                }
                if libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) != 0 {
                    libc::_exit(UNTRACED);
                }
                libc::raise(libc::SIGSTOP);
            }
            let (mut had_room, mut frames) = (true, frames.iter());
            for batch in batches {
                for frame in frames.by_ref().take(batch.len()) {
                    had_room &= send(&mut self.producers[0], frame);
                }
                self.producers[0].publish();
            }
            // SAFETY: nothing of this process runs behind it.
            unsafe { libc::_exit(i32::from(!had_room)) };
        }
        let child = Child(pid);
        let status = child.wait();
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), UNTRACED);
            return None;
        }
        assert!(libc::WIFSTOPPED(status));
        Some(child)
    }

    /// Lets the child run until it has changed the shared memory so often, or has ended; how often
    /// it has.
    fn step(&self, child: &Child, stores: usize) -> usize {
        let (mut last, mut changed) = (self.snapshot(), 0);
        for _ in 0..MOST_STEPS {
            // SAFETY: it is a child of this thread, traced and stopped.
            let stepped = unsafe {
                let (no_address, no_signal) = (null_mut::<u8>(), null_mut::<u8>());
                libc::ptrace(libc::PTRACE_SINGLESTEP, child.0, no_address, no_signal)
            };
            assert_eq!(stepped, 0, "{}", std::io::Error::last_os_error());
            let status = child.wait();
            if libc::WIFEXITED(status) {
                assert_eq!(libc::WEXITSTATUS(status), 0, "it had room for all");
                return changed;
            }
            let stepped = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP;
            assert!(stepped, "status {status:#x}");
            let now = self.snapshot();
            if now != last {
                (last, changed) = (now, changed + 1);
                if changed == stores {
                    return changed;
                }
            }
        }
        panic!("a child that does not end");
    }
}

/// A frame of that number.
fn filled(bytes: usize, number: u64) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    fill(&mut frame, number);
    frame
}

/// Adds a frame, by few stores; false where there is no room.
fn send(producer: &mut Producer, frame: &[u8]) -> bool {
    let Some(place) = producer.reserve(frame.len()) else {
        return false;
    };
    place[4..].copy_from_slice(&frame[4..]);
    producer.commit(frame.len());
    true
}

/// A process of this thread's.
struct Child(libc::pid_t);

impl Child {
    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the kernel writes an `int` to where one is.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(pid, self.0, "{}", std::io::Error::last_os_error());
        status
    }

    fn kill(self) {
        // SAFETY: it is a child that nobody has waited for yet.
        let killed = unsafe { libc::kill(self.0, libc::SIGKILL) };
        assert_eq!(killed, 0);
        assert!(libc::WIFSIGNALED(self.wait()));
    }
}

/// Kills a producer of these batches after each of its stores.
fn kill_after_each_store(before: u64, batches: Batches) {
    let mut rig = Rig::new(before);
    let Some(child) = rig.start(batches) else {
        eprintln!("skipped: a process may not be traced here (ptrace)");
        return;
    };
    let stores = rig.step(&child, usize::MAX);
    let sent = batches.iter().map(|batch| batch.len() as u64).sum::<u64>();
    assert_eq!(rig.receive(0, before), before + sent);
    let (mut most, mut arrived) = (before, Vec::new());
    for stores in 1..=stores {
        let mut rig = Rig::new(before);
        let child = rig.start(batches).expect("one was traced before");
        assert_eq!(rig.step(&child, stores), stores);
        child.kill();
        // What is there is whole and in order, and never less than after an earlier store.
        let received = rig.receive(0, before);
        assert!(
            received >= most,
            "{received} of {most} after store {stores}"
        );
        most = received;
        arrived.push(received);
        // Others are not kept from sending.
        assert!(send(&mut rig.producers[1], &filled(64, 5)));
        rig.producers[1].publish();
        let mut active = Vec::new();
        rig.inbox.take_active(&mut active);
        assert!(active.contains(&1), "after store {stores}: {active:?}");
        assert_eq!(rig.receive(1, 5), 6);
    }
    // Nothing at first, and then each batch as a whole.
    arrived.dedup();
    let ends = batches.iter().scan(before, |sum, batch| {
        *sum += batch.len() as u64;
        Some(*sum)
    });
    let expected: Vec<u64> = std::iter::once(before).chain(ends).collect();
    assert_eq!(arrived, expected);
}

#[test]
#[cfg_attr(miri, ignore = "traces processes")]
fn a_producer_that_is_killed_after_any_store_of_a_publish_leaves_whole_frames() {
    // The second frame does not fit the lane's beginning, so that the lane grows to its ring.
    kill_after_each_store(0, &[&[16], &[200], &[24, 40]]);
}

#[test]
#[cfg_attr(miri, ignore = "traces processes")]
fn a_producer_that_is_killed_after_any_store_at_the_end_of_its_ring_leaves_whole_frames() {
    kill_after_each_store(4, &[&[80], &[120, 16]]);
}
