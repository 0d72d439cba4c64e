//! The bound that `dump` prints is never passed, by what `dump` says is in use or by what the
//! process really holds.

use std::cell::Cell;

use trihop::{Error, Job, Options, Rank, Reduce, Shares, Shuffle, StreamOptions};

use crate::allocator::counted_bytes;
use crate::memory::{kib, warmed_up};
use crate::ranks::on_ranks;

/// What a process holds beside its queues, in bytes: tables, the provider's lists, the text of
/// `dump`. Does not depend on traffic.
const BESIDE_BYTES: u64 = 64 << 10;

/// Answers that a rank may wait for. What handlers send has to fit the spill, else nothing promises
/// that it can leave.
const UNANSWERED: u64 = 64;

/// Records that each rank sends in each phase.
const RECORDS: u64 = 1000;

/// Longest record: some fragments.
const LONGEST: usize = 30_000;

/// What records carry. Not allocated: the test itself shall not hold memory that it measures.
static PAYLOAD: [u8; LONGEST] = [7; LONGEST];

/// What `dump` says of a stream.
struct Dump(String);

impl Dump {
    fn of(shuffle: &Shuffle<'_>) -> Self {
        let mut text = Vec::new();
        shuffle.dump(&mut text).unwrap();
        Self(String::from_utf8(text).unwrap())
    }

    /// Lines that hold this text.
    fn lines(&self, text: &str) -> impl Iterator<Item = &str> {
        self.0.lines().filter(move |line| line.contains(text))
    }

    /// The memory bound in bytes.
    fn bound_bytes(&self) -> u64 {
        let line = self.lines("memory bound:").next().unwrap();
        let (_, bound) = line.rsplit_once("= ").unwrap();
        bound.trim_end_matches(" bytes").parse().unwrap()
    }

    /// Every pool and every queue is within its own bound; of lanes, `dump` itself says where one
    /// is not.
    fn check(&self, options: &StreamOptions) {
        assert_eq!(self.lines("CONTRADICTION").next(), None, "{}", self.0);
        let mut pools = 0;
        for line in self.lines("  memory in use: ") {
            let used = number_before(line, " of ");
            assert!(used <= number_before(line, " bytes"), "{}", self.0);
            pools += 1;
        }
        assert_eq!(pools, 8, "{}", self.0);
        for line in self.lines(" in flight (next") {
            assert!(
                number_before(line, " in flight (next") <= options.remote_maxrpc.into(),
                "{}",
                self.0
            );
        }
        if let Some(line) = self.lines("delivery queue:").next() {
            let (records, bytes) = line.split_once(" records, ").unwrap();
            let records = number_before(records, &format!(" of {}", options.deliverq_max));
            let bytes = number_before(bytes, " of ");
            // Into an empty queue one run or record always may come.
            assert!(
                records <= options.deliverq_max as u64 || bytes <= LONGEST as u64 + 1024,
                "{}",
                self.0
            );
        }
    }
}

fn number_before(line: &str, words: &str) -> u64 {
    let (before, _) = line
        .split_once(words)
        .unwrap_or_else(|| panic!("`{words}` in {line}"));
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits
        .parse()
        .unwrap_or_else(|_| panic!("a number before `{words}` in {line}"))
}

/// Memory of this process that no file on disk backs, each shared page divided by the number of
/// those who map it: over all ranks of a node this adds up to what the node holds.
fn held_bytes() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    1024 * (kib(&rollup, "Pss_Anon:") + kib(&rollup, "Pss_Shmem:"))
}

/// Options with queues as small as they may be, or the defaults; long records are bounded in both
/// cases, since the bound would hold two of 64 MiB else.
fn options(tiny: bool) -> StreamOptions {
    let mut options = StreamOptions {
        max_message_bytes: LONGEST,
        ..StreamOptions::default()
    };
    if tiny {
        options.origin_maxrpc = 1;
        options.origin_buftarget_bytes = 64;
        options.relay_maxrpc = 1;
        options.relay_buftarget_bytes = 64;
        options.remote_maxrpc = 1;
        options.remote_buftarget_bytes = 300;
        options.run_bytes = 64;
        options.spill_bytes = 16 << 10;
        options.deliverq_max = 64;
        options.given_shares = Some(Shares {
            run_table_bytes: 256,
            lane_budget_bytes: 8192,
            receive_pool_bytes: 1,
            send_pool_bytes: 1,
            small_slot_bytes: 256,
            spill_mark_bytes: 8 << 10,
            deliverq_bytes: 16 << 10,
            reassembly_bytes: 2 * LONGEST,
            ..Shares::default()
        });
    }
    options
}

/// Length of record `number`: mostly short, some of a frame, few of several fragments.
fn length(number: u64) -> usize {
    match number % 64 {
        0 => LONGEST,
        1..=4 => 3000,
        other => (other * 7 % 300) as usize,
    }
}

/// Sends as fast as the queues take it and `may_send` (asked with the number of records sent)
/// allows, to all ranks in turn, and looks at `dump` all the while. `make_room` takes deliveries
/// where nobody else does. Returns what this process held at most.
fn hammer(
    shuffle: &Shuffle<'_>,
    job: &Job<'_>,
    options: &StreamOptions,
    may_send: impl Fn(u64) -> bool,
    make_room: impl Fn(),
) -> u64 {
    let (mut number, mut rounds, mut most) = (0, 0u64, 0);
    while number < RECORDS {
        let target = Rank((number % u64::from(job.size())) as u32);
        let sent = match may_send(number) {
            true => shuffle.try_send(target, 0, &PAYLOAD[..length(number)]),
            false => Err(Error::WouldBlock),
        };
        match sent {
            Ok(()) => number += 1,
            Err(Error::WouldBlock) => {
                if !job.progress().unwrap() {
                    std::thread::yield_now();
                }
                rounds += 1;
                if rounds.is_multiple_of(16) {
                    make_room();
                }
                if rounds.is_multiple_of(64) {
                    Dump::of(shuffle).check(options);
                    most = held_bytes().max(most);
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    while let Err(error) = shuffle.fence() {
        assert!(matches!(error, Error::WouldBlock), "{error}");
        make_room();
    }
    make_room();
    most
}

/// Runs `work` twice on this rank, with options as small as they may be and with defaults. It opens
/// a shuffle, uses it, and returns it with what the process held at most meanwhile: no more than
/// before and the bound that the shuffle prints.
fn check_growth<'h>(job: &Job<'h>, work: impl Fn(&StreamOptions) -> (Shuffle<'h>, u64)) {
    warmed_up(job).shutdown().unwrap();
    for (what, tiny) in [("tiny queues", true), ("default queues", false)] {
        job.barrier().unwrap();
        let before = held_bytes();
        // Nobody opens anything before everybody has looked.
        job.barrier().unwrap();
        let (shuffle, most) = work(&options(tiny));
        let (now, bound) = (held_bytes(), Dump::of(&shuffle).bound_bytes());
        // Nor unmaps or touches anything.
        job.barrier().unwrap();
        let most = most.max(now).saturating_sub(before);
        eprintln!("{what}: {most} bytes more than before opening, bound {bound}");
        assert!(
            most <= bound + BESIDE_BYTES,
            "{what}: {most} bytes are held, the bound is {bound}"
        );
        let mut sums = [now.saturating_sub(before), bound];
        job.allreduce(&mut sums, Reduce::Sum).unwrap();
        assert!(
            sums[0] <= sums[1] + BESIDE_BYTES * u64::from(job.size()),
            "{what}: all ranks hold {}, the bounds are {}",
            sums[0],
            sums[1]
        );
        shuffle.shutdown().unwrap();
    }
}

#[test]
fn what_an_endpoint_allocates_stands_in_the_dump() {
    let test = "bound::what_an_endpoint_allocates_stands_in_the_dump";
    on_ranks(test, "1,1", |job| {
        let shuffle = job.shuffle("dumped").open().unwrap();
        let dump = Dump::of(&shuffle);
        let line = dump.lines("memory of the endpoint").next().unwrap();
        let said = number_before(line, " bytes");
        // The same once more, over the same provider.
        let choice = Options::from_env().unwrap().choice();
        let (link, bytes) = counted_bytes(|| trihop::transport::fabric::open(&choice).unwrap());
        eprintln!(
            "{}: {bytes} bytes are allocated, {said} are said",
            link.name()
        );
        assert_eq!(Some(link.name()), job.provider());
        assert!(
            said > 0 && said <= bytes && bytes <= said + BESIDE_BYTES,
            "{said}, {bytes}"
        );
        drop(link);
        shuffle.shutdown().unwrap();
        job.shutdown().unwrap();
    });
}

#[test]
fn handlers_that_answer_stay_below_the_printed_bound() {
    let test = "bound::handlers_that_answer_stay_below_the_printed_bound";
    for nodes in ["3", "2,2", "1,1,1"] {
        on_ranks(test, nodes, |job| {
            check_growth(&job, |options| {
                let answers: &Cell<u64> = Box::leak(Box::default());
                let shuffle = job
                    .shuffle("answered")
                    .options(options.clone())
                    .handler(|message, outbox| match message.kind {
                        0 => outbox.send(message.source, 1, b"answer").unwrap(),
                        _ => answers.set(answers.get() + 1),
                    })
                    .open()
                    .unwrap();
                let may_send = |sent| sent < answers.get() + UNANSWERED;
                let most = hammer(&shuffle, &job, options, may_send, || ());
                assert_eq!(answers.get(), RECORDS);
                (shuffle, most)
            });
            job.shutdown().unwrap();
        });
    }
}

#[test]
fn records_that_wait_to_be_taken_stay_below_the_printed_bound() {
    let test = "bound::records_that_wait_to_be_taken_stay_below_the_printed_bound";
    on_ranks(test, "2,2", |job| {
        check_growth(&job, |options| {
            let taken = Cell::new(0);
            let shuffle = job
                .shuffle("untaken")
                .options(options.clone())
                .open()
                .unwrap();
            let take = || {
                shuffle.take(|_| taken.set(taken.get() + 1)).unwrap();
            };
            let most = hammer(&shuffle, &job, options, |_| true, take);
            let mut all = [taken.get()];
            job.allreduce(&mut all, Reduce::Sum).unwrap();
            assert_eq!(all[0], RECORDS * u64::from(job.size()));
            (shuffle, most)
        });
        job.shutdown().unwrap();
    });
}
