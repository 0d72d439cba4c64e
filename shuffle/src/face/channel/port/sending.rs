//! Sends: by copies, in parts, or with the memory of the message.

use std::cell::Cell;

use trihop_transport::ring::Block;

use super::super::bytes::Bytes;
use super::super::client::Room;
use super::super::parts::{Carriers, Tail};
use super::super::received::Buffer;
use super::super::terms::{Return, Timeout};
use super::super::wait::{Limit, outcome};
use super::super::wire::{Payload, Request, kinds};
use super::super::{Channels, with_request};
use super::{Channel, Port, SEND};
use crate::engine::long::Record;
use crate::engine::outbound::Outbound;
use crate::error::{Error, Result};
use crate::face::codec::with_scratch;
use crate::queue::counters::SendReason;
use crate::queue::long_buffers;
use crate::queue::shared::{self, Passed};
use crate::seat::Seat;

const ROOM: &str = "room to send";

/// A message that is sent.
pub(in super::super) enum Outgoing<'a> {
    Lent(&'a [u8]),
    /// With its memory, which is empty once that is given away.
    Given(&'a mut Buffer),
}

impl Outgoing<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Given(buffer) => buffer,
        }
    }
}

/// The place of a call that waits for room in a port's window. Once it has room, or gives up, those
/// behind it look again.
struct PlaceInLine<'a, S: Seat> {
    port: &'a Port<S>,
    number: u64,
}

impl<'a, S: Seat> PlaceInLine<'a, S> {
    fn behind_all(port: &'a Port<S>) -> Self {
        let number = port.channels.office.client().line_up(port.number);
        Self { port, number }
    }
}

impl<S: Seat> Drop for PlaceInLine<'_, S> {
    fn drop(&mut self) {
        let Channels { office, handle, .. } = &self.port.channels;
        let others = office.client().leave_line(self.port.number, self.number);
        if others {
            handle.seat.notify_moved();
        }
    }
}

impl<S: Seat> Port<S> {
    /// Sends a message once the window has room, which is not waited for where that is `tried`
    /// only; the number of the request, 0 where nothing answers it.
    pub fn start_send(
        &self,
        kind: u32,
        message: &mut Outgoing<'_>,
        when: Return,
        limit: &Limit,
        tries: bool,
    ) -> Result<u64> {
        let bytes = message.as_slice().len();
        self.may_have(bytes)?;
        self.channels.enter(SEND)?;
        let length = bytes as u64;
        let id = self.room(length, when, limit, tries)?;
        let request = Request::Send {
            port: self.at_owner,
            id,
            when,
            timeout_ns: limit.left_ns(),
            kind,
        };
        if self.is_here() {
            let payload = match message {
                Outgoing::Given(buffer) => Payload::Owned(buffer.take().fitting()),
                // From where another rank of the node may have it.
                Outgoing::Lent(bytes) => match self.copied(bytes) {
                    Some(block) => Payload::Owned(block.into()),
                    None => Payload::Borrowed(bytes),
                },
            };
            self.channels.ask_here(request, payload);
            return Ok(id);
        }
        let sent = match message {
            Outgoing::Lent(bytes) => self.put(request, bytes, tries),
            Outgoing::Given(buffer) => self.put_buffer(request, buffer, tries),
        };
        if let Err(error) = sent {
            let others = (self.channels.office.client()).undo_send(self.number, length, id);
            if others {
                self.channels.handle.seat.notify_moved();
            }
            self.move_on(&error)?;
            return Err(error);
        }
        Ok(id)
    }

    /// Refuses messages of so many bytes where none may be sent.
    fn may_have(&self, bytes: usize) -> Result<()> {
        self.has_messages("messages to be sent")?;
        match self.longest() {
            limit if bytes > limit => Err(Error::TooLarge { bytes, limit }),
            _ => Ok(()),
        }
    }

    /// A copy of a message for the owner in memory that the node shares, where there is any for it.
    fn copied(&self, message: &[u8]) -> Option<Block> {
        let shared = self.channels.office.shared()?;
        shared.copy(self.descriptor.owner(), message)
    }

    /// Counts a send of so many bytes once the window has room for it: as
    /// [`start_send`](Self::start_send). Calls that wait for that are served in their order.
    fn room(&self, bytes: u64, when: Return, limit: &Limit, tries: bool) -> Result<u64> {
        let office = &self.channels.office;
        let mut place = None;
        loop {
            let behind = place
                .as_ref()
                .map(|place: &PlaceInLine<'_, S>| place.number);
            let room = (office.client()).begin_send(self.number, bytes, when.is_answered(), behind);
            let changes = match room {
                Room::Free(id) => return Ok(id),
                Room::None(changes) => changes,
            };
            let wants = office.client().want(self.number);
            if wants {
                let port = self.at_owner;
                self.ask(Request::Want { port }, &[])?;
            }
            if tries {
                self.move_on(&Error::WouldBlock)?;
                return Err(Error::WouldBlock);
            }
            place.get_or_insert_with(|| PlaceInLine::behind_all(self));
            let changed = self.wait_until(SEND, limit, |client| {
                (client.changes(self.number) != changes).then_some(())
            })?;
            changed.ok_or(Error::TimedOut(SEND))?;
        }
    }

    /// Sends a message that the window has room for to another rank.
    fn put(&self, request: Request, bytes: &[u8], tries: bool) -> Result<()> {
        let (handle, target) = (&self.channels.handle, self.descriptor.owner());
        if bytes.len() >= shared::LEAST_BYTES
            && let Some(sent) = self.put_copy(request, bytes, tries)
        {
            return sent;
        }
        if let Some(carriers) = self.channels.office.carriers() {
            let at_once =
                tries || handle.seat.is_in_handler() || handle.seat.may_wait(SEND).is_err();
            let is_cut = carriers.cut(target, bytes.len(), at_once);
            match at_once {
                _ if !is_cut => {}
                false => return self.send_cut(carriers, request, bytes),
                true if self.send_at_once(carriers, request, bytes)? => return Ok(()),
                true if tries => return Err(Error::WouldBlock),
                true => {}
            }
        }
        if !tries && handle.sends_lent(bytes.len()) {
            return with_scratch(|tail| {
                let kind = request.write(tail);
                handle.send_lent(target, kind, Record { bytes, tail })
            });
        }
        with_request(request, bytes, |kind, record| {
            self.put_record((kind, record), tries, |_, _| ())
        })
    }

    /// As [`put`](Self::put); the memory of the message goes with it, where it may, and is empty
    /// then. Otherwise it lies where it did.
    fn put_buffer(&self, request: Request, buffer: &mut Buffer, tries: bool) -> Result<()> {
        let target = self.descriptor.owner();
        let message = match (buffer.take(), self.channels.office.shared()) {
            (Bytes::Shared(block), Some(shared)) => match shared.pass(target, block) {
                Ok(passed) => {
                    let (sent, back) = self.put_passed(request, passed, tries);
                    *buffer = back.map(Bytes::from).unwrap_or_default().into();
                    return sent;
                }
                Err(block) => Bytes::from(block),
            },
            (message, _) => message,
        };
        let sent = self.put(request, &message, tries);
        *buffer = message.into();
        if sent.is_ok() {
            *buffer = Buffer::default(); // and whoever is next may have that memory
        }
        sent
    }

    /// Sends a long message to a rank of the node by a copy that it reads in place; `None` where
    /// that is not possible.
    fn put_copy(&self, request: Request, bytes: &[u8], tries: bool) -> Option<Result<()>> {
        let shared = self.channels.office.shared()?;
        let passed = shared.pass_copy(self.descriptor.owner(), bytes)?;
        let (sent, _) = self.put_passed(request, passed, tries);
        Some(sent)
    }

    /// Sends a record, and then calls `then`, which is told whether that was spilled.
    #[inline]
    fn put_record(
        &self,
        (kind, record): (u32, &[u8]),
        tries: bool,
        then: impl Fn(&mut Outbound, bool),
    ) -> Result<()> {
        let (handle, target) = (&self.channels.handle, self.descriptor.owner());
        let send = |out: &mut Outbound| {
            out.try_send(target, kind, record)?;
            then(out, false);
            Ok(())
        };
        match tries {
            true => handle.try_send(send),
            false => handle.send(send, |out| {
                out.send_or_spill(target, kind, record)?;
                then(out, true);
                Ok(())
            }),
        }
    }

    /// Sends a message to a rank of the node that was passed on to it; and the message, where that
    /// was not told of it. (What fails behind that is no failure of the send alone.)
    fn put_passed(
        &self,
        request: Request,
        passed: Passed,
        tries: bool,
    ) -> (Result<()>, Option<Block>) {
        let has_left = Cell::new(false);
        let sent = with_scratch(|record| {
            passed.write(record);
            let kind = request.write(record) | kinds::SHARED;
            self.put_record((kind, record), tries, |out, is_spilled| {
                has_left.set(true);
                if !S::MOVES_ALONE && !is_spilled {
                    // As long records do, and not once the run that it is in is full.
                    out.close_runs();
                    out.publish(SendReason::Full);
                }
            })
        });
        let back = match has_left.get() {
            true => None,
            false => passed.take_back(),
        };
        (sent, back)
    }

    /// Sends a message in parts without waiting; false where that is not possible now, and nothing
    /// was sent.
    fn send_at_once(&self, carriers: &Carriers, request: Request, bytes: &[u8]) -> Result<bool> {
        let (seat, target) = (&self.channels.handle.seat, self.descriptor.owner());
        with_scratch(|head| {
            let kind = request.write(head);
            carriers.send_at_once((target, kind), (bytes, head), |stream, send| {
                seat.with(SEND, |job| send(job.engine.out(stream)?))
            })
        })
    }

    /// Sends a message in parts, each of which waits for room.
    fn send_cut(&self, carriers: &Carriers, request: Request, bytes: &[u8]) -> Result<()> {
        let (handle, target) = (&self.channels.handle, self.descriptor.owner());
        let tail = carriers.begin(bytes.len());
        let mut left = 0;
        let parts = self.send_parts(carriers, tail, bytes, &mut left);
        let sent = parts.and_then(|()| {
            with_scratch(|record| {
                let kind = request.write(record) | kinds::CUT;
                tail.write(record);
                handle.send(
                    |out| out.try_send(target, kind, record),
                    |out| out.send_or_spill(target, kind, record),
                )
            })
        });
        sent.inspect_err(|_| {
            tail.give_up(left, |kind, record| {
                handle.with_out(SEND, |out| out.send_or_spill(target, kind, record))
            });
        })
    }

    /// Sends the parts of a message; counts the bytes of those that have left.
    fn send_parts(
        &self,
        carriers: &Carriers,
        tail: Tail,
        bytes: &[u8],
        left: &mut u64,
    ) -> Result<()> {
        let (handle, target) = (&self.channels.handle, self.descriptor.owner());
        for (number, part) in tail.parts(bytes).enumerate() {
            let record = part.record()?;
            // Each begins with another one.
            let first = tail.message as usize + number;
            let streams = (first..first + carriers.len()).map(|at| carriers.stream(at));
            let sent = handle.seat.wait(ROOM, |job| {
                let taken = streams.clone().map(|stream| {
                    let out = job.engine.out(stream)?;
                    out.try_send(target, kinds::PART, &record)
                });
                let taken = { taken }.find(|sent| *sent != Err(Error::WouldBlock));
                taken.transpose()
            });
            long_buffers::keep(record);
            sent?;
            *left += part.bytes();
        }
        Ok(())
    }
}

impl<S: Seat> Channel<S> {
    /// Sends a message, of a kind that means what the program wants it to mean, and returns when
    /// `when` says. The timeout is that of its way into the channel, also where the call returns
    /// before; with [`Return::WhenReceived`] that of its way to a receiver, after which it is taken
    /// out of the channel again. What is tried [once](Timeout::Once) waits for its receiver without
    /// an end once it is in the channel.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above the channel's bytes, or `max_message_bytes` less 56;
    /// [`Error::WouldBlock`] and [`Error::TimedOut`], with nothing sent; [`Error::ChannelClosed`];
    /// [`Error::Nested`] in handlers; as every call where a rank is gone. What becomes of a message
    /// whose send has returned before is counted by [`Channel::failures`].
    pub fn send(&self, kind: u32, bytes: &[u8], when: Return, timeout: Timeout) -> Result<()> {
        self.send_out(kind, Outgoing::Lent(bytes), when, timeout)
    }

    /// As [`Channel::send`], of a message whose memory is given away: one that was made in
    /// [`Channel::buffer`], or got from whichever channel. Inside of a node nothing of it is copied
    /// where it is in shared memory, and on the owner's rank in any case; for another node it is
    /// sent as all others.
    ///
    /// `message` is empty once its memory is given away, and has its bytes still where nothing has
    /// left. The owner may refuse what has left, as for want of room when it is tried
    /// [once](Timeout::Once): then it is gone with the call.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_buffer(
        &self,
        kind: u32,
        message: &mut Buffer,
        when: Return,
        timeout: Timeout,
    ) -> Result<()> {
        self.send_out(kind, Outgoing::Given(message), when, timeout)
    }

    /// Memory for a message of so many bytes that is to be sent by this port: filled by the
    /// program, and then given to [`Channel::send_buffer`]. Of a long one, for an owner on this
    /// node, it is memory that the ranks of the node share, as long as there is some; then the
    /// message is not copied at all. What is in it at first means nothing.
    ///
    /// ```
    /// use trihop_shuffle::channel::{Return, Timeout};
    /// use trihop_shuffle::{ChannelLimits, Job, Options};
    ///
    /// let job = Job::start(Options::from_env()?)?;
    /// let channels = job.channels("fields").open()?;
    /// let fields = channels.create(ChannelLimits::default())?;
    /// let mut field = fields.buffer(1 << 20)?;
    /// field.fill(7);
    /// fields.send_buffer(0, &mut field, Return::WhenDeposited, Timeout::Never)?;
    /// assert!(field.is_empty());
    /// assert_eq!(fields.get(Timeout::Never)?.bytes, vec![7; 1 << 20]);
    /// drop(fields);
    /// channels.shutdown()?;
    /// job.shutdown()?;
    /// # Ok::<(), trihop_shuffle::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TooLarge`] above what a message of the channel may have; [`Error::Misuse`] where
    /// it has no messages; [`Error::NoMemory`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer> {
        let port = &*self.0;
        port.may_have(bytes)?;
        let shared = port.channels.office.shared();
        let shared = shared.filter(|shared| shared.is_for(port.descriptor.owner(), bytes));
        if let Some(block) = shared.and_then(|shared| shared.take(bytes)) {
            return Ok(Bytes::from(block).into());
        }
        let mut own = long_buffers::take(bytes).map_err(|_| Error::NoMemory { bytes })?;
        own.resize(bytes, 0);
        Ok(own.into())
    }

    fn send_out(
        &self,
        kind: u32,
        mut message: Outgoing<'_>,
        when: Return,
        timeout: Timeout,
    ) -> Result<()> {
        let port = &*self.0;
        if when != Return::Immediately {
            port.channels.handle.seat.may_wait(SEND)?;
        }
        let limit = Limit::new(timeout);
        let tries_again = !S::MOVES_ALONE && port.is_here() && when.is_answered();
        let is_given = matches!(message, Outgoing::Given(_));
        if tries_again && is_given && limit.is_once() {
            port.channels.handle.seat.progress(SEND)?; // it can be sent but once
        }
        let mut send = || {
            let tries = when == Return::Immediately || limit.is_once();
            let id = port.start_send(kind, &mut message, when, &limit, tries)?;
            if !when.is_answered() {
                return Ok(());
            }
            let answered = port.answer(id, SEND, limit)?;
            outcome(answered.status, SEND, &port.descriptor)
        };
        match send() {
            // As of gets.
            Err(Error::WouldBlock) if tries_again && !is_given => {
                port.channels.handle.seat.progress(SEND)?;
                send()
            }
            outcome => outcome,
        }
    }
}
