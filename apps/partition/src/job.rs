//! One rank's part in the job, step by step; after each step all ranks agree that none has failed.

use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use trihop::{Job, Rank, Shuffle};

use super::cut::{Blocks, Halt as CutHalt, cut};
use super::error::{Error, Result};
use super::exchange::{Desk, Failed, Halt, agree, kind};
use super::output::Output;
use super::plan::{Plan, at_start, line_at};
use super::progress::{Front, Progress};
use super::ranges::{Entry, FILE_START, Span, entry, spans};
use super::reader::{BLOCK_BYTES, Extents, Inputs, Method, Reader, Unreadable};
use super::request::Request;
use super::route::{Routed, Router};
use super::scan::Tally;
use super::split::without_line_end;
use super::summary::{Share, Subject, Summary};
use super::writer::PartWriter;

/// Runs this rank's part of `job`: collective, with the same `request` on every rank. `front` is
/// rank 0's way to the user.
///
/// # Errors
/// What all ranks agreed on, or the engine's failure. No temporary file is left.
pub fn run(job: &Job<'_>, request: &Request, front: &mut dyn Front) -> Result<(), Failed> {
    let desk = Rc::new(Desk::default());
    let arriving = Rc::clone(&desk);
    let shuffle = job
        .shuffle("partition")
        .handler(move |message, _out| arriving.take(message))
        .open()?;
    let this = ThisRank {
        request,
        // The line end that a file's last record may lack still fits.
        limit: request.max_message_bytes.saturating_sub(2),
        desk: &desk,
        job,
        started: Instant::now(),
    };
    let outcome = this.work(&shuffle, front);
    // What is not published is removed, before the launcher hears of the first bad status.
    desk.writer.take();
    outcome
}

/// Why reading or sending stops.
enum Quit {
    /// Another rank has failed.
    Halted,
    Unreadable(Unreadable),
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

/// What does not change during the job.
struct ThisRank<'a, 'h> {
    request: &'a Request,
    limit: usize,
    desk: &'a Desk,
    job: &'a Job<'h>,
    started: Instant,
}

impl ThisRank<'_, '_> {
    fn is_first(&self) -> bool {
        self.job.rank() == Rank(0)
    }

    fn work(&self, shuffle: &Shuffle<'_>, front: &mut dyn Front) -> Result<(), Failed> {
        let (rank, ranks) = (self.job.rank().0, self.job.size());
        let plan = self.agree_on_plan(shuffle, front.is_watched())?;
        let router = agree(self.job, plan.router(self.request, ranks, self.limit))?;
        let output = Output::new(&self.request.out, plan.token);
        let inputs = Inputs::new(self.request.files.clone().into(), plan.sizes.clone().into());
        let spans = spans(&plan.sizes, rank, ranks);

        let begun = output.create().and_then(|()| {
            let (temporary, part) = (output.temporary(rank), output.part(rank));
            *self.desk.writer.borrow_mut() =
                Some(PartWriter::create(temporary, part, router.header_line())?);
            self.tally(&inputs, &spans, &router)
        });
        let tally = agree(self.job, begun)?;
        let entry = self.entry(&spans, &plan.sizes, tally)?;

        let (read, share_sent, io) =
            self.exchange(shuffle, front, &inputs, &spans, entry, &router, &plan);
        if let Err(Error::Engine(error)) = read {
            return Err(error.into());
        }
        shuffle.fence()?;
        let finished = read.and_then(|()| match self.desk.writer.borrow_mut().as_mut() {
            Some(writer) => writer.finish().map(|()| writer.totals()),
            None => Err(Error::Lost("the partition was never begun".to_owned())),
        });
        let written = agree(self.job, finished)?;
        let share = Share {
            written,
            ..share_sent
        };
        let summary = self.summarise(&plan, share, io)?;
        self.publish(&output, &summary, front)
    }

    /// Rank 0 looks at inputs and output, and tells the others.
    fn agree_on_plan(&self, shuffle: &Shuffle<'_>, watched: bool) -> Result<Plan, Failed> {
        let made = if self.is_first() {
            self.make_plan(watched).map(Some)
        } else {
            Ok(None)
        };
        if let Some(plan) = agree(self.job, made)? {
            let bytes = serde_json::to_vec(&plan).unwrap_or_default();
            for rank in 0..self.job.size() {
                shuffle.send(Rank(rank), kind::PLAN, &bytes)?;
            }
        }
        shuffle.fence()?;
        let plan = serde_json::from_slice(&self.desk.plan.take());
        agree(
            self.job,
            plan.map_err(|error| Error::system("the plan of rank 0 cannot be read", error)),
        )
    }

    fn make_plan(&self, watched: bool) -> Result<Plan> {
        // Only tells jobs apart that write to one directory at one time.
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos() as u64;
        let token = nanos ^ (u64::from(std::process::id()) << 40);
        let plan = Plan::make(self.request, self.limit, token, watched)?;
        plan.router(self.request, self.job.size(), self.limit)?;
        Output::new(&self.request.out, token).prepare(self.request.force)?;
        Ok(plan)
    }

    /// First pass: quotes and lines of the last piece, on which later ranks depend.
    fn tally(&self, inputs: &Inputs, spans: &[Span], router: &Router) -> Result<Tally> {
        let mut tally = Tally::default();
        let (Some(last), Some(quote)) = (
            spans.last().filter(|last| last.is_continued()),
            router.quote(),
        ) else {
            return Ok(tally);
        };
        let extents = Extents::new(&[*last], false, BLOCK_BYTES);
        let unreadable = |unreadable: Unreadable| self.unreadable(inputs, unreadable);
        let mut reader =
            Reader::new(inputs.again(), extents, self.request.method).map_err(Error::Usage)?;
        while let Some((_, block)) = reader
            .next(&mut || Ok::<(), Unreadable>(()))
            .map_err(unreadable)?
        {
            tally.add(block, Some(quote));
        }
        Ok(tally)
    }

    /// The state in which this rank finds its first byte.
    fn entry(&self, spans: &[Span], sizes: &[u64], tally: Tally) -> Result<Entry, Failed> {
        let told: Vec<u8> = [tally.quotes, tally.newlines]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        let word = |bytes: &[u8], at: usize| {
            bytes
                .get(at..at + 8)
                .and_then(|word| word.try_into().ok())
                .map_or(0, u64::from_le_bytes)
        };
        let tallies: Vec<Tally> = self
            .job
            .allgather(&told)?
            .iter()
            .map(|told| Tally {
                quotes: word(told, 0),
                newlines: word(told, 8),
            })
            .collect();
        Ok(spans.first().map_or(FILE_START, |first| {
            entry(first, self.job.rank().0, sizes, &tallies)
        }))
    }

    /// Second pass: every record goes to its owner. Returns what was sent besides the outcome.
    fn exchange(
        &self,
        shuffle: &Shuffle<'_>,
        front: &mut dyn Front,
        inputs: &Inputs,
        spans: &[Span],
        entry: Entry,
        router: &Router,
        plan: &Plan,
    ) -> (Result<()>, Share, &'static str) {
        let mut share = Share::default();
        let extents = Extents::new(spans, true, BLOCK_BYTES);
        let reader = match Reader::new(inputs.again(), extents, self.request.method) {
            Ok(reader) => reader,
            Err(why) => return (Err(Error::Usage(why)), share, "none"),
        };
        let io = reader.name();
        let own = spans.iter().map(|span| span.end - span.start).sum();
        let (desk, total) = (self.desk, plan.sizes.iter().sum());
        let progress = Progress::new(
            shuffle,
            desk,
            self.job.rank(),
            (plan.progress, front),
            own,
            total,
        );
        let mut source = Source {
            reader,
            shuffle,
            desk,
            ranks: self.job.size(),
            progress,
        };
        let mut whole = Vec::new();
        let outcome = cut(spans, entry, router, &mut source, |routed| {
            match routed {
                Routed::Header => {}
                Routed::Blank => share.blank_lines += 1,
                Routed::To { .. } if self.desk.halt.get() != Halt::No => {}
                Routed::To { owner, bytes } => {
                    let bytes = if bytes.ends_with(b"\n") {
                        bytes
                    } else {
                        whole.clear();
                        whole.extend_from_slice(without_line_end(bytes));
                        whole.extend_from_slice(router.line_end());
                        &whole
                    };
                    share.sent.add(bytes);
                    shuffle.send(Rank(owner), kind::RECORD, bytes)?;
                }
            }
            Ok(())
        });
        let error = match outcome {
            Ok(()) | Err(CutHalt::Other(Quit::Halted)) => return (Ok(()), share, io),
            Err(CutHalt::Other(Quit::Failed(error))) => return (Err(error), share, io),
            Err(CutHalt::Other(Quit::Unreadable(unreadable))) => {
                self.unreadable(inputs, unreadable)
            }
            Err(CutHalt::Bad {
                file,
                offset,
                line,
                why,
                in_first_piece,
            }) => {
                let relative = in_first_piece && router.quote().is_none() && offset > 0;
                let line = if relative {
                    line_at(&mut inputs.again(), file, offset, self.request.method).unwrap_or(line)
                } else {
                    line
                };
                Error::Input {
                    file: self.request.files[file].clone(),
                    line,
                    why,
                    at: (file as u64, offset),
                }
            }
        };
        let told = tell_all(self.job.rank(), self.job.size(), shuffle, Halt::CheckOnly)
            .map_err(Error::Engine);
        (told.and(Err(error)), share, io)
    }

    fn unreadable(&self, inputs: &Inputs, unreadable: Unreadable) -> Error {
        let Unreadable { file, offset, why } = unreadable;
        match line_at(&mut inputs.again(), file, offset, Method::Plain) {
            Ok(line) => Error::Input {
                file: self.request.files[file].clone(),
                line,
                why,
                at: (file as u64, offset),
            },
            Err(_) => at_start(self.request, file, why),
        }
    }

    /// All shares together, if nothing was lost.
    fn summarise(&self, plan: &Plan, share: Share, io: &'static str) -> Result<Summary, Failed> {
        let shares: Option<Vec<Share>> = self
            .job
            .allgather(&share.to_bytes())?
            .iter()
            .map(|bytes| Share::from_bytes(bytes))
            .collect();
        let subject = Subject {
            out: self.request.out.display().to_string(),
            format: plan.format,
            key: self.request.by.clone(),
            io,
            files: plan.sizes.len(),
            input_bytes: plan.sizes.iter().sum(),
            seconds: self.started.elapsed().as_secs_f64(),
        };
        let shares = shares
            .ok_or_else(|| Error::Lost("a rank told its share in an unknown form".to_owned()));
        agree(
            self.job,
            shares.and_then(|shares| Summary::of(subject, &shares).map_err(Error::Lost)),
        )
    }

    /// Gives all partitions their names, then marks the directory.
    fn publish(
        &self,
        output: &Output,
        summary: &Summary,
        front: &mut dyn Front,
    ) -> Result<(), Failed> {
        let first = |step: &dyn Fn() -> Result<()>| if self.is_first() { step() } else { Ok(()) };
        agree(self.job, first(&|| output.clear_old(summary.ranks)))?;
        let Some(mut writer) = self.desk.writer.take() else {
            return Err(Failed::Alone(Error::Lost(
                "the partition was never begun".to_owned(),
            )));
        };
        agree(self.job, writer.publish())?;
        let marked = agree(self.job, first(&|| output.mark(&summary.json())));
        // The marker may exist although its agreement was cut off: then the partitions, which are
        // whole, must stay.
        if !matches!(marked, Err(Failed::Agreed { .. })) {
            writer.keep();
        }
        marked?;
        // The partitions are there, but a script that starts this must not miss the report.
        let told = match self.is_first() {
            true => front.report(summary).map_err(Error::Unwritten),
            false => Ok(()),
        };
        agree(self.job, told)
    }
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

/// This rank's bytes; keeps messages flowing while a read is under way.
struct Source<'a, 'h> {
    reader: Reader,
    shuffle: &'a Shuffle<'h>,
    desk: &'a Desk,
    ranks: u32,
    progress: Progress<'a, 'h>,
}

impl Blocks for Source<'_, '_> {
    type Error = Quit;

    fn next_block(&mut self) -> Result<Option<(usize, &[u8])>, Quit> {
        if self.desk.cannot_write() {
            tell_all(self.progress.rank(), self.ranks, self.shuffle, Halt::Stop)?;
            return Err(Quit::Halted);
        }
        if self.desk.halt.get() == Halt::Stop {
            return Err(Quit::Halted);
        }
        self.shuffle.poll()?;
        let shuffle = self.shuffle;
        let mut poll = || shuffle.poll().map(|_| ()).map_err(Quit::from);
        let next = self.reader.next(&mut poll)?;
        if let Some((extent, block)) = &next {
            self.progress.add(if extent.is_tail {
                0
            } else {
                block.len() as u64
            })?;
        }
        Ok(next.map(|(extent, block)| (extent.piece, block)))
    }
}
