//! Discovery: what libfabric offers (asked once per process), and which offer is taken.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use libfabric_sys as sys;

use super::adapters::{self, Adapters};
use super::choice::Choice;
use super::error;
use super::quirks::{self, Quirk};
use super::settings;
use crate::error::{Error, Result};
use crate::nics::Reported;
use crate::protocol::tags::TAG_BITS;

/// What a link needs from a provider.
pub(super) const CAPABILITIES: u64 =
    sys::FI_TAGGED | sys::FI_RMA | sys::FI_SEND | sys::FI_RECV | sys::FI_READ | sys::FI_REMOTE_READ;
/// Rules of calling that every call here follows.
pub(super) const MODES: u64 = sys::FI_CONTEXT | sys::FI_CONTEXT2 | sys::FI_ASYNC_IOV;
/// Rules of registration that `mr` follows.
pub(super) const MR_MODES: u64 = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT;
/// Behaviour that we ask libfabric for: that of the headers, whose structures we pass.
pub(super) const API_VERSION: u32 = sys::FI_VERSION(sys::FI_MAJOR_VERSION, sys::FI_MINOR_VERSION);

/// An owned copy of one of libfabric's descriptions.
#[derive(Debug)]
pub(super) struct Info {
    raw: *mut sys::fi_info,
    label: String,
}

impl Info {
    /// A copy that can be changed.
    pub(super) fn copy_of(offer: &Offer) -> Result<Self> {
        // SAFETY: the offer's fi_info is part of a list that is never freed.
        let raw = unsafe { sys::fi_dupinfo(offer.raw) };
        if raw.is_null() {
            return Err(error::failure(
                "fi_dupinfo",
                sys::FI_ENOMEM as isize,
                offer.description.label(),
            ));
        }
        Ok(Self {
            raw,
            label: offer.description.label(),
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::fi_info {
        self.raw
    }

    /// Provider, domain and source address, for error texts.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn mr_mode(&self) -> u64 {
        // SAFETY: `raw` is a complete fi_info of ours.
        unsafe { (*(*self.raw).domain_attr).mr_mode as u64 }
    }

    pub(super) fn mr_key_bytes(&self) -> usize {
        // SAFETY: `raw` is a complete fi_info of ours.
        unsafe { (*(*self.raw).domain_attr).mr_key_size }
    }

    pub(super) fn inject_bytes(&self) -> usize {
        // SAFETY: `raw` is a complete fi_info of ours.
        unsafe { (*(*self.raw).tx_attr).inject_size }
    }

    /// Bits of a tag that the provider leaves to us: those below the highest of its format.
    pub(super) fn tag_bits(&self) -> u32 {
        // SAFETY: `raw` is a complete fi_info of ours.
        let format = unsafe { (*(*self.raw).ep_attr).mem_tag_format };
        // A format of 47 bits is one of 48 that begins with a zero, as offers are counted.
        (u64::BITS - format.leading_zeros()).max(TAG_BITS)
    }

    pub(super) fn max_message_bytes(&self) -> usize {
        // SAFETY: `raw` is a complete fi_info of ours.
        unsafe { (*(*self.raw).ep_attr).max_msg_size }
    }

    /// Operations in flight: (sends and reads, receives).
    pub(super) fn depths(&self) -> (usize, usize) {
        // SAFETY: `raw` is a complete fi_info of ours.
        unsafe { ((*(*self.raw).tx_attr).size, (*(*self.raw).rx_attr).size) }
    }

    /// Asks for at least `depth` operations each way.
    pub(super) fn raise_depths(&mut self, depth: usize) {
        // SAFETY: `raw` is a complete fi_info of ours, and `&mut self` makes this the only access.
        unsafe {
            let (transmit, receive) = (&mut *(*self.raw).tx_attr, &mut *(*self.raw).rx_attr);
            transmit.size = transmit.size.max(depth);
            receive.size = receive.size.max(depth);
        }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: made by fi_dupinfo and owned by this value alone.
        unsafe { sys::fi_freeinfo(self.raw) };
    }
}

/// One offer of libfabric in our own words, so that ranking is plain arithmetic on plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) provider: String,
    pub(super) protocol: String,
    pub(super) endpoint: String,
    pub(super) fabric: String,
    pub(super) domain: String,
    pub(super) address_format: String,
    pub(super) source: Option<IpAddr>,
    pub(super) capabilities: u64,
    pub(super) mode: u64,
    pub(super) mr_mode: u64,
    pub(super) mr_key_bytes: usize,
    pub(super) tag_bits: u32,
    pub(super) inject_bytes: usize,
    pub(super) max_message_bytes: usize,
    pub(super) transmit_depth: usize,
    pub(super) receive_depth: usize,
    pub(super) adapter: Reported,
}

impl Description {
    /// Provider, domain and source address, for error texts.
    pub(super) fn label(&self) -> String {
        match self.source {
            Some(address) => format!("{} on {} {address}", self.provider, self.domain),
            None => format!("{} on {}", self.provider, self.domain),
        }
    }

    /// # Safety
    /// `raw` is a complete `fi_info` from libfabric.
    unsafe fn parse(raw: *const sys::fi_info) -> Self {
        // SAFETY: fi_getinfo allocates all attribute structures of each entry (caller's promise).
        let (info, endpoint, domain, fabric, tx, rx) = unsafe {
            let info = &*raw;
            (
                info,
                &*info.ep_attr,
                &*info.domain_attr,
                &*info.fabric_attr,
                &*info.tx_attr,
                &*info.rx_attr,
            )
        };
        let spelled = |value: u32, kind| name_of((&raw const value).cast(), kind);
        Self {
            // SAFETY: names are null or NUL-terminated.
            provider: unsafe { string(fabric.prov_name) },
            protocol: spelled(endpoint.protocol, sys::FI_TYPE_PROTOCOL).replace("FI_PROTO_", ""),
            endpoint: spelled(endpoint.type_, sys::FI_TYPE_EP_TYPE).replace("FI_EP_", ""),
            // SAFETY: as above.
            fabric: unsafe { string(fabric.name) },
            // SAFETY: as above.
            domain: unsafe { string(domain.name) },
            address_format: spelled(info.addr_format, sys::FI_TYPE_ADDR_FORMAT).replace("FI_", ""),
            // SAFETY: libfabric sets the address together with its length.
            source: unsafe { ip_address(info.src_addr.cast(), info.src_addrlen) },
            capabilities: info.caps,
            mode: info.mode,
            mr_mode: domain.mr_mode as u64,
            mr_key_bytes: domain.mr_key_size,
            // The format alternates ones and zeroes per field; only its length says how many bits
            // there are.
            tag_bits: match 64 - endpoint.mem_tag_format.leading_zeros() {
                bits @ 1.. => bits + bits % 2,
                0 => 0,
            },
            inject_bytes: tx.inject_size,
            max_message_bytes: endpoint.max_msg_size,
            transmit_depth: tx.size,
            receive_depth: rx.size,
            // SAFETY: the entry's nic is null or complete, as the entry is.
            adapter: unsafe { adapters::reported(info.nic) },
        }
    }

    /// Whether a user means this one by the name of a domain or of a network, or by an address.
    pub(super) fn is_at(&self, name: &str) -> bool {
        let device = self.adapter.device.as_deref();
        let address = || self.source.map(|a| a.to_string());
        name == self.domain
            || name == self.fabric
            || Some(name) == device
            || Some(name) == address().as_deref()
    }

    fn is_native_tcp(&self) -> bool {
        self.protocol == "XNET" && (self.provider == "tcp" || self.provider == "net")
    }
}

/// One entry of libfabric's list, and what it says.
#[derive(Debug)]
pub(super) struct Offer {
    raw: *const sys::fi_info,
    pub(super) description: Description,
}

// SAFETY: the list behind `raw` is never changed or freed after discovery; it is only read and
// copied.
unsafe impl Send for Offer {}
// SAFETY: as above.
unsafe impl Sync for Offer {}

/// What an offer is worth to a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rank {
    Score(i32),
    Rejected(String),
}

/// Takes the best offer.
pub(super) struct Selected {
    pub(super) offer: &'static Offer,
    pub(super) quirk: &'static Quirk,
}

/// Chooses by quirk score, and the closest adapter among equals.
pub(super) fn select(choice: &Choice) -> Result<Selected> {
    let offers = usable_offers(choice)?;
    let descriptions: Vec<&Description> = offers.iter().map(|o| &o.description).collect();
    let adapters = Adapters::of(&descriptions, &rank(&descriptions, choice), choice);
    let Some(taken) = adapters.own(choice) else {
        return Err(Error::NoProvider {
            why: super::survey::why_none(choice)?,
        });
    };
    let offer = &offers[taken];
    let quirk = quirks::lookup(&offer.description.provider, &offer.description.protocol);
    Ok(Selected { offer, quirk })
}

/// Index of the highest score; the first of equals.
pub(super) fn best_of(ranks: &[Rank]) -> Option<usize> {
    let scores = ranks.iter().enumerate().filter_map(|(i, r)| match r {
        Rank::Score(score) => Some((*score, std::cmp::Reverse(i))),
        Rank::Rejected(_) => None,
    });
    scores.max().map(|(_, std::cmp::Reverse(i))| i)
}

/// Ranks offers that meet the technical needs.
pub(super) fn rank(offers: &[&Description], choice: &Choice) -> Vec<Rank> {
    let native_tcp = offers.iter().any(|o| o.is_native_tcp());
    offers
        .iter()
        .map(|offer| rank_one(offer, choice, native_tcp))
        .collect()
}

fn rank_one(offer: &Description, choice: &Choice, native_tcp: bool) -> Rank {
    let quirk = quirks::lookup(&offer.provider, &offer.protocol);
    if !quirk.usable {
        return Rank::Rejected(quirk.why.to_owned());
    }
    match &choice.provider {
        Some(wanted) if !answers_to(offer, wanted, native_tcp) => {
            return Rank::Rejected(format!("another provider was asked for ({wanted})"));
        }
        None if !quirk.automatic => return Rank::Rejected(quirk.why.to_owned()),
        _ => {}
    }
    if offer.tag_bits < TAG_BITS {
        return Rank::Rejected(format!(
            "tags of {} bits, {TAG_BITS} needed",
            offer.tag_bits
        ));
    }
    let mut score = quirk.score;
    if quirk.over_ip && choice.loopback_only {
        match offer.source {
            Some(IpAddr::V4(address)) if address.is_loopback() => {}
            Some(address) if address.is_loopback() => score -= 1,
            _ => {
                return Rank::Rejected(
                    "not a loopback address, which simulated nodes stay on".to_owned(),
                );
            }
        }
        return Rank::Score(score);
    }
    let wanted = &choice.interfaces;
    if !wanted.is_empty() && !wanted.iter().any(|name| offer.is_at(name)) {
        let wanted = wanted.join(", ");
        return Rank::Rejected(format!("another interface was asked for ({wanted})"));
    }
    if quirk.over_ip {
        score -= match offer.source {
            Some(address) if address.is_loopback() => 2000,
            Some(IpAddr::V6(address)) if address.is_unicast_link_local() => 1000,
            Some(IpAddr::V6(_)) => 1,
            _ => 0,
        };
    }
    Rank::Score(score)
}

/// Whether an offer is what a user means by `wanted`.
fn answers_to(offer: &Description, wanted: &str, native_tcp: bool) -> bool {
    let wanted = wanted.to_ascii_lowercase();
    match wanted.as_str() {
        "tcp" | "net" if native_tcp => offer.is_native_tcp(),
        "tcp" | "rxm" => offer.provider == "tcp;ofi_rxm",
        "verbs" => offer.provider == "verbs;ofi_rxm",
        "udp" => offer.provider == "udp;ofi_rxd",
        _ => offer.provider.to_ascii_lowercase() == wanted,
    }
}

/// What libfabric offers under our needs, asked once per process.
pub(super) fn usable_offers(choice: &Choice) -> Result<&'static [Offer]> {
    load()?;
    static OFFERS: OnceLock<Result<Vec<Offer>, isize>> = OnceLock::new();
    let found = OFFERS.get_or_init(|| {
        settings::tell(choice.universe);
        ask(true)
    });
    found.as_deref().map_err(|code| {
        error::failure(
            "fi_getinfo",
            *code,
            "RDM endpoint with tagged messages and reads",
        )
    })
}

/// Opens libfabric, if it is not.
fn load() -> Result<()> {
    sys::load().map_err(|why| Error::NoProvider {
        why: why.to_owned(),
    })
}

/// Everything that libfabric has, whether it meets our needs or not. Asked each time: only reports
/// want it.
pub(super) fn all_offers() -> Result<Vec<Offer>> {
    load()?;
    ask(false).map_err(|code| error::failure("fi_getinfo", code, "no needs given"))
}

/// Asks fi_getinfo, with our needs or without any.
fn ask(needs: bool) -> std::result::Result<Vec<Offer>, isize> {
    // SAFETY: fi_allocinfo takes nothing.
    let hints = unsafe { sys::fi_allocinfo() };
    if hints.is_null() {
        return Err(-(sys::FI_ENOMEM as isize));
    }
    // SAFETY: `hints` is a fresh fi_info with all its attribute structures.
    unsafe {
        if needs {
            fill_needs(hints)
        } else {
            fill_anything(hints)
        }
    };
    let mut list = std::ptr::null_mut();
    // SAFETY: `hints` is valid for the call; node and service may be null.
    let code = unsafe {
        sys::fi_getinfo(
            API_VERSION,
            std::ptr::null(),
            std::ptr::null(),
            0,
            hints,
            &mut list,
        )
    };
    // SAFETY: allocated above and not used afterwards.
    unsafe { sys::fi_freeinfo(hints) };
    match code {
        0 => {}
        code if code == -sys::FI_ENODATA => return Ok(Vec::new()),
        code => return Err(code as isize),
    }
    let mut offers = Vec::new();
    let mut next: *const sys::fi_info = list;
    while !next.is_null() {
        // SAFETY: `next` is an entry of the list, which is never freed.
        offers.push(unsafe {
            Offer {
                raw: next,
                description: Description::parse(next),
            }
        });
        // SAFETY: as above.
        next = unsafe { (*next).next };
    }
    Ok(offers)
}

/// # Safety
/// `hints` is a fresh `fi_info` from `fi_allocinfo`.
unsafe fn fill_needs(hints: *mut sys::fi_info) {
    // SAFETY: caller's promise; fi_allocinfo allocated the attribute structures.
    unsafe {
        (*hints).caps = CAPABILITIES;
        (*hints).mode = MODES;
        (*(*hints).ep_attr).type_ = sys::FI_EP_RDM;
        (*(*hints).tx_attr).op_flags = sys::FI_COMPLETION;
        (*(*hints).rx_attr).op_flags = sys::FI_COMPLETION;
        (*(*hints).domain_attr).mr_mode = MR_MODES as i32;
        (*(*hints).domain_attr).threading = sys::FI_THREAD_DOMAIN;
        (*(*hints).domain_attr).resource_mgmt = sys::FI_RM_ENABLED;
        (*(*hints).domain_attr).av_type = sys::FI_AV_TABLE;
        sys::fi_shim_set_progress(hints, sys::FI_PROGRESS_MANUAL, sys::FI_PROGRESS_MANUAL);
    }
}

/// # Safety
/// `hints` is a fresh `fi_info` from `fi_allocinfo`.
unsafe fn fill_anything(hints: *mut sys::fi_info) {
    // SAFETY: caller's promise; fi_allocinfo allocated the attribute structures.
    unsafe {
        (*hints).mode = !0;
        (*(*hints).domain_attr).mode = !0;
        // All but the two old names for whole sets of rules, FI_MR_BASIC and FI_MR_SCALABLE.
        (*(*hints).domain_attr).mr_mode = !0b11;
    }
}

/// # Safety
/// `text` is null or NUL-terminated.
pub(super) unsafe fn string(text: *const libc::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: caller's promise.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// libfabric's spelling of a value of one of its enumerations or bit sets.
pub(super) fn name_of(value: *const libc::c_void, kind: sys::fi_type) -> String {
    let mut text = [0 as libc::c_char; 1024];
    // SAFETY: `value` points to a value of the kind, and the text is cut at the buffer's length
    // with its NUL.
    let written = unsafe { sys::fi_tostr_r(text.as_mut_ptr(), text.len(), value, kind) };
    if written.is_null() {
        return String::new();
    }
    // SAFETY: fi_tostr_r wrote a NUL-terminated string into `text`.
    unsafe { string(text.as_ptr()) }.trim().to_owned()
}

/// The names of a bit set, without libfabric's prefix.
pub(super) fn names_of(bits: u64, kind: sys::fi_type, prefix: &str) -> String {
    let mut names = String::new();
    // Kinds of 32 bits read the low half, which is first on the little-endian machines that this
    // crate supports.
    for name in name_of((&raw const bits).cast(), kind).split(',') {
        let name = name.trim().trim_matches(['[', ']']).trim();
        if !name.is_empty() {
            let gap = if names.is_empty() { "" } else { " " };
            let _ = write!(names, "{gap}{}", name.strip_prefix(prefix).unwrap_or(name));
        }
    }
    names
}

/// # Safety
/// `address` is null or points to `length` bytes that begin with a `sockaddr` family where it is an
/// IP address.
unsafe fn ip_address(address: *const u8, length: usize) -> Option<IpAddr> {
    if address.is_null() || length < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: at least the 16 bytes of a sockaddr_in are there (checked above, caller's promise).
    let (family, v4) = unsafe {
        let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
        (i32::from(v4.sin_family), v4)
    };
    if family == libc::AF_INET {
        return Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into());
    }
    if family != libc::AF_INET6 || length < size_of::<libc::sockaddr_in6>() {
        return None;
    }
    // SAFETY: the bytes of a sockaddr_in6 are there (checked above).
    let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
    Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
}

#[cfg(test)]
#[path = "info_tests.rs"]
pub(in crate::fabric) mod tests;
