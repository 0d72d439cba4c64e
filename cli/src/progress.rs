//! How far a job is, for whoever looks: a bar on a terminal, which the launcher draws for its rank
//! 0, and else a line now and then.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};

use crate::output;

/// Variable of rank 0: descriptor of a pipe to the launcher, which takes lines of [`Position`]s.
pub const VARIABLE: &str = "TRIHOP_PROGRESS_FD";

/// Time between two lines where there is no terminal.
const LINES: Duration = Duration::from_secs(10);
/// Time between two lines to the launcher.
const DRAWN: Duration = Duration::from_millis(100);

/// Bytes that are done, and how many are to be; 0 where nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub done_bytes: u64,
    pub total_bytes: u64,
}

impl Position {
    /// A line for the launcher.
    fn line(self) -> String {
        format!("{} {}\n", self.done_bytes, self.total_bytes)
    }

    /// What [`Position::line`] made, without its end.
    pub fn parse(line: &str) -> Option<Self> {
        let (done, total) = line.split_once(' ')?;
        Some(Self {
            done_bytes: done.parse().ok()?,
            total_bytes: total.parse().ok()?,
        })
    }

    /// A line for people, `elapsed` after the start.
    fn sentence(self, elapsed: Duration) -> String {
        let rate = (self.done_bytes as f64 / elapsed.as_secs_f64().max(1e-3)) as u64;
        let (done, rate) = (BinaryBytes(self.done_bytes), BinaryBytes(rate));
        if self.total_bytes == 0 || self.done_bytes > self.total_bytes {
            return format!("{done} read, {rate}/s");
        }
        let share = 100 * u128::from(self.done_bytes) / u128::from(self.total_bytes);
        let total = BinaryBytes(self.total_bytes);
        format!("{done} of {total} read ({share} %), {rate}/s")
    }
}

/// A bar on standard error.
#[derive(Default)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// Shows how far it is.
    pub fn show(&mut self, position: Position) {
        let bar = self.0.get_or_insert_with(|| {
            let template = if position.total_bytes > 0 {
                "{bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}"
            } else {
                "{spinner} {binary_bytes} {binary_bytes_per_sec}"
            };
            let style = ProgressStyle::with_template(template);
            ProgressBar::new(position.total_bytes)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_position(position.done_bytes);
    }

    /// Does something that writes to the terminal, the bar being away.
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Takes the bar away.
    pub fn clear(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Where a rank tells how far its job is.
pub struct Progress {
    who: &'static str,
    to: To,
    started: Instant,
    told: Instant,
}

enum To {
    Launcher(File),
    Terminal(Bar),
    Lines,
}

impl Progress {
    /// The launcher that has asked for it, or standard error.
    pub fn new(who: &'static str) -> Self {
        let to = match launcher() {
            Some(pipe) => To::Launcher(pipe),
            None if std::io::stderr().is_terminal() => To::Terminal(Bar::default()),
            None => To::Lines,
        };
        let now = Instant::now();
        Self {
            who,
            to,
            started: now,
            told: now,
        }
    }

    /// Tells it, unless that was done a moment ago.
    pub fn tell(&mut self, position: Position) {
        let now = Instant::now();
        let pause = match &mut self.to {
            // It draws no more often than people can see.
            To::Terminal(bar) => return bar.show(position),
            To::Launcher(_) if self.told == self.started => Duration::ZERO,
            To::Launcher(_) => DRAWN,
            To::Lines => LINES,
        };
        if now.duration_since(self.told) < pause {
            return;
        }
        self.told = now;
        match &mut self.to {
            // A launcher that is gone has ended the job.
            To::Launcher(pipe) => drop(pipe.write_all(position.line().as_bytes())),
            _ => output::say(
                self.who,
                position.sentence(now.duration_since(self.started)),
            ),
        }
    }

    /// Nothing is to be shown any more.
    pub fn end(&mut self) {
        match &mut self.to {
            To::Launcher(pipe) => drop(pipe.write_all(b"\n")),
            To::Terminal(bar) => bar.clear(),
            To::Lines => {}
        }
    }
}

fn launcher() -> Option<File> {
    let descriptor: u32 = std::env::var(VARIABLE).ok()?.parse().ok()?;
    let path = format!("/proc/self/fd/{descriptor}");
    OpenOptions::new().write(true).open(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(done_bytes: u64, total_bytes: u64) -> Position {
        Position {
            done_bytes,
            total_bytes,
        }
    }

    #[test]
    fn positions_survive_the_way_to_the_launcher() {
        let line = position(5, u64::MAX).line();
        assert_eq!(
            Position::parse(line.trim_end()),
            Some(position(5, u64::MAX))
        );
        for bad in ["", "5", "5 ", "5 6 7", "-1 2"] {
            assert_eq!(Position::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn sentences_say_how_much_and_how_fast() {
        let after = Duration::from_secs(10);
        let told = |done: u64, total: u64| position(done << 20, total << 20).sentence(after);
        assert_eq!(
            told(50, 200),
            "50.00 MiB of 200.00 MiB read (25 %), 5.00 MiB/s"
        );
        assert_eq!(told(50, 0), "50.00 MiB read, 5.00 MiB/s");
        assert_eq!(told(50, 40), "50.00 MiB read, 5.00 MiB/s");
    }
}
