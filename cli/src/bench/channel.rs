//! `channel`: messages between the first rank and the last one through channels. Others wait, and
//! relay where they represent their node.
//!
//! Each of the two has a channel. Latency is half a round trip: one sends into the other's channel, which
//! gets from its own and answers. A get from the other's channel is asked and answered. Rate and
//! bandwidth are those of a stream of sends into the last rank's channel, which it gets from; all
//! sends return when buffered. Each message is checked by its number and its length, and in the
//! warm-up the first ones byte by byte.
//!
//! With `--api guest` both are guests, of the first rank of their node, whose channels they use.

use std::time::{Duration, Instant};

use serde::Serialize;
use trihop::channel::{Buffer, Descriptor, Poll, Return, Timeout};
use trihop::guest::{self, Guest, Guests, Lifetime};
use trihop::over::{Channel, Channels, Job};
use trihop::{ChannelLimits, Options, Rank, Reduce, Seat, threaded};

use super::a2a::Api;
use super::pair::{self, FIRST, median};
use super::round::Round;
use super::row::{self, Case, Row};
use super::seated::{self, on_ranks};
use super::session::{Session, Team};
use super::{BenchArgs, Error, table};

const SIZES: [usize; 7] = [8, 64, 256, 1024, 4096, 65_536, 1_048_576];

/// Messages of a stream, and their bytes, at most; round trips.
const STREAM_MESSAGES: u64 = 500_000;
const STREAM_BYTES: u64 = 256 << 20;
const LAPS: u64 = 5_000;

/// How long guests wait for their server.
const COMES: Duration = Duration::from_secs(60);

/// Messages of the warm-up whose every byte is checked.
const WHOLE: u64 = 64;

const LIMITS: ChannelLimits = ChannelLimits {
    messages: 1024,
    bytes: 8 << 20,
    ports: 16,
    window_messages: 512,
    window_bytes: 2 << 20,
};

/// A row with what only this benchmark has.
#[derive(Debug, Serialize)]
struct ChannelRow {
    #[serde(flatten)]
    row: Row,
    /// Half a round trip in microseconds, median of the repetitions.
    latency_us: f64,
    /// A get from the other rank's channel, there and back.
    get_us: f64,
}

/// Runs the benchmark on this rank.
pub fn run(args: &BenchArgs, options: Options) -> Result<(), Error> {
    if args.seat == super::Seat::Threaded {
        let job = seated::in_threads(options)?;
        let channels = job.channels("bench").open()?;
        if args.api.contains(&Api::Guest) {
            let (guests, guest) = served(&job, &channels)?;
            cases(args, &job, &channels, Some(&guest))?;
            drop(guests);
        } else {
            cases(args, &job, &channels, None)?;
        }
        channels.shutdown()?;
        return Ok(job.shutdown()?);
    }
    on_ranks(args, options, |start| {
        let job = start.job()?;
        let channels = job.channels("bench").open()?;
        cases(args, &job, &channels, None)?;
        channels.shutdown()?;
        Ok(job.shutdown()?)
    })
}

/// This rank as a guest of the first one of its node; what serves guests, on that.
fn served(
    job: &threaded::Job,
    channels: &threaded::Channels,
) -> Result<(Option<Guests>, Guest), Error> {
    let topology = job.topology();
    let mut process = [u64::from(std::process::id())];
    job.allreduce(&mut process, Reduce::Min)?;
    let name = format!("trihop-bench-guests-{}-{}", process[0], topology.node());
    let serves = topology.local_rank() == 0;
    let guests = serves.then(|| channels.serve_guests(&name)).transpose()?;
    let guest = Guest::of(&name, COMES)?;
    Ok((guests, guest))
}

/// What one of the two ranks uses a channel by.
enum Port<S: Seat> {
    Rank(Channel<S>),
    Guest(Box<guest::Channel>),
}

impl<S: Seat> Port<S> {
    fn descriptor(&self) -> Descriptor {
        match self {
            Self::Rank(port) => port.descriptor(),
            Self::Guest(port) => port.descriptor(),
        }
    }

    fn send(&mut self, message: &[u8], when: Return) -> trihop::Result<()> {
        match self {
            Self::Rank(port) => port.send(0, message, when, Timeout::Never),
            Self::Guest(port) => port.send(0, message, when, Timeout::Never),
        }
    }

    fn get(&mut self) -> trihop::Result<Buffer> {
        let got = match self {
            Self::Rank(port) => port.get(Timeout::Never),
            Self::Guest(port) => port.get(Timeout::Never),
        };
        Ok(got?.bytes)
    }

    fn wait_until_empty(&mut self) -> trihop::Result<()> {
        match self {
            Self::Rank(port) => port.poll(Poll::Empty, Timeout::Never).map(drop),
            Self::Guest(port) => port.poll(Poll::Empty, Timeout::Never).map(drop),
        }
    }
}

/// The two ends of one of the two ranks.
struct Ends<S: Seat> {
    /// This rank's channel, and the other's.
    mine: Port<S>,
    theirs: Port<S>,
    is_first: bool,
    message: Vec<u8>,
    /// So many messages of each part are checked byte by byte.
    whole: u64,
}

fn cases<S: Seat>(
    args: &BenchArgs,
    job: &Job<S>,
    channels: &Channels<S>,
    guest: Option<&Guest>,
) -> Result<(), Error>
where
    Job<S>: Team,
{
    if job.size() < 2 {
        let why = "channel is between two ranks".to_owned();
        return Err(Error::Shape(why));
    }
    let largest = args.sizes(&SIZES).into_iter().max().unwrap_or(8);
    let limits = ChannelLimits {
        bytes: LIMITS.bytes.max(4 * largest as u64),
        ..LIMITS
    };
    let mine = match guest {
        None => Port::Rank(channels.create(limits)?),
        Some(guest) => Port::Guest(Box::new(guest.create(limits, Lifetime::Server)?)),
    };
    let all = job.allgather(&mine.descriptor().to_bytes())?;
    let last = job.size() - 1;
    let other = match job.rank().0 {
        FIRST => Some(last),
        rank => (rank == last).then_some(FIRST),
    };
    let mut ends = match other {
        None => None,
        Some(other) => Some(Ends {
            mine,
            theirs: {
                let theirs = Descriptor::from_bytes(&all[other as usize])?;
                match guest {
                    None => Port::Rank(channels.attach(&theirs)?),
                    Some(guest) => Port::Guest(Box::new(guest.attach(&theirs)?)),
                }
            },
            is_first: other == last,
            message: vec![0; largest],
            whole: 0,
        }),
    };
    let session = Session::new(args, job);
    for size in args.sizes(&SIZES) {
        case(&session, channels, &mut ends, size)?;
    }
    Ok(())
}

fn case<S: Seat>(
    session: &Session<'_, Job<S>>,
    channels: &Channels<S>,
    ends: &mut Option<Ends<S>>,
    size: usize,
) -> Result<(), Error>
where
    Job<S>: Team,
{
    let most = STREAM_MESSAGES.min(STREAM_BYTES / size as u64).max(WHOLE);
    let count = session.args.count.unwrap_or(most);
    let laps = LAPS.min(count);
    let (mut latency_us, mut get_us, mut wire_bytes) = (Vec::new(), Vec::new(), 0);
    let reps = session.repeat(|meter| {
        let mut ends = ends.as_mut();
        if let Some(ends) = &mut ends {
            ends.whole = match meter.round {
                Round::WarmUp => WHOLE,
                Round::Timed | Round::Counted => 0,
            };
        }
        session.job.barrier()?;
        let round_trip = |ends: &mut &mut Ends<S>| ends.round_trips(size, laps);
        let latency = ends.as_mut().map_or(Ok(0.0), round_trip)? / 2.0;
        session.job.barrier()?;
        let gets = |ends: &mut &mut Ends<S>| ends.gets(size, laps.min(LIMITS.messages.into()));
        let get = ends.as_mut().map_or(Ok(0.0), gets)?;
        if meter.round == Round::Timed {
            latency_us.push(latency);
            get_us.push(get);
        }
        // What the last gets were answered by has been sent.
        session.job.barrier()?;
        let before = sent_bytes(session, channels)?;
        let measured = session.measure(meter, || {
            ends.as_mut()
                .map_or(Ok(()), |ends| ends.stream(size, count))
        })?;
        wire_bytes += sent_bytes(session, channels)? - before;
        Ok(measured)
    })?;
    let topology = session.job.topology();
    let is_far = !topology.is_local(Rank(topology.size() - 1));
    let is_first = ends.as_ref().is_some_and(|ends| ends.is_first);
    let case = Case {
        bench: "channel",
        api: match session.args.api.first() {
            Some(api) => api.name(),
            None => "bytes",
        },
        size,
        count,
        messages: count,
        crossing: u64::from(is_far && is_first) * count * session.rounds(),
        wire_bytes,
    };
    let row = ChannelRow {
        row: row::combine(session.args, session.job, &case, &reps)?,
        latency_us: median(latency_us),
        get_us: median(get_us),
    };
    session.print(&row, |head| print_line(&row, head))
}

fn sent_bytes<S: Seat>(session: &Session<'_, Job<S>>, channels: &Channels<S>) -> Result<u64, Error>
where
    Job<S>: Team,
{
    let (own, relays) = (channels.stats(), channels.relays_wire_bytes());
    seated::wire_bytes(session.job.topology(), own, relays)
}

impl<S: Seat> Ends<S> {
    /// Writes the message with this number.
    fn fill(&mut self, size: usize, number: u64) {
        let message = &mut self.message[..size];
        match number < self.whole {
            true => pair::fill(message, number),
            false => message[..8].copy_from_slice(&number.to_le_bytes()),
        }
    }

    /// Sends a message with this number into the other's channel.
    fn send(&mut self, size: usize, number: u64) -> Result<(), Error> {
        self.fill(size, number);
        let message = &self.message[..size];
        Ok(self.theirs.send(message, Return::WhenBuffered)?)
    }

    /// Gets the message with this number from a channel.
    fn get(&mut self, is_mine: bool, size: usize, number: u64) -> Result<(), Error> {
        let channel = match is_mine {
            true => &mut self.mine,
            false => &mut self.theirs,
        };
        let bytes = channel.get()?;
        let is_whole = number >= self.whole || pair::is_filled(&bytes, number);
        if bytes.len() != size || pair::number(&bytes) != Some(number) || !is_whole {
            let why = format!(
                "message {number} of {size} bytes came as {:?} with {} bytes, or was changed",
                pair::number(&bytes),
                bytes.len()
            );
            return Err(Error::Wrong {
                bench: "channel",
                why,
            });
        }
        Ok(())
    }

    /// Microseconds of a round trip.
    fn round_trips(&mut self, size: usize, laps: u64) -> Result<f64, Error> {
        let start = Instant::now();
        for number in 0..laps {
            for sends in [self.is_first, !self.is_first] {
                match sends {
                    true => self.send(size, number)?,
                    false => self.get(true, size, number)?,
                }
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / laps as f64)
    }

    /// Microseconds of a get from the other's channel: the last rank has filled its own, as far
    /// as that goes, and waits until it is empty.
    fn gets(&mut self, size: usize, laps: u64) -> Result<f64, Error> {
        let laps = laps.min((LIMITS.bytes / size as u64).max(1));
        if !self.is_first {
            for number in 0..laps {
                self.fill(size, number);
                let message = &self.message[..size];
                self.mine.send(message, Return::WhenDeposited)?;
            }
            self.send(8, laps)?;
            self.mine.wait_until_empty()?;
            return Ok(0.0);
        }
        self.get(true, 8, laps)?;
        let start = Instant::now();
        for number in 0..laps {
            self.get(false, size, number)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / laps as f64)
    }

    /// A stream into the last rank's channel, and its last word.
    fn stream(&mut self, size: usize, count: u64) -> Result<(), Error> {
        if self.is_first {
            for number in 0..count {
                self.send(size, number)?;
            }
            return self.get(true, 8, count);
        }
        for number in 0..count {
            self.get(true, size, number)?;
        }
        self.send(8, count)
    }
}

fn print_line(with_times: &ChannelRow, head: bool) -> Result<(), Error> {
    let row = &with_times.row;
    if head {
        row::print_head(row)?;
    }
    let cells = [
        ("Size", 10, row.size.to_string()),
        ("Latency us", 11, format!("{:.2}", with_times.latency_us)),
        ("Get us", 10, format!("{:.2}", with_times.get_us)),
        ("Rate M/s", 10, format!("{:.3}", row.msgs_per_s / 1e6)),
        ("BW MB/s", 10, format!("{:.1}", row.bytes_per_s / 1e6)),
        ("CPU us", 10, format!("{:.4}", row.cpu_us_per_msg)),
        ("Wire B", 10, format!("{:.1}", row.wire_bytes_per_msg)),
    ];
    table::print(&cells, head)
}
