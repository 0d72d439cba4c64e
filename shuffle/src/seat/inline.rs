//! The inline seat: the engine runs in the calls of one thread, and so do the handlers.

use std::cell::{Cell, RefCell, RefMut};

use trihop_transport::park::Step;
use trihop_transport::protocol::wire::BadRun;
use trihop_transport::ring::Doorbell;

use super::Seat;
use super::park::{Park, backoff};
use crate::deliver::Delivery;
use crate::endpoint::StreamId;
use crate::engine::outbound::Outbound;
use crate::engine::outbox::Outbox;
use crate::engine::sink::Handlers;
use crate::error::{Error, Result};
use crate::job::{JobState, Patience, Started};

/// A handler: see [`Handlers::call`].
pub(crate) type Handler<'h> =
    Box<dyn FnMut(Delivery<'_>, usize, &mut Outbox<'_>) -> Result<usize, BadRun> + 'h>;

/// The handlers of the streams, by their places.
#[derive(Default)]
struct HandlerTable<'h>(Vec<Option<Handler<'h>>>);

impl Handlers for HandlerTable<'_> {
    #[inline]
    fn call(
        &mut self,
        stream: usize,
        delivery: Delivery<'_>,
        done: usize,
        outbox: &mut Outbox<'_>,
    ) -> Result<usize, BadRun> {
        match self.0.get_mut(stream) {
            Some(Some(handler)) => handler(delivery, done, outbox),
            // Its stream was shut down by this rank, so by all: nothing is under way.
            _ => Ok(delivery.records()),
        }
    }
}

/// A job on the thread that started it.
pub(crate) struct Inline<'h> {
    /// Borrowed for the time of one call, handlers included.
    state: RefCell<JobState>,
    handlers: RefCell<HandlerTable<'h>>,
    park: RefCell<Park>,
    doorbell: Doorbell,
    /// Ranks that share the cores.
    neighbours: u32,
    /// Deliveries are being handed out by a call that does not use the state: nothing polls inside.
    taking: Cell<bool>,
}

impl<'h> Inline<'h> {
    pub fn new(started: Started) -> Result<Self> {
        let Started {
            state,
            doorbell,
            neighbours,
        } = started;
        let park = Park::new(&doorbell, &state)?;
        Ok(Self {
            state: RefCell::new(state),
            handlers: RefCell::default(),
            park: RefCell::new(park),
            doorbell,
            neighbours,
            taking: Cell::new(false),
        })
    }

    /// For another seat.
    pub fn into_parts(self) -> (Started, Park) {
        let started = Started {
            state: self.state.into_inner(),
            doorbell: self.doorbell,
            neighbours: self.neighbours,
        };
        (started, self.park.into_inner())
    }

    #[inline]
    fn state(&self, what: &'static str) -> Result<RefMut<'_, JobState>> {
        self.state.try_borrow_mut().map_err(|_| Error::Nested(what))
    }

    /// The sending side of a stream.
    #[inline]
    pub fn out(&self, id: StreamId, what: &'static str) -> Result<RefMut<'_, Outbound>> {
        let mut outcome = Ok(());
        let out = RefMut::filter_map(self.state(what)?, |state| match state.engine.out(id) {
            Ok(out) => Some(out),
            Err(error) => {
                outcome = Err(error);
                None
            }
        });
        match out {
            Ok(out) => Ok(out),
            Err(_) => Err(outcome.err().unwrap_or(Error::Nested(what))),
        }
    }

    /// What is delivered to a stream goes to this handler.
    pub fn set_handler(&self, stream: usize, handler: Handler<'h>) {
        let table = &mut self.handlers.borrow_mut().0;
        if table.len() <= stream {
            table.resize_with(stream + 1, || None);
        }
        table[stream] = Some(handler);
    }

    /// Takes and delivers nothing more. Handlers may own handles of this job's streams: that circle ends here.
    pub fn close_streams(&self) {
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.engine.close_streams();
        }
        let handlers = self
            .handlers
            .try_borrow_mut()
            .map(|mut table| std::mem::take(&mut *table));
        drop(handlers); // with nothing borrowed: they may own more than that
    }

    fn check_not_taking(&self, what: &'static str) -> Result<()> {
        match self.taking.get() {
            true => Err(Error::Nested(what)),
            false => Ok(()),
        }
    }

    fn round(&self, state: &mut JobState) -> Result<bool> {
        state.progress(&mut *self.handlers.borrow_mut())
    }

    fn sleep(&self, what: &'static str) -> Result<()> {
        let (mut state, mut park) = (self.state(what)?, self.park.borrow_mut());
        let timed = state.prepare_to_sleep();
        park.sleep(&self.doorbell, timed, || state.must_stay_awake())?;
        park.look_around(&mut state)
    }
}

impl Seat for Inline<'_> {
    #[inline]
    fn with<R>(&self, what: &'static str, call: impl FnOnce(&mut JobState) -> Result<R>) -> Result<R> {
        call(&mut *self.state(what)?)
    }

    fn may_wait(&self, what: &'static str) -> Result<()> {
        self.check_not_taking(what)?;
        self.state(what).map(drop)
    }

    fn progress(&self, what: &'static str) -> Result<bool> {
        self.check_not_taking(what)?;
        self.round(&mut *self.state(what)?)
    }

    fn progress_in_passing(&self) -> Result<()> {
        match self.taking.get() {
            true => Ok(()),
            false => self.progress("poll").map(drop),
        }
    }

    fn wait<T>(
        &self,
        what: &'static str,
        mut done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut backoff = backoff(self.neighbours);
        let mut patience = Patience::default();
        loop {
            let mut state = self.state(what)?;
            if let Some(value) = done(&mut state)? {
                return Ok(value);
            }
            self.check_not_taking(what)?;
            if self.round(&mut state)? {
                backoff.reset();
                continue;
            }
            if patience.ends(state.now_ns(), state.patience_ns) {
                state.warn_of_long_wait(what);
            }
            drop(state);
            match backoff.next() {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => std::thread::yield_now(),
                Step::Park => self.sleep(what)?,
            }
        }
    }

    fn begin_taking(&self) -> Result<()> {
        match self.taking.replace(true) {
            true => Err(Error::Nested("take")),
            false => Ok(()),
        }
    }

    fn end_taking(&self) {
        self.taking.set(false);
    }

    fn forget_handler(&self, stream: usize) {
        let mut table = self.handlers.borrow_mut();
        let handler = table.0.get_mut(stream).and_then(Option::take);
        drop(table);
        drop(handler); // with nothing borrowed: it may own more than that
    }
}
