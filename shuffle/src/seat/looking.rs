//! How often a thread of a job looks around before it sleeps, whether it yields in between, and how
//! long it naps.

use std::time::{Duration, Instant};

use trihop_transport::park::{Awake, Backoff, Step};

use super::NAP;

/// Fruitless rounds before a sleep of who does not yield, after the time that a wait spins: a round
/// sends on what the last one has seen rest.
const LOOKS: u32 = 3;

/// More rounds, where the last one has seen something come.
const FRESH_LOOKS: u32 = 2;

/// The first nap; each next one that finds nothing is twice as long.
pub(crate) const FIRST_NAP: Duration = Duration::from_micros(125);

/// A yield that lasts as long was to somebody who used up a slice of time, but where several ranks
/// share a core.
const COSTLY: Duration = Duration::from_millis(1);

/// How long the threads of each rank that shares a core have it, where all of them are at work.
const SHARE: Duration = Duration::from_micros(500);

/// So many costly yields are too many, where cheap ones have not made up for them.
const PATIENCE: u32 = 3;

/// Cheap yields that make up for a costly one, however short they are, where each rank has a core:
/// who yields to a program that computes comes back at once two times in three.
const CHEAP: u32 = 16;

/// Time without a yield after too many costly ones; each next one, after yet another, is twice as
/// long, up to the longest.
const FIRST_WARY: Duration = Duration::from_millis(4);
const MOST_WARY: Duration = Duration::from_millis(256);

/// Whether the threads of a job yield.
///
/// They share their cores with programs that compute, or spin in another library's barrier: who
/// yields to these comes back when their slice is over, after some milliseconds, while who sleeps
/// comes first when it is woken. Among threads that sleep soon a yield is cheaper than a sleep; it
/// takes what all of these do meanwhile, and of ranks that share a core some take long.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Yields {
    /// A yield that lasts as long is costly.
    bound: Duration,
    /// What the shortest cheap one makes up for.
    least: Duration,
    /// When the last costly one ended that was one too many.
    costly: Option<Instant>,
    /// A `bound` for each costly one, less what cheap ones make up for: their time, or `least`. It
    /// is two bounds at most.
    owed: Duration,
    /// The time without a yield after the last costly one that was one too many.
    wary: Duration,
}

impl Yields {
    /// Of threads that wait so, where there are so many cores for each rank.
    pub fn new(awake: Awake, cores: f64) -> Self {
        if awake.has_core() {
            return Self::beside_programs();
        }
        let others = Duration::try_from_secs_f64(SHARE.as_secs_f64() / cores);
        let bound = others.map_or(COSTLY, |others| others.max(COSTLY));
        Self::of(bound, bound)
    }

    /// Of a rank's only thread: where ranks share a core nothing is dear, since others do more
    /// meanwhile the longer they have it.
    pub fn of_one_thread(awake: Awake) -> Self {
        match awake.has_core() {
            true => Self::beside_programs(),
            false => Self::never_dear(),
        }
    }

    /// Of who yields whatever that costs.
    pub fn never_dear() -> Self {
        Self::of(Duration::MAX, Duration::ZERO)
    }

    /// Where each rank has a core: only programs have it for long.
    fn beside_programs() -> Self {
        Self::of(COSTLY, COSTLY / CHEAP)
    }

    fn of(bound: Duration, least: Duration) -> Self {
        Self {
            bound,
            least,
            costly: None,
            owed: Duration::ZERO,
            wary: Duration::ZERO,
        }
    }

    /// Whether one may be costly at this time.
    fn are_dear(&self, now: impl FnOnce() -> Instant) -> bool {
        self.costly
            .is_some_and(|then| now().duration_since(then) < self.wary)
    }

    /// One began and ended at these times.
    pub fn note(&mut self, (began, ended): (Instant, Instant)) {
        let lasted = ended.duration_since(began);
        if lasted < self.bound {
            self.owed = self.owed.saturating_sub(lasted.max(self.least));
            // One that began before the last costly one ended says nothing of the time since.
            if self.owed.is_zero() && !self.are_dear(|| ended) {
                self.wary = Duration::ZERO;
            }
            return;
        }
        self.owed += self.bound;
        if self.owed > (PATIENCE - 1) * self.bound {
            // The next one is one too many again.
            (self.owed, self.costly) = ((PATIENCE - 1) * self.bound, Some(ended));
            self.wary = (2 * self.wary).clamp(FIRST_WARY, MOST_WARY);
        }
    }
}

/// Calls in a row that find nothing, and do not look at the clock, which takes as long as they do;
/// where each of a rank's threads has a core.
const FREE_POLLS: u32 = 16;

/// What the calls of a program do that asks again and again, and finds nothing: where each rank has
/// a core, nothing for about as long as a wait would spin; then they yield, unless that is dear.
pub(crate) struct Polls {
    /// Where ranks share cores they yield at once.
    at_leisure: Option<(Backoff, Yields)>,
    /// So many are done before the first looks at the clock.
    free: u32,
    /// In a row that have found nothing.
    fruitless: u32,
    /// They have done so for as long as a wait would spin.
    has_spun: bool,
}

impl Polls {
    /// Of ranks whose threads wait so.
    pub fn new(awake: Awake) -> Self {
        let at_leisure = || (Backoff::new(awake), Yields::beside_programs());
        Self {
            at_leisure: awake.has_core().then(at_leisure),
            free: match awake.has_core_for_each() {
                true => FREE_POLLS,
                false => 0,
            },
            fruitless: 0,
            has_spun: false,
        }
    }

    /// Of threads that wait so; `None` where they yield at each call that finds nothing.
    pub fn of_threads(awake: Awake) -> Option<Self> {
        Some(Self::new(awake)).filter(|polls| polls.at_leisure.is_some())
    }

    /// A call has found something.
    #[inline]
    pub fn found(&mut self) {
        if std::mem::take(&mut self.fruitless) > 0
            && let Some((backoff, _)) = &mut self.at_leisure
        {
            backoff.begin();
            self.has_spun = false;
        }
    }

    /// A call has found nothing.
    #[inline]
    pub fn found_nothing(&mut self) {
        if self.at_leisure.is_none() {
            std::thread::yield_now();
        } else if self.may_yield() {
            self.yielded(timed_yield());
        }
    }

    /// A call has found nothing: whether it yields.
    pub fn may_yield(&mut self) -> bool {
        let Some((backoff, yields)) = &mut self.at_leisure else {
            return true;
        };
        self.fruitless = self.fruitless.saturating_add(1);
        if !self.has_spun && self.fruitless > self.free {
            self.has_spun = backoff.next() != Step::Spin;
        }
        self.has_spun && !yields.are_dear(Instant::now)
    }

    /// A yield began and ended at these times.
    pub fn yielded(&mut self, times: (Instant, Instant)) {
        if let Some((_, yields)) = &mut self.at_leisure {
            yields.note(times);
        }
    }

    /// How many in a row have found nothing.
    #[cfg(test)]
    pub fn fruitless(&self) -> u32 {
        self.fruitless
    }
}

/// Gives the core to others once: when that began and ended.
pub(crate) fn timed_yield() -> (Instant, Instant) {
    let began = Instant::now();
    std::thread::yield_now();
    (began, Instant::now())
}

/// One wait of a thread, from the first fruitless round on.
#[derive(Debug)]
pub(crate) struct Looking {
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

    /// Nothing moved: what to do before the next round. `is_fresh`, asked before a sleep, says
    /// whether what has come meanwhile moves in that, if no more does.
    pub fn next(&mut self, yields: &Yields, is_fresh: impl FnOnce() -> bool) -> Step {
        let step = match self.backoff.next() {
            Step::Spin => return Step::Spin,
            step if !yields.are_dear(Instant::now) => step,
            _ => {
                self.fruitless += 1;
                match self.fruitless >= LOOKS {
                    true => Step::Park,
                    false => Step::Spin,
                }
            }
        };
        let looks_on = step == Step::Park && self.fresh < FRESH_LOOKS && is_fresh();
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

    /// Where two ranks share a core.
    fn shared() -> Yields {
        Yields::new(Awake::new(0.5, 2), 0.5)
    }

    /// Somebody else had the core, just now.
    fn dear() -> Yields {
        // However long the test is kept waiting.
        let (mut yields, now) = (shared(), Instant::now() + Duration::from_secs(3600));
        (0..PATIENCE).for_each(|_| yields.note((now, now + COSTLY)));
        yields
    }

    fn steps(looking: &mut Looking, yields: &Yields) -> Vec<Step> {
        let mut steps = vec![looking.next(yields, || false)];
        while *steps.last().unwrap() != Step::Park {
            steps.push(looking.next(yields, || false));
        }
        steps
    }

    #[test]
    fn a_wait_yields_unless_that_has_cost_a_slice() {
        let (mut looking, mut yields) = (Looking::new(Awake::new(0.5, 2)), shared());
        let now = Instant::now();
        yields.note((now, now + Duration::from_micros(1)));
        assert_eq!(looking.next(&yields, || false), Step::Yield);
        let looks = [Step::Spin, Step::Spin, Step::Park];
        assert_eq!(steps(&mut looking, &dear()), looks);
        let costly = |yields: &mut Yields| yields.note((now, now + COSTLY));
        // Where ranks share a core as many are borne as are cheap.
        for _ in 0..2 * PATIENCE {
            costly(&mut yields);
            yields.note((now, now));
            assert!(!yields.are_dear(|| now + COSTLY));
        }
        // Once they were too many, one is, and for twice as long each time.
        (0..PATIENCE).for_each(|_| costly(&mut yields));
        let (mut ended, mut wary) = (now + COSTLY, FIRST_WARY);
        for _ in 0..10 {
            let almost = wary - Duration::from_micros(1);
            assert!(yields.are_dear(|| ended + almost) && !yields.are_dear(|| ended + wary));
            let began = ended + wary;
            ended = began + COSTLY;
            yields.note((began, ended));
            wary = (2 * wary).min(MOST_WARY);
        }
        // Where yields are cheap again, that is forgotten.
        ended += MOST_WARY;
        (0..PATIENCE).for_each(|_| yields.note((ended, ended)));
        (0..PATIENCE).for_each(|_| yields.note((ended, ended + COSTLY)));
        let again = ended + COSTLY + FIRST_WARY;
        assert!(!yields.are_dear(|| again));
    }

    #[test]
    fn a_yield_to_many_ranks_may_last_longer() {
        let now = Instant::now();
        for (cores, lasts) in [
            (1.0, COSTLY),
            (0.5, COSTLY),
            (0.0, COSTLY),
            (0.125, 8 * SHARE),
        ] {
            for (lasts, are_dear) in [(lasts - Duration::from_micros(1), false), (lasts, true)] {
                let mut yields = Yields::new(Awake::new(cores, 2), cores);
                (0..PATIENCE).for_each(|_| yields.note((now, now + lasts)));
                assert_eq!(
                    yields.are_dear(|| now + lasts),
                    are_dear,
                    "{cores} {lasts:?}"
                );
            }
        }
    }

    #[test]
    fn who_has_a_core_bears_no_slices_of_others() {
        let now = Instant::now();
        let noted = |yields: &mut Yields, count, lasts| {
            (0..count).for_each(|_| yields.note((now, now + lasts)));
            yields.are_dear(|| now + lasts)
        };
        let own = Awake::new(1.0, 1);
        for mut yields in [Yields::new(own, 1.0), Yields::of_one_thread(own)] {
            // Few among many are borne, and as many as others that have lasted as long.
            for (count, lasts) in [(CHEAP, Duration::ZERO), (2, COSTLY / 2)].repeat(3) {
                assert!(!noted(&mut yields, 1, COSTLY) && !noted(&mut yields, count, lasts));
            }
            // Not where the cheap ones are those between two slices.
            let mut beside = || {
                noted(&mut yields, 2, Duration::ZERO);
                noted(&mut yields, 1, 4 * COSTLY)
            };
            assert!(!beside() && !beside() && beside());
        }
        let mut shares = Yields::of_one_thread(Awake::new(0.5, 1));
        assert!(
            !noted(&mut shares, 100, 100 * COSTLY),
            "it is other ranks that work"
        );
    }

    #[test]
    fn polls_that_find_nothing_yield_after_a_spin_unless_that_is_dear() {
        assert!(Polls::of_threads(Awake::new(0.5, 2)).is_none());
        let mut polls = Polls::new(Awake::new(1.0, 1));
        for _ in 0..2 {
            assert!((0..FREE_POLLS).all(|_| !polls.may_yield()));
            while !polls.may_yield() {}
            assert!(polls.may_yield(), "until something is found");
            polls.found();
        }
        let later = Instant::now() + Duration::from_secs(3600);
        (0..PATIENCE).for_each(|_| polls.yielded((later, later + COSTLY)));
        assert!((0..100_000).all(|_| !polls.may_yield()));
        let mut with_threads = Polls::of_threads(Awake::new(1.0, 2)).unwrap();
        assert!(with_threads.may_yield(), "another thread of the rank");
    }

    #[test]
    fn what_comes_last_is_looked_at_once_more_but_not_for_ever() {
        let (mut looking, yields) = (Looking::new(Awake::new(0.5, 2)), dear());
        for _ in 1..LOOKS {
            assert_eq!(looking.next(&yields, || false), Step::Spin);
        }
        for _ in 0..FRESH_LOOKS {
            assert_eq!(looking.next(&yields, || true), Step::Spin);
        }
        assert_eq!(looking.next(&yields, || true), Step::Park);
        // After a sleep, and where yields are cheap too.
        let mut looking = Looking::new(Awake::new(0.5, 2));
        while looking.next(&shared(), || false) != Step::Park {}
        looking.next_nap();
        assert_eq!(looking.next(&shared(), || true), Step::Spin);
        assert_eq!(looking.next(&shared(), || false), Step::Park);
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
