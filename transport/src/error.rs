//! What can go wrong below the shuffle, one variant per thing that a caller does differently about
//! it.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

/// Result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Hands the variants to the macro `then` that errors of this crate and of those above have in
/// common: what has failed below is not wrapped.
#[doc(hidden)]
#[macro_export]
macro_rules! shared_errors {
    ($then:ident) => {
        $then! {
            /// A libfabric call failed for good.
            #[error("libfabric {call} failed: {detail} (code {code})")]
            Fabric {
                /// Name of the libfabric call.
                call: &'static str,
                /// Positive libfabric error number.
                code: i32,
                /// libfabric's text for it, and the object concerned.
                detail: String,
            },
            /// No provider of libfabric meets the needs.
            #[error("no usable libfabric provider: {why}")]
            NoProvider {
                /// Each candidate with the reason of its rejection.
                why: String,
            },
            /// An operating-system call failed.
            #[error("{what}: {source}")]
            System {
                /// What was attempted, on which object, and the remedy where one is known.
                what: String,
                /// The operating system's answer.
                #[source]
                source: $crate::SystemError,
            },
            /// The launcher could not tell who we are, or a rank did not arrive.
            #[error("bootstrap ({launcher}): {why}")]
            Bootstrap {
                /// Launcher protocol in use: `master`, `pmix`, `pmi1`, `local`, `agent`, `single` or
                /// `custom`.
                launcher: &'static str,
                /// What is missing and from whom.
                why: String,
            },
            /// A peer sent bytes, or wrote shared positions, that cannot be true; its traffic is
            /// dropped from here on.
            #[error("rank {rank} sent bytes that are not valid: {why}")]
            BadPeer {
                /// The rank.
                rank: u32,
                /// Which check failed, with the values.
                why: String,
            },
            /// A rank is gone.
            #[error("rank {rank} is gone: {how}")]
            PeerDead {
                /// The rank.
                rank: u32,
                /// How it was noticed.
                how: String,
            },
            /// A link to a peer failed, though nobody says that the peer is gone; what was under
            /// way on it is lost.
            #[error("the link to rank {rank} failed: {why}")]
            LinkFailed {
                /// The rank.
                rank: u32,
                /// The provider's reason.
                why: String,
            },
            /// The agent of a rank's node is gone: nothing reaches that rank from other nodes, or
            /// leaves it for them, or its job has not started yet.
            #[error("the agent of rank {rank} is gone: {how}")]
            AgentDead {
                /// The rank, or the first one of several that had that agent.
                rank: u32,
                /// How it was noticed, and the remedy.
                how: String,
            },
            /// A rank lives, but its part of the job has failed: the job cannot go on without it.
            #[error("rank {rank} has failed: {why}")]
            PeerFailed {
                /// The rank.
                rank: u32,
                /// Its error.
                why: String,
            },
        }
    };
}

macro_rules! declare {
    ($(
        $(#[$about:meta])+
        $name:ident { $($(#[$what:meta])+ $field:ident: $type:ty,)+ },
    )+) => {
        /// What went wrong, on which object, and what to do about it.
        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        pub enum Error {
            /// An option has an unknown name, an impossible value, or contradicts another one.
            #[error("{key}: {why}")]
            Config {
                /// Option as the user spelled it (builder field or environment name).
                key: String,
                /// What is wrong with the value and which values are possible.
                why: String,
            },
            $($(#[$about])+ $name { $($(#[$what])+ $field: $type,)+ },)+
        }
    };
}

shared_errors!(declare);

/// The operating system's answer: an [`io::Error`] that can be copied and compared.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct SystemError(Arc<io::Error>);

impl Deref for SystemError {
    type Target = io::Error;

    fn deref(&self) -> &io::Error {
        &self.0
    }
}

impl PartialEq for SystemError {
    fn eq(&self, other: &Self) -> bool {
        let parts = |error: &Self| (error.kind(), error.raw_os_error(), error.to_string());
        parts(self) == parts(other)
    }
}

impl Eq for SystemError {}

impl Error {
    /// An operating-system error with what was attempted, and the limit that was reached where it
    /// is one of descriptors.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let (mut what, source) = (what.into(), source.into());
        match source.raw_os_error() {
            Some(libc::EMFILE) => what.push_str(&descriptors_limit()),
            Some(libc::ENFILE) => what.push_str(" (those of the machine: `fs.file-max`)"),
            _ => {}
        }
        Self::System {
            what,
            source: SystemError(Arc::new(source)),
        }
    }

    /// Whether it is due to descriptors that have run out.
    pub fn is_want_of_descriptors(&self) -> bool {
        let number = match self {
            Self::System { source, .. } => source.raw_os_error(),
            _ => None,
        };
        matches!(number, Some(libc::EMFILE | libc::ENFILE))
    }

    /// Whether there is no such process: it has ended.
    pub fn is_no_process(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.raw_os_error() == Some(libc::ESRCH))
    }

    /// Whether an address or a name is another's.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }

    /// Whether nobody listens at the other end.
    pub fn is_refused_connection(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Whether a deadline has passed before anything came.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::TimedOut)
    }

    /// A configuration error.
    pub fn config(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Config {
            key: key.into(),
            why: why.into(),
        }
    }
}

fn descriptors_limit() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let number = limit
        .current
        .map_or("any number of".to_owned(), |n| n.to_string());
    format!(" (this process may have {number} descriptors: raise `ulimit -n`)")
}
