//! The inline seat: the engine runs in the calls of one thread, and so do the handlers.

use std::cell::{Cell, RefCell, RefMut};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

use trihop_transport::home::Home;
use trihop_transport::park::{Awake, Step};
use trihop_transport::protocol::wire::BadRun;
use trihop_transport::ring::Doorbell;
use trihop_transport::topology::Rank;

use super::at_end::AtEnds;
use super::looking::{Looking, Polls, Yields, timed_yield};
use super::park::Park;
use super::window::Windows;
use super::{ALL, AtEnd, Handle, Seating, TurnHandler, open};
use crate::config::StreamOptions;
use crate::deliver::{Delivery, DeliveryQueue};
use crate::endpoint::{Channel, StreamId};
use crate::engine::at_once::OwnSend;
use crate::engine::outbound::{Outbound, Pushes};
use crate::engine::outbox::Outbox;
use crate::engine::sink::{Handlers, Sink};
use crate::error::{Error, Result};
use crate::job::{JobState, Patience, Started, wake_each};
use crate::queue::window::PushWindow;
use crate::signal::DumpOutput;

/// A handler: see [`Handlers::call`]. It is not called before the call that opens its stream has
/// returned.
pub(crate) type Handler<'h> =
    Box<dyn FnMut(Delivery<'_>, usize, &mut Outbox<'_>) -> Result<usize, BadRun> + 'h>;

/// Looks for something to do in one step of a spin: the clock is read once for all of them.
const LOOKS: u32 = 16;

/// The handlers of the streams, by their places.
#[derive(Default)]
struct HandlerTable<'h> {
    installed: Vec<Option<Installed<'h>>>,
    /// Stream whose handler is being called.
    calling: Option<usize>,
}

struct Installed<'h> {
    handler: Handler<'h>,
    /// The call that opens its stream has returned: the handler may use what that has given.
    is_live: bool,
}

impl Handlers for HandlerTable<'_> {
    #[inline]
    fn is_live(&self, stream: usize) -> bool {
        let installed = self.installed.get(stream).and_then(Option::as_ref);
        installed.is_none_or(|installed| installed.is_live)
    }

    #[inline]
    fn call(
        &mut self,
        stream: usize,
        delivery: Delivery<'_>,
        done: usize,
        outbox: &mut Outbox<'_>,
    ) -> Result<usize, BadRun> {
        match self.installed.get_mut(stream) {
            Some(Some(installed)) => {
                self.calling = Some(stream);
                let outcome = (installed.handler)(delivery, done, outbox);
                self.calling = None;
                outcome
            }
            // Its stream was shut down by this rank, so by all: nothing is under way.
            _ => Ok(delivery.records()),
        }
    }
}

/// The inline seat: one thread uses the job, and handlers run inside of its calls. `'h` is how long
/// handlers may borrow: what they use is declared before the job.
#[derive(Clone)]
pub struct Inline<'h>(Rc<Place<'h>>);

/// What all handles of an inline job share.
struct Place<'h> {
    /// Borrowed for the time of one call, handlers included.
    state: RefCell<JobState>,
    handlers: RefCell<HandlerTable<'h>>,
    park: RefCell<Park>,
    doorbell: Doorbell,
    /// Cores that there are for each rank.
    cores: f64,
    /// How waits pass the time, by what has helped those before.
    looking: RefCell<Looking>,
    /// Whether they yield.
    yields: RefCell<Yields>,
    /// What calls do that find nothing, and do not wait.
    polls: RefCell<Polls>,
    /// Deliveries are being handed out by a call that does not use the state: nothing polls inside.
    taking: Cell<bool>,
    /// What pushes use while nobody borrows the state.
    windows: Windows,
    /// What is called at the ends of steps.
    at_ends: AtEnds<'h>,
}

impl<'h> Inline<'h> {
    pub(crate) fn new(started: Started) -> Result<Self> {
        let park = Park::new(&started.doorbell, &started.state)?;
        Ok(Self::of_parts(started, park))
    }

    /// What [`Inline::into_parts`] has given.
    pub(crate) fn of_parts(started: Started, park: Park) -> Self {
        let Started {
            state,
            doorbell,
            cores,
        } = started;
        let awake = Awake::new(cores, 1);
        let (awake, yields) = match state.engine.topology.is_relay() {
            true => (awake, Yields::never_dear()), // it waits for as long as nobody sends
            false => (awake.learning(), Yields::of_one_thread(awake)),
        };
        Self(Rc::new(Place {
            state: RefCell::new(state),
            handlers: RefCell::default(),
            park: RefCell::new(park),
            doorbell,
            cores,
            looking: RefCell::new(Looking::new(awake)),
            yields: RefCell::new(yields),
            polls: RefCell::new(Polls::new(awake)),
            taking: Cell::new(false),
            windows: Windows::default(),
            at_ends: AtEnds::default(),
        }))
    }

    /// Whether waits yield.
    #[cfg(test)]
    pub(super) fn yields(&self) -> RefMut<'_, Yields> {
        self.0.yields.borrow_mut()
    }

    /// What calls do that find nothing.
    #[cfg(test)]
    pub(super) fn polls(&self) -> RefMut<'_, Polls> {
        self.0.polls.borrow_mut()
    }

    /// For another seat; `None` while there are other handles.
    pub(crate) fn into_parts(self) -> Option<(Started, Park)> {
        drop(self.borrow()); // closes what is open
        let place = Rc::into_inner(self.0)?;
        let started = Started {
            state: place.state.into_inner(),
            doorbell: place.doorbell,
            cores: place.cores,
        };
        Some((started, place.park.into_inner()))
    }

    #[inline(always)] // part of every send
    fn state(&self, what: &'static str) -> Result<RefMut<'_, JobState>> {
        self.borrow().ok_or(Error::Nested(what))
    }

    /// The state, unless a call has it: this is how all calls get it.
    #[inline(always)] // part of every send
    fn borrow(&self) -> Option<RefMut<'_, JobState>> {
        let mut state = self.0.state.try_borrow_mut().ok()?;
        if self.0.windows.is_open() {
            self.0.windows.close(&mut state);
        }
        Some(state)
    }

    /// What is delivered to a stream goes to this handler, once that is live.
    fn set_handler(&self, stream: usize, handler: Handler<'h>) {
        let table = &mut self.0.handlers.borrow_mut().installed;
        if table.len() <= stream {
            table.resize_with(stream + 1, || None);
        }
        table[stream] = Some(Installed {
            handler,
            is_live: false,
        });
    }

    /// The handler is called from now on, if the stream has one.
    fn set_live(&self, stream: usize) {
        if let Some(Some(installed)) = self.0.handlers.borrow_mut().installed.get_mut(stream) {
            installed.is_live = true;
        }
    }

    /// Makes the calls that are due at the ends of steps, with nothing in use. What is due during
    /// one of them follows it, however many there are. One that panics ends the job, as a handler
    /// does.
    fn call_due(&self) {
        let ends = &self.0.at_ends;
        if ends.is_calling() {
            return;
        }
        while let Some(number) = self.look(|state| state.parked.take_due()).flatten() {
            if let Some((name, call)) = ends.take(number) {
                ends.set_calling(true);
                let called = catch_unwind(AssertUnwindSafe(call));
                ends.set_calling(false);
                if let Err(panic) = called {
                    self.look(|state| state.fail(Error::handler(&name, &*panic)));
                    resume_unwind(panic);
                }
            }
            self.look(|state| state.was_called(number));
        }
    }

    /// Wakes who waits for what is over, with nothing in use.
    fn wake_woken(&self) {
        if let Some(woken) = self.look(|state| state.parked.take_woken()) {
            wake_each(woken);
        }
    }

    fn check_not_taking(&self, what: &'static str) -> Result<()> {
        match self.0.taking.get() {
            true => Err(Error::Nested(what)),
            false => Ok(()),
        }
    }

    fn round(&self, state: &mut JobState) -> Result<bool> {
        self.with_handlers(state, |state, handlers| state.progress(handlers))
    }

    /// Makes a call that calls handlers. One that panics ends the job: what it was called with is
    /// not handed out again.
    fn with_handlers<R>(
        &self,
        state: &mut JobState,
        call: impl FnOnce(&mut JobState, &mut HandlerTable<'h>) -> Result<R>,
    ) -> Result<R> {
        let mut outcome = None; // what a closure returns is copied, all bytes of it
        let called = || outcome = Some(call(state, &mut self.0.handlers.borrow_mut()));
        match catch_unwind(AssertUnwindSafe(called)) {
            Ok(()) => outcome.expect("the call has returned"),
            Err(panic) => {
                if let Some(stream) = self.0.handlers.borrow_mut().calling.take() {
                    let error = Error::handler(&state.engine.name_of(stream), &*panic);
                    state.fail(error);
                }
                resume_unwind(panic)
            }
        }
    }

    fn sleep(&self, what: &'static str, is_short: bool) -> Result<()> {
        let (mut state, mut park) = (self.state(what)?, self.0.park.borrow_mut());
        let timed = state.prepare_to_sleep() || is_short;
        let begun = state.engine.trace.begin();
        let slept = park.sleep(&self.0.doorbell, timed, || state.must_stay_awake());
        state.engine.trace.end(begun, "asleep");
        slept
            .and_then(|()| park.look_around(&mut state))
            .map_err(|error| state.fail(error))
    }

    /// Makes progress until `done` gives a value; `None` where it would have to sleep for that, and
    /// does not.
    fn wait_until<T>(
        &self,
        what: &'static str,
        sleeps: bool,
        mut done: impl FnMut(&mut JobState) -> Result<Option<T>>,
        patience: &mut Patience,
    ) -> Result<Option<T>> {
        let wait_is_over = || self.0.looking.borrow_mut().reset();
        self.0.looking.borrow_mut().begin();
        loop {
            let mut state = self.state(what)?;
            if let Some(value) = done(&mut state)? {
                return Ok(Some(value));
            }
            self.check_not_taking(what)?;
            state.check_failure()?;
            let worked = match self.round(&mut state) {
                Ok(worked) => worked,
                // Who has got what this waits for may end at once, and is no failure of this call.
                Err(error) => {
                    let outcome = match done(&mut state) {
                        Ok(Some(value)) => Ok(Some(value)),
                        _ => Err(error),
                    };
                    drop(state);
                    self.wake_woken();
                    return outcome;
                }
            };
            if state.parked.leaves_more() {
                drop(state);
                self.wake_woken();
                self.call_due();
                wait_is_over();
                continue;
            }
            if worked {
                wait_is_over();
                continue;
            }
            let is_fresh = || state.engine.is_fresh();
            let (mut looking, yields) = (self.0.looking.borrow_mut(), self.0.yields.borrow());
            let step = looking.next(&yields, is_fresh);
            drop((looking, yields));
            if step != Step::Spin {
                state.note_wait(patience, what); // what takes no longer than a spin is no wait
            }
            drop(state);
            match step {
                Step::Spin => self.watch(),
                Step::Yield => self.0.yields.borrow_mut().note(timed_yield()),
                Step::Park if !sleeps => return Ok(None),
                Step::Park => {
                    self.0.looking.borrow_mut().slept();
                    self.sleep(what, false)?;
                }
            }
        }
    }

    /// Spins for some hundred nanoseconds, as long as there is nothing to do.
    fn watch(&self) {
        std::hint::spin_loop();
        self.look(|state| {
            let mut looks = 1..LOOKS;
            while looks.next().is_some() && state.engine.is_still() {
                std::hint::spin_loop();
            }
        });
    }

    /// The job was shut down.
    fn check_not_ended(&self, what: &'static str) -> Result<()> {
        match self.state(what)?.engine.has_ended() {
            true => Err(Error::Closed(ALL.to_owned())),
            false => Ok(()),
        }
    }

    /// The stream is gone, and so is its handler.
    fn drop_handler(&self, stream: usize) {
        let mut table = self.0.handlers.borrow_mut();
        let handler = table.installed.get_mut(stream).and_then(Option::take);
        drop(table);
        drop(handler); // with nothing borrowed: it may own more than that
    }
}

impl<'h> Seating for Inline<'h> {
    const MOVES_ALONE: bool = false;

    type OfStream = Rc<PushWindow>;
    type Guard = Rc<Guard<'h>>;
    type Handler = Handler<'h>;
    type Outbox<'a> = Outbox<'a>;
    type OwnerOf = Rc<dyn Fn(u64) -> Rank + 'h>;
    type AtEnd = AtEnd<'h>;

    fn in_turn(mut handler: TurnHandler) -> Handler<'h> {
        Box::new(move |delivery, done, outbox| {
            let mut woken = Vec::new();
            let outcome = handler(delivery, done, outbox, &mut woken);
            wake_each(woken);
            outcome
        })
    }

    fn again<'a>(outbox: &'a mut Outbox<'_>) -> Outbox<'a> {
        outbox.again()
    }

    fn guard(&self) -> Self::Guard {
        Rc::new(Guard(self.clone(), Home::here()))
    }

    fn open(
        &self,
        channel: Channel,
        name: &str,
        options: Option<StreamOptions>,
        item_bytes: usize,
        handler: Option<Handler<'h>>,
    ) -> Result<Handle<Self>> {
        let options = match options {
            Some(options) => options,
            None => self.with("opening a stream", |job| Ok(job.options.stream.clone()))?,
        };
        let sink = match handler {
            Some(_) => Sink::Handler,
            None => Sink::Queue(DeliveryQueue::new(&options)),
        };
        let mut place = None;
        let install = |id: StreamId| {
            if let Some(handler) = handler {
                place = Some(id.stream);
                self.set_handler(id.stream, handler);
            }
        };
        let opened = self.one_at_a_time(None, "opening a stream", || {
            open(self, channel, name, &options, item_bytes, sink, install)
        });
        match opened {
            Ok(id) => {
                self.set_live(id.stream);
                let window = Rc::new(PushWindow::of_one_thread());
                Handle::new(self.clone(), id, window, name)
            }
            Err(error) => {
                place
                    .into_iter()
                    .for_each(|stream| self.drop_handler(stream));
                Err(error)
            }
        }
    }

    #[inline(always)] // part of every send
    fn with<R>(
        &self,
        what: &'static str,
        call: impl FnOnce(&mut JobState) -> Result<R>,
    ) -> Result<R> {
        let mut state = self.state(what)?;
        state.check_failure()?;
        call(&mut state)
    }

    fn may_wait(&self, what: &'static str) -> Result<()> {
        self.check_not_taking(what)?;
        if self.0.at_ends.is_calling() {
            return Err(Error::Nested(what));
        }
        self.state(what).map(drop)
    }

    fn progress(&self, what: &'static str) -> Result<bool> {
        self.check_not_taking(what)?;
        let mut state = self.state(what)?;
        let worked = match self.round(&mut state) {
            Ok(worked) => worked,
            Err(error) => {
                drop(state);
                self.wake_woken();
                return Err(error);
            }
        };
        let leaves_more = state.parked.leaves_more();
        drop(state);
        if leaves_more {
            self.wake_woken();
            self.call_due();
        }
        Ok(worked)
    }

    fn progress_in_passing(&self) -> Result<()> {
        match self.0.taking.get() {
            true => Ok(()),
            false => self.progress("poll").map(drop),
        }
    }

    fn give_way(&self, found_something: bool) {
        let mut polls = self.0.polls.borrow_mut();
        match found_something {
            true => polls.found(),
            false => polls.found_nothing(),
        }
    }

    fn pause(&self, what: &'static str) -> Result<()> {
        self.sleep(what, true)
    }

    fn wait<T>(
        &self,
        what: &'static str,
        done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut patience = Patience::default();
        let outcome = self.wait_until(what, true, done, &mut patience);
        let outcome = outcome.map(|value| value.expect("a wait that sleeps ends with a value"));
        if patience.has_waited() {
            self.look(|state| state.end_wait(&mut patience, what));
        }
        outcome
    }

    fn wait_awake<T>(
        &self,
        what: &'static str,
        done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.wait_until(what, false, done, &mut Patience::default())
    }

    fn look<R>(&self, look: impl FnOnce(&mut JobState) -> R) -> Option<R> {
        Some(look(&mut *self.borrow()?))
    }

    /// A handler has an outbox, and the state is in use.
    fn is_in_handler(&self) -> bool {
        self.is_at_end()
    }

    fn is_at_end(&self) -> bool {
        self.0.at_ends.is_calling()
    }

    fn for_calls(&self) -> Self {
        self.clone()
    }

    fn keep_at_end(
        &self,
        _: &Rc<PushWindow>,
        name: &Arc<str>,
        call: AtEnd<'h>,
    ) -> Result<impl FnOnce(u64)> {
        Ok(move |number| self.0.at_ends.keep(number, name, call))
    }

    fn begin_taking(&self) -> Result<()> {
        match self.0.taking.replace(true) {
            true => Err(Error::Nested("take")),
            false => Ok(()),
        }
    }

    fn end_taking(&self) {
        self.0.taking.set(false);
    }

    fn hold(&self, id: StreamId, what: &'static str) -> Result<Option<RefMut<'_, Outbound>>> {
        let mut outcome = Err(Error::Nested(what));
        let out = RefMut::filter_map(self.state(what)?, |state| match state.engine.out(id) {
            Ok(out) => Some(out),
            Err(error) => {
                outcome = Err(error);
                None
            }
        });
        match out {
            Ok(out) => Ok(Some(out)),
            Err(_) => outcome,
        }
    }

    fn window(of: &Rc<PushWindow>) -> &PushWindow {
        of
    }

    #[inline(always)] // part of every push
    fn push_here(&self, window: &Rc<PushWindow>, target: Rank, item: &[u8]) -> bool {
        let is_pushed = window.push(target.0, item);
        if !is_pushed {
            self.0.windows.begin_push(window);
        }
        is_pushed
    }

    #[inline(always)] // part of every send
    fn send_here(&self, window: &Rc<PushWindow>, target: Rank, kind: u32, bytes: &[u8]) -> bool {
        let is_sent = window.send(target.0, kind, bytes);
        if !is_sent && bytes.len() <= window.longest() {
            self.0.windows.begin_push(window);
        }
        is_sent
    }

    /// Where the last such push was of the same stream.
    #[inline]
    fn allow_pushes_here(&self, id: StreamId, window: &Rc<PushWindow>, pushes: Pushes) {
        if self.0.windows.want(window)
            && let Some(mut state) = self.borrow()
            && state.check_failure().is_ok()
        {
            self.0.windows.open(&mut state, id, window, pushes);
        }
    }

    /// Not while a call hands out deliveries, or a step ends: no handler is called inside of that.
    fn deliver_own(&self, id: StreamId, send: OwnSend<'_>) -> Result<bool> {
        if self.0.taking.get() || self.is_at_end() {
            return Ok(false);
        }
        let Some(mut state) = self.borrow() else {
            return Ok(false); // the usual way says why
        };
        self.with_handlers(&mut state, |state, handlers| {
            state.deliver_own(handlers, id, send)
        })
    }

    fn one_at_a_time<R>(
        &self,
        of: Option<&Rc<PushWindow>>,
        what: &'static str,
        call: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.may_wait(what)?;
        if of.is_none() {
            self.check_not_ended(what)?;
        }
        call()
    }

    fn closed(&self, id: StreamId, _: &Rc<PushWindow>, failed: bool) {
        // Where only this call has failed, the stream goes on, or another has its place.
        let has_ended = |state: &JobState| {
            let stream = state.engine.stream(id);
            let is_closed = stream.is_ok_and(|(stream, _)| matches!(stream.sink, Sink::Closed));
            is_closed || state.check_failure().is_err()
        };
        let is_gone = !failed || (self.0.state.try_borrow()).is_ok_and(|state| has_ended(&state));
        if is_gone {
            self.drop_handler(id.stream);
        }
        self.wake_woken();
    }

    /// Takes and delivers nothing more. Handlers may own handles of this job's streams: that circle
    /// ends here.
    fn ended(&self, _: bool) {
        if let Some(mut state) = self.borrow() {
            state.engine.close_streams();
        }
        let handlers = self.0.handlers.try_borrow_mut();
        let handlers = handlers.map(|mut table| std::mem::take(&mut *table));
        drop(handlers); // with nothing borrowed: they may own more than that
        self.0.at_ends.clear();
        self.wake_woken();
    }

    fn dump_on(&self, signal: i32, output: DumpOutput) -> Result<()> {
        self.with("a dump", |job| job.dump_on(signal, output))
    }

    fn dump_own(&self, _: &mut dyn Write) -> std::io::Result<()> {
        Ok(())
    }
}

/// Ends the job when the last handle of it goes, in the process that has it.
pub struct Guard<'h>(Inline<'h>, Home);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.1.is_here() {
            // A fork: nothing that the job consists of is ended or dropped.
            std::mem::forget(self.0.clone());
            return;
        }
        self.0.ended(false);
        // Handles of streams may stay behind, by which nothing moves any more.
        self.0.look(|job| job.leave());
    }
}
