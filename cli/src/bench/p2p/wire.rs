//! One fabric endpoint towards the other rank: messages, announcements, grants.
//!
//! The receiver decides what may come: a sender sends no more messages than it has grants for.
//! Notices (announcements and grants) have receives of their own, one for each that can be under
//! way at once.

use std::collections::VecDeque;

use trihop::transport::fabric::{self, Choice};
use trihop::transport::link::{
    Access, Completion, Limits, Link, Peer, PostError, RemoteMemory, Tag, Token,
};
use trihop::transport::memory::pool::{Buffer, Pool};
use trihop::{Job, Options};

use crate::bench::Error;
use crate::bench::pair::{FIRST, Patience};

/// Most messages under way in one direction.
const WINDOW_MAX: usize = 64;

/// Most of them that were announced: each needs a receive for its notice, and a message is matched
/// against all receives.
const ANNOUNCED_MAX: usize = 16;

/// Receives for either kind of notice. At most [`ANNOUNCED_MAX`] announcements or grants of a
/// stream are under way, and those by which it begins and ends.
const NOTICES: usize = ANNOUNCED_MAX + 4;

/// Bytes of messages under way in one direction, as far as at least [`WINDOW_MIN`] messages are.
const WINDOW_BYTES: usize = 4 << 20;

const WINDOW_MIN: usize = 4;

/// Bytes of a notice's buffer; three words are sent.
const NOTICE_BYTES: usize = 64;

/// Polls after a synchronisation, for what a provider still has to write.
const CLOSING_POLLS: usize = 16;

const MESSAGE: Tag = Tag(1);
const ANNOUNCEMENT: Tag = Tag(2);
const GRANT: Tag = Tag(3);

/// Marks of completions; a read has its number instead.
const MESSAGE_MARK: Token = Token(1 << 48);
const ANNOUNCEMENT_MARK: Token = Token(2 << 48);
const GRANT_MARK: Token = Token(3 << 48);
const NOTICE_MARK: Token = Token(4 << 48);

/// A message that waits at its sender.
#[derive(Debug, Clone, Copy)]
pub struct Announced {
    /// Where it can be read.
    pub remote: RemoteMemory,
    /// Its length.
    pub bytes: usize,
}

/// This rank's endpoint and what it has heard.
pub struct Wire {
    link: Box<dyn Link>,
    peer: Peer,
    first: bool,
    window: usize,
    notices: Pool,
    ended: Vec<Completion>,
    /// Receives of notices that found no room.
    unposted: Vec<(Tag, Token, Buffer)>,
    /// Phase that we are in, and the latest that we have a grant of, with its count. Both ranks
    /// begin phases together.
    phase: u64,
    grant: (u64, u64),
    /// Announcements that nobody has taken yet.
    pub announced: VecDeque<Announced>,
    /// Messages that arrived: buffer and length.
    pub arrived: VecDeque<(Buffer, usize)>,
    /// Reads that ended: number and buffer.
    pub read: Vec<(u64, Buffer)>,
    /// Buffers of messages that were sent.
    pub sent: Vec<Buffer>,
    /// Bytes handed to the fabric by this rank: sent, and read by it.
    pub wire_bytes: u64,
}

impl Wire {
    /// Opens an endpoint and connects it to the other rank's; collective.
    pub fn connect(job: &Job<'_>, other: u32, options: &Options) -> Result<Self, Error> {
        let choice = Choice {
            spin_only: true,
            universe: Some(16),
            ..options.choice()
        };
        let mut link = fabric::open(&choice)?;
        let addresses = job.allgather(link.address())?;
        let peer = link.connect(&addresses[other as usize])?;
        let limits = link.limits();
        let receives = limits.posted_receives.saturating_sub(2 * NOTICES);
        let window = WINDOW_MAX.min(receives).min(limits.posted_sends / 2).max(1);
        let notices = link.create_pool(NOTICE_BYTES, 4 * NOTICES, Access::All)?;
        let mut wire = Self {
            link,
            peer,
            first: job.rank().0 == FIRST,
            window,
            notices,
            ended: Vec::new(),
            unposted: Vec::new(),
            phase: 0,
            grant: (0, 0),
            announced: VecDeque::new(),
            arrived: VecDeque::new(),
            read: Vec::new(),
            sent: Vec::new(),
            wire_bytes: 0,
        };
        for _ in 0..NOTICES {
            for (tag, mark) in [(ANNOUNCEMENT, ANNOUNCEMENT_MARK), (GRANT, GRANT_MARK)] {
                let buffer = wire.notice()?;
                wire.offer(tag, mark, buffer)?;
            }
        }
        // Nobody sends before the other's receives are there.
        job.barrier()?;
        Ok(wire)
    }

    /// Provider's name.
    pub fn name(&self) -> &str {
        self.link.name()
    }

    /// What the provider can do.
    pub fn limits(&self) -> &Limits {
        self.link.limits()
    }

    /// Messages of `size` under way at once, announced or not.
    pub fn window(&self, size: usize, announced: bool) -> usize {
        let most = if announced {
            self.window.min(ANNOUNCED_MAX)
        } else {
            self.window
        };
        most.min((WINDOW_BYTES / size).max(WINDOW_MIN))
    }

    /// Registered buffers for messages of `size`: a window to send and one to receive.
    pub fn create_pool(&mut self, size: usize) -> Result<Pool, Error> {
        let slots = 2 * self.window(size, false);
        Ok(self
            .link
            .create_pool(size.next_multiple_of(64), slots, Access::All)?)
    }

    /// Begins a phase: grants count from 0. The other rank begins it as well; its grants may come
    /// before we do.
    pub fn begin_phase(&mut self) {
        self.phase += 1;
    }

    /// What the other rank has granted in this phase.
    pub fn granted(&self) -> u64 {
        if self.grant.0 == self.phase {
            self.grant.1
        } else {
            0
        }
    }

    /// Waits until the other rank is here too, and goes on forwarding meanwhile: a collective of
    /// the job may have ended here and not there. The first rank speaks first, so that connections
    /// are made from one side.
    pub fn synchronise(&mut self, job: &Job<'_>) -> Result<(), Error> {
        self.begin_phase();
        if self.first {
            self.notify(GRANT, [self.phase, 1, 0], Some(job))?;
        }
        // The other may be a phase ahead already.
        let here = (self.phase, 1);
        while self.grant < here {
            self.poll()?;
            job.progress()?;
        }
        if !self.first {
            self.notify(GRANT, [self.phase, 1, 0], Some(job))?;
        }
        for _ in 0..CLOSING_POLLS {
            self.poll()?;
        }
        Ok(())
    }

    /// Sends a message.
    pub fn send(&mut self, buffer: Buffer, bytes: usize) -> Result<(), Error> {
        self.wire_bytes += bytes as u64;
        let peer = self.peer;
        self.post(None, buffer, |link, buffer| {
            link.post_send(peer, MESSAGE, buffer, bytes, MESSAGE_MARK)
        })
    }

    /// Offers a buffer for a message.
    pub fn receive(&mut self, buffer: Buffer) -> Result<(), Error> {
        self.post(None, buffer, |link, buffer| {
            link.post_receive(MESSAGE, buffer, MESSAGE_MARK)
        })
    }

    /// Starts to read an announced message; `number` says which one it was when it has ended.
    pub fn read(&mut self, from: Announced, buffer: Buffer, number: u64) -> Result<(), Error> {
        self.wire_bytes += from.bytes as u64;
        let peer = self.peer;
        self.post(None, buffer, |link, buffer| {
            link.post_read(peer, from.remote, buffer, from.bytes, Token(number))
        })
    }

    /// Says that a message waits in `buffer`, which stays as it is until the other rank has it.
    pub fn announce(&mut self, buffer: &Buffer, bytes: usize) -> Result<(), Error> {
        let remote = buffer.remote();
        self.notify(
            ANNOUNCEMENT,
            [remote.address, remote.key, bytes as u64],
            None,
        )
    }

    /// Says how many messages of this phase may have been sent, or have been read.
    pub fn grant(&mut self, count: u64) -> Result<(), Error> {
        self.notify(GRANT, [self.phase, count, 0], None)
    }

    fn notify(&mut self, tag: Tag, words: [u64; 3], job: Option<&Job<'_>>) -> Result<(), Error> {
        let bytes = size_of_val(&words);
        let mut buffer = self.notice()?;
        for (part, word) in buffer.chunks_exact_mut(8).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        self.wire_bytes += bytes as u64;
        let peer = self.peer;
        self.post(job, buffer, |link, buffer| {
            link.post_send(peer, tag, buffer, bytes, NOTICE_MARK)
        })
    }

    fn notice(&mut self) -> Result<Buffer, Error> {
        self.wait(|wire| wire.notices.take())
    }

    /// Posts; polls as long as the provider has no room, and forwards for `job` where one is given.
    fn post(
        &mut self,
        job: Option<&Job<'_>>,
        mut buffer: Buffer,
        mut post: impl FnMut(&mut dyn Link, Buffer) -> Result<(), PostError>,
    ) -> Result<(), Error> {
        let mut patience = Patience::default();
        loop {
            match post(&mut *self.link, buffer) {
                Ok(()) => return Ok(()),
                Err(PostError::WouldBlock(returned)) => buffer = returned,
                Err(PostError::Failed(_, error)) => return Err(error.into()),
            }
            if let Some(job) = job {
                job.progress()?;
            }
            if !self.poll()? {
                patience.wait();
            }
        }
    }

    /// Offers a buffer for a notice, now or at a later poll.
    fn offer(&mut self, tag: Tag, mark: Token, buffer: Buffer) -> Result<(), Error> {
        match self.link.post_receive(tag, buffer, mark) {
            Ok(()) => Ok(()),
            Err(PostError::WouldBlock(buffer)) => {
                self.unposted.push((tag, mark, buffer));
                Ok(())
            }
            Err(PostError::Failed(_, error)) => Err(error.into()),
        }
    }

    /// Polls until `taken` finds what it is after.
    pub fn wait<T>(&mut self, mut taken: impl FnMut(&mut Self) -> Option<T>) -> Result<T, Error> {
        let mut patience = Patience::default();
        loop {
            if let Some(found) = taken(self) {
                return Ok(found);
            }
            if !self.poll()? {
                patience.wait();
            }
        }
    }

    /// One look at the provider; whether anything ended.
    pub fn poll(&mut self) -> Result<bool, Error> {
        for (tag, mark, buffer) in std::mem::take(&mut self.unposted) {
            self.offer(tag, mark, buffer)?;
        }
        let mut ended = std::mem::take(&mut self.ended);
        let count = self.link.poll(&mut ended)?;
        for completion in ended.drain(..) {
            self.note(completion)?;
        }
        self.ended = ended;
        Ok(count > 0)
    }

    fn note(&mut self, completion: Completion) -> Result<(), Error> {
        match completion {
            Completion::Sent {
                token: MESSAGE_MARK,
                buffer,
            } => self.sent.push(buffer),
            // The buffer of a notice goes back to the pool.
            Completion::Sent { .. } => {}
            Completion::Read { token, buffer } => self.read.push((token.0, buffer)),
            Completion::Received {
                token: MESSAGE_MARK,
                buffer,
                bytes,
            } => {
                self.arrived.push_back((buffer, bytes));
            }
            Completion::Received {
                token,
                buffer,
                bytes,
            } => {
                let [a, b, c] = words(&buffer[..bytes])
                    .ok_or_else(|| wrong(format!("a notice of {bytes} bytes")))?;
                if token == GRANT_MARK {
                    self.grant = self.grant.max((a, b));
                    return self.offer(GRANT, GRANT_MARK, buffer);
                }
                self.announced.push_back(Announced {
                    remote: RemoteMemory { address: a, key: b },
                    bytes: usize::try_from(c).unwrap_or(usize::MAX),
                });
                self.offer(ANNOUNCEMENT, ANNOUNCEMENT_MARK, buffer)?;
            }
            Completion::Broken { error, .. } | Completion::Failed { error, .. } => {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

fn words(notice: &[u8]) -> Option<[u64; 3]> {
    let mut words = [0; 3];
    for (index, word) in words.iter_mut().enumerate() {
        *word = u64::from_le_bytes(*notice.get(8 * index..)?.first_chunk()?);
    }
    Some(words)
}

/// The error of a wrong result.
#[cold]
pub fn wrong(why: String) -> Error {
    Error::Wrong { bench: "p2p", why }
}
