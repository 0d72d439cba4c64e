//! The engine among threads: one uses it at a time, and a progress thread keeps it moving where no
//! caller that waits does.
// They come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use trihop_transport::park::{Monitor, MonitorGuard, Step};
use trihop_transport::protocol::wire::BadRun;
use trihop_transport::ring::Doorbell;
use trihop_transport::sync::{AtomicU32, Flag, Ordering::Relaxed};

use super::at_end::AtEnds;
use super::looking::{FIRST_NAP, Looking, Yields};
use super::thread::Helper;
use super::window::ThreadWindow;
use crate::deliver::Delivery;
use crate::endpoint::StreamId;
use crate::engine::outbound::Pushes;
use crate::engine::outbox::Outbox;
use crate::engine::sink::Handlers;
use crate::error::{Error, Result};
use crate::job::{JobState, LOOK_AROUND, Patience, Started};
use crate::seat::{NAP, Park, TurnHandler};

/// How who looks after the job sleeps: one thread, with its [`Park`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleep {
    Awake,
    /// It looks around again very soon.
    Nap,
    /// Until somebody rings.
    Deep,
}

/// What the progress thread does while callers look after the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StandBy {
    /// It looks after the job itself.
    No,
    /// It sees very soon whether anybody does.
    Soon,
    /// It is to be told when nobody does any more.
    Late,
}

/// Handlers that are called in turn, by their streams' places.
#[derive(Default)]
struct InTurn {
    handlers: Vec<Option<(StreamId, TurnHandler)>>,
    /// To be woken for what they have done.
    woken: Vec<Waker>,
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
struct Guarded {
    job: JobState,
    in_turn: InTurn,
    /// What one thread sleeps with, and then has: a caller that waits, or else the progress thread.
    park: Option<Park>,
    sleep: Sleep,
    stand_by: StandBy,
    /// Callers that wait, have left progress to another one, and sleep.
    sitting: u32,
    /// One went to sit out while who looks after the job was awake: what it waits for may have come
    /// before that thread wants to hear of it.
    newcomer: bool,
    /// A caller has made progress since the progress thread did: it makes more soon, or the nap
    /// ends.
    relieved: bool,
    /// It is a caller that sleeps with it.
    caller_sleeps: bool,
    /// How callers pass the time, by what has helped those before.
    looking: Option<Looking>,
    /// Whether threads that wait yield.
    yields: Yields,
    /// What one thread pushes through while nobody has the turn.
    window: Option<OpenWindow>,
}

struct OpenWindow {
    of: Arc<ThreadWindow>,
    id: StreamId,
}

/// The turn. No window is open for as long as somebody has it.
struct Turn<'a>(MonitorGuard<'a, Guarded>);

impl<'a> Turn<'a> {
    #[inline]
    fn new(guard: MonitorGuard<'a, Guarded>) -> Self {
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
        let pushed = window.of.close();
        // What shuts a stream down has closed its window before: it is there.
        if let Ok(out) = self.0.job.engine.out(window.id) {
            out.note_pushed(pushed);
        }
    }

    /// See [`MonitorGuard::give_way`].
    fn give_way(&mut self) {
        self.0.give_way();
        self.close_window();
    }

    /// See [`MonitorGuard::unlocked`].
    fn unlocked<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let result = self.0.unlocked(call);
        self.close_window();
        result
    }

    /// Lets others have the turn, and the core.
    fn yield_now(&mut self) {
        // Without the time that it takes to have the turn again.
        let (began, ended) = self.unlocked(|| {
            let began = Instant::now();
            std::thread::yield_now();
            (began, Instant::now())
        });
        self.yields.note(began, ended);
    }

    /// See [`MonitorGuard::sit_out`].
    fn sit_out(&mut self, limit: Duration) {
        self.sitting += 1;
        self.0.sit_out(limit);
        self.sitting -= 1;
        self.close_window();
    }

    /// See [`MonitorGuard::stand_by`].
    fn stand_by(&mut self, limit: Duration) {
        let late = limit > NAP;
        self.0.stand_by = if late { StandBy::Late } else { StandBy::Soon };
        self.0.stand_by(limit);
        self.0.stand_by = StandBy::No;
        self.close_window();
    }

    /// Wakes those whose wait is over, without the turn: whatever a waker does, it does not use the
    /// engine under our feet.
    fn wake_woken(&mut self) {
        if self.job.parked.has_woken() {
            let woken = self.job.parked.take_woken();
            self.unlocked(|| woken.into_iter().for_each(Waker::wake));
        }
    }

    /// See [`MonitorGuard::wake_all`].
    #[inline]
    fn wake_all(&self) {
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

/// What the threads of a job share of its engine.
pub(crate) struct SharedEngine {
    turn: Monitor<Guarded>,
    /// Who looks after the job sleeps on it.
    doorbell: Doorbell,
    /// How long a wait spins.
    spin: Duration,
    /// There is a failure, for those without the turn. Pairs with itself: nothing is read by it.
    failed: Flag,
    /// The progress thread is to end. Raised before the doorbell's descriptor becomes readable, by
    /// which a sleep ends at once that has not seen it.
    stopping: Flag,
    /// What is called at the ends of steps.
    pub at_ends: AtEnds,
    /// Callers that wait, and so make progress. Changed by who has the turn, but where a call ends
    /// by a panic.
    waiting: AtomicU32,
}

/// One of those callers.
struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl SharedEngine {
    pub fn new(started: Started, park: Park) -> Self {
        let Started {
            state,
            doorbell,
            spin,
        } = started;
        Self {
            turn: Monitor::new(Guarded {
                job: state,
                in_turn: InTurn::default(),
                park: Some(park),
                sleep: Sleep::Awake,
                stand_by: StandBy::No,
                sitting: 0,
                newcomer: false,
                relieved: false,
                caller_sleeps: false,
                looking: None,
                yields: Yields::default(),
                window: None,
            }),
            doorbell,
            spin,
            failed: Flag::default(),
            stopping: Flag::default(),
            at_ends: AtEnds::default(),
            waiting: AtomicU32::new(0),
        }
    }

    #[inline]
    fn take(&self) -> Turn<'_> {
        Turn::new(self.turn.take())
    }

    fn try_take(&self) -> Option<Turn<'_>> {
        self.turn.try_take().map(Turn::new)
    }

    /// Lets this thread push to a stream without the turn, until somebody takes that.
    pub fn open_window(&self, id: StreamId, of: &Arc<ThreadWindow>, pushes: Pushes) {
        let mut turn = self.take();
        if turn.job.check_failure().is_err() {
            return;
        }
        if turn
            .job
            .engine
            .out(id)
            .is_ok_and(|out| of.open(out, pushes))
        {
            let of = Arc::clone(of);
            turn.window = Some(OpenWindow { of, id });
        }
        // What is pushed is to be sent on by age.
        self.wake_from(&mut turn, Sleep::Deep);
    }

    /// Looks at the state if it can be had soon, whatever has become of the job.
    pub fn try_look<R>(&self, look: impl FnOnce(&mut JobState) -> R) -> Option<R> {
        self.try_take().map(|mut turn| look(&mut turn.job))
    }

    /// Wakes those who sit out: what they wait for may have come by another thread.
    pub fn notify_moved(&self) {
        let mut turn = self.take();
        self.tell_all(&mut turn);
    }

    /// Whether who looks after the job sleeps until somebody rings.
    #[cfg(test)]
    pub fn sleeps_deeply(&self) -> Option<bool> {
        self.try_take().map(|turn| turn.sleep == Sleep::Deep)
    }

    /// The process exits: takes the turn for good, if it comes soon, and has the launcher told.
    pub fn keep_turn(&self) -> bool {
        let Some(mut turn) = self.try_take() else {
            return false;
        };
        turn.job.exit();
        std::mem::forget(turn);
        true
    }

    /// Whether there is a failure; needs no turn.
    pub fn has_failed(&self) -> bool {
        self.failed.is_raised()
    }

    /// Whether the progress thread is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_raised()
    }

    /// Ends the progress thread. Not with the turn: a job that has failed may have left it in
    /// disorder. The bell is for everybody.
    pub fn stop(&self) {
        self.stopping.raise();
        self.doorbell.wake();
        // Where it is not to be had, the progress thread looks around by itself before long.
        if let Some(turn) = self.try_take() {
            turn.0.relieve();
        }
    }

    /// Has what a stream brings go to this handler.
    pub fn install(&self, id: StreamId, handler: TurnHandler) {
        let handlers = &mut self.take().in_turn.handlers;
        if handlers.len() <= id.stream {
            handlers.resize_with(id.stream + 1, || None);
        }
        handlers[id.stream] = Some((id, handler));
    }

    /// The stream is gone, and so is the handler that it had here.
    pub fn uninstall(&self, id: StreamId) {
        let mut turn = self.take();
        let place = turn.in_turn.handlers.get_mut(id.stream);
        let gone = place.and_then(|place| place.take_if(|(of, _)| *of == id));
        drop(turn);
        drop(gone); // without the turn: it may own anything
    }

    fn round(&self, turn: &mut Turn<'_>) -> Result<bool> {
        let Guarded { job, in_turn, .. } = &mut **turn;
        let worked = job.progress(in_turn);
        job.parked.add_woken(&mut in_turn.woken);
        match worked {
            Ok(worked) => {
                while let Some(number) = turn.job.parked.take_due() {
                    if !self.at_ends.hand_over(number) {
                        turn.job.was_called(number);
                    }
                }
                Ok(worked)
            }
            Err(error) => {
                self.spread_failure(turn);
                Err(error)
            }
        }
    }

    /// What is called at the end of the step with this number has returned.
    pub fn was_called(&self, number: u64) {
        let mut turn = self.take();
        turn.job.was_called(number);
        self.tell_all(&mut turn); // who shuts the stream down waits for it
    }

    /// What calls fail with from now on, where nothing has before.
    pub fn fail(&self, error: Error) {
        let mut turn = self.take();
        turn.job.fail(error);
        self.spread_failure(&mut turn);
    }

    /// Wakes everybody where the job has failed.
    fn spread_failure(&self, turn: &mut Turn<'_>) {
        if turn.job.check_failure().is_err() && !self.failed.is_raised() {
            self.failed.raise();
            turn.wake_all();
            self.doorbell.wake();
        }
    }

    /// Wakes who looks after the job from this sleep, or a deeper one.
    #[inline]
    fn wake_from(&self, turn: &mut Guarded, sleep: Sleep) {
        if turn.sleep == sleep || turn.sleep == Sleep::Deep {
            turn.sleep = Sleep::Awake;
            self.doorbell.wake();
        }
    }

    /// What the progress thread does until [`SharedEngine::stop`]; what is `asked` of it before a
    /// round, it `does` without the turn. Ends at an error, which is kept for all callers.
    pub fn progress_until_stopped<T>(&self, asked: impl Fn() -> Option<T>, does: impl Fn(T)) {
        let mut turn = self.take();
        let mut looking = Looking::new(self.spin);
        let mut stand_by = FIRST_NAP;
        while !self.is_stopping() {
            if let Some(something) = asked() {
                turn.unlocked(|| does(something));
            }
            turn.wake_woken();
            if self.is_waited() || std::mem::take(&mut turn.relieved) {
                if turn.sitting > 0 && turn.park.is_some() {
                    turn.wake_all(); // one of them looks after the job
                }
                let most = if turn.caller_sleeps { LOOK_AROUND } else { NAP };
                turn.stand_by(stand_by.min(most));
                stand_by = (2 * stand_by).min(most);
                continue;
            }
            stand_by = FIRST_NAP;
            match self.round(&mut turn) {
                Ok(true) => {
                    looking.reset();
                    self.tell_all(&mut turn);
                    turn.give_way();
                    continue;
                }
                Ok(false) => {}
                Err(_) => break, // every call says so
            }
            let fresh = turn.job.engine.is_fresh();
            match looking.next(&turn.yields, fresh) {
                Step::Spin => turn.give_way(),
                Step::Yield => turn.yield_now(),
                Step::Park => {
                    if let Some(park) = turn.park.take() {
                        let slept;
                        (turn, slept) = self.sleep(turn, park, looking.next_nap());
                        self.tell_all(&mut turn);
                        if slept.is_err() {
                            break;
                        }
                    }
                }
            }
        }
        self.tell_all(&mut turn);
        let woken = turn.job.parked.take_woken();
        drop(turn);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Sleeps without the turn, until there is something to do; no longer than a `nap` where
    /// something waits for time. An error is kept for all callers.
    fn sleep<'a>(
        &'a self,
        mut turn: Turn<'a>,
        mut park: Park,
        nap: Duration,
    ) -> (Turn<'a>, Result<()>) {
        let timed = turn.job.prepare_to_sleep();
        if std::mem::take(&mut turn.newcomer) {
            turn.wake_all();
        }
        let begun = turn.job.engine.trace.begin();
        let mut turn = Some(turn);
        let stay_awake = || {
            let awake =
                self.is_stopping() || turn.as_mut().is_some_and(|turn| turn.job.must_stay_awake());
            if let Some(mut turn) = turn.take_if(|_| !awake) {
                turn.sleep = if timed { Sleep::Nap } else { Sleep::Deep };
            }
            awake
        };
        let timeout = if timed { nap } else { LOOK_AROUND };
        let slept = park.sleep_for(&self.doorbell, timeout, stay_awake);
        let mut turn = turn.unwrap_or_else(|| self.take());
        turn.sleep = Sleep::Awake;
        turn.job.engine.trace.end(begun, "asleep");
        let slept = slept.and_then(|()| park.look_around(&mut turn.job));
        turn.park = Some(park);
        let slept = slept.map_err(|error| {
            let error = turn.job.fail(error);
            self.spread_failure(&mut turn);
            error
        });
        (turn, slept)
    }

    /// Wakes all who wait, because something that they may wait for has changed.
    fn tell_all(&self, turn: &mut Turn<'_>) {
        turn.wake_all();
        if turn.caller_sleeps {
            self.wake_from(turn, Sleep::Nap);
        }
    }

    /// Whether callers wait, and so make progress.
    fn is_waited(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// A caller stops looking after the job: somebody else is to, before long.
    fn hand_on(&self, turn: &mut Turn<'_>) {
        if turn.sitting > 0 {
            turn.wake_all();
        } else if !self.is_waited() && turn.stand_by == StandBy::Late {
            turn.0.relieve();
        }
        // It may have left something to be sent on by age.
        self.wake_from(turn, Sleep::Deep);
    }

    /// A caller begins to make progress, for some time: nobody needs to wake the progress thread.
    fn relieve(&self, turn: &mut Turn<'_>) {
        turn.relieved = true;
        if turn.sleep != Sleep::Awake && !turn.caller_sleeps {
            self.doorbell.awake();
        }
    }

    /// A caller has nothing to do: it sleeps for the job, or leaves that to who does already.
    fn park_caller<'a>(
        &'a self,
        mut turn: Turn<'a>,
        looking: &mut Looking,
        unknown: &mut bool,
    ) -> Turn<'a> {
        if let Some(park) = turn.park.take() {
            turn.caller_sleeps = true;
            // Where it fails, the next look at the job says so.
            (turn, _) = self.sleep(turn, park, looking.next_nap());
            turn.caller_sleeps = false;
            return turn;
        }
        if turn.sleep == Sleep::Awake {
            turn.newcomer = true;
        } else if !turn.caller_sleeps
            || std::mem::take(unknown)
            || turn.job.engine.has_unasked_wish()
        {
            self.wake_from(&mut turn, Sleep::Nap);
        }
        turn.sit_out(LOOK_AROUND);
        looking.slept();
        turn
    }
}

impl SharedEngine {
    #[inline]
    pub fn with<R>(&self, call: impl FnOnce(&mut JobState) -> Result<R>) -> Result<R> {
        let mut turn = self.take();
        turn.job.check_failure()?;
        // Part of every send: what it returns is not to be kept and copied beside the error, which
        // is long.
        let value = match call(&mut turn.job) {
            Ok(value) => value,
            Err(error) => {
                self.spread_failure(&mut turn);
                self.wake_from(&mut turn, Sleep::Deep);
                return Err(error);
            }
        };
        // The call may have left something to be sent on by age.
        self.wake_from(&mut turn, Sleep::Deep);
        Ok(value)
    }

    pub fn progress(&self) -> Result<bool> {
        let mut turn = self.take();
        turn.job.check_failure()?;
        let worked = self.round(&mut turn)?;
        if worked {
            // It may be what others wait for, and nobody else finds it any more.
            self.tell_all(&mut turn);
        }
        self.wake_from(&mut turn, Sleep::Deep);
        turn.wake_woken();
        Ok(worked)
    }

    pub fn progress_in_passing(&self) -> Result<()> {
        let mut turn = self.take();
        turn.job.check_failure()?;
        if turn.sleep == Sleep::Nap || turn.stand_by != StandBy::No {
            self.relieve(&mut turn); // the caller will be back soon
        }
        if self.round(&mut turn)? {
            self.tell_all(&mut turn);
        }
        self.wake_from(&mut turn, Sleep::Deep);
        turn.wake_woken();
        Ok(())
    }

    /// Makes progress until `done` gives a value; `None` where it would have to sleep for that, and
    /// does not.
    pub fn wait<T>(
        &self,
        what: &'static str,
        sleeps: bool,
        helper: Option<&Helper>,
        mut done: impl FnMut(&mut JobState) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut turn = self.take();
        let mut waiting = Some(Waiting::begin(&self.waiting));
        self.relieve(&mut turn);
        let mut helping = helper.and_then(Helper::begin);
        let mut looking = turn
            .looking
            .take()
            .unwrap_or_else(|| Looking::new(self.spin));
        looking.reset();
        let mut patience = Patience::default();
        // Whether who sleeps for the job may do so without knowing what is waited for here.
        let mut unknown = true;
        // First whether it is done, then whether the job has failed: who has got what this waits
        // for may end at once, and is no failure of this call.
        let outcome = loop {
            match done(&mut turn.job) {
                Ok(Some(value)) => break Ok(Some(value)),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            if let Err(error) = turn.job.check_failure() {
                break Err(error);
            }
            if let Some(helping) = &mut helping
                && helping.take()
            {
                drop(waiting.take());
                self.hand_on(&mut turn);
                turn.unlocked(|| helping.hand_out());
                waiting = Some(Waiting::begin(&self.waiting));
                looking.reset();
                unknown = true;
                continue;
            }
            let worked = match self.round(&mut turn) {
                Ok(worked) => worked,
                Err(error) => match done(&mut turn.job) {
                    Ok(Some(value)) => break Ok(Some(value)),
                    _ => break Err(error),
                },
            };
            if turn.job.parked.has_woken() {
                // Whatever a waker does, somebody else makes progress meanwhile.
                drop(waiting.take());
                self.hand_on(&mut turn);
                turn.wake_woken();
                waiting = Some(Waiting::begin(&self.waiting));
            }
            if worked {
                looking.reset();
                unknown = true;
                self.tell_all(&mut turn);
                turn.give_way();
                continue;
            }
            turn.job.note_wait(&mut patience, what);
            let fresh = turn.job.engine.is_fresh();
            match looking.next(&turn.yields, fresh) {
                Step::Spin => turn.give_way(),
                Step::Yield => turn.yield_now(),
                Step::Park if !sleeps => break Ok(None),
                Step::Park => {
                    helping.iter_mut().for_each(|helping| helping.attend(false));
                    turn = self.park_caller(turn, &mut looking, &mut unknown);
                    helping.iter_mut().for_each(|helping| helping.attend(true));
                }
            }
        };
        turn.job.end_wait(&mut patience, what);
        drop(waiting);
        turn.looking = Some(looking);
        self.hand_on(&mut turn);
        turn.wake_woken();
        outcome
    }
}
