//! A call that waits for long says so, once, and for what.

use std::fmt::Write as _;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;
use crate::seat::Seating;

/// Keeps the warnings of one thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_flush_that_waits_for_a_handler_says_so() {
    let job = job();
    job.seat()
        .with("a test", |job| {
            job.patience_ns = 20_000_000;
            Ok(())
        })
        .unwrap();
    let warnings = Warnings::default();
    let heard = warnings.clone();
    // The handler returns when the warning has come.
    let shuffle = job
        .shuffle("slow")
        .handler(move |_, _| {
            until("the warning has come", || {
                !heard.0.lock().unwrap().is_empty()
            });
        })
        .open()
        .unwrap();
    shuffle.send(Rank(0), 0, b"record").unwrap();
    tracing::subscriber::with_default(warnings.clone(), || {
        shuffle.flush(Queues::ORIGIN).unwrap();
        shuffle.flush(Queues::Delivery).unwrap();
    });
    let warnings = warnings.0.lock().unwrap().clone();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for words in [
        "waiting for a flush",
        "`slow`",
        "1 records wait for the handler",
    ] {
        assert!(warnings[0].contains(words), "no {words} in {}", warnings[0]);
    }
    job.shutdown().unwrap();
}

/// Nobody waits for it: the progress thread says so.
#[test]
fn a_handler_that_takes_long_is_named() {
    let job = job();
    let has_told = |patience_ns: Option<u64>| {
        let look = |job: &mut crate::job::JobState| {
            job.patience_ns = patience_ns.unwrap_or(job.patience_ns);
            Ok(!job.long_calls.told.is_empty())
        };
        job.seat().with("a test", look).unwrap()
    };
    assert!(!has_told(Some(20_000_000)));
    let (go, waits) = std::sync::mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let shuffle = job.shuffle("stuck").handler(move |_, _| {
        let _ = waits.lock().unwrap().recv();
    });
    let shuffle = shuffle.open().unwrap();
    shuffle.send(Rank(0), 0, b"record").unwrap();
    until("it is told", || has_told(None));
    drop(go);
    shuffle.fence().unwrap();
    drop(shuffle);
    job.shutdown().unwrap();
}
