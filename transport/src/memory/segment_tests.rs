use super::*;
use std::io::Write;

fn again(segment: &Segment) -> OwnedFd {
    let descriptor = segment.descriptor().expect("a shared segment");
    descriptor.try_clone_to_owned().expect("a descriptor")
}

/// One byte of a segment that only this test knows.
fn byte(segment: &Segment, place: usize) -> *mut u8 {
    assert!(place < segment.len());
    // SAFETY: `place` is inside the mapping.
    unsafe { segment.as_ptr().add(place) }
}

#[test]
fn both_mappings_show_the_same_bytes() {
    for size in [1, 4096, 4097, 3 << 20] {
        let ours = Segment::create(size).unwrap();
        assert!(ours.len() >= size);
        let theirs = Segment::attach(again(&ours), size).unwrap();
        assert_eq!(theirs.len(), ours.len());
        assert_eq!(
            matches!(theirs.page_kind(), PageKind::Huge { .. }),
            matches!(ours.page_kind(), PageKind::Huge { .. })
        );
        // SAFETY: `ours` is mapped, and no other thread knows it.
        unsafe { byte(&ours, size - 1).write_volatile(7) };
        drop(ours);
        // SAFETY: `theirs` is mapped, and no other thread knows it.
        assert_eq!(unsafe { byte(&theirs, size - 1).read_volatile() }, 7);
    }
}

#[test]
fn the_size_is_sealed() {
    let segment = Segment::create(8192).unwrap();
    for bytes in [4096, 16384] {
        assert_eq!(
            rustix::fs::ftruncate(segment.descriptor().unwrap(), bytes),
            Err(rustix::io::Errno::PERM)
        );
    }
    let seal = rustix::fs::fcntl_add_seals(segment.descriptor().unwrap(), SealFlags::WRITE);
    assert_eq!(seal, Err(rustix::io::Errno::PERM));
}

#[test]
fn what_could_shrink_is_not_mapped() {
    let unsealed =
        rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    let text = Segment::attach(unsealed, 4096).unwrap_err().to_string();
    assert!(text.contains("seals"), "{text}");

    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[0; 4096]).unwrap();
    assert!(Segment::attach(file.into(), 4096).is_err());

    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert!(Segment::attach(reader, 4096).is_err());
}

#[test]
fn another_size_than_announced_is_refused() {
    let segment = Segment::create(8192).unwrap();
    assert!(Segment::attach(again(&segment), 8193).is_err());
    assert!(Segment::attach(again(&segment), 4 << 20).is_err());
    assert!(Segment::attach(again(&segment), usize::MAX).is_err());
    assert!(Segment::attach(again(&segment), 8192).is_ok());
    let large = Segment::create(8 << 20).unwrap();
    assert!(Segment::attach(again(&large), 8192).is_err());
}

#[test]
fn neither_exec_nor_fork_inherits_a_segment() {
    let segment = Segment::create(4096).unwrap();
    let flags = rustix::io::fcntl_getfd(segment.descriptor().unwrap()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    // The mapping's flags in /proc: `dc` is "do not copy on fork".
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let address = format!("{:x}-", segment.as_ptr() as usize);
    let flags = maps
        .lines()
        .skip_while(|line| !line.starts_with(&address))
        .find(|line| line.starts_with("VmFlags"));
    let Some(flags) = flags else {
        eprintln!("skipped: /proc/self/smaps does not show the flags of the mapping at {address}");
        return;
    };
    assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
}

/// Mappings of this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc/self/maps is readable");
    maps.lines().count()
}

#[test]
fn many_private_segments_need_no_mappings_of_their_own() {
    const BYTES: usize = 72 << 10;
    let before = mappings();
    let segments: Vec<_> = (0..100_000)
        .map(|_| Segment::private(BYTES).unwrap())
        .collect();
    // 7 GB of address space; other tests map something meanwhile.
    assert!(mappings() < before + 1000, "{} mappings", mappings());
    let mut places: Vec<_> = segments.iter().map(|s| s.as_ptr() as usize).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= BYTES));
    assert!(places.iter().all(|place| place.is_multiple_of(4096)));
    assert!(
        segments
            .iter()
            .all(|s| s.len() == BYTES && s.page_kind() == PageKind::Ordinary)
    );
    assert!(segments[0].descriptor().is_err());
}

#[test]
fn a_private_segment_is_zeroed_whoever_had_the_memory_before() {
    // A size that no other test uses, so that the second segment lies where the first one was.
    let bytes = 23 * 4096;
    let first = Segment::private(bytes).unwrap();
    let place = first.as_ptr();
    for page in 0..23 {
        // SAFETY: the byte is inside the segment, and no other thread knows it.
        unsafe { byte(&first, page * 4096 + page).write(1) };
    }
    drop(first);
    let second = Segment::private(bytes).unwrap();
    assert_eq!(second.as_ptr(), place, "the address space is used again");
    for page in 0..23 {
        // SAFETY: as above.
        assert_eq!(unsafe { byte(&second, page * 4096 + page).read() }, 0);
    }
    // Longer than one reservation.
    let large = Segment::private(3 << 30).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { byte(&large, (3 << 30) - 1).read() }, 0);
}

#[test]
fn a_segment_longer_than_memory_is_an_error_not_an_empty_one() {
    for bytes in [
        usize::MAX,
        usize::MAX - 4095,
        usize::MAX - (2 << 20),
        1 << 62,
    ] {
        assert!(Segment::private(bytes).is_err(), "private, {bytes}");
        assert!(Segment::create(bytes).is_err(), "shared, {bytes}");
    }
}
