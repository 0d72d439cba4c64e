//! The completion queue, and the descriptor to sleep on where the provider has one.

use std::os::fd::{BorrowedFd, RawFd};

use libfabric_sys as sys;

use super::domain::Domain;
use super::error;
use super::handle::Handle;
use crate::error::Result;

/// Completions taken from libfabric by one poll.
pub(super) const BATCH: usize = 64;

/// Entries of one read, reused from poll to poll.
pub(super) type Entries = Box<[sys::fi_cq_tagged_entry; BATCH]>;

/// An error entry, reduced to what is used.
#[derive(Debug)]
pub(super) struct CompletionError {
    pub(super) context: *mut libc::c_void,
    pub(super) code: i32,
    pub(super) provider_code: i32,
    pub(super) text: String,
}

/// What one read of the queue gave.
pub(super) enum Read {
    /// So many entries were filled.
    Entries(usize),
    /// An error entry waits for [`CompletionQueue::read_error`].
    ErrorWaits,
}

/// One queue for sends, receives and reads.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    cq: Handle<sys::fid_cq>,
    descriptor: Option<RawFd>,
}

impl CompletionQueue {
    /// Opens a queue for `entries` completions, with a descriptor where `wait` asks for one and the
    /// provider has it.
    pub(super) fn open(domain: &Domain, entries: usize, wait: bool) -> Result<Self> {
        if wait {
            match Self::open_with(domain, entries, sys::FI_WAIT_FD) {
                Ok(mut queue) => match queue.wait_object() {
                    Ok(descriptor) => {
                        queue.descriptor = Some(descriptor);
                        return Ok(queue);
                    }
                    Err(e) => tracing::debug!("no descriptor to wait on: {e}"),
                },
                Err(e) => tracing::debug!("no completion queue with a descriptor: {e}"),
            }
        }
        Self::open_with(domain, entries, sys::FI_WAIT_NONE)
    }

    fn open_with(domain: &Domain, entries: usize, wait: sys::fi_wait_obj) -> Result<Self> {
        // SAFETY: all-zero bytes are a valid fi_cq_attr (numbers, enumerators that exist, and a
        // null wait set).
        let mut attributes: sys::fi_cq_attr = unsafe { std::mem::zeroed() };
        attributes.size = entries;
        attributes.format = sys::FI_CQ_FORMAT_TAGGED;
        attributes.wait_obj = wait;
        // SAFETY: the domain is open and the attributes live during the call.
        let cq = unsafe {
            Handle::open("fi_cq_open", domain.info().label(), |place| {
                sys::fi_cq_open(
                    domain.as_ptr(),
                    &mut attributes,
                    place,
                    std::ptr::null_mut(),
                )
            })?
        };
        Ok(Self {
            cq,
            descriptor: None,
        })
    }

    fn wait_object(&self) -> Result<RawFd> {
        let mut descriptor: RawFd = -1;
        // SAFETY: for a queue opened with FI_WAIT_FD, FI_GETWAIT writes one int.
        let code = unsafe {
            sys::fi_control(
                self.cq.fid(),
                sys::FI_GETWAIT as i32,
                (&raw mut descriptor).cast(),
            )
        };
        if code != 0 || descriptor < 0 {
            return Err(error::failure(
                "fi_control(FI_GETWAIT)",
                code as isize,
                "completion queue",
            ));
        }
        Ok(descriptor)
    }

    pub(super) fn fid(&self) -> *mut sys::fid {
        self.cq.fid()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the provider keeps the descriptor open as long as the queue, which the borrow
        // keeps alive.
        self.descriptor
            .map(|raw| unsafe { BorrowedFd::borrow_raw(raw) })
    }

    /// Whether nothing has arrived since the last read, so that sleeping on the descriptor loses no
    /// wake-up. True without a descriptor: the sleep is bounded then, and shm 1.17 crashes when
    /// asked about such a queue.
    pub(super) fn try_wait(&self, fabric: *mut sys::fid_fabric) -> bool {
        if self.descriptor.is_none() {
            return true;
        }
        let mut fids = [self.cq.fid()];
        // SAFETY: one open object is passed with its count, and it has a wait object and was opened
        // inside `fabric`.
        unsafe { sys::fi_trywait(fabric, fids.as_mut_ptr(), 1) == 0 }
    }

    /// An array of entries for [`CompletionQueue::read`].
    pub(super) fn entries() -> Entries {
        // SAFETY: all-zero bytes are a valid fi_cq_tagged_entry (null pointers and numbers).
        Box::new(unsafe { std::mem::zeroed() })
    }

    /// Makes progress and takes what has ended.
    pub(super) fn read(&self, entries: &mut Entries) -> Result<Read> {
        // SAFETY: the queue's format is FI_CQ_FORMAT_TAGGED, and `entries` has room for BATCH of
        // them.
        let read = unsafe { sys::fi_cq_read(self.cq.as_ptr(), entries.as_mut_ptr().cast(), BATCH) };
        match read {
            0.. => Ok(Read::Entries((read as usize).min(BATCH))),
            error::EAGAIN => Ok(Read::Entries(0)),
            error::EAVAIL => Ok(Read::ErrorWaits),
            code => Err(error::failure("fi_cq_read", code, "completion queue")),
        }
    }

    /// Takes the waiting error entry, if it is still there.
    pub(super) fn read_error(&self) -> Result<Option<CompletionError>> {
        // SAFETY: all-zero bytes are a valid fi_cq_err_entry; err_data_size 0 asks for no provider
        // data.
        let mut entry: sys::fi_cq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the entry is ours and as large as the API version that we asked libfabric for.
        let read = unsafe { sys::fi_cq_readerr(self.cq.as_ptr(), &mut entry, 0) };
        match read {
            error::EAGAIN | 0 => return Ok(None),
            code if code < 0 => {
                return Err(error::failure("fi_cq_readerr", code, "completion queue"));
            }
            _ => {}
        }
        let code = error::positive(entry.err);
        Ok(Some(CompletionError {
            context: entry.op_context,
            code,
            provider_code: entry.prov_errno,
            text: error::text(code),
        }))
    }
}
