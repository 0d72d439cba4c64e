//! Fences of one node: who sends, hears, handles or looks next. The ranks are the shipped parts in
//! a census, over words of one thread: each step here is whole, and `loom-tests/` has what may come
//! in between. Ranks go through two fences, so that some are in the second while others have not
//! heard of the end of the first.

use std::cell::Cell;
use std::collections::VecDeque;

use trihop_transport::ring::Shipped;
use trihop_transport::ring::census::{COLOURS, Counts, Shown};
use trihop_transport::sync::{Ordering, Word};

use super::{RANKS, World as Explored, explore};
use crate::queue::census::{Found, Part, Role};

/// Fences that each rank goes through.
const FENCES: u64 = 2;

/// A word of one thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Plain(Cell<u64>);

impl Word for Plain {
    fn load(&self, _: Ordering) -> u64 {
        self.0.get()
    }

    fn store(&self, value: u64, _: Ordering) {
        self.0.set(value);
    }

    fn swap(&self, value: u64, _: Ordering) -> u64 {
        self.0.replace(value)
    }

    fn fetch_or(&self, bits: u64, _: Ordering) -> u64 {
        self.0.replace(self.0.get() | bits)
    }

    fn fetch_add(&self, more: u64, _: Ordering) -> u64 {
        self.0.replace(self.0.get().wrapping_add(more))
    }

    fn replace(&self, old: u64, new: u64, _: Ordering) -> bool {
        let is_old = self.0.get() == old;
        if is_old {
            self.0.set(new);
        }
        is_old
    }
}

/// What a rank shows, and the last census of whose end it was told.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    number: Plain,
    census: Plain,
    sent: Plain,
    delivered: Plain,
    heard: [Plain; COLOURS],
    /// The count of all nodes that its rank has begun.
    pub counted: Plain,
    pub over: u64,
}

impl Line {
    pub fn shown(&self) -> Shown<'_, Plain> {
        Shown {
            number: &self.number,
            census: &self.census,
            sent: &self.sent,
            delivered: &self.delivered,
            heard: None,
        }
    }

    /// As other nodes have it.
    pub fn shown_to_nodes(&self) -> Shown<'_, Plain> {
        Shown {
            heard: Some(self.heard.each_ref()),
            ..self.shown()
        }
    }
}

/// The fence before whose end a message is to be handled, and how often its handlers send on, each
/// to both other ranks, of which the second one's sends nothing.
#[derive(Debug, Clone, Copy)]
struct Message {
    fence: u64,
    on: u32,
}

/// A send before a fence: to this rank, and sent on so often.
type Sent = (usize, u32);

#[derive(Debug, Clone)]
struct Member {
    /// Before each fence that has not begun.
    sends: VecDeque<VecDeque<Sent>>,
    part: Part,
    is_in_fence: bool,
    /// Has come, and is not handled.
    arrived: VecDeque<Message>,
    sent: u64,
    delivered: u64,
}

#[derive(Debug, Clone)]
struct World {
    members: Vec<Member>,
    lines: Vec<Line>,
    /// By sender and receiver.
    messages: Vec<VecDeque<Message>>,
    /// Ranks hide what they show before they send.
    hides: bool,
}

#[derive(Debug, Clone, Copy)]
enum Choice {
    Send(usize),
    Arrive(usize),
    Handle(usize),
    Look(usize),
}

impl World {
    fn new(sends: [[&[Sent]; FENCES as usize]; RANKS], hides: bool) -> Self {
        let member = |sends: [&[Sent]; FENCES as usize]| Member {
            sends: sends.map(|of| of.iter().copied().collect()).into(),
            part: Part::default(),
            is_in_fence: false,
            arrived: VecDeque::new(),
            sent: 0,
            delivered: 0,
        };
        Self {
            members: sends.map(member).into(),
            lines: vec![Line::default(); RANKS],
            messages: vec![VecDeque::new(); RANKS * RANKS],
            hides,
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let member = &mut self.members[from];
        if self.hides && member.part.is_shown() {
            member
                .part
                .hide::<_, Shipped>(self.lines[from].shown(), None);
        }
        member.sent += 1;
        self.messages[from * RANKS + to].push_back(message);
    }

    fn look(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if !member.is_in_fence {
            member.sends.pop_front();
            member.part.begin(Role::Told);
            member.is_in_fence = true;
        }
        let is_quiet = member.arrived.is_empty();
        let counts = is_quiet.then_some(Counts {
            sent: member.sent,
            delivered: member.delivered,
            ..Counts::default()
        });
        let own = &self.lines[rank];
        let all = self.lines.iter().map(Line::shown);
        let found =
            (member.part).poll::<_, Shipped>(counts, own.shown(), own.over, Some(all), None);
        let fence = member.part.come.censuses;
        let is_end = matches!(found, Found::All(all) if all.sent == all.delivered);
        if is_end {
            member.part.rest::<_, Shipped>(own.shown(), None);
            self.lines.iter_mut().for_each(|line| line.over = fence);
        }
        member.is_in_fence = !is_end && found != Found::Heard;
        if !member.is_in_fence {
            self.check_is_done(fence);
        }
    }

    /// Where a fence is over for anybody, nothing is left of what it waits for.
    fn check_is_done(&self, fence: u64) {
        for member in &self.members {
            let come = member.part.come.censuses;
            assert!(
                come >= fence,
                "over too early, somebody has not come: {self:#?}"
            );
            let is_handled = member.arrived.iter().all(|of| of.fence > fence);
            assert!(is_handled, "over too early, not handled: {self:#?}");
        }
        let mut under_way = self.messages.iter().flatten();
        let is_done = under_way.all(|of| of.fence > fence);
        assert!(is_done, "over too early, still under way: {self:#?}");
    }
}

impl Explored for World {
    type Choice = Choice;

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            let to_send = member.sends.front().filter(|_| !member.is_in_fence);
            choices.extend(match to_send {
                Some(sends) if !sends.is_empty() => Some(Choice::Send(rank)),
                None if !member.is_in_fence => None,
                _ => Some(Choice::Look(rank)),
            });
            choices.extend((!member.arrived.is_empty()).then_some(Choice::Handle(rank)));
        }
        let messages = self.messages.iter().enumerate();
        let under_way = messages.filter(|(_, messages)| !messages.is_empty());
        choices.extend(under_way.map(|(edge, _)| Choice::Arrive(edge)));
        choices
    }

    fn take(&mut self, choice: Choice) {
        match choice {
            Choice::Send(rank) => {
                let member = &mut self.members[rank];
                let fence = member.part.come.censuses + 1;
                let (to, on) = member.sends[0].pop_front().unwrap();
                self.send(rank, to, Message { fence, on });
            }
            Choice::Arrive(edge) => {
                let message = self.messages[edge].pop_front().unwrap();
                self.members[edge % RANKS].arrived.push_back(message);
            }
            Choice::Handle(rank) => {
                let member = &mut self.members[rank];
                let Message { fence, on } = member.arrived.pop_front().unwrap();
                member.delivered += 1;
                if let Some(on) = on.checked_sub(1) {
                    self.send(rank, (rank + 1) % RANKS, Message { fence, on });
                    self.send(rank, (rank + 2) % RANKS, Message { fence, on: 0 });
                }
            }
            Choice::Look(rank) => self.look(rank),
        }
    }

    fn is_done(&self) -> bool {
        let mut members = self.members.iter();
        members.all(|member| member.sends.is_empty() && !member.is_in_fence)
    }
}

fn explored(hides: bool) {
    let sends: [[&[Sent]; FENCES as usize]; RANKS] =
        [[&[(1, 1)], &[(2, 0)]], [&[(2, 0)], &[]], [&[], &[(0, 1)]]];
    eprintln!("{} states", explore(World::new(sends, hides)));
}

#[test]
fn a_census_is_over_when_all_is_handled_and_not_before() {
    explored(true);
}

#[test]
#[should_panic(expected = "over too early")]
fn twin_whose_ranks_show_while_they_send() {
    explored(false);
}
