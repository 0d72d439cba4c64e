//! The part of PMIx's C interface that is used here, declared by hand and bound when the library is
//! loaded.
//!
//! Layouts are those of PMIx 3 to 6 (`pmix_common.h`): the ABI of these types has not changed since
//! 3.0, and other major versions are refused. The constants are fixed by the PMIx standard.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Name of the library; the 2 has stood for the ABI since PMIx 2.
pub(super) const LIBRARY: &str = "libpmix.so.2";

/// Major versions whose layouts are known.
pub(super) const MAJOR_VERSIONS: std::ops::RangeInclusive<u32> = 3..=6;

pub(super) const SUCCESS: c_int = 0;
pub(super) const ERR_NOT_FOUND: c_int = -46;
pub(super) const ERR_EXISTS_OUTSIDE_SCOPE: c_int = -62;
pub(super) const OPERATION_SUCCEEDED: c_int = -157;

pub(super) const RANK_WILDCARD: u32 = u32::MAX - 1;
pub(super) const SCOPE_GLOBAL: u8 = 3;

pub(super) const JOB_SIZE: &CStr = c"pmix.job.size";
pub(super) const NODE_ID: &CStr = c"pmix.nodeid";
/// Who is where in the notation of MPICH; Slurm says it.
pub(super) const ANL_MAP: &CStr = c"pmix.anlmap";
pub(super) const HOST_NAME: &CStr = c"pmix.hname";
pub(super) const NUM_NODES: &CStr = c"pmix.num.nodes";
/// Ranks of a node, with commas; of the one that [`NODE_ID`] numbers beside [`NODE_INFO`].
pub(super) const LOCAL_PEERS: &CStr = c"pmix.lpeers";
pub(super) const NODE_INFO: &CStr = c"pmix.node.info";
pub(super) const COLLECT_DATA: &CStr = c"pmix.collect";
pub(super) const IMMEDIATE: &CStr = c"pmix.immediate";
pub(super) const OPTIONAL: &CStr = c"pmix.optional";

const BOOL: u16 = 1;
const STRING: u16 = 3;
const UINT32: u16 = 14;
const BYTE_OBJECT: u16 = 27;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Process {
    pub(super) namespace: [c_char; 256],
    pub(super) rank: u32,
}

impl Process {
    pub(super) const NOBODY: Self = Self {
        namespace: [0; 256],
        rank: u32::MAX,
    };
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Bytes {
    start: *mut c_char,
    size: usize,
}

/// The union in `pmix_value_t`; its largest members have three words.
#[repr(C)]
union Data {
    flag: bool,
    uint32: u32,
    string: *mut c_char,
    bytes: Bytes,
    words: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
pub(super) struct Value {
    kind: u16,
    data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
pub(super) struct Info {
    key: [c_char; 512],
    flags: u32,
    value: Value,
}

const _: () = assert!(size_of::<Process>() == 260);
const _: () = assert!(size_of::<Value>() == 32);
const _: () = assert!(size_of::<Info>() == 552);

impl Value {
    /// A view of `bytes`, for a call that copies them.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        let start = bytes.as_ptr().cast_mut().cast();
        let mut data = Data { words: [0; 3] };
        data.bytes = Bytes {
            start,
            size: bytes.len(),
        };
        Self {
            kind: BYTE_OBJECT,
            data,
        }
    }
}

impl Info {
    /// A directive that is true.
    pub(super) fn yes(key: &CStr) -> Self {
        let mut data = Data { words: [0; 3] };
        data.flag = true;
        Self::of(key, BOOL, data)
    }

    /// A directive with a number.
    pub(super) fn number(key: &CStr, number: u32) -> Self {
        let mut data = Data { words: [0; 3] };
        data.uint32 = number;
        Self::of(key, UINT32, data)
    }

    fn of(key: &CStr, kind: u16, data: Data) -> Self {
        let mut info = Self {
            key: [0; 512],
            flags: 0,
            value: Value { kind, data },
        };
        for (to, from) in info.key.iter_mut().zip(key.to_bytes_with_nul()) {
            *to = *from as c_char;
        }
        info
    }
}

/// A value that the library allocated for us.
pub(super) struct Owned(*mut Value);

impl Owned {
    pub(super) fn number(&self) -> Option<u32> {
        let value = self.value()?;
        if value.kind != UINT32 {
            return None;
        }
        // SAFETY: the kind says which member the library has set.
        Some(unsafe { value.data.uint32 })
    }

    pub(super) fn text(&self) -> Option<String> {
        let value = self.value().filter(|v| v.kind == STRING)?;
        // SAFETY: the kind says which member the library has set.
        let text = unsafe { value.data.string };
        if text.is_null() {
            return None;
        }
        // SAFETY: the library gives terminated strings, and this one is ours until `drop` frees it.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_str().ok()?.to_owned())
    }

    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        let value = self.value().filter(|v| v.kind == BYTE_OBJECT)?;
        // SAFETY: the kind says which member the library has set.
        let bytes = unsafe { value.data.bytes };
        if bytes.start.is_null() || bytes.size > isize::MAX as usize {
            return None;
        }
        // SAFETY: the library allocated `size` bytes there, and they are ours until `drop` frees
        // them.
        Some(unsafe { std::slice::from_raw_parts(bytes.start.cast::<u8>(), bytes.size) }.to_vec())
    }

    fn value(&self) -> Option<&Value> {
        // SAFETY: the pointer is null or came from PMIx_Get, which gives the value to its caller.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let Some(value) = self.value() else { return };
        let inner: *mut c_char = match value.kind {
            // SAFETY: the kind says which member the library has set.
            STRING => unsafe { value.data.string },
            // SAFETY: as above.
            BYTE_OBJECT => unsafe { value.data.bytes.start },
            _ => std::ptr::null_mut(),
        };
        // SAFETY: both were allocated by the library with malloc, as PMIX_VALUE_RELEASE of its
        // header assumes.
        unsafe {
            libc::free(inner.cast::<c_void>());
            libc::free(self.0.cast::<c_void>());
        }
    }
}

type Init = unsafe extern "C" fn(*mut Process, *const Info, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Abort = unsafe extern "C" fn(c_int, *const c_char, *const Process, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(
    *const Process,
    *const c_char,
    *const Info,
    usize,
    *mut *mut Value,
) -> c_int;
type Text = unsafe extern "C" fn() -> *const c_char;
type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;

/// The bound functions; they stay bound, since the library has threads of its own and is never
/// unloaded.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    init: Init,
    finalize: Finalize,
    abort: Abort,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    error_text: ErrorText,
}

/// Whether the library is there at all.
pub(in crate::bootstrap) fn is_loadable() -> bool {
    load().is_ok()
}

fn load() -> Result<Library, String> {
    // SAFETY: the initialisers of libpmix only set up its own tables. RTLD_GLOBAL, as its plugins
    // need its symbols.
    unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| {
        format!("{LIBRARY} cannot be loaded: {e}; install libpmix2 or set LD_LIBRARY_PATH")
    })
}

impl Functions {
    /// Loads the library, for good, and refuses versions whose layouts are not known.
    pub(super) fn bind() -> Result<Self, String> {
        let library: &'static Library = Box::leak(Box::new(load()?));
        // SAFETY: the signature is that of pmix.h: no argument, a static string.
        let version = unsafe { symbol::<Text>(library, c"PMIx_Get_version")?() };
        if version.is_null() {
            return Err(format!("{LIBRARY} does not tell its version"));
        }
        // SAFETY: the library answers a static, terminated string.
        let version = unsafe { CStr::from_ptr(version) };
        check_version(&version.to_string_lossy())?;
        // SAFETY: each type is the signature in pmix.h of the versions that were just admitted.
        unsafe {
            Ok(Self {
                init: symbol(library, c"PMIx_Init")?,
                finalize: symbol(library, c"PMIx_Finalize")?,
                abort: symbol(library, c"PMIx_Abort")?,
                put: symbol(library, c"PMIx_Put")?,
                commit: symbol(library, c"PMIx_Commit")?,
                fence: symbol(library, c"PMIx_Fence")?,
                get: symbol(library, c"PMIx_Get")?,
                error_text: symbol(library, c"PMIx_Error_string")?,
            })
        }
    }

    pub(super) fn init(&self, me: &mut Process) -> c_int {
        // SAFETY: the library fills in `me`, and reads no directives.
        unsafe { (self.init)(me, std::ptr::null(), 0) }
    }

    pub(super) fn finalize(&self) -> c_int {
        // SAFETY: it reads no directives.
        unsafe { (self.finalize)(std::ptr::null(), 0) }
    }

    pub(super) fn abort(&self, status: c_int, why: &CStr) -> c_int {
        // SAFETY: the text is terminated; no processes means all of the namespace.
        unsafe { (self.abort)(status, why.as_ptr(), std::ptr::null(), 0) }
    }

    pub(super) fn put(&self, key: &CStr, bytes: &[u8]) -> c_int {
        let mut value = Value::of_bytes(bytes);
        // SAFETY: key and value live during the call, which copies both.
        unsafe { (self.put)(SCOPE_GLOBAL, key.as_ptr(), &raw mut value) }
    }

    pub(super) fn commit(&self) -> c_int {
        // SAFETY: it has no arguments.
        unsafe { (self.commit)() }
    }

    /// Waits for all processes of the namespace; their data is collected where this process can get
    /// it.
    pub(super) fn fence(&self) -> c_int {
        let collect = Info::yes(COLLECT_DATA);
        // SAFETY: the directive lives during the call; no processes means all of the namespace.
        unsafe { (self.fence)(std::ptr::null(), 0, &raw const collect, 1) }
    }

    pub(super) fn get(&self, from: &Process, key: &CStr, directive: &CStr) -> Result<Owned, c_int> {
        self.get_by(from, key, &[Info::yes(directive)])
    }

    pub(super) fn get_by(
        &self,
        from: &Process,
        key: &CStr,
        directives: &[Info],
    ) -> Result<Owned, c_int> {
        let (first, count) = (directives.as_ptr(), directives.len());
        let mut value: *mut Value = std::ptr::null_mut();
        // SAFETY: all pointers are valid during the call, which writes one pointer to a value that
        // becomes ours.
        let code = unsafe { (self.get)(from, key.as_ptr(), first, count, &raw mut value) };
        if code == SUCCESS {
            Ok(Owned(value))
        } else {
            Err(code)
        }
    }

    /// The library's name for a code.
    pub(super) fn error_text(&self, code: c_int) -> String {
        // SAFETY: it takes any number.
        let text = unsafe { (self.error_text)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: it answers a static, terminated string.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        format!("{text} (code {code})")
    }
}

/// # Safety
/// `T` must be the type of a function pointer with the signature of the symbol.
unsafe fn symbol<T: Copy>(library: &'static Library, name: &CStr) -> Result<T, String> {
    // SAFETY: the caller answers for the type; the library is never unloaded.
    let found = unsafe { library.get::<T>(name.to_bytes_with_nul()) };
    found
        .map(|s| *s)
        .map_err(|e| format!("{LIBRARY} has no {}: {e}", name.to_string_lossy()))
}

/// The first number of e.g. `OpenPMIx 4.2.2 (PMIx Standard: 4.2, ...)` is the major version.
pub(super) fn check_version(text: &str) -> Result<(), String> {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let major = digits
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .and_then(|d| d.parse::<u32>().ok());
    match major {
        Some(major) if MAJOR_VERSIONS.contains(&major) => Ok(()),
        _ => Err(format!(
            "{LIBRARY} is {text:?}, and only the interfaces of PMIx {} to {} are known; set TRIHOP_LAUNCHER=pmi1 \
             where the launcher offers PMI-1 too",
            MAJOR_VERSIONS.start(),
            MAJOR_VERSIONS.end()
        )),
    }
}
