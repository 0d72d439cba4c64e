//! How the channels of a job are opened.

use trihop_transport::secret::Secret;
use trihop_transport::sync::Arc;
use trihop_transport::topology::Topology;

use super::owner::Place;
use super::parts::Carriers;
use super::wire::{HEAD_BYTES, OPENING_BYTES};
use super::{Channels, Kept, Office};
use crate::config::{Shares, StreamOptions, getmsg_bytes_from_env};
use crate::endpoint::Channel as CollectiveOrder;
use crate::error::{Error, Result};
use crate::face::shuffle::{Shuffle, ShuffleBuilder};
use crate::queue::shared::SharedMemory;
use crate::route::RouteName;
use crate::seat::{self, Seat};
use crate::terminate::reduce::Reduce;

/// Opens the [`Channels`] of a job: options.
pub struct ChannelsBuilder<S: Seat> {
    seat: S,
    name: String,
    options: Option<StreamOptions>,
    getmsg_bytes: Option<u64>,
    kept: Option<Kept>,
}

impl<S: Seat> ChannelsBuilder<S> {
    pub(crate) fn new(seat: &S, name: &str) -> Self {
        Self {
            seat: seat.clone(),
            name: name.to_owned(),
            options: None,
            getmsg_bytes: None,
            kept: None,
        }
    }

    /// Options of the channels' stream instead of the job's. None of those that are about delivery
    /// threads says anything here: whoever makes progress answers for channels, and no handler
    /// keeps it from that. Where nodes have several relays, there is a stream with these options
    /// for each of a node's, by which parts of long messages go: docs/CHANNELS.md.
    /// `max_message_bytes` is at least 96; a message of a channel has at most 56 less.
    pub fn options(mut self, options: StreamOptions) -> Self {
        self.options = Some(options);
        self
    }

    /// Bytes of messages that this rank hands out of its channels and that have not arrived at the
    /// ranks which get them: beyond these, gets wait, and those that are tried once are
    /// [`Error::WouldBlock`]. One message may be longer. It is this rank's alone; without it, it is
    /// that of `TRIHOP_MAX_GETMSG_MB`, and none where that is not set. With it, each message that
    /// is handed out is answered by a word that it has arrived.
    pub fn getmsg_bytes(mut self, bytes: u64) -> Self {
        self.getmsg_bytes = Some(bytes);
        self
    }

    /// Goes on with what this rank has [kept](Channels::keep) of its channels in an earlier job:
    /// their descriptors name them again, for whoever [attaches](Channels::attach) anew, and the
    /// messages are in them. A rank that has kept nothing, since it is a new process, opens without
    /// this: what it had is [`Error::NoChannel`]. The job has as many ranks as that, and each
    /// process its old number.
    pub fn keeping(mut self, kept: &Kept) -> Self {
        self.kept = Some(kept.clone());
        self
    }

    /// Opens the channels, of which there are none yet; collective.
    ///
    /// # Errors
    /// Impossible options, ranks that disagree, memory, and the transport's; [`Error::Config`] of
    /// `kept` on all ranks where what one has kept cannot be gone on with, or has a longer message
    /// than `max_message_bytes` less 56: it has all of it still. Where options of one rank alone
    /// are impossible it says so, and the others are told [`Error::Mismatch`].
    pub fn open(self) -> Result<Channels<S>> {
        let Self {
            seat,
            name,
            options,
            getmsg_bytes,
            kept,
        } = self;
        let (topology, usual) = seat.with("opening channels", |job| {
            Ok((job.engine.topology.clone(), job.options.stream.clone()))
        })?;
        let rank = topology.rank();
        let options = options.unwrap_or(usual);
        let message_bytes = options.max_message_bytes;
        // What is wrong on this rank alone is said here, once all have heard that something is.
        let possible = match getmsg_bytes {
            _ if message_bytes < OPENING_BYTES => {
                let why = format!("{message_bytes}: channels need at least {OPENING_BYTES}");
                Err(Error::config("max_message_bytes", why))
            }
            Some(bytes) => Ok(Some(bytes)),
            None => getmsg_bytes_from_env(),
        };
        let getmsg_bytes = possible.clone().unwrap_or_default();
        let possible = possible.map(drop);
        let office = Office::new(rank, getmsg_bytes, message_bytes);
        let open = |name: &str, options| -> Result<_> {
            let builder = ShuffleBuilder::new(&seat, name).options(options);
            let opened = builder.handle_by(S::in_turn(office.handler())).open()?;
            Ok(opened.handle)
        };
        let others: Vec<_> = by_other_relays(&topology, &options).collect();
        let longest_part = others.first().map(|options| options.max_message_bytes);
        let handle = open(&name, sharing(&topology, options)).map_err(|error| match &possible {
            Err(own) => own.clone(),
            Ok(()) => error,
        })?;
        let mut opened = Vec::new();
        for (number, options) in (1..).zip(others) {
            match open(&format!("{name} {number}"), options) {
                Ok(other) => opened.push(other),
                // One that does not fit memory on some rank, or the limits of an agent, which all
                // have agreed on: they do without it.
                Err(
                    error @ (Error::Config { .. }
                    | Error::Environment { .. }
                    | Error::Mismatch { .. }),
                ) => {
                    tracing::warn!(channels = name, %error, "long messages go over fewer relays");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        // Before others can send any.
        if let Some(memory) = seat.with("opening channels", |job| {
            let (_, out) = job.engine.stream(handle.id)?;
            let lanes = &out.queues.lanes;
            let Some(own) = lanes.blocks() else {
                return Ok(None);
            };
            let areas = lanes.block_areas()?;
            let most = message_bytes.saturating_sub(HEAD_BYTES);
            let own = Arc::clone(own);
            Ok(Some(SharedMemory::new(topology.clone(), own, areas, most)))
        })? {
            office.share(memory);
        }
        let others: Arc<[_]> = opened.into();
        if let Some(longest_part) = longest_part.filter(|_| !others.is_empty()) {
            let streams = [&handle].into_iter().chain(&*others);
            let streams = streams.map(|handle| handle.id).collect();
            // Before others can send any.
            office.cut_by(Carriers::new(streams, topology, longest_part));
        }
        let new = match rank.0 {
            0 => Secret::random()?.derive("channels"),
            _ => 0,
        };
        let places = kept.as_ref().and_then(Kept::take);
        let is_other = |kept: &Kept| (kept.owner, kept.size) != (rank.0, handle.size);
        let is_wrong = |kept: &Kept| places.is_none() || is_other(kept);
        let most = message_bytes.saturating_sub(HEAD_BYTES);
        let is_too_long = |place: &Place| place.longest_bytes() > most;
        let mine = Opened {
            kept: kept.as_ref().map(|kept| [kept.job, !kept.job]),
            refused: match &kept {
                _ if possible.is_err() => Refused::Here,
                Some(kept) if is_wrong(kept) => Refused::Kept,
                _ if places.iter().flatten().any(is_too_long) => Refused::TooLong,
                _ => Refused::Not,
            },
            new,
        };
        let given_back = kept.filter(|_| places.is_some());
        // Before others can ask for them.
        office.owner().resume(places.unwrap_or_default());
        let mut all = mine.words();
        let what = "opening channels";
        let agreed = seat.one_at_a_time(None, what, || {
            seat::allreduce(&seat, CollectiveOrder::Calls, &mut all, Reduce::Max)
        });
        let job = agreed.and(possible).and_then(|()| Opened::job(&name, all));
        if let (Err(_), Some(kept)) = (&job, &given_back) {
            kept.give_back(office.owner().unresumed());
        }
        let job = match job {
            Ok(job) => job,
            Err(error) => {
                // On all ranks alike, unless the job has failed: then its end ends these.
                let streams = others.iter().chain([&handle]).cloned();
                for handle in streams {
                    let _ = Shuffle { handle }.shutdown();
                }
                return Err(error);
            }
        };
        if job != all[Opened::NEW] {
            office
                .owner()
                .begin_at(Secret::random()?.derive("epochs") as u32);
        }
        let (weak, main) = (Arc::downgrade(&office), handle.id);
        seat.with(what, |job| {
            job.hear_of_losses_by(Box::new(move |engine, loss, woken| {
                let Some(office) = weak.upgrade() else {
                    return false;
                };
                if let Some(loss) = loss {
                    office.lose(engine, main, loss, woken);
                }
                true
            }));
            Ok(())
        })?;
        Ok(Channels {
            handle,
            others,
            office,
            job,
            message_bytes,
        })
    }
}

/// The options of the stream, with a quarter of `memory_bytes`, and 64 MiB at most, for long
/// messages: those between ranks of a node lie there for as long as they are in a channel. A rank
/// that is alone needs nothing of the kind.
fn sharing(topology: &Topology, options: StreamOptions) -> StreamOptions {
    let shares = Shares {
        block_bytes: match topology.size() {
            1 => 0,
            _ => (options.memory_bytes / 4).min(MOST_SHARED_BYTES),
        },
        ..options.shares()
    };
    StreamOptions {
        given_shares: Some(shares),
        ..options
    }
}

const MOST_SHARED_BYTES: usize = 64 << 20;

/// Options of the streams by which parts of long messages go over other relays than those of a
/// stream with these: none where there are no others.
fn by_other_relays(
    topology: &Topology,
    options: &StreamOptions,
) -> impl Iterator<Item = StreamOptions> + use<> {
    let longest = options.max_message_bytes;
    let count = match options.route {
        RouteName::ThreeHop(rails) if rails.turn() == 0 => Carriers::count(topology, longest),
        _ => 1,
    };
    let mut options = StreamOptions {
        max_message_bytes: Carriers::longest_part(count, longest),
        ..options.clone()
    };
    // Parts are for other nodes.
    options.given_shares = Some(Shares {
        block_bytes: 0,
        ..options.shares()
    });
    (1..count).map(move |turn| StreamOptions {
        route: match options.route {
            RouteName::ThreeHop(rails) => RouteName::ThreeHop(rails.turned(turn)),
            route => route,
        },
        ..options.clone()
    })
}

/// Whether a rank refuses the opening.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Refused {
    Not = 0,
    /// The channels that it has kept cannot be gone on with.
    Kept = 1,
    /// One of their messages is longer than an answer of this opening.
    TooLong = 2,
    /// For something of its own, which it says itself.
    Here = 3,
}

/// What a rank says of the opening; the largest words of all ranks say what comes of it.
struct Opened {
    /// What channels that are kept have in common, and its complement.
    kept: Option<[u64; 2]>,
    refused: Refused,
    /// What new ones are to have in common.
    new: u64,
}

impl Opened {
    /// Which word is that.
    const NEW: usize = 3;

    fn words(&self) -> [u64; 4] {
        let [job, complement] = self.kept.unwrap_or_default();
        [job, complement, self.refused as u64, self.new]
    }

    /// What the channels of the opening have in common.
    fn job(name: &str, [kept, complement, refused, new]: [u64; 4]) -> Result<u64> {
        const KEPT: u64 = Refused::Kept as u64;
        const TOO_LONG: u64 = Refused::TooLong as u64;
        let wrong = |why: &str| Err(Error::config("kept", why));
        match (refused, kept, complement) {
            (0, 0, 0) => Ok(new),
            (0, ..) if kept == !complement => Ok(kept),
            (0, ..) => wrong("the ranks have kept channels of different openings"),
            (KEPT, ..) => wrong(
                "channels were kept by another rank, in a job of another size, or are open already",
            ),
            (TOO_LONG, ..) => wrong(
                "a message that was kept is longer than `max_message_bytes` less 56: raise that",
            ),
            _ => {
                let why = "another rank could not open it, and says why";
                Err(Error::mismatch(name, why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_rank_refuses_is_said_by_all() {
        let (job, new) = (5, 7);
        let said = |kept: Option<u64>, refused| {
            let mine = Opened {
                kept: kept.map(|kept| [kept, !kept]),
                refused,
                new,
            };
            Opened::job("channels", mine.words())
        };
        assert_eq!(said(None, Refused::Not), Ok(new));
        assert_eq!(said(Some(job), Refused::Not), Ok(job));
        for (refused, says) in [
            (Refused::Kept, "another rank"),
            (Refused::TooLong, "longer"),
        ] {
            match said(Some(job), refused) {
                Err(Error::Config { key, why }) => assert!(key == "kept" && why.contains(says)),
                other => panic!("{other:?}"),
            }
        }
        let here = said(None, Refused::Here);
        assert!(matches!(here, Err(Error::Mismatch { .. })), "{here:?}");
    }
}
