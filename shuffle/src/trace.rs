//! A trace of what an endpoint does, batch by batch, for Perfetto and Chrome: `TRIHOP_TRACE`.
//!
//! Events are Chrome's, as JSON, in a file for each endpoint. Their times are microseconds since
//! the beginning of 2026 by the machine's clock, so that files of several ranks fit together. What
//! is not traced costs a look at an option for each batch, round and sleep, and nothing for a
//! message.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use trihop_transport::sync::{Mutex, MutexGuard, PoisonError, StaticMutex};
use trihop_transport::topology::{EndpointId, Topology};

use crate::error::Error;
use crate::route::Stage;

/// Names the file; `%r` in it is the number of the endpoint, which otherwise stands behind it.
const VARIABLE: &str = "TRIHOP_TRACE";
/// Beginning of the times, in seconds since 1970: small numbers stay exact in JSON.
const BEGIN_S: u64 = 1_767_225_600;
/// Bytes of events that are kept in memory.
const BUFFER_BYTES: usize = 256 << 10;
/// An event is shorter than this: names in it are cut.
const LONGEST_EVENT: usize = 1 << 10;
/// Longest name of an event.
const LONGEST_NAME: usize = 128;
/// Time after which events go to the file before a sleep.
const WRITE_NS: u64 = 1_000_000_000;

/// How many traces of this process have had a path: a later job leaves the trace of an earlier one.
static USES: StaticMutex<BTreeMap<PathBuf, u32>> = StaticMutex::new(BTreeMap::new());

/// What happens to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfBatch {
    /// It is full, or old enough: it waits for credit.
    Sealed,
    /// It was handed to the fabric.
    Posted,
    /// Its receiver has taken all of it.
    Acknowledged,
    /// It has come from another endpoint.
    Arrived,
    /// All of it has moved on here.
    Accepted,
}

/// What events of one stream, or of the job, go to; nothing where nobody traces.
#[derive(Clone, Default)]
pub(crate) struct Trace {
    recorder: Option<Arc<Recorder>>,
    stream: u16,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({})", self.recorder.is_some())
    }
}

/// When something began; absent where nothing is traced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun(Option<u64>);

struct Recorder {
    /// Where times begin, and what that is in those of the trace.
    epoch: Instant,
    epoch_ns: u64,
    /// Number of the endpoint.
    end: u32,
    path: PathBuf,
    file: Mutex<Writing>,
}

struct Writing {
    /// None once it cannot be written, or is complete.
    file: Option<File>,
    buffer: Vec<u8>,
    written_ns: u64,
}

impl Trace {
    /// What the environment asks for. Where the file cannot be made, the log says so, and nothing
    /// is traced.
    pub fn from_env(topology: &Topology) -> Self {
        match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Self::to_file(&path, topology),
            None => Self::default(),
        }
    }

    fn to_file(path: &OsStr, topology: &Topology) -> Self {
        let end = topology.endpoint();
        let path = unused(path_of(path, end));
        match Recorder::create(path.clone(), topology) {
            Ok(recorder) => Self {
                recorder: Some(Arc::new(recorder)),
                stream: 0,
            },
            Err(error) => {
                tracing::error!(?path, %error, "the trace that {VARIABLE} asks for cannot be written");
                Self::default()
            }
        }
    }

    /// For events of this stream.
    #[must_use]
    pub fn of_stream(&self, stream: u16) -> Self {
        Self {
            recorder: self.recorder.clone(),
            stream,
        }
    }

    /// Something happens to batch `number` of an edge: of `bytes`, where these are known.
    #[inline]
    pub fn batch(&self, what: OfBatch, end: EndpointId, stage: Stage, number: u64, bytes: usize) {
        if let Some(recorder) = &self.recorder {
            recorder.batch(self.stream, what, (end, stage, number), bytes);
        }
    }

    /// Batches of an edge that may be sent at once, and those in flight.
    #[inline]
    pub fn credit(&self, end: EndpointId, stage: Stage, free: u64, in_flight: u64) {
        if let Some(recorder) = &self.recorder {
            let stream = self.stream;
            recorder.event(
                "C",
                format_args!(
                    "\"name\":\"stream {stream}, stage {stage}: batches to {end}\",\
                 \"args\":{{\"free\":{free},\"in flight\":{in_flight}}}"
                ),
            );
        }
    }

    /// Something begins that has an end.
    #[inline]
    pub fn begin(&self) -> Begun {
        Begun(self.recorder.as_ref().map(|recorder| recorder.now_ns()))
    }

    /// It has ended, on this thread.
    #[inline]
    pub fn end(&self, begun: Begun, name: &str) {
        if let (Some(recorder), Some(begun_ns)) = (&self.recorder, begun.0) {
            recorder.span(begun_ns, recorder.now_ns(), name);
        }
    }

    /// A call has waited for so long, until now.
    pub fn waited(&self, waited: Duration, what: &str) {
        if let Some(recorder) = &self.recorder {
            let now_ns = recorder.now_ns();
            let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
            recorder.span(now_ns.saturating_sub(waited_ns), now_ns, what);
        }
    }

    /// The end of a step of a stream begins, or is over.
    pub fn step(&self, stream: &str, what: impl fmt::Display, number: u64, is_over: bool) {
        if let Some(recorder) = &self.recorder {
            let phase = if is_over { "e" } else { "b" };
            let (end, stream) = (recorder.end, Name(stream));
            recorder.event(phase, format_args!(
                "\"cat\":\"step\",\"id\":\"{end}.step.{number}\",\"name\":\"{what} of {stream}\""
            ));
        }
    }

    /// Before a sleep: writes what was kept for long.
    #[inline]
    pub fn rest(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.rest();
        }
    }

    /// Completes the file: what follows is lost.
    pub fn finish(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.finish();
        }
    }
}

/// The file of an endpoint.
fn path_of(path: &OsStr, end: EndpointId) -> PathBuf {
    let bytes = path.as_bytes();
    let number = end.to_string();
    match bytes.windows(2).position(|two| two == b"%r") {
        Some(at) => {
            let parts = [&bytes[..at], number.as_bytes(), &bytes[at + 2..]];
            OsString::from_vec(parts.concat()).into()
        }
        None => OsString::from_vec([bytes, b".", number.as_bytes()].concat()).into(),
    }
}

/// The path where this process has not used it yet; else with the number of this use, 2 or more,
/// behind it.
fn unused(path: PathBuf) -> PathBuf {
    let mut all = USES.lock().unwrap_or_else(PoisonError::into_inner);
    let uses = all.entry(path.clone()).or_default();
    *uses += 1;
    match *uses {
        1 => path,
        number => {
            let mut path = path.into_os_string();
            path.push(format!(".{number}"));
            path.into()
        }
    }
}

/// A name as it may stand in a string of JSON, cut where it is long.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars().take(LONGEST_NAME) {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// Nanoseconds as microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

impl Recorder {
    fn create(path: PathBuf, topology: &Topology) -> Result<Self, Error> {
        let file = File::create(&path).map_err(|error| unwritten(&path, &error))?;
        let since_1970 = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let begin = Duration::from_secs(BEGIN_S);
        let recorder = Self {
            epoch: Instant::now(),
            epoch_ns: since_1970.saturating_sub(begin).as_nanos() as u64,
            end: topology.endpoint().0,
            path,
            file: Mutex::new(Writing {
                file: Some(file),
                buffer: b"[\n".to_vec(),
                written_ns: 0,
            }),
        };
        let (name, node) = (topology.name_of(topology.endpoint()), topology.node());
        recorder.event(
            "M",
            format_args!(
                "\"name\":\"process_name\",\"args\":{{\"name\":\"{name} (node {node})\"}}"
            ),
        );
        Ok(recorder)
    }

    fn now_ns(&self) -> u64 {
        self.epoch_ns + self.epoch.elapsed().as_nanos() as u64
    }

    fn batch(&self, stream: u16, what: OfBatch, edge: (EndpointId, Stage, u64), bytes: usize) {
        let (peer, stage, number) = edge;
        // What leaves here and what comes here are spans of their own: their clocks may differ.
        let (phase, kind, text) = match what {
            OfBatch::Sealed => ("b", "sent", "batch"),
            OfBatch::Posted => ("n", "sent", "posted"),
            OfBatch::Acknowledged => ("e", "sent", "batch"),
            OfBatch::Arrived => ("b", "received", "batch"),
            OfBatch::Accepted => ("e", "received", "batch"),
        };
        let end = self.end;
        self.event(phase, format_args!(
            "\"cat\":\"{kind}\",\"id\":\"{end}.{kind}.{stream}.{stage}.{peer}.{number}\",\"name\":\"{text}\",\
             \"args\":{{\"stream\":{stream},\"stage\":\"{stage}\",\"peer\":{peer},\"number\":{number},\"bytes\":{bytes}}}"
        ));
    }

    fn event(&self, phase: &str, rest: fmt::Arguments<'_>) {
        self.add(phase, self.now_ns(), rest);
    }

    fn span(&self, begun_ns: u64, end_ns: u64, name: &str) {
        let (name, lasted) = (Name(name), Micros(end_ns.saturating_sub(begun_ns)));
        self.add(
            "X",
            begun_ns,
            format_args!("\"name\":\"{name}\",\"dur\":{lasted}"),
        );
    }

    fn add(&self, phase: &str, at_ns: u64, rest: fmt::Arguments<'_>) {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let (end, at) = (self.end, Micros(at_ns));
        let mut writing = self.lock();
        if writing.file.is_none() {
            return;
        }
        // Writing to memory does not fail.
        let _ = writeln!(
            writing.buffer,
            "{{\"ph\":\"{phase}\",\"pid\":{end},\"tid\":{thread},\"ts\":{at},{rest}}},"
        );
        if writing.buffer.len() > BUFFER_BYTES - LONGEST_EVENT {
            self.write(&mut writing);
        }
    }

    /// Writes what is kept; the first failure ends the trace.
    fn write(&self, writing: &mut Writing) {
        writing.written_ns = self.now_ns();
        let Some(file) = &mut writing.file else {
            return;
        };
        if let Err(error) = file.write_all(&writing.buffer) {
            tracing::error!(path = ?self.path, %error, "the trace cannot be written, and ends here");
            writing.file = None;
        }
        writing.buffer.clear();
    }

    fn rest(&self) {
        let mut writing = self.lock();
        if self.now_ns().saturating_sub(writing.written_ns) >= WRITE_NS {
            self.write(&mut writing);
        }
    }

    fn finish(&self) {
        let (end, at) = (self.end, Micros(self.now_ns()));
        let mut writing = self.lock();
        let _ = writeln!(
            writing.buffer,
            "{{\"ph\":\"I\",\"pid\":{end},\"tid\":0,\"ts\":{at},\"s\":\"p\",\"name\":\"end\"}}\n]"
        );
        self.write(&mut writing);
        writing.file = None;
    }

    fn lock(&self) -> MutexGuard<'_, Writing> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.lock().file.is_some() {
            self.finish();
        }
    }
}

fn unwritten(path: &Path, error: &io::Error) -> Error {
    Error::config(VARIABLE, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trihop_transport::topology::Rank;

    fn topology() -> Topology {
        Topology::from_node_sizes(&[2, 2], Rank(3)).unwrap()
    }

    #[test]
    fn the_file_has_the_number_of_its_endpoint() {
        let name = |path: &str| path_of(OsStr::new(path), EndpointId(7));
        assert_eq!(name("a/%r.json"), Path::new("a/7.json"));
        assert_eq!(name("a.json"), Path::new("a.json.7"));
    }

    #[test]
    fn a_later_job_of_a_process_leaves_the_traces_of_earlier_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("%r.json");
        for number in 1..=3 {
            let trace = Trace::to_file(path.as_os_str(), &topology());
            trace.waited(Duration::from_secs(1), &format!("job {number}"));
        }
        for (name, job) in [("3.json", 1), ("3.json.2", 2), ("3.json.3", 3)] {
            let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
            assert!(text.contains(&format!("\"job {job}\"")), "{name}: {text}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_traces_nothing() {
        let trace = Trace::to_file(OsStr::new("/proc/nowhere/a"), &topology());
        assert!(trace.recorder.is_none() && trace.begin().0.is_none());
        // The device is full at the first write.
        let trace = Trace::to_file(OsStr::new("/dev/full%r/../full"), &topology());
        assert!(trace.recorder.is_none());
        let recorder = Recorder::create("/dev/full".into(), &topology()).unwrap();
        recorder.write(&mut recorder.lock());
        assert!(recorder.lock().file.is_none());
        recorder.span(1, 2, "ignored");
        assert!(recorder.lock().buffer.is_empty());
    }

    #[test]
    fn names_are_strings_of_json() {
        assert_eq!(
            Name("a\"\\\n\u{9b}ä").to_string(),
            "a\\\"\\\\\\u000a\\u009bä"
        );
        assert_eq!(Name(&"x".repeat(900)).to_string().len(), LONGEST_NAME);
        assert_eq!(Micros(1_234_567).to_string(), "1234.567");
    }

    #[test]
    fn memory_is_bounded_and_all_events_get_to_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        let trace = Trace::to_file(path.as_os_str(), &topology());
        for number in 0..10_000 {
            trace.batch(OfBatch::Sealed, EndpointId(1), Stage::FIRST, number, 64);
            let recorder = trace.recorder.as_ref().unwrap();
            assert!(recorder.lock().buffer.capacity() <= 2 * BUFFER_BYTES);
        }
        drop(trace);
        let text = std::fs::read_to_string(directory.path().join("t.3")).unwrap();
        assert!(
            text.starts_with("[\n{\"ph\":\"M\"") && text.ends_with("}\n]\n"),
            "{text}"
        );
        assert_eq!(text.matches("\"cat\":\"sent\"").count(), 10_000);
    }
}
