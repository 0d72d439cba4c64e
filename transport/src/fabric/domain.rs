//! A fabric and the domain in it: one network adapter, or one network interface.

use libfabric_sys as sys;

use super::handle::Handle;
use super::info::Info;
use super::quirks::Quirk;
use crate::error::Result;

/// An opened domain with the description that it was opened from. Closed when its last registration is gone.
#[derive(Debug)]
pub(super) struct Domain {
    // Declared in the order of closing.
    domain: Handle<sys::fid_domain>,
    fabric: Handle<sys::fid_fabric>,
    info: Info,
    quirk: &'static Quirk,
}

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
        })
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
