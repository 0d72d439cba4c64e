//! The shuffle's calls.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};

use super::hg_return::{hg_return_t, returning};
use super::lull::Lull;
use super::mercury::pointer_or_said;
use super::nexus::{nexus, nexus_ctx, rank_in};
use super::openings::{Opening, Openings};
use super::options::shuffle_opts;
use super::state_dump::{self, Dumped, Notes};
use crate::capi::argument;
use crate::capi::status::{Failure, guard_or};
use crate::threaded::{Job, Shuffle};
use crate::transport::sync::{Arc, Mutex, Ordering, PoisonError};
use crate::{BroadcastTo, Error, Message, Options, Queues, Rank, Stats, StreamOptions};

/// `shuffle_deliverfn_t`.
type Deliver =
    extern "C" fn(source: c_int, target: c_int, kind: u32, bytes: *mut c_void, length: u32);

const SHUFFLE_RTYPE_BCAST: u32 = 1 << 31;
const SHUFFLE_BCAST_SELF: c_int = 1;

const SHUFFLE_REMOTE_QUEUES: c_int = 0;
const SHUFFLE_ORIGIN_QUEUES: c_int = 1;
const SHUFFLE_RELAY_QUEUES: c_int = 2;

/// A shuffle that this rank has opened.
pub struct shuffle {
    opening: Arc<Opening>,
    openings: Arc<Openings>,
    job: Job,
    size: u32,
    notes: Arc<Notes>,
    lull: Lull,
    /// The counters that were told last.
    told: Mutex<Stats>,
}

thread_local! {
    /// This thread is in a client's callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

impl shuffle {
    /// The shuffle behind the handle, for Rust programs that measure the interface; none before it
    /// is open on all ranks.
    pub fn engine(&self) -> Option<&Shuffle> {
        self.opening.stream()
    }

    fn open(
        nexus: &nexus_ctx,
        name: &str,
        deliver: Deliver,
        opts: Option<&shuffle_opts>,
    ) -> Result<Box<Self>, Failure> {
        not_in_callback("opening a shuffle")?;
        let opts = opts.copied().unwrap_or_else(shuffle_opts::good);
        let base = StreamOptions {
            route: nexus.route,
            ..Options::from_env()?.stream
        };
        let stream = opts.choose(&base)?;
        stream.check()?;
        let mut caller = Caller::new(deliver, nexus.job.rank());
        let deliveries = Arc::clone(&nexus.deliveries);
        let (owned_name, max_bytes) = (name.to_owned(), stream.max_message_bytes);
        let build = move |job: &Job, opening: Arc<Opening>| {
            let builder = job.shuffle(&owned_name).options(stream);
            let mut is_first = true;
            builder.handler(move |message, _| {
                if std::mem::take(&mut is_first) {
                    opening.pass_gate();
                }
                if !opening.is_deaf() {
                    deliveries.fetch_add(1, Ordering::Relaxed);
                    IN_CALLBACK.set(true);
                    caller.call(message);
                    IN_CALLBACK.set(false);
                }
            })
        };
        let opened = Box::new(Self {
            opening: nexus.openings.open(name, max_bytes, build)?,
            openings: Arc::clone(&nexus.openings),
            job: nexus.job.clone(),
            size: nexus.job.size(),
            notes: Arc::default(),
            lull: Lull::new(),
            told: Mutex::default(),
        });
        state_dump::enter(Dumped {
            handle: opened.handle(),
            shuffle: Arc::clone(&opened.opening),
            job: opened.job.clone(),
            notes: Arc::clone(&opened.notes),
        });
        Ok(opened)
    }

    /// What callers know it by.
    fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Keeps a failure for dumps.
    #[inline]
    fn noted(&self, outcome: Result<(), Error>) -> Result<(), Failure> {
        outcome
            .inspect_err(|error| self.notes.keep(error))
            .map_err(Failure::from)
    }

    fn flush(&self, queues: Queues) -> Result<(), Failure> {
        let flush = || {
            not_in_callback("a flush")?;
            let stream = self.opening.wait()?;
            stream.flush(queues)?;
            if queues != Queues::Delivery {
                self.lull.wait(|| passed(stream));
            }
            Ok(())
        };
        self.noted(flush())
    }

    /// Sends a message, or keeps it until the shuffle is open on all ranks.
    #[inline]
    fn send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<(), Failure> {
        self.noted(match self.opening.stream() {
            Some(stream) => stream.send(target, kind, bytes),
            None => self
                .opening
                .send_early(Ok(target), kind, bytes, !IN_CALLBACK.get()),
        })
    }

    fn broadcast(&self, to: BroadcastTo, kind: u32, bytes: &[u8]) -> Result<(), Failure> {
        self.noted(match self.opening.stream() {
            Some(stream) => stream.broadcast(kind, bytes, to),
            None => self
                .opening
                .send_early(Err(to), kind, bytes, !IN_CALLBACK.get()),
        })
    }

    /// Shuts the shuffle down, and logs what it has done where somebody reads that.
    fn shut_down(&self) -> Result<(), Error> {
        not_in_callback("shutting down")?;
        let read = tracing::enabled!(tracing::Level::INFO);
        // The delivery thread is gone afterwards.
        let threads = if read { self.job.threads() } else { Vec::new() };
        self.openings.close(&self.opening)?;
        if read && let Some(stream) = self.opening.stream() {
            for line in state_dump::statistics(stream, &threads).lines() {
                tracing::info!("{line}");
            }
        }
        Ok(())
    }

    /// Counters, those that were told before where the engine does not come free; zeros before it
    /// is open on all ranks.
    fn stats(&self) -> Stats {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stats) = self.opening.stream().and_then(|stream| stream.stats()) {
            *told = stats;
        }
        told.clone()
    }
}

/// What came here so far from other ranks, and was delivered or is passed on.
fn passed(stream: &Shuffle) -> Option<u64> {
    let stats = stream.stats()?;
    Some(stats.frames_received + stats.batches_received + stats.delivered)
}

/// Refuses calls in callbacks that wait for other ranks.
fn not_in_callback(what: &'static str) -> Result<(), Error> {
    match IN_CALLBACK.get() {
        true => Err(Error::Nested(what)),
        false => Ok(()),
    }
}

/// Calls a client's function, with bytes that it may write to.
struct Caller {
    deliver: Deliver,
    me: Rank,
    /// Aligned for any type of C.
    bytes: Vec<u128>,
}

impl Caller {
    fn new(deliver: Deliver, me: Rank) -> Self {
        Self {
            deliver,
            me,
            bytes: vec![0],
        }
    }

    fn call(&mut self, message: Message<'_>) {
        let length = message.bytes.len();
        let words = length.div_ceil(size_of::<u128>()).max(1);
        if let Some(more) = words.checked_sub(self.bytes.len()) {
            // Said by a panic, which fails the job with it.
            let reserved = self.bytes.try_reserve_exact(more);
            assert!(
                reserved.is_ok(),
                "no memory to hand over a message of {length} bytes; lower `max_message_bytes`"
            );
            self.bytes.resize(words, 0);
        }
        let place = self.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: the words hold `length` bytes, and are not those of the message.
        unsafe { std::ptr::copy_nonoverlapping(message.bytes.as_ptr(), place, length) };
        // Lengths are below 4 GiB: `max_message_bytes` is.
        (self.deliver)(
            message.source.0 as c_int,
            self.me.0 as c_int,
            message.kind,
            place.cast(),
            length as u32,
        );
    }
}

/// The shuffle behind a handle.
///
/// # Safety
/// The handle is null or one of [`shuffle_init`] that was not shut down.
#[inline]
unsafe fn shuffle_at<'a>(handle: *const shuffle) -> Result<&'a shuffle, Failure> {
    // SAFETY: as the caller promises.
    unsafe { argument::reference(handle, "shuffle_t") }
}

/// Sets the defaults.
///
/// # Safety
/// `sopt` is null or a place for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_opts_init(sopt: *mut shuffle_opts) {
    // SAFETY: as the caller promises; written as a whole, whatever was there.
    let _ = guard_or(|| unsafe {
        if !sopt.is_null() {
            sopt.write(shuffle_opts::good());
        }
        Ok(())
    });
}

/// Opens a shuffle.
///
/// # Safety
/// The nexus is null or was not ended, `funname` is null or a text that ends with NUL, `sopt` is
/// null or points to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_init(
    nxp: *mut nexus_ctx,
    funname: *mut c_char,
    delivercb: Option<Deliver>,
    sopt: *mut shuffle_opts,
) -> *mut shuffle {
    pointer_or_said("shuffle_init", || {
        // SAFETY: as the caller promises.
        let (nexus, name, opts) = unsafe {
            (
                nexus(nxp)?,
                argument::text(funname, "funname")?,
                sopt.as_ref(),
            )
        };
        let deliver =
            delivercb.ok_or_else(|| Failure::argument("`delivercb` is a null pointer"))?;
        Ok(Box::into_raw(shuffle::open(nexus, name, deliver, opts)?))
    })
}

/// Sends a message.
///
/// # Safety
/// As `shuffle_at`; `d` points to `datalen` bytes, or `datalen` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_enqueue(
    sh: *mut shuffle,
    dst: c_int,
    kind: u32,
    d: *mut c_void,
    datalen: u32,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let (shuffle, bytes) =
            unsafe { (shuffle_at(sh)?, argument::bytes(d, datalen as usize, "d")?) };
        check_kind(kind)?;
        let target = rank_in(shuffle.size, dst)?;
        shuffle.send(target, kind, bytes)
    })
}

/// The user's bits of a type are all that a caller may set.
#[inline]
fn check_kind(kind: u32) -> Result<(), Failure> {
    if kind & SHUFFLE_RTYPE_BCAST == 0 {
        return Ok(());
    }
    let why = format!(
        "type {kind:#x} has the bit that marks broadcasts; use those of SHUFFLE_RTYPE_USRBITS, 0x7fffffff"
    );
    Err(Failure::argument(why))
}

/// Sends a message to all.
///
/// # Safety
/// As [`shuffle_enqueue`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_enqueue_broadcast(
    sh: *mut shuffle,
    kind: u32,
    d: *mut c_void,
    datalen: u32,
    flags: c_int,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let (shuffle, bytes) =
            unsafe { (shuffle_at(sh)?, argument::bytes(d, datalen as usize, "d")?) };
        check_kind(kind)?;
        if flags & !SHUFFLE_BCAST_SELF != 0 {
            let why = format!("flags {flags:#x}; SHUFFLE_BCAST_SELF (1) is the only one");
            return Err(Failure::argument(why));
        }
        let to = if flags & SHUFFLE_BCAST_SELF == 0 {
            BroadcastTo::Others
        } else {
            BroadcastTo::Everyone
        };
        shuffle.broadcast(to, kind | SHUFFLE_RTYPE_BCAST, bytes)
    })
}

/// Waits for the deliveries.
///
/// # Safety
/// As `shuffle_at`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_flush_delivery(sh: *mut shuffle) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        unsafe { shuffle_at(sh)? }.flush(Queues::Delivery)
    })
}

/// Waits for the queues of one stage.
///
/// # Safety
/// As `shuffle_at`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_flush_qs(sh: *mut shuffle, whichqs: c_int) -> hg_return_t {
    returning(|| {
        let queues = match whichqs {
            SHUFFLE_REMOTE_QUEUES => Queues::REMOTE,
            SHUFFLE_ORIGIN_QUEUES => Queues::ORIGIN,
            SHUFFLE_RELAY_QUEUES => Queues::RELAY,
            _ => {
                let why =
                    format!("whichqs {whichqs}; there are 0 (remote), 1 (origin) and 2 (relay)");
                return Err(Failure::argument(why));
            }
        };
        // SAFETY: as the caller promises.
        unsafe { shuffle_at(sh)? }.flush(queues)
    })
}

/// Closes a shuffle.
///
/// # Safety
/// As `shuffle_at`; the handle is gone afterwards, unless the caller is a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_shutdown(sh: *mut shuffle) -> hg_return_t {
    returning(|| {
        state_dump::settle();
        // SAFETY: as the caller promises.
        let outcome = unsafe { shuffle_at(sh)? }.shut_down();
        if !matches!(outcome, Err(Error::Nested(_))) {
            // SAFETY: as the caller promises, nobody uses the handle any more; `shuffle_init` made
            // it of a box.
            let shuffle = unsafe { Box::from_raw(sh) };
            state_dump::leave(shuffle.handle());
        }
        match outcome {
            // The job has ended, and with it the shuffle.
            Err(Error::Closed(_)) => Ok(()),
            outcome => Ok(outcome?),
        }
    })
}

/// Batches sent; over lanes, runs.
///
/// # Safety
/// As `shuffle_at`; the other pointers are null or places for numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_send_stats(
    sh: *mut shuffle,
    local_origin: *mut u64,
    local_relay: *mut u64,
    remote: *mut u64,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let [origin, relay, network] = sent(&unsafe { shuffle_at(sh)? }.stats());
        // SAFETY: as the caller promises.
        unsafe {
            give(local_origin, origin);
            give(local_relay, relay);
            give(remote, network);
        }
        Ok(())
    })
}

/// Batches received; over lanes, runs.
///
/// # Safety
/// As [`shuffle_send_stats`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_recv_stats(
    sh: *mut shuffle,
    local: *mut u64,
    remote: *mut u64,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let [node, network] = received(&unsafe { shuffle_at(sh)? }.stats());
        // SAFETY: as the caller promises.
        unsafe {
            give(local, node);
            give(remote, network);
        }
        Ok(())
    })
}

/// Batches of the first hop, of the third, and to other nodes.
fn sent(stats: &Stats) -> [u64; 3] {
    [stats.origin_frames, stats.relay_frames, stats.batches_sent]
}

/// Batches from ranks of this node, and from other nodes.
fn received(stats: &Stats) -> [u64; 2] {
    [stats.frames_received, stats.batches_received]
}

/// Writes a number where somebody wants it.
///
/// # Safety
/// The place is null or one for a number.
unsafe fn give(place: *mut u64, value: u64) {
    // SAFETY: as the caller promises.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = value;
    }
}

/// Dumps the queues.
///
/// # Safety
/// Any handle: one that is not open is said to be so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shuffle_statedump(sh: *mut shuffle, tostderr: c_int) {
    state_dump::ask(sh as usize, tostderr != 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_above_32_bits_are_given_whole_and_each_in_its_place() {
        let large = |number: u64| (number << 32) + number;
        let stats = Stats {
            origin_frames: large(1),
            relay_frames: large(2),
            batches_sent: large(3),
            frames_received: large(4),
            batches_received: large(5),
            remote_frames: large(6),
            ..Stats::default()
        };
        assert_eq!(sent(&stats), [large(1), large(2), large(3)]);
        assert_eq!(received(&stats), [large(4), large(5)]);
        let mut place = 7;
        // SAFETY: null, and a place of ours.
        unsafe {
            give(std::ptr::null_mut(), large(4));
            give(&raw mut place, large(4));
        }
        assert_eq!(place, large(4));
    }
}
