//! What this process logs, and where to: standard error, a file of its rank, a bounded piece of memory.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::Args;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};
use trihop::transport::bootstrap::{self, Launcher};

/// The last lines that were logged, where they are kept.
static RECENT: OnceLock<Recent> = OnceLock::new();

/// Logs of a rank.
///
/// Without any of these, TRIHOP_LOG says what goes to standard error.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Logs")]
pub struct LogOptions {
    /// What is logged, as in TRIHOP_LOG: a level, or levels by facility (warn,trihop_shuffle=debug)
    #[arg(short = 'D', long, value_name = "FILTER")]
    log: Option<String>,

    /// What ranks up to --log-extra-max log instead
    #[arg(short = 'E', long, value_name = "FILTER")]
    log_extra: Option<String>,

    /// Highest rank that logs what --log-extra says; by default the last
    #[arg(short = 'X', long, value_name = "RANK", requires = "log_extra")]
    log_extra_max: Option<u32>,

    /// Logs go to PREFIX.<rank>, and to standard error only what --log-stderr says
    #[arg(short = 'F', long, value_name = "PREFIX")]
    log_file: Option<PathBuf>,

    /// Least severe level that goes to standard error beside the file: off, error (the default), warn, info, debug or trace
    #[arg(short = 'S', long, value_name = "LEVEL", requires = "log_file")]
    log_stderr: Option<LevelFilter>,

    /// Keeps the last N bytes of logs in memory; --dump and a rank that gives up show them
    #[arg(short = 'I', long, value_name = "N", default_value_t = 0)]
    log_ring_bytes: usize,
}

impl LogOptions {
    /// What a rank logs.
    fn filter(&self, rank: u32, environment: Option<&str>) -> Result<EnvFilter, String> {
        let is_extra = self.log_extra_max.is_none_or(|max| rank <= max);
        let extra = self
            .log_extra
            .as_deref()
            .filter(|_| is_extra)
            .map(|text| ("--log-extra", text));
        let own = self.log.as_deref().map(|text| ("--log", text));
        let environment = environment.map(|text| ("TRIHOP_LOG", text));
        let (name, text) = extra.or(own).or(environment).unwrap_or(("", "warn"));
        EnvFilter::try_new(text).map_err(|error| format!("{name}: `{text}` is no log filter: {error}"))
    }
}

/// Logs from now on as the options say.
///
/// # Errors
/// A filter that is none, or a file that cannot be made, as a text for the user.
pub fn start(options: &LogOptions) -> Result<(), String> {
    let environment = std::env::var("TRIHOP_LOG").ok();
    let rank = rank_of_environment();
    let filter = || options.filter(rank, environment.as_deref());
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = Vec::new();
    let to_stderr = fmt::layer().with_writer(io::stderr);
    match &options.log_file {
        None => layers.push(to_stderr.with_filter(filter()?).boxed()),
        Some(prefix) => {
            let file = create(prefix, rank)?;
            let to_file = fmt::layer().with_ansi(false).with_writer(Mutex::new(file));
            layers.push(to_file.with_filter(filter()?).boxed());
            let level = options.log_stderr.unwrap_or(LevelFilter::ERROR);
            layers.push(to_stderr.with_filter(level).with_filter(filter()?).boxed());
        }
    }
    if options.log_ring_bytes > 0 {
        let recent = RECENT.get_or_init(|| Recent::new(options.log_ring_bytes));
        let to_memory = fmt::layer().with_ansi(false).with_writer(recent);
        layers.push(to_memory.with_filter(filter()?).boxed());
    }
    tracing_subscriber::registry().with(layers).init();
    Ok(())
}

fn create(prefix: &Path, rank: u32) -> Result<File, String> {
    let mut name = OsString::from(prefix);
    name.push(format!(".{rank}"));
    File::create(&name).map_err(|error| format!("--log-file: {}: {error}", Path::new(&name).display()))
}

/// The rank that the launcher gave this process; 0 without one. Logs begin before there is a job to ask.
fn rank_of_environment() -> u32 {
    let variable = match bootstrap::detect(None) {
        Ok(Launcher::Local) => "TRIHOP_RANK",
        Ok(Launcher::Pmi1) => "PMI_RANK",
        Ok(Launcher::Pmix) => "PMIX_RANK",
        _ => return 0,
    };
    let rank = std::env::var(variable).ok().and_then(|rank| rank.parse().ok());
    rank.unwrap_or(0)
}

/// The last lines that were logged: whole lines, where `--log-ring-bytes` keeps any.
pub fn recent() -> String {
    RECENT.get().map_or(String::new(), Recent::text)
}

/// The last bytes of a text, at most as many as there is room for.
#[derive(Debug)]
struct Recent {
    bytes: Mutex<VecDeque<u8>>,
    room: usize,
}

impl Recent {
    fn new(room: usize) -> Self {
        Self {
            bytes: Mutex::default(),
            room,
        }
    }

    /// Whole lines of what is kept.
    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let full = bytes.len() == self.room;
        let cut = bytes
            .iter()
            .position(|&byte| byte == b'\n')
            .map_or(bytes.len(), |at| at + 1);
        let kept: Vec<u8> = bytes.iter().skip(if full { cut } else { 0 }).copied().collect();
        String::from_utf8_lossy(&kept).into_owned()
    }
}

impl Write for &Recent {
    fn write(&mut self, new: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &new[new.len().saturating_sub(self.room)..];
        let excess = (bytes.len() + last.len()).saturating_sub(self.room);
        bytes.drain(..excess);
        bytes.extend(last);
        Ok(new.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for &'static Recent {
    type Writer = &'static Recent;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_the_last_whole_lines() {
        let recent = Recent::new(20);
        write!(&recent, "first\nsecond\n").unwrap();
        assert_eq!(recent.text(), "first\nsecond\n");
        write!(&recent, "third\nfourth\n").unwrap();
        assert_eq!(recent.text(), "third\nfourth\n");
        writeln!(&recent, "one that is longer than the room").unwrap();
        assert_eq!(recent.text(), "");
        assert_eq!(recent.bytes.lock().unwrap().len(), 20);
    }

    #[test]
    fn ranks_up_to_a_rank_log_more() {
        let options = |log: Option<&str>, extra: Option<&str>, log_extra_max| LogOptions {
            log: log.map(str::to_owned),
            log_extra: extra.map(str::to_owned),
            log_extra_max,
            ..LogOptions::default()
        };
        let filter = |options: &LogOptions, rank| options.filter(rank, Some("info")).unwrap().to_string();
        assert_eq!(filter(&options(None, None, None), 0), "info");
        assert_eq!(filter(&options(Some("error"), None, None), 0), "error");
        let some = options(Some("error"), Some("debug"), Some(1));
        assert_eq!(
            [0, 1, 2].map(|rank| filter(&some, rank)),
            ["debug", "debug", "error"]
        );
        assert_eq!(filter(&options(None, Some("debug"), None), 9), "debug");
        let wrong = options(Some("loud=very=much"), None, None)
            .filter(0, None)
            .unwrap_err();
        assert!(wrong.contains("--log") && wrong.contains("loud"), "{wrong}");
    }
}
