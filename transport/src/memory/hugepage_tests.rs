use super::*;

const MEMINFO: &str = "MemTotal:       24627272 kB\n\
    AnonHugePages:         0 kB\n\
    HugePages_Total:      64\n\
    HugePages_Free:       20\n\
    HugePages_Rsvd:        4\n\
    HugePages_Surp:        0\n\
    Hugepagesize:       2048 kB\n\
    Hugetlb:          131072 kB\n";

const MIB: usize = 1 << 20;

fn first(meminfo: &str, transparent: &str, bytes: usize) -> PageKind {
    Plan::decide(meminfo, transparent, bytes).first
}

#[test]
fn free_hugepages_come_first() {
    let huge = PageKind::Huge {
        page_bytes: 2 * MIB,
    };
    assert_eq!(
        Plan::decide(MEMINFO, "always [madvise] never", 32 * MIB),
        Plan {
            first: huge,
            why: None
        }
    );
    assert_eq!(first(MEMINFO, "", MIB), huge);
    assert_eq!(first(MEMINFO, "", 1), huge);
}

#[test]
fn pages_reserved_by_others_are_not_free() {
    let plan = Plan::decide(MEMINFO, "always [madvise] never", 32 * MIB + 1);
    assert_eq!(plan.first, PageKind::Transparent);
    let why = plan.why.expect("a reason");
    assert!(
        why.contains("17 hugepages of 2048 KiB and 16 are free"),
        "{why}"
    );
    assert!(why.contains("vm.nr_hugepages"), "{why}");
}

#[test]
fn transparent_hugepages_follow_where_the_kernel_gives_them() {
    let none = MEMINFO.replace("HugePages_Free:       20", "HugePages_Free:        0");
    assert_eq!(
        first(&none, "[always] madvise never", 2 * MIB),
        PageKind::Transparent
    );
    assert_eq!(
        first(&none, "always [madvise] never", 2 * MIB),
        PageKind::Transparent
    );
    assert_eq!(
        first(&none, "always madvise [never]", 2 * MIB),
        PageKind::Ordinary
    );
    assert_eq!(first(&none, "", 2 * MIB), PageKind::Ordinary);
    assert_eq!(
        first(&none, "[always] madvise never", 2 * MIB - 1),
        PageKind::Ordinary
    );
}

#[test]
fn small_requests_do_without_hugepages_without_a_word() {
    let ordinary = Plan {
        first: PageKind::Ordinary,
        why: None,
    };
    let none = MEMINFO.replace("HugePages_Free:       20", "HugePages_Free:        0");
    assert_eq!(Plan::decide(&none, "[always]", MIB - 1), ordinary);
    let long = MEMINFO.replace("2048 kB", "1048576 kB");
    assert_eq!(Plan::decide(&long, "[always]", MIB - 1), ordinary);
    let page_bytes = 1 << 30;
    assert_eq!(first(&long, "[always]", 64 * MIB), PageKind::Transparent);
    let huge = PageKind::Huge { page_bytes };
    assert_eq!(first(&long, "[always]", 128 * MIB), huge);
}

#[test]
fn a_meminfo_without_a_hugepage_size_never_leads_to_hugepages() {
    for broken in [
        String::new(),
        MEMINFO.replace("Hugepagesize:       2048 kB", ""),
        MEMINFO.replace("2048 kB", ""),
        MEMINFO.replace("2048 kB", "0 kB"),
        MEMINFO.replace("2048 kB", "2000 kB"),
        MEMINFO.replace("2048 kB", "2 MB"),
        MEMINFO.replace("2048 kB", "-2048 kB"),
        MEMINFO.replace("2048 kB", "99999999999999999999 kB"),
        MEMINFO.replace("Hugepagesize:", "Hugepagesize"),
        MEMINFO.replace("HugePages_Free:       20", ""),
        MEMINFO.replace("HugePages_Free:       20", "HugePages_Free: x"),
    ] {
        let plan = Plan::decide(&broken, "always [madvise] never", 4 * MIB);
        assert_eq!(plan.first, PageKind::Transparent, "{broken}");
        assert!(plan.why.is_some());
    }
}

#[test]
fn mappings_are_zeroed_writable_and_as_long_as_asked() {
    for bytes in [0, 1, 4096, 5000, MIB, 2 * MIB, 5 * MIB + 1] {
        let mapping = Mapping::allocate(bytes).expect("memory");
        assert!(mapping.len() >= bytes && !mapping.is_empty());
        // SAFETY: the mapping is this long, and this is the only use of it.
        let all = unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr(), mapping.len()) };
        assert!(all.iter().all(|byte| *byte == 0));
        all.fill(0x5a);
    }
}

#[test]
fn memory_that_does_not_exist_is_an_error() {
    for bytes in [
        1 << 60,
        usize::MAX,
        usize::MAX - 4095,
        usize::MAX - (2 << 20),
    ] {
        assert!(Mapping::allocate(bytes).is_err(), "{bytes}");
    }
}
