//! What libfabric reads when it is first asked. A process asks it once, so this is the only test of
//! its binary.

use std::path::Path;

use trihop_transport::fabric::{self, Choice};

/// Bytes that this thread has read by system calls.
fn bytes_read() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").expect("the kernel counts them");
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.expect("among others").parse().expect("a number")
}

#[test]
fn the_symbols_of_the_kernel_are_not_read_where_there_is_no_rdma_device() {
    let classes = ["/sys/class/infiniband", "/sys/class/infiniband_verbs"];
    if let Some(class) = classes.iter().find(|class| Path::new(class).exists()) {
        eprintln!("skipped: there is {class}");
        return;
    }
    let table = std::fs::read("/proc/kallsyms").map_or(0, |table| table.len() as u64);
    if table < 1 << 20 {
        eprintln!("skipped: /proc/kallsyms has {table} bytes");
        return;
    }
    let before = bytes_read();
    fabric::survey(&Choice::default()).expect("libfabric answers");
    let read = bytes_read() - before;
    assert!(
        read < table / 2,
        "{read} bytes were read of a table of {table}"
    );
    // Others find it still.
    assert!(std::fs::File::open("/proc/kallsyms").is_ok());
}
