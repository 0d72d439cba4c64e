//! How often a thread of a job looks around before it sleeps, and how long it naps.

use std::time::{Duration, Instant};

use trihop_transport::park::{Awake, Backoff, Step};

use crate::seat::NAP;

/// Fruitless rounds before a sleep of who does not yield, after the time that a wait spins: a round
/// sends on what the last one has seen rest.
const LOOKS: u32 = 3;

/// More rounds, where the last one has seen something come.
const FRESH_LOOKS: u32 = 2;

/// The first nap; each next one that finds nothing is twice as long.
pub(super) const FIRST_NAP: Duration = Duration::from_micros(125);

/// A yield that lasts longer was to somebody who used up a slice of time, where few ranks share a
/// core.
const COSTLY: Duration = Duration::from_millis(1);

/// How long the threads of each rank that shares a core have it, where all of them are at work.
const SHARE: Duration = Duration::from_micros(500);

/// So many costly yields more than cheap ones are too many.
const PATIENCE: u32 = 3;

/// Time without a yield after too many costly ones; each next one, after yet another, is twice as
/// long, up to the longest.
const FIRST_WARY: Duration = Duration::from_millis(4);
const MOST_WARY: Duration = Duration::from_millis(256);

/// Whether the threads of a job yield.
///
/// They share their cores with the program, which computes, or spins in another library's barrier:
/// who yields to that comes back when its slice is over, after some milliseconds, while who sleeps
/// comes first when it is woken. Among threads that sleep soon a yield is cheaper than a sleep; it
/// takes what all of these do meanwhile, and some of them take long.
#[derive(Debug)]
pub(super) struct Yields {
    /// What is costly.
    bound: Duration,
    /// When the last costly one ended that was one too many.
    costly: Option<Instant>,
    /// Costly ones that cheap ones have not made up for.
    owed: u32,
    /// The time without a yield after the last costly one that was one too many.
    wary: Duration,
}

impl Yields {
    /// Where there are so many cores for each rank.
    pub fn new(cores: f64) -> Self {
        let others = SHARE.as_secs_f64() / cores;
        Self {
            bound: Duration::try_from_secs_f64(others).map_or(COSTLY, |others| others.max(COSTLY)),
            costly: None,
            owed: 0,
            wary: Duration::ZERO,
        }
    }

    /// Whether one may be costly at this time.
    fn are_dear(&self, now: Instant) -> bool {
        self.costly
            .is_some_and(|then| now.duration_since(then) < self.wary)
    }

    /// One began and ended at these times.
    pub fn note(&mut self, began: Instant, ended: Instant) {
        if ended.duration_since(began) < self.bound {
            self.owed = self.owed.saturating_sub(1);
            if self.owed == 0 {
                self.wary = Duration::ZERO;
            }
            return;
        }
        self.owed += 1;
        if self.owed == PATIENCE {
            // The next one is one too many again.
            (self.owed, self.costly) = (PATIENCE - 1, Some(ended));
            self.wary = (2 * self.wary).clamp(FIRST_WARY, MOST_WARY);
        }
    }
}

/// One wait of a thread, from the first fruitless round on.
pub(super) struct Looking {
    backoff: Backoff,
    fruitless: u32,
    fresh: u32,
    nap: Duration,
}

impl Looking {
    /// Does not sleep for so long at least.
    pub fn new(awake: Awake) -> Self {
        Self {
            backoff: Backoff::new(awake),
            fruitless: 0,
            fresh: 0,
            nap: FIRST_NAP,
        }
    }

    /// Nothing moved: what to do before the next round. `fresh`: what has come meanwhile moves in
    /// that, if no more does.
    pub fn next(&mut self, yields: &Yields, fresh: bool) -> Step {
        let step = match self.backoff.next() {
            Step::Spin => return Step::Spin,
            step if !yields.are_dear(Instant::now()) => step,
            _ => {
                self.fruitless += 1;
                match self.fruitless >= LOOKS {
                    true => Step::Park,
                    false => Step::Spin,
                }
            }
        };
        let looks_on = step == Step::Park && fresh && self.fresh < FRESH_LOOKS;
        if looks_on {
            self.fresh += 1;
            return Step::Spin;
        }
        step
    }

    /// How long the sleep may be where something waits for time.
    pub fn next_nap(&mut self) -> Duration {
        let nap = self.nap;
        self.nap = (2 * nap).min(NAP);
        self.slept();
        nap
    }

    /// What comes in a sleep is looked at as often.
    pub fn slept(&mut self) {
        self.fresh = 0;
    }

    /// There was something to do: the next wait begins anew.
    pub fn reset(&mut self) {
        self.backoff.reset();
        self.begin();
    }

    /// A wait begins, whatever has become of the last one.
    pub fn begin(&mut self) {
        self.backoff.begin();
        (self.fruitless, self.fresh) = (0, 0);
        self.nap = FIRST_NAP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody else had the core, just now.
    fn dear() -> Yields {
        let (mut yields, now) = (Yields::new(0.5), Instant::now());
        (0..PATIENCE).for_each(|_| yields.note(now, now + COSTLY));
        yields
    }

    fn steps(looking: &mut Looking, yields: &Yields, fresh: bool) -> Vec<Step> {
        let mut steps = vec![looking.next(yields, fresh)];
        while *steps.last().unwrap() != Step::Park {
            steps.push(looking.next(yields, fresh));
        }
        steps
    }

    #[test]
    fn a_wait_yields_unless_that_has_cost_a_slice() {
        let (mut looking, mut yields) = (Looking::new(Awake::new(0.5, 2)), Yields::new(0.5));
        let now = Instant::now();
        yields.note(now, now + Duration::from_micros(1));
        assert_eq!(looking.next(&yields, false), Step::Yield);
        let looks = [Step::Spin, Step::Spin, Step::Park];
        assert_eq!(steps(&mut looking, &dear(), false), looks);
        let costly = |yields: &mut Yields| yields.note(now, now + COSTLY);
        // Few among many are borne.
        for _ in 0..2 * PATIENCE {
            costly(&mut yields);
            yields.note(now, now);
            assert!(!yields.are_dear(now + COSTLY));
        }
        // Once they were too many, one is, and for twice as long each time.
        (0..PATIENCE).for_each(|_| costly(&mut yields));
        let (mut ended, mut wary) = (now + COSTLY, FIRST_WARY);
        for _ in 0..10 {
            let almost = wary - Duration::from_micros(1);
            assert!(yields.are_dear(ended + almost) && !yields.are_dear(ended + wary));
            let began = ended + wary;
            ended = began + COSTLY;
            yields.note(began, ended);
            wary = (2 * wary).min(MOST_WARY);
        }
        // Where yields are cheap again, that is forgotten.
        (0..PATIENCE).for_each(|_| yields.note(ended, ended));
        (0..PATIENCE).for_each(|_| yields.note(ended, ended + COSTLY));
        let again = ended + COSTLY + FIRST_WARY;
        assert!(!yields.are_dear(again));
    }

    #[test]
    fn a_yield_to_many_ranks_may_last_longer() {
        let now = Instant::now();
        for (cores, lasts) in [(1.0, COSTLY), (0.0, COSTLY), (0.125, 8 * SHARE)] {
            for (lasts, are_dear) in [(lasts - Duration::from_micros(1), false), (lasts, true)] {
                let mut yields = Yields::new(cores);
                (0..PATIENCE).for_each(|_| yields.note(now, now + lasts));
                assert_eq!(yields.are_dear(now + lasts), are_dear, "{cores} {lasts:?}");
            }
        }
    }

    #[test]
    fn what_comes_last_is_looked_at_once_more_but_not_for_ever() {
        let (mut looking, yields) = (Looking::new(Awake::new(0.5, 2)), dear());
        for _ in 1..LOOKS {
            assert_eq!(looking.next(&yields, false), Step::Spin);
        }
        for _ in 0..FRESH_LOOKS {
            assert_eq!(looking.next(&yields, true), Step::Spin);
        }
        assert_eq!(looking.next(&yields, true), Step::Park);
        // After a sleep, and where yields are cheap too.
        let mut looking = Looking::new(Awake::new(0.5, 2));
        while looking.next(&Yields::new(0.5), false) != Step::Park {}
        looking.next_nap();
        assert_eq!(looking.next(&Yields::new(0.5), true), Step::Spin);
        assert_eq!(looking.next(&Yields::new(0.5), false), Step::Park);
    }

    #[test]
    fn naps_grow_until_something_moves() {
        let mut looking = Looking::new(Awake::new(0.5, 2));
        let naps: Vec<_> = (0..5).map(|_| looking.next_nap().as_micros()).collect();
        assert_eq!(naps, [125, 250, 500, 1000, 1000]);
        looking.reset();
        assert_eq!(looking.next_nap(), FIRST_NAP);
    }
}
