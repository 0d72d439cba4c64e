//! An index gather over two streams of one job that take different ways: requests go along a grid of
//! ranks, answers over the representatives of the nodes. Every answer is verified:
//! `trihop run -n 8 --nodes 2 -- target/release/examples/routes [REQUESTS] [ROUTE]`.

use trihop::{Error, Job, Options, Rank, Reduce, State, StreamOptions};

const PLACES_PER_RANK: u64 = 1 << 12;

/// What the table has at a place.
fn value(place: u64) -> u64 {
    place.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
}

/// What the handlers have seen.
#[derive(Default)]
struct Seen {
    answers: u64,
    wrong: u64,
    failure: Option<Error>,
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments.next().map_or(Ok(200_000), |text| {
        text.parse().map_err(|_| format!("{text} is not a number"))
    })?;
    let route = arguments.next().unwrap_or_else(|| "mesh".to_owned());

    let job = Job::start(Options::from_env()?)?;
    let (rank, size) = (job.rank(), job.size());
    let table: Vec<u64> = (0..PLACES_PER_RANK)
        .map(|place| value(u64::from(rank.0) * PLACES_PER_RANK + place))
        .collect();
    let seen = State::new(Seen::default());
    // The place, and what is there.
    let answers = job
        .stream::<[u64; 2]>("answers")
        .handler_with(&seen, |seen, _source, answers, _outbox| {
            for &[place, found] in answers {
                seen.answers += 1;
                seen.wrong += u64::from(found != value(place));
            }
        })
        .open()?;
    let on_answers = answers.clone();
    let requests = job
        .stream::<u64>("requests")
        .options(StreamOptions {
            route: route.parse()?,
            ..StreamOptions::default()
        })
        .handler_with(&seen, move |seen, source, places, outbox| {
            let found = places.iter().map(|&place| {
                let here = (place % PLACES_PER_RANK) as usize;
                (source, [place, table[here]])
            });
            let answered = outbox
                .on(&on_answers)
                .and_then(|mut answers| answers.extend(found));
            if let Err(error) = answered {
                seen.failure.get_or_insert(error);
            }
        })
        .open()?;
    let places = u64::from(size) * PLACES_PER_RANK;
    let asked = (0..count).map(|number| {
        let place = value(number + u64::from(rank.0) * count) % places;
        (Rank((place / PLACES_PER_RANK) as u32), place)
    });
    requests.extend(asked)?;
    requests.fence()?;
    answers.fence()?;

    let mut totals = seen.with(|seen| match seen.failure.take() {
        Some(error) => Err(error),
        None => Ok([seen.answers, seen.wrong]),
    })?;
    job.allreduce(&mut totals, Reduce::Sum)?;
    if rank == Rank(0) {
        let [answers, wrong] = totals;
        println!("{size} ranks, requests by {route}: {answers} answers, {wrong} wrong");
    }
    requests.shutdown()?;
    answers.shutdown()?;
    job.shutdown()?;
    if totals != [count * u64::from(size), 0] {
        return Err("every request has to have its answer, once".into());
    }
    Ok(())
}
