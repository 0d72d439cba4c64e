//! Jobs whose ranks are threads of the test, with seats of their own.

use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use trihop_transport::bootstrap::Custom;

/// Runs `program` on so many ranks, of which `node` says where each lives; what comes of each.
pub fn ranks<R: Send + 'static>(
    count: u32,
    node: fn(u32) -> u32,
    program: impl Fn(u32, Custom) -> R + Copy + Send + 'static,
) -> Vec<(u32, R)> {
    let (table, barrier) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(Barrier::new(count as usize)),
    );
    let (done, ended) = mpsc::channel();
    for rank in 0..count {
        let (table, barrier, done) = (Arc::clone(&table), Arc::clone(&barrier), done.clone());
        thread::spawn(move || {
            let gather = move |mine: &[u8], all: &mut [u8]| {
                {
                    let mut table = table.lock().unwrap();
                    table.resize(all.len(), 0);
                    table[rank as usize * mine.len()..][..mine.len()].copy_from_slice(mine);
                }
                barrier.wait();
                all.copy_from_slice(&table.lock().unwrap());
                barrier.wait();
                Ok(())
            };
            let bootstrap =
                Custom::new(rank, count, u64::from(node(rank)), Box::new(gather)).unwrap();
            // Nobody listens where another rank has failed.
            let _ = done.send((rank, program(rank, bootstrap)));
        });
    }
    drop(done);
    let next = |_| ended.recv_timeout(Duration::from_secs(120));
    let outcomes: Result<Vec<_>, _> = (0..count).map(next).collect();
    outcomes.expect("the job hangs, or a rank panicked")
}
