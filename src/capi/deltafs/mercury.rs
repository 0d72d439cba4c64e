//! What is left of mercury: classes and contexts that remember what they were made with, and
//! addresses that can be printed and compared.
//!
//! Handles are counted references (`Arc::into_raw`): what is still referred to is busy and is not
//! ended.

use std::ffi::{CStr, CString, c_char, c_void};
use std::io::Write;
use std::mem::ManuallyDrop;

use super::hg_return::{HG_BUSY, HG_INVALID_ARG, HG_SUCCESS, hg_return_t, returning};
use crate::capi::argument;
use crate::capi::status::{Failure, guard_or, trihop_status_t};
use crate::log;
use crate::transport::sync::{Arc, AtomicU64, Ordering};

/// A class: the text of `HG_Init`, taken apart.
pub struct hg_class {
    name: CString,
    protocol: CString,
    listening: bool,
    address: Arc<hg_addr>,
}

/// A context of a class.
pub struct hg_context {
    pub(super) class: Arc<hg_class>,
}

/// An address: what it prints as.
pub struct hg_addr {
    text: CString,
}

impl hg_addr {
    pub(super) fn new(text: String) -> Arc<Self> {
        Arc::new(Self {
            text: text_of(text),
        })
    }

    pub(super) fn text(&self) -> &CStr {
        &self.text
    }
}

impl hg_class {
    /// A class as `HG_Init` makes it.
    pub(super) fn new(info: &str, listening: bool) -> Result<Arc<Self>, Failure> {
        let whole = info.split("://").next().unwrap_or(info);
        if whole.is_empty() {
            return Err(Failure::argument(
                "the info string names no protocol; try `ofi+tcp`",
            ));
        }
        let (name, protocol) = whole.split_once('+').unwrap_or((whole, whole));
        Ok(Arc::new(Self {
            name: text_of(name.to_owned()),
            protocol: text_of(protocol.to_owned()),
            listening,
            address: Self::own_address(whole),
        }))
    }

    /// An address of this process, another one each time.
    pub(super) fn own_address(protocol: &str) -> Arc<hg_addr> {
        // Numbers them; pairs with nothing.
        static ADDRESSES: AtomicU64 = AtomicU64::new(0);
        let host = rustix::system::uname();
        hg_addr::new(format!(
            "{protocol}://{}/{}/{}",
            host.nodename().to_string_lossy(),
            std::process::id(),
            ADDRESSES.fetch_add(1, Ordering::Relaxed)
        ))
    }

    /// The address of this process under the class, which only one that listens has.
    pub fn listening_address(&self) -> Option<&CStr> {
        self.listening.then(|| self.address.text())
    }
}

/// A text for C. What comes from C or a number has no NUL; a host name that had one would end
/// there.
fn text_of(text: String) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

/// A further reference to the object behind a handle.
///
/// # Safety
/// The handle is null, or came from [`Arc::into_raw`] and its reference was not given up.
pub(super) unsafe fn shared<T>(handle: *const T, name: &str) -> Result<Arc<T>, Failure> {
    // SAFETY: as the caller promises.
    unsafe { argument::reference(handle, name)? };
    // SAFETY: as the caller promises; `ManuallyDrop` leaves the handle its own reference.
    let own = ManuallyDrop::new(unsafe { Arc::from_raw(handle) });
    Ok(Arc::clone(&own))
}

/// Ends the object behind a handle, unless something else refers to it.
///
/// # Safety
/// As `shared`; the handle is gone afterwards unless the result is `HG_BUSY`.
unsafe fn end<T>(handle: *const T) -> hg_return_t {
    if handle.is_null() {
        return HG_INVALID_ARG;
    }
    // SAFETY: as the caller promises.
    let own = unsafe { Arc::from_raw(handle) };
    if Arc::strong_count(&own) > 1 {
        let _ = Arc::into_raw(own);
        return HG_BUSY;
    }
    HG_SUCCESS
}

/// A pointer, or null with the reason on stderr.
pub(super) fn pointer_or_said<T>(
    what: &str,
    make: impl FnOnce() -> Result<*mut T, Failure>,
) -> *mut T {
    let said = || make().inspect_err(|failure| say(what, &failure.text));
    guard_or(said).unwrap_or(std::ptr::null_mut())
}

/// One line about a call that cannot return why it failed: in the logs where there are any, else on
/// stderr.
pub(super) fn say(what: &str, why: &str) {
    if tracing::dispatcher::has_been_set() && !log::is_off() {
        tracing::error!("{what}: {why}");
    } else {
        let line = format!("trihop: {what}: {why}\n");
        // Where standard error is closed, nobody is there to be told.
        let _ = std::io::stderr().write_all(crate::log::printable(&line).as_bytes());
    }
}

/// `HG_Init`.
///
/// # Safety
/// `info` is null or a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_init(info: *const c_char, listen: u8) -> *mut hg_class {
    pointer_or_said("HG_Init", || {
        // SAFETY: as the caller promises.
        let info = unsafe { argument::text(info, "info_string")? };
        Ok(Arc::into_raw(hg_class::new(info, listen != 0)?).cast_mut())
    })
}

/// `HG_Init_opt`; the hints are of a transport that we do not have.
///
/// # Safety
/// As [`trihop_mercury_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_init_opt(
    info: *const c_char,
    listen: u8,
    _hints: *const c_void,
) -> *mut hg_class {
    // SAFETY: as the caller promises.
    unsafe { trihop_mercury_init(info, listen) }
}

/// `HG_Finalize`.
///
/// # Safety
/// The class is null or one of [`trihop_mercury_init`] that was not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_finalize(class: *mut hg_class) -> hg_return_t {
    // SAFETY: as the caller promises.
    unsafe { end(class) }
}

/// `HG_Cleanup`: what trihop shares has no name, so that nothing is left of a process that died.
#[unsafe(no_mangle)]
pub extern "C" fn trihop_mercury_cleanup() {}

/// `HG_Class_get_name`.
///
/// # Safety
/// As [`trihop_mercury_finalize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_class_get_name(class: *const hg_class) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { class.as_ref() }.map_or(std::ptr::null(), |class| class.name.as_ptr())
}

/// `HG_Class_get_protocol`.
///
/// # Safety
/// As [`trihop_mercury_finalize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_class_get_protocol(
    class: *const hg_class,
) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { class.as_ref() }.map_or(std::ptr::null(), |class| class.protocol.as_ptr())
}

/// `HG_Class_is_listening`.
///
/// # Safety
/// As [`trihop_mercury_finalize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_class_is_listening(class: *const hg_class) -> u8 {
    // SAFETY: as the caller promises.
    unsafe { class.as_ref() }
        .is_some_and(|class| class.listening)
        .into()
}

/// `HG_Context_create`.
///
/// # Safety
/// As [`trihop_mercury_finalize`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_context_create(class: *mut hg_class) -> *mut hg_context {
    pointer_or_said("HG_Context_create", || {
        // SAFETY: as the caller promises.
        let class = unsafe { shared(class, "hg_class")? };
        Ok(Arc::into_raw(Arc::new(hg_context { class })).cast_mut())
    })
}

/// `HG_Context_destroy`.
///
/// # Safety
/// The context is null or one of [`trihop_mercury_context_create`] that was not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_context_destroy(context: *mut hg_context) -> hg_return_t {
    // SAFETY: as the caller promises.
    unsafe { end(context) }
}

/// `HG_Context_get_class`.
///
/// # Safety
/// As [`trihop_mercury_context_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_context_get_class(
    context: *const hg_context,
) -> *mut hg_class {
    // SAFETY: as the caller promises.
    unsafe { context.as_ref() }.map_or(std::ptr::null_mut(), |context| {
        Arc::as_ptr(&context.class).cast_mut()
    })
}

/// `HG_Addr_self`.
///
/// # Safety
/// As [`trihop_mercury_finalize`]; `addr` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_addr_self(
    class: *mut hg_class,
    addr: *mut *mut hg_addr,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let (class, addr) = unsafe {
            (
                argument::reference(class, "hg_class")?,
                argument::place(addr, "addr")?,
            )
        };
        *addr = Arc::into_raw(Arc::clone(&class.address)).cast_mut();
        Ok(())
    })
}

/// `HG_Addr_dup`.
///
/// # Safety
/// `addr` is null or an address that was not freed, `dup` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_addr_dup(
    _class: *mut hg_class,
    addr: *mut hg_addr,
    dup: *mut *mut hg_addr,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let (addr, dup) = unsafe { (shared(addr, "addr")?, argument::place(dup, "dup")?) };
        *dup = Arc::into_raw(addr).cast_mut();
        Ok(())
    })
}

/// `HG_Addr_free`.
///
/// # Safety
/// `addr` is null or a reference of [`trihop_mercury_addr_self`] or [`trihop_mercury_addr_dup`]
/// that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_addr_free(
    _class: *mut hg_class,
    addr: *mut hg_addr,
) -> hg_return_t {
    if !addr.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Arc::from_raw(addr.cast_const()) });
    }
    HG_SUCCESS
}

/// `HG_Addr_cmp`.
///
/// # Safety
/// Each address is null or one that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_addr_cmp(
    _class: *mut hg_class,
    one: *mut hg_addr,
    other: *mut hg_addr,
) -> u8 {
    // SAFETY: as the caller promises.
    let (one, other) = unsafe { (one.as_ref(), other.as_ref()) };
    (one.map(hg_addr::text) == other.map(hg_addr::text)).into()
}

/// `HG_Addr_to_string`.
///
/// # Safety
/// `addr` is null or an address that was not freed, `size` is null or a place for a number, and
/// `buffer` is null or has `*size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_mercury_addr_to_string(
    _class: *mut hg_class,
    buffer: *mut c_char,
    size: *mut u64,
    addr: *mut hg_addr,
) -> hg_return_t {
    returning(|| {
        // SAFETY: as the caller promises.
        let (addr, size) = unsafe {
            (
                argument::reference(addr, "addr")?,
                argument::place(size, "buf_size")?,
            )
        };
        let text = addr.text().to_bytes_with_nul();
        let room = std::mem::replace(size, text.len() as u64);
        if buffer.is_null() {
            return Ok(());
        }
        if room < text.len() as u64 {
            let why = format!("{} bytes do not fit into {room}", text.len());
            return Err(Failure::new(
                trihop_status_t::TRIHOP_ERR_BUFFER_TOO_SMALL,
                why,
            ));
        }
        // SAFETY: as the caller promises, `room` bytes can be written there, and they suffice.
        unsafe { argument::slice_mut(buffer.cast::<u8>(), text.len(), "buf")? }
            .copy_from_slice(text);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> String {
        // SAFETY: what the class gave lives as long as the class.
        unsafe { CStr::from_ptr(pointer) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn a_class_remembers_what_it_was_made_with() {
        // SAFETY: the handles are used as the functions ask.
        unsafe {
            let class = trihop_mercury_init(c"ofi+tcp://10.92.1.2:0".as_ptr(), 1);
            assert_eq!(text(trihop_mercury_class_get_name(class)), "ofi");
            assert_eq!(text(trihop_mercury_class_get_protocol(class)), "tcp");
            assert_eq!(trihop_mercury_class_is_listening(class), 1);
            assert_eq!(trihop_mercury_finalize(class), HG_SUCCESS);
            let class = trihop_mercury_init_opt(c"self".as_ptr(), 0, std::ptr::null());
            assert_eq!(text(trihop_mercury_class_get_name(class)), "self");
            assert_eq!(trihop_mercury_class_is_listening(class), 0);
            assert!((*class).listening_address().is_none());
            assert_eq!(trihop_mercury_finalize(class), HG_SUCCESS);
            assert!(trihop_mercury_init(std::ptr::null(), 1).is_null());
            assert!(trihop_mercury_init(c"".as_ptr(), 1).is_null());
            assert_eq!(
                trihop_mercury_finalize(std::ptr::null_mut()),
                HG_INVALID_ARG
            );
        }
    }

    #[test]
    fn what_is_in_use_is_busy() {
        // SAFETY: the handles are used as the functions ask.
        unsafe {
            let class = trihop_mercury_init(c"na+sm".as_ptr(), 1);
            let context = trihop_mercury_context_create(class);
            assert_eq!(trihop_mercury_context_get_class(context), class);
            assert_eq!(trihop_mercury_finalize(class), HG_BUSY);
            assert_eq!(trihop_mercury_context_destroy(context), HG_SUCCESS);
            assert_eq!(trihop_mercury_finalize(class), HG_SUCCESS);
        }
    }

    #[test]
    fn addresses_are_printed_compared_and_counted() {
        // SAFETY: the handles are used as the functions ask.
        unsafe {
            let (one, two) = (
                trihop_mercury_init(c"na+sm".as_ptr(), 1),
                trihop_mercury_init(c"na+sm".as_ptr(), 1),
            );
            let (mut mine, mut other, mut again) = (
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            );
            assert_eq!(trihop_mercury_addr_self(one, &mut mine), HG_SUCCESS);
            assert_eq!(trihop_mercury_addr_self(two, &mut other), HG_SUCCESS);
            assert_eq!(trihop_mercury_addr_dup(one, mine, &mut again), HG_SUCCESS);
            assert_eq!(trihop_mercury_addr_cmp(one, mine, other), 0, "two classes");
            assert_eq!(trihop_mercury_addr_cmp(one, mine, again), 1);
            assert_eq!(trihop_mercury_addr_free(one, mine), HG_SUCCESS);
            let mut size = 3;
            let mut room = [0u8; 256];
            let buffer = room.as_mut_ptr().cast();
            let too_little = trihop_mercury_addr_to_string(one, buffer, &mut size, again);
            assert_eq!(
                text(super::super::hg_return::trihop_mercury_error_to_string(
                    too_little
                )),
                "HG_OVERFLOW"
            );
            assert_eq!(
                trihop_mercury_addr_to_string(one, buffer, &mut size, again),
                HG_SUCCESS
            );
            let said = text(buffer);
            assert!(
                said.starts_with("na+sm://") && said.len() as u64 + 1 == size,
                "{said}"
            );
            assert_eq!(trihop_mercury_addr_free(one, again), HG_SUCCESS);
            assert_eq!(trihop_mercury_addr_free(two, other), HG_SUCCESS);
            assert_eq!(trihop_mercury_finalize(one), HG_SUCCESS);
            assert_eq!(trihop_mercury_finalize(two), HG_SUCCESS);
        }
    }
}
