//! The three ways of a message from rank to rank, one at a time and as a stream.

use std::collections::VecDeque;
use std::time::Instant;

use trihop::Job;
use trihop::transport::memory::pool::{Buffer, Pool};

use super::wire::{Announced, Wire, wrong};
use crate::bench::Error;
use crate::bench::pair::{self, FIRST, Patience};
use crate::bench::round::{Meter, Spent};

/// Grant of a receiver that has everything.
const ALL: u64 = u64::MAX;

/// How a message crosses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One tagged send into a posted buffer.
    Eager,
    /// Announced; the receiver reads it out of the sender's memory.
    Read,
    /// Announced; the receiver posts a buffer and says clear-to-send.
    Segments,
}

impl Protocol {
    /// All of them, in the order of their rows.
    pub const EVERY: [Self; 3] = [Self::Eager, Self::Read, Self::Segments];

    /// Name in the output.
    pub fn text(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Read => "read",
            Self::Segments => "segments",
        }
    }
}

/// What a receiver checks besides the length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The first word.
    Head,
    /// Every byte.
    Whole,
}

/// A case on one rank: its buffers, and which way it goes.
pub struct Exchange<'a, 'h> {
    job: &'a Job<'h>,
    wire: &'a mut Wire,
    protocol: Protocol,
    first: bool,
    size: usize,
    window: usize,
    /// Buffers to receive into that nobody uses.
    spare: Vec<Buffer>,
    /// Announced and not yet sent or read.
    held: VecDeque<Buffer>,
}

impl<'a, 'h> Exchange<'a, 'h> {
    /// Takes the buffers for messages of `size`.
    pub fn new(
        job: &'a Job<'h>,
        wire: &'a mut Wire,
        pool: &Pool,
        protocol: Protocol,
        size: usize,
    ) -> Self {
        let first = job.rank().0 == FIRST;
        let window = wire.window(size, protocol != Protocol::Eager);
        let take = || (0..window).map_while(|_| pool.take()).collect::<Vec<_>>();
        wire.sent = take();
        let spare = take();
        Self {
            job,
            wire,
            protocol,
            first,
            size,
            window,
            spare,
            held: VecDeque::new(),
        }
    }

    /// Sends a message to and fro `rounds` times; seconds of half a round, a tenth of the rounds
    /// ahead unmeasured.
    pub fn ping_pong(&mut self, rounds: u64, check: Check) -> Result<f64, Error> {
        let unmeasured = rounds.div_ceil(10);
        let last = unmeasured + rounds - 1;
        if self.protocol == Protocol::Eager {
            self.offer()?;
        }
        self.wire.synchronise(self.job)?;
        self.wire.begin_phase();
        let mut start = Instant::now();
        for round in 0..=last {
            if round == unmeasured {
                start = Instant::now();
            }
            if self.first {
                self.send(round, check)?;
                self.take(round, round == last, check)?;
            } else {
                self.take(round, round == last, check)?;
                self.send(round, check)?;
            }
        }
        let seconds = start.elapsed().as_secs_f64() / (2 * rounds) as f64;
        self.end()?;
        Ok(seconds)
    }

    /// Waits until nothing is under way; a rank that has announced something answers reads until
    /// they are over.
    fn end(&mut self) -> Result<(), Error> {
        self.wire.synchronise(self.job)?;
        self.wire.sent.extend(self.held.drain(..));
        let window = self.window;
        self.wire
            .wait(|wire| (wire.sent.len() == window).then_some(()))
    }

    fn offer(&mut self) -> Result<(), Error> {
        let buffer = self
            .spare
            .pop()
            .ok_or_else(|| wrong("no buffer to receive into".into()))?;
        self.wire.receive(buffer)
    }

    fn fresh(&mut self, number: u64, check: Check) -> Result<Buffer, Error> {
        let mut buffer = self.wire.wait(|wire| wire.sent.pop())?;
        match check {
            Check::Head => buffer[..8].copy_from_slice(&number.to_le_bytes()),
            Check::Whole => pair::fill(&mut buffer[..self.size], number),
        }
        Ok(buffer)
    }

    fn send(&mut self, number: u64, check: Check) -> Result<(), Error> {
        let buffer = self.fresh(number, check)?;
        match self.protocol {
            Protocol::Eager => return self.wire.send(buffer, self.size),
            Protocol::Read => {
                self.wire.announce(&buffer, self.size)?;
                // Its turn ends with the other's next message, which comes after the read.
                self.held.push_back(buffer);
            }
            Protocol::Segments => {
                self.wire.announce(&buffer, self.size)?;
                self.wire
                    .wait(|wire| (wire.granted() > number).then_some(()))?;
                self.wire.send(buffer, self.size)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, number: u64, last: bool, check: Check) -> Result<(), Error> {
        let (buffer, bytes) = match self.protocol {
            Protocol::Eager => self.wire.wait(|wire| wire.arrived.pop_front())?,
            Protocol::Read => {
                let announced = self.wire.wait(|wire| wire.announced.pop_front())?;
                self.wire.sent.extend(self.held.pop_front());
                self.read(announced, number)?;
                let (_, buffer) = self.wire.wait(|wire| wire.read.pop())?;
                (buffer, announced.bytes)
            }
            Protocol::Segments => {
                self.wire.wait(|wire| wire.announced.pop_front())?;
                self.offer()?;
                self.wire.grant(number + 1)?;
                self.wire.wait(|wire| wire.arrived.pop_front())?
            }
        };
        self.check(&buffer, bytes, number, check)?;
        self.spare.push(buffer);
        if self.protocol == Protocol::Eager && !last {
            // There before the other rank can answer what we send next.
            self.offer()?;
        }
        Ok(())
    }

    fn read(&mut self, announced: Announced, number: u64) -> Result<(), Error> {
        if announced.bytes != self.size {
            return Err(wrong(format!(
                "{} bytes are announced, expected are {}",
                announced.bytes, self.size
            )));
        }
        let buffer = self
            .spare
            .pop()
            .ok_or_else(|| wrong("no buffer to read into".into()))?;
        self.wire.read(announced, buffer, number)
    }

    fn check(&self, buffer: &[u8], bytes: usize, number: u64, check: Check) -> Result<(), Error> {
        if bytes != self.size {
            return Err(wrong(format!(
                "message {number} has {bytes} bytes, expected are {}",
                self.size
            )));
        }
        let message = &buffer[..bytes];
        if pair::number(message) != Some(number) {
            let found = pair::number(message);
            return Err(wrong(format!(
                "a message has the number {found:?}, expected is {number}"
            )));
        }
        if check == Check::Whole && !pair::is_filled(message, number) {
            return Err(wrong(format!(
                "message {number} of {bytes} bytes was changed on its way"
            )));
        }
        Ok(())
    }

    /// Sends `count` messages from the first rank to the other: what this rank spends until the
    /// first knows that the other has all.
    pub fn stream(&mut self, count: u64, meter: &Meter) -> Result<Spent, Error> {
        let posted = if self.protocol == Protocol::Eager && !self.first {
            let posted = count.min(self.window as u64);
            for _ in 0..posted {
                self.offer()?;
            }
            posted
        } else {
            0
        };
        self.wire.synchronise(self.job)?;
        self.wire.begin_phase();
        let clock = meter.start();
        if self.first {
            self.send_all(count)?;
        } else {
            match self.protocol {
                Protocol::Eager => self.take_eager(count, posted)?,
                Protocol::Read => self.take_reads(count)?,
                Protocol::Segments => self.take_segments(count)?,
            }
            self.wire.grant(ALL)?;
        }
        let spent = clock.stop();
        self.end()?;
        Ok(spent)
    }

    fn send_all(&mut self, count: u64) -> Result<(), Error> {
        let mut patience = Patience::default();
        // Messages that were announced, and those that were sent or read.
        let (mut announced, mut done) = (0, 0);
        while self.wire.granted() != ALL {
            let granted = self.wire.granted().min(count);
            match self.protocol {
                Protocol::Eager => {
                    while done < granted && !self.wire.sent.is_empty() {
                        let buffer = self.fresh(done, Check::Head)?;
                        self.wire.send(buffer, self.size)?;
                        done += 1;
                    }
                }
                Protocol::Segments => {
                    while done < granted {
                        let Some(buffer) = self.held.pop_front() else {
                            break;
                        };
                        self.wire.send(buffer, self.size)?;
                        done += 1;
                    }
                }
                Protocol::Read => {
                    while done < granted {
                        self.wire.sent.extend(self.held.pop_front());
                        done += 1;
                    }
                }
            }
            while self.protocol != Protocol::Eager
                && announced < count
                && !self.wire.sent.is_empty()
            {
                let buffer = self.fresh(announced, Check::Head)?;
                self.wire.announce(&buffer, self.size)?;
                self.held.push_back(buffer);
                announced += 1;
            }
            if !self.wire.poll()? {
                patience.wait();
            }
        }
        Ok(())
    }

    fn take_eager(&mut self, count: u64, mut posted: u64) -> Result<(), Error> {
        self.wire.grant(posted)?;
        let mut granted = posted;
        for number in 0..count {
            let (buffer, bytes) = self.wire.wait(|wire| wire.arrived.pop_front())?;
            self.check(&buffer, bytes, number, Check::Head)?;
            self.spare.push(buffer);
            if posted < count {
                self.offer()?;
                posted += 1;
                granted = self.grant_some(granted, posted, count)?;
            }
        }
        Ok(())
    }

    fn take_segments(&mut self, count: u64) -> Result<(), Error> {
        let (mut granted, mut number) = (0, 0);
        let mut patience = Patience::default();
        while number < count {
            let mut posted = granted;
            while !self.spare.is_empty() && self.wire.announced.pop_front().is_some() {
                self.offer()?;
                posted += 1;
            }
            if posted > granted {
                self.wire.grant(posted)?;
                granted = posted;
            }
            while let Some((buffer, bytes)) = self.wire.arrived.pop_front() {
                self.check(&buffer, bytes, number, Check::Head)?;
                self.spare.push(buffer);
                number += 1;
            }
            if !self.wire.poll()? {
                patience.wait();
            }
        }
        Ok(())
    }

    fn take_reads(&mut self, count: u64) -> Result<(), Error> {
        let (mut started, mut ended, mut granted) = (0, 0, 0);
        // Reads may end in any order; a grant counts those before which all have ended.
        let mut out_of_order = vec![false; self.window];
        let mut patience = Patience::default();
        while ended < count {
            while !self.spare.is_empty() {
                let Some(announced) = self.wire.announced.pop_front() else {
                    break;
                };
                self.read(announced, started)?;
                started += 1;
            }
            while let Some((number, buffer)) = self.wire.read.pop() {
                self.check(&buffer, self.size, number, Check::Head)?;
                self.spare.push(buffer);
                out_of_order[number as usize % self.window] = true;
            }
            while std::mem::take(&mut out_of_order[ended as usize % self.window]) {
                ended += 1;
            }
            granted = self.grant_some(granted, ended, count)?;
            if !self.wire.poll()? {
                patience.wait();
            }
        }
        Ok(())
    }

    /// Grants when a quarter of the window is due, or everything; returns what is granted now.
    fn grant_some(&mut self, granted: u64, due: u64, count: u64) -> Result<u64, Error> {
        let enough = (self.window as u64 / 4).max(1);
        if due - granted >= enough || due == count && due > granted {
            self.wire.grant(due)?;
            return Ok(due);
        }
        Ok(granted)
    }
}

impl Drop for Exchange<'_, '_> {
    fn drop(&mut self) {
        self.wire.sent.clear();
    }
}
