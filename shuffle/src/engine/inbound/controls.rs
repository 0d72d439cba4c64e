//! Control messages: what peers are told when no batch takes it along, and what they tell.

use trihop_transport::link::{Link, PostError};
use trihop_transport::memory::pool::{Buffer, Pool};
use trihop_transport::protocol::credit::Place;
use trihop_transport::protocol::tags::{TagClass, token};
use trihop_transport::protocol::wire::{BATCH_HEADER_BYTES, BatchHeader, BatchKind, ClearToSend};
use zerocopy::{FromBytes, IntoBytes};

use super::{CONTROL_BYTES, Links, Unposted};
use crate::engine::incoming::Missed;
use crate::engine::queues::Queues;
use crate::error::{Error, Result};
use crate::queue::remotes::Remotes;
use crate::stats::Stats;

/// In so many rounds that moved something a batch takes news along, or they are sent without one.
const WITHHELD_ROUNDS: u32 = 16;

const NOTICES_PER_CONTROL: usize = (CONTROL_BYTES - BATCH_HEADER_BYTES) / size_of::<ClearToSend>();

impl Links {
    /// Sends control messages where counters or notices are due and no batch took them along.
    /// `idle`: nothing else moved, so that waiting for a batch to ride on is pointless. A peer that
    /// has nothing left to send with is told even while others keep this rank busy, and before long
    /// so is any other: what it waits for may be that its last batch has been accepted.
    pub fn send_controls(
        &mut self,
        link: &mut dyn Link,
        remotes: &mut Remotes,
        pool: &Pool,
        (idle, now_ns): (bool, u64),
        stats: &mut Stats,
    ) -> Result<bool> {
        let mut told = false;
        for at in remotes.places_from(self.identity.own) {
            let Some(index) = remotes.busy(at) else { break };
            let (incoming, remote) = (&mut self.incoming[index], &mut remotes[index]);
            let withheld = incoming.withheld;
            incoming.withheld += u32::from(incoming.news);
            let due = !incoming.notices.is_empty()
                || incoming.must_tell
                || incoming.must_recall
                || incoming.news
                    && (idle
                        || withheld >= WITHHELD_ROUNDS
                        || incoming.unacknowledged * 2 >= remote.credit.max_in_flight()
                        || incoming.starves())
                || incoming.controls.must_send();
            // A stopped peer may keep what was sent to it: not all that others need.
            let presses = || {
                let has_room = || 2 * pool.free_slots() > pool.slots();
                remote.is_overdue(now_ns) && has_room() && incoming.controls.may_press()
            };
            if !(due && incoming.controls.may_send() || presses()) {
                continue;
            }
            let Some(mut buffer) = pool.take() else { break };
            let count = incoming.notices.len().min(NOTICES_PER_CONTROL);
            let payload = count * size_of::<ClearToSend>();
            let before = incoming.told();
            let header = BatchHeader {
                kind: match incoming.must_recall {
                    true => BatchKind::Recall,
                    false => BatchKind::Control,
                },
                stream: self.identity.stream,
                epoch: self.identity.epoch,
                source: self.identity.own,
                bytes: payload as u32,
                stage: remote.stage.number(),
                sequence: remote.credit.next_sequence(),
                counters: incoming.counters(remote.credit.large_returned(), remote.wanted(0)),
            };
            header.write(self.identity.cookie, &mut buffer);
            let end = BATCH_HEADER_BYTES + payload;
            buffer[BATCH_HEADER_BYTES..end].copy_from_slice(incoming.notices[..count].as_bytes());
            let stream = self.identity.stream;
            let mark = token(stream, TagClass::Sent, 0);
            match link.post_send(
                remote.peer,
                self.identity.tag(TagClass::Control, 0),
                buffer,
                end,
                mark,
            ) {
                Ok(()) => {
                    incoming.notices.drain(..count);
                    incoming.controls.sent();
                    incoming.must_recall = false;
                    remote.told(now_ns);
                    remote.wire_bytes += end as u64;
                    stats.controls_sent += 1;
                    told = true;
                }
                Err(PostError::WouldBlock(_)) => incoming.take_back(before),
                Err(PostError::Failed(_, error)) => return Err(error.into()),
            }
        }
        Ok(told)
    }

    /// A connection that breaks between two that live takes with it what the provider had taken:
    /// nobody else notices.
    pub(super) fn check_missing(
        &mut self,
        index: usize,
        header: &BatchHeader,
        now_ns: u64,
    ) -> Result<()> {
        let missed = self.incoming[index].misses(header.sequence, now_ns);
        let Some((number, missed)) = missed else {
            return Ok(());
        };
        let rank = header.source.0;
        let what = match missed {
            Missed::Batch => {
                format!(
                    "its batch {number} has not come, and word that it was sent came a minute ago"
                )
            }
            Missed::Announced { .. } => format!(
                "its batch {number} was announced, and nothing more of it came for a minute"
            ),
            Missed::Controls { .. } => {
                "for a minute it has confirmed nothing that it was told".to_owned()
            }
        };
        let why = format!("{what}: a connection may have broken");
        Err(trihop_transport::Error::LinkFailed { rank, why }.into())
    }

    /// Takes a control message of a peer.
    pub(super) fn control(
        &mut self,
        buffer: Buffer,
        bytes: usize,
        queues: &mut Queues,
        stats: &mut Stats,
    ) -> Result<()> {
        let mut sender = None;
        if let Some((index, header)) = self.parse(&buffer[..bytes], queues, stats) {
            sender = Some(index);
            let now_ns = queues.now_ns;
            let remote = &mut queues.remotes[index];
            self.counters(index, &header, Place::before(header.sequence), remote)?;
            self.check_missing(index, &header, now_ns)?;
            let notices = &buffer[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + header.bytes as usize];
            let notices = <[ClearToSend]>::ref_from_bytes(notices).map_err(|_| {
                Error::bad_peer(header.source.0, "clear-to-send notices of a wrong length")
            })?;
            for notice in notices {
                if !remote.is_lost && !remote.clear_to_send(notice) {
                    let why = format!(
                        "clear-to-send for batch {} that is not announced",
                        notice.sequence
                    );
                    return Err(Error::bad_peer(header.source.0, why));
                }
            }
            match header.kind {
                BatchKind::Control => {}
                BatchKind::Recall => remote.recalled = true,
                _ => {
                    let why = "data with the tag of control messages";
                    return Err(Error::bad_peer(header.source.0, why));
                }
            }
        }
        self.unposted.push(Unposted {
            class: TagClass::Control,
            number: 0,
            buffer,
            link: sender,
        });
        Ok(())
    }
}
