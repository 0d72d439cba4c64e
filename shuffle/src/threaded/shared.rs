//! The engine among threads: one uses it at a time, and a progress thread keeps it moving where no
//! caller that waits does.
// They come from `sync`, by which models replace them; clippy sees through that.
#![allow(clippy::disallowed_types)]

use std::sync::Arc;
use std::time::Duration;

use trihop_transport::at_exit::AtExit;
use trihop_transport::park::{Awake, Monitor, Step};
use trihop_transport::ring::Doorbell;
use trihop_transport::sync::{AtomicU32, Flag, Mutex, Ordering::Relaxed, PoisonError, thread};

use super::at_end::AtEnds;
use super::thread::Helper;
use super::turn::{Guarded, OpenWindow, Sleep, StandBy, Turn};
use super::window::ThreadWindow;
use crate::endpoint::StreamId;
use crate::engine::outbound::Pushes;
use crate::error::{Error, Result};
use crate::job::{JobState, LOOK_AROUND, Patience, Started, wake_each};
use crate::seat::{FIRST_NAP, Looking, NAP, Park, Polls, TurnHandler, Yields, timed_yield};

/// Threads of a rank that are at work at once: the program's, and one that makes progress or calls
/// handlers.
const THREADS: u32 = 2;

/// What the threads of a job share of its engine.
pub(crate) struct SharedEngine {
    turn: Monitor<Guarded>,
    /// Who looks after the job sleeps on it.
    doorbell: Doorbell,
    /// How long a wait of one of its threads does not sleep.
    awake: Awake,
    /// What calls do that find nothing, and do not wait; `None` where they just yield.
    polls: Option<Mutex<Polls>>,
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
            cores,
        } = started;
        let awake = Awake::new(cores, THREADS);
        // A model's threads do not wait by the clock.
        let is_model = cfg!(any(trihop_loom, trihop_shuttle));
        let has_cores = awake.has_core_for_each() && !is_model;
        let polls = Polls::of_threads(awake).filter(|_| !is_model);
        Self {
            turn: Monitor::new(Guarded::new(
                state,
                park,
                Yields::new(awake, cores),
                has_cores,
            )),
            doorbell,
            awake,
            polls: polls.map(Mutex::new),
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
            turn.window = Some(OpenWindow { of, id, pushes });
        }
        // What is pushed is to be sent on by age.
        self.wake_from(&mut turn, Sleep::Deep);
    }

    /// Looks at the state if it can be had soon, whatever has become of the job.
    pub fn try_look<R>(&self, look: impl FnOnce(&mut JobState) -> R) -> Option<R> {
        self.try_take().map(|mut turn| {
            let looked = look(&mut turn.job);
            // It may have ended the job, of which others hear before they hear of anything else.
            if turn.job.check_failure().is_err() && !self.failed.is_raised() {
                self.spread_failure(&mut turn);
                turn.wake_woken();
            }
            looked
        })
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

    /// How many calls in a row have found nothing, where that is counted.
    #[cfg(test)]
    pub fn fruitless_polls(&self) -> Option<u32> {
        let polls = self.polls.as_ref()?.lock();
        Some(polls.unwrap_or_else(PoisonError::into_inner).fruitless())
    }

    /// Whether the progress thread leaves progress to callers.
    #[cfg(test)]
    pub fn stands_by(&self) -> Option<bool> {
        self.try_take().map(|turn| turn.stand_by != StandBy::No)
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
            turn.relieve();
        }
    }

    /// Has what a stream brings go to this handler.
    pub fn install(&self, id: StreamId, handler: TurnHandler) {
        self.take().in_turn.install(id, handler);
    }

    /// The stream is gone, and so is the handler that it had here.
    pub fn uninstall(&self, id: StreamId) {
        let mut turn = self.take();
        let gone = turn.in_turn.uninstall(id);
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
        self.tell_all(&mut turn); // who waits for the step, or shuts the stream down, waits for it
        turn.wake_woken();
    }

    /// What calls fail with from now on, where nothing has before.
    pub fn fail(&self, error: Error) {
        let mut turn = self.take();
        turn.job.fail(error);
        self.spread_failure(&mut turn);
        turn.wake_woken(); // it may have been the progress thread, which does that else
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
        let mut looking = Looking::new(self.awake);
        let mut stand_by = FIRST_NAP;
        while !self.is_stopping() {
            if let Some(something) = asked() {
                turn.unlocked(|| does(something));
            }
            turn.wake_woken();
            let is_left_alone = std::mem::take(&mut turn.relieved) || turn.is_polled();
            if self.is_waited() || is_left_alone {
                if turn.sitting > 0 && turn.park.is_some() {
                    turn.wake_all(); // one of them looks after the job
                }
                let most = if turn.caller_sleeps { LOOK_AROUND } else { NAP };
                turn.stand_by(stand_by.min(most));
                turn.job.note_long_calls();
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
            match looking.next(&turn.yields, || turn.job.engine.is_fresh()) {
                Step::Spin => turn.give_way(),
                Step::Yield => turn.yield_now(),
                Step::Park => {
                    let Some(park) = turn.park.take() else {
                        turn.stand_by(NAP); // a caller that sleeps for the job has panicked
                        continue;
                    };
                    let slept;
                    (turn, slept) = self.sleep(turn, park, looking.next_nap());
                    if slept.is_err() {
                        break;
                    }
                    turn.job.note_long_calls();
                    turn.give_way();
                }
            }
        }
        self.tell_all(&mut turn);
        let woken = turn.job.parked.take_woken();
        drop(turn);
        wake_each(woken);
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
        let begun = turn.job.engine.trace.begin();
        let mut turn = Some(turn);
        let stay_awake = || {
            let awake = turn.as_mut().is_some_and(|turn| turn.job.must_stay_awake());
            if let Some(mut turn) = turn.take_if(|_| !awake) {
                turn.sleep = if timed { Sleep::Nap } else { Sleep::Deep };
            }
            awake
        };
        let timeout = if timed { nap } else { LOOK_AROUND };
        let slept = park.sleep_for(&self.doorbell, timeout, stay_awake);
        let mut turn = turn.unwrap_or_else(|| self.take());
        turn.sleep = Sleep::Awake;
        // What has rung may be for one who sits out, and nothing that moves here; or its time is over.
        turn.wake_all();
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
            turn.relieve();
        }
        // It may have left something to be sent on by age.
        self.wake_from(turn, Sleep::Deep);
    }

    /// A caller that waits does something else without the turn, for as long as that takes.
    fn aside<'s>(
        &'s self,
        turn: &mut Turn<'_>,
        waiting: &mut Option<Waiting<'s>>,
        call: impl FnOnce(),
    ) {
        *waiting = None;
        self.hand_on(turn);
        turn.unlocked(call);
        *waiting = Some(Waiting::begin(&self.waiting));
        self.relieve(turn);
    }

    /// A caller begins to make progress, for some time: nobody needs to wake the progress thread.
    fn relieve(&self, turn: &mut Turn<'_>) {
        turn.relieved = true;
        // One who sits out has asked to be rung for.
        if turn.sleep != Sleep::Awake && !turn.caller_sleeps && turn.sitting == 0 {
            self.doorbell.awake();
        }
    }

    /// A caller has nothing to do: it sleeps for the job, or leaves that to who does already.
    fn park_caller<'a>(&'a self, mut turn: Turn<'a>, looking: &mut Looking) -> Turn<'a> {
        if let Some(park) = turn.park.take() {
            turn.caller_sleeps = true;
            // Where it fails, the next look at the job says so.
            (turn, _) = self.sleep(turn, park, looking.next_nap());
            turn.caller_sleeps = false;
            turn.give_way(); // what has kept it awake may last
            return turn;
        }
        // As who sleeps: what is waited for here rings from now on, or is seen.
        let timed = turn.job.prepare_to_sleep();
        self.doorbell.announce_sleep();
        if turn.job.must_stay_awake() {
            turn.wake_all(); // it may be for another one who sits out, and is found once
            turn.give_way();
            return turn;
        }
        if timed {
            self.wake_from(&mut turn, Sleep::Deep); // naps are shorter
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

    /// As [`with`](Self::with), and nothing is left to be sent.
    pub fn with_quietly<R>(&self, call: impl FnOnce(&mut JobState) -> Result<R>) -> Result<R> {
        let mut turn = self.take();
        turn.job.check_failure()?;
        call(&mut turn.job).inspect_err(|_| self.spread_failure(&mut turn))
    }

    pub fn progress(&self) -> Result<bool> {
        let mut turn = self.take();
        turn.job.check_failure()?;
        let worked = self.round(&mut turn)?;
        if worked {
            // It may be what others wait for, and nobody else finds it any more.
            self.tell_all(&mut turn);
        }
        turn.note_poll();
        self.wake_from(&mut turn, Sleep::Deep);
        turn.wake_woken();
        Ok(worked)
    }

    /// See [`Seating::give_way`](crate::seat::Seating::give_way).
    pub fn give_way(&self, found_something: bool) {
        let Some(polls) = &self.polls else {
            if !found_something {
                thread::yield_now();
            }
            return;
        };
        let polls = || polls.lock().unwrap_or_else(PoisonError::into_inner);
        if found_something {
            polls().found();
        } else if polls().may_yield() {
            let times = timed_yield(); // without the lock
            polls().yielded(times);
        }
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
        let mut helping = helper.and_then(Helper::begin); // it goes behind the turn
        let mut turn = self.take();
        let mut waiting = Some(Waiting::begin(&self.waiting));
        self.relieve(&mut turn);
        let mut looking = turn
            .looking
            .take()
            .unwrap_or_else(|| Looking::new(self.awake.learning()));
        looking.begin();
        let mut patience = Patience::default();
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
                self.aside(&mut turn, &mut waiting, || helping.hand_out());
                looking.reset();
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
                // Whatever a waker does, others go on meanwhile.
                let woken = turn.job.parked.take_woken();
                helping.iter_mut().for_each(|helping| helping.attend(false));
                self.aside(&mut turn, &mut waiting, || {
                    wake_each(woken);
                });
                helping.iter_mut().for_each(|helping| helping.attend(true));
            }
            if worked {
                looking.reset();
                self.tell_all(&mut turn);
                turn.give_way();
                continue;
            }
            turn.job.note_wait(&mut patience, what);
            match looking.next(&turn.yields, || turn.job.engine.is_fresh()) {
                Step::Spin => turn.give_way(),
                Step::Yield => turn.yield_now(),
                Step::Park if !sleeps => break Ok(None),
                Step::Park => {
                    helping.iter_mut().for_each(|helping| helping.attend(false));
                    turn = self.park_caller(turn, &mut looking);
                    helping.iter_mut().for_each(|helping| helping.attend(true));
                }
            }
        };
        turn.job.end_wait(&mut patience, what);
        drop(waiting);
        turn.looking = Some(looking);
        self.hand_on(&mut turn);
        // Whatever a waker does, handlers are the delivery thread's again.
        helping.iter_mut().for_each(|helping| helping.attend(false));
        turn.wake_woken();
        outcome
    }
}

impl AtExit for SharedEngine {
    /// Takes the turn for good: a thread that wants the engine waits for it until the process is
    /// gone. Who waits in a call gives it away all the time; who does not, is stuck, and keeps
    /// everybody else from the engine already.
    fn try_exit(&self) -> bool {
        let Some(turn) = self.try_take() else {
            return false;
        };
        turn.job.engine.trace.finish();
        std::mem::forget(turn);
        true
    }
}
