//! A barrier of the ranks of one node, over a small shuffle of its own: the others tell the first
//! one that they have arrived, and it tells them when all have. Nobody else takes part.

use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use crate::route::{Rails, RouteName};
use crate::threaded::{Job, Shuffle};
use crate::transport::sync::{Arc, Mutex};
use crate::{Error, Queues, Rank, StreamOptions, Topology};

/// Kinds of messages.
const ARRIVED: u32 = 0;
const RELEASED: u32 = 1;

/// How often a rank that waits looks whether the job still lives.
const LOOK: Duration = Duration::from_secs(1);

/// Messages of each kind that came so far.
#[derive(Default)]
struct Counts {
    arrived: u64,
    released: u64,
}

#[derive(Default)]
struct Heard {
    counts: Mutex<Counts>,
    news: Condvar,
}

/// What a rank does at the barrier.
enum Role {
    /// It gathers these ranks of its node.
    First(Vec<Rank>),
    /// It tells that rank, and waits for it.
    Other(Rank),
}

impl Role {
    fn of(topology: &Topology) -> Self {
        let mut ranks = topology.ranks_of(topology.node());
        match ranks.next() {
            Some(first) if first != topology.rank() => Self::Other(first),
            _ => Self::First(ranks.collect()),
        }
    }
}

/// The barrier; threads that wait at it at once wait for one after the other.
pub(super) struct LocalBarrier {
    shuffle: Shuffle,
    role: Role,
    /// Barriers that this rank has passed.
    passed: Mutex<u64>,
    heard: Arc<Heard>,
}

impl LocalBarrier {
    /// Opens its shuffle; collective over the whole job.
    pub fn open(job: &Job) -> Result<Self, Error> {
        let heard = Arc::new(Heard::default());
        let listener = Arc::clone(&heard);
        let shuffle = job
            .shuffle("(nexus: local barrier)")
            .options(options())
            .handler(move |message, _| {
                let mut counts = listener.lock();
                match message.kind {
                    ARRIVED => counts.arrived += 1,
                    _ => counts.released += 1,
                }
                drop(counts);
                listener.news.notify_all();
            })
            .open()?;
        Ok(Self {
            shuffle,
            role: Role::of(job.topology()),
            passed: Mutex::new(0),
            heard,
        })
    }

    /// Waits until all ranks of this node have come here as often as this one.
    ///
    /// # Errors
    /// A dead peer; a handler of the job calls this.
    pub fn wait(&self) -> Result<(), Error> {
        // Before anybody is told of an arrival.
        self.may_wait()?;
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let round = *passed + 1;
        match &self.role {
            Role::First(others) => {
                let expected = round * others.len() as u64;
                self.wait_until(|counts| counts.arrived >= expected)?;
                for &rank in others {
                    self.shuffle.send(rank, RELEASED, &[])?;
                }
                // Nobody waits for the age of these.
                self.shuffle.flush(Queues::ORIGIN)?;
            }
            Role::Other(first) => {
                self.shuffle.send(*first, ARRIVED, &[])?;
                self.shuffle.flush(Queues::ORIGIN)?;
                self.wait_until(|counts| counts.released >= round)?;
            }
        }
        *passed = round;
        Ok(())
    }

    /// Whether the caller may wait for others: a handler may not.
    ///
    /// # Errors
    /// A dead peer; a handler of the job calls this.
    pub fn may_wait(&self) -> Result<(), Error> {
        self.shuffle.flush(Queues::Delivery)
    }

    fn wait_until(&self, enough: impl Fn(&Counts) -> bool) -> Result<(), Error> {
        let mut counts = self.heard.lock();
        while !enough(&counts) {
            let waited = self.heard.news.wait_timeout(counts, LOOK);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            counts = back;
            if timeout.timed_out() {
                drop(counts);
                self.shuffle.flush(Queues::Delivery)?;
                counts = self.heard.lock();
            }
        }
        Ok(())
    }

    /// Closes its shuffle; collective over the whole job.
    pub fn close(self) -> Result<(), Error> {
        self.shuffle.shutdown()
    }
}

impl Heard {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Little memory: there are at most two messages under way for each rank of a node.
fn options() -> StreamOptions {
    StreamOptions {
        linger_us: 0,
        priority: u8::MAX,
        run_bytes: 64,
        memory_bytes: 64 << 10,
        spill_bytes: 4096,
        max_message_bytes: 8,
        remote_maxrpc: 1,
        remote_buftarget_bytes: 192,
        // As the shuffles', which have these links anyway.
        route: RouteName::ThreeHop(Rails::ONE),
        ..StreamOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_options_are_possible() {
        options().check().unwrap();
    }

    #[test]
    fn the_first_rank_of_a_node_gathers_the_others() {
        let sizes = [3, 1, 2];
        let role = |rank| Role::of(&Topology::from_node_sizes(&sizes, Rank(rank)).unwrap());
        assert!(matches!(role(0), Role::First(others) if others == [Rank(1), Rank(2)]));
        assert!(matches!(role(2), Role::Other(Rank(0))));
        assert!(matches!(role(3), Role::First(others) if others.is_empty()));
        assert!(matches!(role(5), Role::Other(Rank(4))));
    }
}
