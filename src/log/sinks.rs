//! Where lines go.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::Context;
use trihop_transport::Error as TransportError;
use trihop_transport::sync::Flag;

use super::escape::{Escaped, one_line, printable};
use super::ring::Ring;
use super::{Detail, Facility, Level, Options};
use crate::Result;

/// Bytes kept for the file while the rank is not known.
const EARLY_BYTES_MAX: usize = 64 << 10;

thread_local! {
    /// This thread is in the callback.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// All sinks of a process.
pub(super) struct Sinks {
    options: Options,
    state: Mutex<State>,
    off: Flag,
}

struct State {
    rank: Option<u32>,
    ring: Option<Ring>,
    file: Option<(PathBuf, File)>,
    /// What the file is to begin with.
    early: String,
    /// Lines that had no room in `early`.
    early_lost: u64,
}

impl Sinks {
    /// Sinks that wait for their first line.
    pub fn open(mut options: Options) -> Result<Self> {
        let rank = options.rank.take();
        let state = State {
            rank: None,
            ring: (options.ring_bytes > 0).then(|| Ring::leak(options.ring_bytes)),
            file: None,
            early: String::new(),
            early_lost: 0,
        };
        let sinks = Self {
            options,
            state: Mutex::new(state),
            off: Flag::default(),
        };
        rank.map_or(Ok(()), |rank| sinks.set_rank(rank))?;
        Ok(sinks)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves at worst half a line.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_rank(&self, rank: u32) -> Result<()> {
        let mut state = self.lock();
        if state.rank.replace(rank) == Some(rank) {
            return Ok(());
        }
        state.file = None;
        let (early, lost) = (
            std::mem::take(&mut state.early),
            std::mem::take(&mut state.early_lost),
        );
        let Some(path) = self
            .options
            .file
            .as_ref()
            .filter(|_| self.options.detail(Some(rank)).file)
        else {
            return Ok(());
        };
        let mut name = path.clone().into_os_string();
        if self.options.file_per_rank {
            name.push(format!(".{rank}"));
        }
        let path = PathBuf::from(name);
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        let file = opened.map_err(|e| {
            TransportError::system(format!("opening the log file {}", escaped(&path)), e)
        })?;
        state.file = Some((path, file));
        if !early.is_empty() {
            state.append(&early);
        }
        if lost > 0 {
            state.append(&format!(
                "({lost} lines from before the rank was known had no room)\n"
            ));
        }
        Ok(())
    }

    /// Takes nothing any more.
    #[cfg(any(feature = "capi", test))]
    pub fn turn_off(&self) {
        self.off.raise();
    }

    pub fn is_off(&self) -> bool {
        self.off.is_raised()
    }

    pub fn recent(&self) -> String {
        self.lock()
            .ring
            .as_ref()
            .map(Ring::text)
            .unwrap_or_default()
    }

    /// Whether a message may be recorded, whatever the rank turns out to be.
    fn may_record(&self, facility: Facility, level: Level) -> bool {
        self.details().any(|d| d.record.passes(facility, level))
    }

    fn details(&self) -> impl Iterator<Item = &Detail> {
        let detailed = (self.options.detailed_ranks > 0).then_some(&self.options.detailed);
        [Some(&self.options.all), detailed].into_iter().flatten()
    }

    fn take(&self, level: Level, facility: Facility, text: &str) {
        if self.is_off() {
            return;
        }
        let text = &one_line(text);
        let mut state = self.lock();
        let detail = self.options.detail(state.rank);
        if !detail.record.passes(facility, level) {
            return;
        }
        let line = line(level, facility, state.rank, text);
        if let Some(ring) = &mut state.ring {
            ring.write(&line);
        }
        self.write(&mut state, &line);
        drop(state);
        if detail.stderr.passes(facility, level) {
            to_stderr(&line);
        }
        self.call(level, facility, text);
    }

    /// Takes a line of what somebody asked for. The ring is for what happens by itself, and has it
    /// only where no file does.
    #[cfg(any(feature = "capi", test))]
    pub fn keep(&self, text: &str) {
        if self.is_off() {
            return;
        }
        let text = &one_line(text);
        let (level, facility) = (Level::Info, Facility::Client);
        let mut state = self.lock();
        let line = line(level, facility, state.rank, text);
        self.write(&mut state, &line);
        if state.file.is_none()
            && let Some(ring) = &mut state.ring
        {
            ring.write(&line);
        }
        drop(state);
        self.call(level, facility, text);
    }

    /// Writes to the file, or keeps for it.
    fn write(&self, state: &mut State, line: &str) {
        if state.rank.is_none() && self.options.file.is_some() {
            state.keep_for_file(line);
        } else {
            state.append(line);
        }
    }

    fn call(&self, level: Level, facility: Facility, text: &str) {
        if let Some(callback) = &self.options.callback
            && !CALLING.replace(true)
        {
            let _end = EndOfCall;
            callback(level, facility, text);
        }
    }
}

/// Ends the call when dropped, also where the callback panics.
struct EndOfCall;

impl Drop for EndOfCall {
    fn drop(&mut self) {
        CALLING.set(false);
    }
}

impl State {
    fn keep_for_file(&mut self, line: &str) {
        // The first lines matter most: they say how the job began.
        if self.early_lost == 0 && self.early.len() + line.len() <= EARLY_BYTES_MAX {
            self.early.push_str(line);
        } else {
            self.early_lost += 1;
        }
    }

    /// Lines go to the file in one write each, so that ranks may share one.
    fn append(&mut self, lines: &str) {
        if let Some((path, file)) = &mut self.file
            && let Err(error) = file.write_all(lines.as_bytes())
        {
            to_stderr(&format!(
                "trihop: writing the log file {}: {error}; no more is written to it\n",
                escaped(path)
            ));
            self.file = None;
        }
    }
}

fn line(level: Level, facility: Facility, rank: Option<u32>, text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 64);
    // Writing into a string cannot fail, and without a clock there is no time.
    let _ = SystemTime.format_time(&mut Writer::new(&mut line));
    let _ = write!(line, " {level:<5} {facility}");
    if let Some(rank) = rank {
        let _ = write!(line, " rank {rank}");
    }
    let _ = writeln!(line, ": {text}");
    line
}

/// Where standard error is closed, nobody is there to be told.
fn to_stderr(line: &str) {
    let _ = std::io::stderr().write_all(printable(line).as_bytes());
}

fn escaped(path: &Path) -> Escaped<'_> {
    Escaped(path.as_os_str().as_encoded_bytes())
}

/// What `tracing` calls.
pub(super) struct Layer(Arc<Sinks>);

impl Layer {
    pub fn new(sinks: Arc<Sinks>) -> Self {
        Self(sinks)
    }
}

fn origin(metadata: &Metadata<'_>) -> (Facility, Level) {
    (
        Facility::of_target(metadata.target()),
        (*metadata.level()).into(),
    )
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Layer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let (facility, level) = origin(metadata);
        self.0.may_record(facility, level)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let limits = [
            LevelFilter::OFF,
            LevelFilter::ERROR,
            LevelFilter::WARN,
            LevelFilter::INFO,
            LevelFilter::DEBUG,
            LevelFilter::TRACE,
        ];
        let levels = self
            .0
            .details()
            .flat_map(|d| Facility::ALL.map(|f| d.record.level(f)));
        levels.max().map(|most| limits[most as usize])
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (facility, level) = origin(event.metadata());
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = DefaultFields::new().format_fields(Writer::new(&mut text), event);
        self.0.take(level, facility, &text);
    }
}
