//! Iterators over the tables of nexus.

use std::ffi::c_int;

use super::mercury::{hg_addr, pointer_or_said};
use super::nexus::{nexus, nexus_ctx};
use super::tables::Row;

/// A place in one of the tables of a nexus, which outlives it.
pub struct nexus_iter {
    nexus: *const nexus_ctx,
    local: bool,
    at: usize,
}

impl nexus_iter {
    /// The row here; none at the end.
    ///
    /// # Safety
    /// The nexus was not ended.
    unsafe fn row(&self) -> Option<&Row> {
        // SAFETY: as the caller promises.
        let tables = unsafe { &(*self.nexus).tables };
        let rows = if self.local {
            &tables.local
        } else {
            &tables.remote
        };
        rows.get(self.at)
    }
}

/// Begins with the first row.
///
/// # Safety
/// The nexus is null or was not ended, and is not while the iterator is used.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name that C programs use")]
pub unsafe extern "C" fn nexus_iter(nctx: *mut nexus_ctx, local: c_int) -> *mut nexus_iter {
    pointer_or_said("nexus_iter", || {
        // SAFETY: as the caller promises.
        let nexus = unsafe { nexus(nctx)? };
        Ok(Box::into_raw(Box::new(self::nexus_iter {
            nexus,
            local: local != 0,
            at: 0,
        })))
    })
}

/// Ends an iterator and forgets its handle.
///
/// # Safety
/// `nitp` is null, or points to null or an iterator that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_iter_free(nitp: *mut *mut nexus_iter) {
    // SAFETY: as the caller promises.
    unsafe {
        if let Some(iterator) = nitp.as_mut().filter(|iterator| !iterator.is_null()) {
            drop(Box::from_raw(std::mem::replace(
                iterator,
                std::ptr::null_mut(),
            )));
        }
    }
}

/// The row of an iterator; none at the end, and without one.
///
/// # Safety
/// The iterator is null or was not freed, and its nexus was not ended.
unsafe fn row<'a>(nit: *const nexus_iter) -> Option<&'a Row> {
    // SAFETY: as the caller promises.
    unsafe { nit.as_ref()?.row() }
}

/// Whether it is at the end.
///
/// # Safety
/// As [`row`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_iter_atend(nit: *mut nexus_iter) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { row(nit) }.is_none().into()
}

/// Goes to the next row; stays at the end.
///
/// # Safety
/// As [`row`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_iter_advance(nit: *mut nexus_iter) {
    // SAFETY: as the caller promises.
    unsafe {
        if row(nit).is_some() {
            (*nit).at += 1;
        }
    }
}

/// The address here.
///
/// # Safety
/// As [`row`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_iter_addr(nit: *mut nexus_iter) -> *mut hg_addr {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(row) = row(nit) else {
            return std::ptr::null_mut();
        };
        (*(*nit).nexus).address(&row.address)
    }
}

/// The rank here.
///
/// # Safety
/// As [`row`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_iter_globalrank(nit: *mut nexus_iter) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { row(nit) }.map_or(-1, |row| row.rank.0 as c_int)
}

/// The node here; 0 for local ranks.
///
/// # Safety
/// As [`row`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nexus_iter_subrank(nit: *mut nexus_iter) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(row) = row(nit) else { return -1 };
        if (*nit).local { 0 } else { row.node.0 as c_int }
    }
}
