//! The library itself: opened when one of its calls is first needed, since the constructors of
//! some builds take a fifth of a second.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::{fi_fabric_attr, fi_info, fi_type, fid_fabric};

/// The interface of libfabric that all of its versions since 1.0 have.
const SONAME: &str = "libfabric.so.1";

/// The versions of the calls that the headers describe, of the library that the build has found.
mod versions {
    include!(concat!(env!("OUT_DIR"), "/versions.rs"));
}

/// Declares the calls that are symbols of the library; all others are inline over tables that these
/// hand out.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, or $absent:expr;)*) => {
        struct Calls {
            $($name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl Calls {
            fn of(library: *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: the library has this call with this type in this version.
                    $($name: unsafe { symbol(library, stringify!($name), versions::$name)? },)*
                })
            }
        }

        $(
            /// The call of this name, or what it returns where there is no library.
            pub unsafe fn $name($($argument: $type),*) -> $result {
                match calls() {
                    // SAFETY: as the caller promises.
                    Ok(calls) => unsafe { (calls.$name)($($argument),*) },
                    Err(_) => $absent,
                }
            }
        )*
    };
}

calls! {
    fi_getinfo(
        version: u32,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        info: *mut *mut fi_info
    ) -> c_int, or -super::FI_ENOSYS;
    fi_freeinfo(info: *mut fi_info) -> (), or ();
    fi_dupinfo(info: *const fi_info) -> *mut fi_info, or std::ptr::null_mut();
    fi_fabric(
        attr: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut c_void
    ) -> c_int, or -super::FI_ENOSYS;
    fi_version() -> u32, or 0;
    fi_strerror(code: c_int) -> *const c_char, or std::ptr::null();
    fi_tostr_r(
        text: *mut c_char,
        bytes: usize,
        data: *const c_void,
        kind: fi_type
    ) -> *mut c_char, or std::ptr::null_mut();
}

/// As the inline function of this name.
pub unsafe fn fi_allocinfo() -> *mut fi_info {
    // SAFETY: a null argument asks for a fresh, zeroed structure.
    unsafe { fi_dupinfo(std::ptr::null()) }
}

/// Opens the library, which is looked for as any shared library is; once per process.
///
/// # Errors
/// Why it cannot be used, and the package that has it.
pub fn load() -> Result<(), &'static str> {
    match calls() {
        Ok(_) => Ok(()),
        Err(why) => Err(why),
    }
}

fn calls() -> &'static Result<Calls, String> {
    static CALLS: OnceLock<Result<Calls, String>> = OnceLock::new();
    CALLS.get_or_init(|| {
        // SAFETY: the constructors of libfabric are as harmless here as at the start of a program
        // that is linked with it.
        let library = unsafe { Library::open(Some(SONAME), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|why| {
            format!(
                "libfabric cannot be loaded ({why}): install libfabric1 on Debian and SLES, \
                 libfabric on RHEL, or name its folder in LD_LIBRARY_PATH"
            )
        })?;
        // Its providers have threads: it stays until the process ends.
        Calls::of(library.into_raw())
    })
}

/// A call of the library in the version that the headers mean; newer libraries have older ones too.
///
/// # Safety
/// `library` is an open one, and `F` a pointer to a function as it has by this name.
unsafe fn symbol<F>(library: *mut c_void, name: &str, version: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
    let terminated = [name.as_bytes(), &[0]].concat();
    let terminated: *const c_char = terminated.as_ptr().cast();
    // SAFETY: the library is open, and both texts end with NUL.
    let found = unsafe {
        match version.is_empty() {
            true => libc::dlsym(library, terminated),
            false => libc::dlvsym(library, terminated, version.as_ptr()),
        }
    };
    if found.is_null() {
        let version = version.to_string_lossy();
        return Err(format!(
            "{SONAME} has no `{name}` of version {version}: it is older than libfabric {}.{}, \
             whose headers this was built with",
            super::FI_MAJOR_VERSION,
            super::FI_MINOR_VERSION,
        ));
    }
    // SAFETY: as the caller promises; of the size of a pointer.
    Ok(unsafe { transmute_copy(&found) })
}
