//! Whole jobs whose ranks are threads: several processes of several nodes, each played by a thread
//! of the test that lends trihop its allgather and hosts its mini-ranks.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use trihop_shuffle::channel::{Descriptor, Return, Timeout};
use trihop_shuffle::minirank::{MiniRank, run_with};
use trihop_shuffle::{
    BroadcastTo, ChannelLimits, Channels, Conveyor, DumpOutput, Error, Options, Rank, Reduce,
    Result, State, StreamOptions,
};
use trihop_transport::bootstrap::{Bootstrap, Custom};

/// How long a job may take before the test gives up on it.
const WATCHDOG: Duration = Duration::from_secs(240);

/// Runs a job with so many processes on each node, and so many ranks in each process; what the
/// processes return, in their order.
fn job<T: Send + 'static>(
    nodes: &[u32],
    ranks: u32,
    program: fn(MiniRank) -> T,
) -> Vec<thread::Result<Result<Vec<T>>>> {
    let placed: Vec<u64> = (0..)
        .zip(nodes)
        .flat_map(|(n, &size)| vec![n; size as usize])
        .collect();
    let size = placed.len() as u32;
    let (table, barrier) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(Barrier::new(placed.len())),
    );
    let (done, ended) = mpsc::channel();
    for (process, node) in (0..).zip(placed) {
        let (table, barrier, done) = (Arc::clone(&table), Arc::clone(&barrier), done.clone());
        thread::spawn(move || {
            let owner = thread::current().id();
            let gather = move |mine: &[u8], all: &mut [u8]| {
                assert_eq!(thread::current().id(), owner, "called on another thread");
                {
                    let mut table = table.lock().unwrap();
                    table.resize(all.len(), 0);
                    table[process as usize * mine.len()..][..mine.len()].copy_from_slice(mine);
                }
                barrier.wait();
                all.copy_from_slice(&table.lock().unwrap());
                barrier.wait();
                Ok(())
            };
            let options = Options {
                loopback: true,
                ..Options::default()
            };
            let bootstrap = Custom::new(process, size, node, Box::new(gather)).unwrap();
            let bootstrap: Box<dyn Bootstrap> = Box::new(bootstrap);
            let run = || run_with(options, bootstrap, ranks, program);
            let _ = done.send((process, catch_unwind(AssertUnwindSafe(run))));
        });
    }
    drop(done);
    let next = |_| ended.recv_timeout(WATCHDOG).expect("the job hangs");
    let mut outcomes: Vec<_> = (0..size).map(next).collect();
    outcomes.sort_by_key(|(process, _)| *process);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// What all ranks of a job return that goes well, in their order; none where there is no provider.
fn well<T: Send + 'static>(
    nodes: &[u32],
    ranks: u32,
    program: fn(MiniRank) -> Result<T>,
) -> Vec<T> {
    let mut all = Vec::new();
    for outcome in job(nodes, ranks, program) {
        match outcome.expect("no rank panics") {
            Err(error @ Error::NoProvider { .. }) => {
                eprintln!("skipped: {error}");
                return Vec::new();
            }
            outcome => all.extend(outcome.unwrap().into_iter().map(Result::unwrap)),
        }
    }
    all
}

/// Nodes, processes of a node, ranks of a process: the three cases of RayPlatform's mini-ranks among
/// them.
const SHAPES: [(&[u32], u32); 8] = [
    (&[1], 1),
    (&[1], 4),
    (&[2], 3),
    (&[1, 1], 1),
    (&[1, 1], 7),
    (&[2, 2], 3),
    (&[2, 1, 2], 2),
    (&[1, 1, 1, 1], 2),
];

/// Every face of a job: records, a broadcast, items whose handler answers, rounds, push and pull,
/// collectives; twice, so that the second stream takes the place of the first one. Returns what it
/// has heard.
fn everything(mini: MiniRank) -> Result<u64> {
    let (me, size, index) = (mini.rank(), mini.size(), mini.index());
    let (heard, answered, in_round) = (
        State::new(HashMap::new()),
        State::new(0u64),
        State::new(0u64),
    );
    let job = mini.start()?;
    assert_eq!((job.rank(), job.size()), (me, size));
    assert_eq!(me.0 % job.topology().relayed_ranks(), index);
    let mut total = 0;
    for turn in 0..2u32 {
        let shuffle = job
            .shuffle("records")
            .handler_with(&heard, |heard: &mut HashMap<u32, Vec<u32>>, message, _| {
                let number = u32::from_le_bytes(message.bytes[..4].try_into().unwrap());
                let long = 4 + 37 * (number as usize % 200);
                assert_eq!((message.kind, message.bytes.len()), (7, long));
                heard.entry(message.source.0).or_default().push(number);
            })
            .open()?;
        let mut dump = Vec::new();
        shuffle.dump(&mut dump).unwrap();
        let dump = String::from_utf8(dump).unwrap();
        let first = format!("stream 1 `records` on rank {me} ");
        assert!(
            dump.starts_with(&first),
            "turn {turn}: it has the place of the first one: {dump}"
        );
        for number in 0..300u32 {
            let mut record = vec![0; 4 + 37 * (number as usize % 200)];
            record[..4].copy_from_slice(&number.to_le_bytes());
            for target in (0..size).filter(|target| (number + target) % 5 == 0) {
                shuffle.send(Rank(target), 7, &record)?;
            }
        }
        let last = 300u32.to_le_bytes();
        let pad = [&last[..], &[0; 37 * 100]].concat();
        shuffle.broadcast(7, &pad, BroadcastTo::Everyone)?;
        shuffle.fence()?;
        let got = heard.with(std::mem::take);
        assert_eq!(got.len(), size as usize, "from every rank");
        for (source, numbers) in got {
            let mut expected: Vec<u32> = (0..300).filter(|n| (n + me.0) % 5 == 0).collect();
            expected.push(300);
            assert_eq!(numbers, expected, "turn {turn}: from {source} to {me}");
            total += numbers.len() as u64;
        }
        shuffle.shutdown()?;

        let stream = job
            .stream::<[u64; 2]>("questions")
            .handler_with(&answered, move |answered, source, items, outbox| {
                for &[kind, value] in items {
                    match kind {
                        0 => outbox.push(source, [1, value + 1]).unwrap(),
                        _ => *answered += value,
                    }
                }
            })
            .open()?;
        for number in 0..1000u64 {
            stream.push(Rank((number * 7 % u64::from(size)) as u32), [0, number])?;
        }
        stream.fence()?;
        assert_eq!(answered.with(std::mem::take), (1..=1000).sum::<u64>());
        stream.shutdown()?;

        let rounds = job
            .stream::<u64>("rounds")
            .handler_with(&in_round, |sum, _, items, _| {
                *sum += items.iter().sum::<u64>()
            })
            .open()?;
        for round in 1..=5u64 {
            for target in 0..size {
                rounds.push(Rank(target), round)?;
            }
            rounds.round()?;
            let sum = in_round.with(std::mem::take);
            assert_eq!(sum, round * u64::from(size), "round {round}");
        }
        rounds.shutdown()?;

        let mut conveyor = Conveyor::over(job.stream::<u32>("pulled").open()?)?;
        let (mut sent, mut pulled) = (0, 0u32);
        while conveyor.advance(sent == 500)? {
            while sent < 500 && conveyor.push(Rank((me.0 + sent) % size), sent)? {
                sent += 1;
            }
            while conveyor.pull()?.is_some() {
                pulled += 1;
            }
        }
        conveyor.shutdown()?;
        let mut sums = [u64::from(pulled), 1];
        job.allreduce(&mut sums, Reduce::Sum)?;
        assert_eq!(sums, [500 * u64::from(size), u64::from(size)]);
        job.barrier()?;
    }
    job.shutdown()?;
    Ok(total)
}

#[test]
fn mini_ranks_do_all_that_ranks_do() {
    for (nodes, ranks) in SHAPES {
        let size = nodes.iter().sum::<u32>() * ranks;
        let heard = well(nodes, ranks, everything);
        for (rank, heard) in heard.into_iter().enumerate() {
            assert_eq!(
                heard,
                2 * u64::from(size) * 61,
                "rank {rank} on {nodes:?} x {ranks}"
            );
        }
    }
}

/// Options that differ are refused on all ranks, and the job goes on.
#[test]
fn mini_ranks_that_differ_are_told_so_and_agree_afterwards() {
    fn differ(mini: MiniRank) -> Result<String> {
        let job = mini.start()?;
        let mut options = StreamOptions {
            remote_maxrpc: 4 + job.rank().0,
            ..StreamOptions::default()
        };
        let refused = job.shuffle("facts").options(options.clone()).open().err();
        options.remote_maxrpc = 4;
        let shuffle = job.shuffle("facts").options(options).open()?;
        shuffle.send(Rank(0), 0, b"now")?;
        shuffle.fence()?;
        drop(shuffle);
        job.shutdown()?;
        Ok(refused.map_or_else(String::new, |error| error.to_string()))
    }
    for text in well(&[1, 1], 2, differ) {
        assert!(
            text.contains("remote_maxrpc is 4 on one rank and 7 on another"),
            "{text}"
        );
    }
}

/// What the ranks of a job say where one of them ends early.
fn failed(nodes: &[u32], ranks: u32, program: fn(MiniRank) -> Result<()>) -> Vec<String> {
    let mut said = Vec::new();
    for outcome in job(nodes, ranks, program) {
        match outcome {
            Ok(Err(Error::NoProvider { .. })) => return Vec::new(),
            Ok(Err(error)) => said.push(error.to_string()),
            Ok(Ok(all)) => {
                let told = all
                    .into_iter()
                    .map(|result| result.unwrap_err().to_string());
                said.extend(told);
            }
            Err(panic) => {
                let text = panic.downcast_ref::<&str>();
                said.push(format!("panicked: {}", text.unwrap()));
            }
        }
    }
    said
}

#[test]
fn a_mini_rank_that_panics_is_named_by_all_others() {
    fn panics(mini: MiniRank) -> Result<()> {
        let job = mini.start()?;
        if job.rank().0 == 4 {
            panic!("no more");
        }
        job.barrier()
    }
    for nodes in [&[3][..], &[1, 2], &[1, 1, 1]] {
        let said = failed(nodes, 2, panics);
        for text in &said {
            let is_it = text == "panicked: no more"
                || text.contains("rank 4") && text.contains("its program has panicked");
            assert!(is_it, "{text}");
        }
        assert!(said.is_empty() || said.len() == 5, "{said:?}");
    }
}

#[test]
fn a_mini_rank_that_leaves_without_the_others_is_named_by_them() {
    fn leaves(mini: MiniRank) -> Result<()> {
        let job = mini.start()?;
        match job.rank().0 {
            1 => Err(Error::Closed("left".into())),
            _ => job.barrier(),
        }
    }
    for nodes in [&[2][..], &[1, 1]] {
        let said = failed(nodes, 2, leaves);
        let others = said.iter().filter(|text| {
            text.contains("rank 1") && text.contains("left the job without shutting it down")
        });
        assert!(said.is_empty() || others.count() == 3, "{said:?}");
    }
}

#[test]
fn a_mini_rank_that_never_starts_is_named_by_the_others() {
    fn stays_away(mini: MiniRank) -> Result<()> {
        match mini.rank().0 {
            3 => Err(Error::Closed("stayed away".into())),
            _ => mini.start()?.shutdown(),
        }
    }
    // One process: the allgather of a test waits for others for ever.
    let said = failed(&[1], 4, stays_away);
    let others = said.iter().filter(|text| text.contains("rank 3"));
    assert!(said.is_empty() || others.count() >= 3, "{said:?}");
}

#[test]
fn numbers_of_ranks_that_cannot_be_are_refused() {
    for ranks in [0, 1025] {
        let outcome = job(&[1], ranks, |mini: MiniRank| drop(mini))
            .pop()
            .unwrap()
            .unwrap();
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("possible are 1 to 1024"), "{text}");
    }
}

/// What every rank has sent to every rank, over streams of several routes at once, and with a
/// broadcast of each rank; of a route that mini-ranks cannot have, why.
fn over_routes(mini: MiniRank) -> Result<String> {
    const EACH: u64 = 300;
    let (ranks, size) = (mini.size(), u64::from(mini.size()));
    let job = mini.start()?;
    let options = |route: &str| StreamOptions {
        route: route.parse().unwrap(),
        ..StreamOptions::default()
    };
    let sums = ["direct", "mesh", "node-mesh:2d", "team-mesh:2d"]
        .map(|route| (route, State::new([0u64; 2])));
    let mut streams = Vec::new();
    for (route, sum) in &sums {
        let stream = job.stream::<u64>(route).options(options(route));
        let stream = stream.handler_with(sum, |sum, _, items, _| {
            sum[0] += items.len() as u64;
            sum[1] += items.iter().sum::<u64>();
        });
        streams.push(stream.open()?);
    }
    for at in 0..EACH {
        for stream in &streams {
            for target in 0..ranks {
                stream.push(Rank(target), at)?;
            }
            if at == EACH / 2 {
                stream.broadcast(1 << 32, BroadcastTo::Everyone)?;
            }
        }
    }
    for stream in streams {
        stream.fence()?;
        stream.round()?;
        stream.shutdown()?;
    }
    for (route, sum) in sums {
        let expected = [
            size * (EACH + 1),
            size * (EACH * (EACH - 1) / 2 + (1 << 32)),
        ];
        assert_eq!(sum.into_inner().unwrap(), expected, "{route}");
    }
    let refused = job.shuffle("links").options(options("fabric-only"));
    let refused = refused.open().err().unwrap();
    job.shutdown()?;
    Ok(refused.to_string())
}

#[test]
fn any_route_without_links_of_ranks_leads_from_relay_to_relay() {
    for (nodes, ranks) in [(&[1][..], 3), (&[1, 1], 2), (&[2, 1, 2], 2), (&[1; 6], 1)] {
        for text in well(nodes, ranks, over_routes) {
            assert!(text.contains("no links of their own"), "{text}");
        }
    }
}

/// Messages of a rank to another one, whose every byte says which it is.
const MESSAGES: [usize; 9] = [
    100,
    1 << 20,
    (3 << 20) + 5,
    7,
    (1 << 20) - 1,
    2 << 20,
    (1 << 20) + (256 << 10),
    0,
    3000,
];

fn message(number: usize, source: u32) -> Vec<u8> {
    let byte = |at: usize| (at * 31 + at / 256 + number * 7 + source as usize) as u8;
    (0..MESSAGES[number % MESSAGES.len()]).map(byte).collect()
}

/// What `call` gives once it does not have to wait.
fn retried<T>(channels: &Channels, call: impl Fn() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Error::WouldBlock) => drop(channels.progress()?),
            outcome => return outcome,
        }
    }
}

/// Each rank sends to a channel of the rank on the next node, in every way, and gets from its own,
/// and from that of the rank that it sends to.
fn long_messages(mini: MiniRank) -> Result<()> {
    const EACH: usize = 2 * MESSAGES.len();
    let (me, size) = (mini.rank().0, mini.size());
    let job = mini.start()?;
    let channels = job.channels("long").open()?;
    let limits = ChannelLimits {
        bytes: 64 << 20,
        messages: 2 * EACH as u32,
        window_bytes: 16 << 20,
        ..ChannelLimits::default()
    };
    let mine = [channels.create(limits)?, channels.create(limits)?];
    let named = mine.each_ref().map(|mine| mine.descriptor().to_bytes());
    let all = job.allgather(named.as_flattened())?;
    let other = (me + size / 2) % size;
    let theirs = all[other as usize].chunks(Descriptor::BYTES);
    let theirs: Vec<_> = theirs
        .map(|bytes| channels.attach(&Descriptor::from_bytes(bytes)?))
        .collect::<Result<_>>()?;
    let mut answers = Vec::new();
    for number in 0..EACH {
        let (bytes, kind) = (message(number, me), number as u32);
        match number % 4 {
            0 => theirs[0].send(kind, &bytes, Return::WhenBuffered, Timeout::Never)?,
            1 => answers.push(retried(&channels, || {
                theirs[0].start_send(kind, &bytes, Return::WhenDeposited, Timeout::Never)
            })?),
            2 => theirs[0].send(kind, &bytes, Return::WhenDeposited, Timeout::Never)?,
            _ => retried(&channels, || {
                theirs[0].send(kind, &bytes, Return::Immediately, Timeout::Never)
            })?,
        }
        mine[1].send(kind, &bytes, Return::WhenDeposited, Timeout::Never)?;
    }
    answers.into_iter().try_for_each(|answer| answer.wait())?;
    for number in 0..EACH {
        for (channel, source) in [(&mine[0], other), (&theirs[1], other)] {
            let got = channel.get(Timeout::Never)?;
            assert_eq!((got.kind, got.source), (number as u32, Rank(source)));
            assert!(got.bytes == message(number, source), "{number} of {source}");
        }
    }
    // What is left in a channel goes with its owner.
    job.barrier()?;
    drop((mine, theirs));
    channels.shutdown()?;
    job.shutdown()
}

/// Rank 0 sends long messages to the last rank. What each relay has sent of that, at its ranks.
fn one_sends(mini: MiniRank) -> Result<u64> {
    const SENT: usize = 8;
    let (me, last) = (mini.rank().0, mini.size() - 1);
    let job = mini.start()?;
    let channels = job.channels("long").open()?;
    let mine = channels.create(ChannelLimits {
        bytes: 16 << 20,
        ..ChannelLimits::default()
    })?;
    let named = job.broadcast(Rank(last), &mine.descriptor().to_bytes())?;
    let theirs = channels.attach(&Descriptor::from_bytes(&named)?)?;
    for _ in 0..SENT {
        match me {
            0 => theirs.send(0, &[7; 4 << 20], Return::WhenReceived, Timeout::Never)?,
            me if me == last => drop(mine.get(Timeout::Never)?),
            _ => {}
        }
    }
    job.barrier()?;
    let sent = channels.relays_wire_bytes()?;
    drop((mine, theirs));
    channels.shutdown()?;
    job.shutdown()?;
    Ok(sent)
}

#[test]
fn long_messages_of_channels_come_whole_and_in_order_over_several_relays() {
    for (nodes, ranks) in [(&[2, 2][..], 1), (&[1, 1], 2), (&[3, 3], 1), (&[2, 2], 2)] {
        well(nodes, ranks, long_messages);
    }
}

/// Long messages of sends that do not wait, and of gets, where one of them may be spilled.
fn without_spill(mini: MiniRank) -> Result<()> {
    const EACH: u32 = 6;
    let (me, size) = (mini.rank().0, mini.size());
    let other = (me + size / 2) % size;
    let job = mini.start()?;
    let options = StreamOptions {
        spill_bytes: (3 << 20) + (256 << 10),
        own_thread: true,
        ..StreamOptions::default()
    };
    let channels = job.channels("long").options(options).open()?;
    let limits = ChannelLimits {
        bytes: 32 << 20,
        ..ChannelLimits::default()
    };
    let mine = [channels.create(limits)?, channels.create(limits)?];
    let named = mine.each_ref().map(|mine| mine.descriptor().to_bytes());
    let all = job.allgather(named.as_flattened())?;
    let theirs = all[other as usize].chunks(Descriptor::BYTES);
    let theirs: Vec<_> = theirs
        .map(|bytes| channels.attach(&Descriptor::from_bytes(bytes)?))
        .collect::<Result<_>>()?;
    let bytes = |number: u32, source: u32| vec![(number * 7 + source) as u8; 3 << 20];
    for number in 0..EACH {
        let message = bytes(number, me);
        mine[0].send(number, &message, Return::WhenDeposited, Timeout::Never)?;
        retried(&channels, || {
            theirs[1].send(number, &message, Return::Immediately, Timeout::Never)
        })?;
    }
    for number in 0..EACH {
        for channel in [&theirs[0], &mine[1]] {
            let got = channel.get(Timeout::Never)?;
            assert!(got.kind == number && got.bytes == bytes(number, other));
        }
    }
    job.barrier()?;
    drop((mine, theirs));
    channels.shutdown()?;
    job.shutdown()
}

#[test]
fn long_messages_that_do_not_wait_need_no_more_spill_than_one() {
    for (nodes, ranks) in [(&[2, 2][..], 1), (&[3, 3], 1)] {
        well(nodes, ranks, without_spill);
    }
}

#[test]
fn one_ranks_long_messages_are_shared_by_the_relays_of_its_node() {
    for (nodes, ranks) in [(&[2, 2][..], 1), (&[3, 1], 1), (&[2, 3], 2)] {
        let sent = well(nodes, ranks, one_sends);
        let relays = sent.chunks(ranks as usize).take(nodes[0] as usize);
        let of_relays: Vec<u64> = relays.map(|ranks| ranks[0]).collect();
        // Each takes parts as it has room: how many is chance.
        let share = of_relays.iter().sum::<u64>() / u64::from(nodes[0]);
        let has_share = of_relays.iter().all(|&bytes| bytes > share / 8);
        assert!(has_share, "{nodes:?} of {ranks}: {of_relays:?}");
    }
}

/// Where the one job of [`dumps`] writes.
fn dump_path() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("trihop-minirank-dump-{}", std::process::id()))
}

/// What endpoint `number` has dumped.
fn dumped(number: u32) -> String {
    let path = dump_path().with_extension(number.to_string());
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_signal_shows_the_queues_of_the_relay_too() {
    fn dumps(mini: MiniRank) -> Result<()> {
        let job = mini.start()?;
        let shuffle = job.shuffle("dumped").open()?;
        job.dump_on(libc::SIGWINCH, DumpOutput::Files(dump_path()))?;
        job.barrier()?;
        if job.rank() == Rank(0) {
            // SAFETY: the signal has a handler, which sets flags.
            assert_eq!(unsafe { libc::raise(libc::SIGWINCH) }, 0);
        }
        while !(0..3).all(|number| dumped(number).contains("stream 1 `dumped` on ")) {
            shuffle.poll()?;
        }
        job.barrier()?;
        shuffle.shutdown()?;
        job.shutdown()
    }
    well(&[1], 2, dumps);
    assert!(dumped(1).contains("on rank 1 "), "{}", dumped(1));
    assert!(
        dumped(2).contains("on relay 2 (of rank 0) "),
        "{}",
        dumped(2)
    );
    for number in 0..3u32 {
        std::fs::remove_file(dump_path().with_extension(number.to_string())).unwrap();
    }
}
