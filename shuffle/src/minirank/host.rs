//! Mini-ranks on threads that the program makes itself.

use trihop_transport::bootstrap::Bootstrap;
use trihop_transport::home::Home;
use trihop_transport::masked::{self, MaskedThread};
use trihop_transport::sync::{Mutex, PoisonError};
use trihop_transport::topology::Rank;

use super::{Cores, Endpoints, MiniRank};
use crate::config::Options;
use crate::error::{Error, Result};
use crate::job::detect;
use crate::seat::{Inline, relay};

/// The mini-ranks of this process, for threads that the program makes itself: each takes one
/// ([`Host::minirank`]) and starts its job with it. The relay is a thread of the library's, to
/// which no signal of the process is given.
///
/// A host that is dropped waits for the relay, and so for the ranks of this process to end their
/// jobs. Ranks that nobody has taken have failed then.
///
/// # Examples
/// ```
/// use trihop_shuffle::{Error, Options, minirank};
///
/// let host = minirank::Host::start(Options::default(), 2)?;
/// std::thread::scope(|scope| {
///     for index in 0..host.ranks() {
///         let mini = host.minirank(index)?;
///         scope.spawn(move || {
///             let job = mini.start()?;
///             minirank::barrier(&job)?;
///             job.shutdown()
///         });
///     }
///     Ok::<(), Error>(())
/// })?;
/// host.finish()?;
/// # Ok::<(), Error>(())
/// ```
pub struct Host {
    /// Those that nobody has taken, by their numbers.
    minis: Mutex<Vec<Option<MiniRank>>>,
    first: Rank,
    ranks: u32,
    relay: Option<MaskedThread<Result<()>>>,
    home: Home,
}

impl Host {
    /// Makes this process host so many ranks of the job that it was started in.
    ///
    /// # Errors
    /// As [`run`](super::run).
    pub fn start(options: Options, ranks: u32) -> Result<Self> {
        let bootstrap = detect(&options)?;
        Self::start_with(options, bootstrap, ranks)
    }

    /// As [`Host::start`], with a bootstrap of the caller's, whose ranks are the processes. Its
    /// fences are called on this thread here, and on the relay's while the ranks join the job and
    /// while they end it.
    ///
    /// # Errors
    /// As [`Host::start`].
    pub fn start_with(options: Options, bootstrap: Box<dyn Bootstrap>, ranks: u32) -> Result<Self> {
        let Endpoints { minis, host, cores } = Endpoints::start(options, bootstrap, ranks)?;
        let first = minis[0].rank();
        let parts = Inline::new(host)?.into_parts();
        let (started, park) = parts.expect("its only handle is here");
        let relay = masked::spawn("trihop-relay", move || {
            cores.as_ref().map(Cores::keep_relay);
            relay(Inline::of_parts(started, park))
        })?;
        Ok(Self {
            home: Home::here(),
            minis: Mutex::new(minis.into_iter().map(Some).collect()),
            first,
            ranks,
            relay: Some(relay),
        })
    }

    /// The first rank of this process.
    pub fn first(&self) -> Rank {
        self.first
    }

    /// Ranks of this process.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The rank of this process with a number from 0, for the thread that takes it. Any thread may
    /// ask.
    ///
    /// # Errors
    /// [`Error::MiniRank`]: no rank of this process has the number, or it was taken before.
    pub fn minirank(&self, index: u32) -> Result<MiniRank> {
        let mut minis = self.minis.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = match minis.get_mut(index as usize) {
            Some(place) => place.take().ok_or("it was taken before".to_owned()),
            None => Err(format!(
                "this process has those from 0 to {}",
                self.ranks - 1
            )),
        };
        taken.map_err(|why| Error::MiniRank { index, why })
    }

    /// Waits for the relay, which ends when all ranks of this process have ended their jobs.
    ///
    /// # Errors
    /// What has ended the job, which its ranks have heard of too.
    ///
    /// # Panics
    /// When the relay has, which all ranks have heard of.
    pub fn finish(mut self) -> Result<()> {
        self.wait()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn wait(&mut self) -> std::thread::Result<Result<()>> {
        // They have failed: nobody can take them any more.
        let minis = std::mem::take(&mut self.minis).into_inner();
        drop(minis);
        self.relay.take().map_or(Ok(Ok(())), MaskedThread::join)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // A fork: it has no relay to wait for, and its ranks are the other process's.
            std::mem::forget(std::mem::take(&mut self.minis));
            return;
        }
        match self.wait() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the relay has ended by an error"),
            Err(_) => tracing::error!("the relay of this process has panicked"),
        }
    }
}
