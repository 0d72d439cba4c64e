//! Queues between two threads of this process: our ring beside those that crates offer.
//!
//! `trihop-compare threads QUEUE SIZE` measures one of them and prints a row, so that each has a
//! process of its own, as all other rivals have. Latency is half a round trip over two queues, rate
//! that of a stream one way; the number in the first word of each message is checked, every byte of
//! some messages too.

mod crossbeam;
#[cfg(feature = "iceoryx2")]
mod iceoryx;
mod lane;
mod measure;
mod rtrb;

use clap::ValueEnum;

pub use self::measure::Effort;

/// Which queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Queue {
    /// Our ring, with the bitmap of active lanes and the doorbell as in an engine
    Trihop,
    /// rtrb, one array per slot
    Rtrb,
    /// rtrb of bytes: length and payload by chunks
    RtrbBytes,
    /// Bounded channel of crossbeam-channel
    Crossbeam,
    /// Publish-subscribe of iceoryx2 over its inter-process service
    Iceoryx2,
}

impl Queue {
    /// How much of it is measured: iceoryx2 takes some twenty times as long per message as the
    /// others.
    pub fn effort(self) -> Effort {
        let messages = if self == Self::Iceoryx2 {
            100_000
        } else {
            2_000_000
        };
        Effort {
            reps: 3,
            rounds: 10_000,
            messages,
        }
    }
}

/// Why there is no row.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A size for which there is no instance.
    #[error(
        "queues between threads are measured with messages of 8, 64, 1024 and 4096 bytes, not of {0}"
    )]
    Size(usize),
    /// Not part of this binary.
    #[cfg(not(feature = "iceoryx2"))]
    #[error("this trihop-compare was built without iceoryx2; build it with the default features")]
    NotBuilt,
    /// The queue could not be opened.
    #[error("opening {queue}: {why}")]
    Open {
        /// Name of the queue.
        queue: &'static str,
        /// What it said.
        why: String,
    },
    /// A message was wrong or failed on its way.
    #[error("{0}")]
    Wrong(String),
    /// The thread at the other end has failed, and says why.
    #[error("the thread at the other end gave up")]
    GaveUp,
}

/// Measures one queue with messages of `size` bytes.
///
/// # Errors
/// [`Error`].
pub fn run(queue: Queue, size: usize, effort: Effort) -> Result<measure::Row, Error> {
    match size {
        8 => sized::<8>(queue, effort),
        64 => sized::<64>(queue, effort),
        1024 => sized::<1024>(queue, effort),
        4096 => sized::<4096>(queue, effort),
        _ => Err(Error::Size(size)),
    }
}

fn sized<const N: usize>(queue: Queue, effort: Effort) -> Result<measure::Row, Error> {
    match queue {
        Queue::Trihop => measure::run::<lane::Lane, N>(effort),
        Queue::Rtrb => measure::run::<rtrb::Slots, N>(effort),
        Queue::RtrbBytes => measure::run::<rtrb::Bytes, N>(effort),
        Queue::Crossbeam => measure::run::<crossbeam::Channel, N>(effort),
        #[cfg(feature = "iceoryx2")]
        Queue::Iceoryx2 => measure::run::<iceoryx::Service, N>(effort),
        #[cfg(not(feature = "iceoryx2"))]
        Queue::Iceoryx2 => Err(Error::NotBuilt),
    }
}

/// Messages that a queue of slots holds: as many bytes as a lane of ours, within reason.
fn slots(size: usize) -> usize {
    (lane::LANE_BYTES as usize / size).clamp(256, 16_384)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFORT: Effort = Effort {
        reps: 1,
        rounds: 100,
        messages: 2_000,
    };

    /// `run` checks every message that it moves.
    #[test]
    fn every_queue_carries_every_message() {
        for queue in Queue::value_variants() {
            for size in [8, 4096] {
                match run(*queue, size, EFFORT) {
                    Ok(row) => assert!(
                        row.latency_us > 0.0 && row.msgs_per_s > 0.0,
                        "{queue:?}: {row:?}"
                    ),
                    #[cfg(not(feature = "iceoryx2"))]
                    Err(Error::NotBuilt) => eprintln!("{queue:?}: skipped, not built"),
                    Err(error) => panic!("{queue:?} with {size} bytes: {error}"),
                }
            }
        }
    }

    #[test]
    fn a_size_without_an_instance_is_refused() {
        assert!(matches!(run(Queue::Rtrb, 9, EFFORT), Err(Error::Size(9))));
    }

    /// A queue that changes the message of this number on its way.
    struct Spoilt<const WHICH: u64>;

    impl<const WHICH: u64> measure::Queue<8> for Spoilt<WHICH> {
        type Sender = (::rtrb::Producer<[u8; 8]>, u64);
        type Receiver = ::rtrb::Consumer<[u8; 8]>;

        fn open() -> Result<(Self::Sender, Self::Receiver), Error> {
            let (sender, receiver) = <rtrb::Slots as measure::Queue<8>>::open()?;
            Ok(((sender, 0), receiver))
        }

        fn try_send((sender, sent): &mut Self::Sender, message: &[u8; 8]) -> Result<bool, Error> {
            let mut message = *message;
            if *sent == WHICH {
                message[7] ^= 1;
            }
            let done = <rtrb::Slots as measure::Queue<8>>::try_send(sender, &message)?;
            *sent += u64::from(done);
            Ok(done)
        }

        fn try_receive(
            receiver: &mut Self::Receiver,
            message: &mut [u8; 8],
        ) -> Result<bool, Error> {
            <rtrb::Slots as measure::Queue<8>>::try_receive(receiver, message)
        }
    }

    /// The other thread waits for an answer, or for room, that will never come.
    #[test]
    fn a_wrong_message_is_told_and_nobody_waits_for_ever() {
        for spoilt in [
            measure::run::<Spoilt<7>, 8>,    // of the round trips
            measure::run::<Spoilt<1000>, 8>, // of the stream
        ] {
            let error = spoilt(EFFORT).expect_err("a message was changed");
            assert!(
                matches!(&error, Error::Wrong(why) if why.contains("has the number")),
                "{error}"
            );
        }
    }
}
