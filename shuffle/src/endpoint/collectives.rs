//! The job's own stream, over which collectives travel.

use super::{Engine, SYSTEM_STREAM};
use crate::config::{Shares, StreamOptions};
use crate::engine::inbound::Links;
use crate::engine::outbound::Outbound;
use crate::engine::sink::Sink;
use crate::error::{Error, Result};
use crate::terminate::collective::{Operation, Ticket};
use crate::terminate::flush::Fence;

/// Whose collectives come in one order on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Those that the program calls.
    Calls,
    /// Those of a thread that opens and closes streams beside it.
    Apart,
}

/// Number of [`Channel::Apart`]: no stream has it.
const APART: u16 = u16::MAX;

/// Number of the fences of all streams, beside which the program calls collectives: no stream has
/// it either.
pub(crate) const FENCES: u16 = u16::MAX - 1;

impl Engine {
    /// Options of the system stream: small, and nothing waits.
    pub fn system_options() -> StreamOptions {
        StreamOptions {
            remote_buftarget_bytes: 8192,
            remote_maxrpc: 2,
            linger_us: 0,
            run_bytes: 512,
            spill_bytes: 64 << 10,
            // What all ranks gather travels as one record.
            max_message_bytes: u32::MAX as usize,
            given_shares: Some(Shares {
                lane_budget_bytes: 512 << 10,
                send_pool_bytes: 64 << 10,
                receive_pool_bytes: 64 << 10,
                run_table_bytes: 16 << 10,
                small_slot_bytes: 512,
                spill_mark_bytes: 64 << 10,
                block_bytes: 0,
                ..Shares::default()
            }),
            ..StreamOptions::default()
        }
    }

    /// Takes in and sends out messages of collectives.
    pub(super) fn pump_collectives(&mut self) -> Result<bool> {
        let Some(&system) = self.open.first() else {
            return Ok(false);
        };
        let mut worked = false;
        if let Sink::Collectives(heard) = &mut self.streams[system].sink {
            while let Some((source, kind, bytes)) = heard.pop() {
                worked = true;
                // Where ranks are missed, the others need not have called the same.
                match self.collectives.receive(source, kind, &bytes) {
                    Err(error) if self.lost.is_empty() => return Err(error),
                    _ => {}
                }
            }
        }
        match self.collectives.take_mismatch() {
            Some(error) if self.lost.is_empty() => return Err(error),
            _ => {}
        }
        while let Some(message) = self.collectives.front() {
            match self.outs[system].try_send(message.target, message.kind, &message.bytes) {
                Ok(()) => {
                    self.collectives.pop();
                    worked = true;
                }
                Err(Error::WouldBlock) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(worked)
    }

    /// What is called by collectives of this number, in words.
    pub fn collectives_of(&self, channel: u16) -> String {
        match channel {
            FENCES => "a fence of all streams".to_owned(),
            APART => "the opening or the end of a stream, by a thread".to_owned(),
            SYSTEM_STREAM => {
                "a collective call of the job: a barrier, a reduction, the opening of \
                 a stream, or the end"
                    .to_owned()
            }
            _ => {
                let mut open = self.open_streams().map(|(state, _)| state);
                match open.find(|state| state.id == channel) {
                    Some(state) => {
                        format!(
                            "a fence, a barrier or the end of a step of `{}`",
                            state.name
                        )
                    }
                    None => "a fence or the end of a stream that is closed here, or not yet open"
                        .to_owned(),
                }
            }
        }
    }

    /// What the job's own stream sends, once that is open.
    fn system(&self) -> Option<&Outbound> {
        self.open.first().map(|&system| &self.outs[system])
    }

    /// Contributes to a collective on a channel of the job's.
    pub fn begin_collective(
        &mut self,
        channel: Channel,
        operation: Operation,
        contribution: &[u8],
    ) -> Ticket {
        let number = match channel {
            Channel::Calls => SYSTEM_STREAM,
            Channel::Apart => APART,
        };
        self.collectives.begin(number, operation, contribution)
    }

    /// Whether a fence of all open streams together is complete on all ranks; to be asked after each
    /// round of progress.
    pub fn poll_fence(&mut self, fence: &mut Fence) -> bool {
        let Some((&system, open)) = self.open.split_first() else {
            return false;
        };
        let (streams, outs) = (&mut self.streams, &mut self.outs);
        if !fence.has_begun() {
            open.iter().for_each(|&at| streams[at].hurry());
            fence.begin(&mut outs[system], FENCES, &mut self.collectives);
        }
        let is_quiet = open.iter().all(|&at| streams[at].is_quiet(&outs[at]));
        let counts = is_quiet.then(|| {
            let mut sum = self.retired;
            let counts = open.iter().map(|&at| streams[at].counts(&outs[at]));
            counts.for_each(|counts| sum.add(counts));
            sum
        });
        if counts.is_some() {
            self.guard_what_is_shown();
        }
        let outs = &mut self.outs;
        let is_over = fence.is_over(counts, &mut outs[system], &mut self.collectives);
        if is_over {
            let open = self.open[1..].iter();
            open.for_each(|&at| self.streams[at].calm());
        }
        is_over
    }

    /// Has each open stream hide what this rank shows for a fence of all streams, before it sends
    /// or delivers anything.
    pub(super) fn guard_what_is_shown(&mut self) {
        let Some((&system, open)) = self.open.split_first() else {
            return;
        };
        if let Some(line) = self.outs[system].queues.census_line() {
            let outs = &mut self.outs;
            open.iter()
                .for_each(|&at| outs[at].queues.hide_with_census(&line));
        }
    }

    /// The fence of all streams that has begun is given up: it may never be over.
    pub fn give_up_fence(&mut self) {
        if let Some(&system) = self.open.first() {
            self.outs[system].queues.give_up_census();
        }
        self.calm_all();
    }

    /// Whether all results of collectives that others wait for have left this rank, and nobody
    /// waits to hear that it has taken theirs: nobody needs its progress for them.
    pub fn has_passed_on_results(&mut self) -> bool {
        if self.collectives.front().is_some() {
            return false;
        }
        let Some(&system) = self.open.first() else {
            return true;
        };
        let (out, state) = (&self.outs[system], &mut self.streams[system]);
        let mut links = out.queues.remotes.iter_busy();
        let sent = !out.has_partial()
            && !out.queues.is_stirred
            && links.all(|link| link.has_posted(link.sealed()));
        sent && state.inbound.links.as_mut().is_none_or(Links::has_thanked)
    }

    /// As [`Engine::has_passed_on_results`], and the provider is done with sending them: no
    /// progress of this rank is needed for them to arrive, since their receivers still wait, and
    /// what goes through relays is theirs to send on.
    pub fn has_left_results(&mut self) -> bool {
        self.has_passed_on_results()
            && self
                .system()
                .is_none_or(|out| out.queues.remotes.has_left())
    }
}
