//! Ownership of libfabric objects: each is closed exactly once, when its owner goes.

use std::ptr::NonNull;

use libfabric_sys as sys;

use super::error;
use crate::error::{Error, Result};

/// An opened libfabric object (`fid_domain`, `fid_ep`, ...), closed on drop.
#[derive(Debug)]
pub(super) struct Handle<T> {
    raw: NonNull<T>,
    close: &'static str,
}

impl<T> Handle<T> {
    /// Calls `open` with a place for the new object and owns what it left there. `call` names it in
    /// errors, about `object`.
    ///
    /// # Safety
    /// `T` is one of libfabric's `fid_*` structures, which begin with their `fid`; `open` leaves an
    /// object there that nobody else closes when it returns 0.
    pub(super) unsafe fn open(
        call: &'static str,
        object: &str,
        open: impl FnOnce(*mut *mut T) -> i32,
    ) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        let code = open(&mut raw);
        if code != 0 {
            return Err(error::failure(call, code as isize, object));
        }
        let Some(raw) = NonNull::new(raw) else {
            return Err(Error::Fabric {
                call,
                code: 0,
                detail: format!("no object was returned ({object})"),
            });
        };
        Ok(Self { raw, close: call })
    }

    /// The object, for libfabric's calls.
    pub(super) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// The part that all libfabric objects begin with.
    pub(super) fn fid(&self) -> *mut sys::fid {
        self.raw.as_ptr().cast()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: `open` took an object that only this value closes; owners keep parents alive
        // longer than children.
        let code = unsafe { sys::fi_close(self.fid()) };
        if code != 0 {
            tracing::warn!(
                "closing the object of {} failed: {}",
                self.close,
                error::text(code)
            );
        }
    }
}
