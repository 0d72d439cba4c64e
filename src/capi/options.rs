//! Options of jobs and streams as one struct that may grow, and by name.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};

use trihop_shuffle::options_table;

use super::argument;
use super::sized::{check_size, load_sized, store_sized};
use super::status::{Failure, guard, trihop_status_t};
use crate::{Options, StreamOptions};

/// Makes the struct out of the table of options; the build script makes its text for the header.
macro_rules! c_struct {
    (
        stream { $($(#[doc = $s_doc:literal])+ $s_who:ident $s:ident: $s_type:ty as $s_c:tt
            = $s_default:tt in $s_values:tt $s_unit:tt;)+ }
        job { $($(#[doc = $j_doc:literal])+ $j_who:ident $j:ident: $j_type:ty as $j_c:tt
            = $j_default:tt in $j_values:tt $j_unit:tt;)+ }
    ) => {
        /// Options of a job and of its streams: `docs/OPTIONS.md` says what each is.
        #[repr(C)]
        #[derive(Clone)]
        pub struct trihop_options_t {
            /// Bytes of this struct as the caller knows it; set by `trihop_options_init`.
            pub size: usize,
            $($(#[doc = $s_doc])+ pub $s: $s_c,)+
            $($(#[doc = $j_doc])+ pub $j: $j_c,)+
        }

        impl trihop_options_t {
            pub(crate) fn from_rust(options: &Options) -> Result<Self, Failure> {
                let text = |name| options.get(name).unwrap_or_default();
                Ok(Self {
                    size: size_of::<Self>(),
                    $($s: Field::of(stringify!($s), &text(stringify!($s)))?,)+
                    $($j: Field::of(stringify!($j), &text(stringify!($j)))?,)+
                })
            }

            fn to_rust(&self) -> Result<Options, Failure> {
                let mut options = Options::default();
                let mut set = |name, text: Cow<'_, str>| match &*text {
                    "" => Ok(()),
                    text => options.set(name, text),
                };
                $(set(stringify!($s), self.$s.text(stringify!($s))?)?;)+
                $(set(stringify!($j), self.$j.text(stringify!($j))?)?;)+
                Ok(options)
            }
        }
    };
}

options_table!(c_struct);

/// A field of the struct, as text.
trait Field: Sized {
    fn of(name: &str, text: &str) -> Result<Self, Failure>;

    fn text(&self, name: &str) -> Result<Cow<'_, str>, Failure>;
}

/// Absent is 0.
impl Field for u64 {
    fn of(name: &str, text: &str) -> Result<Self, Failure> {
        match text {
            "" => Ok(0),
            text => text
                .parse()
                .map_err(|_| config(name, format!("`{text}` is no number"))),
        }
    }

    fn text(&self, _: &str) -> Result<Cow<'_, str>, Failure> {
        Ok(self.to_string().into())
    }
}

/// Absent is empty.
impl<const N: usize> Field for [c_char; N] {
    fn of(name: &str, text: &str) -> Result<Self, Failure> {
        if text.len() >= N || text.contains('\0') {
            let why = format!("`{text}` is longer than {} bytes, or holds a NUL", N - 1);
            return Err(config(name, why));
        }
        let mut letters = [0; N];
        for (letter, byte) in letters.iter_mut().zip(text.bytes()) {
            *letter = byte as c_char;
        }
        Ok(letters)
    }

    fn text(&self, name: &str) -> Result<Cow<'_, str>, Failure> {
        // SAFETY: a C character is a byte, and has its size and alignment.
        let bytes = unsafe { std::slice::from_raw_parts(self.as_ptr().cast::<u8>(), N) };
        CStr::from_bytes_until_nul(bytes)
            .ok()
            .and_then(|text| text.to_str().ok())
            .map(Cow::from)
            .ok_or_else(|| {
                Failure::argument(format!(
                    "option {name} is not UTF-8, or does not end with NUL"
                ))
            })
    }
}

fn config(key: &str, why: String) -> Failure {
    Failure::from(crate::Error::Config {
        key: key.to_owned(),
        why,
    })
}

/// Fills `options` with the defaults, overridden by the environment (`TRIHOP_<NAME>` for each
/// field). `size` is `sizeof(trihop_options_t)` as the caller knows it.
///
/// Fails with `TRIHOP_ERR_CONFIG` where the environment has a mistyped or impossible option.
/// Threads: any, but none that changes the environment meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_options_init(
    options: *mut trihop_options_t,
    size: usize,
) -> trihop_status_t {
    guard(|| {
        let filled = trihop_options_t::from_rust(&Options::from_env()?)?;
        // SAFETY: the header asks for null or `size` bytes that nobody else uses.
        unsafe { filled.store(options, size) }
    })
}

/// Sets one option by its name, for instance `"remote_maxrpc"` to `"9"`. The name is that of the
/// field.
///
/// Fails with `TRIHOP_ERR_CONFIG` on an unknown name (`trihop_last_error` has the nearest) or an
/// impossible value.
/// Threads: any, one at a time for each struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trihop_options_set(
    options: *mut trihop_options_t,
    name: *const c_char,
    value: *const c_char,
) -> trihop_status_t {
    guard(|| {
        // SAFETY: the header asks for null or initialised options that nobody else uses, and texts
        // that end with NUL.
        let (mut known, size) = unsafe {
            (
                trihop_options_t::load(options)?,
                argument::reference(&raw const (*options).size, "options")?,
            )
        };
        // SAFETY: as above.
        let (name, value) = unsafe {
            (
                argument::text(name, "name")?,
                argument::text(value, "value")?,
            )
        };
        known.set(name, value)?;
        // SAFETY: as above; `size` is what `load` has checked.
        unsafe { trihop_options_t::from_rust(&known)?.store(options, *size) }
    })
}

impl trihop_options_t {
    /// Options of one stream; `None` for those of its job.
    ///
    /// # Safety
    /// `options` is null or as for [`trihop_options_t::load`].
    pub(crate) unsafe fn of_stream(options: *const Self) -> Result<Option<StreamOptions>, Failure> {
        if options.is_null() {
            return Ok(None);
        }
        // SAFETY: as the caller promises.
        Ok(Some(unsafe { Self::load(options)? }.stream))
    }

    /// What the caller's struct says, checked; fields that the caller's version does not have keep
    /// their defaults.
    ///
    /// # Safety
    /// `options` is null, or points to as many bytes as its first field says, filled by
    /// [`trihop_options_init`].
    pub(crate) unsafe fn load(options: *const Self) -> Result<Options, Failure> {
        // SAFETY: as the caller promises.
        unsafe { load_sized(options, Self::from_rust(&Options::default())?, "options")? }.to_rust()
    }

    /// Fills the caller's struct, as much of it as both know; what only the caller knows becomes
    /// zero.
    ///
    /// # Safety
    /// `options` is null, or points to `size` bytes that nobody else uses.
    pub(crate) unsafe fn store(mut self, options: *mut Self, size: usize) -> Result<(), Failure> {
        check_size(size)?;
        self.size = size;
        // SAFETY: as the caller promises.
        unsafe { store_sized(&self, options, size, "options") }
    }
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
        // SAFETY: every test passes as many bytes as the first field says, or a first field that is
        // refused.
        unsafe { trihop_options_t::load(options) }
    }

    #[test]
    fn options_keep_their_values_through_the_struct_and_back() {
        assert_eq!(load(&fresh()).unwrap(), Options::default());
        for row in Options::TABLE {
            let name = row.name;
            let mut rust = Options::default();
            // One of these is a value of every option, and no default.
            let accepted = [
                "300000", "1023", "77", "direct", "single", "read", "own", "1", "0",
            ]
            .into_iter()
            .find(|value| rust.set(name, value).is_ok() && rust != Options::default());
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
        assert_eq!(
            set(&mut options, "remote_maxrpc", "many").0,
            TRIHOP_ERR_CONFIG
        );
        let (status, text) = set(&mut options, "memory_bytes", "1");
        assert_eq!(status, TRIHOP_ERR_CONFIG);
        assert!(text.contains("not between 65536 and"), "{text}");
        options.remote_maxrpc = 1025;
        let refused = load(&options).unwrap_err();
        assert_eq!(refused.status, TRIHOP_ERR_CONFIG);
        assert!(
            refused.text.contains("not between 1 and 1024"),
            "{}",
            refused.text
        );
        options.remote_maxrpc = 1;
        let (status, text) = set(&mut options, "provider", &"x".repeat(64));
        assert_eq!(status, TRIHOP_ERR_CONFIG);
        assert!(text.contains("63 bytes"), "{text}");
        options.loopback = 2;
        assert_eq!(load(&options).unwrap_err().status, TRIHOP_ERR_CONFIG);
        options.loopback = 0;
        options.route = [1; 64];
        assert_eq!(
            load(&options).unwrap_err().status,
            TRIHOP_ERR_INVALID_ARGUMENT
        );
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
