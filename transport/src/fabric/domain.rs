//! A fabric and the domain in it: one network adapter, or one network interface.

use libfabric_sys as sys;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use super::handle::Handle;
use super::info::Info;
use super::quirks::Quirk;
use crate::error::Result;

/// An opened domain with the description that it was opened from. Closed when its last registration
/// is gone.
#[derive(Debug)]
pub(super) struct Domain {
    // Declared in the order of closing.
    domain: Handle<sys::fid_domain>,
    fabric: Handle<sys::fid_fabric>,
    info: Info,
    quirk: &'static Quirk,
    /// See [`Domain::turn`].
    turn: ReentrantMutex<()>,
}

// SAFETY: libfabric's objects belong to no thread; what is called for them is called with the turn.
unsafe impl Send for Domain {}
// SAFETY: as above; the description is only read once the domain is open.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn open(info: Info, quirk: &'static Quirk) -> Result<Self> {
        let object = info.label().to_owned();
        // SAFETY: `info` holds valid fabric attributes; libfabric copies what it keeps of them.
        let fabric = unsafe {
            Handle::open("fi_fabric", &object, |place| {
                sys::fi_fabric((*info.as_ptr()).fabric_attr, place, std::ptr::null_mut())
            })?
        };
        // SAFETY: `fabric` is open and was made from the same `info`.
        let domain = unsafe {
            Handle::open("fi_domain", &object, |place| {
                sys::fi_domain(fabric.as_ptr(), info.as_ptr(), place, std::ptr::null_mut())
            })?
        };
        Ok(Self {
            domain,
            fabric,
            info,
            quirk,
            turn: ReentrantMutex::new(()),
        })
    }

    /// The right to call libfabric for objects of this domain. It is opened with FI_THREAD_DOMAIN:
    /// calls for one domain come one at a time. An endpoint and the regions of its pools may be on
    /// different threads; the lock is hardly ever contended.
    #[inline]
    pub(super) fn turn(&self) -> ReentrantMutexGuard<'_, ()> {
        self.turn.lock()
    }

    pub(super) fn as_ptr(&self) -> *mut sys::fid_domain {
        self.domain.as_ptr()
    }

    pub(super) fn fabric(&self) -> *mut sys::fid_fabric {
        self.fabric.as_ptr()
    }

    pub(super) fn info(&self) -> &Info {
        &self.info
    }

    pub(super) fn quirk(&self) -> &'static Quirk {
        self.quirk
    }
}
