//! What providers differ in besides their limits.

use std::os::fd::OwnedFd;

use libfabric_sys as sys;
use rustix::event::{EventfdFlags, eventfd};

use crate::fabric::quirks::Quirk;
use crate::sync::Arc;

/// Addresses of an endpoint's memory begin at this, times its number and one more.
const ADDRESS_SPACE: u64 = 1 << 40;
/// An odd number: keys of a provider are multiples of it, so each is another one.
const KEY_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// `KEY_STEP` times it is 1, modulo 2^64.
const KEY_STEP_INVERSE: u64 = inverse(KEY_STEP);

/// Rules of a provider that show at a link. By default: no short sends, addresses from 0, keys in
/// their order, no descriptor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Longest message that is copied at once, in bytes: its buffer is free before it has left. 0:
    /// none is.
    pub inject_bytes: usize,
    /// Peers name memory by its address in its process, else by its offset in the registration.
    pub virtual_addresses: bool,
    /// The provider picks the keys, and they have 64 bits.
    pub provider_keys: bool,
    /// Links have a descriptor to wait on. It costs one for each.
    pub wait_descriptor: bool,
}

impl Rules {
    pub(super) fn of_provider(provider: &Quirk) -> Self {
        Self {
            inject_bytes: provider.inject_bytes,
            virtual_addresses: provider.mr_mode & sys::FI_MR_VIRT_ADDR != 0,
            provider_keys: provider.mr_mode & sys::FI_MR_PROV_KEY != 0,
            wait_descriptor: provider.wait_descriptor,
        }
    }

    /// The address that the memory of an endpoint begins at.
    pub(super) fn base(&self, endpoint: u32) -> u64 {
        match self.virtual_addresses {
            true => ADDRESS_SPACE * (u64::from(endpoint) + 1),
            false => 0,
        }
    }

    /// The key of registration number `index`.
    pub(super) fn key(&self, index: usize) -> u64 {
        match self.provider_keys {
            true => (index as u64 + 1).wrapping_mul(KEY_STEP),
            false => index as u64,
        }
    }

    /// The registration with this key, which a peer may have made up.
    pub(super) fn index_of(&self, key: u64) -> Option<usize> {
        let index = match self.provider_keys {
            true => key.wrapping_mul(KEY_STEP_INVERSE).checked_sub(1)?,
            false => key,
        };
        usize::try_from(index).ok()
    }

    /// A new descriptor for an endpoint, where there are any.
    pub(super) fn bell(&self) -> Option<Arc<OwnedFd>> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let bell = self.wait_descriptor.then(|| eventfd(0, flags));
        bell.map(|bell| Arc::new(bell.expect("a descriptor for each simulated endpoint")))
    }
}

/// The inverse of an odd number modulo 2^64, by Newton's iteration.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut step = 0;
    while step < 6 {
        x = x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x)));
        step += 1;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_back_to_their_registration_and_others_nowhere_near() {
        for provider_keys in [false, true] {
            let rules = Rules {
                provider_keys,
                ..Rules::default()
            };
            for index in 0..100 {
                let key = rules.key(index);
                assert_eq!(rules.index_of(key), Some(index));
                assert_eq!(key > 100, provider_keys);
            }
            assert!(rules.index_of(u64::MAX).is_none_or(|index| index > 1 << 32));
        }
    }
}
