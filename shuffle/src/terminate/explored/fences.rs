//! Fences and steps: who sends, hears or looks next. The ranks are the shipped collectives, fences
//! and steps; messages between two ranks keep their order, as on an edge.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{RANKS, World as Explored, explore};
use crate::engine::contribution::{Contribution, Contributors};
use crate::terminate::collective::{Collectives, Outgoing};
use crate::terminate::flush::{Counted, Fence};
use crate::terminate::step::Step;
use trihop_transport::topology::{Rank, Topology};

/// Waves after which a path is given up: a fence counts as long as messages are on their way.
const MOST_WAVES: u32 = 4;
const CHANNEL: u16 = 1;

/// What a program does, one after the other.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Sends to this rank, whose handler sends on, so many times, each to the next rank.
    Send(usize, u32),
    Done(u64),
}

#[derive(Debug, Clone)]
enum Ending {
    None,
    Fence(Fence),
    Step(Step),
}

#[derive(Debug, Clone)]
struct Member {
    acts: VecDeque<Act>,
    /// How the step ends that begins before the acts, or after them.
    ending: Ending,
    contribution: Contribution,
    collectives: Collectives,
    sent: u64,
    /// Has come, and is not handled.
    arrived: VecDeque<(usize, u32)>,
    delivered: u64,
    is_over: bool,
}

/// What a fence counts of a member.
struct Seen<'a>(&'a Member);

impl Counted for Seen<'_> {
    fn is_quiet(&self) -> bool {
        self.0.arrived.is_empty()
    }

    fn counts(&self) -> (u64, u64) {
        (self.0.sent, self.0.delivered)
    }

    fn hurry(&mut self) {}

    fn calm(&mut self) {}
}

#[derive(Debug, Clone)]
struct World {
    members: Vec<Member>,
    /// By sender and receiver.
    messages: Vec<VecDeque<u32>>,
    news: Vec<VecDeque<Outgoing>>,
}

#[derive(Debug, Clone, Copy)]
enum Choice {
    Act(usize),
    Arrive(usize, usize),
    Handle(usize),
    News(usize, usize),
    Look(usize),
}

impl World {
    fn new(acts: [&[Act]; RANKS], contributors: Option<[Contributors; RANKS]>) -> Self {
        let member = |(rank, acts): (usize, &[Act])| {
            let topology = Topology::from_node_sizes(&[RANKS as u32], Rank(rank as u32)).unwrap();
            let mut collectives = Collectives::new(&topology);
            let of = contributors.map(|contributors| contributors[rank]);
            let step = of.map(|of| Step::over(of, CHANNEL, &mut collectives));
            Member {
                acts: acts.iter().copied().collect(),
                ending: step.map_or(Ending::None, Ending::Step),
                contribution: of.map_or(Contribution::None, Contribution::new),
                collectives,
                sent: 0,
                arrived: VecDeque::new(),
                delivered: 0,
                is_over: false,
            }
        };
        let mut world = Self {
            members: acts.into_iter().enumerate().map(member).collect(),
            messages: vec![VecDeque::new(); RANKS * RANKS],
            news: vec![VecDeque::new(); RANKS * RANKS],
        };
        (0..RANKS).for_each(|rank| world.let_out(rank));
        world
    }

    fn send(&mut self, from: usize, to: usize, on: u32) {
        self.members[from].sent += 1;
        self.messages[from * RANKS + to].push_back(on);
    }

    /// Messages of collectives go to their edges.
    fn let_out(&mut self, rank: usize) {
        let collectives = &mut self.members[rank].collectives;
        assert!(collectives.take_mismatch().is_none());
        while let Some(out) = collectives.front() {
            self.news[rank * RANKS + out.target.0 as usize].push_back(out.clone());
            collectives.pop();
        }
    }

    fn look(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        // Who has no contributors calls a fence once it has sent everything.
        if matches!(member.ending, Ending::None) && member.acts.is_empty() {
            member.ending = Ending::Fence(Fence::default());
        }
        let (mut ending, mut collectives) = (member.ending.clone(), member.collectives.clone());
        let fence = match &mut ending {
            Ending::None => None,
            Ending::Fence(fence) => Some(fence),
            Ending::Step(step) => step.fence(&mut member.contribution, &mut collectives),
        };
        let is_over =
            fence.is_some_and(|f| f.poll_over(&mut Seen(member), CHANNEL, &mut collectives));
        (member.ending, member.collectives) = (ending, collectives);
        member.is_over = is_over;
        self.let_out(rank);
        if is_over {
            self.check_all_is_done();
        }
    }

    /// Where a step is over for anybody, nothing is left of it anywhere.
    fn check_all_is_done(&self) {
        for member in &self.members {
            assert!(member.acts.is_empty(), "somebody still sends: {self:#?}");
            assert!(member.arrived.is_empty(), "not handled: {self:#?}");
        }
        assert!(
            self.messages.iter().all(VecDeque::is_empty),
            "still under way: {self:#?}"
        );
    }

    fn waves(&self) -> u32 {
        let waves = |member: &Member| match &member.ending {
            Ending::Fence(fence) | Ending::Step(Step::Ending(fence)) => fence.rounds,
            _ => 0,
        };
        self.members.iter().map(waves).max().unwrap_or(0)
    }
}

impl Explored for World {
    type Choice = Choice;

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            choices.extend((!member.acts.is_empty()).then_some(Choice::Act(rank)));
            choices.extend((!member.arrived.is_empty()).then_some(Choice::Handle(rank)));
            choices.extend((!member.is_over).then_some(Choice::Look(rank)));
            for to in 0..RANKS {
                let edge = rank * RANKS + to;
                let (message, news) = (&self.messages[edge], &self.news[edge]);
                choices.extend((!message.is_empty()).then_some(Choice::Arrive(rank, to)));
                choices.extend((!news.is_empty()).then_some(Choice::News(rank, to)));
            }
        }
        choices
    }

    fn take(&mut self, choice: Choice) {
        match choice {
            Choice::Act(rank) => match self.members[rank].acts.pop_front().unwrap() {
                Act::Send(to, on) => self.send(rank, to, on),
                Act::Done(count) => self.members[rank].contribution.done(count).unwrap(),
            },
            Choice::Arrive(from, to) => {
                let on = self.messages[from * RANKS + to].pop_front().unwrap();
                self.members[to].arrived.push_back((from, on));
            }
            Choice::Handle(rank) => {
                let (_, on) = self.members[rank].arrived.pop_front().unwrap();
                self.members[rank].delivered += 1;
                if on > 0 {
                    self.send(rank, (rank + 1) % RANKS, on - 1);
                }
            }
            Choice::News(from, to) => {
                let out = self.news[from * RANKS + to].pop_front().unwrap();
                let collectives = &mut self.members[to].collectives;
                collectives
                    .receive(Rank(from as u32), out.kind, &out.bytes)
                    .unwrap();
                self.let_out(to);
            }
            Choice::Look(rank) => self.look(rank),
        }
    }

    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        hasher.finish()
    }

    fn is_given_up(&self) -> bool {
        self.waves() > MOST_WAVES
    }

    fn is_done(&self) -> bool {
        self.members.iter().all(|member| member.is_over)
    }
}
#[test]
fn a_fence_ends_when_all_is_handled_and_not_before() {
    let states = explore(World::new(
        [&[Act::Send(1, 1)], &[Act::Send(2, 0)], &[Act::Send(0, 0)]],
        None,
    ));
    eprintln!("{states} states");
}

#[test]
fn a_step_of_local_contributors_ends_when_all_are_done() {
    let of = [1, 0, 2].map(Contributors::Local);
    let acts: [&[Act]; RANKS] = [
        &[Act::Send(2, 1), Act::Done(1)],
        &[],
        &[Act::Send(1, 0), Act::Done(1), Act::Done(1)],
    ];
    eprintln!("{} states", explore(World::new(acts, Some(of))));
}

#[test]
fn a_step_of_all_contributors_ends_when_all_are_done() {
    let of = [Contributors::All(4); RANKS];
    let acts: [&[Act]; RANKS] = [
        &[Act::Send(1, 1), Act::Done(1)],
        &[Act::Done(1)],
        &[Act::Send(1, 0), Act::Done(2)],
    ];
    eprintln!("{} states", explore(World::new(acts, Some(of))));
    let none = [Contributors::All(0); RANKS];
    eprintln!("{} states", explore(World::new([&[]; RANKS], Some(none))));
}
