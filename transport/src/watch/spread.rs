//! How news spreads from watch to watch. No I/O and no clock: events in, words to say out.

use crate::topology::{NodeId, Topology};

use super::board::MOST_LOST;
use super::news::{Cause, News};

/// News that a watch remembers, so that it tells each once. The first one ends the job, unless that
/// goes on without those that it loses; one more than those that it may lose does in any case.
const MAX_KNOWN: usize = 2 * MOST_LOST;

/// What a watch does about an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Tells a neighbour.
    Tell(NodeId, News),
    /// Tells the ranks of its own node.
    Post(News),
}

/// What one node's watch knows.
#[derive(Debug)]
pub(super) struct Spread {
    topology: Topology,
    /// Neighbours that are connected now.
    joined: Vec<NodeId>,
    known: Vec<News>,
    /// Some rank has seen all ranks arrive at the end of the job: who goes now does so properly.
    over: bool,
    /// The job goes on without those that it loses.
    goes_on: bool,
}

impl Spread {
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            joined: Vec::new(),
            known: Vec::new(),
            over: false,
            goes_on: false,
        }
    }

    /// The job goes on without those that it loses.
    pub fn go_on(&mut self) {
        self.goes_on = true;
    }

    /// Whether the job goes on after such news.
    fn goes_on_without(&self, news: &News) -> bool {
        self.goes_on && news.is_loss(&self.topology)
    }

    /// A neighbour is connected: it hears what is known already.
    pub fn joined(&mut self, node: NodeId) -> Vec<Action> {
        if !self.joined.contains(&node) {
            self.joined.push(node);
        }
        let tell = |news: &News| Action::Tell(node, news.clone());
        self.known.iter().map(tell).collect()
    }

    /// Whether this neighbour is connected.
    pub fn is_joined(&self, node: NodeId) -> bool {
        self.joined.contains(&node)
    }

    /// Something became known at this node.
    pub fn found(&mut self, news: News) -> Vec<Action> {
        self.learn(news, None)
    }

    /// A neighbour told something.
    pub fn heard(&mut self, from: NodeId, news: News) -> Vec<Action> {
        if news.rank.0 >= self.topology.size() {
            return Vec::new();
        }
        self.learn(news, Some(from))
    }

    /// A neighbour's connection has ended without a goodbye. Once there is news, all leave as they
    /// like.
    pub fn lost(&mut self, node: NodeId, cause: Cause) -> Vec<Action> {
        self.joined.retain(|&joined| joined != node);
        if self.over || !self.known.iter().all(|news| self.goes_on_without(news)) {
            return Vec::new();
        }
        let rank = self.topology.rank_at(node, 0);
        let cause = match cause {
            // The watch lives in the node's first agent, which ends with its job.
            Cause::Closed if self.topology.has_agents() => Cause::AgentEnded,
            cause => cause,
        };
        self.learn(News { rank, cause }, None)
    }

    /// A neighbour, or a rank of this node, says that all have arrived at the end.
    pub fn end(&mut self) {
        self.over = true;
    }

    /// Tells neighbours before the own node: a rank that hears of it here may end this process.
    fn learn(&mut self, news: News, from: Option<NodeId>) -> Vec<Action> {
        let is_known = |known: &News| {
            known.rank == news.rank && known.cause.is_of_node() == news.cause.is_of_node()
        };
        let old = self.known.iter().any(is_known);
        if self.over || old || self.known.len() >= MAX_KNOWN {
            return Vec::new();
        }
        self.known.push(news.clone());
        let others = self.joined.iter().filter(|&&node| Some(node) != from);
        let mut actions: Vec<Action> = others
            .map(|&node| Action::Tell(node, news.clone()))
            .collect();
        actions.push(Action::Post(news));
        actions
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::{BinaryHeap, HashSet};

    use super::*;
    use crate::seed;
    use crate::topology::Rank;
    use crate::watch::graph::neighbours;

    /// What happens to a watch at a time, in the order of times.
    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        Heard(u32, u32),
        Lost(u32),
    }

    /// A job of watches under virtual time: each word takes 50 us to 1 ms, and so does the end of a
    /// connection.
    struct Simulation {
        watches: Vec<Spread>,
        dead: HashSet<u32>,
        events: BinaryHeap<Reverse<(u64, u32, Event)>>,
        seed: u64,
        /// When each node had its first news.
        told_us: Vec<Option<u64>>,
    }

    impl Simulation {
        fn new(nodes: u32, ranks: u32, seed: u64) -> Self {
            let first = Topology::from_node_sizes(&vec![ranks; nodes as usize], Rank(0)).unwrap();
            let watch = |node: u32| {
                let mut spread = Spread::new(first.seen_from(Rank(node * ranks)).unwrap());
                for other in neighbours(NodeId(node), nodes) {
                    spread.joined(other);
                }
                spread
            };
            Self {
                watches: (0..nodes).map(watch).collect(),
                dead: HashSet::new(),
                events: BinaryHeap::new(),
                seed,
                told_us: vec![None; nodes as usize],
            }
        }

        fn random(&mut self) -> u64 {
            self.seed = self
                .seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            self.seed >> 33
        }

        fn later(&mut self, now_us: u64) -> u64 {
            now_us + 50 + self.random() % 950
        }

        /// The machine of `node` goes: its neighbours' connections end.
        fn kill(&mut self, node: u32) {
            self.dead.insert(node);
            for other in neighbours(NodeId(node), self.watches.len() as u32) {
                let at = self.later(0);
                self.events.push(Reverse((at, other.0, Event::Lost(node))));
            }
        }

        fn act(&mut self, now_us: u64, node: u32, actions: Vec<Action>) {
            for action in actions {
                match action {
                    Action::Tell(to, news) => {
                        let at = self.later(now_us);
                        self.events
                            .push(Reverse((at, to.0, Event::Heard(node, news.rank.0))));
                    }
                    Action::Post(_) => {
                        self.told_us[node as usize].get_or_insert(now_us);
                    }
                }
            }
        }

        fn run(&mut self) {
            while let Some(Reverse((now_us, node, event))) = self.events.pop() {
                if self.dead.contains(&node) {
                    continue;
                }
                let watch = &mut self.watches[node as usize];
                let actions = match event {
                    Event::Heard(from, rank) => {
                        let cause = Cause::Ended;
                        watch.heard(
                            NodeId(from),
                            News {
                                rank: Rank(rank),
                                cause,
                            },
                        )
                    }
                    Event::Lost(other) => watch.lost(NodeId(other), Cause::Closed),
                };
                self.act(now_us, node, actions);
            }
        }

        fn last_us(&self) -> u64 {
            let living = (0..)
                .zip(&self.told_us)
                .filter(|(node, _)| !self.dead.contains(node));
            living
                .map(|(node, told)| told.unwrap_or_else(|| panic!("node {node} hears nothing")))
                .max()
                .unwrap()
        }
    }

    #[test]
    fn news_of_one_rank_reaches_10_000_nodes_within_two_seconds() {
        let seed = seed::seed();
        for nodes in [2, 9, 10, 1000, 10_000] {
            let mut job = Simulation::new(nodes, 32, seed);
            let node = (job.random() % u64::from(nodes)) as u32;
            let news = News {
                rank: Rank(node * 32 + 31),
                cause: Cause::Ended,
            };
            let actions = job.watches[node as usize].found(news);
            job.act(0, node, actions);
            job.run();
            assert!(
                job.last_us() < 2_000_000,
                "{nodes} nodes: {} us",
                job.last_us()
            );
            eprintln!(
                "{nodes} nodes: the last one hears after {} us",
                job.last_us()
            );
        }
    }

    #[test]
    fn news_gets_around_the_dead_when_a_hundredth_of_10_000_nodes_dies_at_once() {
        let mut job = Simulation::new(10_000, 32, seed::seed());
        while job.dead.len() < 100 {
            let node = job.random() % 10_000;
            job.kill(node as u32);
        }
        job.run();
        assert!(job.last_us() < 2_000_000, "{} us", job.last_us());
        eprintln!(
            "10,000 nodes, 100 of them dead: the last one hears after {} us",
            job.last_us()
        );
    }

    fn watch(node: u32) -> Spread {
        let topology = Topology::from_node_sizes(&[2; 3], Rank(2 * node)).unwrap();
        let mut spread = Spread::new(topology);
        for other in (0..3).filter(|&other| other != node) {
            spread.joined(NodeId(other));
        }
        spread
    }

    #[test]
    fn each_news_is_told_once_and_never_to_who_told_it() {
        let news = News::failed(Rank(5), "why");
        let mut spread = watch(0);
        let actions = spread.heard(NodeId(2), news.clone());
        assert_eq!(
            actions,
            [
                Action::Tell(NodeId(1), news.clone()),
                Action::Post(news.clone())
            ]
        );
        assert!(
            spread.heard(NodeId(1), news.clone()).is_empty()
                && spread.found(news.clone()).is_empty()
        );
        // Who fails because of it leaves without a goodbye.
        assert!(spread.lost(NodeId(2), Cause::Closed).is_empty());
        // Who comes late hears it.
        assert_eq!(spread.joined(NodeId(2)), [Action::Tell(NodeId(2), news)]);
    }

    #[test]
    fn a_lost_connection_is_news_of_its_nodes_first_rank_unless_the_job_is_over() {
        let mut spread = watch(0);
        let news = News {
            rank: Rank(2),
            cause: Cause::Silent,
        };
        let told = [Action::Tell(NodeId(2), news.clone()), Action::Post(news)];
        assert_eq!(spread.lost(NodeId(1), Cause::Silent), told);
        let mut spread = watch(0);
        spread.end();
        assert!(spread.lost(NodeId(1), Cause::Closed).is_empty() && spread.known.is_empty());
    }

    #[test]
    fn ranks_outside_of_the_job_are_no_news() {
        assert!(
            watch(0)
                .heard(
                    NodeId(1),
                    News {
                        rank: Rank(6),
                        cause: Cause::Ended
                    }
                )
                .is_empty()
        );
    }

    #[test]
    fn each_loss_of_a_job_that_goes_on_is_told_once_and_a_failure_ends_it() {
        let topology = Topology::from_node_sizes(&[1, 1, 1], Rank(0)).unwrap();
        let topology = topology.with_agents(&[2, 2, 2]).unwrap();
        let news = |rank, cause| News {
            rank: Rank(rank),
            cause,
        };
        let new = |goes_on| {
            let mut spread = Spread::new(topology.clone());
            assert_eq!(
                (spread.joined(NodeId(1)), spread.joined(NodeId(2))),
                (vec![], vec![])
            );
            if goes_on {
                spread.go_on();
            }
            spread
        };
        let to_both = |news: News| {
            let tell = |node| Action::Tell(NodeId(node), news.clone());
            vec![tell(1), tell(2), Action::Post(news.clone())]
        };
        let mut spread = new(true);
        let ended = news(2, Cause::Ended);
        assert_eq!(spread.found(ended.clone()), to_both(ended.clone()));
        assert_eq!(spread.heard(NodeId(1), ended), vec![]);
        // Then that rank's node, whose number is the same.
        let of_node = news(2, Cause::AgentEnded);
        let told = [
            Action::Tell(NodeId(2), of_node.clone()),
            Action::Post(of_node),
        ];
        assert_eq!(spread.lost(NodeId(1), Cause::Closed), told);
        let failed = News::failed(Rank(4), "no room");
        let told = spread.heard(NodeId(2), failed.clone());
        assert_eq!(told, [Action::Post(failed)], "nobody else is left");
        assert_eq!(
            spread.lost(NodeId(2), Cause::Closed),
            vec![],
            "because of that"
        );
        // Else the first one ends it, and others follow from that.
        let mut spread = new(false);
        spread.found(news(3, Cause::Ended));
        assert_eq!(spread.lost(NodeId(1), Cause::Closed), vec![]);
    }
}
