//! The bar of a job, which rank 0 moves through a pipe: only the launcher has the terminal.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::progress::{Bar, Position};

/// Longest line that is no nonsense.
const LINE_BYTES_MAX: usize = 64;

/// What rank 0 tells of its progress, and the bar that shows it.
pub(super) struct Progress {
    pipe: Option<File>,
    line: Vec<u8>,
    pub(super) bar: Bar,
}

impl Progress {
    /// With the end for rank 0, if there is a terminal for a bar.
    pub(super) fn new() -> io::Result<(Self, Option<OwnedFd>)> {
        let (ours, theirs) = if io::stderr().is_terminal() {
            let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
            fcntl_setfl(&ours, OFlags::NONBLOCK)?;
            (Some(ours), Some(theirs))
        } else {
            (None, None)
        };
        let progress = Self {
            pipe: ours.map(File::from),
            line: Vec::new(),
            bar: Bar::default(),
        };
        Ok((progress, theirs))
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Takes what has come, and moves the bar.
    pub(super) fn forward(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = [0; 4096];
        match pipe.read(&mut chunk) {
            Ok(count) if count > 0 => {
                for byte in &chunk[..count] {
                    self.take(*byte);
                }
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            _ => self.close(),
        }
    }

    fn take(&mut self, byte: u8) {
        if byte != b'\n' {
            self.line.push(byte);
            if self.line.len() > LINE_BYTES_MAX {
                self.close();
            }
            return;
        }
        let line = std::mem::take(&mut self.line);
        match std::str::from_utf8(&line).ok().and_then(Position::parse) {
            Some(position) => self.bar.show(position),
            // An empty line is the end.
            None => self.bar.clear(),
        }
    }

    /// Nobody tells anything any more.
    pub(super) fn close(&mut self) {
        self.pipe = None;
        self.line.clear();
        self.bar.clear();
    }
}
