//! What the threads of a job use by turns, and the turn.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use trihop_transport::park::MonitorGuard;
use trihop_transport::protocol::wire::BadRun;

use super::window::ThreadWindow;
use crate::deliver::Delivery;
use crate::endpoint::StreamId;
use crate::engine::outbound::Pushes;
use crate::engine::outbox::Outbox;
use crate::engine::sink::Handlers;
use crate::job::{JobState, wake_each};
use crate::seat::{FIRST_NAP, Looking, NAP, Park, TurnHandler, Yields, timed_yield};

/// How who looks after the job sleeps: one thread, with its [`Park`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    Awake,
    /// It looks around again very soon.
    Nap,
    /// Until somebody rings.
    Deep,
}

/// What the progress thread does while callers look after the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StandBy {
    /// It looks after the job itself.
    No,
    /// It sees very soon whether anybody does.
    Soon,
    /// It is to be told when nobody does any more.
    Late,
}

/// Handlers that are called in turn, by their streams' places.
#[derive(Default)]
pub(super) struct InTurn {
    handlers: Vec<Option<(StreamId, TurnHandler)>>,
    /// To be woken for what they have done.
    pub woken: Vec<Waker>,
}

impl InTurn {
    /// Has what a stream brings go to this handler.
    pub fn install(&mut self, id: StreamId, handler: TurnHandler) {
        if self.handlers.len() <= id.stream {
            self.handlers.resize_with(id.stream + 1, || None);
        }
        self.handlers[id.stream] = Some((id, handler));
    }

    /// The handler of a stream, which is there no more.
    pub fn uninstall(&mut self, id: StreamId) -> Option<(StreamId, TurnHandler)> {
        let place = self.handlers.get_mut(id.stream)?;
        place.take_if(|(of, _)| *of == id)
    }
}

impl Handlers for InTurn {
    fn is_live(&self, _: usize) -> bool {
        true
    }

    fn call(
        &mut self,
        stream: usize,
        delivery: Delivery<'_>,
        done: usize,
        outbox: &mut Outbox<'_>,
    ) -> Result<usize, BadRun> {
        match self.handlers.get_mut(stream) {
            Some(Some((_, handler))) => handler(delivery, done, outbox, &mut self.woken),
            // Its stream was shut down by this rank, so by all: nothing is under way.
            _ => Ok(delivery.records()),
        }
    }
}

/// What is used by turns.
pub(super) struct Guarded {
    pub job: JobState,
    pub in_turn: InTurn,
    /// What one thread sleeps with, and then has: a caller that waits, or else the progress thread.
    pub park: Option<Park>,
    pub sleep: Sleep,
    pub stand_by: StandBy,
    /// Callers that wait, have left progress to another one, and sleep.
    pub sitting: u32,
    /// A caller has made progress since the progress thread did: it makes more soon, or the nap
    /// ends.
    pub relieved: bool,
    /// Since when callers ask for progress without waiting, one call soon after the other, and when
    /// the last one did.
    polled: Option<(Instant, Instant)>,
    /// It is a caller that sleeps with it.
    pub caller_sleeps: bool,
    /// How callers pass the time, by what has helped those before.
    pub looking: Option<Looking>,
    /// Whether threads that wait yield.
    pub yields: Yields,
    /// What one thread pushes through while nobody has the turn.
    pub window: Option<OpenWindow>,
    /// Whether a thread that takes the turn has a core beside one that pushes.
    pub has_cores: bool,
}

pub(super) struct OpenWindow {
    pub of: Arc<ThreadWindow>,
    pub id: StreamId,
    pub pushes: Pushes,
}

/// A caller that asks again before so long is one that polls: before the progress thread, which
/// stands by, looks again,
const POLLED_SOON: Duration = FIRST_NAP;

/// and once it has done so for so long it does nothing else: it makes progress for all.
const POLLED_LONG: Duration = NAP;

impl Guarded {
    /// Of threads that yield so.
    pub fn new(job: JobState, park: Park, yields: Yields, has_cores: bool) -> Self {
        Self {
            job,
            in_turn: InTurn::default(),
            park: Some(park),
            sleep: Sleep::Awake,
            stand_by: StandBy::No,
            sitting: 0,
            relieved: false,
            polled: None,
            caller_sleeps: false,
            looking: None,
            yields,
            window: None,
            has_cores,
        }
    }

    /// A caller asks for progress without waiting.
    pub fn note_poll(&mut self) {
        // A model's threads do not go by the clock.
        if cfg!(any(trihop_loom, trihop_shuttle)) {
            return;
        }
        let now = Instant::now();
        let goes_on = |&(_, last): &(Instant, Instant)| now.duration_since(last) < POLLED_SOON;
        let began = self.polled.filter(goes_on).map_or(now, |(began, _)| began);
        self.polled = Some((began, now));
    }

    /// Whether a caller polls, and has done nothing else for some time.
    pub fn is_polled(&self) -> bool {
        let polls = |(began, last): (Instant, Instant)| {
            last.duration_since(began) >= POLLED_LONG && last.elapsed() < POLLED_SOON
        };
        self.polled.is_some_and(polls)
    }
}

/// The turn. No window is open for as long as somebody has it.
pub(super) struct Turn<'a>(MonitorGuard<'a, Guarded>);

impl<'a> Turn<'a> {
    #[inline]
    pub fn new(guard: MonitorGuard<'a, Guarded>) -> Self {
        let mut turn = Self(guard);
        turn.close_window();
        turn
    }

    #[inline]
    fn close_window(&mut self) {
        if let Some(window) = self.0.window.take() {
            self.close(&window);
        }
    }

    #[cold]
    fn close(&mut self, window: &OpenWindow) {
        if self.0.has_cores {
            window.of.wait_for_holder();
        }
        let pushed = window.of.close();
        // What shuts a stream down has closed its window before: it is there.
        if let Ok(out) = self.0.job.engine.out(window.id) {
            out.note_pushed(pushed, window.pushes);
        }
    }

    /// See [`MonitorGuard::give_way`].
    pub fn give_way(&mut self) {
        self.0.give_way();
        self.close_window();
    }

    /// See [`MonitorGuard::unlocked`].
    pub fn unlocked<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let result = self.0.unlocked(call);
        self.close_window();
        result
    }

    /// Lets others have the turn, and the core.
    pub fn yield_now(&mut self) {
        // Without the time that it takes to have the turn again.
        let times = self.unlocked(timed_yield);
        self.yields.note(times);
    }

    /// See [`MonitorGuard::sit_out`].
    pub fn sit_out(&mut self, limit: Duration) {
        self.sitting += 1;
        self.0.sit_out(limit);
        self.sitting -= 1;
        self.close_window();
    }

    /// See [`MonitorGuard::stand_by`].
    pub fn stand_by(&mut self, limit: Duration) {
        let late = limit > NAP;
        self.0.stand_by = if late { StandBy::Late } else { StandBy::Soon };
        self.0.stand_by(limit);
        self.0.stand_by = StandBy::No;
        self.close_window();
    }

    /// See [`MonitorGuard::relieve`].
    pub fn relieve(&self) {
        self.0.relieve();
    }

    /// Wakes those whose wait is over, without the turn: whatever a waker does, it does not use the
    /// engine under our feet.
    pub fn wake_woken(&mut self) {
        if self.job.parked.has_woken() {
            let woken = self.job.parked.take_woken();
            self.unlocked(|| wake_each(woken));
        }
    }

    /// See [`MonitorGuard::wake_all`].
    #[inline]
    pub fn wake_all(&self) {
        self.0.wake_all();
    }
}

impl Deref for Turn<'_> {
    type Target = Guarded;

    #[inline]
    fn deref(&self) -> &Guarded {
        &self.0
    }
}

impl DerefMut for Turn<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Guarded {
        &mut self.0
    }
}
