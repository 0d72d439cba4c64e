//! Nexus: the job of this process, its tables, barriers and progressors.

use std::ffi::{c_char, c_int};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::PoisonError;

use super::local_barrier::LocalBarrier;
use super::log_config;
use super::mercury::{hg_addr, hg_class, hg_context, pointer_or_said, say};
use super::mpi_nodes;
use super::openings::Openings;
use super::progressor::{AskWork, Work, progressor_handle};
use super::state_dump;
use super::tables::{Hop, Part, Tables};
use super::thread_usage;
use crate::capi::argument;
use crate::capi::status::{Failure, guard_or};
use crate::route::{Rails, RouteName};
use crate::threaded::Job;
use crate::transport::bootstrap;
use crate::transport::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::{Error, Options, Rank};

/// `nexus_ret_t`.
type nexus_ret_t = c_int;
const NX_SUCCESS: nexus_ret_t = 0;
const NX_ERROR: nexus_ret_t = 1;
const NX_NOTFOUND: nexus_ret_t = 2;
const NX_ISLOCAL: nexus_ret_t = 3;
const NX_SRCREP: nexus_ret_t = 4;
const NX_DESTREP: nexus_ret_t = 5;
const NX_INVAL: nexus_ret_t = 6;
const NX_DONE: nexus_ret_t = 7;

/// The job of this process.
pub struct nexus_ctx {
    pub(super) job: Job,
    pub(super) tables: Tables,
    /// How messages of all shuffles travel: as the tables say.
    pub(super) route: RouteName,
    /// Messages that all shuffles have handed to callbacks; alone, so relaxed.
    pub(super) deliveries: Arc<AtomicU64>,
    /// As whom nexus speaks; alone, so relaxed.
    rank: AtomicU32,
    barrier: LocalBarrier,
    /// Opens and closes shuffles.
    pub(super) openings: Arc<Openings>,
    remote: Box<progressor_handle>,
    local: Box<progressor_handle>,
}

/// Whether this process has a nexus. The call that makes one sets it in one exchange; the end of
/// that nexus clears it.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The right to be this process's only nexus.
struct Seat;

impl Seat {
    fn take() -> Result<Self, Failure> {
        if TAKEN.swap(true, Ordering::AcqRel) {
            return Err(Failure::argument(
                "this process has a nexus already; end it with nexus_destroy first",
            ));
        }
        Ok(Self)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

impl nexus_ctx {
    /// The job behind the nexus, for Rust programs that measure the interface.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Starts the job.
    fn bootstrap(
        net: &progressor_handle,
        local: Option<&progressor_handle>,
    ) -> Result<Self, Failure> {
        let mut options = Options::from_env()?;
        if local.is_some_and(|local| local.is_same(net)) {
            if options.stream.route == RouteName::Direct {
                return Err(Failure::argument(
                    "nethand and localhand are the same, which asks for one transport for all hops, but TRIHOP_ROUTE=direct \
                     uses two; unset it, or give NULL for localhand",
                ));
            }
            options.stream.route = RouteName::FabricOnly(Rails::ONE);
        }
        // The tables of a nexus name one representative for each node.
        match &mut options.stream.route {
            RouteName::ThreeHop(rails) | RouteName::FabricOnly(rails) => *rails = Rails::ONE,
            _ => {}
        }
        let route = options.stream.route;
        options.check()?;
        let launcher = bootstrap::start(options.launcher, options.bootstrap_timeout())?;
        let job = Job::start_with(options, mpi_nodes::with_nodes_of_mpi(launcher)?)?;
        log_config::set_rank(job.rank());
        let local = match local {
            Some(local) => local.duplicate(),
            None => {
                let class = hg_class::new("na+sm", true)?;
                progressor_handle::new(Arc::new(hg_context { class }))
            }
        };
        let remote = net.duplicate();
        let deliveries = Arc::<AtomicU64>::default();
        let work = ask_work(&job, &deliveries);
        let barrier = LocalBarrier::open(&job)?;
        state_dump::start()?;
        let openings = Arc::new(Openings::start(&job)?);
        let single = remote.is_same(&local);
        for handle in [Some(&remote), Some(&local).filter(|_| !single)]
            .into_iter()
            .flatten()
        {
            handle.bind(Arc::clone(&work));
            handle.need();
        }
        let tables = Tables::new(job.topology().clone());
        Ok(Self {
            rank: AtomicU32::new(job.rank().0),
            tables,
            route,
            deliveries,
            barrier,
            openings,
            remote,
            local,
            job,
        })
    }

    /// What a client is given for an address: nothing where it would hand that to a real mercury.
    pub(super) fn address(&self, address: &Arc<hg_addr>) -> *mut hg_addr {
        if self.remote.is_beside_mercury() {
            return std::ptr::null_mut();
        }
        Arc::as_ptr(address).cast_mut()
    }

    /// As whom nexus speaks.
    fn rank(&self) -> Rank {
        Rank(self.rank.load(Ordering::Relaxed))
    }

    fn leave(self) -> Result<(), Error> {
        let Self {
            job,
            barrier,
            openings,
            remote,
            local,
            ..
        } = self;
        openings.end();
        let closed = barrier.close();
        remote.unbind();
        if !remote.is_same(&local) {
            local.unbind();
        }
        closed.and(job.shutdown())
    }

    /// Writes the tables to files, or to stderr.
    fn dump(&self, outfile: Option<&str>) {
        let rank = self.rank();
        for part in [Part::Id, Part::Local, Part::Remote] {
            let Some(outfile) = outfile else {
                let mut text = Vec::new();
                let _ = self.tables.write(part, &mut text, rank);
                // Without stderr there is nobody to be told so.
                let _ = io::stderr().write_all(&text);
                continue;
            };
            let path = format!("{outfile}.{rank}.{}", part.suffix());
            let written = File::create(&path).and_then(|file| {
                let mut out = BufWriter::new(file);
                self.tables.write(part, &mut out, rank)?;
                out.flush()
            });
            if let Err(error) = written {
                say("nexus_dump", &format!("{path}: {error}"));
            }
        }
    }
}

/// What the progress thread of the job has done, for progressors.
fn ask_work(job: &Job, deliveries: &Arc<AtomicU64>) -> AskWork {
    let (job, deliveries) = (job.clone(), Arc::clone(deliveries));
    let thread = thread_usage::progress_thread();
    // The engine may be busy for a moment: then what it said last.
    let last = Mutex::new(0);
    Arc::new(move || {
        let mut rounds = last.lock().unwrap_or_else(PoisonError::into_inner);
        *rounds = job.rounds().unwrap_or(*rounds);
        Work {
            rounds: *rounds,
            deliveries: deliveries.load(Ordering::Relaxed),
            usage: thread.map_or_else(thread_usage::nothing, thread_usage::of),
        }
    })
}

/// A rank as C gives it, in a job of `size`.
pub(super) fn rank_in(size: u32, rank: c_int) -> Result<Rank, Error> {
    match u32::try_from(rank) {
        Ok(rank) if rank < size => Ok(Rank(rank)),
        // A negative one shows as what its bits are; the text is for people.
        _ => Err(Error::Rank {
            rank: rank as u32,
            size,
        }),
    }
}

/// The nexus behind a handle.
///
/// # Safety
/// The handle is null or one of [`nexus_bootstrap`] that was not ended.
pub(super) unsafe fn nexus<'a>(handle: *const nexus_ctx) -> Result<&'a nexus_ctx, Failure> {
    // SAFETY: as the caller promises.
    unsafe { argument::reference(handle, "nexus_ctx_t") }
}

/// Runs a call that returns a `nexus_ret_t` of its own, or one of `NX_INVAL` and `NX_ERROR`.
fn returning(body: impl FnOnce() -> Result<nexus_ret_t, Failure>) -> nexus_ret_t {
    use crate::capi::status::trihop_status_t::{TRIHOP_ERR_INVALID_ARGUMENT, TRIHOP_ERR_RANK};
    match guard_or(body) {
        Ok(value) => value,
        Err(TRIHOP_ERR_INVALID_ARGUMENT | TRIHOP_ERR_RANK) => NX_INVAL,
        Err(_) => NX_ERROR,
    }
}

/// Joins the job.
///
/// # Safety
/// The handles are null or were not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_bootstrap(
    nethand: *mut progressor_handle,
    localhand: *mut progressor_handle,
) -> *mut nexus_ctx {
    pointer_or_said("nexus_bootstrap", || {
        // SAFETY: as the caller promises.
        let (net, local) =
            unsafe { (argument::reference(nethand, "nethand")?, localhand.as_ref()) };
        let seat = Seat::take()?;
        let nexus = nexus_ctx::bootstrap(net, local)?;
        // Given back by `nexus_destroy`.
        std::mem::forget(seat);
        Ok(Box::into_raw(Box::new(nexus)))
    })
}

/// Leaves the job.
///
/// # Safety
/// The handle is null or one of [`nexus_bootstrap`]; it is gone afterwards, unless the caller is a
/// callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_destroy(nctx: *mut nexus_ctx) {
    if nctx.is_null() {
        return;
    }
    let leave = || {
        // SAFETY: as the caller promises.
        if let Err(nested @ Error::Nested(_)) = unsafe { nexus(nctx)? }.barrier.may_wait() {
            return Err(nested.into());
        }
        // SAFETY: as the caller promises, nobody uses the handle any more; `nexus_bootstrap` made
        // it of a box.
        let nexus = unsafe { Box::from_raw(nctx) };
        let _seat = Seat;
        state_dump::settle();
        Ok(nexus.leave()?)
    };
    let _ =
        guard_or(|| leave().inspect_err(|failure: &Failure| say("nexus_destroy", &failure.text)));
}

/// The next hop.
///
/// # Safety
/// As `nexus`; `rank` and `addr` are null or places for what they name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_next_hop(
    nctx: *mut nexus_ctx,
    dest: c_int,
    rank: *mut c_int,
    addr: *mut *mut hg_addr,
) -> nexus_ret_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let (nexus, rank, addr) = unsafe { (nexus(nctx)?, rank.as_mut(), addr.as_mut()) };
        let target = rank_in(nexus.job.size(), dest)?;
        let tables = &nexus.tables;
        let (kind, next, address) = match tables.next_hop(nexus.rank(), target) {
            Hop::Done => return Ok(NX_DONE),
            Hop::NotFound => return Ok(NX_NOTFOUND),
            Hop::Local(next) => (NX_ISLOCAL, next, tables.local_address(next)),
            Hop::SourceRep(next) => (NX_SRCREP, next, tables.local_address(next)),
            Hop::TargetRep(next) => {
                let node = tables.topology.node_of(next);
                (NX_DESTREP, next, tables.remote_address(node))
            }
        };
        let Some(address) = address else {
            return Ok(NX_NOTFOUND);
        };
        if let Some(rank) = rank {
            *rank = next.0 as c_int;
        }
        if let Some(addr) = addr {
            *addr = nexus.address(address);
        }
        Ok(kind)
    })
}

/// Waits for all ranks.
///
/// # Safety
/// As `nexus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_global_barrier(nctx: *mut nexus_ctx) -> nexus_ret_t {
    returning(|| {
        // SAFETY: as the caller promises.
        unsafe { nexus(nctx)? }.job.barrier()?;
        Ok(NX_SUCCESS)
    })
}

/// Waits for the ranks of this node.
///
/// # Safety
/// As `nexus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_local_barrier(nctx: *mut nexus_ctx) -> nexus_ret_t {
    returning(|| {
        // SAFETY: as the caller promises.
        unsafe { nexus(nctx)? }.barrier.wait()?;
        Ok(NX_SUCCESS)
    })
}

/// A number of the nexus, -1 without one.
///
/// # Safety
/// As `nexus`.
unsafe fn number(nctx: *mut nexus_ctx, number: impl FnOnce(&nexus_ctx) -> u32) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { nctx.as_ref() }.map_or(-1, |nexus| number(nexus) as c_int)
}

/// As whom nexus speaks.
///
/// # Safety
/// As `nexus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_global_rank(nctx: *mut nexus_ctx) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { number(nctx, |nexus| nexus.rank().0) }
}

/// Ranks of the job.
///
/// # Safety
/// As `nexus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_global_size(nctx: *mut nexus_ctx) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { number(nctx, |nexus| nexus.tables.topology.size()) }
}

/// Number of this rank on its node.
///
/// # Safety
/// As `nexus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_local_rank(nctx: *mut nexus_ctx) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { number(nctx, |nexus| nexus.tables.topology.local_rank()) }
}

/// Ranks of this node.
///
/// # Safety
/// As `nexus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_local_size(nctx: *mut nexus_ctx) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { number(nctx, |nexus| nexus.tables.topology.local_size()) }
}

/// Lets nexus speak as another rank.
///
/// # Safety
/// As `nexus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_set_grank(nctx: *mut nexus_ctx, rank: c_int) -> nexus_ret_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let nexus = unsafe { nexus(nctx)? };
        let rank = rank_in(nexus.job.size(), rank)?;
        nexus.rank.store(rank.0, Ordering::Relaxed);
        Ok(NX_SUCCESS)
    })
}

/// The progressor of shared memory.
///
/// # Safety
/// As `nexus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_localprogressor(nctx: *mut nexus_ctx) -> *mut progressor_handle {
    // SAFETY: as the caller promises.
    unsafe { nctx.as_ref() }.map_or(std::ptr::null_mut(), |nexus| {
        std::ptr::from_ref(&*nexus.local).cast_mut()
    })
}

/// The progressor of the fabric.
///
/// # Safety
/// As `nexus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_remoteprogressor(nctx: *mut nexus_ctx) -> *mut progressor_handle {
    // SAFETY: as the caller promises.
    unsafe { nctx.as_ref() }.map_or(std::ptr::null_mut(), |nexus| {
        std::ptr::from_ref(&*nexus.remote).cast_mut()
    })
}

/// Writes the tables.
///
/// # Safety
/// As `nexus`; `outfile` is null or a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_dump(nctx: *mut nexus_ctx, outfile: *mut c_char) {
    let _ = guard_or(|| {
        // SAFETY: as the caller promises.
        let nexus = unsafe { nexus(nctx)? };
        let outfile = match outfile.is_null() {
            true => None,
            // SAFETY: not null, and otherwise as the caller promises.
            false => Some(unsafe { argument::text(outfile, "outfile")? }),
        };
        nexus.dump(outfile);
        Ok(())
    });
}
