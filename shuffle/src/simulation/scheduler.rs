//! Turns: who has one, what he does with it, and when time passes.

use super::awake::{Awake, Schedule};
use super::error::SimulationError;
use super::fabric::Fabric;
use super::member::Member;
use crate::engine::sink::Handlers;

/// Rounds of progress that one rank may make in a row.
const ROUNDS_PER_TURN: usize = 64;

/// Turns of each rank, where they are taken in turn, after which time passes though somebody is
/// awake: ranks of a node that go on and on with each other may wait for what takes time.
const TURNS_PER_TICK: u64 = 16;

/// The order of what happens in a job, which follows from the seed.
pub(super) struct Scheduler {
    schedule: Schedule,
    random: u64,
    awake: Awake,
    woken: Vec<u32>,
    rounds: u64,
    /// Turns since time has passed.
    turns: u64,
    /// Rounds since anything moved, and units of time that passed while all slept.
    fruitless: u64,
}

impl Scheduler {
    /// All ranks are awake.
    pub fn new(ranks: u32, schedule: Schedule, seed: u64) -> Self {
        Self {
            schedule,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            awake: Awake::new(ranks),
            woken: Vec::new(),
            rounds: 0,
            turns: 0,
            fruitless: 0,
        }
    }

    /// Who takes the next turn.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Rounds of progress that ranks have made.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// The application of a rank does something: the rank has a turn.
    pub fn wake(&mut self, rank: u32) {
        self.awake.wake(rank);
        self.fruitless = 0;
    }

    /// Whether nothing has moved for so long that nothing ever will: ranks that wait for time look
    /// around in vain as long as it passes, or all sleep beside a message that nobody takes. Enough
    /// for all that engines do by the clock, and for delays of up to a second.
    pub fn are_in_vain(&self, fabric: &Fabric) -> bool {
        fabric.net().is_some() && self.fruitless >= 1_000_000 + 1000 * self.awake.ranks() as u64
    }

    /// A random number of this schedule (xorshift64*).
    pub fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Who is next; lets time pass where that helps. None when nothing will ever happen.
    pub fn next(&mut self, fabric: &Fabric) -> Option<u32> {
        if self.are_in_vain(fabric) {
            return None;
        }
        if self.schedule == Schedule::Random {
            if self.random().is_multiple_of(4) {
                self.pass_time(fabric);
            }
            if self.random().is_multiple_of(8) && !self.awake.all_sleep() {
                let rank = (self.random() % self.awake.ranks() as u64) as u32;
                if !self.awake.is_awake(rank) {
                    return Some(rank); // for nothing, as it may happen to any sleeper
                }
            }
        }
        self.turns += 1;
        if self.turns > TURNS_PER_TICK * self.awake.ranks() as u64 {
            self.pass_time(fabric);
        }
        loop {
            self.hear(fabric);
            let random = self.random();
            let next = match self.schedule {
                Schedule::InTurn => self.awake.next(),
                Schedule::Random => self.awake.any(random),
            };
            if next.is_some() || !self.pass_time(fabric) {
                return next;
            }
            // All sleep, and something is under way, for ever if nobody takes it.
            self.fruitless += 1;
            if self.are_in_vain(fabric) {
                return None;
            }
        }
    }

    /// Wakes those that the fabric has something for.
    fn hear(&mut self, fabric: &Fabric) {
        if let Some(net) = fabric.net() {
            net.take_woken(&mut self.woken);
            for rank in self.woken.drain(..) {
                // Other endpoints of the network are a test's.
                if (rank as usize) < self.awake.ranks() {
                    self.awake.wake(rank);
                }
            }
        }
    }

    /// Lets time pass; whether anything may have come of it.
    fn pass_time(&mut self, fabric: &Fabric) -> bool {
        self.turns = 0;
        let under_way = fabric.net().is_some_and(|net| {
            let under_way = !net.is_empty();
            net.tick();
            under_way
        });
        self.awake.time_passed() || under_way
    }

    /// Progress of one rank, which sleeps when nothing moved twice: a job yields before it parks,
    /// so that what waits looks once more. True when it did not fall asleep.
    pub fn take(
        &mut self,
        rank: u32,
        members: &mut [Member],
        handlers: &mut impl Handlers,
        fabric: &Fabric,
    ) -> Result<bool, SimulationError> {
        let member = &mut members[rank as usize];
        member.doorbell.awake();
        let rounds = match self.schedule {
            Schedule::InTurn => ROUNDS_PER_TURN,
            Schedule::Random => 1,
        };
        let now_ns = fabric.now_ns();
        let mut idle = true;
        for _ in 0..rounds {
            self.rounds += 1;
            let progress = member.engine.round(handlers, now_ns);
            if !progress.map_err(|why| SimulationError::Rank { rank, why })? {
                break;
            }
            idle = false;
        }
        self.fruitless = if idle { self.fruitless + 1 } else { 0 };
        let tired = std::mem::replace(&mut member.idle, idle) && idle;
        let awake = !tired || !member.sleep(&mut self.awake, rank, fabric.net().is_none());
        if awake {
            self.awake.wake(rank);
        }
        if let Some(net) = fabric.net()
            && let Some(what) = net.violation()
        {
            return Err(SimulationError::Violation(what));
        }
        let topology = &members[rank as usize].engine.topology;
        for mate in topology.ends_here() {
            if !self.awake.is_awake(mate.0) && !members[mate.0 as usize].doorbell.is_asleep() {
                self.awake.wake(mate.0);
            }
        }
        Ok(awake)
    }
}
