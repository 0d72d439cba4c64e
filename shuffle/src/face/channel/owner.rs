//! The owner's side of channels: requests in, answers out, a clock given. It knows no stream, no
//! lock and no time of its own.

mod gate;
mod ports;
mod queue;
#[cfg(test)]
mod tests;

use trihop_transport::topology::Rank;

use super::bytes::Bytes;
use super::poll::ChannelKind;
use super::terms::ChannelLimits;
use super::wire::{About, AnswerHead, Ended, Payload, Request, Status, write_limits};
use crate::member::Loss;
pub(super) use gate::Gate;
use ports::Ports;
pub use ports::SPARE_BYTES;
pub(super) use ports::{Answer, Spare};
use queue::Queue;
pub(super) use queue::Stored;

/// Channels of one owner, at most.
const MOST_CHANNELS: usize = 1 << 16;

/// A place for a channel.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Channels that were here before.
    epoch: u32,
    queue: Option<Queue>,
}

impl Place {
    /// The epoch of the channel that is here.
    pub fn taken(&self) -> Option<u32> {
        self.queue.as_ref().map(|_| self.epoch)
    }

    /// Bytes of the longest message that is here.
    pub fn longest_bytes(&self) -> usize {
        self.queue.as_ref().map_or(0, Queue::longest_bytes)
    }
}

/// After so many bytes that were got there is room for more: an eighth of a lane of usual length.
const STEP_BYTES: usize = 8 << 10;

/// What a message has on its way beside its bytes, about.
const MESSAGE_BYTES: usize = 64;

/// The channels of one rank.
///
/// A request of a port that its asker does not have, or beyond its window, is one that cannot be:
/// the asker is broken. All else is answered.
#[derive(Debug, Default)]
pub(super) struct Owner {
    places: Vec<Place>,
    ports: Ports,
    /// Nothing that waits has an earlier deadline. It may have been answered since.
    next_deadline_ns: Option<u64>,
    /// This rank leaves: no channel is made or opened.
    leaves: bool,
    /// Epoch of the first channel in a new place.
    first_epoch: u32,
    /// Those who are lost, and of whom nothing more counts.
    gone: Vec<Loss>,
    /// Bytes that were got since [`Owner::take_step`] has last taken one.
    got_bytes: usize,
}

impl Owner {
    /// With the bound of what it has handed out and has not arrived, in bytes.
    pub fn new(getmsg_bytes: Option<u64>) -> Self {
        Self {
            ports: Ports::new(getmsg_bytes),
            ..Self::default()
        }
    }

    /// Makes a channel, of messages where it is no `gate`; its number and epoch. `None` where there
    /// are as many as may be.
    pub fn create(&mut self, limits: ChannelLimits, gate: Option<Gate>) -> Option<(u32, u32)> {
        let free = self.places.iter().position(|place| place.queue.is_none());
        let at = free.unwrap_or(self.places.len());
        if self.leaves || at == MOST_CHANNELS {
            return None;
        }
        if at == self.places.len() {
            self.places.push(Place {
                epoch: self.first_epoch,
                queue: None,
            });
        }
        let place = &mut self.places[at];
        place.queue = Some(Queue::new(limits, gate));
        Some((at as u32, place.epoch))
    }

    /// What is to be told next: what has failed before a request was answered is said before that.
    pub fn take_answer(&mut self) -> Option<Answer> {
        self.ports.answers.pop_front()
    }

    /// As [`Owner::take_answer`], of what this rank is to be told.
    pub fn take_answer_to(&mut self, rank: u32) -> Option<Answer> {
        let answers = &mut self.ports.answers;
        let at = answers.iter().position(|answer| answer.to == rank)?;
        answers.remove(at)
    }

    /// Whether anybody is to be told something.
    pub fn has_answers(&self) -> bool {
        !self.ports.answers.is_empty()
    }

    /// Takes the buffer of a message that is gone.
    pub fn spare(&mut self, bytes: Bytes) {
        self.ports.spare(bytes);
    }

    /// Ends what should have been done by now.
    pub fn expire(&mut self, now_ns: impl Fn() -> u64) {
        let Some(next_ns) = self.next_deadline_ns else {
            return;
        };
        let now_ns = now_ns();
        if now_ns < next_ns {
            return;
        }
        let Self { places, ports, .. } = self;
        let queues = places.iter_mut().filter_map(|place| place.queue.as_mut());
        let next = queues.map(|queue| {
            queue.expire(now_ns, ports);
            queue.next_deadline_ns()
        });
        self.next_deadline_ns = next.min().filter(|&next_ns| next_ns < u64::MAX);
        self.remove_ports();
    }

    /// When a request that has come now is to end; `None` where it is tried once.
    fn deadline(&mut self, timeout_ns: u64, now_ns: impl Fn() -> u64) -> Option<u64> {
        match timeout_ns {
            0 => None,
            u64::MAX => Some(u64::MAX),
            _ => {
                let deadline_ns = now_ns().saturating_add(timeout_ns);
                let next_ns = self.next_deadline_ns.unwrap_or(u64::MAX);
                self.next_deadline_ns = Some(next_ns.min(deadline_ns));
                Some(deadline_ns)
            }
        }
    }

    /// Takes a request of a rank.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn take(
        &mut self,
        rank: u32,
        request: Request,
        payload: Payload<'_>,
        now_ns: impl Fn() -> u64,
    ) -> Result<(), &'static str> {
        self.expire(&now_ns);
        if self.is_gone(Rank(rank)) {
            return Ok(());
        }
        let port = match request {
            Request::Open {
                channel,
                epoch,
                port,
            } => {
                self.open((rank, port), channel, epoch);
                return Ok(());
            }
            Request::Send { port, .. }
            | Request::Get { port, .. }
            | Request::Poll { port, .. }
            | Request::Cancel { port, .. }
            | Request::Close { port }
            | Request::Want { port }
            | Request::Arrived { port, .. }
            | Request::GiveBack { port, .. } => port,
        };
        let timeout_ns = match request {
            Request::Send { timeout_ns, .. }
            | Request::Get { timeout_ns, .. }
            | Request::Poll { timeout_ns, .. } => timeout_ns,
            _ => 0,
        };
        let deadline_ns = self.deadline(timeout_ns, now_ns);
        let channel = self
            .ports
            .channel_of(rank, port)
            .ok_or("a port that it does not have")?;
        let leaves_something = matches!(
            request,
            Request::Send { .. } | Request::GiveBack { .. } | Request::Close { .. }
        );
        if self.ports.is_lost(port) && !leaves_something {
            return Ok(());
        }
        let Self { places, ports, .. } = self;
        let queue = places[channel as usize].queue.as_mut();
        let queue = queue.expect("a channel stays as long as a port of it");
        let is_of_kind = match request {
            Request::Send { .. } | Request::Get { .. } => queue.kind() == ChannelKind::Messages,
            Request::Poll { poll, .. } => poll.is_of(queue.kind()),
            _ => true,
        };
        if !is_of_kind {
            return Err("a request that channels of this kind do not know");
        }
        match request {
            Request::Send { id, when, kind, .. } => {
                let message = stored(payload, (0, rank, kind), ports);
                let bytes = message.bytes.len() as u64;
                if bytes > queue.limits.bytes {
                    return Err("a message that is longer than its channel");
                }
                if !ports.may_send(port, bytes) {
                    return Err("more sends than its window");
                }
                queue.send((port, id), when, message, deadline_ns, ports);
            }
            Request::Get { .. } if !ports.may_wait(port) => {
                return Err("more requests than its window");
            }
            Request::Poll { poll, .. } if poll.may_wait() && !ports.may_wait(port) => {
                return Err("more requests than its window");
            }
            Request::Get { id, take, .. } => queue.get((port, id), take, deadline_ns, ports),
            Request::Poll { id, poll, .. } => queue.poll((port, id), poll, deadline_ns, ports),
            Request::Cancel { id, given_up, .. } => queue.cancel((port, id), given_up, ports),
            Request::Want { .. } => ports.want(port),
            Request::Arrived { bytes, .. } => {
                ports.arrived(port, bytes)?;
                self.hand_on();
            }
            Request::GiveBack {
                number,
                kind,
                source,
                ..
            } => {
                let message = stored(payload, (number, source, kind), ports);
                queue.give_back(message, ports)?;
            }
            Request::Close { .. } => self.close_port(rank, port),
            Request::Open { .. } => {}
        }
        self.remove_ports();
        Ok(())
    }

    /// The message that a get of this rank's would be answered by now, where it has so many bytes
    /// at most. It needs no request.
    pub fn get_now(
        &mut self,
        (channel, epoch): (u32, u32),
        most: u64,
        now_ns: impl Fn() -> u64,
    ) -> Option<Stored> {
        self.expire(now_ns);
        let Self { places, ports, .. } = self;
        let place = places.get_mut(channel as usize)?;
        let queue = place.queue.as_mut().filter(|_| place.epoch == epoch)?;
        let message = queue.get_now(most, ports);
        self.remove_ports();
        if let Some(message) = &message {
            self.got_bytes += message.bytes.len() + MESSAGE_BYTES;
        }
        message
    }

    /// Whether a step was got since it last was: those who send could go on.
    pub fn take_step(&mut self) -> bool {
        let is_step = self.got_bytes >= STEP_BYTES;
        if is_step {
            self.got_bytes = 0;
        }
        is_step
    }

    fn open(&mut self, (rank, number): (u32, u32), channel: u32, epoch: u32) {
        let place = self.places.get_mut(channel as usize);
        let place = place.filter(|place| place.epoch == epoch && !self.leaves);
        let queue = place.and_then(|place| place.queue.as_mut());
        let (mut status, mut value, mut bytes) = (Status::Gone, 0, None);
        let mut kind = ChannelKind::Messages;
        match queue {
            Some(queue) if queue.ports >= queue.limits.ports => status = Status::NoPort,
            Some(queue) => {
                queue.open_port();
                kind = queue.kind();
                let mut limits = Vec::new();
                write_limits(&queue.limits, &mut limits);
                bytes = Some(limits.into());
                status = Status::Done;
                value = self
                    .ports
                    .add((rank, number), channel, &queue.limits)
                    .into();
            }
            None => {}
        }
        let head = AnswerHead {
            port: number,
            status,
            id: 0,
            value,
            ended: Ended::default(),
            about: About {
                kind: kind as u32,
                ..About::default()
            },
        };
        self.ports.answers.push_back(Answer {
            to: rank,
            head,
            bytes,
        });
    }

    /// What was handed out has arrived: goes on with the channels whose gets wait for that, each
    /// once.
    fn hand_on(&mut self) {
        let Self { places, ports, .. } = self;
        for channel in ports.take_behind() {
            if let Some(queue) = &mut places[channel as usize].queue {
                queue.hand_on(ports);
            }
        }
    }

    /// What a port has sent, and its caller has gone on from, still comes into the channel; it is a
    /// port of that until then. Of what else it has waiting the log alone hears.
    fn close_port(&mut self, rank: u32, port: u32) {
        let Some(channel) = self.ports.channel_of(rank, port) else {
            return;
        };
        self.ports.leave(port);
        let Self { places, ports, .. } = self;
        let place = &mut places[channel as usize];
        if let Some(queue) = &mut place.queue {
            let lost = queue.forget(port, ports);
            if lost > 0 {
                tracing::warn!(
                    channel,
                    rank,
                    lost,
                    "sends of a port that was closed waited for room, and are dropped"
                );
            }
        }
        self.hand_on();
    }

    /// Some ranks are lost: nobody is answered for them, and what they have sent may still come.
    pub fn lose(&mut self, loss: &Loss) {
        let Self { places, ports, .. } = self;
        ports.lose(|rank| loss.has(Rank(rank)));
        let queues = places.iter_mut().filter_map(|place| place.queue.as_mut());
        queues.for_each(|queue| queue.lose(ports));
        self.hand_on();
        self.remove_ports();
    }

    /// Whether nothing of a rank counts any more.
    pub fn is_gone(&self, rank: Rank) -> bool {
        self.gone.iter().any(|loss| loss.has(rank))
    }

    /// Nothing more comes of those: their ports are closed.
    pub fn forget(&mut self, loss: &Loss) {
        self.lose(loss);
        for (rank, port) in self.ports.of(|rank| loss.has(Rank(rank))) {
            self.close_port(rank, port);
        }
        self.remove_ports();
        self.gone.push(loss.clone());
    }

    /// Removes the ports that were closed and have nothing waiting. A channel that is closed goes
    /// with its last one.
    fn remove_ports(&mut self) {
        while let Some(channel) = self.ports.remove_left() {
            if let Some(queue) = &mut self.places[channel as usize].queue {
                queue.ports -= 1;
            }
            self.free(channel);
        }
    }

    /// Gives the place of a channel that is closed and that nobody has a port of to the next one.
    fn free(&mut self, channel: u32) {
        let place = &mut self.places[channel as usize];
        let is_over = |queue: &mut Queue| queue.closed && queue.ports == 0 && !queue.is_kept;
        if let Some(mut queue) = place.queue.take_if(is_over) {
            let lost = queue.drop_messages(&mut self.ports);
            if lost > 0 {
                tracing::warn!(
                    channel,
                    lost,
                    "a closed channel goes with messages that nobody took"
                );
            }
            place.epoch = place.epoch.wrapping_add(1);
        }
    }

    /// Nothing is sent to a channel any more; what is there may be taken.
    pub fn close(&mut self, channel: u32, epoch: u32) {
        let Some(place) = self.places.get_mut(channel as usize) else {
            return;
        };
        if let Some(queue) = place.queue.as_mut().filter(|_| place.epoch == epoch) {
            queue.close(&mut self.ports);
            self.free(channel);
            self.remove_ports();
        }
    }

    /// This rank leaves: all channels are closed, and their messages dropped. How many there were.
    pub fn leave(&mut self) -> usize {
        self.leaves = true;
        let Self { places, ports, .. } = self;
        let queues = places.iter_mut().filter_map(|place| place.queue.as_mut());
        let lost = queues.map(|queue| {
            queue.close(ports);
            queue.drop_messages(ports)
        });
        let lost = lost.sum();
        (0..self.places.len() as u32).for_each(|channel| self.free(channel));
        lost
    }
}

/// What one opening of channels hands to another.
impl Owner {
    /// This rank leaves, and keeps its channels with their messages; false where it has left.
    pub fn keep(&mut self, now_ns: impl Fn() -> u64) -> bool {
        if std::mem::replace(&mut self.leaves, true) {
            return false;
        }
        self.expire(now_ns);
        let Self { places, ports, .. } = self;
        let queues = places.iter_mut().filter_map(|place| place.queue.as_mut());
        for queue in queues.filter(|queue| queue.is_to_be_kept()) {
            queue.keep(ports);
        }
        true
    }

    /// The places of what was kept, of which nobody has a port. Ports that are left here find it
    /// closed.
    pub fn kept(&mut self) -> Vec<Place> {
        let kept = |place: &mut Place| {
            let queue = place.queue.as_mut();
            match queue.map(|queue| queue.is_kept.then(|| queue.move_on())) {
                // It was closed, and is empty.
                Some(None) => Place {
                    epoch: place.epoch.wrapping_add(1),
                    queue: None,
                },
                queue => Place {
                    epoch: place.epoch,
                    queue: queue.flatten(),
                },
            }
        };
        self.places.iter_mut().map(kept).collect()
    }

    /// Goes on with what was kept.
    pub fn resume(&mut self, places: Vec<Place>) {
        self.places = places;
    }

    /// Others may still know channels that were here, and none of this rank's is to be taken for
    /// one of those.
    pub fn begin_at(&mut self, epoch: u32) {
        self.first_epoch = epoch;
    }

    /// Gives that back, where the opening came to nothing.
    pub fn unresumed(&mut self) -> Vec<Place> {
        self.keep(|| 0);
        self.kept()
    }
}

#[inline]
fn stored(
    payload: Payload<'_>,
    (number, source, kind): (u64, u32, u32),
    ports: &mut Ports,
) -> Stored {
    let bytes = match payload {
        Payload::Borrowed(bytes) => ports.copy(bytes),
        Payload::Owned(bytes) => bytes,
    };
    Stored {
        about: About {
            number,
            source,
            kind,
        },
        bytes,
        receipt: None,
    }
}
