//! Lookups in a table that is spread over all ranks, with replies in the order of the requests, and
//! counts that are merged before they travel:
//! `trihop run -n 4 --nodes 2 -- target/release/examples/replies`.

use trihop::{Job, Merging, Options, Rank, Replies, State};

const ENTRIES: u64 = 1000;

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), trihop::Error> {
    let counts = State::new(vec![0u64; ENTRIES as usize]);
    let job = Job::start(Options::from_env()?)?;
    let (rank, ranks) = (u64::from(job.rank().0), u64::from(job.size()));

    // Entry e of rank r is r * 1,000,000 + e.
    let table: Vec<u64> = (0..ENTRIES).map(|entry| rank * 1_000_000 + entry).collect();
    let answer = move |_, entry: u64| table[entry as usize];
    let mut lookups = Replies::open(&job, "lookups", 4096, answer)?;
    let request = |n: u64| (n * 7 % ranks, n * 13 % ENTRIES);
    let (mut asked, mut pulled) = (0, 0);
    while pulled < 20_000 {
        while asked < 20_000 {
            let (owner, entry) = request(asked);
            if !lookups.ask(Rank(owner as u32), entry)? {
                break;
            }
            asked += 1;
        }
        while let Some(value) = lookups.pull()? {
            let (owner, entry) = request(pulled);
            assert_eq!(value, owner * 1_000_000 + entry, "reply {pulled}");
            pulled += 1;
        }
    }
    lookups.fence()?;

    // Few places are hit often: most counts join another one instead of travelling.
    let stream = job
        .stream::<[u64; 2]>("counts")
        .handler_with(&counts, |counts, _, items, _| {
            for [place, count] in items {
                counts[*place as usize] += count;
            }
        })
        .open()?;
    let key = |item: &[u64; 2]| item[0];
    let mut merging = Merging::over(&stream, 1024, key, |sum, item| sum[1] += item[1])?;
    for n in 0..100_000u64 {
        merging.push(Rank((n % ranks) as u32), [n * n % 97, 1])?;
    }
    merging.flush()?;
    stream.round()?;
    let mut total = [
        counts.with(|counts| counts.iter().sum::<u64>()),
        merging.merged(),
    ];
    job.allreduce(&mut total, trihop::Reduce::Sum)?;
    if rank == 0 {
        println!(
            "{ranks} ranks: {pulled} replies in order; {} counts, {} of them merged",
            total[0], total[1]
        );
    }
    assert_eq!(total[0], 100_000 * ranks);
    stream.shutdown()?;
    lookups.shutdown()?;
    job.shutdown()
}
