//! crossbeam-channel, bounded.

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};

use super::measure::Queue;
use super::{Error, slots};

/// A bounded channel of arrays.
pub struct Channel;

impl<const N: usize> Queue<N> for Channel {
    type Sender = Sender<[u8; N]>;
    type Receiver = Receiver<[u8; N]>;

    fn open() -> Result<(Self::Sender, Self::Receiver), Error> {
        Ok(bounded(slots(N)))
    }

    #[inline]
    fn try_send(sender: &mut Self::Sender, message: &[u8; N]) -> Result<bool, Error> {
        match sender.try_send(*message) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => Ok(false),
            Err(TrySendError::Disconnected(_)) => {
                Err(Error::Wrong("the receiving end is gone".into()))
            }
        }
    }

    #[inline]
    fn try_receive(receiver: &mut Self::Receiver, message: &mut [u8; N]) -> Result<bool, Error> {
        match receiver.try_recv() {
            Ok(received) => {
                *message = received;
                Ok(true)
            }
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(Error::Wrong("the sending end is gone".into())),
        }
    }
}
