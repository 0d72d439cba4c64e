//! An application thread, a progress thread and a delivery thread, as `shuffle/src/job/wait.rs` and `threaded/` put them
//! together around the hand-over that ships: a delivery queue of two records, so that everybody waits for everybody.
//! Random schedules; sleeps never end by themselves, so a lost wake-up is a deadlock; naps do.
#![cfg(trihop_shuttle)]

mod config;
#[allow(dead_code, reason = "files that ship, of which a model uses a part")]
mod deliver;
#[allow(dead_code, reason = "as above")]
mod error;
#[allow(dead_code, reason = "as above")]
mod queue;

use std::time::Duration;

use shuttle::rand::Rng;
use trihop_loom_tests::shuttled::{BlockingSleeper, TimeLimit, explore};
use trihop_transport::park::Turn;
use trihop_transport::protocol::wire::BadRun;
use trihop_transport::ring::Shipped;
use trihop_transport::ring::doorbell::{self, Sleeper};
use trihop_transport::sync::{Arc, AtomicU64, Condvar, Flag, Mutex, Ordering, thread};

use config::{ShimOptions, StreamOptions};
use deliver::{Bell, Chunk, Delivery, Handover};

const LIMIT: Duration = Duration::from_secs(1);
const RECORDS: u64 = 4;

/// Which step is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The caller wakes the progress thread before it sits out.
    Waking,
    /// The progress thread tells callers what it has moved.
    Telling,
    /// The progress thread tells callers who came while it was awake that it goes to sleep.
    TellingNewcomers,
    /// The sleeper looks for what the delivery thread has freed.
    LookingForFreed,
    /// The sleeper looks whether it is to end.
    LookingForTheEnd,
    /// The delivery thread is shown what was handed over.
    Showing,
    /// A caller who leaves with something unshown wakes the progress thread, which shows it.
    WakingAfterwards,
    /// A flush says how far it waits for the handler.
    Awaiting,
    /// The handler's next call, which waits for a spill, is told that it has drained.
    Relieving,
    /// The progress thread naps while something is spilled.
    Napping,
}

/// What the handler does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handler {
    Returns,
    /// It sends something that no queue has room for: it is spilled, and more than the mark.
    Spills,
    /// It fails, after a record that is left to chance.
    Fails,
}

/// What the job has failed with, as every caller hears it.
#[derive(Debug, PartialEq, Eq)]
struct Failed;

/// What the application waits for when it has sent everything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing: it does something else, and the others have to come to the end by themselves.
    Alone,
    /// The handler.
    Handled,
    /// The consumer of the lane.
    Released,
}

/// How the progress thread sleeps.
const AWAKE: u64 = 0;
const NAP: u64 = 1;
const DEEP: u64 = 2;

struct Rank {
    turn: Turn,
    bell: BlockingSleeper,
    handover: Handover,
    stopping: Flag,
    /// What the delivery thread is through with, once more: as a lane's consumer, who rings only where the sleeper wants
    /// to hear of releases.
    released: AtomicU64,
    wanted: Flag,
    /// The next four are reached with the turn.
    queued: AtomicU64,
    sleep: AtomicU64,
    /// A caller went to sit out while the progress thread was awake.
    newcomer: Flag,
    /// A flush waits for releases.
    urgent: Flag,
    /// Records that are spilled.
    spilled: AtomicU64,
    all_done: Mutex<bool>,
    told: Condvar,
    handler: Handler,
    without: Without,
}

fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

impl Rank {
    fn new(options: &StreamOptions, handler: Handler, without: Without) -> Self {
        let bell = BlockingSleeper::default();
        Self {
            turn: Turn::default(),
            handover: Handover::new(options, std::sync::Arc::new(Bell(bell.clone()))),
            bell,
            stopping: Flag::default(),
            released: AtomicU64::new(0),
            wanted: Flag::default(),
            queued: AtomicU64::new(0),
            sleep: AtomicU64::new(AWAKE),
            newcomer: Flag::default(),
            urgent: Flag::default(),
            spilled: AtomicU64::new(0),
            all_done: Mutex::new(false),
            told: Condvar::new(),
            handler,
            without,
        }
    }

    fn has(&self, step: Without) -> bool {
        self.without != step
    }

    /// A round of progress: what the delivery queue admits goes there, and what was spilled leaves. A round that moves
    /// nothing shows what was handed over.
    fn progress(&self) -> Result<bool, Failed> {
        let freed = self.handover.take_freed().map_err(|_| Failed)?;
        // Whether a queue has room is left to chance.
        let drained = get(&self.spilled) > 0 && shuttle::rand::thread_rng().gen_bool(0.5);
        if drained {
            set(&self.spilled, get(&self.spilled) - 1);
            if self.has(Without::Relieving) {
                self.handover.gauge.relieve();
            }
        }
        let record = Delivery::Record {
            source: 0,
            kind: 0,
            bytes: b"record",
        };
        let handed = get(&self.queued) > 0 && self.handover.offer(&record, 1, 8).unwrap();
        if handed {
            set(&self.queued, get(&self.queued) - 1);
        }
        let worked = freed | handed | drained;
        if self.has(Without::Showing) {
            match worked {
                true => self.handover.show_much(),
                false => self.handover.show(),
            }
        }
        Ok(worked)
    }

    /// As `JobState::progress_in_passing`.
    fn progress_in_passing(&self) -> Result<(), Failed> {
        if get(&self.sleep) == NAP {
            doorbell::awake(self.bell.word());
        }
        if self.progress()? {
            self.turn.tell_moved();
        }
        Ok(())
    }

    /// As `JobState::wake_from`.
    fn wake_from(&self, sleep: u64) {
        if get(&self.sleep) >= sleep {
            set(&self.sleep, AWAKE);
            self.bell.signal();
        }
    }

    /// A caller waits, with progress, until `done`.
    fn wait(&self, done: impl Fn() -> bool) -> Result<(), Failed> {
        let mut unknown = true;
        while !done() {
            if self.progress()? {
                unknown = true;
                self.turn.tell_moved();
                continue;
            }
            if get(&self.sleep) == AWAKE {
                self.newcomer.raise();
            } else if std::mem::take(&mut unknown) && self.has(Without::Waking) {
                self.wake_from(NAP);
            }
            // SAFETY: callers have the turn.
            unsafe { self.turn.sit_out(LIMIT) };
        }
        Ok(())
    }

    /// As `JobState::park`. Whether something waits for time, and so the sleep is a nap, is left to chance.
    fn park(&self) {
        let urgent = self.urgent.is_raised();
        if urgent {
            self.wanted.raise();
        }
        let before = get(&self.released);
        if self.newcomer.is_raised() && self.has(Without::TellingNewcomers) {
            self.newcomer.lower();
            self.turn.tell_moved();
        }
        let spilled = get(&self.spilled) > 0 && self.has(Without::Napping);
        let timed = spilled || shuttle::rand::thread_rng().gen_ratio(1, 5);
        let limit = if timed { TimeLimit::Soon } else { TimeLimit::None };
        let mut left = false;
        self.bell.park(limit, || {
            let awake = self.has(Without::LookingForTheEnd) && self.stopping.is_raised()
                || self.has(Without::LookingForFreed) && self.handover.is_freed()
                || urgent && get(&self.released) != before;
            if !awake {
                set(&self.sleep, if timed { NAP } else { DEEP });
                left = true;
                // SAFETY: the progress thread has the turn.
                unsafe { self.turn.leave() };
            }
            awake
        });
        if left {
            self.turn.take();
            set(&self.sleep, AWAKE);
        }
    }

    /// The progress thread.
    fn progress_until_stopping(&self) {
        self.turn.take();
        while !self.stopping.is_raised() {
            let Ok(worked) = self.progress() else {
                // As `JobState::keep_failure`: everybody hears of it.
                self.turn.tell_moved();
                break;
            };
            if !worked {
                // How often it yields before it parks is left to chance.
                if shuttle::rand::thread_rng().gen_bool(0.5) {
                    // SAFETY: taken above.
                    unsafe { self.turn.leave() };
                    self.turn.take();
                    continue;
                }
                self.park();
            }
            if self.has(Without::Telling) {
                self.turn.tell_moved();
            }
        }
        // SAFETY: taken above.
        unsafe { self.turn.leave() };
    }

    /// The delivery thread.
    fn deliver(&self) {
        let (mut chunk, mut handled) = (Chunk::default(), 0);
        while self.handover.next(&mut chunk) {
            let calls = self.handover.calls();
            let call = |delivery: Delivery<'_>| {
                let last = handled + 1 == RECORDS;
                let fails = last || shuttle::rand::thread_rng().gen_bool(0.3);
                if self.handler == Handler::Fails && fails {
                    return Err(BadRun::NoMemory(1)); // any error
                }
                calls.make(delivery.records() as u64, || {
                    handled += 1;
                    self.handle();
                });
                Ok(())
            };
            let outcome = chunk.each(1, call);
            self.handover.finish(&mut chunk, calls);
            if outcome.is_err() {
                self.handover.fail(error::Error::Handler);
            }
            set(&self.released, handled);
            if self.wanted.is_raised() {
                doorbell::call::<_, Shipped>(&self.bell);
            }
            if handled == RECORDS {
                *self.all_done.lock().unwrap() = true;
                self.told.notify_one();
            }
        }
    }

    /// The handler, on the delivery thread: its sends take the turn, as a call of `Shared::with` does, and never wait.
    fn handle(&self) {
        if self.handler == Handler::Spills {
            self.turn.take();
            set(&self.spilled, get(&self.spilled) + 1);
            self.handover.gauge.press();
            deliver::note_overfilled(&self.handover.gauge);
            self.wake_from(DEEP);
            // SAFETY: taken above.
            unsafe { self.turn.leave() };
        }
    }

    /// The application sends a record: one round of progress in passing, which may leave something unshown.
    fn send(&self) -> Result<(), Failed> {
        self.turn.take();
        let sent = self.wait(|| get(&self.queued) == 0).and_then(|()| {
            set(&self.queued, 1);
            self.progress_in_passing()
        });
        if self.has(Without::WakingAfterwards) {
            self.wake_from(DEEP);
        }
        // SAFETY: taken above.
        unsafe { self.turn.leave() };
        sent
    }

    /// The application waits until the handler is through, or everything released.
    fn flush(&self, end: End) -> Result<(), Failed> {
        self.turn.take();
        if end == End::Released {
            self.urgent.raise();
        }
        let waited = self.wait(|| {
            get(&self.queued) == 0
                && get(&self.spilled) == 0
                && match end {
                    End::Released => get(&self.released) == RECORDS,
                    _ if self.has(Without::Awaiting) => self.handover.has_done_all(),
                    _ => self.handover.done() == self.handover.handed(),
                }
        });
        // SAFETY: taken above.
        unsafe { self.turn.leave() };
        waited?;
        assert_eq!(self.handover.done(), RECORDS);
        Ok(())
    }
}

fn model(end: End, without: Without) {
    model_with(StreamOptions::default(), end, Handler::Returns, without);
}

fn model_with(options: StreamOptions, end: End, handler: Handler, without: Without) {
    explore(move || {
        let rank = Arc::new(Rank::new(&options, handler, without));
        let progress_thread = thread::spawn({
            let rank = rank.clone();
            move || rank.progress_until_stopping()
        });
        let delivery_thread = thread::spawn({
            let rank = rank.clone();
            move || rank.deliver()
        });
        let mut outcome = (0..RECORDS).try_for_each(|_| rank.send());
        if end != End::Alone {
            outcome = outcome.and_then(|()| rank.flush(end));
        } else {
            let mut all = rank.all_done.lock().unwrap();
            while !*all {
                all = rank.told.wait(all).unwrap();
            }
        }
        assert_eq!(outcome.is_err(), handler == Handler::Fails);
        if outcome.is_err() {
            rank.handover.discard();
        }
        rank.handover.close();
        delivery_thread.join().unwrap();
        rank.stopping.raise();
        doorbell::call::<_, Shipped>(&rank.bell);
        progress_thread.join().unwrap();
    });
}

#[test]
fn a_flush_ends_after_everything_was_handled() {
    model(End::Handled, Without::Nothing);
}

#[test]
fn a_flush_ends_after_everything_was_released() {
    model(End::Released, Without::Nothing);
}

#[test]
fn what_was_sent_is_handled_though_no_caller_comes_back() {
    model(End::Alone, Without::Nothing);
}

/// Fewer records than the threshold wait for more, or for somebody who waits for them.
#[test]
fn a_flush_is_kept_waiting_by_no_threshold() {
    let options = StreamOptions {
        deliverq_max: 4,
        shim: ShimOptions {
            deliverq_threshold: 3,
        },
        ..StreamOptions::default()
    };
    model_with(options, End::Handled, Handler::Returns, Without::Nothing);
}

/// A queue of which one record is too little to be shown by a round that has moved something.
fn unshown_by_one_round(without: Without) {
    let options = StreamOptions {
        deliverq_max: 16,
        ..StreamOptions::default()
    };
    model_with(options, End::Alone, Handler::Returns, without);
}

#[test]
fn what_one_round_in_passing_leaves_unshown_is_handled_though_no_caller_comes_back() {
    unshown_by_one_round(Without::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn twin_a_caller_leaves_a_delivery_unshown_beside_a_sleeping_progress_thread() {
    unshown_by_one_round(Without::WakingAfterwards);
}

/// The handler fails while a flush waits for it, or before: the flush ends by that.
#[test]
fn a_flush_ends_when_the_handler_fails() {
    let options = StreamOptions::default();
    model_with(options, End::Handled, Handler::Fails, Without::Nothing);
}

/// The handler's sends are spilled, and its next call waits until they have left.
fn spills(end: End, without: Without) {
    model_with(StreamOptions::default(), end, Handler::Spills, without);
}

#[test]
fn handlers_that_spill_are_called_again_when_the_spill_has_drained() {
    spills(End::Handled, Without::Nothing);
}

#[test]
fn handlers_that_spill_are_called_again_though_no_caller_comes_back() {
    spills(End::Alone, Without::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn twin_nobody_says_that_the_spill_has_drained() {
    spills(End::Alone, Without::Relieving);
}

#[test]
#[should_panic(expected = "deadlock")]
fn twin_the_progress_thread_sleeps_deeply_beside_a_spill() {
    spills(End::Alone, Without::Napping);
}

macro_rules! twin {
    ($test:ident, $end:ident, $without:ident) => {
        #[test]
        #[should_panic(expected = "deadlock")]
        fn $test() {
            model(End::$end, Without::$without);
        }
    };
}

twin!(
    twin_a_caller_sits_out_beside_a_sleeping_progress_thread,
    Released,
    Waking
);
twin!(
    twin_the_progress_thread_keeps_what_it_moved_to_itself,
    Released,
    Telling
);
twin!(
    twin_a_caller_comes_before_the_wish_to_hear,
    Released,
    TellingNewcomers
);
twin!(twin_a_sleeper_overlooks_what_was_freed, Alone, LookingForFreed);
twin!(twin_deliveries_are_not_shown, Released, Showing);
twin!(twin_a_flush_says_not_how_far_it_waits, Handled, Awaiting);
twin!(
    twin_a_job_ends_beside_a_progress_thread_that_falls_asleep,
    Released,
    LookingForTheEnd
);
