//! Streams of values of any length, which a codec turns into bytes and back.

use std::fmt::Display;
use std::marker::PhantomData;

use trihop_transport::sync::{PoisonError, StaticMutex};
use trihop_transport::topology::Rank;

use super::codec::{Codec, encode, with_scratch};
use super::shuffle::{Shuffle, ShuffleBuilder, each_message};
use super::verbs::{common_verbs, outbox_verbs};
use crate::config::StreamOptions;
use crate::deliver::Message;
use crate::engine::BadRun;
use crate::engine::outbox::Outbox;
use crate::error::Result;
use crate::queue::audience::BroadcastTo;
use crate::seat::{Handle, Inline, Seat};

/// The bytes of a value, sent.
pub(super) fn encoded<V, R>(
    codec: &impl Codec<V>,
    value: &V,
    send: impl FnOnce(&[u8]) -> Result<R>,
) -> Result<R> {
    with_scratch(|bytes| {
        encode(codec, value, bytes)?;
        send(bytes)
    })
}

/// The value of a record. One that has none ends the job, with an error that says why.
pub(crate) fn decoded<V>(codec: &impl Codec<V>, source: Rank, bytes: &[u8]) -> Result<V, BadRun> {
    let no_value = |why| no_value(source, format_args!("its codec does not take it: {why}"));
    codec.decode(bytes).map_err(no_value)
}

/// Bytes of texts that have been leaked. Most of them end the job, and there are few.
static LEAKED: StaticMutex<usize> = StaticMutex::new(0);
const MOST_LEAKED: usize = 64 << 10;

pub(super) fn no_value(source: Rank, why: impl Display) -> BadRun {
    tracing::error!(source = source.0, %why, "a record is no value of its stream");
    let why = why.to_string();
    let mut leaked = LEAKED.lock().unwrap_or_else(PoisonError::into_inner);
    if *leaked + why.len() > MOST_LEAKED {
        return BadRun::Value("its codec does not take it; the log says why");
    }
    *leaked += why.len();
    BadRun::Value(String::leak(why))
}

/// Opens a [`Coded`] stream: options, handler.
pub struct CodedBuilder<V, C, S: Seat> {
    shuffle: ShuffleBuilder<S>,
    pub(crate) codec: C,
    value: PhantomData<fn() -> V>,
}

impl<V, C: Codec<V> + Clone, S: Seat> CodedBuilder<V, C, S> {
    pub(crate) fn new(seat: &S, name: &str, codec: C) -> Self {
        Self {
            shuffle: ShuffleBuilder::new(seat, name),
            codec,
            value: PhantomData,
        }
    }

    pub(crate) fn handled_by(self, handler: S::Handler) -> Self {
        Self {
            shuffle: self.shuffle.handle_by(handler),
            ..self
        }
    }

    /// Options of this stream instead of the job's.
    pub fn options(self, options: StreamOptions) -> Self {
        Self {
            shuffle: self.shuffle.options(options),
            ..self
        }
    }

    /// Opens the stream; collective.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's.
    pub fn open(self) -> Result<Coded<V, C, S>> {
        let shuffle = self.shuffle.open()?;
        Ok(Coded::over(&shuffle, self.codec))
    }
}

impl<'h, V: 'h, C: Codec<V> + Clone + 'h> CodedBuilder<V, C, Inline<'h>> {
    /// Calls `handler` for every value that arrives, with its sender. Without a handler, values
    /// wait for [`Coded::take`].
    pub fn handler(
        self,
        mut handler: impl FnMut(Rank, V, &mut CodedOutbox<'_, V, C>) + 'h,
    ) -> Self {
        let codec = self.codec.clone();
        self.handled_by(Box::new(move |delivery, done, outbox| {
            each_message(delivery, done, |message, first| {
                if !first && outbox.has_overfilled() {
                    return Ok(false);
                }
                let value = decoded(&codec, message.source, message.bytes)?;
                let mut outbox = CodedOutbox {
                    outbox: outbox.again(),
                    codec: &codec,
                    value: PhantomData,
                };
                handler(message.source, value, &mut outbox);
                Ok(true)
            })
        }))
    }
}

/// What a handler of a [`Coded`] stream gets to send with: as [`Outbox`].
pub struct CodedOutbox<'a, V, C> {
    outbox: Outbox<'a>,
    codec: &'a C,
    value: PhantomData<fn() -> V>,
}

outbox_verbs!([V, C: Codec<V>] CodedOutbox<'_, V, C>);

impl<V, C: Codec<V>> CodedOutbox<'_, V, C> {
    /// Sends a value, or spills it.
    ///
    /// # Errors
    /// As [`Outbox::send`]; a value that the codec refuses.
    pub fn push(&mut self, target: Rank, value: &V) -> Result<()> {
        encoded(self.codec, value, |bytes| {
            self.outbox.send(target, 0, bytes)
        })
    }

    /// Sends a value to many ranks, or spills it.
    ///
    /// # Errors
    /// As [`CodedOutbox::push`].
    pub fn broadcast(&mut self, value: &V, to: BroadcastTo) -> Result<()> {
        encoded(self.codec, value, |bytes| {
            self.outbox.broadcast(0, bytes, to)
        })
    }
}

/// A stream of values of any length between all ranks of a job, which a [`Codec`] writes and
/// reads. For plain data of one length, a [`Stream`](crate::Stream) costs less. Clones are
/// handles of the same stream.
///
/// ```
/// # #[cfg(feature = "postcard")] {
/// use trihop_shuffle::{Job, Options, Postcard, Rank, State};
///
/// let words = State::new(Vec::new());
/// let heard = words.clone();
/// let job = Job::start(Options::from_env()?)?;
/// let stream = job
///     .coded::<(String, u32), _>("words", Postcard)
///     .handler(move |_source, word, _outbox| heard.with(|words| words.push(word)))
///     .open()?;
/// stream.push(Rank(0), &("ocean".to_owned(), 7))?;
/// stream.fence()?;
/// assert_eq!(words.with(|words| words.len()), job.size() as usize);
/// job.shutdown()?;
/// # }
/// # Ok::<(), trihop_shuffle::Error>(())
/// ```
pub struct Coded<V, C, S: Seat> {
    pub(crate) handle: Handle<S>,
    codec: C,
    value: PhantomData<fn() -> V>,
}

impl<V, C: Clone, S: Seat> Clone for Coded<V, C, S> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            codec: self.codec.clone(),
            value: PhantomData,
        }
    }
}

impl<V, C: Codec<V>, S: Seat> Coded<V, C, S> {
    pub(crate) fn over(shuffle: &Shuffle<S>, codec: C) -> Self {
        Self {
            handle: shuffle.handle.clone(),
            codec,
            value: PhantomData,
        }
    }

    fn shuffle(&self) -> Shuffle<S> {
        Shuffle {
            handle: self.handle.clone(),
        }
    }

    /// Sends a value; waits as [`Shuffle::send`](crate::Shuffle::send) does.
    ///
    /// # Errors
    /// As that; [`Error::Config`](crate::Error::Config) for a value that the codec refuses.
    pub fn push(&self, target: Rank, value: &V) -> Result<()> {
        encoded(&self.codec, value, |bytes| {
            self.handle.send_record(target, 0, bytes)
        })
    }

    /// Sends a value if there is room now; never waits and makes no progress.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock), with nothing taken; as [`Coded::push`].
    pub fn try_push(&self, target: Rank, value: &V) -> Result<()> {
        encoded(&self.codec, value, |bytes| {
            self.handle.try_send_record(target, 0, bytes)
        })
    }

    /// Sends many values.
    ///
    /// # Errors
    /// As [`Coded::push`]; values before the failing one are sent.
    pub fn extend<'a>(&self, values: impl IntoIterator<Item = (Rank, &'a V)>) -> Result<()>
    where
        V: 'a,
    {
        let mut values = values.into_iter();
        values.try_for_each(|(target, value)| self.push(target, value))
    }

    /// Sends a value to many ranks: see [`Shuffle::broadcast`](crate::Shuffle::broadcast).
    ///
    /// # Errors
    /// As [`Coded::push`].
    pub fn broadcast(&self, value: &V, to: BroadcastTo) -> Result<()> {
        encoded(&self.codec, value, |bytes| {
            self.shuffle().broadcast(0, bytes, to)
        })
    }

    /// One round of progress, then every value that waits is handed to `take`; returns how many.
    /// For streams without a handler.
    ///
    /// # Errors
    /// As [`Shuffle::take`](crate::Shuffle::take).
    pub fn take(&self, mut take: impl FnMut(Rank, V)) -> Result<u64> {
        self.handle.take(|delivery| {
            let one = |message: Message<'_>, _| {
                let value = decoded(&self.codec, message.source, message.bytes)?;
                take(message.source, value);
                Ok(true)
            };
            each_message(delivery, 0, one).map(drop)
        })
    }
}

common_verbs!([V, C: Codec<V> + Clone, S: Seat] Coded<V, C, S>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::codec::Plain;
    use crate::{Error, Job, Options, State};
    use trihop_transport::bootstrap::Launcher;

    fn single() -> Options {
        Options {
            launcher: Some(Launcher::Single),
            ..Options::default()
        }
    }

    /// Texts, and none that begins with an x.
    #[derive(Clone)]
    struct Text;

    impl Codec<String> for Text {
        fn encode(&self, value: &String, bytes: &mut Vec<u8>) -> Result<(), String> {
            match value.starts_with('x') {
                true => Err("an x".to_owned()),
                false => Plain.encode(&(value.len() as u64), bytes).map(|()| {
                    bytes.extend_from_slice(value.as_bytes());
                }),
            }
        }

        fn decode(&self, bytes: &[u8]) -> Result<String, String> {
            let (length, text) = bytes.split_at_checked(8).ok_or("no length")?;
            let length: u64 = Plain.decode(length)?;
            let text = String::from_utf8(text.to_vec()).map_err(|error| error.to_string())?;
            match text.len() as u64 == length {
                true => Ok(text),
                false => Err(format!("{length} bytes were said")),
            }
        }
    }

    #[test]
    fn values_of_any_length_arrive_and_handlers_send_on() {
        let heard = State::new(Vec::new());
        let noted = heard.clone();
        let job = Job::start(single()).unwrap();
        let coded = job
            .coded("texts", Text)
            .handler(move |_, text: String, outbox| {
                if text.len() > 1 {
                    outbox.push(outbox.rank(), &text[1..].to_owned()).unwrap();
                }
                noted.with(|noted| noted.push(text));
            });
        let stream = coded.open().unwrap();
        let long = "y".repeat(100_000);
        let texts = ["ab".to_owned(), String::new()];
        stream
            .extend(texts.iter().map(|text| (Rank(0), text)))
            .unwrap();
        stream
            .broadcast(&"c".to_owned(), BroadcastTo::Everyone)
            .unwrap();
        stream.fence().unwrap();
        assert_eq!(heard.with(|heard| heard.join(" ")), "ab  c b");
        let refused = stream.try_push(Rank(0), &"x".to_owned());
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
        let taken = job.coded::<String, _>("taken", Text).open().unwrap();
        taken.push(Rank(0), &long).unwrap();
        taken.fence().unwrap();
        let mut texts = Vec::new();
        assert_eq!(taken.take(|_, text| texts.push(text)).unwrap(), 1);
        assert_eq!(texts, [long]);
        job.shutdown().unwrap();
    }

    #[test]
    fn bytes_that_are_no_value_end_the_job() {
        let job = Job::start(single()).unwrap();
        let stream = job.coded("texts", Text).handler(|_, _: String, _| {});
        let stream = stream.open().unwrap();
        stream
            .shuffle()
            .send(Rank(0), 0, b"\x02\0\0\0\0\0\0\0abc")
            .unwrap();
        let failed = stream.fence().unwrap_err();
        assert!(matches!(failed, Error::BadPeer { .. }), "{failed:?}");
        let why = "its codec does not take it: ";
        assert!(failed.to_string().contains(why), "{failed}");
    }

    #[cfg(feature = "postcard")]
    #[test]
    fn postcard_takes_exactly_one_value() {
        use crate::face::codec::Postcard;
        let mut bytes = b"before".to_vec();
        let value = (7u32, Some("seven".to_owned()), vec![1.5f64]);
        Postcard.encode(&value, &mut bytes).unwrap();
        let read: (u32, Option<String>, Vec<f64>) = Postcard.decode(&bytes[6..]).unwrap();
        assert_eq!(read, value);
        let whole = bytes.len();
        for cut in 6..whole {
            let read: Result<(u32, Option<String>, Vec<f64>), String> =
                Postcard.decode(&bytes[6..cut]);
            assert!(read.is_err());
        }
        bytes.push(0);
        let read: Result<(u32, Option<String>, Vec<f64>), String> = Postcard.decode(&bytes[6..]);
        assert!(read.is_err());
    }
}
