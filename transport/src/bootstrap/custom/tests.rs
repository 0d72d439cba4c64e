//! Threads are the ranks; a table under a lock and a barrier are their allgather.

use std::sync::{Arc, Condvar, Mutex};

use super::*;
use crate::watchdog;

/// What the threads of one job share: each call is place, wait, read, wait.
struct Gathering {
    size: usize,
    table: Mutex<Vec<u8>>,
    /// How many arrivals there were, in this barrier and all before.
    arrivals: Mutex<usize>,
    moved: Condvar,
}

impl Gathering {
    fn of(size: usize) -> Arc<Self> {
        Arc::new(Self {
            size,
            table: Mutex::new(Vec::new()),
            arrivals: Mutex::new(0),
            moved: Condvar::new(),
        })
    }

    /// A barrier that does not wait for ever for a thread that has panicked.
    fn barrier(&self) {
        let mut arrivals = self.arrivals.lock().unwrap();
        *arrivals += 1;
        let complete = arrivals.next_multiple_of(self.size);
        self.moved.notify_all();
        let (_arrivals, late) = self
            .moved
            .wait_timeout_while(arrivals, watchdog::PERIOD, |arrivals| *arrivals < complete)
            .unwrap();
        assert!(!late.timed_out(), "a thread did not come to the barrier");
    }

    /// The callback of the thread that puts its contribution in this place.
    fn callback(self: &Arc<Self>, place: usize) -> Allgather {
        let this = Arc::clone(self);
        Box::new(move |mine, all| {
            {
                let mut table = this.table.lock().unwrap();
                table.resize(this.size * mine.len(), 0xee);
                table[place * mine.len()..][..mine.len()].copy_from_slice(mine);
            }
            this.barrier();
            let table = this.table.lock().unwrap().clone();
            let bytes = all.len().min(table.len());
            all[..bytes].copy_from_slice(&table[..bytes]);
            this.barrier();
            Ok(())
        })
    }
}

/// Runs a job whose rank in place `p` says that it is `ranks[p].0` of `ranks[p].1` on node
/// `ranks[p].2`.
fn job<T: Send>(ranks: &[(u32, u32, u64)], run: impl Fn(Result<Custom>) -> T + Sync) -> Vec<T> {
    let gathering = Gathering::of(ranks.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .enumerate()
            .map(|(place, &(rank, size, node))| {
                let (callback, run) = (gathering.callback(place), &run);
                scope.spawn(move || run(Custom::new(rank, size, node, callback)))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn whys(ranks: &[(u32, u32, u64)]) -> Vec<String> {
    job(ranks, |custom| custom.unwrap_err().to_string())
}

#[test]
fn ranks_of_a_node_need_not_be_neighbours() {
    let placed = job(
        &[
            (0, 5, 900),
            (1, 5, 7),
            (2, 5, 900),
            (3, 5, u64::MAX),
            (4, 5, 7),
        ],
        |custom| {
            let custom = custom.unwrap();
            assert_eq!(custom.launcher().name(), "custom");
            let topology = custom.topology();
            (topology.node().0, topology.local_rank(), topology.nodes())
        },
    );
    assert_eq!(
        placed,
        [(0, 0, 3), (1, 0, 3), (0, 1, 3), (2, 0, 3), (1, 1, 3)]
    );
}

#[test]
fn what_was_put_before_a_fence_is_got_after_it() {
    // Lengths differ between ranks and fences, and one rank puts nothing at all.
    let value =
        |rank: u32, round: u32| vec![(16 * round + rank) as u8; (rank * 100 + round * 7) as usize];
    let ranks: Vec<(u32, u32, u64)> = (0..4).map(|r| (r, 4, u64::from(r / 2))).collect();
    job(&ranks, |custom| {
        let mut custom = custom.unwrap();
        let me = custom.topology().rank().0;
        for round in 0..3 {
            if me != 2 {
                custom
                    .put(&format!("round-{round}"), &value(me, round))
                    .unwrap();
                custom.put(&format!("empty-{round}"), b"").unwrap();
                assert_eq!(
                    custom.get(Rank(me), &format!("round-{round}")).unwrap(),
                    None
                );
            }
            custom.fence().unwrap();
            for rank in (0..4).map(Rank) {
                for before in 0..=round {
                    let got = custom.get(rank, &format!("round-{before}")).unwrap();
                    assert_eq!(got, (rank.0 != 2).then(|| value(rank.0, before)));
                    let got = custom.get(rank, &format!("empty-{before}")).unwrap();
                    assert_eq!(got, (rank.0 != 2).then(Vec::new));
                }
                assert_eq!(custom.get(rank, "round").unwrap(), None);
            }
        }
        assert_eq!(custom.get(Rank(4), "round-0").unwrap(), None);
        custom.fence().unwrap();
        custom.finalize().unwrap();
    });
}

#[test]
fn a_value_and_what_is_put_before_a_fence_have_a_limit() {
    job(&[(0, 1, 0)], |custom| {
        let mut custom = custom.unwrap();
        let value = vec![7; custom.value_limit()];
        let text = custom
            .put("longer", &[&value[..], &[7]].concat())
            .unwrap_err();
        assert!(text.to_string().contains("65537"), "{text}");
        let mut count = 0;
        while custom.put(&format!("key-{count}"), &value).is_ok() {
            count += 1;
        }
        assert_eq!(
            count, 15,
            "16 values of 64 KiB and their keys are above 1 MiB"
        );
        custom.fence().unwrap();
        assert_eq!(custom.get(Rank(0), "key-14").unwrap(), Some(value));
        assert_eq!(custom.get(Rank(0), "key-15").unwrap(), None);
    });
}

#[test]
fn a_rank_outside_the_job_is_refused_before_anything_is_gathered() {
    for (rank, size) in [(3, 3), (0, 0), (u32::MAX, 2)] {
        let untouched: Allgather = Box::new(|_, _| panic!("not to be called"));
        let text = Custom::new(rank, size, 0, untouched)
            .unwrap_err()
            .to_string();
        assert!(text.contains(&format!("{rank} is not below")), "{text}");
    }
}

#[test]
fn ranks_that_disagree_are_told_so_on_every_rank() {
    for text in whys(&[(0, 3, 0), (1, 3, 0), (1, 3, 0)]) {
        assert!(
            text.contains("place of rank 2 stands the contribution of rank 1"),
            "{text}"
        );
    }
    for text in whys(&[(1, 2, 0), (0, 2, 0)]) {
        assert!(text.contains("in rank order"), "{text}");
    }
    let texts = whys(&[(0, 2, 0), (1, 3, 0)]);
    assert!(
        texts[0].contains("rank 1 was told of a job of 3 ranks, this rank of 2"),
        "{texts:?}"
    );
    // The other one looks into a table that is longer than what was gathered, or finds the first
    // difference.
    assert!(
        texts[1].contains("rank 0 was told of a job of 2 ranks, this rank of 3"),
        "{texts:?}"
    );
}

#[test]
fn a_callback_that_does_nothing_is_noticed() {
    let text = Custom::new(0, 2, 0, Box::new(|_, _| Ok(())))
        .unwrap_err()
        .to_string();
    assert!(text.contains("no valid contribution of rank 0"), "{text}");
}

/// A job of two as rank 0 sees it, whose callback answers what the test says at each call.
fn scripted(answers: Vec<std::result::Result<Vec<u8>, i32>>) -> Result<Custom> {
    let mut answers = answers.into_iter();
    let mut called = false;
    Custom::new(
        0,
        2,
        1,
        Box::new(move |mine, all| {
            all[..mine.len()].copy_from_slice(mine);
            if std::mem::replace(&mut called, true) {
                let theirs = answers.next().expect("scripted")?;
                all[mine.len()..].copy_from_slice(&theirs);
                return Ok(());
            }
            all[mine.len()..].copy_from_slice(mine);
            all[mine.len() + 8] = 1;
            Ok(())
        }),
    )
}

#[test]
fn a_callback_that_fails_is_an_error_with_its_status() {
    let text = Custom::new(0, 1, 0, Box::new(|_, _| Err(-7)))
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("returned -7 while exchanging who is where"),
        "{text}"
    );
    let text = scripted(vec![Err(13)])
        .unwrap()
        .fence()
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("custom") && text.contains("returned 13"),
        "{text}"
    );
    let mut custom = scripted(vec![Ok(3u64.to_le_bytes().to_vec()), Err(14)]).unwrap();
    let text = custom.fence().unwrap_err().to_string();
    assert!(text.contains("14 while exchanging values"), "{text}");
}

#[test]
fn bytes_that_no_rank_puts_are_errors() {
    let text = scripted(vec![Ok(u64::MAX.to_le_bytes().to_vec())])
        .unwrap()
        .fence()
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("rank 1 announces 18446744073709551615"),
        "{text}"
    );
    for blob in [
        &[255, b'k'][..],
        &[1],
        &[1, b'k', 9, 0, 0, 0],
        &[1, b'k', 255, 255, 255, 255, 0],
        &[25; 64],
    ] {
        let answers = vec![
            Ok((blob.len() as u64).to_le_bytes().to_vec()),
            Ok(blob.to_vec()),
        ];
        let mut custom = scripted(answers).unwrap();
        custom.fence().unwrap();
        assert_eq!(custom.get(Rank(0), "key").unwrap(), None);
        let text = custom.get(Rank(1), "key").unwrap_err().to_string();
        assert!(text.contains("gathered of rank 1"), "{text}");
    }
}
