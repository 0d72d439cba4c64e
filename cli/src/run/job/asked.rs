//! What ends a job from outside: signals, and the time.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use trihop::transport::bootstrap::local::service::ranges;

use super::super::signals::{Signals, signal_name};
use super::Job;

/// A signal that asks ranks to end and comes so soon behind the first is the same.
const SAME_SIGNAL: Duration = Duration::from_millis(300);

/// So long after it, who has not ended is said.
const SAID_AFTER: Duration = Duration::from_secs(5);

/// Exit status where the time limit passed, as of timeout(1).
const STATUS_TIMEOUT: i32 = 124;

impl Job {
    /// Until the next time that something is due.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let kill_at = self.kill_at.filter(|_| !self.killed);
        let limit = self.time_limit.filter(|_| self.failure.is_none());
        let suspect = self.suspect.as_ref().map(|suspect| suspect.counts_at);
        let suspect = suspect.filter(|_| self.failure.is_none());
        let all = [kill_at, limit, suspect, self.ask_at, self.say_who_at()];
        let next = all.into_iter().flatten().min()?;
        // poll counts in milliseconds and rounds down: one more, so that a deadline has passed when
        // it returns.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    pub(super) fn take_signals(&mut self, signals: &Signals) {
        while let Some(number) = signals.next() {
            let Some(signal) = Signal::from_named_raw(number) else {
                continue;
            };
            let are_agents = self.spec.are_agents;
            if are_agents && signals.are_ignored(number) {
                continue;
            }
            let ends = [Signal::INT, Signal::TERM].contains(&signal)
                || are_agents && signal == Signal::HUP;
            // Who signals a process and its group, as timeout(1) does, asks once.
            let same =
                |(first, at): (Signal, Instant)| first == signal && at.elapsed() < SAME_SIGNAL;
            if ends && !are_agents && self.signalled.is_some_and(same) {
                continue;
            }
            let is_second = ends && self.signalled.is_some();
            if is_second && !are_agents {
                self.outputs.stderr.say(&format!(
                    "trihop run: second {}: killing all ranks",
                    signal_name(number)
                ));
                self.kill();
            } else {
                if is_second {
                    // An agent that has not taken the first one yet takes both for one.
                    self.kill_at.get_or_insert(Instant::now() + self.spec.grace);
                }
                // Agents go on for as long as ranks need them.
                let ranks = self.processes[..self.ranks].iter();
                ranks.for_each(|p| p.signal(signal));
            }
            if ends {
                self.signalled
                    .get_or_insert_with(|| (signal, Instant::now()));
            }
        }
    }

    /// Ranks that have not ended.
    fn running(&self) -> impl Iterator<Item = u32> {
        let all = (0..).zip(&self.processes[..self.ranks]);
        all.filter(|(_, process)| process.is_running())
            .map(|(rank, _)| rank)
    }

    /// When to say who goes on although a signal has asked all to end.
    fn say_who_at(&self) -> Option<Instant> {
        let is_over = self.failure.is_some() || self.kill_at.is_some();
        let says = !self.spec.are_agents && !self.has_said_who && !is_over;
        let (_, first) = self.signalled.filter(|_| says && !self.killed)?;
        Some(first + SAID_AFTER)
    }

    pub(super) fn watch_clock(&mut self) {
        let now = Instant::now();
        if self.time_limit.is_some_and(|limit| now >= limit) && self.failure.is_none() {
            let running = self.running();
            let limit = self.spec.timeout.unwrap_or_default().as_secs();
            let text = format!(
                "the job passed its limit of {limit} s; still running: ranks {}",
                ranges(running)
            );
            self.fail(STATUS_TIMEOUT, &text);
        }
        if self.say_who_at().is_some_and(|at| now >= at) {
            self.has_said_who = true;
            if self.running().next().is_some() {
                let text = format!(
                    "trihop run: ranks {} have not ended yet; the signal once more kills them",
                    ranges(self.running())
                );
                self.outputs.stderr.say(&text);
            }
        }
        let suspect = self.suspect.as_ref();
        if suspect.is_some_and(|suspect| now >= suspect.counts_at) {
            self.end_by_suspect();
            self.release_agents();
        }
        if self.ask_at.take_if(|at| now >= *at).is_some() {
            self.ask_to_end();
        }
        if self.kill_at.is_some_and(|at| now >= at) && !self.killed {
            self.kill();
        }
    }
}
