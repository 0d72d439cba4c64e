//! The ports of an owner's channels, and what their askers are told.

use std::collections::VecDeque;

use super::super::bytes::Bytes;
use super::super::terms::ChannelLimits;
use super::super::wire::{AnswerHead, Ended, HEAD_BYTES, Status, message};
use super::queue::Stored;
use crate::queue::long_buffers;

/// Buffers that are kept for the next message, and the longest of them.
const SPARE_BUFFERS: usize = 64;
pub const SPARE_BYTES: usize = 64 << 10;

/// Buffers of messages that are gone, the last behind. Longer ones than these the process keeps.
#[derive(Debug, Default)]
pub(crate) struct Spare(VecDeque<Vec<u8>>);

impl Spare {
    /// Keeps a buffer, if it is worth it, in place of the oldest.
    pub fn put(&mut self, buffer: Bytes) {
        let Bytes::Own(mut buffer) = buffer else {
            return; // it is free
        };
        match buffer.capacity() {
            0 => return,
            1..=SPARE_BYTES => {}
            _ => return long_buffers::keep(buffer),
        }
        if self.0.len() == SPARE_BUFFERS {
            self.0.pop_front();
        }
        buffer.clear();
        self.0.push_back(buffer);
    }

    /// The bytes, in a buffer that is not much longer: messages are counted by their bytes. What an
    /// answer says beside them has room behind them.
    pub fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::default();
        }
        let (room, most) = (bytes.len() + HEAD_BYTES, 2 * bytes.len() + 64);
        let mut buffer = if room > SPARE_BYTES {
            long_buffers::take(room).unwrap_or_default()
        } else {
            let at = self.0.iter().rposition(|spare| spare.capacity() <= most);
            let spare = at.and_then(|at| self.0.swap_remove_back(at));
            spare.unwrap_or_default()
        };
        buffer.reserve_exact(room);
        buffer.extend_from_slice(bytes);
        Bytes::Own(buffer)
    }
}

/// What an asker is told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The asker's rank.
    pub to: u32,
    pub head: AnswerHead,
    /// A message, or the limits of a channel that was opened.
    pub bytes: Option<Bytes>,
}

#[derive(Debug)]
struct Port {
    /// The asker's rank, and its number of the port.
    rank: u32,
    number: u32,
    channel: u32,
    window_messages: u64,
    window_bytes: u64,
    ended: Ended,
    /// What the asker has been told of that.
    told: Ended,
    /// Its asker waits for room in the window.
    wants: bool,
    /// Sends that wait here, and their bytes.
    sends: u64,
    send_bytes: u64,
    /// Gets and polls that wait here.
    others: u64,
    /// Bytes of messages that were handed out and have not arrived.
    handed_out: u64,
    /// The last gets of its that were answered by a message, as many as its window has, and the
    /// message's number: those before have arrived.
    taken: VecDeque<(u64, u64)>,
    /// Its asker has closed it: it is here for its sends that wait, and nobody hears of them.
    leaves: bool,
    /// Its asker is lost: it is here for sends that may still come, and nobody hears of them.
    is_lost: bool,
}

/// The ports of an owner's channels. A number that names none is one of a port that is gone:
/// nobody hears.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    ports: Vec<Option<Port>>,
    free: Vec<u32>,
    /// What is to be told, the first before.
    pub answers: VecDeque<Answer>,
    spare: Spare,
    /// Bytes of messages that may be handed out and not arrived, where that is bound; those that
    /// are, of all ports; and the channels whose gets wait for that.
    getmsg_bytes: Option<u64>,
    handed_out: u64,
    behind: Vec<u32>,
    /// Those that were closed, and have no sends that wait any more.
    left: Vec<u32>,
}

impl Ports {
    pub fn new(getmsg_bytes: Option<u64>) -> Self {
        Self {
            getmsg_bytes,
            ..Self::default()
        }
    }

    /// Whether a message of so many bytes may be handed out: the first one always.
    pub fn may_hand_out(&self, bytes: u64) -> bool {
        let is_within = |most| self.handed_out.saturating_add(bytes) <= most;
        bytes == 0 || self.handed_out == 0 || self.getmsg_bytes.is_none_or(is_within)
    }

    /// A get of a port is answered by the message with this number.
    pub fn note_taken(&mut self, port: u32, id: u64, number: u64) {
        if let Some(of) = self.get(port) {
            if of.taken.len() as u64 >= of.window_messages {
                of.taken.pop_front();
            }
            of.taken.push_back((id, number));
        }
    }

    /// The number of the message by which a get of a port was answered, if it is one of the last;
    /// once.
    pub fn take_taken(&mut self, port: u32, id: u64) -> Option<u64> {
        let taken = &mut self.get(port)?.taken;
        let at = taken.iter().rposition(|&(of, _)| of == id)?;
        taken.remove(at).map(|(_, number)| number)
    }

    /// The channel of this port goes on once more may be handed out.
    pub fn wait_behind(&mut self, port: u32) {
        let channel = self.get(port).map(|of| of.channel);
        self.behind.extend(channel);
    }

    /// The channels that go on.
    pub fn take_behind(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.behind)
    }

    /// A message that was handed out to a port has arrived.
    ///
    /// # Errors
    /// None of so many bytes was.
    pub fn arrived(&mut self, port: u32, bytes: u64) -> Result<(), &'static str> {
        let of = self.get(port).ok_or("a message of no port")?;
        let left = of.handed_out.checked_sub(bytes);
        of.handed_out = left.ok_or("more has arrived than was handed out")?;
        self.handed_out -= bytes;
        Ok(())
    }

    /// A port of `channel` for an asker: rank and its number of the port.
    pub fn add(&mut self, (rank, number): (u32, u32), channel: u32, limits: &ChannelLimits) -> u32 {
        let port = Port {
            rank,
            number,
            channel,
            window_messages: limits.window_messages.into(),
            window_bytes: limits.window_bytes,
            ended: Ended::default(),
            told: Ended::default(),
            wants: false,
            sends: 0,
            send_bytes: 0,
            others: 0,
            handed_out: 0,
            taken: VecDeque::new(),
            leaves: false,
            is_lost: false,
        };
        let at = self.free.pop().unwrap_or(self.ports.len() as u32);
        match self.ports.get_mut(at as usize) {
            Some(place) => *place = Some(port),
            None => self.ports.push(Some(port)),
        }
        at
    }

    /// The channel of a port that a rank has; `None` where it has none of this number.
    pub fn channel_of(&self, rank: u32, port: u32) -> Option<u32> {
        let port = self.ports.get(port as usize)?.as_ref()?;
        (port.rank == rank && !port.leaves).then_some(port.channel)
    }

    /// The asker of a port has closed it: it goes once none of its sends waits.
    pub fn leave(&mut self, port: u32) {
        if let Some(of) = self.ports[port as usize].as_mut() {
            of.leaves = true;
            self.handed_out -= std::mem::take(&mut of.handed_out);
            self.left.extend((of.sends == 0).then_some(port));
        }
    }

    /// Some ranks are lost. Nobody hears of what their ports have asked for.
    pub fn lose(&mut self, has: impl Fn(u32) -> bool) {
        for of in self.ports.iter_mut().flatten().filter(|of| has(of.rank)) {
            of.is_lost = true;
            self.handed_out -= std::mem::take(&mut of.handed_out);
        }
    }

    /// The ports that some ranks have, with these.
    pub fn of(&self, has: impl Fn(u32) -> bool) -> Vec<(u32, u32)> {
        let all = (0..).zip(&self.ports);
        let all = all.filter_map(|(port, of)| of.as_ref().map(|of| (of.rank, port, of.leaves)));
        all.filter(|(rank, _, leaves)| !leaves && has(*rank))
            .map(|(rank, port, _)| (rank, port))
            .collect()
    }

    /// Whether the asker of a port is lost.
    pub fn is_lost(&self, port: u32) -> bool {
        let port = self.ports.get(port as usize).and_then(Option::as_ref);
        port.is_some_and(|port| port.is_lost)
    }

    /// Whether the asker of a port has closed it.
    pub fn is_left(&self, port: u32) -> bool {
        let port = self.ports[port as usize].as_ref();
        port.is_none_or(|port| port.leaves)
    }

    /// Removes a port that was closed and that nothing waits for; the channel that it was of.
    pub fn remove_left(&mut self) -> Option<u32> {
        let port = self.left.pop()?;
        let of = self.ports[port as usize].take()?;
        self.free.push(port);
        Some(of.channel)
    }

    fn get(&mut self, port: u32) -> Option<&mut Port> {
        self.ports[port as usize].as_mut()
    }

    /// Whether one more send of these bytes may wait here.
    pub fn may_send(&self, port: u32, bytes: u64) -> bool {
        self.ports[port as usize].as_ref().is_some_and(|port| {
            port.sends == 0
                || port.sends < port.window_messages && port.send_bytes + bytes <= port.window_bytes
        })
    }

    /// Whether one more get or poll may wait here.
    pub fn may_wait(&self, port: u32) -> bool {
        let port = self.ports[port as usize].as_ref();
        port.is_some_and(|port| port.others < port.window_messages)
    }

    pub fn wait_to_send(&mut self, port: u32, bytes: u64) {
        if let Some(port) = self.get(port) {
            port.sends += 1;
            port.send_bytes += bytes;
        }
    }

    pub fn no_longer_sends(&mut self, port: u32, bytes: u64) {
        if let Some(of) = self.get(port) {
            of.sends -= 1;
            of.send_bytes -= bytes;
            let is_over = of.leaves && of.sends == 0;
            self.left.extend(is_over.then_some(port));
        }
    }

    pub fn wait_otherwise(&mut self, port: u32) {
        if let Some(port) = self.get(port) {
            port.others += 1;
        }
    }

    pub fn no_longer_waits(&mut self, port: u32) {
        if let Some(port) = self.get(port) {
            port.others -= 1;
        }
    }

    /// A send of the port has ended, whatever came of it.
    pub fn end_send(&mut self, port: u32, bytes: u64) {
        if let Some(port) = self.get(port) {
            port.ended.messages += 1;
            port.ended.bytes += bytes;
        }
    }

    /// Tells a port's asker what it may send again, where it waits for that or half of its window
    /// has come free.
    pub fn credit(&mut self, port: u32) {
        let Some(of) = self.get(port) else {
            return;
        };
        let messages = of.ended.messages - of.told.messages;
        let bytes = of.ended.bytes - of.told.bytes;
        let is_due = of.wants && messages > 0
            || messages * 2 >= of.window_messages
            || bytes.saturating_mul(2) >= of.window_bytes;
        if is_due {
            self.answer(port, 0, Status::Credit, 0);
        }
    }

    /// The asker of a port waits for room.
    pub fn want(&mut self, port: u32) {
        if let Some(of) = self.get(port) {
            of.wants = true;
            self.credit(port);
        }
    }

    pub fn answer(&mut self, port: u32, id: u64, status: Status, value: u64) {
        self.tell(port, id, status, value, None);
    }

    /// Hands a message out.
    pub fn answer_with(&mut self, port: u32, id: u64, message: Stored) {
        let bytes = message.bytes.len() as u64;
        let value = match self.getmsg_bytes {
            Some(_) if bytes > 0 => message::TELLS,
            _ => message::COMES,
        };
        if value == message::TELLS
            && let Some(of) = self.get(port)
        {
            of.handed_out += bytes;
            self.handed_out += bytes;
        }
        self.tell(port, id, Status::Done, value, Some(message));
    }

    fn tell(&mut self, port: u32, id: u64, status: Status, value: u64, message: Option<Stored>) {
        let of = self.ports[port as usize].as_mut();
        let Some(of) = of.filter(|of| !of.leaves && !of.is_lost) else {
            if let Some(message) = message {
                self.spare.put(message.bytes);
            }
            return;
        };
        of.told = of.ended;
        of.wants = false;
        let about = message
            .as_ref()
            .map(|message| message.about)
            .unwrap_or_default();
        let head = AnswerHead {
            port: of.number,
            status,
            id,
            value,
            ended: of.ended,
            about,
        };
        let bytes = message.map(|message| message.bytes);
        let to = of.rank;
        self.answers.push_back(Answer { to, head, bytes });
    }

    /// The bytes, in a buffer.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) -> Bytes {
        self.spare.copy(bytes)
    }

    /// Takes the buffer of a message that is gone.
    pub fn spare(&mut self, bytes: Bytes) {
        self.spare.put(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_message_has_no_long_buffer_and_one_that_fits_is_used_again() {
        let mut spare = Spare::default();
        spare.put(Vec::with_capacity(SPARE_BYTES).into());
        spare.put(Vec::with_capacity(66).into());
        let fits = spare.0[1].as_ptr();
        let short = spare.copy(&[7]);
        assert_eq!((short.as_ptr(), &short[..]), (fits, &[7][..]));
        let Bytes::Own(second) = spare.copy(&[8]) else {
            panic!("it is copied");
        };
        assert!(second.capacity() <= 66, "{}", second.capacity());
        // Long ones that nobody uses give way.
        spare.put(second.into());
        for _ in 0..SPARE_BUFFERS - 1 {
            spare.put(Vec::with_capacity(8).into());
        }
        assert_eq!(spare.0.len(), SPARE_BUFFERS);
        assert!(spare.0.iter().all(|spare| spare.capacity() <= 66));
    }
}
