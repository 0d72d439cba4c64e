//! A table of the kernel that libfabric need not read: `/proc/kallsyms`, in which its verbs provider
//! looks twice, whenever libfabric is first asked, for calls that let RDMA devices reach the memory
//! of GPUs. That takes a tenth of a second of a core, and no variable turns it off. In a container
//! without that file libfabric goes on without such memory; here it is shown the same.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null_mut, slice_from_raw_parts};

use libc::{Elf64_Phdr, Elf64_Sym, FILE};

const TABLE: &CStr = c"/proc/kallsyms";
const FILE_OPENERS: [&CStr; 2] = [c"fopen", c"fopen64"];

/// Of `<elf.h>`, where the libc crate lacks them.
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_PLTREL: i64 = 20;
const DT_JMPREL: i64 = 23;

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// What the loader has filled in, and where.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;

/// As the `fopen` of the C library, but that there is no such table.
unsafe extern "C" fn open(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: who calls fopen gives it a text that ends with NUL.
    if unsafe { CStr::from_ptr(path) } == TABLE {
        // SAFETY: the place of this thread's error.
        unsafe { *libc::__errno_location() = libc::ENOENT };
        return null_mut();
    }
    // SAFETY: as the caller of this one promises.
    unsafe { libc::fopen(path, mode) }
}

/// Makes a call while the library around `inside` does not find the table. Where its `fopen` is not
/// found, as in one that was linked otherwise, it finds it.
pub(super) fn hidden_from<R>(inside: *const c_void, call: impl FnOnce() -> R) -> R {
    let slots = slots_around(inside);
    let replaced: Vec<(Slot, *mut c_void)> = slots
        .into_iter()
        .filter_map(|slot| Some((slot, slot.swap(open as Open as *mut c_void)?)))
        .collect();
    let outcome = call();
    // Backwards: a slot that is listed twice gets its first address.
    for (slot, before) in replaced.into_iter().rev() {
        slot.swap(before);
    }
    outcome
}

/// Where the address of a call of another library lies.
#[derive(Clone, Copy)]
struct Slot {
    place: *mut *mut c_void,
    /// The loader has made it read-only.
    is_sealed: bool,
}

impl Slot {
    /// Puts another address there, and gives that before; none where memory cannot be unsealed.
    fn swap(self, address: *mut c_void) -> Option<*mut c_void> {
        let protect = |protection: c_int| {
            if !self.is_sealed {
                return true;
            }
            // SAFETY: sysconf only reads a constant.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            let start = self.place as usize & !(page - 1);
            // SAFETY: the page of the slot, of a library that is never closed, stays readable.
            unsafe { libc::mprotect(start as *mut c_void, page, protection) == 0 }
        };
        if !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return None;
        }
        // SAFETY: an aligned slot of the loader's that is writable now. Other threads may call
        // through it: they find either address, and both are a fopen.
        let before = unsafe {
            let before = self.place.read_volatile();
            self.place.write_volatile(address);
            before
        };
        protect(libc::PROT_READ);
        Some(before)
    }
}

/// The slots of `fopen` of the library that has code or data at `inside`.
fn slots_around(inside: *const c_void) -> Vec<Slot> {
    let mut search = Search {
        inside: inside as u64,
        slots: Vec::new(),
    };
    // SAFETY: `visit` takes what this hands it: a description of each library, and our search.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.slots
}

struct Search {
    inside: u64,
    slots: Vec<Slot>,
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: `slots_around` passes its search, and the loader a description that stays while this
    // runs.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: the loader has so many of them there.
    let headers = unsafe { &*slice_from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr;
    let has = |header: &&Elf64_Phdr, address: u64| {
        let start = base.wrapping_add(header.p_vaddr);
        address.wrapping_sub(start) < header.p_memsz
    };
    let of_kind = |kind: u32| headers.iter().filter(move |header| header.p_type == kind);
    if !of_kind(libc::PT_LOAD).any(|header| has(&header, search.inside)) {
        return 0;
    }
    let Some(dynamic) = of_kind(libc::PT_DYNAMIC).next() else {
        return 1;
    };
    // SAFETY: the dynamic section of a library that is loaded.
    let places = unsafe { places_of(base, base.wrapping_add(dynamic.p_vaddr) as *const Dynamic) };
    search.slots.extend(places.into_iter().map(|place| Slot {
        place: place as *mut *mut c_void,
        is_sealed: of_kind(libc::PT_GNU_RELRO).any(|header| has(&header, place)),
    }));
    1 // it was that one
}

/// Where a library has addresses of `fopen`.
///
/// # Safety
/// `dynamic` is the dynamic section of a library that is loaded at `base`.
unsafe fn places_of(base: u64, dynamic: *const Dynamic) -> Vec<u64> {
    let value = |wanted: i64| {
        // SAFETY: the section ends with an entry whose tag is 0.
        let entries = (0..).map(|at| unsafe { &*dynamic.add(at) });
        let mut entries = entries.take_while(|entry| entry.tag != 0);
        entries
            .find(|entry| entry.tag == wanted)
            .map(|entry| entry.value)
    };
    // Some loaders leave addresses as they are in the file.
    let address = |tag| value(tag).map(|at| if at < base { base + at } else { at });
    let (Some(symbols), Some(texts)) = (address(DT_SYMTAB), address(DT_STRTAB)) else {
        return Vec::new();
    };
    let lazy = (value(DT_PLTREL) == Some(DT_RELA as u64))
        .then(|| address(DT_JMPREL))
        .flatten();
    let tables = [
        (lazy, value(DT_PLTRELSZ)),
        (address(DT_RELA), value(DT_RELASZ)),
    ];
    let mut places = Vec::new();
    for (table, bytes) in tables {
        let (Some(table), Some(bytes)) = (table, bytes) else {
            continue;
        };
        let count = bytes as usize / size_of::<Relocation>();
        // SAFETY: the section says that so many lie there.
        let entries = unsafe { &*slice_from_raw_parts(table as *const Relocation, count) };
        places.extend(entries.iter().filter_map(|entry| {
            let symbol = (entry.info >> 32) as usize;
            if symbol == 0 || entry.addend != 0 {
                return None;
            }
            // SAFETY: a relocation names a symbol of the library, and that a text of its table.
            let name = unsafe {
                let symbol = &*(symbols as *const Elf64_Sym).add(symbol);
                CStr::from_ptr((texts as *const c_char).add(symbol.st_name as usize))
            };
            FILE_OPENERS
                .contains(&name)
                .then_some(base.wrapping_add(entry.offset))
        }));
    }
    places
}
