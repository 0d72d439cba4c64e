//! The launcher's side of the bootstrap: a store of keys and a fence, as a state machine without
//! sockets.

use std::collections::HashMap;

use super::wire::{Reply, Request, VERSION};

/// Most bytes of values in the store.
const STORE_BYTES_MAX: usize = 256 << 20;

/// What a request leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this to a rank.
    Reply {
        /// Whom it is for.
        rank: u32,
        /// What it is.
        reply: Reply,
    },
    /// End the job.
    Abort {
        /// Who asks for it.
        rank: u32,
        /// With which exit status.
        status: i32,
        /// For which reason.
        why: String,
    },
}

/// Where a rank is, as far as fences are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Unseen,
    Connected,
    Arrived,
    Ended,
}

/// Store and fence of one job.
#[derive(Debug)]
pub struct Service {
    ranks: Vec<Presence>,
    /// What people know the ranks by, where that is not their numbers.
    agents: Option<Vec<u32>>,
    store: HashMap<(u32, String), Vec<u8>>,
    stored_bytes: usize,
    /// Why no fence completes any more.
    failed: Option<String>,
}

impl Service {
    /// The store of a job of so many ranks, of which none has greeted yet.
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks: vec![Presence::Unseen; ranks],
            agents: None,
            store: HashMap::new(),
            stored_bytes: 0,
            failed: None,
        }
    }

    /// The store of a job whose ranks are these agents.
    pub fn of_agents(agents: Vec<u32>) -> Self {
        let service = Self::new(agents.len());
        Self {
            agents: Some(agents),
            ..service
        }
    }

    /// The job has failed for this reason: who waits at a fence need not wait longer, and no fence
    /// completes any more. The first reason counts.
    pub fn fail(&mut self, why: String, effects: &mut Vec<Effect>) {
        self.failed.get_or_insert(why);
        self.fail_waiting(effects);
    }

    /// Takes a request of a rank.
    pub fn take(&mut self, rank: u32, request: Request, effects: &mut Vec<Effect>) {
        let reply = match request {
            Request::Hello {
                version,
                rank: said,
            } => self.greet(rank, version, said),
            Request::Put { key, value } => self.put(rank, key, value),
            Request::Get { rank: from, key } => Reply::Value(self.store.get(&(from, key)).cloned()),
            Request::Missing => Reply::Missing(self.missing()),
            Request::Finalize => Reply::Done,
            Request::Check => match &self.failed {
                Some(why) => Reply::Failed(why.clone()),
                None => Reply::Done,
            },
            Request::Fence => return self.arrive(rank, effects),
            Request::Join { .. } | Request::Quiet | Request::Follow => {
                Reply::Failed("this launcher has one job".into())
            }
            Request::Abort { status, why } => {
                effects.push(Effect::Abort { rank, status, why });
                Reply::Done
            }
        };
        effects.push(Effect::Reply { rank, reply });
    }

    /// A rank has ended, or takes no part any more: who waits for it at a fence need not wait
    /// longer. Others may end because of it: the first one is named, as people know it.
    pub fn end(&mut self, rank: u32, who: &str, effects: &mut Vec<Effect>) {
        self.ranks[rank as usize] = Presence::Ended;
        let why = format!("{who} has ended, or has left the job, and others wait for it");
        self.fail(why, effects);
    }

    /// A rank is there.
    pub fn has_come(&mut self, rank: u32) {
        self.ranks[rank as usize] = Presence::Connected;
    }

    fn greet(&mut self, rank: u32, version: u32, said: u32) -> Reply {
        if let Err(why) = check_greeting(rank, version, said) {
            return Reply::Failed(why);
        }
        self.has_come(rank);
        Reply::Done
    }

    fn put(&mut self, rank: u32, key: String, value: Vec<u8>) -> Reply {
        let place = (rank, key);
        let bytes = match self.store.get(&place) {
            Some(old) => self.stored_bytes - old.len() + value.len(),
            None => self.stored_bytes + place.1.len() + value.len(),
        };
        if bytes > STORE_BYTES_MAX {
            return Reply::Failed(format!(
                "the launcher's store holds at most {STORE_BYTES_MAX} bytes"
            ));
        }
        self.stored_bytes = bytes;
        self.store.insert(place, value);
        Reply::Done
    }

    fn arrive(&mut self, rank: u32, effects: &mut Vec<Effect>) {
        self.ranks[rank as usize] = Presence::Arrived;
        let all = self.ranks.iter().all(|p| *p == Presence::Arrived);
        if all && self.failed.is_none() {
            for rank in 0..self.ranks.len() as u32 {
                self.ranks[rank as usize] = Presence::Connected;
                effects.push(Effect::Reply {
                    rank,
                    reply: Reply::Done,
                });
            }
        } else {
            self.fail_waiting(effects);
        }
    }

    /// Once the job has failed, no fence completes.
    fn fail_waiting(&mut self, effects: &mut Vec<Effect>) {
        let Some(why) = self.failed.clone() else {
            return;
        };
        let waiting: Vec<u32> = self.ranks_that(|p| p == Presence::Arrived).collect();
        for rank in waiting {
            self.ranks[rank as usize] = Presence::Connected;
            effects.push(Effect::Reply {
                rank,
                reply: Reply::Failed(why.clone()),
            });
        }
    }

    fn missing(&self) -> String {
        let connected = self.names_of(Presence::Connected);
        let unseen = self.names_of(Presence::Unseen);
        match (connected.is_empty(), unseen.is_empty()) {
            (true, true) => "none".into(),
            (false, true) => connected,
            (true, false) => format!("{unseen} (never connected)"),
            (false, false) => format!("{connected}; {unseen} (never connected)"),
        }
    }

    fn names_of(&self, presence: Presence) -> String {
        let ranks = self.ranks_that(|p| p == presence);
        match &self.agents {
            None => ranges(ranks),
            Some(agents) => ranges(ranks.map(|rank| agents[rank as usize])),
        }
    }

    fn ranks_that(&self, which: impl Fn(Presence) -> bool) -> impl Iterator<Item = u32> {
        (0..)
            .zip(&self.ranks)
            .filter(move |(_, p)| which(**p))
            .map(|(rank, _)| rank)
    }
}

/// Whether the first words on the connection of `rank` are its own, in the version of this side.
///
/// # Errors
/// Why they are not.
pub fn check_greeting(rank: u32, version: u32, said: u32) -> Result<(), String> {
    if version != VERSION {
        return Err(format!(
            "rank {rank} speaks version {version} of the launcher protocol, its launcher speaks {VERSION}; \
             start one version everywhere"
        ));
    }
    match said == rank {
        true => Ok(()),
        false => Err(format!(
            "the connection of rank {rank} was used by rank {said}"
        )),
    }
}

/// Ascending ranks as text: `0, 3-5`.
pub fn ranges(ranks: impl Iterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let texts = runs.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(service: &mut Service, rank: u32, request: Request) -> Vec<Effect> {
        let mut effects = Vec::new();
        service.take(rank, request, &mut effects);
        effects
    }

    fn reply(rank: u32, reply: Reply) -> Effect {
        Effect::Reply { rank, reply }
    }

    fn hello(service: &mut Service, rank: u32) {
        assert_eq!(
            take(
                service,
                rank,
                Request::Hello {
                    version: VERSION,
                    rank
                }
            ),
            [reply(rank, Reply::Done)]
        );
    }

    #[test]
    fn a_fence_releases_all_at_once() {
        let mut service = Service::new(3);
        (0..3).for_each(|r| hello(&mut service, r));
        for _ in 0..2 {
            assert_eq!(take(&mut service, 2, Request::Fence), []);
            assert_eq!(take(&mut service, 0, Request::Fence), []);
            assert_eq!(
                take(&mut service, 0, Request::Missing),
                [reply(0, Reply::Missing("1".into()))]
            );
            assert_eq!(
                take(&mut service, 1, Request::Fence),
                [0, 1, 2].map(|r| reply(r, Reply::Done))
            );
        }
    }

    #[test]
    fn a_rank_that_ended_fails_the_fence_of_the_others() {
        let mut service = Service::new(3);
        (0..3).for_each(|r| hello(&mut service, r));
        take(&mut service, 0, Request::Fence);
        let mut effects = Vec::new();
        service.end(1, "rank 1", &mut effects);
        assert!(
            matches!(&effects[..], [Effect::Reply { rank: 0, reply: Reply::Failed(why) }] if why.starts_with("rank 1 "))
        );
        assert!(matches!(
            &take(&mut service, 2, Request::Fence)[..],
            [Effect::Reply {
                rank: 2,
                reply: Reply::Failed(_)
            }]
        ));
    }

    #[test]
    fn who_asks_hears_of_those_that_have_ended() {
        let mut service = Service::new(3);
        (0..3).for_each(|r| hello(&mut service, r));
        let done = reply(0, Reply::Done);
        assert_eq!(take(&mut service, 0, Request::Check), [done]);
        let mut effects = Vec::new();
        service.end(2, "rank 2", &mut effects);
        // Another one that has ended because of it.
        service.end(1, "rank 1", &mut effects);
        assert_eq!(effects, []);
        let why = "rank 2 has ended, or has left the job, and others wait for it".into();
        let failed = reply(0, Reply::Failed(why));
        assert_eq!(take(&mut service, 0, Request::Check), [failed]);
    }

    #[test]
    fn agents_are_named_by_their_own_numbers() {
        let mut service = Service::of_agents(vec![2, 5]);
        (0..2).for_each(|rank| service.has_come(rank));
        take(&mut service, 0, Request::Fence);
        let missing = reply(0, Reply::Missing("5".into()));
        assert_eq!(take(&mut service, 0, Request::Missing), [missing]);
    }

    #[test]
    fn a_job_that_has_failed_completes_no_fence() {
        let mut service = Service::new(2);
        (0..2).for_each(|r| hello(&mut service, r));
        take(&mut service, 0, Request::Fence);
        let mut effects = Vec::new();
        service.fail("the first reason".into(), &mut effects);
        service.fail("another one".into(), &mut effects);
        let failed = |rank| reply(rank, Reply::Failed("the first reason".into()));
        assert_eq!(effects, [failed(0)]);
        assert_eq!(take(&mut service, 1, Request::Fence), [failed(1)]);
        assert_eq!(take(&mut service, 0, Request::Fence), [failed(0)]);
    }

    #[test]
    fn values_are_kept_per_rank_and_replaced() {
        let mut service = Service::new(2);
        let put = |value: &[u8]| Request::Put {
            key: "k".into(),
            value: value.to_vec(),
        };
        let get = |rank| Request::Get {
            rank,
            key: "k".into(),
        };
        take(&mut service, 0, put(b"a"));
        take(&mut service, 0, put(b"bc"));
        assert_eq!(service.stored_bytes, b"k".len() + b"bc".len());
        assert_eq!(
            take(&mut service, 1, get(0)),
            [reply(1, Reply::Value(Some(b"bc".to_vec())))]
        );
        assert_eq!(
            take(&mut service, 1, get(1)),
            [reply(1, Reply::Value(None))]
        );
        assert_eq!(
            take(&mut service, 1, get(u32::MAX)),
            [reply(1, Reply::Value(None))]
        );
    }

    #[test]
    fn a_stranger_is_refused() {
        let mut service = Service::new(2);
        for (version, rank) in [(VERSION + 1, 0), (VERSION, 1)] {
            let effects = take(&mut service, 0, Request::Hello { version, rank });
            assert!(matches!(
                &effects[..],
                [Effect::Reply {
                    rank: 0,
                    reply: Reply::Failed(_)
                }]
            ));
        }
        assert_eq!(service.missing(), "0-1 (never connected)");
    }

    #[test]
    fn ranks_are_written_as_ranges() {
        assert_eq!(ranges([0, 1, 2, 5, 7, 8].into_iter()), "0-2, 5, 7-8");
        assert_eq!(ranges([].into_iter()), "");
    }
}
