//! rtrb: a slot per message, or a ring of bytes.

use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::measure::Queue;
use super::{Error, slots};

/// What a byte ring has in front of each payload.
const HEAD_BYTES: usize = 8;

/// One array per slot.
pub struct Slots;

impl<const N: usize> Queue<N> for Slots {
    type Sender = Producer<[u8; N]>;
    type Receiver = Consumer<[u8; N]>;

    fn open() -> Result<(Self::Sender, Self::Receiver), Error> {
        Ok(RingBuffer::new(slots(N)))
    }

    #[inline]
    fn try_send(sender: &mut Self::Sender, message: &[u8; N]) -> Result<bool, Error> {
        Ok(match sender.push(*message) {
            Ok(()) => true,
            Err(PushError::Full(_)) => false,
        })
    }

    #[inline]
    fn try_receive(receiver: &mut Self::Receiver, message: &mut [u8; N]) -> Result<bool, Error> {
        Ok(receiver.pop().map(|m| *message = m).is_ok())
    }
}

/// Messages of any length, as our ring has them: a length, then the payload.
pub struct Bytes;

impl<const N: usize> Queue<N> for Bytes {
    type Sender = Producer<u8>;
    type Receiver = Consumer<u8>;

    fn open() -> Result<(Self::Sender, Self::Receiver), Error> {
        Ok(RingBuffer::new(super::lane::LANE_BYTES as usize))
    }

    #[inline]
    fn try_send(sender: &mut Self::Sender, message: &[u8; N]) -> Result<bool, Error> {
        let Ok(mut chunk) = sender.write_chunk(HEAD_BYTES + N) else {
            return Ok(false);
        };
        let (first, second) = chunk.as_mut_slices();
        let head = (N as u64).to_le_bytes();
        if let Some((place, payload)) = first.split_first_chunk_mut::<HEAD_BYTES>()
            && payload.len() == N
        {
            *place = head;
            payload.copy_from_slice(message);
        } else {
            let places = first.iter_mut().chain(second);
            places
                .zip(head.iter().chain(message))
                .for_each(|(place, byte)| *place = *byte);
        }
        chunk.commit_all();
        Ok(true)
    }

    #[inline]
    fn try_receive(receiver: &mut Self::Receiver, message: &mut [u8; N]) -> Result<bool, Error> {
        let Ok(chunk) = receiver.read_chunk(HEAD_BYTES + N) else {
            return Ok(false);
        };
        let (first, second) = chunk.as_slices();
        let mut head = [0; HEAD_BYTES];
        if let Some((place, payload)) = first.split_first_chunk::<HEAD_BYTES>()
            && payload.len() == N
        {
            head = *place;
            message.copy_from_slice(payload);
        } else {
            let places = head.iter_mut().chain(message);
            places
                .zip(first.iter().chain(second))
                .for_each(|(place, byte)| *place = *byte);
        }
        chunk.commit_all();
        if u64::from_le_bytes(head) != N as u64 {
            return Err(Error::Wrong(format!(
                "a length of {head:?} for a message of {N} bytes"
            )));
        }
        Ok(true)
    }
}
