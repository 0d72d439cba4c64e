//! Channels that go from one job to the next.

use std::sync::{Mutex, PoisonError};

use super::*;
use crate::seat::Seat;

/// What the ranks take from one job into the next, by rank.
struct Between {
    kept: Vec<Mutex<Option<Kept>>>,
    named: Mutex<Vec<Descriptor>>,
    /// Channels that a message has come to once the job had failed.
    late: Mutex<Vec<Descriptor>>,
}

impl Between {
    fn of(ranks: u32) -> &'static Self {
        let kept = (0..ranks).map(|_| Mutex::default());
        Box::leak(Box::new(Self {
            kept: kept.collect(),
            named: Mutex::default(),
            late: Mutex::default(),
        }))
    }

    fn keep(&self, rank: u32, kept: Kept) {
        *self.kept[rank as usize].lock().unwrap() = Some(kept);
    }

    fn kept(&self, rank: u32) -> Option<Kept> {
        let kept = self.kept[rank as usize].lock();
        kept.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn named(&self) -> Vec<Descriptor> {
        self.named.lock().unwrap().clone()
    }
}

/// A job of its own on each rank, on either seat.
trait Jobs: Seat + Sized + 'static {
    fn begin(bootstrap: Custom) -> Result<over::Job<Self>>;
    fn open_all(builder: over::ChannelsBuilder<Self>) -> Result<over::Channels<Self>>;
}

impl Jobs for crate::Inline<'static> {
    fn begin(bootstrap: Custom) -> Result<over::Job<Self>> {
        Job::start_with(loopback(), Box::new(bootstrap))
    }
    fn open_all(builder: over::ChannelsBuilder<Self>) -> Result<over::Channels<Self>> {
        builder.open()
    }
}

impl Jobs for threaded::Threaded {
    fn begin(bootstrap: Custom) -> Result<over::Job<Self>> {
        threaded::Job::start_with(loopback(), Box::new(bootstrap))
    }
    fn open_all(builder: over::ChannelsBuilder<Self>) -> Result<over::Channels<Self>> {
        builder.open()
    }
}

/// Runs a job in which all ranks succeed; false where there is no provider.
fn run<S: Jobs>(
    count: u32,
    between: &'static Between,
    program: fn(over::Job<S>, &Between) -> Result<()>,
) -> bool {
    let program = move |rank, bootstrap: Custom| {
        let outcome = S::begin(bootstrap).and_then(|job| program(job, between));
        // The others may wait for it.
        outcome.inspect_err(|error| eprintln!("rank {rank}: {error}"))
    };
    for (rank, outcome) in ranks(count, |rank| rank / 2, program) {
        match outcome {
            Ok(()) => {}
            Err(Error::NoProvider { why }) => {
                eprintln!("skipped: {why}");
                return false;
            }
            Err(error) => panic!("rank {rank}: {error}"),
        }
    }
    true
}

const SHORT: ChannelLimits = ChannelLimits {
    messages: 2,
    bytes: 64,
    ports: 8,
    window_messages: 8,
    window_bytes: 64,
};

/// A queue of rank 1's, a semaphore and a barrier of rank 2's, and one that is closed.
fn made<S: Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
    between: &Between,
) -> Result<Vec<Channel<S>>> {
    let mine = match job.rank().0 {
        1 => {
            let (closed, queue) = (channels.create(SHORT)?, channels.create(SHORT)?);
            closed.close()?;
            vec![queue, closed]
        }
        2 => vec![
            channels.semaphore(2, 3, SHORT)?,
            channels.barrier(2, SHORT)?,
        ],
        _ => Vec::new(),
    };
    let names: Vec<u8> = (mine.iter())
        .flat_map(|of| of.descriptor().to_bytes())
        .collect();
    let all = job.allgather(&names)?;
    let named = all.iter().flat_map(|of| of.chunks(Descriptor::BYTES));
    let named: Result<Vec<_>> = named.map(Descriptor::from_bytes).collect();
    *between.named.lock().unwrap() = named?;
    Ok(mine)
}

fn full_and_waited_for<S: Seat>(
    job: &over::Job<S>,
    channels: &over::Channels<S>,
    between: &Between,
) -> Result<Vec<Channel<S>>> {
    let mut ports = made(job, channels, between)?;
    if job.rank().0 == 0 {
        let [queue, _, semaphore, _] = between.named()[..] else {
            panic!("four channels")
        };
        let queue = channels.attach(&queue)?;
        for (kind, when) in [
            (1, Return::WhenDeposited),
            (2, Return::WhenDeposited),
            (3, Return::WhenBuffered),
            (4, Return::Immediately),
        ] {
            queue.send(kind, &[kind as u8; 20], when, Timeout::Never)?;
        }
        // It is answered behind those, and the others wait.
        assert_eq!(queue.poll(Poll::Size, Timeout::Never)?, 2);
        let semaphore = channels.attach(&semaphore)?;
        semaphore.poll(Poll::Acquire, Timeout::Never)?;
        // What waits for room goes with its port.
        ports.push(queue);
    }
    job.barrier()?;
    Ok(ports)
}

fn first_job<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let rank = job.rank().0;
    let channels = S::open_all(job.channels("first"))?;
    let _ports = full_and_waited_for(&job, &channels, between)?;
    // What nobody has taken of an answer, or waits for, when it is kept.
    let own = channels.create(SHORT)?;
    own.send(9, b"own", Return::WhenDeposited, Timeout::Never)?;
    let answered = own.start_get(Timeout::Never)?;
    let again = channels.clone();
    between.keep(rank, channels.keep()?);
    drop((answered, own));
    let twice = again.keep().map(drop);
    assert!(matches!(twice, Err(Error::Closed(_))), "{twice:?}");
    job.shutdown()
}

/// All of it is there again.
fn second_job<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let rank = job.rank().0;
    let kept = between.kept(rank).unwrap();
    assert_eq!(
        kept.descriptors().len(),
        [1, 2, 3][rank as usize],
        "{kept:?}"
    );
    let channels = S::open_all(job.channels("second").keeping(&kept))?;
    assert!(kept.descriptors().is_empty());
    let [queue, closed, semaphore, barrier] = between.named()[..] else {
        panic!("four channels")
    };
    let gone = channels.attach(&closed).map(drop);
    assert!(matches!(gone, Err(Error::NoChannel { .. })), "{gone:?}");
    let port = channels.attach(&queue)?;
    if rank == 2 {
        for kind in 1..=4 {
            let message = port.get(Timeout::Never)?;
            assert_eq!((message.source, message.kind), (Rank(0), kind));
            assert_eq!(&message.bytes[..], [kind as u8; 20]);
        }
        port.send(5, b"and on", Return::WhenDeposited, Timeout::Never)?;
    }
    job.barrier()?;
    if rank == 0 {
        assert_eq!(port.get(Timeout::Never)?.kind, 5);
        assert_eq!(port.get(Timeout::Once), Err(Error::WouldBlock));
    }
    let semaphore = channels.attach(&semaphore)?;
    assert_eq!(semaphore.poll(Poll::Value, Timeout::Never)?, 1);
    let barrier = channels.attach(&barrier)?;
    if rank != 0 {
        barrier.poll(Poll::Arrive, Timeout::Never)?;
    }
    // A new one has no old one's name.
    let new = channels.create(SHORT)?.descriptor();
    assert!(!between.named().contains(&new), "{new}");
    job.barrier()?;
    // Whoever has nothing left to go on with is refused, and all hear of it.
    let again = job.channels("again");
    let again = match rank {
        1 => again.keeping(&kept),
        _ => again,
    };
    let refused = S::open_all(again).map(drop);
    let is_refused = matches!(&refused, Err(Error::Config { key, .. }) if key == "kept");
    assert!(is_refused, "{refused:?}");
    channels.shutdown()?;
    job.shutdown()
}

#[test]
fn channels_go_on_in_the_next_job_with_their_messages() {
    let between = Between::of(3);
    if run::<crate::Inline<'static>>(3, between, first_job) {
        run::<crate::Inline<'static>>(3, between, second_job);
    }
    let between = Between::of(3);
    if run::<threaded::Threaded>(3, between, first_job) {
        run::<threaded::Threaded>(3, between, second_job);
    }
}

/// Rank 2 goes without a word, and the job fails.
fn failing_job<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let rank = job.rank().0;
    let channels = S::open_all(job.channels("first"))?;
    let _ports = full_and_waited_for(&job, &channels, between)?;
    if rank == 2 {
        return Ok(());
    }
    // Who has waited in vain takes nothing that comes later.
    let own = channels.create(SHORT)?;
    let failed = own.get(Timeout::Never).map(drop);
    assert!(
        matches!(failed, Err(Error::PeerFailed { .. })),
        "{failed:?}"
    );
    if own
        .send(8, b"late", Return::WhenDeposited, Timeout::Never)
        .is_ok()
    {
        between.late.lock().unwrap().push(own.descriptor());
    }
    between.keep(rank, channels.keep()?);
    let failed = job.shutdown();
    assert!(
        matches!(failed, Err(Error::PeerFailed { .. })),
        "{failed:?}"
    );
    Ok(())
}

/// Who takes the place of rank 2 has nothing of it.
fn next_job<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let rank = job.rank().0;
    let builder = job.channels("second");
    let channels = S::open_all(match between.kept(rank) {
        Some(kept) => builder.keeping(&kept),
        None => builder,
    })?;
    let new = (rank == 2).then(|| channels.create(SHORT)).transpose()?;
    job.barrier()?;
    let [queue, _, semaphore, barrier] = between.named()[..] else {
        panic!("four channels")
    };
    for lost in [semaphore, barrier] {
        let gone = channels.attach(&lost).map(drop);
        assert!(matches!(gone, Err(Error::NoChannel { .. })), "{gone:?}");
    }
    let late = between.late.lock().unwrap().clone();
    for own in late.iter().filter(|own| own.owner == rank) {
        assert_eq!(channels.attach(own)?.get(Timeout::Once)?.kind, 8);
    }
    let port = channels.attach(&queue)?;
    if rank == 0 {
        let kinds = (0..4).map(|_| Ok(port.get(Timeout::Never)?.kind));
        assert_eq!(kinds.collect::<Result<Vec<_>>>()?, [1, 2, 3, 4]);
    }
    // Nobody leaves before all have asked.
    job.barrier()?;
    drop((new, port));
    between.keep(rank, channels.keep()?);
    job.shutdown()
}

/// Its channels have no lost one's name here either.
fn third_job<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let kept = between.kept(job.rank().0).unwrap();
    let channels = S::open_all(job.channels("third").keeping(&kept))?;
    for _ in 0..3 {
        let new = channels.create(SHORT)?.descriptor();
        assert!(!between.named().contains(&new), "{new}");
    }
    channels.shutdown()?;
    job.shutdown()
}

/// As many ranks as there were have to come.
fn smaller_job<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let kept = between.kept(job.rank().0).unwrap();
    let refused = S::open_all(job.channels("third").keeping(&kept)).map(drop);
    let is_refused = matches!(&refused, Err(Error::Config { key, .. }) if key == "kept");
    assert!(is_refused, "{refused:?}");
    job.shutdown()
}

#[test]
fn channels_whose_owner_lives_outlast_a_job_that_failed() {
    let between = Between::of(3);
    if run::<crate::Inline<'static>>(3, between, failing_job) {
        run::<crate::Inline<'static>>(3, between, next_job);
        run::<crate::Inline<'static>>(2, between, smaller_job);
        run::<crate::Inline<'static>>(3, between, third_job);
    }
    let between = Between::of(3);
    if run::<threaded::Threaded>(3, between, failing_job) {
        run::<threaded::Threaded>(3, between, next_job);
        run::<threaded::Threaded>(3, between, third_job);
    }
}

/// Ranks that bring channels of different jobs are refused, and have them still.
fn mixed_job<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let rank = job.rank().0;
    let kept = between.kept(rank).unwrap();
    let before = kept.descriptors();
    let refused = S::open_all(job.channels("mixed").keeping(&kept)).map(drop);
    let is_refused = matches!(&refused, Err(Error::Config { key, .. }) if key == "kept");
    assert!(is_refused, "{refused:?}");
    assert_eq!(kept.descriptors(), before);
    job.shutdown()
}

#[test]
fn channels_of_different_jobs_are_not_mixed() {
    let [one, other] = [Between::of(3), Between::of(3)];
    for between in [one, other] {
        if !run::<crate::Inline<'static>>(3, between, first_job) {
            return;
        }
    }
    one.keep(0, other.kept(0).unwrap());
    run::<crate::Inline<'static>>(3, one, mixed_job);
}

/// Each rank keeps a channel with a message of 50 bytes.
fn job_with_a_message<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let channels = S::open_all(job.channels("first"))?;
    let own = channels.create(SHORT)?;
    own.send(5, &[5; 50], Return::WhenDeposited, Timeout::Never)?;
    between.keep(job.rank().0, channels.keep()?);
    job.shutdown()
}

/// It is refused where no answer would bring that message, and is there where one does.
fn job_of_short_messages<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let kept = between.kept(job.rank().0).unwrap();
    let named = kept.descriptors();
    let open = |max_message_bytes| {
        let options = StreamOptions {
            max_message_bytes,
            ..loopback().stream
        };
        let builder = job.channels("short").options(options);
        // The others have nothing that is too long.
        S::open_all(match job.rank().0 {
            1 => builder.keeping(&kept),
            _ => builder,
        })
    };
    match open(105).map(drop) {
        Err(Error::Config { key, why }) => {
            assert!(key == "kept" && why.contains("max_message_bytes"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(kept.descriptors(), named);
    let channels = open(106)?;
    let all = job.allgather(&named[0].to_bytes())?;
    let port = channels.attach(&Descriptor::from_bytes(&all[1])?)?;
    if job.rank().0 == 0 {
        assert_eq!(port.get(Timeout::Never)?.bytes, [5; 50]);
    }
    job.barrier()?;
    drop(port);
    channels.shutdown()?;
    job.shutdown()
}

#[test]
fn kept_messages_that_no_answer_would_bring_are_refused_and_stay_kept() {
    let between = Between::of(2);
    if run::<crate::Inline<'static>>(2, between, job_with_a_message) {
        run::<crate::Inline<'static>>(2, between, job_of_short_messages);
    }
    let between = Between::of(2);
    if run::<threaded::Threaded>(2, between, job_with_a_message) {
        run::<threaded::Threaded>(2, between, job_of_short_messages);
    }
}

/// Rank 0 leaves long messages at rank 1, on its node, which keeps them in the memory in which they
/// have come.
fn job_with_long_messages<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let channels = S::open_all(job.channels("first"))?;
    let channel = shared(&job, &channels, 1, ChannelLimits::default())?;
    if job.rank().0 == 0 {
        for kind in 0..3 {
            let message = [kind as u8; 50_000];
            channel.send(kind, &message, Return::WhenDeposited, Timeout::Never)?;
        }
    }
    job.barrier()?;
    *between.named.lock().unwrap() = vec![channel.descriptor()];
    drop(channel);
    between.keep(job.rank().0, channels.keep()?);
    job.shutdown()
}

/// Its own messages leave those alone, which any rank gets.
fn job_that_gets_them<S: Jobs>(job: over::Job<S>, between: &Between) -> Result<()> {
    let kept = between.kept(job.rank().0).unwrap();
    let channels = S::open_all(job.channels("second").keeping(&kept))?;
    let port = channels.attach(&between.named()[0])?;
    if job.rank().0 == 0 {
        port.send(3, &[3; 50_000], Return::WhenDeposited, Timeout::Never)?;
    }
    job.barrier()?;
    for (kind, rank) in (0..4).zip([0, 1, 2, 2]) {
        if job.rank().0 == rank {
            let got = port.get(Timeout::Never)?;
            assert_eq!((got.kind, got.source), (kind, Rank(0)));
            assert!(got.bytes == [kind as u8; 50_000]);
            // The owner's are those that it has kept, and for its neighbour there are copies.
            assert_eq!(got.bytes.is_shared(), rank < 2, "message {kind}");
        }
        job.barrier()?;
    }
    drop(port);
    channels.shutdown()?;
    job.shutdown()
}

#[test]
fn long_messages_are_kept_in_the_memory_in_which_they_came() {
    let between = Between::of(3);
    if run::<crate::Inline<'static>>(3, between, job_with_long_messages) {
        run::<crate::Inline<'static>>(3, between, job_that_gets_them);
    }
    let between = Between::of(3);
    if run::<threaded::Threaded>(3, between, job_with_long_messages) {
        run::<threaded::Threaded>(3, between, job_that_gets_them);
    }
}
