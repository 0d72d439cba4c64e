//! How to pass the time between two looks around: spin, then yield, then say that it is time to
//! sleep.

use std::time::{Duration, Instant};

/// Spinning that is worth it where every rank has a core: about the time that falling asleep would
/// cost.
const SPIN: Duration = Duration::from_micros(3);

/// How long a wait stays awake at least where every rank has a core: about the time that it takes
/// to wake somebody there. Two that answer each other, and fell asleep sooner, would each find the
/// other asleep, and go on so for ever.
const AWAKE: Duration = Duration::from_micros(30);

/// How long at most, where what is waited for keeps coming a little later than that.
const MOST_AWAKE: Duration = if cfg!(trihop_shuttle) {
    AWAKE
} else {
    Duration::from_micros(500)
};

/// Part of a core that does not count: shares of cores are no exact numbers.
const ROUNDING: f64 = 1e-3;

/// Spins in a row that may bring nothing before spinning is left out.
const PATIENCE: u32 = 8;

/// One wait in so many spins all the same where spinning is left out, to see whether it helps
/// again.
const RETRY: u32 = 64;

/// Yields before sleeping. In a model one is enough: the more there are, the fewer schedules have
/// something happen after the last look before a sleep.
const YIELDS: u32 = if cfg!(trihop_shuttle) { 1 } else { 20 };

/// How long a thread waits without sleeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awake {
    spin: Duration,
    /// Yields go on for as long,
    yields: Duration,
    /// and at most for as long.
    most: Duration,
}

impl Awake {
    /// A thread of a rank that has so many `threads` at work, where there are so many `cores` for
    /// each rank. Where these are fewer than the threads it does not spin, since each pause then is
    /// taken from who is waited for; where they are less than one it sleeps soon.
    pub fn new(cores: f64, threads: u32) -> Self {
        let where_enough = |wanted: u32, time| match cores + ROUNDING >= f64::from(wanted) {
            true => time,
            false => Duration::ZERO,
        };
        let yields = where_enough(1, AWAKE);
        Self {
            spin: where_enough(threads, SPIN),
            yields,
            most: yields,
        }
    }

    /// Whether each rank has a core of its own.
    pub fn has_core(&self) -> bool {
        !self.yields.is_zero()
    }

    /// Whether each of the threads has a core of its own.
    pub fn has_core_for_each(&self) -> bool {
        !self.spin.is_zero()
    }

    /// Where sleeps are short it stays awake for longer the next time, so that nobody has to be
    /// woken for what comes soon: for threads that have nothing else to do until it does.
    pub fn learning(self) -> Self {
        let most = match self.yields.is_zero() {
            true => Duration::ZERO,
            false => MOST_AWAKE,
        };
        Self { most, ..self }
    }
}

/// What to do before looking around again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Pause for some tens of nanoseconds (`spin_loop`).
    Spin,
    /// Give the core to others once (`yield_now`).
    Yield,
    /// Sleep: see [`Parker::park`](super::Parker::park).
    Park,
}

/// The waits of one thread, each from the first fruitless look around to the sleep. Where what is
/// waited for comes again and again only once the core was given to others, there are fewer cores
/// than threads that want them, whatever the machine has: spinning is then left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    awake: Awake,
    /// When the spin of this wait began.
    began: Option<Instant>,
    yields: u32,
    /// When they began, where they go on for some time: for how long.
    yields_since: Option<Instant>,
    window: Duration,
    /// Spins in a row that have brought nothing.
    fruitless: u32,
    /// Waits in a row that have left it out.
    left_out: u32,
}

impl Backoff {
    /// Spins, then yields some times at least, then parks.
    pub fn new(awake: Awake) -> Self {
        Self {
            awake,
            began: None,
            yields: 0,
            yields_since: None,
            window: awake.yields,
            fruitless: 0,
            left_out: 0,
        }
    }

    /// What to do now; the caller does it.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Step {
        if self.yields == 0 && self.may_spin() {
            let Some(began) = self.began else {
                self.began = Some(Instant::now());
                return Step::Spin;
            };
            if began.elapsed() < self.awake.spin {
                return Step::Spin;
            }
        }
        if self.yields < YIELDS {
            if self.yields == 0 && !self.awake.yields.is_zero() {
                self.yields_since = Some(Instant::now());
            }
            self.yields += 1;
            return Step::Yield;
        }
        match self.yields_since {
            Some(since) if since.elapsed() < self.window => Step::Yield,
            _ => Step::Park,
        }
    }

    /// There was something to do: the next wait begins anew.
    #[inline]
    pub fn reset(&mut self) {
        if let Some(since) = self.yields_since {
            self.learn(since.elapsed());
        }
        self.begin();
    }

    /// So long after the first yield there was something to do.
    fn learn(&mut self, waited: Duration) {
        let Awake { yields, most, .. } = self.awake;
        if waited > most {
            self.window = (self.window / 2).max(yields);
        } else if waited > self.window {
            self.window = (2 * self.window).min(most);
        }
    }

    /// A wait begins, whatever has become of the last one.
    #[inline]
    pub fn begin(&mut self) {
        if self.yields == 0 {
            // Not waited at all, or no longer than a spin.
            if self.began.take().is_some() {
                (self.fruitless, self.left_out) = (0, 0);
            }
            return;
        }
        match self.began.take() {
            Some(_) => (self.fruitless, self.left_out) = (self.fruitless + 1, 0),
            None => self.left_out += 1,
        }
        (self.yields, self.yields_since) = (0, None);
    }

    fn may_spin(&self) -> bool {
        !self.awake.spin.is_zero() && (self.fruitless < PATIENCE || self.left_out >= RETRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As where there is a core for each thread, with a spin of this length.
    fn spinning(spin: Duration) -> Backoff {
        let (yields, most) = (AWAKE, AWAKE);
        Backoff::new(Awake { spin, yields, most })
    }

    #[test]
    fn a_wait_spins_then_yields_then_parks() {
        let mut backoff = spinning(Duration::from_micros(50));
        let mut steps = vec![backoff.next()];
        while steps.last() != Some(&Step::Park) {
            steps.push(backoff.next());
        }
        steps.dedup();
        assert_eq!(steps, [Step::Spin, Step::Yield, Step::Park]);
        assert_eq!(backoff.next(), Step::Park);
        backoff.reset();
        assert_eq!(backoff.next(), Step::Spin);
    }

    /// One wait that ends after so many steps of its own kind; whether it has spun.
    fn wait(backoff: &mut Backoff, until: Step) -> bool {
        let spun = backoff.next() == Step::Spin;
        let mut step = if spun { Step::Spin } else { Step::Yield };
        while step != until && step != Step::Park {
            step = backoff.next();
        }
        backoff.reset();
        spun
    }

    #[test]
    fn spins_that_bring_nothing_are_left_out_and_tried_again_now_and_then() {
        let mut backoff = spinning(Duration::from_micros(5));
        let spins = |backoff: &mut Backoff, waits: u32| {
            let waits = (0..waits).filter(|_| wait(backoff, Step::Yield));
            waits.count() as u32
        };
        assert_eq!(spins(&mut backoff, PATIENCE), PATIENCE);
        assert_eq!(spins(&mut backoff, RETRY), 0);
        assert_eq!(spins(&mut backoff, 1), 1, "it may help again");
        assert_eq!(spins(&mut backoff, RETRY), 0, "it did not");
        // Long enough for any machine to find the wait within the spin.
        backoff.awake.spin = Duration::from_secs(60);
        assert!(wait(&mut backoff, Step::Spin));
        assert!(wait(&mut backoff, Step::Spin), "it did");
        backoff.reset();
        assert!(wait(&mut backoff, Step::Spin), "no wait says nothing");
    }

    #[test]
    fn where_every_rank_has_a_core_a_wait_stays_awake_until_somebody_could_have_been_woken() {
        let mut backoff = Backoff::new(Awake::new(1.0, 2));
        for _ in 0..2 {
            let began = Instant::now();
            assert_eq!(
                backoff.next(),
                Step::Yield,
                "its threads are more than that"
            );
            while backoff.next() != Step::Park {}
            assert!(began.elapsed() >= AWAKE);
            backoff.reset();
        }
    }

    #[test]
    fn where_ranks_have_no_core_each_they_yield_at_once_and_a_bounded_number_of_times() {
        let mut backoff = Backoff::new(Awake::new(0.5, 1));
        let yields = std::iter::from_fn(|| Some(backoff.next()))
            .take_while(|step| *step == Step::Yield)
            .count();
        assert_eq!(yields, YIELDS as usize);
    }

    #[test]
    fn threads_spin_where_each_has_a_core() {
        let awake = |cores, threads| {
            let Awake { spin, yields, .. } = Awake::new(cores, threads);
            (spin > Duration::ZERO, yields > Duration::ZERO)
        };
        assert_eq!(awake(1.0, 1), (true, true));
        assert_eq!(awake(1.0 - 1e-9, 1), (true, true), "sums of shares");
        assert_eq!(awake(1.0, 2), (false, true));
        assert_eq!(awake(2.5, 2), (true, true));
        assert_eq!(awake(0.99, 1), (false, false));
        assert_eq!(awake(f64::INFINITY, 2), (true, true), "no rank works");
    }

    #[test]
    fn who_is_woken_soon_stays_awake_for_longer_up_to_a_bound() {
        let mut backoff = Backoff::new(Awake::new(1.0, 1).learning());
        let learned = |backoff: &mut Backoff, waited| {
            backoff.learn(waited);
            backoff.window
        };
        assert_eq!(learned(&mut backoff, AWAKE), AWAKE, "it was awake");
        assert_eq!(learned(&mut backoff, 2 * AWAKE), 2 * AWAKE);
        assert_eq!(
            learned(&mut backoff, 2 * AWAKE),
            2 * AWAKE,
            "that is enough"
        );
        let soon = MOST_AWAKE;
        (0..10).for_each(|_| backoff.learn(soon));
        assert_eq!(backoff.window, MOST_AWAKE);
        let late = MOST_AWAKE + Duration::from_nanos(1);
        assert_eq!(learned(&mut backoff, late), MOST_AWAKE / 2);
        (0..10).for_each(|_| backoff.learn(late));
        assert_eq!(backoff.window, AWAKE);
        for awake in [Awake::new(1.0, 1), Awake::new(0.5, 1).learning()] {
            let mut backoff = Backoff::new(awake);
            let before = backoff.window;
            assert_eq!(learned(&mut backoff, soon), before);
        }
    }

    #[test]
    fn a_wait_that_ends_without_anything_to_do_teaches_nothing() {
        let mut backoff = Backoff::new(Awake::new(1.0, 1).learning());
        let (sleep, mut window) = (2 * AWAKE, AWAKE);
        for teaches in [false, true] {
            while backoff.next() != Step::Park {}
            std::thread::sleep(sleep);
            match teaches {
                true => backoff.reset(),
                false => backoff.begin(),
            }
            // Where the sleep was longer than it should be, it says that there is no hurry.
            window = if teaches { backoff.window } else { window };
            assert_eq!(backoff.window, window);
            assert_eq!(backoff.yields_since, None);
        }
    }
}
