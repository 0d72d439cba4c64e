//! Our ring, driven as an engine with many lanes drives it.

use std::sync::Arc;

use trihop::transport::memory::segment::Segment;
use trihop::transport::ring::{Doorbell, Inbox, InboxLayout, Producer};

use super::Error;
use super::measure::Queue;

/// Capacity of a lane, as `trihop bench ring` has it; the other queues hold as many bytes.
pub const LANE_BYTES: u32 = 1 << 20;

/// What a frame has in front of its payload.
const HEAD_BYTES: usize = 8;

/// A stream shows its frames in steps of this size, as `trihop bench ring` does.
const PUBLISH_BYTES: usize = 16 << 10;

/// An inbox with one lane.
pub struct Lane;

/// Receiving end.
pub struct Receiver {
    inbox: Inbox,
    active: Vec<u32>,
    /// Whether the lane was announced and not found empty since.
    listed: bool,
    /// Keeps the bell's word and descriptor.
    _doorbell: Doorbell,
}

fn open() -> Result<(Producer, Receiver), trihop::transport::Error> {
    let layout = InboxLayout::new(1, LANE_BYTES)?;
    let segment = Segment::create(layout.segment_bytes())?;
    let inbox = Inbox::new(Arc::clone(&segment), layout)?;
    let doorbell = Doorbell::create()?;
    let producer = Producer::new(segment, layout, 0, doorbell.bell())?;
    let receiver = Receiver {
        inbox,
        active: Vec::with_capacity(1),
        listed: false,
        _doorbell: doorbell,
    };
    Ok((producer, receiver))
}

impl<const N: usize> Queue<N> for Lane {
    type Sender = Producer;
    type Receiver = Receiver;

    fn open() -> Result<(Self::Sender, Self::Receiver), Error> {
        open().map_err(|error| Error::Open {
            queue: "a lane of trihop",
            why: error.to_string(),
        })
    }

    #[inline]
    fn try_send(sender: &mut Producer, message: &[u8; N]) -> Result<bool, Error> {
        let bytes = HEAD_BYTES + N.next_multiple_of(8);
        let Some(frame) = sender.reserve(bytes) else {
            sender.publish();
            return Ok(false);
        };
        frame[4..HEAD_BYTES].copy_from_slice(&(N as u32).to_le_bytes());
        frame[HEAD_BYTES..HEAD_BYTES + N].copy_from_slice(message);
        sender.commit(bytes);
        if sender.pending_bytes() >= PUBLISH_BYTES {
            sender.publish();
        }
        Ok(true)
    }

    fn show(sender: &mut Producer) {
        sender.publish();
    }

    #[inline]
    fn try_receive(receiver: &mut Receiver, message: &mut [u8; N]) -> Result<bool, Error> {
        if !receiver.listed {
            receiver.inbox.take_active(&mut receiver.active);
            if receiver.active.is_empty() {
                return Ok(false);
            }
            receiver.active.clear();
            receiver.listed = true;
        }
        let mut lane = receiver.inbox.lane(0);
        let frame = match lane.front() {
            Ok(frame) => frame,
            Err(corrupt) => return Err(Error::Wrong(corrupt.to_string())),
        };
        let Some(frame) = frame else {
            lane.release();
            receiver.listed = false;
            return Ok(false);
        };
        match frame.get(HEAD_BYTES..HEAD_BYTES + N) {
            Some(payload) => message.copy_from_slice(payload),
            None => {
                return Err(Error::Wrong(format!(
                    "a frame of {} bytes for a message of {N}",
                    frame.len()
                )));
            }
        }
        lane.pop();
        Ok(true)
    }
}
