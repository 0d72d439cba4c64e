//! An application thread, a progress thread and a delivery thread, as `shuffle/src/job.rs` and `deliver/handover.rs` put
//! them together: queues of one record each, so that everybody waits for everybody. Random schedules; naps never end by
//! themselves, so a lost wake-up is a deadlock.
#![cfg(trihop_shuttle)]

use std::time::Duration;

use trihop_loom_tests::shuttled::{BlockingSleeper, TimeLimit, explore};
use trihop_transport::park::{Content, Mail, Mailbox, Turn};
use trihop_transport::ring::Shipped;
use trihop_transport::ring::doorbell::{self, Sleeper};
use trihop_transport::sync::{Arc, AtomicU64, Condvar, Flag, Mutex, Ordering, thread};

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
    /// The delivery thread is shown what was handed over.
    Showing,
    /// A caller who leaves with something unshown wakes the progress thread, which shows it.
    WakingAfterwards,
}

#[derive(Default)]
struct Rank {
    turn: Turn,
    bell: BlockingSleeper,
    stopping: Flag,
    freed: Flag,
    /// The next five are reached with the turn.
    queued: AtomicU64,
    handed: AtomicU64,
    /// Something was handed over, or found no room, since deliveries were last shown.
    unshown: Flag,
    asleep: Flag,
    /// A caller went to sit out while the progress thread was awake.
    newcomer: Flag,
    /// A flush waits for `done`.
    urgent: Flag,
    /// The sleeper wants to hear of `done`: as a lane's producer wants to hear of a release.
    wanted: Flag,
    done: AtomicU64,
    all_done: Mutex<bool>,
    told: Condvar,
}

struct Delivery {
    waiting: u64,
    in_hand: u64,
    refused: bool,
}

impl Delivery {
    fn content(&self) -> Content {
        match self.waiting {
            0 => Content::Nothing,
            _ => Content::Enough,
        }
    }
}

fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

/// A round of progress: what the delivery queue admits goes there. A round that moves nothing shows it.
fn progress(rank: &Rank, mailbox: &Mailbox<Delivery>, without: Without) -> bool {
    let freed = rank.freed.is_raised();
    if freed {
        rank.freed.lower();
    }
    let worked = freed | hand_over(rank, mailbox);
    if !worked && rank.unshown.is_raised() {
        rank.unshown.lower();
        if without != Without::Showing {
            mailbox.with(|delivery| ((), delivery.content()));
        }
    }
    worked
}

fn hand_over(rank: &Rank, mailbox: &Mailbox<Delivery>) -> bool {
    if get(&rank.queued) == 0 {
        return false;
    }
    rank.unshown.raise();
    let admitted = mailbox.with(|delivery| {
        let admitted = delivery.waiting + delivery.in_hand == 0;
        delivery.refused |= !admitted;
        delivery.waiting += u64::from(admitted);
        (admitted, Content::Nothing)
    });
    if admitted {
        set(&rank.queued, get(&rank.queued) - 1);
        set(&rank.handed, get(&rank.handed) + 1);
    }
    admitted
}

/// A caller waits, with progress, until `done`.
fn wait(rank: &Rank, mailbox: &Mailbox<Delivery>, without: Without, done: impl Fn() -> bool) {
    let mut unknown = true;
    while !done() {
        if progress(rank, mailbox, without) {
            unknown = true;
            rank.turn.tell_moved();
            continue;
        }
        if !rank.asleep.is_raised() {
            rank.newcomer.raise();
        } else if std::mem::take(&mut unknown) && without != Without::Waking {
            rank.asleep.lower();
            rank.bell.signal();
        }
        // SAFETY: callers have the turn.
        unsafe { rank.turn.sit_out(LIMIT) };
    }
}

fn model(flushes: bool, without: Without) {
    explore(move || {
        let rank = Arc::new(Rank::default());
        let mailbox = Arc::new(Mailbox::new(Delivery {
            waiting: 0,
            in_hand: 0,
            refused: false,
        }));
        let progress_thread = thread::spawn({
            let (rank, mailbox) = (rank.clone(), mailbox.clone());
            move || {
                rank.turn.take();
                while !rank.stopping.is_raised() {
                    if progress(&rank, &mailbox, without) {
                        if without != Without::Telling {
                            rank.turn.tell_moved();
                        }
                        continue;
                    }
                    let urgent = rank.urgent.is_raised();
                    if urgent {
                        rank.wanted.raise();
                    }
                    let before = get(&rank.done);
                    if rank.newcomer.is_raised() && without != Without::TellingNewcomers {
                        rank.newcomer.lower();
                        rank.turn.tell_moved();
                    }
                    let mut left = false;
                    rank.bell.park(TimeLimit::None, || {
                        let looks = without != Without::LookingForFreed;
                        let awake = looks && rank.freed.is_raised()
                            || urgent && get(&rank.done) != before
                            || rank.stopping.is_raised();
                        if !awake {
                            rank.asleep.raise();
                            left = true;
                            // SAFETY: taken above.
                            unsafe { rank.turn.leave() };
                        }
                        awake
                    });
                    if left {
                        rank.turn.take();
                        rank.asleep.lower();
                    }
                    if without != Without::Telling {
                        rank.turn.tell_moved();
                    }
                }
                // SAFETY: taken above.
                unsafe { rank.turn.leave() };
            }
        });
        let delivery_thread = thread::spawn({
            let (rank, mailbox) = (rank.clone(), mailbox.clone());
            move || {
                let take = |delivery: &mut Delivery, _| match delivery.waiting {
                    0 => Mail::Nothing,
                    _ => {
                        delivery.in_hand = std::mem::take(&mut delivery.waiting);
                        Mail::Taken(delivery.in_hand)
                    }
                };
                while let Some(records) = mailbox.wait(take) {
                    let news = mailbox.with(|delivery| {
                        delivery.in_hand = 0;
                        set(&rank.done, get(&rank.done) + records);
                        (std::mem::take(&mut delivery.refused), delivery.content())
                    });
                    if get(&rank.done) == RECORDS {
                        *rank.all_done.lock().unwrap() = true;
                        rank.told.notify_one();
                    }
                    if news {
                        rank.freed.raise();
                    }
                    if news || rank.wanted.is_raised() {
                        doorbell::call::<_, Shipped>(&rank.bell);
                    }
                }
            }
        });
        for _ in 0..RECORDS {
            rank.turn.take();
            wait(&rank, &mailbox, without, || get(&rank.queued) == 0);
            set(&rank.queued, 1);
            // In passing: one round, which may leave what it has handed over unshown.
            progress(&rank, &mailbox, without);
            if rank.asleep.is_raised() && without != Without::WakingAfterwards {
                rank.asleep.lower();
                rank.bell.signal();
            }
            // SAFETY: taken above.
            unsafe { rank.turn.leave() };
        }
        if flushes {
            rank.turn.take();
            rank.urgent.raise();
            wait(&rank, &mailbox, without, || {
                get(&rank.queued) == 0 && get(&rank.done) == RECORDS
            });
            // SAFETY: taken above.
            unsafe { rank.turn.leave() };
        } else {
            // The application does something else; the others have to come to the end by themselves.
            let mut all = rank.all_done.lock().unwrap();
            while !*all {
                all = rank.told.wait(all).unwrap();
            }
        }
        mailbox.close();
        delivery_thread.join().unwrap();
        rank.stopping.raise();
        doorbell::call::<_, Shipped>(&rank.bell);
        progress_thread.join().unwrap();
    });
}

#[test]
fn a_flush_ends_after_everything_was_handled() {
    model(true, Without::Nothing);
}

#[test]
fn what_was_sent_is_handled_though_no_caller_comes_back() {
    model(false, Without::Nothing);
}

macro_rules! twin {
    ($test:ident, $flushes:expr, $without:ident) => {
        #[test]
        #[should_panic(expected = "deadlock")]
        fn $test() {
            model($flushes, Without::$without);
        }
    };
}

twin!(
    twin_a_caller_sits_out_beside_a_sleeping_progress_thread,
    true,
    Waking
);
twin!(
    twin_the_progress_thread_keeps_what_it_moved_to_itself,
    true,
    Telling
);
twin!(
    twin_a_caller_comes_before_the_wish_to_hear,
    true,
    TellingNewcomers
);
twin!(twin_a_sleeper_overlooks_what_was_freed, false, LookingForFreed);
twin!(twin_deliveries_are_not_shown, true, Showing);
twin!(
    twin_a_caller_leaves_a_delivery_unshown_beside_a_sleeping_progress_thread,
    false,
    WakingAfterwards
);
