//! Memory registration, by whatever rules the provider has.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use libfabric_sys as sys;
use rustix::process::{Resource, getrlimit};

use super::domain::Domain;
use super::error;
use super::handle::Handle;
use super::opened::Opened;
use crate::error::{Error, Result};
use crate::link::Access;
use crate::memory::pool::Registration;
use crate::random::random_bytes;
use crate::sync::{Arc, Mutex, PoisonError};

/// Attempts at a key that no other registration of the domain has.
const KEY_ATTEMPTS: usize = 16;

/// Registered memory.
#[derive(Debug)]
pub(super) struct Region {
    region: ManuallyDrop<Handle<sys::fid_mr>>,
    key: u64,
    base: u64,
    link: usize,
    /// Bytes that the endpoint counts as pinned.
    pinned: (Arc<Mutex<usize>>, usize),
    /// The endpoint, for regions that are bound to it (FI_MR_ENDPOINT): it cannot be closed before
    /// them.
    endpoint: Option<Arc<Opened>>,
    /// Closed after the region.
    domain: Arc<Domain>,
}

// SAFETY: the region belongs to no thread; it is closed with the domain's turn, and else only read.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        let _turn = self.domain.turn();
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.region) };
        let (pinned, bytes) = &self.pinned;
        *pinned.lock().unwrap_or_else(PoisonError::into_inner) -= bytes;
        self.endpoint = None;
    }
}

impl Region {
    /// Registers memory for what it is used for, and nothing else.
    ///
    /// # Safety
    /// It is mapped, readable and writable, until the region is dropped.
    pub(super) unsafe fn register(
        opened: &Arc<Opened>,
        memory: NonNull<[u8]>,
        access: Access,
        pinned: &Arc<Mutex<usize>>,
    ) -> Result<Self> {
        let domain = &opened.domain;
        let mode = domain.info().mr_mode();
        let object = format!("{} bytes on {}", memory.len(), domain.info().label());
        let access = match access {
            Access::Arrivals => sys::FI_RECV | sys::FI_READ,
            Access::Departures => sys::FI_SEND,
            Access::Readable => sys::FI_SEND | sys::FI_REMOTE_READ,
            Access::Messages => sys::FI_SEND | sys::FI_RECV | sys::FI_READ,
            Access::All => sys::FI_SEND | sys::FI_RECV | sys::FI_READ | sys::FI_REMOTE_READ,
        };
        let _turn = domain.turn();
        // SAFETY: the caller's promise.
        let region = unsafe { reg_with_fresh_key(domain, memory, access, &object)? };
        let endpoint = if mode & sys::FI_MR_ENDPOINT != 0 {
            // SAFETY: region and endpoint are open objects of the same domain.
            let bound = unsafe { sys::fi_mr_bind(region.as_ptr(), opened.endpoint.fid(), 0) };
            if bound != 0 {
                return Err(error::failure("fi_mr_bind", bound as isize, object));
            }
            // SAFETY: the region is bound to its endpoint, as the mode FI_MR_ENDPOINT wants it
            // before.
            let enabled = unsafe { sys::fi_mr_enable(region.as_ptr()) };
            if enabled != 0 {
                return Err(error::failure("fi_mr_enable", enabled as isize, object));
            }
            Some(Arc::clone(opened))
        } else {
            None
        };
        // SAFETY: the region is open and, where needed, enabled.
        let key = unsafe { sys::fi_mr_key(region.as_ptr()) };
        // Since libfabric 2.4 or so, a region that no peer reads has none.
        if key == sys::FI_KEY_NOTAVAIL && access & sys::FI_REMOTE_READ != 0 {
            return Err(error::failure(
                "fi_mr_key",
                sys::FI_ENOKEY as isize,
                "keys above 64 bits are not used",
            ));
        }
        let base = if mode & sys::FI_MR_VIRT_ADDR != 0 {
            memory.as_ptr().cast::<u8>() as u64
        } else {
            0
        };
        Ok(Self {
            region: ManuallyDrop::new(region),
            key,
            base,
            link: opened.number(),
            pinned: {
                *pinned.lock().unwrap_or_else(PoisonError::into_inner) += memory.len();
                (Arc::clone(pinned), memory.len())
            },
            endpoint,
            domain: Arc::clone(domain),
        })
    }
}

// SAFETY: libfabric gave `region` for the memory that the endpoint makes a pool of, or says is
// registered, and its descriptor is the region's for as long as that is open; `link` is the number
// of the endpoint whose domain the region belongs to, and keeps open.
unsafe impl Registration for Region {
    fn link(&self) -> usize {
        self.link
    }

    fn descriptor(&self) -> *mut libc::c_void {
        // SAFETY: the region is open.
        unsafe { sys::fi_mr_desc(self.region.as_ptr()) }
    }

    fn key(&self) -> u64 {
        self.key
    }

    fn base(&self) -> u64 {
        self.base
    }
}

/// Asks for random keys where the provider lets us choose: a neighbour on the network cannot count
/// up to them.
///
/// # Safety
/// As [`Region::register`].
unsafe fn reg_with_fresh_key(
    domain: &Domain,
    memory: NonNull<[u8]>,
    access: u64,
    object: &str,
) -> Result<Handle<sys::fid_mr>> {
    let ours = domain.info().mr_mode() & sys::FI_MR_PROV_KEY == 0;
    let mut attempts = if ours { KEY_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        let key = if ours {
            random_key(domain.info().mr_key_bytes())?
        } else {
            0
        };
        // SAFETY: the memory is readable and writable for its whole length until after this
        // registration is dropped, as the caller promises.
        let registered = unsafe {
            Handle::open("fi_mr_reg", object, |place| {
                sys::fi_mr_reg(
                    domain.as_ptr(),
                    memory.as_ptr().cast(),
                    memory.len(),
                    access,
                    0,
                    key,
                    0,
                    place,
                    std::ptr::null_mut(),
                )
            })
        };
        match registered {
            Err(Error::Fabric { code, .. }) if code == sys::FI_ENOKEY as i32 && attempts > 0 => {}
            other => return other,
        }
    }
}

fn random_key(bytes: usize) -> Result<u64> {
    let key = u64::from_le_bytes(random_bytes()?);
    let bits = (bytes.clamp(1, 8) * 8) as u32;
    // The all-ones key means "none", and cxi treats keys below 100 as another kind.
    Ok((key >> (64 - bits)).clamp(256.min(1 << (bits - 1)), u64::MAX - 1))
}

/// Refuses early what a provider that pins memory would only refuse late, or not at all.
///
/// `pinned_bytes` counts our pools, `reserve_bytes` what the provider pins for itself.
pub(super) fn check_memlock(
    provider: &str,
    pinned_bytes: usize,
    reserve_bytes: usize,
) -> Result<()> {
    let Some(limit) = getrlimit(Resource::Memlock).current else {
        return Ok(());
    };
    let needed = (pinned_bytes + reserve_bytes) as u64;
    if needed <= limit || may_lock_anything() {
        return Ok(());
    }
    let kib = |bytes: u64| bytes.div_ceil(1024);
    Err(Error::system(
        format!(
            "memlock limit {} KiB is below the {} KiB that {provider} has to pin ({} KiB of buffers, {} KiB of its \
             own); raise `ulimit -l` (LimitMEMLOCK= of the job daemon), or lower the pool sizes",
            kib(limit),
            kib(needed),
            kib(pinned_bytes as u64),
            kib(reserve_bytes as u64)
        ),
        std::io::Error::from_raw_os_error(libc::ENOMEM),
    ))
}

/// Whether CAP_IPC_LOCK lifts the limit.
fn may_lock_anything() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|c| c >> CAP_IPC_LOCK & 1 == 1)
}
