//! What a user must hear although no logs are installed: warnings about how the process was
//! started, that a call waits for so long that it may never end, and what nobody took.
//!
//! Such a warning is a `tracing` event first. Options are read and launchers are found before many
//! programs install their logs, and a C program may never do so: then the event has nobody who
//! takes it, and the text goes to standard error.

use std::fmt::Display;
use std::io::Write;

/// Writes a warning to standard error where this process has no `tracing` subscriber, unless
/// `TRIHOP_LOG` is `off` or `error`. Call it beside the event that says the same.
pub fn unless_logged(text: impl Display) {
    let wanted = std::env::var("TRIHOP_LOG").unwrap_or_default();
    let quiet = ["off", "error"]
        .iter()
        .any(|level| wanted.trim().eq_ignore_ascii_case(level));
    if !quiet && !tracing::dispatcher::has_been_set() {
        // Where standard error is closed, nobody is there to be told.
        let _ = std::io::stderr().write_all(format!("trihop: warning: {text}\n").as_bytes());
    }
}
