//! What ranks print, forwarded by whole lines and without ever blocking the launcher.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use trihop::log::printable;

/// Longest line that is kept together, in bytes; a longer one is forwarded in pieces.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

/// Bytes that wait for a slow reader of our own output before ranks have to wait, per stream.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// A write of this size to a pipe that polls writable does not block (POSIX: PIPE_BUF).
const STEP_BYTES: usize = 4096;

/// Gathers one stream of one rank into lines.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: Option<Vec<u8>>,
    open: Vec<u8>,
}

impl Lines {
    /// Lines marked with `prefix`, or as they are.
    pub(super) fn new(prefix: Option<String>) -> Self {
        Self {
            prefix: prefix.map(String::into_bytes),
            open: Vec::new(),
        }
    }

    /// Takes what the rank printed; whole lines go to `out`.
    pub(super) fn take(&mut self, bytes: &[u8], out: &mut VecDeque<u8>) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            self.open.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.open.len() >= LINE_BYTES_MAX {
                self.close(out);
            }
        }
    }

    /// The rank prints no more: what has no line end yet goes to `out` too.
    pub(super) fn close(&mut self, out: &mut VecDeque<u8>) {
        if self.open.is_empty() {
            return;
        }
        if let Some(prefix) = &self.prefix {
            out.extend(prefix);
            if !self.open.ends_with(b"\n") {
                self.open.push(b'\n');
            }
        }
        out.extend(self.open.drain(..));
    }
}

/// One of our own output streams, with a bounded queue.
#[derive(Debug)]
pub(super) struct Sink {
    descriptor: OwnedFd,
    queue: VecDeque<u8>,
    never_blocks: bool,
    broken: Option<Errno>,
}

impl Sink {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        let file = fstat(&descriptor)
            .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
        Self {
            descriptor,
            queue: VecDeque::new(),
            never_blocks: file,
            broken: None,
        }
    }

    /// Where output is appended.
    pub(super) fn queue(&mut self) -> &mut VecDeque<u8> {
        &mut self.queue
    }

    /// Whether ranks may print on.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < QUEUE_BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The reader of this stream is gone, as first noticed.
    pub(super) fn broken(&self) -> Option<Errno> {
        self.broken
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// A line of the launcher itself.
    pub(super) fn say(&mut self, text: &str) {
        self.queue.extend(printable(text).as_bytes());
        self.queue.push_back(b'\n');
    }

    /// Writes what can be written without blocking.
    pub(super) fn flush(&mut self) {
        while self.broken.is_none()
            && !self.queue.is_empty()
            && (self.never_blocks || self.writable())
        {
            let (first, _) = self.queue.as_slices();
            match rustix::io::write(&self.descriptor, &first[..first.len().min(STEP_BYTES)]) {
                Ok(count) => drop(self.queue.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(e) => self.broken = Some(e),
            }
        }
        if self.broken.is_some() {
            self.queue.clear();
        }
    }

    fn writable(&self) -> bool {
        let now = Timespec::default();
        matches!(
            poll(
                &mut [PollFd::from_borrowed_fd(
                    self.descriptor.as_fd(),
                    PollFlags::OUT
                )],
                Some(&now)
            ),
            Ok(1)
        )
    }
}

/// Where a rank's stream goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

/// All places that output goes to.
#[derive(Debug)]
pub(super) struct Outputs {
    pub(super) stdout: Sink,
    pub(super) stderr: Sink,
}

impl Outputs {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            stdout: Sink::new(io::stdout().as_fd().try_clone_to_owned()?),
            stderr: Sink::new(io::stderr().as_fd().try_clone_to_owned()?),
        })
    }

    pub(super) fn has_room(&self, target: Target) -> bool {
        match target {
            Target::Stdout => self.stdout.has_room(),
            Target::Stderr => self.stderr.has_room(),
        }
    }

    pub(super) fn take(&mut self, target: Target, lines: &mut Lines, bytes: &[u8]) {
        lines.take(bytes, self.sink(target).queue());
    }

    pub(super) fn close(&mut self, target: Target, lines: &mut Lines) {
        lines.close(self.sink(target).queue());
    }

    fn sink(&mut self, target: Target) -> &mut Sink {
        match target {
            Target::Stdout => &mut self.stdout,
            Target::Stderr => &mut self.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(prefix: Option<&str>, pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new(prefix.map(str::to_owned)), VecDeque::new());
        pieces.iter().for_each(|piece| lines.take(piece, &mut out));
        lines.close(&mut out);
        out.into()
    }

    #[test]
    fn lines_are_forwarded_whole_and_marked() {
        assert_eq!(
            lines(Some("[3] "), &[b"a", b"b\nc\n\nd"]),
            b"[3] ab\n[3] c\n[3] \n[3] d\n"
        );
        assert_eq!(lines(None, &[b"a", b"b\nc"]), b"ab\nc");
        assert_eq!(lines(Some("[0] "), &[]), b"");
    }

    #[test]
    fn an_endless_line_is_cut_in_pieces() {
        let long = vec![b'x'; 2 * LINE_BYTES_MAX];
        assert_eq!(lines(None, &[&long]), long);
        let (mut open, mut out) = (Lines::new(Some("[0] ".into())), VecDeque::new());
        for piece in long.chunks(1000) {
            open.take(piece, &mut out);
            assert!(open.open.len() < LINE_BYTES_MAX);
        }
        open.close(&mut out);
        assert_eq!(Vec::from(out).iter().filter(|b| **b == b'\n').count(), 2);
    }
}
