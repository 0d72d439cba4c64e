//! The endpoint: a [`Link`] over one RDM endpoint, its completion queue and its address vector.

use std::os::fd::BorrowedFd;
use std::rc::Rc;

use libfabric_sys as sys;

use super::av::AddressVector;
use super::cq::{BATCH, CompletionQueue, Entries, Read};
use super::domain::Domain;
use super::error::{self, EAGAIN};
use super::handle::Handle;
use super::info::{Choice, Info, Offer, Selected, TAG_BITS};
use super::mr::{Region, check_memlock};
use super::operations::{Contexts, Kind, Operation, Operations};
use super::quirks::Quirk;
use crate::error::{Error, Result};
use crate::link::{Completion, Limits, Link, Peer, PostError, RemoteMemory, Tag, Token};
use crate::memory::hugepage::Mapping;
use crate::memory::pool::{Buffer, Pool};

/// Polls given to a closing endpoint to hand back cancelled receives, where regions keep it open.
const CLOSING_POLLS: usize = 10_000;

/// The opened objects, in the order of closing.
#[derive(Debug)]
pub(super) struct Core {
    endpoint: Handle<sys::fid_ep>,
    cq: CompletionQueue,
    av: AddressVector,
    contexts: Contexts,
    domain: Rc<Domain>,
}

impl Core {
    pub(super) fn domain(&self) -> &Rc<Domain> {
        &self.domain
    }

    pub(super) fn endpoint_fid(&self) -> *mut sys::fid {
        self.endpoint.fid()
    }
}

/// One libfabric endpoint.
pub(super) struct Endpoint {
    // Declared first: closed before any buffer below goes (see `Drop` for the exception).
    core: Rc<Core>,
    operations: Operations,
    /// Sends whose bytes libfabric has copied, and which end in the next poll.
    injected: Vec<(Token, Buffer)>,
    entries: Entries,
    peers: Vec<sys::fi_addr_t>,
    name: String,
    address: Vec<u8>,
    limits: Limits,
    inject_bytes: usize,
    sends: usize,
    receives: usize,
    pinned_bytes: usize,
}

impl Endpoint {
    /// Opens the endpoint and makes it ready to send and receive.
    pub(super) fn open(selected: Selected, choice: &Choice) -> Result<Self> {
        let Selected { offer, quirk } = selected;
        let provider = offer.description.provider.clone();
        if let Some(reserve) = quirk.pinned_reserve_bytes {
            check_memlock(&provider, 0, reserve)?;
        }
        let core = match quirk.depth {
            None => Core::open(offer, quirk, choice, 0)?,
            Some(depth) => Core::open(offer, quirk, choice, depth).or_else(|e| {
                tracing::debug!("{provider} refuses a depth of {depth}: {e}");
                Core::open(offer, quirk, choice, 0)
            })?,
        };
        let info = core.domain.info();
        let (posted_sends, posted_receives) = depths(info);
        let max_message_bytes = info.max_message_bytes();
        let limits = Limits {
            eager_bytes: choice
                .eager_bytes
                .unwrap_or(quirk.eager_bytes)
                .min(max_message_bytes),
            max_message_bytes,
            posted_receives,
            posted_sends,
            mover: choice.mover.unwrap_or(quirk.mover),
        };
        let address = framed_address(&provider, &core.name()?);
        Ok(Self {
            operations: Operations::new(posted_sends + posted_receives),
            injected: Vec::with_capacity(posted_sends),
            entries: CompletionQueue::entries(),
            peers: Vec::new(),
            name: provider,
            address,
            inject_bytes: info.inject_bytes(),
            limits,
            sends: 0,
            receives: 0,
            pinned_bytes: 0,
            core: Rc::new(core),
        })
    }

    /// Posts by `call`, which gets the endpoint and the context, once a context and room are there.
    fn post(
        &mut self,
        call: &'static str,
        operation: Operation,
        post: impl FnOnce(*mut sys::fid_ep, &mut Buffer, *mut libc::c_void) -> isize,
    ) -> std::result::Result<(), PostError> {
        let Operation {
            kind,
            token,
            peer,
            mut buffer,
        } = operation;
        let Some(index) = self.operations.reserve() else {
            return Err(PostError::WouldBlock(buffer));
        };
        match post(
            self.core.endpoint.as_ptr(),
            &mut buffer,
            self.core.contexts.at(index),
        ) {
            0 => {
                match kind {
                    Kind::Receive => self.receives += 1,
                    Kind::Send | Kind::Read => self.sends += 1,
                }
                self.operations.put(
                    index,
                    Operation {
                        kind,
                        token,
                        peer,
                        buffer,
                    },
                );
                Ok(())
            }
            code => {
                self.operations.release(index);
                Err(self.refused(call, code, buffer))
            }
        }
    }

    fn refused(&self, call: &'static str, code: isize, buffer: Buffer) -> PostError {
        if code == EAGAIN {
            return PostError::WouldBlock(buffer);
        }
        PostError::Failed(
            buffer,
            error::failure(call, code, self.core.domain.info().label()),
        )
    }

    /// The peer's libfabric address, or the error for a peer that this link never gave out.
    fn target(&self, peer: Peer, buffer: Buffer) -> std::result::Result<(sys::fi_addr_t, Buffer), PostError> {
        match self.peers.get(peer.0 as usize) {
            Some(target) => Ok((*target, buffer)),
            None => {
                let why = format!("peer {} of {} connected ones", peer.0, self.peers.len());
                Err(PostError::Failed(
                    buffer,
                    error::failure("post", sys::FI_EINVAL as isize, why),
                ))
            }
        }
    }

    /// Refuses what is longer than the provider's largest message.
    fn admit(&self, bytes: usize, buffer: Buffer) -> std::result::Result<Buffer, PostError> {
        assert!(
            bytes <= buffer.len(),
            "{bytes} bytes of a buffer of {}",
            buffer.len()
        );
        if bytes <= self.limits.max_message_bytes {
            return Ok(buffer);
        }
        let why = format!(
            "{bytes} bytes, at most {} in one operation",
            self.limits.max_message_bytes
        );
        Err(PostError::Failed(
            buffer,
            error::failure("post", sys::FI_EMSGSIZE as isize, why),
        ))
    }

    fn no_room_to_send(&self) -> bool {
        self.sends + self.injected.len() >= self.limits.posted_sends
    }

    fn take(&mut self, context: *mut libc::c_void) -> Option<Operation> {
        let operation = self
            .core
            .contexts
            .index(context)
            .and_then(|index| self.operations.take(index))?;
        match operation.kind {
            Kind::Receive => self.receives -= 1,
            Kind::Send | Kind::Read => self.sends -= 1,
        }
        Some(operation)
    }

    /// The completion of a successful operation; `None` for a context that is not in flight.
    fn succeeded(&mut self, context: *mut libc::c_void, bytes: usize) -> Option<Completion> {
        let Operation {
            kind, token, buffer, ..
        } = self.take(context)?;
        Some(match kind {
            Kind::Send => Completion::Sent { token, buffer },
            Kind::Receive => Completion::Received {
                token,
                bytes: bytes.min(buffer.len()),
                buffer,
            },
            Kind::Read => Completion::Read { token, buffer },
        })
    }

    /// Takes the waiting error entries; a provider may have forgotten which operation one belongs to.
    fn take_errors(&mut self, completions: &mut Vec<Completion>) -> Result<()> {
        for _ in 0..BATCH {
            let Some(entry) = self.core.cq.read_error()? else {
                break;
            };
            let operation = self.take(entry.context);
            let call = match operation.as_ref().map(|o| o.kind) {
                Some(Kind::Send) => "fi_tsend",
                Some(Kind::Receive) => "fi_trecv",
                Some(Kind::Read) => "fi_read",
                None => "fi_cq_read",
            };
            let detail = format!(
                "{} ({}, provider error {})",
                entry.text,
                self.core.domain.info().label(),
                entry.provider_code
            );
            let error = Error::Fabric {
                call,
                code: entry.code,
                detail,
            };
            completions.push(match operation {
                Some(Operation {
                    token, peer, buffer, ..
                }) => Completion::Failed {
                    token: Some(token),
                    buffer: Some(buffer),
                    peer,
                    error,
                },
                None => Completion::Failed {
                    token: None,
                    buffer: None,
                    peer: None,
                    error,
                },
            });
        }
        Ok(())
    }
}

impl Core {
    /// Opens everything for one offer, with at least `depth` operations in flight each way.
    fn open(offer: &Offer, quirk: &'static Quirk, choice: &Choice, depth: usize) -> Result<Self> {
        let mut info = Info::copy_of(offer)?;
        info.raise_depths(depth);
        let domain = Rc::new(Domain::open(info, quirk)?);
        let info = domain.info();
        let (sends, receives) = depths(info);
        let cq = CompletionQueue::open(&domain, sends + receives, domain.quirk().wait_descriptor)?;
        let av = AddressVector::open(&domain, choice.universe.unwrap_or(64))?;
        // SAFETY: domain and info are valid, and belong together.
        let endpoint = unsafe {
            Handle::open("fi_endpoint", info.label(), |place| {
                sys::fi_endpoint(domain.as_ptr(), info.as_ptr(), place, std::ptr::null_mut())
            })?
        };
        let contexts = Contexts::new(sends + receives);
        let core = Self {
            endpoint,
            cq,
            av,
            contexts,
            domain,
        };
        core.bind(core.cq.fid(), sys::FI_TRANSMIT | sys::FI_SELECTIVE_COMPLETION)?;
        core.bind(core.cq.fid(), sys::FI_RECV)?;
        core.bind(core.av.fid(), 0)?;
        // SAFETY: the endpoint has its queue and its address vector bound.
        let enabled = unsafe { sys::fi_enable(core.endpoint.as_ptr()) };
        if enabled != 0 {
            return Err(error::failure(
                "fi_enable",
                enabled as isize,
                format!(
                    "{}; where the device's queues are too small, set FI_UNIVERSE_SIZE to the number of endpoints in \
                     the job",
                    core.domain.info().label()
                ),
            ));
        }
        Ok(core)
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

    /// The endpoint's address in the provider's own format.
    fn name(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; 512];
        let mut length = bytes.len();
        // SAFETY: `bytes` has room for `length` bytes, which the call lowers to what it wrote.
        let code = unsafe { sys::fi_getname(self.endpoint.fid(), bytes.as_mut_ptr().cast(), &mut length) };
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

/// Sends and reads, receives; a provider that names no limit gets a modest one.
fn depths(info: &Info) -> (usize, usize) {
    let (sends, receives) = info.depths();
    let or_modest = |depth: usize| if depth == 0 { 256 } else { depth.min(1 << 16) };
    (or_modest(sends), or_modest(receives))
}

/// An address as peers exchange it: the provider's name behind its length, then the provider's own bytes.
fn framed_address(provider: &str, name: &[u8]) -> Vec<u8> {
    let mut framed = vec![provider.len() as u8];
    framed.extend_from_slice(provider.as_bytes());
    framed.extend_from_slice(name);
    framed
}

/// The provider's bytes of a peer's address, once they are known to be of our provider, length and kind.
fn own_kind<'a>(address: &'a [u8], ours: &[u8], provider: &str) -> Result<&'a [u8]> {
    let refuse = |detail: String| {
        Err(Error::Fabric {
            call: "fi_av_insert",
            code: sys::FI_EINVAL,
            detail,
        })
    };
    let Some((length, rest)) = address.split_first() else {
        return refuse("a peer's address is empty".to_owned());
    };
    let Some((name, theirs)) = rest.split_at_checked(*length as usize) else {
        return refuse(format!(
            "a peer's address of {} bytes is cut short",
            address.len()
        ));
    };
    if name != provider.as_bytes() {
        return refuse(format!(
            "a peer uses provider {}, this process {provider}; set TRIHOP_PROVIDER to one of them everywhere",
            String::from_utf8_lossy(name).escape_default()
        ));
    }
    // Text addresses (shm) vary in length and end with NUL; all others are structures of one length.
    let ours = &ours[1 + provider.len()..];
    let text =
        |bytes: &[u8]| bytes.last() == Some(&0) && bytes[..bytes.len() - 1].iter().all(u8::is_ascii_graphic);
    let same_kind = if text(ours) {
        text(theirs)
    } else {
        theirs.len() == ours.len()
    };
    if !same_kind {
        return refuse(format!(
            "a peer's {provider} address has {} bytes, ours {}",
            theirs.len(),
            ours.len()
        ));
    }
    Ok(theirs)
}

impl Link for Endpoint {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn connect(&mut self, address: &[u8]) -> Result<Peer> {
        let target = self
            .core
            .av
            .insert(own_kind(address, &self.address, &self.name)?)?;
        let peer = Peer(self.peers.len() as u32);
        self.peers.push(target);
        Ok(peer)
    }

    fn create_pool(&mut self, slot_bytes: usize, slots: usize) -> Result<Pool> {
        let mapping = Mapping::allocate(slot_bytes * slots)?;
        if let Some(reserve) = self.core.domain.quirk().pinned_reserve_bytes {
            check_memlock(&self.name, self.pinned_bytes + mapping.len(), reserve)?;
        }
        let region = Region::register(&self.core, &mapping)?;
        self.pinned_bytes += mapping.len();
        Ok(Pool::new(mapping, slot_bytes, slots, Some(Box::new(region))))
    }

    fn post_send(
        &mut self,
        peer: Peer,
        tag: Tag,
        buffer: Buffer,
        bytes: usize,
        token: Token,
    ) -> std::result::Result<(), PostError> {
        debug_assert!(
            tag.0 >> TAG_BITS == 0,
            "tag {:#x} has more than {TAG_BITS} bits",
            tag.0
        );
        let buffer = self.admit(bytes, buffer)?;
        let (target, buffer) = self.target(peer, buffer)?;
        if self.no_room_to_send() {
            return Err(PostError::WouldBlock(buffer));
        }
        if bytes <= self.inject_bytes {
            // SAFETY: libfabric copies `bytes` bytes of the buffer, which has them (`admit`), before it returns.
            let code = unsafe {
                sys::fi_tinject(
                    self.core.endpoint.as_ptr(),
                    buffer.as_ptr().cast(),
                    bytes,
                    target,
                    tag.0,
                )
            };
            if code != 0 {
                return Err(self.refused("fi_tinject", code, buffer));
            }
            self.injected.push((token, buffer));
            return Ok(());
        }
        let operation = Operation {
            kind: Kind::Send,
            token,
            peer: Some(peer),
            buffer,
        };
        self.post("fi_tsend", operation, |endpoint, buffer, context| {
            let descriptor = buffer.descriptor();
            // SAFETY: the buffer has `bytes` bytes and stays with the operation until its completion, as the context
            // does.
            unsafe {
                sys::fi_tsend(
                    endpoint,
                    buffer.as_ptr().cast(),
                    bytes,
                    descriptor,
                    target,
                    tag.0,
                    context,
                )
            }
        })
    }

    fn post_receive(&mut self, tag: Tag, buffer: Buffer, token: Token) -> std::result::Result<(), PostError> {
        debug_assert!(
            tag.0 >> TAG_BITS == 0,
            "tag {:#x} has more than {TAG_BITS} bits",
            tag.0
        );
        if self.receives >= self.limits.posted_receives {
            return Err(PostError::WouldBlock(buffer));
        }
        let operation = Operation {
            kind: Kind::Receive,
            token,
            peer: None,
            buffer,
        };
        self.post("fi_trecv", operation, |endpoint, buffer, context| {
            let (first, length, descriptor) = (buffer.as_mut_ptr(), buffer.len(), buffer.descriptor());
            // SAFETY: the buffer has `length` bytes and stays with the operation until its completion, as the context
            // does; nobody else can reach it meanwhile.
            unsafe {
                sys::fi_trecv(
                    endpoint,
                    first.cast(),
                    length,
                    descriptor,
                    sys::FI_ADDR_UNSPEC,
                    tag.0,
                    0,
                    context,
                )
            }
        })
    }

    fn post_read(
        &mut self,
        peer: Peer,
        remote: RemoteMemory,
        buffer: Buffer,
        bytes: usize,
        token: Token,
    ) -> std::result::Result<(), PostError> {
        let buffer = self.admit(bytes, buffer)?;
        let (target, buffer) = self.target(peer, buffer)?;
        if self.no_room_to_send() {
            return Err(PostError::WouldBlock(buffer));
        }
        let operation = Operation {
            kind: Kind::Read,
            token,
            peer: Some(peer),
            buffer,
        };
        self.post("fi_read", operation, |endpoint, buffer, context| {
            let (first, descriptor) = (buffer.as_mut_ptr(), buffer.descriptor());
            // SAFETY: the buffer has `bytes` bytes and stays with the operation until its completion, as the context
            // does; the provider checks the remote address and key at the target.
            unsafe {
                sys::fi_read(
                    endpoint,
                    first.cast(),
                    bytes,
                    descriptor,
                    target,
                    remote.address,
                    remote.key,
                    context,
                )
            }
        })
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<usize> {
        let before = completions.len();
        completions.extend(
            self.injected
                .drain(..)
                .map(|(token, buffer)| Completion::Sent { token, buffer }),
        );
        match self.core.cq.read(&mut self.entries)? {
            Read::Entries(count) => {
                for i in 0..count {
                    let (context, bytes) = (self.entries[i].op_context, self.entries[i].len);
                    completions.extend(self.succeeded(context, bytes));
                }
            }
            Read::ErrorWaits => self.take_errors(completions)?,
        }
        Ok(completions.len() - before)
    }

    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.core.cq.descriptor()
    }

    fn try_wait(&mut self) -> bool {
        self.injected.is_empty() && self.core.cq.try_wait(self.core.domain.fabric())
    }
}

impl Drop for Endpoint {
    /// Where regions are bound to the endpoint it outlives this value, so the provider must give the buffers back first.
    fn drop(&mut self) {
        if self.core.domain.info().mr_mode() & sys::FI_MR_ENDPOINT == 0 {
            return;
        }
        for index in self.operations.in_flight() {
            // SAFETY: the context belongs to an operation in flight on this endpoint.
            unsafe { sys::fi_cancel(self.core.endpoint.fid(), self.core.contexts.at(index)) };
        }
        let mut ended = Vec::new();
        for _ in 0..CLOSING_POLLS {
            if self.sends + self.receives == 0 || self.poll(&mut ended).is_err() {
                break;
            }
            ended.clear();
        }
        let leaked = self.operations.leak();
        if leaked > 0 {
            tracing::warn!(
                "{leaked} buffers of {} stay mapped: the provider did not give them back",
                self.name
            );
        }
    }
}
