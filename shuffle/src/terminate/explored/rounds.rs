//! Rounds: who sends, moves a frame or looks next. What a rank marks, holds back and waits for is
//! decided by the shipped [`Rounds`], and where frames go by shipped routes. What lies between is a
//! model: edges keep the order of their frames and have room for few, and all links into a rank
//! share one slot.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::{RANKS, World as Explored, explore};
use crate::engine::rounds::{Rounds, Task};
use crate::queue::Input;
use crate::route::{JobRoute, Next, Stage};
use trihop_transport::topology::{Rank, Topology};

/// Frames that a queue has room for.
const ROOM: usize = 1;
/// Batches into a rank that may be there and not done, over all its links.
const SLOTS: usize = 1;

/// What a program does, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Act {
    Send(u32),
    /// Ends the round, and goes on when that is over.
    End,
}
use Act::{End, Send};

/// What is left out, so that something must go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weakness {
    None,
    /// Messages that follow a mark are taken at once.
    HoldsNoMessages,
    /// What waits for the next round keeps its slot.
    SetsNothingAside,
    /// Marks do not wait for what the rank has sent itself.
    GathersNothing,
    /// A rank is through though others wait for what it has to post.
    LetsNothingGo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Frame {
    Mark,
    Message { target: u32, round: usize },
}

/// An edge, one way.
#[derive(Debug, Clone, Copy)]
struct Way {
    from: u32,
    to: u32,
    stage: Stage,
    is_lane: bool,
    input: Input,
}

/// What does not change.
#[derive(Debug)]
struct Job {
    routes: Vec<JobRoute>,
    ways: Vec<Way>,
    /// By rank, how many messages it gets in each round.
    expected: Vec<Vec<usize>>,
    weakness: Weakness,
}

impl Job {
    fn way(&self, from: u32, to: u32, stage: Stage) -> usize {
        let is_it = |way: &Way| (way.from, way.to, way.stage) == (from, to, stage);
        self.ways.iter().position(is_it).expect("an edge")
    }
}

/// What lies on an edge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Queue {
    /// Of a link: not posted yet.
    waiting: VecDeque<Frame>,
    /// To be seen by the other end; of a link, in a slot.
    shown: VecDeque<Frame>,
    /// Of a link: out of its slot, for the next round.
    aside: VecDeque<Frame>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Member {
    acts: VecDeque<Act>,
    /// Sent, and in no queue yet.
    open: VecDeque<Frame>,
    rounds: Rounds,
    is_ending: bool,
    round: usize,
    got: usize,
}

impl Member {
    /// Whether its program is through, and calls nothing any more.
    fn is_through(&self) -> bool {
        self.acts.is_empty() && (!self.is_ending || self.rounds.task() == Task::Rest)
    }
}

#[derive(Debug, Clone)]
struct World {
    job: Arc<Job>,
    members: Vec<Member>,
    queues: Vec<Queue>,
}

#[derive(Debug, Clone, Copy)]
enum Choice {
    Act(usize),
    /// What a rank has sent goes into its queue.
    Emit(usize),
    Look(usize),
    /// The program hears that its round is over.
    GoOn(usize),
    Post(usize),
    Move(usize),
}

impl World {
    fn new(route: &str, nodes: &[u32], acts: [&[Act]; RANKS], weakness: Weakness) -> Self {
        let route_of = |rank| {
            let topology = Topology::from_node_sizes(nodes, Rank(rank)).unwrap();
            JobRoute::new(route.parse().unwrap(), &topology).unwrap()
        };
        let routes: Vec<JobRoute> = (0..RANKS as u32).map(route_of).collect();
        let mut ways = Vec::new();
        for (from, route) in (0..).zip(&routes) {
            for stage in route.numbers() {
                for end in (0..route.all_edges(stage)).map(|n| route.edge_of_all(stage, n)) {
                    let is_lane = route.is_lane(end, stage);
                    let input = Input(from * 10 + u32::from(stage.number()));
                    ways.push(Way {
                        from,
                        to: end.0,
                        stage,
                        is_lane,
                        input,
                    });
                }
            }
        }
        let rounds = acts[0].iter().filter(|&&act| act == End).count();
        let mut expected = vec![vec![0; rounds]; RANKS];
        for acts in acts {
            let mut round = 0;
            for act in acts {
                match *act {
                    Send(target) => expected[target as usize][round] += 1,
                    End => round += 1,
                }
            }
            assert_eq!(
                (round, acts.last()),
                (rounds, Some(&End)),
                "all end as many"
            );
        }
        let member = |(route, acts): (&JobRoute, &[Act])| Member {
            acts: acts.iter().copied().collect(),
            open: VecDeque::new(),
            rounds: Rounds::new(route),
            is_ending: false,
            round: 0,
            got: 0,
        };
        Self {
            members: routes.iter().zip(acts).map(member).collect(),
            queues: vec![Queue::default(); ways.len()],
            job: Arc::new(Job {
                routes,
                ways,
                expected,
                weakness,
            }),
        }
    }

    fn is_weak(&self, weakness: Weakness) -> bool {
        self.job.weakness == weakness
    }

    /// Adds a frame to the queue of an edge; false where that has no room.
    fn push(&mut self, from: usize, to: u32, stage: Stage, frame: Frame) -> bool {
        let at = self.job.way(from as u32, to, stage);
        let queue = &mut self.queues[at];
        let queue = match self.job.ways[at].is_lane {
            true => &mut queue.shown,
            false => &mut queue.waiting,
        };
        let has_room = queue.len() < ROOM;
        if has_room {
            queue.push_back(frame);
        }
        has_room
    }

    /// Sends a message on from a rank that it has come to; false where there is no room.
    fn forward(&mut self, rank: usize, at: Stage, frame: Frame, target: u32) -> bool {
        match self.job.routes[rank].next(at, Rank(target)).expect("a way") {
            Next::Deliver => {
                let Frame::Message { round, .. } = frame else {
                    unreachable!("marks are heard")
                };
                let member = &mut self.members[rank];
                assert_eq!(round, member.round, "rank {rank} in the wrong round");
                member.got += 1;
                true
            }
            Next::To(end, stage) => self.push(rank, end.0, stage, frame),
        }
    }

    /// What a rank has sent goes into queues; true when all has.
    fn emit(&mut self, rank: usize, most: usize) -> bool {
        for _ in 0..most {
            let Some(&frame) = self.members[rank].open.front() else {
                break;
            };
            let Frame::Message { target, .. } = frame else {
                unreachable!("marks are not gathered")
            };
            if !self.forward(rank, Stage::SOURCE, frame, target) {
                break;
            }
            self.members[rank].open.pop_front();
        }
        self.members[rank].open.is_empty()
    }

    /// As `Round::poll` does.
    fn look(&mut self, rank: usize) {
        loop {
            let is_done = match self.members[rank].rounds.task() {
                Task::Begin | Task::HandOver => true,
                Task::Gather => {
                    self.is_weak(Weakness::GathersNothing) || self.emit(rank, usize::MAX)
                }
                Task::Mark(stage, number) => {
                    let end = self.job.routes[rank].edge_of_all(stage, number);
                    self.push(rank, end.0, stage, Frame::Mark)
                }
                Task::LetGo => {
                    let ways = self.job.ways.iter().zip(&self.queues);
                    let mut own = ways.filter(|(way, _)| way.from as usize == rank);
                    self.is_weak(Weakness::LetsNothingGo)
                        || own.all(|(_, queue)| queue.waiting.is_empty())
                }
                Task::Listen | Task::Rest => false,
            };
            if !is_done {
                return;
            }
            self.members[rank].rounds.advance();
        }
    }

    /// The round is over for a rank.
    fn go_on(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        let expected = self.job.expected[rank][member.round];
        assert_eq!(member.got, expected, "rank {rank}, round {}", member.round);
        member.rounds.end();
        (member.round, member.got) = (member.round + 1, 0);
        member.is_ending = false;
    }

    fn has_slot(&self, rank: u32) -> bool {
        let ways = self.job.ways.iter().zip(&self.queues);
        let into = ways.filter(|(way, _)| way.to == rank && !way.is_lane);
        into.map(|(_, queue)| queue.shown.len()).sum::<usize>() < SLOTS
    }

    /// The first frame of an edge moves on at the other end, if it can.
    fn advance(&mut self, at: usize) {
        let way = self.job.ways[at];
        let rank = way.to as usize;
        let queue = &mut self.queues[at];
        let is_aside = !queue.aside.is_empty();
        let frames = if is_aside { &queue.aside } else { &queue.shown };
        let Some(&frame) = frames.front() else { return };
        let may_pass = self.job.weakness == Weakness::HoldsNoMessages && frame != Frame::Mark;
        if self.members[rank].rounds.holds(way.input) && !may_pass {
            if !way.is_lane && self.job.weakness != Weakness::SetsNothingAside {
                queue.aside.extend(queue.shown.drain(..));
            }
            return;
        }
        let has_moved = match frame {
            Frame::Mark => {
                self.members[rank].rounds.hear(way.stage, way.input);
                true
            }
            Frame::Message { target, .. } => self.forward(rank, way.stage, frame, target),
        };
        let queue = &mut self.queues[at];
        match has_moved {
            true if is_aside => drop(queue.aside.pop_front()),
            true => drop(queue.shown.pop_front()),
            false => {}
        }
    }
}

impl Explored for World {
    type Choice = Choice;

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            let is_over = member.is_ending && member.rounds.task() == Task::Rest;
            let acts = !member.is_ending && !member.acts.is_empty();
            choices.extend(acts.then_some(Choice::Act(rank)));
            choices.extend((!member.open.is_empty()).then_some(Choice::Emit(rank)));
            choices.extend((member.is_ending && !is_over).then_some(Choice::Look(rank)));
            choices.extend(is_over.then_some(Choice::GoOn(rank)));
        }
        for (at, (way, queue)) in self.job.ways.iter().zip(&self.queues).enumerate() {
            let is_there = |rank: u32| !self.members[rank as usize].is_through();
            let is_in_flight = !queue.shown.is_empty() || !queue.aside.is_empty();
            let may_post = !queue.waiting.is_empty() && !is_in_flight && self.has_slot(way.to);
            choices.extend((may_post && is_there(way.from)).then_some(Choice::Post(at)));
            choices.extend((is_in_flight && is_there(way.to)).then_some(Choice::Move(at)));
        }
        choices
    }

    fn take(&mut self, choice: Choice) {
        match choice {
            Choice::Act(rank) => {
                let member = &mut self.members[rank];
                let round = member.round;
                match member.acts.pop_front().expect("an act") {
                    Send(target) => member.open.push_back(Frame::Message { target, round }),
                    End => member.is_ending = true,
                }
            }
            Choice::Emit(rank) => drop(self.emit(rank, 1)),
            Choice::Look(rank) => self.look(rank),
            Choice::GoOn(rank) => self.go_on(rank),
            Choice::Post(at) => {
                let queue = &mut self.queues[at];
                queue.shown.extend(queue.waiting.pop_front());
            }
            Choice::Move(at) => self.advance(at),
        }
    }

    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.members, &self.queues).hash(&mut hasher);
        hasher.finish()
    }

    fn is_done(&self) -> bool {
        let has_ended = |member: &Member| member.acts.is_empty() && !member.is_ending;
        let is_empty = |queue: &Queue| *queue == Queue::default();
        self.members.iter().all(has_ended) && self.queues.iter().all(is_empty)
    }
}

const JOBS: [(&str, &[u32]); 3] = [
    // All three stages: lanes to a representative, a link, lanes from there.
    ("three-hop:1", &[2, 1]),
    // Lanes, and one place of four is missing: rank 1 stands in for it.
    ("mesh:2x2", &[3]),
    // The same over links.
    ("mesh:2x2", &[1, 1, 1]),
];

/// All orders of these acts on each of the jobs.
fn explore_all(acts: [&[Act]; RANKS]) {
    for (route, nodes) in JOBS {
        let states = explore(World::new(route, nodes, acts, Weakness::None));
        eprintln!("{route} on {nodes:?}: {states} states");
    }
}

#[test]
fn a_round_without_messages_ends_for_all() {
    explore_all([&[End]; RANKS]);
}

#[test]
fn a_round_has_its_messages_relayed_ones_and_those_to_oneself() {
    explore_all([&[Send(2), End], &[Send(1), End], &[Send(0), End]]);
}

/// Ranks go on as soon as a round has ended for them: marks and messages of the second lie behind
/// the marks of the first.
#[test]
fn nothing_of_the_next_round_is_delivered_in_this_one() {
    explore_all([&[End, End]; RANKS]);
    explore_all([&[End, Send(2), End], &[End, End], &[Send(0), End, End]]);
    explore_all([
        &[Send(1), End, Send(2), End],
        &[End, Send(1), End],
        &[End, End],
    ]);
}

/// All orders on one of the jobs, with something left out.
fn explore_weakened(job: usize, acts: [&[Act]; RANKS], weakness: Weakness) {
    let (route, nodes) = JOBS[job];
    explore(World::new(route, nodes, acts, weakness));
}

#[test]
#[should_panic(expected = "in the wrong round")]
fn a_rank_that_does_not_hold_back_the_next_round_gets_it_in_this_one() {
    let acts: [&[Act]; RANKS] = [&[End, Send(2), End], &[End, End], &[End, End]];
    explore_weakened(0, acts, Weakness::HoldsNoMessages);
}

#[test]
#[should_panic(expected = "stuck")]
fn batches_of_the_next_round_that_keep_their_slots_stop_this_one() {
    explore_weakened(2, [&[End, End]; RANKS], Weakness::SetsNothingAside);
}

#[test]
#[should_panic(expected = "round 0")]
fn a_mark_that_does_not_wait_for_own_sends_ends_a_round_without_them() {
    let acts: [&[Act]; RANKS] = [&[Send(1), End], &[End], &[End]];
    explore_weakened(1, acts, Weakness::GathersNothing);
}

#[test]
#[should_panic(expected = "stuck")]
fn a_rank_that_is_through_before_its_marks_have_left_stops_the_others() {
    explore_weakened(2, [&[End]; RANKS], Weakness::LetsNothingGo);
}
