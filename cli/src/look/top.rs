//! `trihop top`: looks again and again, or once.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use console::{Key, Term};
use trihop::log::printable;
use trihop::observe::Seen;

use super::LookError;
use super::choice::Choice;
use super::prometheus;
use super::rates::{Row, compare};
use super::table::{self, By};
use crate::number::address;
use crate::output;

/// Show the jobs of this user on this machine, as they go
///
/// Rates, queues, credits, waits, spill and memory of each rank, every second, until `q` is
/// pressed; `n` and `r` change between nodes and ranks. Jobs are seen while they work, hang or are
/// stopped, and nothing is asked of them. Of a job on several machines, this one's ranks are shown.
///
/// Columns: records sent and delivered, and bytes given to the fabric, in a second; bytes in queues
/// that the next hop has not taken; records that wait for a handler or for `take`; batches in
/// flight, and those that may be sent at once; bytes in the spill; memory in use, of its bound; for
/// how long the oldest call waits, and for what.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    #[command(flatten)]
    choice: Choice,

    /// What a line stands for
    #[arg(long, value_enum, default_value_t = By::Rank)]
    by: By,

    /// Looks once, after one interval, and ends; this is what it does where standard output is no
    /// terminal
    #[arg(long)]
    once: bool,

    /// Prints one JSON object and ends
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,

    /// Prints what a Prometheus server scrapes and ends; with an address of this machine's loopback
    /// interface (127.0.0.1:9464), answers there instead, until it is ended
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, value_parser = address)]
    prometheus: Option<Option<SocketAddr>>,

    /// Seconds between two looks; rates need two. 0 looks once, without rates
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|at| (0.0..=3600.0).contains(at));
    seconds.ok_or_else(|| "a number of seconds from 0 to 3600 is needed".to_owned())
}

#[derive(serde::Serialize)]
struct Report {
    report: &'static str,
    endpoints: Vec<Row>,
}

/// Shows what is asked for.
///
/// # Errors
/// A process or job that is named and shows nothing; standard output.
pub fn run(args: TopArgs) -> Result<(), LookError> {
    match args.prometheus {
        Some(Some(address)) => return prometheus::answer(address, &args.choice),
        Some(None) => return Ok(output::write(&prometheus::text(&args.choice.look()?))?),
        None => {}
    }
    let term = Term::stdout();
    if args.json || args.once || args.interval == 0.0 || !term.is_term() {
        let rows = rows(&args)?;
        if args.json {
            let report = Report {
                report: "top",
                endpoints: rows,
            };
            return Ok(output::json(&report)?);
        }
        return Ok(output::write(&table::write(&rows, args.by))?);
    }
    live(&args, &term)
}

/// Two looks, one interval apart.
fn rows(args: &TopArgs) -> Result<Vec<Row>, LookError> {
    let before = match args.interval {
        0.0 => Vec::new(),
        seconds => {
            let seen = args.choice.look()?;
            thread::sleep(Duration::from_secs_f64(seconds));
            seen
        }
    };
    Ok(compare(&before, args.choice.look()?))
}

fn live(args: &TopArgs, term: &Term) -> Result<(), LookError> {
    let unwritten = |error| LookError::Output(output::Unwritten::from(error));
    let (tell, keys) = channel();
    read_keys(tell);
    let mut by = args.by;
    let mut before: Vec<Seen> = Vec::new();
    let mut rows = compare(&before, args.choice.look()?);
    loop {
        let (height, width) = term.size();
        let text = screen(&rows, by, height.into(), width.into());
        term.clear_screen().map_err(unwritten)?;
        term.write_str(&text).map_err(unwritten)?;
        match next(&keys, Duration::from_secs_f64(args.interval)) {
            Some(Key::Char('q') | Key::Escape | Key::CtrlC) => break,
            Some(Key::Char('n')) => by = By::Node,
            Some(Key::Char('r')) => by = By::Rank,
            Some(_) => {}
            None => {
                before = rows.into_iter().map(|row| row.seen).collect();
                // A job that has ended is no reason to end.
                rows = compare(&before, args.choice.look().unwrap_or_default());
            }
        }
    }
    term.write_line("").map_err(unwritten)
}

/// What fits the screen.
fn screen(rows: &[Row], by: By, height: usize, width: usize) -> String {
    let text = printable(&table::write(rows, by)).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let room = height.saturating_sub(2).max(1);
    let mut shown = String::new();
    for line in lines.iter().take(room) {
        shown.extend(line.chars().take(width.max(20)));
        shown.push('\n');
    }
    let missing = lines.len().saturating_sub(room);
    if missing > 0 {
        shown += &format!("({missing} lines more) ");
    }
    shown + "q ends, n shows nodes, r ranks"
}

fn read_keys(tell: Sender<Key>) {
    thread::spawn(move || {
        let term = Term::stdout();
        while let Ok(key) = term.read_key() {
            let is_last = matches!(key, Key::Char('q') | Key::Escape | Key::CtrlC);
            if tell.send(key).is_err() || is_last {
                break;
            }
        }
    });
}

/// A key that is pressed before the time is over.
fn next(keys: &Receiver<Key>, interval: Duration) -> Option<Key> {
    let end = Instant::now() + interval;
    match keys.recv_timeout(interval) {
        Ok(key) => Some(key),
        Err(RecvTimeoutError::Timeout) => None,
        // There is no keyboard.
        Err(RecvTimeoutError::Disconnected) => {
            thread::sleep(end.saturating_duration_since(Instant::now()));
            None
        }
    }
}
