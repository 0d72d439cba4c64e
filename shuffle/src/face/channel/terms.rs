//! What callers say of a channel and of their calls: limits, when a send returns, how long it may
//! take.

use std::time::Duration;

use crate::error::{Error, Result};

/// What a channel may hold, all of it in the memory of its owner, and how much each port may have
/// under way. At most `bytes + ports x max(window_bytes, longest message)` of payload wait there,
/// and `messages + ports x 2 x window_messages` entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Messages that the channel holds: 1 to 2^24, 100 by default.
    pub messages: u32,
    /// Bytes of these messages, 1 MiB by default, at least 1. A longer message is refused.
    pub bytes: u64,
    /// Ports that may be open at once: 1 to 2^24, 1024 by default.
    pub ports: u32,
    /// Sends of a port that are not yet in the channel; as many of its other requests may wait. 1
    /// to 2^16, 64 by default.
    pub window_messages: u32,
    /// Bytes of these sends, 256 KiB by default. A longer message goes when nothing else of its
    /// port is under way.
    pub window_bytes: u64,
}

impl Default for ChannelLimits {
    fn default() -> Self {
        Self {
            messages: 100,
            bytes: 1 << 20,
            ports: 1024,
            window_messages: 64,
            window_bytes: 256 << 10,
        }
    }
}

impl ChannelLimits {
    pub(super) fn check(&self) -> Result<()> {
        let ranges = [
            ("messages", u64::from(self.messages), 1 << 24),
            ("bytes", self.bytes, 1 << 48),
            ("ports", u64::from(self.ports), 1 << 24),
            ("window_messages", u64::from(self.window_messages), 1 << 16),
            ("window_bytes", self.window_bytes, 1 << 48),
        ];
        for (key, value, most) in ranges {
            if !(1..=most).contains(&value) {
                let why = format!("{value} of a channel: it is 1 to {most}");
                return Err(Error::config(key, why));
            }
        }
        Ok(())
    }
}

/// When a send returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Return {
    /// At once: [`Error::WouldBlock`] where the port has as much under way as it may, or another
    /// thread's send by it waits for that. The bytes are copied. What becomes of the message later
    /// is counted: [`Channel::failures`](super::Channel::failures).
    Immediately = 0,
    /// Once the port's window has room, and the bytes are copied into the queues of this rank.
    /// Failures as of [`Return::Immediately`].
    WhenBuffered = 1,
    /// Once the message is in the channel.
    WhenDeposited = 2,
    /// Once somebody has taken it out of the channel.
    WhenReceived = 3,
}

impl Return {
    pub(crate) fn of(number: u32) -> Option<Self> {
        let all = [
            Self::Immediately,
            Self::WhenBuffered,
            Self::WhenDeposited,
            Self::WhenReceived,
        ];
        all.get(number as usize).copied()
    }

    /// Whether the call waits for the owner's answer.
    pub(super) fn is_answered(self) -> bool {
        matches!(self, Self::WhenDeposited | Self::WhenReceived)
    }
}

/// How long a call may take. The owner of the channel keeps the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timeout {
    /// As long as it takes.
    Never,
    /// It is tried once: what cannot be done at once is [`Error::WouldBlock`].
    Once,
    /// So long, to about a millisecond; then [`Error::TimedOut`], with nothing done.
    After(Duration),
}

impl Timeout {
    /// As it stands in a request.
    pub(crate) fn nanoseconds(self) -> u64 {
        match self {
            Self::Never => u64::MAX,
            Self::Once => 0,
            // Longer than the clock runs is for ever, and what is over is tried, and ends as one
            // that has waited.
            Self::After(time) => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1),
        }
    }

    /// As whoever reads it in a request takes it.
    pub(crate) fn as_sent(self) -> Self {
        Self::of_nanoseconds(self.nanoseconds())
    }

    /// What stands so in a request.
    pub(crate) fn of_nanoseconds(time: u64) -> Self {
        match time {
            u64::MAX => Self::Never,
            0 => Self::Once,
            time => Self::After(Duration::from_nanos(time)),
        }
    }
}

/// What a get does with the first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    /// Takes it out.
    Get,
    /// Copies it, and leaves it there.
    Peek,
    /// Takes it out, without its bytes.
    Pop,
    /// Takes it out where it has so many bytes at most; else it stays, and how many it has is said.
    Within(u64),
}

impl Take {
    /// As it stands in a request: its number, and how many bytes there may be at most.
    pub fn words(self) -> (u32, u64) {
        match self {
            Self::Get => (0, 0),
            Self::Peek => (1, 0),
            Self::Pop => (2, 0),
            Self::Within(most) => (3, most),
        }
    }

    pub fn of(number: u32, most: u64) -> Option<Self> {
        match (number, most) {
            (0, 0) => Some(Self::Get),
            (1, 0) => Some(Self::Peek),
            (2, 0) => Some(Self::Pop),
            (3, most) => Some(Self::Within(most)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_what_they_stand_for() {
        for number in 0..20 {
            assert_eq!(Return::of(number).is_some(), number < 4);
            assert!(Return::of(number).is_none_or(|when| when as u32 == number));
            for most in [0, 7] {
                let take = Take::of(number, most);
                assert_eq!(take.is_some(), number == 3 || number < 3 && most == 0);
                assert!(take.is_none_or(|take| take.words() == (number, most)));
            }
        }
    }

    #[test]
    fn impossible_limits_are_refused_by_name() {
        assert!(ChannelLimits::default().check().is_ok());
        let limits = ChannelLimits {
            window_messages: 0,
            ..ChannelLimits::default()
        };
        let refused = limits.check().unwrap_err().to_string();
        assert!(refused.contains("window_messages"), "{refused}");
    }
}
