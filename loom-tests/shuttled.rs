//! For models that are too large for loom: random schedules, and sleepers that really block.
//!
//! Shuttle takes every access for sequentially consistent, so these models say nothing on
//! orderings; that is loom's part.

use std::sync::Arc;

use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Condvar, Mutex};
use shuttle::{Config, MaxSteps, Runner};
use trihop_transport::ring::Shipped;
use trihop_transport::ring::doorbell::{self, Sleeper};
use trihop_transport::sync::AtomicU64;

/// Runs `model` under many schedules: half of them random at every step, half with few changes of
/// priority (PCT), which finds what needs a thread to be late. `TRIHOP_SEED` takes other schedules
/// than the usual ones, `MODEL_SCHEDULES` more or fewer of them (default 2,000 of each kind).
///
/// # Panics
/// When the model does, and when all its threads sleep.
pub fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_with(2000, Config::new(), model);
}

/// As [`explore`], for models that are whole jobs: they take longer, so there are 300 schedules of
/// each kind by default, and their threads call much that a model does not.
///
/// # Panics
/// When the model does, or goes on for ever.
pub fn explore_jobs(model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    // A job takes some thousand steps; one that has lost a wake-up looks for it without an end.
    config.max_steps = MaxSteps::FailAfter(200_000);
    explore_with(300, config, model);
}

fn explore_with(
    default_schedules: u64,
    mut config: Config,
    model: impl Fn() + Send + Sync + 'static,
) {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse().expect("a number"))
    };
    let seed = number("TRIHOP_SEED").unwrap_or(1);
    let schedules = number("MODEL_SCHEDULES").unwrap_or(default_schedules);
    eprintln!("TRIHOP_SEED={seed} MODEL_SCHEDULES={schedules}");
    config.silence_warnings = true; // that orderings are not modelled
    let model = Arc::new(model);
    let again = Arc::clone(&model);
    let schedules = schedules as usize;
    Runner::new(
        RandomScheduler::new_from_seed(seed, schedules),
        config.clone(),
    )
    .run(move || model());
    Runner::new(PctScheduler::new_from_seed(seed, 4, schedules), config).run(move || again());
}

/// Somebody who sleeps as `Parker` of `transport/src/park/parker.rs` does; the eventfd is a counter
/// under a lock.
#[derive(Debug, Clone, Default)]
pub struct BlockingSleeper(Arc<Bed>);

#[derive(Debug, Default)]
struct Bed {
    word: AtomicU64,
    rings: Mutex<u64>,
    rung: Condvar,
}

const _: () = assert!(
    doorbell::AWAKE == 0,
    "a new word says that its owner is awake"
);

impl Sleeper for BlockingSleeper {
    type Word = AtomicU64;

    fn word(&self) -> &AtomicU64 {
        &self.0.word
    }

    fn signal(&self) {
        *self.0.rings.lock().unwrap() += 1;
        self.0.rung.notify_one();
    }
}

/// Whether a sleep may end without a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLimit {
    /// It never does: a lost wake-up is a deadlock.
    None,
    /// It does in half of the cases.
    Some,
}

impl BlockingSleeper {
    /// `Parker::park`, step by step.
    pub fn park(&self, limit: TimeLimit, stay_awake: impl FnOnce() -> bool) {
        doorbell::announce::<_, Shipped>(self.word());
        if stay_awake() {
            doorbell::awake(self.word());
            return;
        }
        let rung = {
            let mut rings = self.0.rings.lock().unwrap();
            let waits = match limit {
                TimeLimit::None => true,
                TimeLimit::Some => shuttle::rand::thread_rng().gen_bool(0.5),
            };
            if waits {
                while *rings == 0 {
                    rings = self.0.rung.wait(rings).unwrap();
                }
            }
            *rings > 0
        };
        doorbell::awake(self.word());
        if rung {
            *self.0.rings.lock().unwrap() = 0;
        }
    }
}
