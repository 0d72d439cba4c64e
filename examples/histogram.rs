//! A histogram whose table is spread over all ranks: each update is an 8-byte item for the rank that
//! owns its place, and the tables are compared with what every rank ought to have been sent:
//! `trihop run -n 4 --nodes 2 -- target/release/examples/histogram [UPDATES]`.

use trihop::{Job, Options, Rank, Reduce, State};

const PLACES_PER_RANK: u64 = 10_000;

/// The places that a rank updates, all over the table: the same wherever it is asked.
fn updates(rank: u32, size: u32, count: u64) -> impl Iterator<Item = u64> {
    let mut word = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::from(rank) + 1);
    let places = PLACES_PER_RANK * u64::from(size);
    (0..count).map(move |_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word % places
    })
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| {
        text.parse().map_err(|_| format!("{text} is not a number"))
    })?;

    let job = Job::start(Options::from_env()?)?;
    let (rank, size) = (job.rank(), job.size());
    let table = State::new(vec![0u64; PLACES_PER_RANK as usize]);
    let stream = job
        .stream::<u64>("histogram")
        .handler_with(&table, |table, _source, places, _outbox| {
            for &place in places {
                table[place as usize] += 1;
            }
        })
        .open()?;
    let items = updates(rank.0, size, count).map(|place| {
        let owner = Rank((place / PLACES_PER_RANK) as u32);
        (owner, place % PLACES_PER_RANK)
    });
    stream.extend(items)?;
    stream.fence()?;

    let mut expected = vec![0u64; PLACES_PER_RANK as usize];
    for source in 0..size {
        let own = updates(source, size, count)
            .filter(|place| place / PLACES_PER_RANK == u64::from(rank.0));
        own.for_each(|place| expected[(place % PLACES_PER_RANK) as usize] += 1);
    }
    let (updated, is_right) = table.with(|table| (table.iter().sum(), *table == expected));
    let mut totals = [updated, u64::from(!is_right)];
    job.allreduce(&mut totals, Reduce::Sum)?;
    let [updated, wrong] = totals;
    if rank == Rank(0) {
        println!("{size} ranks: {updated} updates, {wrong} tables are wrong");
    }
    stream.shutdown()?;
    job.shutdown()?;
    if totals != [count * u64::from(size), 0] {
        return Err("every update has to be in its place, once".into());
    }
    Ok(())
}
