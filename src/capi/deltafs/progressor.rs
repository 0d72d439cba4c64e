//! Handles of the progress thread, with counts of who needs it.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use super::hg_return::{hg_return_t, returning};
use super::mercury::{hg_addr, hg_class, hg_context, pointer_or_said, shared};
use super::thread_usage;
use crate::capi::argument;
use crate::capi::status::Failure;
use crate::transport::sync::{Arc, Mutex};

/// What the progress thread has done since the job began.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub rounds: u64,
    pub deliveries: u64,
    pub usage: libc::rusage,
}

impl Work {
    fn nothing() -> Self {
        Self {
            rounds: 0,
            deliveries: 0,
            usage: thread_usage::nothing(),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            rounds: self.rounds - before.rounds,
            deliveries: self.deliveries - before.deliveries,
            usage: thread_usage::between(&before.usage, &self.usage),
        }
    }
}

/// Asks what the progress thread has done.
pub(super) type AskWork = Arc<dyn Fn() -> Work + Send + Sync>;

/// What handles refer to.
struct Progressor {
    origin: Origin,
    state: Mutex<State>,
}

/// What a progressor was made with.
enum Origin {
    /// A context of ours, which knows its class.
    Ours(Arc<hg_context>),
    /// Class and context of a real mercury in this process: the pointers, which nobody here
    /// follows, and our own address.
    Beside {
        class: usize,
        context: usize,
        address: Arc<hg_addr>,
    },
}

struct State {
    timeout_ms: c_uint,
    /// Sum of what all handles need.
    needed: u64,
    /// The job that was started with this progressor, while it lasts.
    source: Option<AskWork>,
    /// Work of the source when it was first needed, or came.
    base: Work,
    since: Instant,
    /// How long it was needed, and what was done then, once it is not needed any more.
    last: (std::time::Duration, Work),
}

impl State {
    fn work(&self) -> Work {
        self.source.as_ref().map_or_else(Work::nothing, |ask| ask())
    }

    /// Time and work since it was needed.
    fn now(&self) -> (std::time::Duration, Work) {
        if self.needed == 0 {
            return self.last;
        }
        let work = match &self.source {
            Some(ask) => ask().since(&self.base),
            None => self.last.1,
        };
        (self.since.elapsed(), work)
    }

    fn need(&mut self) {
        if self.needed == 0 {
            self.since = Instant::now();
            self.base = self.work();
        }
        self.needed += 1;
    }

    fn release(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        if self.needed == count {
            self.last = self.now();
        }
        self.needed -= count;
    }
}

impl Progressor {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle: a reference to a progressor, and how often it needs it.
pub struct progressor_handle {
    progressor: Arc<Progressor>,
    needed: Mutex<u64>,
}

impl progressor_handle {
    /// A progressor of a context, and its first handle.
    pub fn new(context: Arc<hg_context>) -> Box<Self> {
        Self::of(Origin::Ours(context))
    }

    fn of(origin: Origin) -> Box<Self> {
        let state = State {
            timeout_ms: 100,
            needed: 0,
            source: None,
            base: Work::nothing(),
            since: Instant::now(),
            last: (std::time::Duration::ZERO, Work::nothing()),
        };
        Box::new(Self {
            progressor: Arc::new(Progressor {
                origin,
                state: Mutex::new(state),
            }),
            needed: Mutex::new(0),
        })
    }

    /// Another handle of the same progressor.
    pub fn duplicate(&self) -> Box<Self> {
        Box::new(Self {
            progressor: Arc::clone(&self.progressor),
            needed: Mutex::new(0),
        })
    }

    /// Counts that the handle needs the progressor.
    pub fn need(&self) {
        *self.own() += 1;
        self.progressor.state().need();
    }

    /// Whether it was made with objects of a real mercury, whose functions nothing of ours must be
    /// given to.
    pub fn is_beside_mercury(&self) -> bool {
        matches!(self.progressor.origin, Origin::Beside { .. })
    }

    /// Whether two handles refer to the same progressor.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.progressor, &other.progressor)
    }

    /// From now on the progressor tells of this work.
    pub(super) fn bind(&self, source: AskWork) {
        let mut state = self.progressor.state();
        state.source = Some(source);
        state.base = state.work();
    }

    /// The work is about to end, and with it the threads that it is asked of: what was done until
    /// now stays to be told.
    pub fn unbind(&self) {
        let mut state = self.progressor.state();
        state.last = state.now();
        state.source = None;
    }

    fn own(&self) -> MutexGuard<'_, u64> {
        self.needed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> Work {
        self.progressor.state().now().1
    }
}

impl Drop for progressor_handle {
    fn drop(&mut self) {
        let count = *self.own();
        self.progressor.state().release(count);
    }
}

/// `struct progressor_stats`.
#[repr(C)]
pub struct progressor_stats {
    is_running: c_int,
    needed: c_int,
    progressor_refcnt: c_int,
    runtime: libc::timeval,
    runusage: libc::rusage,
    nprogress: u64,
    ntrigger: u64,
}

/// The handle behind a pointer.
///
/// # Safety
/// The pointer is null or a handle that was not freed.
unsafe fn handle<'a>(pointer: *const progressor_handle) -> Result<&'a progressor_handle, Failure> {
    // SAFETY: as the caller promises.
    unsafe { argument::reference(pointer, "hand") }
}

/// `mercury_progressor_init`.
///
/// # Safety
/// Class and context are null or were not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_init(
    class: *mut hg_class,
    context: *mut hg_context,
) -> *mut progressor_handle {
    pointer_or_said("mercury_progressor_init", || {
        // SAFETY: as the caller promises.
        let (class, context) =
            unsafe { (shared(class, "hgclass")?, shared(context, "hgcontext")?) };
        if !Arc::ptr_eq(&class, &context.class) {
            return Err(Failure::argument(
                "the context belongs to another class; create it from this one",
            ));
        }
        Ok(Box::into_raw(progressor_handle::new(context)))
    })
}

/// `mercury_progressor_init` beside a real mercury: its objects are kept as they are, to be handed
/// back.
///
/// # Safety
/// Any pointers: they are not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_init_beside(
    class: *mut c_void,
    context: *mut c_void,
) -> *mut progressor_handle {
    pointer_or_said("mercury_progressor_init", || {
        for (pointer, name) in [(class, "hgclass"), (context, "hgcontext")] {
            if pointer.is_null() {
                return Err(Failure::argument(format!("`{name}` is a null pointer")));
            }
        }
        let origin = Origin::Beside {
            class: class.expose_provenance(),
            context: context.expose_provenance(),
            address: hg_class::own_address("trihop"),
        };
        Ok(Box::into_raw(progressor_handle::of(origin)))
    })
}

/// `mercury_progressor_get_progtimeout`.
///
/// # Safety
/// The handle is null or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_get_progtimeout(
    hand: *mut progressor_handle,
) -> c_uint {
    // SAFETY: as the caller promises.
    unsafe { handle(hand) }.map_or(0, |hand| hand.progressor.state().timeout_ms)
}

/// `mercury_progressor_set_progtimeout`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_set_progtimeout(
    hand: *mut progressor_handle,
    timeout_ms: c_uint,
) {
    // SAFETY: as the caller promises.
    if let Ok(hand) = unsafe { handle(hand) } {
        hand.progressor.state().timeout_ms = timeout_ms;
    }
}

/// `mercury_progressor_duphandle`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_duphandle(
    hand: *mut progressor_handle,
) -> *mut progressor_handle {
    pointer_or_said("mercury_progressor_duphandle", || {
        // SAFETY: as the caller promises.
        Ok(Box::into_raw(unsafe { handle(hand)? }.duplicate()))
    })
}

/// `mercury_progressor_freehandle`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`]; the handle is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_freehandle(
    hand: *mut progressor_handle,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        unsafe {
            handle(hand)?;
            drop(Box::from_raw(hand));
        }
        Ok(())
    })
}

/// `mercury_progressor_getstats`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`]; `stats` is null or a place for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_getstats(
    hand: *mut progressor_handle,
    stats: *mut progressor_stats,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let (hand, stats) = unsafe { (handle(hand)?, argument::place(stats, "ps")?) };
        let own = *hand.own();
        let state = hand.progressor.state();
        let (time, work) = state.now();
        *stats = progressor_stats {
            is_running: (state.needed > 0).into(),
            needed: c_int::try_from(own).unwrap_or(c_int::MAX),
            progressor_refcnt: c_int::try_from(Arc::strong_count(&hand.progressor))
                .unwrap_or(c_int::MAX),
            runtime: libc::timeval {
                tv_sec: time.as_secs() as libc::time_t,
                tv_usec: time.subsec_micros().into(),
            },
            runusage: work.usage,
            nprogress: work.rounds,
            ntrigger: work.deliveries,
        };
        Ok(())
    })
}

/// `mercury_progressor_nprogress`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_nprogress(hand: *mut progressor_handle) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { handle(hand) }.map_or(0, |hand| hand.work().rounds)
}

/// `mercury_progressor_ntrigger`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_ntrigger(hand: *mut progressor_handle) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { handle(hand) }.map_or(0, |hand| hand.work().deliveries)
}

/// `mercury_progressor_hgclass`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_hgclass(
    hand: *mut progressor_handle,
) -> *mut hg_class {
    // SAFETY: as the caller promises.
    unsafe { handle(hand) }.map_or(std::ptr::null_mut(), |hand| match &hand.progressor.origin {
        Origin::Ours(context) => Arc::as_ptr(&context.class).cast_mut(),
        Origin::Beside { .. } => std::ptr::null_mut(),
    })
}

/// `mercury_progressor_hgclass` beside a real mercury, whose functions must not be given a class of
/// ours.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_hgclass_beside(
    hand: *mut progressor_handle,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { handle(hand) }.map_or(std::ptr::null_mut(), |hand| match &hand.progressor.origin {
        Origin::Ours(_) => std::ptr::null_mut(),
        Origin::Beside { class, .. } => std::ptr::with_exposed_provenance_mut(*class),
    })
}

/// `mercury_progressor_hgcontext`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_hgcontext(
    hand: *mut progressor_handle,
) -> *mut hg_context {
    // SAFETY: as the caller promises.
    unsafe { handle(hand) }.map_or(std::ptr::null_mut(), |hand| match &hand.progressor.origin {
        Origin::Ours(context) => Arc::as_ptr(context).cast_mut(),
        Origin::Beside { .. } => std::ptr::null_mut(),
    })
}

/// `mercury_progressor_hgcontext` beside a real mercury, whose functions must not be given a
/// context of ours.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_hgcontext_beside(
    hand: *mut progressor_handle,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { handle(hand) }.map_or(std::ptr::null_mut(), |hand| match &hand.progressor.origin {
        Origin::Ours(_) => std::ptr::null_mut(),
        Origin::Beside { context, .. } => std::ptr::with_exposed_provenance_mut(*context),
    })
}

/// `mercury_progressor_addrstring`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_addrstring(
    hand: *mut progressor_handle,
) -> *mut c_char {
    // SAFETY: as the caller promises.
    let address = unsafe { handle(hand) }
        .ok()
        .and_then(|hand| match &hand.progressor.origin {
            Origin::Ours(context) => context.class.listening_address(),
            Origin::Beside { address, .. } => Some(address.text()),
        });
    address.map_or(std::ptr::null_mut(), |text| text.as_ptr().cast_mut())
}

/// `mercury_progressor_needed`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_needed(
    hand: *mut progressor_handle,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        unsafe { handle(hand)? }.need();
        Ok(())
    })
}

/// `mercury_progressor_idle`.
///
/// # Safety
/// As [`trihop_mercury_progressor_get_progtimeout`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_progressor_idle(
    hand: *mut progressor_handle,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let hand = unsafe { handle(hand)? };
        let mut own = hand.own();
        if *own == 0 {
            return Err(Failure::argument(
                "this handle does not need the progressor",
            ));
        }
        *own -= 1;
        hand.progressor.state().release(1);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::sync::{AtomicU64, Ordering};

    fn context() -> Arc<hg_context> {
        let class = hg_class::new("na+sm", true).unwrap();
        Arc::new(hg_context { class })
    }

    fn stats(hand: &progressor_handle) -> progressor_stats {
        let mut stats = std::mem::MaybeUninit::uninit();
        // SAFETY: both pointers are good, and success means that all was written.
        unsafe {
            let outcome = trihop_mercury_progressor_getstats(
                std::ptr::from_ref(hand).cast_mut(),
                stats.as_mut_ptr(),
            );
            assert_eq!(outcome, 0);
            stats.assume_init()
        }
    }

    fn counts(hand: &progressor_handle) -> (c_int, c_int, c_int) {
        let stats = stats(hand);
        (stats.is_running, stats.needed, stats.progressor_refcnt)
    }

    #[test]
    fn needs_are_counted_by_handle_and_freed_with_it() {
        let first = progressor_handle::new(context());
        assert_eq!(counts(&first), (0, 0, 1));
        let second = first.duplicate();
        second.need();
        second.need();
        first.need();
        assert_eq!(counts(&first), (1, 1, 2));
        assert_eq!(counts(&second), (1, 2, 2));
        drop(second);
        assert_eq!(counts(&first), (1, 1, 1));
        // SAFETY: the handle lives.
        unsafe {
            let pointer = std::ptr::from_ref(&*first).cast_mut();
            assert_eq!(trihop_mercury_progressor_idle(pointer), 0);
            assert_ne!(
                trihop_mercury_progressor_idle(pointer),
                0,
                "not needed any more"
            );
        }
        assert_eq!(counts(&first), (0, 0, 1));
    }

    #[test]
    fn work_counts_from_when_it_was_needed_and_stays_after_the_job() {
        let done = Arc::new(AtomicU64::new(10));
        let asked = Arc::clone(&done);
        let hand = progressor_handle::new(context());
        hand.bind(Arc::new(move || Work {
            rounds: asked.load(Ordering::Relaxed),
            deliveries: 2 * asked.load(Ordering::Relaxed),
            usage: thread_usage::nothing(),
        }));
        assert_eq!(stats(&hand).nprogress, 0, "nobody needs it");
        hand.need();
        done.store(17, Ordering::Relaxed);
        assert_eq!((stats(&hand).nprogress, stats(&hand).ntrigger), (7, 14));
        hand.unbind();
        done.store(99, Ordering::Relaxed);
        assert_eq!(stats(&hand).nprogress, 7, "the job is over");
    }
}
