//! How streams end what they do: rounds and fences under way, and barriers that gave way to
//! deliveries. Others count on what has begun here, so it stays until it has ended.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;

use super::JobState;
use super::fence_of_all::Fencing;
use crate::endpoint::{Engine, StreamId};
use crate::engine::contribution::Contributors;
use crate::error::{Error, Result};
use crate::terminate::End;
use crate::terminate::collective::Ticket;
use crate::terminate::flush::Fence;
use crate::terminate::round::Round;
use crate::terminate::step::Step;

/// Wakes all of them, even where one panics: with that this ends. With nothing in use: they do
/// whatever they like.
pub(crate) fn wake_each(woken: Vec<Waker>) {
    let wake = |waker: Waker| catch_unwind(AssertUnwindSafe(|| waker.wake())).err();
    let panics: Vec<_> = woken.into_iter().filter_map(wake).collect();
    if let Some(panic) = panics.into_iter().next() {
        resume_unwind(panic);
    }
}

/// The end of a step, as far as it has come.
enum Ending {
    Round(Round),
    Fence(Fence),
    Step(Contributors, Step),
    /// It has ended, and nobody has heard yet.
    Over(End),
}

impl Ending {
    fn new(end: End, engine: &mut Engine, id: StreamId) -> Result<Self> {
        Ok(match end {
            End::Round => Self::Round(Round::default()),
            End::Fence => Self::Fence(Fence::default()),
            End::Completion(contributors) => {
                let (state, out, collectives) = engine.stream_mut(id)?;
                Self::Step(
                    contributors,
                    Step::begin(contributors, state, out, collectives)?,
                )
            }
        })
    }

    fn end(&self) -> End {
        match self {
            Self::Round(_) => End::Round,
            Self::Fence(_) => End::Fence,
            Self::Step(contributors, _) => End::Completion(*contributors),
            Self::Over(end) => *end,
        }
    }

    /// Goes on with it; whether it has ended.
    fn poll(&mut self, engine: &mut Engine, id: StreamId) -> Result<bool> {
        let (state, out, collectives) = engine.stream_mut(id)?;
        let is_over = match self {
            Self::Round(round) => round.poll(state, out),
            Self::Fence(fence) => fence.poll(state, out, collectives),
            Self::Step(_, step) => step.poll(state, out, collectives),
            Self::Over(_) => return Ok(true),
        };
        if is_over {
            *self = Self::Over(self.end());
        }
        Ok(is_over)
    }
}

/// How the end of a step has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a call that waits for it, which may have given way.
    Waited,
    /// By one that does not.
    Started,
}

/// The call of the program's that is made once a step is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    /// None is: who asks hears of the end.
    Nothing,
    /// It will be.
    Waits,
    /// It is due, or was made: the stream takes sends again, and another step may begin.
    Told,
}

/// A step that is over and whose call at the end has not returned: the stream is not shut down
/// before.
struct Told {
    id: StreamId,
    number: u64,
    /// It was a round, and nothing of the next one is delivered before.
    holds: bool,
}

struct UnderWay {
    id: StreamId,
    way: Way,
    ending: Ending,
    /// Of all that this rank has begun.
    number: u64,
    /// Is woken once it is over.
    waker: Option<Waker>,
    at_end: AtEnd,
}

impl UnderWay {
    /// Goes on with it; whether it is over.
    fn poll(&mut self, engine: &mut Engine) -> Result<bool> {
        let was_over = matches!(self.ending, Ending::Over(_));
        let is_over = self.ending.poll(engine, self.id)?;
        if is_over && !was_over {
            self.trace(engine, true);
        }
        Ok(is_over)
    }

    fn trace(&self, engine: &Engine, is_over: bool) {
        if let Ok((state, _)) = engine.stream(self.id) {
            let end = self.ending.end();
            engine.trace.step(&state.name, end, self.number, is_over);
        }
    }
}

/// What is awaited on a stream, and two numbers of whoever waits.
pub(crate) type Awaited = (StreamId, u32, u64);

/// What is under way, by the streams' places.
#[derive(Default)]
pub(crate) struct Parked {
    endings: Vec<UnderWay>,
    /// Ends that were begun.
    pub(super) begun: u64,
    /// Those of each place of a stream.
    begun_on: Vec<u64>,
    /// Those who wait for something else than an end, and hear of a failure, and of the stream's
    /// end: by what they wait for.
    hearers: Vec<(Awaited, Waker)>,
    /// To be woken by somebody who does not use the state.
    pub(super) woken: Vec<Waker>,
    /// Numbers of the steps whose calls at the end are due.
    due: VecDeque<u64>,
    /// Steps that are over and whose call at the end has not returned.
    told: Vec<Told>,
    /// Numbers of those that never come, since ranks are gone.
    pub(super) given_up: Vec<u64>,
    barriers: HashMap<usize, Ticket>,
    pub(super) of_all: Option<Fencing>,
}

impl Parked {
    /// Whether nothing is under way, and nobody to be woken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.endings.is_empty() && self.of_all.is_none() && self.woken.is_empty()
    }

    /// Goes on with all that is under way, whoever waits for it; whether the end of a step has come.
    /// That need not have moved anything here.
    #[inline]
    pub fn advance(&mut self, engine: &mut Engine) -> bool {
        let mut has_ended = false;
        if let Some(fence) = &mut self.of_all {
            let was_over = fence.is_over;
            if fence.poll(engine) {
                has_ended = !was_over;
                self.woken.extend(fence.waker.take());
            }
        }
        for under_way in &mut self.endings {
            // A stream that is gone has nothing to go on with; who asks hears that.
            let was_over = matches!(under_way.ending, Ending::Over(_));
            let polled = under_way.poll(engine);
            if matches!(polled, Ok(false)) {
                continue;
            }
            has_ended |= polled.is_ok() && !was_over;
            self.woken.extend(under_way.waker.take());
            if under_way.at_end == AtEnd::Waits && end_step(engine, under_way.id).is_ok() {
                under_way.at_end = AtEnd::Told;
                self.due.push_back(under_way.number);
                self.told.push(Told {
                    id: under_way.id,
                    number: under_way.number,
                    holds: under_way.ending.end() == End::Round,
                });
            }
        }
        has_ended
    }

    /// The end that is under way on a stream, and its number.
    pub fn end_of(&self, stream: usize) -> Option<(End, u64)> {
        let under_way = self.of_stream(stream)?;
        Some((under_way.ending.end(), under_way.number))
    }

    /// Whether an end is under way on a stream that is over before the stream's last fence: any but
    /// a fence that gave way, with which that goes on.
    pub fn must_end(&self, stream: usize) -> bool {
        let under_way = self.of_stream(stream);
        under_way.is_some_and(|of| of.way == Way::Started || of.ending.end() == End::Round)
    }

    /// Ends that were begun on a stream, and on those before in its place, and are over.
    pub fn over_on(&self, stream: usize) -> u64 {
        let begun = self.begun_on.get(stream).copied().unwrap_or(0);
        let under_way = self.of_stream(stream);
        begun - u64::from(under_way.is_some_and(|of| of.at_end != AtEnd::Told))
    }

    /// The number of a step whose call at the end is due, taken once.
    pub fn take_due(&mut self) -> Option<u64> {
        self.due.pop_front()
    }

    /// Whether there is anything to be done by who does not use the state: calls that are due, or
    /// somebody to be woken.
    #[inline]
    pub fn leaves_more(&self) -> bool {
        !(self.due.is_empty() && self.woken.is_empty())
    }

    fn of_stream(&self, stream: usize) -> Option<&UnderWay> {
        self.endings.iter().find(|of| of.id.stream == stream)
    }

    /// Wakes all that wait for an end, or hear of a failure: the job has failed.
    pub fn wake_all(&mut self) {
        self.wake_ends();
        let hearers = self.hearers.drain(..).map(|(_, waker)| waker);
        self.woken.extend(hearers);
    }

    /// Wakes all that wait for an end, which may not come.
    pub fn wake_ends(&mut self) {
        let all = self.endings.iter_mut();
        let wakers = all.filter_map(|under_way| under_way.waker.take());
        self.woken.extend(wakers);
        let of_all = self.of_all.as_mut();
        self.woken
            .extend(of_all.and_then(|fence| fence.waker.take()));
    }

    /// Has this woken where the job fails; the waker before.
    pub fn hear_of_failure(&mut self, awaited: Awaited, waker: &Waker) -> Option<Waker> {
        let before = self.no_longer_hears(awaited);
        self.hearers.push((awaited, waker.clone()));
        before
    }

    /// What was awaited has ended, or is not awaited any more; the waker that it had.
    pub fn no_longer_hears(&mut self, awaited: Awaited) -> Option<Waker> {
        let at = self.hearers.iter().position(|(of, _)| *of == awaited)?;
        Some(self.hearers.swap_remove(at).1)
    }

    /// These are to be woken too.
    pub fn add_woken(&mut self, woken: &mut Vec<Waker>) {
        self.woken.append(woken);
    }

    /// Those whose wait is over.
    pub fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// Whether there are any.
    pub fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// The number of the end that is under way on a stream.
    pub fn number_of(&self, stream: usize) -> Option<u64> {
        self.of_stream(stream).map(|under_way| under_way.number)
    }

    /// Has this woken when what is under way on a stream is over; the waker that had waited for
    /// it.
    pub fn wake(&mut self, stream: usize, waker: &Waker) -> Option<Waker> {
        let mut all = self.endings.iter_mut();
        let under_way = all.find(|of| of.id.stream == stream)?;
        under_way.waker.replace(waker.clone())
    }

    /// The streams with a step under way that contributors end.
    pub fn steps(&self) -> impl Iterator<Item = StreamId> {
        let all = self.endings.iter();
        let steps = all.filter(|under_way| matches!(under_way.ending, Ending::Step(..)));
        steps.map(|under_way| under_way.id)
    }

    /// The streams with a fence or a step under way.
    pub fn ends(&self) -> impl Iterator<Item = StreamId> {
        let all = self.endings.iter();
        let is_one = |ending: &Ending| matches!(ending, Ending::Fence(_) | Ending::Step(..));
        let ends = all.filter(move |under_way| is_one(&under_way.ending));
        ends.map(|under_way| under_way.id)
    }

    /// The streams with a round under way.
    pub fn rounds(&self) -> impl Iterator<Item = StreamId> {
        let all = self.endings.iter();
        let rounds = all.filter(|under_way| matches!(under_way.ending, Ending::Round(_)));
        rounds.map(|under_way| under_way.id)
    }

    /// The barrier that the stream has under way, if it has one.
    pub fn barrier(&mut self, stream: usize) -> Option<Ticket> {
        self.barriers.remove(&stream)
    }

    /// The stream is closed: another may get its place, and who waits for something of it hears
    /// that.
    pub fn forget(&mut self, stream: usize) {
        for mut gone in self.endings.extract_if(.., |of| of.id.stream == stream) {
            self.woken.extend(gone.waker.take());
        }
        let hearers = self
            .hearers
            .extract_if(.., |((of, ..), _)| of.stream == stream);
        self.woken.extend(hearers.map(|(_, waker)| waker));
        self.told.retain(|told| told.id.stream != stream);
        self.barriers.remove(&stream);
    }

    /// The stream's barrier gives way.
    pub fn park_barrier(&mut self, stream: usize, barrier: Ticket) {
        self.barriers.insert(stream, barrier);
    }
}

impl JobState {
    /// Refuses the end with this number where it never comes.
    ///
    /// # Errors
    /// The first rank that is gone.
    pub fn check_comes(&self, number: u64) -> Result<()> {
        match self.parked.given_up.contains(&number) {
            true => self.check_whole(),
            false => Ok(()),
        }
    }

    /// Begins the end of a step of a stream; its number. A call that waits goes on with one of its
    /// kind that gave way.
    ///
    /// # Errors
    /// [`Error::Misuse`] where another is under way.
    pub fn begin_end(&mut self, id: StreamId, end: End, way: Way) -> Result<u64> {
        if let Some(before) = self.check_may_end(id, end, way)? {
            return Ok(before);
        }
        let is_told = |of: &UnderWay| of.id.stream == id.stream && of.at_end == AtEnd::Told;
        let told = self.parked.endings.extract_if(.., |of| is_told(of));
        let wakers = told.filter_map(|mut told| told.waker.take());
        // Whoever waits for it finds another one under way, which says the same.
        self.parked.woken.extend(wakers);
        let (_, out, _) = self.engine.stream_mut(id)?;
        out.set_ending(way == Way::Started);
        let begun = Ending::new(end, &mut self.engine, id);
        match begun.is_ok() {
            true => self.let_go(id)?,
            false => self.engine.stream_mut(id)?.1.end_step(),
        }
        let mut under_way = UnderWay {
            id,
            way,
            ending: begun?,
            number: self.parked.begun + 1,
            waker: None,
            at_end: AtEnd::Nothing,
        };
        under_way.trace(&self.engine, false);
        under_way.poll(&mut self.engine)?;
        self.parked.begun = under_way.number;
        self.parked.endings.push(under_way);
        let of_streams = &mut self.parked.begun_on;
        if of_streams.len() <= id.stream {
            of_streams.resize(id.stream + 1, 0);
        }
        of_streams[id.stream] += 1;
        Ok(self.parked.begun)
    }

    /// Whether the end of a step of a stream may begin; the number of one that gave way, with which
    /// the call goes on.
    ///
    /// # Errors
    /// As [`JobState::begin_end`].
    pub fn check_may_end(&self, id: StreamId, end: End, way: Way) -> Result<Option<u64>> {
        self.check_not_fencing(&end)?;
        let (state, _) = self.engine.stream(id)?;
        let before = self.parked.of_stream(id.stream);
        let Some(before) = before.filter(|before| before.at_end != AtEnd::Told) else {
            return Ok(None);
        };
        let (under_way, of) = (before.ending.end(), (before.way, way));
        if of != (Way::Waited, Way::Waited) || under_way != end {
            let why = format!("a {end} while a {under_way} is under way: wait for that first");
            return Err(Error::misuse(&state.name, why));
        }
        Ok(Some(before.number))
    }

    /// As [`JobState::begin_end`], of an end that is started, with the priority that the stream has
    /// until it is over. Whether a call is to be made then: its number is due once.
    ///
    /// # Errors
    /// As that.
    pub fn start_end(
        &mut self,
        id: StreamId,
        end: End,
        priority: Option<u8>,
        is_told: bool,
    ) -> Result<u64> {
        let number = self.begin_end(id, end, Way::Started)?;
        self.engine.set_priority(id, priority);
        let mut all = self.parked.endings.iter_mut();
        if let Some(begun) = all.find(|of| of.number == number && is_told) {
            begun.at_end = AtEnd::Waits;
        }
        Ok(number)
    }

    /// Whether the end of a step that is under way is over; that is said once.
    ///
    /// # Errors
    /// [`Error::Misuse`] where none is under way.
    pub fn is_over(&mut self, id: StreamId) -> Result<bool> {
        let (state, _) = self.engine.stream(id)?;
        let all = &mut self.parked.endings;
        let Some(at) = all.iter().position(|of| of.id == id) else {
            let why = "no end of a step is under way: start one first";
            return Err(Error::misuse(&state.name, why));
        };
        let is_over = match all[at].at_end {
            AtEnd::Nothing => all[at].poll(&mut self.engine)?,
            // By the next round of progress.
            AtEnd::Waits => false,
            // Once the call has returned: whoever hears of the end may use what it has made.
            AtEnd::Told => {
                let number = all[at].number;
                self.parked.told.iter().all(|told| told.number != number)
            }
        };
        if !is_over {
            if let Err(gone) = self.check_whole()
                && !self.parked.endings[at].poll(&mut self.engine)?
            {
                // It never is; what is sent from now on is of no step.
                let mut given_up = self.parked.endings.swap_remove(at);
                self.parked.woken.extend(given_up.waker.take());
                if given_up.way == Way::Started {
                    self.parked.given_up.push(given_up.number);
                }
                self.parked.begun_on[id.stream] -= 1;
                let (state, out, _) = self.engine.stream_mut(id)?;
                state.urgent = 0;
                out.queues.give_up_census();
                end_step(&mut self.engine, id)?;
                return Err(gone);
            }
        } else {
            let mut over = all.swap_remove(at);
            let ended = over.ending.end();
            self.parked.woken.extend(over.waker.take());
            if over.at_end == AtEnd::Told {
                return Ok(true);
            }
            end_step(&mut self.engine, id)?;
            if ended == End::Round {
                self.end_round(id)?;
            }
        }
        Ok(is_over)
    }

    /// What is called at the end of the step with this number has returned.
    pub fn was_called(&mut self, number: u64) {
        let told = &mut self.parked.told;
        if let Some(at) = told.iter().position(|told| told.number == number) {
            let told = told.swap_remove(at);
            if told.holds {
                // A stream that is gone has no rounds.
                let _ = self.end_round(told.id);
            }
        }
        let mut all = self.parked.endings.iter_mut();
        let over = all.find(|of| of.number == number);
        let waker = over.and_then(|over| over.waker.take());
        self.parked.woken.extend(waker);
    }

    /// The next step of the stream begins: what belongs to it is delivered, though the call at the
    /// end of the round before, which may have begun it, has not returned.
    pub fn let_go(&mut self, id: StreamId) -> Result<()> {
        let mut told = self.parked.told.iter_mut();
        match told.find(|told| told.id == id && told.holds) {
            Some(held) => {
                held.holds = false;
                self.end_round(id)
            }
            None => Ok(()),
        }
    }

    /// Whether all that was started on a stream is over, with the calls at the ends, and nothing is
    /// left but a fence that gave way.
    ///
    /// # Errors
    /// A stream that is gone.
    pub fn has_ended(&mut self, id: StreamId) -> Result<bool> {
        if self.parked.must_end(id.stream) && !self.is_over(id)? {
            return Ok(false);
        }
        Ok(self.parked.told.iter().all(|told| told.id != id))
    }

    /// The program has heard that a round is over: what belongs to the next one is delivered.
    fn end_round(&mut self, id: StreamId) -> Result<()> {
        let (state, _, _) = self.engine.stream_mut(id)?;
        state.rounds.end();
        // What has waited for that is here: somebody has to move it.
        let links = state.inbound.links.as_ref();
        let has_come = links.is_some_and(|links| !links.arrived.is_empty());
        if has_come || state.inbound.has_backlog() {
            self.bell.ring();
        }
        Ok(())
    }
}

/// What was under way on a stream is over: it takes sends again, and is served as before.
fn end_step(engine: &mut Engine, id: StreamId) -> Result<()> {
    engine.stream_mut(id)?.1.end_step();
    engine.set_priority(id, None);
    Ok(())
}
