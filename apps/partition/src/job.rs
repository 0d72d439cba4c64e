//! One rank's part in the job, step by step; after each step all ranks agree that none has failed.

use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use trihop::{Job, Rank, Shuffle};

use super::error::{Error, Result, shown};
use super::exchange::{Desk, Failed, Flawed, agree, kind};
use super::output::Output;
use super::parquet::Table;
use super::parts::{Content, Parts};
use super::plan::{Opened, Plan};
use super::progress::Front;
use super::ranges::{Entry, FILE_START, Span, entry, spans};
use super::reader::{BLOCK_BYTES, Extents, Reader, Unreadable};
use super::request::Request;
use super::route::Router;
use super::scan::Tally;
use super::sender::{Sender, located};
use super::sink::Sink;
use super::staging::Staging;
use super::summary::{Partition, Share, Subject, Summary};

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
    desk.sink.take();
    outcome
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
        let (plan, opened) = self.agree_on_plan(shuffle)?;
        let router = agree(self.job, plan.router(self.request, ranks, self.limit))?;
        let table = agree(self.job, plan.table(self.request))?.map(Rc::new);
        let output = plan.output(self.request);
        let spans = spans(&plan.cut_sizes(), rank, ranks);

        agree(self.job, self.begin(&output, &router, table.clone()))?;
        let shared = output.check_shared(rank);
        let tally = agree(
            self.job,
            shared.and_then(|()| self.tally(&plan, &spans, &router)),
        )?;
        let entry = self.entry(&plan, &spans, tally)?;

        let mut sender = Sender::new(self.job, shuffle, self.desk, &plan, &router, front);
        let read = self.read(&plan, &spans, entry, table.as_deref(), opened, &mut sender);
        let (share_sent, io, flaw) = sender.close();
        if let Err(Error::Engine(error)) = read {
            return Err(error.into());
        }
        shuffle.fence()?;
        let finished = read.and_then(|()| match self.desk.sink.borrow_mut().as_mut() {
            Some(sink) => sink.finish(),
            None => Err(never_begun()),
        });
        let written = agree(self.job, finished)?;
        let share = Share {
            written,
            ..share_sent
        };
        self.tell_first(shuffle, flaw)?;
        let summary = self.summarise(&plan, share, io)?;
        self.publish(&output, &summary, front)
    }

    /// Rank 0 looks at inputs and output, and tells the others.
    fn agree_on_plan(&self, shuffle: &Shuffle<'_>) -> Result<(Plan, Opened), Failed> {
        let made = if self.is_first() {
            self.make_plan().map(Some)
        } else {
            Ok(None)
        };
        let mut opened = Vec::new();
        if let Some((plan, streams)) = agree(self.job, made)? {
            opened = streams;
            let bytes = serde_json::to_vec(&plan).unwrap_or_default();
            for rank in 0..self.job.size() {
                shuffle.send(Rank(rank), kind::PLAN, &bytes)?;
            }
        }
        shuffle.fence()?;
        let plan = serde_json::from_slice(&self.desk.plan.take());
        let plan = plan.map_err(|error| Error::system("the plan of rank 0 cannot be read", error));
        Ok((agree(self.job, plan)?, opened))
    }

    fn make_plan(&self) -> Result<(Plan, Opened)> {
        // Only tells jobs apart that write to one directory at one time.
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos() as u64;
        let token = nanos ^ (u64::from(std::process::id()) << 40);
        let ranks = self.job.size();
        let (plan, opened) = Plan::make(self.request, ranks, self.limit, token)?;
        plan.router(self.request, ranks, self.limit)?;
        let paths = plan.files.iter().map(|file| file.path.as_path());
        plan.output(self.request)
            .prepare(self.request.force, paths)?;
        Ok((plan, opened))
    }

    /// From now on records are taken.
    fn begin(&self, output: &Output, router: &Router, table: Option<Rc<Table>>) -> Result<()> {
        output.create()?;
        let (rank, memory_bytes) = (self.job.rank().0, self.request.memory_bytes);
        let staging = Staging::create(output.staging(rank))?;
        let compression = self.request.compression;
        let header = router.header_line().to_vec();
        let content = table.map_or(Content::Lines { header }, Content::Rows);
        let parts = Parts::new(output, staging, compression, content, memory_bytes);
        let sink = Sink::new(parts, output, router, rank, memory_bytes);
        *self.desk.sink.borrow_mut() = Some(sink);
        Ok(())
    }

    /// First pass: quotes and lines of the last piece, on which later ranks depend.
    fn tally(&self, plan: &Plan, spans: &[Span], router: &Router) -> Result<Tally> {
        let mut tally = Tally::default();
        let (Some(last), Some(quote)) = (
            spans.last().filter(|last| last.is_continued()),
            router.quote(),
        ) else {
            return Ok(tally);
        };
        let extents = Extents::new(&[*last], false, BLOCK_BYTES);
        let unreadable = |unreadable: Unreadable| located(plan, unreadable);
        let mut reader =
            Reader::new(plan.inputs(), extents, self.request.method).map_err(Error::Usage)?;
        while let Some((_, block)) = reader
            .next(&mut || Ok::<(), Unreadable>(()))
            .map_err(unreadable)?
        {
            tally.add(block, Some(quote));
        }
        Ok(tally)
    }

    /// The state in which this rank finds its first byte.
    fn entry(&self, plan: &Plan, spans: &[Span], tally: Tally) -> Result<Entry, Failed> {
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
            entry(first, self.job.rank().0, &plan.cut_sizes(), &tallies)
        }))
    }

    /// Second pass: every record goes to the rank that writes it. First the ranges of files that
    /// all ranks read, or their row groups, then the files that only this one does.
    fn read(
        &self,
        plan: &Plan,
        spans: &[Span],
        entry: Entry,
        table: Option<&Table>,
        opened: Opened,
        sender: &mut Sender<'_, '_>,
    ) -> Result<()> {
        sender.ranges(spans, entry, self.request.method)?;
        if let Some(table) = table {
            sender.groups(table)?;
        }
        let mut opened = opened.into_iter().peekable();
        let own = plan.files.iter().enumerate();
        for (number, _) in own.filter(|(_, file)| file.reader() == Some(self.job.rank().0)) {
            let stream = opened
                .next_if(|(of, _)| *of == number)
                .map(|(_, stream)| stream);
            sender.stream(number, stream)?;
        }
        sender.wait_for_readers()
    }

    /// Tells rank 0 of the parts that this rank has written, and of its first bad record.
    fn tell_first(&self, shuffle: &Shuffle<'_>, flaw: Option<Flawed>) -> Result<(), Failed> {
        let parts: Vec<Partition> = match self.desk.sink.borrow().as_ref() {
            Some(sink) => sink.written().collect(),
            None => Vec::new(),
        };
        let told = |value: serde_json::Result<Vec<u8>>| value.unwrap_or_default();
        for part in &parts {
            shuffle.send(Rank(0), kind::PART, &told(serde_json::to_vec(part)))?;
        }
        if let Some(flaw) = flaw {
            shuffle.send(Rank(0), kind::FLAW, &told(serde_json::to_vec(&flaw)))?;
        }
        shuffle.fence()?;
        Ok(())
    }

    /// All shares together, if nothing was lost.
    fn summarise(&self, plan: &Plan, share: Share, io: &'static str) -> Result<Summary, Failed> {
        let shares: Option<Vec<Share>> = self
            .job
            .allgather(&share.to_bytes())?
            .iter()
            .map(|bytes| Share::from_bytes(bytes))
            .collect();
        let first = self.desk.flaws.take();
        let first = first
            .into_iter()
            .min_by_key(|flaw| (flaw.file, flaw.offset));
        let first_bad_line = first.map(|flaw| {
            let path = plan.files.get(flaw.file).map(|file| shown(&file.path));
            let path = path.map_or_else(String::new, |path| path.to_string());
            format!("{path}:{}: {}", flaw.line, flaw.why)
        });
        let request = self.request;
        let subject = Subject {
            out: request.out.display().to_string(),
            format: plan.format,
            compression: request.compression,
            key: request.by.0.clone(),
            split: request.split,
            sort: request.sort.0.clone(),
            on_bad_line: request.on_bad_line,
            first_bad_line,
            io,
            files: plan.files.len(),
            seconds: self.started.elapsed().as_secs_f64(),
        };
        let parts = self.desk.parts.take();
        let shares = shares
            .ok_or_else(|| Error::Lost("a rank told its share in an unknown form".to_owned()));
        agree(
            self.job,
            shares.and_then(|shares| Summary::of(subject, &shares, parts).map_err(Error::Lost)),
        )
    }

    /// Gives all parts their names, then marks the directory.
    fn publish(
        &self,
        output: &Output,
        summary: &Summary,
        front: &mut dyn Front,
    ) -> Result<(), Failed> {
        let first = |step: &dyn Fn() -> Result<()>| if self.is_first() { step() } else { Ok(()) };
        let names = || summary.partitions.iter().map(|part| &*part.file);
        agree(self.job, first(&|| output.clear_old(names())))?;
        let Some(mut sink) = self.desk.sink.take() else {
            return Err(Failed::Alone(never_begun()));
        };
        agree(self.job, sink.publish())?;
        let marked = agree(self.job, first(&|| output.mark(&summary.json())));
        // The marker may exist although its agreement was cut off: then the parts, which are whole,
        // must stay.
        if !matches!(marked, Err(Failed::Agreed { .. })) {
            sink.keep();
        }
        marked?;
        // The parts are there, but a script that starts this must not miss the report.
        let told = match self.is_first() {
            true => front.report(summary).map_err(Error::Unwritten),
            false => Ok(()),
        };
        agree(self.job, told)
    }
}

fn never_begun() -> Error {
    Error::Lost("the parts were never begun".to_owned())
}
