//! Endpoint addresses as peers exchange them: bytes from outside until they are known to be of our
//! kind.

use libfabric_sys as sys;

use crate::error::{Error, Result};

/// An address as peers exchange it: the provider's name behind its length, then the provider's own
/// bytes.
pub(super) fn framed(provider: &str, name: &[u8]) -> Vec<u8> {
    let mut framed = vec![provider.len() as u8];
    framed.extend_from_slice(provider.as_bytes());
    framed.extend_from_slice(name);
    framed
}

/// The provider's bytes of a peer's address, once they are known to be of our provider, length and
/// kind.
pub(super) fn own_kind<'a>(address: &'a [u8], ours: &[u8], provider: &str) -> Result<&'a [u8]> {
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
    // Text addresses (shm) vary in length and end with NUL; all others are structures of one
    // length.
    let ours = &ours[1 + provider.len()..];
    let text = |bytes: &[u8]| {
        bytes.last() == Some(&0) && bytes[..bytes.len() - 1].iter().all(u8::is_ascii_graphic)
    };
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
