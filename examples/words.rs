//! Counts the words of a text: each rank reads a part of it, and each word is counted by the rank
//! that its hash names: `trihop run -n 4 --nodes 2 -- target/release/examples/words [FILE]`.
//!
//! A word is a run of letters, in whichever case; bytes above ASCII are letters. Every rank
//! compares its counts with those of a sequential run.

use std::collections::HashMap;

use trihop::{Job, Options, Rank, Reduce, Shuffle, State};

#[path = "text/mod.rs"]
mod text;
use text::Text;

type Counts = HashMap<Vec<u8>, u64>;

/// Words whose counts are added up before they travel: most of a text is few words.
const GATHERED: usize = 4096;

/// Words that are printed.
const SHOWN: usize = 5;

/// A text in which word n is as frequent as 1 / n.
fn made() -> String {
    let mut state = 1u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut text = String::new();
    for place in 0..200_000 {
        let mut number = 10_000f64.powf(random()) as u32;
        while number > 0 {
            text.push((b'a' + (number % 26) as u8) as char);
            number /= 26;
        }
        text.push(if place % 12 == 11 { '\n' } else { ' ' });
    }
    text
}

fn words(text: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    text.split(|byte| byte.is_ascii() && !byte.is_ascii_alphabetic())
        .filter(|word| !word.is_empty())
        .map(<[u8]>::to_ascii_lowercase)
}

/// Who counts a word.
fn owner(word: &[u8], ranks: u32) -> Rank {
    let hash = word.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Rank((hash % u64::from(ranks)) as u32)
}

/// A record is a count, then the word.
fn record(word: &[u8], count: u64) -> Vec<u8> {
    [&count.to_le_bytes(), word].concat()
}

fn parsed(record: &[u8]) -> (&[u8], u64) {
    let (count, word) = record.split_first_chunk().expect("a count");
    (word, u64::from_le_bytes(*count))
}

fn send_all(shuffle: &Shuffle<'_>, ranks: u32, counts: &mut Counts) -> trihop::Result<()> {
    for (word, count) in counts.drain() {
        shuffle.send(owner(&word, ranks), 0, &record(&word, count))?;
    }
    Ok(())
}

/// The most frequent first.
fn sorted(counts: impl IntoIterator<Item = (Vec<u8>, u64)>) -> Vec<(Vec<u8>, u64)> {
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.cmp(b)));
    sorted
}

#[allow(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = Text::named_or("a made text", made);
    let counted = State::new(Counts::new());

    let job = Job::start(Options::from_env()?)?;
    let (rank, ranks) = (job.rank(), job.size());
    let shuffle = job
        .shuffle("words")
        .handler_with(&counted, |counted, message, _outbox| {
            let (word, count) = parsed(message.bytes);
            match counted.get_mut(word) {
                Some(sum) => *sum += count,
                None => drop(counted.insert(word.to_vec(), count)),
            }
        })
        .open()?;
    let mut gathered = Counts::new();
    for word in words(&text.part(rank.0, ranks)?) {
        *gathered.entry(word).or_default() += 1;
        if gathered.len() == GATHERED {
            send_all(&shuffle, ranks, &mut gathered)?;
        }
    }
    send_all(&shuffle, ranks, &mut gathered)?;
    shuffle.round()?;

    let counted = counted.with(std::mem::take);
    let mut expected = Counts::new();
    for word in words(&text.whole()?).filter(|word| owner(word, ranks) == rank) {
        *expected.entry(word).or_default() += 1;
    }
    let mut totals = [
        counted.values().sum(),
        counted.len() as u64,
        u64::from(counted != expected),
    ];
    job.allreduce(&mut totals, Reduce::Sum)?;
    let [all, distinct, wrong] = totals;
    // The most frequent of all are among the most frequent of each rank.
    let own = sorted(counted).into_iter().take(SHOWN);
    let own: Vec<u8> = own
        .flat_map(|(word, count)| [count.to_string().as_bytes(), b" ", &word, b"\n"].concat())
        .collect();
    let best = job.allgather(&own)?.concat();
    if rank == Rank(0) {
        println!(
            "{}: {ranks} ranks: {all} words, {distinct} different, {wrong} tables are wrong",
            text.name()
        );
        let best = best.split(|byte| *byte == b'\n').filter_map(|line| {
            let (count, word) = line.split_at(line.iter().position(|byte| *byte == b' ')?);
            let count: u64 = std::str::from_utf8(count).ok()?.parse().ok()?;
            Some((word[1..].to_vec(), count))
        });
        for (word, count) in sorted(best).into_iter().take(SHOWN) {
            println!("{count:>8} {}", String::from_utf8_lossy(&word));
        }
    }
    shuffle.shutdown()?;
    job.shutdown()?;
    match wrong {
        0 => Ok(()),
        _ => Err("every word has to be counted as a sequential run counts it".into()),
    }
}
