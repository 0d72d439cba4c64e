//! One channel: its messages, and who waits for room or for one of them; or, of a semaphore or a
//! barrier, who waits in it.

use std::collections::VecDeque;

use super::super::bytes::Bytes;
use super::super::poll::{ChannelKind, Poll};
use super::super::terms::{ChannelLimits, Return, Take};
use super::super::wire::{About, Status};
use super::gate::Gate;
use super::ports::Ports;

/// A message in a channel, or on its way to or from one on its owner's rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub about: About,
    pub bytes: Bytes,
    pub receipt: Option<Receipt>,
}

/// Who is told when somebody takes a message, and until when it may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receipt {
    port: u32,
    /// Number of the request.
    id: u64,
    deadline_ns: u64,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting<T> {
    port: u32,
    id: u64,
    deadline_ns: u64,
    what: T,
}

/// A send that waits.
#[derive(Debug)]
struct Send {
    message: Stored,
    when: Return,
}

/// A channel. Where a get waits there is no message, or it may not be handed out yet; and where a
/// send waits there is no room for it.
#[derive(Debug)]
pub(super) struct Queue {
    pub limits: ChannelLimits,
    pub closed: bool,
    /// Its owner has closed it: it is so in the openings that follow, too.
    stays_closed: bool,
    /// It was closed for now: another opening goes on with it.
    pub is_kept: bool,
    /// Where it is a semaphore or a barrier: there are only polls.
    gate: Option<Gate>,
    /// Ports that are open, and the most that were at once.
    pub ports: u32,
    most_ports: u32,
    messages: VecDeque<Stored>,
    /// How many there were when it was kept: what had waited for room may be above its bounds.
    kept: u64,
    /// Bytes of the messages.
    bytes: u64,
    /// Messages that were deposited so far.
    deposited: u64,
    sends: VecDeque<Waiting<Send>>,
    gets: VecDeque<Waiting<Take>>,
    /// Messages that come back, of gets that were given up: by port and number.
    returning: Vec<(u32, u64)>,
    /// It is told once messages may be handed out again.
    is_behind: bool,
    polls: Vec<Waiting<Poll>>,
}

impl Queue {
    pub fn new(limits: ChannelLimits, gate: Option<Gate>) -> Self {
        Self {
            limits,
            gate,
            closed: false,
            stays_closed: false,
            is_kept: false,
            ports: 0,
            most_ports: 0,
            messages: VecDeque::new(),
            kept: 0,
            bytes: 0,
            deposited: 0,
            sends: VecDeque::new(),
            gets: VecDeque::new(),
            returning: Vec::new(),
            is_behind: false,
            polls: Vec::new(),
        }
    }

    /// Whether there is no message, and none comes back.
    fn is_drained(&self) -> bool {
        self.messages.is_empty() && self.returning.is_empty()
    }

    pub fn kind(&self) -> ChannelKind {
        (self.gate.as_ref()).map_or(ChannelKind::Messages, Gate::kind)
    }

    /// One more port of it is open.
    pub fn open_port(&mut self) {
        self.ports += 1;
        self.most_ports = self.most_ports.max(self.ports);
    }

    /// Whether another opening goes on with it: with one that is closed where messages are left.
    pub fn is_to_be_kept(&self) -> bool {
        !self.closed || !self.messages.is_empty()
    }

    /// Bytes of its longest message.
    pub fn longest_bytes(&self) -> usize {
        let all = self.messages.iter().map(|message| message.bytes.len());
        all.max().unwrap_or(0)
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.messages.len() < self.limits.messages as usize
            && self.bytes.saturating_add(bytes) <= self.limits.bytes
    }

    /// For how many messages of a byte there is room.
    fn room(&self) -> u64 {
        let places = u64::from(self.limits.messages).saturating_sub(self.messages.len() as u64);
        match self.sends.is_empty() {
            true => places.min(self.limits.bytes.saturating_sub(self.bytes)),
            false => 0,
        }
    }

    #[inline]
    fn put(
        &mut self,
        (port, id): (u32, u64),
        when: Return,
        mut message: Stored,
        deadline_ns: u64,
        ports: &mut Ports,
    ) {
        let bytes = message.bytes.len() as u64;
        ports.end_send(port, bytes);
        self.deposited += 1;
        message.about.number = self.deposited;
        match when {
            Return::WhenReceived => {
                message.receipt = Some(Receipt {
                    port,
                    id,
                    deadline_ns,
                });
                ports.credit(port);
            }
            Return::WhenDeposited => ports.answer(port, id, Status::Done, 0),
            Return::Immediately | Return::WhenBuffered => ports.credit(port),
        }
        self.bytes += bytes;
        self.messages.push_back(message);
    }

    /// Takes a message in, has it wait until `deadline_ns`, or refuses it where that is none.
    #[inline]
    pub fn send(
        &mut self,
        (port, id): (u32, u64),
        when: Return,
        message: Stored,
        deadline_ns: Option<u64>,
        ports: &mut Ports,
    ) {
        let bytes = message.bytes.len() as u64;
        let status = match deadline_ns {
            _ if self.closed => Status::Closed,
            _ if self.sends.is_empty() && self.has_room(bytes) => {
                // What is tried once is in the channel: until it is taken there is no limit.
                let deadline_ns = deadline_ns.unwrap_or(u64::MAX);
                self.put((port, id), when, message, deadline_ns, ports);
                return self.settle(ports);
            }
            None => Status::WouldBlock,
            Some(deadline_ns) => {
                ports.wait_to_send(port, bytes);
                let what = Send { message, when };
                self.sends.push_back(Waiting {
                    port,
                    id,
                    deadline_ns,
                    what,
                });
                // Who waits for a channel that is full has it now.
                return self.settle(ports);
            }
        };
        ports.end_send(port, bytes);
        ports.answer(port, id, status, 0);
        ports.spare(message.bytes);
    }

    /// Answers a get, has it wait, or refuses it.
    pub fn get(
        &mut self,
        (port, id): (u32, u64),
        take: Take,
        deadline_ns: Option<u64>,
        ports: &mut Ports,
    ) {
        if self.gets.is_empty() && self.may_hand_out(take, ports) {
            self.hand_out(port, id, take, ports);
            return self.settle(ports);
        }
        match deadline_ns {
            _ if self.closed && (self.is_kept || self.is_drained()) => {
                ports.answer(port, id, Status::Closed, 0)
            }
            None => ports.answer(port, id, Status::WouldBlock, 0),
            Some(deadline_ns) => {
                ports.wait_otherwise(port);
                let what = take;
                self.gets.push_back(Waiting {
                    port,
                    id,
                    deadline_ns,
                    what,
                });
                if !self.messages.is_empty() {
                    self.settle(ports);
                }
            }
        }
    }

    fn take_first(&mut self, ports: &mut Ports) -> Option<Stored> {
        let mut first = self.messages.pop_front()?;
        self.bytes -= first.bytes.len() as u64;
        if let Some(of) = first.receipt.take() {
            ports.answer(of.port, of.id, Status::Done, 0);
        }
        Some(first)
    }

    /// Whether there is a message, and it may be handed out.
    fn may_hand_out(&self, take: Take, ports: &Ports) -> bool {
        let bytes = |first: &Stored| match (take, first.bytes.len() as u64) {
            (Take::Pop, _) => 0,
            // It stays, and that is said at once.
            (Take::Within(most), bytes) if bytes > most => 0,
            (Take::Get | Take::Peek | Take::Within(_), bytes) => bytes,
        };
        let first = self.messages.front().filter(|_| !self.is_kept);
        first.is_some_and(|first| ports.may_hand_out(bytes(first)))
    }

    /// Messages may be handed out again.
    pub fn hand_on(&mut self, ports: &mut Ports) {
        self.is_behind = false;
        self.settle(ports);
    }

    /// The message that a get would be answered by now, where it has so many bytes at most. Its
    /// memory is handed over here.
    pub fn get_now(&mut self, most: u64, ports: &mut Ports) -> Option<Stored> {
        let first = self.messages.front()?;
        if self.is_kept || !self.gets.is_empty() || first.bytes.len() as u64 > most {
            return None;
        }
        let first = self.take_first(ports)?;
        self.settle(ports);
        Some(first)
    }

    fn hand_out(&mut self, port: u32, id: u64, take: Take, ports: &mut Ports) {
        if let (Take::Within(most), Some(first)) = (take, self.messages.front()) {
            let bytes = first.bytes.len() as u64;
            if bytes > most {
                return ports.answer(port, id, Status::TooLong, bytes);
            }
        }
        if take == Take::Peek {
            let Some(first) = self.messages.front() else {
                return;
            };
            let bytes = ports.copy(&first.bytes);
            let copy = Stored {
                about: first.about,
                bytes,
                receipt: None,
            };
            return ports.answer_with(port, id, copy);
        }
        let Some(mut first) = self.take_first(ports) else {
            return;
        };
        match take {
            Take::Pop => ports.spare(std::mem::take(&mut first.bytes)),
            _ => ports.note_taken(port, id, first.about.number),
        }
        ports.answer_with(port, id, first);
    }

    /// Answers a poll, has it wait, or refuses it.
    pub fn poll(
        &mut self,
        (port, id): (u32, u64),
        poll: Poll,
        deadline_ns: Option<u64>,
        ports: &mut Ports,
    ) {
        match (self.polled(poll, ports), deadline_ns) {
            (Some((status, value)), _) => {
                ports.answer(port, id, status, value);
                self.polled_so(poll, status, ports);
            }
            (None, None) => ports.answer(port, id, Status::WouldBlock, 0),
            (None, Some(deadline_ns)) => {
                ports.wait_otherwise(port);
                let what = poll;
                self.polls.push(Waiting {
                    port,
                    id,
                    deadline_ns,
                    what,
                });
                if poll == Poll::Arrive {
                    self.count_arrived(|arrived| arrived + 1);
                    self.settle_gate(poll, ports);
                }
                self.wait_behind(ports);
            }
        }
    }

    /// How a poll ends, and with which value; `None` where it waits.
    fn polled(&mut self, poll: Poll, ports: &Ports) -> Option<(Status, u64)> {
        let (size, room) = (self.messages.len() as u64, self.room());
        // Whether a get would have one.
        let is_here = self.gets.is_empty() && self.may_hand_out(Take::Get, ports);
        let never = Some((Status::Closed, 0));
        let holds = |holds: bool, value: u64| holds.then_some((Status::Done, value));
        if poll == Poll::Closed {
            return holds(self.closed, size);
        }
        if let Some(gate) = &mut self.gate {
            return if self.closed {
                never
            } else {
                gate.polled(poll)
            };
        }
        match poll {
            Poll::Size => holds(true, size),
            Poll::Capacity => holds(true, self.limits.messages.into()),
            Poll::Receivers => holds(true, self.gets.len() as u64),
            // What is here is for another opening.
            Poll::In | Poll::InOrOut | Poll::Empty if self.is_kept => never,
            Poll::Empty => holds(self.is_drained() && self.sends.is_empty(), 0),
            Poll::In | Poll::InOrOut if self.closed && self.is_drained() => never,
            Poll::Out | Poll::Full if self.closed => never,
            Poll::In => holds(is_here, size),
            Poll::Out => holds(room > 0, room),
            Poll::Full => holds(room == 0, size),
            Poll::InOrOut => {
                let has_room = room > 0 && !self.closed;
                holds(
                    is_here || has_room,
                    u64::from(is_here) | u64::from(has_room) << 1,
                )
            }
            // Refused before, by the kind of the channel.
            _ => None,
        }
    }

    /// Keeps how many calls wait in a barrier.
    fn count_arrived(&mut self, change: impl FnOnce(u64) -> u64) {
        if let Some(gate) = &mut self.gate {
            gate.count_arrived(change);
        }
    }

    /// A poll has ended so: ends those that wait for what it has done.
    fn polled_so(&mut self, poll: Poll, status: Status, ports: &mut Ports) {
        if let Some(status) = Gate::ends_waits(poll, status) {
            let mut before = 0;
            self.polls.retain(|of| {
                if of.what != Poll::Arrive {
                    return true;
                }
                ports.no_longer_waits(of.port);
                ports.answer(of.port, of.id, status, before);
                before += 1;
                false
            });
            self.count_arrived(|_| 0);
        }
        self.settle_gate(poll, ports);
    }

    /// A poll has changed a semaphore or a barrier so that others may end.
    fn settle_gate(&mut self, poll: Poll, ports: &mut Ports) {
        if (self.gate.as_ref()).is_some_and(|gate| gate.settles(poll)) {
            self.settle(ports);
        }
    }

    /// Does what can be done now for those who wait: in the order in which they came, sends and
    /// gets each.
    fn settle(&mut self, ports: &mut Ports) {
        loop {
            let fits = |send: &Waiting<Send>| self.has_room(send.what.message.bytes.len() as u64);
            if self.sends.front().is_some_and(fits)
                && let Some(of) = self.sends.pop_front()
            {
                let Send { message, when } = of.what;
                ports.no_longer_sends(of.port, message.bytes.len() as u64);
                self.put((of.port, of.id), when, message, of.deadline_ns, ports);
            } else if let Some(of) = self.gets.front()
                && self.may_hand_out(of.what, ports)
                && let Some(Waiting { port, id, what, .. }) = self.gets.pop_front()
            {
                ports.no_longer_waits(port);
                self.hand_out(port, id, what, ports);
            } else {
                break;
            }
        }
        if self.is_drained() && self.closed {
            for of in std::mem::take(&mut self.gets) {
                ports.no_longer_waits(of.port);
                ports.answer(of.port, of.id, Status::Closed, 0);
            }
        }
        if self.polls.is_empty() {
            return self.wait_behind(ports);
        }
        let mut polls = std::mem::take(&mut self.polls);
        polls.retain(|of| {
            let polled = match of.what {
                // Those in a barrier end with a call that comes, or as it is closed.
                Poll::Arrive if !self.closed => None,
                poll => self.polled(poll, ports),
            };
            let Some((status, value)) = polled else {
                return true;
            };
            ports.no_longer_waits(of.port);
            ports.answer(of.port, of.id, status, value);
            false
        });
        self.polls = polls;
        self.wait_behind(ports);
    }

    /// Where a call waits for a message that may not be handed out yet, it goes on once it may.
    fn wait_behind(&mut self, ports: &mut Ports) {
        if self.messages.is_empty() || self.is_behind {
            return;
        }
        let is_for_one = |of: &&Waiting<Poll>| matches!(of.what, Poll::In | Poll::InOrOut);
        let get = self.gets.front().map(|of| of.port);
        let waits = get.or_else(|| Some(self.polls.iter().find(is_for_one)?.port));
        if let Some(port) = waits {
            self.is_behind = true;
            ports.wait_behind(port);
        }
    }

    /// Ends what waits and is `over` now, with `status`; goes on with the rest. `over` is told of
    /// which port it is, its number, its time, and whether it is a send whose caller has gone on.
    fn end_where(
        &mut self,
        status: Status,
        over: impl Fn(u32, u64, u64, bool) -> bool,
        ports: &mut Ports,
    ) {
        let (mut sends, mut lost) = (std::mem::take(&mut self.sends), 0);
        sends.retain_mut(|of| {
            let went_on = !of.what.when.is_answered();
            if !over(of.port, of.id, of.deadline_ns, went_on) {
                return true;
            }
            lost += usize::from(went_on && ports.is_left(of.port));
            let bytes = std::mem::take(&mut of.what.message.bytes);
            ports.no_longer_sends(of.port, bytes.len() as u64);
            ports.end_send(of.port, bytes.len() as u64);
            ports.answer(of.port, of.id, status, 0);
            ports.spare(bytes);
            false
        });
        self.sends = sends;
        if lost > 0 {
            tracing::warn!(
                lost,
                "sends of ports that are closed had no room in time, or in a channel that is closed"
            );
        }
        let mut end = |port, id, deadline_ns| {
            let ends = over(port, id, deadline_ns, false);
            if ends {
                ports.no_longer_waits(port);
                ports.answer(port, id, status, 0);
            }
            !ends
        };
        self.gets.retain(|of| end(of.port, of.id, of.deadline_ns));
        self.polls.retain(|of| end(of.port, of.id, of.deadline_ns));
        if self.gate.is_some() {
            let arrived = self.polls.iter().filter(|of| of.what == Poll::Arrive);
            let arrived = arrived.count() as u64;
            self.count_arrived(|_| arrived);
        }
        self.settle(ports);
    }

    /// Ends what should have been done by now.
    pub fn expire(&mut self, now_ns: u64, ports: &mut Ports) {
        self.time_out(|_, _, deadline_ns, _| deadline_ns <= now_ns, ports);
    }

    /// Ends a request that its asker waits for no longer, if it still waits.
    pub fn cancel(&mut self, (port, id): (u32, u64), given_up: bool, ports: &mut Ports) {
        if given_up && let Some(number) = ports.take_taken(port, id) {
            return self.returning.push((port, number));
        }
        self.time_out(|of, number, _, _| (of, number) == (port, id), ports);
    }

    /// Some askers are lost: what their ports wait for ends, but for sends from which they had gone
    /// on.
    pub fn lose(&mut self, ports: &mut Ports) {
        let waits = self.gets.iter().map(|of| of.port);
        let waits = waits.chain(self.polls.iter().map(|of| of.port));
        let waits = waits.chain(self.sends.iter().map(|of| of.port));
        let mut lost: Vec<u32> = waits.filter(|&port| ports.is_lost(port)).collect();
        lost.sort_unstable();
        self.returning.retain(|&(port, _)| !ports.is_lost(port));
        if !lost.is_empty() || self.closed {
            let is_over =
                |port: u32, _, _, went_on: bool| !went_on && lost.binary_search(&port).is_ok();
            self.end_where(Status::Gone, is_over, ports);
        }
    }

    /// Ends what waits and is `over` now, and takes messages out of the channel that should have
    /// been received.
    fn time_out(&mut self, over: impl Fn(u32, u64, u64, bool) -> bool, ports: &mut Ports) {
        let mut messages = std::mem::take(&mut self.messages);
        messages.retain_mut(|message| {
            let receipt = message.receipt;
            let Some(of) = receipt.filter(|of| over(of.port, of.id, of.deadline_ns, false)) else {
                return true;
            };
            let bytes = std::mem::take(&mut message.bytes);
            self.bytes -= bytes.len() as u64;
            ports.answer(of.port, of.id, Status::TimedOut, 0);
            ports.spare(bytes);
            false
        });
        self.messages = messages;
        self.end_where(Status::TimedOut, over, ports);
    }

    /// Messages and requests that are here.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.messages.len() + self.sends.len() + self.gets.len() + self.polls.len()
    }

    /// The earliest deadline of what waits.
    pub fn next_deadline_ns(&self) -> u64 {
        let sends = self.sends.iter().map(|of| of.deadline_ns);
        let gets = self.gets.iter().map(|of| of.deadline_ns);
        let polls = self.polls.iter().map(|of| of.deadline_ns);
        let receipts = self.messages.iter().filter_map(|message| message.receipt);
        let receipts = receipts.map(|of| of.deadline_ns);
        let all = sends.chain(gets).chain(polls).chain(receipts);
        all.min().unwrap_or(u64::MAX)
    }

    /// Nothing is sent any more; what is there may be taken.
    pub fn close(&mut self, ports: &mut Ports) {
        (self.closed, self.stays_closed) = (true, true);
        // Polls are looked at anew: some may hold now, or still.
        let mut polls = std::mem::take(&mut self.polls);
        // Gets that wait for a message that is here have it yet.
        let mut gets = match self.is_drained() {
            true => VecDeque::new(),
            false => std::mem::take(&mut self.gets),
        };
        self.end_where(Status::Closed, |_, _, _, _| true, ports);
        self.gets.append(&mut gets);
        self.polls.append(&mut polls);
        self.settle(ports);
    }

    /// As [`Queue::close`], for now. Sends that wait for room, whose callers went on before, are
    /// deposited above its bounds; that others are received nobody hears any more.
    pub fn keep(&mut self, ports: &mut Ports) {
        let went_on = |of: &Waiting<Send>| !of.what.when.is_answered();
        for of in std::mem::take(&mut self.sends) {
            match went_on(&of) {
                true => {
                    let Send { message, when } = of.what;
                    ports.no_longer_sends(of.port, message.bytes.len() as u64);
                    self.put((of.port, of.id), when, message, of.deadline_ns, ports);
                }
                false => self.sends.push_back(of),
            }
        }
        self.forget_receipts(ports);
        (self.closed, self.is_kept) = (true, true);
        self.kept = self.messages.len() as u64;
        // Gets too: what they were answered by now might arrive nowhere.
        self.end_where(Status::Closed, |_, _, _, _| true, ports);
    }

    /// What goes on in another opening, where nobody has a port of it yet, and what was closed
    /// before stays so; what is left here is closed.
    pub fn move_on(&mut self) -> Self {
        let left = Self {
            closed: true,
            ports: self.ports,
            deposited: self.deposited,
            ..Self::new(self.limits, self.gate.clone())
        };
        let mut kept = std::mem::replace(self, left);
        (kept.closed, kept.is_kept, kept.is_behind) = (kept.stays_closed, false, false);
        (kept.ports, kept.most_ports) = (0, 0);
        kept.kept = kept.messages.len() as u64;
        // Those that came since; what else waited was ended, and is refused now.
        (kept.polls, kept.returning) = Default::default();
        kept.count_arrived(|_| 0);
        kept
    }

    fn forget_receipts(&mut self, ports: &mut Ports) {
        let receipts = self.messages.iter_mut().filter_map(|of| of.receipt.take());
        for of in receipts {
            ports.answer(of.port, of.id, Status::Closed, 0);
        }
    }

    /// A port of it is closed: nobody hears of what it has waiting, nor of what it has sent. Sends
    /// whose callers have gone on still wait; how many others did.
    pub fn forget(&mut self, port: u32, ports: &mut Ports) -> usize {
        let is_lost = |of: &&Waiting<Send>| of.port == port && of.what.when.is_answered();
        let lost = self.sends.iter().filter(is_lost).count();
        for message in &mut self.messages {
            message.receipt.take_if(|of| of.port == port);
        }
        let over = |of, _, _, went_on: bool| of == port && !went_on;
        self.returning.retain(|&(of, _)| of != port);
        self.end_where(Status::Closed, over, ports);
        lost
    }

    /// A message that was taken comes back, to its place; or what was acquired from a semaphore.
    ///
    /// # Errors
    /// It was never taken, or more come back than can have been.
    pub fn give_back(&mut self, message: Stored, ports: &mut Ports) -> Result<(), &'static str> {
        if let Some(gate) = &mut self.gate {
            gate.give_back()?;
            self.settle(ports);
            return Ok(());
        }
        let number = message.about.number;
        self.returning.retain(|&(_, of)| of != number);
        let at = self.messages.partition_point(|of| of.about.number < number);
        let is_here = (self.messages.get(at)).is_some_and(|of| of.about.number == number);
        // Those that came back by ports which are closed by now are still here, above the limit.
        let taken = u64::from(self.most_ports) * u64::from(self.limits.window_messages);
        let most = u64::from(self.limits.messages).max(self.kept) + taken;
        if number == 0 || number > self.deposited || is_here {
            return Err("a message comes back that was not taken");
        }
        if self.messages.len() as u64 >= most {
            return Err("more messages come back than were taken");
        }
        self.bytes += message.bytes.len() as u64;
        self.messages.insert(at, message);
        self.settle(ports);
        Ok(())
    }

    /// Drops all messages; how many there were. Who waits for one to be received hears of it.
    pub fn drop_messages(&mut self, ports: &mut Ports) -> usize {
        self.forget_receipts(ports);
        let messages = std::mem::take(&mut self.messages);
        (self.bytes, self.returning) = (0, Vec::new());
        self.settle(ports);
        messages.len()
    }
}
