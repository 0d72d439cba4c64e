//! The endpoint: a [`Link`] over one RDM endpoint, its completion queue and its address vector.

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use libfabric_sys as sys;

use super::address;
use super::choice::Choice;
use super::cq::{BATCH, CompletionQueue, Entries, Read};
use super::error::{self, EAGAIN};
use super::info::Selected;
use super::listener;
use super::mr::{Region, check_memlock};
use super::opened::{Opened, depths};
use super::operations::{Contexts, Kind, Operation, Operations};
use crate::error::{Error, Result};
use crate::link::{Access, Completion, Limits, Link, Peer, PostError, RemoteMemory, Tag, Token};
use crate::memory::hugepage::Mapping;
use crate::memory::lent::{Registered, SegmentPart};
use crate::memory::pool::{Buffer, Pool};
use crate::sync::{Arc, Mutex, PoisonError};

/// Polls given to a closing endpoint to hand back cancelled receives, where regions keep it open.
const CLOSING_POLLS: usize = 10_000;

/// One libfabric endpoint.
pub(super) struct Endpoint {
    /// Closed before any buffer below goes (see `Drop` for the exception).
    opened: ManuallyDrop<Arc<Opened>>,
    operations: Operations,
    /// Sends whose bytes libfabric has copied, and which end in the next poll.
    injected: Vec<(Token, Buffer)>,
    entries: Entries,
    /// By peer; none where it was disconnected.
    peers: Vec<Option<sys::fi_addr_t>>,
    name: String,
    address: Vec<u8>,
    limits: Limits,
    inject_bytes: usize,
    sends: usize,
    receives: usize,
    /// Bytes that are registered.
    pinned: Arc<Mutex<usize>>,
}

// SAFETY: libfabric's objects belong to no thread, and all calls for them are made with the
// domain's turn; pointers in completion entries are compared, never followed.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens the endpoint and makes it ready to send and receive.
    pub(super) fn open(selected: Selected, choice: &Choice) -> Result<Self> {
        let Selected { offer, quirk } = selected;
        let provider = offer.description.provider.clone();
        if let Some(reserve) = quirk.pinned_reserve_bytes {
            check_memlock(&provider, 0, reserve)?;
        }
        let opened = match quirk.depth {
            None => Opened::open(offer, quirk, choice, 0)?,
            Some(depth) => Opened::open(offer, quirk, choice, depth).or_else(|e| {
                tracing::debug!("{provider} refuses a depth of {depth}: {e}");
                Opened::open(offer, quirk, choice, 0)
            })?,
        };
        let info = opened.domain.info();
        let (posted_sends, posted_receives) = depths(info, quirk);
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
            tag_bits: info.tag_bits(),
        };
        let name = opened.name()?;
        if quirk.over_ip {
            listener::bound_requests(&provider, &name);
        }
        let address = address::framed(&provider, &name);
        tracing::info!(provider, "endpoint opened");
        tracing::debug!(
            ?limits,
            address_bytes = address.len(),
            "limits of the endpoint"
        );
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
            pinned: Arc::default(),
            opened: ManuallyDrop::new(Arc::new(opened)),
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
        let code = {
            let _turn = self.opened.domain.turn();
            let context = self.opened.contexts.at(index);
            post(self.opened.endpoint.as_ptr(), &mut buffer, context)
        };
        match code {
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
            error::failure(call, code, self.opened.domain.info().label()),
        )
    }

    /// The peer's libfabric address, or the error for a peer that this link never gave out.
    fn target(
        &self,
        peer: Peer,
        buffer: Buffer,
    ) -> std::result::Result<(sys::fi_addr_t, Buffer), PostError> {
        match self.address_of(peer) {
            Some(target) => Ok((target, buffer)),
            None => Err(PostError::Failed(buffer, not_connected("post", peer))),
        }
    }

    fn address_of(&self, peer: Peer) -> Option<sys::fi_addr_t> {
        self.peers.get(peer.0 as usize).copied().flatten()
    }

    /// The provider gets the descriptor of the buffer's region, which only its own domain can make
    /// sense of.
    ///
    /// # Panics
    /// When the buffer is not of a pool that this link created.
    fn assert_ours(&self, buffer: &Buffer) {
        let (ours, theirs) = (self.opened.number(), buffer.link());
        assert!(
            theirs == Some(ours),
            "a buffer of another link's pool (link {theirs:#x?}) was posted on link {ours:#x}"
        );
    }

    /// Refuses what is longer than the provider's largest message.
    fn admit(&self, bytes: usize, buffer: Buffer) -> std::result::Result<Buffer, PostError> {
        self.assert_ours(&buffer);
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

    /// Refuses to register so much more where that is above what may be pinned.
    fn check_memlock(&self, bytes: usize) -> Result<()> {
        match self.opened.domain.quirk().pinned_reserve_bytes {
            Some(reserve) => check_memlock(&self.name, self.pinned_bytes() + bytes, reserve),
            None => Ok(()),
        }
    }

    fn pinned_bytes(&self) -> usize {
        *self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carries(&self, tag: Tag) -> bool {
        tag.0.checked_shr(self.limits.tag_bits).unwrap_or(0) == 0
    }

    fn no_room_to_send(&self) -> bool {
        self.sends + self.injected.len() >= self.limits.posted_sends
    }

    fn take(&mut self, context: *mut libc::c_void) -> Option<Operation> {
        let operation = self
            .opened
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
            kind,
            token,
            buffer,
            ..
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

    /// Takes the waiting error entries; a provider may have forgotten which operation one belongs
    /// to.
    fn take_errors(&mut self, completions: &mut Vec<Completion>) -> Result<()> {
        for _ in 0..BATCH {
            let entry = {
                let _turn = self.opened.domain.turn();
                self.opened.cq.read_error()?
            };
            let Some(entry) = entry else { break };
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
                self.opened.domain.info().label(),
                entry.provider_code
            );
            let error = Error::Fabric {
                call,
                code: entry.code,
                detail,
            };
            completions.push(match operation {
                Some(Operation {
                    kind: Kind::Receive,
                    token,
                    buffer,
                    ..
                }) if error::is_too_long(entry.code) || error::is_cut(entry.code) => {
                    Completion::Broken {
                        token,
                        buffer,
                        cut: error::is_cut(entry.code),
                        error,
                    }
                }
                Some(Operation {
                    token,
                    peer,
                    buffer,
                    ..
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

/// The error for a peer that this link never gave out, or that was disconnected.
fn not_connected(call: &'static str, peer: Peer) -> Error {
    let why = format!("peer {} is not connected", peer.0);
    error::failure(call, sys::FI_EINVAL as isize, why)
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

    fn operations_bytes(&self) -> usize {
        let Limits {
            posted_sends,
            posted_receives,
            ..
        } = self.limits;
        let count = posted_sends + posted_receives;
        let injected = posted_sends * size_of::<(Token, Buffer)>();
        Contexts::bytes(count) + Operations::bytes(count) + injected + size_of_val(&*self.entries)
    }

    fn connect(&mut self, address: &[u8]) -> Result<Peer> {
        let address = address::own_kind(address, &self.address, &self.name)?;
        let target = {
            let _turn = self.opened.domain.turn();
            self.opened.av.insert(address)?
        };
        let free = self.peers.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        self.peers[at] = Some(target);
        tracing::trace!(peer = at, "address of a peer inserted");
        Ok(Peer(at as u32))
    }

    fn disconnect(&mut self, peer: Peer) -> Result<bool> {
        let target = self.address_of(peer);
        let target = target.ok_or_else(|| not_connected("disconnect", peer))?;
        // What was copied may not have left before the next poll, and is not known by its peer.
        if !self.injected.is_empty() || self.operations.are_towards(peer) {
            return Ok(false);
        }
        let _turn = self.opened.domain.turn();
        self.opened.av.remove(target)?;
        self.peers[peer.0 as usize] = None;
        tracing::trace!(peer = peer.0, "address of a peer removed");
        Ok(true)
    }

    fn create_pool(&mut self, slot_bytes: usize, slots: usize, access: Access) -> Result<Pool> {
        let bytes = slot_bytes.checked_mul(slots).ok_or_else(|| {
            let why =
                format!("{slots} slots of {slot_bytes} bytes are more than there are addresses");
            Error::config("pool", why)
        })?;
        let mapping = Mapping::allocate(bytes)?;
        self.check_memlock(mapping.len())?;
        let first = NonNull::new(mapping.as_ptr()).expect("a mapping does not begin at address 0");
        let memory = NonNull::slice_from_raw_parts(first, mapping.len());
        // SAFETY: the pool keeps the mapping until after the registration is dropped.
        let region = unsafe { Region::register(&self.opened, memory, access, &self.pinned)? };
        tracing::debug!(
            target: "trihop_transport::memory",
            slots,
            slot_bytes,
            pages = ?mapping.page_kind(),
            "pool registered"
        );
        Ok(Pool::new(
            mapping,
            slot_bytes,
            slots,
            Some(Box::new(region)),
        ))
    }

    fn register(
        &mut self,
        part: &SegmentPart,
        access: Access,
    ) -> Result<std::sync::Arc<Registered>> {
        let memory = part.memory();
        // Pools are needed, and this is not: it leaves them as much as there is with it.
        self.check_memlock(self.pinned_bytes() + 2 * memory.len())?;
        // SAFETY: what is returned keeps the segment until after the registration is dropped.
        let region = unsafe { Region::register(&self.opened, memory, access, &self.pinned)? };
        let registered = Registered::new(Box::new(region), part.clone());
        Ok(std::sync::Arc::new(registered))
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
            self.carries(tag),
            "{tag:x?} is wider than {:?}",
            self.limits
        );
        let buffer = self.admit(bytes, buffer)?;
        let (target, buffer) = self.target(peer, buffer)?;
        if self.no_room_to_send() {
            return Err(PostError::WouldBlock(buffer));
        }
        // Behind others nobody would know when it has left: it is said to be sent at once.
        if bytes <= self.inject_bytes && self.sends == 0 {
            let turn = self.opened.domain.turn();
            // SAFETY: libfabric copies `bytes` bytes of the buffer, which has them (`admit`),
            // before it returns.
            let code = unsafe {
                sys::fi_tinject(
                    self.opened.endpoint.as_ptr(),
                    buffer.as_ptr().cast(),
                    bytes,
                    target,
                    tag.0,
                )
            };
            drop(turn);
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
            // SAFETY: the buffer has `bytes` bytes and stays with the operation until its
            // completion, as the context does.
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

    fn post_receive(
        &mut self,
        tag: Tag,
        buffer: Buffer,
        token: Token,
    ) -> std::result::Result<(), PostError> {
        self.assert_ours(&buffer);
        debug_assert!(
            self.carries(tag),
            "{tag:x?} is wider than {:?}",
            self.limits
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
            let (first, length, descriptor) =
                (buffer.as_mut_ptr(), buffer.len(), buffer.descriptor());
            // SAFETY: the buffer has `length` bytes and stays with the operation until its
            // completion, as the context does; nobody else can reach it meanwhile.
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
            // SAFETY: the buffer has `bytes` bytes and stays with the operation until its
            // completion, as the context does; the provider checks the remote address and key at
            // the target.
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
        let read = {
            let _turn = self.opened.domain.turn();
            self.opened.cq.read(&mut self.entries)?
        };
        match read {
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
        self.opened.cq.descriptor()
    }

    fn try_wait(&mut self) -> bool {
        let _turn = self.opened.domain.turn();
        self.injected.is_empty() && self.opened.cq.try_wait(self.opened.domain.fabric())
    }
}

impl Drop for Endpoint {
    /// A provider that cannot be closed stays open. Where regions are bound to the endpoint it
    /// outlives this value, so the provider must give the buffers back first.
    fn drop(&mut self) {
        if !self.opened.domain.quirk().closes {
            // What is posted stays posted, so its memory stays too.
            self.operations.leak();
            return;
        }
        let domain = Arc::clone(&self.opened.domain);
        let _turn = domain.turn();
        if domain.info().mr_mode() & sys::FI_MR_ENDPOINT == 0 {
            // SAFETY: it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.opened) };
            return;
        }
        for index in self.operations.in_flight() {
            // SAFETY: the context belongs to an operation in flight on this endpoint.
            unsafe { sys::fi_cancel(self.opened.endpoint.fid(), self.opened.contexts.at(index)) };
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
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.opened) };
    }
}
