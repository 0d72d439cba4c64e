//! A program that keeps what the library gives it can name the types by this crate alone.

use std::sync::mpsc::{Receiver, channel};

use trihop::threaded::{DumpOutput, Job, Shuffle, ThreadUse, Untyped};
use trihop::transport::bootstrap::{Bootstrap, Custom, Launcher};
use trihop::transport::link::Mover;
use trihop::{
    DetailedStats, Error, Options, QueueStats, Queues, Rank, StageStats, Stats, Topology,
};

/// A job, what it was started with, and what it did.
struct Kept {
    job: Job,
    shuffle: Shuffle,
    items: Untyped,
    topology: Topology,
    launcher: Launcher,
    mover: Option<Mover>,
    output: DumpOutput,
    heard: Receiver<u32>,
}

impl Kept {
    fn start() -> Result<Self, Error> {
        let gather = |mine: &[u8], all: &mut [u8]| {
            all.copy_from_slice(mine);
            Ok(())
        };
        let bootstrap: Box<dyn Bootstrap> = Box::new(Custom::new(0, 1, 7, Box::new(gather))?);
        let options = Options::default();
        let mover = options.mover;
        let job = Job::start_with(options, bootstrap)?;
        let (tell, heard) = channel();
        let shuffle = job.shuffle("records").handler(move |message, _| {
            tell.send(message.kind).expect("the test waits");
        });
        Ok(Self {
            shuffle: shuffle.open()?,
            items: job.untyped("items", 4).handler(|_, _| ()).open()?,
            topology: job.topology().clone(),
            launcher: job.launcher(),
            mover,
            output: DumpOutput::Stderr,
            heard,
            job,
        })
    }

    fn totals(&self) -> Option<Stats> {
        self.items.stats()
    }

    fn details(&self) -> Option<DetailedStats> {
        self.shuffle.detailed_stats()
    }

    fn threads(&self) -> Vec<ThreadUse> {
        self.job.threads()
    }
}

fn only(stage: &StageStats) -> &QueueStats {
    assert_eq!(stage.queues.len(), 1, "{stage}");
    &stage.queues[0]
}

#[test]
fn what_a_job_gives_can_be_kept_in_a_struct() {
    let kept = Kept::start().unwrap();
    assert_eq!((kept.launcher, kept.topology.size()), (Launcher::Custom, 1));
    assert!(kept.mover.is_none() && matches!(kept.output, DumpOutput::Stderr));
    kept.shuffle.send(Rank(0), 9, b"").unwrap();
    kept.items.push(Rank(0), &[0; 4]).unwrap();
    kept.shuffle.flush(Queues::ORIGIN).unwrap();
    kept.shuffle.fence().unwrap();
    kept.items.fence().unwrap();
    assert_eq!(kept.heard.try_recv(), Ok(9));
    assert_eq!(kept.totals().unwrap().delivered, 1);
    let details = kept.details().unwrap();
    assert_eq!(
        only(details.stage("origin").unwrap()).own_runs,
        1,
        "{details}"
    );
    // Progress, and deliveries of both streams.
    assert_eq!(kept.threads().len(), 2);
    kept.job.shutdown().unwrap();
}
