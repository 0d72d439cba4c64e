//! Threads that share an engine: whose turn it is, and deliveries that are handed over. All
//! interleavings.
#![cfg(trihop_loom)]

use std::time::Duration;

use loom::thread;
use trihop_transport::park::{Content, Mail, Mailbox, Monitor};
use trihop_transport::sync::{Arc, AtomicU64, Ordering};

const LIMIT: Duration = Duration::from_secs(1);

/// One thread sits out until two others have moved something, each in its turn.
fn sits_out(tells: bool) {
    loom::model(move || {
        let engine = Arc::new(Monitor::new(0u64));
        let movers: Vec<_> = (0..2)
            .map(|_| {
                let engine = engine.clone();
                thread::spawn(move || {
                    let mut turn = engine.take();
                    *turn += 1;
                    if tells {
                        turn.wake_all();
                    }
                })
            })
            .collect();
        let mut turn = engine.take();
        while *turn < 2 {
            turn.sit_out(LIMIT);
        }
        drop(turn);
        for mover in movers {
            mover.join().unwrap();
        }
    });
}

#[test]
fn who_sits_out_hears_of_every_move() {
    sits_out(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn twin_moves_that_nobody_tells() {
    sits_out(false);
}

/// Two letters, then the end; the reader takes what comes, of one letter only when it is late.
fn mailbox(second: Content, closes: bool) {
    loom::model(move || {
        let mailbox = Arc::new(Mailbox::new(0u32));
        let done = Arc::new(AtomicU64::new(0));
        let reader = {
            let (mailbox, done) = (mailbox.clone(), done.clone());
            thread::spawn(move || {
                let mut taken = 0;
                while let Some(letters) = mailbox.wait(|queue, late| match *queue {
                    0 => Mail::Nothing,
                    1 if !late => Mail::Soon(LIMIT),
                    _ => Mail::Taken(std::mem::take(queue)),
                }) {
                    taken += letters;
                    done.store(u64::from(taken), Ordering::Relaxed);
                }
                taken
            })
        };
        mailbox.with(|queue| {
            *queue += 1;
            ((), Content::Something)
        });
        mailbox.with(|queue| {
            *queue += 1;
            ((), second)
        });
        if closes {
            mailbox.close();
        } else {
            // The model's naps never end by themselves: only being woken helps.
            while done.load(Ordering::Relaxed) < 2 {
                thread::yield_now();
            }
            mailbox.close();
        }
        assert_eq!(reader.join().unwrap(), 2, "lost letters");
    });
}

#[test]
fn the_reader_is_woken_by_what_is_enough_and_takes_the_rest_at_the_end() {
    mailbox(Content::Enough, true);
    mailbox(Content::Something, true);
    mailbox(Content::Enough, false);
}

#[test]
#[should_panic]
fn twin_letters_that_are_never_shown() {
    mailbox(Content::Nothing, false);
}
