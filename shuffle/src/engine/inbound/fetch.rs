//! Batches that were announced: fetched in the order of their link, and taken when they have come.

use trihop_transport::link::{Link, Mover, PostError};
use trihop_transport::memory::pool::Buffer;
use trihop_transport::protocol::rendezvous::{Fetch, Fetched};
use trihop_transport::protocol::tags::{TagClass, token};
use trihop_transport::protocol::wire::{BatchHeader, BatchKind, ClearToSend};

use super::pull::Puller;
use super::{Came, Links, forget_header};
use crate::engine::incoming::Arrival;
use crate::engine::queues::Queues;
use crate::error::{Error, Result};
use crate::queue::lanes::Lanes;
use crate::queue::remote::RemoteQueue;
use crate::stats::Stats;

impl Links {
    /// Starts fetches of one link, in its order, so that a later batch never keeps an earlier one
    /// from its slot. Records go into memory behind the inbox at a place of the node, this
    /// endpoint's.
    pub(super) fn fetch(
        &mut self,
        index: usize,
        link: &mut dyn Link,
        remote: &RemoteQueue,
        (lanes, place): (&mut Lanes, u32),
    ) -> Result<()> {
        let Some(pool) = &self.fetch_pool else {
            return Ok(());
        };
        let (peer, epoch) = (remote.peer, remote.epoch);
        let incoming = &mut self.incoming[index];
        let next = incoming.window.next();
        for (expected, (sequence, arrival)) in (next..).zip(incoming.window.iter_mut()) {
            if sequence != expected {
                break;
            }
            // Each link that holds no fetch buffer can count on one for its front batch: others may
            // be waiting for just that batch, because it continues a record that occupies their
            // queues.
            // Where links are too many for that, some are kept for each later stage, and the last
            // one of a stage for a link whose record has begun.
            let beside_others = self.links - self.holding;
            let kept = match self.sizes.on_demand {
                true => {
                    let later = self.shared.len() - 1 - incoming.pool;
                    let goes_on = incoming.in_record && sequence == next;
                    2 * later + usize::from(!goes_on)
                }
                false if incoming.held > 0 => beside_others,
                false => 0,
            };
            if let Arrival::Record(record) = arrival {
                let mut puller = Puller {
                    fetches: &mut self.fetches,
                    parts: &mut incoming.parts,
                    more: &mut self.more_parts,
                    most_more: self.most_more_parts,
                    on_demand: self.sizes.on_demand,
                    takes_parts: self.takes_parts,
                    pool,
                    lanes,
                    link,
                    peer,
                    identity: &self.identity,
                    notices: &mut incoming.notices,
                    place,
                    frame_bytes: self.frame_bytes,
                    index,
                    epoch,
                    sequence,
                    refused: false,
                };
                let more = match self.sizes.on_demand {
                    true => 2 * self.shared.len(),
                    false => beside_others,
                };
                let (asked, failed) = puller.pull(record, sequence == next, [kept, more]);
                self.fetch_refused |= puller.refused;
                incoming.news |= !incoming.notices.is_empty();
                self.holding += usize::from(incoming.held == 0 && asked.buffers > 0);
                incoming.held += asked.buffers;
                if let Some(error) = failed {
                    return Err(error);
                }
                match asked.wholly {
                    true => continue,
                    false => break,
                }
            }
            let Arrival::Announced(memory, bytes, mover) = *arrival else {
                continue;
            };
            let bytes = bytes as usize;
            if pool.free_slots() <= kept {
                break;
            }
            let slot = self.fetches.begin(Fetch {
                link: index,
                epoch,
                sequence,
                from: 0,
                bytes,
                what: Fetched::Batch,
            });
            let Some(mut buffer) = pool.take() else {
                self.fetches.end(slot);
                break;
            };
            let stream = self.identity.stream;
            let number = slot as u32;
            let posted = match mover {
                Mover::Read => {
                    let mark = token(stream, TagClass::Read, number);
                    link.post_read(peer, memory, buffer, bytes, mark)
                }
                Mover::Segments => {
                    let class = TagClass::Segment;
                    forget_header(&mut buffer);
                    link.post_receive(
                        self.identity.tag(class, number),
                        buffer,
                        token(stream, class, number),
                    )
                }
            };
            match posted {
                Ok(()) => {
                    *arrival = Arrival::Fetching;
                    self.holding += usize::from(incoming.held == 0);
                    incoming.held += 1;
                    if mover == Mover::Segments {
                        incoming.notices.push(ClearToSend {
                            sequence: (sequence as u32).into(),
                            slot: number.into(),
                            first: 0.into(),
                            bytes: (bytes as u32).into(),
                        });
                        incoming.news = true;
                    }
                }
                Err(PostError::WouldBlock(_)) => {
                    self.fetches.end(slot);
                    self.fetch_refused = true;
                    break;
                }
                Err(PostError::Failed(_, error)) => {
                    self.fetches.end(slot);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// An announced batch has come.
    pub(super) fn fetched(
        &mut self,
        number: u32,
        buffer: Buffer,
        came: Came,
        queues: &Queues,
        stats: &mut Stats,
    ) -> Result<()> {
        let remotes = &queues.remotes;
        let Some(fetch) = self.fetches.get(number as usize) else {
            return Err(Error::bad_peer(
                self.identity.own.0,
                format!("no fetch in slot {number}"),
            ));
        };
        if fetch.what != Fetched::Batch {
            return self.part_came(number, fetch, buffer, came, queues, stats);
        }
        let remote = &remotes[fetch.link];
        let (end, epoch, stage) = (remote.end, remote.epoch, remote.stage);
        let bytes = match came {
            Came::ByRead => fetch.bytes,
            Came::AsSegment { bytes } => bytes.min(fetch.bytes),
        };
        let header = match BatchHeader::parse(&buffer[..bytes], self.identity.cookie) {
            Ok((header, _)) => header,
            // No member of the job need have sent it. The segment itself may still come.
            Err(error) if came != Came::ByRead => {
                self.strange(&error.to_string(), stats);
                self.post_again(TagClass::Segment, number, buffer);
                return Ok(());
            }
            // Its memory may be used for others by now, since it has lost this one, too.
            Err(_) if remote.is_lost => {
                self.fetches.end(number as usize);
                return Ok(());
            }
            Err(error) => return Err(Error::bad_peer(end.0, error)),
        };
        self.fetches.end(number as usize);
        let same = header.kind == BatchKind::Segment
            && (header.epoch, header.source, header.stage) == (epoch, end, stage.number())
            && header.sequence == fetch.sequence;
        if !same && remote.is_lost {
            return Ok(());
        }
        if !same {
            return Err(Error::bad_peer(
                end.0,
                "another batch came than was announced",
            ));
        }
        let incoming = &mut self.incoming[fetch.link];
        incoming.is_read |= came == Came::ByRead;
        if let Some(arrival) = incoming.window.get_mut(fetch.sequence) {
            *arrival = Arrival::Here {
                buffer,
                bytes: header.bytes,
                slot: None,
            };
            self.list(fetch.link);
        }
        Ok(())
    }
}
