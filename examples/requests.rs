//! Requests of 4,000 bytes to random ranks; the handler answers each on the stream that it came by,
//! and every answer is verified: `trihop run -n 4 --nodes 2 -- target/release/examples/requests
//! [REQUESTS]`.

use trihop::{Error, Job, Options, Rank, Reduce, State};

/// Kinds of records.
const REQUEST: u32 = 0;
const ANSWER: u32 = 1;

/// Words of a record: its number, and what is mixed from that and the rank that asks.
const WORDS: u64 = 500;

/// What the handler has seen. It is called by `send` and `fence`, on the one thread.
#[derive(Default)]
struct Seen {
    requests: u64,
    answers: u64,
    wrong: u64,
    /// Whether a request has its answer.
    answered: Vec<bool>,
    /// Why a send of the handler failed.
    failure: Option<Error>,
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A request of `asks`, and what its answer has to be.
fn fill(record: &mut Vec<u8>, number: u64, asks: Rank) {
    let mixed = mix(number << 20 | u64::from(asks.0));
    let words = (1..WORDS).map(|word| mixed.wrapping_add(word));
    record.clear();
    for word in std::iter::once(number).chain(words) {
        record.extend_from_slice(&word.to_le_bytes());
    }
}

fn number_of(record: &[u8]) -> Option<u64> {
    record.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = std::env::args().nth(1).map_or(Ok(200_000), |text| {
        text.parse().map_err(|_| format!("{text} is not a number"))
    })?;
    let seen = State::new(Seen {
        answered: vec![false; usize::try_from(count)?],
        ..Seen::default()
    });

    let job = Job::start(Options::from_env()?)?;
    let (rank, size) = (job.rank(), job.size());
    let mut expected = Vec::new();
    let shuffle = job
        .shuffle("requests")
        .handler_with(&seen, move |seen, message, outbox| {
            let asks = if message.kind == REQUEST {
                message.source
            } else {
                rank
            };
            let number = number_of(message.bytes).unwrap_or(u64::MAX);
            fill(&mut expected, number, asks);
            seen.wrong += u64::from(message.bytes != expected);
            if message.kind == REQUEST {
                seen.requests += 1;
                // Here a send never waits: what no queue has room for waits in memory.
                if let Err(error) = outbox.send(message.source, ANSWER, message.bytes) {
                    seen.failure.get_or_insert(error);
                }
                return;
            }
            seen.answers += 1;
            let answered = seen.answered.get_mut(number as usize);
            let is_new = answered.map(|answered| !std::mem::replace(answered, true));
            seen.wrong += u64::from(is_new != Some(true));
        })
        .open()?;
    let mut request = Vec::new();
    for number in 0..count {
        let target = mix(number + u64::from(rank.0) * count + 1) % u64::from(size);
        fill(&mut request, number, rank);
        shuffle.send(Rank(target as u32), REQUEST, &request)?;
    }
    shuffle.fence()?;
    let mut totals = seen.with(|seen| match seen.failure.take() {
        Some(error) => Err(error),
        None => {
            seen.wrong += u64::from(seen.answers != count);
            Ok([seen.requests, seen.answers, seen.wrong])
        }
    })?;
    job.allreduce(&mut totals, Reduce::Sum)?;
    let [requests, answers, wrong] = totals;
    if rank == Rank(0) {
        println!("{size} ranks: {requests} requests, {answers} answers, {wrong} wrong");
    }
    shuffle.shutdown()?;
    job.shutdown()?;
    let all = count * u64::from(size);
    if totals != [all, all, 0] {
        return Err(format!("expected {all} requests, as many answers, none wrong").into());
    }
    Ok(())
}
