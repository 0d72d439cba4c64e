//! Fences of all streams, and steps: who sends, hears or looks next. The ranks, of one node, are
//! the shipped collectives and steps, and the shipped parts in a census; messages between two ranks
//! keep their order, as on an edge.

use std::collections::VecDeque;

use super::censuses::Line;
use super::{News, RANKS, World as Explored, explore};
use crate::engine::contribution::{Contribution, Contributors};
use crate::queue::census::{Found, Part, Role};
use crate::terminate::collective::Collectives;
use crate::terminate::step::Step;
use trihop_transport::ring::Shipped;
use trihop_transport::ring::census::Counts;
use trihop_transport::topology::{Rank, Topology};

const CHANNEL: u16 = 1;

/// What a program does, one after the other.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Sends to this rank, whose handler sends on, so many times, each to the next rank on the next
    /// stream; each but the last to the other rank, too, whose handler does not.
    Send(usize, u32),
    Done(u64),
}

#[derive(Debug, Clone)]
enum Ending {
    None,
    Fence,
    Step(Step),
}

#[derive(Debug, Clone)]
struct Member {
    acts: VecDeque<Act>,
    /// How the step ends that begins before the acts, or after them.
    ending: Ending,
    contribution: Contribution,
    collectives: Collectives,
    streams: Vec<Stream>,
    part: Part,
    is_in_fence: bool,
    is_over: bool,
}

/// What a rank knows of a stream.
#[derive(Debug, Clone, Default)]
struct Stream {
    sent: u64,
    /// Has come, and is not handled.
    arrived: VecDeque<u32>,
    delivered: u64,
}

#[derive(Debug, Clone)]
struct World {
    members: Vec<Member>,
    lines: Vec<Line>,
    /// By stream, sender and receiver.
    messages: Vec<VecDeque<u32>>,
    news: News,
    /// Whichever stream sends hides what its rank shows.
    hides: bool,
}

#[derive(Debug, Clone, Copy)]
enum Choice {
    Act(usize),
    Arrive { edge: usize },
    Handle(usize, usize),
    News(usize),
    Look(usize),
}

impl World {
    fn new(acts: [&[Act]; RANKS], contributors: Option<[Contributors; RANKS]>) -> Self {
        Self::of(1, acts, contributors)
    }

    /// A job of so many streams, which end together.
    fn of(
        streams: usize,
        acts: [&[Act]; RANKS],
        contributors: Option<[Contributors; RANKS]>,
    ) -> Self {
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
                streams: vec![Stream::default(); streams],
                part: Part::of_all(),
                is_in_fence: false,
                is_over: false,
            }
        };
        let mut world = Self {
            members: acts.into_iter().enumerate().map(member).collect(),
            lines: vec![Line::default(); RANKS],
            messages: vec![VecDeque::new(); streams * RANKS * RANKS],
            news: News::between(RANKS),
            hides: true,
        };
        (0..RANKS).for_each(|rank| world.let_out(rank));
        world
    }

    fn send(&mut self, stream: usize, from: usize, to: usize, on: u32) {
        let stream = stream % self.members[from].streams.len();
        if self.hides {
            self.lines[from].shown().hide::<Shipped>();
        }
        self.members[from].streams[stream].sent += 1;
        self.messages[(stream * RANKS + from) * RANKS + to].push_back(on);
    }

    fn let_out(&mut self, rank: usize) {
        self.news.let_out(rank, &mut self.members[rank].collectives);
    }

    fn look(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        // Who has no contributors calls a fence once it has sent everything.
        if matches!(member.ending, Ending::None) && member.acts.is_empty() {
            member.ending = Ending::Fence;
        }
        let fences = match &mut member.ending {
            Ending::None => false,
            Ending::Fence => true,
            Ending::Step(step) => {
                let fence = step.fence(&mut member.contribution, &mut member.collectives);
                fence.is_some()
            }
        };
        let is_over = fences && self.is_over(rank);
        self.members[rank].is_over = is_over;
        self.let_out(rank);
        if is_over {
            self.check_all_is_done();
        }
    }

    /// Whether its fence is over, as a rank knows.
    fn is_over(&mut self, rank: usize) -> bool {
        let member = &mut self.members[rank];
        if !std::mem::replace(&mut member.is_in_fence, true) {
            member.part.begin(Role::Told);
        }
        let is_quiet = member.streams.iter().all(|of| of.arrived.is_empty());
        let counts = is_quiet.then(|| Counts {
            sent: member.streams.iter().map(|of| of.sent).sum(),
            delivered: member.streams.iter().map(|of| of.delivered).sum(),
            ..Counts::default()
        });
        let own = &self.lines[rank];
        let all = Some(self.lines.iter().map(Line::shown));
        let found = (member.part).poll::<_, Shipped>(counts, own.shown(), own.over, all, None);
        let is_end = matches!(found, Found::All(all) if all.sent == all.delivered);
        if is_end {
            let fence = member.part.come.censuses;
            member.part.rest::<_, Shipped>(own.shown(), None);
            self.lines.iter_mut().for_each(|line| line.over = fence);
        }
        is_end || found == Found::Heard
    }

    /// Where a step is over for anybody, nothing is left of it anywhere.
    fn check_all_is_done(&self) {
        for member in &self.members {
            assert!(member.acts.is_empty(), "somebody still sends: {self:#?}");
            let mut streams = member.streams.iter();
            let is_handled = streams.all(|of| of.arrived.is_empty());
            assert!(is_handled, "not handled: {self:#?}");
        }
        assert!(
            self.messages.iter().all(VecDeque::is_empty),
            "still under way: {self:#?}"
        );
    }
}

impl Explored for World {
    type Choice = Choice;

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            choices.extend((!member.acts.is_empty()).then_some(Choice::Act(rank)));
            for (stream, of) in member.streams.iter().enumerate() {
                choices.extend((!of.arrived.is_empty()).then_some(Choice::Handle(rank, stream)));
            }
            choices.extend((!member.is_over).then_some(Choice::Look(rank)));
        }
        choices.extend(self.news.under_way().map(Choice::News));
        let messages = self.messages.iter().enumerate();
        let under_way = messages.filter(|(_, messages)| !messages.is_empty());
        choices.extend(under_way.map(|(edge, _)| Choice::Arrive { edge }));
        choices
    }

    fn take(&mut self, choice: Choice) {
        match choice {
            Choice::Act(rank) => match self.members[rank].acts.pop_front().unwrap() {
                Act::Send(to, on) => self.send(0, rank, to, on),
                Act::Done(count) => self.members[rank].contribution.done(count).unwrap(),
            },
            Choice::Arrive { edge } => {
                let on = self.messages[edge].pop_front().unwrap();
                let (stream, to) = (edge / (RANKS * RANKS), edge % RANKS);
                self.members[to].streams[stream].arrived.push_back(on);
            }
            Choice::Handle(rank, stream) => {
                let of = &mut self.members[rank].streams[stream];
                let on = of.arrived.pop_front().unwrap();
                of.delivered += 1;
                if on > 0 {
                    self.send(stream + 1, rank, (rank + 1) % RANKS, on - 1);
                }
                if on > 1 {
                    self.send(stream + 1, rank, (rank + 2) % RANKS, 0);
                }
            }
            Choice::News(edge) => {
                let members = &mut self.members;
                self.news.hear(edge, |to| &mut members[to].collectives);
            }
            Choice::Look(rank) => self.look(rank),
        }
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

/// As the fence of a job, whose handlers send on other streams than they hear.
#[test]
fn a_fence_of_two_streams_ends_when_all_is_handled_and_not_before() {
    let acts: [&[Act]; RANKS] = [&[Act::Send(1, 2)], &[Act::Send(0, 0)], &[]];
    eprintln!("{} states", explore(World::of(2, acts, None)));
}

#[test]
#[should_panic(expected = "under way")]
fn twin_whose_streams_send_while_their_rank_shows() {
    let acts: [&[Act]; RANKS] = [&[Act::Send(1, 2)], &[Act::Send(0, 0)], &[]];
    let world = World::of(2, acts, None);
    explore(World {
        hides: false,
        ..world
    });
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
