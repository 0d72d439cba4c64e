//! The measurement itself, the same for every queue.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use super::Error;
use crate::statistics::median;

/// Bytes of a stream, but for a least number of messages.
const STREAM_BYTES: usize = 128 << 20;
const STREAM_MESSAGES_MIN: u64 = 20_000;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Repetitions after a warm-up.
    pub reps: u32,
    /// Round trips of one latency measurement.
    pub rounds: u64,
    /// Most messages of a stream.
    pub messages: u64,
}

/// Messages whose every byte is compared.
const WHOLE: u64 = 64;

/// Empty polls after which a waiting thread lets others run.
const PATIENCE: u32 = 512;

/// A queue with one sender and one receiver for messages of `N` bytes.
pub trait Queue<const N: usize>: 'static {
    /// Sending end.
    type Sender: Send + 'static;
    /// Receiving end.
    type Receiver: Send + 'static;

    /// Both ends; they are used by different threads.
    fn open() -> Result<(Self::Sender, Self::Receiver), Error>;

    /// Sends a copy if there is room; a stream may keep it back until [`show`](Self::show).
    fn try_send(sender: &mut Self::Sender, message: &[u8; N]) -> Result<bool, Error>;

    /// Shows what was kept back.
    fn show(_: &mut Self::Sender) {}

    /// Copies the next message out, if there is one.
    fn try_receive(receiver: &mut Self::Receiver, message: &mut [u8; N]) -> Result<bool, Error>;
}

/// Figures of one queue, with the keys that `trihop bench --json` has.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Always `threads`.
    pub bench: &'static str,
    /// Message size in bytes.
    pub size: usize,
    /// Messages of a stream.
    pub count: u64,
    /// Half a round trip in microseconds, median of the repetitions.
    pub latency_us: f64,
    /// Messages per second of a stream, median of the repetitions.
    pub msgs_per_s: f64,
    /// The same in bytes.
    pub bytes_per_s: f64,
    /// Wrong messages are errors.
    pub checked: bool,
}

/// Warms up once and measures.
///
/// # Errors
/// When the queue cannot be opened or loses, changes or reorders a message.
pub fn run<Q: Queue<N>, const N: usize>(effort: Effort) -> Result<Row, Error> {
    let Effort {
        reps,
        rounds,
        messages,
    } = effort;
    let count = ((STREAM_BYTES / N) as u64)
        .max(STREAM_MESSAGES_MIN)
        .min(messages);
    let (to_other, at_other) = Q::open()?;
    let (from_other, at_home) = Q::open()?;
    let (home_gives_up, home_gave_up) = mpsc::channel();
    let (other_gives_up, other_gave_up) = mpsc::channel();
    let mut home = End::<Q, N> {
        sender: to_other,
        receiver: at_home,
        gives_up: Some(home_gives_up),
        other_gave_up,
    };
    let mut other = End::<Q, N> {
        sender: from_other,
        receiver: at_other,
        gives_up: Some(other_gives_up),
        other_gave_up: home_gave_up,
    };
    let other = thread::spawn(move || {
        keep_to_core(1);
        for _ in 0..=reps {
            other.echo(rounds)?;
            other.swallow(count)?;
            other.echo(1)?;
        }
        other.compare()?;
        other.is_done();
        Ok(())
    });
    // A thread of its own as well, so that the caller keeps all its cores.
    let home = thread::spawn(move || {
        keep_to_core(0);
        let (mut latencies, mut rates) = (Vec::new(), Vec::new());
        let mut message = [0; N];
        for rep in 0..=reps {
            let start = Instant::now();
            home.ping(&mut message, rounds)?;
            let latency = start.elapsed().as_secs_f64() * 1e6 / (2 * rounds) as f64;
            let start = Instant::now();
            for number in 0..count {
                message[..8].copy_from_slice(&number.to_le_bytes());
                home.send(&message)?;
            }
            Q::show(&mut home.sender);
            // The other's word that it has everything.
            home.ping(&mut message, 1)?;
            if rep > 0 {
                latencies.push(latency);
                rates.push(count as f64 / start.elapsed().as_secs_f64());
            }
        }
        for number in 0..WHOLE {
            home.send(&pattern(number))?;
        }
        Q::show(&mut home.sender);
        home.is_done();
        Ok((latencies, rates))
    });
    let panicked = |_| Error::Wrong("a measuring thread panicked".into());
    let home: Result<(Vec<f64>, Vec<f64>), Error> = home.join().map_err(panicked).flatten();
    let other: Result<(), Error> = other.join().map_err(panicked).flatten();
    // What one of them found, rather than that the other then stopped waiting.
    let (latencies, rates) = match (home, other) {
        (Err(Error::GaveUp), Err(why)) | (Ok(_), Err(why)) => return Err(why),
        (home, _) => home?,
    };
    let rate = median(&rates).unwrap_or(0.0);
    Ok(Row {
        bench: "threads",
        size: N,
        count,
        latency_us: median(&latencies).unwrap_or(0.0),
        msgs_per_s: rate,
        bytes_per_s: rate * N as f64,
        checked: true,
    })
}

/// What one of the two threads has.
struct End<Q: Queue<N>, const N: usize> {
    sender: Q::Sender,
    receiver: Q::Receiver,
    /// Tells the other thread not to wait, until everything is done.
    gives_up: Option<Sender<()>>,
    other_gave_up: Receiver<()>,
}

impl<Q: Queue<N>, const N: usize> End<Q, N> {
    /// Nobody waits for it any more.
    fn is_done(&mut self) {
        self.gives_up = None;
    }

    fn ping(&mut self, message: &mut [u8; N], rounds: u64) -> Result<(), Error> {
        for number in 0..rounds {
            message[..8].copy_from_slice(&number.to_le_bytes());
            self.send(message)?;
            Q::show(&mut self.sender);
            self.receive(message, number)?;
        }
        Ok(())
    }

    fn echo(&mut self, rounds: u64) -> Result<(), Error> {
        let mut message = [0; N];
        for number in 0..rounds {
            self.receive(&mut message, number)?;
            self.send(&message)?;
            Q::show(&mut self.sender);
        }
        Ok(())
    }

    fn swallow(&mut self, count: u64) -> Result<(), Error> {
        let mut message = [0; N];
        (0..count).try_for_each(|number| self.receive(&mut message, number))
    }

    fn compare(&mut self) -> Result<(), Error> {
        let mut message = [0; N];
        for number in 0..WHOLE {
            self.receive(&mut message, number)?;
            if message != pattern(number) {
                return Err(Error::Wrong(format!(
                    "message {number} of {N} bytes was changed on its way"
                )));
            }
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, message: &[u8; N]) -> Result<(), Error> {
        let mut patience = Patience(0);
        while !Q::try_send(&mut self.sender, message)? {
            patience.wait(&self.other_gave_up)?;
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8; N], number: u64) -> Result<(), Error> {
        let mut patience = Patience(0);
        while !Q::try_receive(&mut self.receiver, message)? {
            patience.wait(&self.other_gave_up)?;
        }
        let found = message.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
        if found != Some(number) {
            return Err(Error::Wrong(format!(
                "a message of {N} bytes has the number {found:?}, expected is {number}"
            )));
        }
        // So that no copy of bytes that nobody reads is left out.
        std::hint::black_box(message);
        Ok(())
    }
}

impl<Q: Queue<N>, const N: usize> Drop for End<Q, N> {
    fn drop(&mut self) {
        if let Some(gives_up) = &self.gives_up {
            // Where the other thread has ended already, nobody waits.
            let _ = gives_up.send(());
        }
    }
}

/// A message that differs in every byte from its neighbours, its number first.
fn pattern<const N: usize>(number: u64) -> [u8; N] {
    let mut message = [0; N];
    for (at, byte) in message.iter_mut().enumerate() {
        *byte = (number.wrapping_mul(31) as usize + at) as u8;
    }
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

/// Waiting without sleeping.
struct Patience(u32);

impl Patience {
    #[inline]
    fn wait(&mut self, other_gave_up: &Receiver<()>) -> Result<(), Error> {
        std::hint::spin_loop();
        self.0 += 1;
        if self.0 == PATIENCE {
            self.0 = 0;
            if other_gave_up.try_recv().is_ok() {
                return Err(Error::GaveUp);
            }
            thread::yield_now();
        }
        Ok(())
    }
}

/// Keeps this thread on the core of that number among those it may use; stays where it is when
/// there are fewer.
fn keep_to_core(which: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let core = (0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .nth(which);
    if let Some(core) = core {
        let mut set = CpuSet::new();
        set.set(core);
        // Left where the scheduler puts it, the figure is worse, not wrong.
        let _ = sched_setaffinity(None, &set);
    }
}
