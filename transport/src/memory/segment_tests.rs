use super::*;
use std::io::Write;

fn again(segment: &Segment) -> OwnedFd {
    segment.descriptor().try_clone_to_owned().expect("a descriptor")
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
            rustix::fs::ftruncate(segment.descriptor(), bytes),
            Err(rustix::io::Errno::PERM)
        );
    }
    let seal = rustix::fs::fcntl_add_seals(segment.descriptor(), SealFlags::WRITE);
    assert_eq!(seal, Err(rustix::io::Errno::PERM));
}

#[test]
fn what_could_shrink_is_not_mapped() {
    let unsealed = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
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
    let flags = rustix::io::fcntl_getfd(segment.descriptor()).unwrap();
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
