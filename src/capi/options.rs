//! Options of jobs and streams as one struct that may grow, and by name.

use std::ffi::{CStr, c_char};

use super::argument;
use super::sized::{check_size, load_sized, store_sized};
use super::status::{Failure, guard, trihop_status_t};
use crate::transport::link::Mover;
use crate::{Options, StreamOptions};

/// Options of a job and of its streams, with the names, units, ranges and defaults of the library's documentation
/// (docs/OPTIONS.md, or `Options` and `StreamOptions` of the Rust interface).
///
/// Fill it with `trihop_options_init`, or with `trihop_job_options` for a stream that differs from its job; then change
/// fields, or set them by name. Later versions add fields at the end.
#[repr(C)]
#[derive(Clone)]
pub struct trihop_options_t {
    /// Bytes of this struct as the caller knows it; set by `trihop_options_init`.
    pub size: usize,

    /// For streams: batches of the origin class that may be unconsumed per local queue.
    pub origin_maxrpc: u64,
    /// Bytes after which an origin lane is shown to its consumer.
    pub origin_buftarget_bytes: u64,
    /// As `origin_maxrpc`, for relay lanes.
    pub relay_maxrpc: u64,
    /// As `origin_buftarget_bytes`, for relay lanes.
    pub relay_buftarget_bytes: u64,
    /// Batches per link that may be in flight, unacknowledged.
    pub remote_maxrpc: u64,
    /// Bytes at which a batch is sealed.
    pub remote_buftarget_bytes: u64,
    /// Batches of the origin class that this rank's own sends may have under way, over all local queues; 0 for no limit.
    pub origin_sender_limit: u64,
    /// As `origin_sender_limit`, over all queues to other nodes.
    pub remote_sender_limit: u64,
    /// Records that may wait for delivery.
    pub deliverq_max: u64,
    /// Bytes that may wait for delivery.
    pub deliverq_bytes: u64,
    /// Records for which a delivery thread is woken at once; fewer are delivered after a millisecond, or by a flush.
    pub deliverq_threshold: u64,
    /// 1 to count and drop what arrives, for debugging; else 0.
    pub deliverq_discard: u64,
    /// Streams of a higher priority are served first; up to 255.
    pub priority: u64,
    /// Longest time in microseconds that a partial run or batch waits.
    pub linger_us: u64,
    /// Size of a run in bytes.
    pub run_bytes: u64,
    /// Memory for open runs in bytes.
    pub run_table_bytes: u64,
    /// Memory for the lanes into a rank in bytes.
    pub lane_budget_bytes: u64,
    /// Bound of what handlers' sends may spill, in bytes; 0 for a share of the memory there is.
    pub spill_bytes: u64,
    /// Spill from which on deliveries wait as long as it drains, in bytes.
    pub spill_mark_bytes: u64,
    /// Longest record in bytes.
    pub max_message_bytes: u64,
    /// Bytes of long records that a rank puts together at a time.
    pub reassembly_bytes: u64,
    /// Memory for send batches of a rank in bytes.
    pub send_pool_bytes: u64,
    /// Memory for shared large receive slots of a rank in bytes.
    pub receive_pool_bytes: u64,
    /// Size of the receive slot that every link always has, in bytes.
    pub small_slot_bytes: u64,

    /// For jobs from here on; a stream looks no further. Longest message that is sent without asking, in bytes; 0 for
    /// the provider's own limit.
    pub eager_bytes: u64,
    /// 1 for simulated nodes on one machine, so loopback only; else 0.
    pub loopback: u64,
    /// How long start-up waits for the others, in milliseconds.
    pub bootstrap_timeout_ms: u64,
    /// How long another node may be out of reach before its ranks count as dead, in milliseconds.
    pub watch_timeout_ms: u64,
    /// How messages travel: `three-hop`, `direct`, or `fabric-only`, where ranks of a node use the fabric too.
    pub route: [c_char; 16],
    /// Who started the job: `pmix`, `pmi1`, `local`, `single`; empty to find out.
    pub launcher: [c_char; 16],
    /// How longer batches move: `read` or `segments`; empty for what suits the provider.
    pub mover: [c_char; 16],
    /// libfabric provider; empty for the one that scores best.
    pub provider: [c_char; 64],
    /// Network interface, domain or address; empty for the provider's own best.
    pub interface: [c_char; 64],
}

/// Fills `options` with the defaults, overridden by the environment (`TRIHOP_<NAME>` for each field). `size` is
/// `sizeof(trihop_options_t)` as the caller knows it.
///
/// Fails with `TRIHOP_ERR_CONFIG` where the environment has a mistyped or impossible option.
/// Threads: any, but none that changes the environment meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_options_init(options: *mut trihop_options_t, size: usize) -> trihop_status_t {
    guard(|| {
        let filled = trihop_options_t::from_rust(&Options::from_env()?)?;
        // SAFETY: the header asks for null or `size` bytes that nobody else uses.
        unsafe { filled.store(options, size) }
    })
}

/// Sets one option by its name, for instance `"remote_maxrpc"` to `"9"`. The name is that of the field.
///
/// Fails with `TRIHOP_ERR_CONFIG` on an unknown name (`trihop_last_error` has the nearest) or an impossible value.
/// Threads: any, one at a time for each struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_options_set(
    options: *mut trihop_options_t,
    name: *const c_char,
    value: *const c_char,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or initialised options that nobody else uses, and texts that end with NUL.
        let (mut known, size) = unsafe {
            (
                trihop_options_t::load(options)?,
                argument::reference(&raw const (*options).size, "options")?,
            )
        };
        // SAFETY: as above.
        let (name, value) = unsafe { (argument::text(name, "name")?, argument::text(value, "value")?) };
        known.set(name, value)?;
        // SAFETY: as above; `size` is what `load` has checked.
        unsafe { trihop_options_t::from_rust(&known)?.store(options, *size) }
    })
}

impl trihop_options_t {
    /// What the caller's struct says, checked; fields that the caller's version does not have keep their defaults.
    ///
    /// # Safety
    /// `options` is null, or points to as many bytes as its first field says, filled by [`trihop_options_init`].
    pub(crate) unsafe fn load(options: *const Self) -> Result<Options, Failure> {
        // SAFETY: as the caller promises.
        unsafe { load_sized(options, Self::from_rust(&Options::default())?)? }.to_rust()
    }

    /// Fills the caller's struct, as much of it as both know; what only the caller knows becomes zero.
    ///
    /// # Safety
    /// `options` is null, or points to `size` bytes that nobody else uses.
    pub(crate) unsafe fn store(mut self, options: *mut Self, size: usize) -> Result<(), Failure> {
        check_size(size)?;
        self.size = size;
        // SAFETY: as the caller promises.
        unsafe { store_sized(&self, options, size, "options") }
    }

    pub(crate) fn from_rust(options: &Options) -> Result<Self, Failure> {
        // Both lists are complete: a new option of the library is missed by no field here.
        let Options {
            stream,
            route,
            launcher,
            provider,
            interface,
            eager_bytes,
            mover,
            loopback,
            bootstrap_timeout_ms,
            watch_timeout_ms,
        } = options;
        let StreamOptions {
            origin_maxrpc,
            origin_buftarget_bytes,
            relay_maxrpc,
            relay_buftarget_bytes,
            remote_maxrpc,
            remote_buftarget_bytes,
            origin_sender_limit,
            remote_sender_limit,
            deliverq_max,
            deliverq_bytes,
            deliverq_threshold,
            deliverq_discard,
            priority,
            linger_us,
            run_bytes,
            run_table_bytes,
            lane_budget_bytes,
            spill_bytes,
            spill_mark_bytes,
            max_message_bytes,
            reassembly_bytes,
            send_pool_bytes,
            receive_pool_bytes,
            small_slot_bytes,
        } = stream;
        let mover = mover.map_or("", |mover| match mover {
            Mover::Read => "read",
            Mover::Segments => "segments",
        });
        Ok(Self {
            size: size_of::<Self>(),
            origin_maxrpc: u64::from(*origin_maxrpc),
            origin_buftarget_bytes: *origin_buftarget_bytes as u64,
            relay_maxrpc: u64::from(*relay_maxrpc),
            relay_buftarget_bytes: *relay_buftarget_bytes as u64,
            remote_maxrpc: u64::from(*remote_maxrpc),
            remote_buftarget_bytes: *remote_buftarget_bytes as u64,
            origin_sender_limit: u64::from(*origin_sender_limit),
            remote_sender_limit: u64::from(*remote_sender_limit),
            deliverq_max: *deliverq_max as u64,
            deliverq_bytes: *deliverq_bytes as u64,
            deliverq_threshold: *deliverq_threshold as u64,
            deliverq_discard: u64::from(*deliverq_discard),
            priority: u64::from(*priority),
            linger_us: *linger_us,
            run_bytes: *run_bytes as u64,
            run_table_bytes: *run_table_bytes as u64,
            lane_budget_bytes: *lane_budget_bytes as u64,
            spill_bytes: *spill_bytes as u64,
            spill_mark_bytes: *spill_mark_bytes as u64,
            max_message_bytes: *max_message_bytes as u64,
            reassembly_bytes: *reassembly_bytes as u64,
            send_pool_bytes: *send_pool_bytes as u64,
            receive_pool_bytes: *receive_pool_bytes as u64,
            small_slot_bytes: *small_slot_bytes as u64,
            eager_bytes: eager_bytes.unwrap_or(0) as u64,
            loopback: u64::from(*loopback),
            bootstrap_timeout_ms: *bootstrap_timeout_ms,
            watch_timeout_ms: *watch_timeout_ms,
            route: letters("route", &route.to_string())?,
            launcher: letters("launcher", launcher.map_or("", |launcher| launcher.name()))?,
            mover: letters("mover", mover)?,
            provider: letters("provider", provider.as_deref().unwrap_or(""))?,
            interface: letters("interface", interface.as_deref().unwrap_or(""))?,
        })
    }

    fn to_rust(&self) -> Result<Options, Failure> {
        let mut options = Options {
            stream: StreamOptions {
                origin_maxrpc: narrow("origin_maxrpc", self.origin_maxrpc)?,
                origin_buftarget_bytes: narrow("origin_buftarget_bytes", self.origin_buftarget_bytes)?,
                relay_maxrpc: narrow("relay_maxrpc", self.relay_maxrpc)?,
                relay_buftarget_bytes: narrow("relay_buftarget_bytes", self.relay_buftarget_bytes)?,
                remote_maxrpc: narrow("remote_maxrpc", self.remote_maxrpc)?,
                remote_buftarget_bytes: narrow("remote_buftarget_bytes", self.remote_buftarget_bytes)?,
                origin_sender_limit: narrow("origin_sender_limit", self.origin_sender_limit)?,
                remote_sender_limit: narrow("remote_sender_limit", self.remote_sender_limit)?,
                deliverq_max: narrow("deliverq_max", self.deliverq_max)?,
                deliverq_bytes: narrow("deliverq_bytes", self.deliverq_bytes)?,
                deliverq_threshold: narrow("deliverq_threshold", self.deliverq_threshold)?,
                deliverq_discard: narrow::<u8>("deliverq_discard", self.deliverq_discard)? != 0,
                priority: narrow("priority", self.priority)?,
                linger_us: self.linger_us,
                run_bytes: narrow("run_bytes", self.run_bytes)?,
                run_table_bytes: narrow("run_table_bytes", self.run_table_bytes)?,
                lane_budget_bytes: narrow("lane_budget_bytes", self.lane_budget_bytes)?,
                spill_bytes: narrow("spill_bytes", self.spill_bytes)?,
                spill_mark_bytes: narrow("spill_mark_bytes", self.spill_mark_bytes)?,
                max_message_bytes: narrow("max_message_bytes", self.max_message_bytes)?,
                reassembly_bytes: narrow("reassembly_bytes", self.reassembly_bytes)?,
                send_pool_bytes: narrow("send_pool_bytes", self.send_pool_bytes)?,
                receive_pool_bytes: narrow("receive_pool_bytes", self.receive_pool_bytes)?,
                small_slot_bytes: narrow("small_slot_bytes", self.small_slot_bytes)?,
            },
            eager_bytes: match self.eager_bytes {
                0 => None,
                bytes => Some(narrow("eager_bytes", bytes)?),
            },
            bootstrap_timeout_ms: self.bootstrap_timeout_ms,
            watch_timeout_ms: self.watch_timeout_ms,
            ..Options::default()
        };
        options.set("loopback", &self.loopback.to_string())?;
        let texts = [
            ("route", &self.route[..]),
            ("launcher", &self.launcher),
            ("mover", &self.mover),
            ("provider", &self.provider),
            ("interface", &self.interface),
        ];
        for (name, letters) in texts {
            let text = words(name, letters)?;
            if !text.is_empty() {
                options.set(name, text)?;
            }
        }
        Ok(options)
    }
}

fn narrow<T: TryFrom<u64>>(name: &str, value: u64) -> Result<T, Failure> {
    value.try_into().map_err(|_| {
        crate::Error::Config {
            key: name.into(),
            why: format!("{value} is out of range"),
        }
        .into()
    })
}

fn letters<const N: usize>(name: &str, text: &str) -> Result<[c_char; N], Failure> {
    let mut letters = [0; N];
    if text.len() >= N || text.contains('\0') {
        let why = format!("`{text}` is longer than {} bytes, or holds a NUL", N - 1);
        return Err(crate::Error::Config {
            key: name.into(),
            why,
        }
        .into());
    }
    for (letter, byte) in letters.iter_mut().zip(text.bytes()) {
        *letter = byte as c_char;
    }
    Ok(letters)
}

fn words<'a>(name: &str, letters: &'a [c_char]) -> Result<&'a str, Failure> {
    // SAFETY: a C character is a byte, and has its size and alignment.
    let bytes = unsafe { std::slice::from_raw_parts(letters.as_ptr().cast::<u8>(), letters.len()) };
    CStr::from_bytes_until_nul(bytes)
        .ok()
        .and_then(|text| text.to_str().ok())
        .ok_or_else(|| Failure::argument(format!("option {name} is not UTF-8, or does not end with NUL")))
}

#[cfg(test)]
mod tests {
    use super::super::status::trihop_last_error;
    use super::super::status::trihop_status_t::*;
    use super::*;
    use std::ffi::CString;

    fn fresh() -> trihop_options_t {
        trihop_options_t::from_rust(&Options::default()).unwrap()
    }

    fn set(options: &mut trihop_options_t, name: &str, value: &str) -> (trihop_status_t, String) {
        let (name, value) = (CString::new(name).unwrap(), CString::new(value).unwrap());
        // SAFETY: options of our own, and texts that end with NUL.
        let status = unsafe { trihop_options_set(options, name.as_ptr(), value.as_ptr()) };
        // SAFETY: the text of this thread, copied at once.
        let text = unsafe { CStr::from_ptr(trihop_last_error()) };
        (status, text.to_string_lossy().into_owned())
    }

    fn load(options: *const trihop_options_t) -> Result<Options, Failure> {
        // SAFETY: every test passes as many bytes as the first field says, or a first field that is refused.
        unsafe { trihop_options_t::load(options) }
    }

    #[test]
    fn options_keep_their_values_through_the_struct_and_back() {
        assert_eq!(load(&fresh()).unwrap(), Options::default());
        for name in Options::NAMES {
            let mut rust = Options::default();
            // One of these is a value of every option.
            let accepted = ["1023", "77", "direct", "single", "read", "1"]
                .into_iter()
                .find(|value| rust.set(name, value).is_ok());
            let mut options = fresh();
            let value = accepted.unwrap_or_else(|| panic!("no value for {name}"));
            assert_eq!(set(&mut options, name, value).0, TRIHOP_OK, "{name}");
            assert_eq!(load(&options).unwrap(), rust, "{name}");
            assert_ne!(rust, Options::default(), "{name} = {value} is no change");
        }
    }

    #[test]
    fn unknown_names_and_impossible_values_are_refused_with_the_reason() {
        let mut options = fresh();
        let (status, text) = set(&mut options, "remote_maxrcp", "9");
        assert_eq!(status, TRIHOP_ERR_CONFIG);
        assert!(text.contains("remote_maxrpc"), "{text}");
        assert_eq!(set(&mut options, "remote_maxrpc", "many").0, TRIHOP_ERR_CONFIG);
        let (status, text) = set(&mut options, "provider", &"x".repeat(64));
        assert_eq!(status, TRIHOP_ERR_CONFIG);
        assert!(text.contains("63 bytes"), "{text}");
        options.loopback = 2;
        assert_eq!(load(&options).unwrap_err().status, TRIHOP_ERR_CONFIG);
        options.loopback = 0;
        options.route = [1; 16];
        assert_eq!(load(&options).unwrap_err().status, TRIHOP_ERR_INVALID_ARGUMENT);
        // SAFETY: null is allowed.
        let refused = unsafe { trihop_options_init(std::ptr::null_mut(), 64) };
        assert_eq!(refused, TRIHOP_ERR_INVALID_ARGUMENT);
    }

    #[test]
    fn programs_of_other_versions_share_what_both_know() {
        // An older program, which knows only up to the third option.
        let mut older = [u64::MAX; 8];
        let known = std::mem::offset_of!(trihop_options_t, relay_maxrpc) + 8;
        // SAFETY: there are more than `known` bytes.
        unsafe { fresh().store(older.as_mut_ptr().cast(), known) }.unwrap();
        assert_eq!(older[0], known as u64);
        assert_eq!(
            older[known / 8..],
            [u64::MAX; 8][known / 8..],
            "nothing is written behind the end"
        );
        older[3] = 77;
        let loaded = load(older.as_ptr().cast()).unwrap();
        let mut expected = Options::default();
        expected.stream.relay_maxrpc = 77;
        assert_eq!(loaded, expected);

        // A newer program, whose last field this library does not know.
        let mut newer = [u64::MAX; size_of::<trihop_options_t>() / 8 + 1];
        let size = size_of_val(&newer);
        // SAFETY: there are `size` bytes.
        unsafe { fresh().store(newer.as_mut_ptr().cast(), size) }.unwrap();
        assert_eq!(newer.last(), Some(&0));
        assert!(load(newer.as_ptr().cast()).is_ok());
        *newer.last_mut().unwrap() = 1;
        let refused = load(newer.as_ptr().cast()).unwrap_err();
        assert!(refused.text.contains("does not have"), "{}", refused.text);
        for wrong in [0u64, 7, 9, 1 << 40] {
            newer[0] = wrong;
            let refused = load(newer.as_ptr().cast()).unwrap_err();
            assert_eq!(refused.status, TRIHOP_ERR_INVALID_ARGUMENT);
        }
    }
}
