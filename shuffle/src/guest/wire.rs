//! What guests and their server say to each other: a hello, and then calls and answers on a socket
//! of their own, each a head of 32 bytes and the bytes of a message or a text behind it.

use trihop_transport::bootstrap::Versions;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Lifetime;
use crate::error::Error;
use crate::face::channel::{ChannelKind, ChannelLimits, Descriptor, Poll, Return, Take, Timeout};

/// First bytes of what any version says.
const MAGIC: [u8; 4] = *b"3hgu";

/// Bytes of the head of a call, and of an answer.
pub const HEAD_BYTES: usize = 32;

const _: () = assert!(size_of::<RawCall>() == HEAD_BYTES);
const _: () = assert!(size_of::<RawAnswer>() == HEAD_BYTES);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hello {
    /// To learn who serves here.
    Look,
    /// A port of this channel.
    Attach(Descriptor),
    /// A new channel, and a port of it.
    Create(Make),
}

/// How a channel is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Make {
    pub lifetime: Lifetime,
    pub kind: ChannelKind,
    /// Of a semaphore its value, of a barrier its parties.
    pub value: u64,
    /// Of a semaphore: the most that it may be.
    pub most: u64,
    pub limits: ChannelLimits,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHello {
    what: U32,
    lifetime: U32,
    kind: U32,
    value: U64,
    most: U64,
    limits: RawLimits,
    descriptor: [u8; Descriptor::BYTES],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLimits {
    messages: U32,
    ports: U32,
    window_messages: U32,
    bytes: U64,
    window_bytes: U64,
}

impl RawLimits {
    fn of(limits: ChannelLimits) -> Self {
        Self {
            messages: limits.messages.into(),
            ports: limits.ports.into(),
            window_messages: limits.window_messages.into(),
            bytes: limits.bytes.into(),
            window_bytes: limits.window_bytes.into(),
        }
    }

    fn read(&self) -> ChannelLimits {
        ChannelLimits {
            messages: self.messages.get(),
            bytes: self.bytes.get(),
            ports: self.ports.get(),
            window_messages: self.window_messages.get(),
            window_bytes: self.window_bytes.get(),
        }
    }
}

const LOOK: u32 = 0;
const ATTACH: u32 = 1;
const CREATE: u32 = 2;

impl Hello {
    /// With the versions of this build before it.
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = RawHello::new_zeroed();
        match *self {
            Self::Look => raw.what = LOOK.into(),
            Self::Attach(descriptor) => {
                raw.what = ATTACH.into();
                raw.descriptor = descriptor.to_bytes();
            }
            Self::Create(make) => {
                raw.what = CREATE.into();
                raw.lifetime = (make.lifetime as u32).into();
                raw.kind = (make.kind as u32).into();
                (raw.value, raw.most) = (make.value.into(), make.most.into());
                raw.limits = RawLimits::of(make.limits);
            }
        }
        let versions = Versions::ours().encode(MAGIC);
        [&versions[..], raw.as_bytes()].concat()
    }

    /// # Errors
    /// Why nobody is served who says this; an empty text where it is no guest of any version.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let rest = Versions::behind(MAGIC, bytes)?;
        let raw = RawHello::ref_from_bytes(rest).map_err(|_| String::new())?;
        let known = match raw.what.get() {
            LOOK => Some(Self::Look),
            ATTACH => Descriptor::from_bytes(&raw.descriptor)
                .ok()
                .map(Self::Attach),
            CREATE => raw.make().map(Self::Create),
            _ => None,
        };
        known.ok_or_else(|| "it asks for what cannot be".to_owned())
    }
}

impl RawHello {
    fn make(&self) -> Option<Make> {
        Some(Make {
            lifetime: Lifetime::of(self.lifetime.get())?,
            kind: ChannelKind::of(self.kind.get())?,
            value: self.value.get(),
            most: self.most.get(),
            limits: self.limits.read(),
        })
    }
}

/// What a guest asks of its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// So many bytes follow.
    Send {
        kind: u32,
        when: Return,
        timeout: Timeout,
        bytes: u64,
    },
    Take {
        take: Take,
        timeout: Timeout,
    },
    Poll {
        poll: Poll,
        timeout: Timeout,
    },
    Failures,
    Close,
    /// A descriptor, which comes with the answer, that is readable while something may be had.
    Event,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCall {
    operation: U32,
    number: U32,
    kind: U32,
    is_started: U32,
    timeout_ns: U64,
    bytes: U64,
}

const SEND: u32 = 1;
const TAKE: u32 = 2;
const POLL: u32 = 3;
const FAILURES: u32 = 4;
const CLOSE: u32 = 5;
const EVENT: u32 = 6;

impl Call {
    /// Whether an answer comes. None does to a send that returns once its bytes have left.
    pub fn is_answered(&self) -> bool {
        !matches!(
            self,
            Self::Send {
                when: Return::WhenBuffered,
                timeout: Timeout::Never,
                ..
            }
        )
    }

    /// Whether it may be started, and its end be told on a socket of its own, which comes with it.
    fn may_be_started(&self) -> bool {
        matches!(
            self,
            Self::Send { .. } | Self::Take { .. } | Self::Poll { .. }
        )
    }

    /// Bytes behind the head.
    pub fn bytes(&self) -> u64 {
        match *self {
            Self::Send { bytes, .. } => bytes,
            _ => 0,
        }
    }

    /// Its head, where it `is_started` or not.
    pub fn encode(&self, is_started: bool) -> [u8; HEAD_BYTES] {
        let mut raw = RawCall::new_zeroed();
        raw.is_started = u32::from(is_started).into();
        let mut set = |operation: u32, number: u32, timeout: Timeout, bytes: u64| {
            raw.operation = operation.into();
            raw.number = number.into();
            raw.timeout_ns = timeout.nanoseconds().into();
            raw.bytes = bytes.into();
        };
        match *self {
            Self::Send {
                kind,
                when,
                timeout,
                bytes,
            } => {
                set(SEND, when as u32, timeout, bytes);
                raw.kind = kind.into();
            }
            Self::Take { take, timeout } => {
                let (number, most) = take.words();
                set(TAKE, number, timeout, most);
            }
            Self::Poll { poll, timeout } => set(POLL, poll as u32, timeout, 0),
            Self::Failures => set(FAILURES, 0, Timeout::Once, 0),
            Self::Close => set(CLOSE, 0, Timeout::Once, 0),
            Self::Event => set(EVENT, 0, Timeout::Once, 0),
        }
        zerocopy::transmute!(raw)
    }

    /// The call, and whether it is started; `None` where no guest asks this.
    pub fn parse(head: &[u8; HEAD_BYTES]) -> Option<(Self, bool)> {
        let raw: &RawCall = zerocopy::transmute_ref!(head);
        let (number, kind, bytes) = (raw.number.get(), raw.kind.get(), raw.bytes.get());
        let timeout = Timeout::of_nanoseconds(raw.timeout_ns.get());
        let call = match raw.operation.get() {
            SEND => Self::Send {
                kind,
                when: Return::of(number)?,
                timeout,
                bytes,
            },
            TAKE => Self::Take {
                take: Take::of(number, bytes)?,
                timeout,
            },
            POLL => Self::Poll {
                poll: Poll::of(number)?,
                timeout,
            },
            FAILURES => Self::Failures,
            CLOSE => Self::Close,
            EVENT => Self::Event,
            _ => return None,
        };
        match raw.is_started.get() {
            0 => Some((call, false)),
            1 if call.may_be_started() => Some((call, true)),
            _ => None,
        }
    }
}

/// Head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answer {
    pub status: u32,
    /// Of a message.
    pub kind: u32,
    pub source: u32,
    pub value: u64,
    /// Bytes behind the head.
    pub bytes: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAnswer {
    status: U32,
    kind: U32,
    source: U32,
    zero: U32,
    value: U64,
    bytes: U64,
}

/// Status of what is done.
pub const DONE: u32 = 0;
const WOULD_BLOCK: u32 = 1;
const TIMED_OUT: u32 = 2;
const CLOSED: u32 = 3;
const BROKEN: u32 = 4;
const MISUSE: u32 = 5;
const NO_CHANNEL: u32 = 6;
const CONFIG: u32 = 7;
/// Of a get whose message does not fit: its length is the value.
pub const TOO_LONG: u32 = 8;
const TOO_LARGE: u32 = 9;
const FAILED: u32 = 10;
/// Status of a call that was started and has ended. How it has is said once the guest asks for that
/// by a byte, on the same socket: of one that is closed before, nothing was taken.
pub const READY: u32 = 11;

/// Value of the answer to a start: whether there is an end to come.
pub const OVER: u64 = 0;
pub const UNDER_WAY: u64 = 1;

/// The byte that asks how a call has ended.
pub const ASKS: u8 = 1;

impl Answer {
    /// Of what is done, and gives a number.
    pub fn of_value(value: u64) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }

    /// Of a call that was started and has ended.
    pub fn ready() -> Self {
        Self {
            status: READY,
            ..Self::default()
        }
    }

    /// Of what is done, and gives so many bytes, which follow.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.len() as u64,
            ..Self::default()
        }
    }

    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let raw = RawAnswer {
            status: self.status.into(),
            kind: self.kind.into(),
            source: self.source.into(),
            zero: 0.into(),
            value: self.value.into(),
            bytes: self.bytes.into(),
        };
        zerocopy::transmute!(raw)
    }

    pub fn read(head: &[u8; HEAD_BYTES]) -> Self {
        let raw: &RawAnswer = zerocopy::transmute_ref!(head);
        Self {
            status: raw.status.get(),
            kind: raw.kind.get(),
            source: raw.source.get(),
            value: raw.value.get(),
            bytes: raw.bytes.get(),
        }
    }

    /// Of a call that has failed, and the text that goes with it.
    pub fn of_error(error: &Error) -> (Self, Vec<u8>) {
        let numbers = |number: u32, owner: u32| u64::from(owner) << 32 | u64::from(number);
        let texts = |first: &str, why: &str| format!("{first}\0{why}");
        let (status, value, text) = match error {
            Error::WouldBlock => (WOULD_BLOCK, 0, String::new()),
            Error::TimedOut(_) => (TIMED_OUT, 0, String::new()),
            Error::ChannelClosed { number, owner } => {
                (CLOSED, numbers(*number, *owner), String::new())
            }
            Error::BarrierBroken { number, owner } => {
                (BROKEN, numbers(*number, *owner), String::new())
            }
            Error::Misuse { name, why } => (MISUSE, 0, texts(name, why)),
            Error::NoChannel { descriptor, why } => (NO_CHANNEL, 0, texts(descriptor, why)),
            Error::Config { key, why } => (CONFIG, 0, texts(key, why)),
            Error::TooLarge { bytes, limit } => (TOO_LARGE, *bytes as u64, limit.to_string()),
            Error::ServerFailed { why, .. } => (FAILED, 0, texts("", why)),
            failed => (FAILED, 0, texts("", &failed.to_string())),
        };
        let mut text = text.into_bytes();
        text.truncate(Self::TEXT_BYTES_MAX as usize);
        let answer = Self {
            status,
            value,
            bytes: text.len() as u64,
            ..Self::default()
        };
        (answer, text)
    }

    /// The error that it says, with its text; `what` was called, of `server`.
    pub fn error(&self, text: &[u8], what: &'static str, server: &str) -> Error {
        let text = String::from_utf8_lossy(text);
        let (first, why) = text.split_once('\0').unwrap_or(("", &text));
        let (number, owner) = (self.value as u32, (self.value >> 32) as u32);
        let (first, why) = (first.to_owned(), why.to_owned());
        match self.status {
            WOULD_BLOCK => Error::WouldBlock,
            TIMED_OUT => Error::TimedOut(what),
            CLOSED => Error::ChannelClosed { number, owner },
            BROKEN => Error::BarrierBroken { number, owner },
            MISUSE => Error::Misuse { name: first, why },
            NO_CHANNEL => Error::NoChannel {
                descriptor: first,
                why,
            },
            CONFIG => Error::Config { key: first, why },
            TOO_LARGE => Error::TooLarge {
                bytes: self.value as usize,
                limit: why.parse().unwrap_or(0),
            },
            _ => Error::server_failed(server, why),
        }
    }

    /// Longest text that comes with the status of an error.
    pub const TEXT_BYTES_MAX: u64 = 64 << 10;
}

/// What a guest hears of the port that it has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    pub descriptor: Descriptor,
    pub kind: ChannelKind,
    pub limits: ChannelLimits,
    /// The longest message that may be sent.
    pub longest: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawWelcome {
    descriptor: [u8; Descriptor::BYTES],
    kind: U32,
    longest: U64,
    limits: RawLimits,
}

impl Welcome {
    pub fn encode(&self) -> Vec<u8> {
        let raw = RawWelcome {
            descriptor: self.descriptor.to_bytes(),
            kind: (self.kind as u32).into(),
            longest: self.longest.into(),
            limits: RawLimits::of(self.limits),
        };
        raw.as_bytes().to_vec()
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = RawWelcome::ref_from_bytes(bytes).ok()?;
        Some(Self {
            descriptor: Descriptor::from_bytes(&raw.descriptor).ok()?,
            kind: ChannelKind::of(raw.kind.get())?,
            longest: raw.longest.get(),
            limits: raw.limits.read(),
        })
    }
}

/// What a guest hears of its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    pub rank: u32,
    pub size: u32,
    /// Name of the channels' opening.
    pub channels: String,
}

impl Served {
    pub fn encode(&self) -> Vec<u8> {
        let numbers = [self.rank.to_le_bytes(), self.size.to_le_bytes()];
        [numbers.as_flattened(), self.channels.as_bytes()].concat()
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (&rank, rest) = bytes.split_first_chunk::<4>()?;
        let (&size, rest) = rest.split_first_chunk::<4>()?;
        Some(Self {
            rank: u32::from_le_bytes(rank),
            size: u32::from_le_bytes(size),
            channels: String::from_utf8(rest.to_vec()).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> impl Strategy<Value = ChannelLimits> {
        let numbers = (
            any::<u32>(),
            any::<u64>(),
            any::<u32>(),
            any::<u32>(),
            any::<u64>(),
        );
        numbers.prop_map(
            |(messages, bytes, ports, window_messages, window_bytes)| ChannelLimits {
                messages,
                bytes,
                ports,
                window_messages,
                window_bytes,
            },
        )
    }

    fn hello() -> impl Strategy<Value = Hello> {
        let make = (0..2u32, 0..3u32, any::<u64>(), any::<u64>(), limits());
        let make = make.prop_map(|(lifetime, kind, value, most, limits)| {
            Hello::Create(Make {
                lifetime: Lifetime::of(lifetime).unwrap(),
                kind: ChannelKind::of(kind).unwrap(),
                value,
                most,
                limits,
            })
        });
        let name = "trihop-ch:09e2d635b7509d56:0:1:0:b84a498e";
        prop_oneof![
            Just(Hello::Look),
            Just(Hello::Attach(name.parse().unwrap())),
            make,
        ]
    }

    fn timeout() -> impl Strategy<Value = Timeout> {
        (0..=u64::MAX).prop_map(Timeout::of_nanoseconds)
    }

    fn call() -> impl Strategy<Value = Call> {
        let send = (any::<u32>(), 0..4u32, timeout(), any::<u64>());
        let send = send.prop_map(|(kind, when, timeout, bytes)| Call::Send {
            kind,
            when: Return::of(when).unwrap(),
            timeout,
            bytes,
        });
        let take = (0..4u32, any::<u64>(), timeout());
        let take = take.prop_map(|(number, most, timeout)| {
            let most = if number == 3 { most } else { 0 };
            let take = Take::of(number, most).unwrap();
            Call::Take { take, timeout }
        });
        let poll = (0..20u32, timeout());
        let poll = poll.prop_map(|(poll, timeout)| Call::Poll {
            poll: Poll::of(poll).unwrap(),
            timeout,
        });
        let others = [Call::Failures, Call::Close, Call::Event];
        prop_oneof![send, take, poll, prop::sample::select(others.to_vec())]
    }

    proptest! {
        #[test]
        fn what_is_said_reads_back(hello in hello(), call in call(), limits in limits()) {
            prop_assert_eq!(Hello::parse(&hello.encode()), Ok(hello));
            prop_assert_eq!(Call::parse(&call.encode(false)), Some((call, false)));
            let started = call.may_be_started().then_some((call, true));
            prop_assert_eq!(Call::parse(&call.encode(true)), started);
            let descriptor = "trihop-ch:09e2d635b7509d56:0:1:0:b84a498e".parse().unwrap();
            let (kind, longest) = (ChannelKind::Barrier, limits.bytes);
            let welcome = Welcome { descriptor, kind, limits, longest };
            prop_assert_eq!(Welcome::parse(&welcome.encode()), Some(welcome));
        }

        #[test]
        fn whatever_comes_is_read_or_refused(
            hello in hello(),
            at in any::<usize>(),
            with in any::<u8>(),
            head in any::<[u8; HEAD_BYTES]>(),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut changed = hello.encode();
            let length = changed.len();
            changed[at % length] ^= with;
            let _ = Hello::parse(&changed);
            prop_assert!(Hello::parse(&changed[..at % length]).is_err());
            let _ = (Hello::parse(&bytes), Welcome::parse(&bytes), Served::parse(&bytes));
            if let Some((call, is_started)) = Call::parse(&head) {
                prop_assert_eq!(Call::parse(&call.encode(is_started)), Some((call, is_started)));
            }
            let answer = Answer::read(&head);
            prop_assert_eq!(Answer::read(&answer.encode()), answer);
            let error = answer.error(&bytes, "a call", "server");
            prop_assert!(!error.to_string().is_empty());
        }
    }

    /// Both sides take a time that no clock reaches for none, and so agree on who answers.
    #[test]
    fn times_are_read_as_they_were_written() {
        use std::time::Duration;

        for time in [Duration::ZERO, Duration::from_secs(1), Duration::MAX] {
            let timeout = Timeout::After(time).as_sent();
            let call = Call::Send {
                kind: 0,
                when: Return::WhenBuffered,
                timeout,
                bytes: 0,
            };
            assert_eq!(Call::parse(&call.encode(false)), Some((call, false)));
            assert_eq!(call.is_answered(), time != Duration::MAX);
        }
    }

    #[test]
    fn errors_are_the_same_behind_a_socket() {
        let errors = [
            Error::WouldBlock,
            Error::TimedOut("a get from a channel"),
            Error::ChannelClosed {
                number: 7,
                owner: u32::MAX,
            },
            Error::BarrierBroken {
                number: u32::MAX,
                owner: 7,
            },
            Error::misuse("channels", "a why"),
            Error::no_channel("a name", "another why"),
            Error::config("ports", "too many"),
            Error::TooLarge { bytes: 7, limit: 5 },
            Error::server_failed("server", "a third why"),
        ];
        for error in errors {
            let (answer, text) = Answer::of_error(&error);
            assert_eq!(answer.bytes, text.len() as u64);
            assert_eq!(answer.error(&text, "a get from a channel", "server"), error);
        }
        let (answer, text) = Answer::of_error(&Error::Closed("work".to_owned()));
        let said = answer.error(&text, "a get", "server").to_string();
        assert!(
            said.contains("`server`") && said.contains("`work` is shut down"),
            "{said}"
        );
    }
}
