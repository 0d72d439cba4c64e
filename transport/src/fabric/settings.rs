//! Variables of libfabric that are set for a provider, unless the user has set them.

use std::ffi::CString;

use super::quirks::TABLE;

/// A variable of the environment that libfabric reads when it is first asked.
///
/// # Example
/// ```
/// use trihop_transport::fabric::settings;
/// let mut variables = settings::all().into_iter().map(|(setting, _)| setting.variable);
/// assert!(variables.any(|name| name == "FI_UNIVERSE_SIZE"));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name.
    pub variable: &'static str,
    /// Its value in a process with so many peers, where they are known; none leaves it as it is.
    value: fn(peers: Option<usize>) -> Option<String>,
    /// The value in words.
    pub value_text: &'static str,
    /// Why it is set.
    pub why: &'static str,
}

impl PartialEq for Setting {
    fn eq(&self, other: &Self) -> bool {
        self.variable == other.variable
    }
}

impl Eq for Setting {}

/// With more peers a receive context for all of them takes less memory than one each.
const SHARED_FROM_PEERS: usize = 4096 / 128;

/// rxm multiplies the depth of its completion queue by it, and its default of 256 is above what
/// some devices can do.
pub(super) const UNIVERSE: Setting = Setting {
    variable: "FI_UNIVERSE_SIZE",
    value: |peers| Some(peers?.max(1).to_string()),
    value_text: "the links of a rank, at least 16",
    why: "tables and queues are sized by it",
};

/// 4,096 buffers in the place of 128 for each peer, and some 5 % more latency over TCP.
pub(super) const SHARED_RECEIVES: Setting = Setting {
    variable: "FI_OFI_RXM_USE_SRX",
    value: |peers| (peers? > SHARED_FROM_PEERS).then(|| "1".to_owned()),
    value_text: "1 above 32 links",
    why: "one receive context for all connections takes less memory than one each",
};

/// With its cache, which is the default, all of a process's memory is open to whoever has the VNI,
/// as soon as some of it is registered for others.
pub(super) const OWN_KEYS: Setting = Setting {
    variable: "FI_CXI_PROV_KEY_CACHE",
    value: |_| Some("0".to_owned()),
    value_text: "0",
    why: "each region is open to others for what it is registered for, and no other memory is",
};

/// By default the card alone matches, and ends in flow control where its entries are used up.
pub(super) const MATCHING: Setting = Setting {
    variable: "FI_CXI_RX_MATCH_MODE",
    value: |_| Some("hybrid".to_owned()),
    value_text: "hybrid",
    why: "receives of all ranks of a card together may be more than it has entries",
};

/// Ranks of one node have rings.
pub(super) const NO_SHARED_MEMORY: Setting = Setting {
    variable: "FI_EFA_ENABLE_SHM_TRANSFER",
    value: |_| Some("0".to_owned()),
    value_text: "0",
    why: "ranks of one node have rings between them",
};

/// All settings of the table of providers, each once: with the providers that have it.
pub fn all() -> Vec<(Setting, Vec<&'static str>)> {
    let mut all: Vec<(Setting, Vec<&'static str>)> = Vec::new();
    for row in TABLE.iter().filter(|row| row.automatic) {
        for setting in row.settings {
            match all.iter_mut().find(|(known, _)| known == setting) {
                Some((_, providers)) => providers.push(row.provider),
                None => all.push((*setting, vec![row.provider])),
            }
        }
    }
    all
}

/// Sets what the user has not set, for `peers` peers where that is known.
///
/// This is the one place that changes the process's environment: libfabric reads it inside the
/// first fi_getinfo, and has no other way to be told. It runs once, before that call; start other
/// threads that read the environment later.
pub(super) fn tell(peers: Option<usize>) {
    for (setting, providers) in all() {
        // Which provider it will be is not known yet, and older ones of Slingshot crash by this.
        if setting == UNIVERSE && has_slingshot() {
            continue;
        }
        let Some(value) = (setting.value)(peers) else {
            continue;
        };
        let variable = setting.variable;
        if let Some(theirs) = std::env::var_os(variable) {
            tracing::debug!(variable, ?theirs, ours = value, "setting of the user kept");
            continue;
        }
        tracing::debug!(variable, value, ?providers, "variable set for libfabric");
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let (name, value) = (text(variable), text(&value));
        // SAFETY: both are NUL-terminated and copied. Nobody changes the environment meanwhile: we
        // do here alone, once, and programs are told to start threads that do so, or read it,
        // later.
        unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
    }
}

/// Whether the machine has adapters of that network.
fn has_slingshot() -> bool {
    std::fs::read_dir("/sys/class/cxi").is_ok_and(|mut devices| devices.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_go_by_the_number_of_peers_where_it_is_known() {
        let value = |setting: Setting, peers| (setting.value)(peers);
        assert_eq!(value(UNIVERSE, Some(50)).as_deref(), Some("50"));
        assert_eq!(value(UNIVERSE, Some(0)).as_deref(), Some("1"));
        assert_eq!(value(UNIVERSE, None), None);
        assert_eq!(value(SHARED_RECEIVES, Some(32)), None);
        assert_eq!(value(SHARED_RECEIVES, Some(33)).as_deref(), Some("1"));
        assert_eq!(value(SHARED_RECEIVES, None), None);
        assert_eq!(value(MATCHING, None).as_deref(), Some("hybrid"));
        assert_eq!(value(NO_SHARED_MEMORY, None).as_deref(), Some("0"));
    }

    #[test]
    fn each_variable_is_listed_once_with_all_its_providers() {
        let all = all();
        let of = |variable: &str| {
            let mut found = all.iter().filter(|(s, _)| s.variable == variable);
            let providers = found.next().expect("it is set").1.clone();
            assert!(found.next().is_none(), "{variable} twice");
            providers
        };
        assert_eq!(of("FI_CXI_RX_MATCH_MODE"), ["cxi"]);
        assert_eq!(of("FI_EFA_ENABLE_SHM_TRANSFER"), ["efa"]);
        assert_eq!(of("FI_OFI_RXM_USE_SRX"), ["verbs;ofi_rxm", "tcp;ofi_rxm"]);
    }
}
