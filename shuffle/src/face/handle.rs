//! What both faces of a stream, bytes and items, share: how it is opened, and what its handles keep.

use std::cell::RefMut;
use std::io::Write;
use std::ops::Deref;
use std::rc::Rc;

use trihop_transport::topology::Rank;

use crate::config::StreamOptions;
use crate::deliver::DeliveryQueue;
use crate::dump;
use crate::engine::outbound::Outbound;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::seat::{self, Handler, Inline, Seat};
use crate::stats::{DetailedStats, Stats};

/// A stream that is to be opened: its name, its options and where its deliveries go.
pub(crate) struct Opening<'h> {
    seat: Rc<Inline<'h>>,
    name: String,
    options: Option<StreamOptions>,
    handler: Option<Handler<'h>>,
}

impl<'h> Opening<'h> {
    /// With the job's options and without a handler.
    pub fn new(seat: &Rc<Inline<'h>>, name: &str) -> Self {
        Self {
            seat: Rc::clone(seat),
            name: name.to_owned(),
            options: None,
            handler: None,
        }
    }

    pub fn take_options(&mut self, options: StreamOptions) {
        self.options = Some(options);
    }

    pub fn take_handler(&mut self, handler: Handler<'h>) {
        self.handler = Some(handler);
    }

    /// Opens a stream of items of so many bytes, or of byte records where they are 0; collective.
    pub fn open(self, item_bytes: usize) -> Result<Handle<'h>> {
        let options = match self.options {
            Some(options) => options,
            None => self
                .seat
                .with("opening a stream", |job| Ok(job.options.stream.clone()))?,
        };
        let sink = match self.handler {
            Some(_) => Sink::Handler,
            None => Sink::Queue(DeliveryQueue::new(&options)),
        };
        let install = |stream| {
            if let Some(handler) = self.handler {
                self.seat.set_handler(stream, handler);
            }
        };
        let id = seat::open(&self.seat, &self.name, &options, item_bytes, sink, install)?;
        Ok(Handle {
            calls: seat::Handle {
                seat: Rc::clone(&self.seat),
                id,
            },
            name: self.name.into(),
        })
    }
}

/// An open stream on the thread of its job.
#[derive(Clone)]
pub(crate) struct Handle<'h> {
    calls: seat::Handle<Rc<Inline<'h>>>,
    pub name: Rc<str>,
}

impl<'h> Deref for Handle<'h> {
    type Target = seat::Handle<Rc<Inline<'h>>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.calls
    }
}

impl Handle<'_> {
    /// What the stream sends, while nothing else is done with the job.
    #[inline]
    pub fn outbound(&self) -> Result<RefMut<'_, Outbound>> {
        self.seat
            .out(self.id, "a call inside of a handler, or with an open reservation")
    }

    /// Space in the open run of `target`. The borrow that finds it is the one that keeps it: any progress in between
    /// could send the run on.
    pub fn reserve(&self, target: Rank, kind: u32, bytes: usize) -> Result<RefMut<'_, Outbound>> {
        if self.outbound()?.count_call() {
            self.seat.progress_in_passing()?;
        }
        loop {
            let mut out = self.outbound()?;
            match out.reserve(target, kind, bytes) {
                Ok(()) => return Ok(out),
                Err(Error::WouldBlock) => {}
                Err(error) => return Err(error),
            }
            drop(out);
            // Waits until the same reservation would succeed, and gives that one up again.
            self.send_waiting(&mut |out| {
                out.reserve(target, kind, bytes)?;
                out.retract(target, bytes);
                Ok(())
            })?;
        }
    }

    /// Counters of this rank; nothing is counted where they cannot be looked at.
    pub fn stats_or_none(&self) -> Stats {
        self.stats().unwrap_or_default()
    }

    /// As [`Handle::stats_or_none`], of each queue too.
    pub fn detailed_stats_or_none(&self) -> DetailedStats {
        self.detailed_stats().unwrap_or_default()
    }

    /// Writes every queue of this rank with its use and its bound.
    pub fn dump(&self, writer: &mut dyn Write) -> std::io::Result<()> {
        let mut written = Ok(());
        let looked = self.seat.with("a dump", |job| {
            let (core, out) = job.engine.stream(self.id)?;
            written = dump::write(core, out, writer);
            Ok(())
        });
        looked.map_err(std::io::Error::other).and(written)
    }
}
