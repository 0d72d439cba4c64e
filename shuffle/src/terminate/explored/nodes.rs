//! Fences of several nodes: who sends, hears, handles, looks or hears of the count next. The ranks
//! are the shipped parts in the census of their node, and the shipped collectives.

use std::collections::VecDeque;

use trihop_transport::ring::Shipped;
use trihop_transport::ring::census::Counts;
use trihop_transport::topology::{Rank, Topology};

use super::censuses::Line;
use super::{News, World as Explored, explore};
use crate::queue::census::{Found, Part, Role};
use crate::route::Tree;
use crate::terminate::collective::{Collectives, Ticket};

/// Counts after which a path is given up: a fence counts as long as messages are on their way.
const MOST_COUNTS: u32 = 4;
const CHANNEL: u16 = 1;

/// To this rank, whose handler sends on so often, each to the two next ranks, of which the second
/// one's sends nothing.
type Sent = (usize, u32);

#[derive(Debug, Clone)]
struct Member {
    node: usize,
    sends: VecDeque<Sent>,
    part: Part,
    role: Role,
    collectives: Collectives,
    ticket: Option<Ticket>,
    is_in_fence: bool,
    is_over: bool,
    /// Has come, and is not handled.
    arrived: VecDeque<Message>,
    has: Counts,
    counts: u32,
}

#[derive(Debug, Clone)]
struct World {
    members: Vec<Member>,
    lines: Vec<Line>,
    /// By sender and receiver.
    messages: Vec<VecDeque<Message>>,
    news: News,
    /// The fence is of all streams together, and messages have no colour.
    of_all: bool,
    /// What this world does.
    twin: Twin,
}

/// What a world leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    Nothing,
    /// That ranks hide what they show before they send.
    Hiding,
    /// That messages have a colour.
    Colours,
    /// That what all streams have is counted twice.
    Twice,
}

/// A message, whose handlers send on so often.
#[derive(Debug, Clone, Copy)]
struct Message {
    colour: usize,
    on: u32,
}

#[derive(Debug, Clone, Copy)]
enum Choice {
    Send(usize),
    Arrive(usize),
    Handle(usize),
    News(usize),
    Look(usize),
}

impl World {
    fn new(nodes: &[u32], sends: &[&[Sent]], twin: Twin) -> Self {
        let member = |(rank, sends): (usize, &&[Sent])| {
            let topology = Topology::from_node_sizes(nodes, Rank(rank as u32)).unwrap();
            Member {
                node: topology.node().0 as usize,
                sends: sends.iter().copied().collect(),
                part: Part::default(),
                role: match Tree::speaker(&topology) == topology.rank() {
                    true => Role::Speaks,
                    false => Role::Passes,
                },
                collectives: Collectives::new(&topology),
                ticket: None,
                is_in_fence: false,
                is_over: false,
                arrived: VecDeque::new(),
                has: Counts::default(),
                counts: 0,
            }
        };
        let ranks = sends.len();
        Self {
            members: sends.iter().enumerate().map(member).collect(),
            lines: vec![Line::default(); ranks],
            messages: vec![VecDeque::new(); ranks * ranks],
            news: News::between(ranks),
            of_all: false,
            twin,
        }
    }

    /// The same, where the fence is of all streams.
    fn of_all(mut self) -> Self {
        let members = self.members.iter_mut();
        members.for_each(|member| member.part = Part::of_all());
        self.of_all = true;
        self
    }

    /// The rank that speaks for the node of this one.
    fn speaker_of(&self, rank: usize) -> usize {
        let node = self.members[rank].node;
        let speaks = |of: &Member| of.node == node && of.role == Role::Speaks;
        let speaker = self.members.iter().position(speaks);
        speaker.expect("each node has one")
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    fn send(&mut self, from: usize, to: usize, on: u32) {
        let edge = from * self.ranks() + to;
        let speaker = self.speaker_of(from);
        let member = &mut self.members[from];
        if self.of_all && self.twin != Twin::Hiding {
            self.lines[from].shown().hide::<Shipped>();
        } else if self.twin != Twin::Hiding && member.part.is_shown() {
            let speaker = Some(&self.lines[speaker].counted);
            member
                .part
                .hide::<_, Shipped>(self.lines[from].shown(), speaker);
        }
        member.has.sent += 1;
        let colour = match self.twin {
            _ if self.of_all => 0,
            Twin::Colours => 0,
            _ => member.part.colour(),
        };
        self.messages[edge].push_back(Message { colour, on });
    }

    fn look(&mut self, rank: usize) {
        let node = self.members[rank].node;
        let of_node = |at: &usize| self.members[*at].node == node;
        let here: Vec<usize> = (0..self.ranks()).filter(of_node).collect();
        let speaker = self.speaker_of(rank);
        let member = &mut self.members[rank];
        if !member.is_in_fence {
            member.ticket = member.collectives.begin_count(CHANNEL);
            member.part.begin(match member.ticket {
                Some(_) => member.role,
                None => Role::Told,
            });
            member.is_in_fence = true;
        }
        let is_quiet = member.arrived.is_empty();
        let counts = is_quiet.then_some(member.has);
        let own = &self.lines[rank];
        let speaker = Some(&self.lines[speaker].counted);
        let (is_over, tells) = loop {
            let all = Some(here.iter().map(|&at| self.lines[at].shown_to_nodes()));
            let (own, over) = (own.shown_to_nodes(), own.over);
            let found = (member.part).poll::<_, Shipped>(counts, own, over, all, speaker);
            let Some(ticket) = member.ticket else {
                break (found == Found::Heard, false);
            };
            if let Some(mut share) = member.part.owed(found) {
                if let (Twin::Twice, Found::All(counts)) = (self.twin, found) {
                    (share.delivered, share.ahead) = (counts.delivered, 0);
                }
                member.collectives.count(ticket, share);
                member.counts += 1;
            }
            match member.collectives.counted(ticket) {
                Some(false) => member.part.count_again(),
                is_over => break (is_over.is_some(), member.role == Role::Speaks),
            }
        };
        if is_over {
            let fence = member.part.come.censuses;
            member.part.rest::<_, Shipped>(own.shown(), speaker);
            (member.is_in_fence, member.is_over) = (false, true);
            let told = here.iter().filter(|_| tells);
            told.for_each(|&at| self.lines[at].over = fence);
        }
        self.news.let_out(rank, &mut self.members[rank].collectives);
        if is_over {
            self.check_all_is_done();
        }
    }

    /// Where the fence is over for anybody, nothing is left anywhere of what it waits for.
    fn check_all_is_done(&self) {
        for member in &self.members {
            assert!(member.sends.is_empty(), "over too early: {self:#?}");
            assert!(member.arrived.is_empty(), "over too early: {self:#?}");
        }
        let is_done = self.messages.iter().all(VecDeque::is_empty);
        assert!(is_done, "over too early: {self:#?}");
    }
}

impl Explored for World {
    type Choice = Choice;

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            choices.extend(match member.sends.is_empty() {
                false => Some(Choice::Send(rank)),
                true => (!member.is_over).then_some(Choice::Look(rank)),
            });
            choices.extend((!member.arrived.is_empty()).then_some(Choice::Handle(rank)));
        }
        let messages = self.messages.iter().enumerate();
        let under_way = messages.filter(|(_, of)| !of.is_empty());
        choices.extend(under_way.map(|(edge, _)| Choice::Arrive(edge)));
        choices.extend(self.news.under_way().map(Choice::News));
        choices
    }

    fn take(&mut self, choice: Choice) {
        let ranks = self.ranks();
        match choice {
            Choice::Send(rank) => {
                let (to, on) = self.members[rank].sends.pop_front().unwrap();
                self.send(rank, to, on);
            }
            Choice::Arrive(edge) => {
                let message = self.messages[edge].pop_front().unwrap();
                let member = &mut self.members[edge % ranks];
                member.has.heard[message.colour] += 1;
                member.arrived.push_back(message);
            }
            Choice::Handle(rank) => {
                let member = &mut self.members[rank];
                let Message { on, .. } = member.arrived.pop_front().unwrap();
                member.has.delivered += 1;
                if let Some(on) = on.checked_sub(1) {
                    self.send(rank, (rank + 1) % ranks, on);
                    self.send(rank, (rank + 2) % ranks, 0);
                }
            }
            Choice::News(edge) => {
                let members = &mut self.members;
                self.news.hear(edge, |to| &mut members[to].collectives);
            }
            Choice::Look(rank) => self.look(rank),
        }
    }

    fn is_given_up(&self) -> bool {
        self.members
            .iter()
            .any(|member| member.counts > MOST_COUNTS)
    }

    fn is_done(&self) -> bool {
        let mut members = self.members.iter();
        members.all(|member| member.is_over && member.collectives.is_still())
    }
}

fn explored(sends: [&[Sent]; 3], twin: Twin) {
    eprintln!("{} states", explore(World::new(&[2, 1], &sends, twin)));
}

#[test]
fn a_fence_of_two_nodes_is_over_when_all_is_handled_and_not_before() {
    explored([&[], &[(0, 1)], &[(1, 0)]], Twin::Nothing);
    explored([&[(2, 2)], &[], &[]], Twin::Nothing);
}

#[test]
fn a_fence_of_all_streams_of_two_nodes_is_over_when_all_is_handled_and_not_before() {
    let all: [[&[Sent]; 3]; 2] = [[&[], &[(0, 1)], &[(1, 0)]], [&[(2, 2)], &[], &[]]];
    for sends in all {
        let world = World::new(&[2, 1], &sends, Twin::Nothing).of_all();
        eprintln!("{} states", explore(world));
    }
}

#[test]
#[should_panic(expected = "over too early")]
fn twin_whose_ranks_show_what_all_streams_have_while_one_sends() {
    let sends: [&[Sent]; 3] = [&[], &[(0, 1)], &[(1, 0)]];
    explore(World::new(&[2, 1], &sends, Twin::Hiding).of_all());
}

#[test]
#[should_panic(expected = "over too early")]
fn twin_that_counts_all_streams_once() {
    let sends: [&[Sent]; 3] = [&[(2, 2)], &[], &[]];
    explore(World::new(&[2, 1], &sends, Twin::Twice).of_all());
}

#[test]
fn a_fence_of_all_streams_of_three_nodes_is_over_when_all_is_handled_and_not_before() {
    let sends: [&[Sent]; 4] = [&[], &[(3, 1)], &[], &[]];
    let world = World::new(&[2, 1, 1], &sends, Twin::Nothing).of_all();
    eprintln!("{} states", explore(world));
}

/// Of the first node one rank speaks, and another one passes on what the third node has.
#[test]
fn a_fence_of_three_nodes_is_over_when_all_is_handled_and_not_before() {
    let sends: [&[Sent]; 4] = [&[], &[(3, 1)], &[], &[]];
    let world = World::new(&[2, 1, 1], &sends, Twin::Nothing);
    let passes = |of: &&Member| of.node == 0 && of.role == Role::Passes;
    let passing = world.members.iter().find(passes).unwrap();
    let mut collectives = passing.collectives.clone();
    assert!(
        collectives.begin_count(CHANNEL).is_some(),
        "it is in the count"
    );
    eprintln!("{} states", explore(world));
}

#[test]
#[should_panic(expected = "over too early")]
fn twin_whose_ranks_show_while_they_send() {
    explored([&[], &[(0, 1)], &[(1, 0)]], Twin::Hiding);
}

#[test]
#[should_panic(expected = "over too early")]
fn twin_whose_messages_have_one_colour() {
    explored([&[(2, 2)], &[], &[]], Twin::Colours);
}
