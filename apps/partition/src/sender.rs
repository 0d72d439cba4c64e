//! Reads what is this rank's, and sends every record to the rank that writes it.

use trihop::{Job, Rank, Shuffle};

use super::cut::{Blocks, Halt as CutHalt, Place, cut};
use super::error::{Error, Result};
use super::exchange::{Desk, Flawed, Halt, kind};
use super::groups::{Group, deal};
use super::inputs::{Way, of_file};
use super::parquet::{Source as OpenFile, Table};
use super::plan::{Plan, line_at, unreadable};
use super::progress::{Front, Progress};
use super::ranges::{Entry, FILE_START, Span};
use super::reader::{BLOCK_BYTES, Extents, Method, Reader, Unreadable};
use super::route::{Routed, Router, Scratch};
use super::split::without_line_end;
use super::stream::{NAP, Stream};
use super::summary::Share;

/// Why reading or sending stops.
enum Quit {
    /// Another rank has failed, or this one's disk.
    Halted,
    Unreadable(Unreadable),
    /// What is wrong with the input.
    Input(Error),
    /// The engine's failure.
    Failed(Error),
}

impl From<Unreadable> for Quit {
    fn from(unreadable: Unreadable) -> Self {
        Self::Unreadable(unreadable)
    }
}

impl From<trihop::Error> for Quit {
    fn from(error: trihop::Error) -> Self {
        Self::Failed(Error::Engine(error))
    }
}

/// What is used again for each row.
#[derive(Default)]
struct Memory {
    scratch: Scratch,
    message: Vec<u8>,
}

/// What this rank reads and sends.
pub struct Sender<'a, 'h> {
    rank: Rank,
    ranks: u32,
    shuffle: &'a Shuffle<'h>,
    desk: &'a Desk,
    plan: &'a Plan,
    router: &'a Router,
    progress: Progress<'a, 'h>,
    share: Share,
    /// How the first bytes were read.
    io: Option<&'static str>,
    first_flaw: Option<(Place, String)>,
}

impl<'a, 'h> Sender<'a, 'h> {
    /// Nothing is sent yet.
    pub fn new(
        job: &Job<'_>,
        shuffle: &'a Shuffle<'h>,
        desk: &'a Desk,
        plan: &'a Plan,
        router: &'a Router,
        front: &'a mut dyn Front,
    ) -> Self {
        let (rank, ranks) = (job.rank(), job.size());
        Self {
            rank,
            ranks,
            shuffle,
            desk,
            plan,
            router,
            progress: Progress::new(shuffle, desk, rank, front, plan.bytes(), ranks),
            share: Share::default(),
            io: None,
            first_flaw: None,
        }
    }

    /// What was sent, how it was read, and the first record that something was wrong with.
    pub fn close(self) -> (Share, &'static str, Option<Flawed>) {
        let flaw = self.first_flaw.map(|(place, why)| Flawed {
            file: place.file,
            offset: place.offset,
            line: line_of(self.plan, place),
            why,
        });
        (self.share, self.io.unwrap_or("none"), flaw)
    }

    /// Reads pieces of files that all ranks read.
    ///
    /// # Errors
    /// What is wrong with the input, or the engine's failure; all other ranks are told.
    pub fn ranges(&mut self, spans: &[Span], entry: Entry, method: Method) -> Result<()> {
        let extents = Extents::new(spans, true, BLOCK_BYTES);
        let reader = Reader::new(self.plan.inputs(), extents, method).map_err(Error::Usage)?;
        if !spans.is_empty() {
            self.io = Some(reader.name());
        }
        self.cut(spans, entry, Origin::Ranges(reader))
    }

    /// Reads this rank's row groups.
    ///
    /// # Errors
    /// As [`ranges`](Self::ranges).
    pub fn groups(&mut self, table: &Table) -> Result<()> {
        self.io = Some("parquet");
        let groups = &self.plan.groups;
        if self.rank == Rank(0) {
            // What is no row group: footers, indexes.
            let bytes: u64 = groups.iter().map(|group| group.bytes).sum();
            self.count(self.plan.bytes().saturating_sub(bytes))?;
        }
        let (mut open, mut memory) = (None, Memory::default());
        for group in &groups[deal(groups, self.rank.0, self.ranks)] {
            match self.group(table, group, &mut open, &mut memory) {
                Ok(()) => self.count(group.bytes)?,
                Err(Quit::Halted) => return Ok(()),
                Err(Quit::Failed(error)) => return Err(error),
                Err(Quit::Unreadable(unreadable)) => {
                    return self.fail(located(self.plan, unreadable));
                }
                Err(Quit::Input(error)) => return self.fail(error),
            }
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        self.share.input_bytes += bytes;
        Ok(self.progress.add(bytes)?)
    }

    fn group(
        &mut self,
        table: &Table,
        group: &Group,
        open: &mut Option<(usize, OpenFile)>,
        memory: &mut Memory,
    ) -> Result<(), Quit> {
        let file = &self.plan.files[group.file];
        let wrong = |why: String| {
            Quit::Input(Error::Input {
                file: file.path.clone(),
                line: 0,
                why,
                at: (group.file as u64, group.first_row),
            })
        };
        let source = match open.take().filter(|(number, _)| *number == group.file) {
            Some((_, source)) => source,
            None => table.source(file).map_err(wrong)?,
        };
        let (_, source) = open.insert((group.file, source));
        let mut batches = table.batches(source, group).map_err(wrong)?;
        let Memory { scratch, message } = memory;
        loop {
            pass_on(self.shuffle, self.desk, self.rank, self.ranks)?;
            let Some(count) = batches.next().map_err(wrong)? else {
                return Ok(());
            };
            for number in 0..count {
                let routed = batches.route(number, group.file, self.router, scratch);
                let (rank, kind, label) = routed.map_err(wrong)?;
                let row = batches.row(number);
                message.clear();
                message.extend_from_slice(label);
                row.write(message);
                self.share.sent.add_hashed(row.hash, row.bytes.len());
                self.shuffle.send(Rank(rank), kind, message)?;
            }
        }
    }

    /// Reads file number `number` from its start to its end; `stream` if it is begun.
    ///
    /// # Errors
    /// As [`ranges`](Self::ranges).
    pub fn stream(&mut self, number: usize, stream: Option<Stream>) -> Result<()> {
        if self.desk.halt.get() != Halt::No {
            return Ok(());
        }
        self.io.get_or_insert("stream");
        let file = &self.plan.files[number];
        let stream = match stream {
            Some(stream) => stream,
            None => match Stream::open(&file.path, file.way) {
                Ok(stream) => stream,
                Err(error) => {
                    let why = format!("cannot open: {error}");
                    return self.fail(of_file(&file.path, number, why));
                }
            },
        };
        let from = Origin::Stream {
            stream,
            file: number,
            offset: 0,
            newlines: 0,
        };
        self.cut(&[Span::endless(number)], FILE_START, from)
    }

    /// Waits until all files have been read that one rank reads alone. A fence would wait as well, but
    /// takes a pipe that is silent for long for a fault, and says so.
    ///
    /// # Errors
    /// The engine's failure.
    pub fn wait_for_readers(&mut self) -> Result<()> {
        let readers = self.plan.readers();
        if readers.contains(&self.rank.0) && self.desk.halt.get() == Halt::No {
            for rank in 0..self.ranks {
                self.shuffle.send(Rank(rank), kind::READ, b"")?;
            }
        }
        while self.desk.readers_done.get() < readers.len() {
            match pass_on(self.shuffle, self.desk, self.rank, self.ranks) {
                Ok(0) => std::thread::sleep(NAP),
                Ok(_) => {}
                Err(Quit::Failed(error)) => return Err(error),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Cuts what comes, and sends it.
    fn cut(&mut self, spans: &[Span], entry: Entry, from: Origin) -> Result<()> {
        let Self {
            shuffle,
            desk,
            router,
            share,
            first_flaw,
            ..
        } = self;
        let mut input_bytes = 0;
        let mut source = Source {
            from,
            rank: self.rank,
            ranks: self.ranks,
            shuffle,
            desk,
            plan: self.plan,
            input_bytes: &mut input_bytes,
            progress: &mut self.progress,
        };
        let mut message = Vec::new();
        let outcome = cut(spans, entry, router, &mut source, |routed, place| {
            match routed {
                Routed::Header => {}
                Routed::Blank => share.blank_lines += 1,
                Routed::To { .. } if desk.halt.get() != Halt::No => {}
                Routed::To {
                    rank,
                    kind,
                    label,
                    bytes,
                    flaw,
                } => {
                    if let Some(why) = flaw {
                        share.bad_lines += 1;
                        let at = |place: &Place| (place.file, place.offset);
                        if first_flaw
                            .as_ref()
                            .is_none_or(|(first, _)| at(&place) < at(first))
                        {
                            *first_flaw = Some((place, why));
                        }
                    }
                    let message = if label.is_empty() && bytes.ends_with(b"\n") {
                        bytes
                    } else {
                        message.clear();
                        message.extend_from_slice(label);
                        if bytes.ends_with(b"\n") {
                            message.extend_from_slice(bytes);
                        } else {
                            message.extend_from_slice(without_line_end(bytes));
                            message.extend_from_slice(router.line_end());
                        }
                        &message
                    };
                    share.sent.add(&message[label.len()..]);
                    shuffle.send(Rank(rank), kind, message)?;
                }
            }
            Ok(())
        });
        share.input_bytes += input_bytes;
        match outcome {
            Ok(()) | Err(CutHalt::Other(Quit::Halted)) => Ok(()),
            Err(CutHalt::Other(Quit::Failed(error))) => Err(error),
            Err(CutHalt::Other(Quit::Unreadable(unreadable))) => {
                self.fail(located(self.plan, unreadable))
            }
            Err(CutHalt::Other(Quit::Input(error))) => self.fail(error),
            Err(CutHalt::Bad { place, why }) => {
                let error = Error::Input {
                    file: self.plan.files[place.file].path.clone(),
                    line: line_of(self.plan, place),
                    why,
                    at: (place.file as u64, place.offset),
                };
                self.fail(error)
            }
        }
    }

    /// Tells all others that this rank has failed.
    fn fail(&self, error: Error) -> Result<()> {
        // Only where each rank reads what lies behind its predecessor's may an earlier rank know a
        // better reason.
        let is_in_order = self.plan.files.iter().all(|file| file.way == Way::Cut);
        let earlier = if is_in_order {
            Halt::CheckOnly
        } else {
            Halt::Stop
        };
        tell_all(self.rank, self.ranks, self.shuffle, earlier)?;
        Err(error)
    }
}

/// The line of a record, counted from the start of its file.
fn line_of(plan: &Plan, place: Place) -> u64 {
    if !place.is_relative {
        return place.line;
    }
    let mut inputs = plan.inputs();
    line_at(&mut inputs, place.file, place.offset, Method::Plain).unwrap_or(place.line)
}

/// A file that cannot be read, with the line where.
pub fn located(plan: &Plan, unreadable: Unreadable) -> Error {
    let Unreadable { file, offset, why } = unreadable;
    let path = &plan.files[file].path;
    match line_at(&mut plan.inputs(), file, offset, Method::Plain) {
        Ok(line) => Error::Input {
            file: path.clone(),
            line,
            why,
            at: (file as u64, offset),
        },
        Err(_) => of_file(path, file, why),
    }
}

/// Lets messages flow, unless the job has failed; returns how many have come.
fn pass_on(shuffle: &Shuffle<'_>, desk: &Desk, rank: Rank, ranks: u32) -> Result<u64, Quit> {
    if desk.cannot_write() {
        tell_all(rank, ranks, shuffle, Halt::Stop)?;
        return Err(Quit::Halted);
    }
    if desk.halt.get() == Halt::Stop {
        return Err(Quit::Halted);
    }
    Ok(shuffle.poll()?)
}

/// Tells the others that `this` rank has failed: those behind it stop, those before it do what
/// `earlier` says.
fn tell_all(
    this: Rank,
    ranks: u32,
    shuffle: &Shuffle<'_>,
    earlier: Halt,
) -> Result<(), trihop::Error> {
    for rank in (0..ranks).filter(|&rank| rank != this.0) {
        let halt = if rank < this.0 { earlier } else { Halt::Stop };
        shuffle.send(Rank(rank), kind::HALT, &[halt as u8])?;
    }
    Ok(())
}

/// Where bytes come from.
enum Origin {
    /// Pieces of files.
    Ranges(Reader),
    /// One file, to its end.
    Stream {
        stream: Stream,
        file: usize,
        /// Bytes so far, as they are cut.
        offset: u64,
        newlines: u64,
    },
}

/// This rank's bytes; keeps messages flowing while a read is under way.
struct Source<'s, 'a, 'h> {
    from: Origin,
    rank: Rank,
    ranks: u32,
    shuffle: &'s Shuffle<'h>,
    desk: &'s Desk,
    plan: &'s Plan,
    input_bytes: &'s mut u64,
    progress: &'s mut Progress<'a, 'h>,
}

impl Blocks for Source<'_, '_, '_> {
    type Error = Quit;

    fn next_block(&mut self) -> Result<Option<(usize, &[u8])>, Quit> {
        let (desk, rank) = (self.desk, self.rank);
        let (shuffle, ranks) = (self.shuffle, self.ranks);
        let mut idle = || pass_on(shuffle, desk, rank, ranks).map(drop);
        idle()?;
        match &mut self.from {
            Origin::Ranges(reader) => {
                let next = reader.next(&mut idle)?;
                let Some((extent, block)) = next else {
                    return Ok(None);
                };
                if !extent.is_tail {
                    *self.input_bytes += block.len() as u64;
                    self.progress.add(block.len() as u64)?;
                }
                Ok(Some((extent.piece, block)))
            }
            Origin::Stream {
                stream,
                file,
                offset,
                newlines,
            } => match stream.next(&mut idle)? {
                Ok(None) => Ok(None),
                Ok(Some((block, raw_bytes))) => {
                    *offset += block.len() as u64;
                    *newlines += memchr::memchr_iter(b'\n', block).count() as u64;
                    *self.input_bytes += raw_bytes;
                    self.progress.add(raw_bytes)?;
                    Ok(Some((0, block)))
                }
                Err(error) => Err(Quit::Input(Error::Input {
                    file: self.plan.files[*file].path.clone(),
                    line: *newlines + 1,
                    why: unreadable(&error),
                    at: (*file as u64, *offset),
                })),
            },
        }
    }
}
