//! Waking a sleeper: a word that says whether it sleeps, and an eventfd that is written only when
//! it does.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::EventfdFlags;

use crate::error::{Error, Result};
use crate::memory::segment::Segment;
use crate::ring::storage::{Orderings, Shipped};
use crate::sync::{MappedU64, Ordering, Word, fence};

/// Value of the word while its owner runs.
pub const AWAKE: u64 = 0;

/// Value of the word while its owner sleeps, or is about to.
pub const SLEEPING: u64 = 1;

/// What a segment is laid out as that holds a bell's word; no inbox has as many lanes as its low
/// half says.
pub(crate) const BELL_SHAPE: u64 = u64::from_le_bytes(*b"doorbell");

/// Somebody who may sleep, as seen by those who wake it.
pub trait Sleeper {
    /// Kind of the shared word.
    type Word: Word;

    /// The word that says whether it sleeps.
    fn word(&self) -> &Self::Word;

    /// Wakes it.
    fn signal(&self);
}

/// Wakes `sleeper` if it sleeps, once per sleep; whether it did. A `SeqCst` fence lies between what
/// the sleeper shall see and this call.
#[inline]
pub fn ring<S: Sleeper>(sleeper: &S) -> bool {
    // The load keeps the line shared while nobody sleeps.
    let slept = sleeper.word().load(Ordering::Relaxed) == SLEEPING
        && sleeper.word().swap(AWAKE, Ordering::Relaxed) == SLEEPING;
    if slept {
        sleeper.signal();
    }
    slept
}

/// As [`ring`], after whatever the caller has written for the sleeper to see.
#[inline]
pub fn call<S: Sleeper, O: Orderings>(sleeper: &S) {
    // Pairs with `SLEEP_FENCE`: either we see it sleep, or it sees what we wrote.
    fence(O::RING_FENCE);
    ring(sleeper);
}

/// Sleeper: says that it is about to sleep. It then looks around once more, and sleeps only if
/// there is nothing.
#[inline]
pub fn announce<W: Word, O: Orderings>(word: &W) {
    word.store(SLEEPING, Ordering::Relaxed);
    // Pairs with `MARK_FENCE`, `RELEASE_FENCE` and `RING_FENCE`: either they see us sleep, or we
    // see what they did.
    fence(O::SLEEP_FENCE);
}

/// Sleeper: says that it runs again.
#[inline]
pub fn awake<W: Word>(word: &W) {
    word.store(AWAKE, Ordering::Relaxed);
}

/// What wakes a certain sleeper: its word and its eventfd, shared by all who may wake it.
pub struct Bell(Place);

/// Where a bell's word lives.
enum Place {
    /// In memory that processes share, beside what wakes a sleeper there.
    Shared {
        segment: Arc<Segment>,
        eventfd: OwnedFd,
    },
    /// Here, for somebody who never sleeps.
    Private { word: MappedU64 },
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Shared { eventfd, .. } => write!(f, "Bell({eventfd:?})"),
            Place::Private { .. } => f.write_str("Bell(private)"),
        }
    }
}

impl Bell {
    /// The bell of a sleeper in another process, from its [`Doorbell::segment`] and
    /// [`Doorbell::descriptor`].
    ///
    /// # Errors
    /// When the segment is an inbox, or the descriptor cannot be made non-blocking.
    pub fn attach(segment: Arc<Segment>, eventfd: OwnedFd) -> Result<Arc<Self>> {
        settle(&segment)?;
        // A peer that fills the counter must not be able to block us.
        rustix::io::ioctl_fionbio(&eventfd, true)
            .map_err(|e| Error::system("making a peer's doorbell non-blocking", e))?;
        Ok(Arc::new(Self(Place::Shared { segment, eventfd })))
    }

    /// Wakes the sleeper if it sleeps; about 5 ns if it does not, a system call if it does.
    pub fn ring(&self) {
        call::<_, Shipped>(self);
    }
}

impl Sleeper for Bell {
    type Word = MappedU64;

    #[inline]
    fn word(&self) -> &MappedU64 {
        match &self.0 {
            // SAFETY: a segment has at least one page, is page aligned and lives as long as `self`;
            // its first eight bytes are used as this word only, by everybody.
            Place::Shared { segment, .. } => unsafe { &*segment.as_ptr().cast::<MappedU64>() },
            Place::Private { word } => word,
        }
    }

    #[cold]
    fn signal(&self) {
        // EAGAIN: the counter is full, so the sleeper is woken anyway. Other errors would mean that
        // the descriptor is no eventfd; the sleeper then still wakes at its time limit.
        if let Place::Shared { eventfd, .. } = &self.0 {
            let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
        }
    }
}

/// Makes a bell's word all that this segment is used for.
fn settle(segment: &Segment) -> Result<()> {
    segment.settle(BELL_SHAPE).map_err(|_| {
        let why = "the segment is an inbox; a doorbell needs one of its own, as `Doorbell::create` makes it";
        Error::config("doorbell", why)
    })
}

/// The sleeper's own end.
#[derive(Debug)]
pub struct Doorbell {
    bell: Arc<Bell>,
}

impl Doorbell {
    /// A doorbell whose owner is awake.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    pub fn create() -> Result<Self> {
        let segment = Segment::create(size_of::<u64>())?;
        settle(&segment)?;
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::system("creating an eventfd", e))?;
        Ok(Self {
            bell: Arc::new(Bell(Place::Shared { segment, eventfd })),
        })
    }

    /// A doorbell for somebody who never sleeps, among ranks of one process: it takes no descriptor
    /// and no page.
    pub fn private() -> Self {
        let word = MappedU64::new(AWAKE);
        Self {
            bell: Arc::new(Bell(Place::Private { word })),
        }
    }

    fn shared(&self) -> Result<(&Arc<Segment>, &OwnedFd)> {
        match &self.bell.0 {
            Place::Shared { segment, eventfd } => Ok((segment, eventfd)),
            Place::Private { .. } => Err(Error::config(
                "doorbell",
                "a private doorbell can neither be shared with a process nor slept on; use one that `Doorbell::create` made",
            )),
        }
    }

    /// Holds the word; to be passed to peers in other processes.
    ///
    /// # Errors
    /// When the doorbell is private.
    pub fn segment(&self) -> Result<Arc<Segment>> {
        self.shared().map(|(segment, _)| Arc::clone(segment))
    }

    /// Becomes readable when somebody rings; to be passed to peers in other processes.
    ///
    /// # Errors
    /// When the doorbell is private.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.shared().map(|(_, eventfd)| eventfd.as_fd())
    }

    /// For peers in this process.
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Wakes the thread that sleeps on it, as its [`bell`](Self::bell) does.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Wakes the thread that sleeps on it, whether or not it says so: for a caller that has said
    /// [`awake`](Self::awake) on behalf of a sleeper.
    pub fn wake(&self) {
        self.bell.signal();
    }

    /// Says that we are about to sleep; look around once more before doing so.
    pub fn announce_sleep(&self) {
        announce::<_, Shipped>(self.bell.word());
    }

    /// Says that we run again.
    pub fn awake(&self) {
        awake(self.bell.word());
    }

    /// Whether we said that we sleep, and nobody rang since.
    pub fn is_asleep(&self) -> bool {
        self.bell.word().load(Ordering::Relaxed) == SLEEPING
    }

    /// Forgets the rings so far, so that the descriptor is readable only after the next one.
    pub fn drain(&self) {
        if let Place::Shared { eventfd, .. } = &self.bell.0 {
            let mut count = [0; 8];
            // EAGAIN: nobody rang.
            let _ = rustix::io::read(eventfd, &mut count);
        }
    }
}
