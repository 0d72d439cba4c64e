//! The askers' side of channels on one rank: ports, what each has under way, what was answered.

use std::collections::VecDeque;
use std::task::Waker;

use trihop_transport::topology::Rank;

use super::bytes::Bytes;
use super::descriptor::Descriptor;
use super::owner::{Spare, Stored};
use super::poll::ChannelKind;
use super::terms::ChannelLimits;
use super::wire::{About, AnswerHead, Ended, Payload, Request, Status, message, parse_limits};
use crate::member::Loss;

/// Ports of a rank, at most.
const MOST_PORTS: usize = 1 << 16;

/// How a request was answered.
#[derive(Debug)]
pub(super) struct Answered {
    pub status: Status,
    pub value: u64,
    pub message: Option<Stored>,
    /// It was taken from a semaphore.
    is_permit: bool,
    /// The channel has the message still, or has had it dropped.
    stays: bool,
}

impl Answered {
    /// Of what nobody answers.
    pub fn nothing() -> Self {
        Self {
            status: Status::Done,
            value: 0,
            message: None,
            is_permit: false,
            stays: false,
        }
    }

    /// What goes back to the owner, as the port with this number there, where nobody waits for it.
    fn back(self, port: u32) -> Option<(Request, Bytes)> {
        let permit = || Stored {
            about: About::default(),
            bytes: Bytes::default(),
            receipt: None,
        };
        let taken = self.message.filter(|_| !self.stays);
        let message = taken.or_else(|| self.is_permit.then(permit))?;
        let request = Request::GiveBack {
            port,
            number: message.about.number,
            kind: message.about.kind,
            source: message.about.source,
        };
        Some((request, message.bytes))
    }
}

/// What a request is answered by where it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expects {
    /// Of a send: that it is.
    Word,
    /// Of a poll that may wait: a number.
    Number,
    /// Of any other poll: a number.
    NumberAtOnce,
    /// Of a poll that acquires: a number, and what it has taken.
    Permit,
    Message,
    /// Of a peek or a pop: a message that does not go back.
    MessageOnce,
    /// A message of so many bytes at most, or how many it has.
    MessageWithin(u64),
}

impl Expects {
    fn is_message(self) -> bool {
        matches!(
            self,
            Self::Message | Self::MessageOnce | Self::MessageWithin(_)
        )
    }

    /// Whether a message of so many bytes, or that one has so many, is what was asked for.
    fn allows(self, status: Status, bytes: u64) -> bool {
        match (self, status) {
            (Self::MessageWithin(most), Status::Done) => bytes <= most,
            (Self::MessageWithin(most), Status::TooLong) => bytes > most,
            (_, status) => status != Status::TooLong,
        }
    }
}

/// A request that is under way.
#[derive(Debug)]
struct Asked {
    id: u64,
    expects: Expects,
    pending: Pending,
}

#[derive(Debug)]
enum Pending {
    Waits(Option<Waker>),
    Answered(Answered),
    /// Nobody waits any more.
    Abandoned,
    /// Its message is on its way back to the channel.
    Returns,
}

/// A port that is open, or is being opened.
#[derive(Debug)]
struct Port {
    descriptor: Descriptor,
    /// Its number at the owner, once it is open there; and the channel's limits.
    opened: Option<(u32, ChannelLimits)>,
    kind: ChannelKind,
    sent: Ended,
    ended: Ended,
    /// How often there may have come to be room.
    changes: u64,
    /// The owner was asked for room since it has last said what has ended.
    wants: bool,
    /// Calls that wait for room, the first before, by numbers that grow.
    line: VecDeque<u64>,
    next_place: u64,
    /// By their numbers, which grow.
    pending: VecDeque<Asked>,
    next_id: u64,
    failures: u64,
    last_failure: Option<Status>,
    /// The last handle is gone.
    closes: bool,
}

/// What there is to do for an answer.
#[derive(Default)]
pub(super) struct Effects {
    pub waker: Option<Waker>,
    /// To be sent to the owner, before all else.
    pub arrived: Option<Request>,
    /// A message goes back to the owner, and then [`Client::returned`] is told of this request.
    pub back: Option<(u64, Request, Bytes)>,
    /// To be sent to the owner.
    pub close: Option<Request>,
}

/// Whether a send may go.
pub(super) enum Room {
    /// It may, and is counted; the number of the request, where that is answered.
    Free(u64),
    /// Not before this has changed: see [`Client::changes`].
    None(u64),
}

#[derive(Debug, Default)]
pub(super) struct Client {
    /// By place; and how many ports each place has had.
    ports: Vec<(u16, Option<Port>)>,
    spare: Spare,
    /// What could not be asked inside a handler, of these owners, in its order.
    pub unasked: VecDeque<(u32, Request, Bytes)>,
    /// Who is lost: what they answer late may be for nobody.
    lost: Vec<Loss>,
}

/// The number of a port: its place, and how many were there before.
fn number_of(place: usize, before: u16) -> u32 {
    place as u32 | u32::from(before) << 16
}

impl Client {
    /// A port that is being opened; its number. `None` where there are as many as may be.
    pub fn add(&mut self, descriptor: Descriptor) -> Option<u32> {
        let free = self.ports.iter().position(|(_, port)| port.is_none());
        let place = free.unwrap_or(self.ports.len());
        if place == MOST_PORTS {
            return None;
        }
        if place == self.ports.len() {
            self.ports.push((0, None));
        }
        let (before, port) = &mut self.ports[place];
        *port = Some(Port {
            descriptor,
            opened: None,
            kind: ChannelKind::Messages,
            sent: Ended::default(),
            ended: Ended::default(),
            changes: 0,
            wants: false,
            line: VecDeque::new(),
            next_place: 0,
            pending: VecDeque::from([Asked {
                id: 0,
                expects: Expects::Number,
                pending: Pending::Waits(None),
            }]),
            next_id: 1,
            failures: 0,
            last_failure: None,
            closes: false,
        });
        Some(number_of(place, *before))
    }

    fn find(&mut self, number: u32) -> Option<&mut Port> {
        let (before, port) = self.ports.get_mut(number as usize & (MOST_PORTS - 1))?;
        port.as_mut().filter(|_| u32::from(*before) == number >> 16)
    }

    /// A port that has a handle.
    fn port(&mut self, number: u32) -> &mut Port {
        self.find(number)
            .expect("a port stays as long as its handle")
    }

    fn remove(&mut self, number: u32) {
        let (before, port) = &mut self.ports[number as usize & (MOST_PORTS - 1)];
        *before = before.wrapping_add(1);
        *port = None;
    }

    /// The port was not opened.
    pub fn give_up(&mut self, number: u32) {
        self.remove(number);
    }

    /// What the owner has said of an opened port: its number there, the channel's limits, and what
    /// that is.
    pub fn opened(&mut self, number: u32) -> Option<(u32, ChannelLimits, ChannelKind)> {
        let port = self.port(number);
        (port.opened).map(|(at_owner, limits)| (at_owner, limits, port.kind))
    }

    /// Counts a send, if the window has room for it and no other call waits for that before, whose
    /// `place` is another one.
    pub fn begin_send(
        &mut self,
        number: u32,
        bytes: u64,
        is_answered: bool,
        place: Option<u64>,
    ) -> Room {
        let port = self.port(number);
        let limits = port.opened.map(|(_, limits)| limits).unwrap_or_default();
        let messages = port.sent.messages.saturating_sub(port.ended.messages);
        let under_way = port.sent.bytes.saturating_sub(port.ended.bytes);
        let fits = messages < u64::from(limits.window_messages)
            && under_way.saturating_add(bytes) <= limits.window_bytes;
        let is_first = port.line.front().copied() == place;
        if !is_first || messages > 0 && !fits {
            return Room::None(port.changes);
        }
        port.sent.messages += 1;
        port.sent.bytes += bytes;
        let id = is_answered.then(|| self.begin(number, Expects::Word));
        Room::Free(id.unwrap_or(0))
    }

    /// The send was not taken. Whether calls wait for room, which are to look again: the owner has
    /// nothing to say of it.
    pub fn undo_send(&mut self, number: u32, bytes: u64, id: u64) -> bool {
        let port = self.port(number);
        port.sent.messages -= 1;
        port.sent.bytes -= bytes;
        port.pending.retain(|asked| asked.id != id);
        port.changes += 1;
        !port.line.is_empty()
    }

    /// How often there may have come to be room.
    pub fn changes(&mut self, number: u32) -> u64 {
        self.port(number).changes
    }

    /// A call waits for room from now on, behind all that do: its place among them.
    pub fn line_up(&mut self, number: u32) -> u64 {
        let port = self.port(number);
        port.next_place += 1;
        port.line.push_back(port.next_place);
        port.next_place
    }

    /// The call with this place has room, or waits no longer. Whether others wait, which are to
    /// look again.
    pub fn leave_line(&mut self, number: u32, place: u64) -> bool {
        let port = self.port(number);
        port.line.retain(|&of| of != place);
        port.changes += 1;
        !port.line.is_empty()
    }

    /// Asks for room, unless that was done since the owner has last said what has ended: who tries
    /// again and again asks once. Whether there is something to tell the owner.
    pub fn want(&mut self, number: u32) -> bool {
        !std::mem::replace(&mut self.port(number).wants, true)
    }

    /// A request that is answered; its number.
    pub fn begin(&mut self, number: u32, expects: Expects) -> u64 {
        let port = self.port(number);
        let id = port.next_id;
        port.next_id += 1;
        port.pending.push_back(Asked {
            id,
            expects,
            pending: Pending::Waits(None),
        });
        id
    }

    /// Whether one more get or poll may be under way: the window is for those that wait, and as
    /// many for polls that do not, by which what waits may be let go.
    pub fn may_begin(&mut self, number: u32, expects: Expects) -> bool {
        let port = self.port(number);
        let limits = port.opened.map(|(_, limits)| limits).unwrap_or_default();
        let is_at_once = |expects| expects == Expects::NumberAtOnce;
        let others = port.pending.iter().filter(|asked| {
            asked.expects != Expects::Word && is_at_once(asked.expects) == is_at_once(expects)
        });
        others.count() < limits.window_messages as usize
    }

    /// The request was not sent.
    pub fn undo(&mut self, number: u32, id: u64) {
        self.port(number).pending.retain(|asked| asked.id != id);
    }

    /// The answer to a request, taken once.
    pub fn take_answer(&mut self, number: u32, id: u64) -> Option<Answered> {
        let all = &mut self.port(number).pending;
        let at = all.binary_search_by_key(&id, |asked| asked.id).ok()?;
        if !matches!(all[at].pending, Pending::Answered(_)) {
            return None;
        }
        match all.remove(at)?.pending {
            Pending::Answered(answered) => Some(answered),
            _ => None,
        }
    }

    /// Has this woken when the request is answered; the waker before.
    pub fn wake(&mut self, number: u32, id: u64, waker: &Waker) -> Option<Waker> {
        let all = &mut self.port(number).pending;
        let at = all.binary_search_by_key(&id, |asked| asked.id).ok()?;
        match &mut all[at].pending {
            Pending::Waits(before) => before.replace(waker.clone()),
            _ => None,
        }
    }

    /// Whether the answer to a request is there to be taken.
    pub fn is_answered(&mut self, number: u32, id: u64) -> bool {
        let all = &self.port(number).pending;
        let at = all.binary_search_by_key(&id, |asked| asked.id);
        at.is_ok_and(|at| matches!(all[at].pending, Pending::Answered(_)))
    }

    /// Nobody waits for this request any more: what there is to tell the owner, and who was to be
    /// woken.
    pub fn abandon(&mut self, number: u32, id: u64) -> (Vec<(Request, Bytes)>, Option<Waker>) {
        let (mut requests, mut waker) = (Vec::new(), None);
        if let Some(answered) = self.take_answer(number, id) {
            if let Some((at_owner, _)) = self.port(number).opened {
                requests.extend(answered.back(at_owner));
            }
            return (requests, None);
        }
        let port = self.port(number);
        let mut all = port.pending.iter_mut();
        if let Some(asked) = all.find(|asked| asked.id == id) {
            let before = std::mem::replace(&mut asked.pending, Pending::Abandoned);
            if let Pending::Waits(waits) = before {
                waker = waits;
            }
            let port = port.opened.map(|(at_owner, _)| at_owner);
            let cancel = |port| Request::Cancel {
                port,
                id,
                given_up: true,
            };
            requests.extend(port.map(|port| (cancel(port), Bytes::default())));
        }
        (requests, waker)
    }

    /// The last handle of a port is gone: what to tell the owner now. Where something is still
    /// under way, that is told once it has ended.
    pub fn close(&mut self, number: u32) -> Option<Request> {
        // A port that was given up is gone already.
        self.find(number)?.closes = true;
        self.closed(number)
    }

    /// The message that came for this request was sent back: what to tell the owner now.
    pub fn returned(&mut self, number: u32, id: u64) -> Option<Request> {
        self.find(number)?.pending.retain(|asked| asked.id != id);
        self.closed_by_answer(number)
    }

    /// As [`Client::closed`], behind what is still to be asked.
    fn closed_by_answer(&mut self, number: u32) -> Option<Request> {
        let owner = self.find(number)?.descriptor.owner;
        let close = self.closed(number)?;
        if self.unasked.is_empty() {
            return Some(close);
        }
        self.unasked.push_back((owner, close, Bytes::default()));
        None
    }

    fn closed(&mut self, number: u32) -> Option<Request> {
        let port = self.find(number)?;
        if !port.closes || !port.pending.is_empty() {
            return None;
        }
        // One that was given up before its owner has refused it is gone, too.
        let opened = port.opened;
        self.remove(number);
        opened.map(|(port, _)| Request::Close { port })
    }

    /// Some ranks are lost: who waits for them is to be woken. Once that `is_over` no answer of
    /// them comes any more.
    pub fn lose(&mut self, loss: &Loss, is_over: bool) -> Vec<Waker> {
        if !self.lost.iter().any(|known| known.is_same(loss)) {
            self.lost.push(loss.clone());
        }
        let mut woken = Vec::new();
        for (before, place) in &mut self.ports {
            let port = place.as_mut();
            let Some(port) = port.filter(|port| loss.has(port.descriptor.owner())) else {
                continue;
            };
            let waits = port.pending.iter_mut();
            woken.extend(waits.filter_map(|asked| match &mut asked.pending {
                Pending::Waits(waker) => waker.take(),
                _ => None,
            }));
            if is_over {
                let is_answered = |asked: &Asked| matches!(asked.pending, Pending::Answered(_));
                port.pending.retain(is_answered);
                if port.closes && port.pending.is_empty() {
                    *before = before.wrapping_add(1);
                    *place = None;
                }
            }
        }
        woken
    }

    /// Takes the buffer of a message that is gone.
    pub fn spare(&mut self, bytes: Bytes) {
        self.spare.put(bytes);
    }

    /// Sends of the port that have failed with nobody waiting for them, and how the last has.
    pub fn failures(&mut self, number: u32) -> (u64, Option<Status>) {
        let port = self.port(number);
        (port.failures, port.last_failure)
    }

    /// Takes an answer of a rank.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn answer(
        &mut self,
        rank: u32,
        head: AnswerHead,
        bytes: Payload<'_>,
    ) -> Result<Effects, &'static str> {
        let mut effects = Effects::default();
        let spare = std::mem::take(&mut self.spare);
        let outcome = match self.find(head.port) {
            Some(port) if port.descriptor.owner != rank => Err("an answer of somebody else"),
            Some(port) => port.answer(head, bytes, spare, &mut effects),
            // Of a port that was closed, counters may still be told, and failures of its sends.
            None if head.status == Status::Credit => Ok(spare),
            None if head.id == 0 && head.status != Status::Done => {
                let status = head.status;
                tracing::warn!(
                    owner = rank,
                    ?status,
                    "a send of a port that was closed has failed"
                );
                Ok(spare)
            }
            None => Err("an answer for a port that is not open"),
        };
        self.spare = match outcome {
            Err(_) if self.lost.iter().any(|loss| loss.has(Rank(rank))) => return Ok(effects),
            outcome => outcome?,
        };
        effects.close = self.closed_by_answer(head.port);
        Ok(effects)
    }
}

#[cfg(test)]
mod tests;

impl Port {
    fn answer(
        &mut self,
        head: AnswerHead,
        bytes: Payload<'_>,
        mut spare: Spare,
        effects: &mut Effects,
    ) -> Result<Spare, &'static str> {
        if head.ended.messages > self.sent.messages || head.ended.bytes > self.sent.bytes {
            return Err("more sends have ended than there were");
        }
        self.ended.messages = self.ended.messages.max(head.ended.messages);
        self.ended.bytes = self.ended.bytes.max(head.ended.bytes);
        self.changes += 1;
        self.wants = false;
        match head.status {
            Status::Credit => return Ok(spare),
            // Of a send that nobody waits for.
            status if head.id == 0 && self.opened.is_some() => {
                if status == Status::Done {
                    return Err("a success of no request");
                }
                self.failures += 1;
                self.last_failure = Some(status);
                return Ok(spare);
            }
            _ => {}
        }
        let at = self
            .pending
            .binary_search_by_key(&head.id, |asked| asked.id);
        let at = at.map_err(|_| "an answer to no request")?;
        if head.id == 0 && head.status == Status::Done {
            let limits = parse_limits(bytes.as_slice());
            let number = u32::try_from(head.value).ok();
            let opened = number.zip(limits).ok_or("limits that cannot be")?;
            self.opened = Some(opened);
            self.kind = ChannelKind::of(head.about.kind).ok_or("a kind that no channel is of")?;
        }
        let is_message = head.id != 0 && head.about.number != 0;
        let expects = self.pending[at].expects;
        if is_message != (expects.is_message() && head.status == Status::Done) {
            return Err("a message for no get, or none for one");
        }
        let length = match head.status {
            Status::TooLong => head.value,
            _ => bytes.as_slice().len() as u64,
        };
        if !expects.allows(head.status, length) {
            return Err("a message that is longer than was asked for, or is called so");
        }
        let message = is_message.then(|| Stored {
            about: head.about,
            bytes: match bytes {
                Payload::Borrowed(bytes) => spare.copy(bytes),
                Payload::Owned(bytes) => bytes,
            },
            receipt: None,
        });
        if let (Some(of), message::TELLS, Some((port, _))) = (&message, head.value, self.opened) {
            let bytes = of.bytes.len() as u64;
            effects.arrived = Some(Request::Arrived { port, bytes });
        }
        let answered = Answered {
            status: head.status,
            value: head.value,
            message,
            is_permit: expects == Expects::Permit && head.status == Status::Done,
            stays: expects == Expects::MessageOnce,
        };
        let place = &mut self.pending[at].pending;
        match std::mem::replace(place, Pending::Answered(answered)) {
            Pending::Waits(waker) => effects.waker = waker,
            Pending::Answered(_) | Pending::Returns => {
                return Err("a second answer to one request");
            }
            // It stays until its message has gone back: the port is closed behind that.
            Pending::Abandoned => {
                let answered = std::mem::replace(place, Pending::Returns);
                let back = match (answered, self.opened) {
                    (Pending::Answered(of), Some((at_owner, _))) => of.back(at_owner),
                    _ => None,
                };
                match back {
                    Some((request, bytes)) => effects.back = Some((head.id, request, bytes)),
                    None => drop(self.pending.remove(at)),
                }
            }
        }
        Ok(spare)
    }
}
