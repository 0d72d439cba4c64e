//! The objects under one endpoint: opened together, bound to each other, closed in order.

use libfabric_sys as sys;

use super::av::AddressVector;
use super::choice::Choice;
use super::cq::CompletionQueue;
use super::domain::Domain;
use super::error;
use super::handle::Handle;
use super::info::{Info, Offer};
use super::operations::Contexts;
use super::quirks::Quirk;
use crate::error::Result;
use crate::sync::Arc;

/// More operations in flight than this are no limit of a provider, but none.
const MOST_OPERATIONS: usize = 1 << 16;

/// The opened objects, in the order of closing.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) endpoint: Handle<sys::fid_ep>,
    pub(super) cq: CompletionQueue,
    pub(super) av: AddressVector,
    pub(super) contexts: Contexts,
    pub(super) domain: Arc<Domain>,
}

// SAFETY: libfabric's objects belong to no thread; what is called for them is called with the
// domain's turn. Contexts are memory that only the provider touches.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    /// Opens everything for one offer, with at least `depth` operations in flight each way.
    pub(super) fn open(
        offer: &Offer,
        quirk: &'static Quirk,
        choice: &Choice,
        depth: usize,
    ) -> Result<Self> {
        let mut info = Info::copy_of(offer)?;
        info.raise_depths(depth);
        let domain = Arc::new(Domain::open(info, quirk)?);
        let info = domain.info();
        let (sends, receives) = depths(info, quirk);
        let wait = domain.quirk().wait_descriptor && !choice.spin_only;
        let cq = CompletionQueue::open(&domain, sends + receives, wait)?;
        let av = AddressVector::open(&domain, choice.universe.unwrap_or(64))?;
        // SAFETY: domain and info are valid, and belong together.
        let endpoint = unsafe {
            Handle::open("fi_endpoint", info.label(), |place| {
                sys::fi_endpoint(domain.as_ptr(), info.as_ptr(), place, std::ptr::null_mut())
            })?
        };
        let contexts = Contexts::new(sends + receives);
        let opened = Self {
            endpoint,
            cq,
            av,
            contexts,
            domain,
        };
        opened.bind(
            opened.cq.fid(),
            sys::FI_TRANSMIT | sys::FI_SELECTIVE_COMPLETION,
        )?;
        opened.bind(opened.cq.fid(), sys::FI_RECV)?;
        opened.bind(opened.av.fid(), 0)?;
        // SAFETY: the endpoint has its queue and its address vector bound.
        let enabled = unsafe { sys::fi_enable(opened.endpoint.as_ptr()) };
        if enabled != 0 {
            return Err(error::failure(
                "fi_enable",
                enabled as isize,
                format!(
                    "{}; where the device's queues are too small, set FI_UNIVERSE_SIZE to the links of a rank, \
                     which `trihop topo` prints",
                    opened.domain.info().label()
                ),
            ));
        }
        Ok(opened)
    }

    fn bind(&self, object: *mut sys::fid, flags: u64) -> Result<()> {
        // SAFETY: endpoint and object are open and of the same domain.
        let code = unsafe { sys::fi_ep_bind(self.endpoint.as_ptr(), object, flags) };
        if code != 0 {
            return Err(error::failure(
                "fi_ep_bind",
                code as isize,
                self.domain.info().label(),
            ));
        }
        Ok(())
    }

    /// A number that no other endpoint has while anything of this one's domain is open: each
    /// endpoint has a domain of its own, and a region keeps it.
    pub(super) fn number(&self) -> usize {
        Arc::as_ptr(&self.domain) as usize
    }

    /// The endpoint's address in the provider's own format.
    pub(super) fn name(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; 512];
        let mut length = bytes.len();
        // SAFETY: `bytes` has room for `length` bytes, which the call lowers to what it wrote.
        let code =
            unsafe { sys::fi_getname(self.endpoint.fid(), bytes.as_mut_ptr().cast(), &mut length) };
        if code != 0 || length > bytes.len() {
            return Err(error::failure(
                "fi_getname",
                code as isize,
                self.domain.info().label(),
            ));
        }
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// Sends and reads, receives; a provider that names no limit gets that of its row.
pub(super) fn depths(info: &Info, quirk: &Quirk) -> (usize, usize) {
    let (sends, receives) = info.depths();
    let within = |depth: usize| match depth {
        0 => 256,
        1..=MOST_OPERATIONS => depth,
        _ => quirk.receives,
    };
    (within(sends), within(receives))
}
