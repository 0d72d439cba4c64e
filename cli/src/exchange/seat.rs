//! The job and the shuffle of an exchange, whether calls make progress or a thread does.

use std::io::{self, Write};

use trihop::{
    BroadcastTo, DetailedStats, DumpOutput, Job, Message, Options, Queues, Rank, Reduce, Result,
    Shuffle, ShuffleBuilder, Topology, threaded,
};

/// One rank's part of the job.
pub enum Seat {
    /// Progress inside of calls, handlers too.
    Inline(Job<'static>),
    /// A progress thread, and a delivery thread for the handler.
    Threaded(threaded::Job),
}

/// Calls the method of the variant that there is.
macro_rules! either {
    ($of:ident: $self:expr, $inner:ident => $call:expr) => {
        match $self {
            $of::Inline($inner) => $call,
            $of::Threaded($inner) => $call,
        }
    };
}

impl Seat {
    /// Joins the job that this process was started in; SIGUSR1 then shows its queues.
    ///
    /// # Errors
    /// The engine's.
    pub fn start(options: Options, threaded: bool) -> Result<Self> {
        let (signal, output) = (libc::SIGUSR1, DumpOutput::Stderr);
        if threaded {
            let job = threaded::Job::start(options)?;
            job.dump_on(signal, output)?;
            return Ok(Self::Threaded(job));
        }
        let job = Job::start(options)?;
        job.dump_on(signal, output)?;
        Ok(Self::Inline(job))
    }

    /// Opens the shuffle; with `handler`, or to be polled where that is possible.
    ///
    /// # Errors
    /// The engine's.
    pub fn open<H>(&self, name: &str, polled: bool, handler: H) -> Result<Post>
    where
        H: Fn(Message<'_>) + Send + 'static,
    {
        match self {
            Self::Inline(job) => {
                let builder: ShuffleBuilder<'static> = job.shuffle(name);
                let builder = match polled {
                    true => builder,
                    false => builder.handler(move |message, _| handler(message)),
                };
                builder.open().map(Post::Inline)
            }
            Self::Threaded(job) => {
                let builder = job
                    .shuffle(name)
                    .handler(move |message, _| handler(message));
                builder.open().map(Post::Threaded)
            }
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.topology().rank()
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.topology().size()
    }

    /// Who is where.
    pub fn topology(&self) -> &Topology {
        either!(Self: self, job => job.topology())
    }

    /// What carries traffic between nodes, where this rank represents any.
    pub fn provider(&self) -> String {
        match self {
            Self::Inline(job) => job.provider().unwrap_or_default().to_owned(),
            Self::Threaded(job) => job.provider().unwrap_or_default().to_owned(),
        }
    }

    /// What the library's own threads have used; none where calls make progress.
    pub fn threads(&self) -> Vec<threaded::ThreadUse> {
        match self {
            Self::Inline(_) => Vec::new(),
            Self::Threaded(job) => job.threads(),
        }
    }

    /// As [`Job::barrier`].
    ///
    /// # Errors
    /// The engine's.
    pub fn barrier(&self) -> Result<()> {
        either!(Self: self, job => job.barrier())
    }

    /// As [`Job::allreduce`].
    ///
    /// # Errors
    /// The engine's.
    pub fn allreduce(&self, values: &mut [u64], reduce: Reduce) -> Result<()> {
        either!(Self: self, job => job.allreduce(values, reduce))
    }

    /// As [`Job::allgather`].
    ///
    /// # Errors
    /// The engine's.
    pub fn allgather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        either!(Self: self, job => job.allgather(own))
    }

    /// As [`Job::shutdown`].
    ///
    /// # Errors
    /// The engine's.
    pub fn shutdown(self) -> Result<()> {
        either!(Self: self, job => job.shutdown())
    }
}

/// The shuffle.
pub enum Post {
    /// Of a [`Seat::Inline`].
    Inline(Shuffle<'static>),
    /// Of a [`Seat::Threaded`].
    Threaded(threaded::Shuffle),
}

impl Post {
    /// As [`Shuffle::send`].
    ///
    /// # Errors
    /// The engine's.
    #[inline]
    pub fn send(&self, target: Rank, kind: u32, bytes: &[u8]) -> Result<()> {
        either!(Self: self, shuffle => shuffle.send(target, kind, bytes))
    }

    /// As [`Shuffle::broadcast`].
    ///
    /// # Errors
    /// The engine's.
    pub fn broadcast(&self, kind: u32, bytes: &[u8], to: BroadcastTo) -> Result<()> {
        either!(Self: self, shuffle => shuffle.broadcast(kind, bytes, to))
    }

    /// As [`Shuffle::fence`].
    ///
    /// # Errors
    /// The engine's.
    pub fn fence(&self) -> Result<()> {
        either!(Self: self, shuffle => shuffle.fence())
    }

    /// As [`Shuffle::round`].
    ///
    /// # Errors
    /// The engine's.
    pub fn round(&self) -> Result<()> {
        either!(Self: self, shuffle => shuffle.round())
    }

    /// As [`Shuffle::flush`].
    ///
    /// # Errors
    /// The engine's.
    pub fn flush(&self, queues: Queues) -> Result<()> {
        either!(Self: self, shuffle => shuffle.flush(queues))
    }

    /// As [`Shuffle::barrier`].
    ///
    /// # Errors
    /// The engine's.
    pub fn barrier(&self) -> Result<()> {
        either!(Self: self, shuffle => shuffle.barrier())
    }

    /// As [`Shuffle::take`]; a delivery thread leaves nothing to take.
    ///
    /// # Errors
    /// The engine's.
    pub fn take(&self, take: impl FnMut(Message<'_>)) -> Result<()> {
        match self {
            Self::Inline(shuffle) => shuffle.take(take).map(|_| ()),
            Self::Threaded(_) => Ok(()),
        }
    }

    /// As [`Shuffle::detailed_stats`]; `None` when the engine does not come free.
    pub fn detailed_stats(&self) -> Option<DetailedStats> {
        match self {
            Self::Inline(shuffle) => shuffle.detailed_stats(),
            Self::Threaded(shuffle) => shuffle.detailed_stats(),
        }
    }

    /// As [`Shuffle::dump`].
    ///
    /// # Errors
    /// The writer's.
    pub fn dump(&self, out: &mut dyn Write) -> io::Result<()> {
        either!(Self: self, shuffle => shuffle.dump(out))
    }
}
