//! The side that looks. A page is bytes of somebody else: each number is taken as it is and each
//! length is checked.

use std::io;

use rustix::time::ClockId;
use trihop_transport::memory::page::{Area, Pages, VERSION};

use super::show::{clock_ns, shape};
use super::{About, MOST_WAITS, Moment, NAME_BYTES, PoolSeen, Seen, StageSeen, StreamSeen, Wait};
use crate::dump::Bound;
use crate::route::STAGE_NAME_BYTES;
use crate::stats::{QueueStats, Stats};

/// All endpoints that show themselves to this user on this machine, by job and number. Processes
/// that may not be looked into are left aside, and so is what is of another version.
///
/// # Errors
/// `/proc` cannot be read.
///
/// # Examples
/// ```
/// for seen in trihop_shuffle::observe::find()? {
///     println!("rank {} of job {}: {:?}", seen.about.endpoint, seen.about.job, seen.longest_wait());
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn find() -> io::Result<Vec<Seen>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        processes.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    processes.sort_unstable(); // parents are before children, mostly
    let mut numbers = Vec::new();
    let mut found = Vec::new();
    for process in processes {
        for pages in Pages::of_process(process).unwrap_or_default() {
            if !numbers.contains(&pages.number()) {
                numbers.push(pages.number());
                found.extend(all_of(process, &pages).filter_map(Result::ok));
            }
        }
    }
    sort(&mut found);
    Ok(found)
}

/// The endpoints of one process that show themselves.
///
/// # Errors
/// There is no such process, or it is another user's; it shows nothing; what it shows is of
/// another version of trihop, or makes no sense.
///
/// # Examples
/// See the [module](crate::observe).
pub fn of_process(process: u32) -> io::Result<Vec<Seen>> {
    let mut found = Vec::new();
    for pages in Pages::of_process(process)? {
        for seen in all_of(process, &pages) {
            found.push(seen?);
        }
    }
    if found.is_empty() {
        let why = "it shows nothing: it has no job of trihop, or none that has started, or the job's option \
                   counters_page is off";
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    sort(&mut found);
    Ok(found)
}

fn sort(found: &mut [Seen]) {
    found.sort_by(|a, b| {
        let (one, other) = (&a.about, &b.about);
        let by_job = (&one.job, one.endpoint).cmp(&(&other.job, other.endpoint));
        by_job.then(a.process.cmp(&b.process))
    });
}

fn all_of(process: u32, pages: &Pages) -> impl Iterator<Item = io::Result<Seen>> {
    (0..pages.len()).filter_map(move |page| seen(process, pages, page).transpose())
}

/// What a page shows; nothing where its endpoint has not come so far.
fn seen(process: u32, pages: &Pages, page: usize) -> io::Result<Option<Seen>> {
    let read = |area| {
        pages.read(page, area).map_err(|version| {
            let why = match version {
                0 => "what it shows is no page of counters".to_owned(),
                _ => format!("its page has version {version}, and this program reads {VERSION}"),
            };
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
    };
    let cut = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "what its page says makes no sense",
        )
    };
    let Some(identity) = read(Area::Identity)? else {
        return Ok(None);
    };
    let mut words = Words::new(&identity);
    if words.next() != Some(shape()) {
        let why = "it has other counters than this program reads: it is of another version";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let about = about(&mut words).ok_or_else(cut)?;
    let now_ns = clock_ns(ClockId::Monotonic).saturating_sub(about.started_ns);
    let moment = read(Area::Numbers)?.map(|words| moment(&mut Words::new(&words), now_ns));
    let text = read(Area::Text)?.and_then(|words| {
        let mut words = Words::new(&words);
        let at_ns = words.next()?;
        Some((words.rest(), now_ns.saturating_sub(at_ns)))
    });
    Ok(Some(Seen {
        process,
        about,
        now: moment.map(|moment| moment.ok_or_else(cut)).transpose()?,
        text: text.unwrap_or_default(),
    }))
}

/// Words that are read one after the other, as long as there are any.
pub(super) struct Words<'a>(std::slice::Iter<'a, u64>);

impl<'a> Words<'a> {
    pub fn new(words: &'a [u64]) -> Self {
        Self(words.iter())
    }

    fn next(&mut self) -> Option<u64> {
        self.0.next().copied()
    }

    fn number(&mut self) -> Option<u32> {
        self.next()?.try_into().ok()
    }

    /// A number of things that follow, each of so many words at least.
    fn count(&mut self, words: usize) -> Option<usize> {
        let count = usize::try_from(self.next()?).ok()?;
        (count <= self.0.len() / words).then_some(count)
    }

    fn text(&mut self, bytes: usize) -> Option<String> {
        let (words, rest) = self.0.as_slice().split_at_checked(bytes / 8)?;
        self.0 = rest.iter();
        Some(text(words))
    }

    /// All that is left, as text.
    fn rest(&mut self) -> String {
        text(std::mem::take(&mut self.0).as_slice())
    }
}

/// Bytes up to the first that is 0, as text.
fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().copied().flat_map(u64::to_le_bytes).collect();
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

fn about(words: &mut Words<'_>) -> Option<About> {
    Some(About {
        job: format!("{:016x}", words.next()?),
        endpoint: words.number()?,
        is_relay: words.next()? != 0,
        ranks: words.number()?,
        node: words.number()?,
        nodes: words.number()?,
        started_unix_ns: words.next()?,
        started_ns: words.next()?,
        host: words.text(NAME_BYTES)?,
    })
}

pub(super) fn moment(words: &mut Words<'_>, now_ns: u64) -> Option<Moment> {
    let (at_ns, rounds) = (words.next()?, words.next()?);
    let waits = words.count(1).filter(|count| *count <= MOST_WAITS)?;
    let wait = |_| {
        let since_ns = words.next()?;
        Some(Wait {
            waited_ns: at_ns.saturating_sub(since_ns),
            what: words.text(NAME_BYTES)?,
        })
    };
    let waits = (0..waits).map(wait).collect::<Option<_>>()?;
    let open_streams = words.next()?;
    let streams = words.count(Stats::TABLE.len())?;
    Some(Moment {
        at_ns,
        age_ns: now_ns.saturating_sub(at_ns),
        rounds,
        waits,
        open_streams,
        streams: (0..streams).map(|_| stream(words)).collect::<Option<_>>()?,
    })
}

fn stream(words: &mut Words<'_>) -> Option<StreamSeen> {
    let (number, name) = (words.next()?, words.text(NAME_BYTES)?);
    let waiting_records = words.next()?;
    let totals = Stats::of_rows(|| words.next())?;
    let pool = |name: &&'static str| {
        Some(PoolSeen {
            name,
            used_bytes: words.next()?,
            most_bytes: words.next()?,
        })
    };
    let memory = Bound::POOLS.iter().map(pool).collect::<Option<_>>()?;
    let stages = words.count(QueueStats::TABLE.len())?;
    Some(StreamSeen {
        number,
        name,
        waiting_records,
        totals,
        memory,
        stages: (0..stages).map(|_| stage(words)).collect::<Option<_>>()?,
    })
}

fn stage(words: &mut Words<'_>) -> Option<StageSeen> {
    Some(StageSeen {
        name: words.text(STAGE_NAME_BYTES)?,
        queues: words.next()?,
        all: QueueStats::of_rows(|| words.next())?,
        waiting_bytes: words.next()?,
        ready_batches: words.next()?,
        in_flight_batches: words.next()?,
        credits: words.next()?,
    })
}
