//! The address vector: peers' addresses as dense indices.

use libfabric_sys as sys;

use super::domain::Domain;
use super::error;
use super::handle::Handle;
use crate::error::{Error, Result};

/// Addresses of connected peers.
#[derive(Debug)]
pub(super) struct AddressVector {
    av: Handle<sys::fid_av>,
}

impl AddressVector {
    /// Opens a table for about `peers` addresses; it grows when there are more.
    pub(super) fn open(domain: &Domain, peers: usize) -> Result<Self> {
        // SAFETY: all-zero bytes are a valid fi_av_attr (numbers, and null for "no name" and "no
        // address").
        let mut attributes: sys::fi_av_attr = unsafe { std::mem::zeroed() };
        attributes.type_ = sys::FI_AV_TABLE;
        attributes.count = peers;
        // SAFETY: the domain is open and the attributes live during the call.
        let av = unsafe {
            Handle::open("fi_av_open", domain.info().label(), |place| {
                sys::fi_av_open(
                    domain.as_ptr(),
                    &mut attributes,
                    place,
                    std::ptr::null_mut(),
                )
            })?
        };
        Ok(Self { av })
    }

    pub(super) fn fid(&self) -> *mut sys::fid {
        self.av.fid()
    }

    /// Adds one address, whose length and kind the caller has compared with our own.
    pub(super) fn insert(&self, address: &[u8]) -> Result<sys::fi_addr_t> {
        let mut index: sys::fi_addr_t = sys::FI_ADDR_NOTAVAIL;
        // Providers read their own address type from here: give them an aligned copy with room
        // behind it.
        let mut words = [0u64; 64];
        if address.len() >= size_of_val(&words) {
            return Err(Error::Fabric {
                call: "fi_av_insert",
                code: sys::FI_EINVAL,
                detail: format!(
                    "an address of {} bytes is longer than any provider's",
                    address.len()
                ),
            });
        }
        let bytes = words.as_mut_ptr().cast::<u8>();
        // SAFETY: `words` has room for the address (checked above) and does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(address.as_ptr(), bytes, address.len()) };
        // SAFETY: one address is read from the aligned copy, and one index is written.
        let inserted = unsafe {
            sys::fi_av_insert(
                self.av.as_ptr(),
                bytes.cast(),
                1,
                &mut index,
                0,
                std::ptr::null_mut(),
            )
        };
        match inserted {
            1 if index != sys::FI_ADDR_NOTAVAIL => Ok(index),
            code if code < 0 => Err(error::failure(
                "fi_av_insert",
                code as isize,
                "a peer's address",
            )),
            _ => Err(error::failure(
                "fi_av_insert",
                sys::FI_EINVAL as isize,
                "a peer's address was not accepted",
            )),
        }
    }

    /// Removes an address. Nothing may be under way to it.
    pub(super) fn remove(&self, mut index: sys::fi_addr_t) -> Result<()> {
        // SAFETY: one index, which `insert` gave out, is read during the call.
        match unsafe { sys::fi_av_remove(self.av.as_ptr(), &mut index, 1, 0) } {
            0 => Ok(()),
            code => Err(error::failure(
                "fi_av_remove",
                code as isize,
                "a peer's address",
            )),
        }
    }
}
