//! Files that are read from their start to their end by one rank: pipes, and what is compressed.
//!
//! A thread reads and decompresses ahead, since a pipe may be silent for long while messages of
//! other ranks want to be passed on.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use super::inputs::Way;

/// Bytes of a block.
const BLOCK_BYTES: usize = 256 << 10;
/// Blocks that are read ahead.
const AHEAD: usize = 4;
/// Longest sleep between two calls of `idle`.
pub const NAP: Duration = Duration::from_micros(200);

/// How bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    Plain,
    /// RFC 1952, one member or several.
    Gzip,
    /// RFC 8878, one frame or several.
    Zstd,
}

impl Codec {
    /// Bytes that tell.
    pub const MARK_BYTES: usize = 4;

    /// What begins so. No text begins as compressed files do, nor as the frame that zstd skips, which
    /// some tools write first.
    pub fn of(start: &[u8]) -> Self {
        match start {
            [0x1F, 0x8B, ..] => Self::Gzip,
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Self::Zstd,
            _ => Self::Plain,
        }
    }
}

/// Some bytes of a stream.
#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    /// Bytes that were read for it, as they are on the disk.
    raw_bytes: u64,
}

/// Bytes, and how many were read for them; `None` at the end; or what reading did.
pub type Taken<'s> = io::Result<Option<(&'s [u8], u64)>>;

/// A file that is being read by a thread.
#[derive(Debug)]
pub struct Stream {
    blocks: Receiver<io::Result<Block>>,
    /// Looked at before they were read.
    again: VecDeque<Block>,
    current: Option<Block>,
}

impl Stream {
    /// Begins to open and to read: opening a pipe may take until somebody writes.
    ///
    /// # Errors
    /// There is no thread.
    pub fn open(path: &Path, way: Way) -> io::Result<Self> {
        let path = path.to_owned();
        let (sender, blocks) = sync_channel(AHEAD);
        std::thread::Builder::new()
            .name("trihop-input".to_owned())
            .spawn(move || {
                let file = match way {
                    Way::Stdin => io::stdin().as_fd().try_clone_to_owned().map(File::from),
                    Way::Pipe | Way::Whole { .. } | Way::Cut | Way::Groups => File::open(path),
                };
                if let Err(error) = file.and_then(|file| read_ahead(file, &sender)) {
                    // Without a listener the job has ended.
                    let _ = sender.send(Err(error));
                }
            })?;
        Ok(Self {
            blocks,
            again: VecDeque::new(),
            current: None,
        })
    }

    /// The next bytes, and how many were read for them; `None` at the end. `idle` is called again
    /// and again while nothing comes.
    ///
    /// # Errors
    /// What `idle` returned; inside, what reading did.
    pub fn next<E>(&mut self, idle: &mut impl FnMut() -> Result<(), E>) -> Result<Taken<'_>, E> {
        let next = match self.again.pop_front() {
            Some(block) => Ok(Some(block)),
            None => self.receive(idle)?,
        };
        Ok(next.map(|block| {
            self.current = block;
            let current = self.current.as_ref();
            current.map(|block| (&block.bytes[..], block.raw_bytes))
        }))
    }

    /// Gives back what was read from the start on: `seen` and all blocks after it.
    pub fn rewind(&mut self, seen: Vec<(Vec<u8>, u64)>) {
        let seen = seen
            .into_iter()
            .map(|(bytes, raw_bytes)| Block { bytes, raw_bytes });
        self.again = seen.chain(self.again.drain(..)).collect();
    }

    fn receive<E>(
        &mut self,
        idle: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<io::Result<Option<Block>>, E> {
        let mut received = self.blocks.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        });
        loop {
            match received {
                Ok(block) => return Ok(block.map(Some)),
                Err(RecvTimeoutError::Disconnected) => return Ok(Ok(None)),
                Err(RecvTimeoutError::Timeout) => idle()?,
            }
            received = self.blocks.recv_timeout(NAP);
        }
    }
}

/// Counts what passes.
struct Counted<R> {
    from: R,
    /// Shared with the one who has handed the reader on to a decompressor.
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(to)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

/// Reads to the end, or until nobody listens.
fn read_ahead(file: File, to: &SyncSender<io::Result<Block>>) -> io::Result<()> {
    let count = Rc::new(Cell::new(0));
    let mut counted = Counted {
        from: file,
        count: Rc::clone(&count),
    };
    let mut start = Vec::new();
    counted
        .by_ref()
        .take(Codec::MARK_BYTES as u64)
        .read_to_end(&mut start)?;
    let codec = Codec::of(&start);
    let raw = Cursor::new(start).chain(counted);
    let mut plain: Box<dyn Read> = match codec {
        Codec::Plain => Box::new(raw),
        Codec::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(
            BufReader::with_capacity(BLOCK_BYTES, raw),
        )),
        Codec::Zstd => Box::new(zstd::Decoder::new(raw)?),
    };
    let mut told = 0;
    loop {
        // Whatever there is: a pipe's last line must not wait for a full block.
        let mut bytes = vec![0; BLOCK_BYTES];
        let filled = match plain.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(filled) => filled,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        bytes.truncate(filled);
        let now = count.get();
        let raw_bytes = now - told;
        told = now;
        if to.send(Ok(Block { bytes, raw_bytes })).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read_all(path: &Path, again: bool) -> io::Result<(Vec<u8>, u64)> {
        let mut stream = Stream::open(path, Way::Pipe)?;
        let mut idle = || Ok::<(), ()>(());
        if again {
            let (bytes, raw) = stream.next(&mut idle).unwrap()?.expect("a first block");
            let first = (bytes.to_vec(), raw);
            stream.rewind(vec![first]);
        }
        let (mut all, mut raw_bytes) = (Vec::new(), 0);
        while let Some((bytes, raw)) = stream.next(&mut idle).unwrap()? {
            all.extend_from_slice(bytes);
            raw_bytes += raw;
        }
        Ok((all, raw_bytes))
    }

    #[test]
    fn every_codec_is_told_by_its_first_bytes_and_read_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let text: Vec<u8> = (0..1_000_000u32)
            .flat_map(|n| n.to_string().into_bytes())
            .collect();
        let half = text.len() / 2;
        let gzip = |part: &[u8]| {
            let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            to.write_all(part).unwrap();
            to.finish().unwrap()
        };
        let zstd = |part: &[u8]| zstd::encode_all(part, 1).unwrap();
        for (name, stored) in [
            ("plain", text.clone()),
            ("gzip", [gzip(&text[..half]), gzip(&text[half..])].concat()),
            ("zstd", [zstd(&text[..half]), zstd(&text[half..])].concat()),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, &stored).unwrap();
            for again in [false, true] {
                let (read, raw_bytes) = read_all(&path, again).unwrap();
                assert!(read == text, "{name}");
                assert_eq!(raw_bytes, stored.len() as u64, "{name}");
            }
            if name != "plain" {
                std::fs::write(&path, &stored[..stored.len() - 20]).unwrap();
                assert!(read_all(&path, false).is_err(), "{name} that is torn");
            }
        }
    }

    #[test]
    fn little_or_nothing_is_read_too() {
        let dir = tempfile::tempdir().unwrap();
        for content in ["", "a", "abc"] {
            let path = dir.path().join("short");
            std::fs::write(&path, content).unwrap();
            assert_eq!(read_all(&path, false).unwrap().0, content.as_bytes());
        }
    }
}
