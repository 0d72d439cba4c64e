//! Guests: processes that are no ranks, and use the channels of a job all the same, through a rank
//! of their node.
//!
//! A rank of a job with threads serves guests under a name
//! ([`serve_guests`](crate::threaded::Channels::serve_guests)), and any process of the same user on
//! that node makes channels there, attaches to those of all ranks, sends, gets and polls. Guests
//! come and go at any time, one by one: nothing is collective, and none of them that ends, however,
//! is missed. What they ask goes over a socket to the rank's process, which does it by its own
//! ports; ranks themselves use channels without that.
//!
//! ```
//! use std::time::Duration;
//!
//! use trihop_shuffle::channel::{Return, Timeout};
//! use trihop_shuffle::guest::{Guest, Lifetime};
//! use trihop_shuffle::{ChannelLimits, Options, threaded};
//!
//! # let name = format!("trihop-doc-guests-{}", std::process::id());
//! # let name = name.as_str();
//! // In a rank:
//! let job = threaded::Job::start(Options::from_env()?)?;
//! let channels = job.channels("tasks").open()?;
//! let guests = channels.serve_guests(name)?;
//!
//! // In any process of the node:
//! let guest = Guest::of(name, Duration::from_secs(10))?;
//! let mut tasks = guest.create(ChannelLimits::default(), Lifetime::Server)?;
//! let descriptor = tasks.descriptor().to_string(); // for others
//!
//! // In another one:
//! let mut same = guest.attach(&descriptor.parse()?)?;
//! same.send(7, b"a task", Return::WhenDeposited, Timeout::Never)?;
//!
//! let task = tasks.get(Timeout::Never)?;
//! assert_eq!((task.kind, &task.bytes[..]), (7, &b"a task"[..]));
//! drop((tasks, same));
//! drop(guests);
//! channels.shutdown()?;
//! job.shutdown()?;
//! # Ok::<(), trihop_shuffle::Error>(())
//! ```

mod asked;
mod client;
mod connection;
mod event;
mod port;
mod reactor;
mod ready;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod wire;

pub use asked::Asked;
pub use port::{Channel, Guest};
pub use server::Guests;

/// Environment variable: the name under which guests of this user are served.
pub const ENV_GUESTS: &str = "TRIHOP_GUESTS";

/// The name under which guests are served where nobody gives another one: that of the variable
/// `TRIHOP_GUESTS`, else `trihop-guests-` and the number of the user.
pub fn default_name() -> String {
    let named = std::env::var(ENV_GUESTS).ok();
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| {
        let user = rustix::process::geteuid().as_raw();
        format!("trihop-guests-{user}")
    })
}

/// How long a channel is there that a guest has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Lifetime {
    /// Until the port that it was made with is dropped, or the guest ends: it is closed then, and
    /// what is in it may still be got by those that are attached.
    Guest = 0,
    /// Until it is [closed](Channel::close), by any guest of that server, or the server ends. A
    /// rank owns at most 65,536 channels.
    Server = 1,
}

impl Lifetime {
    fn of(number: u32) -> Option<Self> {
        let all = [Self::Guest, Self::Server];
        all.get(number as usize).copied()
    }
}
