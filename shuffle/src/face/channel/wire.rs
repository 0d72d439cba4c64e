//! Requests to owners of channels, and their answers, as records: the bytes of a message, and
//! behind them what they are, so that a message stays where it has come to lie.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bytes::Bytes;
use super::poll::Poll;
use super::terms::{ChannelLimits, Return, Take};

/// What a record is, by its kind.
pub(super) mod kinds {
    pub const OPEN: u32 = 1;
    pub const SEND: u32 = 2;
    pub const GET: u32 = 3;
    pub const POLL: u32 = 4;
    pub const CANCEL: u32 = 5;
    pub const CLOSE: u32 = 6;
    pub const WANT: u32 = 7;
    pub const GIVE_BACK: u32 = 8;
    pub const ANSWER: u32 = 9;
    pub const ARRIVED: u32 = 10;
    /// A part of a message: see [`super::super::parts`].
    pub const PART: u32 = 11;
    /// With one of the others: its message comes in parts. Alone: no more of one comes than so many
    /// bytes.
    pub const CUT: u32 = 1 << 8;
    /// With one of the others: its message lies in memory of the node, and here is said where.
    pub const SHARED: u32 = 1 << 9;
}

/// The value of an answer with a message.
pub(super) mod message {
    pub const COMES: u64 = 1;
    /// The owner is told that it has arrived.
    pub const TELLS: u64 = 2;
}

/// Bytes of a record beside those of a message, at most: of an answer.
pub(super) const HEAD_BYTES: usize = size_of::<RawAnswer>();

/// The bytes of a message, or a record in which they are.
pub(super) enum Payload<'a> {
    Borrowed(&'a [u8]),
    Owned(Bytes),
}

impl Payload<'_> {
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    /// Its first `count` bytes.
    #[inline]
    pub fn first(self, count: usize) -> Self {
        match self {
            Self::Borrowed(bytes) => Self::Borrowed(&bytes[..count]),
            Self::Owned(bytes) => Self::Owned(bytes.first(count)),
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRequest {
    /// Number of the port at the owner; of an opening, the channel's.
    port: U32,
    /// Of a send, when it returns; of a get, what it does; what is polled for; of an opening, the
    /// asker's number of the port.
    what: U32,
    /// The asker's number of the request; of a message that comes back, its number in the channel;
    /// of one that has arrived, its bytes.
    id: U64,
    timeout_ns: U64,
    /// Of a message, its kind and its source; of a get, the bytes that it takes at most; of an
    /// opening, the channel's epoch.
    word: U64,
}

const _: () = assert!(size_of::<RawRequest>() == 32);

/// A request to an owner; the bytes of a message stand before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Open {
        channel: u32,
        epoch: u32,
        port: u32,
    },
    Send {
        port: u32,
        id: u64,
        when: Return,
        timeout_ns: u64,
        kind: u32,
    },
    Get {
        port: u32,
        id: u64,
        take: Take,
        timeout_ns: u64,
    },
    Poll {
        port: u32,
        id: u64,
        poll: Poll,
        timeout_ns: u64,
    },
    /// The asker waits for this request no longer. Where it is `given_up`, a message that it was
    /// answered by comes back.
    Cancel {
        port: u32,
        id: u64,
        given_up: bool,
    },
    /// The port is closed.
    Close {
        port: u32,
    },
    /// The asker waits for room in its window.
    Want {
        port: u32,
    },
    /// A message that came for somebody who did not wait for it any more; of a semaphore, one that
    /// was taken from it so.
    GiveBack {
        port: u32,
        number: u64,
        kind: u32,
        source: u32,
    },
    /// A message that the owner has handed out is at its asker's rank, which was asked to say so.
    Arrived {
        port: u32,
        bytes: u64,
    },
}

impl Request {
    /// The kind of its record, which goes behind what is in `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) -> u32 {
        let (mut what, mut id, mut timeout_ns, mut word) = (0, 0, 0, 0);
        let (kind, port) = match *self {
            Self::Open {
                channel,
                epoch,
                port,
            } => {
                (what, word) = (port, u64::from(epoch));
                (kinds::OPEN, channel)
            }
            Self::Send {
                port,
                id: number,
                when,
                timeout_ns: time,
                kind,
            } => {
                (what, id, timeout_ns, word) = (when as u32, number, time, u64::from(kind));
                (kinds::SEND, port)
            }
            Self::Get {
                port,
                id: number,
                take,
                timeout_ns: time,
            } => {
                let (number_of, most) = take.words();
                (what, id, timeout_ns, word) = (number_of, number, time, most);
                (kinds::GET, port)
            }
            Self::Poll {
                port,
                id: number,
                poll,
                timeout_ns: time,
            } => {
                (what, id, timeout_ns) = (poll as u32, number, time);
                (kinds::POLL, port)
            }
            Self::Cancel {
                port,
                id: number,
                given_up,
            } => {
                (what, id) = (given_up.into(), number);
                (kinds::CANCEL, port)
            }
            Self::Close { port } => (kinds::CLOSE, port),
            Self::Want { port } => (kinds::WANT, port),
            Self::GiveBack {
                port,
                number,
                kind,
                source,
            } => {
                (id, word) = (number, u64::from(kind) | u64::from(source) << 32);
                (kinds::GIVE_BACK, port)
            }
            Self::Arrived { port, bytes } => {
                id = bytes;
                (kinds::ARRIVED, port)
            }
        };
        let raw = RawRequest {
            port: port.into(),
            what: what.into(),
            id: id.into(),
            timeout_ns: timeout_ns.into(),
            word: word.into(),
        };
        bytes.extend_from_slice(raw.as_bytes());
        kind
    }

    /// The request in a record of this kind, and the bytes before it; `None` for what cannot be.
    #[inline]
    pub fn parse(kind: u32, bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (rest, raw) = RawRequest::ref_from_suffix(bytes).ok()?;
        let (port, what, id) = (raw.port.get(), raw.what.get(), raw.id.get());
        let (timeout_ns, word) = (raw.timeout_ns.get(), raw.word.get());
        let request = match kind {
            kinds::OPEN => Self::Open {
                channel: port,
                epoch: u32::try_from(word).ok()?,
                port: what,
            },
            kinds::SEND => Self::Send {
                port,
                id,
                when: Return::of(what)?,
                timeout_ns,
                kind: u32::try_from(word).ok()?,
            },
            kinds::GET => Self::Get {
                port,
                id,
                take: Take::of(what, word)?,
                timeout_ns,
            },
            kinds::POLL => Self::Poll {
                port,
                id,
                poll: Poll::of(what)?,
                timeout_ns,
            },
            kinds::CANCEL => Self::Cancel {
                port,
                id,
                given_up: what != 0,
            },
            kinds::CLOSE => Self::Close { port },
            kinds::WANT => Self::Want { port },
            kinds::GIVE_BACK => Self::GiveBack {
                port,
                number: id,
                kind: word as u32,
                source: (word >> 32) as u32,
            },
            kinds::ARRIVED => Self::Arrived { port, bytes: id },
            _ => return None,
        };
        let has_message = matches!(kind, kinds::SEND | kinds::GIVE_BACK);
        (has_message || rest.is_empty()).then_some((request, rest))
    }
}

/// How a request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Status {
    Done = 0,
    /// It could not be done at once.
    WouldBlock = 1,
    /// Its deadline has passed.
    TimedOut = 2,
    /// The channel is closed.
    Closed = 3,
    /// There is no such channel, or no more.
    Gone = 4,
    /// As many ports are open as may be.
    NoPort = 5,
    /// Of no request: the port's counters alone.
    Credit = 6,
    /// The barrier is broken, or was made whole while somebody waited.
    Broken = 7,
    /// The semaphore is at the most that it may be.
    Most = 8,
    /// The message has more bytes than who gets it takes: it stays, and how many is said.
    TooLong = 9,
}

impl Status {
    fn of(number: u32) -> Option<Self> {
        let all = [
            Self::Done,
            Self::WouldBlock,
            Self::TimedOut,
            Self::Closed,
            Self::Gone,
            Self::NoPort,
            Self::Credit,
            Self::Broken,
            Self::Most,
            Self::TooLong,
        ];
        all.get(number as usize).copied()
    }
}

/// Sends of a port that have ended, and their bytes: absolute, so that the order of answers does
/// not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Ended {
    pub messages: u64,
    pub bytes: u64,
}

/// A message beside its bytes; of an opening, what the channel is, as its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct About {
    /// In the order of the channel.
    pub number: u64,
    pub source: u32,
    pub kind: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAnswer {
    /// The asker's number of the port.
    port: U32,
    status: U32,
    id: U64,
    value: U64,
    ended_messages: U64,
    ended_bytes: U64,
    number: U64,
    source: U32,
    kind: U32,
}

const _: () = assert!(size_of::<RawAnswer>() == 56);

/// What an answer is; the bytes of a message stand before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerHead {
    pub port: u32,
    pub status: Status,
    pub id: u64,
    /// What was polled; of an opening, the port's number at the owner; where a message comes, of
    /// [`message`]; of one that is too long, its bytes.
    pub value: u64,
    pub ended: Ended,
    pub about: About,
}

impl AnswerHead {
    /// Goes behind what is in `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        let raw = RawAnswer {
            port: self.port.into(),
            status: (self.status as u32).into(),
            id: self.id.into(),
            value: self.value.into(),
            ended_messages: self.ended.messages.into(),
            ended_bytes: self.ended.bytes.into(),
            number: self.about.number.into(),
            source: self.about.source.into(),
            kind: self.about.kind.into(),
        };
        bytes.extend_from_slice(raw.as_bytes());
    }

    /// What an answer is, and the bytes before that; `None` for what cannot be.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (rest, raw) = RawAnswer::ref_from_suffix(bytes).ok()?;
        let head = Self {
            port: raw.port.get(),
            status: Status::of(raw.status.get())?,
            id: raw.id.get(),
            value: raw.value.get(),
            ended: Ended {
                messages: raw.ended_messages.get(),
                bytes: raw.ended_bytes.get(),
            },
            about: About {
                number: raw.number.get(),
                source: raw.source.get(),
                kind: raw.kind.get(),
            },
        };
        Some((head, rest))
    }
}

const LIMITS: usize = 5;

/// Bytes of the longest answer without a message: of an opening.
pub(super) const OPENING_BYTES: usize = HEAD_BYTES + LIMITS * size_of::<u64>();

/// The limits of a channel, as an opening is answered.
pub(super) fn write_limits(limits: &ChannelLimits, bytes: &mut Vec<u8>) {
    let words: [u64; LIMITS] = [
        limits.messages.into(),
        limits.bytes,
        limits.ports.into(),
        limits.window_messages.into(),
        limits.window_bytes,
    ];
    bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
}

/// What [`write_limits`] has written, as limits that can be.
pub(super) fn parse_limits(bytes: &[u8]) -> Option<ChannelLimits> {
    let (words, []) = bytes.as_chunks() else {
        return None;
    };
    let words: [[u8; 8]; LIMITS] = words.try_into().ok()?;
    let [messages, bytes, ports, window_messages, window_bytes] = words.map(u64::from_le_bytes);
    let limits = ChannelLimits {
        messages: u32::try_from(messages).ok()?,
        bytes,
        ports: u32::try_from(ports).ok()?,
        window_messages: u32::try_from(window_messages).ok()?,
        window_bytes,
    };
    limits.check().is_ok().then_some(limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_comes_is_a_request_that_reads_back_or_none(kind in 0u32..14, bytes: Vec<u8>) {
            if let Some((request, rest)) = Request::parse(kind, &bytes) {
                let mut written = Vec::new();
                prop_assert_eq!(request.write(&mut written), kind);
                prop_assert_eq!(Request::parse(kind, &written), Some((request, &[][..])));
                prop_assert_eq!(written.len() + rest.len(), bytes.len());
            }
            if let Some((head, rest)) = AnswerHead::parse(&bytes) {
                let mut written = Vec::new();
                head.write(&mut written);
                prop_assert_eq!([rest, &written].concat(), bytes.clone());
            }
            if let Some(limits) = parse_limits(&bytes) {
                let mut written = Vec::new();
                write_limits(&limits, &mut written);
                prop_assert_eq!(written, bytes);
            }
        }
    }

    #[test]
    fn only_messages_have_bytes_before_the_request() {
        let mut bytes = vec![0];
        let kind = Request::Want { port: 3 }.write(&mut bytes);
        assert_eq!(Request::parse(kind, &bytes), None);
        assert!(Request::parse(kinds::SEND, &bytes).is_some());
        let limits = ChannelLimits::default();
        let mut bytes = Vec::new();
        write_limits(&limits, &mut bytes);
        assert_eq!(parse_limits(&bytes), Some(limits));
        bytes[0] = 0; // no message
        assert_eq!(parse_limits(&bytes), None);
    }
}
