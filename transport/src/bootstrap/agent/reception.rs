//! Where an agent receives its ranks, job by job.

use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::{
    ANY, ENDS, JOB_BYTES_MAX, LOOK, MOST_RANKS, REFUSED, Welcome, behind_versions, failed, prefix,
    socket_name,
};
use crate::error::{Error, Result};
use crate::memory::descriptors::{Accepted, DescriptorListener, MAX_MESSAGE_BYTES, wait_for_any};
use crate::park::ProcessWatch;
use crate::sync::sleep;

/// Takes the ranks of jobs as they come.
#[derive(Debug)]
pub struct Reception {
    pub(super) listener: DescriptorListener,
    ranks: u32,
    nodes: RangeInclusive<u32>,
    most: usize,
    /// Descriptors have run out: it looks now and then.
    is_short: bool,
    /// Jobs of which some ranks have come.
    pub(super) parties: Vec<Gathering>,
}

/// A job of which some ranks have come.
#[derive(Debug)]
pub(super) struct Gathering {
    job: String,
    nodes: u32,
    places: Vec<Option<(u64, ProcessWatch)>>,
}

/// All ranks of a job, as they have come.
#[derive(Debug, Clone)]
pub struct Party {
    job: String,
    nodes: u32,
    nonces: Vec<u64>,
}

impl Party {
    /// Name of their job; empty where they have given none.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// How many of the agents' nodes their job has ranks on; 0 for all.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Whether one of them has ended, or does not wait any more; asked before they are welcomed.
    pub fn has_lost_one(&self) -> bool {
        self.nonces.iter().any(|&nonce| is_free(nonce))
    }

    /// The nonces of the ranks' sockets, by place.
    pub fn nonces(&self) -> &[u64] {
        &self.nonces
    }

    /// Tells all ranks, as the agent whose listener this is. One that is gone by now is missed
    /// later.
    ///
    /// # Errors
    /// What is to be told is too long for a message, or descriptors have run out: then all hear
    /// that.
    pub fn welcome(&self, welcome: &Welcome, agent: &DescriptorListener) -> Result<()> {
        let outcome = self.try_welcome(welcome, agent);
        if let Err(error) = &outcome {
            self.refuse(&error.to_string());
        }
        outcome
    }

    fn try_welcome(&self, welcome: &Welcome, agent: &DescriptorListener) -> Result<()> {
        for (place, &nonce) in (0..).zip(&self.nonces) {
            let message = welcome.encode(place);
            if message.len() > MAX_MESSAGE_BYTES {
                let why = format!("{} bytes to tell a rank", message.len());
                return Err(failed(why));
            }
            match agent.with_reserve(|| try_tell(nonce, &message)) {
                Err(error) if error.is_want_of_descriptors() => return Err(error),
                Err(error) => tracing::debug!(%error, "a rank is gone"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Tells all ranks that they cannot be served. One that has been welcomed does not hear it.
    pub fn refuse(&self, why: &str) {
        self.nonces.iter().for_each(|&nonce| refuse(nonce, why));
    }
}

/// Whether the name is free by which a rank waits.
fn is_free(nonce: u64) -> bool {
    DescriptorListener::listen(&socket_name(nonce), 1).is_ok()
}

fn try_tell(nonce: u64, message: &[u8]) -> Result<()> {
    let (name, deadline) = (socket_name(nonce), Instant::now() + LOOK);
    DescriptorListener::send_to_listener(&name, message, &[], deadline).map(drop)
}

fn tell(nonce: u64, message: &[u8]) {
    if let Err(error) = try_tell(nonce, message) {
        log_unheard(&error);
    }
}

/// A rank does not hear that it is refused: it is gone, or waits until its time is over.
fn log_unheard(error: &Error) {
    match error.is_want_of_descriptors() {
        true => tracing::warn!(%error, "a rank does not hear why it is refused"),
        false => tracing::debug!(%error, "a rank that is refused is gone"),
    }
}

fn refusal(kind: u8, why: &str) -> Vec<u8> {
    [&prefix()[..], &[kind], why.as_bytes()].concat()
}

fn refuse(nonce: u64, why: &str) {
    tell(nonce, &refusal(REFUSED, why));
}

/// Tells a rank that its agent ends: where it knows how, it starts another one.
fn end(nonce: u64, why: &str) {
    tell(nonce, &refusal(ENDS, why));
}

impl Reception {
    /// Takes `name` for an agent of jobs with so many ranks here, on so many nodes, which may come
    /// from now on. Of at most `most` jobs some ranks may have come and others not; further ones are
    /// refused.
    ///
    /// # Errors
    /// A number of ranks that is 0 or above [`MOST_RANKS`], or a name that another agent has.
    pub fn open(name: &str, ranks: u32, nodes: RangeInclusive<u32>, most: usize) -> Result<Self> {
        if !(1..=MOST_RANKS).contains(&ranks) {
            let why = format!("{ranks} ranks of an agent; possible are 1 to {MOST_RANKS}");
            return Err(Error::config("ranks", why));
        }
        let listener = DescriptorListener::listen(name, ranks + 8)?;
        listener.keep_reserve()?;
        Ok(Self {
            listener,
            ranks,
            nodes,
            most,
            is_short: false,
            parties: Vec::new(),
        })
    }

    /// Ranks of each job.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Whether nobody waits here for the other ranks of a job.
    pub fn is_empty(&self) -> bool {
        self.parties.is_empty()
    }

    /// Waits until all ranks of a job have come, one of `others` is readable, those who waited here
    /// have all gone, or the deadline has passed: then it is none. A rank that ends meanwhile gives its place free; one that is of
    /// another version or wants a place that is taken is refused.
    ///
    /// Where descriptors run out, those that come meanwhile are refused or wait.
    ///
    /// # Errors
    /// The socket fails.
    pub fn receive(
        &mut self,
        others: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<Option<Party>> {
        let had_some = !self.parties.is_empty();
        loop {
            while let Some((bytes, _, process)) = self.accept()? {
                if let Some(party) = self.seat(&bytes, process) {
                    return Ok(Some(party));
                }
            }
            self.forget_gone();
            if had_some && self.parties.is_empty() {
                // Who calls may have another deadline, now that nobody waits here.
                return Ok(None);
            }
            // Nothing announces the end of a rank that waits here.
            let must_look = self.is_short || !self.parties.is_empty();
            let look = must_look.then(|| Instant::now() + LOOK);
            let until = deadline.into_iter().chain(look).min();
            let until = until.unwrap_or_else(|| Instant::now() + LONG);
            let is_other = match self.is_short {
                // Who has connected stays so.
                true => wait_for_any(others, until)?.is_some(),
                false => self.listener.wait_with(others, until)?,
            };
            if is_other || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    fn accept(&mut self) -> Result<Option<Accepted>> {
        let accepted = self.listener.try_accept();
        self.is_short = accepted.as_ref().is_err_and(Error::is_want_of_descriptors);
        match accepted {
            Err(error) if self.is_short => {
                tracing::debug!(%error, "ranks that come have to wait");
                Ok(None)
            }
            accepted => accepted,
        }
    }

    /// Gives the places free of ranks that have ended, or do not wait any more: then the name is
    /// free by which they wait.
    fn forget_gone(&mut self) {
        for party in &mut self.parties {
            for place in &mut party.places {
                place.take_if(|(nonce, watch)| watch.has_ended() || is_free(*nonce));
            }
        }
        let is_waited_for = |party: &Gathering| party.places.iter().any(Option::is_some);
        self.parties.retain(is_waited_for);
    }

    /// Gives a rank the place that it wants, or any; its job, once all ranks of that have come.
    fn seat(&mut self, bytes: &[u8], process: u32) -> Option<Party> {
        // The nonce stands last in what every version says: where it can be refused.
        let (said, nonce) = bytes.split_last_chunk::<8>()?;
        let nonce = u64::from_le_bytes(*nonce);
        self.forget_gone();
        let watched = match ProcessWatch::open(process) {
            Ok(watch) => Ok(watch),
            Err(error) if error.is_no_process() => return None,
            Err(error) => Err(error.to_string()),
        };
        let seated = watched.and_then(|watch| {
            let (at, place) = self.place_for(behind_versions(said)?)?;
            self.parties[at].places[place] = Some((nonce, watch));
            Ok(at)
        });
        match seated {
            Ok(at) => self.complete(at),
            Err(why) if why.is_empty() => {
                tracing::warn!(process, "refused what is no rank of any version");
                None
            }
            Err(why) => {
                tracing::warn!(process, why, "refused a rank");
                self.refuse(nonce, &why);
                None
            }
        }
    }

    fn refuse(&self, nonce: u64, why: &str) {
        let refusal = refusal(REFUSED, why);
        let told = self.listener.with_reserve(|| try_tell(nonce, &refusal));
        if let Err(error) = told {
            log_unheard(&error);
        }
    }

    /// Refuses all ranks of a job that had come.
    pub fn refuse_all(&self, party: &Party, why: &str) {
        let nonces = party.nonces.iter();
        nonces.for_each(|&nonce| self.refuse(nonce, why));
    }

    /// The job and the place that a rank asks for.
    fn place_for(&mut self, said: &[u8]) -> Result<(usize, usize), String> {
        let (wanted, job) = said.split_first_chunk::<4>().ok_or_else(String::new)?;
        let wanted = u32::from_le_bytes(*wanted);
        let (nodes, job) = job.split_first_chunk::<4>().ok_or_else(String::new)?;
        let nodes = u32::from_le_bytes(*nodes);
        let job = std::str::from_utf8(job).map_err(|_| String::new())?;
        if job.len() > JOB_BYTES_MAX {
            return Err(format!("its job has a name of {} bytes", job.len()));
        }
        if nodes != 0 && !self.nodes.contains(&nodes) {
            let (least, most) = (self.nodes.start(), self.nodes.end());
            return Err(match least == most {
                true => format!("its job has ranks on {nodes} nodes, and this agent's on {most}"),
                false => format!("its job has ranks on {nodes} nodes, of {most} with agents"),
            });
        }
        // 0 and all are the same.
        let nodes = if nodes == 0 { *self.nodes.end() } else { nodes };
        let ranks = self.ranks;
        if wanted != ANY && wanted >= ranks {
            return Err(format!(
                "this agent has {ranks} places, and none is {wanted}"
            ));
        }
        let free = |party: &Gathering| match wanted {
            ANY => party.places.iter().position(Option::is_none),
            wanted => party.places[wanted as usize]
                .is_none()
                .then_some(wanted as usize),
        };
        let mut parties = self.parties.iter().enumerate();
        let found = parties.find_map(|(at, party)| {
            let is_theirs = (&*party.job, party.nodes) == (job, nodes);
            let place = free(party).filter(|_| is_theirs)?;
            Some((at, place))
        });
        if let Some(found) = found {
            return Ok(found);
        }
        if self.parties.len() >= self.most {
            let other = self.parties.first().filter(|other| other.job != job);
            return Err(match (self.most, wanted, other) {
                (1, _, Some(other)) => format!(
                    "this agent waits for ranks of job `{}`, and this one is of `{job}`: an agent \
                     with --linger-ms has several jobs",
                    other.job
                ),
                (1, ANY, _) => format!("all {ranks} places of this agent are taken"),
                (1, wanted, _) => format!("place {wanted} of this agent is taken"),
                (most, ..) => format!("{most} jobs wait at this agent for ranks of theirs"),
            });
        }
        let mut places = Vec::new();
        places.resize_with(ranks as usize, || None);
        self.parties.push(Gathering {
            job: job.to_owned(),
            nodes,
            places,
        });
        Ok((
            self.parties.len() - 1,
            if wanted == ANY { 0 } else { wanted as usize },
        ))
    }

    fn complete(&mut self, at: usize) -> Option<Party> {
        if self.parties[at].places.iter().any(Option::is_none) {
            return None;
        }
        let Gathering { job, nodes, places } = self.parties.remove(at);
        let nonces = places.into_iter().flatten().map(|(nonce, _)| nonce);
        Some(Party {
            job,
            nodes,
            nonces: nonces.collect(),
        })
    }

    /// Gives up the name, and tells who waits here why.
    pub fn close(self, why: &str) {
        let Self {
            listener, parties, ..
        } = self;
        // Whoever is told comes again at once: not to this one.
        listener.lock_out();
        let places = parties.into_iter().flat_map(|party| party.places);
        let mut waiting: Vec<u64> = places.flatten().map(|(nonce, _)| nonce).collect();
        // Who has connected so far is told, too.
        let soon = Instant::now() + LAST_WORDS;
        loop {
            match listener.try_accept() {
                Ok(Some((bytes, ..))) => {
                    let nonce = bytes.split_last_chunk::<8>();
                    waiting.extend(nonce.map(|(_, nonce)| u64::from_le_bytes(*nonce)));
                }
                // Between its connection and its message.
                Ok(None) if listener.is_owed() && Instant::now() < soon => sleep(PAUSE),
                Ok(None) | Err(_) => break,
            }
        }
        drop(listener);
        waiting.into_iter().for_each(|nonce| end(nonce, why));
    }
}

/// How long an agent that closes waits for messages of those who have connected.
const LAST_WORDS: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(1);

/// How long it sleeps where nothing has to be looked at.
const LONG: Duration = Duration::from_secs(3600);
