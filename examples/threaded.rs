//! An all-to-all with a progress thread: `trihop run -n 8 --nodes 4
//! target/release/examples/threaded [RECORDS] [BYTES]`.
//!
//! Every rank sends records to ranks at random; a delivery thread counts and checks them.

#![allow(clippy::disallowed_types)] // an application of its own

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use trihop::{Options, Rank, Reduce, threaded};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let records: u64 = arguments.next().map_or(Ok(1_000_000), |text| {
        text.parse().map_err(|_| format!("{text} is not a number"))
    })?;
    let bytes: usize = arguments.next().map_or(Ok(24), |text| {
        text.parse().map_err(|_| format!("{text} is not a number"))
    })?;

    let job = threaded::Job::start(Options::from_env()?)?;
    let (heard, sum) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (hear, add) = (Arc::clone(&heard), Arc::clone(&sum));
    let shuffle = job
        .shuffle("all to all")
        .handler(move |message, _| {
            hear.fetch_add(1, Ordering::Relaxed);
            let first = message.bytes.first().copied().unwrap_or(0);
            add.fetch_add(u64::from(first), Ordering::Relaxed);
        })
        .open()?;
    let mut record = vec![1u8; bytes];
    job.barrier()?;
    let began = Instant::now();
    let mut random = 0x9e37_79b9_7f4a_7c15 ^ u64::from(job.rank().0 + 1);
    let mut sent = 0;
    for number in 0..records {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if let Some(first) = record.first_mut() {
            *first = number as u8;
            sent += u64::from(*first);
        }
        let target = Rank((random % u64::from(job.size())) as u32);
        shuffle.send(target, 0, &record)?;
    }
    shuffle.fence()?;
    let seconds = began.elapsed().as_secs_f64();
    let mut totals = [
        records,
        sent,
        heard.load(Ordering::Relaxed),
        sum.load(Ordering::Relaxed),
    ];
    job.allreduce(&mut totals, Reduce::Sum)?;
    if totals[0] != totals[2] || totals[1] != totals[3] {
        return Err(format!("records and sums differ: {totals:?}").into());
    }
    if job.rank() == Rank(0) {
        let rate = totals[0] as f64 / seconds;
        let text = format!(
            "{} records of {bytes} bytes in {seconds:.3} s: {rate:.0} per second",
            totals[0]
        );
        std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes())?;
    }
    job.shutdown()?;
    Ok(())
}
